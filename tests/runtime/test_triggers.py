"""Early and late panes end to end: no batch, crash or restart changes one, nor reading order what is final."""

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samza_dsl import (
    App,
    Options,
    Pane,
    PlanError,
    after_count,
    after_delay,
    all_of,
    any_of,
    collect,
    count,
    dead_letter,
    fold,
    session,
    skip,
    tumbling,
)
from samza_dsl.testing import Record, run, running
from tests.operators.test_triggered import CASES, FINAL, MERGING, TRIGGERS, WINDOWS, Case, histories
from tests.runtime.test_event_time import crashes, numbers_in
from tests.runtime.test_late_panes import stamped
from tests.scale import examples
from tests.simulation.crash import fill, memory, rows_of, run_through
from tests.strategies import Event, records, stored

SHOWN = ("start", "end", "timing", "index", "values", "sign")


def expected(case, parts, disorder, together):
    """Return the panes of the whole history, and how many records are too late; a task has a part, or all of them."""
    came = [
        ((None if together else part, event.key), event.at, stamp) for part, event, stamp in stamped(parts, disorder)
    ]
    found, dropped = histories(case, came)
    return [(key, pane) for ((_, key), _), history in found.items() for pane in history.run().told], dropped


def app_of(case, disorder, batch_records, together):
    app = App("triggers", Options(batch_records=batch_records, max_uncommitted=4))
    how = {"timestamp": lambda e: e.at, "max_disorder_ms": disorder, "partitioned_by_key": True}
    stream = app.input("in", value=Event, key=lambda e: e.key, **how)
    if together:
        stream = stream.partition_by(lambda event: event.key, partitions=3)
    how = {"allowed_lateness_ms": case.lateness, "panes": case.panes, "early": case.early, "emit": case.emit}
    how["late_trigger"] = case.again if case.lateness else None
    panes = stream.window(WINDOWS[case.windows], collect(), late=dead_letter("late"), **how)
    told = panes.map(lambda p: [p.key, p.start, p.end, p.timing, p.index, sorted(event.at for event in p.value)])
    changes = told.revisions().map(lambda change: [*change.value, -1 if change.withdrawn else 1])
    changes.send_to(app.output("out", value=list))
    return app


@given(
    st.booleans(),
    CASES | FINAL,
    records(2),
    crashes,
    st.integers(0, 60),
    st.sampled_from((1, 3, 2_000)),
)
@settings(max_examples=examples(50, 20_000))
def test_panes_are_those_of_the_whole_history(together, case, parts, crashes, disorder, batch_records):
    environment = memory()
    fill(environment, "in", stored(parts))
    run_through(lambda: app_of(case, disorder, batch_records, together), environment, crashes)
    panes, dropped = expected(case, parts, disorder, together)
    told = [[key, *(pane[name] for name in SHOWN)] for key, pane in panes]
    assert sorted(numbers_in(environment), key=repr) == sorted(told, key=repr)
    assert sum(len(part) for part in rows_of(environment, "late")) == dropped
    assert environment.state_stats("triggers") == {}, "nothing is kept once all inputs have ended"


@given(
    st.sampled_from([*WINDOWS]),
    TRIGGERS,
    st.sampled_from((0, 30, 500)),
    st.sampled_from(("accumulating", "discarding", "retracting")),
    records(1),
    records(1),
    crashes,
    st.integers(0, 60),
    st.sampled_from((1, 3, 2_000)),
)
@settings(max_examples=examples(40, 5_000))
def test_what_is_final_does_not_depend_on_how_sources_are_read(
    windows, early, lateness, accumulation, one, other, crashes, disorder, batch_records
):
    case, parts = Case(windows, [], [], early, lateness, accumulation), [*one, *other]
    environment = memory()
    fill(environment, "in", stored(parts))
    run_through(lambda: app_of(case, disorder, batch_records, True), environment, crashes)
    told = [(row[0], dict(zip(SHOWN, row[1:], strict=True))) for row in numbers_in(environment)]
    assert final(told, case) == final(expected(case, parts, disorder, True)[0], case)


def final(panes, case):
    """Return the last pane of each window, or what all its panes come to together; what has become one is in that."""
    found, panes = defaultdict(list), [(key, pane) for key, pane in panes if pane["sign"] == 1]
    for key, pane in panes:
        around = [one for at, one in panes if at == key and is_in(pane, one, case)]
        last = max(around, key=lambda one: (one["end"] - one["start"], one["index"]))
        if case.panes == "discarding" or last is pane:
            found[key, last["start"], last["end"]] += pane["values"]
    return {window: sorted(values) for window, values in found.items()}


def is_in(pane, other, case):
    """Whether a pane is of the same window as another one, or of what is in that by now."""
    if case.windows in MERGING:
        return other["start"] <= pane["start"] and pane["end"] <= other["end"]
    return (other["start"], other["end"]) == (pane["start"], pane["end"])


@given(
    st.sampled_from([*WINDOWS]),
    st.sampled_from((0, 30, 500)),
    records(2),
    crashes,
    st.integers(0, 60),
    st.sampled_from((1, 3, 2_000)),
    st.booleans(),
)
@settings(max_examples=examples(40, 5_000))
def test_what_waited_to_be_final_is_not_late_below(windows, lateness, parts, crashes, disorder, batch_records, between):
    def app():
        app = App("chained", Options(batch_records=batch_records, max_uncommitted=4))
        how = {"timestamp": lambda e: e.at, "max_disorder_ms": disorder, "partitioned_by_key": True}
        stream = app.input("in", value=Event, key=lambda e: e.key, **how).partition_by(lambda e: e.key, partitions=2)
        how = {"allowed_lateness_ms": lateness, "emit": "final"}
        panes = stream.window(WINDOWS[windows], count(), **how)
        if between:
            panes = panes.partition_by(lambda pane: pane.key, partitions=3)
        added = panes.window(tumbling(milliseconds=20), collect(), late=dead_letter("late-panes"), **how)
        told = added.map(lambda p: [p.key, p.start, sorted([pane.start, pane.end, pane.value] for pane in p.value)])
        told.send_to(app.output("out", value=list))
        return app

    environment = memory()
    fill(environment, "in", stored(parts))
    run_through(app, environment, crashes)
    panes, _ = expected(Case(windows, [], [], None, lateness, "accumulating", "final"), parts, disorder, True)
    found = defaultdict(list)
    for key, pane in panes:
        start = (pane["end"] - 1) // 20 * 20
        found[key, start].append([pane["start"], pane["end"], len(pane["values"])])
    assert sorted(numbers_in(environment)) == sorted([*place, sorted(inside)] for place, inside in found.items())
    assert rows_of(environment, "late-panes") in ([], [[]])


def test_who_fires_in_slices_hears_of_event_time_when_it_is_done():
    app = App("chained", Options(max_uncommitted=4))
    events = app.input("in", value=Event, key=lambda e: e.key, timestamp=lambda e: e.at, partitioned_by_key=True)
    panes = events.partition_by(lambda e: e.key, partitions=2).window(tumbling(milliseconds=20), count())
    again = panes.partition_by(lambda pane: pane.key, partitions=3).window(tumbling(milliseconds=20), collect())
    again.map(lambda p: [p.key, p.start, p.value[0].value]).send_to(app.output("out", value=list))
    environment = memory()
    times = [("k0", 0), ("k0", 0), ("k2", 16), ("k0", 31), ("k2", 21), *[("k0", 51)] * 12, ("k0", 60)]
    fill(environment, "in", stored([[], [Event(number, *one) for number, one in enumerate(times)]]))
    run_through(lambda: app, environment)
    of_k0 = [["k0", 0, 2], ["k0", 20, 1], ["k0", 40, 12], ["k0", 60, 1]]
    assert sorted(numbers_in(environment)) == [*of_k0, ["k2", 0, 1], ["k2", 20, 1]]


def counting(**how):
    app = App("counting")
    visits = app.input("visits", value=int, key=str, max_disorder_ms=0)
    panes = visits.window(how.pop("windows", tumbling(milliseconds=10)), count(), op_id="visits-counted", **how)
    if how.get("panes") == "retracting":
        panes = panes.revisions().map(lambda revision: revision.value)
    panes.send_to(app.output("counts", value=Pane[str, int]))
    return app


def test_late_values_wait_for_their_trigger_and_at_last_for_the_end_of_lateness():
    def told():
        return [(pane.value, pane.timing, pane.index) for pane in run.read("counts")]

    with running(counting(allowed_lateness_ms=100, late_trigger=after_count(2))) as run:
        run.send("visits", Record(1, "a", 1), Record(1, "a", 20))
        assert told() == [(1, "on_time", 0)]
        run.send("visits", Record(1, "a", 2), Record(1, "a", 21))
        assert told() == []
        run.send("visits", Record(1, "a", 3), Record(1, "a", 30))
        assert told() == [(3, "late", 1), (2, "on_time", 0)]
        run.send("visits", Record(1, "a", 4), Record(1, "a", 109))
        assert told() == [(1, "on_time", 0)]
        run.advance_watermark("visits", 110)
        assert told() == [(4, "late", 2), (1, "on_time", 0)]


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"late_trigger": 3}, r"window\(late_trigger=...\) got 3"),
        ({"late_trigger": after_count(3)}, "there are none of these"),
        ({"late_trigger": after_count(3), "allowed_lateness_ms": 5, "emit": "final"}, "there are none of these"),
        ({"late_trigger": after_delay(seconds=1, by_clock=True), "allowed_lateness_ms": 5}, "by the clock"),
    ],
)
def test_a_trigger_of_late_panes_that_there_are_not_is_refused(how, told):
    with pytest.raises(PlanError, match=told):
        counting(**how)


def test_an_early_pane_is_there_before_its_window_is_over():
    with running(counting(early=after_count(2))) as run:
        run.send("visits", Record(1, "a", 1), Record(1, "a", 2), Record(1, "a", 3))
        assert [(pane.value, pane.timing, pane.index) for pane in run.read("counts")] == [(2, "early", 0)]
        run.advance_watermark("visits", 10)
        assert [(pane.value, pane.timing, pane.index) for pane in run.read("counts")] == [(3, "on_time", 1)]


@pytest.mark.parametrize("early", [after_delay(seconds=5, by_clock=True), after_delay(milliseconds=1), after_count(2)])
def test_what_open_windows_hold_can_be_looked_at(early):
    with running(counting(early=early, panes="retracting")) as run:
        run.send("visits", Record(1, "a", 1), Record(1, "a", 2))
        assert [(pane.start, pane.value, pane.timing) for pane in run.panes("visits-counted")] == [(0, 2, "on_time")]


def test_an_early_pane_comes_by_the_clock_also_after_a_crash():
    with running(counting(early=after_delay(seconds=5, by_clock=True))) as run:
        run.send("visits", Record(1, "a", 1), Record(1, "a", 2))
        run.advance_time(seconds=4)
        assert run.read("counts") == []
        run.advance_time(seconds=1)
        assert [(pane.value, pane.timing) for pane in run.read("counts")] == [(2, "early")]
        run.send("visits", Record(1, "a", 3))
        run.advance_time(seconds=3)
        run.crash()
        run.restart()
        run.advance_time(seconds=1)
        assert run.read("counts") == []
        run.advance_time(seconds=1)
        assert [(pane.value, pane.timing, pane.index) for pane in run.read("counts")] == [(3, "early", 1)]
        run.end()
        assert [(pane.value, pane.timing, pane.index) for pane in run.read("counts")] == [(3, "on_time", 2)]


def test_a_pane_that_fails_on_time_is_dropped_alone_and_an_early_one_with_its_record():
    def finish(kept):
        if kept == 2:
            raise ValueError("two")
        return kept

    app = App("failing")
    visits = app.input("visits", value=int, key=str, max_disorder_ms=0)
    added = fold(int, lambda total, one: total + one, merge=lambda a, b: a + b, finish=finish)
    panes = visits.window(session(milliseconds=10), added, early=after_count(2), on_error=skip, allowed_lateness_ms=99)
    panes.map(lambda pane: (pane.key, pane.value, pane.timing)).send_to(app.output("sums", value=tuple))
    records = [Record(2, "a", 1), Record(1, "b", 1), Record(1, "b", 2), Record(2, "b", 3), Record(1, "a", 50)]
    assert sorted(run(app, {"visits": [*records, Record(1, "a", 2)]})["sums"]) == [
        ("a", 1, "on_time"),
        ("a", 3, "late"),
        ("b", 3, "early"),
        ("b", 3, "on_time"),
    ]


@pytest.mark.parametrize(
    ("early", "told"),
    [
        (after_count(5), "early after 5 values"),
        (any_of(after_count(5), after_delay(seconds=1)), "early after 5 values or 1000 ms of event time after a value"),
        (all_of(after_count(5).once(), after_count(9)), "early once after 5 values and after 9 values"),
    ],
)
def test_the_drawing_says_the_trigger(early, told):
    assert told in counting(early=early).plan().operator("visits-counted").label


@pytest.mark.parametrize("how", [{"panes": "discarding"}, {"panes": "retracting"}, {"emit": "final"}])
def test_the_drawing_says_what_panes_there_are(how):
    (said,) = how.values()
    assert counting(**how).plan().operator("visits-counted").label.endswith(f", {said}")


@pytest.mark.parametrize(
    ("make", "wrong"),
    [
        (lambda: counting(early=5), "got 5"),
        (lambda: counting(emit="last"), "emit='last' does not say which panes are emitted"),
        (lambda: counting(emit="final", early=after_count(1)), "one pane of each window.*leave out early="),
        (lambda: counting(emit="final", panes="discarding"), "one pane of each window.*leave out panes="),
        (lambda: after_count(0), r"after_count\(0\) is not a whole number of at least 1"),
        (lambda: after_count(True), r"after_count\(True\) is not a whole number"),
        (lambda: after_delay(), "after_delay of 0 ms is no delay"),
        (lambda: any_of(after_count(1)), r"any_of\(...\) got 1 triggers"),
        (lambda: all_of(after_count(1), 2), r"all_of\(...\) got 2, which is no trigger"),
    ],
)
def test_mistakes_are_told(make, wrong):
    with pytest.raises(Exception, match=wrong):
        make()
