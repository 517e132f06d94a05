"""Sliding windows end to end, against a look back over the history: disorder, late records, partitions and crashes."""

from collections import Counter, defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.state.time_buckets import RowsByTime
from samza_dsl import (
    App,
    Options,
    PlanError,
    after_count,
    collect,
    count,
    dead_letter,
    fold,
    maximum,
    sliding,
    tumbling,
)
from samza_dsl.testing import Record, run, running
from tests.runtime.test_event_time import crashes, numbers_in
from tests.runtime.test_late_panes import stamped
from tests.scale import examples
from tests.simulation.crash import fill, memory, rows_of, run_through
from tests.strategies import Event, records, stored

SIZE_MS, BELOW_MS = 40, 50


def expected(parts, disorder, repartitioned):
    """Return the windows of what is in time, and how many records are late."""
    in_time, late = defaultdict(list), 0
    for number, event, stamp in stamped(parts, disorder):
        if event.at < stamp:
            late += 1
        else:
            in_time[None if repartitioned else number, event.key].append(event)
    found = []
    for (_, key), events in in_time.items():
        for at in {event.at for event in events}:
            values = sorted(event.number for event in events if at - SIZE_MS < event.at <= at)
            found.append([key, at - SIZE_MS + 1, at + 1, values])
    return sorted(found, key=repr), late


@given(
    records(2),
    crashes,
    st.integers(0, 60),
    st.sampled_from((1, 3, 2_000)),
    st.booleans(),
    st.booleans(),
    st.sampled_from(("lmdb", "memory")),
)
@settings(max_examples=examples(80, 20_000))
def test_windows_are_those_of_what_is_in_time(parts, crashes, disorder, batch_records, repartition, folds, store):
    numbers = lambda event: (event.number,)  # noqa: E731
    values = maximum(numbers) if folds else collect()

    def app():
        app = App("sliding", Options(batch_records=batch_records, max_uncommitted=4))
        how = {"timestamp": lambda e: e.at, "max_disorder_ms": disorder, "partitioned_by_key": True}
        stream = app.input("in", value=Event, key=lambda e: e.key, **how)
        if repartition:
            stream = stream.partition_by(lambda event: event.key, partitions=3)
        panes = stream.window(sliding(milliseconds=SIZE_MS), values, late=dead_letter("late"), store=store)
        told = panes.map(lambda p: [p.key, p.start, p.end, p.value if folds else sorted(e.number for e in p.value)])
        told.send_to(app.output("out", value=list))
        below = panes.map(lambda p: p.end).window(
            tumbling(milliseconds=BELOW_MS), collect(), late=dead_letter("late-panes")
        )
        below.map(lambda p: [p.key, p.start, sorted(p.value)]).send_to(app.output("below", value=list))
        return app

    environment = memory()
    fill(environment, "in", stored(parts))
    run_through(app, environment, crashes if store == "lmdb" else ())
    found, late = expected(parts, disorder, repartition)
    assert sorted(numbers_in(environment), key=repr) == [
        [*window, [max(values)] if folds else values] for *window, values in found
    ]
    assert sum(len(part) for part in rows_of(environment, "late")) == late
    assert not any(rows_of(environment, "late-panes")), "a pane is never late below"
    assert sum(len(ends) for _, _, ends in numbers_in(environment, "below")) == len(found)
    assert environment.state_stats("sliding") == {}, "nothing is kept once all inputs have ended"


def rolling(**how):
    app = App("rolling")
    readings = app.input("readings", value=int, key=str)
    panes = readings.window(sliding(minutes=1), collect(), op_id="last-minute", **how)
    if how.get("panes") == "retracting":
        told = panes.revisions().map(lambda one: (one.value.key, one.value.end - 1, one.value.value, one.withdrawn))
    else:
        told = panes.map(lambda pane: (pane.key, pane.end - 1, pane.value))
    told.send_to(app.output("out", value=list))
    return app


def test_what_has_fired_is_there_for_the_next_window_after_a_crash():
    with running(rolling()) as run:
        run.send("readings", Record(1, "k", 1_000), Record(2, "k", 2_000))
        assert run.read("out") == [["k", 1_000, [1]]]
        [pane] = run.panes("last-minute")
        assert pane.value == [1, 2]
        run.crash()
        run.restart()
        run.send("readings", Record(3, "k", 61_000), Record(4, "k", 61_001))
        assert run.read("out") == [["k", 2_000, [1, 2]], ["k", 61_000, [2, 3]]]
        run.end()
        assert run.read("out") == [["k", 61_001, [2, 3, 4]]]


def test_without_keys_all_records_share_the_windows():
    app = App("all")
    panes = app.input("in", value=int, timestamp=lambda n: n).window_all(sliding(milliseconds=3), count())
    panes.map(lambda pane: (pane.key, pane.end, pane.value)).send_to(app.output("out", value=list))
    assert run(app, {"in": [0, 1, 1, 5]})["out"] == [[None, 1, 1], [None, 2, 3], [None, 6, 1]]


def test_a_value_that_fails_meets_the_policy_with_its_window():
    app = App("picky")
    readings = app.input("readings", value=int, key=str)
    panes = readings.window(sliding(milliseconds=10), maximum(lambda n: 1 // n), on_error=dead_letter("bad"))
    panes.map(lambda pane: (pane.end, pane.value)).send_to(app.output("out", value=list))
    given = [Record(1, "k", 1), Record(0, "k", 2), Record(1, "k", 3)]
    results = run(app, {"readings": given})
    assert results["out"] == [[2, 1], [4, 1]]
    assert len(results["bad"]) == 1


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"allowed_lateness_ms": 1, "late_trigger": after_count(2)}, "in all windows behind it, as it comes"),
        ({"early": after_count(2)}, "ends with the value that makes it.*write instead: no early=, or hopping"),
        ({"panes": "retracting"}, "has one pane where nothing late is allowed"),
    ],
)
def test_a_window_that_ends_with_its_last_value_has_no_panes_before_it(how, told):
    with pytest.raises(PlanError, match=told):
        rolling(**how)


def test_its_pane_may_say_that_it_is_final():
    with running(rolling(emit="final")) as run:
        run.send("readings", Record(1, "k", 1_000))
        assert [pane.timing for pane in run.panes("last-minute")] == ["final"]


def test_its_final_pane_waits_for_what_is_late():
    with running(rolling(emit="final", allowed_lateness_ms=5_000, late=dead_letter("late"))) as run:
        run.send("readings", Record(1, "k", 10_000), Record(2, "k", 14_000), Record(3, "k", 9_000))
        assert run.read("out") == []
        run.send("readings", Record(4, "k", 15_001), Record(5, "k", 10_000))
        assert run.read("out") == [["k", 9_000, [3]], ["k", 10_000, [3, 1]]]
        assert len(run.dead_letters("late")) == 1


def test_a_late_value_changes_the_windows_behind_it_after_a_crash_too():
    with running(rolling(allowed_lateness_ms=60_000, panes="retracting")) as run:
        run.send("readings", Record(1, "k", 10_000), Record(2, "k", 30_000), Record(3, "k", 80_000))
        assert run.read("out") == [["k", 10_000, [1], False], ["k", 30_000, [1, 2], False]]
        run.crash()
        run.restart()
        run.send("readings", Record(4, "k", 25_000), Record(5, "k", 19_999), Record(6, "k", 80_001))
        assert run.read("out") == [
            ["k", 25_000, [1, 4], False],
            ["k", 30_000, [1, 2], True],
            ["k", 30_000, [1, 4, 2], False],
            ["k", 80_000, [4, 2, 3], False],
        ]
        run.end()
        assert run.read("out") == [["k", 80_001, [4, 2, 3, 6], False]]


def no_more_than_a_hundred(held, value):
    if held + value > 100:
        raise ValueError("too much")
    return held + value


def test_a_late_pane_that_fails_is_left_out_and_what_was_told_is_still_withdrawn():
    app = App("limited")
    readings = app.input("readings", value=int, key=str)
    how = {"allowed_lateness_ms": 50, "panes": "retracting", "on_error": dead_letter("bad")}
    sums = readings.window(sliding(milliseconds=10), fold(int, no_more_than_a_hundred), **how)
    told = sums.map(lambda pane: (pane.end - 1, pane.value))
    told.revisions().map(lambda one: [*one.value, one.withdrawn]).send_to(app.output("out", value=list))
    below = told.window(tumbling(seconds=1), collect()).map(lambda pane: sorted(pane.value))
    below.send_to(app.output("below", value=list))
    given = [(0, 5), (95, 7), (0, 20), (10, 5), (0, 22), (1, 4), (0, 90)]
    results = run(app, {"readings": [Record(value, "k", at) for value, at in given]})
    net = Counter()
    for at, value, withdrawn in results["out"]:
        net[at, value] += -1 if withdrawn else 1
        assert net[at, value] >= 0, "nothing is withdrawn that was not told"
    assert sorted(net.elements()) == [(4, 1), (5, 11), (7, 95), (20, 0), (22, 0), (90, 0)]
    assert results["below"] == [[[at, value] for at, value in sorted(net.elements())]]
    assert len(results["bad"]) == 2, "at 7 the late ones would be too much"


def test_late_values_that_fail_by_themselves_are_in_no_pane():
    app = App("picky")
    readings = app.input("readings", value=int, key=str)
    how = {"allowed_lateness_ms": 50, "on_error": dead_letter("bad")}
    panes = readings.window(sliding(milliseconds=10), maximum(lambda n: 1 // n), **how)
    panes.map(lambda pane: (pane.end - 1, pane.value, pane.index)).send_to(app.output("out", value=list))
    given = [(1, 5), (1, 8), (1, 30), (0, 4), (1, 6), (1, 31)]
    results = run(app, {"readings": [Record(value, "k", at) for value, at in given]})
    assert results["out"] == [[5, 1, 0], [8, 1, 0], [6, 1, 0], [8, 1, 1], [30, 1, 0], [31, 1, 0]]
    assert len(results["bad"]) == 1


@pytest.mark.parametrize("hours", [1, 24])
def test_what_a_record_costs_does_not_grow_with_how_late_values_may_be(hours, monkeypatch):
    looks = []
    rows_of = RowsByTime.rows_of
    monkeypatch.setattr(RowsByTime, "rows_of", lambda *arguments: looks.append(1) or rows_of(*arguments))
    app = App("long")
    readings = app.input("readings", value=int, key=str)
    panes = readings.window(sliding(seconds=1), count(), allowed_lateness_ms=hours * 3_600_000)
    panes.map(lambda pane: pane.value).send_to(app.output("out"))
    run(app, {"readings": [Record(n, "k", n * 1_000) for n in range(300)]})
    assert len(looks) < 300 * 20


def test_what_late_values_may_change_is_kept_no_longer():
    with running(rolling(allowed_lateness_ms=30_000)) as run:
        held = []
        for begin in range(0, 6_000, 1_000):
            run.send(
                "readings", *(Record(n, "k", n * 1_000 - 20_000 * (n % 7 == 0)) for n in range(begin, begin + 1_000))
            )
            [(_, size_bytes)] = run._process.environment.state_stats("rolling").values()
            held.append(size_bytes)
        assert max(held) < 2 * held[0], "six times as much has come"


def test_the_drawing_says_the_size():
    assert "sliding 0:01:00: collect" in rolling().plan().operator("last-minute").label
