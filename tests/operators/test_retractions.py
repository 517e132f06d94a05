"""Revisions say of each value whether it is withdrawn, also where nothing ever is."""

from hypothesis import given
from hypothesis import strategies as st

from operators.core.base import Batch
from operators.retractions import Revision
from planner.model.levers import ALL
from runtime.stage.chain import Counts, FusedSegment
from samza_dsl import App


def changed(values, signs):
    app = App("revisions")
    app.input("numbers", value=int).revisions(op_id="told").sink(print)
    graph = app.graph()
    (segment,) = app.plan().stages[0].segments
    found = []
    functions = {id: dict(spec.functions()) for id, spec in graph.specs.items()}
    exits = {exit.id: type("Taking", (), {"columns": frozenset()})() for exit in segment.exits}
    fused = FusedSegment(segment, graph, functions, frozenset(), exits, ALL)
    for _, rows in fused.run(Batch(values, signs=signs), Counts()):
        found += rows.values
    return found


@given(st.lists(st.tuples(st.integers(), st.sampled_from([1, -1]))))
def test_a_retraction_is_withdrawn_and_nothing_else(rows):
    values, signs = [value for value, _ in rows], [sign for _, sign in rows]
    assert changed(values, signs) == [Revision(value, sign == -1) for value, sign in rows]
    assert changed(values, None) == [Revision(value) for value in values]
