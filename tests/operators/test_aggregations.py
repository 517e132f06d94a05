"""Aggregations: in any order and grouping they come to what they come to at once, and sums are exact."""

import math
import pickle
from fractions import Fraction

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from operators.aggregations import (
    aggregate,
    collect,
    count,
    exact_sum,
    fold,
    maximum,
    mean,
    minimum,
    over,
    top_k,
    total,
)
from runtime.serdes import Tagged

floats = st.floats(-1e300, 1e300, allow_nan=False)
numbers = floats | st.integers(-(2**70), 2**70)
pairs = st.tuples(numbers, st.integers(0, 5))


def first(pair):
    return pair[0]


KINDS = {
    "count": count(),
    "mean": mean(first),
    "total": total(first),
    "maximum": maximum(first),
    "minimum": minimum(first),
    "top 2": top_k(2, by=first, then=lambda pair: (pair[1], str(pair))),
    "fold": fold(int, lambda total, pair: total + pair[1], merge=lambda a, b: a + b),
    "aggregate": aggregate(dict, n=count(), mean=mean(first), best=maximum(lambda pair: pair[1])),
}


@pytest.mark.parametrize("kind", KINDS)
@given(st.lists(pairs, max_size=12), st.data())
def test_any_order_and_grouping_comes_to_the_same(kind, values, data):
    aggregation = KINDS[kind]
    assert not aggregation.order_sensitive
    shuffled = data.draw(st.permutations(values))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(values)), max_size=3)))
    states = []
    for start, stop in zip([0, *cuts], [*cuts, len(values)], strict=True):
        middle = (start + stop) // 2
        state = aggregation.add(aggregation.init(), shuffled[start:middle])
        state = Tagged().decode(Tagged().encode(state))  # as a store would keep it
        states.append(aggregation.add(state, shuffled[middle:stop]))
    merged = states[0]
    for state in states[1:]:
        merged = aggregation.merge(merged, state)
    found, expected = aggregation.finish(merged), over(aggregation, values)
    assert found == expected
    assert repr(found) == repr(expected) or kind in ("maximum", "minimum")  # 0 and 0.0 are as large as each other


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
    whole = exact_sum([*some, *others])
    assert sum(map(Fraction, whole)) == sum(map(Fraction, [*some, *others]))
    assert exact_sum([*exact_sum(some), *exact_sum(others)]) == whole or not (some and others)
    assert len(whole) <= 40


@given(st.lists(st.none() | st.integers()))
def test_none_is_left_out(values):
    present = [value for value in values if value is not None]
    assert over(maximum(lambda v: v), values) == max(present, default=None)
    assert over(minimum(lambda v: v), values) == min(present, default=None)
    assert over(total(lambda v: v), values) == sum(present)
    assert over(mean(lambda v: v), values) == (sum(present) / len(present) if present else None)
    assert over(count(), values) == len(values)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers())), st.integers(1, 5))
def test_top_k_are_the_largest_and_ties_go_to_the_smallest_then(values, k):
    found = over(top_k(k, by=first, then=lambda pair: pair[1]), values)
    assert found == sorted(values, key=lambda pair: (-pair[0], pair[1]))[:k]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers())), st.integers(1, 5), st.integers(0, 9))
def test_top_k_without_then_keeps_what_came_first(values, k, cut):
    aggregation = top_k(k, by=first)
    state = aggregation.add(aggregation.add(aggregation.init(), values[:cut]), values[cut:])
    assert aggregation.finish(state) == sorted(values, key=lambda pair: -pair[0])[:k]
    assert aggregation.order_sensitive


@given(st.lists(st.integers()), st.integers(0, 9))
def test_collect_keeps_the_order_of_arrival(values, cut):
    aggregation = collect()
    parts = [aggregation.add(aggregation.init(), part) for part in (values[:cut], values[cut:])]
    assert aggregation.finish(aggregation.merge(*parts)) == values == over(aggregation, values)


@given(st.lists(st.text()))
def test_a_fold_is_a_loop(values):
    joined = fold(str, lambda text, more: text + more, finish=len)
    assert over(joined, values) == len("".join(values))
    assert joined.order_sensitive
    with pytest.raises(ValueError, match="merge="):
        joined.merge("", "")


def test_an_aggregate_is_order_sensitive_where_a_part_is():
    assert aggregate(dict, n=count(), all=collect()).order_sensitive
    assert not aggregate(dict, n=count()).order_sensitive


def test_what_can_not_be_aggregated_is_refused():
    with pytest.raises(Exception, match="at least 1"):
        top_k(0, by=first)
    with pytest.raises(Exception, match="no named aggregation"):
        aggregate(dict)


def test_nothing_comes_to_nothing():
    for name, nothing in {"count": 0, "mean": None, "total": 0, "maximum": None, "top 2": [], "fold": 0}.items():
        assert over(KINDS[name], []) == nothing


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_infinity_is_a_sum_like_others(value):
    assert over(mean(lambda v: v), [value, 1.0]) == value == over(total(lambda v: v), [1.0, value, value])


def test_states_are_plain_values():
    for aggregation in KINDS.values():
        state = aggregation.add(aggregation.init(), [(1.5, 2)])
        assert pickle.loads(pickle.dumps(state)) == state
