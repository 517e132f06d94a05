"""State that a changed pipeline would take for something else: it is refused, and told what to do."""

from dataclasses import dataclass
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from operators.core.base import Batch
from planner.model.errors import PlanError
from runtime.ports.streams import Append, StreamConfig
from samza_dsl import (
    App,
    Json,
    aggregate,
    collect,
    count,
    counted,
    daily,
    fold,
    hash_,
    maximum,
    mean,
    sliding,
    top_k,
    tumbling,
)
from tests.simulation.crash import memory, run_once


class Price(Struct, frozen=True):
    cents: int


@dataclass(frozen=True)
class Lasting:
    """Windows of one's own."""

    length: int

    def assign(self, key, timestamp, value):
        return [(timestamp, timestamp + self.length)]


class Spelled:
    """A serde that says nothing of itself."""

    def encode(self, value):
        return str(value).encode()

    def decode(self, data):
        return int(data)


def windowed(windows, aggregation, key_type=None, by=hash_, op_id="state"):
    app = App("changing")
    numbers = app.input("numbers", value=int, timestamp=lambda n: n)
    by_key = numbers.partition_by(lambda n: n % 2, key_type=key_type, by=by, partitions=1, op_id="by-key")
    by_key.window(windows, aggregation, op_id=op_id).map(str).send_to(app.output("out", value=str))
    return app


def processed(init, op_id="state"):
    app = App("changing")
    numbers = app.input("numbers", value=int, key=lambda n: n % 2)

    def add(n, context):
        context.state = (context.state or 0) + n

    numbers.process(add, init=init, op_id=op_id).send_to(app.output("out"))
    return app


def awaited(init):
    app = App("changing")
    numbers = app.input("numbers", value=int, key=lambda n: n % 2)

    async def add(n, context):
        context.state = (context.state or 0) + n
        return ()

    numbers.async_flat_map(add, init=init, op_id="state").send_to(app.output("out"))
    return app


def joined(value, key=int):
    app = App("changing")
    table = app.table("table", value=value, key=key, partitions=1)
    numbers = app.input("numbers", value=int).partition_by(lambda n: n, key_type=key, op_id="by-n")
    numbers.join(table, lambda n, row: str(row)).send_to(app.output("out", value=str))
    return app


def as_of_then(retention_ms):
    app = App("changing")
    numbers = app.input("numbers", value=int, key=int)
    table = app.table("table", value=int, key=int, retention_ms=retention_ms)
    numbers.join(table, max, op_id="state").send_to(app.output("out", value=int))
    return app


def nearest(**how):
    app = App("changing")
    numbers = app.input("numbers", value=int, key=int, timestamp=lambda n: n)
    numbers.join_asof(numbers, max, op_id="state", **how).send_to(app.output("out", value=int))
    return app


def of_tables(on=None):
    app = App("changing")
    numbers, table = (app.table(name, value=int, key=int) for name in ("numbers", "table"))
    numbers.join(table, max, on=on, op_id="state").changes().send_to(app.output("out"))
    return app


def hour(**how):
    return windowed(tumbling(hours=1), count(), **how)


def environment_after(app):
    """Return an environment in which an application has left state."""
    environment = memory()
    for stream in ("numbers", "table"):
        environment.create_stream(stream, StreamConfig())
        environment.append([Append(stream, 0, Batch([b"1", b"2"], keys=[b"1", b"2"]))])
    run_once(app, environment, until_now=True)
    assert environment.state_stats("changing")
    return environment


CHANGES = {
    "foreign key": (of_tables, lambda: of_tables(abs), r"key_join, rows.*foreign_key_join, rows"),
    "tolerance": (nearest, lambda: nearest(tolerance=5), "backward within None.*backward within 5"),
    "direction": (
        lambda: nearest(tolerance=5),
        lambda: nearest(tolerance=5, direction="forward"),
        "backward within 5.*forward within 5",
    ),
    "retention": (lambda: as_of_then(0), lambda: as_of_then(600_000), r"versions by 60000 ms.*versions by 600000 ms"),
    "length": (hour, lambda: windowed(tumbling(minutes=1), count()), r"size_ms=3600000.*size_ms=60000"),
    "offset": (hour, lambda: windowed(tumbling(hours=1, offset_ms=5), count()), r"offset_ms=0.*offset_ms=5"),
    "zone": (
        lambda: windowed(daily(), count()),
        lambda: windowed(daily("Asia/Tokyo"), count()),
        r"tz='UTC'.*tz='Asia/Tokyo'",
    ),
    "windows of one's own": (
        lambda: windowed(Lasting(10), count()),
        lambda: windowed(Lasting(20), count()),
        r"Lasting\(length=10\).*Lasting\(length=20\)",
    ),
    "number": (lambda: windowed(counted(3), count()), lambda: windowed(counted(4), count()), "number=3.*number=4"),
    "size": (
        lambda: windowed(sliding(seconds=1), count()),
        lambda: windowed(sliding(seconds=2), count()),
        "size_ms=1000.*size_ms=2000",
    ),
    "type": (hour, lambda: windowed(daily(), count()), r"Tumbling.*Daily"),
    "aggregation": (hour, lambda: windowed(tumbling(hours=1), mean(float)), r"count from int.*mean from"),
    "top k": (
        lambda: windowed(tumbling(hours=1), top_k(2, by=abs)),
        lambda: windowed(tumbling(hours=1), top_k(3, by=abs)),
        r"top 2.*top 3",
    ),
    "accumulator": (
        lambda: windowed(tumbling(hours=1), fold(int, lambda total, n: total + n)),
        lambda: windowed(tumbling(hours=1), fold(list, lambda total, n: [*total, n])),
        r"fold from int.*fold from list",
    ),
    "parts": (
        lambda: windowed(tumbling(hours=1), aggregate(dict, a=count(), b=fold(int, max))),
        lambda: windowed(tumbling(hours=1), aggregate(dict, a=count(), b=fold(str, max))),
        r"\(int, int\).*\(int, str\)",
    ),
    "key": (hour, lambda: hour(key_type=int), r"keys Tagged.*keys Json\(type=<class 'int'>"),
    "partitioner": (hour, lambda: hour(by=lambda key, partitions: 0), r"partitioned by hash.*partitioned by <lambda>"),
    "kind": (hour, lambda: processed(int), r"'window, .*'process, state from int"),
    "state of a process": (lambda: processed(int), lambda: processed(float), r"state from int.*state from float"),
    "state of async calls": (lambda: awaited(int), lambda: awaited(float), r"state from int.*state from float"),
    "rows of a table": (lambda: joined(int), lambda: joined(float), r"rows Json.*int.*rows Json.*float"),
    "keys of a table": (lambda: joined(int), lambda: joined(int, key=float), r"keys Json.*int.*keys Json.*float"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_state_is_not_read_as_something_else(change):
    before, after, told = CHANGES[change]
    environment = environment_after(before())
    state = environment.state_stats("changing")
    where = r"([a-z_]+) '(state|table)' at .*test_meaning.py:\d+: its state was kept as "
    drop = "it as before; or .*: samza-dsl state forget changing (state|table); or .*: samza-dsl reset changing$"
    with pytest.raises(PlanError, match=rf"{where}.*{told}.*{drop}"):
        run_once(after(), environment, until_now=True)
    assert environment.state_stats("changing") == state
    run_once(before(), environment, until_now=True)


def test_a_reset_begins_anew_with_what_it_means_now():
    environment = environment_after(hour())
    changed = lambda: windowed(tumbling(minutes=1), mean(float))  # noqa: E731
    run_once(changed(), environment, until_now=True, from_start=True, state="reset")
    run_once(changed(), environment, until_now=True)
    with pytest.raises(PlanError, match="its state was kept as"):
        run_once(hour(), environment, until_now=True)


def test_a_reset_drops_state_that_nobody_reads_any_more():
    environment = environment_after(processed(int))
    run_once(processed(int, op_id="other"), environment, until_now=True, from_start=True, state="reset")
    assert {store for store, _ in environment.state_stats("changing")} == {"other"}


def test_state_that_is_gone_means_nothing():
    environment = environment_after(hour())
    environment.end_stream("numbers")
    run_once(hour(), environment)
    assert environment.state_stats("changing") == {}
    run_once(windowed(tumbling(minutes=1), collect()), environment)


SAME = {
    "functions": (
        lambda: windowed(tumbling(hours=1), maximum(abs)),
        lambda: windowed(tumbling(minutes=60), maximum(lambda n: n * 2)),
    ),
    "a serde without words": (lambda: hour(key_type=Spelled()), lambda: hour(key_type=Spelled())),
}


@pytest.mark.parametrize("same", SAME)
def test_what_means_the_same_goes_on(same):
    before, after = SAME[same]
    environment = environment_after(before())
    run_once(after(), environment, until_now=True)


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_windows_mean_the_same_where_they_are_the_same(one, other):
    def meaning(milliseconds):
        size = timedelta(milliseconds=milliseconds)
        return windowed(tumbling(seconds=size.total_seconds()), count()).graph().specs["state"].meaning()

    assert (meaning(one) == meaning(other)) == (one == other)


def test_how_the_program_is_started_changes_nothing():
    environment = environment_after(joined(Json(Price | int)))
    (meaning,) = environment.checkpoints("changing")["state"].meanings.values()
    assert meaning == "table, rows Json(type=Price | int), keys Json(type=<class 'int'>)"
