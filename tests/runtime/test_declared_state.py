"""Every operator that keeps something may be told of what type it is, or which serde stores it."""

import threading
from dataclasses import dataclass

import pytest
from msgspec import Struct

from planner.model.errors import PlanError
from runtime.model.errors import OperatorFailure, UnreadState
from samza_dsl import (
    App,
    StateTypes,
    aggregate,
    by_clock,
    collect,
    count,
    fold,
    sliding,
    testing,
    total,
    tumbling,
)
from tests.amounts import Amount, Cents
from tests.specs import specs


class Coin(Struct):
    """What a dict is declared to be."""

    cents: int
    kind: str = "new"


@dataclass
class Nested:
    """A dataclass with what nobody can store."""

    rows: dict[str, list[threading.Thread]]


SEEN: set[type] = set()
"""Of what kinds the values are that the cents of were asked for."""


def cents(value):
    """Return the cents of a value, and note of what kind it is."""
    SEEN.add(type(value))
    return None if value is None else value["cents"] if isinstance(value, dict) else value.cents


def in_list(value, context):
    context.list("all").append(value)
    return [sum(map(cents, context.list("all")))]


def in_map(value, context):
    context.map("all")[cents(value)] = value
    return [sum(map(cents, context.map("all").values()))]


def in_state(value, context):
    cents(context.state)
    context.state = value
    return [cents(value)]


async def awaited(value, context):
    return in_state(value, context)


def grown(state, value):
    cents(state)
    return value


def stream_of(app, made, name="in"):
    """Return a stream of values by one key, made of the numbers of an input."""
    return app.input(name, value=int, key=lambda n: "k", timestamp=lambda n: n).map(made, op_id=f"made-{name}")


def tables(app, made):
    """Return two joins of tables, whose rows are what is made of those of the first."""
    numbers = {name: app.table(name, value=int, key=str) for name in ("in", "none", "other", "neither")}
    left = numbers["in"].join(numbers["none"], lambda row, _: made(row), how="left", op_id="left")
    right = numbers["other"].join(numbers["neither"], lambda row, _: made(row), how="left", op_id="right")
    return left, right


def joined(app, made, state):
    left, right = stream_of(app, made), stream_of(app, made, "other")
    return left.join(right, pair, within=(-9, 9), state=state and (state, state), op_id="step")


def temporal(app, made, state):
    left = stream_of(app, made)
    versions = app.table("versions", value=int, key=lambda n: "k", timestamp=lambda n: n, retention_ms=100)
    return left.join(versions, lambda one, row: cents(one), how="left", state=state and (state, None), op_id="step")


def nearest(**how):
    def step(app, made, state):
        left, right = stream_of(app, made), stream_of(app, made, "other")
        return left.join_asof(right, pair, state=state and (state, state), op_id="step", **how)

    return step


def own_table(app, made, state):
    table = stream_of(app, made).to_table("step", state=state)
    return table.changes().map(lambda change: cents(change.old or change.new) * 100 + cents(change.new))


def pair(one, other):
    return cents(one) * 100 + cents(other)


def rows(app, made, state):
    left, right = tables(app, made)
    found = left.join(right, pair, state=state and (state, state), op_id="step")
    return found.changes().map(lambda change: change.new)


def foreign(app, made, state):
    left, right = tables(app, made)
    found = left.join(right, pair, on=lambda row: "k", state=state and (state, state), op_id="step")
    return found.changes().map(lambda change: change.new)


def in_windows(app, made, state):
    left, right = stream_of(app, made), stream_of(app, made, "other")
    panes = left.join_windows(right, tumbling(milliseconds=100), pair, state=state and (state, state), op_id="step")
    return panes.map(lambda pane: pane.value[-1])


def by_window(windows, aggregation, **how):
    def step(app, made, state):
        left = stream_of(app, made)
        panes = left.window(windows, aggregation, state=state, op_id="step", **how)
        return panes.map(lambda pane: sum(map(cents, pane.value)))

    return step


def task(app, made, state):
    left = stream_of(app, made)
    out = app.output("out", value=int)

    def process(message, context):
        before = context.get("k")
        context.put("k", message.value)
        context.send(out, (cents(before) or 0) * 100 + cents(message.value))

    app.task(left, process, outputs=[out], state=state, op_id="step")


def one(make):
    return lambda app, made, state: make(stream_of(app, made), state)


def all_of(**said):
    """Return what declares lists or maps, where anything is declared."""
    return StateTypes(**{name: {"all": kind} for name, kind in said.items()}) if any(said.values()) else None


def unique(stream, state):
    return stream.deduplicate(lambda value: value, within_ms=100, id_type=state, op_id="step").map(cents)


STEPS = {
    "process": one(lambda s, state: s.process(in_state, state=state, op_id="step")),
    "process, list": one(lambda s, state: s.process(in_list, state=all_of(lists=state), op_id="step")),
    "process, map": one(lambda s, state: s.process(in_map, state=all_of(maps=state), op_id="step")),
    "scan": one(lambda s, state: s.scan(grown, emit=lambda key, value: cents(value), state=state, op_id="step")),
    "async_flat_map": one(lambda s, state: s.async_flat_map(awaited, state=state, op_id="step")),
    "deduplicate": one(unique),
    "join": joined,
    "join, versions": temporal,
    "join_asof": nearest(),
    "join_asof, within": nearest(direction="nearest", tolerance=10),
    "join, tables": rows,
    "join, tables on": foreign,
    "to_table": own_table,
    "join_windows": in_windows,
    "window": by_window(tumbling(milliseconds=100), collect()),
    "window, sliding": by_window(sliding(milliseconds=100), collect()),
    "window, sliding and late": by_window(sliding(milliseconds=100), collect(), allowed_lateness_ms=10),
    "window, sliding by the clock": by_window(by_clock(sliding(milliseconds=100)), collect()),
    "task": task,
}
OF_SPEC = {
    "Process": ["process", "process, list", "process, map"],
    "Scan": ["scan"],
    "AsyncFlatMap": ["async_flat_map"],
    "Deduplicate": ["deduplicate"],
    "IntervalJoin": ["join"],
    "AsofJoin": ["join_asof", "join_asof, within"],
    "TemporalJoin": ["join, versions"],
    "KeyJoin": ["join, tables"],
    "ForeignKeyJoin": ["join, tables on"],
    "OwnTable": ["to_table"],
    "OwnTableJoin": [],  # declared as its table, or as one side of a join
    "WindowJoin": ["join_windows"],
    "Window": ["window", "window, sliding", "window, sliding and late", "window, sliding by the clock"],
    "UserTask": ["task"],
    "TableInput": [],  # by value=, as any input
    "RemoteJoin": [],  # keeps nothing
}


def test_every_operator_that_keeps_something_is_here():
    keeping = {kind.__name__ for kind in specs() if kind.__dict__.get("stateful", kind.stateful) is not False}
    assert {name for name in keeping if not name.startswith("_")} == {*OF_SPEC}
    assert {step for steps in OF_SPEC.values() for step in steps} == {*STEPS}


def app_of(step, made, state):
    app = App("declared")
    made_of_it = STEPS[step](app, made, state)
    if made_of_it is not None:
        made_of_it.send_to(app.output("out"))
    return app


SIDED = {"join", "join_asof", "join_asof, within", "join, tables", "join, tables on", "join_windows"}


def run_of(step, made, state, crashes):
    """Return what comes out of one value on either side, a crash, and another on either side."""
    key = {"key": "k"} if "tables" in step else {}
    with testing.running(app_of(step, made, state)) as run:
        run.send("in", 1, **key)
        if step in SIDED:
            run.send("other", 2, **key)
        if crashes:
            run.crash()
            run.restart()
        run.send("in", 3, **key)
        run.end()
        return run.received("out")


@pytest.mark.parametrize("step", STEPS)
def test_a_serde_keeps_what_nothing_else_can(step):
    expected = run_of(step, lambda n: {"cents": n}, None, crashes=False)
    assert expected
    assert run_of(step, Amount, Cents(), crashes=False) == expected
    assert run_of(step, Amount, Cents(), crashes=True) == expected
    with pytest.raises(OperatorFailure, match=r"'step' at .*test_declared_state\.py:\d+: .*Amount"):
        run_of(step, Amount, None, crashes=False)


@pytest.mark.parametrize("step", STEPS)
def test_a_type_that_has_no_bytes_is_refused_at_planning(step):
    word = step.partition(",")[0]
    for kind in (Nested, threading.Thread, Cents):
        with pytest.raises(
            PlanError, match=rf"test_declared_state\.py:\d+: {word}\(.*=\.\.\.\) got .*; write instead: "
        ):
            app_of(step, lambda n: {"cents": n}, kind)


FITTED = [step for step in STEPS if "window" not in step and step not in ("deduplicate", "join, versions")]
"""What reads a value again that it keeps; of windows a type says what they keep, and changes nothing."""


OWN = {"process", "scan", "async_flat_map", "process, map", "task"}


@pytest.mark.parametrize("step", FITTED)
def test_what_is_kept_is_of_the_declared_type_also_after_a_crash(step):
    for crashes in (False, True):
        SEEN.clear()
        run_of(step, lambda n: {"cents": n}, Coin, crashes=crashes)
        assert Coin in SEEN
        assert dict not in SEEN or step in OWN  # a function sees what it makes itself as it has made it


@pytest.mark.parametrize("step", FITTED)
def test_what_was_kept_before_a_type_was_declared_is_read_as_of_it(step):
    key = {"key": "k"} if "tables" in step else {}
    with testing.running(app_of(step, lambda n: {"cents": n}, None)) as run:
        run.send("in", 1, **key)
        if step in SIDED:
            run.send("other", 2, **key)
        run.restart(app_of(step, lambda n: {"cents": n}, Coin))
        SEEN.clear()
        run.send("in", 3, **key)
        run.end()
        before = run.received("out")
    assert before == run_of(step, lambda n: {"cents": n}, None, crashes=False)


@pytest.mark.parametrize("step", STEPS)
def test_what_a_serde_wrote_needs_that_serde(step):
    key = {"key": "k"} if "tables" in step else {}
    if step == "deduplicate":
        return  # ids are the bytes that it made
    with testing.running(app_of(step, Amount, Cents())) as run:
        run.send("in", 1, **key)
        if step in SIDED:
            run.send("other", 2, **key)

        def go_on_without():
            run.restart(app_of(step, lambda n: {"cents": n}, None))
            run.send("in", 3, **key)
            run.end()

        with pytest.raises((UnreadState, PlanError), match=r"declare the same one again|Cents"):
            go_on_without()


@pytest.mark.parametrize("step", FITTED)
def test_what_is_not_of_the_declared_type_is_left_to_the_policy(step):
    with pytest.raises(OperatorFailure, match=r"'step' at .*test_declared_state\.py:\d+: .*stored as str"):
        run_of(step, lambda n: {"cents": str(n)}, Coin, crashes=False)


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        (
            Coin,
            r"join\(state=\.\.\.\) got .*Coin.* values of 2 sides are kept; write instead: state=\(Order, Payment\)",
        ),
        ((Coin,), "values of 2 sides are kept"),
        ((Coin, Coin, Coin), "values of 2 sides are kept"),
    ],
)
def test_a_join_is_told_of_both_sides(declared, told):
    app = App("sides")
    left, right = stream_of(app, Amount), stream_of(app, Amount, "other")
    with pytest.raises(PlanError, match=told):
        left.join(right, pair, within=(0, 0), state=declared)
    left.join(right, pair, within=(0, 0), state=(None, None))


def test_tables_have_the_type_of_their_rows():
    app = App("rows")
    table = app.table("table", value=int, key=str)
    with pytest.raises(PlanError, match=r"state= is of joins that keep messages.*value=MyType in app\.table"):
        stream_of(app, Amount).join(table, pair, state=(Coin, Coin))


@pytest.mark.parametrize("types", [StateTypes(lists={"all": None}), StateTypes(maps={1: int}), StateTypes(lists=[int])])
def test_lists_and_maps_are_told_by_name(types):
    app = App("collections")
    with pytest.raises(PlanError, match=r"StateTypes\((lists|maps)=.*write instead: StateTypes"):
        stream_of(app, Amount).process(in_list, state=types)


def test_a_sliding_window_with_a_serde_comes_to_the_same_as_without():
    summed = fold(lambda: 0, lambda sum, one: sum + cents(one), remove=lambda sum, one: sum - cents(one))
    aggregation = aggregate(dict, n=count(), cents=total(cents), sum=summed)

    def app(made, state):
        app = App("sliding")
        panes = stream_of(app, made).window(sliding(milliseconds=3), aggregation, state=state, op_id="step")
        panes.map(lambda pane: pane.value).send_to(app.output("out"))
        return app

    rows = {"in": [1, 2, 3, 10, 11, 20]}
    expected = testing.run(app(lambda n: {"cents": n}, None), rows)["out"]
    assert testing.run(app(Amount, Cents()), rows)["out"] == expected
    assert len(expected) == 6
