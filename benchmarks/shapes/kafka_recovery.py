"""R1 and R2: how long it takes until state is there again, from a changelog on a real broker and from the disk."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter, process_time
from typing import NamedTuple

from benchmarks.broker import PARTITIONS, bootstrap, fresh_name
from benchmarks.shapes.shape import Figures, Shape, ShapeDescription
from runtime.model.checkpoint import Checkpoint
from runtime.ports.commits import Commit
from runtime.ports.state import StateWrites
from runtime.systems.kafka.client.topic import KafkaCluster
from runtime.systems.kafka.environment import KafkaEnvironment

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


class BroughtBack(NamedTuple):
    """How long it took until all state was there, from nothing open, and how many records were replayed."""

    seconds: float
    cpu_seconds: float
    replayed: int


def brought_back(directory: Path, app: str, entries: int) -> BroughtBack:
    """Open what there is, and look whether it is what was committed."""
    began, cpu_began = perf_counter(), process_time()
    with closing(opened(directory)) as environment:
        environment.own(app)
        replayed = environment.restored(app)
        seconds, cpu_seconds = perf_counter() - began, process_time() - cpu_began
        sizes = {number for number, _ in environment.state_stats(app).values()}
        if sizes != {entries // PARTITIONS}:
            raise AssertionError(f"tasks have {sizes} entries, and not {entries // PARTITIONS:,} each")
        if replayed:
            for task in range(PARTITIONS):
                expected = [(key, VALUE) for key in sorted(keys_of(entries, task))]
                if list(environment.state_range(app, STORE, task)) != expected:
                    raise AssertionError(f"the state of task {task} is not what was committed")
    return BroughtBack(seconds, cpu_seconds, replayed)


class ColdRestore(Shape):
    """The data directory is gone each time."""

    description = ShapeDescription(
        name="R1", title="cold restore of 1M entries of 100 bytes, the time over real Samza's", bar=0.667, rounds=5
    )

    def figures(self) -> Figures:
        entries = self.scaled(1_000_000)
        data = self.scratch / "data"
        app = written(data, entries)
        found = []
        for _ in range(self.rounds):
            shutil.rmtree(data)
            found.append(brought_back(data, app, entries))
        seconds, replayed = median(one.seconds for one in found), found[0].replayed
        curve = {
            "entries replayed": float(replayed),
            "seconds until all state is there": seconds,
            "at least": min(one.seconds for one in found),
            "at most": max(one.seconds for one in found),
            "seconds of the processor": median(one.cpu_seconds for one in found),
            "entries a second": replayed / seconds,
            "entries a second of real Samza": float(SAMZA_PER_SECOND),
        }
        return Figures(SAMZA_PER_SECOND * seconds / replayed, curve)


class WarmRestart(Shape):
    """The data directory is where it was."""

    description = ShapeDescription(
        name="R2", title="a restart where the state is, at 3M entries of 100 bytes over at 10k", bar=1.2, rounds=9
    )

    def figures(self) -> Figures:
        few, many = self.scaled(10_000), self.scaled(3_000_000)
        places = {entries: self.scratch / f"{entries}" for entries in (few, many)}
        apps = {entries: written(place, entries) for entries, place in places.items()}
        found: dict[int, list[BroughtBack]] = {entries: [] for entries in places}
        for _ in range(self.rounds):
            for entries, place in places.items():
                one = brought_back(place, apps[entries], entries)
                if one.replayed:
                    raise AssertionError(f"{one.replayed:,} records were replayed, where all was committed")
                found[entries].append(one)
        ratios = [slow.seconds / quick.seconds for quick, slow in zip(found[few], found[many], strict=True)]
        curve = {
            f"ms at {entries:,} entries": 1_000 * median(one.seconds for one in found[entries]) for entries in found
        }
        for entries, all_of_them in found.items():
            curve[f"ms of the processor at {entries:,}"] = 1_000 * median(one.cpu_seconds for one in all_of_them)
        return Figures(median(ratios), {**curve, "times at least": min(ratios), "times at most": max(ratios)})
