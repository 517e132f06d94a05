"""A micro-batch: the offsets at which it ends in each input, and the snapshots that tasks begin with and leave."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from operators.core.base import MIN_TIMESTAMP
from runtime.model.checkpoint import Checkpoint
from runtime.ports.streams import Offsets, Read, StreamConfig
from runtime.units.growing import GrowingLines
from runtime.units.unit_state import StateFile

Place = tuple[str, int]
"""A stream and one of its partitions."""


class Told(msgspec.Struct, frozen=True, array_like=True):
    """A producer's word on event time, and whether nothing comes of it."""

    watermark: int = MIN_TIMESTAMP
    idle: bool = False


class Snapshot(msgspec.Struct, frozen=True):
    """The state that one task of one stage leaves behind a micro-batch: the next goes on from there, wherever it runs.

    `told` has what it told of event time, by stream between stages; `due_ms` when functions of its own are due, in ms
    since the epoch, and `wake_ms` when anything is due by the clock.
    """

    checkpoint: Checkpoint = Checkpoint(0)
    files: tuple[StateFile, ...] = ()
    told: dict[str, Told] = {}
    due_ms: dict[str, int] = {}
    wake_ms: int | None = None


class IdleTime(NamedTuple):
    """The ms for which nothing has come of a partition, and since the last micro-batch."""

    since_record_ms: float
    since_batch_ms: float


@dataclass(frozen=True)
class MicroBatch:
    """The description of one micro-batch of a job for all workers; behind one that `is_last` nothing comes any more.

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
    quiet: Mapping[Place, IdleTime] = field(default_factory=dict)
    is_last: bool = False
    keys: Mapping[str, str] = field(default_factory=dict)
    """The kinds of keys under which state lay as the run began, as a checkpoint notes them."""

    def begin(self, stage: int, task: int) -> Snapshot:
        """Return what a task begins with."""
        return self.begins.get((stage, task), Snapshot())


def files_of(snapshots: Iterable[Snapshot]) -> set[str]:
    """Return the names of all files that state consists of."""
    return {file.name for snapshot in snapshots for file in snapshot.files}
