"""E1 to E4: what virtual tasks cost who has none, and bring to one partition; a split's pause, and what it costs."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import msgspec

from benchmarks.shapes.shape import Figures, Shape, ShapeDescription
from benchmarks.two_builds import build_of, change
from operators.core.base import Batch
from planner.model.virtual_tasks import VirtualTask
from runtime.model.assignment import Placing, Scale, sticky
from runtime.opening.rescaling import scalings
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.log.environment import LogEnvironment
from samza_dsl import App, Options

KEYS = 512
BUSY_S, BLOCKED_S = 50e-6, 1e-3
FACTOR, THREADS, CONTAINERS = 8, 8, 2
MOST_TASKS, MOST_CONTAINERS = 10_000, 8
MOST_PAUSE_MS, MOST_DROPPED, MOST_MODEL_MS = 1_000, 0.15, 50
"""The bars of E4: the ms that tasks stand still, a dropped record ÷ a processed one, and the ms for a job model."""
BEFORE = "a88de10^"
"""The last build without virtual tasks: all that came since is in E1 as well."""
UNSPLIT = ("B2", "B3d", "B6", "B9-5")
"""Workloads of E1: a window, state, and streams of the log, which reading and committing by buckets could slow."""


def key_of(number: int) -> int:
    return number % KEYS


def busy(number: int) -> int:
    """Take 50 µs of a processor."""
    until = time.thread_time() + BUSY_S
    while time.thread_time() < until:
        pass
    return number


def blocked(number: int) -> int:
    """Wait for 1 ms, as for a disk."""
    time.sleep(BLOCKED_S)
    return number


def _with(function: Callable[[int], int], name: str) -> App:
    app = App(name)
    app.input("numbers", value=int, key=key_of, partitioned_by_key=True).map(function, op_id="work").send_to(
        app.output("done", value=int)
    )
    return app


def _counting() -> App:
    app = App("counting")
    numbers = app.input("numbers", value=int, key=key_of, partitioned_by_key=True)
    numbers.scan(lambda total, number: (total or 0) + number, op_id="sum").send_to(app.output("done", value=int))
    return app


def _entries() -> App:
    app = App("entries", Options(commit_interval_ms=100))
    numbers = app.input("numbers", value=int, key=lambda number: number, partitioned_by_key=True)
    numbers.scan(lambda total, number: (total or 0) + number, op_id="sum").filter(lambda total: total < 0).send_to(
        app.output("done", value=int)
    )
    return app


busy_app, blocked_app = _with(busy, "busy"), _with(blocked, "blocked")


def fill(path: Path, number: int, end: bool = True, partitions: int = 1) -> None:
    log = LogEnvironment(path)
    log.create_stream("numbers", StreamConfig(partitions=partitions))
    for first in range(0, number, 10_000):
        values = [b"%d" % one for one in range(first, min(first + 10_000, number))]
        log.append([Append("numbers", first // 10_000 % partitions, Batch(values))])
    if end:
        log.end_stream("numbers")
    log.close()


async def pauses_of(app: App, data: Path, factors: Iterable[int]) -> list[float]:
    """Run an application on what is there, split its tasks by each of these factors in turn, and return the ms of each.

    They count from the last commit of the former tasks until the new ones go on.
    """
    found: list[float] = []
    told = _Told()
    log = logging.getLogger("samza_dsl")
    log.addHandler(told)
    log.setLevel(logging.INFO)
    async with app.running(data=data) as run:
        await run.settled()
        for factor in factors:
            with closing(LogEnvironment(data)) as environment:
                environment.ask_scale(app.name, Scale(factor))
            found.append(await told.pauses.get())
    log.removeHandler(told)
    return found


class _Told(logging.Handler):
    """Takes the pauses from what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: asyncio.Queue[float] = asyncio.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        if "go on after" in record.msg and isinstance(record.args, tuple):
            self.pauses.put_nowait(float(str(record.args[-1])))


class Unsplit(Shape):
    """What runs whose tasks nobody splits take, beside the last build in which none could be split."""

    description = ShapeDescription(
        "E1", "tasks that nobody splits: processor time ÷ that of the build before they could be", 1.02, rounds=8
    )

    def figures(self) -> Figures:
        with build_of(BEFORE) as build:
            found = {name: change(name, build, self.scale, self.rounds) for name in UNSPLIT}
        curve = {f"{name}: {said}": getattr(one, said) for name, one in found.items() for said in one._fields}
        return Figures(median(one.ratio for one in found.values()), curve)


class Elastic(Shape):
    """Runs of one app on copies of one stream with a partition, in turn."""

    def run(self, app: App, options: Options, containers: int = 1) -> tuple[float, float]:
        """Return the seconds by the clock and of this process."""
        data = self.scratch / "copy"
        shutil.rmtree(data, ignore_errors=True)
        shutil.copytree(self.scratch / "filled", data)
        app.options = options
        began, cpu = perf_counter(), process_time()
        app.run(data, containers=containers)
        took = perf_counter() - began, process_time() - cpu
        log = LogEnvironment(data)
        found, offset = 0, 0
        while read := log.read("done", 0, offset):
            found, offset = found + len(read.batch.values), read.next_offset
        log.close()
        assert found == self.number, f"{found} of {self.number} records are there"
        return took

    number = 0

    def gains(self, app: App, options: Options, split: Options, containers: int, number: int) -> Figures:
        self.number = self.scaled(number)
        fill(self.scratch / "filled", self.number)
        seconds: dict[str, list[float]] = {"whole": [], "split": []}
        for _ in range(self.rounds):
            seconds["whole"].append(self.run(app, options, containers)[0])
            seconds["split"].append(self.run(app, split, containers)[0])
        found = [whole / one for whole, one in zip(seconds["whole"], seconds["split"], strict=True)]
        return Figures(
            1 / median(found),
            {"times the throughput": median(found), "times at least": min(found), "times at most": max(found)},
        )


class SplitBusy(Elastic):
    description = ShapeDescription(
        "E2", "one partition, 50 µs of a processor each, two containers: time with factor 2 ÷ with 1", round(1 / 1.8, 3)
    )

    def figures(self) -> Figures:
        return self.gains(busy_app, Options(), Options(elasticity=2), CONTAINERS, 600_000)


class SplitBlocked(Elastic):
    description = ShapeDescription(
        "E3", "one partition, a call that blocks for 1 ms: time with factor 8 and 8 threads ÷ with 1", round(1 / 7, 3)
    )

    def figures(self) -> Figures:
        split = Options(elasticity=FACTOR, threads=THREADS)
        return self.gains(blocked_app, Options(threads=THREADS), split, 1, 8_000)


class SplitPause(Elastic):
    description = ShapeDescription(
        "E4",
        "a split of 3,000,000 entries: its pause, a dropped record, the model of 10,000 tasks: the worst ÷ its bar",
        1.0,
    )

    def figures(self) -> Figures:
        entries = self.scaled(3_000_000)
        fill(self.scratch / "filled", entries, end=False)
        pauses = asyncio.run(pauses_of(_entries(), self.scratch / "filled", [4, 1] * self.rounds))
        log = LogEnvironment(self.scratch / "filled")
        cuts = [one.took_ms for one in scalings(log.checkpoints("entries"))]
        log.close()
        dropped, processed = self._dropped()
        model_ms = min(self._model_ms() for _ in range(self.rounds))
        curve = {
            "ms of pause at most": max(pauses),
            "ms of pause, median": median(pauses),
            "ms to the cut, median": median(cuts),
            "entries": entries,
            "a dropped record ÷ a processed one": dropped / processed,
            "ms for the job model of 10,000 virtual tasks": model_ms,
        }
        worst = max(max(pauses) / MOST_PAUSE_MS, dropped / processed / MOST_DROPPED, model_ms / MOST_MODEL_MS)
        return Figures(worst, curve)

    def _dropped(self) -> tuple[float, float]:
        """Return the seconds of a processor for a dropped record, and for a processed one."""
        self.number = self.scaled(300_000)
        shutil.rmtree(self.scratch / "filled")
        fill(self.scratch / "filled", self.number)
        seconds: dict[int, list[float]] = {1: [], FACTOR: []}
        for _ in range(self.rounds):
            for factor, found in seconds.items():
                found.append(self.run(_counting(), Options(elasticity=factor))[1])
        processed = median(seconds[1]) / self.number
        return (median(seconds[FACTOR]) - median(seconds[1])) / (FACTOR - 1) / self.number, processed

    def _model_ms(self) -> float:
        began = perf_counter()
        names = [VirtualTask(task // FACTOR, task % FACTOR, FACTOR).name for task in range(MOST_TASKS)]
        placed = sticky(Placing(MOST_TASKS, {f"{number}.0": "here" for number in range(MOST_CONTAINERS)}))
        msgspec.json.encode(dict(zip(names, placed, strict=True)))
        return (perf_counter() - began) * 1_000
