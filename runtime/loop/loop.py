"""The event loop of a container: it feeds tasks, fires what is due, commits at a cut, and waits when all are busy."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, TypeVar

from operators.core.base import MAX_TIMESTAMP, NEVER
from operators.task import Effects
from planner.model.graph import Graph
from planner.model.plan import Options
from runtime.commit.commit import Committer
from runtime.commit.schedule import CommitListeners, Commits
from runtime.functions.failures import exit_error, exit_in
from runtime.loop.chooser import MOST_WAITING, Choice, Chooser, HandedOn
from runtime.loop.tables import BroadcastTables, TableReads
from runtime.loop.threads import Watch, operator_raising
from runtime.loop.waiting import LEAST_MS, LOOK_MS, Waiting
from runtime.model.clock import Clock, sleep_ms
from runtime.model.errors import OperatorFailure, SamzaError
from runtime.ports.environment import Ear
from runtime.reading.reader import Reader
from runtime.reading.relay import AnyRelay, JointRelay, Relay, SplitRelay
from runtime.task.lane import Lane
from runtime.task.task import Task
from runtime.task.together import Companions, feed_together

T = TypeVar("T")


POLL_MS = 50.0
"""The ms after which an idle loop looks again whether another process has written something."""
HEARING_POLL_MS = 500.0
"""The same where it hears of what others write."""
GATHER_MS = 1.0
"""The ms between looks at what calls have come to: those that return meanwhile go on together."""
HAND_ON_MS = 10.0
"""The ms for which few messages wait to be handed on, while calls are in flight of which more will come."""
SLICE_MS = 5.0
"""The ms that the loop works before it lets other coroutines run."""
REST = 24.0
"""The next idle look waits at least this many times as long as one took, with many tasks too: 4 % of a core."""

TOGETHER, LEAST_EACH = 2, 1_000
"""The batches that inputs are read in together, where what they hand on is grouped for all of them, and the records of
each partition, where no more than may wait come of it: a reader costs beside its records as much as some hundred.
"""
TOLD_EACH = 100
"""The messages that are read for each reader behind, before all of these hear of event time without a commit."""
PATIENCE_S = 5.0
"""The s that the end of a run waits for calls that were cancelled, and for threads."""


@dataclass(frozen=True)
class LoopMode:
    """The ways in which a loop differs from one that has all tasks to itself and reads as fast as it can.

    It looks for news every `poll_ms`. Where it is `shared`, other containers have tasks as well, and the end is for
    others to see. It reads up to `per_second` records a second. Tasks commit together, or each `by_task`. Where it
    `gathers`, what calls come to, and what that leaves for later stages, waits a moment for more of it.
    """

    poll_ms: float = POLL_MS
    shared: bool = False
    per_second: float | None = None
    by_task: bool = False
    gathers: bool = True


ALONE = LoopMode()
"""The mode of a loop that has all tasks to itself."""


class Loop:
    """Runs all tasks of a container until their inputs end or a stop is asked for.

    Of the `executors` the first commits; the second, if any, runs tasks whose functions block. Where other containers
    share the tasks, they come and go.

    It lives on one thread, that of its event loop, and everything here is called there; `wake`, and with it `stop` and
    `want_commit`, may be called from any. A task that is `busy` is a thread's or a commit's, and is left alone.
    Nothing is fed to a task before its tables are read, or once it leaves; a task leaves only when all that it did is
    committed.
    """

    def __init__(
        self,
        tasks: list[Task],
        broadcast: BroadcastTables,
        committer: Committer,
        options: Options,
        clock: Clock,
        executors: tuple[Executor, Executor | None],
        mode: LoopMode,
    ) -> None:
        writer, self._threads = executors
        self.tasks: list[Task] = []
        self.shared = mode.shared
        self.finished = False
        """Whether nothing was left to do here when it last looked."""
        self.on_finished: Callable[[], None] = lambda: None
        self.committer = committer
        self.commits = Commits(
            committer,
            self.tasks,
            options,
            clock,
            writer,
            CommitListeners(self.wake, self._committed),
            mode.by_task,
        )
        self.stopping = self._exchanging = False
        self._options = options
        self._gather_ms, self._hand_on_ms = (GATHER_MS, HAND_ON_MS) if mode.gathers else (0.0, 0.0)
        self._clock = clock
        self._throttle = ReadThrottle(mode.per_second, clock, options.batch_records)
        self._writer = writer
        self._working: dict[asyncio.Future[bool], Task] = {}
        self._lines: dict[str, tuple[str, ...]] = {}
        self._watch = Watch(options.blocking_timeout_ms, self._lines) if options.blocking_timeout_ms else None
        self._waiting = Waiting(clock, mode.poll_ms)
        self._hears = False
        """Whether it is woken by what others append, and need not look for it."""
        self._news: asyncio.TimerHandle | None = None
        self._gathering: asyncio.TimerHandle | None = None
        self._has_returned = False
        """Whether what calls have come to is to be taken in now."""
        self._heard_ms = clock.elapsed_ms() - GATHER_MS
        self._running: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._idle: list[asyncio.Future[None]] = []
        self._growing: list[tuple[Task, Lane]] = []
        self._discover_ms = clock.elapsed_ms() + LOOK_MS
        self._stirred = True
        """Whether anything has happened since it was last seen whether event time may go on where nothing comes."""
        self._aligned = False
        """Whether some input must not be ahead of others."""
        self._chooser: Chooser[Choice] = Chooser([])
        self._companions: Companions[Choice] = Companions()
        self._relayed = HandedOn(self._takes_in)
        self._handed_on_ms = clock.elapsed_ms()
        self._tables = TableReads(broadcast, options.batch_records)
        self._told: dict[Task, None] = {}
        """The tasks that were told of event time since they last fired."""
        self._fresh: dict[tuple[str, int], AnyRelay] = {}
        self._splits: dict[tuple[str, int], SplitRelay] = {}
        """The relays of partitions that virtual tasks share, those among them of which some run elsewhere."""
        """The relays to tasks that came, used from the next commit on: what was written before lies in the log then."""
        self._change: tuple[list[Task], asyncio.Future[list[Task]]] | None = None
        """The tasks that arrive once those that leave have been committed, and the future of who waits for it."""
        self._take_in(tasks)
        self._hand_on_to_fresh()

    def wake(self) -> None:
        """Make the loop look around again; any thread may ask for it."""
        if self._running is None or self._thread == threading.get_ident():
            self._waiting.woken.set()
        else:
            self._running.call_soon_threadsafe(self._waiting.woken.set)

    def call_returned(self) -> None:
        """Be told that a call is done: it goes on now, or in a moment with others, where one has gone on just before.

        A step costs as much for one as for many, and calls that are made in a thread return one by one.
        """
        if self._gathering is None and not self._has_returned:
            due_in_ms = self._heard_ms + self._gather_ms - self._clock.elapsed_ms()
            if due_in_ms <= 0:
                self._take_returned()
            else:
                self._gathering = asyncio.get_running_loop().call_later(due_in_ms / 1_000, self._take_returned)

    def _take_returned(self) -> None:
        self._gathering, self._has_returned = None, True
        self._waiting.woken.set()

    def _hear_calls(self) -> None:
        """Let tasks take what calls have come to, but for those that a thread is at work in: these when it is done."""
        self._heard_ms = self._clock.elapsed_ms()
        waiting = [task for task in self.tasks if not task.is_quiet]
        self._has_returned = any(task.busy for task in waiting)
        for task in waiting:
            if not task.busy:
                task.hear()

    @contextmanager
    def hearing(self, ear: Ear | None) -> Iterator[None]:
        """Be woken by what an ear hears during a block, in the thread of the event loop; the ear is closed at its end.

        What is heard needs no looking for: that is done seldom then.
        """
        with ExitStack() as listening:
            if ear is not None:
                listening.callback(ear.close)
                # An event loop in virtual time waits for no files, and looks as often as it is told.
                with suppress(NotImplementedError):
                    running = asyncio.get_running_loop()
                    running.add_reader(ear.fileno(), self._heard, ear)
                    listening.callback(running.remove_reader, ear.fileno())
                    self._waiting.poll_ms, self._hears = max(self._waiting.poll_ms, HEARING_POLL_MS), True
            yield

    def _heard(self, ear: Ear) -> None:
        ear.take()
        rest_ms = self._rest_ms
        if not rest_ms:
            self._waiting.woken.set()
        elif self._news is None:
            # What could be committed only after a rest is taken in after it, too: all that comes until then at once.
            self._news = asyncio.get_running_loop().call_later(rest_ms / 1_000, self._look_up)

    def _look_up(self) -> None:
        self._news = None
        self._waiting.woken.set()

    @property
    def _rest_ms(self) -> float:
        """The ms for which an idle commit waits for more to come, since it was made a moment ago as well.

        Nobody waits where nothing more comes, nor where somebody waits for the commit.
        """
        if not self._hears or self._idle or self.stopping:
            return 0.0
        rest_ms = self.commits.rest_ms
        return 0.0 if not rest_ms or all(reader.exhausted for reader in self._sources(self.tasks)) else rest_ms

    def exit_of(self, error: BaseException, graph: Graph) -> SamzaError | None:
        """Return the error that ends a run for what is no Exception; None where no function of the user's raised it."""
        operator = operator_raising(error, self._lines)
        if operator not in graph.specs and not isinstance(exit_in(error), SystemExit):
            return None
        return exit_error(graph, operator, error)

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

    async def exchange(self, work: Awaitable[T]) -> T:
        """Await work that lets tasks go and takes others in for them; the loop does not end in between."""
        self._exchanging = True
        try:
            return await work
        finally:
            self._exchanging = False
            self.wake()

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
        # As of before the look: what comes after it is found to be new.
        versions = None if self._stirred else self._waiting.versions()
        # Failures of threads and of commits first, before anything more is begun on top of them.
        self._look_after_threads()
        self.commits.check()
        if self._change and self._may_change():
            self._change_tasks()
        if began >= self._waiting.looks_ms:
            self._look_for_idle()
        if self._growing and began >= self._discover_ms:
            await self._discover()
        while self._step():
            worked = True
            if self._clock.elapsed_ms() - began > SLICE_MS:
                break
        self.finished = self.finished and not any(task.touched for task in self.tasks)
        rest_ms = 0.0 if worked else self._rest_ms
        idle = not worked and not rest_ms and self._throttle.is_open
        if await self.commits.make(began, idle, self.stopping, lambda: self._relayed.next() is not None):
            return False
        if worked:
            self.finished, self._stirred = False, True
            self._waiting.look_soon()
            # Callers' coroutines and the callbacks of calls share this event loop.
            await sleep_ms(0)
            return False
        if rest_ms and any(task.touched for task in self.tasks):
            await self._wait(0.0, rest_ms)
            return False
        if self._stirred and not self.stopping and self._go_on():
            return False
        drained = self._drained()
        finished = self._finished(drained)
        if finished:
            # A stream may have come to match since the last look: the end of a run is not told before one more.
            if not self.stopping and await self._discover():
                return False
            if self.stopping or not self.shared:
                return True
        if finished and not self.finished:
            self.on_finished()
        self.finished = finished
        if drained:
            self._tell_idle()
        rests = drained and not self.stopping and not any(task.touched for task in self.tasks)
        await self._wait(REST * (self._clock.elapsed_ms() - began), versions=versions if rests else None)
        return False

    def _step(self) -> bool:
        """Do one thing, if there is one to do."""
        if self._has_returned:
            self._hear_calls()
        moved = self._fire_told() if self._told and not self.stopping else False
        reads_on = not self.stopping
        # Thousands of tasks may be quiet: what is known to have nothing to do costs nothing in a step.
        for task in [task for task in self.tasks if not task.is_quiet]:
            if not task.busy and task.can_go_on and not self._halts(task):
                moved = self._work(task, task.advance) or moved
            if reads_on and task.is_unread and not task.busy:
                moved = self._work(task, task.read_on) or moved
                self._told[task] = None  # it fires what was due all the while, when nothing is left to be read
                # One in a step, as records wait for it.
                reads_on = self._threads is not None
            has_begun = task not in self._tables.beginning
            if has_begun and task.clocked and task.drained and not self.stopping and task.heed():
                moved = self._work(task, task.fire) or moved
            if task.timers and task.drained and task.timers_due and not self.stopping:
                self._work(task, task.call_timers)
                moved = True
            if has_begun:
                task.rest()
        if self.stopping:
            return moved
        # What is handed on in memory is still taken in, later stages first: what is left at the commit has to be
        # stored.
        if self.commits.are_all_due():
            return self._feed_relayed() or moved
        # Tables before records: a lookup finds a row that was there when the record came.
        if self._tables.feed_shared():
            return True
        moved = self._feed_tables() or moved
        return self._feed() or moved

    def _halts(self, task: Task) -> bool:
        """Whether a task goes no further, as what it has done so far is about to be committed."""
        return task.at_cut and (self.stopping or self.commits.is_due(task))

    def _feed_relayed(self) -> bool:
        """Take in what is handed on in memory, later stages first: as much of a round as fits in a slice of time."""
        began, fed = self._clock.elapsed_ms(), False
        # With many partitions each has little: to look around before each of them would cost as much as that.
        for choice in self._relayed.turns():
            self._feed_from(choice)
            fed, self._handed_on_ms = True, self._clock.elapsed_ms()
            if self._handed_on_ms - began > SLICE_MS:
                break
        return fed

    @property
    def _tell_every(self) -> int:
        """The number of messages after whose reading later stages hear of event time, though nothing is committed."""
        return max(self._options.batch_records, TOLD_EACH * len(self._relayed))

    @property
    def _waits_for_calls_ms(self) -> float:
        """The ms for which what is handed on waits for more, while calls are in flight of which more will come."""
        wait_ms = self._handed_on_ms + self._hand_on_ms - self._clock.elapsed_ms()
        return wait_ms if wait_ms > 0 and any(task.in_flight for task in self.tasks) else 0.0

    def _takes_in(self, task: Task) -> bool:
        """Whether a task has begun, does not leave, and has nothing more to read of tables first."""
        if task in self._tables.beginning or self.commits.leaves(task):
            return False
        return not self._tables.come_first(task)

    def _feed_from(self, choice: Choice) -> None:
        task, lane, reader = choice
        if len(joined := self._joined(choice)) > 1:
            most = self._options.batch_records
            in_all = max(TOGETHER * most, min(LEAST_EACH * len(joined), MOST_WAITING))
            each = min(max(in_all // len(joined), 1), most)
            self._throttle.take(partial(self._feed_together, joined, each))
            return
        most = self._options.batch_records if reader.later else self._throttle.most
        feed = partial(task.feed, lane, reader, min(task.room(lane), most))
        self._work(task, feed if reader.later else partial(self._throttle.take, feed))

    def _feed_together(self, joined: list[Choice], each: int) -> int:
        found = feed_together(joined, each, self._clock)
        self._companions.had_turn(joined[: len(found)])
        return sum(found)

    def _joined(self, choice: Choice) -> list[Choice]:
        """Return those that are read together with one that was chosen, which comes first.

        They are of tasks that commit together, and in one thread.
        """
        if self._threads is not None or self.commits.by_task or self._throttle.is_limited:
            return [choice]
        slowest = self._slowest()
        return self._companions.of(choice, lambda one: self._has_turn(True, one) and one.may_join(slowest))

    def _tell(self) -> bool:
        """Tell later stages of event time as if this were a commit; return whether something is due there by that."""
        self._throttle.count = 0
        if self.commits.by_task or any(task.busy or (task.firing and not task.at_cut) for task in self.tasks):
            return False
        due = [task for task in self.committer.tell(self.tasks) if task.has_due]
        self._told.update(dict.fromkeys(due))
        return bool(due)

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
        is_to_tell = self._throttle.count >= self._tell_every
        if (is_to_tell or self._relayed.wait_enough()) and self._feed_relayed():
            return True
        if is_to_tell and self._tell():
            return True
        # Asked for once, and the slowest as well: the same for all choices of this step.
        is_open = self._throttle.is_open
        may_be_fed = partial(self._may_be_fed, self._slowest(), is_open)
        choice = self._chooser.choose(may_be_fed, partial(self._is_awaited, is_open))
        if choice is not None:
            self._feed_from(choice)
        elif not self._waits_for_calls_ms and self._feed_relayed():
            return True
        elif any(relay.is_full for relay in self.committer.relays.values()):
            self.want_commit()  # what waits there is stored, and the stages before it can go on
        return choice is not None

    def _may_be_fed(self, slowest: int | None, is_open: bool, choice: Choice) -> bool:
        # Asked first, as it costs least: behind a repartitioning nothing is stored for most readers.
        return choice.reader.may_be_stored and self._has_turn(is_open, choice) and choice.may_be_taken(slowest)

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
            if not task.busy and task.look_for_idle():
                self._stirred = True
                if task.drained and task not in self._tables.beginning:
                    self._work(task, task.fire)
        self._waiting.looked([*self._sources(self.tasks)])

    def _go_on(self) -> bool:
        """Fire the late panes of tasks for which nothing comes any more; return whether there are any."""
        self._stirred = any(task.busy for task in self.tasks)  # these are looked at when they are done
        quiet = [one for one in self.tasks if not one.busy and one.drained and one not in self._tables.beginning]
        going = [task for task in quiet if task.go_on()]
        for task in going:
            self._work(task, task.fire)
        return bool(going)

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
            self._read_from(Choice(task, lane, reader))
        if found:
            self._know_readers()
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
        """Do work in a task, in a thread where there are any; return whether there was something to do."""
        assert not task.busy, "one thread at a time is in a task"
        task.is_quiet = False
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
        assert not any(task.touched or task.busy for task in going), "a task leaves when all that it did is committed"
        # In place: the commits share this list.
        self.tasks[:] = [task for task in self.tasks if task not in going]
        for task in going:
            self.commits.let_go(task)
            self._told.pop(task, None)
        self._growing = [(task, lane) for task, lane in self._growing if task not in going]
        self._chooser.drop(lambda choice: choice.task in going)
        self._companions.drop(lambda choice: choice.task in going)
        self._tables.let_go(going)
        self._relayed.drop(lambda choice: choice.task in going)
        for reader in (reader for task in going for lane in task.lanes for reader in lane.readers):
            # Their readers are elsewhere from now on: what is written for them goes through the log.
            for relays in (self.committer.relays, self._fresh, self._splits):
                relays.pop((reader.origin.stream, reader.origin.partition), None)
        for task in arriving:
            task.begin()
        self._take_in(arriving)
        if not changed.done():
            changed.set_result(going)

    def _take_in(self, tasks: Collection[Task]) -> None:
        assert not {task.number for task in self.tasks} & {task.number for task in tasks}, "a task runs here once"
        for task in tasks:
            self.tasks.append(task)
            self.commits.take_in(task)
            self._tables.take_in(task)
            for lane in task.lanes:
                self._lines |= lane.chain.lines
                if lane.patterns:
                    self._growing.append((task, lane))
                for reader in lane.readers:
                    self._read_from(Choice(task, lane, reader))
                    if reader.relay is not None:
                        # Of those that share a relay the first takes from it.
                        if reader.beside or not lane.shares:
                            self._relayed.add(reader.relay, Choice(task, lane, reader))
                        self._hand_on_to(lane, reader, reader.relay, task)
        self._know_readers()

    def _know_readers(self) -> None:
        """Note what is the same for all readers until others come."""
        sources = [*self._sources(self.tasks)]
        self._aligned = any(reader.max_drift_ms is not None for reader in sources)
        self._waiting.know(sources, [*self._tables.shared, *(reader for task in self.tasks for reader in task.readers)])
        self._stirred = True

    def _read_from(self, choice: Choice) -> None:
        """Ask a reader for what it has, and fire behind its end also where a look alone has found that."""
        choice.reader.on_end = partial(self._end, choice.task)
        self._chooser.add(choice.reader.priority, choice)
        self._companions.add(choice)

    def _end(self, task: Task) -> None:
        # A checkpoint is to have that it ended, whatever fires by it.
        task.touched = True
        self._told[task] = None
        self._waiting.woken.set()

    def _hand_on_to(self, lane: Lane, reader: Reader, relay: Relay, task: Task) -> None:
        """Hand on to a reader from the next commit: what was written before lies in the log, and is read first."""
        place, factor = (reader.origin.stream, reader.origin.partition), lane.chain.stage.buckets
        if factor == 1:
            self._fresh[place] = JointRelay(relay, reader.origin.partition) if relay.partitions > 1 else relay
            return
        split = self._splits.setdefault(place, SplitRelay())
        split.add(lane.chain.stage.bucket_of(task.number), factor, relay)
        # Where others have a part of the partition, what is written goes to all of them by the log.
        if len(split.shares) == factor:
            self._fresh[place] = split

    def _committed(self, told: list[Task]) -> None:
        """Hand on in memory to tasks that came, and fire what is due in those that were told of event time."""
        self._told.update(dict.fromkeys(told))
        self._hand_on_to_fresh()

    def _fire_told(self) -> bool:
        """Fire what is due in the tasks that were told of event time; return whether there were any."""
        told = [task for task in self._told if not task.busy and task not in self._tables.beginning]
        for task in told:
            del self._told[task]
            self._work(task, task.fire)
        return bool(told)

    def _hand_on_to_fresh(self) -> None:
        self.committer.relays.update(self._fresh)
        self._fresh.clear()

    def _drained(self) -> bool:
        return self._tables.are_read and all(
            task.drained and not (task.awaits or task.is_unread) for task in self.tasks
        )

    def _finished(self, drained: bool) -> bool:
        """Whether nothing is left to do: asked to stop, or all inputs read, and everything committed."""
        if self._exchanging or any(task.touched for task in self.tasks):
            return False
        if self.stopping:
            return all(task.at_cut for task in self.tasks)  # what has still to fire fires first in the next run
        if not drained or self._told:
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

    async def _wait(self, rest_ms: float, most_ms: float = inf, versions: list[int] | None = None) -> None:
        """Block until a call returns, a timer is due, or something may have been written."""
        wait_ms = min(
            self._waiting.in_ms(self._waiting.looks_ms),
            self._waiting.in_ms(self._discover_ms) if self._growing else inf,
            self._throttle.wait_ms,
            most_ms,
            self._waits_for_calls_ms or inf,
        )
        for task in self.tasks:
            if not task.busy and task not in self._tables.beginning and task.next_alarm < NEVER:
                wait_ms = min(wait_ms, max(task.next_alarm - self._clock.now_ms(), LEAST_MS))
            for timer in task.timers:
                if task.drained or timer.due_ms > self._clock.elapsed_ms():
                    wait_ms = min(wait_ms, self._waiting.in_ms(timer.due_ms))
                # else it waits for calls, and whichever returns wakes the loop
        await self._waiting.wait(wait_ms, rest_ms, versions)

    async def _abandon(self) -> None:
        """Cancel every call that is still under way, and wait until all have heeded it."""
        # Calls are cancelled first and waited for together: a user's function may need a moment to heed it, and a run
        # that ends leaves no task behind. One that does not heed it is not waited for without end.
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


PARTS = 10
"""The parts of a second in which its records are read, so that no other waits long behind one of them."""


class ReadThrottle:
    """Limits how many records are read per second; what was too much is waited for afterwards.

    >>> class Still:
    ...     def elapsed_ms(self): return 0.0
    >>> throttle = ReadThrottle(1_000, Still(), most=2_000)
    >>> throttle.most, throttle.is_open, throttle.take(lambda: 50), throttle.wait_ms
    (100, True, 50, 50.0)
    """

    def __init__(self, per_second: float | None, clock: Clock, most: int) -> None:
        self.most = most if per_second is None else max(1, min(most, int(per_second / PARTS)))
        self.count = 0
        """The number of records that were read since somebody set it to 0."""
        self._each_ms = 0.0 if per_second is None else 1_000 / per_second
        self._clock = clock
        self._free_ms = clock.elapsed_ms()

    @property
    def is_limited(self) -> bool:
        """Whether not all may be read that there is."""
        return bool(self._each_ms)

    @property
    def is_open(self) -> bool:
        """Whether records may be read now."""
        return not self._each_ms or self._clock.elapsed_ms() >= self._free_ms

    @property
    def wait_ms(self) -> float:
        """The ms for which records may not be read; infinite where nothing is waited for."""
        return inf if self.is_open else self._free_ms - self._clock.elapsed_ms()

    def take(self, read: Callable[[], int]) -> int:
        """Read records, and count them."""
        number = read()
        self.count += number
        # From now on where it was open: time in which nothing came is not saved up for a burst.
        self._free_ms = max(self._free_ms, self._clock.elapsed_ms()) + number * self._each_ms
        return number
