"""The commits of a container: of all its tasks together, or of each by itself while the others go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any

from planner.graph import Graph
from planner.levers import Levers
from planner.plan import Options, Plan
from runtime.bindings import Bindings
from runtime.clock import Clock
from runtime.commit import Committer
from runtime.cut import Cut
from runtime.errors import SamzaError
from runtime.spread import check_spread, followers
from runtime.systems.base import LiveEnvironment
from runtime.task import Task

MOST_WRITERS = 16
"""How many tasks that commit by themselves can do so at the same moment."""


class Commits:
    """Makes commits when they are due; while one is made nothing happens in its tasks.

    `tasks` are all that are run here now, of which each commits `by_task`, or all at once. `on_durable` is called after
    each commit, and `wake` when one has ended that others did not wait for.
    """

    def __init__(
        self,
        committer: Committer,
        tasks: Sequence[Task],
        options: Options,
        clock: Clock,
        writer: Executor,
        wake: Callable[[], None],
        on_durable: Callable[[], None],
        by_task: bool,
    ) -> None:
        self.by_task = by_task
        self.leaving: Collection[int] = ()
        """The numbers of tasks that are about to leave: those that commit with them take nothing in until then."""
        self.spent_ms = 0.0
        self.last_at: float | None = None
        self.under_way: set[asyncio.Future[None]] = set()
        """Those that only their own tasks wait for."""
        self._committer = committer
        self._tasks = tasks
        self._options = options
        self._clock = clock
        self._writer = writer
        self._wake = wake
        self._on_durable = on_durable
        self._cuts = [] if by_task else [Cut(tasks, options, clock)]
        self._cut_of: dict[Task, Cut] = {}

    def take_in(self, task: Task) -> None:
        """Commit a task as well."""
        if self.by_task:
            self._cuts.append(Cut([task], self._options, self._clock))
        self._cut_of[task] = self._cuts[-1]

    def let_go(self, task: Task) -> None:
        """Commit a task no more."""
        cut = self._cut_of.pop(task)
        if self.by_task:
            self._cuts.remove(cut)

    def want(self) -> None:
        """Have commits made as soon as they can be."""
        for cut in self._cuts:
            cut.wanted = True

    def is_due(self, task: Task) -> bool:
        """Whether a task has to come to a commit, and takes nothing in before it."""
        cut = self._cut_of[task]
        return cut.is_due(self._leaves(cut))

    def are_all_due(self) -> bool:
        """Whether all tasks have to, whoever leaves."""
        return bool(self._cuts) and all(cut.is_due(at_once=False) for cut in self._cuts)

    def leaves(self, task: Task) -> bool:
        """Whether a task takes nothing more in, as it leaves, or one that it commits with."""
        return self._leaves(self._cut_of[task])

    async def begin(self) -> None:
        """Commit what tasks have to say before anything is read."""
        for cut in self._cuts:
            if any(task.touched for task in cut.tasks):
                await self._commit(cut)

    async def make(self, began_ms: float, idle: bool, at_once: bool, is_held_up: Callable[[], bool]) -> bool:
        """Make those that are to be made, and can be; return whether all tasks were committed.

        They can't be while something `is_held_up` that has to come first.
        """
        for cut in self._cuts:
            is_last = at_once or self._leaves(cut)
            if not cut.wants(idle, is_last):
                continue
            if not cut.is_complete(is_last) or (not is_last and is_held_up()):
                cut.waits(began_ms)
                continue
            if not self.by_task:
                await self._commit(cut)
                return True
            commit = asyncio.ensure_future(self._commit(cut))
            self.under_way.add(commit)
            commit.add_done_callback(self._ended)
        return False

    def check(self) -> None:
        """Raise what went wrong with one that only its own tasks have waited for."""
        for commit in [one for one in self.under_way if one.done()]:
            self.under_way.remove(commit)
            commit.result()

    def _leaves(self, cut: Cut) -> bool:
        return bool(self.leaving) and any(task.number in self.leaving for task in cut.tasks)

    def _ended(self, commit: asyncio.Future[None]) -> None:
        self._wake()
        _ = commit.cancelled() or commit.exception()  # asked for: of two that fail at once only one is raised

    def _commit(self, cut: Cut) -> Coroutine[Any, Any, None]:
        """Have a commit made from what is done now; the write itself is in a thread of its own."""
        started, tasks = self._clock.elapsed_ms(), [*cut.tasks]
        cut.wanted = False
        commit = self._committer.gather(tasks, self._tasks)
        for task in tasks:
            task.busy = True

        async def write() -> None:
            writing = asyncio.get_running_loop().run_in_executor(self._writer, self._committer.write, commit, tasks)
            await asyncio.shield(writing)
            for task in tasks:  # not where it failed: nobody may commit that again
                task.busy = False
            self._committer.done(commit, tasks)
            self._on_durable()
            self.last_at = self._clock.elapsed_ms()
            self.spent_ms += self.last_at - started
            cut.committed(started)

        return write()


def commits_by_task(plan: Plan, bindings: Bindings, graph: Graph) -> bool:
    """Whether each task commits by itself: as the options say, else where an environment can tell tasks apart.

    There tasks commit together only where they write to a file that others write to, and where some follow what others
    do. Raises SamzaError and PlanError where it is asked for and can't be.
    """
    asked = plan.options.commit_by
    if asked == "task":
        check_spread(plan, bindings, graph, 'leave commit_by="task" out')
        if bindings.sinks:
            raise SamzaError(
                f'commit_by="task": {", ".join(map(repr, bindings.sinks))} is written outside of the environment, by '
                'all tasks together: leave commit_by out, or say commit_by="container"'
            )
    if asked is not None:
        return asked == "task"
    if bindings.sinks or not isinstance(bindings.environment, LiveEnvironment):
        return False
    return next(followers(plan, bindings, graph), None) is None


def storing(levers: Levers) -> Levers:
    """Return levers with which what one stage writes for the next lies in the log, whoever reads it."""
    return replace(levers, relays=False)
