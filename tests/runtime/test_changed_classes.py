"""Classes that changed in ways that bytes alone do not tell are told, and never read as another value."""

import collections
import dataclasses
import datetime as dt
import functools
import operator
import os
import subprocess
import sys
import types
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

import annotated_types
import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.model.errors import PlanError
from runtime.encoding import record_types, serdes
from runtime.encoding.keys import KeySerde
from runtime.encoding.serdes import Declared, Evolving, Json, MessagePack, Tagged
from runtime.model.errors import OperatorFailure, SerdeError
from samza_dsl import App, produce, testing

SERDES = (Evolving(), Tagged())


def shapes(tags, box=(), more=(), fields=()):
    """Define a union of Structs with tags, and a record that holds one, as a deployment does."""
    module = sys.modules[__name__]
    for name, tag in tags.items():
        setattr(module, name, msgspec.defstruct(name, [("n", int), *fields], tag=tag, module=__name__))
    among = None
    for name in tags:
        among = getattr(module, name) if among is None else among | getattr(module, name)
    module.Holder = msgspec.defstruct(
        "Holder", [("of", among), ("all", list[among], []), *more], module=__name__, **dict(box)
    )
    return module


TAGS = st.sampled_from(["a", "b", "c", 1, 2])


def stored_under(tags):
    module = shapes(tags)
    return {
        name: Evolving().encode(module.Holder(getattr(module, name)(1), [getattr(module, name)(2)])) for name in tags
    }


@given(st.lists(TAGS, min_size=2, max_size=3, unique=True), st.lists(TAGS, min_size=2, max_size=3, unique=True))
def test_a_class_of_a_union_is_itself_or_an_error_whatever_the_tags_are_now(then, now):
    if len({*map(type, then)}) > 1 or len({*map(type, now)}) > 1:
        return  # which msgspec refuses
    before, after = dict(zip("ABC", then, strict=False)), dict(zip("ABC", now, strict=False))
    stored = stored_under(before)
    module = shapes(after)
    for name, data in stored.items():
        if name not in after:
            continue
        try:
            found = Evolving().decode(data)
        except SerdeError:
            assert any(after.get(one) != tag for one, tag in before.items())
            continue
        assert type(found.of).__name__ == type(found.all[0]).__name__ == name
        assert type(found.of) is getattr(module, name) and (found.of.n, found.all[0].n) == (1, 2)


def test_tags_that_were_exchanged_are_told():
    stored = stored_under({"A": "a", "B": "b"})
    shapes({"A": "b", "B": "a"})
    for serde in (Evolving(), Declared(sys.modules[__name__].Holder)):
        with pytest.raises(
            SerdeError, match=r"a stored Holder holds a A, whose tag was 'a' then and is 'b' now.*Give A the tag"
        ):
            serde.decode(stored["A"])


@pytest.mark.parametrize(
    "change", [{"more": [("seen", bool, False)]}, {"fields": [("seen", bool, False)]}, {"more": [("x", str, "")]}]
)
def test_a_union_whose_records_changed_otherwise_is_read_by_tags(change):
    stored = stored_under({"A": "a", "B": "b"})
    module = shapes({"A": "a", "B": "b", "C": "c"}, **change)
    for name in "AB":
        found = Evolving().decode(stored[name])
        assert type(found.of) is getattr(module, name) and found.of.n == 1 and found.all[0].n == 2


def test_what_a_former_version_stored_has_no_tags_in_its_head_and_is_read():
    module = shapes({"A": "a", "B": "b"})
    data = Evolving().encode(module.Holder(module.B(1)))
    head, raw = msgspec.msgpack.decode(data[1:], type=tuple[str, msgspec.Raw])
    former = data[:1] + msgspec.msgpack.encode((head.rpartition("#")[0], raw))
    assert Evolving().decode(former) == Evolving().decode(data) == module.Holder(module.B(1))
    assert Evolving().decode_all([former, data]) == [module.Holder(module.B(1))] * 2


def versions(tags, holder="Holder", among=None):
    """Define classes of one name in modules `v1`, `v2`, ... and a union of them, or of some, as a deployment does."""
    found = {}
    for place, tag in tags.items():
        where, _, name = place.partition(".")
        module = sys.modules.setdefault(f"tagged_{where}", types.ModuleType(f"tagged_{where}"))
        made = msgspec.defstruct(name, [("n", int)], tag=tag, module=module.__name__)
        setattr(module, name, made)
        found[place] = made
    hint = functools.reduce(operator.or_, [found[one] for one in among or found])
    here = sys.modules[__name__]
    setattr(here, holder, msgspec.defstruct(holder, [("of", hint), ("all", dict[str, hint], {})], module=__name__))
    return getattr(here, holder), found


def stored_of(tags):
    holder, found = versions(tags)
    values = {one: holder(kind(1), {"a": kind(2)}) for one, kind in found.items()}
    return {one: Evolving().encode(value) for one, value in values.items()}


def reads_itself(data, holder, kind):
    found = Evolving().decode(data)
    return found == holder(kind(1), {"a": kind(2)}) and Evolving().decode_all([data, data]) == [found, found]


def test_classes_of_one_name_in_two_modules_are_read_and_may_become_more():
    stored = stored_of({"v1.Event": "v1", "v2.Event": "v2"})
    for more in ({}, {"v3.Event": "v3"}, {"v3.Event": "Event"}, {"v3.Event": "v3", "v1.Other": True, "v4.Event": "e"}):
        holder, found = versions({"v1.Event": "v1", "v2.Event": "v2", **more})
        for one, data in stored.items():
            assert reads_itself(data, holder, found[one])


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ({"v1.Event": "v1", "v2.Event": "v2"}, {"v1.Event": "v2", "v2.Event": "v1"}),
        ({"v1.Event": "v1", "v2.Event": "v2"}, {"v3.Event": "v3", "v1.Event": "v2", "v2.Event": "v1"}),
        ({"v1.Event": True, "v2.Event": "v2"}, {"v1.Event": "v2", "v2.Event": True}),
        ({"v1.Event": True, "v2.Event": "v2"}, {"v1.Event": "v1", "v2.Event": True}),
        ({"v1.Event": "v1", "v2.Event": "v2"}, {"v1.Event": "v2", "v2.Event": "new"}),
        ({"v1.A": True, "v1.B": True}, {"v1.A": "B", "v1.B": "A"}),
        ({"v1.A": True, "v2.B": True}, {"v1.A": "B", "v2.B": "A"}),
        ({"v1.A": "B", "v1.B": "A"}, {"v1.A": True, "v1.B": True}),
        ({"v1.A": "B", "v1.B": "A", "v1.C": True}, {"v1.A": True, "v1.B": True, "v1.C": True}),
        ({"v1.A": True, "v1.B": True, "v1.C": "c"}, {"v1.A": "a", "v1.B": True, "v1.C": "A"}),
        ({"v1.A": 1, "v1.B": 2}, {"v1.A": 2, "v1.B": 1}),
    ],
)
def test_no_record_is_read_as_one_that_has_got_its_tag(then, now):
    stored = stored_of(then)
    holder, found = versions(now)
    told = 0
    for one, data in stored.items():
        try:
            assert reads_itself(data, holder, found[one])
        except SerdeError:
            told += 1
            for read in (lambda data: Evolving().decode(data), lambda data: Evolving().decode_all([data, data])):
                with pytest.raises(SerdeError, match="tag"):
                    read(data)
    assert told


@pytest.mark.parametrize(
    ("then", "more"),
    [
        ({"v1.A": True, "v1.B": True}, {"v1.C": True, "v2.C": "c"}),
        ({"v1.A": True, "v2.B": True}, {"v1.C": "c", "v2.D": "C"}),
        ({"v1.A": "a", "v1.C": True}, {"v1.B": "b", "v2.A": True}),
        ({"v1.A": "B", "v1.C": True}, {"v1.B": "new"}),
        ({"v1.A": 1, "v1.B": 2}, {"v1.C": 3}),
        ({"v1.A": str.lower, "v1.B": str.lower}, {"v1.C": str.lower}),
        ({"v1.Event": True}, {"v2.Event": "v2"}),
    ],
)
def test_a_union_that_has_more_members_or_fewer_reads_what_it_stored(then, more):
    stored = stored_of(then)
    holder, found = versions({**then, **more})
    for one, data in stored.items():
        assert reads_itself(data, holder, found[one])
    # And back again: what no value has may go.
    many = {one: data for one, data in stored_of({**then, **more}).items() if one in then}
    holder, found = versions(then)
    for one, data in many.items():
        assert reads_itself(data, holder, found[one])


UNIONS = st.dictionaries(
    st.sampled_from(["v1.A", "v1.B", "v1.C", "v2.A", "v2.B"]),
    st.sampled_from([True, "A", "B", "x", "y"]),
    min_size=2,
    max_size=4,
).map(lambda tags: {one: one[3:] if tag is True else tag for one, tag in tags.items()})


@given(UNIONS.filter(lambda tags: len({*tags.values()}) == len(tags)), UNIONS)
def test_whatever_the_modules_names_and_tags_a_record_is_itself_or_an_error(then, later):
    stored = stored_of(then)
    for now in (later, {**{one: tag for one, tag in later.items() if tag not in then.values()}, **then}):
        if len({*now.values()}) < len(now):
            continue  # which msgspec refuses
        _, found = versions(now)
        for one in then.keys() & now.keys():
            try:
                assert type(Evolving().decode(stored[one]).of) is found[one]
            except SerdeError:
                assert any(now.get(place) != tag for place, tag in then.items())


def test_a_tag_that_no_member_has_is_told_with_those_that_they_have_now():
    stored = stored_of({"v1.A": "a", "v1.B": "b", "v1.C": "c"})
    holder, found = versions({"v1.A": "a", "v1.B": "b2", "v1.C": "c"})
    assert reads_itself(stored["v1.A"], holder, found["v1.A"])
    with pytest.raises(SerdeError, match=r"Holder.of was stored with type='b'.*are 'a' \(A\), 'b2' \(B\), 'c' \(C\)"):
        Evolving().decode(stored["v1.B"])


@pytest.mark.parametrize(
    ("tags", "most"),
    [
        ({f"v1.E{number}": True for number in range(10)}, 4),
        ({f"v1.E{number}": str.lower for number in range(10)}, 4),
        ({"v1.Event": "v1", "v2.Event": "v2"}, 10),
        ({"v1.A": "a", "v1.B": "b", "v1.C": "c"}, 10),
    ],
)
def test_tags_take_few_bytes_of_each_value(tags, most):
    """The head of a former version is the class and its definition; what is told of tags comes behind these."""
    holder, found = versions(tags)
    value = holder(next(iter(found.values()))(1))
    head, _ = msgspec.msgpack.decode(Evolving().encode(value)[1:], type=tuple[str, msgspec.Raw])
    former = f"{__name__}:Holder#{record_types.description_of(holder)}"
    assert head.startswith(former) and len(former) < len(head) <= len(former) + most


def test_classes_with_long_names_are_read_as_fast_as_others():
    tags = {f"v1.E{number}": f"tag {number}" for number in range(100)}
    holder, found = versions(tags)
    data = Evolving().encode(holder(found["v1.E7"](1)))
    assert len(data) > 300 and Evolving().decode(data) == holder(found["v1.E7"](1))
    assert any(data.startswith(start) for start in serdes._readers)


# Bounds that are newer than what is stored.


def record_of(kind, hint, name="Bounded"):
    if kind == "pydantic":
        made = pydantic.create_model(name, n=(hint, ...), others=(list[hint], []), __module__=__name__)
    elif kind == "field":
        base, *said = (getattr(hint, "__metadata__", None) and (hint.__origin__, *hint.__metadata__)) or (hint,)
        how = {
            one: getattr(said[0], one)
            for one in ("gt", "max_length", "pattern")
            if said and getattr(said[0], one, None) is not None
        }
        made = pydantic.create_model(
            name, n=(base, pydantic.Field(**how)), others=(list[base], []), __module__=__name__
        )
    elif kind == "struct":
        made = msgspec.defstruct(name, [("n", hint), ("others", list[hint], [])], module=__name__)
    else:
        made = dataclasses.make_dataclass(
            name, [("n", hint), ("others", list[hint], dataclasses.field(default_factory=list))]
        )
        made.__module__ = __name__
    setattr(sys.modules[__name__], name, made)
    return made


BOUNDS = {
    "gt": (int, annotated_types.Gt(0), msgspec.Meta(gt=0), 1, -1, "gt=0"),
    "max_length": (str, annotated_types.MaxLen(2), msgspec.Meta(max_length=2), "ab", "abc", "max_length=2"),
    "pattern": (str, None, msgspec.Meta(pattern="^a"), "ab", "b", "pattern='\\^a'"),
}


@pytest.mark.parametrize("kind", ["pydantic", "field", "struct", "dataclass"])
@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("in_list", [False, True])
def test_a_value_that_breaks_a_new_bound_is_told(kind, bound, in_list):
    base, about, meta, good, bad, says = BOUNDS[bound]
    about = meta if about is None or kind in ("struct", "dataclass", "field") else about
    if kind == "pydantic" and bound == "pattern":
        about = pydantic.Field(pattern="^a")
    before = record_of(kind, base)
    fine = Evolving().encode(before(n=good))
    broken = Evolving().encode(before(n=good, others=[bad]) if in_list else before(n=bad))
    after = record_of(kind, Annotated[base, about])
    assert Evolving().decode(fine) == after(n=good)
    if in_list and kind == "field":
        return  # of which nothing is said
    with pytest.raises(
        SerdeError,
        match=rf"a stored Bounded is none of .*: Bounded.(n|others) was stored as .*, and its type says {says} now",
    ):
        Evolving().decode(broken)


class Bounds(msgspec.Struct, frozen=True):
    n: Annotated[int, msgspec.Meta(ge=0)] = 0
    name: Annotated[str, msgspec.Meta(min_length=1)] = "a"
    all: Annotated[tuple[int, ...], msgspec.Meta(max_length=1)] = ()
    inside: Annotated[int, msgspec.Meta(le=3)] | Annotated[str, msgspec.Meta(max_length=1)] | None = None


@dataclasses.dataclass(frozen=True)
class BoundsInside:
    one: Bounds
    others: tuple[Bounds, ...] = ()


beyond = [
    *(Bounds(n=-1), Bounds(name=""), Bounds(all=(1, 2)), Bounds(inside=4), Bounds(inside="ab")),
    *(BoundsInside(Bounds(-1)), BoundsInside(Bounds(), (Bounds(name=""),))),
]


@pytest.mark.parametrize("value", beyond, ids=repr)
def test_what_was_made_beyond_bounds_comes_back_where_the_class_is_the_same(value):
    keys = KeySerde(Tagged())
    assert keys.decode(keys.hold_one(value)) == Tagged().decode(Tagged().encode((value, 1)))[0] == value
    assert Evolving().decode(Evolving().encode(value)) == value
    declared = Declared(list[Annotated[int, msgspec.Meta(ge=0)]])
    assert declared.decode(declared.encode([-1])) == declared.copy([-1]) == [-1]


@pytest.mark.parametrize("zone", [annotated_types.Timezone("UTC"), annotated_types.Timezone(...)], ids=repr)
@pytest.mark.parametrize("kind", ["pydantic", "struct", "dataclass"])
def test_the_name_of_a_zone_is_no_bound(kind, zone):
    noon = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
    stored = Evolving().encode(record_of(kind, dt.datetime)(n=noon))
    after = record_of(kind, Annotated[dt.datetime, zone])
    assert Evolving().decode(stored) == after(n=noon)


def test_a_value_that_a_new_validator_of_attrs_refuses_is_told():
    def defined(**how):
        made = attrs.make_class("Checked", {"n": attrs.field(type=int, **how)})
        made.__module__ = __name__
        sys.modules[__name__].Checked = made
        return made

    fine, broken = (Evolving().encode(defined()(n)) for n in (1, -1))
    after = defined(validator=attrs.validators.gt(0))
    assert Evolving().decode(fine) == after(1)
    with pytest.raises(SerdeError, match=r"Checked.n was stored as -1, which its validator refuses now: ValueError"):
        Evolving().decode(broken)


@pytest.mark.parametrize("kind", ["pydantic", "field", "attrs"])
def test_what_was_changed_in_place_beyond_bounds_comes_back_where_the_class_is_the_same(kind, monkeypatch):
    if kind == "attrs":
        checked = attrs.make_class("Bounded", {"n": attrs.field(type=int, validator=attrs.validators.gt(0))})
        checked.__module__ = __name__
        sys.modules[__name__].Bounded = checked
    else:
        checked = record_of(kind, Annotated[int, annotated_types.Gt(0)])
    value = checked(n=1)
    value.n = -1
    assert Evolving().decode(Evolving().encode(value)).n == -1
    with monkeypatch.context() as former:  # an earlier version described classes without their bounds
        former.setattr(serdes, "description_of", lambda kind: record_types._described(kind, repr))
        stored = Evolving().encode(value)
    assert Evolving().decode(stored).n == -1 and stored != Evolving().encode(value)


def test_an_operator_whose_state_breaks_a_new_bound_says_so(tmp_path):
    def keep(n, context):
        context.state = context.state or sys.modules[__name__].Bounded(n=-n)
        return [context.state.n]

    for run in range(2):
        record_of("pydantic", Annotated[int, annotated_types.Gt(0)] if run else int)
        app, found = App("bounded"), []
        app.input("in", value=int, key=lambda n: "k").process(keep, op_id="it").sink(found.append)
        produce("in", [1], data=tmp_path)
        if not run:
            app.run(tmp_path, until_now=True)
            continue
        with pytest.raises(
            SerdeError, match=r"process 'it' at .*test_changed_classes.py.*Bounded.n was stored as int \(-1\)"
        ):
            app.run(tmp_path, until_now=True)


# Records that hold more than their fields.


@dataclasses.dataclass
class Mapped(dict):
    x: int = 1


@dataclasses.dataclass
class Listed(list):
    x: int = 1


@attrs.define(slots=False)
class Grouped(set):
    x: int = 1


@dataclasses.dataclass(eq=False)
class Titled(str):
    x: int = 1


class Pair(collections.namedtuple("Pair", "a b")):
    pass


class Sorted(collections.defaultdict):
    pass


class Labelled(str):
    __slots__ = ("label",)


class Referred(str):
    __slots__ = ("__weakref__",)


class Roomy(float):
    __slots__ = ("__dict__", "__weakref__")


class Metres(float):
    __slots__ = ("__unit",)

    def with_unit(self, unit):
        self.__unit = unit
        return self


class Miles(Metres):
    pass


class Told(str):
    __slots__ = iter(("label",))


class Holding(msgspec.Struct):
    of: Mapped


class Point(NamedTuple):
    x: int


def with_items(value, add):
    add(value)
    return value


def with_label(value):
    value.label = "b"
    return value


def noted():
    value = Pair(1, 2)
    value.note = 3
    return value


MORE = {
    "dict": lambda: with_items(Mapped(2), lambda value: value.update(a=1)),
    "empty dict": lambda: Mapped(2),
    "list": lambda: with_items(Listed(2), lambda value: value.append(1)),
    "set": lambda: with_items(Grouped(2), lambda value: value.add(1)),
    "text": lambda: Titled("2"),
    "within a record": lambda: Holding(Mapped(2)),
    "named tuple": noted,
    "factory": lambda: Sorted(list, a=[1]),
    "slot": lambda: with_label(Labelled("a")),
    "slot of an iterator": lambda: with_label(Told("a")),
    "slot of its own": lambda: Metres(2.5).with_unit("m"),
    "slot of a base": lambda: Miles(2.5).with_unit("m"),
    "room": lambda: with_label(Roomy(2.5)),
}


@pytest.mark.parametrize("name", MORE)
@pytest.mark.parametrize("serde", SERDES, ids=["values", "keys"])
def test_what_holds_more_than_comes_back_is_refused(name, serde):
    for around in (lambda one: one, lambda one: [one, 1], lambda one: {"a": (one,)}):
        with pytest.raises(
            SerdeError,
            match=r"besides its fields, and what it holds|is no field, so it does not come back|can't be carried",
        ):
            serde.encode(around(MORE[name]()))
        with pytest.raises(SerdeError):
            serde.encode_all([around(MORE[name]())] * 2)


@pytest.mark.parametrize("name", MORE)
def test_it_is_refused_where_it_is_made(name):
    app = App("more")
    app.input("in", value=int).map(lambda n: MORE[name]()).partition_by(lambda one: "k", op_id="by").sink(
        lambda one: None
    )
    with pytest.raises(OperatorFailure, match=r"partition_by 'by' at .*test_changed_classes.py"):
        testing.run(app, {"in": [1]})


@pytest.mark.parametrize("kind", [Mapped, Listed, Titled, Holding, list[Mapped], Mapped | None])
def test_it_is_refused_where_it_is_declared(kind):
    app = App("more")
    with pytest.raises(PlanError, match=r"is a (dict|list|str) besides its fields"):
        app.input("in", value=kind)
    for serde in (Json, MessagePack):
        with pytest.raises(SerdeError, match=r"besides its fields"):
            serde(kind)


@pytest.mark.parametrize(
    "value",
    [
        *(Pair(1, 2), Point(1), Sorted(None, a=1), Labelled("a"), Referred("a"), Roomy(2.5), Metres(2.5), Miles(2.5)),
        Told("a"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_holds_no_more_comes_back(value):
    for serde in SERDES:
        found: Any = serde.decode(serde.encode(value))
        assert found == value and type(found) is type(value)


T = TypeVar("T")


class Crate(msgspec.Struct, Generic[T]):
    of: T
    all: list[T] = []


@dataclasses.dataclass
class Chest(Generic[T]):
    of: T
    all: list[T] = dataclasses.field(default_factory=list)


@pytest.mark.parametrize("kind", [Crate, Chest])
def test_the_parameter_of_a_generic_class_counts(kind):
    def holder(hint):
        made = msgspec.defstruct("Generous", [("of", hint)], module=__name__)
        sys.modules[__name__].Generous = made
        return made

    stored = Evolving().encode(holder(kind[int])(kind(1, [2])))
    found = Evolving().decode(stored)
    assert found.of == kind(1, [2])
    holder(kind[float])
    found = Evolving().decode(stored)
    assert [*map(repr, (found.of.of, *found.of.all))] == ["1.0", "2.0"]
    holder(kind[str])
    with pytest.raises(SerdeError, match=r"(Crate|Chest).of was stored as int \(1\) and is declared str now"):
        Evolving().decode(stored)


VALIDATED = """
import dataclasses, enum, functools, re, sys
from typing import Annotated
import attrs
from runtime.encoding import serdes

class Side(enum.Enum):
    BUY = "buy"
    SELL = "sell"

class Among:
    def __init__(self, among): self.among, self._seen = among, {id(self)}
    def __call__(self, record, field, value): assert value in self.among
    def __repr__(self): return f"Among({self.among})"

def is_among(record, field, value, among=()): assert not among or value in among

SIDES = {"buy", "sell", "hold", "none"}
v = attrs.validators
VALIDATORS = [
    v.in_(SIDES), v.in_(frozenset(SIDES)), v.optional(v.in_(SIDES)), v.and_(v.instance_of(str), v.in_(SIDES)),
    v.not_(v.in_({"never", "ever"})), v.or_(v.in_(SIDES), v.matches_re("s.*")), v.deep_iterable(v.in_(SIDES)),
    v.matches_re("[a-z]+", re.I), v.in_({Side.BUY.value, "sell"}), v.in_({"a": SIDES, "buy": SIDES}), is_among,
    lambda record, field, value: None, functools.partial(is_among, among=SIDES), functools.partial(is_among),
    Among(SIDES), Among([Side.BUY, "buy"]).__call__, functools.lru_cache(is_among),
]
@attrs.define
class Said:
    side: Annotated[str, Among(SIDES), "said"] | None
    n: list[Annotated[int, functools.partial(max, SIDES)]]

@dataclasses.dataclass
class Kept:
    side: Annotated[str, Among(SIDES), "said"] | None
    n: int

KINDS = [Said, Kept]
for number, one in enumerate(VALIDATORS):
    fields = {"side": attrs.field(type=str, validator=one), "n": attrs.field(type=int)}
    KINDS.append(attrs.make_class(f"O{number}", fields))
    globals()[f"O{number}"] = KINDS[-1]
if len(sys.argv) > 1:
    for line in sys.argv[1].split(","):
        serdes.Evolving().decode(bytes.fromhex(line))
    print("read")
else:
    stored = []
    for kind in KINDS:
        one = kind.__new__(kind)
        one.side, one.n = "buy", "seven"
        stored.append(serdes.Evolving().encode(one).hex())
    print(",".join(stored))
"""


def test_a_class_with_validators_has_one_description_in_every_process(tmp_path):
    program = tmp_path / "validated.py"
    program.write_text(VALIDATED)

    def ran(seed, *args):
        environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([sys.executable, program, *args], env=environment, capture_output=True, text=True)
        assert not done.returncode, done.stderr
        return done.stdout.strip()

    stored = ran(1)
    assert ran(2) == stored
    assert ran(3, stored) == "read"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (attrs.validators.in_({"a", "b"}), attrs.validators.in_({"a", "c"})),
        (attrs.validators.gt(1), attrs.validators.gt(2)),
        (attrs.validators.gt(1), attrs.validators.ge(1)),
        (attrs.validators.matches_re("a"), attrs.validators.matches_re("b")),
        (attrs.validators.instance_of(int), attrs.validators.instance_of(str)),
        (attrs.validators.optional(attrs.validators.in_([1])), attrs.validators.optional(attrs.validators.in_([2]))),
        (functools.partial(max, 1), functools.partial(max, 2)),
        ({1, 2}.__contains__, {1, 3}.__contains__),
        (max, min),
        (None, max),
    ],
)
def test_a_class_whose_validator_has_changed_has_another_description(one, other):
    kinds = [attrs.make_class("O", {"n": attrs.field(type=int, validator=validator)}) for validator in (one, other)]
    assert record_types.description_of(kinds[0]) != record_types.description_of(kinds[1])
