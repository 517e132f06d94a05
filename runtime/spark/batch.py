"""A bounded run on Spark: its units are scheduled level by level, and its results published when all are through."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from planner.graph import Graph
from planner.plan import Options
from runtime.clock import monotonic_ms
from runtime.driving import Watch
from runtime.functions import Around
from runtime.history import Span
from runtime.metrics import RunMetrics
from runtime.run import Cluster
from runtime.spark.application import Application
from runtime.spark.carried import told
from runtime.spark.handing_over import StagedHandover
from runtime.spark.hearing import Address
from runtime.spark.program import Program
from runtime.spark.rows import ORDER, SCHEMA, SPARK_SCHEMA, Part, Report, decode_told, from_bytes
from runtime.spark.running import Running, watched
from runtime.spark.session import Spark, plainly_planned
from runtime.spark.ship import shipped
from runtime.spark.spoken import as_said
from runtime.spark.worker import run_alone, run_level
from runtime.systems.base import Environment
from runtime.systems.kafka_topic import cluster_of
from runtime.talk import combined

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from runtime.spark.streamed import Streamed


class SparkRun:
    """A run on Spark that is over: its plan, its numbers, and what it has written."""

    failed = stopping = False

    def __init__(self, application: Application | Streamed, metrics: RunMetrics) -> None:
        self.plan = application.plan
        self._application, self._metrics = application, metrics

    def metrics(self, stores: bool = True) -> RunMetrics:
        """Return what it came to, task by task; there are no stores any more."""
        return self._metrics

    def received(self, stream: str) -> list[Any]:
        """Return the values of an output, partition by partition; dead letters are bytes.

        Raises SamzaError for an output that is bound to a file.
        """
        return self._application.values_of(stream)


def run_batch(
    graph: Graph,
    options: Options,
    around: tuple[Around, ...],
    data: str | Path | Environment,
    *,
    on: Spark,
    bind: Mapping[str, Any] | None = None,
    span: Span | None = None,
    handover: StagedHandover | None = None,
    environment: Cluster = None,
    watch: Watch | None = None,
) -> SparkRun:
    """Run an application on Spark over what its inputs hold now, to its end; raises what the live run would raise.

    `watch(run)` is awaited beside it, on a thread of its own.
    With a `span` it is run over that part of them, and what it came to there handed over. Where an earlier run has died
    while it published to topics, that is done, and nothing else.
    """
    application = Application(graph, options, around, data, bind or {}, span, handover, cluster_of(environment))
    with closing(application):
        session = None if application.is_unpublished else on.opened()
        running = Running(application.plan)
        with watched(running, watch), running.failing():
            done = _run(application, session, None if watch is None else running)
            running.end(done.metrics())
    return done


def _run(application: Application, session: SparkSession | None, running: Running | None) -> SparkRun:
    if session is None:
        return SparkRun(application, application.go_on())
    if running is None:
        return run_together(session, [application])[0]
    with running.heard(session) as heard_at:
        see = partial(running.see, application.job)
        return run_together(session, [application], heard_at=heard_at, on_shipped=see)[0]


def run_together(
    session: SparkSession,
    applications: Sequence[Application],
    most_tasks: int | None = None,
    heard_at: Address | None = None,
    on_shipped: Callable[[], None] = lambda: None,
) -> list[SparkRun]:
    """Run several applications in one job of Spark, at most `most_tasks` tasks a level; then publish each."""
    started = monotonic_ms()
    try:
        at_once = session.sparkContext.defaultParallelism
        program = Program(tuple(application.job for application in applications), at_once, heard_at)
        data = shipped(program)
        on_shipped()
        rows = run_job(session, data, program, most_tasks)
    except BaseException:
        for application in applications:
            application.close()
        raise
    return finish(applications, program, rows, monotonic_ms() - started)


def finish(applications: Sequence[Application], program: Program, rows: pa.Table, elapsed_ms: float) -> list[SparkRun]:
    """Publish what the last level has left of each application, and let go of it."""
    try:
        parts, reports = told_by(rows, program)
        return [
            _published(application, parts[job], reports[job], elapsed_ms)
            for job, application in enumerate(applications)
        ]
    finally:
        for application in applications:
            application.close()


def run_job(
    session: SparkSession, data: bytes, program: Program, most_tasks: int | None = None, micro_batches: bytes = b""
) -> pa.Table:
    """Run all levels of a program, `data` in bytes; return what they tell the driver.

    Raises the error of ours that a worker has raised, and SamzaError for what Spark itself says.
    """
    try:
        run = partial(run_level, data, micro_batches)
        if len(program.levels) == 1:
            return _at_once(session, len(program.units), most_tasks, run)
        return _frame(session, program, most_tasks, run).toArrow()
    except Exception as error:
        same = told(error)
        if same is not None:
            raise same from same.__cause__
        raise as_said(error) from None


def _at_once(session: SparkSession, units: int, most_tasks: int | None, run: Callable[..., Any]) -> pa.Table:
    """Return what the only level leaves: where nothing is shuffled Spark has nothing to plan."""
    numbers = session.sparkContext.parallelize(range(units), min(units, most_tasks or units))
    return from_bytes(numbers.mapPartitions(partial(run_alone, run)).collect())


def _frame(session: SparkSession, program: Program, most_tasks: int | None, run: Callable[..., Any]) -> DataFrame:
    """Return what the last level leaves: every level reads, sorted, what the one before it wrote for its units."""
    from pyspark.sql import functions

    first, *later = (min(len(units), most_tasks or len(units)) for units in program.levels)
    columns = {field.name: functions.lit(None).cast(kind) for field, kind in zip(SCHEMA, _kinds(), strict=True)}
    columns |= {"target": functions.col("id").cast("int"), "watermark": functions.lit(0), "stream": functions.lit(-1)}
    begun = plainly_planned(session, len(program.levels[0]), first)
    frame = _level(begun.select(*(column.alias(name) for name, column in columns.items())), run, 0)
    for level, tasks in enumerate(later, 1):
        place = functions.col("target") - program.levels[level].start
        frame = _level(frame.repartitionById(tasks, place).sortWithinPartitions(*ORDER), run, level)
    return frame


def _level(frame: DataFrame, run: Callable[..., Any], level: int) -> DataFrame:
    return frame.mapInArrow(partial(run, level), SPARK_SCHEMA)


def _kinds() -> list[str]:
    return [column.split()[1] for column in SPARK_SCHEMA.split(", ")]


def told_by(table: pa.Table, program: Program) -> tuple[list[list[Part]], list[list[Report]]]:
    """Return what is told to the driver by application, in the order of its units."""
    parts: list[list[Part]] = [[] for _ in program.jobs]
    reports: list[list[Report]] = [[] for _ in program.jobs]
    in_order = table.select(["producer", "sequence", "value"]).sort_by(
        [("producer", "ascending"), ("sequence", "ascending")]
    )
    for one in (decode_told(value.as_buffer()) for value in in_order.column("value")):
        if isinstance(one, Part):
            parts[program.units[one.unit].job].append(one)
        else:
            reports[program.units[one.unit].job].append(one)
    return parts, reports


def _published(application: Application, parts: list[Part], reports: list[Report], elapsed_ms: float) -> SparkRun:
    metrics = msgspec.structs.replace(combined([report.metrics for report in reports]), elapsed_ms=elapsed_ms)
    application.publish(parts, reports, metrics)
    return SparkRun(application, metrics)
