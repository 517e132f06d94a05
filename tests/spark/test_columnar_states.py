"""Accumulators made of what Arrow finds about groups are those of the rows, to the last bit, and merge with others."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.aggregations.aggregation import maximum, mean, minimum, total
from planner.columnar.lowering import Measure
from planner.columnar.terms import Term
from runtime.units.worker.columnar_states import WHERE_NONE, Unusual, states_of
from tests.scale import examples

AGGREGATIONS = {"total": total, "mean": mean, "maximum": maximum, "minimum": minimum}
FLOATS = st.floats(-1e306, 1e306) | st.sampled_from([float("nan"), float("inf"), float("-inf")])
"""Floats of which some have no sum that is beyond all floats, at which exact sums raise."""
KINDS = {
    "int": (pa.int64(), st.integers(-(2**63), 2**63 - 1) | st.integers(-9, 9)),
    "float": (pa.float64(), FLOATS | st.floats(-1e3, 1e3) | st.sampled_from([0.0, -0.0, 1e300, 5e-324])),
    "str": (pa.string(), st.text(st.characters(exclude_categories=["Cs"]), max_size=3)),
}


def of_columns(name, kind, rows):
    """Return the states of groups as they are found on columns, by group."""
    arrow, _ = KINDS[kind]
    values = pa.array([value for _, value in rows], arrow)
    states = states_of(Measure(name, Term("column", ("v",), kind)), values)
    columns = {"group": pa.array([group for group, _ in rows], pa.int64())}
    columns |= {f"c{n}": column for n, (column, _) in enumerate(states.asked)}
    asked = [(f"c{n}", how, WHERE_NONE) if how == "sum" else (f"c{n}", how) for n, (_, how) in enumerate(states.asked)]
    found = pa.table(columns).group_by("group", use_threads=False).aggregate(asked)
    answers = [found.column(f"c{n}_{how}") for n, (_, how) in enumerate(states.asked)]
    return dict(zip(found.column("group").to_pylist(), states.made(answers), strict=True))


def shown(result):
    """Return a result to the last bit, but that of 0.0 and -0.0, which are equal, either may be the largest."""
    return repr(result + 0.0 if isinstance(result, float) else result)


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for name in AGGREGATIONS for kind in KINDS if kind != "str" or name in ("maximum", "minimum")],
)
@given(st.data())
@settings(max_examples=examples(60, 20_000))
def test_states_of_columns_come_to_what_rows_come_to_alone_and_merged(name, kind, data):
    values = KINDS[kind][1] | st.none()
    rows = data.draw(st.lists(st.tuples(st.integers(0, 3), values), min_size=1, max_size=25))
    aggregation = AGGREGATIONS[name](lambda value: value)
    try:
        found = of_columns(name, kind, rows)
    except Unusual:
        return  # read row by row
    for group, state in found.items():
        own = [value for one, value in rows if one == group]
        by_rows = aggregation.add(aggregation.init(), own)
        assert shown(aggregation.finish(state)) == shown(aggregation.finish(by_rows))
        more = data.draw(st.lists(values, max_size=4))
        others = aggregation.add(aggregation.init(), more)
        together = aggregation.finish(aggregation.add(by_rows, more))
        assert shown(aggregation.finish(aggregation.merge(state, others))) == shown(together)
        assert shown(aggregation.finish(aggregation.merge(others, state))) == shown(together)
