"""B20: what it costs that a task on Spark counts what passes each operator, of the processor's time."""

from __future__ import annotations

from contextlib import ExitStack
from statistics import median
from time import process_time
from unittest.mock import patch

from benchmarks.on_spark import StatelessOnSpark, chained
from benchmarks.shapes.shape import Figures, Shape, ShapeDescription
from runtime.stage.chain import Counts
from runtime.units.driver.application import Application
from runtime.units.program import Program
from runtime.units.shuffle_rows import beginnings
from runtime.units.worker.worker import run_units

MESSAGES = 200_000


class FilesAlone(StatelessOnSpark):
    """The files of B14, without a session."""

    def prepare(self, messages: int) -> None:
        self.files = self.scratch / "in"
        self.make(messages)


class Counters(Shape):
    """The tasks of B14 in this process, with their counters and without, in turn."""

    description = ShapeDescription(
        name="B20",
        title="what counting takes: processor's time of the tasks of B14 over that without, the quickest run of each",
        rounds=25,
        quick_scale=0.01,
        bar=1.02,
    )

    def figures(self) -> Figures:
        workload = FilesAlone(self.scaled(MESSAGES), self.scratch)
        took: dict[bool, list[float]] = {True: [], False: []}
        for number in range(2 * self.rounds + 2):
            counts = number % 2 == 0
            workload.ready()
            seconds = self._run(workload, counts)
            if number > 1:
                took[counts].append(seconds)
        quickest = {counts: min(seconds) for counts, seconds in took.items()}
        middle = {counts: median(seconds) for counts, seconds in took.items()}
        curve = {"of the medians": middle[True] / middle[False], "of the quickest": quickest[True] / quickest[False]}
        return Figures(curve["of the quickest"], curve)

    def _run(self, workload: FilesAlone, counts: bool) -> float:
        """Return the seconds of the processor that the tasks take, one after the other."""
        app = chained()
        bind = {"ticks": workload.files, "moved": workload.written}
        with ExitStack() as opened:
            if not counts:
                for name in ("enter", "leave"):
                    opened.enter_context(patch.object(Counts, name, lambda *_: None))
                opened.enter_context(patch("planner.codegen.fusion.droppers", lambda *_: frozenset()))
            application = Application(app.pipeline(), self.scratch, bind)
            opened.callback(application.close)
            program = Program((application.job,))
            began = process_time()
            for _ in run_units(program, 0, [beginnings(program.levels[0])]):
                pass
            return process_time() - began
