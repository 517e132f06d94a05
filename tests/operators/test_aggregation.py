"""Aggregations: in any order and grouping they come to what they come to at once, and what is removed never was."""

import pickle
from ast import literal_eval
from collections import Counter
from decimal import Decimal
from functools import reduce as reduced
from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.aggregations.aggregation import (
    aggregate,
    collect,
    count,
    first,
    fold,
    last,
    maximum,
    mean,
    minimum,
    over,
    reduce,
    top_k,
    total,
)
from operators.aggregations.distinct import approximate_distinct, distinct
from operators.aggregations.quantiles import quantile, quantiles
from operators.aggregations.ranks import ranked
from runtime.encoding.serdes import Tagged
from samza_dsl import App, testing, tumbling
from tests.scale import examples

floats = st.floats(-1e300, 1e300, allow_nan=False)
numbers = floats | st.integers(-(2**70), 2**70)
pairs = st.tuples(numbers, st.integers(0, 5))


def number(pair):
    return pair[0]


def unlike_zero(pair):
    return pair[1] or None


KINDS = {
    "count": count(),
    "mean": mean(number),
    "total": total(number),
    "maximum": maximum(number),
    "minimum": minimum(number),
    "top 2": top_k(2, by=number, then=lambda pair: (pair[1], str(pair))),
    "distinct": distinct(unlike_zero),
    "distinct pairs": distinct(lambda pair: pair),
    "approximate distinct": approximate_distinct(lambda pair: pair),
    "approximate distinct, all registers": approximate_distinct(lambda pair: pair, error=0.13),
    "quantile": quantile(0.9, number),
    "quantiles": quantiles([0, 0.25, 1], number, error=0.1),
    "reduce": reduce(lambda a, b: (max(a[0], b[0]), a[1] + b[1]), commutative=True),
    "fold": fold(
        int, lambda total, pair: total + pair[1], merge=lambda a, b: a + b, remove=lambda t, pair: t - pair[1]
    ),
    "aggregate": aggregate(dict, n=count(), mean=mean(number), best=maximum(lambda pair: pair[1])),
    "aggregate that removes": aggregate(dict, n=count(), mean=mean(number), kinds=distinct(unlike_zero)),
}

BY_ARRIVAL = {
    "first": first(),
    "first of": first(unlike_zero),
    "last": last(),
    "last of": last(unlike_zero),
    "collect": collect(),
    "top 2": top_k(2, by=lambda pair: pair[1]),
    "reduce": reduce(lambda a, b: (*a, *b)),
    "aggregate": aggregate(dict, first=first(), all=collect()),
}

REMOVING = {name: kind for name, kind in KINDS.items() if kind.remove is not None}


def kept(state):
    """Return `state` as a store keeps it."""
    return Tagged().decode(Tagged().encode(state))


def grouped(data, aggregation, values):
    """Return what `values` come to in groups, some of them added in two steps, that are merged in this order."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(values)), max_size=3)))
    states = []
    for start, stop in zip([0, *cuts], [*cuts, len(values)], strict=True):
        middle = (start + stop) // 2
        state = kept(aggregation.add(aggregation.init(), values[start:middle]))
        states.append(aggregation.add(state, values[middle:stop]))
    return reduced(aggregation.merge, states)


@pytest.mark.parametrize("kind", KINDS)
@given(st.lists(pairs, max_size=12), st.data())
def test_any_order_and_grouping_comes_to_the_same(kind, values, data):
    aggregation = KINDS[kind]
    assert not aggregation.order_sensitive
    shuffled = data.draw(st.permutations(values))
    found, expected = aggregation.finish(grouped(data, aggregation, shuffled)), over(aggregation, values)
    assert found == expected
    # 0 and 0.0 are as large as each other
    assert repr(found) == repr(expected) or kind in ("maximum", "minimum", "reduce")


@pytest.mark.parametrize("kind", BY_ARRIVAL)
@given(st.lists(pairs, max_size=12), st.data())
def test_any_grouping_comes_to_the_same_in_order_of_arrival(kind, values, data):
    aggregation = BY_ARRIVAL[kind]
    assert aggregation.order_sensitive
    assert repr(aggregation.finish(grouped(data, aggregation, values))) == repr(over(aggregation, values))


@settings(max_examples=examples(13, 500))
@given(st.lists(pairs, min_size=1, max_size=8), st.data())
def test_states_live_through_a_crash(values, data):
    kinds = {f"kind {place}": kind for place, kind in enumerate([*KINDS.values(), *BY_ARRIVAL.values()])}
    app = App("crashing")
    records = app.input("pairs", value=tuple[int | float, int], key=lambda pair: 0, timestamp=lambda pair: 0)
    panes = records.window(tumbling(hours=1), aggregate(dict, **kinds))
    panes.map(lambda pane: repr(pane.value)).send_to(app.output("results"))
    crashes = data.draw(st.sets(st.integers(0, len(values) - 1), max_size=3))
    with testing.running(app) as run:
        for place, value in enumerate(values):
            run.send("pairs", value)
            if place in crashes:
                run.crash()
                run.restart()
        run.advance_watermark("pairs", 3_600_000)
        expected = over(aggregate(dict, **kinds), values)
        assert [*map(literal_eval, run.read("results"))] == [expected]  # of 0 and 0.0, either may be the largest


def test_what_removes():
    assert set(REMOVING) == {
        "count",
        "mean",
        "total",
        "distinct",
        "distinct pairs",
        "quantile",
        "quantiles",
        "fold",
        "aggregate that removes",
    }
    assert [name for name, kind in BY_ARRIVAL.items() if kind.remove] == ["collect"]


@pytest.mark.parametrize("kind", REMOVING)
@given(st.lists(st.tuples(pairs, st.booleans()), max_size=12), st.data())
def test_what_is_removed_was_never_added(kind, values, data):
    aggregation = REMOVING[kind]
    stays = [value for value, is_to_stay in values if is_to_stay]
    goes = data.draw(st.permutations([value for value, is_to_stay in values if not is_to_stay]))
    later = data.draw(st.integers(0, len(stays)))
    early = [value for value, is_to_stay in values if not is_to_stay] + stays[later:]
    state = grouped(data, aggregation, data.draw(st.permutations(early)))
    half = len(goes) // 2
    state = kept(aggregation.remove(state, goes[:half]))
    state = aggregation.remove(aggregation.add(state, stays[:later]), goes[half:])
    assert state == aggregation.add(aggregation.init(), stays)
    assert repr(aggregation.finish(state)) == repr(over(aggregation, stays))


@given(st.lists(st.sampled_from([0, 0.0, False, 1, 1.0, True, "1", (1,), (1.0,)])), st.data())
def test_collect_removes_the_first_of_the_same(values, data):
    gone = data.draw(st.lists(st.sampled_from(values), unique_by=id, max_size=3)) if values else []
    expected = [*map(repr, values)]
    for value in gone:
        expected.remove(repr(value))
    aggregation = collect()
    left = aggregation.remove(aggregation.add(aggregation.init(), values), gone)
    assert [*map(repr, aggregation.finish(left))] == expected


@pytest.mark.parametrize("aggregation", [collect(), distinct(abs), quantile(0.5, abs)], ids=str)
def test_what_was_never_added_can_not_be_removed(aggregation):
    with pytest.raises(ValueError, match="not added before"):
        aggregation.remove(aggregation.add(aggregation.init(), [1, 1, 2]), [1, 3])


@given(st.lists(st.none() | st.integers()))
def test_none_is_left_out(values):
    present = [value for value in values if value is not None]
    assert over(maximum(lambda v: v), values) == max(present, default=None)
    assert over(minimum(lambda v: v), values) == min(present, default=None)
    assert over(total(lambda v: v), values) == sum(present)
    assert over(mean(lambda v: v), values) == (sum(present) / len(present) if present else None)
    assert over(count(), values) == len(values)
    assert over(distinct(lambda v: v), values) == over(approximate_distinct(lambda v: v), values) == len(set(present))
    assert over(first(lambda v: v), values) == next(iter(present), None)
    assert over(last(lambda v: v), values) == next(reversed(present), None)
    assert over(quantile(0, lambda v: v), values) == over(quantile(0, lambda v: v), present)
    assert over(first(), values) == next(iter(values), None)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers())), st.integers(1, 5))
def test_top_k_are_the_largest_and_ties_go_to_the_smallest_then(values, k):
    found = over(top_k(k, by=number, then=lambda pair: pair[1]), values)
    assert found == sorted(values, key=lambda pair: (-pair[0], pair[1]))[:k]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers())), st.integers(1, 5), st.integers(0, 9))
def test_top_k_without_then_keeps_what_came_first(values, k, cut):
    aggregation = top_k(k, by=number)
    state = aggregation.add(aggregation.add(aggregation.init(), values[:cut]), values[cut:])
    assert aggregation.finish(state) == sorted(values, key=lambda pair: -pair[0])[:k]
    assert aggregation.order_sensitive


RANKS = {
    "numbers": st.integers(0, 9) | st.integers(0, 9).map(float) | st.sampled_from([nan, inf, -inf]),
    "texts": st.text("ab", max_size=3),
    "Decimals": st.integers(0, 9).map(Decimal) | st.just(Decimal("NaN")),
    "pairs": st.tuples(st.integers(0, 2), st.sampled_from([0.0, 1.0, nan])),
    "numbers and None": st.none() | st.integers(0, 9) | st.just(nan),
    "pairs with None": st.tuples(st.integers(0, 2), st.none() | st.floats(0, 9)) | st.none(),
}


@pytest.mark.parametrize("then", [None, repr], ids=["as they came", "then"])
@pytest.mark.parametrize("kind", RANKS)
@given(data=st.data())
def test_top_k_are_the_same_however_many_are_added_at_a_time(kind, then, data):
    values = data.draw(st.lists(st.tuples(RANKS[kind], st.integers(0, 99)), max_size=30))
    k = data.draw(st.integers(1, 20))
    aggregation = top_k(k, by=lambda pair: pair[0], then=then)
    state, left = aggregation.init(), values
    while left:
        cut = data.draw(st.sampled_from([1, 2, 3, 4, 9]))
        state, left = aggregation.add(state, left[:cut]), left[cut:]
    ranks = ranked([rank for rank, _ in values])
    places = sorted(range(len(values)), key=lambda place: then(values[place]) if then else place)
    expected = [values[place] for place in sorted(places, key=ranks.__getitem__, reverse=True)[:k]]
    assert repr(aggregation.finish(state)) == repr(over(aggregation, values)) == repr(expected)


def test_values_that_fill_the_last_places_are_ranked_among_themselves():
    aggregation = top_k(8, by=abs)
    held = aggregation.add(aggregation.init(), [9, 8, 7, 6, 5, 4])
    assert aggregation.finish(aggregation.add(held, [1, 2, 3])) == [9, 8, 7, 6, 5, 4, 3, 2]


@given(st.lists(st.integers()), st.integers(0, 9))
def test_collect_keeps_the_order_of_arrival(values, cut):
    aggregation = collect()
    parts = [aggregation.add(aggregation.init(), part) for part in (values[:cut], values[cut:])]
    assert aggregation.finish(aggregation.merge(*parts)) == values == over(aggregation, values)


@given(st.lists(st.integers(), min_size=1))
def test_a_reduce_is_that_of_functools(values):
    assert over(reduce(lambda a, b: a - b), values) == reduced(lambda a, b: a - b, values)


def test_a_reduce_is_order_sensitive_unless_it_is_said_to_be_commutative():
    assert reduce(max).order_sensitive and not reduce(max, commutative=True).order_sensitive


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


def test_an_aggregate_removes_where_all_parts_do():
    assert aggregate(dict, n=count(), all=collect()).remove
    assert not aggregate(dict, n=count(), best=maximum(abs)).remove


@pytest.mark.parametrize("name", [*KINDS, *BY_ARRIVAL])
def test_the_functions_of_a_task_are_used_throughout(name):
    """Remove goes through them, too."""
    aggregation = KINDS.get(name) or BY_ARRIVAL[name]
    calls = Counter()

    def ready(function):
        def call(*arguments):
            calls["all"] += 1
            return function(*arguments)

        return call

    made = aggregation.made_of(ready)
    assert str(made) == str(aggregation) and made.order_sensitive == aggregation.order_sensitive
    values = [(1.5, 2), (2.5, 3)]
    assert over(made, values) == over(aggregation, values)
    assert (made.remove is None) == (aggregation.remove is None)
    if name in ("reduce", "fold"):
        calls.clear()
        merged = made.merge(*(made.add(made.init(), [value]) for value in values))
        assert calls["all"] == {"reduce": 1, "fold": 5}[name]
        assert made.finish(merged) == over(aggregation, values)
    if made.remove:
        state = made.add(made.init(), values)
        before = calls["all"]
        left = made.remove(state, values[:1])
        assert calls["all"] > before or name in ("count", "collect")
        assert made.finish(left) == over(aggregation, values[1:])
    assert calls["all"] or name in ("count", "first", "last", "collect")


def test_what_can_not_be_aggregated_is_refused():
    with pytest.raises(Exception, match="at least 1"):
        top_k(0, by=number)
    with pytest.raises(Exception, match="no named aggregation"):
        aggregate(dict)
    with pytest.raises(ValueError, match=r"first\(\.\.\.\) got 'delay'.*write instead"):
        first("delay")
    with pytest.raises(ValueError, match=r"reduce\(\.\.\.\) got .*no plain function of 2"):
        reduce(abs)
    with pytest.raises(ValueError, match=r"fold\(remove=\.\.\.\) got .*no plain function of 2"):
        fold(int, max, remove=abs)


def test_nothing_comes_to_nothing():
    for name, nothing in {
        "count": 0,
        "mean": None,
        "total": 0,
        "maximum": None,
        "top 2": [],
        "fold": 0,
        "distinct": 0,
        "quantile": None,
    }.items():
        assert over(KINDS[name], []) == nothing
    for name in ("first", "last", "reduce"):
        assert over(BY_ARRIVAL[name], []) is None


def test_states_are_plain_values():
    for aggregation in [*KINDS.values(), *BY_ARRIVAL.values()]:
        state = aggregation.add(aggregation.init(), [(1.5, 2)])
        assert pickle.loads(pickle.dumps(state)) == state


def test_the_leaves_of_an_aggregation_are_what_it_keeps_however_deep():
    within = aggregate(dict, most=maximum(lambda v: v), n=count())
    whole = aggregate(dict, mean=mean(lambda v: v), within=within)
    assert [(leaf.name, leaf.keeps) for leaf in whole.leaves()] == [
        ("mean", "numbers"),
        ("maximum", "a value"),
        ("count", "numbers"),
    ]
