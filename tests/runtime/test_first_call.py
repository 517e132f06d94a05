"""A function that turns out to return coroutines: the run ends, with what its author is told while building."""

import gc
import inspect
import warnings
import weakref

import pytest

from operators.aggregations.aggregation import Aggregation
from operators.core.base import Spec
from operators.stateless import Filter
from planner.codegen.aggregating import compiled
from planner.model.errors import PlanError
from runtime.functions import first_call
from runtime.model.errors import OperatorFailure
from samza_dsl import (
    App,
    Options,
    aggregate,
    count,
    every,
    fold,
    maximum,
    mean,
    minimum,
    remote_table,
    skip,
    testing,
    top_k,
    total,
    tumbling,
)
from tests.specs import specs


async def later(value):
    return value


OPERATORS = {
    "filter": lambda numbers, **how: numbers.filter(lambda n: later(n), op_id="it", **how).sink(print),
    "map": lambda numbers, **how: numbers.map(lambda n: later(n), op_id="it", **how).sink(print),
    "flat_map": lambda numbers, **how: numbers.flat_map(lambda n: later([n]), op_id="it", **how).sink(print),
    "branch": lambda numbers, **how: numbers.branch(lambda n: later("a"), ["a"], op_id="it", **how)["a"].sink(print),
    "sink": lambda numbers, **how: numbers.sink(lambda n: later(n), op_id="it", **how),
}


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("kind", OPERATORS)
@pytest.mark.parametrize("how", [{}, {"on_error": skip}], ids=["fail", "skip"])
def test_a_lambda_that_returns_a_coroutine_is_told_on_the_first_value(kind, how, keyed):
    app = App("awaiting")
    OPERATORS[kind](app.input("numbers", value=int, key=abs if keyed else None), **how)
    wrong = (
        rf"{kind} 'it' at .*test_first_call.py:\d+: {kind}\(...\) got a function that returns a coroutine, which nobody"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(PlanError, match=wrong + r" would await; write instead: a plain function, or "):
            testing.run(app, {"numbers": [1, 2, 3]})
        gc.collect()


def later_at(at_ms, context):
    return later(at_ms)


def set_a_timer(value, context):
    context.set_timer(context.timestamp)


def set_an_alarm(value, context):
    context.set_alarm(context.now_ms)


def tasks(app, numbers, **said):
    app.task(numbers, said.pop("process", lambda message, context: None), op_id="it", **said)


STATEFUL = {
    "process": lambda app, numbers: numbers.process(lambda n, context: later([n]), op_id="it").sink(print),
    "on_timer": lambda app, numbers: numbers.process(set_a_timer, on_timer=later_at, op_id="it").sink(print),
    "task": lambda app, numbers: tasks(app, numbers, process=lambda message, context: later(message)),
    "callback": lambda app, numbers: tasks(app, numbers, process=lambda message, context, done: later(message)),
}


@pytest.mark.parametrize("kind", STATEFUL)
@pytest.mark.parametrize("how", [{}, {"on_error": skip}], ids=["fail", "skip"])
def test_a_function_with_state_that_returns_a_coroutine_is_told_on_the_first_value(kind, how):
    app = App("awaiting")
    STATEFUL[kind](app, app.input("numbers", value=int, key=abs, timestamp=abs, **how))
    wrong = r" 'it' at .*test_first_call.py:\d+: \w+\(...\) got a function that returns a coroutine, which nobody would"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(PlanError, match=wrong + " await; write instead: a plain function, or "):
            testing.run(app, {"numbers": [1, 2, 3]})
        gc.collect()


def test_a_timer_of_a_task_that_returns_a_coroutine_is_told():
    app = App("awaiting")
    tasks(app, app.input("numbers", value=int), window=every(lambda context: later(context), seconds=1))
    with (
        pytest.raises(PlanError, match=r"'it' at .* got a function that returns a coroutine"),
        testing.running(app) as run,
    ):
        run.advance_time(seconds=2)


def rows_of(app, key=lambda n: n, **said):
    return app.table("rows", value=int, key=key, **said)


def numbers_of(app, key=lambda n: n, timestamp=lambda n: n, **said):
    return app.input("numbers", value=int, key=key, timestamp=timestamp, **said)


def partitioned(numbers, key, **said):
    return numbers.partition_by(key, partitions=2, op_id="it", **said).process(lambda n, context: [n]).sink(print)


async def remember(value, context):
    return [value, context.state]


def process(app, *functions, **said):
    return numbers_of(app).process(*functions, op_id="it", **said).sink(print)


def scanned(app, step, **said):
    return numbers_of(app).scan(step, op_id="it", **said).sink(print)


def windowed(numbers, aggregation):
    return numbers.window(tumbling(seconds=1), aggregation, op_id="it").sink(print)


def joined_with_itself(numbers, **how):
    return numbers.join(numbers, lambda one, other: later(one), within=(0, 0), op_id="it", **how)


def nearest_of_itself(numbers, **how):
    return numbers.join_asof(numbers, lambda one, other: later(one), op_id="it", **how)


def as_of_then(app, key, timestamp, join, on_table=None, **said):
    rows = rows_of(app, lambda n: key(n), timestamp=lambda n: timestamp(n), retention_ms=0, **(on_table or {}))
    numbers_of(app).join(rows, join, **said).sink(print)


async def rows_for(keys):
    return {key: key for key in keys}


def asked_for(app, on, join, **said):
    numbers_of(app).join(remote_table(rows_for), join, on=on, op_id="it", **said).sink(print)


def tables_joined(app, key, join, on_table=None, **said):
    rows = rows_of(app, lambda n: key(n), **(on_table or {}))
    app.table("numbers", value=int, key=lambda n: n).join(rows, join, **said).changes().sink(print)


PLACES = {
    ("input", "key"): lambda app, how: windowed(numbers_of(app, lambda n: later(n), **how), count()),
    ("input", "timestamp"): lambda app, how: windowed(numbers_of(app, timestamp=lambda n: later(n), **how), count()),
    ("input", "watermark"): lambda app, how: windowed(numbers_of(app, watermark=lambda n: later(n), **how), count()),
    ("table", "key"): lambda app, how: numbers_of(app).join(rows_of(app, lambda n: later(n), **how), max).sink(print),
    ("table", "broadcast key"): lambda app, how: (
        numbers_of(app).join(rows_of(app, lambda n: later(n), broadcast=True, **how), max, on=lambda n: n).sink(print)
    ),
    ("filter", "filter"): lambda app, how: OPERATORS["filter"](numbers_of(app), **how),
    ("map", "map"): lambda app, how: OPERATORS["map"](numbers_of(app), **how),
    ("flat_map", "flat_map"): lambda app, how: OPERATORS["flat_map"](numbers_of(app), **how),
    ("branch", "branch"): lambda app, how: OPERATORS["branch"](numbers_of(app), **how),
    ("sink", "sink"): lambda app, how: OPERATORS["sink"](numbers_of(app), **how),
    ("table_join", "join"): lambda app, how: (
        numbers_of(app).join(rows_of(app), lambda n, row: later(n), op_id="it", **how).sink(print)
    ),
    ("table_join", "on"): lambda app, how: (
        numbers_of(app).join(rows_of(app, broadcast=True), max, on=lambda n: later(n), op_id="it", **how).sink(print)
    ),
    ("versioned_table", "key"): lambda app, how: as_of_then(app, later, abs, max, on_table=how),
    ("versioned_table", "timestamp"): lambda app, how: as_of_then(app, abs, later, max, on_table=how),
    ("temporal_join", "join"): lambda app, how: as_of_then(app, abs, abs, lambda n, row: later(n), op_id="it", **how),
    ("remote_join", "on"): lambda app, how: asked_for(app, lambda n: later(n), max, **how),
    ("remote_join", "join"): lambda app, how: asked_for(app, abs, lambda n, row: later(n), **how),
    ("table_changes", "key"): lambda app, how: tables_joined(app, lambda n: later(n), max, on_table=how),
    ("own_table_join", "join"): lambda app, how: (
        (numbers := numbers_of(app))
        .join(numbers.to_table("own"), lambda n, row: later(n), how="left", op_id="it", **how)
        .sink(print)
    ),
    ("key_join", "join"): lambda app, how: tables_joined(app, abs, lambda n, row: later(n), op_id="it", **how),
    ("foreign_key_join", "on"): lambda app, how: tables_joined(app, abs, max, on=lambda n: later(n), op_id="it", **how),
    ("foreign_key_join", "join"): lambda app, how: tables_joined(
        app, abs, lambda n, row: later(n), on=abs, op_id="it", **how
    ),
    ("asof_join", "join"): lambda app, how: nearest_of_itself(numbers_of(app), **how).sink(print),
    ("interval_join", "join"): lambda app, how: joined_with_itself(numbers_of(app), **how).sink(print),
    ("partition_by", "key"): lambda app, how: partitioned(numbers_of(app), lambda n: later(n), **how),
    ("partition_by", "by"): lambda app, how: partitioned(numbers_of(app), abs, by=lambda n, of: later(n), **how),
    ("window", "aggregation"): lambda app, how: windowed(numbers_of(app), mean(lambda n: later(n))),
    ("process", "on_message"): lambda app, how: process(app, lambda n, context: later(n), **how),
    ("process", "on_timer"): lambda app, how: process(app, set_a_timer, on_timer=later_at, **how),
    ("process", "on_alarm"): lambda app, how: process(app, set_an_alarm, on_alarm=later_at, **how),
    ("deduplicate", "id_of"): lambda app, how: (
        numbers_of(app).deduplicate(lambda n: later(n), within_ms=1, op_id="it", **how).sink(print)
    ),
    ("process", "init"): lambda app, how: process(
        app, lambda n, context: [context.state], init=lambda: later(0), **how
    ),
    ("scan", "step"): lambda app, how: scanned(app, lambda total, n: later(n), **how),
    ("scan", "emit"): lambda app, how: scanned(app, max, init=int, emit=lambda key, total: later(total), **how),
    ("scan", "init"): lambda app, how: scanned(app, max, init=lambda: later(0), **how),
    ("async_flat_map", "init"): lambda app, how: (
        numbers_of(app).async_flat_map(remember, init=lambda: later(0), op_id="it", **how).sink(print)
    ),
    ("task", "process"): lambda app, how: tasks(app, numbers_of(app), process=lambda n, context: later(n), **how),
    ("task", "window"): lambda app, how: tasks(
        app, numbers_of(app), window=every(lambda context: later(context), seconds=0.001), **how
    ),
}
OUR_OWN = {"branch_arm", "revisions", "send_to"}
"""Operators whose functions are none of the user's, or that look at each result: what is no headers is refused."""
AWAITED = {("async_flat_map", "async_flat_map"), ("remote_join", "fetch_many")}


@pytest.mark.parametrize("place", PLACES, ids=" ".join)
@pytest.mark.parametrize("how", [{}, {"on_error": skip}], ids=["fail", "skip"])
def test_wherever_a_function_is_given_its_first_coroutine_ends_the_run(place, how):
    app = App("awaiting")
    PLACES[place](app, how)
    wrong = rf"{place[0]} '\w+' at .*test_first_call.py:\d+: {place[0]}\(...\) got a function that returns a coroutine"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(PlanError, match=wrong), testing.running(app) as run:
            _run_one_second(app, run)
        gc.collect()


def _run_one_second(app, run):
    for stream in ("rows", "numbers"):
        if stream in app.graph().specs:
            run.send(stream, 1)
    run.advance_time(seconds=1)
    run.end()


def test_every_place_where_a_function_is_given_is_one_of_these():
    found = set()
    for place in PLACES.values():
        app = App("awaiting")
        place(app, {})
        for spec in app.graph().specs.values():
            found |= {
                (spec.kind, name)
                for name, given in spec.functions().items()
                if callable(given) or name == "aggregation"
            }
    assert found - AWAITED == {place for place in PLACES if place != ("table", "broadcast key")}
    assert {kind.kind for kind in specs() if "kind" in vars(kind) and kind.functions is not Spec.functions} <= {
        kind for kind, _ in PLACES
    } | OUR_OWN


AGGREGATIONS = {
    "mean": mean(lambda n: later(n)),
    "total": total(lambda n: later(n)),
    "maximum": maximum(lambda n: later(n)),
    "minimum": minimum(lambda n: later(n)),
    "top_k by": top_k(2, by=lambda n: later(n)),
    "top_k then": top_k(2, by=lambda n: n, then=lambda n: later(n)),
    "fold init": fold(lambda: later(0), lambda sum, n: sum + n),
    "fold add": fold(int, lambda sum, n: later(n)),
    "fold finish": fold(int, lambda sum, n: sum + n, finish=lambda n: later(n)),
    "a part": aggregate(dict, number=count(), mean=mean(lambda n: later(n))),
    "a part of a part": aggregate(dict, within=aggregate(dict, mean=mean(lambda n: later(n)))),
    "aggregate into": aggregate(lambda number: later(number), number=count()),
    "one's own": Aggregation("own", lambda: later(0), lambda state, values: 1, max, lambda state: state),
}


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("wrapped", [False, True])
def test_the_first_coroutine_in_an_aggregation_ends_the_run(aggregation, wrapped):
    app = App("awaiting")
    if wrapped:
        app.wrap(lambda function, operator: lambda *arguments: function(*arguments))
    windowed(numbers_of(app), AGGREGATIONS[aggregation])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(
            PlanError, match=r"window 'it' at .*: window\(...\) got a function that returns a coroutine"
        ):
            testing.run(app, {"numbers": [1, 2, 3]})
        gc.collect()


def test_a_function_is_called_directly_from_its_second_value_on():
    mapped, sunk = [], []

    def deep_in(depths):
        def deep(n):
            frames, frame = 0, __import__("sys")._getframe()
            while frame:
                frames, frame = frames + 1, frame.f_back
            depths.append(frames)
            return n

        return deep

    app = App("direct")
    app.input("numbers", value=int).map(deep_in(mapped)).filter(lambda n: n > 1).sink(deep_in(sunk))
    testing.run(app, {"numbers": [1, 2, 3, 4]})
    assert [depth - mapped[-1] for depth in mapped] == [1, 0, 0, 0]
    assert [depth - sunk[-1] for depth in sunk] == [1, 0, 0]


@pytest.mark.ci
def test_functions_beside_the_stateless_ones_are_called_directly_from_their_second_batch_on():
    depths = {}

    def deep(name):
        def function(*arguments):
            depths.setdefault(name, []).append(len(inspect.stack()))
            return arguments[0] if arguments else 0

        return function

    app = App("direct", Options(batch_records=1))
    numbers = numbers_of(app, deep("key"), deep("timestamp"))
    numbers.window(tumbling(milliseconds=1), fold(deep("init"), deep("add"), finish=deep("finish"))).sink(deep("sink"))
    parted = numbers.partition_by(deep("partition"), by=lambda n, of: deep("by")(0), partitions=1)
    parted.process(lambda n, context: [context.state], init=deep("process init")).sink(print)
    with testing.running(app) as run:
        depths.clear()  # what begins a state was called to see its type
        for number in range(5):
            run.send("numbers", number)
    assert sorted(depths) == sorted(
        ["key", "timestamp", "init", "add", "finish", "sink", "partition", "by", "process init"]
    )
    for name, found in depths.items():
        assert found[0] > found[1] == found[-1], name


def test_a_function_that_raises_at_first_is_checked_at_the_next_value():
    app = App("raising")
    app.input("numbers", value=int).map(lambda n: later(1 // n), on_error=skip, op_id="it").sink(print)
    with pytest.raises(PlanError, match=r"'it' at .* got a function that returns a coroutine"):
        testing.run(app, {"numbers": [0, 0, 1]})


@pytest.mark.parametrize("kind", ["async generator", "awaitable"])
def test_other_things_to_be_awaited_are_told_of_too(kind):
    class Later:
        def __await__(self):
            return iter(())

    async def generated():
        yield 1

    app = App("later")
    app.input("numbers", value=int).filter(lambda n: Later() if kind == "awaitable" else generated()).sink(print)
    with pytest.raises(PlanError, match="returns what is to be awaited"):
        testing.run(app, {"numbers": [1]})


def test_an_aggregation_is_written_anew_once_for_each_function_and_not_for_each_value(monkeypatch):
    written = []

    def counting(made):
        written.append(made)
        return compiled(made)

    monkeypatch.setattr(first_call, "compiled", counting)
    kept = aggregate(dict, n=count(), most=maximum(lambda n: n + 0), mean=mean(lambda n: n + 1))
    holders, checked = [Keeping(kept) for _ in range(10)], first_call.CheckedAggregations(inline=True)
    for holder in holders:
        first_call.check_kept(Filter(function=bool), holder, checked)
    # Nor for each task: those of a container that keep the very same are given what is written for one.
    for holder in holders * 2:
        aggregation = holder.aggregation
        found = aggregation.finish(aggregation.add(aggregation.init(), [*range(100)]))
        assert found == {"n": 100, "most": 99, "mean": 50.5}
    assert 0 < len(written) < 10
    assert len({id(holder.aggregation) for holder in holders}) == 1
    gone = weakref.ref(holders[0])
    del holder, holders
    assert gone() is None  # a task that leaves its container takes its windows with it


class Keeping:
    """An operator that keeps an aggregation."""

    calls = ("aggregation",)

    def __init__(self, aggregation):
        self.aggregation = aggregation


APART = {
    "flat_map, written out": lambda stream: stream.flat_map(lambda n: {"n": n}, op_id="it"),
    "flat_map": lambda stream: stream.flat_map(str, op_id="it", on_error=skip),
    "process": lambda stream: stream.process(lambda n, context: f"{n}", op_id="it", on_error=skip),
    "process with timers": lambda stream: stream.process(
        lambda n, context: {"n": n}, op_id="it", on_timer=lambda at, context: []
    ),
}


@pytest.mark.parametrize("kind", APART)
def test_one_value_in_the_place_of_several_messages_is_told_on_the_first(kind):
    app = App("apart")
    APART[kind](app.input("numbers", value=int, key=abs, timestamp=abs)).sink(print)
    wrong = r" 'it' at .*test_first_call.py:\d+: .* returns one (dict|str), of which .*; write instead: \[value\]"
    with pytest.raises(PlanError, match=wrong):
        testing.run(app, {"numbers": [7]})


@pytest.mark.parametrize(("found", "words"), [({"a": 1}, "one dict, of which only the keys"), ("ab", "one str")])
def test_one_value_of_a_call_in_the_place_of_several_is_told(found, words):
    async def ask(value):
        return found

    app = App("apart")
    app.input("numbers", value=int).async_flat_map(ask, op_id="it").sink(print)
    with pytest.raises(OperatorFailure, match=rf"'it' at .*test_first_call.py:\d+: TypeError: .* {words}"):
        testing.run(app, {"numbers": [7]})
