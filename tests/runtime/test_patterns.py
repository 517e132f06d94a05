"""Streams that come to match a pattern while a run goes on: they are read, once, and restarts know of them."""

import asyncio
import threading
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.core.base import Batch
from planner.model.errors import PlanError
from runtime.loop import loop
from runtime.model.clock import LoopClock
from runtime.ports.streams import END, Append, StreamConfig
from runtime.run.run import Run
from runtime.run.settings import RunSettings
from samza_dsl import App, count, tumbling
from tests.simulation.crash import NOW_MS, Crash, CrashPoint, Watched, memory, rows_of, run_once
from tests.simulation.loop import rest, simulate


def copying(**how):
    app = App("copying")
    app.input("orders-*", value=int, **how).send_to(app.output("seen", value=int, partitions=1))
    return app


def counting(partitions=None):
    """Count orders per ten, in a stage that hears of the watermarks of all tasks."""
    app = App("counting")
    orders = app.input("orders-*", value=int, timestamp=lambda n: n, partitions=partitions)
    tens = orders.partition_by(lambda n: "all", partitions=2, op_id="all").window(tumbling(milliseconds=10), count())
    tens.map(lambda pane: [pane.start, pane.value]).send_to(app.output("seen", partitions=1))
    return app


def write(environment, stream, *values, partition=0, partitions=1, ended=False):
    environment.create_stream(stream, StreamConfig(partitions=partitions))
    rows = Batch([b"%d" % value for value in values])
    environment.append([Append(stream, partition, rows, END if ended else None)])


def seen(environment):
    return [value.decode() for part in rows_of(environment, "seen") for _, value, _ in part]


def living(app, environment, story):
    """Run an application while `story` goes on, then stop it."""

    async def main():
        run = Run(app.pipeline(), environment, RunSettings(clock=LoopClock(NOW_MS)))
        driving = asyncio.create_task(run.drive())
        try:
            await story(run)
            run.stop()
        finally:
            await driving

    simulate(main)


@pytest.fixture
def environment():
    return memory()


def test_a_new_stream_is_read_by_the_run_that_goes_on(environment):
    write(environment, "orders-a", 1)

    async def story(run):
        await run.settled()
        write(environment, "orders-b", 2, 3, partitions=1)
        write(environment, "returns", 9)
        await rest(1_100)
        await run.settled()
        assert seen(environment) == ["1", "2", "3"]
        write(environment, "orders-b", 4)
        write(environment, "orders-a", 5)
        await run.settled()

    living(copying(), environment, story)
    assert sorted(seen(environment)) == ["1", "2", "3", "4", "5"]
    write(environment, "orders-b", 6)
    run_once(copying(), environment, until_now=True)
    assert sorted(seen(environment)) == ["1", "2", "3", "4", "5", "6"]


def test_the_loop_goes_on_while_brokers_say_which_streams_there_are(environment, monkeypatch):
    write(environment, "orders-a", 1)
    monkeypatch.setattr(loop, "LOOK_MS", 1.0)
    look, answered, went_on = environment.streams, threading.Event(), []

    async def main():
        asked, running = asyncio.Event(), asyncio.get_running_loop()

        def slow_look():
            running.call_soon_threadsafe(asked.set)
            went_on.append(answered.wait(timeout=60))
            return look()

        async with copying().running(environment) as run:
            await run.settled()
            monkeypatch.setattr(environment, "streams", slow_look)
            await asked.wait()
            answered.set()

    asyncio.run(main())
    assert went_on[0]


def test_a_run_waits_for_the_first_stream(environment):
    async def story(run):
        await rest(10_000)
        write(environment, "orders-a", 1)
        await rest(1_100)
        await run.settled()

    living(copying(), environment, story)
    assert seen(environment) == ["1"]
    run_once(copying(), environment, until_now=True)


def test_a_run_looks_once_more_before_it_ends(environment):
    write(environment, "orders-a", 1, ended=True)
    app = App("making")

    def make(n):
        if n == 1:
            write(environment, "orders-b", 2, ended=True)
        return n

    app.input("orders-*", value=int).map(make).send_to(app.output("seen", value=int, partitions=1))
    run_once(app, environment)
    assert seen(environment) == ["1", "2"]


def test_what_a_run_until_now_reads_does_not_grow(environment):
    write(environment, "orders-a", 1)
    app = App("growing")

    def make(n):
        write(environment, "orders-b", 2)
        return n

    app.input("orders-*", value=int).map(make).send_to(app.output("seen", value=int, partitions=1))
    run_once(app, environment, until_now=True)
    assert seen(environment) == ["1"]


def test_more_partitions_than_there_are_tasks_end_the_run_with_what_to_write(environment):
    write(environment, "orders-a", 1)

    async def story(run):
        write(environment, "orders-b", 2, partitions=3)
        await rest(1_100)
        await run.settled()

    wrong = r"input 'orders-_' at .*test_patterns.py:\d+: the new stream 'orders-b' has 3 partitions, and 1 are read"
    with pytest.raises(PlanError, match=wrong + r"; write instead: partitions=3, or start the app again"):
        living(copying(), environment, story)
    run_once(copying(), environment, until_now=True)
    assert sorted(seen(environment)) == ["1", "2"]


def keeping(**how):
    app = App("keeping")
    orders = app.input("orders-*", value=int, key=int, **how)
    orders.process(lambda value, context: [value]).send_to(app.output("seen", value=int, partitions=1))
    return app


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_new_stream_of_another_size_ends_the_run_where_equal_keys_must_meet(environment, partitions):
    write(environment, "orders-a", partitions=2)

    async def story(run):
        write(environment, "orders-b", partitions=2)
        await rest(1_100)
        await run.settled()
        write(environment, "orders-c", partitions=partitions)
        await rest(1_100)
        await run.settled()

    told = sorted([("orders-a", 2), ("orders-c", partitions)], key=lambda one: one[1])
    first, second = (f"'{stream}' of {count}" for stream, count in told)
    wrong = rf"process 'process-orders-_' at .*test_patterns.py:\d+: 'orders-\*' reads {first} and {second} partitions"
    for run in (lambda: living(keeping(), environment, story), lambda: run_once(keeping(), environment)):
        with pytest.raises(PlanError, match=wrong + r", so .*; write instead: .partition_by\("):
            run()


def test_the_first_stream_says_how_many_partitions_to_declare_where_equal_keys_must_meet(environment):
    async def story(run):
        write(environment, "orders-a", partitions=2)
        await rest(1_100)
        await run.settled()

    wrong = (
        r"1 partitions of 'orders-\*' are read, and 'orders-a' has 2, so .*; write instead: partitions=2 in app.input"
    )
    with pytest.raises(PlanError, match=wrong):
        living(keeping(), environment, story)
    environment.delete_stream("orders-a")
    living(keeping(partitions=2), environment, story)


def test_partitions_that_are_declared_are_kept_ready(environment):
    write(environment, "orders-a", 1, 25)

    async def story(run):
        await run.settled()
        assert seen(environment) == ["[0,1]"]
        write(environment, "orders-b", 26, 47, partition=2, partitions=3)
        await rest(1_100)
        await run.settled()
        assert seen(environment) == ["[0,1]"]
        write(environment, "orders-a", 48)
        for partition in range(2):
            write(environment, "orders-b", 49, partition=partition)
        await run.settled()

    living(counting(partitions=3), environment, story)
    assert seen(environment) == ["[0,1]", "[20,2]"]
    for stream in ("orders-a", "orders-b"):
        environment.end_stream(stream)
    run_once(counting(partitions=3), environment)
    assert seen(environment) == ["[0,1]", "[20,2]", "[40,4]"]


def test_a_stream_of_more_partitions_than_declared_is_refused(environment):
    write(environment, "orders-a", 1, partitions=4)
    with pytest.raises(PlanError, match=r"partitions=3, and the stream 'orders-a' exists and has 4"):
        run_once(copying(partitions=3), environment)


points = st.builds(CrashPoint, st.sampled_from(("before_commit", "after_commit", "turn")), st.integers(1, 60))


@given(st.lists(st.lists(st.integers(0, 99), max_size=5), min_size=1, max_size=5), st.lists(points, max_size=3))
def test_each_record_of_each_new_stream_is_read_once_whatever_crashes(streams, crashes):
    environment, written = memory(), iter(enumerate(streams))

    async def story(run):
        for number, values in written:
            write(environment, f"orders-{number}", *values, partition=number % 2, partitions=2)
            await rest(700)
        await rest(1_100)
        await run.settled()

    for crash in [*crashes, None]:
        with suppress(Crash):
            living(copying(partitions=2), Watched(environment, crash), story)
    assert sorted(map(int, seen(environment))) == sorted(n for values in streams for n in values)
