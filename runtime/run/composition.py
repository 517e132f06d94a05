"""The one place where tasks, committer and loop are put together: for a live run, and for a unit of a batch engine."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import Executor

from operators.joins.table_join import TableContents
from runtime.assembly.assembly import Assembly
from runtime.assembly.task_builder import tasks_of
from runtime.commit.commit import Committer
from runtime.functions.user_functions import Functions
from runtime.loop.loop import ALONE, Loop, LoopMode
from runtime.loop.threads import Workers


class Composition:
    """The tasks of an assembly with what runs them; the order of construction is the order of the users' `open`.

    Tasks come first: what a task reads and keeps is known before its first commit is planned. The loop comes last, when
    the committer knows who owns which task.
    """

    def __init__(self, assembly: Assembly, numbers: Collection[int]) -> None:
        self._assembly = assembly
        shared = assembly.shared_functions()
        self._broadcast = assembly.broadcast_tables(shared)
        self.tables: Mapping[str, TableContents] = {id: table for id, (_, table, _) in self._broadcast.items()}
        """The tables that all tasks share."""
        self.tasks = tasks_of(assembly, self.tables, numbers)
        self.functions: list[Functions] = [shared, *(task.functions for task in self.tasks)]
        """The users' functions, whose objects are opened in this order, and closed in the opposite one."""
        threads = assembly.plan.options.threads
        self._threads = Workers(threads) if threads else None

    def loop(self, committer: Committer, writer: Executor, mode: LoopMode = ALONE) -> Loop:
        """Return the loop that runs the tasks, and commits by `writer`."""
        how = self._assembly.plan.options, self._assembly.clock, (writer, self._threads)
        return Loop(self.tasks, self._broadcast, committer, *how, mode)

    def release(self) -> None:
        """Let go of the threads; blocks until what runs in them has returned."""
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)
