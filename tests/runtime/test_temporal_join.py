"""Temporal joins end to end, against a look through the whole history: disorder, late records, removals and crashes."""

from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.partition_by import murmur2
from runtime.encoding.serdes import Tagged
from samza_dsl import App, Options, dead_letter, testing
from samza_dsl.testing import CrashPoint as Point
from samza_dsl.testing import Record
from tests.runtime.histories import Event, check_results, crashing, stamped, stored, window_below
from tests.scale import examples
from tests.simulation.crash import fill, memory, run_through

HOW = ("inner", "left")


class Found(msgspec.Struct, frozen=True):
    """What a join makes of a message and a row, by number."""

    key: str
    message: int
    row: int | None


def found(message, row):
    return Found(message.key, message.number, row and row.number)


def place_of(key, partitions):
    return (murmur2(key.encode()) & 0x7FFFFFFF) % partitions


@st.composite
def histories(draw, partitions):
    """Draw messages by partition, in any of them, and versions, in those of their keys."""
    sides, number = [], 0
    for is_table in (False, True):
        parts, highest = [[] for _ in range(partitions)], [0] * partitions
        moves = st.tuples(
            st.sampled_from("abcd"), st.integers(0, 40), st.sampled_from((0, 0, 7, 25, 80)), st.integers(0, 5)
        )
        for key, step, back, chance in draw(st.lists(moves, max_size=20)):
            place = place_of(key, partitions) if is_table else number % partitions
            highest[place] += step
            at = max(highest[place] - back, 0)
            parts[place].append(Event(number, key, at, gone=is_table and chance == 0))
            number += 1
        sides.append(parts)
    return sides


def joined(messages, versions, how):
    """Return the results, each with its time and stamp: for each message a look through all versions."""
    results = Counter()
    for message, stamp in messages:
        rows = [row for row, _ in versions if row.key == message.key and row.at <= message.at]
        row = max(rows, key=lambda row: (row.at, row.number), default=None)
        row = None if row is None or row.gone else row
        if row is not None or how == "left":
            results[found(message, row), message.at, stamp] += 1
    return results


@pytest.mark.parametrize("how", HOW)
@given(
    data=st.data(),
    crashes=crashing(),
    disorder=st.integers(0, 30),
    retention=st.sampled_from((0, 10, 60)),
    batch_records=st.sampled_from((1, 3, 2_000)),
    most=st.sampled_from((2, 1_000)),
    layout=st.sampled_from(("one partition", "partition_by", "memory of one run")),
    below=st.sampled_from(("window", "window behind a partition_by", "nothing")),
)
@settings(max_examples=examples(30, 2_000))
def test_a_run_comes_to_what_its_histories_say(
    how, data, crashes, disorder, retention, batch_records, most, layout, below
):
    many = layout == "partition_by"
    left, right = data.draw(histories(data.draw(st.integers(1, 3)) if many else 1))
    store = "memory" if layout == "memory of one run" else "lmdb"

    def app():
        app = App("joining", Options(batch_records=batch_records, max_uncommitted=most))
        named = {"value": Event, "timestamp": lambda e: e.at, "max_disorder_ms": disorder}
        stream = app.input("stream", key=None if many else str, **named)
        if many:
            stream = stream.partition_by(lambda e: e.key)
        table = app.table("table", key=str, **named, retention_ms=retention)
        results = stream.join(table, found, how=how, late=dead_letter("late"), store=store, op_id="found")
        results.send_to(app.output("found", value=Found))
        window_below(app, results, below)
        return app

    environment = memory()
    fill(environment, "stream", stored(left, keyed=True))
    fill(environment, "table", stored(right, keyed=True))
    run_through(app, environment, crashes if store == "lmdb" else ())
    messages, late_messages = stamped(left, disorder, retention)
    versions, late_versions = stamped(right, disorder)
    expected = joined(messages, versions, how)
    check_results(environment, "found", Found, expected, late_messages + late_versions, below)


@pytest.fixture
def app():
    return App("joins")


def both(app, retention_ms=0, **said):
    stream = app.input("stream", value=int, key=str)
    return stream, app.table("table", value=int, key=str, retention_ms=retention_ms, **said)


def plus(message, row):
    return [message, row]


def test_a_message_waits_for_the_watermark_of_the_table_also_through_a_crash(app):
    stream, table = both(app)
    stream.join(table, plus, how="left").send_to(app.output("found", value=list))
    with testing.running(app) as run:
        run.send("stream", 1, key="k", timestamp=100)
        run.advance_watermark("stream", 1_000)
        run.send("table", 7, key="k", timestamp=90)
        assert run.read("found") == []
        run.crash()
        run.restart()
        run.send("table", 8, key="k", timestamp=100)
        run.send("table", 9, key="k", timestamp=101)
        assert run.read("found") == [[1, 8]]
        run.crash()
        run.restart()
        run.end()
        assert run.read("found") == []


def test_a_table_that_is_idle_keeps_messages_waiting_no_longer_than_was_said(app):
    stream, table = both(app, idle_after_ms=5_000)
    stream.join(table, plus, late=dead_letter("late")).send_to(app.output("found", value=list))
    with testing.running(app) as run:
        run.send("table", 7, key="k", timestamp=90)
        run.send("stream", 1, 2, key="k", timestamp=100)
        run.advance_watermark("stream", 200)
        run.advance_time(seconds=4)
        assert run.read("found") == []
        run.advance_time(seconds=2)
        assert run.read("found") == [[1, 7], [2, 7]]
        run.send("table", 8, key="k", timestamp=150)
        run.send("table", 9, key="k", timestamp=250)
        run.send("stream", 3, key="k", timestamp=260)
        run.end()
        assert run.read("found") == [[3, 9]]
        assert [letter.value for letter in run.dead_letters("late")] == [Tagged().encode(8)]


def test_a_row_that_is_removed_is_gone_from_the_time_of_that_record_on(app):
    stream, table = both(app, timestamp=lambda row: row)
    stream.join(table, plus, how="left").send_to(app.output("found", value=list))
    given_ = {
        "table": [Record(10, "k", 3), Record(None, "k", 20), Record(30, "k", 4)],
        "stream": [Record(n, "k", at) for n, at in enumerate((9, 10, 19, 20, 29, 30))],
    }
    assert testing.run(app, given_)["found"] == [[0, None], [1, 10], [2, 10], [3, None], [4, None], [5, 30]]


def test_a_message_that_comes_late_has_its_version_within_the_retention(app):
    stream, table = both(app, retention_ms=50)
    stream.join(table, plus, late=dead_letter("late"), op_id="found").send_to(app.output("found", value=list))
    with testing.running(app) as run:
        run.send("table", 1, key="k", timestamp=0)
        run.send("table", 2, key="k", timestamp=60)
        run.advance_watermark("table", 1_000)
        for at in (100, 50, 49):
            run.send("stream", at, key="k", timestamp=at)
        run.end()
        assert run.read("found") == [[50, 1], [100, 2]]
        letters = run.dead_letters("late")
        assert [(one.operator, one.error, one.stream, one.offset) for one in letters] == [
            ("found", "late", "stream", 2)
        ]


async def same(value):
    return [value]


def test_temporal_joins_lie_below_and_above_async_operators_and_each_other(app):
    stream, table = both(app)
    other = app.table("other", value=int, key=str, retention_ms=0)
    once = stream.async_flat_map(same).join(table, plus, how="left")
    twice = once.async_flat_map(same).join(other, lambda one, row: [*one, row], how="left", op_id="twice")
    twice.send_to(app.output("all", value=list))
    given_ = {
        "stream": [Record(1, "k", 10), Record(2, "k", 100)],
        "table": [Record(3, "k", 5), Record(4, "k", 50)],
        "other": [Record(5, "k", 60), Record(6, "l", 205)],
    }
    for seed in range(10):
        results = testing.run(app, given_, testing.Schedule(seed, (Point("turn", 5 + seed),)))
        assert results["all"] == [[1, 3, None], [2, 4, 5]]


def test_a_table_is_joined_by_several_streams_each_of_its_own_time(app):
    stream, table = both(app)
    others = app.input("others", value=int, key=str)
    stream.join(table, plus, op_id="one").send_to(app.output("one", value=list))
    others.join(table, plus, op_id="two").send_to(app.output("two", value=list))
    rows = [Record(1, "k", 0), Record(2, "k", 100)]
    results = testing.run(app, {"stream": [Record(7, "k", 50)], "others": [Record(8, "k", 150)], "table": rows})
    assert results == {"one": [[7, 1]], "two": [[8, 2]]}


def test_a_message_on_which_it_fails_meets_the_policy_alone(app):
    def picky(message, row):
        if message == 2:
            raise ValueError("not this one")
        return [message, row]

    stream, table = both(app)
    stream.join(table, picky, how="left", on_error=dead_letter("bad")).send_to(app.output("found", value=list))
    given_ = {"stream": [Record(n, "k", n) for n in (1, 2, 3)], "table": [Record(9, "k", 0)]}
    results = testing.run(app, given_)
    assert results["found"] == [[1, 9], [3, 9]]
    assert len(results["bad"]) == 1
