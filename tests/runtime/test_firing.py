"""What fires meets its operator's policy as records do: a timer or a pane leaves all of its effects or none."""

from contextlib import closing
from unittest.mock import patch

import msgspec
import pytest

from operators.core.base import Batch
from operators.core.policies import dead_letter, retry, skip
from runtime.encoding.serdes import Tagged
from runtime.ports.streams import END, Append, StreamConfig
from runtime.systems.log.environment import LogEnvironment
from samza_dsl import App, Options, count, fold, testing, tumbling
from tests.simulation.crash import CrashPoint, fill, memory, rows_of, run_through


def timers(policy, fails):
    """Set a timer for every number; those for which `fails` raise."""

    def on_message(number, context):
        context.set_timer(number)

    def on_timer(at_ms, context):
        context.state = at_ms
        if fails(at_ms):
            raise ZeroDivisionError(f"timer {at_ms}")
        return [at_ms]

    app = App("firing")
    numbers = app.input("numbers", value=int, key=lambda n: n % 2, timestamp=lambda n: n)
    numbers.process(on_message, on_timer=on_timer, on_error=policy, op_id="timed").send_to(app.output("out", value=int))
    return app


def test_a_timer_that_fails_is_skipped_alone():
    app = timers(skip, lambda at_ms: at_ms % 10 == 3)
    assert testing.run(app, {"numbers": list(range(500))})["out"] == [n for n in range(500) if n % 10 != 3]


def test_a_timer_that_fails_is_dead_lettered_with_its_time_and_key():
    results = testing.run(timers(dead_letter("bad"), lambda at_ms: at_ms == 2), {"numbers": [1, 2, 3]})
    assert results["out"] == [1, 3]
    assert [Tagged().decode(data) for data in results["bad"]] == [2]


def test_a_timer_is_retried():
    tries = []

    def fails(at_ms):
        tries.append(at_ms)
        return at_ms == 2 and tries.count(2) <= 4

    assert testing.run(timers(retry(3, then=skip), fails), {"numbers": [1, 2, 3]})["out"] == [1, 2, 3]


def test_a_pane_whose_finish_fails_is_skipped_alone():
    def finish(numbers):
        if 7 in numbers:
            raise ValueError("seven")
        return sum(numbers)

    app = App("firing")
    numbers = app.input("numbers", value=int, key=lambda n: n % 3, timestamp=lambda n: n)
    sums = numbers.window(
        tumbling(milliseconds=10),
        fold(tuple, lambda held, n: (*held, n), lambda a, b: a + b, finish),
        on_error=dead_letter("bad"),
    )
    sums.map(lambda pane: (pane.start, pane.key, pane.value)).send_to(app.output("out"))
    results = testing.run(app, {"numbers": list(range(30))})
    groups = [
        (start, key, [n for n in range(start, start + 10) if n % 3 == key]) for start in (0, 10, 20) for key in range(3)
    ]
    assert sorted(results["out"]) == [(start, key, sum(held)) for start, key, held in groups if 7 not in held]
    assert [Tagged().decode(data) for data in results["bad"]] == [(0, 10, (1, 4, 7))]


def counting(max_uncommitted):
    """Count per key, name the key by a table, and count the panes of a window again in the next stage."""
    app = App("much", Options(max_uncommitted=max_uncommitted))
    numbers = app.input("numbers", value=int, key=lambda n: n, timestamp=lambda n: n % 20, max_disorder_ms=20)
    names = app.table("names", value=list, key=lambda row: row[0], broadcast=True)
    panes = numbers.window(tumbling(milliseconds=10), count(), op_id="tens")
    named = panes.join(names, lambda pane, row: [row[1], pane.start], on=lambda pane: pane.key % 2, op_id="named")
    named.send_to(app.output("named", value=list))
    again = named.partition_by(lambda row: row[0], partitions=2, op_id="by-name")
    again.window(tumbling(milliseconds=10), count(), op_id="again").map(
        lambda pane: [pane.key, pane.start, pane.value]
    ).send_to(app.output("counts", value=list))
    return app


def much(environment, number):
    fill(environment, "numbers", [[(None, b"%d" % n, 0) for n in range(number)]])
    fill(environment, "names", [[(b"%d" % n, msgspec.json.encode([n, name]), 0) for n, name in enumerate(["a", "b"])]])


def values(environment, stream):
    return [msgspec.json.decode(value) for part in rows_of(environment, stream) for _, value, _ in part]


COUNTS = [["a", 0, 250], ["a", 10, 250], ["b", 0, 250], ["b", 10, 250]]


def test_a_firing_of_much_takes_several_commits():
    environment, commits = memory(), []
    much(environment, 1_000)
    with patch("runtime.task.lane.MOST_FIRED", 40):
        run_through(lambda: counting(max_uncommitted=100), environment, on_commit=commits.append)
    most = max(sum(len(append.batch) for append in commit.appends if append.stream == "named") for commit in commits)
    assert most <= 100 + 40
    assert len(values(environment, "named")) == 1_000
    assert sorted(values(environment, "counts")) == COUNTS


def test_what_is_fired_is_taken_in_by_later_stages_before_a_commit_cuts_the_firing():
    app = App("cut", Options(max_uncommitted=100))
    numbers = app.input("numbers", value=int, key=lambda n: n, timestamp=lambda n: n % 10, max_disorder_ms=10)
    counts = numbers.window(tumbling(milliseconds=10), count())
    again = counts.partition_by(lambda pane: pane.key % 2, key_type=int, partitions=1, op_id="odd")
    totals = again.window(tumbling(milliseconds=10), count())
    totals.map(lambda pane: [pane.key, pane.value]).send_to(app.output("totals", value=list))
    environment, commits = memory(), []
    fill(environment, "numbers", [[(None, b"%d" % n, 0) for n in range(1_000)]])
    with patch("runtime.task.lane.MOST_FIRED", 40):
        run_through(lambda: app, environment, on_commit=commits.append)
    assert len(commits) > 10, "the firing was cut"
    assert not any(append.batch.values for one in commits for append in one.appends if append.stream == "cut-odd")
    assert sorted(values(environment, "totals")) == [[0, 500], [1, 500]]


@pytest.mark.parametrize("partitions", [1, 4])
def test_a_later_stage_in_which_something_is_due_as_well_takes_in_what_is_fired(partitions):
    app = App("both", Options(max_uncommitted=2_000))
    numbers = app.input("numbers", value=int, timestamp=lambda n: n // 100)
    each = numbers.partition_by(lambda n: n, key_type=int, value=int, partitions=partitions, op_id="each")
    counts = each.window(tumbling(milliseconds=10), count())
    again = counts.partition_by(lambda pane: pane.start, key_type=int, partitions=partitions, op_id="again")
    totals = again.window(tumbling(milliseconds=10), count())
    totals.map(lambda pane: [pane.key, pane.value]).send_to(app.output("totals", value=list))
    environment, commits = memory(), []
    fill(environment, "numbers", [[(None, b"%d" % n, 0) for n in range(20_000)]])
    with patch("runtime.task.lane.MOST_FIRED", 200), patch("runtime.task.task.LONGEST_MS", -1):
        run_through(lambda: app, environment, on_commit=commits.append)
    assert len(commits) > 5, "firings were cut"
    between = [a for one in commits for a in one.appends if a.stream == "both-again" and a.batch.values]
    assert not between, "of what was fired nothing is encoded, stored and read again"
    assert sorted(values(environment, "totals")) == [[start, 1_000] for start in range(0, 200, 10)]


def test_what_becomes_due_in_a_stage_that_a_firing_has_passed_by_fires_behind_it():
    app = App("passed", Options(batch_records=50))
    numbers = app.input("numbers", value=int, key=lambda n: n, timestamp=lambda n: n)
    others = app.input("others", key=int, value=int, timestamp=lambda n: n)
    # It reads an input beside what was fired, so that event time goes on in it while the windows below fire.
    by_hundred = numbers.partition_by(lambda n: n // 100, key_type=int, value=int, partitions=1, op_id="hundreds")
    met = by_hundred.join(others, lambda n, other: [n, other], within=(0, 0), how="left")
    met.send_to(app.output("met", value=list))
    by_number = numbers.partition_by(lambda n: n, key_type=int, value=int, partitions=1, op_id="each")
    counts = by_number.window(tumbling(milliseconds=500), count())
    counts.map(lambda pane: pane.key).send_to(app.output("counts", value=int))
    environment = memory()
    fill(environment, "numbers", [[(None, b"%d" % n, 0) for n in range(500)]])
    fill(environment, "others", [[(b"-1", b"%d" % (n // 10), 0) for n in range(5_000)]])
    with patch("runtime.task.lane.MOST_FIRED", 40), patch("runtime.task.task.LONGEST_MS", -1):
        run_through(lambda: app, environment)
    assert sorted(values(environment, "counts")) == [*range(500)]
    assert sorted(values(environment, "met")) == [[n, None] for n in range(500)]


@pytest.mark.parametrize("when", ["before_commit", "after_commit"])
@pytest.mark.parametrize("number", [2, 5, 9, 12, 15, 17])
def test_what_a_crash_leaves_of_a_firing_fires_first_with_its_tables(when, number):
    environment = memory()
    much(environment, 1_000)
    with patch("runtime.task.lane.MOST_FIRED", 40):
        died = run_through(lambda: counting(max_uncommitted=100), environment, [CrashPoint(when, number)])
    assert died == 1
    assert sorted(values(environment, "named")) == sorted([n, m] for n in "ab" for m in (0, 10) for _ in range(250))
    assert sorted(values(environment, "counts")) == COUNTS


def test_a_window_of_more_keys_than_are_held_fires_in_parts(tmp_path):
    with closing(LogEnvironment(tmp_path, sync=False)) as log:
        log.create_stream("numbers", StreamConfig())
        rows = [b"%d" % (n % 5_000) for n in range(15_000)]
        log.append([Append("numbers", 0, Batch(rows, timestamps=[1] * len(rows)), END)])
        app = App("large", Options(max_uncommitted=1_000, batch_records=1_000))
        panes = app.input("numbers", value=int, key=lambda n: n).window(tumbling(seconds=1), count(), op_id="large")
        panes.map(lambda pane: [pane.key, pane.value]).send_to(app.output("counts", value=list))
        with patch("runtime.task.lane.MOST_FIRED", 300), patch("runtime.assembly.task_builder.MOST_HELD", 700):
            run = app.run(log)
        assert run.metrics().commits > 15
        assert sorted(values(log, "counts")) == [[n, 3] for n in range(5_000)]
        assert log.state_stats("large") == {}
