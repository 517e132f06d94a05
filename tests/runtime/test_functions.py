"""Users' objects live once per task, and `app.wrap` runs around every user function, wherever it is called."""

import inspect
import threading
from collections import Counter
from dataclasses import dataclass

import msgspec
import pytest

from runtime.job.pipeline import Pipeline
from runtime.model.errors import OperatorFailure, SamzaError
from runtime.run.run import Run
from runtime.run.settings import RunSettings
from runtime.systems.memory.environment import MemoryEnvironment
from runtime.systems.memory.lists import ListSource
from samza_dsl import (
    Aggregation,
    App,
    aggregate,
    count,
    every,
    fold,
    maximum,
    mean,
    minimum,
    skip,
    testing,
    top_k,
    total,
    tumbling,
)
from tests.simulation.loop import simulate


@pytest.fixture
def app():
    return App("functions")


class Recorder:
    """A function that remembers how it was treated; all copies write to one diary."""

    diary: list[str]

    def __init__(self, name="it", fails=""):
        self.name = name
        self.fails = fails
        self.task = None

    def open(self, context):
        self.note(f"open {self.name} in {context.task}")
        self.task = context.task
        self.context = context
        self.fail("open")

    def close(self):
        self.note(f"close {self.name} in {self.task}")
        self.fail("close")

    def __call__(self, value):
        self.note(f"call {self.name} in {self.task} on {value}")
        self.fail("call")
        self.context.count("calls")
        return value

    def note(self, text):
        type(self).diary.append(text)

    def fail(self, when):
        if self.fails == when:
            raise RuntimeError(f"{self.name} fails to {when}")


class AsyncRecorder(Recorder):
    async def __call__(self, value):
        return [super().__call__(value)]


@pytest.fixture
def diary():
    Recorder.diary = []
    return Recorder.diary


def test_an_object_is_opened_before_its_first_message_and_closed_after_the_last(app, diary):
    app.input("numbers", value=int).map(Recorder()).send_to(app.output("out"))
    testing.run(app, {"numbers": [1, 2]})
    assert diary == ["open it in 0", "call it in 0 on 1", "call it in 0 on 2", "close it in 0"]


@pytest.mark.parametrize("method", ["map", "filter"])
def test_every_task_has_a_copy_of_its_own(app, diary, method):
    original = Recorder()
    getattr(app.input("numbers", value=int, partitions=3), method)(original).send_to(app.output("out"))
    testing.run(app, {"numbers": [[1], [2], [3]]})
    assert sorted(diary) == sorted(
        f"{what} it in {task}{on}"
        for task in range(3)
        for what, on in (("open", ""), ("call", f" on {task + 1}"), ("close", ""))
    )
    assert original.task is None


def test_an_async_object_is_opened_and_closed(app, diary):
    app.input("numbers", value=int).async_flat_map(AsyncRecorder()).send_to(app.output("out"))
    testing.run(app, {"numbers": [1]})
    assert diary == ["open it in 0", "call it in 0 on 1", "close it in 0"]


@pytest.mark.parametrize("recorder", [Recorder, AsyncRecorder])
def test_a_sink_is_opened_and_closed(app, diary, recorder):
    app.input("numbers", value=int).sink(recorder())
    testing.run(app, {"numbers": [1]})
    assert diary == ["open it in 0", "call it in 0 on 1", "close it in 0"]


def uses_of(app, function):
    """Use `function` in every place where a user may say one; return the places."""
    numbers = app.input("numbers", value=int, key=function("key"), timestamp=function("timestamp"))
    table = app.table("rows", value=int, key=function("table_key"))
    everywhere = app.table("all-rows", value=int, key=function("broadcast_key"), broadcast=True)
    both = function("join")
    flowing = (
        numbers.filter(function("filter"))
        .map(function("map"))
        .flat_map(function("flat_map"))
        .branch(function("branch"), into=("all",))["all"]
        .join(everywhere, both, on=function("on"))
        .partition_by(function("partition_by"), by=function("by"), partitions=1, op_id="by-number")
        .process(function("on_message"), on_timer=function("on_timer"), init=function("init"))
    )
    flowing.sink(function("sink"))
    numbers.join(table, function("table_join")).sink(print_nothing)
    statistics = aggregate(
        function("into"),
        mean=mean(function("mean")),
        total=total(function("total")),
        maximum=maximum(function("maximum")),
        minimum=minimum(function("minimum")),
        top=top_k(1, by=function("top_by"), then=function("top_then")),
        folded=fold(function("fold_init"), function("fold_add"), finish=function("fold_finish")),
        own=Aggregation("own", function("own_init"), function("own_add"), max, function("own_finish")),
        n=count(),
    )
    numbers.window(tumbling(seconds=1), statistics).sink(print_nothing)
    app.task(numbers, function("process"), op_id="task", window=every(function("window"), seconds=1))


def print_nothing(value):
    """Do nothing."""


def plain(name):
    """Return a function that does what is asked of it at the place `name`."""
    one = {
        "flat_map": lambda value: [value],
        "branch": lambda value: "all",
        "filter": lambda value: True,
        "partition_by": lambda value: "key",
        "into": lambda **parts: sorted(parts),
        "init": lambda: 0,
        "fold_init": lambda: 0,
        "own_init": lambda: 0,
        "by": lambda key, partitions: 0,
        "on_message": lambda value, context: context.set_timer(value) or [context.state],
        "own_add": lambda state, values: state + len(values),
    }
    two = ("join", "table_join", "process", "fold_add")
    one["on_timer"] = lambda at_ms, context: None
    return one.get(name) or ((lambda value, other: value) if name in two else (lambda value: value))


PLACES = (
    *("key", "timestamp", "table_key", "broadcast_key", "filter", "map", "flat_map", "branch", "join", "on"),
    *("partition_by", "by", "on_message", "on_timer", "init", "sink", "table_join", "into", "mean", "total"),
    *("maximum", "minimum", "top_by", "top_then", "fold_init", "fold_add", "fold_finish", "own_init", "own_add"),
    *("own_finish", "process"),
)


def run_everywhere(app, function):
    uses_of(app, function)
    testing.run(app, {"numbers": [1, 2], "rows": [1, 2], "all-rows": [1, 2]})


def test_wrap_runs_around_every_function(app):
    called = Counter()
    named = {}

    def function(name):
        made = plain(name)
        named[made] = name
        return made

    @app.wrap
    def counted(function, operator):
        def call(*arguments):
            called[named.get(inspect.unwrap(function))] += 1
            return function(*arguments)

        return call

    run_everywhere(app, function)
    assert set(PLACES) - set(called) == set()


class Numbers(msgspec.Struct):
    n: int
    largest: int | None


@dataclass
class Counted:
    n: int
    largest: int | None


@pytest.mark.parametrize("into", [Numbers, Counted, dict, dict[str, int]])
def test_a_class_that_gathers_results_is_no_function_to_wrap(app, into):
    wrapped = []

    @app.wrap
    def around(function, operator):
        def call(*arguments):
            return function(*arguments)

        wrapped.append(function)
        return call

    numbers = app.input("numbers", value=int, key=abs, timestamp=abs)
    numbers.window(tumbling(seconds=1), aggregate(into, n=count(), largest=maximum(abs))).map(
        lambda pane: pane.value
    ).send_to(app.output("out"))
    assert testing.run(app, {"numbers": [1, 1]})["out"] == [into(n=2, largest=1)]
    assert into not in map(inspect.unwrap, wrapped)


@pytest.mark.parametrize(
    "into", [lambda largest, n: (n, largest), lambda **results: (results["n"], results["largest"])]
)
def test_a_function_that_gathers_results_is_wrapped_as_one_of_positions(app, into):
    calls = []

    @app.wrap
    def around(function, operator):
        def call(*arguments):
            if inspect.unwrap(function) is into:
                calls.append(arguments)
            return function(*arguments)

        return call

    numbers = app.input("numbers", value=int, key=abs, timestamp=abs)
    numbers.window(tumbling(seconds=1), aggregate(into, n=count(), largest=maximum(abs))).map(
        lambda pane: pane.value
    ).send_to(app.output("out"))
    assert testing.run(app, {"numbers": [1, 1]})["out"] == [(2, 1)]
    assert calls == [(2, 1)]


@pytest.mark.parametrize("place", PLACES)
def test_an_object_may_be_everywhere_that_a_function_may(app, place):
    lives = []

    class Living:
        def open(self, context):
            lives.append("open")

        def close(self):
            lives.append("close")

        def __call__(self, *arguments, **names):
            lives.append("call")
            return plain(place)(*arguments, **names)

    run_everywhere(app, lambda name: _of(Living(), place) if name == place else plain(name))
    assert lives[0] == "open"
    assert lives[-1] == "close"
    assert lives.count("open") == lives.count("close") == 1
    assert "call" in lives


def _of(living, place):
    """Give an object as many arguments as its place asks for, so that it can be checked."""
    if place == "process":
        living.__signature__ = inspect.signature(plain(place))
    return living


def test_wrap_runs_around_async_functions(app):
    called = []

    @app.wrap
    def around(function, operator):
        async def call(value):
            called.append((operator, value))
            return await function(value)

        return call

    async def twice(value):
        return [value, value]

    app.input("numbers", value=int).async_flat_map(twice).send_to(app.output("out"))
    assert testing.run(app, {"numbers": [1, 2]})["out"] == [1, 1, 2, 2]
    assert called == [("async_flat_map-numbers", 1), ("async_flat_map-numbers", 2)]


def test_the_wrap_that_was_said_last_is_outermost(app):
    order = []

    def noting(name):
        def around(function, operator):
            def call(value):
                order.append(name)
                return function(value)

            return call

        return around

    app.wrap(noting("first"))
    app.wrap(noting("second"))
    app.input("numbers", value=int).map(abs).send_to(app.output("out"))
    testing.run(app, {"numbers": [1]})
    assert order == ["second", "first"]


def test_a_wrap_that_makes_no_function(app):
    @app.wrap
    def forgetful(function, operator):
        def call(value):
            """Forgotten."""

    app.input("numbers", value=int).map(abs).send_to(app.output("out"))
    with pytest.raises(SamzaError, match=r"app\.wrap: .*forgetful.* made None of a function of 'map-numbers'; return"):
        testing.run(app, {"numbers": [1]})


def test_an_object_is_closed_when_a_function_fails(app, diary):
    numbers = app.input("numbers", value=int).map(Recorder())
    numbers.map(Recorder("bad", fails="call")).send_to(app.output("out"))
    with pytest.raises(OperatorFailure, match="bad fails to call"):
        testing.run(app, {"numbers": [1]})
    assert diary[-2:] == ["close bad in 0", "close it in 0"]


def test_an_object_is_closed_when_another_fails_to_open(app, diary):
    numbers = app.input("numbers", value=int, partitions=2).map(Recorder())
    numbers.map(Recorder("bad", fails="open")).send_to(app.output("out"))
    told = (
        r"^map '[\w-]+' at .*test_functions.py:\d+: RuntimeError: bad fails to open, in open\(context\) of its Recorder"
    )
    with pytest.raises(OperatorFailure, match=told) as failure:
        testing.run(app, {"numbers": [[1], [2]]})
    assert isinstance(failure.value.__cause__, RuntimeError)
    assert diary == ["open it in 0", "open bad in 0", "close it in 0"]


class OpensOnlyIn0(Recorder):
    def fail(self, when):
        if when == "open" and self.task != 0:
            raise RuntimeError(f"no place in {self.task}")


def test_an_object_is_closed_when_another_task_fails_to_open_its_own(app, diary):
    app.input("numbers", value=int, partitions=3).map(OpensOnlyIn0()).send_to(app.output("out"))
    with pytest.raises(OperatorFailure, match="no place in 1"):
        testing.run(app, {"numbers": [[1], [2], [3]]})
    assert [line for line in diary if line.startswith("close")] == ["close it in 0"]


def test_all_are_closed_when_one_fails_to_close(app, diary):
    numbers = app.input("numbers", value=int).map(Recorder())
    numbers.map(Recorder("bad", fails="close")).send_to(app.output("out"))
    with pytest.raises(OperatorFailure, match=r"map .* at .*bad fails to close, in close\(\) of its Recorder"):
        testing.run(app, {"numbers": [1]})
    assert diary[-2:] == ["close bad in 0", "close it in 0"]


def test_what_a_function_raised_is_told_even_when_closing_fails_too(app, diary):
    class Worst(Recorder):
        def fail(self, when):
            if when != "open":
                raise RuntimeError(f"fails to {when}")

    app.input("numbers", value=int).map(Worst()).send_to(app.output("out"))
    with pytest.raises(OperatorFailure, match="fails to call"):
        testing.run(app, {"numbers": [1]})


def test_a_type_with_fields_named_open_and_close_is_only_called(app):
    app.input("rates", value=float).map(Rates).send_to(app.output("out"))
    assert testing.run(app, {"rates": [1.5]})["out"] == [Rates(1.5)]


class Rates(msgspec.Struct):
    open: float
    close: float = 0.0


def test_an_object_that_can_not_be_copied(app):
    class Locked(Recorder):
        def __init__(self):
            super().__init__()
            self.lock = threading.Lock()

    app.input("numbers", value=int).map(Locked()).send_to(app.output("out"))
    with pytest.raises(SamzaError, match=r"map-numbers.*can't be copied for every task.*in open\(context\)"):
        testing.run(app, {"numbers": [1]})


def counted(partitions, policy):
    """Run an object that counts, of which 2 is bad; return the metrics."""
    app = App("functions")

    class Counting:
        def open(self, context):
            self.context = context

        def __call__(self, value):
            self.context.count("seen")
            self.context.count("sum", value)
            if value == 2:
                raise ValueError("two")
            return value

    counted = app.input("numbers", value=int, partitions=partitions).map(Counting(), on_error=policy, op_id="counting")
    counted.send_to(app.output("out", value=int))
    values = [[1, 2], [3]] if partitions == 2 else [1, 2, 3]
    run = Run(
        Pipeline(app.graph(), app.options),
        MemoryEnvironment(),
        RunSettings(bind={"numbers": ListSource(values, partitions=partitions)}),
    )
    simulate(run.drive)
    return run.metrics()


def test_counters_are_in_the_metrics_of_every_task():
    found = [one.counters for one in counted(2, skip).operators if one.operator == "counting"]
    together, one_by_one = 1 + 2, 1 + 2
    assert [counters["sum"] for counters in found] == [together + one_by_one, 3]
