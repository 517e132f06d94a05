"""What is largest and smallest does not depend on the order of values, where NaN is among them, either."""

import dataclasses
import math
from decimal import Decimal
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Struct

from operators.aggregations.aggregation import aggregate, maximum, minimum, over, top_k
from operators.aggregations.distinct import approximate_distinct, distinct
from operators.aggregations.ranks import holds_nan, largest, smallest
from operators.partition_by import ranges
from runtime.encoding.serdes import Tagged
from samza_dsl import App, testing, tumbling

NAN = math.nan


class Reading(Struct, order=True, frozen=True):
    """A record that is compared by its fields."""

    value: float
    number: int


@dataclasses.dataclass(order=True, frozen=True)
class Row:
    """A record that is compared by one of its fields."""

    value: float
    name: str = dataclasses.field(compare=False, default="")


class Named(NamedTuple):
    """A tuple with names."""

    value: float
    number: int


few = st.integers(0, 3).map(float) | st.sampled_from([NAN, -NAN, math.inf, -math.inf])
KINDS = {
    "floats": few,
    "floats and ints": few | st.integers(5, 9),
    "Decimals": st.integers(0, 3).map(Decimal) | st.sampled_from([*map(Decimal, ("NaN", "sNaN", "NaN7", "-NaN"))]),
    "of NumPy": st.integers(0, 3).map(np.float32) | st.just(np.float64("nan")),
    "tuples": st.tuples(few, st.integers(0, 2)),
    "tuples of tuples": st.tuples(st.integers(0, 1), st.tuples(few)),
    "Structs": st.builds(Reading, few, st.integers(0, 2)),
    "dataclasses": st.builds(Row, few),
    "named tuples": st.builds(Named, few, st.integers(0, 2)),
}


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_nan_does_not_decide_which_is_largest_or_smallest_in_any_order_and_grouping(kind, data):
    values = data.draw(st.lists(KINDS[kind], min_size=1, max_size=8))
    order = data.draw(st.permutations(values))
    cut = data.draw(st.integers(0, len(values)))
    for aggregation in (maximum(same), minimum(same), top_k(3, by=same, then=repr), top_k(2, by=repr, then=same)):
        expected = repr(over(aggregation, values))
        parts = [aggregation.add(aggregation.init(), part) for part in (order[:cut], order[cut:])]
        assert repr(aggregation.finish(aggregation.merge(*parts))) == expected
        assert repr(aggregation.finish(aggregation.add(parts[0], order[cut:]))) == expected


def same(value):
    return value


@given(st.lists(st.integers(0, 9).map(float), min_size=1), st.integers(1, 3), st.data())
@example([1.0, 3.0, 2.0], 1, None)
def test_nan_counts_as_no_reading(values, more, data):
    mixed = [NAN, *values, NAN] if data is None else data.draw(st.permutations([*values, *[NAN] * more]))
    assert over(maximum(same), mixed) == max(values)
    assert over(minimum(same), mixed) == min(values)
    assert over(top_k(len(values), by=same), mixed) == sorted(values, reverse=True)
    found = over(top_k(len(mixed), by=same), mixed)
    assert all(map(math.isnan, found[len(values) :]))


@pytest.mark.parametrize("nan", [NAN, np.float32("nan"), Decimal("NaN"), Decimal("sNaN"), (NAN, 1)], ids=repr)
def test_where_there_is_nothing_else_nan_is_the_result(nan):
    assert holds_nan(largest([nan, nan])) and holds_nan(smallest([nan]))
    assert over(maximum(same), [None, nan]) is nan
    assert len(over(top_k(3, by=same), [nan, nan])) == 2


def test_what_was_kept_is_nan_until_there_is_a_number():
    aggregation = maximum(same)
    state = Tagged().decode(Tagged().encode(aggregation.add(aggregation.init(), [NAN])))
    assert aggregation.add(state, [1.0]) == 1.0 == aggregation.merge(state, 1.0) == aggregation.merge(1.0, state)


def test_other_errors_of_a_comparison_stay():
    for aggregation in (maximum(same), minimum(same), top_k(1, by=same)):
        with pytest.raises(TypeError, match="not supported between"):
            over(aggregation, [1.0, "a"])


@given(st.permutations([1.0, NAN, 3.0, 2.0, NAN]))
def test_a_window_has_the_same_result_in_any_order(values):
    app = App("order")
    records = app.input("in", value=int, key=lambda place: 0, timestamp=lambda place: 0).map(
        lambda place: values[place]
    )
    kinds = {"most": maximum(same), "least": minimum(same), "top": top_k(2, by=same)}
    panes = records.window(tumbling(minutes=1), aggregate(dict, **kinds))
    panes.map(lambda pane: pane.value).send_to(app.output("out"))
    found = testing.run(app, {"in": [*range(5)]})["out"]
    assert found == [{"most": 3.0, "least": 1.0, "top": [3.0, 2.0]}]


def test_nan_is_the_same_as_nan_whatever_its_sign():
    values = [NAN, -NAN, math.inf - math.inf, 0 * math.inf, 1.0]
    assert over(distinct(same), values) == over(approximate_distinct(same), values) == 2
    assert over(distinct(same), [np.float64("nan"), np.int64(1), np.int64(1)]) == 2


def test_ranges_have_no_nan_among_their_bounds():
    for bounds in ([NAN], [NAN, 1.0], [1.0, NAN]):
        with pytest.raises(ValueError, match="do not rise"):
            ranges(bounds)
