"""Sums are exact, whatever is added in whatever order, and taken away again."""

import math
from fractions import Fraction

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from operators.aggregations import mean, over, total
from operators.sums import NOTHING, joined, minus, plus, value_of

floats = st.floats(-1e300, 1e300, allow_nan=False)
numbers = floats | st.integers(-(2**70), 2**70)
any_numbers = numbers | st.sampled_from([math.inf, -math.inf, math.nan])


@given(st.lists(numbers, min_size=1))
@example([2**53 + 1, 1.0])
@example([2**53 + 1, 0.0])
@example([0.1] * 10)
@example([1e300, 1.0, -1e300])
@example([10**400, 0.5])
def test_sums_and_means_are_exact(values):
    exact = sum(map(Fraction, values))
    try:
        nearest = float(exact)
    except OverflowError:
        assume(all(type(value) is int for value in values))
        nearest = int(exact)
    assert over(total(lambda v: v), values) == (exact if all(type(v) is int for v in values) else nearest)
    assert over(mean(lambda v: v), values) == (
        int(exact) / len(values) if all(type(v) is int for v in values) else nearest / len(values)
    )


@given(st.lists(floats, max_size=8), st.lists(floats, max_size=8))
def test_an_expansion_adds_up_exactly_and_the_same_however_it_came_about(some, others):
    whole = plus(NOTHING, [*some, *others])
    assert sum(map(Fraction, whole[5:])) == sum(map(Fraction, [*some, *others]))
    assert joined(plus(NOTHING, some), plus(NOTHING, others)) == whole == plus(plus(NOTHING, others), some)
    assert len(whole) <= 45


@given(st.lists(any_numbers, max_size=8), st.lists(any_numbers, max_size=8))
def test_what_is_taken_away_was_never_there(stay, go):
    assert minus(plus(NOTHING, [*go, *stay]), go) == plus(NOTHING, stay) == plus(minus(plus(NOTHING, go), go), stay)


@given(st.lists(any_numbers, max_size=8), st.data())
def test_what_is_not_finite_is_as_in_a_loop(values, data):
    found = value_of(plus(NOTHING, data.draw(st.permutations(values))))
    by_hand = sum(values)
    assert math.isfinite(found) == math.isfinite(by_hand)
    assert math.isfinite(found) or repr(found) == repr(by_hand)


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_infinity_is_a_sum_like_others(value):
    assert over(mean(lambda v: v), [value, 1.0]) == value == over(total(lambda v: v), [1.0, value, value])
