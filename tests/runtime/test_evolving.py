"""What state and stages hold comes back exactly, by the names of fields, also after a class has changed."""

import collections
import dataclasses
import datetime as dt
import enum
import ipaddress
import json
import math
import pathlib
import sys
import tarfile
import types
from collections.abc import Collection
from decimal import Decimal
from fractions import Fraction
from typing import Any, Generic, Literal, NamedTuple, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import msgspec
import numpy as np
import pyarrow
import pydantic
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from runtime.encoding.serdes import Bytes, Declared, Evolving, Json, Tagged, decoded, encoded
from runtime.encoding.storable import difference
from runtime.model.errors import SerdeError
from samza_dsl import App, produce, skip
from tests.runtime import stored_classes
from tests.scale import examples

HERE = pathlib.Path(__file__).parent
OSLO = ZoneInfo("Europe/Oslo")
T = TypeVar("T")


class Isbn(str):
    """Text with a name of its own."""


class Money(Decimal):
    """A number whose class is not stored."""


@attrs.define
class Seat:
    row: int
    _side: str = "left"
    notes: Any = attrs.field(factory=dict, converter=dict)


class Model(pydantic.BaseModel):
    id: int
    at: dt.datetime
    amount: Decimal = Decimal(0)
    named: str = pydantic.Field(default="n", alias="calledBy")
    _seen: int = pydantic.PrivateAttr(default=0)


class Open(pydantic.BaseModel, extra="allow"):
    id: int


@dataclasses.dataclass
class Doubling:
    """Its constructor does not take it for what it was."""

    n: int
    start: dataclasses.InitVar[int] = 0

    def __post_init__(self, start):
        self.n = self.n * 2 + start


@dataclasses.dataclass
class Given:
    n: int
    start: dataclasses.InitVar[int]

    def __post_init__(self, start):
        self.n += start


@dataclasses.dataclass
class Careless:
    """As people write them: its types are not those of its values."""

    n: int = None
    ratio: float = None
    names: list[str] = dataclasses.field(default_factory=list)


class Box(msgspec.Struct, Generic[T]):
    inside: T


class Money2(msgspec.Struct, frozen=True):
    amount: Decimal
    at: dt.datetime
    kind: Literal["card", "cash"] = "card"


class Row(NamedTuple):
    key: str
    parts: tuple[int, ...] = ()


class Measured(msgspec.Struct):
    at: str
    c: float


class MeasuredModel(pydantic.BaseModel):
    at: str
    c: float


@attrs.define
class MeasuredAttrs:
    at: str
    c: float


@dataclasses.dataclass
class MeasuredData:
    at: str
    c: float


class Nested(msgspec.Struct):
    all: list[float]
    by: dict[str, float]


times = st.times() | st.times(timezones=st.just(dt.UTC))
zones = st.none() | st.sampled_from([dt.UTC, OSLO, dt.timezone(dt.timedelta(hours=5, minutes=45)), ZoneInfo("UTC")])
moments = st.datetimes(timezones=zones) | st.datetimes(timezones=st.just(OSLO), allow_imaginary=False)
leaves = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), moments, st.dates(), times),
    *(st.timedeltas(), st.decimals(), st.uuids(), st.fractions(), st.complex_numbers(), st.ip_addresses()),
    st.binary().map(bytearray),
    st.sampled_from([*stored_classes.Tier, dt.UTC, OSLO, range(1, 9, 3), slice(1, None), msgspec.UNSET, ...]),
    st.text().map(Isbn),
    st.sampled_from([pathlib.PurePosixPath("/a/b"), pathlib.Path("c"), ipaddress.ip_network("10.0.0.0/8")]),
    st.integers(-(2**63), 2**63 - 1).map(np.int64),
    st.floats(width=32).map(np.float32),
    st.floats().map(np.float64),
    st.booleans().map(np.bool_),
    st.text(st.characters(codec="utf-8", exclude_characters="\0")).map(np.str_),
    st.integers(0, 2**40).map(lambda n: np.datetime64(n, "ms")),
)


def holding(inner):
    hashable = st.one_of(st.text(), st.integers(), st.dates(), st.uuids(), st.tuples(st.integers(), st.text()))
    return st.one_of(
        *(st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple), st.frozensets(hashable, max_size=3)),
        *(st.dictionaries(hashable, inner, max_size=3), st.sets(hashable, max_size=3)),
        st.lists(inner, max_size=3).map(lambda items: collections.deque(items, 4)),
        st.dictionaries(st.text(), inner, max_size=3).map(collections.OrderedDict),
        st.dictionaries(st.text(), st.integers(), max_size=3).map(collections.Counter),
        st.dictionaries(st.text(), inner, max_size=3).map(lambda held: collections.defaultdict(list, held)),
        *(st.builds(Box, inner), st.builds(Seat, st.integers(), st.text(), st.dictionaries(st.text(), inner))),
        st.builds(Model, id=st.integers(-(2**60), 2**60), at=st.datetimes(), calledBy=st.text()),
        st.builds(lambda id, extra: Open(id=id, **extra), st.integers(), st.fixed_dictionaries({"more": inner})),
        st.builds(Careless, st.none() | st.floats(), st.none() | st.booleans(), st.lists(st.text())),
        st.builds(Row, st.text(), st.lists(st.integers()).map(tuple)),
        st.builds(Doubling, st.integers()),
        st.builds(stored_classes.Card, st.integers(), st.sampled_from(stored_classes.Tier), inner),
        st.builds(stored_classes.Flat, st.integers(), st.text(), st.lists(st.integers()).map(tuple)),
        st.builds(stored_classes.Listed, st.integers(), st.text()),
        st.builds(Money2, st.decimals(allow_nan=False), moments),
    )


values = st.recursive(leaves, holding, max_leaves=6)


def shape(value):
    """Return a value as what compares equal only to the same one, types, NaN and time zones included."""
    kind = type(value)
    if isinstance(value, float | complex | Decimal | np.generic):
        return kind, repr(value)
    if isinstance(value, dt.datetime | dt.time):
        return kind, value.replace(tzinfo=None), value.fold, repr(value.tzinfo)
    if isinstance(value, dict):
        extra = getattr(value, "default_factory", None)
        return kind, extra, [(shape(key), shape(one)) for key, one in value.items()]
    if isinstance(value, set | frozenset):
        return kind, sorted(map(repr, map(shape, value)))
    if isinstance(value, list | tuple | collections.deque):
        return kind, getattr(value, "maxlen", None), list(map(shape, value))
    if isinstance(value, pydantic.BaseModel):
        return kind, shape(value.__dict__), shape(value.model_extra), shape(value.__pydantic_private__)
    if dataclasses.is_dataclass(value) or attrs.has(kind):
        return kind, shape(vars(value) if hasattr(value, "__dict__") else attrs.asdict(value, recurse=False))
    if isinstance(value, msgspec.Struct):
        return kind, shape(msgspec.structs.asdict(value))
    return kind, value


def crossing(value):
    return Evolving().decode(Evolving().encode(value))


@given(values)
@example(math.nan)
@example([math.inf, {"a": -math.inf}])
@example(Seat(1, "right", {"a": 1}))
@example(stored_classes.Flat(2**70))
@settings(max_examples=examples(600, 100_000))
def test_a_value_comes_back_as_it_was(value):
    assert shape(crossing(value)) == shape(value)
    if "Careless" not in repr(shape(value)):  # the bytes of keys say nothing of a field that holds another type
        assert shape(Tagged().decode(Tagged().encode(value))) == shape(value)


@given(
    st.lists(values, max_size=4) | st.lists(st.builds(Row, st.text())) | st.lists(st.builds(Careless, st.integers()))
)
def test_a_column_comes_back_as_its_values_do(column):
    data = encoded(Evolving(), column)
    assert data == [Evolving().encode(value) for value in column]
    assert shape(decoded(Evolving(), data)) == shape(column)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (object(), "object"),
        (Money("1.5"), "Money"),
        (dt.datetime(2024, 1, 1, tzinfo=type("Odd", (dt.tzinfo,), {"utcoffset": lambda *_: None})()), "time zone"),
        (collections.defaultdict(lambda: 1), "defaultdict"),
        (np.array([object()]), "tolist"),
        (type("Local", (str,), {})("x"), "top of its module"),
        ([{"a": (lambda: 0)}], "declare"),
    ],
)
def test_what_has_no_stored_form_is_refused_by_its_name(value, says):
    with pytest.raises(SerdeError, match=says):
        Evolving().encode(value)


def test_an_array_comes_back_as_it_was():
    held = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = crossing({"embedding": held})["embedding"]
    assert found.dtype == held.dtype
    assert (found == held).all()
    found[0, 0] = 7  # it can be changed


@given(st.sampled_from([float, float | None, Any]), st.sampled_from([math.nan, math.inf, -math.inf]))
def test_no_number_becomes_null_unseen(kind, number):
    for declared, value in ((kind, number), (list[kind], [1.0, number]), (dict[str, kind], {"a": number})):
        with pytest.raises(SerdeError, match="has no JSON"):
            Json(declared).encode(value)
        assert repr(Declared(declared).decode(Declared(declared).encode(value))) == repr(value)
    assert Json(list[int | None]).encode([None, 1]) == Json().encode([None, 1]) == b"[null,1]"


def test_a_model_of_pydantic_is_a_type_as_any_other():
    one = Model(id=1, at=dt.datetime(2024, 1, 1, tzinfo=dt.UTC), calledBy="me")
    assert Json(Model).decode(Json(Model).encode(one)) == one
    assert Json(list[Model]).decode(Json(list[Model]).encode([one])) == [one]
    with pytest.raises(ValueError, match="at"):
        Json(Model).decode(b'{"id": 1}')
    assert Json().encode({"n": np.int64(3), "all": np.array([1.5])}) == b'{"n":3,"all":[1.5]}'


# Classes that change: a module of models, as two deployments have it.

HOW = {
    "Struct": {},
    "array_like": {"array_like": True},
    "forbid": {"forbid_unknown_fields": True},
    "omitting": {"omit_defaults": True},
    "renamed": {"rename": lambda name: chr(ord(name[0]) + 1) + name[1:]},
    "tagged": {"tag": True},
    "initialised": {},
}
"""Kinds of Structs."""
KINDS = (*HOW, "dataclass", "initialised dataclass", "namedtuple", "attrs", "pydantic")
PLAIN = {
    int: st.integers(-(2**53) + 9, 2**53 - 9),
    float: st.floats(),
    str: st.text(),
    bool: st.booleans(),
    dt.date: st.dates(),
    Decimal: st.decimals(allow_nan=False, allow_infinity=False),
    stored_classes.Tier: st.sampled_from(stored_classes.Tier),
    list[int]: st.lists(st.integers(-(2**53) + 9, 2**53 - 9), max_size=3),
    dict[str, float]: st.dictionaries(st.text(), st.floats(), max_size=2),
    tuple[int, str]: st.tuples(st.integers(-(2**53) + 9, 2**53 - 9), st.text()),
    Any: st.integers() | st.text() | st.tuples(st.integers()),
    stored_classes.Flat: st.builds(stored_classes.Flat, st.integers(0, 9)),
}
"""Types of fields and their values."""


def count_up(self):
    """Change what was given, as a constructor does that one would not want to be asked again."""
    for name in type(self).__annotations__:
        if type(getattr(self, name)) is int:
            setattr(self, name, getattr(self, name) + 1)


def new_class(kind, fields, name="Thing", module="evolving_models"):
    """Define a class in a module of its own, in the place of the one before; fields are (name, type[, default])."""
    where = sys.modules.setdefault(module, types.ModuleType(module))
    inside = {"__post_init__": count_up} if kind.startswith("initialised") else {}
    if kind in HOW:
        found = msgspec.defstruct(name, fields, kw_only=True, module=module, namespace=inside, **HOW[kind])
    elif kind.endswith("dataclass"):
        made = [(*one[:2], dataclasses.field(default=one[2])) if one[2:] else one for one in fields]
        found = dataclasses.make_dataclass(name, made, kw_only=True, namespace=inside)
    elif kind == "namedtuple":
        ordered = sorted(fields, key=len)
        found = collections.namedtuple(
            name, [one[0] for one in ordered], defaults=[one[2] for one in ordered if one[2:]]
        )
        found.__annotations__ = {one[0]: one[1] for one in ordered}
    elif kind == "attrs":
        made = {one[0]: attrs.field(type=one[1], **({"default": one[2]} if one[2:] else {})) for one in fields}
        found = attrs.make_class(name, made, kw_only=True)
    else:
        made = {one[0]: (one[1], one[2] if one[2:] else ...) for one in fields}
        found = pydantic.create_model(name, __config__={"arbitrary_types_allowed": True}, __module__=module, **made)
    found.__module__, found.__qualname__ = module, name
    setattr(where, name, found)
    return found


names = st.sampled_from(["a", "b", "c", "d", "e", "f"])


@st.composite
def evolutions(draw):
    """Draw a class, a value of it, and a compatible change: (kind, fields before, values, kind after, fields after).

    Some fields have defaults, which may be just what a value has, and other ones afterwards.
    """
    chosen = draw(st.lists(names, unique=True, min_size=1, max_size=4))
    types_of = {name: draw(st.sampled_from([*PLAIN])) for name in chosen}
    held = {name: draw(PLAIN[types_of[name]]) for name in chosen}
    after = []
    for name in draw(st.permutations(chosen)):
        change = draw(st.sampled_from(["kept", "removed", "widened", "optional"]))
        hint = types_of[name]
        if change == "widened" and hint is int:
            hint = float
        elif change == "optional" and hint is not Any:
            hint = hint | None
        if change != "removed":
            after.append((name, hint, hint(8)) if hint in (int, str) and draw(st.booleans()) else (name, hint))
    for name in draw(st.lists(names.filter(lambda name: name not in chosen), unique=True, max_size=2)):
        kind = draw(st.sampled_from([int, str, float]))
        after.append((name, kind, kind(7)))
    kind = draw(st.sampled_from(KINDS))
    before = [
        (name, hint, held[name]) if hint in (int, str) and draw(st.booleans()) else (name, hint)
        for name, hint in types_of.items()
    ]
    return kind, before, held, draw(st.sampled_from([kind, *KINDS])), after


@given(evolutions(), st.sampled_from(["alone", "in a list", "as a field", "in a column"]))
@settings(max_examples=examples(600, 10_000))
def test_what_was_stored_is_read_by_name_after_a_compatible_change(evolution, place):
    before, fields, held, after, changed = evolution
    one = new_class(before, fields)(**held)
    around = {"in a list": lambda v: [v, v], "as a field": Box}.get(place, lambda v: v)
    data = encoded(Evolving(), [around(one)])[0]
    held = {name: getattr(one, name) for name in held}
    kind = new_class(after, changed)
    found = decoded(Evolving(), [data, data])[1] if place == "in a column" else Evolving().decode(data)
    found = found[1] if place == "in a list" else found.inside if place == "as a field" else found
    assert type(found) is kind
    for name, hint, *default in changed:
        anew = [one + 1 if type(one) is int and after.startswith("initialised") else one for one in default]
        expected = held[name] if name in held else anew[0]
        got = getattr(found, name)
        if hint in (float, float | None) and type(expected) is int:
            expected = float(expected)
        assert shape(got) == shape(expected), name


INCOMPATIBLE = {
    int: [str, dt.date, list[int], dict[str, float]],
    str: [int, float, bool, list[int]],
    bool: [str, dt.date],
    float: [str, bool, list[int]],
    dt.date: [int, float, list[int]],
    list[int]: [int, str, dict[str, float], stored_classes.Flat],
    dict[str, float]: [int, str, list[int]],
    stored_classes.Flat: [int, str, list[int], dt.date],
    stored_classes.Tier: [int, float, list[int]],
    tuple[int, str]: [int, str, dict[str, float]],
}


@given(st.sampled_from([*INCOMPATIBLE]), st.data(), st.sampled_from(KINDS), st.sampled_from(KINDS))
@settings(max_examples=examples(400, 10_000))
def test_what_does_not_fit_is_an_error_and_never_another_value(hint, data, before, after):
    value = data.draw(PLAIN[hint])
    other = data.draw(st.sampled_from(INCOMPATIBLE[hint]))
    stored = Evolving().encode(new_class(before, [("a", hint), ("b", int)])(a=value, b=1))
    if data.draw(st.booleans()):
        new_class(after, [("a", other), ("b", int)])
    else:
        new_class(after, [("a", hint), ("b", int), ("needed", int)])
    for read in (Evolving().decode, lambda stored: Evolving().decode_all([stored, stored])):
        with pytest.raises(SerdeError, match="Thing"):
            read(stored)


INTEGERS = st.integers(-(2**63), 2**64 - 1) | st.sampled_from([2**53, 2**53 + 1, -(2**53) - 1, 2**1024])
WORDS = st.text(max_size=3) | st.sampled_from(["YWJj", "2024-03-01", "1.50", "1.5", "1", "true", "a" * 32])
MOMENTS = st.dates() | st.datetimes() | st.datetimes(timezones=st.just(dt.UTC))
SCALARS_HELD = (
    st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False) | WORDS | st.binary(max_size=3) | MOMENTS
) | st.decimals(allow_nan=False, allow_infinity=False)
ANY_HELD = (
    SCALARS_HELD
    | st.lists(INTEGERS, max_size=3)
    | st.lists(WORDS, max_size=3)
    | st.tuples(WORDS, INTEGERS)
    | st.sets(WORDS, max_size=3)
    | st.dictionaries(WORDS | INTEGERS, SCALARS_HELD, max_size=3)
)
DECLARED_NOW = [
    *(bool, int, float, complex, str, bytes, bytearray, Decimal, dt.date, dt.datetime, dt.time, dt.timedelta, UUID),
    *(list, set, tuple, dict, frozenset),
    *(list[int], list[float], list[bytes], list[Decimal], set[int], set[Decimal], frozenset[str], tuple[float, ...]),
    *(tuple[str, float], dict[str, int], dict[float, str], dict[Decimal, Any], dict[str, float], dict[bytes, Any]),
    *(float | str, bytes | int, dt.date | float, set[float] | None, list[dt.date] | str),
]


def says_the_same(put, found):
    """Whether what came back as another type is no other value: the number, the parts, or what its text says."""
    if isinstance(put, list | tuple | set | frozenset):
        return (
            isinstance(found, Collection)
            and len(put) == len(found)
            and (
                all(any(says_the_same(one, other) for other in found) for one in put)
                if isinstance(put, set | frozenset) or isinstance(found, set | frozenset)
                else all(map(says_the_same, put, found))
            )
        )
    if isinstance(put, dict):
        return len(put) == len(found) and all(
            any(says_the_same(key, other) and says_the_same(part, found[other]) for other in found)
            for key, part in put.items()
        )
    if isinstance(put, dt.datetime) or isinstance(found, dt.datetime):
        return isinstance(found, dt.datetime) and (put == found or dt.datetime.fromisoformat(str(put)) == found)
    if put == found:
        return type(put) is not bool or type(found) is bool
    if isinstance(put, float):
        return Decimal(str(put)) == found
    if isinstance(put, str) and isinstance(found, Decimal | UUID):
        return type(found)(put) == found
    return isinstance(put, str) and put == str(found)


@given(ANY_HELD, st.sampled_from(DECLARED_NOW), st.booleans(), st.sampled_from(["Struct", "dataclass", "attrs"]))
@settings(max_examples=examples(1_500, 10_000))
@example([1, 1], set[int], True, "Struct")
@example(["1.5", "1.50"], set[Decimal], True, "Struct")
@example({"1.5": 0, "1.50": 1}, dict[Decimal, Any], True, "Struct")
@example("YWJj", bytes, True, "Struct")
@example(dt.datetime(2024, 3, 1, 5), dt.date, True, "Struct")
@example(2**53 + 1, float, True, "Struct")
@example([2**53 + 1], list[float], False, "Struct")
def test_whatever_is_declared_now_what_was_stored_is_itself_or_an_error(value, hint, as_declared, kind):
    before = {list: list, dict: dict}.get(type(value), type(value)) if as_declared and value is not None else Any
    stored = Evolving().encode(new_class(kind, [("a", before)])(a=value))
    new_class(kind, [("a", hint)])
    try:
        found = Evolving().decode(stored).a
    except SerdeError:
        return
    assert says_the_same(value, found), found


@given(st.sampled_from([float, float | None, list[float], dict[str, float]]), INTEGERS, st.sampled_from(KINDS))
def test_an_int_in_the_place_of_a_float_comes_back_as_the_number_that_it_is(hint, number, kind):
    around = {list[float]: [number], dict[str, float]: {"a": number}}.get(hint, number)
    assume(kind != "pydantic" or abs(number) <= 2**53)  # which makes other floats of these, or refuses them
    one = new_class(kind, [("a", hint)])(a=around)
    assert Evolving().decode(Evolving().encode(one)).a == one.a


def test_an_error_names_what_was_stored_what_is_declared_and_what_to_write():
    stored = Evolving().encode(new_class("Struct", [("n", str)])(n="seven"))
    new_class("Struct", [("n", int)])
    with pytest.raises(SerdeError, match=r"Thing\.n was stored as str \('seven'\) and is declared int now.*default"):
        Evolving().decode(stored)
    del sys.modules["evolving_models"].Thing
    with pytest.raises(SerdeError, match=r"evolving_models:Thing.*Thing = <its new name>"):
        Evolving().decode(stored)


@given(st.sampled_from(KINDS), st.booleans())
def test_a_class_that_is_defined_again_is_the_one_that_is_read(kind, plain):
    hint = int if plain else Any
    old = new_class(kind, [("n", hint)])
    stored = Evolving().encode(old(n=1))
    column = encoded(Evolving(), [old(n=1)])
    assert type(Evolving().decode(stored)) is old
    new = new_class(kind, [("n", hint), ("more", str, "m")])
    for found in (
        Evolving().decode(stored),
        Evolving().decode_all(column)[0],
        Evolving().decode(Evolving().encode(old(n=1))),
    ):
        assert type(found) is new
        assert (found.n, found.more) == (1 + kind.startswith("initialised"), "m")
    assert Tagged().encode(new(n=1, more="m")) != stored


def test_what_is_declared_is_what_comes_back():
    flat = stored_classes.Flat(1)
    for declared, given_, expected in (
        (stored_classes.Flat, {"number": 1}, flat),
        (list[stored_classes.Flat], [{"number": 1}, flat], [flat, flat]),
        (list[int], (1, 2), [1, 2]),
        (float, 3, 3.0),
        (dt.date, "2024-03-01", dt.date(2024, 3, 1)),
        (dict[str, Fraction], {"a": Fraction(1, 3)}, {"a": Fraction(1, 3)}),
    ):
        serde = Declared(declared)
        assert shape(serde.decode(serde.encode(given_))) == shape(expected)
        assert shape(serde.decode_all([serde.encode(given_)])) == shape([expected])
    with pytest.raises(SerdeError, match="declared"):
        Declared(int).decode(Declared(int).encode("x"))


def test_hostile_names_make_nothing():
    for tag in (b"\x0a", b"\x0b", b"\x0c"):
        for name in (
            "os:system",
            "builtins:dict",
            "runtime.encoding.serdes:Tagged",
            "collections:OrderedDict",
            "numpy",
            "x",
            3,
        ):
            for payload in ({}, {"a": b"\x00\xc0"}, b"\x00\xc0", [b"\x00\x01"], None, ["|O", b"12345678"]):
                if (tag, name) == (b"\x0a", "runtime.encoding.serdes:Tagged"):
                    continue  # it is a dataclass as any other
                with pytest.raises((SerdeError, TypeError, AttributeError)):
                    Evolving().decode(tag + msgspec.msgpack.encode((name, payload)))


# What the version before stored.


def test_bytes_of_the_version_before_are_read_and_those_of_keys_are_the_same_still():
    before = [bytes.fromhex(line) for line in json.loads((HERE / "stored_before.json").read_text())]
    for data, value in zip(before, stored_classes.VALUES, strict=True):
        assert shape(Evolving().decode(data)) == shape(value)
        assert shape(Tagged().decode(data)) == shape(value)
        assert Tagged().encode(value) == data


def test_what_stages_handed_on_as_json_is_read():
    buy = stored_classes.Buy("ann", 2.5)
    serde = Declared(stored_classes.Buy)
    for column in ([Json().encode(buy)], [Json().encode(buy), serde.encode(buy)]):
        assert decoded(serde, column) == [buy] * len(column)
    assert Declared(list[int]).decode(b"[1,2]") == [1, 2]
    assert Bytes().decode(b"{") == b"{"


def test_an_application_goes_on_from_the_state_of_the_version_before(tmp_path):
    with tarfile.open(HERE / "stored_before.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    produce("buys", [stored_classes.Buy("ann", 8.0), stored_classes.Buy("eve", 120.0)], data=tmp_path)
    stored_classes.shop().run(tmp_path, until_now=True)
    found = {name: lines_of(tmp_path, name) for name in ("visits", "totals", "per-minute")}
    assert found["visits"][-2:] == ["ann 3 4.0", "eve 1 -"]
    assert sorted(found["totals"]) == sorted(["1 2.5", "1 1.0", "2 6.5", "3 14.5", "1 120.0"])
    assert sorted(found["per-minute"]) == ["ann 3", "bob 1"]


def lines_of(data, stream):
    found = []
    app = App("looking")
    app.input(stream, value=str).sink(found.append)
    app.run(data, until_now=True, from_start=True, state="reset")
    return found


def test_what_only_a_constructor_takes_is_no_part_of_a_record():
    assert crossing(Given(1, 2)).n == 3


@pytest.mark.parametrize("file", ["out.jsonl", "out.csv", "out.parquet"])
@pytest.mark.parametrize("kind", [Measured, MeasuredModel, MeasuredAttrs, MeasuredData], ids=lambda kind: kind.__name__)
def test_files_have_every_number_or_refuse_it_under_the_policy(tmp_path, file, kind):
    numbers = [1.5, math.nan, math.inf, 2.5]
    app = App("writing")
    measured = app.input("in", value=int).map(lambda row: kind(at="here", c=np.float64(numbers[row])))
    measured.send_to(app.output("out", value=kind), on_error=skip)
    app.run(tmp_path / "one", bind={"in": [0, 1, 2, 3], "out": tmp_path / file})
    back = []
    reading = App("reading")
    reading.input("in", value=kind).sink(back.append)
    reading.run(tmp_path / "two", bind={"in": tmp_path / file})
    expected = numbers if file != "out.jsonl" else [1.5, 2.5]
    assert [(type(one), one.at, repr(float(one.c))) for one in back] == [(kind, "here", repr(c)) for c in expected]


def test_numbers_in_nested_columns_of_parquet_are_what_they_were(tmp_path):
    rows = [{"all": [1.0, math.nan], "by": {"a": math.inf}}, {"all": [], "by": {"a": 2.0}}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "in.parquet")
    back = []
    app = App("reading")
    app.input("in", value=Nested).sink(back.append)
    app.run(tmp_path / "data", bind={"in": tmp_path / "in.parquet"})
    assert repr(back) == repr([Nested(**row) for row in rows])


@pytest.mark.parametrize(
    "value", [Fraction(1, 3), 1 + 2j, pathlib.PurePosixPath("/a"), ipaddress.ip_address("::1"), collections.deque([1])]
)
def test_json_spells_what_is_text_and_reads_it_as_its_type(value):
    assert Json(type(value)).decode(Json(type(value)).encode(value)) == value
    assert Json(list[type(value)]).decode(Json().encode([value])) == [value]


class Plain(msgspec.Struct):
    """A record of which msgspec is told all."""

    name: str
    price: float
    day: str | None
    counts: list[int]
    by_name: dict[str, tuple[int, ...]]
    members: set[str] | None = None


class Tree(msgspec.Struct):
    """A record that holds itself, and others."""

    value: Plain | int
    leaves: list["Tree"] = []


@dataclasses.dataclass
class Pair:
    """A pair that is declared to be of two kinds."""

    both: tuple[int, str]


class Bare(NamedTuple):
    """A named tuple that says what it holds."""

    number: int


class Level(enum.IntEnum):
    """An int that is more than one."""

    LOW = 1


loose = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=3)
    | st.binary(max_size=3)
    | st.decimals(allow_nan=False)
    | st.dates()
    | st.datetimes()
    | st.uuids()
    | st.sampled_from([Level.LOW, Bare(1), Pair((1, "a"))]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.integers() | st.text(max_size=2) | st.dates(), inner, max_size=2)
    ),
    max_leaves=4,
) | st.sets(st.integers() | st.text(max_size=2), max_size=3)
plain_records = st.builds(Plain, loose, loose, loose, loose, loose, loose)
records_of_anything = (
    plain_records
    | st.builds(Tree, loose | plain_records, st.lists(loose | st.builds(Tree, plain_records), max_size=2))
    | st.builds(Pair, loose)
    | st.builds(Bare, loose)
)


@given(st.lists(records_of_anything, min_size=1, max_size=3))
@example([Plain("a", Decimal("1.50"), dt.date(2024, 1, 1), (1, 2), {}, None)])
@example([Plain("a", 1.5, None, [1.5], {"a": [1]}, {1})])
@example([Tree(Plain("a", 1.5, None, [True], {}), [Tree(Level.LOW)])])
@example([Bare((1, "a")), Pair((1, 2))])
def test_a_record_comes_back_as_it_was_whatever_its_fields_hold(records):
    """Constructors of Structs and dataclasses check nothing, and msgspec writes what it is given as plain values."""
    serde = Evolving()
    alone = [serde.decode(serde.encode(one)) for one in records]
    together = decoded(serde, encoded(serde, records))
    inside = serde.decode(serde.encode([*records]))
    for found in (alone, together, inside):
        assert all(difference(*pair) is None for pair in zip(records, found, strict=True)), found


@pytest.mark.parametrize(
    "view",
    [
        memoryview(np.arange(6, dtype=np.int32).reshape(2, 3)),
        memoryview(np.asfortranarray(np.arange(6.0).reshape(2, 3))),
        memoryview(b"abcd")[::2],
        memoryview(b"a").cast("c"),
        memoryview(np.array(3)),
        memoryview(np.zeros(0)),
    ],
)
def test_a_view_comes_back_with_its_format_and_shape(view):
    found = Evolving().decode(Evolving().encode([view]))[0]
    assert (found, found.format, found.shape) == (view, view.format, view.shape)


@pytest.mark.parametrize("view", [memoryview(np.zeros((0, 3))), memoryview(np.array([1j]))])
def test_a_view_that_nobody_could_make_again_is_refused(view):
    with pytest.raises(SerdeError, match=r"a memoryview of the format .* has no stored form; use its \.tobytes\(\)"):
        Evolving().encode(view)


@pytest.mark.parametrize("key", [True, None, (1, 2), frozenset({1})])
def test_a_key_that_json_has_not_is_told_as_a_key(key):
    with pytest.raises(TypeError, match="can't be a key of a JSON object: make it text"):
        Json().encode({"a": {key: 1}})


def test_a_number_that_python_has_not_is_refused_by_its_type():
    with pytest.raises(TypeError, match="longdouble"):
        Json().encode(np.longdouble("1.1"))
