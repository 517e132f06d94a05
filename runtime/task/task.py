"""One task, a partition id with its share of every stage: processing, firing and committing exclude each other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import cached_property, partial
from itertools import repeat
from typing import Any

from operators.async_flat_map import StatefulCalls, keyed_messages
from operators.core.base import MAX_TIMESTAMP, MIN_TIMESTAMP, NEVER, Batch, Slice
from operators.joins.match_counts import Meetings
from operators.joins.table_join import TableContents
from planner.model.plan import Options
from runtime.functions.calls import Calls
from runtime.functions.failures import Failure, Whence, attributed
from runtime.functions.user_functions import Functions
from runtime.functions.user_lines import TASK
from runtime.job.key_kinds import KeyKinds
from runtime.model.checkpoint import LeftDue
from runtime.model.clock import Clock, Stopwatch
from runtime.model.garbage import resting_for
from runtime.model.metrics import Durations
from runtime.ports.state import StateWrites
from runtime.ports.store import TaskStore
from runtime.reading.completion import Entry
from runtime.reading.reader import Reader
from runtime.reading.relay import Relayed
from runtime.reading.taken import Malformed, Taken
from runtime.stage.chain import Chain
from runtime.stage.error_policy import Anew, Emitted, Guard, LetterRows
from runtime.stage.outputs import Outputs
from runtime.stage.timer import Timer
from runtime.task.calls_in_flight import Flights
from runtime.task.in_flight import UnitInFlight, Units, results_of, shares, stops_of
from runtime.task.lane import Lane, Unfired, owned
from runtime.task.pace import LONGEST_MS

Track = Callable[[Sequence[int]], Iterable[tuple[Entry, ...]]]
"""Starts tracking messages, given where the units end that they go on in."""


class Task:
    """Feeds readers' records through chains; what awaits is completed later, out of order where it may be.

    One thread at a time is in a task: `busy` is set by the event loop for as long as a thread works in it or its
    commit is written, and nobody else touches it then. `do` is that thread's way in. `hear` and `start_calls` are for
    the event loop, before and after. Nothing fires while a message is in flight, and while something fires nothing is
    taken in, so that what fires sees all that came before it. A cut, and so a checkpoint, is only where `at_cut` says
    so.
    """

    def __init__(
        self,
        number: int,
        options: Options,
        clock: Clock,
        functions: Functions,
        outputs: Outputs,
        stores: dict[str, TaskStore],
    ) -> None:
        self.number = number
        self.name = str(number)
        """The name in checkpoints, and under which other stages hear of event time here."""
        self.functions = functions
        self.outputs = outputs
        self.stores = stores
        self.lanes: list[Lane] = []
        self.meetings: dict[str, Meetings] = {}
        """The meetings that joins count, by operator."""
        self.kinds: dict[str, KeyKinds] = {}
        """The kinds of the keys that state lies under, by operator."""
        self.tables: dict[str, tuple[Reader, TableContents, Guard]] = {}
        self.timers: list[Timer] = []
        self.current: Reader | None = None
        self.busy = False
        self.thread: int | None = None
        self.process_ms = self.window_ms = self.own_ms = 0.0
        self.steps, self.firings = Durations("step"), Durations("firing")
        """How long it takes to take in some records at once, and to fire some of what is due."""
        self.starved = Stopwatch(clock)
        self.touched = False
        self.is_quiet = False
        """Whether nothing is to be done in it but what others have done first: feed it, or take it in anew."""
        self.joint: list[Lane] = []
        """The lanes that are run once for several tasks, of which this is one; the first of them runs them."""
        self.beside: list[TaskStore] = []
        """The stores of other tasks in which lanes that it runs for them keep their state."""
        self.lent: frozenset[str] = frozenset()
        """The operators whose stores are among those of another task's `beside`, which counts what is to be written."""
        self._uncommitted: int | None = None
        self._has_due: bool | None = None
        self._options = options
        self._clock = clock
        self._firing: Generator[None, None, None] | None = None
        self._paused = False
        self._fires: Lane | None = None
        """The lane that is firing, or was the last to."""
        self._resumed_ms = 0.0
        """When what is firing last went on."""
        self._now_ms = MIN_TIMESTAMP

    @property
    def in_flight(self) -> int:
        """The number of messages in flight."""
        return sum(len(lane.units) for lane in self.lanes if lane.units is not None)

    @property
    def dirty_count(self) -> int:
        """The number of changed entries of state that wait for the next commit."""
        own = (store for id, store in self.stores.items() if id not in self.lent)
        in_stores = sum(store.dirty_count for store in (*own, *self.beside))
        return in_stores + sum(lane.chain.unwritten for lane in self.lanes)

    @property
    def uncommitted(self) -> int:
        """The number of outputs and changed entries that wait for the next commit, as of the last piece of work."""
        if self._uncommitted is None:
            self._uncommitted = self.outputs.count + self.dirty_count
        return self._uncommitted

    @property
    def firing(self) -> bool:
        """Whether windows or timers are firing, and what they emitted is not yet complete."""
        return self._firing is not None

    @property
    def at_cut(self) -> bool:
        """Whether what is done so far may be committed: what has still to fire would fire first after a restart."""
        return not self.busy and not self.in_flight and (self._firing is None or self._paused)

    @property
    def drained(self) -> bool:
        """Whether nothing is in flight, fired or being worked on."""
        return not self.busy and self._firing is None and not self.in_flight

    @property
    def table_readers(self) -> list[Reader]:
        """The readers of the tables that are its own."""
        return [reader for reader, _, _ in self.tables.values()]

    @property
    def readers(self) -> list[Reader]:
        """All of its readers."""
        return [*(reader for lane in self.lanes for reader in lane.readers), *self.table_readers]

    @property
    def checkpointed(self) -> list[Reader]:
        """The readers whose positions are in its checkpoint: of lanes that are run for several tasks its own."""
        own = (reader for lane in self.lanes if not lane.shares for reader in lane.readers)
        return [*own, *(reader for lane in self.joint for reader in lane.shares[self.name]), *self.table_readers]

    @property
    def awaits(self) -> bool:
        """Whether something is known to be there to read that has not come yet."""
        return any(reader.awaits for reader in self.readers)

    @property
    def can_go_on(self) -> bool:
        """Whether a call has returned, a message may take effect, or what is firing may fire on."""
        if self._firing is not None and not self.in_flight:
            return True
        return any(lane.units.can_go_on for lane in self.lanes if lane.units is not None)

    @cached_property
    def remembering(self) -> list[Calls]:
        """The calls whose answers are kept."""
        pools = [pool for lane in self.lanes if lane.units is not None for pool in lane.units.pools.values()]
        return [pool for pool in pools if pool.answers is not None]

    def answers_to_forget(self) -> list[StateWrites]:
        """Return the answers that a commit makes needless, which has all that was done."""
        if not self.remembering:
            return []
        is_drained = not self.in_flight
        # Where a reader has come to its end, messages of it may still be in flight.
        offsets = {
            (one.origin.stream, one.origin.partition): MAX_TIMESTAMP
            if is_drained and one.ended
            else one.position().offset
            for one in self.readers
        }
        return [pool.answers.to_forget(offsets, is_drained) for pool in self.remembering if pool.answers is not None]

    def rest(self) -> None:
        """Be quiet where nothing is in flight or firing, and no clock has a say."""
        self.is_quiet = self.drained and not (self.clocked or self.timers or self.can_go_on or self.is_unread)

    def committed(self) -> None:
        """Take note that all that was done is committed."""
        self.touched, self._uncommitted = False, None
        self.outputs.clear()
        for pool in self.remembering:
            assert pool.answers is not None
            pool.answers.committed()
            pool.kept()

    @property
    def timers_due(self) -> list[Timer]:
        """The functions of its own that are due."""
        now = self._clock.elapsed_ms()
        return [timer for timer in self.timers if timer.due_ms <= now]

    def hear(self) -> None:
        """Take what async calls have come to, on the event loop, so that the next piece of work goes on with it."""
        for lane in self.lanes:
            if lane.units is not None:
                lane.units.hear()

    def start_calls(self) -> None:
        """Start the async calls that the last piece of work has asked for, on the event loop."""
        token = TASK.set(self)
        for lane in self.lanes:
            if lane.units is not None:
                lane.units.start_calls()
        TASK.reset(token)

    @property
    def is_unread(self) -> bool:
        """Whether operators have not read all that they keep since they began."""
        return any(lane.chain.unread for lane in self.lanes)

    def read_on(self) -> bool:
        """Let operators read some more of what they keep; what is due by that fires when it is told."""
        self.touched |= any(lane.read_on() for lane in self.lanes if lane.chain.unread)
        return True

    def told(self) -> None:
        """Take note that event time may have gone on for its readers, other than by a piece of work."""
        self._has_due = None

    def begin(self) -> None:
        """Make the first commit tell other stages what they must know before anything comes, and note what ended.

        What operators write anew as they begin, as a version before left it, goes with what says that it is there.
        """
        ends = any(reader.ends_anew for lane in self.lanes for reader in lane.readers)
        self.touched = ends or any(lane.has_news or lane.chain.unwritten for lane in self.lanes)

    def do(self, work: Callable[[], object]) -> bool:
        """Do a piece of work, which sees committed state as of one moment; return whether there was something to do."""
        assert self.thread is None, "one thread at a time is in a task"
        # The watch over threads that hang asks which thread is in this task.
        self.thread = threading.get_ident()
        token = TASK.set(self)
        try:
            moved = bool(work())
            self.outputs.hand_on()
            return moved
        finally:
            TASK.reset(token)
            self.thread = self._uncommitted = self._has_due = None
            # A transaction that only reads keeps pages from being used again: it lasts for one piece of
            # work, and no longer.
            for store in (*self.stores.values(), *self.beside):
                store.rest()

    def owners(self, file: str) -> Sequence[str]:
        """Return the operator of each line of a file of fused source, where it is of this task's chains."""
        return next((lines for lane in self.lanes if (lines := lane.chain.lines.get(file))), ())

    def room(self, lane: Lane) -> int:
        """Return how many messages a lane may take in now; 0 while something has to fire before that."""
        if self.busy or lane.held_back or self._fires_before(lane):
            return 0
        if lane.units is None:
            return lane.pace.rows
        room = min(lane.limit - len(lane.units), self._options.max_in_flight + lane.ahead - self.in_flight)
        assert room <= lane.limit, "no more messages are in flight than a lane may have"
        if room < lane.fewest:
            return 0  # enough wait for their turn already, and many at once are cheaper
        return min(room, 1) if lane.one_at_a_time else room

    def _fires_before(self, lane: Lane) -> bool:
        """Whether something fires, or is due, before a lane may take anything in."""
        if self._firing is None:
            return self._is_due()
        # Between two slices of a firing a later stage goes on with what was fired, as it would in another task: what
        # waits for it in memory when a commit comes has to be stored, and read again.
        return not self._paused or lane is self._fires or not lane.depth or lane.chain.is_due(lane.watermark)

    def feed(self, lane: Lane, reader: Reader, limit: int) -> int:
        """Take up to `limit` records of a reader in, and return how many there were."""
        with resting_for(limit):
            started = self._clock.elapsed_ms()
            return self.take_in(lane, reader, self.offered(lane, reader, limit), started)

    def offered(self, lane: Lane, reader: Reader, limit: int) -> Taken:
        """Return up to `limit` records that a reader offers, which are to be taken in next."""
        self.touched = True
        self.current = reader
        self.heed()
        if reader.idle and reader.idle_after_ms is not None:
            reader.come_back(lane.watermark)
        return reader.take(limit)

    def take_in(self, lane: Lane, reader: Reader, taken: Taken, started: float, is_done: bool = False) -> int:
        """Take in what a reader has offered, and return how many records there were; `started` is when that was.

        Where it `is_done` its records have taken effect already, with those of other tasks.
        """
        if taken.folded is not None and not is_done:
            fold = partial(lane.chain.fold, reader.entry, taken.folded)
            # Groups that fail as they take effect don't say which record it was: columns do, one by one.
            if not lane.guard.at_once(fold, partial(reader.place, taken.batch)):
                taken = reader.unfold(reader.renewed(taken))
        # Accepted before it is processed, and tracked before it takes effect: the entry holds the checkpoint
        # back until then.
        taken = self._accepted(lane, reader, taken)
        # Malformed records meet the input's policy first: where that ends the run, nothing of the batch has
        # happened.
        self._refuse(lane.guard, reader, taken.malformed)
        lane.chain.count_dropped(reader.entry, taken.dropped)
        if is_done or not len(taken.batch) or taken.folded is not None:
            reader.track().release()
        elif lane.units is None:
            entry = reader.track()
            lane.guard.each(
                lambda rows: lane.chain.run(reader.entry, rows),
                taken.batch,
                taken.raw,
                partial(reader.place, taken.batch),
                partial(reader.anew, taken.batch, taken.raw),
            )
            entry.release()
        elif isinstance(lane.units, Flights):
            self._admit_rows(lane, lane.units, reader, taken)
        else:
            self._admit(lane, reader, taken.batch, taken.raw)
        elapsed_ms = self._clock.elapsed_ms() - started
        self.process_ms += elapsed_ms
        self.steps.add(elapsed_ms, held=(taken.batch,))
        rows = len(taken.batch) + sum(taken.dropped.values()) if taken.folded is None else taken.folded.number
        lane.pace.took(rows, elapsed_ms)
        self.fire()
        return rows + len(taken.malformed)

    def feed_table(self, stream: str, limit: int) -> None:
        """Take updates of a table in."""
        reader, contents, guard = self.tables[stream]
        self.touched = True
        taken = reader.accept(reader.take(limit))
        entry = reader.track()
        self._refuse(guard, reader, taken.malformed)

        def work(rows: Batch) -> None:
            with attributed(reader.entry):
                contents.process(rows)

        if len(taken.batch):
            guard.each(work, taken.batch, taken.raw, partial(reader.place, taken.batch))
        entry.release()

    def _accepted(self, lane: Lane, reader: Reader, taken: Taken) -> Taken:
        """Accept what was taken; where something awaits, no more than can drain in time."""
        lane.held_back = False
        if lane.units is None or lane.most_rounds is None:
            return reader.accept(taken)
        if lane.one_at_a_time and isinstance(lane.units, Units):
            rows = int(self._fits(lane, lane.units, reader, taken, lane.most_rounds))
        else:
            rows = lane.units.acceptable(taken.batch.keys, lane.width, lane.most_rounds)
        lane.held_back = rows < len(taken.batch)
        return reader.accept(taken, rows)

    def _fits(self, lane: Lane, units: Units, reader: Reader, taken: Taken, rounds: int) -> bool:
        """Whether the calls of a message can end in time; it is explored for that, and not yet accepted."""
        if not len(taken.batch):
            return True
        # Exploring has no effect, and what it found is used when the message comes in: the functions are not
        # called twice.
        if reader not in lane.explored:
            where = partial(reader.place, taken.raw)
            anew = partial(reader.anew, taken.batch, taken.raw)
            lane.explored[reader] = lane.explore(reader.entry, owned(taken.batch), where, anew)
        found, _ = lane.explored[reader]
        calls = sum(len(rows) for exit, rows in found if exit in lane.chain.awaits)
        return units.fits(calls, taken.batch.keys[0] if taken.batch.keys else None, lane.width, rounds)

    def advance(self) -> bool:
        """Let what came back from async calls go on, and take effect where it may; return whether anything did."""
        moved = False
        self.heed()
        for lane in self.lanes:
            if lane.units is not None:
                started = self._clock.elapsed_ms()
                while (
                    self._land(lane, lane.units) if isinstance(lane.units, Flights) else self._go_on(lane, lane.units)
                ):
                    moved = True
                self.process_ms += self._clock.elapsed_ms() - started
        if self._firing is not None or moved:
            moved = self.fire() or moved
        return moved

    def fire(self) -> bool:
        """Fire what the watermarks have made due, once nothing is in flight; return whether there is more right away.

        The firing ends when all of it is complete.
        """
        self.heed()
        # Nothing fires while messages are in flight: they came before the watermark that made it due, and
        # their effects belong to it.
        if self._firing is None and self._is_due() and not self.in_flight:
            self._firing = self._fire()
            self.starved.start()
        if self._firing is None or self.in_flight:
            return False
        started = self._resumed_ms = self._clock.elapsed_ms()
        if next(self._firing, self) is self:
            self._firing = None
            self.starved.stop()
        self._fired_since(started)
        return self._firing is not None and self._paused and not self._is_full()

    def look_for_idle(self) -> bool:
        """Notice which inputs are idle; return whether event time may go on by that."""
        now_ms = self._clock.elapsed_ms()
        found = [lane for lane in self.lanes if lane.look_for_idle(now_ms)]
        self.told()
        self.touched = self.touched or any(lane.repartitions for lane in found)
        return bool(found)

    def go_on(self) -> bool:
        """Let event time go on by a ms where nothing comes and late panes wait for that; return whether it did.

        Where history ends it comes to rest as another run has there.
        """
        rested = [lane.come_to_rest() for lane in self.lanes]
        # Later stages are to hear of it.
        self.touched = self.touched or any(rested)
        went_on = [lane.go_on() for lane in self.lanes]
        self.told()
        return any(went_on) or any(rested)

    def call_timers(self) -> None:
        """Call the task's own functions that are due; nothing may be in flight."""
        assert not self.in_flight, "a timer sees the effects of all that came before it"
        started = self._clock.elapsed_ms()
        self.touched = True
        for timer in self.timers_due:
            timer.call(self._clock.now_ms())
            timer.due_ms = self._clock.elapsed_ms() + timer.interval_ms  # from its end: a slow one starves nothing
        self._fired_since(started)

    @property
    def has_due(self) -> bool:
        """Whether something is due, by event time or the clock."""
        return self._is_due()

    def _fired_since(self, started: float) -> None:
        elapsed_ms = self._clock.elapsed_ms() - started
        self.window_ms += elapsed_ms
        self.firings.add(elapsed_ms)

    def _is_due(self) -> bool:
        if (self.timers and self.timers_due) or (self.clocked and self.next_alarm <= self._now_ms):
            return True
        # Asked at each step of the loop: only work in here, and what is told of event time, can change it.
        if self._has_due is None or self.thread is not None:
            self._has_due = self._is_due_by_event_time()
        return self._has_due

    def unfired(self, joint: dict[int, Unfired]) -> Unfired:
        """Return what a commit leaves to the next one, or to the next run.

        In `joint` is what was found of lanes that are run for several tasks, by their identities, at this commit.
        """
        due, lowest = dict[str, LeftDue](), dict[str, int]()
        for lane in (*(one for one in self.lanes if not one.shares), *self.joint):
            unfired = joint.get(id(lane)) or lane.unfired()
            if lane.shares:
                joint[id(lane)] = unfired
            due |= unfired.due
            lowest |= unfired.lowest
        return Unfired(due, lowest)

    def _is_due_by_event_time(self) -> bool:
        return any(lane.chain.is_due(lane.watermark) for lane in self.lanes if lane.chain.operators)

    @cached_property
    def clocked(self) -> list[Lane]:
        """The lanes whose operators heed the clock."""
        return [lane for lane in self.lanes if lane.chain.clocked]

    @property
    def next_alarm(self) -> int:
        """The time when something is due by the clock, in ms since the epoch; at once where the inputs have ended."""
        return min((lane.next_alarm for lane in self.clocked), default=NEVER)

    def heed(self) -> bool:
        """Tell what heeds the clock the time, which never goes back; return whether something has become due by it."""
        if not self.clocked:
            return False
        # A wall clock may be set back, and what has fired by it can't be taken back.
        self._now_ms = max(self._now_ms, self._clock.now_ms())
        for lane in self.clocked:
            lane.chain.heed(self._now_ms, lane.watermark)
        return self.next_alarm <= self._now_ms

    def _is_full(self) -> bool:
        return self.outputs.count + self.dirty_count >= self._options.max_uncommitted

    def _fire(self) -> Generator[None, None, None]:
        # Once more where a lane that the firing had passed by went on between two slices: nobody else would fire what
        # is due there by that, and nothing is taken in before it.
        yield from self._fire_lanes(self.lanes)
        while self._is_due_by_event_time():
            yield from self._fire_lanes(self.lanes)

    def _fire_lanes(self, lanes: Sequence[Lane]) -> Generator[None, None, None]:
        # Later stages first, as what is due there came before all that the earlier ones fire now. Else it would keep
        # them from taking that in between two slices, and a commit would have to store it.
        for place in reversed(range(len(lanes))):
            lane, later = lanes[place], lanes[place + 1 :]
            self._fires, began = lane, self._clock.elapsed_ms()
            for id, fired, number in self._fired(lane):
                if fired is not None and lane.units is not None and lane.chain.awaits_below(id):
                    self._admit_emitted(lane, id, fired, ())
                elif fired is not None:
                    with resting_for(len(fired)):
                        told = Emitted(fired, lane.chain.graph, id), emitted_by(id)
                        lane.guard.each(_running(lane.chain, id), fired, *told, lane.guard.anew(fired.values))
                lane.firing_pace.took(number, self._clock.elapsed_ms() - began)
                # What fired may await: the next operator fires only when that is complete, since it
                # may be fed by it.
                while self.in_flight:
                    yield
                if (yield from self._pause()):
                    # A commit in between has told later stages of what this one had fired until then.
                    yield from self._fire_lanes(later)
                    self._fires = lane
                began = self._clock.elapsed_ms()

    def _pause(self) -> Generator[None, None, bool]:
        """Let a commit, or others, go first where it is time for that; return whether it was."""
        # Between two slices a commit may be made, so that a large firing stays within max_uncommitted. What has still
        # to fire is due at the checkpointed watermark, and fires first after a restart.
        self._paused, was_full = True, self._is_full()
        while self._is_full():
            yield
        if is_long := self._clock.elapsed_ms() - self._resumed_ms > LONGEST_MS:
            yield
        self._paused = False
        return was_full or is_long

    def _fired(self, lane: Lane) -> Iterator[tuple[str, Batch | None, int]]:
        """Yield what each operator fires, parents first and never much at once; run each before asking for the next.

        With it comes how many panes or timers it was, 0 where there were no more.
        """
        for id, operator in lane.chain.operators.items():
            if id in lane.chain.clocked:
                yield from self._fired_by(lane, id, lane.chain.clocked[id].next_alarm, by_clock=True)
            yield from self._fired_by(lane, id, operator.next_due, by_clock=False)

    def _fired_by(
        self, lane: Lane, id: str, next_due: Callable[[], int], by_clock: bool
    ) -> Iterator[tuple[str, Batch | None, int]]:
        while next_due() <= (until := lane.time_at(id, self._now_ms if by_clock else None)):
            self.touched = True
            # Few at first, as with records: how slow the functions behind a pane or timer are is not
            # known.
            most = lane.firing_pace.rows
            with resting_for(most):
                fired = lane.guard.fire(id, until, most, by_clock)
            is_more = next_due() <= until
            if not by_clock:
                (lane.begun.add if is_more else lane.begun.discard)(id)
            yield id, fired, most if is_more else 0

    def _refuse(self, guard: Guard, reader: Reader, malformed: Sequence[Malformed]) -> None:
        for record in malformed:
            where = reader.place(record.row, 0)._replace(part=record.part)
            guard.settle(Failure(reader.entry, record.error), record.row, where)

    def _admit(self, lane: Lane, reader: Reader, batch: Batch, raw: Batch) -> None:
        """Let what was taken in go on: what awaits message by message, its neighbours together."""

        def track(stops: Sequence[int]) -> Iterable[tuple[Entry, ...]]:
            return ((entry,) for entry in reader.track_each(batch, stops))

        self._enter(lane, reader.entry, batch, raw, reader, track)

    def _admit_rows(self, lane: Lane, flights: Flights, reader: Reader, taken: Taken) -> None:
        """Let what was taken in go on as columns: all that comes through makes one call."""
        where = partial(reader.place, taken.raw)
        anew = partial(reader.anew, taken.batch, taken.raw)
        found, failures = lane.explore(reader.entry, owned(taken.batch), where, anew)
        for row, failure in failures.items():
            lane.guard.settle(failure, taken.raw.row(row), where(row))
        for _, rows in found:
            flights.admit(rows, taken.raw, where, reader.track_rows(rows))
        if not found:
            reader.track().release()

    def _land(self, lane: Lane, flights: Flights) -> bool:
        self.touched = True
        lane.held_back = False
        return flights.go_on()

    def _admit_emitted(self, lane: Lane, id: str, emitted: Batch, parents: Sequence[UnitInFlight]) -> None:
        """Let what a stateful operator emitted go on as messages of their own, on which all their parents wait."""
        # What was emitted holds the offsets of its parents back: they are complete only when it is.
        entries = tuple({entry: None for parent in parents for entry in parent.entries})

        def track(stops: Sequence[int]) -> Iterable[tuple[Entry, ...]]:
            for entry in entries:
                entry.hold(len(stops))
            return repeat(entries, len(stops))

        self._enter(lane, id, emitted, Emitted(emitted, lane.chain.graph, id), id, track)

    def _enter(self, lane: Lane, entry: str, batch: Batch, raw: LetterRows, reader: Reader | str, track: Track) -> None:
        assert isinstance(lane.units, Units)
        where = (
            partial(reader.place, raw) if isinstance(reader, Reader) and isinstance(raw, Batch) else emitted_by(entry)
        )
        before, anew = None, lane.guard.anew(batch.values) if isinstance(reader, str) else None
        if isinstance(reader, Reader) and isinstance(raw, Batch | Relayed):
            before, anew = lane.explored.pop(reader, None), partial(reader.anew, batch, raw)
        found, failures = before or lane.explore(entry, owned(batch), where, anew)
        # A message that makes a call, or failed, is a unit by itself; its neighbours are one unit together, so
        # that a stage in which few await costs little more than one in which none does.
        awaiting = {owner for exit, rows in found if exit in lane.chain.awaits for owner in rows.owners or ()}
        stops = stops_of(len(batch), awaiting | failures.keys())
        assert not len(batch) or stops[-1] == len(batch), "every message is in a unit"
        units = []
        for start, stop, entries in zip([0, *stops], stops, track(stops), strict=False):
            key = batch.keys[start] if batch.keys is not None else None
            stamp = min(batch.stamps[start:stop]) if batch.stamps is not None else None
            units.append(UnitInFlight(entries, raw, range(start, stop), reader, key, stamp))
        self._hand_out(lane, found, failures, units, stops)
        lane.units.admit(units)

    def _hand_out(
        self,
        lane: Lane,
        found: list[tuple[str, Batch]],
        failures: dict[int, Failure],
        units: Sequence[UnitInFlight],
        stops: Sequence[int],
    ) -> None:
        """Note on each unit, given where they end, which calls it makes, what it holds, or that it failed."""
        for exit, rows in found:
            for unit, (_, start, stop) in shares(rows, units, stops):
                if exit not in lane.chain.awaits:
                    unit.held.append((exit, (rows, start, stop)))
                    continue
                arguments: list[Any] = rows.values[start:stop]
                if exit in lane.task_exits:
                    arguments = lane.task_exits[exit].envelopes(rows.slice(start, stop), *self._origin(unit))
                elif isinstance(lane.chain.exits[exit], StatefulCalls):
                    arguments = keyed_messages(rows.slice(start, stop))
                unit.calls.extend((exit, one, (rows, row)) for row, one in enumerate(arguments, start))
        for unit, stop in zip(units, stops, strict=True):
            unit.failure = failures.get(stop - 1, unit.failure)
            if lane.most_rounds is not None and unit.calls:
                lane.check_fan_out(unit, lane.most_rounds)

    def _origin(self, unit: UnitInFlight) -> tuple[str, int]:
        """Return the stream and partition of a message; of what was emitted here, its operator and the task."""
        if isinstance(unit.reader, Reader):
            return unit.reader.origin.stream, unit.reader.origin.partition
        return unit.reader, self.number

    def _go_on(self, lane: Lane, units: Units) -> bool:
        returned = units.take_returned()
        stops = range(1, len(returned) + 1)
        for operator, batch in results_of(returned):
            if operator in lane.task_exits:
                for unit, own in shares(batch, returned, stops):
                    unit.held.append((operator, own))
            else:
                where = places_of(returned, batch.owners or ())
                found = lane.explore(operator, batch, where, lane.guard.anew(batch.values))
                self._hand_out(lane, *found, returned, stops)
        for unit in returned:
            units.settle(unit)
        applicable = units.applicable()
        if applicable:
            self._apply(lane, units, applicable)
        return bool(returned or applicable)

    def _apply(self, lane: Lane, units: Units, applicable: list[UnitInFlight]) -> None:
        """Let messages take effect: together where that succeeds, else one by one under their policies."""
        self.touched = True
        lane.held_back = False
        good = [unit for unit in applicable if unit.failure is None]
        for unit in applicable:
            if unit.failure is not None:
                lane.guard.settle(unit.failure, raw_of(unit), place_of(unit))
        emitted: list[tuple[str, Batch]] = []
        # Together under one savepoint, which is cheap. Where it is rolled back they take effect one by one
        # under their policies, so that those that are good do all the same.
        again = _holding_again(lane, good)
        if lane.guard.at_once(partial(_take_effect, lane.chain, good, emitted), lambda row: span(good)):
            self._go_below(lane, good, emitted)
        else:
            again()
            for unit in (message for one in good for message in one.messages()):
                emitted = []
                work = partial(_take_effect, lane.chain, [unit], emitted, _holding_again(lane, [unit]))
                if lane.guard.one(work, raw_of(unit), place_of(unit)):
                    self._go_below(lane, [unit], emitted)
        for unit in applicable:
            units.applied(unit)

    def _go_below(self, lane: Lane, parents: Sequence[UnitInFlight], emitted: list[tuple[str, Batch]]) -> None:
        for id, batch in emitted:
            self._admit_emitted(lane, id, batch, parents)


def _holding_again(lane: Lane, units: Sequence[UnitInFlight]) -> Callable[[], None]:
    """Return what lets messages hold what they hold now, whatever functions have done with it since."""
    if not lane.guard.lenient:
        return lambda: None
    kept: list[tuple[list[tuple[str, Slice]], int, Anew | None]] = []
    for unit in units:
        for place, (exit, (batch, start, stop)) in enumerate(unit.held):
            if exit not in lane.chain.awaits:  # else it is what calls have left in state
                kept.append((unit.held, place, lane.guard.anew(batch.values[start:stop])))

    def again() -> None:
        for held, place, anew in kept:
            exit, (batch, start, stop) = held[place]
            part = batch.slice(start, stop)
            assert anew is not None, "it was kept"
            part.values = anew(range(stop - start))
            held[place] = exit, (part, 0, stop - start)

    return again


def _take_effect(
    chain: Chain,
    units: Sequence[UnitInFlight],
    emitted: list[tuple[str, Batch]],
    before: Callable[[], None] | None = None,
) -> None:
    """Apply what messages hold, exit by exit, in their order; what must be awaited below is left in `emitted`."""
    if before is not None:
        before()
    emitted.clear()
    below: list[tuple[str, Batch]] = []
    by_exit: dict[str, list[Slice]] = {}
    for unit in units:
        for exit, own in unit.held:
            by_exit.setdefault(exit, []).append(own)
    for exit in sorted(by_exit):
        chain.apply(exit, Batch.gather(by_exit[exit]), lambda id, rows: below.append((id, rows)))
    emitted += below  # only now: where an exit fails, nothing goes on


def _running(chain: Chain, id: str) -> Callable[[Batch], None]:
    return lambda rows: chain.run(id, rows)


def emitted_by(id: str) -> Callable[[int | None], Whence]:
    """Return where what an operator emitted is from."""
    return lambda row: Whence(id)


def places_of(units: Sequence[UnitInFlight], owners: Sequence[int]) -> Callable[[int | None], Whence]:
    """Return where the messages are that rows came from, given the number of each row's; without a row, all of them."""
    return lambda row: span(units) if row is None else place_of(units[owners[row]])


def span(units: Sequence[UnitInFlight]) -> Whence:
    """Return where messages are, as narrowly as they have it in common."""
    first, last = place_of(units[0]), units[-1]
    if any(unit.reader is not units[0].reader for unit in units) or not isinstance(last.raw, Batch):
        return Whence(" and ".join({place_of(unit).source: None for unit in units}))
    return first._replace(last=(last.raw.offsets or [0])[last.rows[-1]])


def raw_of(unit: UnitInFlight) -> Batch:
    """Return a message as it was stored."""
    return unit.raw.row(unit.rows.start)


def place_of(unit: UnitInFlight) -> Whence:
    """Return where a message is from."""
    if isinstance(unit.reader, Reader):
        assert isinstance(unit.raw, Batch)
        return unit.reader.place(unit.raw, unit.rows.start)
    return Whence(unit.reader)
