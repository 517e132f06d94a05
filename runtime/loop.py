"""The event loop: choose a message, feed its task, fire what is due, commit at a cut, and block when all are busy."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from typing import Any

from operators.base import MAX_TIMESTAMP, NEVER
from operators.task import Effects
from planner.plan import Options
from runtime.choice import Choice
from runtime.chooser import Chooser
from runtime.clock import Clock, sleep_ms
from runtime.commit import Committer
from runtime.commits import Commits
from runtime.errors import OperatorFailure
from runtime.inputs import Reader
from runtime.lane import Lane
from runtime.relay import Relay
from runtime.tables import BroadcastTables, Tables
from runtime.task import Task
from runtime.throttle import Throttle
from runtime.workers import Watch

POLL_MS = 50.0
"""How often an idle loop looks whether another process has written something."""
HEARING_POLL_MS = 500.0
"""How often it does so where it hears of what others write."""
LOOK_MS = 1_000.0
"""How often a run looks for new streams that match its inputs' patterns, and, at least, for inputs that are idle."""
SLICE_MS = 5.0
"""How long the loop works before it lets other coroutines run."""

PATIENCE_S = 5.0
"""How long the end of a run waits for calls that were cancelled, and for threads."""


class Loop:
    """Runs all tasks of a container until their inputs end or a stop is asked for.

    Where it is `shared`, other containers have tasks as well: tasks come and go, and the end is for others to see. All
    tasks commit together, or each `by_task`, while the others go on.
    """

    def __init__(
        self,
        tasks: list[Task],
        broadcast: BroadcastTables,
        committer: Committer,
        options: Options,
        clock: Clock,
        writer: Executor,
        threads: Executor | None = None,
        poll_ms: float = POLL_MS,
        shared: bool = False,
        per_second: float | None = None,
        by_task: bool = False,
    ) -> None:
        self.tasks: list[Task] = []
        self.shared = shared
        self.finished = False
        """Whether nothing was left to do here when it last looked."""
        self.on_finished: Callable[[], None] = lambda: None
        self.committer = committer
        self.commits = Commits(
            committer, self.tasks, options, clock, writer, self.wake, self._hand_on_to_fresh, by_task
        )
        self.stopping = False
        self._options = options
        self._poll_ms = poll_ms
        self._clock = clock
        self._throttle = Throttle(per_second, clock, options.batch_records)
        self._writer = writer
        self._threads = threads
        self._working: dict[asyncio.Future[bool], Task] = {}
        self._lines: dict[str, tuple[str, ...]] = {}
        self._watch = Watch(options.blocking_timeout_ms, self._lines) if options.blocking_timeout_ms else None
        self._awake = asyncio.Event()
        self._running: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._idle: list[asyncio.Future[None]] = []
        self._growing: list[tuple[Task, Lane]] = []
        self._discover_ms = clock.elapsed_ms() + LOOK_MS
        self._look_ms = 0.0
        self._aligned = False
        """Whether some input must not be ahead of others."""
        self._chooser: Chooser[Choice] = Chooser([])
        self._relayed: list[Choice] = []
        self._tables = Tables(broadcast, options.batch_records)
        self._fresh: dict[tuple[str, int], Relay] = {}
        """What hands on to tasks that came, from the next commit on: what was written before lies in the log then."""
        self._change: tuple[list[Task], asyncio.Future[list[Task]]] | None = None
        """What arrives when those that leave have been committed, and who waits for it."""
        self._take_in(tasks)
        self._hand_on_to_fresh()

    def wake(self) -> None:
        """Have the loop look around again; any thread may ask for it."""
        if self._running is None or self._thread == threading.get_ident():
            self._awake.set()
        else:
            self._running.call_soon_threadsafe(self._awake.set)

    def stop(self) -> None:
        """Ask for an end: what is in flight completes, and is committed."""
        self.stopping = True
        self.wake()

    def want_commit(self) -> None:
        """Ask for a commit as soon as it can be made."""
        self.commits.want()
        self.wake()

    def grant(self, effects: Effects) -> None:
        """Do what a task's own function has asked of the run."""
        if effects.shutdown:
            self.stop()
        if effects.commit:
            self.want_commit()

    async def idle(self) -> None:
        """Wait until everything that can be read now is processed and committed, through all stages."""
        waiting = asyncio.get_running_loop().create_future()
        self._idle.append(waiting)
        self.wake()
        await waiting

    async def change(self, leaving: Collection[int], arriving: Iterable[Task]) -> list[Task]:
        """Run some tasks no more, when all that is done is committed, and others from then on; return those that leave.

        What is on its way from stage to stage is stored then, so that it is not lost with a task that leaves. A task
        waits for one that leaves if they commit together, and for those that arrive in no case.
        """
        changed: asyncio.Future[list[Task]] = asyncio.get_running_loop().create_future()
        self._change = list(arriving), changed
        self.commits.leaving = leaving
        self.finished = False
        self.wake()
        return await changed

    async def run(self) -> None:
        """Run to the end; raises what stopped it, after everything in flight was cancelled."""
        self._running, self._thread = asyncio.get_running_loop(), threading.get_ident()
        try:
            for task in self.tasks:
                task.begin()
            await self.commits.begin()  # an input that was idle may have as much to read as others
            while not await self._turn():
                pass
        finally:
            try:
                await self._abandon()
            finally:
                self._tell_idle()
                self._running = None  # and may be closed before somebody asks for something again

    async def _turn(self) -> bool:
        """Work for a while; return whether all is done."""
        began = self._clock.elapsed_ms()
        worked = False
        self._look_after_threads()
        self.commits.check()
        if self._change and self._may_change():
            self._change_tasks()
        if began >= self._look_ms:
            self._look_for_idle()
        if self._growing and began >= self._discover_ms:
            await self._discover()
        while self._step():
            worked = True
            if self._clock.elapsed_ms() - began > SLICE_MS:
                break
        self.finished = self.finished and not any(task.touched for task in self.tasks)
        idle = not worked and self._throttle.is_open
        if await self.commits.make(began, idle, self.stopping, lambda: self._relayed_next() is not None):
            return False
        if worked:
            self.finished = False
            await sleep_ms(0)
            return False
        finished = self._finished()
        if finished:
            if not self.stopping and await self._discover():
                return False
            if self.stopping or not self.shared:
                return True
        if finished and not self.finished:
            self.on_finished()
        self.finished = finished
        if self._drained():
            self._tell_idle()
        await self._wait()
        return False

    def _step(self) -> bool:
        """Do one thing, if there is one to do."""
        moved = False
        for task in self.tasks:
            if not task.busy and task.can_go_on and not self._halts(task):
                moved = self._work(task, task.advance) or moved
            has_begun = task not in self._tables.beginning
            if has_begun and task.clocked and task.drained and not self.stopping and task.heed():
                moved = self._work(task, task.fire) or moved
            if task.timers and task.drained and task.timers_due and not self.stopping:
                self._work(task, task.call_timers)
                moved = True
        if self.stopping:
            return moved
        if self.commits.are_all_due():
            return self._feed_relayed() or moved
        if self._tables.feed_shared():
            return True
        moved = self._feed_tables() or moved
        return self._feed() or moved

    def _halts(self, task: Task) -> bool:
        """Whether a task goes no further, as what it has done so far is about to be committed."""
        return task.at_cut and (self.stopping or self.commits.is_due(task))

    def _feed_relayed(self) -> bool:
        """Take in what is handed on in memory, later stages first."""
        choice = self._relayed_next()
        if choice is not None:
            self._feed_from(choice)
        return choice is not None

    def _relayed_next(self) -> Choice | None:
        relayed = (choice for choice in self._relayed if choice.reader.relay and self._takes_in(choice.task))
        return next((choice for choice in relayed if choice.has_room), None)

    def _takes_in(self, task: Task) -> bool:
        """Whether a task has begun, does not leave, and has nothing more to read of tables first."""
        if task in self._tables.beginning or self.commits.leaves(task):
            return False
        return not self._tables.come_first(task)

    def _feed_from(self, choice: Choice) -> None:
        task, lane, reader = choice
        most = self._options.batch_records if reader.later else self._throttle.most
        feed = partial(task.feed, lane, reader, min(task.room(lane), most))
        self._work(task, feed if reader.later else partial(self._throttle.take, feed))

    def _feed_tables(self) -> bool:
        """Read a task's own tables on."""
        found = self._tables.next_of(self.tasks, self._may_read_tables)
        if found is None:
            return False
        task, table = found
        self._work(task, partial(task.feed_table, table, self._options.batch_records))
        return True

    def _may_read_tables(self, task: Task) -> bool:
        return not (self.commits.is_due(task) or self.commits.leaves(task))

    def _feed(self) -> bool:
        for task in self._tables.begin(lambda task: not (task.busy or self.commits.leaves(task))):
            self._work(task, task.fire)  # what a commit has left due
        if self._feed_relayed():
            return True
        is_open = self._throttle.is_open
        may_be_fed = partial(self._may_be_fed, self._slowest(), is_open)
        choice = self._chooser.choose(may_be_fed, partial(self._is_awaited, is_open))
        if choice is not None:
            self._feed_from(choice)
        elif any(relay.is_full for relay in self.committer.relays.values()):
            self.want_commit()  # what waits there is stored, and the stages before it can go on
        return choice is not None

    def _may_be_fed(self, slowest: int | None, is_open: bool, choice: Choice) -> bool:
        return self._has_turn(is_open, choice) and choice.may_be_taken(slowest)

    def _is_awaited(self, is_open: bool, choice: Choice) -> bool:
        """Whether what it would be fed is known to be there and has not come: those of lower priority wait, too."""
        return self._has_turn(is_open, choice) and choice.reader.awaits and choice.task.room(choice.lane) > 0

    def _has_turn(self, is_open: bool, choice: Choice) -> bool:
        """Whether it may be read now, and its task is not about to commit while others go on."""
        task = choice.task
        if not (is_open or choice.reader.later) or not self._takes_in(task):
            return False
        return not (self.commits.by_task and self.commits.is_due(task))

    def _look_for_idle(self) -> None:
        """See which inputs nothing comes of, and fire what has waited for these."""
        for task in self.tasks:
            if not task.busy and task.look_for_idle() and task.drained and task not in self._tables.beginning:
                self._work(task, task.fire)
        parts_ms = [after / 4 for reader in self._sources(self.tasks) if (after := reader.idle_after_ms) is not None]
        self._look_ms = self._clock.elapsed_ms() + min([LOOK_MS, *parts_ms])

    def _sources(self, tasks: Iterable[Task]) -> Iterable[Reader]:
        return (reader for task in tasks for lane in task.lanes for reader in lane.readers if not reader.later)

    def _slowest(self) -> int | None:
        """Return the least watermark of what has something to read, where some input must not be ahead of others."""
        if not self._aligned:
            return None
        staying = (task for task in self.tasks if not self.commits.leaves(task))
        readers = (reader for reader in self._sources(staying) if reader.ready() or reader.awaits)
        return min((reader.watermark for reader in readers), default=MAX_TIMESTAMP)

    async def _discover(self) -> bool:
        """Read new streams that match an input's pattern as well; return whether there are any.

        It is looked in a thread, as brokers may take long to answer.
        """
        if not self._growing:
            return False
        look = asyncio.get_running_loop().run_in_executor(self._writer, _new_readers, self._growing)
        found = await asyncio.shield(look)
        self._discover_ms = self._clock.elapsed_ms() + LOOK_MS
        for task, lane, reader in found:
            lane.readers = [*lane.readers, reader]
            self._chooser.add(reader.priority, Choice(task, lane, reader))
        return bool(found)

    def _look_after_threads(self) -> None:
        """Raise what a thread raised, or that one hangs."""
        for future in [done for done in self._working if done.done()]:
            task = self._working.pop(future)
            future.result()
            task.busy = False
            task.start_calls()
        if self._watch is not None and self._working:
            threads = [task.thread for task in self._working.values() if task.thread]
            try:
                self._watch.check(threads, self._clock.elapsed_ms())
            except OperatorFailure:
                self._working.clear()  # there is no waiting for a thread that hangs
                raise

    def _work(self, task: Task, work: Callable[[], object]) -> bool:
        """Have work done in a task, in a thread where there are any; return whether there was something to do."""
        assert not task.busy, "one thread at a time is in a task"
        task.hear()
        if self._threads is None:
            moved = task.do(work)
            task.start_calls()
            return moved
        task.busy = True
        future = asyncio.get_running_loop().run_in_executor(self._threads, lambda: task.do(work))
        self._working[future] = task
        future.add_done_callback(self._worked)
        return True

    def _worked(self, future: asyncio.Future[Any]) -> None:
        self.wake()
        _ = future.cancelled() or future.exception()  # asked for: of two that fail at once only one is raised

    def _may_change(self) -> bool:
        """Whether tasks may come and go now: all must be committed of those that leave, and that commit with them."""
        return all(task.at_cut and not task.touched for task in self.tasks if self.commits.leaves(task))

    def _change_tasks(self) -> None:
        """Let tasks go, and take in those that have come."""
        assert self._change is not None
        (arriving, changed), self._change = self._change, None
        leaving, self.commits.leaving = self.commits.leaving, ()
        going = [task for task in self.tasks if task.number in leaving]
        self.tasks[:] = [task for task in self.tasks if task not in going]
        for task in going:
            self.commits.let_go(task)
        self._growing = [(task, lane) for task, lane in self._growing if task not in going]
        self._chooser.drop(lambda choice: choice.task in going)
        self._tables.let_go(going)
        self._relayed = [choice for choice in self._relayed if choice.task not in going]
        for reader in (reader for task in going for lane in task.lanes for reader in lane.readers):
            for relays in (self.committer.relays, self._fresh):
                relays.pop((reader.origin.stream, reader.origin.partition), None)
        for task in arriving:
            task.begin()
        self._take_in(arriving)
        if not changed.done():
            changed.set_result(going)

    def _take_in(self, tasks: Collection[Task]) -> None:
        for task in tasks:
            self.tasks.append(task)
            self.commits.take_in(task)
            self._tables.take_in(task)
            for lane in task.lanes:
                self._lines |= lane.chain.lines
                if lane.patterns:
                    self._growing.append((task, lane))
                for reader in lane.readers:
                    self._chooser.add(reader.priority, Choice(task, lane, reader))
                    if reader.relay is not None:
                        self._fresh[reader.origin.stream, reader.origin.partition] = reader.relay
                        self._relayed.append(Choice(task, lane, reader))
        self._aligned = any(reader.max_drift_ms is not None for reader in self._sources(self.tasks))
        self._relayed.sort(key=lambda choice: -choice.lane.depth)

    def _hand_on_to_fresh(self) -> None:
        self.committer.relays.update(self._fresh)
        self._fresh.clear()

    def _drained(self) -> bool:
        return self._tables.are_read and all(task.drained and not task.awaits for task in self.tasks)

    def _finished(self) -> bool:
        """Whether nothing is left to do: asked to stop, or all inputs read, and everything committed."""
        if any(task.touched for task in self.tasks):
            return False
        if self.stopping:
            return all(task.at_cut for task in self.tasks)  # what has still to fire fires first in the next run
        if not self._drained():
            return False
        if self._awaits_streams():
            return False
        return all(reader.exhausted for reader in self._sources(self.tasks))

    def _awaits_streams(self) -> bool:
        """Whether a pattern has matched no stream yet."""
        read = {reader.entry for _, lane in self._growing for reader in lane.readers}
        return any(not lane.patterns <= read for _, lane in self._growing)

    def _tell_idle(self) -> None:
        for waiting in self._idle:
            if not waiting.done():
                waiting.set_result(None)
        self._idle.clear()

    async def _wait(self) -> None:
        """Block until a call returns, a timer is due, or something may have been written."""
        wait_ms = min(self._poll_ms, max(self._look_ms - self._clock.elapsed_ms(), 1.0), self._throttle.wait_ms)
        for task in self.tasks:
            if not task.busy and task not in self._tables.beginning and task.next_alarm < NEVER:
                wait_ms = min(wait_ms, max(task.next_alarm - self._clock.now_ms(), 1.0))
            for timer in task.timers:
                due_in_ms = timer.due_ms - self._clock.elapsed_ms()
                if due_in_ms > 0 or task.drained:  # else it waits for calls, and whichever returns wakes the loop
                    wait_ms = min(wait_ms, max(due_in_ms, 1.0))
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_ms / 1_000):  # wait_for loses a cancellation that comes as it wakes
                await self._awake.wait()
        self._awake.clear()

    async def _abandon(self) -> None:
        """Cancel every call that is still under way, and wait until all have heeded it."""
        futures = [
            future
            for task in self.tasks
            for lane in task.lanes
            if lane.units is not None
            for pool in lane.units.pools.values()
            for future in pool.cancel()
        ]
        if futures:
            await asyncio.wait(futures, timeout=PATIENCE_S)
        under_way: list[asyncio.Future[Any]] = [*self._working, *self.commits.under_way]
        if under_way:
            await asyncio.wait(under_way, timeout=PATIENCE_S)


def _new_readers(growing: Iterable[tuple[Task, Lane]]) -> list[tuple[Task, Lane, Reader]]:
    return [(task, lane, reader) for task, lane in growing for reader in lane.find_readers()]
