"""P1 and P2: what a message costs where a stream has more and more partitions, and where there are 27,000 of them."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

from benchmarks.durable import MOST_STORED, check_stored, committing, preload_log
from benchmarks.embedded_log import PASSING, chained, encode_json, passing
from benchmarks.figures import Chart
from benchmarks.memory import anonymous_mib
from benchmarks.messages import is_large, is_wanted, plain_messages, to_pair, weigh
from benchmarks.shapes.shape import Figures, Shape, ShapeDescription, apart
from operators.core.base import Batch
from runtime.ports.streams import Append, StreamConfig
from runtime.run.run import run_blocking
from runtime.systems.log.environment import LogEnvironment
from samza_dsl import App

COUNTS = (1, 4, 16, 64)
BATCHES_EACH = 4
"""Stored batches in each partition where there are most: a reader begins with small steps."""
STREAMS, PARTITIONS, RECORDS = 900, 30, 10


class ManyPartitions(Shape):
    """The same messages through B6, in as many batches and commits: the processor's time from one partition or many."""

    description = ShapeDescription(
        name="P1", title="cost per message of B6 at 1 to 64 partitions ÷ at 1, the highest", bar=1.15, quick_scale=0.02
    )

    def figures(self) -> Figures:
        stored = self.scaled(MOST_STORED)
        made = plain_messages(stored)
        batches = [list(map(encode_json, made))] * (max(COUNTS) * BATCHES_EACH)
        messages = stored * len(batches)
        for count in COUNTS:
            preload_log(self.scratch / f"{count}", "messages", batches, count)
        seconds: dict[int, list[float]] = {count: [] for count in COUNTS}
        for _ in range(self.rounds):
            for count in COUNTS:
                path = self.scratch / "copy"
                shutil.rmtree(path, ignore_errors=True)
                shutil.copytree(self.scratch / f"{count}", path)
                app = chained(committing(stored, int(stored * PASSING)))
                began = process_time()
                run_blocking(app.pipeline(), path)
                seconds[count].append(process_time() - began)
                check_stored(path, "pairs", passing(made) * len(batches))
        costs = {count: median(seconds[count]) / messages * 1e6 for count in COUNTS}
        curve = {f"µs at {count} partitions": cost for count, cost in costs.items()}
        points = [(float(count), round(cost, 3)) for count, cost in costs.items()]
        return Figures(
            max(costs.values()) / costs[1],
            curve,
            Chart("partitions", "µs of a processor per message", {"ours": points}, log="x"),
        )


class ManyStreams(Shape):
    """900 streams of 30 partitions with 10 messages each, which one input reads by their pattern."""

    description = ShapeDescription(
        name="P2", title="27,000 partitions in 900 streams through B6", rounds=1, quick_scale=0.003
    )

    def figures(self) -> Figures:
        streams = [f"messages-{number}" for number in range(self.scaled(STREAMS))]
        apart(preload_streams, self.scratch, streams)
        app = App("many-streams")
        chain = app.input("messages-*").filter(is_large).map(weigh).filter(is_wanted).map(to_pair)
        chain.send_to(app.output("pairs"))
        before = anonymous_mib() or 0
        started, ended, held = asyncio.run(self._timed(app))
        messages = len(streams) * PARTITIONS * RECORDS
        at_the_end = anonymous_mib() or 0
        check_stored(self.scratch, "pairs", passing(plain_messages(RECORDS)) * len(streams) * PARTITIONS)
        return Figures(
            None,
            {
                "partitions": len(streams) * PARTITIONS,
                "seconds to start": started,
                "MiB once started": held - before,
                "MiB at the end": at_the_end - before,
                "µs per message": ended / messages * 1e6,
            },
        )

    async def _timed(self, app: App) -> tuple[float, float, float]:
        """Return the seconds to start, those from there to the end, and the memory in between."""
        began = perf_counter()
        async with app.running(self.scratch) as run:
            opened, held = perf_counter(), anonymous_mib() or 0
            await run.ended()
            return opened - began, perf_counter() - opened, held


def preload_streams(path: Path, streams: list[str]) -> None:
    records = list(map(encode_json, plain_messages(RECORDS)))
    log = LogEnvironment(path)
    for stream in streams:
        log.create_stream(stream, StreamConfig(partitions=PARTITIONS))
        log.append([Append(stream, partition, Batch(records)) for partition in range(PARTITIONS)])
        log.end_stream(stream)
    log.close()
