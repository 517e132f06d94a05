"""Parts of stored records whose declared type became another one: each is read as what it was, or refused."""

import collections
import dataclasses
import functools
import itertools
import operator
import sys
import types
import typing
from typing import Any, Generic, NamedTuple, NewType, TypeVar

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from typing_extensions import TypedDict

from runtime.encoding.record_types import is_readable_whole
from runtime.encoding.serdes import Declared, Evolving
from runtime.model.errors import SerdeError
from tests.scale import examples

T = TypeVar("T")
HERE = sys.modules[__name__]


def put(kind):
    """Have a class be what its name stands for here, as a deployment does."""
    kind.__module__, kind.__qualname__ = __name__, kind.__name__
    setattr(HERE, kind.__name__, kind)
    return kind


WAYS = {
    "plain": lambda one: one,
    "optional": lambda one: one | None,
    "list": lambda one: list[one],
    "dict": lambda one: dict[str, one | None],
}
HELD = {
    "plain": lambda one: one,
    "optional": lambda one: one,
    "list": lambda one: [one],
    "dict": lambda one: {"k": one},
}
STRUCTS = {
    "untagged": {},
    "tagged": {"tag": True},
    "by another field": {"tag": True, "tag_field": "kind"},
    "otherwise": {"tag": str.lower, "tag_field": "kind"},
    "as an array": {"tag": True, "array_like": True},
}


def classes(how):
    """Define the classes A, B and C with the same fields, of a kind."""
    fields = [("x", int), ("y", str, "")]
    if how == "dataclass":
        return [put(dataclasses.make_dataclass(name, fields)) for name in "ABC"]
    return [put(msgspec.defstruct(name, fields, module=__name__, **STRUCTS[how])) for name in "ABC"]


def among(kinds):
    return functools.reduce(operator.or_, kinds)


@given(
    st.sampled_from([*STRUCTS, "dataclass"]),
    st.sampled_from([*STRUCTS, "dataclass"]),
    st.sampled_from([*itertools.chain(*(itertools.permutations(range(3), size) for size in (1, 2, 3)))]),
    st.sampled_from([*itertools.chain(*(itertools.permutations(range(3), size) for size in (1, 2, 3)))]),
    st.sampled_from([*WAYS]),
)
@settings(max_examples=examples(300, 10_000))
@example("tagged", "by another field", (0,), (1,), "plain")
@example("by another field", "tagged", (0, 1), (1,), "list")
@example("otherwise", "untagged", (0,), (1,), "optional")
def test_a_record_is_never_read_as_another_class_whatever_its_tag_was_and_is(then, now, before, after, way):
    has_tag = then not in ("untagged", "dataclass")
    # One class in the place of one that had no tag is that class with another name.
    assume(has_tag or len(after) > 1)
    kinds = classes(then)
    chosen = [kinds[one] for one in before]
    if len(chosen) > 1 and not has_tag:
        chosen = chosen[:1]  # of several msgspec reads none as a whole
    put(msgspec.defstruct("Held", [("of", WAYS[way](among(chosen)))], module=__name__))
    stored = {kind.__name__: Evolving().encode(HERE.Held(HELD[way](kind(1)))) for kind in chosen}
    kinds = classes(now)
    put(msgspec.defstruct("Held", [("of", WAYS[way](among([kinds[one] for one in after])))], module=__name__))
    for name, data in stored.items():
        for serde in (Evolving(), Declared(HERE.Held)):
            try:
                found = serde.decode(data)
            except SerdeError:
                continue
            assert found == HERE.Held(HELD[way](getattr(HERE, name)(1)))


@pytest.mark.parametrize(
    ("then", "now"), [("untagged", "tagged"), ("tagged", "by another field"), ("dataclass", "dataclass")]
)
def test_a_part_of_which_nobody_can_tell_the_class_is_told(then, now):
    kinds = classes(then)
    put(msgspec.defstruct("Held", [("of", kinds[0] | None if then != "tagged" else kinds[0] | kinds[1])]))
    data = Evolving().encode(HERE.Held(kinds[0](1)))
    kinds = classes(now)
    put(msgspec.defstruct("Held", [("of", kinds[1] | kinds[0] | None)]))
    with pytest.raises(SerdeError, match=r"Held.of was stored without .* which of B, A it is"):
        Evolving().decode(data)


def test_a_class_alone_that_got_a_tag_reads_what_has_none():
    put(msgspec.defstruct("A", [("x", int)]))
    put(msgspec.defstruct("Held", [("of", HERE.A | None)]))
    data = Evolving().encode(HERE.Held(HERE.A(1)))
    put(msgspec.defstruct("A", [("x", int)], tag=True))
    put(msgspec.defstruct("Held", [("of", HERE.A | None), ("n", int, 0)]))
    assert Evolving().decode(data) == HERE.Held(HERE.A(1))


def generic(kind, of):
    """Define a class of records that is a generic one of some type."""

    def fields(body):
        body.update(__annotations__={"v": T}, __module__=__name__)

    if kind == "Struct":
        base = types.new_class("Box", (msgspec.Struct, Generic[T]), exec_body=fields)
        made = types.new_class("Inner", (base[of],))
    elif kind == "pydantic":
        base = types.new_class("Box", (pydantic.BaseModel, Generic[T]), exec_body=fields)
        made = types.new_class("Inner", (base[of],))
    elif kind == "root":
        made = types.new_class("Inner", (pydantic.RootModel[of],))
    else:
        decorate = dataclasses.dataclass if kind == "dataclass" else attrs.define
        base = decorate(types.new_class("Box", (Generic[T],), exec_body=fields))
        made = decorate(types.new_class("Inner", (base[of],)))
    return put(made)


@pytest.mark.parametrize("kind", ["Struct", "dataclass", "attrs", "pydantic", "root"])
@pytest.mark.parametrize("within", ["of", "list of"])
def test_a_class_that_is_a_generic_one_of_some_type_has_fields_of_that_type(kind, within):
    def of(one):
        return one if within == "of" else list[one]

    def held(one):
        return one if within == "of" else [one]

    made = generic(kind, of(int))
    data = Evolving().encode(made(held(1)) if kind == "root" else made(v=held(1)))
    found = Evolving().decode(data)
    generic(kind, of(float))
    found = Evolving().decode(data)
    value = found.root if kind == "root" else found.v
    assert repr(value) == repr(held(1.0))
    generic(kind, of(str))
    with pytest.raises(SerdeError, match=r"was stored as (int|list).* and is declared"):
        Evolving().decode(data)


def typed(form, hint):
    """Return a type of a form that says another one, which its own name does not tell."""
    if form == "TypedDict":
        return put(TypedDict("Said", {"a": hint}))
    if form == "TypedDict within":
        return put(TypedDict("Said", {"a": put(TypedDict("Deep", {"b": hint}))}))
    return NewType("Said", hint)


@pytest.mark.parametrize("form", ["TypedDict", "TypedDict within", "NewType"])
@pytest.mark.parametrize("outer", ["Struct", "dataclass", "attrs", "pydantic", "NamedTuple"])
@pytest.mark.parametrize("way", [*WAYS])
def test_what_a_type_within_says_counts_as_well(form, outer, way):
    def define(hint):
        fields = {"of": WAYS[way](typed(form, hint)), "more": Any}
        if outer == "Struct":
            return put(msgspec.defstruct("Held", [*fields.items()]))
        if outer == "NamedTuple":
            return put(NamedTuple("Held", [*fields.items()]))
        if outer == "pydantic":
            return put(pydantic.create_model("Held", **{name: (one, ...) for name, one in fields.items()}))
        made = type("Held", (), {"__annotations__": fields})
        return put((dataclasses.dataclass if outer == "dataclass" else attrs.define)(made))

    def value(of):
        return HELD[way]({"TypedDict": {"a": of}, "TypedDict within": {"a": {"b": of}}}.get(form, of))

    data = Evolving().encode(define(int)(of=value(1), more=None))
    assert Evolving().decode(data).of == value(1)
    define(float)
    assert repr(Evolving().decode(data).of) == repr(value(1.0))
    define(str)
    with pytest.raises(SerdeError, match=r"Held.of.* was stored as (int|dict) .* and is declared"):
        Evolving().decode(data)


@pytest.mark.parametrize("kind", ["Struct", "dataclass", "NamedTuple", "attrs"])
@pytest.mark.parametrize("nested", [False, True])
def test_records_that_are_keys_of_a_dict_may_change_as_others(kind, nested):
    def define(*names):
        fields = [(name, int) for name in names]
        if kind == "Struct":
            key = put(msgspec.defstruct("Key", fields, frozen=True))
        elif kind == "NamedTuple":
            key = put(NamedTuple("Key", fields))
        elif kind == "attrs":
            key = put(attrs.make_class("Key", {name: attrs.field(type=int) for name in names}, frozen=True))
        else:
            key = put(dataclasses.make_dataclass("Key", fields, frozen=True))
        put(msgspec.defstruct("Held", [("of", dict[tuple[int, key], int] if nested else dict[key, int])]))

    def held():
        key = HERE.Key(a=1, b=2)
        return HERE.Held({(0, key): 3} if nested else {key: 3})

    define("a", "b")
    data = Evolving().encode(held())
    assert Evolving().decode(data) == held()
    assert Evolving().decode_all(Evolving().encode_all([held()] * 2)) == [held()] * 2
    define("b", "a")
    assert Evolving().decode(data) == held()


def test_such_a_dict_of_an_earlier_version_is_read_by_its_definition_and_else_told(monkeypatch):
    def define(*names):
        put(msgspec.defstruct("Key", [(name, int) for name in names], frozen=True))
        put(msgspec.defstruct("Held", [("of", dict[HERE.Key, int])]))

    define("a", "b")
    value = HERE.Held({HERE.Key(1, 2): 3})
    monkeypatch.setattr("runtime.encoding.serdes.is_written_whole", is_readable_whole)
    data = Evolving().encode(value)
    monkeypatch.undo()
    assert data != Evolving().encode(value)
    assert Evolving().decode(data) == value
    define("b", "a")
    with pytest.raises(SerdeError, match=r"a stored Held .*records as keys of a dict"):
        Evolving().decode(data)


NUMBERS = st.integers(-(2**53), 2**53)
AROUND = {
    "list": (lambda of, value: list[of], lambda of, value: st.lists(of, max_size=3)),
    "tuple": (lambda of, value: tuple[of, ...], lambda of, value: st.lists(of, max_size=3).map(tuple)),
    "pair": (lambda of, value: tuple[of, value], lambda of, value: st.tuples(of, value)),
    "values": (lambda of, value: dict[str, of], lambda of, value: st.dictionaries(st.text(max_size=2), of, max_size=3)),
    "optional": (lambda of, value: of | None, lambda of, value: st.none() | of),
}
WITHIN_KEYS = {
    "keys": (lambda of, value: dict[of, value], lambda of, value: st.dictionaries(of, value, max_size=3)),
    "set": (lambda of, value: set[of], lambda of, value: st.sets(of, max_size=3)),
    "frozenset": (lambda of, value: frozenset[of], lambda of, value: st.frozensets(of, max_size=3)),
}


@st.composite
def widened_types(draw):
    """A type of ints within others, the same of floats, and a value of the first."""
    before, now, values = int, float, NUMBERS
    if draw(st.booleans()):
        before, now, values = tuple[int, int], tuple[float, int], st.tuples(NUMBERS, NUMBERS)
    ways = draw(st.lists(st.sampled_from([*AROUND]), max_size=2))
    for way in [*draw(st.lists(st.sampled_from([*WITHIN_KEYS]), max_size=1)), *ways]:
        made, drawn = (AROUND | WITHIN_KEYS)[way]
        before, now, values = made(before, int), made(now, int), drawn(values, NUMBERS)
    return before, now, draw(values)


def is_exactly(value, hint):
    """Whether a value is of a type with its very classes, at each depth."""
    inside = getattr(hint, "__args__", ())
    if type(None) in inside:
        return value is None or is_exactly(value, inside[0])
    if isinstance(value, dict):
        return all(is_exactly(key, inside[0]) and is_exactly(one, inside[1]) for key, one in value.items())
    if isinstance(value, tuple) and inside[-1] is not ...:
        return all(map(is_exactly, value, inside))
    return all(is_exactly(one, inside[0]) for one in value) if inside else type(value) is hint


@given(widened_types(), st.sampled_from(["Struct", "dataclass", "attrs", "pydantic"]))
@settings(max_examples=examples(300, 10_000))
@example((dict[int, int], dict[float, int], {3: 1}), "attrs")
def test_numbers_are_widened_wherever_they_are(types, kind):
    before, now, value = types
    define = {
        "Struct": lambda of: msgspec.defstruct("Wide", [("of", of)]),
        "dataclass": lambda of: dataclasses.make_dataclass("Wide", [("of", of)]),
        "attrs": lambda of: attrs.make_class("Wide", {"of": attrs.field(type=of)}),
        "pydantic": lambda of: pydantic.create_model("Wide", of=(of, ...)),
    }[kind]
    put(define(before))
    data = Evolving().encode(HERE.Wide(of=value))
    put(define(now))
    found = Evolving().decode(data).of
    assert found == value
    assert is_exactly(found, now), found


def test_a_mapping_of_a_class_of_its_own_has_what_it_had_when_it_is_widened():
    put(attrs.make_class("Sums", {"of": attrs.field(type=dict[str, int])}))
    kinds = collections.Counter(a=2), collections.OrderedDict(b=1, a=2), collections.defaultdict(int, {"a": 2})
    stored = [Evolving().encode(HERE.Sums(of=one)) for one in kinds]
    put(attrs.make_class("Sums", {"of": attrs.field(type=dict[str, float])}))
    for value, data in zip(kinds, stored, strict=True):
        found = Evolving().decode(data).of
        assert (found, type(found)) == (value, type(value))
        assert all(type(one) is float for one in found.values())


@pytest.mark.parametrize("total", [True, False])
@pytest.mark.parametrize("said", ["as types", "as text"])
@pytest.mark.parametrize("rule", ["{}", "NotRequired[{}]", "Required[{}]", "Annotated[NotRequired[{}], 'why']"])
def test_a_key_that_was_not_there_is_read_just_where_it_is_not_required(rule, said, total):
    source = f"class Said(TypedDict, total={total}):\n    a: Required[int]\n    b: {rule.format('int')}\n"
    if said == "as text":
        source = "from __future__ import annotations\n" + source
    names = {name: getattr(typing, name) for name in ("TypedDict", "NotRequired", "Required", "Annotated")}
    exec(source, vars(HERE) | names | {"__name__": __name__}, made := {})
    vars(HERE).update({name: names[name] for name in ("NotRequired", "Required", "Annotated")})
    stored = Evolving().encode({"a": 1})
    held = Declared(put(made["Said"]))
    is_required = rule == "Required[{}]" or (rule == "{}" and total)
    if is_required:
        with pytest.raises(SerdeError, match=r"was stored without \['b'\], which Said requires now"):
            held.decode(stored)
    else:
        assert held.decode(stored) == {"a": 1}
