"""What says in which order is read says it also where what is known to be there comes from brokers one by one."""

import asyncio

import pytest

from operators.core.base import Batch
from runtime.model.clock import LoopClock
from runtime.ports.streams import Append, StreamConfig
from runtime.run.run import Run
from runtime.run.settings import RunSettings
from samza_dsl import App, Options
from tests.simulation.crash import NOW_MS, fill, run_once
from tests.simulation.kafka import opened, simulated
from tests.simulation.kafka_brokers import Cluster
from tests.simulation.loop import rest, simulate

SEEDS, NUMBER, STEP_MS, AT_ONCE = range(4), 300, 10, 8


@pytest.fixture(params=SEEDS)
def environment(request, tmp_path):
    with simulated(Cluster(request.param)):
        environment = opened(tmp_path)
        yield environment
        environment.close()


def fill_two(environment):
    for stream in ("a", "b"):
        fill(environment, stream, [[(b"k", b"%d" % number, number * STEP_MS) for number in range(NUMBER)]])


def test_an_input_is_not_ahead_of_another_by_more_than_is_said(environment):
    most_ms, at_ms, ahead_ms = 100, {"a": 0, "b": 0}, []

    def see(place, context):
        stream, number = place
        at_ms[stream] = number * STEP_MS
        if max(at_ms.values()) < (NUMBER - 1) * STEP_MS:
            ahead_ms.append(abs(at_ms["a"] - at_ms["b"]))
        return []

    fill_two(environment)
    app = App("app", Options(batch_records=AT_ONCE))
    how = {"value": int, "key": abs, "timestamp": lambda number: number * STEP_MS, "max_drift_ms": most_ms}
    both = app.input("a", **how).map(lambda number: ("a", number))
    both = both.merge(app.input("b", **how).map(lambda number: ("b", number)))
    both.process(see).sink(print)
    run_once(app, environment)
    assert max(ahead_ms) <= most_ms + AT_ONCE * STEP_MS


def test_what_has_a_higher_priority_comes_first(environment):
    seen = []
    fill_two(environment)
    app = App("app", Options(batch_records=AT_ONCE))
    first = app.input("a", value=int, priority=10).map(lambda number: "a")
    first.merge(app.input("b", value=int).map(lambda number: "b")).sink(seen.append)
    run_once(app, environment)
    last = NUMBER * 2 - 1 - seen[::-1].index("a")
    assert seen[:last].count("b") < NUMBER / 3


@pytest.mark.parametrize("broadcast", [False, True])
def test_what_is_in_a_table_before_a_message_is_there_for_it(environment, broadcast):
    seen, size = [], 200
    for stream in ("rows", "in"):
        environment.create_stream(stream, StreamConfig())
    app = App("app")
    rows = app.table("rows", key=str, value=int, broadcast=broadcast)
    numbers = app.input("in", key=str, value=int)
    how = {"on": lambda number: "k"} if broadcast else {}
    numbers.join(rows, lambda number, row: (number, row), **how).sink(seen.append)

    async def main():
        run = Run(app.pipeline(), environment, RunSettings(clock=LoopClock(NOW_MS)))
        driving = asyncio.create_task(run.drive())
        await run.opened()
        await rest(2_000)
        for number in range(5):
            batch = Batch([b"-1"] * (size - 1) + [b"%d" % number], [b"k"] * size)
            environment.append([Append("rows", 0, batch)])
            await run.send("in", number, key="k")
            await run.settled()
        run.stop()
        await driving

    simulate(main, 0)
    assert seen == [(number, number) for number in range(5)]


def test_what_has_a_higher_priority_and_waits_for_a_commit_of_its_task_holds_up_no_other(environment):
    call_ms, at_ms = 28_000, []
    for stream in ("a", "b"):
        environment.create_stream(stream, StreamConfig(partitions=2))

    async def call(value):
        await rest(call_ms if value == "a" else 0)
        at_ms.append(asyncio.get_running_loop().time() * 1_000)
        return [value]

    app = App("app", Options(commit_interval_ms=100))
    first = app.input("a", value=int, priority=10).map(lambda number: "a")
    both = first.merge(app.input("b", value=int).map(lambda number: "b"))
    both.async_flat_map(call, max_in_flight=10, timeout_ms=call_ms + 1_000).send_to(app.output("out"))

    async def main():
        run = Run(app.pipeline(), environment, RunSettings(clock=LoopClock(NOW_MS)))
        driving = asyncio.create_task(run.drive())
        await run.opened()
        for stream, partition in (("a", 0), ("a", 0), ("b", 1)):
            environment.append([Append(stream, partition, Batch([b"1"]))])
            await rest(4_000)
        run.stop()
        await driving

    simulate(main, 0)
    assert min(at_ms) < call_ms / 2
