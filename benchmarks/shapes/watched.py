"""B1m, B6m and Q1: the processor's time of a run whose metrics or state are asked for, over one that nobody asks."""

from __future__ import annotations

import gc
import random
import shutil
import socket
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path
from statistics import median
from time import process_time, sleep
from typing import Any, ClassVar, NamedTuple
from unittest.mock import patch

from benchmarks import embedded_log, stateless_chain
from benchmarks.embedded_log import EmbeddedLog
from benchmarks.shapes.shape import Figures, Shape, ShapeDescription
from benchmarks.stateless_chain import StatelessChain
from benchmarks.workload import Workload
from runtime.model.metrics import Metrics
from runtime.run.run import run_blocking
from runtime.watching.watcher import served
from samza_dsl import App, Options, query

SCRAPE_SECONDS = 0.02
"""The time between two scrapes: one a second, as a user has, is lost in the noise of a run, and many runs have none."""
KEYS, RECORDS = 100_000, 400_000
GETS_AT_ONCE = 200
SLICE_SECONDS, TURNS_OF_A_ROUND = 0.35, 16
"""The length of a slice of time, in which there are some commits, and the pairs of them that are one round."""
COMPUTES, COPY, ASKS = range(3)
"""What a process does beside a writer."""
COMPUTES_SECONDS = 0.002


class WithMetrics(Shape):
    """A workload with its metrics served and scraped, and without, in turn; the figure is for one scrape a second."""

    workload: ClassVar[type[Workload]]
    module: ClassVar[Any]

    def figures(self) -> Figures:
        kind = self.workload
        workload = kind(kind.description.scaled(self.scale), self.scratch)
        with closing(socket.create_server(("127.0.0.1", 0))) as found:
            port = found.getsockname()[1]

        def once(is_served: bool) -> float:
            workload.ready()
            if not is_served:
                return _cpu_seconds(workload.ours)
            # The server is there before a run is, and from one to the next.
            with served(Metrics(address=f":{port}"), self.description.name) as found:
                watched = partial(run_blocking, watch=found.watch)
                with patch.object(self.module, "run_blocking", watched):
                    return _cpu_seconds(workload.ours)

        scraping = get_context("spawn").Process(target=_scrape, args=(port,), daemon=True)
        scraping.start()
        try:
            return _pairs(once, self.rounds)
        finally:
            scraping.kill()
            scraping.join()


class ChainWithMetrics(WithMetrics):
    """B1, watched."""

    description = ShapeDescription(
        name="B1m",
        title="B1 with metrics served and scraped each second, over B1 without, of the processor's time",
        rounds=15,
        quick_scale=0.003,
        bar=1.01,
    )
    workload, module = StatelessChain, stateless_chain


class LogWithMetrics(WithMetrics):
    """B6, watched."""

    description = ShapeDescription(
        name="B6m",
        title="B6 with metrics served and scraped each second, over B6 without, of the processor's time",
        rounds=15,
        quick_scale=0.02,
        bar=1.01,
    )
    workload, module = EmbeddedLog, embedded_log


class Queries(Shape):
    """A running count of which another process asks for one key after the other; in turn it asks a copy, or computes.

    Whatever is busy on the other core takes something of a writer: its clock, its caches, and its time where others
    want the machine. Beside a process that does the same with a copy the writer pays that, too: what is left is what
    asking takes. The other process changes what it does many times in one run, so all have the same noise.
    """

    description = ShapeDescription(
        name="Q1",
        title="a writer whose state another process reads, over one with a copy read, of the processor's time",
        rounds=7,
        quick_scale=0.1,
        bar=1.02,
    )

    def figures(self) -> Figures:
        keys, data = self.scaled(KEYS), self.scratch / "data"
        records = [number % keys for number in range(self.scaled(RECORDS))]
        counting().run(data, bind={"keys": records})
        copied = shutil.copytree(data, self.scratch / "copied")
        with beside(data, copied, keys) as other, ThreadPoolExecutor(1) as thread:
            writer = Writer()
            measured = thread.submit(writer.measure, other, self.rounds * TURNS_OF_A_ROUND, SLICE_SECONDS * self.scale)
            try:
                while not measured.done():
                    writer.run(data, records)
            finally:
                writer.is_over = True
            costs = measured.result()
        over = {
            what: median(asks / other for asks, other in zip(costs[ASKS], costs[what], strict=True))
            for what in (COPY, COMPUTES)
        }
        curve = {
            "over one that computes": over[COMPUTES],
            "us a record, beside one that reads a copy": median(costs[COPY]) * 1e6,
            "reads a second of the reader": other.rate,
        }
        return Figures(over[COPY], curve)


class Writer:
    """Counts records in one run after the other, and tells what each has cost while it ran on."""

    def __init__(self) -> None:
        self._counted = self._runs = 0
        self.is_over = False

    def run(self, data: Path, records: list[int]) -> None:
        """Count all records once more."""
        counting(self._count).run(data, bind={"keys": records}, from_start=True, state="keep")
        self._runs += 1

    def measure(self, other: Other, turns: int, seconds: float) -> dict[int, list[float]]:
        """Return what a record has cost in seconds, turn by turn, by what the other process did meanwhile."""
        costs: dict[int, list[float]] = {what: [] for what in (COMPUTES, COPY, ASKS)}
        for _ in range(turns):
            for what in random.sample([*costs], k=len(costs)):
                costs[what].append(self._cost(other, what, seconds))
        return costs

    def _cost(self, other: Other, what: int, seconds: float) -> float:
        other.does.value = what
        while not self.is_over:
            sleep(seconds / 8)  # what it has begun before is over
            runs, counted, began = self._runs, self._counted, process_time()
            sleep(seconds)
            spent, counted = process_time() - began, self._counted - counted
            if counted and runs == self._runs:  # else one has ended and the next one begun: that is another cost
                return spent / counted
        raise RuntimeError("the writer has ended before it was measured")

    def _count(self, total: int, key: int) -> int:
        self._counted += 1
        return total + 1


class Other(NamedTuple):
    """The process beside a writer: what it does now, and how often it has asked, in what time of its own."""

    does: Any
    gets: Any
    seconds: Any

    @property
    def rate(self) -> float:
        """The number of keys that it has asked for in a second of its processor."""
        return float(self.gets.value / max(self.seconds.value, 1e-9))


def counting(add: Callable[[int, int], int] = lambda total, key: total + 1) -> App:
    app = App("counting", Options(commit_interval_ms=100))
    keyed = app.input("keys", value=int).partition_by(lambda key: key, partitions=4, op_id="by")
    keyed.scan(add, init=int, op_id="count").send_to(app.output("counts", retention_bytes=1))
    return app


@contextmanager
def beside(data: Path, copied: Path, keys: int) -> Iterator[Other]:
    """Have another process ask for state, or a copy for it, or compute, during a block."""
    context = get_context("spawn")
    other = Other(context.Value("b", ASKS), context.Value("q", 0), context.Value("d", 0.0))
    begun = context.Event()
    process = context.Process(target=_ask_or_compute, args=(data, copied, keys, begun, other), daemon=True)
    process.start()
    begun.wait()
    try:
        yield other
    finally:
        process.kill()
        process.join()


def _ask_or_compute(data: Path, copied: Path, keys: int, begun: Event, other: Other) -> None:
    chosen = [random.randrange(keys) for _ in range(GETS_AT_ONCE)]
    with query(counting(), data) as found, query(counting(), copied) as same:
        states = {ASKS: found.state("count"), COPY: same.state("count")}
        states[ASKS].get(0)
        begun.set()
        while True:
            began, what = process_time(), int(other.does.value)
            if what == COMPUTES:
                while process_time() - began < COMPUTES_SECONDS:
                    sum(range(GETS_AT_ONCE))
                continue
            state = states[what]
            for key in chosen:
                state.get(key)
            if what == ASKS:
                other.gets.value += len(chosen)
                other.seconds.value += process_time() - began


def _pairs(once: Callable[[bool], float], rounds: int) -> Figures:
    """Measure with and without in turn; the ratio is the median of those of pairs, for one scrape a second."""
    for both in (False, True):
        once(both)  # one each that does not count: what is lazy is done now
    ratios, alone = [], []
    for number in range(rounds):
        # Each is first in half of the pairs.
        took = {both: once(both) for both in ((False, True) if number % 2 else (True, False))}
        ratios.append(took[True] / took[False])
        alone.append(took[False])
    scraped = median(ratios)
    curve = {f"with {1 / SCRAPE_SECONDS:.0f} scrapes a second": scraped, "without, s": median(alone)}
    return Figures(1 + (scraped - 1) * SCRAPE_SECONDS, curve)


def _cpu_seconds(work: Callable[[], object]) -> float:
    gc.collect()
    began = process_time()
    work()
    return process_time() - began


def _scrape(port: int) -> None:
    """Ask for metrics again and again, whenever they are served."""
    while True:
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            answer.read()
        sleep(SCRAPE_SECONDS)
