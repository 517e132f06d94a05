"""Slow functions hold nothing up: stops, commits and messages come between their calls."""

import asyncio

import pytest

from runtime.job.pipeline import Pipeline
from runtime.model.clock import SystemClock
from runtime.model.errors import OperatorFailure
from runtime.run.run import Run
from runtime.run.settings import RunSettings
from runtime.systems.memory.environment import MemoryEnvironment
from runtime.systems.memory.lists import ListSink, ListSource
from runtime.task.pace import StepPace
from samza_dsl import App, Options, count, every, tumbling


class Working(SystemClock):
    """A clock that goes on only by what functions say that they have worked."""

    ms = 0.0

    def elapsed_ms(self):
        return self.ms

    def work(self, ms):
        self.ms += ms


@pytest.fixture
def clock():
    return Working()


def started(app, clock, numbers):
    """Return a run on numbers, and its output."""
    out = ListSink()
    bind: dict = {"numbers": ListSource(numbers, timestamps=[0] * len(numbers))}
    if any(spec.terminal and spec.kind == "send_to" for spec in app.graph().specs.values()):
        bind["out"] = out
    return Run(app.pipeline(), MemoryEnvironment(), RunSettings(bind=bind, clock=clock)), out


def test_a_step_is_as_long_as_it_should_be():
    pace, taken = StepPace(10_000), []
    for _ in range(5):
        taken.append(pace.rows)
        pace.took(pace.rows, pace.rows * 0.001)
    assert taken == [16, 256, 4_096, 10_000, 10_000]
    pace.took(10_000, 2_000)
    assert pace.rows == 500
    pace.took(500, 500_000)
    assert pace.rows == 1
    pace.took(0, 5)
    assert pace.rows == 1
    assert StepPace(3).rows == 3


def test_commits_and_a_stop_need_not_wait_for_a_whole_batch(clock):
    calls = []

    def slow(n):
        calls.append(n)
        clock.work(20)
        if n == 400:
            run.stop()
        return n

    app = App("slow", Options(commit_interval_ms=1_000))
    app.input("numbers", value=int).map(slow).send_to(app.output("out", value=int))
    run, out = started(app, clock, range(10_000))
    asyncio.run(run.drive())
    assert 400 < len(calls) < 420
    assert out.values == calls
    assert run.metrics().commits >= 6


def test_a_slow_firing_can_be_stopped_and_goes_on_in_the_next_run(clock):
    fired = []

    def on_timer(at_ms, context):
        fired.append(at_ms)
        clock.work(20)
        if len(fired) == 50:
            runs[-1].stop()

    app = App("slow")
    numbers = app.input("numbers", value=int, key=lambda n: 0, timestamp=lambda n: 0)
    timers = numbers.process(lambda n, context: context.set_timer(n), on_timer=on_timer, op_id="timers", store="lmdb")
    timers.send_to(app.output("out", value=int))
    environment, runs = MemoryEnvironment(), []
    for expected in (range(50, 70), [1_000]):
        source = ListSource([*range(1_000)])
        runs.append(
            Run(Pipeline(app.graph(), app.options), environment, RunSettings(bind={"numbers": source}, clock=clock))
        )
        asyncio.run(runs[-1].drive())
        assert len(fired) in expected
    assert fired == [*range(1_000)]


def test_commits_and_a_stop_need_not_wait_for_what_is_slow_below_a_window(clock):
    seen = []

    def slow(pane):
        seen.append(pane.key)
        clock.work(20)
        if len(seen) == 400:
            run.stop()
        return pane.key

    app = App("slow", Options(commit_interval_ms=1_000))
    numbers = app.input("numbers", value=int, key=lambda n: n)
    numbers.window(tumbling(seconds=1), count()).map(slow).send_to(app.output("out", value=int))
    run, out = started(app, clock, range(10_000))
    asyncio.run(run.drive())
    assert 400 <= len(seen) < 420
    assert out.values == seen
    assert run.metrics().commits >= 6


def test_timers_that_set_themselves_after_the_end_are_told_of(clock):
    app = App("endless")

    def on_timer(at_ms, context):
        context.set_timer(at_ms + 60_000)

    numbers = app.input("numbers", value=int, key=lambda n: 0, timestamp=lambda n: n)
    timers = numbers.process(lambda n, context: context.set_timer(n), on_timer=on_timer, op_id="minute")
    timers.send_to(app.output("out", value=int))
    run, _ = started(app, clock, [0])
    with pytest.raises(OperatorFailure, match=r"process 'minute' .* would go on for ever; let on_timer stop"):
        asyncio.run(run.drive())


@pytest.mark.parametrize("asks", ["stop", "shutdown", "nothing"])
def test_a_window_that_is_slower_than_its_interval_starves_nothing(clock, asks):
    seen, ticks = [], []

    def process(message, context):
        seen.append(message.value)
        clock.work(10)

    def tick(context):
        ticks.append(clock.ms)
        clock.work(120)
        if len(ticks) == 5 and asks == "stop":
            run.stop()
        if len(ticks) == 5 and asks == "shutdown":
            context.shutdown()

    app = App("slow", Options(batch_records=1))
    app.task(app.input("numbers", value=int), process, op_id="task", window=every(tick, seconds=0.1))
    run, _ = started(app, clock, range(100))
    asyncio.run(run.drive())
    if asks == "nothing":
        assert seen == [*range(100)]
        assert 8 <= len(ticks) <= 11
    else:
        assert (len(seen), len(ticks)) == (50, 5)
    assert run.metrics().tasks[0].window_ms == 120 * len(ticks)
