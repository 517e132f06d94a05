"""The progress of a bounded run on Spark, and the thread on which somebody watches a run on Spark."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cached_property

import msgspec

from operators.core.base import MAX_TIMESTAMP
from planner.model.plan import Plan
from runtime.containers.protocol import combined
from runtime.model.clock import SystemClock
from runtime.model.metrics import InputMetrics, RunMetrics, StageMetrics
from runtime.ports.streams import Offsets
from runtime.run.driver import Watch, Watched
from runtime.units.heartbeats import Address, Hearing, Said
from runtime.units.program import Program, ShippedJob
from runtime.units.splits import Splits


class Running:
    """A bounded run while it goes on: its numbers are those of the attempts that have come furthest.

    The driver's thread runs it; another one, that of a watcher, may ask for its numbers at any time.
    """

    failed = begins_anew = stopping = False

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._clock = SystemClock()
        self._began_ms = self._clock.elapsed_ms()
        self._hearing: Hearing | None = None
        self._seen: Seen | None = None
        self._last: RunMetrics | None = None

    def metrics(self, stores: bool = True) -> RunMetrics:
        """Return the numbers of this moment; after the end, the last ones."""
        if self._last is not None:
            return self._last
        found = self._seen.metrics() if self._seen is not None else RunMetrics()
        return msgspec.structs.replace(found, elapsed_ms=self._clock.elapsed_ms() - self._began_ms)

    def stop(self) -> None:
        """Do nothing: all of it is run, or nothing of it counts."""

    async def drive(self) -> None:
        """Do nothing: it is run already."""

    @contextmanager
    def heard(self, host: str, bound: str | None) -> Iterator[Address]:
        """Hear workers during a block, to whom this machine is `host`; `bound` is the address to listen at."""
        with closing(Hearing(host, bound)) as hearing:
            self._hearing = hearing
            yield hearing.address

    def see(self, job: ShippedJob) -> None:
        """Show from now on what is heard of a job; not while it is being sent, since who looks at it changes it."""
        assert self._hearing is not None
        self._seen = Seen(job, self._hearing)

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Mark the run as failed where a block fails."""
        try:
            yield
        except BaseException:
            self.failed = True
            raise

    def end(self, metrics: RunMetrics) -> None:
        """Take what the run came to, of the attempts that count."""
        stages = tuple(
            StageMetrics(stage=one.id, tasks=one.partitions, done=one.partitions) for one in self.plan.stages
        )
        self._last = msgspec.structs.replace(metrics, stages=stages)


class Seen:
    """The numbers of one run, put together of what is heard of the units of its job."""

    def __init__(self, job: ShippedJob, hearing: Hearing) -> None:
        self._job, self._hearing = job, hearing
        self._program = Program((job,))

    def metrics(self) -> RunMetrics:
        """Return the numbers of this moment."""
        found = self._hearing.furthest()
        known = combined([said.metrics for said in found])
        written = self._written(found)
        inputs = [_to_its_end(one, written) for one in known.inputs]
        return msgspec.structs.replace(
            known,
            inputs=(*inputs, *self._still_to_come(inputs)),
            stages=tuple(self._stages(found)),
            since_commit_ms=None,
        )

    def _written(self, found: list[Said]) -> dict[tuple[str, int], int]:
        """Return how many rows there are of each partition between stages."""
        rows = dict.fromkeys(((name, number) for name in self._job.places for number in self._partitions(name)), 0)
        for said in found:
            for stream, by_partition in said.written.items():
                for number, more in enumerate(by_partition):
                    rows[stream, number] += more
        return rows

    def _partitions(self, stream: str) -> range:
        return range(self._job.streams[stream].partitions)

    def _stages(self, found: list[Said]) -> Iterator[StageMetrics]:
        """Yield how far each stage is; where a later level has begun, all of those before it are done."""
        levels, units = self._job.levels, self._program.units
        begun = [units[said.unit].stage for said in found]
        done = [units[said.unit].stage for said in found if said.done]
        highest = max((levels[stage] for stage in begun), default=0)
        for number, stage in enumerate(self._job.plan.stages):
            # The shuffle between two levels waits for all units of the first: datagrams that were lost don't matter
            # then.
            ended = stage.partitions if levels[number] < highest else done.count(number)
            running = max(begun.count(number) - ended, 0)
            yield StageMetrics(stage=stage.id, tasks=stage.partitions, running=running, done=ended)

    def _still_to_come(self, told: list[InputMetrics]) -> Iterator[InputMetrics]:
        """Yield the partitions that nobody has begun, of streams of which another one was."""
        for stream in dict.fromkeys(one.stream for one in told if one.stream not in self._job.places):
            begun = {one.partition: one for one in told if one.stream == stream}
            for number, found in self._ranges[stream].items():
                if number not in begun:
                    end = self._expected(stream, number, begun) if found.end == MAX_TIMESTAMP else found.end
                    yield InputMetrics(
                        stream=stream,
                        partition=number,
                        task=number,
                        offset=found.start,
                        end=end,
                        lag=max(end - found.start, 0),
                        watermark=min(one.watermark for one in begun.values()),
                    )

    def _expected(self, stream: str, number: int, begun: Mapping[int, InputMetrics]) -> int:
        """Return how many records a file has where it is as dense as others of its input."""
        source = self._job.inputs[stream]
        assert isinstance(source, Splits)
        size_bytes = sum(map(source.size_bytes, begun)) or 1
        return sum(one.end for one in begun.values()) * source.size_bytes(number) // size_bytes

    @cached_property
    def _ranges(self) -> dict[str, dict[int, Offsets]]:
        """The partitions of all inputs, with their ranges."""
        found: dict[str, dict[int, Offsets]] = {}
        for (stream, number), offsets in self._job.ends.items():
            found.setdefault(stream, {})[number] = offsets
        for stream, source in self._job.inputs.items():
            found[stream] = {number: source.offsets(number) for number in range(source.partitions)}
        return found


def _to_its_end(one: InputMetrics, written: Mapping[tuple[str, int], int]) -> InputMetrics:
    """Return the numbers of a reader between stages with how much there is to be read."""
    end = written.get((one.stream, one.partition))
    return one if end is None else msgspec.structs.replace(one, end=end, lag=max(end - one.offset, 0))


@contextmanager
def watched(run: Watched, watch: Watch | None) -> Iterator[None]:
    """Let a run be watched during a block, from another thread, as Spark keeps this one."""
    if watch is None:
        yield
        return
    with closing(asyncio.new_event_loop()) as loop:
        watching = loop.create_task(_beside(watch, run))
        thread = threading.Thread(target=loop.run_until_complete, args=(asyncio.wait([watching]),), name="watching")
        thread.start()
        try:
            yield
        finally:
            loop.call_soon_threadsafe(watching.cancel)
            thread.join()


async def _beside(watch: Watch, run: Watched) -> None:
    await watch(run)
