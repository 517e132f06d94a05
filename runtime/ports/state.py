"""The port of the committed state of operators, by store and task."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple, Protocol

from runtime.model.checkpoint import Checkpoint


class StateWrites(NamedTuple):
    """Changed entries of one operator's store in one task, sorted by key; None deletes."""

    store: str
    task: int
    items: list[tuple[bytes, bytes | None]]


class StateReader(Protocol):
    """Reads committed entries of one store and task, all as of its first look since it was released.

    Release it before every commit, and when nothing is read for a while: it may keep in place what commits replace.
    One thread at a time may use it.
    """

    __slots__ = ()

    def get(self, key: bytes) -> bytes | None:
        """Return the value of one entry; raises `Damaged` when it is not what was written."""

    def release(self) -> None:
        """Let go of what was looked at."""


class StateSnapshot(Protocol):
    """The committed state of an application as of one look, until it is closed; one thread at a time uses it.

    Where commits are by task, each task is as of its own newest one. It may keep in place what commits replace
    meanwhile, so it should not last.
    """

    def tasks(self, store: str) -> Collection[int]:
        """Return the tasks in which a store may have entries."""

    def get(self, store: str, task: int, key: bytes) -> bytes | None:
        """Return an entry, None where there is none; raises `Damaged` where it is not what was written."""

    def between(self, store: str, task: int, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries with `start` <= key < `end`, in key order; raises `Damaged`."""

    def close(self) -> None:
        """Let go of what was looked at; a second call does nothing."""


class SettledCommits(NamedTuple):
    """The newest checkpoints of an application, and a `mark` that each commit changes: some change state alone."""

    checkpoints: Mapping[str, Checkpoint]
    mark: int


class SnapshotPort(Protocol):
    """The committed state of applications that may be running, in any process."""

    def snapshot(self, app: str) -> StateSnapshot:
        """Return the state of an application as it is committed now; whoever asks closes it."""

    def settled_snapshot(self, app: str) -> StateSnapshot:
        """Return the state of an application, with what is being committed just now; whoever asks closes it."""

    def settled_commits(self, app: str) -> SettledCommits:
        """Return how far an application has committed, with what is being committed just now.

        Where it is what an earlier look has found, all that was read in between is as of that look.
        """


class StatePort(Protocol):
    """The committed entries of the stores of applications, each a sorted map per task."""

    def state_get(self, app: str, store: str, task: int, key: bytes) -> bytes | None:
        """Return the committed value of one entry; raises `Damaged` when it is not what was written."""

    def state_reader(self, app: str, store: str, task: int) -> StateReader:
        """Return a reader of single entries of one store and task; it reads many more cheaply than `state_get`."""

    def state_range(
        self, app: str, store: str, task: int, start: bytes = b"", end: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield committed entries with `start` <= key < `end` in key order; nothing may write to them meanwhile."""

    def stores(self, app: str) -> list[str]:
        """Return the names of the application's stores that hold anything, in order."""

    def state_stats(self, app: str) -> dict[tuple[str, int], tuple[int, int]]:
        """Return, per (store, task), the number of entries and their bytes."""

    def forget(self, app: str, stores: Collection[str]) -> None:
        """Remove the state of these stores, in all tasks, and nothing else; a second call does nothing.

        The caller owns the application. A crash may leave a part, which the next call removes.
        """
