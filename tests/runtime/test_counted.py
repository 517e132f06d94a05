"""Windows by count end to end: slices of each key's history, whatever the batches and crashes, and what is below."""

from collections import Counter, defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samza_dsl import (
    App,
    Options,
    PlanError,
    after_delay,
    collect,
    count,
    counted,
    dead_letter,
    total,
    tumbling,
    whole,
)
from samza_dsl.testing import Record, run, running
from tests.operators.test_count_window import SHAPES, Case, shown
from tests.operators.test_triggered import PANES, TRIGGERS
from tests.runtime.test_event_time import crashes, numbers_in
from tests.runtime.test_late_panes import stamped
from tests.scale import examples
from tests.simulation.crash import fill, memory, rows_of, run_through
from tests.strategies import Event, records, stored

BELOW_MS = 50
WINDOWS = st.sampled_from((counted(1), counted(3), counted(4, every=2), counted(5, every=3), whole()))


def expected(parts, disorder, windows):
    """Return the windows with their largest time and stamp."""
    came = defaultdict(list)
    for number, event, stamp in stamped(parts, disorder):
        came[number, event.key].append((event, stamp))
    for (_, key), events in came.items():
        number = windows.number or len(events)
        for start in range(0, len(events), windows.every or number):
            slice_ = events[start : start + number]
            times, stamps = [event.at for event, _ in slice_], [stamp for _, stamp in slice_]
            yield (key, min(times), max(times) + 1, tuple(event.number for event, _ in slice_)), max(stamps)


@given(
    records(2),
    WINDOWS,
    crashes,
    st.integers(0, 60),
    st.sampled_from((1, 3, 2_000)),
    st.booleans(),
    st.sampled_from(("window", "window behind a partition_by")),
    st.sampled_from(("lmdb", "memory")),
)
@settings(max_examples=examples(50, 20_000))
def test_windows_are_slices_and_never_late_below_for_having_waited(
    parts, windows, crashes, disorder, batch_records, repartition, below, store
):
    def app():
        app = App("counted", Options(batch_records=batch_records, max_uncommitted=4))
        how = {"timestamp": lambda e: e.at, "max_disorder_ms": disorder, "partitioned_by_key": True}
        stream = app.input("in", value=Event, key=lambda e: e.key, **how)
        if repartition:
            stream = stream.partition_by(lambda event: event.key, partitions=3)
        panes = stream.window(windows, collect(), store=store)
        told = panes.map(lambda p: [p.key, p.start, p.end, [event.number for event in p.value]])
        told.send_to(app.output("out", value=list))
        if below != "window":
            panes = panes.partition_by(lambda pane: pane.key, partitions=2)
        times = panes.map(lambda pane: pane.end - 1)
        fired = times.window(tumbling(milliseconds=BELOW_MS), collect(), late=dead_letter("late"))
        fired.map(lambda p: [p.start, p.value]).send_to(app.output("below", value=list))
        return app

    environment = memory()
    fill(environment, "in", stored(parts))
    run_through(app, environment, crashes if store == "lmdb" else ())
    found = [*expected(parts, disorder, windows)]
    assert Counter((*one, tuple(numbers)) for *one, numbers in numbers_in(environment)) == Counter(
        one for one, _ in found
    )
    in_time = Counter(end - 1 for (_, _, end, _), stamp in found if (end - 1) // BELOW_MS * BELOW_MS + BELOW_MS > stamp)
    assert Counter(at for _, times in numbers_in(environment, "below") for at in times) == in_time
    assert sum(len(part) for part in rows_of(environment, "late")) == len(found) - in_time.total()
    assert environment.state_stats("counted") == {}, "nothing is kept once all inputs have ended"


def batches(windows=None, **how):
    app = App("batches")
    panes = app.input("in", value=int, key=str).window(windows or counted(2), collect(), op_id="pairs", **how)
    panes.map(lambda pane: (pane.key, pane.start, pane.end, pane.value)).send_to(app.output("out", value=list))
    return app


def test_a_window_fires_with_its_last_value_and_goes_on_after_a_crash():
    with running(batches()) as run:
        run.send("in", Record(1, "a", 10), Record(2, "b", 5), Record(3, "a", 8), Record(4, "a", 9))
        assert run.read("out") == [["a", 8, 11, [1, 3]]]
        assert [(pane.key, pane.value) for pane in run.panes("pairs")] == [("b", [2]), ("a", [4])]
        run.crash()
        run.restart()
        run.send("in", Record(5, "b", 7))
        assert run.read("out") == [["b", 5, 8, [2, 5]]]
        run.end()
        assert run.read("out") == [["a", 9, 10, [4]]]


@given(records(2), SHAPES, TRIGGERS, PANES, crashes, st.integers(0, 60), st.sampled_from((1, 3, 2_000)))
@settings(max_examples=examples(80, 10_000))
def test_windows_are_shown_early_whatever_the_batches_and_crashes(
    parts, shape, early, panes, crashes, disorder, batch_records
):
    case = Case([], [], *shape, early, panes)

    def app():
        app = App("shown", Options(batch_records=batch_records, max_uncommitted=4))
        how = {"timestamp": lambda e: e.at, "max_disorder_ms": disorder, "partitioned_by_key": True}
        stream = app.input("in", value=Event, key=lambda e: e.key, **how)
        windows = whole() if case.number is None else counted(case.number, case.every)
        found = stream.window(windows, collect(), early=early, panes=panes)
        told = found.map(lambda p: [p.key, p.start, p.end, [e.at for e in p.value], p.index, p.timing]).revisions()
        told.map(lambda one: [*one.value, -1 if one.withdrawn else 1]).send_to(app.output("out", value=list))
        return app

    environment = memory()
    fill(environment, "in", stored(parts))
    run_through(app, environment, crashes)
    came = [((part, event.key), event.at, stamp) for part, event, stamp in stamped(parts, disorder)]
    expected = Counter()
    for (((_, key), *pane), _, sign), number in shown(case, came).items():
        expected[key, *pane, sign] += number
    found = Counter((*one[:3], tuple(one[3]), *one[4:]) for one in numbers_in(environment))
    assert found == expected
    assert environment.state_stats("shown") == {}


def test_panes_wait_for_event_time_also_after_a_crash():
    with running(batches(whole(), early=after_delay(milliseconds=10))) as run:
        run.send("in", Record(1, "a", 10), Record(2, "b", 15))
        run.crash()
        run.restart()
        run.advance_watermark("in", 20)
        assert run.read("out") == [["a", 10, 11, [1]]]
        run.advance_watermark("in", 40)
        assert run.read("out") == [["b", 15, 16, [2]]]


def test_an_early_pane_comes_by_the_clock_also_after_a_crash_and_none_at_the_end():
    with running(batches(counted(3, every=2), early=after_delay(seconds=5, by_clock=True))) as run:
        run.send("in", Record(1, "a", 10))
        run.advance_time(seconds=4)
        run.send("in", Record(2, "a", 10**9), Record(3, "b", 7))
        run.crash()
        run.restart()
        assert run.read("out") == []
        run.advance_time(seconds=1)
        assert run.read("out") == [["a", 10, 10**9 + 1, [1, 2]]]
        run.advance_time(seconds=4)
        assert run.read("out") == [["b", 7, 8, [3]]]
        run.send("in", Record(4, "a", 12))
        assert run.read("out") == [["a", 10, 10**9 + 1, [1, 2, 4]]]
        run.end()
        assert sorted(run.read("out")) == [["a", 12, 13, [4]], ["b", 7, 8, [3]]]


def test_windows_by_count_have_one_pane_that_says_so_where_it_is_final():
    with running(batches(emit="final")) as run:
        run.send("in", Record(1, "a", 10), Record(2, "a", 11), Record(3, "a", 12))
        assert run.read("out") == [["a", 10, 12, [1, 2]]]
        assert [(pane.value, pane.timing) for pane in run.panes("pairs")] == [([3], "final")]


def test_an_early_pane_is_in_time_below_and_is_withdrawn_there():
    app = App("withdrawn")
    how = {"early": after_delay(seconds=5), "panes": "retracting"}
    panes = app.input("in", value=int, key=str).window(whole(), count(), **how)
    below = panes.map(lambda pane: pane.value).window(tumbling(seconds=1), total(lambda n: n), late=dead_letter("late"))
    below.map(lambda pane: (pane.start, pane.value)).send_to(app.output("out", value=list))
    with running(app) as run:
        run.send("in", Record(1, "a", 10), Record(2, "a", 20), Record(3, "a", 9_000), Record(4, "a", 20_000))
        assert run.read("out") == []
        run.end()
        assert run.read("out") == [[20_000, 4]]
        assert run.dead_letters("late") == []


def test_all_values_of_a_key_come_at_the_end():
    given = [Record(1, "a", 10), Record(2, "b", 5), Record(3, "a", 90)]
    assert sorted(run(batches(whole()), {"in": given})["out"]) == [["a", 10, 91, [1, 3]], ["b", 5, 6, [2]]]


def test_without_keys_all_values_are_counted_together():
    app = App("all")
    panes = app.input("in", value=int, timestamp=lambda n: n).window_all(counted(2), count())
    panes.map(lambda pane: (pane.key, pane.end, pane.value)).send_to(app.output("out", value=list))
    assert run(app, {"in": [0, 1, 4]})["out"] == [[None, 2, 2], [None, 5, 1]]


def test_late_values_can_not_be_allowed_where_nothing_is_late():
    with pytest.raises(PlanError, match=r"nothing is late at windows by count"):
        batches(allowed_lateness_ms=1)


@pytest.mark.parametrize(
    ("windows", "label"),
    [(counted(1_000), "1,000 values: "), (counted(9, every=3), "9 values every 3: "), (whole(), "all values: ")],
)
def test_the_drawing_says_how_many(windows, label):
    assert label in batches(windows).plan().operator("pairs").label
