"""The state of the tasks that a process has of applications on Kafka: each in its directory, or many in one."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import partial
from heapq import merge
from itertools import count, groupby
from pathlib import Path
from shutil import rmtree

from planner.model.virtual_tasks import UNSPLIT, Split, VirtualTask, kin
from runtime.model.checkpoint import Checkpoint
from runtime.model.errors import Damaged, EnvironmentFault, Owned
from runtime.ports.commits import NOTHING_BROUGHT, Brought, Commit
from runtime.ports.state import StateReader, StateSnapshot, StateWrites
from runtime.systems.host.locks import owner_lock
from runtime.systems.kafka.state.changelog import ChangelogEnd, Committed, TaskState, catch_up, restore
from runtime.systems.kafka.state.ledger import Ledger
from runtime.systems.kafka.state.process_limits import Room
from runtime.systems.kafka.state.shared_state import (
    SHARED,
    Part,
    SharedTask,
    absent,
    apart_in,
    copies_in,
    copy_parts,
    gathered,
    move_in,
    tasks_in,
)
from runtime.systems.kafka.streams.streams import KafkaStreams
from runtime.systems.log.environment import LogEnvironment
from runtime.systems.log.recovery import AnotherFormat
from runtime.systems.log.state_reader import LogSnapshot

_log = logging.getLogger("samza_dsl")
AHEAD = "ahead"
"""The note of state that was copied ahead of a split, and that no task has gone on with yet."""
MOST_APART = 32
"""The most tasks that a process has in directories of their own, with each of which others can go on alone."""


class TaskSnapshots(StateSnapshot):
    """The committed state of the tasks that a process has, each as of its newest commit when this was made.

    Of a task that is split each part has the entries of its own keys.
    """

    def __init__(self, parts: Mapping[VirtualTask, LogSnapshot]) -> None:
        self._parts: dict[int, list[LogSnapshot]] = {}
        for part, one in sorted(parts.items()):
            self._parts.setdefault(part.base, []).append(one)

    def tasks(self, store: str) -> list[int]:
        return [task for task, parts in self._parts.items() if any(task in one.tasks(store) for one in parts)]

    def get(self, store: str, task: int, key: bytes) -> bytes | None:
        found = (one.get(store, task, key) for one in self._parts.get(task, ()))
        return next((one for one in found if one is not None), None)

    def between(self, store: str, task: int, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        found = [one.between(store, task, start, end) for one in self._parts.get(task, ())]
        return found[0] if len(found) == 1 else merge(*found)

    def close(self) -> None:
        for parts in self._parts.values():
            for one in parts:
                one.close()


class KafkaState:
    """Stores in `directory`, brought up to date with their changelogs before they are used.

    Those of many tasks, which would take too many descriptors and too much address space apart, are in one that belongs
    to the process. What is here can be made anew from changelogs, so a power cut may destroy it; a killed process loses
    nothing.

    A task's state is either here, or a copy of what others have, never both. State is never ahead of its changelogs:
    it is written behind their transaction, with the offsets that it has come to. One thread at a time writes: the
    environment does under its lock, or while a task is taken or given up. Any thread may look, and who owns an
    application brings state by that: under `bringing`, so that another one does not bring the same.
    """

    def __init__(self, streams: KafkaStreams, directory: Path) -> None:
        self._streams = streams
        self._directory = directory
        self._tasks: dict[tuple[str, VirtualTask], TaskState] = {}
        self._room = Room()
        # Taken again by who has it: a split brings what it has closed.
        self.bringing = threading.RLock()
        self._copies: dict[tuple[str, VirtualTask], TaskState] = {}
        """The copies of the state of tasks that others have."""
        self._uncounted: set[tuple[str, VirtualTask]] = set()
        """The tasks here of which nobody has said how many entries they have, as of an owner that died."""
        self._splits: dict[str, Split] = {}
        """By application, how its tasks are split, where they are."""
        self._shared: dict[str, LogEnvironment] = {}
        """By application, the directory of many tasks that is this process's own."""
        self.brought: dict[str, Brought] = {}
        """By application, how much was brought here so far."""

    def split_of(self, app: str) -> Split:
        """Return how the tasks of an application are split."""
        return self._splits.get(app, UNSPLIT)

    def split(self, app: str, split: Split) -> bool:
        """Split the tasks of an application in another way from now on; what is here of those before is closed.

        Return whether the state of any task was here.
        """
        before = self.tasks(app)
        self.drop(app, [task for task in before if task.factor != split.factor])
        self._splits[app] = split
        return bool(before)

    @contextmanager
    def unless_brought(self) -> Iterator[bool]:
        """Take `bringing` for a block, unless another thread has it; whether it is taken is what the block is told."""
        is_free = self.bringing.acquire(blocking=False)
        try:
            yield is_free
        finally:
            if is_free:
                self.bringing.release()

    def bring(self, app: str, ledger: Ledger, tasks: Collection[VirtualTask]) -> None:
        """Bring the state of tasks here as it was committed; nobody may write to it meanwhile."""
        directory = self._directory / "state" / app
        missing = [task for task in tasks if (app, task) not in self._tasks]
        copies = self.copies(app)
        fresh = self._opened(app, [task for task in missing if task not in copies])
        opened = [*fresh, *(copies[task] for task in copies.keys() & missing)]
        # A warm copy becomes the state itself: only what it has not followed yet is left to replay.
        for task in copies.keys() & missing:
            del self._copies[app, task]
        committed = ledger.committed
        try:
            new = [*absent(fresh), *(one for one in fresh if AHEAD in one.local.checkpoints(app))]
            # What another directory of this machine has is copied first, so that less has to come from the brokers.
            move_in(directory, fresh)
            replayed = restore(self._streams, committed, opened, partial(copies_in, directory))
        except BaseException:
            for one in opened:
                one.local.close()
            raise
        before, moved = self.brought.get(app, NOTHING_BROUGHT), sum(map(_entries, new))
        self.brought[app] = Brought(before.replayed + replayed, before.moved + moved)
        for one in new:
            one.local.commit(Commit(app, one.generation, [], [], {}, gone=(AHEAD,)))
        for one in fresh:
            if not isinstance(one.local, SharedTask):
                # Only when all is here and up to date: until then another directory may be the better one.
                _collect(app, [path for path in apart_in(directory, one.task) if path != one.local.path])
        assert not {(app, one.task) for one in opened} & (self._tasks.keys() | self._copies.keys()), (
            "a task is here once"
        )
        self._tasks |= {(app, one.task): one for one in opened}
        if fresh:
            self._collect_split(app, directory)
        self._uncounted |= {(app, one.task) for one in opened if not _is_counted(committed.ends(one.task))}
        ledger.reached |= {
            one.task: {place: ChangelogEnd(end) for place, end in one.positions.items()} for one in opened
        }

    def prepare(self, app: str, split: Split, committed: Callable[[], Committed], goes_on: Callable[[], bool]) -> None:
        """Copy state to where tasks will have it that are split otherwise, while those of before go on with theirs.

        So only what is committed from then on is left to replay when tasks are split, as long as `goes_on` says so.
        What others of this machine have is copied as well. Any thread may do it: nothing is changed that is used here.
        Where it can't be, as there is no room, the log says so, and it is copied as tasks are split.
        """
        tasks = [split.task(number) for number in range(split.width * split.factor)]
        directory = self._directory / "state" / app
        # Those of many will lie together, in a directory that this process has open and writes to.
        if len(tasks) > MOST_APART or not directory.is_dir():
            return
        try:
            factors = {task.factor for task in tasks_in(directory)}
            found = {task: parts for task in tasks if (parts := gathered(directory, app, task, factors))}
            if found:
                _log.info("application %r: copies state of %d tasks ahead of their split", app, len(found))
            # Once more for all: the first ones are behind by the time that the others took.
            for task, parts in [*found.items(), *found.items()]:
                if goes_on():
                    self._prepare_task(app, task, split, parts, committed, goes_on)
        except (EnvironmentFault, OSError) as error:
            _log.warning("application %r: its state is copied only as its tasks are split: %s", app, error)

    def _prepare_task(
        self,
        app: str,
        task: VirtualTask,
        split: Split,
        parts: Iterable[list[Part]],
        committed: Callable[[], Committed],
        goes_on: Callable[[], bool],
    ) -> None:
        local = self._open_free(self._directory / "state" / app / task.name, app)
        if local is None:  # somebody has it
            return
        with closing(local):
            one = TaskState(local, app, task, split)
            if not absent([one]) or any(copy_parts(some, one, goes_on) for some in parts):
                catch_up(self._streams, committed(), one)
                local.commit(Commit(app, one.generation, [], [], {AHEAD: Checkpoint(one.generation)}))

    def want(self, app: str, more: int) -> bool:
        """Ensure room for the state of so many more tasks, and return whether that is together with others'.

        Raises `EnvironmentFault` where limits leave none.
        """
        if app in self._shared:
            return True
        held = [*self._tasks.values(), *self._copies.values()]
        apart = sum(not isinstance(one.local, SharedTask) for one in held)
        opened, together = apart + len(self._shared), apart + more > MOST_APART
        if not together:
            try:
                self._room.want(app, opened, opened + more + 1)  # the one that others come to lie in together
            except EnvironmentFault:
                together = True
        if together:
            self._room.want(app, opened, opened + 1)
        return together

    def of(self, app: str, task: VirtualTask) -> LogEnvironment | None:
        """Return what has the state of a task; None where it is not here."""
        found = self._tasks.get((app, task))
        return found.local if found is not None else None

    def tasks(self, app: str) -> list[VirtualTask]:
        """Return the tasks of an application whose state is here."""
        return sorted(task for name, task in [*self._tasks] if name == app)  # tasks come and go in another thread

    def stats(self, app: str) -> dict[tuple[str, int], tuple[int, int]]:
        """Return, by store and base task, the entries and their bytes, of the tasks that are here."""
        found: dict[tuple[str, int], tuple[int, int]] = {}
        for local in filter(None, (self.of(app, task) for task in self.tasks(app))):
            with suppress(EnvironmentFault):  # it was closed meanwhile
                for place, (entries, size_bytes) in local.state_stats(app).items():
                    before = found.get(place, (0, 0))
                    found[place] = before[0] + entries, before[1] + size_bytes
        return found

    def snapshot(self, app: str) -> TaskSnapshots:
        """Return the state of the tasks that are here; of one that is given up meanwhile it has nothing.

        Tasks that commit together are all as of one commit where nobody writes meanwhile.
        """
        found: dict[VirtualTask, LogSnapshot] = {}
        try:
            for (name, task), one in [*self._tasks.items()]:
                if name == app:
                    with suppress(EnvironmentFault):  # it was closed meanwhile
                        found[task] = one.local.snapshot(app)
        except BaseException:
            TaskSnapshots(found).close()
            raise
        for task in [task for task in found if (app, task) not in self._tasks]:
            # It was given up before it was looked at, or behind that: others may have it, and be further.
            found.pop(task).close()
        return TaskSnapshots(found)

    def copy(self, app: str, task: VirtualTask) -> None:
        """Open a copy of the state of a task that others have, unless somebody on this machine has what is here."""
        if (app, task) not in self._copies and (app, task) not in self._tasks:
            if self.want(app, 1):
                (self._copies[app, task],) = self._opened(app, [task])
                return
            local = self._open_free(self._directory / "state" / app / task.name, app)
            if local is not None:
                self._copies[app, task] = TaskState(local, app, task, self.split_of(app))

    def copies(self, app: str) -> dict[VirtualTask, TaskState]:
        """Return the copies that are here of what others have, by task."""
        return {task: one for (name, task), one in self._copies.items() if name == app}

    def drop_copies(self, app: str, tasks: Iterable[VirtualTask]) -> None:
        """Close copies of tasks; what lies on the disk stays."""
        for task in [*tasks]:
            self._copies.pop((app, task)).local.close()

    def write(
        self,
        app: str,
        state: Iterable[tuple[VirtualTask, StateWrites]],
        positions: Mapping[tuple[str, VirtualTask], Mapping[str, int]],
    ) -> None:
        """Change entries that are committed; `positions` has, by store and task, how far its changelog is."""
        by_task: dict[VirtualTask, list[StateWrites]] = {}
        for task, writes in state:
            by_task.setdefault(task, []).append(writes)
        for task, changed in by_task.items():
            one = self._tasks[app, task]
            for writes in changed:
                # Positions and entries go into one local transaction, in `write`.
                one.positions.update(positions[writes.store, task])
            one.write(changed)

    def uncounted(self, app: str) -> set[VirtualTask]:
        """Return the tasks here of which nobody has said yet how many entries they have."""
        return {task for of, task in self._uncounted if of == app}

    def reached(self, app: str, tasks: Collection[VirtualTask]) -> dict[VirtualTask, dict[str, ChangelogEnd]]:
        """Return how much is committed of the state of tasks, those that are here, as far as that is here."""
        found = {}
        for task in tasks:
            one = self._tasks.get((app, task))
            self._uncounted.discard((app, task))
            if one is not None:
                entries = {store: count for (store, _), (count, _) in one.local.state_stats(app).items()}
                stores = {place: place.rpartition("/")[0].rpartition("/")[0] for place in one.positions}
                found[task] = {
                    place: ChangelogEnd(end, entries.get(stores[place], 0)) for place, end in one.positions.items()
                }
        return found

    def drop(self, app: str, tasks: Iterable[VirtualTask] | None = None) -> None:
        """Close the state of tasks, or of all of an application; what lies on the disk stays."""
        if tasks is None:
            self.brought.pop(app, None)
        for task in self.tasks(app) if tasks is None else [*tasks]:
            one = self._tasks.pop((app, task), None)
            if one is not None:
                one.local.close()

    def remove(self, app: str) -> bool:
        """Remove all that lies on the disk here of an application that nobody runs; return whether there was any."""
        self.drop(app)
        if app in self._shared:
            self._shared.pop(app).close()
        path = self._directory / "state" / app
        found = path.exists()
        if found:
            rmtree(path)
        return found

    def close(self) -> None:
        """Close everything."""
        for app in {app for app, _ in (*self._tasks, *self._copies)}:
            self.drop(app)
            self.drop_copies(app, self.copies(app))
        for app in [*self._shared]:
            self._shared.pop(app).close()

    def _opened(self, app: str, tasks: Collection[VirtualTask]) -> list[TaskState]:
        """Open what has the state of tasks that are not here: each in its own directory, or together where many are."""
        together, opened = self.want(app, len(tasks)), list[TaskState]()
        if together and tasks and app not in self._shared:
            self._shared[app] = self._open(app, SHARED)
        try:
            for task in tasks:
                if together:
                    local: LogEnvironment = SharedTask(self._shared[app].path, app, task)
                else:
                    local = self._open(app, task.name)
                opened.append(TaskState(local, app, task, self.split_of(app)))
        except BaseException:
            for one in opened:
                one.local.close()
            raise
        return opened

    def _open(self, app: str, name: str) -> LogEnvironment:
        """Open the first directory that nobody has: who was stopped may hold the lock of another."""
        for number in count():
            path = self._directory / "state" / app / (f"{name}.{number}" if number else name)
            local = self._open_free(path, app)
            if local is not None:
                return local
        raise AssertionError

    def _open_free(self, path: Path, app: str) -> LogEnvironment | None:
        """Open a directory, unless somebody has it."""
        try:
            local = LogEnvironment(path, sync=False, map_bytes=self._room.map_bytes())
        except (Damaged, AnotherFormat) as error:
            _log.warning("makes state of application %r anew of its changelogs: %s", app, error)
            rmtree(path)
            local = LogEnvironment(path, sync=False, map_bytes=self._room.map_bytes())
        try:
            local.own(app)
        except Owned:
            local.close()
            return None
        return local

    def _collect_split(self, app: str, directory: Path) -> None:
        """Remove the state of tasks that were split otherwise, all of whose keys are here by now."""
        factor = self.split_of(app).factor
        for task in (task for task in tasks_in(directory) if task.factor != factor):
            if all((app, part) in self._tasks for part in kin(task, [factor])):
                _collect(app, apart_in(directory, task))
                if app in self._shared:
                    with closing(SharedTask(self._shared[app].path, app, task)) as left:
                        left.reset(app)


def _collect(app: str, paths: Iterable[Path]) -> None:
    """Remove directories whose state is whole elsewhere, as far as nobody has them."""
    for path in paths:
        with suppress(Owned):
            descriptor = owner_lock(path, app)
            try:
                rmtree(path)
            finally:
                os.close(descriptor)


def _entries(one: TaskState) -> int:
    return sum(entries for entries, _ in one.local.state_stats(one.app).values())


def _is_counted(known: Mapping[str, ChangelogEnd]) -> bool:
    return bool(known) and all(one.entries >= 0 for one in known.values())


def parted(split: Split, state: Iterable[StateWrites]) -> list[tuple[VirtualTask, StateWrites]]:
    """Return changes of base tasks as those of the virtual ones that have the keys.

    >>> split = Split(1, 2, lambda store, place: len(place))
    >>> [(task.name, part.items) for task, part in parted(split, [StateWrites("st", 0, [(b"a", b"1"), (b"bb", None)])])]
    [('0-0-2', [(b'bb', None)]), ('0-1-2', [(b'a', b'1')])]
    """
    if split.factor == 1:
        return [(VirtualTask(writes.task), writes) for writes in state]
    found = []
    for store, base, items in state:
        owned = [(split.owner(base, store, place), place, value) for place, value in items]
        # Sorted by task alone, which keeps the order of keys within each.
        for task, some in groupby(sorted(owned, key=lambda one: one[0]), key=lambda one: one[0]):
            found.append((task, StateWrites(store, base, [(place, value) for _, place, value in some])))
    return found


class PartsReader(StateReader):
    """Reads entries of a store in a base task, each where the task that has its key lies; one thread uses it."""

    __slots__ = ("_open", "_owner", "_readers")

    def __init__(self, owner: Callable[[bytes], VirtualTask], opened: Callable[[VirtualTask], StateReader]) -> None:
        self._owner, self._open = owner, opened
        self._readers: dict[VirtualTask, StateReader] = {}

    def get(self, key: bytes) -> bytes | None:
        task = self._owner(key)
        # Only those that are asked: a task that has left with its container has let go of what it had.
        if task not in self._readers:
            self._readers[task] = self._open(task)
        return self._readers[task].get(key)

    def release(self) -> None:
        for reader in self._readers.values():
            reader.release()
