"""A function that turns out to return coroutines: the run ends, with what its author is told while building."""

import gc
import warnings

import pytest

from planner.errors import PlanError
from samza_dsl import App, skip, testing


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
