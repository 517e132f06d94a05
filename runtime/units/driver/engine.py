"""The port to a batch engine, and a bounded run on any engine that implements it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from operators.core.protocols import CheckedProtocol
from planner.model.plan import Plan
from runtime.containers.protocol import combined
from runtime.job.key_kinds import EqualInTasks
from runtime.model.clock import monotonic_ms
from runtime.model.metrics import RunMetrics
from runtime.units.driver.application import Application
from runtime.units.heartbeats import Address
from runtime.units.program import Program
from runtime.units.shipping import shipped
from runtime.units.shuffle_rows import AttemptReport, OutputRows, decode_told

if TYPE_CHECKING:
    import pyarrow as pa


class BatchEngine(Protocol):
    """Runs the units of a program in processes of its own, with a shuffle between the levels.

    Level 0 begins with the rows of `shuffle_rows.beginnings` for its units. Each level's rows go, all those of a
    `target` together and sorted by `shuffle_rows.ORDER`, to `worker.run_level`, in any process and as often as an
    engine likes to try: what an attempt leaves behind counts only once the driver has its report. Rows for targets of
    later levels, and for the driver, are handed on by `run_level` itself.
    """

    @property
    def at_once(self) -> int:
        """The number of units that run at the same time, at most."""

    def run(self, data: bytes, program: Program) -> pa.Table:
        """Run every level of a program, `data` in bytes for workers; return the rows that the last level leaves.

        Raises the error of ours that a worker has raised, as `carried_error.told` finds it.
        """


@runtime_checkable
class ImportingEngine(BatchEngine, Protocol, metaclass=CheckedProtocol):
    """An engine whose workers have some modules of the user's by other ways, so that these need not be sent."""

    @property
    def imported(self) -> Sequence[str]:
        """The folders and zips here whose modules workers import by themselves."""


class Runnable(Protocol):
    """An application that was run, as far as its results are asked for."""

    plan: Plan

    def values_of(self, stream: str) -> list[object]:
        """Return the values of an output."""


class BatchRun:
    """A bounded run that is over: its plan, its numbers, and what it has written."""

    failed = begins_anew = stopping = False

    def __init__(self, application: Runnable, metrics: RunMetrics) -> None:
        self.plan = application.plan
        self.application, self._metrics = application, metrics

    def metrics(self, stores: bool = True) -> RunMetrics:
        """Return what it came to, task by task; there are no stores any more."""
        return self._metrics

    def received(self, stream: str) -> list[object]:
        """Return the values of an output, partition by partition; dead letters are bytes.

        Raises SamzaError for an output that is bound to a file.
        """
        return self.application.values_of(stream)


def run_together(
    engine: BatchEngine,
    applications: Sequence[Application],
    heard_at: Address | None = None,
    on_shipped: Callable[[], None] = lambda: None,
) -> list[BatchRun]:
    """Run several applications as one program of an engine; then publish each.

    Workers say how far they are to `heard_at`; `on_shipped` is called when the program is on its way to them.
    """
    started = monotonic_ms()
    try:
        program = Program(tuple(application.job for application in applications), engine.at_once, heard_at)
        data = shipped(program, engine.imported if isinstance(engine, ImportingEngine) else ())
        # Not before: whoever looks at the job caches things in it, which must not be sent along.
        on_shipped()
        rows = engine.run(data, program)
    except BaseException:
        for application in applications:
            application.close()
        raise
    return finish(applications, program, rows, monotonic_ms() - started)


def finish(applications: Sequence[Application], program: Program, rows: pa.Table, elapsed_ms: float) -> list[BatchRun]:
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


def told_by(table: pa.Table, program: Program) -> tuple[list[list[OutputRows]], list[list[AttemptReport]]]:
    """Return what is told to the driver by application, in the order of its units."""
    parts: list[list[OutputRows]] = [[] for _ in program.jobs]
    reports: list[list[AttemptReport]] = [[] for _ in program.jobs]
    # In the order of units and of what each has said, whichever was through first: outputs are the same in each run.
    in_order = table.select(["producer", "sequence", "value"]).sort_by(
        [("producer", "ascending"), ("sequence", "ascending")]
    )
    for one in (decode_told(value.as_buffer()) for value in in_order.column("value")):
        if isinstance(one, OutputRows):
            parts[program.units[one.unit].job].append(one)
        else:
            reports[program.units[one.unit].job].append(one)
    return parts, reports


def _published(
    application: Application, parts: list[OutputRows], reports: list[AttemptReport], elapsed_ms: float
) -> BatchRun:
    metrics = msgspec.structs.replace(combined([report.metrics for report in reports]), elapsed_ms=elapsed_ms)
    equal = EqualInTasks(application.plan.app, application.job.graph.specs)
    equal.take((report.seen for report in reports), metrics.warnings)
    metrics = msgspec.structs.replace(metrics, warnings=(*equal.warnings.values(),))
    application.publish(parts, reports, metrics)
    return BatchRun(application, metrics)
