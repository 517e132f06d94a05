"""R1 and R2: how long it takes until state is there again, from a changelog on a real broker and from the disk."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter

from benchmarks.broker import PARTITIONS, bootstrap, fresh_name
from benchmarks.shapes.shape import Figures, Shape, ShapeDescription
from runtime.checkpoint import Checkpoint
from runtime.systems.base import Commit, StateWrites
from runtime.systems.kafka import KafkaEnvironment
from runtime.systems.kafka_topic import KafkaCluster

STORE = "counting"
VALUE = bytes(range(100))
KEY_BYTES = 8
COMMIT_ENTRIES = 100_000
SAMZA_PER_SECOND = 118_000
"""How many entries Samza 1.8.0 restored a second into RocksDB, at best, on the machine that the design is from."""


def opened(directory: Path) -> KafkaEnvironment:
    return KafkaEnvironment(KafkaCluster(f"kafka://{bootstrap()}"), directory)


def keys_of(entries: int, task: int) -> list[bytes]:
    """Return the keys of a task's entries, in no order."""
    draw = Random(task).randbytes
    return list({draw(KEY_BYTES) for _ in range(entries // PARTITIONS)})


def written(directory: Path, entries: int) -> str:
    """Commit so many entries of four tasks, and return the application that has them."""
    app = fresh_name("recovery")
    keys = [keys_of(entries, task) for task in range(PARTITIONS)]
    with closing(opened(directory)) as environment:
        generation = environment.own(app)
        checkpoints = {f"{task}": Checkpoint(generation) for task in range(PARTITIONS)}
        for first in range(0, entries // PARTITIONS, COMMIT_ENTRIES // PARTITIONS):
            parts = [sorted(one[first : first + COMMIT_ENTRIES // PARTITIONS]) for one in keys]
            state = [StateWrites(STORE, task, [(key, VALUE) for key in part]) for task, part in enumerate(parts)]
            environment.commit(Commit(app, generation, [], state, checkpoints))
    return app


def brought_back(directory: Path, app: str, entries: int) -> tuple[float, int]:
    """Return how long it took until all state was there, from nothing open, and how many records were replayed."""
    began = perf_counter()
    with closing(opened(directory)) as environment:
        environment.own(app)
        replayed = environment.restored(app)
        seconds = perf_counter() - began
        sizes = {number for number, _ in environment.state_stats(app).values()}
        if sizes != {entries // PARTITIONS}:
            raise AssertionError(f"tasks have {sizes} entries, and not {entries // PARTITIONS:,} each")
        if replayed:
            for task in range(PARTITIONS):
                expected = [(key, VALUE) for key in sorted(keys_of(entries, task))]
                if list(environment.state_range(app, STORE, task)) != expected:
                    raise AssertionError(f"the state of task {task} is not what was committed")
    return seconds, replayed


class ColdRestore(Shape):
    """The data directory is gone each time."""

    description = ShapeDescription(
        name="R1", title="cold restore of 1M entries of 100 bytes, the time over real Samza's", bar=0.667
    )

    def figures(self) -> Figures:
        entries = self.scaled(1_000_000)
        data = self.scratch / "data"
        app = written(data, entries)
        seconds = []
        for _ in range(self.rounds):
            shutil.rmtree(data)
            taken, replayed = brought_back(data, app, entries)
            seconds.append(taken)
        rate = replayed / median(seconds)
        curve = {
            "entries replayed": float(replayed),
            "entries a second": rate,
            "seconds until all state is there": median(seconds),
            "entries a second of real Samza": float(SAMZA_PER_SECOND),
        }
        return Figures(SAMZA_PER_SECOND / rate, curve)


class WarmRestart(Shape):
    """The data directory is where it was."""

    description = ShapeDescription(
        name="R2", title="a restart where the state is, at 3M entries of 100 bytes over at 10k", bar=1.2, rounds=7
    )

    def figures(self) -> Figures:
        sizes = [self.scaled(10_000), self.scaled(3_000_000)]
        places = {entries: self.scratch / f"{entries}" for entries in sizes}
        apps = {entries: written(places[entries], entries) for entries in sizes}
        seconds: dict[int, list[float]] = {entries: [] for entries in sizes}
        for _ in range(self.rounds):
            for entries in sizes:
                taken, replayed = brought_back(places[entries], apps[entries], entries)
                if replayed:
                    raise AssertionError(f"{replayed:,} records were replayed, where all was committed")
                seconds[entries].append(taken)
        few, many = (median(seconds[entries]) for entries in sizes)
        curve = {f"ms at {entries:,} entries": 1_000 * median(seconds[entries]) for entries in sizes}
        return Figures(many / few, curve)
