"""Windows of one's own end to end, and those that the rows of a table say: batches, late records and crashes."""

from collections import defaultdict
from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.partition_by import murmur2
from runtime.encoding.serdes import Tagged
from samza_dsl import (
    App,
    Options,
    PlanError,
    Revision,
    after_count,
    collect,
    count,
    daily,
    dead_letter,
    fold,
    tumbling,
    windows_by,
)
from samza_dsl.testing import Record, run, running
from tests.runtime.test_event_time import crashes, numbers_in
from tests.runtime.test_late_panes import stamped
from tests.scale import examples
from tests.simulation.crash import fill, memory, rows_of, run_through
from tests.strategies import Event, records, stored

LENGTHS = {"k0": 20, "k1": 50, "k2": 80, "k3": 30}
"""The length of each key's windows; of the others there is no row, and it is 40 ms."""


@dataclass(frozen=True)
class Lasting:
    """From each value on, as long as it says; what overlaps is one."""

    merges = True

    def assign(self, key: str, timestamp: int, event: Event) -> list[tuple[int, int]]:
        return [(timestamp, timestamp + 1 + event.number % 30)]


def by_row(parts, disorder, lateness, repartitioned):
    """Return the panes of windows as long as each key's row says, and how many records are late."""
    panes, late = defaultdict(lambda: defaultdict(list)), 0
    for number, event, stamp in stamped(parts, disorder):
        size = LENGTHS.get(event.key, 40)
        end = event.at - event.at % size + size
        if stamp < end + lateness:
            place = None if repartitioned else number, event.key, end - size, end
            panes[place][max(stamp, end - 1)].append(event.number)
        else:
            late += 1
    found = []
    for (_, *window), by_stamp in panes.items():
        numbers = []
        for index, stamp in enumerate(sorted(by_stamp)):
            numbers += by_stamp[stamp]
            found.append([*window, index, sorted(numbers)])
    return sorted(found, key=repr), late


@given(
    records(2),
    crashes,
    st.integers(0, 60),
    st.sampled_from((0, 30)),
    st.sampled_from((1, 3, 2_000)),
    st.sampled_from(("the key's partition", "broadcast", "behind a partition_by")),
)
@settings(max_examples=examples(80, 20_000))
def test_a_table_says_the_length_of_each_key(parts, crashes, disorder, lateness, batch_records, layout):
    repartition = layout == "behind a partition_by"

    def app():
        app = App("lengths", Options(batch_records=batch_records, max_uncommitted=4))
        how = {"timestamp": lambda e: e.at, "max_disorder_ms": disorder, "partitioned_by_key": True}
        stream = app.input("in", value=Event, key=lambda e: e.key, **how)
        lengths = app.table("lengths", key=str, value=int, broadcast=not repartition)
        on = None if repartition else lambda event: event.key
        if repartition:
            stream = stream.partition_by(lambda event: event.key, key_type=str, partitions=2)
        windows = windows_by(lengths, lambda length: tumbling(milliseconds=length or 40), on=on)
        panes = stream.window(windows, collect(), late=dead_letter("late"), allowed_lateness_ms=lateness)
        told = panes.map(lambda p: [p.key, p.start, p.end, p.index, sorted(event.number for event in p.value)])
        told.send_to(app.output("out", value=list))
        return app

    environment = memory()
    fill(environment, "in", stored(parts))
    fill(environment, "lengths", rows(2))
    run_through(app, environment, crashes)
    found, late = by_row(parts, disorder, lateness, repartition)
    assert sorted(numbers_in(environment), key=repr) == found
    assert sum(len(part) for part in rows_of(environment, "late")) == late
    stores = {store for store, _ in environment.state_stats("lengths")}
    assert stores <= {"lengths"}, "no window is kept once all inputs have ended"


def rows(partitions):
    parts = [[] for _ in range(partitions)]
    for key, length in LENGTHS.items():
        parts[murmur2(key.encode()) % partitions].append((key.encode(), msgspec.json.encode(length), 0))
    return parts


def merged(parts, disorder, repartitioned):
    """Return the hulls of what overlaps, and how many records are late."""
    spans, late = defaultdict(list), 0
    for number, event, stamp in stamped(parts, disorder):
        if event.at < stamp:
            late += 1
        else:
            (span,) = Lasting().assign(event.key, event.at, event)
            spans[None if repartitioned else number, event.key].append((*span, event.number))
    found = []
    for (_, key), of_key in spans.items():
        hulls = []
        for start, end, number in sorted(of_key):
            if hulls and start < hulls[-1][2]:
                hulls[-1][2] = max(hulls[-1][2], end)
                hulls[-1][3] = sorted([*hulls[-1][3], number])
            else:
                hulls.append([key, start, end, [number]])
        found += hulls
    return sorted(found, key=repr), late


@given(records(2), crashes, st.integers(0, 60), st.sampled_from((1, 3, 2_000)), st.booleans())
@settings(max_examples=examples(80, 20_000))
def test_windows_that_overlap_become_one(parts, crashes, disorder, batch_records, repartition):
    def app():
        app = App("lasting", Options(batch_records=batch_records, max_uncommitted=4))
        how = {"timestamp": lambda e: e.at, "max_disorder_ms": disorder, "partitioned_by_key": True}
        stream = app.input("in", value=Event, key=lambda e: e.key, **how)
        if repartition:
            stream = stream.partition_by(lambda event: event.key, partitions=3)
        panes = stream.window(Lasting(), collect(), late=dead_letter("late"))
        told = panes.map(lambda p: [p.key, p.start, p.end, sorted(event.number for event in p.value)])
        told.send_to(app.output("out", value=list))
        return app

    environment = memory()
    fill(environment, "in", stored(parts))
    run_through(app, environment, crashes)
    found, late = merged(parts, disorder, repartition)
    assert sorted(numbers_in(environment), key=repr) == found
    assert sum(len(part) for part in rows_of(environment, "late")) == late
    assert environment.state_stats("lasting") == {}, "nothing is kept once all inputs have ended"


def digests(**how):
    app = App("digests")
    zones = app.table("zones", key=str, value=str)
    news = app.input("news", key=str, value=str)
    panes = news.window(windows_by(zones, lambda zone: daily(zone or "UTC")), collect(), op_id="digests", **how)
    told = panes.map(lambda pane: (pane.key, pane.start, pane.value))
    if how.get("panes") == "retracting":
        told.revisions().send_to(app.output("changes", value=Revision[list]))
    else:
        told.send_to(app.output("out", value=list))
    return app


def test_a_changed_row_counts_from_the_next_value_on():
    hour = 3_600_000
    with running(digests()) as test:
        test.send("zones", Record("Asia/Tokyo", "ann", 0))
        test.send("news", Record("a", "ann", 16 * hour), Record("b", "bob", 16 * hour))
        test.send("zones", Record("UTC", "ann", 0))
        test.crash()
        test.restart()
        test.send("news", Record("c", "ann", 17 * hour))
        panes = [(pane.key, pane.start // hour, pane.value) for pane in test.panes("digests")]
        assert sorted(panes) == [("ann", 0, ["c"]), ("ann", 15, ["a"]), ("bob", 0, ["b"])]


def test_what_is_late_comes_as_it_was_sent():
    app = digests(late=dead_letter("late"))
    with running(app) as test:
        test.send("news", Record("a", "ann", 200_000_000), Record("b", "ann", 0))
        [letter] = test.dead_letters("late")
        assert (letter.stream, letter.offset, Tagged().decode(letter.value)) == ("news", 1, "b")


def test_a_value_whose_windows_fail_meets_the_policy():
    @dataclass(frozen=True)
    class Picky:
        def assign(self, key: str, timestamp: int, value: int) -> list[tuple[int, int]]:
            return [(0, 60 // value)]

    app = App("picky")
    panes = app.input("in", key=str, value=int).window(Picky(), collect(), on_error=dead_letter("bad"))
    panes.map(lambda pane: (pane.end, pane.value)).send_to(app.output("out", value=list))
    results = run(app, {"in": [Record(1, "k", 0), Record(0, "k", 0), Record(2, "k", 0), Record(1, "k", 0)]})
    assert results["out"] == [[30, [2]], [60, [1, 1]]]
    assert len(results["bad"]) == 1


class Unsaid:
    def assign(self, key: str, timestamp: int, value: int) -> list[tuple[int, int]]:
        return []


@dataclass(frozen=True)
class Beam:
    def assign(self, key: str, timestamp: int, value: int) -> list[tuple[int, int]]:
        return []

    def merge(self, windows: list[tuple[int, int]]) -> None: ...


@dataclass(frozen=True)
class Short:
    def assign(self, timestamp: int) -> list[tuple[int, int]]:
        return []


@dataclass(frozen=True)
class Waiting:
    async def assign(self, key: str, timestamp: int, value: int) -> list[tuple[int, int]]:
        return []


@pytest.mark.parametrize(
    ("windows", "message"),
    [
        (Unsaid(), r"a Unsaid that does not say what it is, .*write instead: @dataclass\(frozen=True\) above class"),
        (Beam(), r"has a merge\(...\), .*write instead: merges = True in class Beam"),
        (Short(), r"window\(Short\(...\)\), its assign\(...\), calls .* with 3 arguments"),
        (Waiting(), r"got the async function"),
        (Lasting, r"which is not a kind of window"),
        (7, r"got 7, which is not a kind of window; write instead: tumbling\(hours=1\), session"),
    ],
)
def test_windows_that_can_not_be_used_are_refused(windows, message):
    stream = App("wrong").input("in", key=str, value=int)
    with pytest.raises(PlanError, match=message):
        stream.window(windows, count())


def test_what_can_not_be_had_of_windows_that_merge_is_refused():
    stream = App("wrong").input("in", key=str, value=Event)
    with pytest.raises(PlanError, match=r"fold does not say how two of its results do"):
        stream.window(Lasting(), fold(int, lambda total, event: total + 1))


@pytest.mark.parametrize("how", [{"table": 7}, {"choose": 7}, {"on": 7}])
def test_what_says_no_windows_by_rows_is_refused(how):
    table = App("wrong").table("rows", key=str, value=int, broadcast=True)
    said = {"table": table, "choose": lambda row: tumbling(hours=1), "on": lambda value: value, **how}
    with pytest.raises(ValueError, match=r"windows_by\(.* write instead: "):
        windows_by(said["table"], said["choose"], on=said["on"])


def test_windows_that_a_table_says_have_early_late_and_withdrawn_panes():
    how = {"early": after_count(2), "panes": "retracting", "allowed_lateness_ms": 10**9}
    day = 24 * 3_600_000

    def told():
        found = [(one.withdrawn, *one.value) for one in run.read("changes")]
        return [(withdrawn, key, start // 3_600_000, values) for withdrawn, key, start, values in found]

    with running(digests(**how)) as run:
        run.send("zones", Record("Asia/Tokyo", "ann", 0))
        run.send("news", Record("a", "ann", day), Record("b", "bob", day), Record("c", "ann", day + 1))
        assert told() == [(False, "ann", 15, ["a", "c"])]
        run.crash()
        run.restart()
        run.send("news", Record("d", "ann", 3 * day))
        kept = [(False, "bob", 24, ["b"]), (True, "ann", 15, ["a", "c"]), (False, "ann", 15, ["a", "c"])]
        assert sorted(told(), key=repr) == sorted(kept, key=repr)
        run.send("news", Record("e", "ann", day))
        run.end()
        late = [(True, "ann", 15, ["a", "c"]), (False, "ann", 15, ["a", "c", "e"])]
        assert told() == [*late, (False, "ann", 63, ["d"])]


def test_windows_that_a_table_says_have_one_pane_when_nothing_late_can_come():
    hour = 3_600_000
    with running(digests(emit="final", allowed_lateness_ms=5 * hour)) as run:
        run.send("news", Record("a", "ann", 1), Record("b", "ann", 28 * hour), Record("c", "ann", 2))
        assert run.read("out") == []
        run.send("news", Record("d", "ann", 29 * hour), Record("e", "ann", 3))
        assert run.read("out") == [["ann", 0, ["a", "c"]]]
    with running(digests(emit="final", allowed_lateness_ms=5 * hour)) as run:
        run.send("news", Record("a", "ann", 1), Record("b", "ann", 2))
        assert [(pane.value, pane.timing) for pane in run.panes("digests")] == [(["a", "b"], "final")]


def test_the_drawing_says_the_windows():
    assert "windows by zones: collect" in digests().plan().operator("digests").label
