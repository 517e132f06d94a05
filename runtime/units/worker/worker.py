"""The worker: it runs units, the loop that runs everywhere for one task of one stage, between two shuffles."""

from __future__ import annotations

import asyncio
import gc
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextlib import closing
from functools import cache, lru_cache
from pathlib import Path
from typing import TypeVar, cast

import msgspec
import pyarrow as pa

from operators.core.base import NEVER
from operators.partition_by import PartitionBy
from operators.task import Effects
from planner.columnar.lowering import ColumnStart
from planner.columnar.projection import Reshaped
from planner.model.levers import Levers
from planner.model.plan import Options, StagePlan
from runtime.assembly.assembly import Assembly
from runtime.assembly.bindings import Bindings, intermediate_of
from runtime.assembly.history import begun_at, follow
from runtime.commit.commit import Committer
from runtime.encoding.formats.rows import type_of_rows
from runtime.encoding.keys import KeySerde
from runtime.encoding.serdes import Tagged
from runtime.functions.user_functions import close_all
from runtime.job.key_kinds import MOST_EQUAL, to_note
from runtime.loop.loop import LoopMode
from runtime.model.checkpoint import Position
from runtime.model.clock import Clock, SystemClock
from runtime.model.garbage import MADE, collector_patient
from runtime.model.metrics import RunMetrics
from runtime.ports.sink import Sink
from runtime.reading.folding import Columnar
from runtime.run.composition import Composition
from runtime.run.measurement import measure
from runtime.systems.files.files import open_sink
from runtime.systems.host.durable import make_durable
from runtime.units.carried_error import carried
from runtime.units.heartbeats import Said, Saying
from runtime.units.micro_batch import MicroBatch, Snapshot
from runtime.units.program import Program, ShippedJob, Unit
from runtime.units.shipping import loads
from runtime.units.shuffle_rows import AttemptReport, BlockRun, beginnings, runs_of, to_bytes
from runtime.units.staging import attempted
from runtime.units.topic_rows import SUFFIX as ROWS
from runtime.units.topic_rows import RowsFile
from runtime.units.worker.columnar import ColumnarFolding, ColumnarPreparing, ColumnarReshaping
from runtime.units.worker.environment import MERGED, TaskEnvironment
from runtime.units.worker.micro_batch_environment import KeptEnvironment

T = TypeVar("T")

COMMIT_INTERVAL_MS = 10_000
PROGRAMS_KEPT = 4
LEAST_SAMPLED = 64
"""The keys of an operator that a unit tells the driver, however many units there are."""
COLUMNAR = 8
"""The factor by which more records than usual are taken in at once where they come in columns."""


class InlineExecutor(Executor):
    """Does what it is given in the calling thread: a commit in a worker waits for nothing."""

    def submit(self, fn: Callable[..., T], /, *args: object, **kwargs: object) -> Future[T]:
        """Call the function, and return what came of it."""
        done: Future[T] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except BaseException as error:
            done.set_exception(error)
        return done


@lru_cache(PROGRAMS_KEPT)
def program_of(data: bytes) -> Program:
    """Return the program of these bytes, which a process unpacks once."""
    program: Program = loads(data)
    return program


def run_level(
    data: bytes, micro_batches: bytes, level: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run the units of a level to which these rows come, as `run_units` does, in a micro-batch of each job or whole.

    Raises what a unit fails with, in words that the driver makes the same error of.
    """
    with carried():
        _rest_from_collecting(len(sys.modules))
        program = program_of(data)
        yield from run_units(program.at(pickle.loads(micro_batches)) if micro_batches else program, level, batches)


def run_alone(run: Callable[..., Iterator[pa.RecordBatch]], targets: Iterable[int]) -> Iterator[bytes]:
    """Run units of the only level that there is; yield in bytes what they leave."""
    yield from map(to_bytes, run(0, [beginnings(targets)]))


@cache
def _rest_from_collecting(modules: int) -> None:
    """Keep Python's collector from what a worker has imported, and let it look seldom at what it makes.

    Spark collects behind each task anyway, so what is frozen where another one begins is no garbage, and to look at all
    modules each time would take longer than a small task. A first task imports more than is there when it begins, so a
    process freezes anew with each count of modules. Rows that are kept are gone before the collector looks at them.
    """
    gc.freeze()
    gc.set_threshold(MADE)


def run_units(
    program: Program, level: int, batches: Iterable[pa.RecordBatch], clock: Clock | None = None
) -> Iterator[pa.RecordBatch]:
    """Run the units of a level to which these rows come; yield what they write, and what is for later levels."""
    here = program.levels[level]
    runs = _Runs(runs_of(batches))
    while (first := runs.head()) is not None:
        if first.target not in here:
            yield from (run.rows for run in runs.of(first.target))
            continue
        if first.target == 0 and len(program.levels) > 1:
            # One unit says for all of later levels that they begin: a unit for which no row comes must run all the
            # same, as it may have to tell of its end.
            yield beginnings(range(here.stop, len(program.units)))
        mine = runs.of(first.target)
        yield from run_unit(program, first.target, mine, clock or SystemClock())
        for _ in mine:
            pass  # what it was not asked for, as where a task of the user's ended it


class _Runs:
    """Runs of rows, one target after the other."""

    def __init__(self, runs: Iterator[BlockRun]) -> None:
        self._runs = runs
        self._head: BlockRun | None = next(runs, None)

    def head(self) -> BlockRun | None:
        """Return the next one, and leave it there."""
        return self._head

    def of(self, target: int) -> Iterator[BlockRun]:
        """Yield those of a target that come next."""
        while self._head is not None and self._head.target == target:
            head, self._head = self._head, None
            yield head
            self._head = next(self._runs, None)


def run_unit(program: Program, number: int, runs: Iterator[BlockRun], clock: Clock) -> Iterator[pa.RecordBatch]:
    """Run one unit to its end, and yield what it commits as it goes; at the end a report of it."""
    with (
        closing(new_event_loop()) as loop,
        closing(_environment(program, number, runs, loop.stop)) as environment,
    ):
        driving = loop.create_task(_driven(program, number, environment, clock))

        def stop(_: object) -> None:
            loop.stop()

        driving.add_done_callback(stop)
        try:
            while not driving.done():
                # Until a commit stops it, or the unit is through: rows go out before it runs on.
                loop.run_forever()
                yield from environment.take()
            report, writes = driving.result()
            if program.jobs[program.units[number].job].hands_over:
                yield environment.last(writes)
            yield environment.tell(report)
        finally:
            if not driving.done():
                # Nobody asks for more: what is under way is cancelled, so that users' objects are closed.
                driving.remove_done_callback(stop)
                driving.cancel()
                loop.run_until_complete(asyncio.wait([driving]))


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return uvloop's event loop, which takes less to wake a call, or Python's where that is not installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _environment(
    program: Program, number: int, runs: Iterator[BlockRun], on_commit: Callable[[], None]
) -> TaskEnvironment | KeptEnvironment:
    batch = program.jobs[program.units[number].job].batch
    if batch is None:
        return TaskEnvironment(program, number, runs, on_commit)
    return KeptEnvironment(program, number, runs, on_commit, batch)


async def _driven(
    program: Program, number: int, environment: TaskEnvironment, clock: Clock
) -> tuple[AttemptReport, frozenset[str]]:
    """Run a unit, and return what came of it, with the streams between stages that it writes."""
    running = UnitRun(program, number, environment, clock)
    saying = Saying(program.heard_at, running.said) if program.heard_at is not None else None
    try:
        if saying is not None:
            saying.begin()
        await running.drive()
        report = running.report()
        if saying is not None:
            saying.say(running.said(done=True))
        return report, running.writes
    finally:
        if saying is not None:
            saying.close()
        running.release()


class UnitRun:
    """One task of one stage, put together as in any other run: `Assembly`, `Task` and `Loop`, over its own environment.

    It lives on the thread of its event loop, is driven once, and is released whatever became of it.
    """

    def __init__(self, program: Program, number: int, environment: TaskEnvironment, clock: Clock) -> None:
        unit = program.units[number]
        job = program.jobs[unit.job]
        self._kept = environment if isinstance(environment, KeptEnvironment) else None
        self._number, self._graph, self._clock = number, job.graph_of(unit.stage), clock
        self._sampled = max(MOST_EQUAL // len(program.units), LEAST_SAMPLED)
        self._started = self._clock.elapsed_ms()
        stage = job.plan.stages[unit.stage]
        self._files = {
            stream: attempted(directory, unit)
            for stream, directory in job.staging.items()
            if set(job.plan.stream(stream).written_by) & set(stage.operators)
        }
        written = {stream: _sink(job, stream, path) for stream, path in self._files.items()}
        self._bindings = Bindings(environment, self._graph, {**job.sources, **written})
        self._environment, self._job, self._unit = environment, job, unit
        ends = follow(job.history, self._bindings) if job.history is not None else {}
        columnar = _columnar(job, stage)
        specs = [self._graph.specs[id] for id in stage.operators]
        does_more = any(spec.stateful or spec.repartitions or spec.asynchronous for spec in specs)
        in_columns = any(not isinstance(one, ColumnarPreparing) for one in columnar.values())
        options = _options(job.plan.options, in_columns, writes_only=bool(self._files) and not does_more)
        plan = msgspec.structs.replace(job.plan, options=options)
        assembly = Assembly(
            plan,
            self._graph,
            self._bindings,
            self._clock,
            job.around,
            {**environment.checkpoints(plan.app), **begun_at(job.history, unit.task)},
            ends,
            lambda: self._loop.call_returned(),
            self._grant,
            job.directory,
            levers=Levers(relays=False),
            discovers=False,
            only=stage,
            merged=MERGED,
            columnar=columnar,
        )
        self._composition = composition = Composition(assembly, [unit.task])
        self._tasks, self._functions = composition.tasks, composition.functions
        # In a bounded run nobody looks at state between commits: it is put away only when it is much.
        least_state = plan.options.max_uncommitted // 2 if job.batch is None and job.state is None else 0
        committer = Committer(plan.app, 0, self._bindings, self._clock, {}, {}, least_state)
        committer.is_heard_everywhere = True
        self._loop = composition.loop(committer, InlineExecutor(), LoopMode(per_second=_share(program, unit)))
        if job.batch is not None:
            self._take_up(job.batch, job.batch.begin(unit.stage, unit.task))

    async def drive(self) -> None:
        """Run to the end; raises what ended it before its time, once the users' objects are closed."""
        try:
            for functions in self._functions:
                await functions.open()
            with collector_patient():
                await self._run()
        except BaseException:
            await self._close(quietly=True)
            raise
        await self._close()

    async def _run(self) -> None:
        """Run until the inputs end, or until all is done that a micro-batch has."""
        if self._kept is None:
            await self._loop.run()
            return
        running = asyncio.ensure_future(self._loop.run())
        try:
            await self._loop.idle()
            self._loop.stop()
            await running
        finally:
            if not running.done():
                running.cancel()
                await asyncio.wait([running])

    def report(self) -> AttemptReport:
        """Return what came of it."""
        snapshot = None if self._kept is None else self._left(self._kept)
        for path in (path for name, path in self._files.items() if name in self._job.kept and path.is_file()):
            make_durable(path)
        files = {name: str(path) for name, path in self._files.items()}
        rows = self._environment.finish_rows()
        for lane in (lane for task in self._tasks for lane in task.lanes):
            lane.chain.tell_keys(self._sampled)
        seen = {id: one.equal.sample(self._sampled) for task in self._tasks for id, one in task.kinds.items()}
        report = AttemptReport(self._number, files, self._metrics(), seen=seen, snapshot=snapshot, rows=rows)
        if self._job.state is None:
            return report
        directory = attempted(self._job.state, self._unit)
        state = (
            msgspec.structs.replace(one, file=str(directory / one.file))
            for one in self._environment.put_away(directory)
        )
        keys = {name: said for task in self._tasks for name, said in to_note(task.kinds).items()}
        return msgspec.structs.replace(report, positions=tuple(self._positions()), state=tuple(state), keys=keys)

    def said(self, done: bool = False) -> Said:
        """Return how far it is."""
        return Said(self._number, self._metrics(), self._environment.written, done)

    def _metrics(self) -> RunMetrics:
        found = measure({}, self._graph, self._loop, self._clock.elapsed_ms() - self._started, self._clock)
        return msgspec.structs.replace(found, inputs=tuple(map(self._environment.passed, found.inputs)))

    @property
    def writes(self) -> frozenset[str]:
        """The streams between stages that the unit writes."""
        return frozenset(stream for task in self._tasks for lane in task.lanes for stream in lane.writes)

    def _positions(self) -> Iterator[Position]:
        for task in self._tasks:
            for reader in task.readers:
                yield self._environment.told_last(reader.position())

    def _left(self, kept: KeptEnvironment) -> Snapshot:
        """Return what the next micro-batch goes on from, with the time by which there is to be one."""
        lanes = [lane for task in self._tasks for lane in task.lanes]
        if any(lane.readers for lane in lanes):  # who has nothing to read says nothing of event time
            kept.tell_event_time()
        now_ms, elapsed_ms = self._clock.now_ms(), self._clock.elapsed_ms()
        timers = [timer for task in self._tasks for timer in task.timers]
        due_ms = {timer.operator: int(now_ms + timer.due_ms - elapsed_ms) for timer in timers}
        wake_ms = min([*due_ms.values(), *(task.next_alarm for task in self._tasks)])
        snapshot = kept.left()
        return msgspec.structs.replace(snapshot, due_ms=due_ms, wake_ms=None if wake_ms >= NEVER else wake_ms)

    def _grant(self, effects: Effects) -> None:
        """Do what a task's own function has asked; what a micro-batch has is all done, whoever asks for an end."""
        if self._kept is None:
            self._loop.grant(effects)
        elif effects.commit:
            self._loop.want_commit()

    def _take_up(self, batch: MicroBatch, begun_with: Snapshot) -> None:
        """Let what goes by the clock go on from the last micro-batch."""
        now_ms, elapsed_ms = self._clock.now_ms(), self._clock.elapsed_ms()
        for timer in (timer for task in self._tasks for timer in task.timers):
            if timer.operator in begun_with.due_ms:
                timer.due_ms = elapsed_ms + begun_with.due_ms[timer.operator] - now_ms
        for reader in (reader for task in self._tasks for lane in task.lanes for reader in lane.readers):
            quiet = batch.quiet.get((reader.origin.stream, reader.origin.partition))
            if quiet is not None and not reader.later:
                reader.was_quiet(elapsed_ms, quiet.since_record_ms, quiet.since_batch_ms)

    def release(self) -> None:
        """Let go of threads and of what was bound."""
        self._composition.release()
        self._bindings.close()

    async def _close(self, quietly: bool = False) -> None:
        failures = await close_all(self._functions)
        if failures and not quietly:
            raise failures[0]


def _columnar(job: ShippedJob, stage: StagePlan) -> dict[str, Columnar]:
    """Return what takes in the inputs of a stage that lie in columns."""
    counted = {segment.entry: segment.counted for segment in stage.segments}
    found: dict[str, Columnar] = {}
    for entry, one in job.lowered.items():
        if entry not in counted:
            continue
        if isinstance(one, Reshaped):
            found[entry] = ColumnarReshaping(one, counted[entry])
            continue
        if isinstance(one, ColumnStart):
            found[entry] = ColumnarPreparing(one, type_of_rows(job.graph.inputs[entry].value))
            continue
        spec = cast(PartitionBy, job.graph.specs[one.exit])
        partitions = job.streams[intermediate_of(job.graph, spec)].partitions
        keys = KeySerde(job.graph.key_serde(one.exit) or Tagged())
        found[entry] = ColumnarFolding(one, keys, spec.by, partitions, counted[entry])
    return found


def _share(program: Program, unit: Unit) -> float | None:
    """Return how many records a second a unit may read, where no more run at a time than is known."""
    job = program.jobs[unit.job]
    if job.history is None or job.history.per_second is None:
        return None
    reading = sum(stage.partitions for stage, reads in zip(job.plan.stages, job.reads, strict=True) if not reads)
    return job.history.per_second / max(1, min(program.at_once, reading))


def _sink(job: ShippedJob, stream: str, path: Path) -> Sink:
    """Return what takes an attempt's part of an output; of a whole run it is made durable at the end."""
    if path.suffix == ROWS:
        return RowsFile(path, job.streams[stream].partitions)
    return open_sink(path, lasting=job.batch is not None)


def _options(options: Options, columnar: bool, writes_only: bool) -> Options:
    """Return the options of a unit: it commits to hand on what it has made, and not to be found again there.

    Of columns it takes in more at once. Where it only writes files it does so often, before what it wrote is out of the
    processor's caches.
    """
    batch_records = options.batch_records * (COLUMNAR if columnar else 1)
    most = min(options.max_uncommitted, 2 * batch_records) if writes_only else options.max_uncommitted
    interval_ms = max(options.commit_interval_ms, COMMIT_INTERVAL_MS)
    return msgspec.structs.replace(
        options, commit_interval_ms=interval_ms, batch_records=batch_records, max_uncommitted=most
    )
