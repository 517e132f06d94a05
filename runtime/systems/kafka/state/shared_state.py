"""The state of many tasks in one environment: each task is an application of its own in it, seen by nobody else."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from itertools import islice
from operator import itemgetter
from pathlib import Path
from shutil import rmtree

import msgspec

from planner.model.virtual_tasks import VirtualTask, is_task, kin
from runtime.model.checkpoint import Checkpoint
from runtime.model.errors import EnvironmentFault, Owned
from runtime.ports.commits import Commit
from runtime.ports.state import StateReader, StateWrites
from runtime.systems.host.locks import owner_lock
from runtime.systems.kafka.state.changelog import POSITIONS, TaskState
from runtime.systems.log.environment import LogEnvironment
from runtime.systems.log.state_reader import LogSnapshot

SHARED = "shared"
"""The name of directories that have many tasks: the first one that nobody has is a process's own."""
_ENTRIES_AT_ONCE = 10_000
"""The entries that are copied in one transaction."""


def _for_ever() -> bool:
    return True


class SharedTask(LogEnvironment):
    """One task's part of a directory that has many, as if it were the application there; it is never locked by itself.

    Whoever opens it has the directory open already, and its lock, or only reads.
    """

    def __init__(self, path: Path, app: str, task: VirtualTask) -> None:
        super().__init__(path, sync=False)
        self._name = f"{app[:180]}.{task.name}"

    def own(self, app: str) -> int:
        """Begin a new generation of the task, and return it."""
        with self._writing() as transaction:
            return self._begin_generation(transaction, self._name)

    def generation(self, app: str) -> int:
        """Return the task's generation."""
        return super().generation(self._name)

    def commit(self, commit: Commit) -> None:
        """Write as `LogEnvironment` does, to the task's part alone."""
        super().commit(commit._replace(app=self._name))

    def checkpoints(self, app: str) -> dict[str, Checkpoint]:
        """Return what is noted of the task."""
        return super().checkpoints(self._name)

    def state_get(self, app: str, store: str, task: int, key: bytes) -> bytes | None:
        return super().state_get(self._name, store, task, key)

    def state_reader(self, app: str, store: str, task: int) -> StateReader:
        """Return what reads single entries in one transaction."""
        return super().state_reader(self._name, store, task)

    def snapshot(self, app: str) -> LogSnapshot:
        """Return what is committed of the task now."""
        return super().snapshot(self._name)

    def state_range(
        self, app: str, store: str, task: int, start: bytes = b"", end: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield committed entries in key order."""
        return super().state_range(self._name, store, task, start, end)

    def stores(self, app: str) -> list[str]:
        """Return the names of the stores that hold anything of the task."""
        return super().stores(self._name)

    def state_stats(self, app: str) -> dict[tuple[str, int], tuple[int, int]]:
        """Return the number of entries and their bytes, per store."""
        return super().state_stats(self._name)

    def reset(self, app: str, stores: Iterable[str] | None = None) -> None:
        """Remove what there is of the task."""
        super().reset(self._name, stores)

    def forget(self, app: str, stores: Iterable[str]) -> None:
        """Remove the state of these stores of the task."""
        super().forget(self._name, stores)


def shared_in(directory: Path) -> list[Path]:
    """Return the directories of many tasks that an application has on this machine, in order."""
    return sorted(path for path in directory.glob(f"{SHARED}*") if path.is_dir())


def apart_in(directory: Path, task: VirtualTask) -> list[Path]:
    """Return the directories that one task alone has, or had beside one that somebody held."""
    return [path for path in (directory / task.name, *directory.glob(f"{task.name}.*")) if path.is_dir()]


def tasks_in(directory: Path) -> set[VirtualTask]:
    """Return the tasks of which an application has state on this machine."""
    names = [path.name.partition(".")[0] for path in directory.iterdir() if path.is_dir()]
    for path in shared_in(directory):
        with suppress(EnvironmentFault), closing(LogEnvironment(path, sync=False)) as whole:
            names += [name.rpartition(".")[2] for name in whole.applications()]
    return {VirtualTask.of(name) for name in names if is_task(name)}


def move_in(directory: Path, fresh: Collection[TaskState]) -> None:
    """Move what lies elsewhere in `directory` of tasks that are new where they are now: it need not be replayed then.

    What nobody has open is removed where it came from; of what another process has, a copy is taken, which is only good
    if it has not changed meanwhile. What can't be read is left, as changelogs have it as well.
    """
    waiting = absent(fresh)
    for path in shared_in(directory) if waiting else ():
        if elsewhere := [one for one in waiting if one.local.path != path]:
            _move_from(path, elsewhere)
            waiting = absent(waiting)
    for one in waiting:
        path = directory / one.task.name
        if path.is_dir() and one.local.path != path:
            _move_from(path, [one])
    waiting = absent(waiting)
    factors = {task.factor for task in tasks_in(directory)} if waiting else set()
    for one in waiting:
        for parts in gathered(directory, one.app, one.task, factors):
            if copy_parts(parts, one):
                break


Part = tuple[Path, VirtualTask]
"""A task whose state lies in a directory."""


def gathered(directory: Path, app: str, task: VirtualTask, factors: Collection[int]) -> list[list[Part]]:
    """Return where all keys of a task lie in `directory`, under one task of another split or several, furthest first.

    Changelogs have what comes behind each.
    """
    found = []
    for factor in sorted({*factors} - {task.factor}):
        parts = [[*_noted(directory, app, other)] for other in kin(task, [factor])]
        if all(parts):
            furthest = [max(some, key=lambda noted: noted[0]) for some in parts]
            found.append((min(how_far for how_far, _ in furthest), [part for _, part in furthest]))
    return [parts for _, parts in sorted(found, key=itemgetter(0), reverse=True)]


def _noted(directory: Path, app: str, task: VirtualTask) -> Iterator[tuple[int, Part]]:
    """Yield where there is state of a task, and how far changelogs are in it."""
    for path in (*apart_in(directory, task), *shared_in(directory)):
        with suppress(EnvironmentFault), _opened(path, app, task) as source:
            noted = source.checkpoints(app).get(POSITIONS)
            if noted is not None:
                yield sum(noted.outputs.values()), (path, task)


def copy_parts(parts: Sequence[Part], one: TaskState, goes_on: Callable[[], bool] = _for_ever) -> bool:
    """Copy the state of tasks that have all of a task's keys, as long as it `goes_on`; return whether it is there.

    Their owners may go on meanwhile: what they write is in the changelogs behind the place from which the copy is then
    brought up to date.
    """
    _empty(one)
    said: Checkpoint | None = None
    for path, task in parts:
        with _opened(path, one.app, task) as source:
            found = _copy_entries(source, one, goes_on)
        if found is None:
            one.reset()
            return False
        if said is not None:
            # From where the last one is all is replayed, which comes to the same for those that are further.
            both = said.outputs.keys() & found.outputs.keys()
            outputs = {place: min(said.outputs[place], found.outputs[place]) for place in both}
            watermarks = {name: min(at, found.watermarks[name]) for name, at in said.watermarks.items()}
            found = msgspec.structs.replace(found, outputs=outputs, watermarks=watermarks)
        said = found
    assert said is not None, "a task has parts"
    _note_copied(said, one)
    return True


def copies_in(directory: Path, one: TaskState) -> Iterator[Path]:
    """Copy what lies elsewhere in `directory` of a task to its place now, the furthest first, each instead of the last.

    A task may lie in several places: who was stopped holds the lock of one, while another process goes on in the next.
    """
    found = []
    for path in {*shared_in(directory), *apart_in(directory, one.task)} - {one.local.path}:
        with suppress(EnvironmentFault), _opened(path, one.app, one.task) as source:
            noted = source.checkpoints(one.app).get(POSITIONS)
            found += [(sum(noted.outputs.values()), path)] if noted is not None else []
    for _, path in sorted(found, reverse=True):
        one.reset()
        with suppress(EnvironmentFault), _opened(path, one.app, one.task) as source:
            if _copy(source, one):
                yield path


@contextmanager
def _opened(path: Path, app: str, task: VirtualTask) -> Iterator[LogEnvironment]:
    """Read what a directory has of a task, whoever else has it open."""
    is_shared = path.name.startswith(SHARED)
    with closing(SharedTask(path, app, task) if is_shared else LogEnvironment(path, sync=False)) as source:
        yield source


def absent(tasks: Collection[TaskState]) -> list[TaskState]:
    """Return the tasks that have no state where they are."""
    return [one for one in tasks if POSITIONS not in one.local.checkpoints(one.app)]


def _move_from(path: Path, tasks: Sequence[TaskState]) -> None:
    """Move tasks' state from one directory into where they are now."""
    app, is_shared = tasks[0].app, path.name.startswith(SHARED)
    with ExitStack() as after:
        is_free = is_moved = False
        with suppress(Owned):
            # Held until the end: what nobody else has may be removed where it came from.
            after.callback(os.close, owner_lock(path, app))
            is_free = True
        with suppress(EnvironmentFault), closing(LogEnvironment(path, sync=False)) as whole:
            for one in tasks:
                with closing(SharedTask(path, app, one.task)) if is_shared else nullcontext(whole) as source:
                    is_moved = _copy(source, one)
                    if is_moved and is_shared and is_free:
                        source.reset(app)
        if is_moved and is_free and not is_shared:
            rmtree(path)


def _copy(source: LogEnvironment, one: TaskState) -> bool:
    """Copy the state of a task, and how far its changelogs are in it; return whether there is any, all of it sound."""
    _empty(one)
    found = _copy_entries(source, one)
    if found is None:
        return False
    # Read without a lock, in many transactions: where its owner has written meanwhile the copy is a mixture, and worth
    # nothing where no changelog brings it up to date.
    try:
        is_sound = source.checkpoints(one.app).get(POSITIONS) == found
    except EnvironmentFault:
        is_sound = False
    if is_sound:
        _note_copied(found, one)
    else:
        one.reset()
    return is_sound


def _empty(one: TaskState) -> None:
    """Remove what a copy has left that a kill has cut off: some of it may be deleted by now where it came from."""
    if one.local.stores(one.app):
        one.reset()


def _copy_entries(source: LogEnvironment, one: TaskState, goes_on: Callable[[], bool] = _for_ever) -> Checkpoint | None:
    """Copy the entries of a task; return how far changelogs were in them before, None where they are not all there."""
    found = source.checkpoints(one.app).get(POSITIONS)
    if found is None:
        return None
    base = one.task.base
    try:
        for store in source.stores(one.app):
            entries = source.state_range(one.app, store, base)
            own = (item for item in entries if one.has(store, item[0])) if one.task.factor > 1 else entries
            while some := list[tuple[bytes, bytes | None]](islice(own, _ENTRIES_AT_ONCE)):
                if not goes_on():
                    one.reset()
                    return None
                one.local.commit(Commit(one.app, one.generation, [], [StateWrites(store, base, some)], {}))
    except EnvironmentFault:
        one.reset()
        return None
    return found


def _note_copied(found: Checkpoint, one: TaskState) -> None:
    said = msgspec.structs.replace(found, generation=one.generation)  # and as old as it was: deletions are kept so long
    # The positions last: a copy that a crash has cut off has none, and counts for nothing.
    one.local.commit(Commit(one.app, one.generation, [], [], {POSITIONS: said}))
