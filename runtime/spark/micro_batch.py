"""A micro-batch: where it ends in each input, and what each task begins with and leaves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from operators.base import MIN_TIMESTAMP
from runtime.checkpoint import Checkpoint
from runtime.spark.growing import GrowingLines
from runtime.spark.state import StateFile
from runtime.systems.base import Offsets, Read, StreamConfig

Place = tuple[str, int]
"""A stream and one of its partitions."""


class Told(msgspec.Struct, frozen=True, array_like=True):
    """What a producer has told of event time, and whether nothing comes of it."""

    watermark: int = MIN_TIMESTAMP
    idle: bool = False


class Snapshot(msgspec.Struct, frozen=True):
    """What one task of one stage has left behind a micro-batch: the next one goes on from there, wherever it runs.

    `told` has what it told of event time, by stream between stages; `due_ms` when functions of its own are due, in ms
    since the epoch, and `wake_ms` when anything is due by the clock.
    """

    checkpoint: Checkpoint = Checkpoint(0)
    files: tuple[StateFile, ...] = ()
    told: dict[str, Told] = {}
    due_ms: dict[str, int] = {}
    wake_ms: int | None = None


class Quiet(NamedTuple):
    """For how long nothing has come of a partition, and for how long since the last micro-batch, in ms."""

    since_record_ms: float
    since_batch_ms: float


@dataclass(frozen=True)
class MicroBatch:
    """What all workers are told of one micro-batch of a job; `is_last` is one behind which nothing comes any more.

    `directory` has the state, by `name` (what tells this checkpoint from others) a worker keeps copies of it.
    """

    number: int
    name: str
    directory: Path
    ends: Mapping[Place, Offsets]
    begins: Mapping[tuple[int, int], Snapshot]
    """By the number of a stage, and of a task."""
    streams: Mapping[str, StreamConfig]
    held: Mapping[Place, tuple[Read, ...]] = field(default_factory=dict)
    growing: Mapping[str, GrowingLines] = field(default_factory=dict)
    quiet: Mapping[Place, Quiet] = field(default_factory=dict)
    is_last: bool = False

    def begin(self, stage: int, task: int) -> Snapshot:
        """Return what a task begins with."""
        return self.begins.get((stage, task), Snapshot())


def files_of(snapshots: Iterable[Snapshot]) -> set[str]:
    """Return the names of all files that state consists of."""
    return {file.name for snapshot in snapshots for file in snapshot.files}
