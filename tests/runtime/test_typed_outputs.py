"""What an output declares is what it holds: a value that its type could not be read from meets the policy."""

import asyncio
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Generic, TypeVar

import attrs
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct

from operators.windows.window import Pane
from runtime.encoding.conformity import conforming
from runtime.encoding.serdes import Json, MessagePack
from runtime.encoding.storable import ReadBack
from runtime.model.errors import OperatorFailure, SerdeError
from runtime.systems.log.environment import LogEnvironment
from samza_dsl import App, SamzaError, dead_letter, fail, list_streams, produce, skip

K = TypeVar("K")
V = TypeVar("V")


class Row(Struct):
    n: int
    at: float = 0.0


class Of(Struct, Generic[K, V]):
    key: K
    all: V
    both: tuple[K, V] | None = None


class Tree(Struct):
    of: "list[Tree]"
    n: Annotated[int, Meta(ge=0)] = 0


@dataclass
class Day:
    on: date
    by: "str | None" = None


class Colour(Enum):
    RED = 1


class Model(pydantic.BaseModel):
    n: Annotated[int, pydantic.Field(gt=0)]


@attrs.define(on_setattr=attrs.setters.NO_OP)
class Bounded:
    n: int = attrs.field(validator=attrs.validators.gt(0))
    of: Model | None = None


@attrs.define
class Opened:
    n: int

    def __attrs_post_init__(self) -> None:
        assert self.n > 0


class Positive(Struct):
    n: int

    def __post_init__(self) -> None:
        assert self.n > 0


@dataclass
class Above:
    n: int

    def __post_init__(self) -> None:
        assert self.n > 0


class Holds(Struct, Generic[V]):
    all: list[V]
    of: "Holds[V] | None" = None


def changed(record: Any, n: object = -1) -> Any:
    """Return a record that was good when it was made, as it is after a function has changed it."""
    record.n = n
    return record


CHANGED = [
    *((kind, changed(kind(n=1))) for kind in (Model, Bounded, Opened, Positive, Above)),
    (Model, changed(Model(n=1), "a")),
    (Model, Model.model_construct()),
    (Bounded, Bounded(1, changed(Model(n=1)))),
    (list[Model], [Model(n=1), changed(Model(n=1))]),
    (dict[str, Positive], {"a": changed(Positive(1))}),
    (Model | None, changed(Model(n=1))),
    (Holds[Model], Holds([], Holds([changed(Model(n=1))]))),
    (Holds[Above], Holds([changed(Above(1))])),
]


GOOD: list[tuple[Any, list[object]]] = [
    (int, [7, -1]),
    (float, [7, 2.5]),
    (str | None, ["a"]),
    (list[int], [[1], []]),
    (dict[str, float], [{"a": 1}]),
    (tuple[int, str], [(1, "a")]),
    (Row, [Row(1), Row(2, 3), {"n": 4}]),
    (Tree, [Tree([Tree([])])]),
    (Day, [Day(date(2025, 6, 15))]),
    (Row | None, [Row(1)]),
    (Of[int, list[int]], [Of(1, [2])]),
    (datetime | None, [datetime(2025, 6, 15, tzinfo=UTC)]),
    (list[Decimal], [[Decimal(1)]]),
    (Colour, [Colour.RED]),
    (Any, [7.0, "a"]),
    (Model, [Model(n=1)]),
    (Bounded, [Bounded(1, Model(n=1))]),
    (Holds[Positive], [Holds([Positive(1)], Holds([]))]),
]
BAD: list[tuple[Any, list[object]]] = [
    (int, [7.0, True, "a", [1]]),
    (float, [True, "x"]),
    (list[int], [[1.5], ["a"], 3]),
    (dict[str, float], [{"a": "b"}]),
    (Row, [Row(1.5), Row("a"), Row(1, True), {"n": 1.5}, {}, 3]),
    (Of[int, list[int]], [Of(1.5, []), Of(1, ["a"]), Of(1, [2], 3)]),
    (Tree, [Tree([Tree([], -1)]), Tree([3])]),
    (Day, [Day("today"), Day(3), Day(date(2025, 6, 15), 3)]),
    (Annotated[int, Meta(ge=0)], [-1]),
]


@pytest.mark.parametrize("of", [Json, MessagePack])
@pytest.mark.parametrize(("kind", "good"), GOOD, ids=str)
def test_values_of_the_type_are_written_as_ever(of, kind, good):
    serde = ReadBack(of(kind), kind)
    assert serde.encode_all(good) == [serde.encode(one) for one in good] == [of(kind).encode(one) for one in good]
    serde.decode_all(serde.encode_all(good))


@pytest.mark.parametrize("of", [Json, MessagePack])
@pytest.mark.parametrize(("kind", "bad"), BAD, ids=str)
def test_others_are_refused_alone_and_among_others(of, kind, bad):
    serde = ReadBack(of(kind), kind)
    good = next(values for one, values in [*GOOD, (Annotated[int, Meta(ge=0)], [1])] if one == kind)
    for value in bad:
        with pytest.raises(SerdeError, match="is not of the declared type"):
            serde.encode(value)
        with pytest.raises(SerdeError, match="is not of the declared type"):
            serde.encode_all([*good, value, *good])


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize("of", [Json, MessagePack])
@pytest.mark.parametrize(("kind", "value"), CHANGED, ids=str)
def test_what_was_changed_so_that_its_class_refuses_it_as_it_is_read_is_refused(of, kind, value):
    serde = ReadBack(of(kind), kind)
    with pytest.raises(SerdeError, match="is not of the declared type"):
        serde.encode(value)
    with pytest.raises(SerdeError, match="is not of the declared type"):
        serde.encode_all([value])


scalars = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(-1e300, 1e300) | st.text(max_size=3)


@given(st.lists(scalars | st.lists(scalars, max_size=2) | st.builds(Row, scalars, scalars), max_size=5))
@pytest.mark.parametrize("kind", [int, float, str, bool | None, list[int], list[float | None], Row, Row | list[int]])
def test_what_is_told_to_conform_can_be_read(kind, values):
    conforms, all_conform = conforming(kind)
    assert all_conform(values) == all(map(conforms, values))
    for value in values:
        if conforms(value):
            for serde in (Json(kind), MessagePack(kind)):
                serde.decode(serde.encode(value))


PLACES = ["", "out.jsonl", "out.csv", "out.parquet", "out.arrow"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("number", [1, 300])
@pytest.mark.parametrize("calls", [False, True], ids=["inlined", "called"])
def test_what_a_type_can_not_be_read_from_meets_the_policy_wherever_an_output_is_bound(place, number, calls, tmp_path):
    bad = [Row(1.5), Row(True), Row(2, "x")]

    def made(n: int) -> Row:
        return bad[n] if n < len(bad) else Row(n)

    def run(name, policy):
        app = App(name)
        numbers = app.input("in", value=int)
        rows = numbers.flat_map(lambda n: [made(n)]) if calls else numbers.map(made)
        rows.send_to(app.output(f"{name}-out", value=Row), on_error=policy, op_id="writes")
        bind = {f"{name}-out": tmp_path / f"{name}-{place}"} if place else {}
        app.run(tmp_path, until_now=True, bind=bind)
        return bind.get(f"{name}-out")

    produce("in", range(number + 3), data=tmp_path)
    with pytest.raises(OperatorFailure, match=r"'writes' at .*typed_outputs.py:\d+: .*Row\(n=1.5.*declared type, Row"):
        run("failing", fail)
    found = run("skipping", skip)
    for name, at in (("skipping", found), ("lettering", run("lettering", dead_letter("letters")))):
        assert numbers_in(tmp_path, f"{name}-out", at) == list(range(3, number + 3))
    letters = App("letters-reader")
    letters.input("letters", value=bytes).map(len).send_to(letters.output("lengths", value=int))
    assert len(letters.run(tmp_path, until_now=True).received("lengths")) == 3


def numbers_in(data, stream, at):
    """Return what an output holds, as another application reads it."""
    app = App(f"{stream}-reader")
    app.input(stream, value=Row).map(lambda row: row.n).send_to(app.output(f"{stream}-again", value=int))
    return app.run(data, until_now=True, bind={stream: at} if at else {}).received(f"{stream}-again")


def test_panes_of_a_declared_type_are_told_without_their_bytes():
    conforms, _ = conforming(Pane[str, int])
    assert conforms(Pane("a", 0, 1, 7)) and not conforms(Pane("a", 0, 1, 7.5))


def test_a_task_that_sends_what_a_type_can_not_be_read_from_meets_its_policy(tmp_path):
    app = App("sends")
    out = app.output("out", value=int)
    numbers = app.input("in", value=int)
    app.task(
        numbers,
        lambda envelope, context: context.send(out, envelope.value / 2),
        outputs=[out],
        op_id="t",
        on_error=skip,
    )
    produce("in", [1], data=tmp_path)
    assert app.run(tmp_path, until_now=True).received("out") == []


def test_so_it_is_of_what_is_produced_all_or_none(tmp_path):
    with pytest.raises(SamzaError, match=r"test_typed_outputs.py:\d+: .*7.5 is not of the declared type, int"):
        produce("in", [7, 7.5], value=int, data=tmp_path)
    assert not list_streams(tmp_path)
    assert produce("in", [7, 8], value=float, data=tmp_path) == 2


def test_and_of_what_a_program_sends_to_its_own_run(tmp_path):
    async def sends():
        app = App("sent")
        app.input("in", value=int, key=float).send_to(app.output("out", value=int))
        async with app.running(tmp_path) as run:
            with pytest.raises(SerdeError, match=r"7\.5 is not of the declared type, int"):
                await run.send("in", 7.5)
            await run.send("in", 7, key=7)

    asyncio.run(sends())
    with closing(LogEnvironment(tmp_path)) as environment:
        batch = environment.read("in", 0, 0).batch
        assert (batch.values, batch.keys) == ([b"7"], [b"7.0"])
