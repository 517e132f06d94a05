"""What waits for event time to go on by a ms comes when streams are idle, and nothing comes that would move it."""

from dataclasses import dataclass
from itertools import product

import pytest

from samza_dsl import (
    App,
    after_count,
    collect,
    daily,
    dead_letter,
    hopping,
    session,
    sliding,
    testing,
    tumbling,
    windows_by,
)

SECOND = 1_000
TUMBLING = tumbling(seconds=10)
WINDOWS = [TUMBLING, hopping(seconds=20, every_ms=10_000), session(seconds=2), sliding(seconds=5)]


def windowed(windows=TUMBLING, repartitions=False, pace=None, **how):
    app = App("quiet")
    stream = app.input("in", value=int, key=lambda n: 0, timestamp=lambda n: n * SECOND, **(pace or {}))
    if repartitions:
        stream = stream.partition_by(lambda n: n % 2, partitions=2, op_id="between")
    panes = stream.window(
        windows, collect(), allowed_lateness_ms=60_000, late=dead_letter("late"), op_id="panes", **how
    )
    if how.get("panes") == "retracting":
        panes = panes.revisions().filter(lambda one: not one.withdrawn).map(lambda one: one.value)
    panes.map(lambda pane: (pane.timing, sorted(pane.value))).send_to(app.output("out", value=tuple))
    return app


@dataclass(frozen=True)
class Lasting:
    """Windows of an hour from each value on."""

    merges: bool

    def assign(self, key, timestamp, value):
        return [(timestamp, timestamp + 3_600 * SECOND)]


def by_kind(app):
    rows = app.table("rows", value=int, key=str, broadcast=True)
    return windows_by(rows, lambda row: tumbling(hours=10), on=str)


HOW = [{}, {"panes": "discarding"}, {"panes": "retracting"}]


@pytest.mark.parametrize(
    ("windows", "how"), [*product(WINDOWS, HOW), *((one, {"early": after_count(50)}) for one in WINDOWS[:-1])]
)
@pytest.mark.parametrize("repartitions", [False, True])
def test_a_late_pane_comes_when_the_stream_is_idle(windows, repartitions, how):
    with testing.running(windowed(windows, repartitions, **how)) as run:
        run.send("in", 2, 40, 4)
        before = run.read("out")
        assert not any(timing == "late" for timing, _ in before)
        run.advance_time(seconds=40)
        found = run.read("out")
        assert any(timing == "late" and 4 in values for timing, values in found), (before, found)
        run.advance_time(minutes=10)
        assert run.read("out") == [], "event time goes on once"
        assert run.dead_letters("late") == []


@pytest.mark.parametrize("windows", [daily(), Lasting(merges=False), Lasting(merges=True), by_kind])
def test_it_comes_of_windows_of_all_kinds(windows):
    app = App("kinds")
    scale = 3_600 * SECOND
    stream = app.input("in", value=int, key=str, timestamp=lambda n: n * scale)
    of_kind = windows(app) if windows is by_kind else windows
    panes = stream.window(of_kind, collect(), allowed_lateness_ms=1_000 * scale)
    panes.map(lambda pane: (pane.timing, sorted(pane.value))).send_to(app.output("out", value=tuple))
    with testing.running(app) as run:
        run.send("in", 2, 40, 4, key="a")
        run.read("out")
        run.advance_time(seconds=40)
        (late,) = run.read("out")
        assert late[0] == "late"
        assert 4 in late[1]


@pytest.mark.parametrize("number", [1, 2])
def test_it_comes_when_its_trigger_says_so_and_event_time_stands_still(number):
    with testing.running(windowed(late_trigger=after_count(2))) as run:
        run.send("in", 2, 40, *[4, 5][:number])
        run.read("out")
        run.advance_time(seconds=40)
        assert run.read("out") == ([("late", [2, 4, 5])] if number == 2 else [])


def test_it_comes_of_a_later_stage_that_hears_that_others_are_idle():
    app = App("twice")
    stream = app.input("in", value=int, key=lambda n: 0, timestamp=lambda n: n * SECOND, partitions=2)
    panes = stream.partition_by(lambda n: 0, partitions=1, op_id="first").window(
        TUMBLING, collect(), allowed_lateness_ms=60_000, op_id="panes"
    )
    again = panes.partition_by(lambda pane: 0, partitions=1, op_id="second").window(
        tumbling(seconds=20), collect(), allowed_lateness_ms=60_000, op_id="wholes"
    )
    again.map(lambda pane: (pane.timing, [one.value for one in pane.value])).send_to(app.output("out", value=tuple))
    with testing.running(app) as run:
        run.send("in", 2, 40, 4, partition=0)
        run.send("in", 3, 41, partition=1)
        run.advance_time(seconds=90)
        found = run.read("out")
        assert found[-1][0] == "late"
        assert any(4 in value for value in found[-1][1]), found


@pytest.mark.parametrize("late", [True, False])
def test_what_is_exactly_at_the_watermark_is_late_only_where_something_was_fired_without_it(late):
    with testing.running(windowed(session(seconds=2))) as run:
        run.send("in", 2, 40, *([4] if late else []))
        run.advance_time(seconds=40)
        run.send("in", 40, 80)
        run.end()
        panes = [pane for pane in run.read("out") if 40 in pane[1]]
        assert panes == ([("on_time", [40]), ("late", [40, 40])] if late else [("on_time", [40, 40])])


def test_it_does_not_come_where_an_input_is_never_idle():
    with testing.running(windowed(pace={"idle_after_ms": None})) as run:
        run.send("in", 2, 40, 4)
        run.read("out")
        run.advance_time(minutes=10)
        assert run.read("out") == []


def test_it_comes_once_across_a_crash():
    with testing.running(windowed(repartitions=True)) as run:
        run.send("in", 2, 40, 4)
        run.advance_time(seconds=40)
        assert [timing for timing, _ in run.read("out")] == ["on_time", "late"]
        run.crash()
        run.restart()
        run.advance_time(seconds=90)
        assert run.read("out") == []
        run.send("in", 3, 80)
        run.end()
        assert sorted(values for _, values in run.read("out")) == [[3], [40], [80]], "of each key, in any order of keys"


def test_a_join_by_windows_has_its_late_pane():
    app = App("joined")
    how = {"value": int, "key": lambda n: 0, "timestamp": lambda n: n * SECOND}
    left, right = app.input("left", **how), app.input("right", **how)
    joined = left.join_windows(right, TUMBLING, lambda a, b: (a, b), allowed_lateness_ms=60_000)
    joined.map(lambda pane: pane.value).send_to(app.output("out", value=tuple))
    with testing.running(app) as run:
        run.send("left", 2, 40)
        run.send("right", 3, 41, 4)
        run.read("out")
        run.advance_time(seconds=90)
        assert run.read("out") == [([2, 3], [2, 4])]
