"""The Spark session that runs a plan: the user's, the one that is active, or one that is begun."""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

from operators.core.durations import Duration, checked_ms
from operators.core.wording import shown
from planner.model.plan import Plan
from runtime.model.errors import SamzaError
from runtime.spark.spark_errors import as_said

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("samza_dsl")

JVM_OPTIONS = "spark.driver.extraJavaOptions"
NEEDS = "running on Spark needs {what}, which is not installed: pip install 'samza-dsl[spark]'"
OLDEST = (3, 5)
"""The oldest PySpark that a test has run jobs on."""
OLDEST_CONNECT = (4, 0)
"""The oldest whose frames of Spark Connect are DataFrames, and give their rows as Arrow."""
WORKERS = {
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
    "spark.python.unix.domain.socket.enabled": "true" if hasattr(socket, "AF_UNIX") else "false",
}
"""The settings of a session that is begun here, for its workers.

Between a worker and Spark small messages go to and fro, of which TCP holds the second back for 40 ms.
"""
LAUNCHED = "PYSPARK_GATEWAY_PORT"
"""The variable by which `spark-submit` tells a program of the JVM that has begun it."""


@dataclass(frozen=True)
class Spark:
    """The Spark that `app.run(on=...)` runs on: a session, or the one that is active, or one that is begun at `master`.

    `master` is Spark's own word for a cluster, as "local[4]" or "spark://host:7077"; without it a new session runs on
    all cores of this machine. `options` are Spark's own, for a new session.

    With a `checkpoint`, a directory that all workers see, it runs on and on in micro-batches, and goes on from there
    when it is started again. One begins every `interval_ms` where something has come, and reads at most `max_records`
    of a partition. Where the inputs `end`, what they have is all that there will be: when it is processed, everything
    that is open fires, and the run is over.

    >>> Spark(master="local[2]").checkpoint is None
    True
    """

    session: SparkSession | None = None
    master: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    checkpoint: str | Path | None = None
    interval_ms: Duration = 0
    max_records: int = 500_000
    end: bool = False

    def __post_init__(self) -> None:
        _check_said(self)
        object.__setattr__(self, "interval_ms", checked_ms("interval_ms", self.interval_ms))

    def opened(self) -> SparkSession:
        """Return the session; one that is begun here stays for later runs of the process.

        Raises SamzaError without PySpark, without Java, and where a session is there and something else was asked for.
        """
        found = self._found()
        if is_of_connect(found):
            import pyspark

            check_version(pyspark.__version__, OLDEST_CONNECT, " through Spark Connect")
        return found

    def _found(self) -> SparkSession:
        if self.session is not None:
            _check_unsaid(self, "a session was given")
            if _is_stopped(self.session):
                raise SamzaError("Spark(session): it was stopped; begin another one, or leave it to Spark()")
            return self.session
        check_installed()
        active = _active()
        if active is not None:
            if self.master is not None and (is_of_connect(active) or self.master != active.sparkContext.master):
                place = "Spark Connect" if is_of_connect(active) else active.sparkContext.master
                _check_unsaid(self, f"a session at {place} is active")
            return active
        return self._begun()

    def _begun(self) -> SparkSession:
        from pyspark.sql import SparkSession

        from runtime.spark.java import LOGGING, found

        builder = SparkSession.builder
        if self.master is not None:
            builder = builder.master(self.master)
        try:
            if LAUNCHED in os.environ:
                # The cluster, the name and all else are the command's, and so is what its JVM logs.
                return _configured(builder, {**_unsaid_there(), **self.options}).getOrCreate()
            with found() as java:
                settings = {**WORKERS, "spark.ui.showConsoleProgress": "false", **self.options}
                logging.getLogger("DataFrameQueryContextLogger").setLevel(logging.CRITICAL)  # PySpark's own, on stderr
                logging_by = f"-Dlog4j2.configurationFile={(java / LOGGING).as_uri()}"
                settings[JVM_OPTIONS] = " ".join(filter(None, [logging_by, self.options.get(JVM_OPTIONS)]))
                return _configured(builder.appName("samza-dsl"), settings).getOrCreate()
        except Exception as error:
            raise as_said(error, "Spark did not start") from None


def _check_said(on: Spark) -> None:
    """Raise SamzaError for what is no session, and for options of another kind than they are said by."""
    session = on.session
    if isinstance(session, str):
        is_remote = session.startswith("sc:")
        said = f"SparkSession.builder.remote({session!r}).getOrCreate()" if is_remote else f"master={session!r}"
        raise SamzaError(f"Spark({session!r}) is no session; write instead: Spark({said})")
    if isinstance(session, type) or not (session is None or hasattr(session, "createDataFrame")):
        raise SamzaError(
            f"Spark({shown(session)}) is no session; write instead: Spark(SparkSession.builder.getOrCreate()), or "
            'Spark(master="local[4]")'
        )
    if not isinstance(on.master, str | None):
        raise SamzaError(f'Spark(master={shown(on.master)}) names no cluster; write instead: Spark(master="local[4]")')
    if not isinstance(on.options, Mapping):
        raise SamzaError(
            f"Spark(options={shown(on.options)}) are no options of Spark; write instead: "
            'options={"spark.driver.memory": "4g"}'
        )
    if not isinstance(on.checkpoint, str | Path | None):
        raise SamzaError(f'Spark(checkpoint={shown(on.checkpoint)}) is no directory; write instead: checkpoint="kept"')
    if isinstance(on.max_records, bool) or not isinstance(on.max_records, int):
        wrong = f"Spark(max_records={shown(on.max_records)}) is no whole number"
        raise SamzaError(f"{wrong}; write instead: max_records=500_000")


def _active() -> SparkSession | None:
    from pyspark.sql import SparkSession

    found = SparkSession.getActiveSession()
    if found is None and "SPARK_CONNECT_MODE_ENABLED" in os.environ:
        # What `builder.remote(...)` has begun is known to its own class alone.
        from pyspark.sql.connect.session import SparkSession as Remote

        return cast("SparkSession | None", Remote.getActiveSession())
    return found


def _configured(builder: SparkSession.Builder, settings: Mapping[str, str]) -> SparkSession.Builder:
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder


def _unsaid_there() -> dict[str, str]:
    """Return the settings for workers about which `spark-submit` was told nothing."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    said = SparkConf()
    return {name: value for name, value in WORKERS.items() if not said.contains(name)}


def tell_order(plan: Plan) -> None:
    """Log which operators of a run that begins may come to something else than live, and what of them."""
    # Imported late: it takes the graph library, and whoever imports samza_dsl imports this module.
    from planner.checks.ordering import ordered_by_arrival

    found = ordered_by_arrival(plan)
    if found:
        told = "; ".join(f"{one.kind} {one.id!r} at {one.site}: {one.by_order}" for one in found)
        _log.warning(
            "%s on Spark: what depends on the order in which messages come may differ from a live run, where they "
            "come in another one, as any two live runs may: %s",
            plan.app,
            told,
        )


def clone_of(session: SparkSession) -> SparkSession | None:
    """Return a copy of a session, with all that is set and known there; None where PySpark can't make one.

    Through Spark Connect that needs PySpark 4.1.
    """
    if is_of_connect(session):
        copied: Callable[[], SparkSession] | None = getattr(session, "cloneSession", None)
        return None if copied is None else copied()
    from pyspark import RDD

    made_of_rdds = RDD.toDF
    try:
        return type(session)(session.sparkContext, session._jsparkSession.cloneSession())
    finally:
        RDD.toDF = made_of_rdds  # type: ignore[method-assign]  # each session that is made takes it for itself


@contextmanager
def copied(session: SparkSession, settings: Mapping[str, str], alone: bool = False) -> Iterator[SparkSession]:
    """Give a session for a block in which these are set; where none can be copied, the session itself has them.

    What is meant for a copy `alone` is not set then.
    """
    copy = clone_of(session)
    before = {} if copy is not None or alone else {name: session.conf.get(name, None) for name in settings}
    found = session if copy is None else copy
    for name in settings if copy is not None else before:
        found.conf.set(name, settings[name])
    try:
        yield found
    finally:
        for name, value in before.items():
            session.conf.unset(name) if value is None else session.conf.set(name, value)


def is_of_connect(session: object) -> bool:
    """Whether a session is one of Spark Connect."""
    return any(kind.__module__.startswith("pyspark.sql.connect.") for kind in type(session).__mro__)


def _is_stopped(session: object) -> bool:
    """Whether a session was stopped; of none in this process that is not known."""
    if is_of_connect(session):
        return bool(getattr(session, "is_stopped", False))
    context = getattr(session, "_sc", None)
    return context is not None and context._jsc is None


def check_installed() -> None:
    """Raise SamzaError where what running on Spark needs is not installed."""
    try:
        import pyarrow  # noqa: F401
        import pyspark.sql
    except ModuleNotFoundError as error:
        raise SamzaError(NEEDS.format(what=(error.name or "pyspark").partition(".")[0])) from error
    check_version(pyspark.__version__)


def check_version(version: str, oldest: tuple[int, int] = OLDEST, way: str = "") -> None:
    """Raise SamzaError for a PySpark that is too old.

    >>> check_version("4.3.0"), check_version("3.5.9.dev1")
    (None, None)
    """
    found = tuple(map(int, re.findall(r"\d+", version)[:2]))
    if found < oldest:
        wanted = ".".join(map(str, oldest))
        older = f", or begin the session by its JVM, SparkSession.builder.master(...), on {version}" if way else ""
        raise SamzaError(
            f"samza-dsl runs{way} on PySpark {wanted} or newer, and {version} is installed: "
            f"pip install 'pyspark>={wanted}', of the version that the cluster has{older}"
        )


def has_arrow_tables() -> bool:
    """Whether this PySpark makes a DataFrame of a table of Arrow, as 4.0 was the first to do."""
    import pyspark

    return int(pyspark.__version__.partition(".")[0]) >= 4


def _check_unsaid(spark: Spark, why: str) -> None:
    said = [name for name in ("master", "options") if getattr(spark, name)]
    if said:
        raise SamzaError(f"Spark({said[0]}=...): {why}, which can't be changed; leave {said[0]}= out, or stop it first")
