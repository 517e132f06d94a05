"""Session windows end to end: what is one session does not depend on batches, partitions, order or crashes."""

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samza_dsl import App, Options, PlanError, aggregate, collect, count, dead_letter, fold, session
from samza_dsl.testing import Record, running
from tests.runtime.test_event_time import crashes, numbers_in
from tests.runtime.test_late_panes import stamped
from tests.scale import examples
from tests.simulation.crash import fill, memory, rows_of, run_through
from tests.strategies import Event, records, stored

GAP_MS = 20


def expected(parts, disorder, repartitioned):
    """Return the sessions of what is in time, and how many records are late."""
    in_time, late = defaultdict(list), 0
    for number, event, stamp in stamped(parts, disorder):
        if event.at < stamp:
            late += 1
        else:
            in_time[None if repartitioned else number, event.key].append(event)
    found = []
    for (_, key), events in in_time.items():
        held = []
        for event in sorted(events, key=lambda event: event.at):
            if held and event.at - held[-1].at >= GAP_MS:
                found.append([key, held[0].at, held[-1].at + GAP_MS, sorted(one.number for one in held)])
                held = []
            held.append(event)
        found.append([key, held[0].at, held[-1].at + GAP_MS, sorted(one.number for one in held)])
    return sorted(found, key=repr), late


@given(records(2), crashes, st.integers(0, 60), st.sampled_from((1, 3, 2_000)), st.booleans())
@settings(max_examples=examples(80, 20_000))
def test_sessions_are_those_of_what_is_in_time(parts, crashes, disorder, batch_records, repartition):
    def app():
        app = App("sessions", Options(batch_records=batch_records, max_uncommitted=4))
        how = {"timestamp": lambda e: e.at, "max_disorder_ms": disorder, "partitioned_by_key": True}
        stream = app.input("in", value=Event, key=lambda e: e.key, **how)
        if repartition:
            stream = stream.partition_by(lambda event: event.key, partitions=3)
        panes = stream.window(session(milliseconds=GAP_MS), collect(), late=dead_letter("late"))
        told = panes.map(lambda p: [p.key, p.start, p.end, sorted(event.number for event in p.value)])
        told.send_to(app.output("out", value=list))
        return app

    environment = memory()
    fill(environment, "in", stored(parts))
    run_through(app, environment, crashes)
    found, late = expected(parts, disorder, repartition)
    assert sorted(numbers_in(environment), key=repr) == found
    assert sum(len(part) for part in rows_of(environment, "late")) == late
    assert environment.state_stats("sessions") == {}, "nothing is open once all inputs have ended"


def visiting(window=None, **how):
    app = App("visiting")
    visits = app.input("visits", value=str, key=str)
    panes = visits.window(window or session(minutes=30), count(), op_id="by-visitor", **how)
    panes.map(lambda pane: (pane.key, pane.start, pane.end, pane.value)).send_to(app.output("sessions", value=list))
    return app


def test_the_open_sessions_of_a_run_can_be_looked_at():
    with running(visiting()) as run:
        run.send("visits", Record("a", "ann", 0), Record("b", "ann", 60_000))
        assert [(pane.key, pane.start, pane.value) for pane in run.panes("by-visitor")] == [("ann", 0, 2)]


@pytest.mark.parametrize("several", [False, True])
def test_results_that_can_not_become_one_are_refused(several):
    visits = App("visiting").input("visits", value=str, key=str)
    folded = fold(str, lambda text, more: text + more)
    with pytest.raises(PlanError, match=r"sessions that overlap become one, and .*fold does not say how"):
        visits.window(session(minutes=30), aggregate(dict, n=count(), text=folded) if several else folded)


def test_the_drawing_says_the_gap():
    assert "sessions with gaps of 0:30:00" in visiting().plan().operator("by-visitor").label
