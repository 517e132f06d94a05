"""Quantiles are within their error of the number at the rank, and the same in any order and grouping."""

import math
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from operators.aggregations.aggregation import over
from operators.aggregations.quantiles import Buckets, quantile, quantiles

SMALLEST = 5e-324

finite = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**9), 10**9)
errors = st.sampled_from([0.0001, 0.01, 0.1, 0.5]) | st.floats(0.001, 0.5)


def itself(value):
    return value


def is_near(found, exact, error):
    return abs(Fraction(found) - Fraction(exact)) <= abs(Fraction(exact)) * Fraction(error * (1 + 1e-9)) + Fraction(
        SMALLEST
    )


@given(st.lists(finite, min_size=1, max_size=30), st.lists(st.integers(0, 100), min_size=1, max_size=3), errors)
@example([1, 2, 3, 4, 5], [20, 60], 0.01)
@example([*range(1, 101)], [7, 55], 0.001)
def test_a_quantile_is_within_its_error_of_the_number_at_the_rank(values, percents, error):
    found = over(quantiles([percent / 100 for percent in percents], itself, error), values)
    for one, percent in zip(found, percents, strict=True):
        rank = max(1, -(-percent * len(values) // 100))
        assert is_near(one, sorted(values)[rank - 1], error)
        assert one == over(quantile(percent / 100, itself, error), values)


@given(finite, finite, errors)
def test_buckets_sort_as_numbers_do(a, b, error):
    buckets = Buckets(error)
    if a <= b:
        assert buckets.of(a) <= buckets.of(b)
        assert buckets.number(buckets.of(a)) <= buckets.number(buckets.of(b))


@given(st.integers(-1074, 1023), st.integers(0, 3), st.sampled_from([0.5, 0.1, 0.01, 0.0001]))
def test_the_edges_of_buckets_are_within_the_error(power, steps, error):
    number = math.ldexp(1, power)
    for _ in range(steps):
        number = math.nextafter(number, 0)
    buckets = Buckets(error)
    assert is_near(buckets.number(buckets.of(number)), number, error)


@given(st.lists(st.just(0.0) | st.just(-0.0) | st.just(0), min_size=1))
def test_zero_is_zero(values):
    assert over(quantile(0.5, itself), values) == 0


def test_infinity_is_larger_than_any_number():
    assert over(quantiles([0, 0.5, 1], itself), [math.inf, 1e308, -math.inf]) == [
        -math.inf,
        pytest.approx(1e308, rel=0.01),
        math.inf,
    ]


def test_what_has_no_rank_is_refused():
    with pytest.raises(ValueError, match="NaN"):
        over(quantile(0.5, itself), [1.0, math.nan])


@pytest.mark.parametrize("qs", [[], [1.01], [-0.1], ["0.5"], [math.nan], [None]])
def test_a_share_is_from_0_to_1(qs):
    with pytest.raises(ValueError, match=r"quantiles\(.* from 0 to 1; write instead: quantiles\(\[0\.5, 0\.95\], "):
        quantiles(qs, itself)


@pytest.mark.parametrize("qs", [0.5, None])
def test_several_shares_are_a_list(qs):
    with pytest.raises(ValueError, match=r"quantiles\(.*write instead"):
        quantiles(qs, itself)


def test_one_share_is_a_number():
    with pytest.raises(ValueError, match=r"quantile\(95, \.\.\.\) is not .*write instead: quantile\(0\.95, "):
        quantile(95, itself)


@pytest.mark.parametrize("error", [0, 0.00001, 0.6, -1, "1 %", math.nan, None])
def test_an_error_that_can_not_be_kept_is_refused(error):
    with pytest.raises(ValueError, match=r"error=.* is not between 0.0001 and 0.5; write instead: quantile\("):
        quantile(0.5, itself, error)


def test_what_is_read_off_values_is_a_function():
    with pytest.raises(
        ValueError, match=r"quantile\(of=\.\.\.\) got 'delay', which is no plain function of 1 argument"
    ):
        quantile(0.5, "delay")
