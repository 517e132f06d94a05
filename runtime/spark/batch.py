"""A bounded run on Spark: its units are scheduled level by level, and its results published when all are through."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.job.pipeline import Pipeline
from runtime.ports.environment import Environment
from runtime.run.driver import Watch
from runtime.run.settings import UNSAID, RunSettings
from runtime.spark.laid_down import laid_down
from runtime.spark.progress import Running, watched
from runtime.spark.session import Spark, plainly_planned, tell_order
from runtime.spark.spark_errors import as_said
from runtime.systems.kafka.client.topic import cluster_of
from runtime.units.carried_error import told
from runtime.units.driver.application import Application
from runtime.units.driver.engine import BatchRun, run_together
from runtime.units.program import Program
from runtime.units.publication.handover_parts import StagedHandover
from runtime.units.shuffle_rows import ORDER, SCHEMA, SPARK_SCHEMA, from_bytes
from runtime.units.worker.worker import run_alone, run_level

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    Level = Callable[..., Iterator[pa.RecordBatch]]


class SparkEngine:
    """A session of Spark as a batch engine: each level is one `mapInArrow`, with a shuffle before it."""

    def __init__(self, session: SparkSession, most_tasks: int | None = None) -> None:
        self._session, self._most_tasks = session, most_tasks

    @property
    def at_once(self) -> int:
        """The number of tasks that the session runs at the same time."""
        return int(self._session.sparkContext.defaultParallelism)

    def run(self, data: bytes, program: Program) -> pa.Table:
        """Run every level, in at most `most_tasks` tasks each."""
        return run_job(self._session, data, program, self._most_tasks)


def run_batch(
    pipeline: Pipeline,
    data: str | Path | Environment,
    on: Spark,
    settings: RunSettings = UNSAID,
    handover: StagedHandover | None = None,
    watch: Watch | None = None,
) -> BatchRun:
    """Run an application on Spark over what its inputs hold now, to its end; raises what the live run would raise.

    It heeds the settings `bind`, `span` and `environment`. `watch(run)` is awaited beside it, on its own thread.
    With a `span` it is run over that part of them, and what it came to there handed over. Where an earlier run has died
    while it published to topics, that is done, and nothing else.
    """
    cluster = cluster_of(settings.environment)
    with laid_down(on, pipeline.graph, settings.bind or {}, data) as bind:
        application = Application(pipeline, data, bind, settings.span, handover, cluster)
        with closing(application):
            session = None if application.is_unpublished else on.opened()
            running = Running(application.plan)
            tell_order(application.plan)
            with watched(running, watch), running.failing():
                done = _run(application, session, None if watch is None else running)
                running.end(done.metrics())
    return done


def _run(application: Application, session: SparkSession | None, running: Running | None) -> BatchRun:
    if session is None:
        return BatchRun(application, application.go_on())
    if running is None:
        return run_together(SparkEngine(session), [application])[0]
    with running.heard(session) as heard_at:
        see = partial(running.see, application.job)
        return run_together(SparkEngine(session), [application], heard_at=heard_at, on_shipped=see)[0]


def run_job(
    session: SparkSession, data: bytes, program: Program, most_tasks: int | None = None, micro_batches: bytes = b""
) -> pa.Table:
    """Run all levels of a program, `data` in bytes; return what they tell the driver.

    Raises the error of ours that a worker has raised, and SamzaError for what Spark itself says.
    """
    try:
        run = partial(run_level, data, micro_batches)
        # Without a shuffle there is nothing for Spark SQL to plan, which takes its time.
        if len(program.levels) == 1:
            return _at_once(session, len(program.units), most_tasks, run)
        return _frame(session, program, most_tasks, run).toArrow()
    except Exception as error:
        # Spark wraps the error of a worker in words of its own: the error of ours is in there, and is raised as it
        # was.
        same = told(error)
        if same is not None:
            raise same from same.__cause__
        raise as_said(error) from None


def _at_once(session: SparkSession, units: int, most_tasks: int | None, run: Level) -> pa.Table:
    """Return what the only level leaves: where nothing is shuffled Spark has nothing to plan."""
    numbers = session.sparkContext.parallelize(range(units), min(units, most_tasks or units))
    return from_bytes(numbers.mapPartitions(partial(run_alone, run)).collect())


def _frame(session: SparkSession, program: Program, most_tasks: int | None, run: Level) -> DataFrame:
    """Return what the last level leaves: every level reads, sorted, what the one before it wrote for its units."""
    from pyspark.sql import functions

    first, *later = (min(len(units), most_tasks or len(units)) for units in program.levels)
    columns = {field.name: functions.lit(None).cast(kind) for field, kind in zip(SCHEMA, _kinds(), strict=True)}
    columns |= {"target": functions.col("id").cast("int"), "watermark": functions.lit(0), "stream": functions.lit(-1)}
    begun = plainly_planned(session, len(program.levels[0]), first)
    frame = _level(begun.select(*(column.alias(name) for name, column in columns.items())), run, 0)
    for level, tasks in enumerate(later, 1):
        place = functions.col("target") - program.levels[level].start
        # By the number of the unit itself, not its hash, so that units spread evenly; sorted, so that a unit closes
        # windows as it reads.
        frame = _level(frame.repartitionById(tasks, place).sortWithinPartitions(*ORDER), run, level)
    return frame


def _level(frame: DataFrame, run: Level, level: int) -> DataFrame:
    return frame.mapInArrow(partial(run, level), SPARK_SCHEMA)


def _kinds() -> list[str]:
    return [column.split()[1] for column in SPARK_SCHEMA.split(", ")]
