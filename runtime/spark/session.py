"""The Spark session that runs a plan: the user's, the one that is active, or one that is begun."""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from operators.core.durations import Duration, whole_ms
from planner.model.plan import Plan
from runtime.model.errors import SamzaError
from runtime.spark.spark_errors import as_said

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger("samza_dsl")

NEEDS = "running on Spark needs {what}, which is not installed: pip install 'samza-dsl[spark]'"
OWN = {
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "FATAL",
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
    "spark.python.unix.domain.socket.enabled": "true" if hasattr(socket, "AF_UNIX") else "false",
}
"""The settings of a session of our own: what fails is told by the run that fails, and nothing else draws.

Between a worker and Spark small messages go to and fro, of which TCP holds the second back for 40 ms.
"""

PLAIN_PLANS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""The settings by which Spark plans our units: the number of tasks is given, and it moves few rows, which are long.

To plan a stage anew when the one before it is through, and to write and compile Java for it, takes longer.
"""


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
        object.__setattr__(self, "interval_ms", whole_ms(self.interval_ms))

    def opened(self) -> SparkSession:
        """Return the session; one that is begun here stays for later runs of the process.

        Raises SamzaError without PySpark, without Java, and where a session is there and something else was asked for.
        """
        if self.session is not None:
            _check_unsaid(self, "a session was given")
            if _is_stopped(self.session):
                raise SamzaError("Spark(session): it was stopped; begin another one, or leave it to Spark()")
            return self.session
        check_installed()
        from pyspark.sql import SparkSession

        active = SparkSession.getActiveSession()
        if active is not None:
            if self.master is not None and self.master != active.sparkContext.master:
                _check_unsaid(self, f"a session at {active.sparkContext.master} is active")
            return active
        return self._begun()

    def _begun(self) -> SparkSession:
        from pyspark.sql import SparkSession

        from runtime.spark.java import found

        builder = SparkSession.builder
        for name, value in {**OWN, **self.options}.items():
            builder = builder.config(name, value)
        if self.master is not None or "spark.master" not in self.options:
            builder = builder.master(self.master or "local[*]")
        with found():
            try:
                session: SparkSession = builder.appName("samza-dsl").getOrCreate()
            except Exception as error:
                raise as_said(error, "Spark did not start") from None
        return session


def plainly_planned(session: SparkSession, numbers: int, tasks: int) -> DataFrame:
    """Return the numbers from 0 on as rows of so many tasks; what follows is planned without looking back.

    It is planned by a copy of the session, with all that is set and known there, so that this one stays as it is.
    """
    from pyspark.sql.classic.dataframe import DataFrame

    try:
        # In a copy: these settings are good for our plans and bad for the user's own.
        copy = session._jsparkSession.cloneSession()
    except Exception:  # it is one of Spark's own, which need not stay; then it is planned as all else
        return session.range(0, numbers, 1, tasks)
    for name, value in PLAIN_PLANS.items():
        copy.conf().set(name, value)
    return DataFrame(copy.range(0, numbers, 1, tasks), session)


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


def _is_stopped(session: object) -> bool:
    """Whether a session was stopped; of none in this process that is not known."""
    context = getattr(session, "_sc", None)
    return context is not None and context._jsc is None


def check_installed() -> None:
    """Raise SamzaError where what running on Spark needs is not installed."""
    try:
        import pyarrow  # noqa: F401
        import pyspark.sql  # noqa: F401
    except ModuleNotFoundError as error:
        raise SamzaError(NEEDS.format(what=(error.name or "pyspark").partition(".")[0])) from error


def _check_unsaid(spark: Spark, why: str) -> None:
    said = [name for name in ("master", "options") if getattr(spark, name)]
    if said:
        raise SamzaError(f"Spark({said[0]}=...): {why}, which can't be changed; leave {said[0]}= out, or stop it first")
