"""What is left out where a function fails on late values, or on what a window comes to: that alone; a run goes on."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samza_dsl import App, after_count, collect, dead_letter, fold, session, skip, tumbling
from samza_dsl.testing import Record, run
from tests.runtime.test_window_kinds import Lasting
from tests.scale import examples

KINDS = {
    "tumbling": lambda: tumbling(milliseconds=20),
    "session": lambda: session(milliseconds=9),
    "merging": Lasting,
}
LATENESS_MS = 40


def refusing(what, bad):
    """Sum up, but raise where `what` is given something bad."""

    def add(total, value):
        if what == "add" and value in bad:
            raise ValueError("bad")
        return total + value

    def merge(one, other):
        if what == "merge" and {one, other} & bad:
            raise ValueError("bad")
        return one + other

    def finish(total):
        if what == "finish" and total in bad:
            raise ValueError("bad")
        return total

    return fold(int, add, merge=merge, remove=lambda total, value: total - value, finish=finish)


records = st.lists(st.tuples(st.integers(1, 9), st.sampled_from("ab"), st.integers(0, 90)), max_size=25)


@settings(max_examples=examples(80, 5_000))
@given(
    st.sampled_from(sorted(KINDS)),
    records,
    st.sampled_from(("add", "merge", "finish")),
    st.sampled_from(("accumulating", "discarding", "retracting")),
    st.booleans(),
    st.sampled_from((skip, dead_letter("bad"))),
)
def test_a_run_goes_on_and_withdraws_what_it_told_and_nothing_else(kind, given, what, panes, waits, policy):
    app = App("refusing")
    how = {"allowed_lateness_ms": LATENESS_MS, "panes": panes, "on_error": policy}
    how |= {"late_trigger": after_count(2)} if waits else {}
    found = app.input("in", value=int, key=str).window(KINDS[kind](), refusing(what, {3, 7, 12}), **how)
    told = found.map(lambda pane: (pane.key, pane.start, pane.end, pane.value))
    if panes == "retracting":
        revisions = told.revisions().map(lambda one: [one.value, one.withdrawn])
        revisions.send_to(app.output("out", value=list))
        below = told.map(lambda pane: pane[3]).window(tumbling(days=1), collect(), op_id="below")
        below.map(lambda pane: [pane.key, sorted(pane.value)]).send_to(app.output("below", value=list))
    else:
        told.map(lambda pane: [pane, False]).send_to(app.output("out", value=list))
    results = run(app, {"in": [Record(value, key, at) for value, key, at in given]})
    net = Counter()
    for pane, withdrawn in results["out"]:
        net[tuple(pane)] += -1 if withdrawn else 1
        assert net[tuple(pane)] >= 0, "nothing is withdrawn that was not told"
    if panes == "retracting":
        for key, values in results["below"]:
            assert values == sorted(value for (own, *_, value) in net.elements() if own == key)


@pytest.mark.parametrize("kind", KINDS)
def test_a_late_value_that_can_not_be_added_is_left_out_alone(kind):
    app = App("leaving-out")
    stream = app.input("in", value=int, key=str)
    how = {"allowed_lateness_ms": LATENESS_MS, "late_trigger": after_count(1), "on_error": dead_letter("bad")}
    panes = stream.window(KINDS[kind](), refusing("add", {7}), **how)
    panes.map(lambda pane: pane.value).send_to(app.output("out"))
    given = [Record(value, "a", at) for value, at in [(1, 1), (2, 42), (7, 3), (2, 43), (4, 5), (5, 95)]]
    results = run(app, {"in": given})
    assert len(results["bad"]) == 1
    assert results["out"] == run(app, {"in": [one for one in given if one.value != 7]})["out"]


def test_the_pane_before_one_that_failed_is_withdrawn_when_the_next_comes():
    app = App("refusing")
    how = {"allowed_lateness_ms": 50, "panes": "retracting", "on_error": skip}
    stream = app.input("in", value=int, key=str)
    panes = stream.window(tumbling(milliseconds=10), refusing("finish", {2}), **how)
    told = panes.revisions().map(lambda one: [one.value.value, one.value.index, one.withdrawn])
    told.send_to(app.output("out", value=list))
    given = [(1, 1), (9, 20), (1, 2), (9, 30), (1, 3), (9, 40)]
    found = run(app, {"in": [Record(value, "a", at) for value, at in given]})["out"]
    assert [row for row in found if row[0] < 9] == [[1, 0, False], [1, 0, True], [3, 1, False]]
