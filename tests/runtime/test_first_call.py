"""A function that turns out to return coroutines: the run ends, with what its author is told while building."""

import gc
import warnings

import pytest

from planner.errors import PlanError
from samza_dsl import App, every, skip, testing


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


def test_functions_of_a_join_are_checked_as_well():
    app = App("awaiting")
    rows = app.table("rows", value=int, key=lambda n: n, broadcast=True)
    numbers = app.input("numbers", value=int)
    numbers.join(rows, lambda n, row: later(n), on=lambda n: n, op_id="it").sink(print)
    with pytest.raises(PlanError, match=r"'it' at .* got a function that returns a coroutine"):
        testing.run(app, {"numbers": [1], "rows": [1]})


def test_a_function_is_called_directly_from_its_second_value_on():
    depths = []

    def deep(n):
        frames, frame = 0, __import__("sys")._getframe()
        while frame:
            frames, frame = frames + 1, frame.f_back
        depths.append(frames)
        return n

    app = App("direct")
    app.input("numbers", value=int).map(deep).filter(lambda n: n > 1).sink(deep)
    testing.run(app, {"numbers": [1, 2, 3, 4]})
    mapped, sunk = depths[:4], depths[4:]
    assert [depth - mapped[-1] for depth in mapped] == [1, 0, 0, 0]
    assert [depth - sunk[-1] for depth in sunk] == [1, 0, 0]


def test_a_function_that_raises_at_first_is_checked_at_the_next_value():
    app = App("raising")
    app.input("numbers", value=int).map(lambda n: later(1 // n), on_error=skip, op_id="it").sink(print)
    with pytest.raises(PlanError, match=r"'it' at .* got a function that returns a coroutine"):
        testing.run(app, {"numbers": [0, 0, 1]})
