"""The state of the tasks that a process has of applications on Kafka: each task's in a directory of its own."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Mapping
from itertools import count
from pathlib import Path
from shutil import rmtree

from runtime.errors import Damaged, Owned
from runtime.systems.base import StateWrites
from runtime.systems.kafka_changelog import TaskState, restore
from runtime.systems.kafka_ledger import Ledger
from runtime.systems.kafka_streams import KafkaStreams
from runtime.systems.log import LogEnvironment
from runtime.systems.log_locks import owner_lock
from runtime.systems.log_recovery import AnotherFormat


class KafkaState:
    """Stores in `directory`, brought up to date with their changelogs before they are used.

    What is here can be made anew from changelogs, so a power cut may destroy it; a killed process loses nothing.
    """

    def __init__(self, streams: KafkaStreams, directory: Path) -> None:
        self._streams = streams
        self._directory = directory
        self._tasks: dict[tuple[str, int], TaskState] = {}
        self._copies: dict[tuple[str, int], TaskState] = {}
        """The state of tasks that others have."""
        self.replayed: dict[str, int] = {}
        """By application, how many changelog records it took so far."""

    def bring(self, app: str, ledger: Ledger, tasks: Collection[int]) -> None:
        """Have the state of tasks here as it was committed; nobody may write to it meanwhile."""
        absent = [task for task in tasks if (app, task) not in self._tasks]
        copies = self.copies(app)
        opened = [copies.get(task) or TaskState(self._open(app, task), app, task) for task in absent]
        for task in copies.keys() & absent:
            del self._copies[app, task]
        try:
            self.replayed[app] = self.replayed.get(app, 0) + restore(
                self._streams, ledger.changelogs, ledger.kept, opened
            )
        except BaseException:
            for one in opened:
                one.local.close()
            raise
        self._tasks |= {(app, one.task): one for one in opened}

    def of(self, app: str, task: int) -> LogEnvironment | None:
        """Return what has the state of a task; None where it is not here."""
        found = self._tasks.get((app, task))
        return found.local if found is not None else None

    def tasks(self, app: str) -> list[int]:
        """Return the tasks of an application whose state is here."""
        return sorted(task for name, task in self._tasks if name == app)

    def copy(self, app: str, task: int) -> None:
        """Have a copy of the state of a task that others have, unless somebody on this machine has what is here."""
        if (app, task) not in self._copies and (app, task) not in self._tasks:
            local = self._open_free(self._directory / "state" / app / f"{task}", app)
            if local is not None:
                self._copies[app, task] = TaskState(local, app, task)

    def copies(self, app: str) -> dict[int, TaskState]:
        """Return the copies that are here of what others have, by task."""
        return {task: one for (name, task), one in self._copies.items() if name == app}

    def drop_copies(self, app: str, tasks: Iterable[int]) -> None:
        """Have copies of tasks here no more; what lies on the disk stays."""
        for task in [*tasks]:
            self._copies.pop((app, task)).local.close()

    def write(
        self, app: str, state: Iterable[StateWrites], positions: Mapping[tuple[str, int], Mapping[str, int]]
    ) -> None:
        """Change entries that are committed; `positions` has, by store and task, how far its changelog is."""
        by_task: dict[int, list[StateWrites]] = {}
        for writes in state:
            by_task.setdefault(writes.task, []).append(writes)
        for task, changed in by_task.items():
            one = self._tasks[app, task]
            for writes in changed:
                one.positions.update(positions[writes.store, task])
            one.write(changed)

    def reset(self, app: str, ledger: Ledger, tasks: Collection[int]) -> None:
        """Forget the state of tasks, and note where their changelogs begin now."""
        for task in tasks:
            self._tasks[app, task].reset()
        restore(self._streams, ledger.changelogs, ledger.kept, [self._tasks[app, task] for task in tasks])

    def drop(self, app: str, tasks: Iterable[int] | None = None) -> None:
        """Have tasks here no more, or all of an application; what lies on the disk stays."""
        if tasks is None:
            self.replayed.pop(app, None)
        for task in self.tasks(app) if tasks is None else [*tasks]:
            one = self._tasks.pop((app, task), None)
            if one is not None:
                one.local.close()

    def remove(self, app: str) -> bool:
        """Remove all that lies on the disk here of an application that nobody runs; return whether there was any."""
        self.drop(app)
        path = self._directory / "state" / app
        found = path.exists()
        if found:
            rmtree(path)
        return found

    def close(self) -> None:
        """Have nothing here any more."""
        for app in {app for app, _ in (*self._tasks, *self._copies)}:
            self.drop(app)
            self.drop_copies(app, self.copies(app))

    def _open(self, app: str, task: int) -> LogEnvironment:
        """Open the first directory of a task that nobody has: one that was stopped may hold the lock of another."""
        for number in count():
            path = self._directory / "state" / app / (f"{task}.{number}" if number else f"{task}")
            local = self._open_free(path, app)
            if local is not None:
                self._collect(app, task, number + 1)
                return local
        raise AssertionError

    def _open_free(self, path: Path, app: str) -> LogEnvironment | None:
        """Open a directory, unless somebody has it."""
        try:
            local = LogEnvironment(path, sync=False)
        except (Damaged, AnotherFormat) as error:
            logging.getLogger("samza_dsl").warning(
                "makes state of application %r anew of its changelogs: %s", app, error
            )
            rmtree(path)
            local = LogEnvironment(path, sync=False)
        try:
            local.own(app)
        except Owned:
            local.close()
            return None
        return local

    def _collect(self, app: str, task: int, first: int) -> None:
        """Remove the directories of a task that were made beside one that was held, as far as nobody has them now."""
        for number in count(first):
            path = self._directory / "state" / app / f"{task}.{number}"
            if not path.exists():
                return
            try:
                descriptor = owner_lock(path, app)
            except Owned:
                continue
            try:
                rmtree(path)
            finally:
                os.close(descriptor)
