"""E5 to E10: the performance tests that the published design names, the hash beside Kafka, and pauses by kind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

from benchmarks.memory import growth_mib, tree_mib
from benchmarks.on_kafka import OnKafka
from benchmarks.running import run
from benchmarks.shapes.elasticity import fill, key_of, pauses_of
from benchmarks.shapes.shape import Figures, Shape, ShapeDescription
from operators.partition_by import bucket_of
from planner.model.virtual_tasks import MOST_BUCKETS
from runtime.encoding.keys import KeySerde, remembering
from runtime.opening.rescaling import rescale
from runtime.ports.streams import StreamConfig
from runtime.systems.log.environment import LogEnvironment
from samza_dsl import (
    App,
    Json,
    MessageStream,
    Options,
    ProcessContext,
    String,
    after_count,
    after_delay,
    count,
    counted,
    session,
    sliding,
    tumbling,
)

if TYPE_CHECKING:
    from runtime.run.run import Run

CONTAINERS, TASKS = 2, 64


def _summing(name: str, key: Callable[[int], int]) -> App:
    app = App(name)
    numbers = app.input("numbers", value=int, key=key, partitioned_by_key=True)
    numbers.scan(lambda total, number: (total or 0) + number, op_id="sum").send_to(app.output("done", value=int))
    return app


split_app, each_app = _summing("split-sums", key_of), _summing("each-number", lambda number: number)


class KeyHash(Shape):
    """A keyed count with a stream of one partition, whose tasks hash each key once for all of them."""

    description = ShapeDescription(
        "E5", "process-ns due to computation of key hash per incoming message: ÷ ns of a message, factor 2", 0.1
    )

    def figures(self) -> Figures:
        number = self.scaled(200_000)
        shares, hashed, processed = [], [], []
        for round in range(self.rounds):
            data = self.scratch / f"{round}"
            fill(data, number)
            split_app.options = Options(elasticity=2)
            began = perf_counter()
            run = split_app.run(data)
            took_ms = (perf_counter() - began) * 1_000
            hash_ms = sum(one.hash_ms for one in run.metrics().tasks)
            assert hash_ms > 0, "somebody has found whose each record is"
            shares.append(hash_ms / took_ms)
            hashed.append(hash_ms / number * 1e6)
            processed.append(took_ms / number * 1e6)
        curve = {"ns to hash for a message": median(hashed), "ns of a message": median(processed)}
        return Figures(median(shares), curve)


class KeyHashOnKafka(Shape):
    """The hash of a key that came before, as most have, beside what a message takes from a broker to a broker."""

    description = ShapeDescription("E9", "processor time to find a key's hash ÷ that of a message of B12", 0.02)

    def figures(self) -> Figures:
        number = self.scaled(500_000)
        chain, keys = OnKafka(number, self.scratch), [f"{key_of(one)}" for one in range(number)]
        encode = KeySerde(String()).encode
        hashed, processed = [], []
        for _ in range(self.rounds):
            hash_of = remembering(lambda key: bucket_of(encode(key), 0, MOST_BUCKETS))
            began = process_time()
            for _ in map(hash_of, keys):
                pass
            hashed.append((process_time() - began) / number * 1e9)
            processed.append(run(chain, chain.ours).cpu_seconds / number * 1e9)
        curve = {"ns to hash for a message": median(hashed), "ns of a message of B12": median(processed)}
        return Figures(median(hashed) / median(processed), curve)


class CheckpointMigration(Shape):
    description = ShapeDescription(
        "E6", "job startup time and commit-ns due to checkpoint migration: seconds for 64 tasks that become 256", 0.25
    )

    def figures(self) -> Figures:
        tasks = self.scaled(TASKS)
        found: dict[str, list[float]] = {"ms to split": [], "ms to merge": []}
        for round in range(self.rounds):
            path = self.scratch / f"{round}"
            with closing(LogEnvironment(path)) as log:
                log.create_stream("numbers", StreamConfig(partitions=tasks))
            split_app.options = Options()
            split_app.run(path, until_now=True)
            with closing(LogEnvironment(path)) as log:
                generation, graph = log.own(split_app.name), split_app.graph()
                for name, factor in (("ms to split", 4), ("ms to merge", 1)):
                    split_app.options = Options(elasticity=factor)
                    began = perf_counter()
                    plan = split_app.plan({"numbers": tasks})
                    rescale(log, plan, graph, generation)
                    found[name].append((perf_counter() - began) * 1_000)
        curve = {name: median(some) for name, some in found.items()} | {"tasks": float(tasks)}
        return Figures(max(map(median, found.values())) / 1_000, curve)


HOUR_MS, NOON_MS = 3_600_000, 1_764_331_200_000


def _set_timer(number: int, context: ProcessContext[int, int]) -> None:
    context.state = number
    context.set_timer(NOON_MS + HOUR_MS + number)


OPERATORS: dict[str, Callable[[MessageStream[int, int]], MessageStream[Any, Any]]] = {
    "scan": lambda stream: stream.scan(lambda total, number: (total or 0) + number),
    "process with timers": lambda stream: stream.process(_set_timer, on_timer=lambda at_ms, context: None),
    "process with lists": lambda stream: stream.process(lambda number, context: context.list("all").append(number)),
    "a tumbling window": lambda stream: stream.window(tumbling(hours=1), count()),
    "a window with a trigger": lambda stream: stream.window(tumbling(hours=1), count(), early=after_count(9)),
    "sessions": lambda stream: stream.window(session(hours=1), count()),
    "counted windows": lambda stream: stream.window(counted(9), count()),
    "windows shown by the clock": lambda stream: stream.window(
        tumbling(hours=1), count(), early=after_delay(hours=1, by_clock=True)
    ),
    "sliding windows": lambda stream: stream.window(sliding(minutes=9), count()),
    "sliding windows, late": lambda stream: stream.window(sliding(minutes=9), count(), allowed_lateness_ms=540_000),
    "an outer join": lambda stream: stream.join(
        stream.filter(lambda number: number < 0), lambda left, right: left, how="left", within=(-HOUR_MS, HOUR_MS)
    ),
    "a join as of then": lambda stream: stream.join_asof(
        stream.filter(lambda number: number < 0),
        lambda left, right: left,
        how="left",
        direction="forward",
        tolerance=HOUR_MS,
    ),
}


class PausesByOperator(Shape):
    """One entry of state, or two, for each record: so that what an operator reads at a start is seen."""

    description = ShapeDescription("E10", "the pause of a split for each operator, with 100,000 keys: ms, as shown")

    def figures(self) -> Figures:
        curve = {}
        for number, (name, make) in enumerate(OPERATORS.items()):
            data, app = self.scratch / f"{number}", App(f"pauses-{number}", Options(commit_interval_ms=100))
            fill(data, self.scaled(100_000), end=False)
            numbers = app.input(
                "numbers", value=int, key=lambda number: number, partitioned_by_key=True, timestamp=lambda _: NOON_MS
            )
            make(numbers).filter(lambda _: False).send_to(app.output("done", value=Json()))
            curve[f"ms, {name}"] = median(asyncio.run(pauses_of(app, data, [4, 1] * self.rounds)))
        return Figures(None, curve)


class MemoryOfAll(Shape):
    description = ShapeDescription(
        "E7", "memory footprint across all containers that poll one partition: ÷ of as many with a partition each", 1.25
    )

    def figures(self) -> Figures:
        number = self.scaled(200_000)
        grew: dict[int, list[float]] = {1: [], CONTAINERS: []}
        for round in range(self.rounds):
            for factor, found in grew.items():
                path = self.scratch / f"{round}-{factor}"
                fill(path, number, partitions=1 if factor > 1 else CONTAINERS)
                split_app.options = Options(elasticity=factor)
                found.append(growth_mib(lambda path=path: split_app.run(path, containers=CONTAINERS), tree_mib) or 0.0)
        apart, shared = median(grew[1]), median(grew[CONTAINERS])
        return Figures(shared / max(apart, 1e-9), {"MiB, a partition each": apart, "MiB, one partition": shared})


class SplitStore(Shape):
    description = ShapeDescription(
        "E8", "disk usage and latency of a single store that is split into two sub-stores: bytes ÷ before", 1.05
    )

    def figures(self) -> Figures:
        entries, path = self.scaled(100_000), self.scratch / "log"
        sizes, gets_us = {}, {}
        self._run(path, entries, 1)  # so that each of the others finds all entries
        for factor in (1, 2):
            run = self._run(path, entries, factor)
            sizes[factor] = sum(one.bytes for one in run.metrics().stores)
            gets_us[factor] = sum(one.get_ms for one in run.metrics().tasks) / entries * 1e3
        curve = {"µs to get, whole": gets_us[1], "µs to get, split": gets_us[2], "bytes": float(sizes[2])}
        return Figures(sizes[2] / sizes[1], curve)

    def _run(self, path: Path, entries: int, factor: int) -> Run:
        fill(path, entries, end=False)
        each_app.options = Options(elasticity=factor, cache_entries=0)
        return each_app.run(path, until_now=True)
