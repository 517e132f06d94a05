"""A bounded run on Spark: its units are scheduled level by level, and its results published when all are through."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from copy import copy
from dataclasses import replace
from functools import cache, partial
from itertools import count
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING

from planner.model.plan import Plan, whole
from planner.passes import plan as make_plan
from runtime.assembly.distinct_places import check_distinct
from runtime.job.pipeline import Pipeline
from runtime.model.errors import SamzaError
from runtime.model.metrics import RunMetrics
from runtime.ports.environment import Environment
from runtime.run.driver import Watch
from runtime.run.settings import UNSAID, RunSettings
from runtime.spark.connection import SparkConnection, ThroughJvm, arrow_of, connected
from runtime.spark.laid_down import laid_down
from runtime.spark.own_code import own_version, run_level_of, with_own_code
from runtime.spark.progress import Running, watched
from runtime.spark.session import Spark, is_of_connect, tell_order
from runtime.spark.spark_errors import as_said
from runtime.spark.table_outputs import KeptOutputs
from runtime.systems.kafka.client.topic import address_of, cluster_of
from runtime.units.carried_error import told
from runtime.units.driver.application import Application, check_free, is_publishing
from runtime.units.driver.connected import Connected
from runtime.units.driver.engine import BatchRun, Runnable, run_together
from runtime.units.program import Program
from runtime.units.publication.handover_parts import StagedHandover
from runtime.units.shuffle_rows import ORDER, SCHEMA, SPARK_SCHEMA, from_bytes
from runtime.units.worker.worker import run_alone

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    Level = Callable[..., Iterator[pa.RecordBatch]]


_log = logging.getLogger("samza_dsl")
LONGEST = 200
"""The characters of the longest name of a stage."""
TASKS_FOR_EACH = 16
"""The tasks of Spark, for each that runs at once, beyond which units share one: a task costs more than a small unit."""


class SparkEngine:
    """A session of Spark as a batch engine: each level is one `mapInArrow`, with a shuffle before it."""

    def __init__(self, session: SparkSession, most_tasks: int | None = None) -> None:
        self._connection, self._most_tasks = connected(session), most_tasks

    @property
    def at_once(self) -> int:
        """The number of tasks that the session runs at the same time."""
        return self._connection.at_once

    @property
    def imported(self) -> Sequence[str]:
        """The folders and zips here whose modules workers import by themselves."""
        return self._connection.imported

    def run(self, data: bytes, program: Program) -> pa.Table:
        """Run every level, in at most `most_tasks` tasks each, or as many as pay."""
        return run_job(self._connection, data, program, self._most_tasks)


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
    on_brokers = cluster_of(settings.environment) is not None
    check_distinct(pipeline.graph, settings.bind or {}, address_of(settings.environment))
    places = Connected(pipeline.graph, settings.bind or {}, data, on_brokers)
    said = places.outputs(settings.bind or {})
    kept = KeptOutputs(on, pipeline.graph, said, data, settings.collect)
    with kept.begun():
        bound = kept.bound(said)
        # An earlier run's files, topics and handover come before its tables: laid down, these are not yet its end.
        goes_on = is_publishing(pipeline.graph, bound, data)
        left = None if goes_on else kept.left
        if not goes_on and (left is not None or places.is_left):
            _tell_left(pipeline.graph.app)
            # Only tables are written that do not have its rows yet, and sinks that have not all of them.
            if left is not None:
                kept.finish(left)
            places.deliver()
            alone = KeptAlone(make_plan(pipeline.graph, whole(pipeline.options)))
            return SparkRun(alone, left or RunMetrics(), kept, on)
        if not goes_on:
            # Before inputs are laid down, which may take long.
            check_free(pipeline.graph, bound, data, cluster_of(settings.environment))
        kept.begin(goes_on)
        with laid_down(on, pipeline.graph, places.inputs(bound), data) as bind:
            done = _run_bound(pipeline, data, on, replace(settings, bind=bind), handover, watch)
        kept.finish(done.metrics())
        places.deliver()
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
        if session is None:
            _tell_left(application.plan.app)
        running = Running(application.plan)
        tell_order(application.plan)
        with watched(running, watch), running.failing():
            done = _run(application, session, None if watch is None else running)
            running.end(done.metrics())
    return done


def _tell_left(app: str) -> None:
    _log.warning(
        "%s: an earlier run was through, and ended before all of its results were in place: they come there now, and "
        "nothing is read or computed",
        app,
    )


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
        collected, self._on = kept.collected(), on
        self._collected = collected.outputs
        kept.tidy()
        # Spark reads the rows when they are asked for: they stay for as long as somebody may ask.
        self._removing = weakref.finalize(self, collected.remove)

    def output(self, stream: str) -> DataFrame:
        """Return the rows of an output that was collected, of which nothing is read before Spark is asked for it.

        They stay for as long as anybody has the run, or a frame that was made of this one. Raises SamzaError for an
        output that was not collected, and once the run is closed.
        """
        one = self._collected.get(stream)
        if one is None or not one.path.exists():
            names = ", ".join(self._collected) or "none"
            raise SamzaError(f"output({stream!r}): it was not collected, or the run is closed; collected are: {names}")
        frame = one.frame(self._on.opened())
        holder: object = frame
        if not is_of_connect(frame.sparkSession):
            # Each frame that is made of this one has its session, and so the run, with which the rows would go.
            holder = frame._session = copy(frame.sparkSession)
        holder._samza_dsl_run = self  # type: ignore[attr-defined]
        return frame

    def received(self, stream: str) -> list[object]:
        """Return the values of an output; raises SamzaError for one that is a table, or bound to a file."""
        if stream in self._tables:
            raise SamzaError(f"received({stream!r}): the output is in {self._tables[stream]}; read it there")
        if stream in self._collected:
            raise SamzaError(f"received({stream!r}): the output was collected: run.output({stream!r}) has its rows")
        return super().received(stream)

    def close(self) -> None:
        """Remove the rows that were collected; a second call does nothing."""
        self._removing()


def _run(application: Application, session: SparkSession | None, running: Running | None) -> BatchRun:
    if session is None:
        return BatchRun(application, application.go_on())
    if running is None:
        return run_together(SparkEngine(session), [application])[0]
    with running.heard(*connected(session).heard_at) as heard_at:
        see = partial(running.see, application.job)
        return run_together(SparkEngine(session), [application], heard_at=heard_at, on_shipped=see)[0]


def run_job(
    connection: SparkConnection,
    data: bytes,
    program: Program,
    most_tasks: int | None = None,
    micro_batches: bytes = b"",
    about: str = "",
) -> pa.Table:
    """Run all levels of a program, `data` in bytes; return what they tell the driver.

    Spark's UI shows the names of the applications and what they are `about`, and by stage those of their operators.
    Raises the error of ours that a worker has raised, and SamzaError for what Spark itself says.
    """
    run = partial(run_level_of, own_version(), data, micro_batches)
    apps = ", ".join(dict.fromkeys(job.plan.app for job in program.jobs))
    try:
        with connection.named(f"samza-dsl {apps}", f"{apps}{about}"):
            most_tasks = most_tasks or _most_tasks(connection, program)
            return with_own_code(connection, partial(_run_levels, connection, program, most_tasks, run))
    except SamzaError:
        raise
    except Exception as error:
        # Spark wraps the error of a worker in words of its own: the error of ours is in there, and is raised as it
        # was.
        same = told(error)
        if same is not None:
            raise same from same.__cause__
        raise as_said(error) from None


def _most_tasks(connection: SparkConnection, program: Program) -> int:
    """Return the most tasks that a level may have, as of thousands of small files each would be one.

    The session's own number of tasks behind a shuffle is never too many: executors may come only when tasks wait.
    """
    units, most = max(map(len, program.levels)), TASKS_FOR_EACH * connection.at_once
    if units <= most:
        return units
    return max(most, int(connection.session.conf.get("spark.sql.shuffle.partitions") or 0))


def _run_levels(connection: SparkConnection, program: Program, most_tasks: int, run: Level) -> pa.Table:
    # Without a shuffle there is nothing for Spark SQL to plan, which takes its time.
    if len(program.levels) == 1 and isinstance(connection, ThroughJvm):
        tasks = min(len(program.units), most_tasks)
        return _at_once(connection, len(program.units), tasks, run, names_of_levels(program)[0])
    return arrow_of(_frame(connection, program, most_tasks, run))


def _at_once(connection: ThroughJvm, units: int, tasks: int, run: Level, name: str) -> pa.Table:
    """Return what the only level leaves: where nothing is shuffled Spark has nothing to plan."""
    connection.name_stage(name)
    context = connection.session.sparkContext
    numbers = context.parallelize(range(units), tasks)
    return from_bytes(numbers.mapPartitions(partial(run_alone, run)).collect())


def _frame(connection: SparkConnection, program: Program, most_tasks: int, run: Level) -> DataFrame:
    """Return what the last level leaves: every level reads, sorted, what the one before it wrote for its units."""
    from pyspark.sql import functions

    names = names_of_levels(program)
    first, *later = (min(len(units), most_tasks) for units in program.levels)
    columns = {field.name: functions.lit(None).cast(kind) for field, kind in zip(SCHEMA, _kinds(), strict=True)}
    columns |= {"target": functions.col("id").cast("int"), "watermark": functions.lit(0), "stream": functions.lit(-1)}
    begun = connection.numbers(len(program.levels[0]), first)
    frame = _level(begun.select(*(column.alias(name) for name, column in columns.items())), run, 0, names[0])
    for level, tasks in enumerate(later, 1):
        place = functions.expr(sent_to(tasks, f"target - {program.levels[level].start}"))
        # By the number of the unit itself, not its hash, so that units spread evenly; sorted, so that a unit closes
        # windows as it reads.
        frame = _level(frame.repartition(tasks, place).sortWithinPartitions(*ORDER), run, level, names[level])
    connection.name_stages(frame, names)
    return frame


def names_of_levels(program: Program) -> list[str]:
    """Return what Spark's UI calls the levels: the stages that run there, and their operators."""
    names: list[list[str]] = [[] for _ in program.levels]
    for job in program.jobs:
        for stage, level in zip(job.plan.stages, job.levels, strict=True):
            app = f"{job.plan.app} " if len(program.jobs) > 1 else ""
            names[level].append(f"{app}{stage.id}: {', '.join(stage.operators)}")
    return [shorten(", ".join(stages), LONGEST, placeholder="…") for stages in names]


@cache
def sent_to(tasks: int, place: str) -> str:
    """Return an expression of SQL of which Spark's hash is that task of so many: it is that of an int that was tried.

    PySpark has `repartitionById` since 4.1 alone, which does the same.

    >>> sent_to(2, "target - 3")
    'element_at(array(2, 0), 1 + pmod(target - 3, 2))'
    """
    found: dict[int, int] = {}
    for number in count():
        found.setdefault(spark_hash(number) % tasks, number)
        if len(found) == tasks:
            numbers = ", ".join(str(found[task]) for task in range(tasks))
            return f"element_at(array({numbers}), 1 + pmod({place}, {tasks}))"
    raise AssertionError("an int has each of the hashes")


def spark_hash(number: int) -> int:
    """Return what Spark hashes an int to, from which it takes the task: Murmur3 of 32 bits, with its seed 42."""
    most = 0xFFFFFFFF
    word = number * 0xCC9E2D51 & most
    word = (word << 15 | word >> 17) & most
    found = 42 ^ (word * 0x1B873593 & most)
    found = (found << 13 | found >> 19) & most
    found = (found * 5 + 0xE6546B64 & most) ^ 4
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        found = (found ^ found >> shift) * factor & most
    found ^= found >> 16
    return found - (1 << 32) if found >> 31 else found


def _level(frame: DataFrame, run: Level, level: int, name: str) -> DataFrame:
    function = partial(run, level)
    # The name of the function is what Spark shows of it in its plan.
    function.__name__ = name  # type: ignore[attr-defined]
    return frame.mapInArrow(function, SPARK_SCHEMA)


def _kinds() -> list[str]:
    return [column.split()[1] for column in SPARK_SCHEMA.split(", ")]
