"""Serdes: what they write they read, types and all; hostile bytes raise, import nothing and build nothing foreign."""

import collections
import concurrent.futures
import dataclasses
import enum
import math
import sys
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runtime.encoding.keys import KeySerde
from runtime.encoding.serdes import (
    PLAIN,
    REFUSALS,
    SCALARS,
    TAG_OF_SEQUENCE,
    Bytes,
    Evolving,
    Json,
    MessagePack,
    Natural,
    String,
    Tagged,
    encode_all,
    serde_of,
)
from runtime.model.errors import SerdeError
from tests.scale import examples


class Colour(enum.Enum):
    RED = "red"
    BOTH = (1, "x")


class Rank(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    y: float


Loose = collections.namedtuple("Loose", "left right")


class Flat(msgspec.Struct, frozen=True):
    number: int
    name: str = "n"
    many: tuple[int, ...] = ()


class Anything(msgspec.Struct, frozen=True):
    what: Any
    more: object = None


class Named(msgspec.Struct, frozen=True, tag="other", rename="camel", kw_only=True, omit_defaults=True):
    long_name: int = 0
    point: Point = Point(0, 0.0)


class Chain(msgspec.Struct, frozen=True):
    value: int
    rest: "Chain | None" = None


class Shape(msgspec.Struct, frozen=True):
    name: str = ""


class Circle(Shape, frozen=True):
    radius: int = 0


class Either(msgspec.Struct, frozen=True):
    which: Flat | Anything
    text: str | bytes = b""


class Holder(msgspec.Struct, frozen=True):
    shape: Shape


@dataclasses.dataclass(frozen=True)
class Card:
    rank: Rank
    owner: "str | None" = None


@dataclasses.dataclass(frozen=True)
class Counted:
    items: Any
    size: int = dataclasses.field(init=False, default=0)

    def __post_init__(self):
        object.__setattr__(self, "size", len(self.items))


class Outer:
    class Inner(msgspec.Struct, frozen=True):
        depth: int


CLASSES = {Colour, Rank, Rights, Point, Loose, Flat, Anything, Named, Chain, Shape, Circle, Either, Holder}
CLASSES |= {Card, Counted, Outer.Inner}

int64 = st.integers(-(2**63), 2**63 - 1)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
enums = st.sampled_from([*Colour, *Rank, Rights.READ, Rights.READ | Rights.WRITE])
flats = st.builds(Flat, int64, st.text(), st.lists(int64, max_size=3).map(tuple))
points = st.builds(Point, int64, st.floats(allow_nan=False))
records = st.one_of(
    flats,
    points,
    st.builds(Named, long_name=int64, point=points),
    st.builds(Outer.Inner, int64),
    st.builds(Card, st.sampled_from(Rank), st.none() | st.text()),
    st.builds(Chain, int64, st.none() | st.builds(Chain, int64)),
    st.builds(Holder, st.builds(Shape, st.text()) | st.builds(Circle, st.text(), int64)),
    st.builds(Either, flats, st.text() | st.binary()),
)
hashable = st.recursive(scalars | enums | records, lambda inner: st.tuples(inner, inner), max_leaves=4)
values = st.recursive(
    scalars | enums | records,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(hashable, inner, max_size=3),
        st.sets(hashable, max_size=3),
        st.frozensets(hashable, max_size=3),
        st.builds(Anything, inner, inner),
        st.builds(Loose, inner, inner),
        st.builds(Counted, st.lists(inner, max_size=2)),
    ),
    max_leaves=8,
)


def same(a, b):
    """Whether two values are equal in type as well, all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a == b and all(same(a[key], b[key]) for key in a) and {type(k) for k in a} == {type(k) for k in b}
    if isinstance(a, msgspec.Struct):
        return all(same(getattr(a, name), getattr(b, name)) for name in a.__struct_fields__)
    if dataclasses.is_dataclass(a):
        return all(same(getattr(a, one.name), getattr(b, one.name)) for one in dataclasses.fields(a))
    return a == b


@given(values)
@example(Chain(1, Chain(2)))
@example(Holder(Circle("c", 7)))
@example(Either(Flat(1)))
@example(Loose((1,), Flat(2)))
@example(Counted([1, 2]))
@example(2**100)
@settings(max_examples=examples(400, 100_000))
def test_tagged_brings_back_what_it_was_given(value):
    assert same(Tagged().decode(Tagged().encode(value)), value)


@given(values)
def test_equal_values_of_equal_types_have_equal_bytes(value):
    assert Tagged().encode(Tagged().decode(Tagged().encode(value))) == Tagged().encode(value)


@given(values, values)
def test_values_that_differ_have_bytes_that_differ(a, b):
    assert (Tagged().encode(a) == Tagged().encode(b)) <= same(a, b)


@given(flats)
def test_declared_serdes_bring_back_what_they_were_given(value):
    for serde in (Json(Flat), MessagePack(Flat), serde_of(Flat)):
        assert serde.decode(serde.encode(value)) == value


@given(st.text())
def test_text_is_utf8(text):
    assert String().decode(String().encode(text)) == text == Json(str).decode(Json().encode(text))
    assert String().encode(text) == text.encode() == Natural().encode(text)


@given(st.binary())
def test_bytes_stay_bytes(data):
    assert Bytes().encode(data) == Bytes().decode(data) == Natural().encode(data) == data


@given(st.lists(st.none() | st.integers() | st.text() | st.booleans()))
def test_a_column_is_encoded_as_its_values_are_and_nothing_stays_nothing(column):
    expected = [None if value is None else Tagged().encode(value) for value in column]
    assert (
        encode_all(Tagged(), list(column))
        == expected
        == KeySerde(Tagged()).encode_all(KeySerde(Tagged()).hold(list(column)))
    )


@given(
    st.lists(st.builds(Flat, st.integers(), st.text()), max_size=5)
    | st.lists(st.builds(Named, long_name=st.integers(-(2**63), 2**64)))
    | st.lists(st.builds(Point, st.integers(), st.floats(allow_nan=False)) | st.sampled_from(Rank))
    | st.lists(st.builds(Anything, st.integers() | st.text()))
    | st.lists(st.sampled_from(Colour))
)
def test_a_column_of_records_is_encoded_as_each_is(column):
    assert encode_all(Tagged(), list(column)) == [Tagged().encode(value) for value in column]


@pytest.mark.parametrize("serde", [Tagged(), Evolving()])
@given(st.lists(st.lists(values | st.lists(scalars, max_size=3), max_size=3), max_size=5))
def test_lists_are_encoded_part_by_part_unless_all_parts_are_scalars(serde, column):
    expected = [
        PLAIN + msgspec.msgpack.encode(value)
        if all(type(part) in SCALARS for part in value)
        and all(abs(part) < 2**63 for part in value if type(part) is int)
        else TAG_OF_SEQUENCE[list] + msgspec.msgpack.encode([serde.encode(part) for part in value])
        for value in column
    ]
    assert serde.encode_all(list(column)) == expected == [serde.encode(value) for value in column]


@pytest.mark.parametrize("serde", [Tagged(), Evolving()])
@given(st.data())
def test_lists_of_a_few_shapes_are_encoded_as_each_is(serde, data):
    parts = values | st.builds(Flat, st.integers(), st.text()) | st.lists(scalars, max_size=3)
    # A shape is a part of its own for each place, or the same value at a place of all.
    shapes = st.lists(st.sampled_from([scalars, parts, st.lists(scalars)]) | parts.map(st.just), max_size=3)
    one = st.lists(shapes.map(lambda shape: st.tuples(*shape).map(list)), min_size=1, max_size=3)
    column = data.draw(one.flatmap(lambda shapes: st.lists(st.one_of(shapes), max_size=20)))
    assert serde.encode_all(list(column)) == [serde.encode(value) for value in column]


@pytest.mark.parametrize("serde", [Tagged(), Evolving()])
@given(st.lists(values | st.tuples(scalars, scalars) | st.builds(Flat, st.integers(), st.text()), max_size=8))
def test_a_column_of_several_kinds_is_encoded_as_each_is(serde, column):
    assert serde.encode_all(list(column)) == [serde.encode(value) for value in column]


@pytest.mark.parametrize("value", [object(), math, lambda: 0, Tagged().encode, iter([])])
def test_what_has_no_serde_is_refused_with_a_way_out(value):
    with pytest.raises(SerdeError, match="declare"):
        Tagged().encode(value)


def test_a_class_that_nobody_can_find_again_is_refused():
    class Local(msgspec.Struct):
        number: int

    with pytest.raises(SerdeError, match="top of its module"):
        Tagged().encode(Local(1))


def classes_in(value):
    yield type(value)
    if isinstance(value, msgspec.Struct):
        parts = [getattr(value, name) for name in value.__struct_fields__]
    elif dataclasses.is_dataclass(value):
        parts = [getattr(value, one.name) for one in dataclasses.fields(value)]
    elif isinstance(value, dict):
        parts = [*value.keys(), *value.values()]
    else:
        parts = list(value) if isinstance(value, (list, tuple, set, frozenset)) else []
    for part in parts:
        yield from classes_in(part)


BUILT_IN = {type(None), bool, int, float, str, bytes, list, tuple, dict, set, frozenset, msgspec.msgpack.Ext}


def check_hostile(serde, data):
    """Decode bytes that nobody vouches for."""
    before = set(sys.modules)
    try:
        found = serde.decode(data)
    except (SerdeError, *REFUSALS, AttributeError):
        pass
    else:
        if type(serde) is Tagged:
            assert {kind for kind in classes_in(found) if kind.__module__ == __name__} <= CLASSES
            known = BUILT_IN | CLASSES
            assert all(kind in known or kind.__module__ != "builtins" for kind in classes_in(found))
    assert set(sys.modules) == before


serdes = st.sampled_from([Json(), Json(Flat), MessagePack(), MessagePack(Flat), String(), Bytes(), Tagged()])


@given(serdes, st.binary(max_size=60) | st.binary(max_size=60).map(b"\x05".__add__))
@settings(max_examples=examples(600, 1_000_000))
def test_random_bytes_raise_only_exceptions(serde, data):
    check_hostile(serde, data)


@given(values, st.data())
@settings(max_examples=examples(400, 1_000_000))
def test_damaged_bytes_raise_only_exceptions(value, data):
    good = bytearray(Tagged().encode(value))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(good) - 1))
        good[place] = data.draw(st.integers(0, 255))
    check_hostile(Tagged(), bytes(good[: data.draw(st.integers(0, len(good)))]))


def naming(name, payload=()):
    """Bytes that name a class, as a forger would write them."""
    return b"\x05" + msgspec.msgpack.encode((name, list(payload)))


@pytest.mark.parametrize(
    "name",
    [
        "os:system",
        "subprocess:Popen",
        "builtins:object",
        "builtins:eval",
        "builtins:list",
        "samza_dsl.application.app:App",
        "runtime.encoding.serdes:Tagged.encode",
        "nowhere:Thing",
        "antigravity:fly",
        ":",
        "",
        "msgspec:Struct.__init__",
        "sys:modules",
    ],
)
@pytest.mark.parametrize("tag", [b"\x04", b"\x05", b"\x06"])
def test_bytes_that_name_what_is_no_record_are_refused(name, tag):
    before = set(sys.modules)
    for payload in ([], [b"\x00\x01"], {"a": 1}):
        with pytest.raises((SerdeError, *REFUSALS)):
            Tagged().decode(tag + msgspec.msgpack.encode((name, payload)))
    assert set(sys.modules) == before


def test_looking_a_class_up_never_imports_through_a_module_that_loads_lazily():
    lazy = "concurrent.futures.process"
    kept = sys.modules.pop(lazy, None)
    concurrent.futures.__dict__.pop("ProcessPoolExecutor", None)
    try:
        with pytest.raises(SerdeError):
            Tagged().decode(naming("concurrent.futures:ProcessPoolExecutor"))
        assert lazy not in sys.modules
    finally:
        if kept is not None:
            sys.modules[lazy] = kept


@pytest.mark.parametrize("payload", [[], [b"\x00\x01"] * 9, [1, 2], 7, None, [b"\x05"]])
def test_bytes_with_too_few_too_many_or_odd_fields_are_refused(payload):
    name = f"{__name__}:Flat"
    with pytest.raises((SerdeError, *REFUSALS)):
        Tagged().decode(b"\x05" + msgspec.msgpack.encode((name, payload)))


@pytest.mark.parametrize("tag", [b"\x01", b"\x02", b"\x07", b"\x08"])
def test_deeply_nested_bytes_are_refused(tag):
    data = b"\x00\xc0"
    for _ in range(5_000):
        data = tag + msgspec.msgpack.encode([data])
    with pytest.raises(RecursionError):
        Tagged().decode(data)
    for serde, deep in (
        (Json(), b"[" * 100_000),
        (MessagePack(), b"\x91" * 100_000),
        (Tagged(), b"\0" + b"\x91" * 9**5),
    ):
        with pytest.raises((*REFUSALS,)):
            serde.decode(deep)
