"""Windows by the clock end to end: they fire as time goes on, also after a crash, and at the end of the inputs."""

import pytest

from samza_dsl import (
    App,
    PlanError,
    after_count,
    after_delay,
    any_of,
    by_clock,
    collect,
    count,
    dead_letter,
    session,
    sliding,
    testing,
    tumbling,
)


def ticking(windows=None, **how):
    app = App("ticking")
    values = app.input("in", value=int, key=lambda n: n % 2, timestamp=lambda n: n)
    panes = values.window(windows or by_clock(tumbling(seconds=5)), collect(), op_id="ticks", **how)
    panes.map(lambda pane: (pane.key, pane.end - pane.start, pane.value)).send_to(app.output("out", value=list))
    return app


def test_a_window_fires_when_the_clock_reaches_its_end_whatever_event_time_is():
    with testing.running(ticking()) as run:
        run.send("in", 1, 1_000_000, 3)
        assert run.read("out") == []
        assert sorted((pane.key, pane.value) for pane in run.panes("ticks")) == [(0, [1_000_000]), (1, [1, 3])]
        run.advance_time(seconds=6)
        assert sorted(run.read("out")) == [[0, 5_000, [1_000_000]], [1, 5_000, [1, 3]]]
        run.advance_watermark("in", 10**9)
        run.send("in", 5)
        run.crash()
        run.restart()
        run.advance_time(seconds=6)
        assert run.read("out") == [[1, 5_000, [5]]]


def test_a_session_ends_when_nothing_was_read_for_the_gap():
    with testing.running(ticking(by_clock(session(seconds=5)))) as run:
        for n in (1, 3, 5):
            run.send("in", n)
            run.advance_time(seconds=4)
        assert run.read("out") == []
        run.advance_time(seconds=2)
        ((key, length_ms, values),) = run.read("out")
        assert (key, values) == (1, [1, 3, 5]) and 13_000 <= length_ms < 13_500


def test_at_the_end_of_the_inputs_all_fires():
    out = testing.run(ticking(), {"in": [1, 2, 3]})["out"]
    assert sorted(out) == [[0, 5_000, [2]], [1, 5_000, [1, 3]]]


def test_a_pane_is_in_time_for_a_window_below():
    app = App("below")
    values = app.input("in", value=int, key=lambda n: 0, timestamp=lambda n: 10**14)
    panes = values.window(by_clock(tumbling(seconds=5)), count())
    below = panes.map(lambda pane: pane.value).window(tumbling(seconds=1), collect(), late=dead_letter("late"))
    below.map(lambda pane: pane.value).send_to(app.output("out", value=list))
    with testing.running(app) as run:
        run.send("in", 1, 2)
        run.advance_time(seconds=6)
        run.end()
        assert run.read("out") == [[2]]
        assert run.dead_letters("late") == []


def test_windows_by_the_clock_are_shown_early_by_count_and_by_the_clock():
    early = any_of(after_count(2), after_delay(seconds=2, by_clock=True))
    with testing.running(ticking(by_clock(tumbling(minutes=1)), early=early)) as run:
        run.send("in", 1, 3, 5)
        assert run.read("out") == [[1, 60_000, [1, 3]]]
        run.crash()
        run.restart()
        run.advance_time(seconds=3)
        assert run.read("out") == [[1, 60_000, [1, 3, 5]]]
        run.send("in", 7)
        run.end()
        assert run.read("out") == [[1, 60_000, [1, 3, 5, 7]]]


@pytest.mark.parametrize("at", [3, 10**14])
def test_what_is_withdrawn_is_taken_away_below(at):
    app = App("below")
    values = app.input("in", value=int, key=lambda n: 0, timestamp=lambda n: at)
    panes = values.window(by_clock(tumbling(seconds=5)), count(), early=after_count(2), panes="retracting")
    below = panes.map(lambda pane: pane.value).window(tumbling(seconds=1), collect(), late=dead_letter("late"))
    below.map(lambda pane: pane.value).send_to(app.output("out", value=list))
    with testing.running(app) as run:
        run.send("in", 1)
        run.send("in", 2, 3)
        run.crash()
        run.restart()
        run.advance_time(seconds=6)
        run.end()
        assert run.read("out") == [[3]]
        assert run.dead_letters("late") == []


def test_what_is_final_says_so():
    with testing.running(ticking(emit="final")) as run:
        run.send("in", 1)
        assert [pane.timing for pane in run.panes("ticks")] == ["final"]


def test_late_values_can_not_be_allowed():
    with pytest.raises(PlanError, match="nothing is late at windows by the clock"):
        ticking(allowed_lateness_ms=1)


@pytest.mark.parametrize("windows", [7, tumbling, by_clock(tumbling(hours=1))])
def test_what_has_no_time_is_refused(windows):
    with pytest.raises(
        ValueError,
        match=r"not tumbling, hopping, daily, sliding or sessions; write instead: by_clock\(tumbling\(seconds=5\)\)",
    ):
        by_clock(windows)


def test_the_plan_says_that_it_goes_by_the_clock():
    app = ticking()
    assert app.graph().specs["ticks"].wall_clock
    assert "tumbling 0:00:05 by the clock: collect" in app.plan().operator("ticks").label


def test_what_is_due_as_a_run_begins_fires_when_its_tables_are_read():
    app = App("naming")
    names = app.table("names", key=str, value=str, broadcast=True)
    panes = app.input("in", value=int, key=lambda n: n % 2).window(
        by_clock(tumbling(seconds=5)), count(), op_id="ticks"
    )
    named = panes.join(names, lambda pane, name: [name, pane.value], on=lambda pane: str(pane.key))
    named.send_to(app.output("out", value=list))
    with testing.running(app, {"names": [("0", "even"), ("1", "odd")]}) as run:
        run.send("in", 1, 2, 3)
        run.crash()
        run.advance_time(seconds=6)
        run.restart()
        assert sorted(run.read("out")) == [["even", 1], ["odd", 2]]


@pytest.mark.ci
def test_sliding_windows_look_back_from_each_time_by_the_clock():
    with testing.running(ticking(by_clock(sliding(seconds=5)))) as run:
        for n in (1, 3, 5):
            run.send("in", n)
            run.advance_time(seconds=4)
        assert run.read("out") == [[1, 5_000, [1]], [1, 5_000, [1, 3]], [1, 5_000, [3, 5]]]
    with pytest.raises(PlanError, match="a sliding window ends with the value that makes it"):
        ticking(by_clock(sliding(seconds=5)), early=after_count(2))
