"""A bounded run on Spark: its units are scheduled level by level, and its results published when all are through."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from planner.model.plan import Plan
from planner.passes import plan as make_plan
from runtime.job.pipeline import Pipeline
from runtime.model.errors import SamzaError
from runtime.model.metrics import RunMetrics
from runtime.ports.environment import Environment
from runtime.run.driver import Watch
from runtime.run.settings import UNSAID, RunSettings
from runtime.spark.laid_down import laid_down
from runtime.spark.progress import Running, watched
from runtime.spark.session import Spark, plainly_planned, tell_order
from runtime.spark.spark_errors import as_said
from runtime.spark.table_outputs import KeptOutputs, remove
from runtime.systems.kafka.client.topic import cluster_of
from runtime.units.carried_error import told
from runtime.units.driver.application import Application, intent_of
from runtime.units.driver.engine import BatchRun, Runnable, run_together
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
) -> SparkRun:
    """Run an application on Spark over what its inputs hold now, to its end; raises what the live run would raise.

    It heeds the settings `bind`, `span` and `environment`. `watch(run)` is awaited beside it, on its own thread.
    With a `span` it is run over that part of them, and what it came to there handed over. Where an earlier run has died
    while it published to topics, that is done, and nothing else.
    """
    kept = KeptOutputs(on, pipeline.graph, settings.bind or {}, data, settings.collect)
    with kept.begun():
        left = kept.left if kept else None
        if left is not None:
            # An earlier run was through: only tables are written that do not have its rows yet.
            kept.finish(left)
            return SparkRun(KeptAlone(make_plan(pipeline.graph, pipeline.options)), left, kept, on)
        bound = kept.bound(settings.bind or {})
        intent = intent_of(pipeline.graph, bound, data)
        kept.begin(goes_on=intent is not None and intent.exists())
        with laid_down(on, pipeline.graph, bound, data) as bind:
            done = _run_bound(pipeline, data, on, replace(settings, bind=bind), handover, watch)
        kept.finish(done.metrics())
        return SparkRun(done.application, done.metrics(), kept, on)


def _run_bound(
    pipeline: Pipeline,
    data: str | Path | Environment,
    on: Spark,
    settings: RunSettings,
    handover: StagedHandover | None,
    watch: Watch | None,
) -> BatchRun:
    """Run an application over inputs and into outputs that workers open themselves."""
    cluster = cluster_of(settings.environment)
    application = Application(pipeline, data, settings.bind or {}, settings.span, handover, cluster)
    with closing(application):
        session = None if application.is_unpublished else on.opened()
        running = Running(application.plan)
        tell_order(application.plan)
        with watched(running, watch), running.failing():
            done = _run(application, session, None if watch is None else running)
            running.end(done.metrics())
    return done


class KeptAlone:
    """An application whose run was through before, of which the plan is left."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def values_of(self, stream: str) -> list[object]:
        """Raise SamzaError: the values are where an earlier run has put them."""
        raise SamzaError(f"received({stream!r}): an earlier run has computed it, and this one has only put it in place")


class SparkRun(BatchRun):
    """A bounded run on Spark that is over, some outputs of which are tables, or DataFrames until it is closed."""

    def __init__(self, application: Runnable, metrics: RunMetrics, kept: KeptOutputs, on: Spark) -> None:
        super().__init__(application, metrics)
        self._tables = {name: one.into for name, one in kept.kept.items() if one.into is not None}
        self._collected, self._on = kept.collected(), on
        kept.tidy()
        places = {one.path.parent for one in self._collected.values()}
        # Spark reads the rows when they are asked for: they stay for as long as somebody may ask.
        self._removing = [weakref.finalize(self, remove, place) for place in places]

    def output(self, stream: str) -> DataFrame:
        """Return the rows of an output that was collected, of which nothing is read before Spark is asked for it.

        Raises SamzaError for an output that was not collected, and once the run is closed.
        """
        one = self._collected.get(stream)
        if one is None or not one.path.exists():
            names = ", ".join(self._collected) or "none"
            raise SamzaError(f"output({stream!r}): it was not collected, or the run is closed; collected are: {names}")
        return one.frame(self._on.opened())

    def received(self, stream: str) -> list[object]:
        """Return the values of an output; raises SamzaError for one that is a table, or bound to a file."""
        if stream in self._tables:
            raise SamzaError(f"received({stream!r}): the output is in {self._tables[stream]}; read it there")
        if stream in self._collected:
            raise SamzaError(f"received({stream!r}): the output was collected: run.output({stream!r}) has its rows")
        return super().received(stream)

    def close(self) -> None:
        """Remove the rows that were collected; a second call does nothing."""
        for removing in self._removing:
            removing()


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
