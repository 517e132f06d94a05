"""What is read of tables before anything else: of those that all tasks share, and of each task's own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from operators.table_join import TableContents
from runtime.failures import Failure
from runtime.guard import Guard
from runtime.inputs import Reader, Taken
from runtime.task import Task

BroadcastTables = Mapping[str, tuple[list[Reader], TableContents, Guard]]


class Tables:
    """Says which tasks have begun: a task does once its tables, and those that all share, are read to a known end.

    From then on what comes of tables is taken in before what else there is to read.
    """

    def __init__(self, broadcast: BroadcastTables, batch_records: int) -> None:
        self.beginning: list[Task] = []
        """Tasks that take in nothing else yet."""
        self._broadcast = broadcast
        self._shared = [reader for readers, _, _ in broadcast.values() for reader in readers]
        self._batch_records = batch_records
        self._missing: dict[Reader, int] = {}
        """Up to where tasks wait for a table."""
        self._turn = 0
        self._await(self._shared)

    def take_in(self, task: Task) -> None:
        """Have a task begin."""
        self.beginning.append(task)
        self._await(task.table_readers)

    def let_go(self, tasks: Collection[Task]) -> None:
        """Wait no more for tables of tasks that have left."""
        self.beginning = [task for task in self.beginning if task not in tasks]
        for reader in (reader for task in tasks for reader in task.table_readers):
            self._missing.pop(reader, None)

    @property
    def are_read(self) -> bool:
        """Whether all was read that tasks wait for, and nothing is on its way of what all share."""
        return not (self._missing or self.beginning or any(reader.awaits for reader in self._shared))

    def come_first(self, task: Task) -> bool:
        """Whether a task has something to read on of tables before anything else."""
        if not (self._shared or task.tables) or not task.drained:
            return False
        return any(reader.ready() or reader.awaits for reader in [*self._shared, *task.table_readers])

    def feed_shared(self) -> bool:
        """Take in updates of a table that all tasks share; return whether there were any."""
        for id, (readers, contents, guard) in self._broadcast.items():
            for reader in readers:
                if reader.ready():
                    taken = reader.accept(reader.take(self._batch_records))
                    reader.track().release()
                    _feed(id, contents, guard, taken, reader)
                    return True
        return False

    def next_of(self, tasks: Sequence[Task], may_read: Callable[[Task], bool]) -> tuple[Task, str] | None:
        """Return a task and which of its own tables it reads on, each task in turn."""
        for number in range(len(tasks)):
            task = tasks[(self._turn + number) % len(tasks)]
            if task.tables and task.drained:
                table = next((stream for stream, (reader, _, _) in task.tables.items() if reader.ready()), None)
                if table is not None and may_read(task):
                    self._turn += number + 1
                    return task, table
        return None

    def begin(self, may_begin: Callable[[Task], bool]) -> list[Task]:
        """Return the tasks that begin now."""
        for reader, end in [*self._missing.items()]:
            if reader.next_offset >= end or reader.exhausted:
                del self._missing[reader]
        missing = self._missing.keys()
        begun = [
            task
            for task in self.beginning
            if missing.isdisjoint([*self._shared, *task.table_readers]) and may_begin(task)
        ]
        self.beginning = [task for task in self.beginning if task not in begun]
        return begun

    def _await(self, readers: Iterable[Reader]) -> None:
        self._missing |= {reader: reader.origin.known().end for reader in readers if not reader.exhausted}


def _feed(id: str, contents: TableContents, guard: Guard, taken: Taken, reader: Reader) -> None:
    """Take updates of a table that all tasks share in; its malformed rows have no commit to be dead-lettered in."""
    for record in taken.malformed:
        guard.settle(Failure(id, record.error), record.row, reader.place(record.row, 0))
    if len(taken.batch):
        contents.process(taken.batch)
