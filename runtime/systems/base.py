"""The port of a transactional environment: streams, state and checkpoints that change together in one commit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

import msgspec

from operators.base import Batch, Serde
from runtime.checkpoint import Checkpoint


class StreamConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a stream is made with. Retention drops whole old batches; a compacted stream keeps each key's newest."""

    partitions: int = 1
    compression: str | None = None
    compacted: bool = False
    retention_ms: int | None = None
    retention_bytes: int | None = None


class Control(msgspec.Struct, frozen=True, array_like=True):
    """What a producer says after the records beside it: its watermark (ms); MAX_TIMESTAMP when it has ended."""

    producer: str
    watermark: int
    generation: int = 0


class Append(NamedTuple):
    """Rows for the end of one partition: `batch` has bytes as values (None is a tombstone), and may be empty."""

    stream: str
    partition: int
    batch: Batch
    control: Control | None = None


class StateWrites(NamedTuple):
    """Changed entries of one operator's store in one task, sorted by key; None deletes."""

    store: str
    task: int
    items: list[tuple[bytes, bytes | None]]


class Commit(NamedTuple):
    """Everything that becomes visible together: all of it, or nothing."""

    app: str
    generation: int
    appends: list[Append]
    state: list[StateWrites]
    checkpoints: dict[str, Checkpoint]


class Offsets(NamedTuple):
    """The readable range of a partition: `start` <= offset < `end`; `ended` when an end-of-stream was appended."""

    start: int
    end: int
    ended: bool


class Read(NamedTuple):
    """What a read found: rows whose `offsets` column is set, what a producer said after them, and where to go on."""

    batch: Batch
    control: Control | None
    next_offset: int


class Environment(Protocol):
    """Streams, state and checkpoints of the applications of one place.

    Reads see only what is committed. `commit` and `append` may be called from one thread at a time, any thread;
    reads may run beside them from any thread.
    """

    def create_stream(self, name: str, config: StreamConfig) -> StreamConfig:
        """Make a stream, or return the configuration of the one that exists already."""

    def delete_stream(self, name: str) -> None:
        """Remove a stream with all that is in it; nothing happens where it is absent."""

    def streams(self) -> dict[str, StreamConfig]:
        """Return all streams by name."""

    def offsets(self, stream: str, partition: int) -> Offsets:
        """Return the readable range of a partition."""

    def version(self) -> int:
        """Return a number that grows with every change, by any process; cheap enough to ask at every idle turn."""

    def read(self, stream: str, partition: int, offset: int, max_records: int = 10_000) -> Read | None:
        """Return rows from `offset` on, never more than one appended batch nor `max_records`; None at the end.

        Where retention has removed `offset`, it raises `Damaged` with the range that is left. The control of an
        appended batch comes with its last rows.
        """

    def append(self, appends: Iterable[Append]) -> None:
        """Write rows in one transaction of their own, as a producer outside any application does."""

    def end_stream(self, stream: str) -> None:
        """Append end-of-stream to every partition."""

    def commit(self, commit: Commit) -> None:
        """Make everything in `commit` visible and durable, or nothing of it.

        Raises `Fenced` when `commit.generation` is not the application's, `EnvironmentFull` when there is no space.
        """

    def own(self, app: str) -> int:
        """Become the application's one owner until `close`, and return its new generation; raises `Owned`."""

    def generation(self, app: str) -> int:
        """Return the application's generation: 0 before anyone owned it."""

    def checkpoints(self, app: str) -> dict[str, Checkpoint]:
        """Return the application's newest checkpoint of every task."""

    def state_get(self, app: str, store: str, task: int, key: bytes) -> bytes | None:
        """Return the committed value of one entry."""

    def state_range(
        self, app: str, store: str, task: int, start: bytes = b"", end: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield committed entries with `start` <= key < `end` in key order, as they are at the first step."""

    def state_stats(self, app: str) -> dict[tuple[str, int], tuple[int, int]]:
        """Return, per (store, task), the number of entries and their bytes."""

    def reset(self, app: str, stores: Iterable[str] | None = None) -> None:
        """Remove the application's checkpoints and state (of `stores`, or all) and begin a new generation."""

    def close(self) -> None:
        """Release everything; a second call does nothing."""


class Source(Protocol):
    """A bound input that is not a stream of the environment: rows by partition and offset, read again from anywhere."""

    name: str
    """What the system is called in checkpoints: "jsonl", "csv", …"""
    partitions: int

    def serde(self, declared: Serde) -> Serde:
        """Return the serde that reads this source's values, given the one that the pipeline declares."""

    def offsets(self, partition: int) -> Offsets:
        """Return the readable range of a partition; a bounded source has always ended."""

    def read(self, partition: int, offset: int, max_records: int = 10_000) -> Read | None:
        """Return rows from `offset` on; None at the end."""

    def close(self) -> None:
        """Release everything; a second call does nothing."""


class Sink(Protocol):
    """A bound output that is not a stream of the environment: written before the commit, taken back after a crash."""

    name: str
    partitions: int

    def serde(self, declared: Serde) -> Serde:
        """Return the serde that makes this sink's values, given the one that the pipeline declares."""

    def recover(self, position: int) -> None:
        """Drop everything beyond `position`, as an earlier `flush` returned it; 0 empties the sink."""

    def write(self, batch: Batch) -> None:
        """Take rows, in order; they need not be durable yet."""

    def flush(self) -> int:
        """Make all rows durable and return the position that the commit records."""

    def close(self) -> None:
        """Release everything; a second call does nothing."""
