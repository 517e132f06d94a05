"""Measures jobs on Spark in this process: all sides in turn, in processor's seconds of the whole process tree."""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from benchmarks.figures import SparkFigure, stamped
from benchmarks.memory import PROC, growth_mib
from benchmarks.programs.kit.spark_job import SparkJob, outcome
from benchmarks.programs.spark_programs import JOBS
from samza_dsl import App, Spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TICKS = os.sysconf("SC_CLK_TCK")
PAIRS = 3
OPTIONS = {"spark.ui.enabled": "false", "spark.log.level": "OFF", "spark.sql.shuffle.partitions": "4"}


class Took(NamedTuple):
    """The seconds of the processor and by the clock, and the MiB by which the driver grew."""

    cpu_s: float
    wall_s: float
    mib: float


def tree_cpu_s() -> float:
    """Return the processor's seconds of this process and of all below it: also of those that are over and reaped."""
    parents: dict[int, int] = {}
    spent: dict[int, int] = {}
    for stat in PROC.glob("[0-9]*/stat"):
        with suppress(OSError, ValueError):
            fields = stat.read_text().rpartition(")")[2].split()
            process = int(stat.parent.name)
            parents[process], spent[process] = int(fields[1]), sum(map(int, fields[11:15]))
    tree, known = [os.getpid()], {os.getpid()}
    for process in tree:
        below = [child for child, parent in parents.items() if parent == process and child not in known]
        tree += below
        known.update(below)
    return sum(spent.get(process, 0) for process in tree) / TICKS


def timed(work: Callable[[], Any]) -> Took:
    """Do it, and return what it took."""
    gc.collect()
    began, cpu_began = perf_counter(), tree_cpu_s()
    mib = growth_mib(work) or 0.0
    return Took(tree_cpu_s() - cpu_began, perf_counter() - began, mib)


class Rounds:
    """A job with its inputs in place, and a session; each side writes to a folder of its own."""

    def __init__(self, job: SparkJob, session: SparkSession, records: int, scratch: Path) -> None:
        self.job, self.session, self.inputs, self._scratch = job, session, scratch / "in", scratch
        self._on = Spark(session)
        self.inputs.mkdir()
        job.make(records, self.inputs)

    def out(self, side: str, output: str) -> Path:
        """Return where a side writes an output."""
        return self._scratch / "out" / side / f"{output}.parquet"

    def run(self, side: str) -> Took:
        """Run a side, with nothing there yet."""
        shutil.rmtree(self._scratch / "out" / side, ignore_errors=True)
        (self._scratch / "out" / side).mkdir(parents=True)
        return timed(lambda: self._ours() if side == "ours" else self._by_hand(side))

    def _ours(self) -> None:
        bind: dict[str, Any] = {name: self.inputs / f"{name}.parquet" for name in self.job.inputs}
        bind |= {name: self.out("ours", name) for name in self.job.outputs}
        app: App = self.job.app(self.inputs)
        app.run(self.inputs, on=self._on, bind=bind)  # what a function reads beside its inputs lies there, too

    def _by_hand(self, side: str) -> None:
        for name, frame in getattr(self.job, side)(self.session, self.inputs).items():
            frame.write.parquet(str(self.out(side, name)))

    def check(self) -> None:
        """Raise AssertionError where sides came to different results."""
        for name in self.job.outputs:
            ours, *others = (outcome(self.out(side, name)) for side in self.job.sides)
            for side, other in zip(self.job.sides[1:], others, strict=True):
                if not ours.equals(other):
                    raise AssertionError(
                        f"{self.job.name}, {name}: {len(ours):,} rows of ours, {len(other):,} of {side}, which differ: "
                        f"{ours.slice(0, 3).to_pylist()} {other.slice(0, 3).to_pylist()}"
                    )


def measured(job: SparkJob, session: SparkSession, records: int, rounds: int, scratch: Path) -> SparkFigure:
    """Return the figures of a job: of rounds in which each side runs once, behind one that counts only if it is all."""
    of = Rounds(job, session, records, scratch)
    took: dict[str, list[Took]] = {side: [] for side in job.sides}
    for number in range(rounds + 1):
        for side in job.sides:
            found = of.run(side)
            if number or not rounds:
                took[side].append(found)
        of.check()
    by_hand = [took[side] for side in job.sides if side != "ours"]
    ratios = [
        round(ours.cpu_s / min(one.cpu_s for one in others), 3)
        for ours, *others in zip(took["ours"], *by_hand, strict=True)
        if others
    ]
    return SparkFigure(
        workload=job.name,
        title=job.title,
        records=records,
        rounds=rounds,
        cpu_s={side: round(median(one.cpu_s for one in found), 2) for side, found in took.items()},
        wall_s={side: round(median(one.wall_s for one in found), 2) for side, found in took.items()},
        driver_mib={side: round(max(one.mib for one in found), 1) for side, found in took.items()},
        ratio=median(ratios) if ratios else None,
        ratios=ratios,
    )


def figures(names: list[str], sizes: list[int], rounds: int) -> Iterator[SparkFigure]:
    """Yield the figures of jobs of each size, all in one session, which is begun before a time counts."""
    session = Spark(master="local[2]", options=OPTIONS).opened()
    try:
        for name in names:
            for records in sizes or [JOBS[name].records]:
                with TemporaryDirectory(prefix="samza-dsl-on-spark-") as directory:
                    yield measured(JOBS[name], session, records, rounds, Path(directory))
    finally:
        session.stop()


def main() -> None:
    """Print a SparkFigure as JSON, a line for each job."""
    parser = argparse.ArgumentParser(description="Measure jobs on Spark in this process.")
    parser.add_argument("names", nargs="+", choices=JOBS)
    parser.add_argument("--records", type=int, nargs="*", default=[])
    parser.add_argument("--pairs", type=int, default=PAIRS)
    said = parser.parse_args()
    for figure in figures(said.names, said.records, said.pairs):
        sys.stdout.write(msgspec.json.encode(stamped(figure)).decode() + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
