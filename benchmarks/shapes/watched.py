"""B1m, B6m and Q1: the processor's time of a run whose metrics or state are asked for, over one that nobody asks."""

from __future__ import annotations

import gc
import random
import shutil
import socket
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path
from statistics import median
from time import process_time, sleep
from typing import Any, ClassVar
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

SCRAPE_SECONDS = 1.0
KEYS, RECORDS = 100_000, 400_000
GETS_AT_ONCE = 1_000


class WithMetrics(Shape):
    """A workload with its metrics served, and scraped each second, and without, in turn."""

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
            with served(Metrics(address=f":{port}"), self.description.name) as watch:
                watched = partial(run_blocking, watch=watch)
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
    """A running count of which another process asks for one key after the other; it asks a copy of it, in turn.

    So in both the machine has as much to do, and caches of the processor are shared: what is left is what asking takes.
    """

    description = ShapeDescription(
        name="Q1",
        title="a writer whose state another process reads, over one with a copy read, of the processor's time",
        rounds=7,
        quick_scale=0.01,
        bar=1.02,
    )

    def figures(self) -> Figures:
        keys, data = self.scaled(KEYS), self.scratch / "data"
        records = [number % keys for number in range(self.scaled(RECORDS))]
        counting().run(data, bind={"keys": records})
        copied = shutil.copytree(data, self.scratch / "copied")
        rates: list[float] = []

        def once(is_asked: bool) -> float:
            with asking(data if is_asked else copied, keys, rates):
                return _cpu_seconds(lambda: counting().run(data, bind={"keys": records}, from_start=True, state="keep"))

        found = _pairs(once, self.rounds)
        return Figures(found.ratio, {**found.curve, "reads a second of the reader": median(rates)})


def counting() -> App:
    app = App("counting", Options(commit_interval_ms=100))
    keyed = app.input("keys", value=int).partition_by(lambda key: key, partitions=4, op_id="by")
    keyed.scan(lambda total, key: total + 1, init=int, op_id="count").send_to(app.output("counts", retention_bytes=1))
    return app


@contextmanager
def asking(data: Path, keys: int, rates: list[float]) -> Iterator[None]:
    """Have another process ask for state during a block; adds how often it did, for a second of the processor."""
    context = get_context("spawn")
    begun, over = context.Event(), context.Event()
    mine, its = context.Pipe()
    process = context.Process(target=_ask, args=(data, keys, begun, over, its))
    process.start()
    begun.wait()
    try:
        yield
    finally:
        over.set()
        rates.append(mine.recv())
        process.join()


def _ask(data: Path, keys: int, begun: Event, over: Event, told: Any) -> None:
    chosen = [random.randrange(keys) for _ in range(GETS_AT_ONCE)]
    gets = 0
    with query(counting(), data) as found:
        state = found.state("count")
        state.get(0)
        begun.set()
        began = process_time()
        while gets == 0 or not over.is_set():
            for key in chosen:
                state.get(key)
            gets += len(chosen)
        told.send(gets / (process_time() - began))


def _pairs(once: Callable[[bool], float], rounds: int) -> Figures:
    """Measure with and without in turn; the ratio is the median of those of pairs."""
    for both in (False, True):
        once(both)  # one each that does not count: what is lazy is done now
    ratios, alone = [], []
    for number in range(rounds):
        # Each is first in half of the pairs.
        took = {both: once(both) for both in ((False, True) if number % 2 else (True, False))}
        ratios.append(took[True] / took[False])
        alone.append(took[False])
    return Figures(median(ratios), {"of the medians": median(ratios), "without, s": median(alone)})


def _cpu_seconds(work: Callable[[], object]) -> float:
    gc.collect()
    began = process_time()
    work()
    return process_time() - began


def _scrape(port: int) -> None:
    """Ask for metrics each second, whenever they are served."""
    while True:
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            answer.read()
        sleep(SCRAPE_SECONDS)
