"""Which container runs which task: the job model, how tasks are shared out, and the port to the other containers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

import msgspec


class JobModel(msgspec.Struct, frozen=True, array_like=True):
    """Who runs what, in one run of an application: the containers that are alive, and by number each task's.

    Each change of it has a `generation` of its own, larger than all before.
    """

    run: int = 0
    generation: int = 0
    containers: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()

    def of(self, container: str) -> frozenset[int]:
        """Return the tasks of a container."""
        return frozenset(task for task, runs_it in enumerate(self.tasks) if runs_it == container)


def assign(tasks: int, containers: Iterable[str], before: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the container of each task: as many for each as for any other, or one more, and as few moved as can be.

    `before` has the containers that the tasks had, of which some may be gone.

    >>> assign(4, ["a", "b"])
    ('a', 'b', 'a', 'b')
    >>> assign(4, ["a"], ("a", "b", "a", "b"))
    ('a', 'a', 'a', 'a')
    >>> assign(4, ["a", "c"], ("a", "b", "a", "b"))
    ('a', 'c', 'a', 'c')
    """
    names = sorted(set(containers))
    if not names:
        return ()
    held: dict[str, list[int]] = {name: [] for name in names}
    for task, name in enumerate(before[:tasks]):
        if name in held:
            held[name].append(task)
    least, ones_more = divmod(tasks, len(names))
    by_most = sorted(names, key=lambda name: -len(held[name]))
    room = {name: least + (place < ones_more) for place, name in enumerate(by_most)}
    found = [""] * tasks
    for name in names:
        for task in held[name][: room[name]]:
            found[task] = name
        room[name] -= min(len(held[name]), room[name])
    for task in range(tasks):
        if not found[task]:
            found[task] = max(names, key=lambda name: room[name])  # the first of those with the most room
            room[found[task]] -= 1
    return tuple(found)


class Membership(Protocol):
    """One container's place among those that run an application together.

    A task belongs to one container at a time: who has it keeps it until it is given up, or until the container is gone.
    """

    def mine(self) -> frozenset[int]:
        """Return the tasks that this container shall run now; asked several times a second."""

    def take(self, tasks: Collection[int]) -> dict[int, int]:
        """Take tasks over, and return their new generations; those that another container still has are left out.

        Raises `Fenced` where the run of the application is over.
        """

    def give_up(self, tasks: Collection[int]) -> None:
        """Let others take tasks, all of whose effects are committed."""

    def check(self) -> None:
        """Raise `Fenced` where another container has taken a task that this one has not given up."""

    def leave(self) -> None:
        """Be gone: others may take all that this container has; a second call does nothing."""
