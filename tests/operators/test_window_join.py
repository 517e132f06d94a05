"""What streams have in a window, joined: against nested loops, for any number of streams."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.aggregations.aggregation import over
from operators.joins.window_join import WindowJoin, joint
from samza_dsl import tumbling

NEEDED = {"inner": lambda there: all(there), "left": lambda there: there[0], "right": lambda there: there[-1]}


@st.composite
def windows(draw):
    """Draw how many streams there are, and the values of one window."""
    streams = draw(st.integers(2, 4))
    return streams, draw(st.lists(st.tuples(st.integers(0, streams - 1), st.integers(0, 99)), min_size=1, max_size=8))


def chosen(*values):
    return values


@pytest.mark.parametrize("how", ["inner", "left", "right", "outer"])
@given(windows())
def test_it_is_each_choice_of_one_value_per_stream(how, window):
    streams, values = window
    sides = [[value for number, value in values if number == side] for side in range(streams)]
    there = NEEDED.get(how, any)([bool(side) for side in sides])
    expected = list(product(*(side or [None] for side in sides))) if there else []
    assert over(joint(chosen, streams, how), values) == expected


@given(windows(), st.integers(0, 8))
def test_windows_that_merge_have_what_both_had(window, cut):
    streams, values = window
    aggregation = joint(chosen, streams, "outer")
    parts = [aggregation.add(aggregation.init(), part) for part in (values[:cut], values[cut:])]
    assert aggregation.finish(aggregation.merge(*parts)) == over(aggregation, values)


def test_the_function_is_the_one_that_an_application_wraps():
    wrapped = joint(chosen, 2).made_of(lambda function: lambda *values: function(*values)[::-1])
    assert over(wrapped, [(0, "a"), (1, "b")]) == [("b", "a")]


def test_it_tells_what_it_joins():
    spec = WindowJoin(windows=tumbling(seconds=1), aggregation=joint(chosen, 3, "left"))
    assert "left join of 3" in spec.describe() and spec.sided and spec.fold is None
