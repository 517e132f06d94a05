"""A run on Spark that goes on and on: a job of Spark for each micro-batch, and a commit behind each."""

from __future__ import annotations

import pickle
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import msgspec

from operators.core.durations import whole_ms
from runtime.assembly.distinct_places import check_distinct
from runtime.containers.protocol import combined
from runtime.job.key_kinds import EqualInTasks
from runtime.job.pipeline import Pipeline
from runtime.model.clock import SystemClock
from runtime.model.errors import SamzaError
from runtime.model.metrics import InputMetrics, OperatorMetrics, RunMetrics
from runtime.ports.environment import Environment
from runtime.run.driver import Watch
from runtime.run.settings import UNSAID, RunSettings
from runtime.spark.batch import run_job
from runtime.spark.connection import connected
from runtime.spark.landing import landing
from runtime.spark.progress import watched
from runtime.spark.session import Spark, tell_order
from runtime.spark.table_outputs import into_tables
from runtime.systems.kafka.client.topic import address_of, cluster_of
from runtime.units.driver.engine import BatchRun, told_by
from runtime.units.driver.micro_batch_application import MicroBatchSettings, Streamed
from runtime.units.micro_batch import MicroBatch, Place
from runtime.units.program import Program
from runtime.units.shipping import shipped
from runtime.units.shuffle_rows import AttemptReport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_MS = 50.0
"""The ms after which a run that has nothing to do looks again whether something has come."""
SUMMED = ("received", "emitted", "skipped", "dead_lettered", "retried", "late")


def run_stream(
    pipeline: Pipeline,
    data: str | Path | Environment,
    on: Spark,
    settings: RunSettings = UNSAID,
    watch: Watch | None = None,
) -> BatchRun:
    """Run an application on Spark from its checkpoint on, until its inputs end or SIGINT or SIGTERM comes.

    It heeds the settings `bind`, `environment` and `until_now`, with which it ends when what is there now is processed.
    `watch(run)` is awaited beside it, on its own thread. Raises what the live run would raise.
    """
    assert on.checkpoint is not None
    clock = SystemClock()
    check_distinct(pipeline.graph, settings.bind or {}, address_of(settings.environment))
    bound = into_tables(on, pipeline.graph, settings.bind or {})
    how = MicroBatchSettings(Path(on.checkpoint), on.max_records, settings.until_now, on.end)
    with landing(on, pipeline.graph, bound, settings.until_now) as bind:
        streamed = Streamed(pipeline, data, bind, how, clock, cluster_of(settings.environment))
        try:
            stream = MicroBatchRun(on.opened(), streamed)
            tell_order(stream.plan)
            with watched(stream, watch), _signals_heard(stream.stop):
                stream.run(settings.until_now, whole_ms(on.interval_ms))
        finally:
            streamed.close()
    return BatchRun(streamed, stream.metrics())


class MicroBatchRun:
    """Micro-batches of one application, one after the other, in a session.

    One thread runs it; others, and signal handlers, may ask for its numbers or a stop.
    """

    failed = begins_anew = False

    def __init__(self, session: SparkSession, streamed: Streamed) -> None:
        self.plan = streamed.plan
        self._metrics = RunMetrics()
        self._connection, self._streamed = connected(session), streamed
        self._clock = SystemClock()
        self._began_ms, self._committed_ms = self._clock.elapsed_ms(), 0.0
        self._stopping = threading.Event()
        self._program = Program((streamed.job,))
        self._equal = EqualInTasks(streamed.plan.app, streamed.job.graph.specs)
        # Once for all micro-batches: what changes from one to the next goes beside it.
        self._data = shipped(self._program, self._connection.imported)

    @property
    def stopping(self) -> bool:
        """Whether a stop was asked for."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """Ask for an end behind the micro-batch at hand."""
        self._stopping.set()

    def metrics(self, stores: bool = True) -> RunMetrics:
        """Return the numbers as of the last commit, with how long it has been running, and since then; no stores."""
        now_ms, found = self._clock.elapsed_ms(), self._metrics
        since_ms = now_ms - self._committed_ms if found.commits else None
        return msgspec.structs.replace(found, elapsed_ms=now_ms - self._began_ms, since_commit_ms=since_ms)

    async def drive(self) -> None:
        """Run until the inputs end, or a stop is asked for."""
        self.run(until_now=False, interval_ms=0)

    def run(self, until_now: bool, interval_ms: float) -> None:
        """Run to the end."""
        try:
            self._run(until_now, interval_ms)
        except BaseException:
            self.failed = True
            raise

    def _run(self, until_now: bool, interval_ms: float) -> None:
        while not (self._stopping.is_set() or self._streamed.is_over):
            began = self._clock.elapsed_ms()
            batch = self._streamed.next()
            if batch is not None:
                self.run_one(batch)
            elif until_now:
                return
            wait_ms = max(interval_ms - (self._clock.elapsed_ms() - began), 0 if batch is not None else LOOK_MS)
            self._stopping.wait(wait_ms / 1_000)

    def run_one(self, batch: MicroBatch) -> None:
        """Run a micro-batch, and let it count."""
        program = self._program.at([batch])
        about = f": micro-batch {batch.number}"
        rows = run_job(self._connection, self._data, program, micro_batches=pickle.dumps([batch]), about=about)
        parts, reports = told_by(rows, program)
        self._streamed.commit(batch, parts[0], reports[0], program.units)
        self._metrics = _added(self._metrics, reports[0], self._streamed.left_by(batch))
        self._equal.take((report.seen for report in reports[0]), self._metrics.warnings)
        self._metrics = msgspec.structs.replace(self._metrics, warnings=(*self._equal.warnings.values(),))
        self._committed_ms = self._clock.elapsed_ms()


def _added(before: RunMetrics, reports: Iterable[AttemptReport], left: Mapping[Place, int]) -> RunMetrics:
    """Return the metrics of a run with those of one more micro-batch, which has `left` so much of its inputs."""
    now = combined([report.metrics for report in reports])
    known = {(one.operator, one.task): one for one in before.operators}
    operators = tuple(_summed(known.pop((one.operator, one.task), None), one) for one in now.operators)
    return msgspec.structs.replace(
        now,
        operators=(*known.values(), *operators),
        inputs=tuple(_with_lag(one, left.get((one.stream, one.partition), 0)) for one in now.inputs),
        commits=before.commits + 1,
    )


def _with_lag(one: InputMetrics, left: int) -> InputMetrics:
    return msgspec.structs.replace(one, end=one.end + left, lag=one.lag + left)


def _summed(before: OperatorMetrics | None, now: OperatorMetrics) -> OperatorMetrics:
    if before is None:
        return now
    counters = {
        name: before.counters.get(name, 0) + now.counters.get(name, 0) for name in {**before.counters, **now.counters}
    }
    added = {name: getattr(before, name) + getattr(now, name) for name in SUMMED}
    keys = {side: Counter(kinds) for side, kinds in before.keys.items()}
    for side, kinds in now.keys.items():
        # Not by addition, which drops what is known to be there and was not counted.
        keys.setdefault(side, Counter()).update(kinds)
    return msgspec.structs.replace(
        now, counters=counters, keys={side: {**kinds} for side, kinds in keys.items()}, **added
    )


@contextmanager
def _signals_heard(stop: Callable[[], None]) -> Iterator[None]:
    """Let the first SIGINT or SIGTERM call `stop` in a block; a second one ends it at once."""
    before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def heard(number: int, frame: object) -> None:
        for known in before:
            signal.signal(known, raising)
        stop()

    def raising(number: int, frame: object) -> None:
        raise SamzaError("stopped at once: what was not yet committed will be processed again")

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            before[int(number)] = signal.signal(number, heard)
    try:
        yield
    finally:
        for known, handler in before.items():
            signal.signal(known, handler)
