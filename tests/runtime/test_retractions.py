"""Withdrawn panes end to end: what lies below comes to what it would have come to, had only the last ones been made."""

import asyncio
from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samza_dsl import (
    App,
    Options,
    Pane,
    Revision,
    after_count,
    aggregate,
    collect,
    count,
    dead_letter,
    fold,
    hopping,
    maximum,
    mean,
    produce,
    session,
    total,
    tumbling,
)
from samza_dsl.testing import Record, run
from tests.operators.test_triggered import LATENESS, TRIGGERS, WINDOWS, Case
from tests.runtime.test_event_time import crashes, numbers_in
from tests.runtime.test_triggers import expected, final
from tests.scale import examples
from tests.simulation.crash import fill, memory, rows_of, run_through
from tests.strategies import Event, records, stored


@dataclass(frozen=True)
class Halves:
    """Two windows that begin with the half of a second."""

    def assign(self, key, timestamp, value):
        start = timestamp - timestamp % 500
        return [(start, start + 500), (start, start + 700)]


BELOW = {"tumbling": tumbling(milliseconds=50), "hopping": hopping(milliseconds=60, every_ms=25), "own": Halves()}
LONG_MS = 100_000
"""Longer than anything is late."""
CASES = st.builds(
    Case,
    st.sampled_from([*WINDOWS]),
    st.just([]),
    st.just([]),
    st.none() | TRIGGERS,
    LATENESS,
    st.just("retracting"),
    st.just("all"),
    st.none(),
)


def panes_of(app, case, disorder, together=True):
    """Return the retracting windows, told as what a row of JSON can say."""
    how = {"timestamp": lambda e: e.at, "max_disorder_ms": disorder, "partitioned_by_key": True}
    stream = app.input("in", value=Event, key=lambda e: e.key, **how)
    if together:
        stream = stream.partition_by(lambda event: event.key, partitions=3, op_id="together")
    how = {"allowed_lateness_ms": case.lateness, "panes": case.panes, "early": case.early}
    panes = stream.window(WINDOWS[case.windows], collect(), late=dead_letter("late"), op_id="panes", **how)
    return panes.map(lambda p: [p.key, p.start, p.end, sorted(event.at for event in p.value)])


def told(case, parts, disorder):
    """Return the last panes."""
    panes, _ = expected(case, parts, disorder, True)
    return [[*window, values] for window, values in final(panes, case).items()]


@given(
    CASES,
    records(1),
    records(1),
    crashes,
    st.integers(0, 60),
    st.sampled_from((1, 3, 2_000)),
    st.sampled_from([*BELOW]),
    st.sampled_from(("accumulating", "retracting", "final")),
    st.sampled_from(("all", "branches", "several", "some")),
)
@settings(max_examples=examples(20, 5_000))
def test_windows_below_come_to_what_the_last_panes_say(
    case, one, other, crashes, disorder, batch_records, below, panes, between
):
    def app():
        app = App("retracting", Options(batch_records=batch_records, max_uncommitted=4))
        stream = panes_of(app, case, disorder)
        if between == "branches":
            arms = stream.branch(lambda row: "short" if len(row[3]) < 2 else "long", into=("short", "long"))
            stream = arms["short"].merge(arms["long"].map(list))
        elif between == "several":
            stream = stream.flat_map(lambda row: [row, row])
        elif between == "some":
            stream = stream.filter(lambda row: row[1] % 3)
        parity = stream.partition_by(lambda row: len(row[3]) % 2, partitions=2, op_id="parity")
        how = {"allowed_lateness_ms": LONG_MS, "late": dead_letter("late-panes")}
        how |= {"emit": "final"} if panes == "final" else {"panes": panes}
        added = parity.window(BELOW[below], collect(), **how)
        changed = added.map(lambda p: [p.key, p.start, p.end, p.index, sorted(p.value)]).revisions()
        changed.map(lambda c: [c.withdrawn, *c.value]).send_to(app.output("out", value=list))
        return app

    parts = [*one, *other]
    environment = memory()
    fill(environment, "in", stored(parts))
    run_through(app, environment, crashes)
    windows = defaultdict(list)
    for row in told(case, parts, disorder):
        at = row[2] - 1
        for window in Halves().assign(None, at, None) if below == "own" else BELOW[below].cell(at).windows:
            if between != "some" or row[1] % 3:
                windows[len(row[3]) % 2, *window] += [row, row] if between == "several" else [row]
    found, net = {}, Counter()
    for withdrawn, *window, index, value in sorted(numbers_in(environment), key=lambda row: row[4]):
        net[*window, index] += -1 if withdrawn else 1
        if not withdrawn:
            assert panes != "final" or (value and tuple(window) not in found), "there is one pane, of what is left"
            found[tuple(window)] = index, value
    if panes == "retracting":
        assert set(net.values()) <= {0, 1}, "what is withdrawn was there, once"
        found = {window: (index, value) for window, (index, value) in found.items() if net[*window, index]}
    last = {window: value for window, (_, value) in found.items() if value}
    assert last == {window: sorted(rows) for window, rows in windows.items()}
    assert sum(len(part) for part in rows_of(environment, "late-panes")) == 0
    assert environment.state_stats("retracting") == {}, "nothing is kept once all inputs have ended"


@given(CASES, records(2), crashes, st.integers(0, 60), st.sampled_from((1, 3, 2_000)), st.booleans())
@settings(max_examples=examples(30, 5_000))
def test_changes_come_to_the_last_panes(case, parts, crashes, disorder, batch_records, together):
    def app():
        app = App("changes", Options(batch_records=batch_records, max_uncommitted=4))
        changes = panes_of(app, case, disorder, together).revisions()
        changes.send_to(app.output("out", value=Revision[list]))
        return app

    environment = memory()
    fill(environment, "in", stored(parts))
    run_through(app, environment, crashes)
    net = Counter()
    for row in numbers_in(environment):
        net[repr(row["value"])] += -1 if row.get("withdrawn") else 1
    if together:
        assert +net == Counter(map(repr, told(case, parts, disorder)))
    assert set(net.values()) <= {0, 1}, "what is withdrawn was there, once"


LATE = [Record(1, "a", 1), Record(2, "a", 15), Record(4, "a", 2), Record(8, "a", 99)]


def sums_of(aggregation, **how):
    app = App("sums")
    visits = app.input("visits", value=int, key=str, max_disorder_ms=0)
    by_ten = visits.window(tumbling(milliseconds=10), total(lambda n: n), allowed_lateness_ms=50, panes="retracting")
    values = by_ten.map(lambda pane: pane.value)
    panes = values.window(tumbling(milliseconds=50), aggregation, op_id="below", **how)
    panes.send_to(app.output("sums", value=Pane))
    return app


def added(folded, value):
    return [*folded, value]


def removed(folded, value):
    folded.remove(value)
    return folded


@pytest.mark.parametrize(
    ("aggregation", "result"),
    [
        (total(lambda n: n), 7),
        (count(), 2),
        (mean(lambda n: n), 3.5),
        (aggregate(dict, n=count(), all=total(lambda n: n)), {"n": 2, "all": 7}),
        (fold(list, added, remove=removed, finish=sorted), [2, 5]),
    ],
)
def test_aggregations_below_take_away_what_is_withdrawn(aggregation, result):
    (first, *_) = run(sums_of(aggregation), {"visits": LATE})["sums"]
    assert (first.start, first.value) == (0, result)


def test_what_is_withdrawn_and_what_never_is_lie_in_one_stream_of_the_log(tmp_path):
    app = App("merged", Options(max_uncommitted=1))
    visits = app.input("visits", value=int, key=str, max_disorder_ms=0)
    panes = visits.window(tumbling(milliseconds=10), total(lambda n: n), allowed_lateness_ms=50, panes="retracting")
    both = visits.filter(lambda n: n != 4).map(lambda n: n * 100).merge(panes.map(lambda pane: pane.value))
    added = both.partition_by(lambda n: "all", partitions=1).window(tumbling(milliseconds=50), total(lambda n: n))
    added.map(lambda pane: [pane.start, pane.value]).send_to(app.output("sums", value=list))
    times = {record.value: datetime.fromtimestamp(record.timestamp / 1_000, UTC) for record in LATE}
    produce("visits", [*times], data=tmp_path, key=lambda n: "a", timestamp=times.__getitem__, value=int, end=True)
    seen = []

    async def main():
        async with app.running(tmp_path) as run:
            await run.ended()
            seen.extend(run.received("sums"))

    asyncio.run(main())
    assert seen == [[0, 307], [50, 808]]


def pipeline(build):
    app = App("refusing")
    panes = app.input("visits", value=int, key=str).window(
        tumbling(milliseconds=10), count(), allowed_lateness_ms=5, panes="retracting"
    )
    build(app, panes.map(lambda pane: pane.value))
    return app.plan()


async def doubled(value):
    return [value, value]


REFUSED = {
    "an output": (lambda app, s: s.send_to(app.output("out", value=int)), "it can't take them back"),
    "an async operator": (lambda app, s: s.async_flat_map(doubled).sink(print), "it can't take them back"),
    "a process": (lambda app, s: s.process(lambda v, c: [v]).sink(print), "it can't take them back"),
    "a scan": (lambda app, s: s.scan(lambda a, v: v).sink(print), "it can't take them back"),
    "a sink": (lambda app, s: s.sink(print), "it can't take them back"),
    "a join": (
        lambda app, s: s.join(s.map(abs), lambda a, b: a, within=(0, 1)).revisions().sink(print),
        "it can't take them back",
    ),
    "an as-of join": (
        lambda app, s: s.join_asof(s.map(abs), lambda a, b: a).revisions().sink(print),
        "it can't take them back",
    ),
    "a maximum": (
        lambda app, s: s.window(tumbling(hours=1), maximum(lambda v: v)).sink(print),
        "maximum can't take a value away",
    ),
    "a fold": (
        lambda app, s: s.window(tumbling(hours=1), fold(int, lambda a, v: a + v)).sink(print),
        "fold can't take a value away",
    ),
    "sessions": (
        lambda app, s: s.window(session(hours=1), count()).sink(print),
        "windows that have become one can't become shorter",
    ),
    "discarding panes": (
        lambda app, s: s.window(tumbling(hours=1), count(), panes="discarding").sink(print),
        "discarding panes have only what is new",
    ),
}


@pytest.mark.parametrize(("build", "wrong"), REFUSED.values(), ids=REFUSED)
def test_what_can_not_take_it_back_is_refused(build, wrong):
    with pytest.raises(Exception, match=f"panes that may be withdrawn come here, and {wrong}.*revisions"):
        pipeline(build)


def test_a_plan_without_retractions_carries_no_signs():
    app = App("plain")
    visits = app.input("visits", value=int, key=str)
    visits.window(tumbling(hours=1), count(), early=after_count(2)).map(lambda pane: pane.value).sink(print)
    assert not any(spec.reads_signs for spec in app.graph().specs.values())
    assert "sign" not in app.plan().source("stage-1")
