"""The port of an operator's store in one task, as the runtime opens, commits and rolls it back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from operators.core.base import Serde, Store
from runtime.ports.environment import Environment
from runtime.ports.state import StateWrites


class SavepointPort(Protocol):
    """The savepoints of a store, by which a record that fails leaves nothing of its effects."""

    def savepoint(self) -> None:
        """Begin a savepoint, which lasts until `rollback` or `release`; there is one at a time."""

    def rollback(self) -> None:
        """Make everything as it was at the savepoint, values that were changed in place included, and end it."""

    def release(self) -> None:
        """Keep all changes since the savepoint, and end it."""

    def check_written(self, exactly: bool = False) -> None:
        """Raise SerdeError where what was written, or handed out, since the savepoint has no bytes.

        If `exactly`, also where it does not come back as it is.
        """

    def check_newest(self, most: int, beside: Sequence[object] = ()) -> None:
        """Raise SerdeError where what was written last, or is held `beside` the store, has no bytes."""


class StoreCommitPort(Protocol):
    """The part of a store in the commits of its task: it hands over its changes, and hears that they are durable."""

    name: str
    """The name of the store in commits: the id of its operator."""
    get_ms: float
    """The ms that it took to read values that no cache held."""
    misses: int = 0
    """The number of values that no cache held."""

    @property
    def dirty_count(self) -> int:
        """The entries that wait for the next commit."""

    def changes(self) -> StateWrites:
        """Return the changes since the last commit, encoded; they stay dirty, and none may follow before `committed`.

        Raises SerdeError for a value that has no bytes.
        """

    def committed(self) -> None:
        """Take note that the environment now has what `changes` returned; never under a savepoint."""

    def rest(self) -> None:
        """Release the transaction that committed entries are read in, because nothing is read for a while."""


class TaskStore(Store, SavepointPort, StoreCommitPort, Protocol):
    """The state of one operator in one task.

    One thread at a time uses it, the one that is at work in the task. What a durable store has after a restart is what
    the environment has by its commits: what it wrote beyond these is as if it had never been.
    """


@dataclass(frozen=True)
class StorePlace:
    """The operator and the task that a store is opened for, and how it is to keep their state."""

    environment: Environment
    app: str
    operator: str
    task: int
    serde: Serde
    cache_entries: int = 10_000
    """The number of values that a cache may keep of those that are only read."""
    keeps_plain: bool = True
    """Whether a cache keeps values that nobody can change in place; not where the operator keeps them itself."""
    keeps_written: bool = True
    """Whether a cache keeps what is committed; not where the operator holds most of it."""
    reads_again: bool = False
    """Whether committed values are read again from the environment, as a restart would, and never from memory."""
    owner: str = ""
    """The operator, as errors name it."""
    owns: Callable[[bytes], bool] | None = None
    """Whether an entry is its own, where the virtual tasks that a task is split into keep theirs in one place."""
