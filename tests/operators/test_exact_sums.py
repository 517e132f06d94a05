"""Sums are exact, whatever is added in whatever order, and taken away again."""

import math
from decimal import Context, Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from operators.aggregations.aggregation import mean, over, total
from operators.aggregations.exact_sums import NOTHING, joined, mean_of, minus, plus, value_of
from runtime.encoding.serdes import Tagged
from samza_dsl import App, testing, tumbling

floats = st.floats(-1e300, 1e300, allow_nan=False)
numbers = floats | st.integers(-(2**70), 2**70)
decimals = st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**30), max_value=10**30)
fractions = st.fractions(max_denominator=10**6)
any_decimals = decimals | st.sampled_from([*map(Decimal, ("Infinity", "-Infinity", "NaN"))])
KINDS = {
    "ints": st.integers(),
    "floats": st.floats(-1e300, 1e300) | st.sampled_from([math.inf, -math.inf, math.nan]),
    "Decimals": any_decimals | st.integers(),
    "Fractions": fractions | st.integers(),
    "Fractions and floats": fractions | floats,
}
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


@given(st.lists(decimals | st.integers(), min_size=1))
@example([Decimal("9007199254740993"), Decimal("0.01")])
@example([Decimal("0.10")] * 3)
@example([Decimal("1E+6111"), Decimal("1E-6176")])
@example([Decimal("0.00"), 0])
def test_sums_of_decimals_are_exact_decimals_and_written_as_python_writes_them(values):
    if all(type(value) is int for value in values):
        values = [*values, Decimal("0.5")]
    with localcontext(Context(prec=20_000)):
        expected = sum(values)
    found = over(total(lambda v: v), values)
    assert type(found) is Decimal and found == expected
    assert found.as_tuple().exponent == min(0, expected.as_tuple().exponent) or str(found) == str(expected)


@given(st.lists(decimals, min_size=1, max_size=20))
@example([Decimal("0.1"), Decimal("0.2")])
@example([Decimal(1), Decimal(0), Decimal(0)])
def test_means_of_decimals_are_exact_where_they_end(values):
    found, exact = over(mean(lambda v: v), values), sum(map(Fraction, values)) / len(values)
    assert type(found) is Decimal
    ends = exact.denominator
    for prime in (2, 5):
        while ends % prime == 0:
            ends //= prime
    if ends == 1:
        assert Fraction(found) == exact
    else:
        assert abs(Fraction(found) - exact) <= abs(exact) / 10**27


@given(st.lists(fractions | st.integers(), min_size=1))
def test_sums_and_means_of_fractions_are_exact_fractions(values):
    values = [*values, Fraction(1, 3)]
    found, middle = over(total(lambda v: v), values), over(mean(lambda v: v), values)
    assert (type(found), found) == (Fraction, sum(values))
    assert (type(middle), middle) == (Fraction, sum(values) / len(values))


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_numbers_of_any_kind_may_be_grouped_merged_kept_and_taken_away(kind, data):
    stay, go = (data.draw(st.lists(KINDS[kind], max_size=6)) for _ in range(2))
    whole = plus(NOTHING, stay)
    kept = Tagged().decode(Tagged().encode(plus(NOTHING, [*go, *stay])))
    assert minus(kept, go) == whole == joined(plus(NOTHING, stay[:2]), plus(NOTHING, stay[2:]))
    assert plus(plus(NOTHING, stay[2:][::-1]), stay[:2]) == whole
    assert repr(value_of(whole)) == repr(value_of(joined(plus(NOTHING, stay[2:]), plus(NOTHING, stay[:2]))))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([np.int64(2**62)] * 4, 2**64),
        ([np.uint64(2**64 - 1), 1], 2**64),
        ([np.float32(0.1)] * 4, 4 * float(np.float32(0.1))),
        ([np.float64(0.1)] * 10, 1.0),
        ([np.bool_(True), True, np.int8(1)], 3),
        ([np.int64(1), Decimal("0.5")], Decimal("1.5")),
        ([np.float64("nan"), 1], math.nan),
        ([True, True], 2),
    ],
    ids=str,
)
def test_numbers_of_numpy_count_as_what_they_are(values, expected):
    found = over(total(lambda v: v), values)
    assert (type(found), repr(found)) == (type(expected), repr(expected))


@pytest.mark.parametrize("other", [0.5, np.float64(0.5), math.nan, Fraction(1, 2)], ids=repr)
def test_a_decimal_is_not_added_to_what_is_not_exactly_one(other):
    for aggregation in (total(lambda v: v), mean(lambda v: v)):
        for values in ([Decimal("1.5"), other], [other, Decimal("1.5")]):
            with pytest.raises(TypeError, match="convert one of them"):
                over(aggregation, values)
            parts = [aggregation.add(aggregation.init(), [value]) for value in values]
            with pytest.raises(TypeError, match="convert one of them"):
                aggregation.merge(*parts)


@pytest.mark.parametrize("value", ["1", None, 1j, np.timedelta64(5, "ns"), Decimal("1E+9999999")], ids=repr)
def test_what_can_not_be_added_is_refused(value):
    with pytest.raises((TypeError, ValueError)):
        plus(NOTHING, [1, value])


def test_sums_of_the_version_before_are_read_on():
    before = (3, 2, 0, 0, 0, 0.75)  # two floats, and ints
    assert value_of(plus(before, [0.25, 1])) == 5.0
    assert value_of(plus(before, [Fraction(1, 4)])) == 4.0
    assert value_of(plus((3, 0, 0, 0, 0), [Decimal("0.10")])) == Decimal("3.10")


LARGE = st.sampled_from(
    [1e308, -1e308, 1.7976931348623157e308, -1.7976931348623157e308, 2.0**1000, 0.5, 10**400, -(10**400)]
)


def nearest(exact):
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


@given(st.lists(LARGE, min_size=1, max_size=7), st.lists(LARGE, max_size=4), st.integers(0, 7))
@example([1e308, 1e308], [], 1)
@example([1e308, 1e308, -1e308], [1e308], 2)
@example([10**400], [], 0)
def test_sums_beyond_all_floats_are_infinite_and_the_same_however_they_came_about(values, go, at):
    exact = sum(map(Fraction, values))
    of_ints = all(type(value) is int for value in values)
    expected = exact if of_ints else nearest(exact)
    one_by_one = NOTHING
    for value in values:
        one_by_one = plus(one_by_one, [value])
    taken_away = minus(plus(plus(NOTHING, go), values), go)
    for state in (
        plus(NOTHING, values),
        one_by_one,
        joined(plus(NOTHING, values[:at]), plus(NOTHING, values[at:])),
        taken_away,
    ):
        assert value_of(state) == expected
        assert mean_of((len(values), *state)) in (nearest(exact / len(values)), nearest(exact) / len(values))
    assert minus(taken_away, values) == NOTHING
    assert Tagged().decode(Tagged().encode(one_by_one)) == one_by_one


def test_the_mean_of_what_is_summed_beyond_all_floats_is_one_where_it_is_a_float():
    assert over(mean(lambda v: v), [1e308, 1e308]) == 1e308
    assert over(total(lambda v: v), [1e308, 1e308]) == math.inf
    assert over(total(lambda v: v), [1e308, 1e308, -1e308]) == 1e308 == over(total(lambda v: v), [1e308, -1e308, 1e308])
    assert over(mean(lambda v: v), [10**400]) == math.inf
    assert math.isnan(over(mean(lambda v: v), [math.inf, -math.inf, 1e308, 1e308]))


@pytest.mark.parametrize("values", [[10**400, 1], [1e308, 1e308], [1e308, 1e308, -1e308], [2**60, 2**60 + 1]])
@pytest.mark.parametrize("of", [total, mean])
def test_a_window_tells_what_the_aggregation_does_by_itself(of, values):
    app = App("sums")
    numbers = app.input("in", key=lambda value: "k", timestamp=lambda value: 0)
    found = []
    numbers.window(tumbling(seconds=1), of(lambda value: value), op_id="w").sink(lambda pane: found.append(pane.value))
    testing.run(app, {"in": values})
    assert found == [over(of(lambda value: value), values)]
