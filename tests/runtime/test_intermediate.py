"""What lies between stages: it goes when it is consumed, no rewind misses it, and it is nobody else's."""

import asyncio
import random
from contextlib import closing
from dataclasses import dataclass
from unittest.mock import patch

import pytest

from operators.core.base import Batch
from planner.model.errors import PlanError
from planner.model.levers import Levers
from runtime.model.clock import LoopClock
from runtime.model.errors import Damaged, Fenced, SamzaError
from runtime.opening.opening import Share, open_application
from runtime.ports.commits import Commit
from runtime.ports.environment import Environment
from runtime.ports.streams import Append, StreamConfig
from runtime.run.run import Run
from runtime.run.settings import RunSettings
from runtime.systems.log.environment import LogEnvironment, verify
from samza_dsl import App, Options, count, tumbling
from samza_dsl.data.records import last_records, read_on, records_from
from samza_dsl.testing.environment import Crash
from tests.simulation.crash import fill, memory, rows_of, run_once
from tests.simulation.loop import rest, simulate

BETWEEN = "counting-by-rest"


def counting(options=None):
    """Count numbers by what is left of them when divided by three, in windows of ten."""
    app = App("counting", options)
    numbers = app.input("numbers", value=int, timestamp=lambda n: n)
    counts = numbers.partition_by(lambda n: n % 3, partitions=2, op_id="by-rest").window(
        tumbling(milliseconds=10), count(), op_id="tens"
    )
    counts.map(lambda pane: [pane.key, pane.start, pane.value]).send_to(app.output("counts", partitions=1))
    return app


def numbers(environment, *found):
    environment.create_stream("numbers", StreamConfig())
    environment.append([Append("numbers", 0, Batch([str(n).encode() for n in found]))])


def counts(environment):
    return [value for _, value, _ in rows_of(environment, "counts")[0]]


@pytest.fixture
def environment():
    return memory()


def test_what_is_consumed_goes_with_the_commit(environment):
    numbers(environment, *range(25))
    run_once(
        counting(Options(batch_records=3, max_uncommitted=4)), environment, until_now=True, levers=Levers(relays=False)
    )
    for partition in range(2):
        start, end, _ = environment.offsets(BETWEEN, partition)
        assert start == end > 5
    assert environment.stream_stats(BETWEEN) == (0, 0)


def test_a_rewind_that_resets_makes_it_anew(environment):
    numbers(environment, *range(25))
    run_once(counting(), environment, until_now=True)
    once = counts(environment)
    assert len(once) == 6
    run_once(counting(), environment, until_now=True, from_start=True, state="reset")
    assert counts(environment) == once * 2
    assert environment.stream_stats(BETWEEN) == (0, 0)


def test_a_rewind_that_keeps_state_goes_on_behind_what_is_gone(environment):
    numbers(environment, *range(25))
    run_once(counting(), environment, until_now=True)
    once = counts(environment)
    run = run_once(counting(), environment, until_now=True, from_start=True, state="keep")
    assert run.metrics().total("late") == 20
    numbers(environment, 30)
    run_once(counting(), environment, until_now=True)
    found = sorted(counts(environment))
    assert found == sorted([*once, *[b"[%d,20,%d]" % (rest, 2 * number) for rest, number in ((0, 2), (1, 1), (2, 2))]])


def test_a_position_in_what_is_gone_is_told(environment):
    numbers(environment, *range(25))
    run_once(counting(), environment, until_now=True)
    checkpoints = environment.checkpoints("counting")
    run_once(counting(), environment, until_now=True, from_start=True, state="reset")
    generation = environment.own("counting")
    environment.commit(Commit("counting", generation, [], [], {**checkpoints}))
    environment.delete_stream(BETWEEN)
    with pytest.raises(
        Damaged,
        match=rf"'{BETWEEN}' between stages is no longer there: .*state forget counting by-rest.*samza-dsl reset",
    ):
        run_once(counting(), environment, until_now=True)


def test_it_is_no_input_of_another_app(environment):
    numbers(environment, *range(25))
    run_once(counting(), environment, until_now=True)
    nosy = App("nosy")
    nosy.input(BETWEEN, value=int).sink(print)
    with pytest.raises(PlanError, match=rf"input '{BETWEEN}' at .*test_intermediate.py:\d+: .* which removes what"):
        run_once(nosy, environment)
    patterned = App("patterned")
    patterned.input("count*", value=list).send_to(patterned.output("seen", value=list))
    run_once(patterned, environment, until_now=True)
    assert [value for _, value, _ in rows_of(environment, "seen")[0]] == counts(environment)


def test_a_stream_of_the_user_is_not_taken_for_it(environment):
    numbers(environment, 1)
    fill(environment, BETWEEN, [[(None, b"mine", 0)], []])
    with pytest.raises(SamzaError, match=rf"the stream '{BETWEEN}' exists, .*another op_id="):
        run_once(counting(), environment)
    assert rows_of(environment, BETWEEN)[0] == [(None, b"mine", 0)]


def test_a_reader_from_outside_goes_on_where_something_is_left(environment):
    environment.create_stream("s", StreamConfig(intermediate=True))
    environment.append([Append("s", 0, Batch([b"%d" % n, b"more"])) for n in range(4)])
    found = records_from(environment, "s", 0, 0)
    assert [next(found).value for _ in range(2)] == [b"0", b"more"]
    environment.commit(Commit("app", environment.own("app"), [], [], {}, {("s", 0): 6}))
    assert [record.value for record in found] == [b"3", b"more"]
    assert [record.value for record in last_records(environment, "s", [0], 9)] == [b"3", b"more"]
    with pytest.raises(Damaged, match="has no offset 9: there is 6 to 8"):
        read_on(environment, "s", 0, 9)


def test_the_file_does_not_grow_with_what_passes_through(tmp_path):
    sizes_bytes = []
    sizes = random.Random(7)
    with closing(LogEnvironment(tmp_path, sync=False)) as log:
        log.create_stream("s", StreamConfig(partitions=4, intermediate=True))
        generation = log.own("app")
        for _ in range(6):
            for _ in range(250):
                consumed = {("s", partition): log.offsets("s", partition).end for partition in range(4)}
                rows = [Batch([bytes(sizes.randrange(200))] * sizes.randrange(1, 200)) for _ in range(8)]
                appends = [Append("s", number % 4, batch) for number, batch in enumerate(rows)]
                log.commit(Commit("app", generation, appends, [], {}, consumed))
            sizes_bytes.append((tmp_path / "data.mdb").stat().st_size)
    assert sizes_bytes[-1] <= 1.2 * sizes_bytes[1] < 5_000_000, sizes_bytes
    assert verify(tmp_path) == []


@dataclass
class Late:
    """An environment in which one process sees nothing of what lies between stages until it is `open`."""

    inner: Environment
    open: bool = False

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def read(self, stream, partition, offset, max_records=10_000):
        return self.inner.read(stream, partition, offset, max_records) if self.open or stream != BETWEEN else None


def test_a_run_whose_successor_has_consumed_what_it_would_read_is_told_that_it_was_succeeded(environment):
    numbers(environment, *range(25))
    late = Late(environment)

    def run_on(environment, until_now=False):
        app = counting()
        levers = Levers(relays=False)  # in memory nothing is left for a successor to consume
        return Run(app.pipeline(), environment, RunSettings(clock=LoopClock(), until_now=until_now, levers=levers))

    async def main():
        driving = asyncio.create_task(run_on(late).drive())
        while environment.offsets(BETWEEN, 0).end == 0:
            await rest(1)
        await run_on(environment, until_now=True).drive()
        late.open = True
        environment.append([Append("numbers", 0, Batch([b"26"]))])
        with pytest.raises(Fenced, match="is at generation 2, and this run is of 1"):
            await driving

    simulate(main)


def test_a_container_whose_tasks_others_have_taken_is_told_so_whatever_these_have_consumed(environment):
    numbers(environment, *range(25))
    late, app = Late(environment), counting()
    opened = open_application(environment, app.pipeline(), {})

    def run_on(environment, name):
        share = Share(container=name, generation=opened.generation, counts=opened.counts)
        return Run(app.pipeline(), environment, RunSettings(clock=LoopClock(), share=share))

    async def main():
        first, second = run_on(late, "first"), run_on(environment, "second")
        driving = asyncio.create_task(first.drive())
        while environment.offsets(BETWEEN, 0).end == 0:
            await rest(1)
        membership = first._follower.membership
        membership.leave()
        membership.mine = lambda: frozenset({0, 1})  # it does not know that it was taken for dead
        going_on = asyncio.create_task(second.drive())
        while environment.offsets(BETWEEN, 0).start == 0:
            await rest(1)
        late.open = True
        environment.append([Append("numbers", 0, Batch([b"26"]))])
        with pytest.raises(Fenced, match=r"Task \d of application 'counting' is at generation 2, and this container"):
            await driving
        second.stop()
        await going_on

    simulate(main)


@pytest.mark.parametrize("dies_at", ["reset", "delete_stream"])
def test_a_reset_that_dies_half_way_leaves_nothing_that_is_read_twice(environment, dies_at):
    numbers(environment, *range(25))
    late = Late(environment)

    async def leave_something_unread():
        app = counting()
        settings = RunSettings(clock=LoopClock(), levers=Levers(relays=False))
        driving = asyncio.create_task(Run(app.pipeline(), late, settings).drive())
        while environment.offsets(BETWEEN, 0).end == 0:
            await rest(1)
        driving.cancel()
        await asyncio.wait([driving])

    simulate(leave_something_unread)
    assert environment.stream_stats(BETWEEN) != (0, 0)
    with patch.object(environment, dies_at, side_effect=Crash), pytest.raises(Crash):
        run_once(counting(), environment, until_now=True, from_start=True, state="reset")
    run_once(counting(), environment, until_now=True)
    whole = memory()
    numbers(whole, *range(25))
    run_once(counting(), whole, until_now=True)
    assert counts(environment) == counts(whole)
