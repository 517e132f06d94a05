"""The forms of inputs, by which a page without the program refuses what the program could not read."""

import dataclasses
import datetime as dt
import enum
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypedDict, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.model.stored_forms import StoredForm, TypeForm, stored_form, type_form
from runtime.encoding.serdes import Bytes, Evolving, Json, MessagePack, String
from runtime.model.errors import SamzaError
from samza_dsl.room.letter_forms import serde_of_form, type_of, written_for


class Leg(msgspec.Struct, rename="camel"):
    from_port: str
    km: Annotated[float, msgspec.Meta(gt=0)] = 1.0


class Sea(msgspec.Struct, tag=True):
    ship: str


class Air(msgspec.Struct, tag="air", forbid_unknown_fields=True):
    plane: str
    legs: list[Leg] = []


class Tree(msgspec.Struct):
    n: int
    below: list["Tree"] = []


class Left(msgspec.Struct, tag="l"):
    right: "Right | None" = None


class Right(msgspec.Struct, tag="r"):
    left: Left
    n: int


class Rights(enum.IntFlag):
    READ = 1
    WRITE = 2


class Colour(enum.Enum):
    RED = "red"


class Loose(TypedDict, total=False):
    n: int


class Pair(NamedTuple):
    n: int
    text: str = ""


@dataclasses.dataclass
class Plain:
    at: dt.datetime
    when: dt.date | None = None


class Branch(msgspec.Struct, rename="camel"):
    leaf_count: int
    sub_branches: list["Branch"] = []


T = TypeVar("T")


class Box(msgspec.Struct, Generic[T]):
    of: T


class Boxes(msgspec.Struct):
    number: Box[int]
    text: Box[str]
    again: Box[int]
    both: tuple[Leg, Leg]
    by: dict[str, Leg] = {}


TYPES = [
    Branch,
    Boxes,
    tuple[Leg, Leg],
    dict[str, tuple[Pair, Pair]],
    *(
        Leg,
        Sea | Air,
        Tree,
        Left,
        Left | Right,
        Colour,
        Loose,
        Pair,
        Plain,
        Any,
        dict,
        list,
        int,
        float,
        bool,
        bytes,
        Decimal,
    ),
    *(uuid.UUID, dt.datetime, dt.time, dt.timedelta, int | None, str | int, dict[int, Leg], dict[str, list[Pair]]),
    *(tuple[int, str], tuple[int, ...], set[int], Literal["a", 1], Annotated[dt.datetime, msgspec.Meta(tz=True)]),
]
JSON = [
    *(
        '{"fromPort":"a"}',
        '{"fromPort":"a","km":0}',
        '{"from_port":"a"}',
        '{"type":"Sea","ship":"s"}',
        '{"type":"air"}',
    ),
    *('{"type":"air","plane":"p","x":1}', '{"type":"air","plane":"p","legs":[{"fromPort":1}]}', '{"n":1,"below":[1]}'),
    *(
        '{"n":1,"below":[{"n":2}]}',
        '{"n":"1"}',
        "[1]",
        '[1,"a"]',
        "[1,1]",
        "1",
        "3",
        "1.0",
        "1.5",
        '"red"',
        '"a"',
        "null",
    ),
    *('{"type":"l","right":{"type":"r","left":{"type":"l"},"n":"x"}}', '{"right":{"left":{"right":1},"n":1}}'),
    *('{"leafCount":1,"subBranches":[{"leafCount":2}]}', '{"leafCount":1,"subBranches":[{"leaf_count":2}]}'),
    '{"number":{"of":1},"text":{"of":"a"},"again":{"of":1},"both":[{"fromPort":"a"},{"fromPort":"b"}]}',
    '{"number":{"of":1},"text":{"of":"a"},"again":{"of":"a"},"both":[{"fromPort":"a"},{"fromPort":"b"}]}',
    '{"number":{"of":1},"text":{"of":1},"again":{"of":1},"both":[{"fromPort":"a"},{"fromPort":"b"}]}',
    '{"number":{"of":1},"text":{"of":"a"},"again":{"of":1},"both":[{"fromPort":"a"},{"fromPort":1}]}',
    *(
        '[{"fromPort":"a"},{"fromPort":"b"}]',
        '[{"fromPort":"a"},{"fromPort":1}]',
        '{"a":[[1],[2]]}',
        '{"a":[[1],[""]]}',
    ),
    *("true", '"2026-01-01"', '"2026-01-01T00:00:00"', '"2026-01-01T00:00:00Z"', '"00:00:00"', '"PT1S"', '"YQ=="'),
    *('{"at":"2026-01-01T00:00:00","when":"soon"}', '{"at":"2026-01-01T00:00:00"}', '{"1":{"fromPort":"a"}}', "{}"),
    *('{"a":{"fromPort":"a"}}', '{"a":[[1]]}', '{"n": 1', "", '"12345678-1234-5678-1234-567812345678"', "1e400", "NaN"),
]


def reads(serde, data):
    try:
        serde.decode(data)
    except Exception:
        return False
    return True


def over_there(form):
    """Return a form as a page has it, which reads it of the plan's JSON."""
    return msgspec.json.decode(msgspec.json.encode(form), type=StoredForm)


@pytest.mark.parametrize("kind", TYPES, ids=str)
@pytest.mark.parametrize("serde", [Json, MessagePack])
def test_a_form_reads_just_what_its_type_does(kind, serde):
    own = serde(kind)
    form = over_there(stored_form(own))
    assert form.type is not None
    told = serde_of_form(form)
    for text in JSON:
        data = text.encode()
        if serde is MessagePack and reads(Json(), data):
            data = MessagePack().encode(Json().decode(data))
        assert reads(told, data) == reads(own, data), text


class Held(msgspec.Struct):
    n: int
    path: Path


def test_what_only_the_program_reads_may_be_anything_and_the_rest_is_checked():
    told = serde_of_form(over_there(stored_form(Json(Held))))
    assert reads(told, b'{"n":1,"path":7}') and not reads(told, b'{"n":"1","path":"a"}')
    assert not reads(serde_of_form(over_there(stored_form(Json(Path)))), b"{")


LEGS = st.builds(Leg, st.text(max_size=3), st.floats(0.5, 9))
VALUES = [
    (Json(Leg), LEGS),
    (MessagePack(Leg), LEGS),
    (Json(Sea | Air), st.builds(Sea, st.text()) | st.builds(Air, st.text(), st.lists(LEGS, max_size=2))),
    (Json(Tree), st.builds(Tree, st.integers(), st.lists(st.builds(Tree, st.integers()), max_size=2))),
    (Json(Branch), st.builds(Branch, st.integers(), st.lists(st.builds(Branch, st.integers()), max_size=2))),
    (
        Json(Boxes),
        st.builds(
            Boxes,
            *(st.builds(Box, st.integers()), st.builds(Box, st.text()), st.builds(Box, st.integers())),
            *(st.tuples(LEGS, LEGS), st.dictionaries(st.text(), LEGS, max_size=2)),
        ),
    ),
    (Json(Pair), st.builds(Pair, st.integers(), st.text())),
    (Json(Plain), st.builds(Plain, st.datetimes(), st.none() | st.dates())),
    (Json(Colour), st.sampled_from(Colour)),
    (Json(Decimal), st.decimals(allow_nan=False, allow_infinity=False)),
    (Json(set[int]), st.sets(st.integers())),
    (Json(dict[int, Leg]), st.dictionaries(st.integers(0, 9), LEGS, max_size=2)),
    (Json(dict), st.dictionaries(st.text(), st.integers() | st.text())),
    (Json(), st.integers() | st.lists(st.text()) | st.none()),
    (String(), st.text()),
    (Bytes(), st.binary()),
]


@given(st.sampled_from(VALUES).flatmap(lambda one: st.tuples(st.just(one[0]), one[1])))
def test_an_operators_value_comes_back_by_the_input_as_it_was(drawn):
    serde, value = drawn
    form = over_there(stored_form(serde))
    assert serde.decode(written_for(form, Evolving().encode(value))) == value


@pytest.mark.parametrize(
    ("serde", "value", "wrong"),
    [
        (String(), 7, "an operator's value"),
        (Bytes(), "a", "an operator's value"),
        (Json(Leg), {"n": 1}, "an operator's value"),
        (Json(Leg), {"fromPort": "a", "more": 1}, "does not read 'more'"),
        (Json(Tree), Tree(1, [Tree("a")]), "an operator's value"),
        (Json(list[Sea]), [Sea("s"), Air("p")], "an operator's value"),
        (Json(float), float("nan"), "an operator's value"),
    ],
)
def test_an_operators_value_that_the_input_would_not_keep_is_refused(serde, value, wrong):
    form = over_there(stored_form(serde))
    with pytest.raises(SamzaError, match=wrong):
        written_for(form, Evolving().encode(value))


def nested(depth):
    """Return a record of three that each hold the one below, down to so many."""
    kind: Any = int
    for number in range(depth):
        kind = msgspec.defstruct(f"Level{number}", [(name, kind) for name in "abc"])
    return kind


def test_a_record_is_told_once_however_often_it_is_named():
    sizes = [len(msgspec.json.encode(type_form(nested(depth)))) for depth in (4, 8, 12)]
    assert sizes[2] - sizes[1] < 2 * (sizes[1] - sizes[0])
    told = type_of(msgspec.json.decode(msgspec.json.encode(type_form(nested(3))), type=TypeForm))
    leaf = {"a": 1, "b": 1, "c": 1}
    inner = dict.fromkeys("abc", leaf)
    outer = dict.fromkeys("abc", inner)
    assert reads(Json(told), msgspec.json.encode(outer))
    outer["c"] = {**inner, "c": {**leaf, "c": "x"}}
    assert not reads(Json(told), msgspec.json.encode(outer))


def test_a_form_of_an_earlier_version_has_each_record_written_out_and_is_read():
    leg = type_form(Leg)
    both = TypeForm(msgspec_type="TupleType", parts=(leg, leg))
    assert reads(Json(type_of(both)), b'[{"fromPort":"a"},{"fromPort":"b"}]')
    assert not reads(Json(type_of(both)), b'[{"fromPort":"a"},{"fromPort":1}]')
