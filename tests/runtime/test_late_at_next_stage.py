"""What one stage makes of late records comes to the same at the next one, however its records came."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Struct

from samza_dsl import App, Options, after_count, collect, count, hopping, session, skip, sliding, total, tumbling
from samza_dsl.testing import Record, run, unordered
from samza_dsl.testing.process import VirtualProcess

KEYS = "abc"
BEHIND_MS = 5


class Row(Struct, frozen=True):
    """What a key has at a time."""

    at: int
    number: int


def asks(row, context):
    """Ask for a call at a time that has come already, where the row is late, and at one that has not."""
    context.state = (context.state or 0) + row.number
    context.set_timer(row.at + 7)
    context.set_timer(row.at + 20)
    return [context.state]


def called(at_ms, context):
    if at_ms % 3 == 0:
        context.set_timer(at_ms - 4)  # before its own time
        if at_ms % 9:
            context.set_timer(at_ms + 2)
    return [f"at {at_ms}: {context.state}"]


FIRST = {
    "timers": lambda rows: rows.process(asks, on_timer=called),
    "timers of what expires": lambda rows: rows.process(asks, on_timer=called, ttl_ms=15),
    "scan": lambda rows: rows.scan(lambda sum, row: sum + row.number, init=int),
    "tumbling": lambda rows: rows.window(tumbling(milliseconds=20), total(number), allowed_lateness_ms=30),
    "early": lambda rows: rows.window(
        tumbling(milliseconds=20), total(number), early=after_count(2), allowed_lateness_ms=30, panes="discarding"
    ),
    "hopping": lambda rows: rows.window(hopping(milliseconds=30, every_ms=10), collect()),
    "session": lambda rows: rows.window(session(milliseconds=12), collect(), allowed_lateness_ms=40),
    "sliding": lambda rows: rows.window(sliding(milliseconds=20), collect(), allowed_lateness_ms=40),
}


def number(row):
    return row.number


def pipeline(first):
    app = App("late", Options(commit_interval_ms=20))
    rows = app.input("rows", key=str, value=Row, timestamp=lambda row: row.at, max_disorder_ms=BEHIND_MS)
    made = FIRST[first](rows).partition_by(lambda value: repr(value)[1:3], key_type=str, op_id="by-kind")
    panes = made.window(session(milliseconds=9), count(), op_id="sessions")
    panes.map(lambda pane: [pane.key, pane.start, pane.end, pane.value]).send_to(app.output("panes"))
    return app


@st.composite
def recorded(draw):
    """Draw records of which some are late, and after how many of them time goes on."""
    now, records = 0, []
    for _ in range(draw(st.integers(3, 30))):
        now += draw(st.sampled_from((0, 1, 3, 10)))
        at = max(now - draw(st.integers(0, BEHIND_MS)) - draw(st.sampled_from((0, 0, 0, 13, 40))), 0)
        records.append(Record(Row(at, draw(st.integers(0, 20))), draw(st.sampled_from(KEYS))))
    cuts = draw(st.lists(st.tuples(st.integers(1, 9), st.sampled_from((0, 0.005, 0.05, 0.3))), min_size=1))
    return records, cuts


def as_they_came(app, records, cuts):
    """Return what is written where records come some at a time, and time goes on between."""
    process = VirtualProcess(app, {}, streams=["rows"])
    try:
        process.start()
        while records:
            (many, seconds), *rest = cuts
            process.streams.append("rows", records[:many], 0)
            process.proceed(seconds)
            records, cuts = records[many:], [*rest, cuts[0]]
        process.streams.end("rows")
        process.finish()
        return {"panes": [record.value for record in process.records("panes")]}
    finally:
        process.close()


def rows_of(*told):
    return [Record(Row(at, number), "a") for at, number in told]


@pytest.mark.parametrize("first", FIRST)
@given(recorded())
@example((rows_of((0, 8), (13, 11), (0, 11), (20, 15), (23, 14), (0, 12)), [(1, 0.3)]))
def test_what_becomes_of_late_records_at_the_next_stage_does_not_depend_on_when_they_came(first, drawn):
    records, cuts = drawn
    at_once = run(pipeline(first), {"rows": records}, None)
    assert unordered(as_they_came(pipeline(first), records, cuts)) == unordered({"panes": at_once["panes"]})


def test_what_a_timer_raises_that_is_due_as_it_is_set_counts_for_the_message():
    def asks(row, context):
        context.state = [*(context.state or []), row.number]
        context.set_timer(row.at)
        return context.state

    def called(at_ms, context):
        if 2 in context.state:
            raise ValueError("no two")
        return ["called"]

    app = App("late")
    rows = app.input("rows", key=str, value=Row, timestamp=lambda row: row.at)
    rows.process(asks, on_timer=called, on_error=skip, op_id="ask").send_to(app.output("told"))
    told = run(app, {"rows": rows_of((50, 1), (10, 2), (20, 3))}, None)["told"]
    assert told == [1, "called", 1, 3, "called"]  # nothing of the row with a two
