"""Distinct values are counted by what they are, and estimated within the error that was asked for."""

import math
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.aggregations.aggregation import over
from operators.aggregations.distinct import approximate_distinct, distinct
from operators.aggregations.identity import identity


def itself(value):
    return value


plain = st.integers() | st.floats() | st.booleans() | st.text(max_size=2) | st.tuples(st.integers(0, 1))


@given(st.lists(plain | st.none()))
def test_distinct_are_those_of_different_bytes(values):
    expected = len({identity(value) for value in values if value is not None})
    assert over(distinct(itself), values) == expected
    assert over(approximate_distinct(itself, error=0.0021), values) == expected


def test_one_and_one_and_true_are_three():
    assert over(distinct(itself), [1, 1.0, True, 1, None]) == 3 == over(approximate_distinct(itself), [1, 1.0, True])


@pytest.mark.parametrize("error", [0.13, 0.05, 0.02])
@pytest.mark.parametrize("number", [10, 200, 3_000])
def test_estimates_are_within_the_standard_error(error, number):
    aggregation = approximate_distinct(itself, error)
    trials = [over(aggregation, [f"{trial} {one}" for one in range(number)]) / number - 1 for trial in range(50)]
    assert math.sqrt(sum(off * off for off in trials) / len(trials)) < 1.25 * error
    assert abs(sum(trials) / len(trials)) < 4 * error / math.sqrt(len(trials))


@pytest.mark.parametrize("error", [0.13, 0.05])
@given(st.integers(0, 600), st.randoms(use_true_random=False))
def test_any_order_and_grouping_leaves_the_same_registers(error, number, random):
    aggregation = approximate_distinct(itself, error)
    expected = aggregation.add(aggregation.init(), list(range(number)))
    states = [aggregation.init() for _ in range(random.randint(1, 3))]
    for value in random.sample(range(number), number):
        place = random.randrange(len(states))
        states[place] = aggregation.add(states[place], [value, value // 2])
    assert reduce(aggregation.merge, states) == expected


@pytest.mark.parametrize("error", [0.13, 0.02])
def test_a_state_stays_small(error):
    aggregation = approximate_distinct(itself, error)
    registers = 2 ** math.ceil(math.log2((1.04 / error) ** 2))
    state = aggregation.init()
    for start in range(0, 20_000, 100):
        state = aggregation.add(state, list(range(start, start + 100)))
        assert len(state) <= registers / 16 if isinstance(state, set) else len(state) == registers
    assert isinstance(state, bytes)


@given(st.sets(st.integers(), max_size=256))
def test_few_values_are_counted_exactly(values):
    assert over(approximate_distinct(itself), list(values)) == len(values)


def test_estimates_stay_what_they_were():
    """What was kept by an older version is read by a newer one."""
    assert over(approximate_distinct(itself), list(range(10_000))) == 10_014


@pytest.mark.parametrize("error", [0, 0.5, 0.001, -1, "1 %", math.nan, None])
def test_an_error_that_can_not_be_kept_is_refused(error):
    with pytest.raises(ValueError, match=r"error=.* is not between.*write instead: approximate_distinct"):
        approximate_distinct(itself, error)


@pytest.mark.parametrize("make", [distinct, approximate_distinct])
def test_what_is_read_off_values_is_a_function(make):
    with pytest.raises(ValueError, match=r"distinct\(\.\.\.\) got 'name', which is no plain function of 1 argument"):
        make("name")
