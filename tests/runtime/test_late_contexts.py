"""A context that is used behind its call, by a thread or a task that goes on, changes nothing, and ends a live run."""

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from planner.model.errors import PlanError
from samza_dsl import App, Options, skip
from tests.scale import examples
from tests.simulation.crash import fill, memory, rows_of, run_once

TOLD = r"test_late_contexts.py:\d+: its function has ended, and context\.{} is used, .*; write instead: await or join"


def elsewhere(work, *given):
    """Do work in a thread, and wait for it."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work, *given).exception()


USES = {
    "state": lambda context: setattr(context, "state", 1_000),
    "key": lambda context: context.key,
    "list": lambda context: context.list("seen").append(9),
    "set_timer": lambda context: context.set_timer(9),
}


def plain(stream, on_message):
    return stream.process(on_message, init=int, op_id="late", on_error=skip)


def timed(stream, on_message):
    return stream.process(on_message, init=int, op_id="late", on_timer=lambda at, context: None)


def headed(stream, on_message):
    return stream.process(on_message, init=int, op_id="late")


def from_timers(stream, on_message):
    def ask(value, context):
        context.set_timer(value["at"] + 1)

    return stream.process(ask, init=int, op_id="late", on_timer=lambda at, context: on_message(at, context))


DOES = ("keep", "raise", "use it", "")
WAYS = {"plain": plain, "timed": timed, "headed": headed, "from timers": from_timers}


def app_of(way, on_message, options=None):
    app = App("late", options or Options())
    keyed = {"key": lambda value: value["key"], "timestamp": lambda value: value["at"], "max_disorder_ms": 10_000}
    stream = app.input("in", value=dict, headers=way is headed, **keyed)
    way(stream, on_message).send_to(app.output("out", value=list))
    return app


def records(keys):
    return [(None, msgspec.json.encode({"key": key, "at": 1_000 + at}), 0) for at, key in enumerate(keys)]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("way", WAYS)
def test_a_use_behind_a_call_ends_the_run_and_changes_nothing(way, use):
    contexts, errors = [], []

    def late(value, context):
        contexts.append(context)
        if len(contexts) == 2:
            errors.append(elsewhere(USES[use], contexts[0]))
        return []

    environment = memory()
    fill(environment, "in", [records("abc")])
    with pytest.raises(PlanError, match="process 'late' at .*" + TOLD.format(use)):
        run_once(app_of(WAYS[way], late), environment)
    assert isinstance(errors[0], PlanError)
    assert not rows_of(environment, "out")[0]


@pytest.mark.parametrize("way", WAYS)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(DOES)), max_size=30))
@settings(max_examples=examples(20, 300))
def test_contexts_that_are_kept_and_not_used_cost_nothing_of_what_is_counted(way, told):
    """Also where a call raises, and where what was kept is used within the call."""
    kept, errors = [], []

    def count(value, context):
        number = (value - 1 if way == "from timers" else value["at"]) - 1_000
        does = told[number][1]
        context.state = context.state + 1
        if does == "keep":
            kept.append(context)
        elif does == "use it":
            errors.append(elsewhere(lambda: setattr(context, "state", context.state + 100)))
        elif does == "raise" and way == "plain":
            raise ValueError(kept.append(context))
        return [[context.key, context.state]]

    environment = memory()
    fill(environment, "in", [records(key for key, _ in told)])
    run_once(app_of(WAYS[way], count), environment)
    expected, counts = [], {}
    for key, does in told:
        if does == "raise" and way == "plain":
            continue
        counts[key] = counts.get(key, 0) + (101 if does == "use it" else 1)
        expected.append([key, counts[key]])
    assert [msgspec.json.decode(value) for _, value, _ in rows_of(environment, "out")[0]] == expected
    assert not any(errors)


KINDS = {
    "list": (lambda context: context.list("seen"), lambda seen, at: seen.append(at)),
    "map": (lambda context: context.map("seen"), lambda seen, at: seen.__setitem__(at, True)),
}


def app_that_keeps(kind, told):
    """Return an application that may use again what a call before it was handed, and may fail behind that."""
    asked, add = KINDS[kind]
    known = {}

    def note(value, context):
        number = value["at"] - 1_000
        does = told[number][1]
        seen = known.get(context.key) if "again" in does else None
        if seen is None:
            seen = known[context.key] = asked(context)
        add(seen, number)
        if "raise" in does:
            raise ValueError(number)
        return [[context.key, sorted(seen)]]

    return app_of(plain, note, Options(commit_interval_ms=1))


@pytest.mark.parametrize("kind", KINDS)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["", "again", "raise", "again, raise"])), max_size=9))
@example([("a", "again"), ("a", "again, raise"), ("a", "again")])
@settings(max_examples=examples(40, 1_000))
def test_lists_and_maps_that_are_kept_have_what_calls_have_left_or_are_refused(kind, told):
    environment, refusal = memory(), None
    fill(environment, "in", [records(key for key, _ in told)])
    try:
        run_once(app_that_keeps(kind, told), environment)
    except PlanError as error:
        refusal = str(error)
    if refusal is not None:
        assert re.search(TOLD.format(rf"{kind}\(\.\.\.\)"), refusal)
        assert any("again" in does for _, does in told)
        return
    left, expected = {"a": [], "b": []}, []
    for number, (key, does) in enumerate(told):
        if "raise" not in does:
            left[key].append(number)
            expected.append([key, [*left[key]]])
    assert [msgspec.json.decode(value) for _, value, _ in rows_of(environment, "out")[0]] == expected


def test_a_call_whose_task_goes_on_is_told():
    tasks, is_next = [], asyncio.Event()

    async def beginning(value, context):
        async def later():
            await is_next.wait()
            context.state = 9

        tasks.append(asyncio.ensure_future(later()))
        if len(tasks) == 2:
            is_next.set()
            await asyncio.wait(tasks)
        return []

    app = App("late")
    stream = app.input("in", value=dict, key=lambda value: value["key"])
    stream.async_flat_map(beginning, init=int, op_id="late", max_in_flight=1, on_error=skip).sink(print)
    environment = memory()
    fill(environment, "in", [records("abc")])
    with pytest.raises(PlanError, match="async_flat_map 'late' at .*" + TOLD.format("state")):
        run_once(app, environment)
    assert isinstance(tasks[0].exception(), PlanError)


@pytest.mark.parametrize("form", ["plain", "async"])
def test_a_task_of_ones_own_is_told_as_well(form):
    contexts = []

    def late(message, context):
        context.put(message.key, 1)
        contexts.append(context)
        if len(contexts) == 2:
            assert re.search(TOLD.format("put"), str(elsewhere(lambda: contexts[0].put("other", 1))))

    async def awaited(message, context):
        late(message, context)

    app = App("late")
    stream = app.input("in", value=dict, key=lambda value: value["key"])
    app.task(stream, late if form == "plain" else awaited, op_id="late", on_error=skip)
    environment = memory()
    fill(environment, "in", [records("abc")])
    with pytest.raises(PlanError, match="task 'late' at .*" + TOLD.format("put")):
        run_once(app, environment)
