"""The reads of tables, which come before all other reads: of those that all tasks share, and of each task's own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from operators.joins.table_join import TableContents
from runtime.functions.failures import Failure
from runtime.model.errors import SamzaError
from runtime.reading.reader import Reader
from runtime.reading.taken import Taken
from runtime.stage.error_policy import Guard
from runtime.task.task import Task

BroadcastTables = Mapping[str, tuple[list[Reader], TableContents, Guard]]


class TableReads:
    """Tells which tasks have begun: a task does once its tables, and those that all share, are read to a known end.

    From then on what comes of tables is taken in before what else there is to read.
    """

    def __init__(self, broadcast: BroadcastTables, batch_records: int) -> None:
        self.beginning: list[Task] = []
        """The tasks that take in nothing but tables yet."""
        self._broadcast = broadcast
        self.shared = [reader for readers, _, _ in broadcast.values() for reader in readers]
        """The readers of the tables that all tasks share."""
        self._batch_records = batch_records
        self._missing: dict[Reader, int] = {}
        """The offsets up to which tasks wait for tables."""
        self._turn = 0
        self._are_some = False
        """Whether any task has had tables of its own."""
        self._await(self.shared)

    def take_in(self, task: Task) -> None:
        """Let a task begin, once its tables are read."""
        self.beginning.append(task)
        self._are_some = self._are_some or bool(task.tables)
        self._await(task.table_readers)

    def let_go(self, tasks: Collection[Task]) -> None:
        """Wait no more for tables of tasks that have left."""
        self.beginning = [task for task in self.beginning if task not in tasks]
        for reader in (reader for task in tasks for reader in task.table_readers):
            self._missing.pop(reader, None)

    @property
    def are_read(self) -> bool:
        """Whether all was read that tasks wait for, and nothing is on its way of what all share."""
        return not (self._missing or self.beginning or any(reader.awaits for reader in self.shared))

    def come_first(self, task: Task) -> bool:
        """Whether a task has something to read on of tables before anything else."""
        if not (self.shared or task.tables) or not task.drained:
            return False
        return any(reader.ready() or reader.awaits for reader in [*self.shared, *task.table_readers])

    def feed_shared(self) -> bool:
        """Take in updates of a table that all tasks share; return whether there were any."""
        for id, (readers, contents, guard) in self._broadcast.items():
            for reader in readers:
                if reader.ready():
                    taken = reader.accept(reader.take(self._batch_records))
                    # Complete at once: each process reads a shared table anew when it begins, so no checkpoint waits
                    # for it.
                    reader.track().release()
                    _feed(id, contents, guard, taken, reader)
                    return True
        return False

    def next_of(self, tasks: Sequence[Task], may_read: Callable[[Task], bool]) -> tuple[Task, str] | None:
        """Return a task and which of its own tables it reads on, each task in turn."""
        # Most applications have no tables of tasks' own, and this is asked at every step.
        if not self._are_some:
            return None
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
            if missing.isdisjoint([*self.shared, *task.table_readers]) and may_begin(task)
        ]
        self.beginning = [task for task in self.beginning if task not in begun]
        return begun

    def _await(self, readers: Iterable[Reader]) -> None:
        # The end as it is known now, and not one that moves on: a table that is written to all the time would else
        # keep its tasks from beginning.
        self._missing |= {reader: reader.origin.known().end for reader in readers if not reader.exhausted}


def _feed(id: str, contents: TableContents, guard: Guard, taken: Taken, reader: Reader) -> None:
    """Take updates of a table that all tasks share in; its malformed rows have no commit to be dead-lettered in."""
    for record in taken.malformed:
        guard.settle(Failure(id, record.error), record.row, reader.place(record.row, 0))
    if len(taken.batch):
        try:
            contents.process(taken.batch)
        except ValueError as error:
            raise SamzaError(f"the table {id!r} can't be read: {error}") from error
