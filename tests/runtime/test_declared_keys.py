"""Keys of a declared type: one that the type can't read again meets its policy, and is never written."""

import datetime as dt
from collections import deque
from collections.abc import Collection, Iterable, Mapping, MutableSequence, Sequence, Set
from contextlib import closing, suppress
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from itertools import permutations
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct
from pydantic import BaseModel, PrivateAttr

from runtime.encoding.keys import KeySerde, bytes_of_key
from runtime.encoding.serdes import Json, MessagePack, Natural, Tagged
from runtime.encoding.storable import difference
from runtime.model.errors import OperatorFailure, SerdeError
from runtime.systems.log.environment import LogEnvironment
from samza_dsl import App, PlanError, collect, dead_letter, fail, produce, query, skip, testing, tumbling


class Colour(Enum):
    RED = "red"


class Order(Enum):
    FIRST = 1


class Place(Struct, frozen=True):
    row: int


KINDS: dict[str, tuple[Any, object, object]] = {
    "int": (int, 7, "8"),
    "bool": (bool, True, 8),
    "float": (float, 7.5, "8"),
    "date": (dt.date, dt.date(2024, 1, 1), "soon"),
    "uuid": (UUID, UUID(int=1), "none"),
    "decimal": (Decimal, Decimal("1.5"), "many"),
    "enum": (Colour, Colour.RED, "blue"),
    "literal": (Literal["a", "b"], "a", "c"),
    "struct": (Place, Place(1), {"row": "one"}),
    "tuple": (tuple[int, str], (1, "a"), ("a", 1)),
    "list": (list[int], [1], ["a"]),
    "optional": (int | None, 7, "8"),
}


def application(kind, right, wrong, seen, policy):
    app = App("declared")
    numbers = app.input("in", value=int, timestamp=lambda n: n)
    by = numbers.partition_by(lambda n: right if n % 2 else wrong, key_type=kind, on_error=policy, op_id="by")
    by.sink(seen.append, op_id="seen")
    by.window(tumbling(seconds=1), collect(), op_id="panes").sink(lambda pane: seen.extend(pane.value), op_id="all")
    return app


@pytest.mark.parametrize("policy", [skip, dead_letter("bad")], ids=["skip", "dead_letter"])
@pytest.mark.parametrize("name", KINDS)
def test_a_key_that_can_not_be_read_again_meets_the_policy_live_as_in_tests(tmp_path, name, policy):
    seen = []
    app = application(*KINDS[name], seen, policy)
    produce("in", [1, 2, 3], data=tmp_path)
    run = app.run(tmp_path, until_now=True)
    assert seen == [1, 3]
    if policy is not skip:
        assert sum(one.dead_lettered for one in run.metrics().operators) == 1
    produce("in", [5], data=tmp_path)
    app.run(tmp_path, until_now=True)  # nothing lies between the stages that ends it
    assert seen == [1, 3, 5]
    seen.clear()
    testing.run(app, {"in": [1, 2, 3]})
    assert sorted(seen) == [1, 1, 3, 3]


@pytest.mark.parametrize("name", KINDS)
def test_it_ends_the_run_with_its_operator_where_nothing_else_is_said(tmp_path, name):
    seen = []
    app = application(*KINDS[name], seen, fail)
    with pytest.raises(OperatorFailure, match=r"partition_by 'by' at .*test_declared_keys.py.*not be read again"):
        app.run(tmp_path, bind={"in": [1, 2, 3]})
    with pytest.raises(OperatorFailure, match=r"partition_by 'by' at .*test_declared_keys.py"):
        testing.run(app, {"in": [1, 2, 3]})


def test_one_that_a_former_version_wrote_meets_the_policy_of_who_reads_it(tmp_path, monkeypatch):
    def written(keys, key):
        return keys.serde.encode(key)

    produce("in", [1, 2, 3], data=tmp_path)
    with monkeypatch.context() as former:
        former.setattr(KeySerde, "_held", written)
        with pytest.raises(OperatorFailure, match=r"partition_by 'by' at .* on the key of declared-by/"):
            application(int, 7, "8", [], fail).run(tmp_path, until_now=True)
    seen = []
    application(int, 7, "8", seen, skip).run(tmp_path, until_now=True)
    assert seen[:2] == [1, 3] and 2 not in seen


class Loose(Struct, frozen=True):
    what: Any
    by: "Loose | None" = None


class Named(NamedTuple):
    what: Any


class Written(TypedDict):
    what: Any


class Model(BaseModel, frozen=True):
    what: Any


PARTS = st.recursive(
    st.sampled_from([None, True, 0, 1, 1.0, -0.0, "a", "2024-01-01", b"a", "YQ==", Colour.RED, UUID(int=1)])
    | st.sampled_from(
        [dt.date(2024, 1, 1), dt.timedelta(1), Decimal("1.0"), "1.0", Fraction(1, 3), 2**70, bytearray(b"a")]
    ),
    lambda part: (
        st.lists(part, max_size=2)
        | st.lists(part, max_size=2).map(tuple)
        | st.dictionaries(st.sampled_from([1, "1", "a", None, (1, 2)]), part, max_size=2)
        | st.frozensets(st.sampled_from([1, "a", (1, "a"), dt.date(2024, 1, 1)]), max_size=2)
    ),
    max_leaves=3,
)
LOOSE: dict[str, tuple[Any, Any]] = {
    "anything": (Any, lambda part: part),
    "tuple": (tuple, lambda part: (1, part)),
    "list": (list, lambda part: [part, part]),
    "dict": (dict, lambda part: {"a": part}),
    "keys of a dict": (dict, lambda part: {repr(part): 1, 2: 3}),
    "set": (frozenset, lambda part: frozenset([repr(part), (1, 2)])),
    "tuple of anything": (tuple[Any, ...], lambda part: (part,)),
    "one part": (tuple[int, Any], lambda part: (1, part)),
    "list of dicts": (list[dict], lambda part: [{"a": part}]),
    "of anything": (list[Any], lambda part: [part]),
    "values": (dict[str, Any], lambda part: {"a": part}),
    "record": (Loose, lambda part: Loose(1, Loose(part))),
    "optional record": (Loose | None, lambda part: Loose(part)),
    "named tuple": (Named, Named),
    "typed dict": (Written, lambda part: {"what": part}),
    "model": (Model, lambda part: Model(what=part)),
    "annotated": (Annotated[tuple, Meta(min_length=1)], lambda part: (part,)),
    "record or tuple": (tuple[Loose | int, ...], lambda part: (7, Loose(part))),
}


@pytest.mark.parametrize("name", LOOSE)
@given(part=PARTS, packed=st.booleans())
def test_a_key_whose_type_does_not_say_all_comes_back_as_it_is_or_is_refused(name, part, packed):
    kind, make = LOOSE[name]
    keys, key = KeySerde((MessagePack if packed else Json)(kind)), make(part)
    try:
        held = keys.hold_one(key)
    except (SerdeError, TypeError, OverflowError):
        return
    assert difference(key, keys.decode(held)) is None


@pytest.mark.parametrize("name", LOOSE)
def test_what_json_has_is_a_key_of_such_a_type(name):
    kind, make = LOOSE[name]
    if name in ("keys of a dict", "set"):
        return
    for part in (1, "a", None, 1.5, [1, {"a": 2}], {"a": ["b"]}):
        keys = KeySerde(Json(kind))
        assert keys.decode(keys.hold_one(make(part))) == make(part)


def test_a_declared_type_has_its_say():
    for kind, key, back in (
        (float, 7, 7.0),
        (tuple[str, ...], ["a"], ("a",)),
        (tuple[float, Any], (7, "a"), (7.0, "a")),
        (Loose, {"what": 1}, Loose(1)),
        (Loose, {"what": 1, "by": {"what": "a"}}, Loose(1, Loose("a"))),
        (Named, [1], Named(1)),
        (Model, {"what": 1}, Model(what=1)),
        (list[Model], [{"what": "a"}], [Model(what="a")]),
        (dict, {"a": 1}, {"a": 1}),
    ):
        keys = KeySerde(Json(kind))
        assert difference(keys.decode(keys.hold_one(key)), back) is None


class Real(Struct, frozen=True):
    of: float


class Doubling(Struct, frozen=True):
    n: int

    def __post_init__(self):
        msgspec.structs.force_setattr(self, "n", self.n * 2)


@attrs.frozen
class Private:
    a: int
    _b: str = "x"


class Extra(BaseModel, frozen=True, extra="allow"):
    a: int


class Hidden(BaseModel):
    a: int
    _seen: int = PrivateAttr(default=0)


def seen(model):
    model._seen = 7
    return model


OSLO = ZoneInfo("Europe/Oslo")
TWICE = dt.datetime(2024, 10, 27, 2, 30, tzinfo=OSLO, fold=1)
OTHERS: list[tuple[Any, object]] = [
    (Doubling, Doubling(3)),
    (Private, Private(1, "z")),
    (Extra, Extra(a=1, b=(1, 2))),
    (Hidden, seen(Hidden(a=1))),
    (Written, {"what": 1, "more": 2}),
    (deque, deque([1], maxlen=3)),
    (float, 2**60 + 1),
    (list[float], [2**53 + 1]),
    (Real, Real(2**60 + 1)),
    (dict[str, float | None], {"a": 2**60 + 1}),
]
ALIKE: list[tuple[Any, object]] = [
    (dt.datetime, dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(seconds=3601)))),
    (Private, Private(1)),
    (Extra, Extra(a=1, b=2)),
    (Hidden, Hidden(a=1)),
    (dt.datetime, TWICE),
    (dt.datetime, TWICE.replace(tzinfo=None)),
    (tuple[dt.datetime, Any], (TWICE, 1)),
    (list[dt.datetime | None], [TWICE, None]),
    (Decimal, Decimal("NaN")),
    (float, -0.0),
    (dt.timedelta, dt.timedelta.max),
    (dt.date, "2024-01-01"),
    (Decimal, 0.1),
    (float, 2**53),
    (Order, 1),
    (Colour, "red"),
    (frozenset[float], frozenset([1, 2.5])),
    (dict[float, str], {1: "a"}),
    (int, 2**63 - 1),
]


@pytest.mark.parametrize(("kind", "key"), OTHERS, ids=repr)
def test_a_key_that_its_type_brings_back_as_another_is_refused(kind, key):
    with pytest.raises(SerdeError, match=r"would come back as .*as another key than it is: .*Leave the type out"):
        KeySerde(Json(kind)).hold_one(key)
    keys = KeySerde(Tagged())
    if kind not in (Written, Real):
        assert difference(key, keys.decode(keys.hold_one(key))) is None


class Around(Struct, frozen=True):
    of: Doubling
    all: tuple[Doubling, ...] = ()


@pytest.mark.parametrize("key", [Doubling(3), Around(Doubling(1), (Doubling(2),)), (Doubling(1), "a")], ids=repr)
def test_a_key_whose_class_changes_it_when_it_is_made_is_made_once(key):
    keys = KeySerde(Tagged())
    assert difference(key, keys.decode(keys.hold_one(key))) is None
    assert Tagged().decode_all(Tagged().encode_all([key, key])) == [key, key]


class Placed(Struct, frozen=True, array_like=True):
    n: int
    name: str = "a"

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "n", self.n + 1)


class Tags(Placed, frozen=True, array_like=True, tag="t"):
    more: tuple[int, ...] = ()


class Camel(Struct, frozen=True, rename="camel"):
    at_home: int
    away_from: str = "b"


class Renamed(Struct, frozen=True, rename="camel", omit_defaults=True):
    my_own: Camel
    others_are: tuple[Camel, ...] = ()
    is_set: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "others_are", (*self.others_are, self.my_own))


class RenamedInside(Struct, frozen=True, rename="camel"):
    it_self: Renamed | None
    by_name: dict[str, Doubling] = {}


@dataclass(frozen=True)
class Counted:
    of: Camel
    n: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", self.n + 1)


class Couple(NamedTuple):
    of: Doubling
    other: Renamed | None = None
    all: tuple[Counted, ...] = ()


class PlacedInside(Struct, frozen=True, array_like=True, tag="t"):
    of: Renamed
    n: int = 0


class Holds(Struct, frozen=True):
    of: Couple
    at: PlacedInside | None = None


class Tree(Struct, frozen=True):
    n: int
    left: "Tree | None" = None

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "n", self.n + 1)


renamed = Renamed(Camel(1), (Camel(2, "c"),), frozenset("abc"))
MADE_ONCE = [
    *(Placed(1), Placed(1, "b"), Tags(1), Tags(1, "b", (2,)), renamed, Renamed(Camel(1)), RenamedInside(renamed)),
    *(RenamedInside(None, {"a": Doubling(1)}), Counted(Camel(1, "z"), 3), Couple(Doubling(1)), Tree(1, Tree(2))),
    *(
        Couple(Doubling(1), renamed, (Counted(Camel(1)),)),
        PlacedInside(renamed, 4),
        Holds(Couple(Doubling(1), renamed)),
    ),
    Holds(Couple(Doubling(1)), PlacedInside(renamed)),
]


@pytest.mark.parametrize("key", MADE_ONCE, ids=lambda one: repr(one)[:40])
def test_it_is_made_once_however_its_fields_are_written(key):
    keys = KeySerde(Tagged())
    assert keys.decode(keys.hold_one(key)) == key
    assert keys.decode(keys.hold_one((key, 1))) == (key, 1)
    assert Tagged().decode_all(Tagged().encode_all([key, key])) == [key, key]


class Text(Struct, frozen=True):
    of: str
    all: list[int] = []


MISDECLARED = [
    *(Text(dt.date(2024, 1, 1)), Text("a", (1, 2)), Text(Decimal("1.0")), Real(2**60 + 1), (Text(UUID(int=1)), 1)),
    *({"a": Text(dt.date(2024, 1, 1))}, Loose([Text(dt.date(2024, 1, 1))]), frozenset([Real(2**60 + 1)])),
]


@pytest.mark.parametrize("key", MISDECLARED, ids=repr)
def test_a_record_that_is_not_as_it_declares_is_no_key(key):
    with pytest.raises(SerdeError, match="as another key than it is: a field of it is not of its declared type"):
        KeySerde(Tagged()).hold_one(key)


RECORDS = st.builds(Text, PARTS, PARTS) | st.builds(Real, PARTS) | PARTS


@given(RECORDS | st.tuples(RECORDS, st.tuples(RECORDS)) | st.lists(RECORDS, max_size=2))
def test_a_key_without_a_declared_type_comes_back_equal_or_is_refused(key):
    keys = KeySerde(Tagged())
    try:
        held = keys.hold_one(key)
    except SerdeError:
        return
    assert keys.decode(held) == key


@pytest.mark.parametrize(("kind", "key"), ALIKE, ids=repr)
def test_a_key_that_comes_back_as_its_type_says_is_one(kind, key):
    keys = KeySerde(Json(kind))
    back = keys.decode(keys.hold_one(key))
    assert keys.decode(keys.hold_one(back)) == back or back != back


@pytest.mark.parametrize("kind", [tuple, Any, dict[str, Any], Loose], ids=str)
def test_its_policy_has_its_say_live_as_in_tests(tmp_path, kind):
    def key_of(n):
        day = dt.date(2024, 1, n) if n % 2 else n
        return {tuple: (day, 1), Any: day, dict[str, Any]: {"day": day}, Loose: Loose(day)}[kind]

    for policy in (skip, dead_letter("bad"), fail):
        seen, app = [], App("declared")
        by = app.input("in", value=int).partition_by(key_of, key_type=kind, on_error=policy, op_id="by")
        by.sink(seen.append, op_id="seen")
        if policy is fail:
            for run in (
                lambda app=app: testing.run(app, {"in": [1]}),
                lambda app=app: app.run(tmp_path, bind={"in": [1]}),
            ):
                with pytest.raises(
                    OperatorFailure, match=r"partition_by 'by' at .*test_declared_keys.py.*would come back as"
                ):
                    run()
        else:
            testing.run(app, {"in": [1, 2]})
            app.run(tmp_path / repr(policy), bind={"in": [1, 2]})
            assert seen == [2, 2]


class Crew(Struct, frozen=True):
    names: frozenset[Any]
    by: dict[str, int] = {}


class Typed(Struct, frozen=True):
    names: frozenset[int]


@pytest.mark.parametrize(
    ("serde", "make"),
    [
        (Tagged(), frozenset),
        (Tagged(), lambda names: Typed(frozenset(names))),
        (Tagged(), lambda names: (1, Typed(frozenset(names)))),
        (Json(frozenset[int]), frozenset),
        (Json(Typed), lambda names: Typed(frozenset(names))),
        (MessagePack(Typed), lambda names: Typed(frozenset(names))),
        (Json(Crew), lambda names: Crew(frozenset(names))),
        (Json(dict[str, set[int]]), lambda names: {"a": set(names)}),
        (Natural(), frozenset),
        (Natural(), lambda names: ("a", [Typed(frozenset(names))])),
    ],
)
def test_equal_sets_are_equal_keys_however_python_orders_them(serde, make):
    sets = [make(names) for names in permutations((0, 64, 128))]
    assert all(one == sets[0] for one in sets)
    assert len({*map(KeySerde(serde).serde.encode, sets)}) == 1
    assert len({*map(KeySerde(serde).hold_one, sets)}) == 1
    assert len({*KeySerde(serde).encode_all(KeySerde(serde).hold(sets))}) == 1


@pytest.mark.parametrize("key", MISDECLARED, ids=repr)
def test_it_is_no_key_of_a_map_and_no_id_either(key):
    def keep(n, context):
        context.map("seen")[key] = n
        return []

    for step in (
        lambda numbers: numbers.process(keep, op_id="it"),
        lambda numbers: numbers.deduplicate(lambda n: key, within_ms=1, op_id="it"),
    ):
        app = App("declared")
        step(app.input("in", value=int, key=lambda n: "k", timestamp=lambda n: n)).sink(print)
        with pytest.raises(OperatorFailure, match=r"'it' at .*test_declared_keys.py.*as another key than it is"):
            testing.run(app, {"in": [1]})


def test_ids_that_json_takes_for_the_same_are_refused():
    app = App("declared")
    days = app.input("in", value=int, key=lambda n: "k", timestamp=lambda n: n)
    ids = [("2024-01-01",), (dt.date(2024, 1, 1),)]
    days.deduplicate(lambda n: ids[n], within_ms=1_000, id_type=tuple, op_id="it").sink(print)
    with pytest.raises(OperatorFailure, match=r"'it' at .*would come back as '2024-01-01'"):
        testing.run(app, {"in": [0, 1]})


FORMS: list[tuple[Any, list[object]]] = [
    (float, [7, 7.0]),
    (float | None, [7, 7.0]),
    (tuple[float, str], [(7, "a"), (7.0, "a"), [7, "a"]]),
    (list[float], [[7], [7.0], (7,)]),
    (dict[str, float], [{"a": 7}, {"a": 7.0}]),
    (frozenset[float], [frozenset([1, 2.5]), frozenset([2.5, 1.0])]),
    (Real, [Real(7), Real(7.0), {"of": 7}]),
    (Loose, [Loose("a"), {"what": "a"}]),
    (Named, [Named(1), [1]]),
    (Decimal, [Decimal("0.5"), "0.5", 0.5]),
    (UUID, [UUID(int=10), str(UUID(int=10)).upper(), UUID(int=10).hex]),
    (dt.timedelta, [dt.timedelta(days=1), "P1D", "PT86400S"]),
    (dt.datetime, ["2024-01-01T00:00:00Z", "2024-01-01 00:00:00+00:00", dt.datetime(2024, 1, 1, tzinfo=dt.UTC)]),
    (Order, [Order.FIRST, 1]),
]


@pytest.mark.parametrize("packed", [Json, MessagePack])
@pytest.mark.parametrize(("kind", "keys"), FORMS, ids=repr)
def test_equal_keys_of_a_declared_type_are_one_however_they_are_given(packed, kind, keys):
    found = set()
    for key in keys:
        try:
            found.add(KeySerde(packed(kind)).hold_one(key))
        except (SerdeError, TypeError):
            assert packed is MessagePack or type(key) is str  # what a format does not have is refused, and no other key
    assert len(found) == 1
    for key in keys:
        with suppress(TypeError):
            assert bytes_of_key(packed(kind), key) in found


@pytest.mark.parametrize("how", ["partition_by", "input", "stored"])
def test_a_number_is_one_key_as_an_int_and_as_a_float_where_that_is_declared(tmp_path, how):
    app = App("declared")
    if how == "partition_by":
        keyed = app.input("in", value=float | int).partition_by(lambda n: n, key_type=float, partitions=3, op_id="by")
    elif how == "input":
        keyed = app.input("in", value=float | int, key=lambda n: n).partition_by(
            lambda n: n, key_type=float, op_id="by"
        )
    else:
        keyed = app.input("in", value=float | int, key=float)
    keyed.scan(lambda total, n: (total or 0) + 1, op_id="counts").sink(lambda n: None)
    produce("in", [7, 7.0, 7], data=tmp_path, **({"key": lambda n: n} if how == "stored" else {}))
    app.run(tmp_path, until_now=True)
    with query(app, tmp_path) as found:
        state = found.state("counts")
        assert [*state.range()] == [(7.0, 3)]
        assert (state.get(7), state.get(7.0)) == (3, 3)


class Base(Struct, frozen=True):
    a: int


class Derived(Base, frozen=True):
    b: int


@pytest.mark.parametrize("packed", [Json, MessagePack])
def test_keys_of_a_subclass_that_has_more_fields_are_not_made_one(packed):
    with pytest.raises(SerdeError, match="would come back as Base"):
        KeySerde(packed(Base)).hold_one(Derived(1, 2))
    with pytest.raises(SerdeError, match="would come back as"):
        KeySerde(packed(tuple[Base, int])).hold_one((Derived(1, 2), 3))
    assert KeySerde(packed(Derived | None)).hold_one(Derived(1, 2))


@pytest.mark.parametrize(
    ("serde", "key", "data"),
    [
        (Json(Base), Derived(1, 2), b'{"a":1,"b":2}'),
        (Json(float), 2**53 + 1, b"9007199254740993"),
        (Json(tuple[Base, float]), (Derived(1, 2), 1.0), b'[{"a":1,"b":2},1.0]'),
        (Json(Base), "no Base", b'"no Base"'),
    ],
)
def test_what_would_come_back_as_another_key_is_written_as_it_is(serde, key, data):
    assert bytes_of_key(serde, key) == data


def test_a_table_is_looked_into_by_equal_keys(tmp_path):
    app = App("declared")
    rows = app.table("rows", value=str, key=float, broadcast=True)
    numbers = app.input("in", value=int)
    numbers.join(rows, lambda n, row: row, on=lambda n: n, how="left").send_to(app.output("out"))
    produce("rows", ["seven"], value=str, key=lambda row: 7.0, data=tmp_path)
    produce("in", [7, 8], data=tmp_path)
    run = app.run(tmp_path, until_now=True)
    assert run.received("out") == ["seven", None]


ABSTRACT = [
    (Sequence[int], r"a Sequence may be.*tuple\[int, \.\.\.\] there"),
    (Collection, "a Collection may be.*tuple there"),
    (Iterable[str] | None, r"an? Iterable may be.*tuple\[str, \.\.\.\] there"),
    (Mapping[str, int], r"dict\[str, int\] there"),
    (Set[str], r"frozenset\[str\] there"),
    (tuple[MutableSequence[int], str], r"list\[int\] there"),
]


@pytest.mark.parametrize(("kind", "told"), ABSTRACT, ids=str)
def test_a_type_that_says_no_class_is_refused_when_it_is_declared(kind, told):
    app = App("declared")
    numbers = app.input("in", value=int)
    for declare in (lambda: numbers.partition_by(lambda n: n, key_type=kind), lambda: app.input("by", key=kind)):
        with pytest.raises(PlanError, match=rf"test_declared_keys.py.*does not say as what keys come back.*{told}"):
            declare()


def test_a_task_writes_the_keys_of_an_output_as_send_to_does(tmp_path):
    app = App("declared")
    out = app.output("out", value=int, key=float)

    def task(envelope, context):
        context.send(out, envelope.value, key=envelope.value)

    app.task(app.input("in", value=int), task, outputs=[out], op_id="it")
    app.input("other", value=int).partition_by(lambda n: n, op_id="by").send_to(out)
    produce("in", [7], data=tmp_path)
    produce("other", [7], data=tmp_path)
    app.run(tmp_path, until_now=True)
    with closing(LogEnvironment(tmp_path)) as environment:
        assert environment.read("out", 0, 0).batch.keys == [b"7.0", b"7.0"]


def test_a_test_sends_equal_keys_to_one_place():
    app = App("declared")
    numbers = app.input("in", value=int, key=float, partitions=5)
    numbers.scan(lambda total, n: (total or 0) + n, op_id="it").send_to(app.output("out", value=int))
    with testing.running(app) as run:
        for key in (7, 7.0, 8, 8.0, 9, 9.0):
            run.send("in", 1, key=key)
        assert sorted(run.received("out")) == [1, 1, 1, 2, 2, 2]
