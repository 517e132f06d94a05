"""A run that has nothing to do looks at none of its tasks, and yet hears of all that comes, and of the time."""

import asyncio
from collections import Counter
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.core.base import Batch
from runtime.loop.loop import POLL_MS
from runtime.loop.waiting import LOOK_MS
from runtime.model.clock import LoopClock
from runtime.ports.streams import Append, StreamConfig
from runtime.reading.reader import Reader
from runtime.run.run import Run
from runtime.run.settings import RunSettings
from runtime.task.task import Task
from samza_dsl import App, Options, by_clock, collect, count, tumbling
from tests.scale import examples
from tests.simulation.clock import JumpingClock
from tests.simulation.crash import NOW_MS, memory
from tests.simulation.loop import rest, simulate

MINUTE_MS = 60_000
PACES = [{}, {"idle_after_ms": None}, {"idle_after_ms": 400}, {"idle_after_ms": 5_000, "close_on_idle": True}]


def application(pace, partitions, took_ms):
    """Return an application with a stage behind another, which notes when a number has come to its end."""
    app = App("resting", Options(commit_interval_ms=10))
    numbers = app.input("in", value=int, partitions=partitions, timestamp=lambda n: NOW_MS + n, **pace)
    by = numbers.partition_by(lambda n: n % 3, partitions=3, op_id="by")
    by.window(tumbling(minutes=1), count()).map(lambda pane: pane.value).send_to(app.output("counts", value=int))

    def took(number):
        took_ms.append(asyncio.get_running_loop().time() * 1_000)
        return number

    by.map(took).send_to(app.output("out", value=int))
    return app


def play(app, script, clock=None, partitions=1):
    """Run it in virtual time beside a script, which is given the run and the environment."""
    environment = memory()
    environment.create_stream("in", StreamConfig(partitions=partitions))

    async def main():
        how = RunSettings(clock=clock or LoopClock(NOW_MS))
        run = Run(app.pipeline(), environment, how)
        driving = asyncio.ensure_future(run.drive())
        await rest(1_000)
        await script(run, environment)
        run.stop()
        await driving
        return run

    return simulate(main)


def append(environment, partition, number, stream="in"):
    environment.append([Append(stream, partition, Batch([b"%d" % number]))])


@pytest.mark.parametrize("pace", PACES[:3], ids=str)
def test_an_idle_run_looks_at_none_of_its_tasks(pace):
    looked = Counter()

    def counted(kind, name):
        real = vars(kind)[name]
        get = real.fget if isinstance(real, property) else real

        def noting(self, *how):
            looked[name] += 1
            return get(self, *how)

        return patch.object(kind, name, property(noting) if isinstance(real, property) else noting)

    async def script(run, environment):
        await rest(2 * MINUTE_MS)
        looked.clear()
        await rest(10 * MINUTE_MS)
        assert not looked, "no task is looked at for ten minutes"

    with counted(Task, "drained"), counted(Task, "look_for_idle"), counted(Reader, "is_stored"):
        play(application(pace, 16, []), script, partitions=16)


@given(
    pace=st.sampled_from(PACES),
    partitions=st.integers(1, 4),
    waits_ms=st.lists(st.sampled_from([1.0, 30.0, 260.0, 1_100.0, 9_000.0, 100_000.0]), min_size=1, max_size=6),
    data=st.data(),
)
@settings(max_examples=examples(30, 2_000))
def test_all_that_comes_is_taken_in_within_a_poll_however_long_nothing_has_come(pace, partitions, waits_ms, data):
    took_ms, came_ms = [], []

    async def script(run, environment):
        for number, wait_ms in enumerate(waits_ms):
            await rest(wait_ms)
            came_ms.append(asyncio.get_running_loop().time() * 1_000)
            append(environment, data.draw(st.integers(0, partitions - 1)), number)
        await rest(2 * POLL_MS)

    play(application(pace, partitions, took_ms), script, partitions=partitions)
    assert len(took_ms) == len(came_ms)
    # A poll, the work itself, and the moments that an executor of the loop takes for a commit.
    assert all(took - came <= 2 * POLL_MS for came, took in zip(came_ms, took_ms, strict=True))


@given(after_ms=st.integers(50, 90_000), more=st.integers(0, 3))
@settings(max_examples=examples(30, 2_000))
def test_an_input_is_idle_no_earlier_than_it_said_and_at_most_a_quarter_later(after_ms, more):
    async def script(run, environment):
        for number in range(more):
            append(environment, 0, number)
            await rest(POLL_MS * 2)
        append(environment, 0, 99)
        await rest(after_ms - 1)
        assert not is_idle(run)
        await rest(1 + min(after_ms / 4, LOOK_MS) + 2 * POLL_MS)
        assert is_idle(run)

    def is_idle(run):
        return next(one.idle for one in run.metrics().inputs if (one.stream, one.partition) == ("in", 0))

    play(application({"idle_after_ms": after_ms}, 2, []), script, partitions=2)


@pytest.mark.parametrize("forward_ms", [0, 3 * MINUTE_MS])
def test_what_is_due_by_the_wall_clock_is_done_when_that_is_set_forward(forward_ms):
    fired_ms = []

    def fired(pane):
        fired_ms.append(asyncio.get_running_loop().time() * 1_000)
        return 0

    app = App("clocked")
    numbers = app.input("in", value=int, key=lambda n: 0)
    panes = numbers.window(by_clock(tumbling(minutes=5)), collect())
    panes.map(fired).send_to(app.output("out", value=int))

    async def script(run, environment):
        append(environment, 0, 1)
        await rest(6 * MINUTE_MS)

    play(app, script, JumpingClock(NOW_MS, [(MINUTE_MS, forward_ms)]))
    due_ms = 5 * MINUTE_MS - NOW_MS % (5 * MINUTE_MS) - forward_ms
    assert len(fired_ms) == 1 and 0 <= fired_ms[0] - max(due_ms, MINUTE_MS) <= 3 * POLL_MS
