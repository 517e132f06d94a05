"""A value that can't be kept fails where it is made, under its operator's policy; what is kept comes back as it was."""

import re
import sys
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from functools import cached_property
from typing import Any
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.model.levers import Levers
from runtime.encoding.serdes import Json, Tagged
from runtime.encoding.storable import check_kept, difference
from runtime.job.pipeline import Pipeline
from runtime.model.errors import OperatorFailure, SerdeError, UnreadState
from runtime.run.run import run_blocking
from runtime.run.settings import RunSettings
from samza_dsl import (
    App,
    Options,
    PlanError,
    SamzaError,
    after_count,
    aggregate,
    collect,
    count,
    counted,
    dead_letter,
    fail,
    first,
    fold,
    last,
    maximum,
    session,
    skip,
    sliding,
    testing,
    top_k,
    total,
    tumbling,
)
from tests.amounts import Amount, Cents
from tests.simulation.crash import fill, memory, rows_of, run_once

BAD = 2
"""The message of which something is to be kept that has no bytes."""


@dataclass
class Held:
    """What holds something that can't be kept, one field of many."""

    number: int
    lock: Any = None
    parts: list[Any] = field(default_factory=list)


def itself():
    """Return a list that holds itself."""
    found = []
    found.append(found)
    return found


UNKEEPABLE = {"lock": threading.Lock, "itself": itself, "half a character": lambda: "\ud800"}
unkeepable = threading.Lock


def held(n):
    return Held(n, parts=[{"lock": unkeepable() if n == BAD else None}])


def in_state(n, context):
    context.state = held(n)
    return [n]


def in_list(n, context):
    context.list("seen").append(held(n))
    return [n]


def in_map(n, context):
    context.map("seen")[n] = held(n)
    return [n]


def in_place(n, context):
    context.state.parts.append(held(n))
    return [n]


def on_timer(at, context):
    context.state = held(at)
    return [at]


def with_timer(n, context):
    context.set_timer(n)
    return [n]


async def awaited(n, context):
    context.state = held(n)
    return [n]


def windowed(windows, aggregation, **how):
    def step(stream, policy):
        return stream.map(held).window(windows, aggregation, on_error=policy, op_id="step", **how)

    return step


def joined(stream, policy):
    return stream.map(held).join(stream, lambda a, b: b, within=(-1, 1), on_error=policy, op_id="step")


def nearest(stream, policy):
    return stream.map(held).join_asof(stream, lambda a, b: b, on_error=policy, op_id="step")


MINUTE = tumbling(minutes=1)
STEPS = {
    "process": lambda s, policy: s.process(in_state, on_error=policy, op_id="step"),
    "process, list": lambda s, policy: s.process(in_list, on_error=policy, op_id="step"),
    "process, map": lambda s, policy: s.process(in_map, on_error=policy, op_id="step"),
    "process, in place": lambda s, policy: s.process(in_place, init=lambda: Held(0), on_error=policy, op_id="step"),
    "process, ttl": lambda s, policy: s.process(in_state, ttl_ms=1_000, on_error=policy, op_id="step"),
    "scan": lambda s, policy: s.scan(lambda state, n: held(n), on_error=policy, op_id="step"),
    "scan, emit": lambda s, policy: s.scan(
        lambda state, n: held(n), emit=lambda key, state: state.number, on_error=policy, op_id="step"
    ),
    "async_flat_map": lambda s, policy: s.async_flat_map(awaited, timeout_ms=1_000, on_error=policy, op_id="step"),
    "collect": windowed(MINUTE, collect()),
    "first": windowed(MINUTE, first()),
    "last": windowed(MINUTE, last()),
    "fold": windowed(MINUTE, fold(list, lambda found, value: [*found, value])),
    "top_k": windowed(MINUTE, top_k(3, by=lambda one: one.number)),
    "maximum": windowed(MINUTE, maximum(lambda one: one.parts[0]["lock"])),
    "late": windowed(MINUTE, collect(), allowed_lateness_ms=1_000),
    "session": windowed(session(minutes=1), collect()),
    "sliding": windowed(sliding(minutes=1), collect()),
    "counted": windowed(counted(10), collect()),
    "join": joined,
    "join_asof": nearest,
    "deduplicate": lambda s, policy: s.deduplicate(held, within_ms=1_000, on_error=policy, op_id="step"),
    "partition_by": lambda s, policy: s.map(held).partition_by(lambda one: 0, on_error=policy, op_id="step"),
    "key of partition_by": lambda s, policy: s.partition_by(held, on_error=policy, op_id="step"),
}


def app_of(step, policy):
    app = App("kept", Options(batch_records=100))
    stream = app.input("in", value=int, key=lambda n: n, timestamp=lambda n: n)
    step(stream, policy).map(lambda value: 0).send_to(app.output("out", value=int))
    return app


def live(app, values):
    environment = memory()
    fill(environment, "in", [[(None, b"%d" % n, 0) for n in values]])
    run_once(app, environment)
    return environment


@pytest.mark.parametrize("way", ["test", "live"])
@pytest.mark.parametrize("step", STEPS)
def test_what_can_not_be_kept_fails_with_its_operator_line_and_field(step, way):
    app = app_of(STEPS[step], fail)
    with pytest.raises(OperatorFailure) as raised:
        testing.run(app, {"in": [1, BAD, 3]}) if way == "test" else live(app, [1, BAD, 3])
    told = str(raised.value)
    assert re.search(r"'step' at .*test_kept\.py:\d+: runtime\.model\.errors\.SerdeError", told), told
    assert "lock" in told


@pytest.mark.parametrize("kind", UNKEEPABLE)
@pytest.mark.parametrize("way", ["test", "live"])
@pytest.mark.parametrize("step", STEPS)
def test_what_can_not_be_kept_is_skipped_or_a_dead_letter_and_takes_nothing_with_it(step, way, kind, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "unkeepable", UNKEEPABLE[kind])
    app, skipping = app_of(STEPS[step], dead_letter("letters")), app_of(STEPS[step], skip)
    if way == "test":
        found = testing.run(app, {"in": [1, BAD, 3]})
        letters, out = found["letters"], found["out"]
        assert testing.run(skipping, {"in": [1, BAD, 3]})["out"] == out == testing.run(skipping, {"in": [1, 3]})["out"]
    else:
        environment = live(app, [1, BAD, 3])
        letters = [value for part in rows_of(environment, "letters") for _, value, _ in part]
        out = [value for part in rows_of(environment, "out") for _, value, _ in part]
        alone = [value for part in rows_of(live(skipping, [1, 3]), "out") for _, value, _ in part]
        assert out == alone
    assert letters == [b"2"] and out


def test_what_the_next_message_overwrites_is_looked_at_in_tests():
    def newest(n, context):
        context.state = held(n)
        return [n]

    def app(policy):
        app = App("overwritten")
        stream = app.input("in", value=int, key=lambda n: "all", timestamp=lambda n: n)
        stream.process(newest, on_error=policy).send_to(app.output("out", value=int))
        return app

    with pytest.raises(OperatorFailure, match=r"Held\.parts\[0\]\['lock'\].*on in/0 at 1;"):
        testing.run(app(fail), {"in": [1, BAD, 3]})
    assert testing.run(app(skip), {"in": [1, BAD, 3]})["out"] == [1, 3]


@pytest.mark.parametrize("policy", [fail, skip])
def test_what_is_changed_in_place_behind_its_back_fails_at_the_commit_with_operator_and_line(policy):
    seen = []

    def keep(n, context):
        if context.state is None:
            seen.append([])
            context.state = seen[0]
        if n == 70:
            seen[0].append(threading.Lock())
        return [n]

    app = App("in-place", Options(batch_records=1))
    stream = app.input("in", value=int, key=lambda n: n // 70, timestamp=lambda n: n)
    stream.process(keep, on_error=policy, op_id="keeps").send_to(app.output("out", value=int))
    with pytest.raises(OperatorFailure, match=r"process 'keeps' at .*test_kept\.py:\d+: .*SerdeError: its \[0\]"):
        live(app, range(71))


def test_what_is_in_memory_alone_need_not_have_bytes():
    app = App("in-memory")
    stream = app.input("in", value=int, key=lambda n: "all", timestamp=lambda n: n)
    stream.process(in_state, store="memory").send_to(app.output("out", value=int))
    assert testing.run(app, {"in": [1, BAD, 3]})["out"] == [1, BAD, 3]


class Lossy:
    """A serde that forgets the sign."""

    type = int

    def encode(self, value):
        return b"%d" % abs(value)

    def decode(self, data):
        return int(data)


@dataclass
class Row:
    """A record that may be given another attribute, which no field is."""

    number: float
    pair: tuple[int, ...] = ()

    @cached_property
    def double(self):
        """Return what is computed once and may be forgotten."""
        return self.number * 2


def noted(row, note):
    row.note = note
    assert not isinstance(row, Row) or row.double is not None
    return row


DIFFERENT = {
    "value of partition_by": (lambda s: s.partition_by(lambda n: 0, value=Lossy(), op_id="step"), "-5 comes back as 5"),
    "key of partition_by": (
        lambda s: s.partition_by(lambda n: n, key_type=Lossy(), op_id="step"),
        "-5 comes back as 5",
    ),
    "broadcast": (lambda s: s.broadcast(value=Lossy(), op_id="step"), "-5 comes back as 5"),
    "state": (
        lambda s: s.scan(lambda state, n: noted(Row(n), n), emit=lambda key, row: row.number, op_id="step"),
        r"Row\.note = -5 is no field, so it does not come back",
    ),
}


@pytest.mark.parametrize("step", DIFFERENT)
def test_what_comes_back_as_another_value_is_an_error_in_tests(step):
    build, told = DIFFERENT[step]
    app = App("different")
    stream = app.input("in", value=int, key=lambda n: 0)
    build(stream).map(lambda value: 0).send_to(app.output("out", value=int))
    with pytest.raises(OperatorFailure, match=rf"'step' at .*test_kept\.py:\d+: .*SerdeError: .*{told}"):
        testing.run(app, {"in": [-5]})


def test_state_is_read_again_after_each_commit_in_tests():
    seen = []

    def keep(n, context):
        seen.append(context.state)
        context.state = context.state or Row(1.5)
        return []

    app = App("read-again")
    stream = app.input("in", value=int, key=lambda n: 0, timestamp=lambda n: n)
    stream.process(keep).send_to(app.output("out", value=int))
    with testing.running(app) as run:
        for n in range(3):
            run.send("in", n)
    assert seen == [None, Row(1.5), Row(1.5)] and seen[1] is not seen[2]


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec="utf-8")) | st.binary(),
    lambda parts: st.lists(parts) | st.dictionaries(st.text(max_size=3), parts) | st.tuples(parts, parts),
    max_leaves=6,
)


@given(plain)
def test_what_comes_back_the_same_is_no_difference(value):
    check_kept(Tagged(), [value], exactly=True)
    assert difference(value, Tagged().decode(Tagged().encode(value))) is None


@given(plain, plain)
def test_what_is_shown_otherwise_is_a_difference(value, other):
    assert (difference(value, other) is None) == (repr(value) == repr(other)) or (
        value == other and 0 in _leaves(value)
    )


def _leaves(value):
    if isinstance(value, list | tuple):
        return [leaf for part in value for leaf in _leaves(part)]
    return [leaf for part in value.values() for leaf in _leaves(part)] if isinstance(value, dict) else [value]


def test_a_declared_type_may_come_back_as_that_type():
    check_kept(Json(Row), [{"number": 1.5, "pair": [1]}, Row(1, (1,))], exactly=True)
    with pytest.raises(SerdeError, match="can be written and not be read again"):
        check_kept(Json(Row), ["no row"], exactly=True)


@given(st.lists(st.integers(0, 5)), st.integers(1, 3))
def test_a_run_that_does_not_trust_comes_to_the_same(values, batch):
    def results(levers):
        app = App("same", Options(batch_records=batch))
        stream = app.input("in", value=int, key=lambda n: n % 2, timestamp=lambda n: n)
        counts = stream.scan(lambda state, n: defaultdict_of(state, n), emit=lambda key, state: sum(state.values()))
        counts.partition_by(lambda n: n % 3, partitions=2).send_to(app.output("out", value=int))
        environment = memory()
        fill(environment, "in", [[(None, b"%d" % n, 0) for n in values]])
        run_blocking(Pipeline(app.graph(), app.options), environment, RunSettings(levers=levers))
        return sorted(value for part in rows_of(environment, "out") for _, value, _ in part)

    assert results(Levers()) == results(Levers(trust=False))


def defaultdict_of(state, n):
    found = defaultdict(int, state or {})
    found[n] += 1
    return dict(found)


def added(n, context):
    context.state = Amount((context.state.cents if context.state else 0) + n)
    return [context.state.cents]


async def added_later(n, context):
    return added(n, context)


DECLARED = {
    "process": lambda s, state: s.process(added, state=state, op_id="step"),
    "scan": lambda s, state: s.scan(
        lambda a, n: Amount((a.cents if a else 0) + n), emit=lambda k, a: a.cents, state=state, op_id="step"
    ),
    "scan, no emit": lambda s, state: s.scan(
        lambda a, n: Amount((a.cents if a else 0) + n), state=state, op_id="step"
    ).map(lambda a: a.cents),
    "async_flat_map": lambda s, state: s.async_flat_map(added_later, state=state, op_id="step"),
}


def declared(step, state):
    app = App("declared")
    stream = app.input("in", value=int, key=lambda n: 0, timestamp=lambda n: n)
    DECLARED[step](stream, state).send_to(app.output("out", value=int))
    return app


@pytest.mark.parametrize("step", DECLARED)
def test_a_declared_serde_keeps_state_that_nothing_else_can(step):
    with testing.running(declared(step, Cents())) as run:
        run.send("in", 1, 2)
        run.crash()
        run.restart()
        run.send("in", 3)
        assert run.received("out") == [1, 3, 6]
        assert run.state("step") == {0: Amount(6)}
        run.restart(declared(step, None))
        with pytest.raises(UnreadState, match=r"written with a serde, state=\.\.\.; declare the same one again"):
            run.send("in", 4)


@pytest.mark.parametrize("step", ["process", "scan", "async_flat_map"])
def test_without_it_the_value_can_not_be_kept(step):
    with pytest.raises(OperatorFailure, match=r"'step' at .*test_kept\.py:\d+: .*Amount"):
        testing.run(declared(step, None), {"in": [1]})


def test_a_declared_type_is_kept_as_ever_and_state_from_before_is_read_on():
    def app(**how):
        app = App("declared-later")
        stream = app.input("in", value=int, key=lambda n: 0)
        stream.scan(lambda total, n: total + n, init=int, op_id="step", **how).send_to(app.output("out", value=float))
        return app

    with testing.running(app()) as run:
        run.send("in", 1, 2)
        run.restart(app(state=float))
        run.send("in", 3)
        run.restart(app())
        run.send("in", 4)
        assert run.received("out") == [1, 3, 6, 10]


def test_state_of_another_type_than_declared_fails_where_it_is_made():
    def keep(n, context):
        context.state = str(n) if n == BAD else n
        return [n]

    def app(policy):
        app = App("mistyped")
        stream = app.input("in", value=int, key=lambda n: n, timestamp=lambda n: n)
        stream.process(keep, state=int, on_error=policy, op_id="step").send_to(app.output("out", value=int))
        return app

    told = r"'step' at .*test_kept\.py:\d+: .*stored as str \('2'\) and is declared int"
    with pytest.raises(OperatorFailure, match=told):
        testing.run(app(fail), {"in": [1, BAD, 3]})
    with pytest.raises(OperatorFailure, match="declared int"):
        live(app(fail), [1, BAD, 3])
    assert testing.run(app(skip), {"in": [1, BAD, 3]})["out"] == [1, 3]


class Modelled(pydantic.BaseModel):
    """A model with what nobody can store."""

    model_config = {"arbitrary_types_allowed": True}
    thread: threading.Thread


@attrs.define
class Attributed:
    """A class of attrs with what nobody can store."""

    thread: threading.Thread


@dataclass
class Nested:
    """A dataclass with what nobody can store, somewhere inside."""

    rows: dict[str, list[threading.Thread]]


UNSTORABLE = [Modelled, Attributed, Nested, threading.Thread, list[Nested], Cents]


@pytest.mark.parametrize("kind", UNSTORABLE, ids=str)
@pytest.mark.parametrize("step", DECLARED)
def test_a_declared_type_that_has_no_bytes_is_refused_at_planning(step, kind):
    name = step.partition(",")[0]
    with pytest.raises(PlanError, match=rf"test_kept\.py:\d+: {name}\(state=\.\.\.\) got .*; write instead: state="):
        declared(step, kind)


@pytest.mark.parametrize(
    "kind", [complex, list[complex], datetime, Decimal, UUID, Row, dict[str, Row], Any, int | None]
)
def test_what_has_bytes_may_be_declared(kind):
    declared("process", kind)
    App("handed-on").input("in").partition_by(lambda value: 0, value=kind)


def test_ids_may_be_declared():
    app = App("ids")
    stream = app.input("in", value=int, key=lambda n: 0, timestamp=lambda n: n)
    stream.deduplicate(lambda n: Amount(n // 2), within_ms=100, id_type=Cents()).send_to(app.output("out", value=int))
    assert testing.run(app, {"in": [0, 1, 2, 3]})["out"] == [0, 2]


KEPT = {
    "collect": (collect(), lambda values: values),
    "first": (first(), lambda values: values[0]),
    "last": (last(), lambda values: values[-1]),
    "top_k": (top_k(2, by=lambda one: one.cents), lambda values: sorted(values, key=lambda one: -one.cents)[:2]),
    "fold": (
        fold(lambda: Amount(0), lambda sum, one: Amount(sum.cents + one.cents), lambda a, b: Amount(a.cents + b.cents)),
        lambda values: Amount(sum(one.cents for one in values)),
    ),
    "maximum": (maximum(lambda one: one), max),
    "aggregate": (
        aggregate(dict, n=count(), all=collect(), cents=total(lambda one: one.cents)),
        lambda values: {"n": len(values), "all": values, "cents": sum(one.cents for one in values)},
    ),
}
WINDOWS = {
    "tumbling": MINUTE,
    "late": MINUTE,
    "early": MINUTE,
    "session": session(minutes=1),
    "counted": counted(4),
}


@pytest.mark.parametrize("kind", WINDOWS)
@pytest.mark.parametrize("name", KEPT)
def test_a_window_keeps_values_that_only_its_serde_knows(name, kind):
    aggregation, expected = KEPT[name]

    def app(**declared):
        app = App("amounts")
        stream = app.input("in", value=int, key=lambda n: 0, timestamp=lambda n: n).map(Amount)
        how = {"allowed_lateness_ms": 5} if kind == "late" else {"early": after_count(100)} if kind == "early" else {}
        panes = stream.window(WINDOWS[kind], aggregation, op_id="step", **declared, **how)
        panes.map(lambda pane: found.append(pane.value) or 0).send_to(app.output("out", value=int))
        return app

    found = []
    with testing.running(app(state=Cents())) as run:
        run.send("in", 1, 2)
        run.crash()
        run.restart()
        run.send("in", 3, 4)
        run.end()
    assert found == [expected([Amount(n) for n in (1, 2, 3, 4)])]
    with pytest.raises(OperatorFailure, match=r"'step' at .*: .*Amount.* \(write e\.g\. window\(\.\.\., state=MySerde"):
        testing.run(app(), {"in": [1]})
    with testing.running(app(state=Cents())) as run:
        run.send("in", 1, 2)
        with pytest.raises(PlanError, match="kept by Cents"):
            run.restart(app())


def test_a_window_refuses_what_it_can_not_keep_so():
    app = App("refused")
    stream = app.input("in", value=int, key=lambda n: 0, timestamp=lambda n: n)
    with pytest.raises(PlanError, match=r"window\(state=\.\.\.\) got .*Nested.*; write instead: state="):
        stream.window(MINUTE, collect(), state=Nested)
    stream.window(MINUTE, collect(), state=int, op_id="int")


def test_late_letters_of_what_has_no_bytes_are_as_it_is_shown():
    app = App("late-letters")
    stream = app.input("in", value=int, key=lambda n: 0, timestamp=lambda n: n)
    windows = stream.map(Amount).window(tumbling(milliseconds=5), count(), late=dead_letter("late"), op_id="step")
    windows.map(lambda pane: pane.value).send_to(app.output("out", value=int))
    found = testing.run(app, {"in": [1, 20, 2]})
    assert found["out"] == [1, 1] and b"Amount" in found["late"][0]


@dataclass
class Loose:
    """A dataclass with room for attributes beside its fields."""

    number: int


@attrs.define(slots=False)
class LooseAttrs:
    """One of attrs with such room."""

    number: int


class LooseStruct(msgspec.Struct, dict=True):
    """A Struct with such room."""

    number: int


@dataclass
class Restored:
    """A dataclass whose constructor sets what is no field, so that it comes back."""

    number: int

    def __post_init__(self):
        self.note = self.number


INSIDE = {"itself": lambda row: row, "in a list": lambda row: [row], "in a dict": lambda row: {"row": (1, row)}}


@pytest.mark.parametrize("kind", [Loose, LooseAttrs, LooseStruct])
@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize("declared", [False, True])
def test_an_attribute_that_is_no_field_is_an_error_in_live_runs(kind, inside, declared, tmp_path):
    app = App("loose")
    of = kind if declared and inside == "itself" else None
    stream = app.input("in", value=int, key=lambda n: 0)
    stream.scan(
        lambda kept, n: INSIDE[inside](noted(kind(n), n) if n > 1 else kind(n)), emit=lambda key, row: 0, state=of
    ).send_to(app.output("out", value=int))
    app.run(tmp_path, bind={"in": [1, 1]})
    with pytest.raises(SamzaError, match=rf"{kind.__qualname__}\.note = 2 is no field, so it does not come back"):
        app.run(tmp_path, bind={"in": [1, 1, 2]})


def test_what_a_constructor_sets_again_may_be_beside_the_fields(tmp_path):
    app = App("restored")
    stream = app.input("in", value=int, key=lambda n: 0)
    stream.scan(lambda kept, n: Restored(n + (kept.note if kept else 0)), emit=lambda key, row: row.note).send_to(
        app.output("out", value=int)
    )
    app.run(tmp_path, bind={"in": [1, 2]})
    run = app.run(tmp_path, bind={"in": [1, 2, 3]})
    assert [*run.received("out")] == [1, 3, 6]
