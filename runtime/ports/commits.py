"""The port of commits: the owner of an application, and the changes that become visible together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

from planner.model.virtual_tasks import Split
from runtime.model.checkpoint import Checkpoint
from runtime.model.errors import EnvironmentFault, Fenced
from runtime.ports.state import StateWrites
from runtime.ports.streams import Append


class Commit(NamedTuple):
    """The changes that become visible together: all of them, or none.

    `consumed` has, by intermediate stream and partition, the offset below which nobody will read again. `tasks` has the
    generations of the tasks that this container has taken, where several share them. The checkpoints of these names
    are `gone`, as where their tasks were split or merged. Partitions of keys were chosen `among` so many of a stream.
    It makes `answers` needless that are kept apart, and dropped behind it.
    """

    app: str
    generation: int
    appends: list[Append]
    state: list[StateWrites]
    checkpoints: dict[str, Checkpoint]
    consumed: Mapping[tuple[str, int], int] = MappingProxyType({})
    tasks: Mapping[int, int] = MappingProxyType({})
    gone: Collection[str] = ()
    among: Mapping[str, int] = MappingProxyType({})
    answers: Sequence[StateWrites] = ()


class CommitPort(Protocol):
    """The generations, checkpoints and commits of applications; one thread at a time commits."""

    def commit(self, commit: Commit) -> None:
        """Make everything in `commit` visible and durable, or nothing of it.

        Consumed batches of intermediate streams go whole, and bit by bit: more in each commit than it appends.
        Raises `Fenced` when `commit.generation` is not the application's, or one of `commit.tasks` not the task's;
        `EnvironmentFull` when there is no space; on one machine `Grown` where a stream has more partitions than
        `commit.among` says.
        """

    def own(self, app: str) -> int:
        """Become the application's one owner until `close`, and return its new generation; raises `Owned`."""

    def generation(self, app: str) -> int:
        """Return the application's generation: 0 before anyone owned it."""

    def applications(self) -> list[str]:
        """Return the names of all applications that were ever owned, in order."""

    def checkpoints(self, app: str) -> dict[str, Checkpoint]:
        """Return the application's newest checkpoint of every task."""

    def reset(self, app: str, stores: Iterable[str] | None = None) -> None:
        """Remove the application's checkpoints and state (of `stores`, or all) and begin a new generation."""


class Appender(Protocol):
    """A writer beside the commits of applications; its methods are called by one thread at a time, any thread."""

    def append(self, appends: Sequence[Append]) -> None:
        """Write rows in one transaction; raises `Fenced` where another one of this name has begun since.

        After any failure but `TooLarge` nobody knows whether they were written, and nothing more is.
        """

    def close(self) -> None:
        """Write nothing more; a second call does nothing."""


class Brought(NamedTuple):
    """The records of changelogs that were read to have state where its tasks are, and the entries that are new there.

    What is `moved` was copied from what the host had elsewhere, or read from changelogs.
    """

    replayed: int = 0
    moved: int = 0


NOTHING_BROUGHT = Brought()


class Presence(Protocol):
    """The membership of a process among the containers of an application while all of these are replaced."""

    def have_all_come(self, run: int) -> bool:
        """Whether all who were awaited belong to the run of a generation."""

    def leave(self) -> None:
        """Belong to them no more; a second call does nothing."""


class OwnershipPort(Protocol):
    """The ownership of an application whose state and commits lie on brokers, where others may take it over."""

    def appender(self, name: str) -> Appender:
        """Return the one writer of a name from now on: others that have begun with it write nothing more."""

    def announce(self, app: str, generation: int) -> None:
        """Let others see, until this is closed, that this process has the application, and its state, to itself."""

    def span(self, app: str, more: int = 0) -> Presence:
        """Belong to the containers of an application, without tasks, until what is returned is left, or it is closed.

        So the last containers of one run may go before the first of the next one come: where nobody is left, brokers
        wait for more than one to come, 3 s by default. Tasks are left for as many as there
        are, and for so many `more` on this host, until they have come.
        """

    def check_kept(self, app: str) -> None:
        """Raise `EnvironmentFault` where less of an application, which is owned here, is left than was committed."""

    def commit_by_task(self, app: str, tasks: Collection[int]) -> dict[int, int]:
        """Let each task of an application commit by itself, from any thread, and be fenced by itself.

        Returns the generations of those that are given, which are all this owner's; a container takes its own later.
        """

    def is_caught_up(self) -> bool:
        """Whether this process has read all that lay between stages when it was asked; asking may take a while."""

    def let_go(self, app: str) -> None:
        """Let go of an application, as a close does, once it commits nothing more; it may be joined again."""

    def reclaim(self, app: str) -> bool:
        """Remove what a reset has left of an application that was deleted; return whether there was anything."""


class TaskStatePort(Protocol):
    """The state of an application whose tasks each have theirs in a place of its own, and the split they lie by."""

    def split(self, app: str, split: Split) -> None:
        """Take the tasks of an application for split so from now on, as what is committed of it is.

        Until then each is whole. What comes of state is then shared out among the tasks that have its keys.
        """

    def prepare_split(self, app: str, split: Split, goes_on: Callable[[], bool]) -> None:
        """Copy state to where it will lie once tasks are split so, while those of before go on; from any thread.

        So the cut need not wait for it. It stops where nothing `goes_on` any more; the log tells what can't be copied.
        """

    def bring(self, app: str, tasks: Collection[int]) -> None:
        """Bring the state of tasks here, all at once, if this process has the application to itself.

        That of a task that is not named is brought where its first entry is read. Raises `EnvironmentFault` where the
        process may not have as many open.
        """

    def brought(self, app: str) -> Brought:
        """Return how much was read and moved so far to bring state here; it waits for nobody."""


class StagingPort(Protocol):
    """Streams that are filled at once, with more than memory holds."""

    def stage(self, app: str, generation: int, appends: Iterable[Append]) -> None:
        """Write rows for streams that are there and empty to where nobody sees them, behind what is staged already.

        Raises `Fenced` when `generation` is not the application's. Who owns or resets it has what is staged removed.
        """

    def publish(self, app: str, generation: int) -> None:
        """Make all that is staged visible at once, or nothing of it: the streams have it, and are made anew by that.

        Raises `Fenced`, and `EnvironmentFault` where one of these streams is empty no longer.
        """

    def discard(self, app: str) -> None:
        """Remove what is staged."""


def fenced_error(app: str, generation: int, current: int) -> Fenced:
    """Return the error for when a run is of an older generation than its application is."""
    return Fenced(
        f"Application {app!r} is at generation {current}, and this run is of {generation}: another one has taken "
        "over, it was reset, or its checkpoints were deleted. Nothing that this run has not committed was written."
    )


def taken_error(app: str, task: int, generation: int, current: int) -> Fenced:
    """Return the error for when a container commits for a task that another one has taken."""
    return Fenced(
        f"Task {task} of application {app!r} is at generation {current}, and this container has it of {generation}: "
        "another one has taken it over. Nothing that this container has not committed was written."
    )


def filled_error(name: str) -> EnvironmentFault:
    """Return the error for when a stream that is to be filled at once was written to meanwhile."""
    return EnvironmentFault(
        f"Stream {name!r} was empty when it began to be filled, and somebody has written to it since: nothing of this "
        "run was written there. Remove what is there, and run it again."
    )
