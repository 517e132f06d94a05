"""A function that changes what it was given, or what it has handed on, is told by the testing kit with its line."""

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import strategies as st

from planner.model.errors import PlanError
from samza_dsl import (
    Aggregation,
    App,
    after_count,
    collect,
    counted,
    dead_letter,
    fold,
    laws,
    maximum,
    reduce,
    remote_table,
    retry,
    skip,
    testing,
    tumbling,
)
from samza_dsl.testing import Record
from tests.simulation.loop import rest

GIVEN = {"in": [{"n": 1}, {"n": 2}], "rows": [("a", {"n": 5})], "others": [{"n": 1}]}
WINDOW = tumbling(seconds=1)


def changed(value, *others):
    value["n"] += 1
    return value


def changed_second(value, other):
    other["n"] += 1
    return value


def changed_and_raised(value, *others):
    value["n"] += 1
    raise ValueError(value)


def generated(value):
    yield value["n"]
    value["n"] += 1


async def awaited(value, *context):
    value["n"] += 1
    return [value]


async def fetched(keys):
    keys.append("b")
    return {}


def kept(value, context):
    context.state.append(value["n"])
    return [context.state]


def emptied(value):
    return KEPT


KEPT = []


def handed_on(value):
    KEPT.append(value["n"])
    return KEPT


def other(stream):
    return stream.app.input("others", value=dict, key=lambda value: "a", timestamp=lambda value: 0)


def rows(stream):
    return stream.app.table("rows", key=str, value=dict, broadcast=True)


CHANGES = {
    "map": lambda stream: stream.map(changed),
    "map that raises": lambda stream: stream.map(changed_and_raised, on_error=skip),
    "map under a policy": lambda stream: stream.map(changed, on_error=dead_letter("letters")),
    "filter": lambda stream: stream.filter(changed),
    "flat_map": lambda stream: stream.flat_map(lambda value: [changed(value)]),
    "generator": lambda stream: stream.flat_map(generated),
    "branch": lambda stream: stream.branch(lambda value: changed(value) and "all", ("all",))["all"],
    "partition_by": lambda stream: stream.partition_by(lambda value: changed(value)["n"], partitions=1),
    "process": lambda stream: stream.process(lambda value, context: [changed(value)]),
    "process that keeps": lambda stream: stream.process(kept, init=list).window(WINDOW, collect()),
    "process before a stage": lambda stream: stream.process(kept, init=list).partition_by(len, partitions=1),
    "map that keeps": lambda stream: stream.map(handed_on).window(WINDOW, collect()),
    "scan": lambda stream: stream.scan(changed_second, init=dict),
    "calls": lambda stream: stream.async_flat_map(awaited),
    "calls that are tried again": lambda stream: stream.async_flat_map(awaited, on_error=retry(1)),
    "calls with state": lambda stream: stream.async_flat_map(awaited, init=dict),
    "deduplicate": lambda stream: stream.deduplicate(lambda value: changed(value)["n"], within_ms=5),
    "fold": lambda stream: stream.window(WINDOW, fold(dict, changed_second)),
    "reduce": lambda stream: stream.window(WINDOW, reduce(changed)),
    "what is read off": lambda stream: stream.window(WINDOW, maximum(lambda value: changed(value)["n"])),
    "left of a join": lambda stream: stream.join(other(stream), changed, within=(-5, 5)),
    "right of a join": lambda stream: stream.join(other(stream), changed_second, within=(-5, 5)),
    "right of an as-of join": lambda stream: stream.join_asof(other(stream), changed_second),
    "row of a table": lambda stream: stream.join(rows(stream), changed_second, on=lambda value: "a"),
    "keys of a service": lambda stream: stream.join(
        remote_table(fetched), lambda value, row: value, on=lambda value: value["n"], how="left"
    ),
}


def app_of(make):
    app = App("changing")
    stream = app.input("in", value=dict, key=lambda value: "a", timestamp=lambda value: 0)
    make(stream).sink(lambda value: None)
    return app


def given_to(app):
    return {name: GIVEN[name] for name in ("in", *app.graph().inputs, *app.graph().tables) if name in GIVEN}


@pytest.mark.parametrize("kind", CHANGES)
def test_who_changes_a_value_is_told_with_its_line(kind):
    app, told = app_of(CHANGES[kind]), r"(?s)[a-z_]+ '.*' at .*test_mutations.py:\d+: .*; write instead: return a"
    KEPT.clear()
    with pytest.raises(PlanError, match=told):
        testing.run(app, given_to(app))


def test_a_sink_and_a_task_are_told_as_well():
    app = App("changing")
    app.input("in", value=dict).sink(lambda value: value.clear(), op_id="emptying")
    with pytest.raises(PlanError, match=r"'emptying' at .*changes in place what it is given, \{'n': 1\} to \{\};"):
        testing.run(app, {"in": GIVEN["in"]})


def added(state, value):
    state.append(value["n"])
    return state


def by_step(state, value):
    return added(state, value)


OWN = {
    "scan": lambda stream: stream.scan(by_step, init=list),
    "scan that emits": lambda stream: stream.scan(by_step, init=list, emit=lambda key, state: state.pop()),
    "fold": lambda stream: stream.window(WINDOW, fold(list, added), early=after_count(1)),
    "fold that sorts": lambda stream: stream.window(counted(2), fold(list, added, finish=lambda a: a.sort() or a)),
    "fold that merges": lambda stream: stream.window(WINDOW, fold(list, added, lambda a, b: a.extend(b) or a)),
    "process": lambda stream: stream.process(lambda value, context: added(context.state, value)[-1:], init=list),
    "process before an output": lambda stream: stream.process(kept, init=list).filter(len),
    "process that copies": lambda stream: stream.process(
        lambda value, context: [[*added(context.state, value)]], init=list
    ).window(WINDOW, collect()),
    "the same again": lambda stream: stream.map(emptied).window(WINDOW, collect()),
    "an aggregation of one's own": lambda stream: stream.window(
        WINDOW,
        Aggregation("own", list, lambda state, values: [state.append(1) for _ in values] and state, max, len),
    ),
}


@pytest.mark.parametrize("kind", OWN)
def test_state_is_the_steps_own_to_change(kind):
    KEPT.clear()
    testing.run(app_of(OWN[kind]), {"in": [Record(one) for one in GIVEN["in"]]})


def test_laws_tell_it_too():
    app = app_of(CHANGES["map under a policy"])
    with pytest.raises(PlanError, match=re.escape("changes in place what it is given, {'n': 0} to {'n': 1};")):
        laws.check_laws(app, {"in": st.lists(st.just({"n": 0}), min_size=1, max_size=2)}, examples=5)


def generating(value, context):
    context.state = value["n"]
    yield context.key
    yield context.state


def test_a_context_is_of_use_until_what_a_function_generates_has_ended():
    app = App("lent")
    stream = app.input("in", value=dict, key=lambda value: "a", timestamp=lambda value: 0)
    stream.process(generating, init=int).send_to(app.output("out"))
    assert testing.run(app, {"in": GIVEN["in"]}) == {"out": ["a", 1, "a", 2]}


USES = {
    "state": lambda context: setattr(context, "state", 9),
    "reading": lambda context: context.state,
    "list": lambda context: context.list("seen").append(9),
    "map": lambda context: context.map("seen"),
    "timer": lambda context: context.set_timer(9),
}


@pytest.mark.parametrize("use", USES)
def test_a_context_that_is_used_behind_its_call_is_told(use):
    contexts = []

    def late(value, context):
        contexts.append(context)
        if len(contexts) == 2:
            # As a thread would that goes on.
            thread = ThreadPoolExecutor(1)
            thread.submit(USES[use], contexts[0]).exception()
            thread.shutdown()

    app = App("lent")
    stream = app.input("in", value=dict, key=lambda value: value["n"], timestamp=lambda value: 0)
    stream.process(late, init=int, on_timer=lambda at, context: None, op_id="late", on_error=skip).sink(print)
    with pytest.raises(
        PlanError, match=r"process 'late' at .*test_mutations.py:\d+: its function has ended, and context"
    ):
        testing.run(app, {"in": GIVEN["in"]})


def test_a_task_that_outlives_its_call_is_told():
    tasks = []

    async def beginning(value, context):
        async def later():
            await rest(1_000)
            context.state = 9

        tasks.append(asyncio.ensure_future(later()))
        await rest(1_000 * value["n"])
        return []

    app = App("lent")
    stream = app.input("in", value=dict, key=lambda value: value["n"], timestamp=lambda value: 0)
    stream.async_flat_map(beginning, init=int, op_id="late", timeout_ms=5_000).sink(print)
    with pytest.raises(PlanError, match=r"async_flat_map 'late' at .*: its function has ended"):
        testing.run(app, {"in": [{"n": 0}, {"n": 2}]})
