"""The commits of a container: of all its tasks together, or of each by itself while the others go on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from planner.model.graph import Graph
from planner.model.levers import Levers
from planner.model.plan import Options, Plan
from runtime.assembly.bindings import Bindings
from runtime.assembly.pattern_spread import check_spread, followers
from runtime.commit.commit import Committer
from runtime.functions.calls import Calls
from runtime.model.clock import Clock
from runtime.model.errors import SamzaError
from runtime.model.garbage import resting_a_moment
from runtime.model.metrics import Durations
from runtime.ports.environment import LiveEnvironment
from runtime.task.task import Task

DRAINS = 4
"""A commit is due no sooner than this many times the wait of the last one for what was in flight.

So a container spends at most a fifth of its time on waiting for calls that take long.
"""


class Cut:
    """The tasks that commit at once, all of a container or one by itself, and the time at which they are due."""

    def __init__(self, tasks: Sequence[Task], options: Options, clock: Clock) -> None:
        self.tasks = tasks
        self.wanted = False
        """Whether a commit was asked for."""
        self.is_writing = False
        """Whether a commit, or answers, are being written."""
        self.rested_at = 0.0
        """When answers are written again, unless calls wait for that."""
        self.has_failed = False
        """Whether answers could not be kept: the run ends of that, and nobody tries again."""
        self._options = options
        self._clock = clock
        self._waits_since: float | None = None
        self._due_ms = clock.elapsed_ms() + options.commit_interval_ms

    def wants(self, idle: bool, at_once: bool) -> bool:
        """Whether a commit is to be made, as there is nothing else to do or it is due."""
        if not any(task.touched for task in self.tasks):
            # With nothing to commit the interval begins anew, so that the first record after a quiet time is not
            # committed by itself.
            if self._clock.elapsed_ms() >= self._due_ms:
                self._due_ms = self._clock.elapsed_ms() + self._options.commit_interval_ms
            return False
        # An idle run commits at once: the next stage reads what this one wrote only when it is committed. Where more
        # is known to come the commit waits, else every little of it would make one.
        return (idle and all(task.drained and not task.awaits for task in self.tasks)) or self.is_due(at_once)

    def is_due(self, at_once: bool) -> bool:
        """Whether nothing more is to be taken in before a commit."""
        if self.wanted or at_once or self._clock.elapsed_ms() >= self._due_ms:
            return any(task.touched for task in self.tasks)
        # A commit is held in memory and written in one transaction, and so it is bounded.
        pending = sum(task.uncommitted for task in self.tasks if task.touched)
        return pending >= self._options.max_uncommitted

    def is_complete(self, at_once: bool) -> bool:
        """Whether what is done can be committed as it is."""
        # Exactly once needs a cut, at which nothing is in flight. At least once commits the low watermark instead, so
        # calls in flight go on; a firing is cut between slices all the same.
        if self._options.guarantee == "exactly_once" or at_once:
            return all(task.at_cut for task in self.tasks)
        return not any(task.busy or (task.firing and not task.at_cut) for task in self.tasks)

    def waits(self, since_ms: float) -> None:
        """Take note that a commit is due, and waits for what is in flight."""
        self._waits_since = self._waits_since or since_ms

    def committed(self, began_ms: float) -> float:
        """Take note of a commit that is durable; return how long it has waited for what was in flight.

        The next is due after its interval.
        """
        drained_ms = began_ms - (self._waits_since or began_ms)
        self._waits_since = None
        self._due_ms = self._clock.elapsed_ms() + max(self._options.commit_interval_ms, DRAINS * drained_ms)
        return drained_ms


RESTS = 4
"""A container that hears of each append rests so many times as long as its last commit took, before an idle one.

So where appends come one after the other, commits take at most a fifth of the time, and each has several of them.
"""
MOST_REST_MS = 50.0
"""The most ms of that: a container that hears of nothing looks as often."""
MOST_WRITERS = 16
"""The number of tasks that commit by themselves at the same moment."""


class CommitListeners(NamedTuple):
    """The loop's ears for commits: `wake` when one has ended, `on_durable` as soon as it is durable.

    That is given the tasks in which something may be due since they were told of event time.
    """

    wake: Callable[[], None]
    on_durable: Callable[[list[Task]], None]


class Commits:
    """Makes commits when they are due; while one is made nothing happens in its tasks.

    `tasks` are all that are run here now, of which each commits `by_task`, or all at once. `on_durable` is called after
    each commit, and `wake` when one has ended that others did not wait for.

    A task has one cut, and at most one commit under way, for which it is busy. All methods are for the event loop; a
    commit is written in the `writer`'s threads.
    """

    def __init__(
        self,
        committer: Committer,
        tasks: Sequence[Task],
        options: Options,
        clock: Clock,
        writer: Executor,
        heard: CommitListeners,
        by_task: bool,
    ) -> None:
        self.by_task = by_task
        self.leaving: Collection[int] = ()
        """The numbers of tasks that are about to leave: those that commit with them take nothing in until then."""
        self.spent_ms = 0.0
        self.durations, self.drains = Durations("commit"), Durations("drain")
        """How long commits take until they are durable, and how long they have waited before for what was in flight."""
        self.last_at: float | None = None
        self._rested_at = 0.0
        self.under_way: set[asyncio.Future[None]] = set()
        """The commits that only their own tasks wait for."""
        self._committer = committer
        self._tasks = tasks
        self._options = options
        self._clock = clock
        self._writer = writer
        self._wake, self._on_durable = heard.wake, heard.on_durable
        self._cuts = [] if by_task else [Cut(tasks, options, clock)]
        self._cut_of: dict[Task, Cut] = {}

    def take_in(self, task: Task) -> None:
        """Commit a task as well."""
        if self.by_task:
            self._cuts.append(Cut([task], self._options, self._clock))
        cut = self._cut_of[task] = self._cuts[-1]
        # Asked for only where answers are kept: the place of those that lie apart is made then.
        if task.remembering and self._committer.keeps_at_once:
            for pool in task.remembering:
                pool.keeping_at_once(partial(self._keep_at_once, cut))

    def let_go(self, task: Task) -> None:
        """Commit a task no more."""
        cut = self._cut_of.pop(task)
        if self.by_task:
            self._cuts.remove(cut)

    def want(self) -> None:
        """Ask for commits as soon as they can be made."""
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

    @property
    def rest_ms(self) -> float:
        """The ms until the container has rested from its last commit; 0 where it has."""
        return max(self._rested_at - self._clock.elapsed_ms(), 0.0)

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
                self._keep_answers(cut)
                continue
            # What is handed on in memory is taken in first: what a commit has to store of it costs a write and a read,
            # and in memory neither.
            if cut.is_writing or not cut.is_complete(is_last) or (not is_last and is_held_up()):
                cut.waits(began_ms)
                self._keep_answers(cut)
                continue
            if not self.by_task:
                # What is made of state for a commit is gone once it is durable: the collector looks behind that.
                with resting_a_moment(sum(task.dirty_count for task in cut.tasks)):
                    await self._commit(cut)
                return True
            # Not awaited: the other tasks are fed and fired while this one is written.
            self._begin(self._commit(cut))
        return False

    def _keep_answers(self, cut: Cut) -> None:
        """Begin to write answers that have come: at once where calls wait for it, else no more than now and then."""
        pools = [pool for task in cut.tasks for pool in task.remembering if pool.answers is not None]
        if cut.is_writing or not any(pool.answers.fresh for pool in pools if pool.answers is not None):
            return
        started = self._clock.elapsed_ms()
        if started < cut.rested_at and not any(pool.is_held_up for pool in pools):
            return
        if self._committer.keeps_at_once:
            self._keep_at_once(cut)
            return
        commit = self._committer.gather_answers(cut.tasks)
        cut.is_writing = True

        async def write() -> None:
            writing = asyncio.get_running_loop().run_in_executor(self._writer, self._committer.write_answers, commit)
            await asyncio.shield(writing)
            cut.is_writing = False
            _note_kept(pools)
            ended = self._clock.elapsed_ms()
            rest_ms = min(RESTS * (ended - started), MOST_REST_MS)
            cut.rested_at = ended + rest_ms
            asyncio.get_running_loop().call_later(rest_ms / 1_000, self._wake)

        self._begin(write())

    def _keep_at_once(self, cut: Cut) -> bool:
        """Keep the answers that have come in some tasks; where that fails the run ends, and nothing is kept."""
        if cut.has_failed:
            return False
        try:
            self._committer.write_answers(self._committer.gather_answers(cut.tasks))
        except BaseException as error:
            # Raised in the loop, and not in the call of a user that has come so far.
            cut.has_failed = True
            failed = asyncio.get_running_loop().create_future()
            failed.set_exception(error)
            self._begin(failed)
            return False
        _note_kept(pool for task in cut.tasks for pool in task.remembering)
        return True

    def _begin(self, writing: Awaitable[None]) -> None:
        """Let a write go on that the loop does not wait for."""
        begun = asyncio.ensure_future(writing)
        self.under_way.add(begun)
        begun.add_done_callback(self._ended)

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
        """Make a commit of what is done now; the write itself is in a thread of its own."""
        assert not any(task.busy for task in cut.tasks), "a commit is gathered while nobody is at work in its tasks"
        started, tasks = self._clock.elapsed_ms(), [*cut.tasks]
        cut.wanted, cut.is_writing = False, True
        # Gathered before the coroutine first runs, in the same turn of the loop that has found the cut complete:
        # nothing may happen in its tasks in between.
        commit = self._committer.gather(tasks, self._tasks)
        for task in tasks:
            task.busy = True

        async def write() -> None:
            writing = asyncio.get_running_loop().run_in_executor(self._writer, self._committer.write, commit, tasks)
            await asyncio.shield(writing)
            cut.is_writing = False
            for task in tasks:  # not where it failed: nobody may commit that again
                task.busy = False
            self._on_durable(self._committer.done(commit, tasks))
            self.last_at = self._clock.elapsed_ms()
            self.spent_ms += self.last_at - started
            self._rested_at = self.last_at + min(RESTS * (self.last_at - started), MOST_REST_MS)
            self.durations.add(self.last_at - started, held=[append.batch for append in commit.appends])
            self.drains.add(cut.committed(started))

        return write()


def _note_kept(pools: Iterable[Calls]) -> None:
    """Take note that the answers are durable that were gathered of some calls, and let others begin that waited."""
    for pool in pools:
        assert pool.answers is not None
        pool.answers.written()
        pool.kept()


MOST_ALONE = 128
"""The number of tasks up to which each commits by itself where nothing is said.

Brokers take some hundred transactions a second.
"""


def commits_by_task(plan: Plan, bindings: Bindings, graph: Graph, is_shared: bool) -> bool:
    """Whether each task commits by itself: as the options say, else where one could hold up others.

    So it is where an environment can tell tasks apart, and functions may wait, or other containers have tasks, too
    (`is_shared`). There tasks commit together only where they write to a file that others write to, where some follow
    what others do, and where they are so many that one transaction for each were too much. Raises SamzaError and
    PlanError where it is asked for and can't be.
    """
    asked = plan.options.commit_by
    if asked == "task":
        check_spread(plan, bindings, graph, 'leave commit_by="task" out')
        if outside := [*bindings.sinks, *bindings.outboxes]:
            raise SamzaError(
                f'commit_by="task": {", ".join(map(repr, outside))} is written outside of the environment, by '
                'all tasks together: leave commit_by out, or say commit_by="container"'
            )
    if asked is not None:
        return asked == "task"
    # A bound file has one length, which one commit records for all tasks; and sinks are handed all of a commit.
    if bindings.sinks or bindings.outboxes or not isinstance(bindings.environment, LiveEnvironment):
        return False
    # Else all tasks take turns in one loop anyway. What one hands on to another by itself has to lie on brokers.
    may_wait = plan.options.threads > 0 or any(spec.asynchronous for spec in graph.specs.values())
    if not (may_wait or is_shared):
        return False
    return plan.tasks <= MOST_ALONE and next(followers(plan, bindings, graph), None) is None


def storing(levers: Levers) -> Levers:
    """Return levers with which what one stage writes for the next lies in the log, whoever reads it."""
    return replace(levers, relays=False)
