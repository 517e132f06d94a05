"""The commit at a cut: outputs, intermediate messages, state and positions of all tasks become visible together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from msgspec import MsgspecError

from operators.core.base import MIN_TIMESTAMP, Batch
from planner.model.plan import Plan
from planner.model.virtual_tasks import WHOLE, is_task
from runtime.assembly.bindings import Bindings
from runtime.functions.failures import Failure, unkept_error
from runtime.job.key_kinds import to_note
from runtime.model.checkpoint import SHARED, Checkpoint, Position
from runtime.model.clock import Clock
from runtime.model.errors import SerdeError
from runtime.model.garbage import resting_for
from runtime.model.metrics import LISTENER, Durations
from runtime.ports.commits import Commit
from runtime.ports.environment import Environment, RememberingEnvironment
from runtime.ports.sink import PartitionedSink, Sink
from runtime.ports.state import StateWrites
from runtime.ports.streams import Append, Control, in_one
from runtime.reading.reader import Reader
from runtime.reading.relay import AnyRelay, SplitRelay
from runtime.reading.watermarks import News
from runtime.task.lane import Lane, Unfired
from runtime.task.task import Task

STATE = "state"
"""The checkpoint that says what the state of all tasks means."""
Words = Sequence[tuple[str, Control]]
"""The words of a task on event time, each with the stream that it goes to."""
Siblings = Callable[[int], Sequence[str]]
"""Returns the names of the virtual tasks that share the partitions of one, by its number."""
DELETED = "deleted"
"""The checkpoint that marks an application as deleted, while its generation is the application's."""


class Committer:
    """Gathers what the tasks have done into one commit, and tells them when it is durable.

    Positions and watermarks that it commits never go back. All that lies below a committed position has taken effect,
    and with exactly_once nothing else has. `gather` and `done` are for the event loop, while nothing happens in the
    tasks; `write` runs in the writer's thread in between.
    """

    def __init__(
        self,
        app: str,
        generation: int,
        bindings: Bindings,
        clock: Clock,
        positions: dict[str, int],
        relays: dict[tuple[str, int], AnyRelay],
        least_state: int = 0,
    ) -> None:
        self.app = app
        self.generation = generation
        self.commits = 0
        self.is_heard_everywhere = False
        """Whether what is told of event time in one partition of a stream is heard in all, as a unit's is."""
        self.put_ms: dict[int, float] = {}
        self.taken: dict[int, int] = {}
        """The generations of the tasks that were taken among several containers."""
        self.event_to_output: dict[str, Durations] = {}
        """By output, how long after their own time messages are committed."""
        self.append_to_commit: dict[str, Durations] = {}
        """By stream that is read, how long after they were appended the effects of records are committed."""
        self._listener = LISTENER.get()
        self._bindings = bindings
        self._clock = clock
        self._positions = positions
        self.relays = relays
        self._here: set[str] = set()
        """The names of the tasks that are run here."""
        self._siblings: Siblings | None = None
        """What tells the virtual tasks that share a partition with one, where tasks are split."""
        self._told: dict[tuple[str, str], tuple[int, bool]] = {}
        self._least_state = least_state
        """The number of changed entries of a task's state from which a commit has them: fewer wait for a later one."""
        self._with_state: set[int] = set()
        """The tasks whose state the commit at hand has."""
        self._listeners: Listeners = {}
        """The readers that are told in memory what the commit at hand says of event time, by stream and partition."""
        self._words: dict[int, Words] = {}
        """By task, what its commit that is under way says of event time, by stream.

        Tasks that commit by themselves may do so at once: what one has said must not be taken for another one's.
        """
        self.reached: dict[tuple[str, str, int], int] = {}
        """The offsets of the last checkpoint, by task, stream and partition."""

    def share(self, plan: Plan) -> None:
        """Commit for tasks as they are split in a plan."""
        self._siblings = plan.siblings if plan.options.factor > 1 else None
        # One of the same name may have told of event time before a merge: this one is heard to be as far as the last
        # of those in whose place it is, and has to say itself how far it has come.
        self._told = {}
        # A task of the same name may have read further before a merge than it has after the next split.
        found = self._bindings.environment.checkpoints(self.app) if self._siblings is not None else {}
        self.reached = {}
        for name in filter(is_task, found):
            self.reached |= _lowest(name, found[name].positions)

    def gather(self, tasks: Sequence[Task], among: Sequence[Task]) -> Commit:
        """Return the commit of everything that some of the tasks here have done; nothing is changed yet."""
        self._listeners = _listeners(tasks, among, self.relays)
        self._here = {task.name for task in among}
        appends = [
            Append(*place, _without_gaps(_stored(relay, among), self._clock))
            for place, relay in self.relays.items()
            if relay
        ]
        state: list[StateWrites] = []
        forgotten: list[StateWrites] = []
        checkpoints: dict[str, Checkpoint] = {}
        consumed: dict[tuple[str, int], int] = {}
        together: dict[tuple[str, str, int], int] = {}
        joint: dict[int, Unfired] = {}
        _touch_joint(tasks)
        for task in tasks:
            # A lane with nothing to read passes on the watermark of others, which may have moved while nothing was
            # done in it.
            if not task.touched and not any(map(_only_tells, task.lanes)):
                continue
            task.touched = True
            started = self._clock.elapsed_ms()
            for lane in task.lanes:
                # Event time of idle inputs is committed as far as that of the others has come, so that a restart does
                # not fall back behind what it has told.
                lane.follow()
            with resting_for(task.dirty_count):
                state += self._changes(task)
            forgotten += [writes for writes in task.answers_to_forget() if writes.items]
            appends += self._messages(task)
            self._words[task.number] = self._controls(task, among)
            positions = tuple(one for reader in task.checkpointed for one in reader.positions())
            lowest = _lowest(task.name, positions)
            assert all(self.reached.get(place, at) <= at for place, at in lowest.items()), "a checkpoint goes on"
            due, unread = task.unfired(joint)
            checkpoints[task.name] = Checkpoint(
                self.generation, positions, unread, meanings=to_note(task.kinds), due=due
            )
            # Only streams between stages: what is consumed of these may go, as no one else reads them. An input is not
            # ours.
            between = {(one.origin.stream, one.origin.partition) for one in task.checkpointed if one.later}
            together |= lowest
            consumed |= {(stream, at): offset for (_, stream, at), offset in lowest.items() if (stream, at) in between}
            self.put_ms[task.number] = self.put_ms.get(task.number, 0) + self._clock.elapsed_ms() - started
        appends = self._with_words(appends, _by_stream(self._words.get(task.number, ()) for task in tasks))
        taken = {task.number: self.taken[task.number] for task in tasks if task.touched and task.number in self.taken}
        if forgotten and self._answers is self._bindings.environment:
            state, forgotten = state + forgotten, []
        if self._siblings is not None:
            state, consumed = _together(state), self._consumed_by_all(tasks, together, consumed)
        consumed |= self._bindings.taken_out()
        # Keys went to partitions as many as there were when this run began, and others hold their state. What is read
        # behind the growth of an input may be of keys that another task has.
        counts = self._bindings.read_among() | {
            one.stream: self._bindings.partitions(one.stream) for one in appends if one.batch.values
        }
        forgotten = _together(forgotten)
        return Commit(
            self.app, self.generation, appends, state, checkpoints, consumed, taken, among=counts, answers=forgotten
        )

    def gather_answers(self, tasks: Iterable[Task]) -> Commit:
        """Return the commit of answers that have come in tasks: they are durable before what comes of them is."""
        answers = [pool.answers for task in tasks for pool in task.remembering if pool.answers is not None]
        state = [one.to_write() for one in answers if one.fresh]
        taken = {task.number: self.taken[task.number] for task in tasks if task.number in self.taken}
        together = state if self._siblings is None else _together(state)
        return Commit(self.app, self.generation, [], together, {}, tasks=taken)

    def write_answers(self, commit: Commit) -> None:
        """Make answers durable; raises as `write` does."""
        if self._answers is self._bindings.environment:
            self._answers.commit(commit)
            return
        # Nobody owns what is kept apart: an answer is one, whoever has asked.
        generation = self._answers.generation(self.app)
        self._answers.commit(Commit(self.app, generation, [], commit.state, {}))

    @property
    def keeps_at_once(self) -> bool:
        """Whether answers are kept apart, where a write waits for no other and for no disk."""
        return self._answers is not self._bindings.environment

    @cached_property
    def _answers(self) -> Environment:
        """The place where answers are kept."""
        environment = self._bindings.environment
        return environment.answers() if isinstance(environment, RememberingEnvironment) else environment

    def _consumed_by_all(
        self, tasks: Collection[Task], together: dict[tuple[str, str, int], int], consumed: Iterable[tuple[str, int]]
    ) -> dict[tuple[str, int], int]:
        """Return how far all virtual tasks have come that share partitions with those of a commit, where it is known.

        `together` has the offsets of this commit. Of others only what is durable counts: a commit of theirs may be
        under way, and fail.
        """
        assert self._siblings is not None
        # Of those alone that have read something: each has as many siblings as its task has parts.
        sharing = {
            where: self._siblings(next(task.number for task in tasks if (task.name, *where) in together))
            for where in consumed
        }
        places = [(name, *where) for where, siblings in sharing.items() for name in siblings]
        if any(place[0] not in self._here or (place not in together and place not in self.reached) for place in places):
            # Others commit by themselves, or have in an earlier run: what they have read only ever grows.
            stored = self._bindings.environment.checkpoints(self.app)
            for name in {place[0] for place in places} & stored.keys():
                self.reached |= _lowest(name, stored[name].positions)
        known = self.reached | together
        return {
            where: min(known[name, *where] for name in siblings)
            for where, siblings in sharing.items()
            if all((name, *where) in known for name in siblings)
        }

    def deliver_due(self) -> None:
        """Hand sinks what waits for others, or for its turn, and is due, though nothing is committed."""
        self._positions = deliver(self._bindings, self.app, self.generation, self._positions)

    def deliver_rest(self) -> None:
        """Hand sinks all that is committed, as the run ends: also what waits for more rows, or was not readable yet."""
        self._positions = deliver(self._bindings, self.app, self.generation, self._positions, whole=True)

    def write(self, commit: Commit, tasks: Iterable[Task]) -> None:
        """Make it durable: bound outputs first, which a restart takes back to the positions that the commit holds."""
        # Bound outputs are written and durable before the commit, which records how long they are. A crash in between
        # leaves rows behind the recorded length, which a restart cuts off; the other way round rows would be missing.
        positions = {**self._positions, **self._bindings.delivered()}
        for stream, sink in self._bindings.sinks.items():
            places = [(task.outputs.pending, (stream, number)) for task in tasks for number in range(sink.partitions)]
            found = [(place[1], pending[place]) for pending, place in places if place in pending]
            if found:
                positions[self._bindings.places[stream]] = self._written(stream, sink, found)
        if positions != self._positions:
            commit.checkpoints[SHARED] = Checkpoint(self.generation, outputs=positions)
        self._bindings.environment.commit(commit)
        if commit.answers:
            self.write_answers(commit._replace(state=[*commit.answers]))
        # Only now: where the commit fails, these lengths count for nobody.
        self._positions = positions
        self._positions = deliver(self._bindings, self.app, self.generation, positions)

    def _written(self, stream: str, sink: Sink, found: Sequence[tuple[int, Batch]]) -> int:
        """Write to a bound output, and return its position; raises SerdeError for a value that is not of its type."""
        try:
            for partition, batch in found:
                if isinstance(sink, PartitionedSink):
                    sink.write_to(partition, batch)
                else:
                    sink.write(batch)
            return sink.flush()
        except (MsgspecError, SerdeError) as error:
            wrong = str(error) if isinstance(error, SerdeError) else f"a value is not of its type: {error}"
            place = self._bindings.places[stream].partition("=")[2]
            bound = f", bound to {place}" if place else ""  # in a worker of Spark it is a file of an attempt
            raise SerdeError(
                f"output {stream!r} at {self._bindings.sites[stream]}{bound}: {wrong}; nothing of that commit is there"
            ) from error

    def done(self, commit: Commit, tasks: Iterable[Task]) -> list[Task]:
        """After a commit: what was pending is no more, what was written is clean.

        Return the tasks that were told of event time in memory, in which something may be due by that.
        """
        self.commits += 1
        for relay in self.relays.values():
            relay.clear()
        words = _by_stream(self._words.pop(task.number, ()) for task in tasks)
        self._note(words)
        for name, checkpoint in commit.checkpoints.items():
            self.reached |= _lowest(name, checkpoint.positions)
        now_ms = self._clock.now_ms()
        for task in tasks:
            if task.touched:
                self._time(task, now_ms)
                task.committed()
                for store in task.stores.values() if task.number in self._with_state else ():
                    store.committed()
        heard = _hear(self._listeners, words)
        self._listeners = {}
        return heard

    def tell(self, tasks: Sequence[Task]) -> list[Task]:
        """Tell in memory how far event time is where all that was written has been taken in; return who heard of it.

        It is for tasks that commit together, while no thread is at work in any. Nothing is durable by that: a crash
        takes back what was heard with all that came of it. But windows that begin and end between two commits never
        come to a store.
        """
        listeners = {
            stream: readers
            for stream, readers in _listeners(tasks, tasks, self.relays).items()
            if len(readers) == self._bindings.partitions(stream)
        }
        said = _by_stream(self._controls(task, tasks) for task in tasks) if listeners else {}
        words = {stream: told for stream, told in said.items() if stream in listeners}
        self._note(words)
        return _hear(listeners, words)

    def _note(self, words: Mapping[str, Sequence[Control]]) -> None:
        """Note how far each producer has told that event time is, which never goes back."""
        for stream, control in ((stream, one) for stream, told in words.items() for one in told):
            before, _ = self._told.get((control.producer, stream), (MIN_TIMESTAMP, False))
            assert control.watermark >= before, "a producer never takes its watermark back"
            self._told[control.producer, stream] = control.watermark, control.idle

    def _time(self, task: Task, now_ms: int) -> None:
        """Count the latencies of what a task has in the commit at hand, by batch and not by message."""
        between = {stream for lane in task.lanes for stream in lane.writes}
        for (stream, _), batch in task.outputs.pending.items():
            if batch.timestamps and stream not in between:
                durations = self.event_to_output.setdefault(
                    stream, Durations("event_to_output", stream, self._listener)
                )
                durations.add_since(batch.timestamps, now_ms)
        for reader in task.readers:
            stream = reader.origin.stream
            for appended_ms, rows in reader.appended:
                durations = self.append_to_commit.setdefault(
                    stream, Durations("append_to_commit", stream, self._listener)
                )
                durations.add(now_ms - appended_ms, rows)
            reader.appended.clear()

    def _changes(self, task: Task) -> Iterator[StateWrites]:
        """Yield what has changed in the state of a task; nothing while that is little."""
        self._with_state.discard(task.number)
        if task.dirty_count < self._least_state:
            return
        self._with_state.add(task.number)
        for lane in task.lanes:
            try:
                lane.chain.write_back(durable_only=True)
            except Failure as failure:
                raise unkept_error(lane.chain.graph.specs[failure.operator], failure.error) from failure.error
        for store in task.stores.values():
            try:
                changes = store.changes()
            except SerdeError as error:
                lane = next(lane for lane in (*task.lanes, *task.joint) if store.name in lane.chain.stage.operators)
                raise unkept_error(lane.chain.graph.specs[store.name], error) from error
            if changes.items:
                yield changes

    def _controls(self, task: Task, tasks: Sequence[Task]) -> Words:
        """Return what a task tells of event time in each stream that it writes, also for whom it runs lanes for."""
        return [
            (stream, Control(name, max(watermark, told), self.generation, is_idle))
            for lane in task.lanes
            if lane.writes
            for watermark, is_idle, known in ((_told_below(lane, tasks), lane.is_idle, lane.was_idle),)
            for stream in lane.writes
            for name in lane.shares or (task.name,)
            for told, was_idle in (self._told.get((name, stream), (MIN_TIMESTAMP, known)),)
            if watermark > told or is_idle != was_idle
        ]

    def _messages(self, task: Task) -> list[Append]:
        return [
            Append(self._bindings.place_of(stream), partition, _without_gaps(batch, self._clock))
            for (stream, partition), batch in task.outputs.pending.items()
            if stream not in self._bindings.sinks and batch.values
        ]

    def _with_words(self, appends: list[Append], words: Mapping[str, Sequence[Control]]) -> list[Append]:
        """Return what is appended with what tasks have to tell of event time, behind the last of their rows.

        Every partition is told, those without rows as well: a reader takes the minimum over all producers, and would
        wait for one that is silent. Each is told of all tasks at once: a word of each task for each partition would be
        most of what a commit writes where there are many.
        """
        last = {(one.stream, one.partition): at for at, one in enumerate(appends)}
        for stream, told in words.items():
            listeners, control = self._listeners.get(stream, {}), in_one(told)
            partitions: Iterable[int] = range(self._bindings.partitions(stream))
            if self.is_heard_everywhere:  # of thousands of partitions few have rows of a small file
                assert not listeners, "who is told in memory hears what is told in its own partition"
                partitions = [partition for of, partition in last if of == stream] or [0]
            for partition in partitions:
                at = last.get((stream, partition))
                if partition in listeners:
                    assert at is None, "who listens in memory has nothing left to read"
                elif at is None:
                    appends.append(Append(stream, partition, Batch([]), control))
                else:
                    appends[at] = appends[at]._replace(control=control)
        return appends


def deliver(
    bindings: Bindings,
    app: str,
    generation: int,
    positions: dict[str, int],
    *,
    takes_out: bool = False,
    whole: bool = False,
) -> dict[str, int]:
    """Hand sinks what is committed now, and note it where a sink does not know by itself how far it has come.

    Where it is `whole`, rows that wait for others on their way go as well.

    Behind the commit, so that no sink shows what is not committed; a crash in between is made good at the next opening.
    Where nobody else's commit `takes_out` what was delivered, this does. Returns the positions that are noted.
    """
    bindings.deliver(whole)
    found = {**positions, **bindings.delivered()}
    if found == positions or not (takes_out or any(outbox.is_noted for outbox in bindings.outboxes.values())):
        return positions
    noted = {SHARED: Checkpoint(generation, outputs=found)}
    bindings.environment.commit(Commit(app, generation, [], [], noted, bindings.taken_out()))
    return found


def _together(state: Iterable[StateWrites]) -> list[StateWrites]:
    """Return the changes of virtual tasks that keep their entries in one place as one: no two of them have a key."""
    found: dict[tuple[str, int], list[tuple[bytes, bytes | None]]] = {}
    for store, task, items in state:
        found.setdefault((store, task), []).extend(items)
    return [StateWrites(store, task, items) for (store, task), items in found.items()]


def _stored(relay: AnyRelay, tasks: Sequence[Task]) -> Batch:
    """Return what a cut leaves in a relay, as the stream keeps it; raises PlanError for a value that has no bytes."""
    try:
        return relay.stored()
    except SerdeError as error:
        raise unkept_error(tasks[0].lanes[0].chain.graph.specs[relay.operator], error) from error


Listeners = dict[str, dict[int, list[tuple[Task, Reader]]]]
"""The readers that are told of event time in memory, by stream and partition: all that read it, or none."""


def _listeners(tasks: Sequence[Task], among: Sequence[Task], relays: Mapping[tuple[str, int], AnyRelay]) -> Listeners:
    """Return the readers that can be told in memory how far event time is, once what is committed is durable.

    These have read all that is stored for them, are handed the rest in memory, and the commit stores nothing more. With
    many partitions, a record of each task for each reader would be most of what a commit writes and is read again.
    """
    if len(tasks) < len(among):
        return {}  # who commits by itself leaves others at work, which must not be disturbed
    written = {place for task in tasks for place, batch in task.outputs.pending.items() if batch.values}
    found: Listeners = {}
    for task in tasks:
        if task.firing or task.in_flight:
            continue  # what fires, and what is in flight, belongs to the event time that is known: no more comes in
        for reader in (reader for lane in task.lanes for reader in lane.readers):
            place = stream, partition = reader.origin.stream, reader.origin.partition
            if place in relays and place not in written and reader.is_up_to_date:
                found.setdefault(stream, {}).setdefault(partition, []).append((task, reader))
    # Of virtual tasks that share a partition all are told in memory, or none: what is stored each of them reads.
    for stream, by_partition in found.items():
        for partition, readers in [*by_partition.items()]:
            relay = relays[stream, partition]
            if isinstance(relay, SplitRelay) and len(readers) < len(relay.shares):
                del by_partition[partition]
    return found


def _by_stream(said: Iterable[Words]) -> dict[str, list[Control]]:
    """Return what several tasks say of event time, by stream."""
    found: dict[str, list[Control]] = {}
    for stream, control in (one for words in said for one in words):
        found.setdefault(stream, []).append(control)
    return found


def _hear(listeners: Listeners, words: Mapping[str, list[Control]]) -> list[Task]:
    """Let readers hear how far event time is; return their tasks, in which something may be due by that."""
    heard: dict[Task, None] = {}
    for stream, told in words.items():
        news = News((one.producer, one.watermark, one.idle) for one in told)
        for task, reader in (one for all in listeners.get(stream, {}).values() for one in all):
            reader.hear(news)
            task.told()
            task.touched = True  # so that a checkpoint has what it heard before it may leave for elsewhere
            heard[task] = None
    return [*heard]


def _lowest(task: str, positions: Iterable[Position]) -> dict[tuple[str, str, int], int]:
    """Return the offsets of a task's own positions, by task, stream and partition, the lowest where there are several.

    Who has none of its own, but those of shares that others have read, begins at the start.
    """
    found: dict[tuple[str, str, int], int] = {}
    for one in (one for one in positions if one.bucket == WHOLE):
        place = task, one.stream, one.partition
        found[place] = min(one.offset, found.get(place, one.offset))
    return found


def _touch_joint(tasks: Sequence[Task]) -> None:
    """Touch each task for which something was done in a lane that is run for several of them.

    Its state and its positions may have changed by that. Whoever runs the lane comes first of them, and so all is in
    their stores when they are gathered.
    """
    if any(task.touched and any(lane.shares for lane in task.lanes) for task in tasks):
        for task in tasks:
            task.touched = task.touched or bool(task.joint)


def _only_tells(lane: Lane) -> bool:
    """Whether a lane has nothing to read, no stream of a pattern having so many partitions, and is listened to."""
    return not lane.readers and lane.repartitions


def _told_below(lane: Lane, tasks: Iterable[Task]) -> int:
    """Return the watermark that the next stage hears of: of a lane with nothing to read, that of the other tasks."""
    if lane.readers:
        return forwardable(lane)
    stage = lane.chain.stage
    alike = [one for task in tasks for one in task.lanes if one.readers and one.chain.stage == stage]
    return min(map(forwardable, alike), default=MIN_TIMESTAMP)


def forwardable(lane: Lane) -> int:
    """Return the watermark that may be sent on: no further than what is in flight, or still to fire, may emit with."""
    lowest = lane.units.lowest_stamp if lane.units is not None else None
    reached = lane.chain.watermark_below(lane.watermark)
    return reached if lowest is None else min(reached, lowest)


def _without_gaps(batch: Batch, clock: Clock) -> Batch:
    """Give rows that have no time the time of the commit, and rows without a stamp their time, where others have one.

    Of streams that are merged, one may carry stamps and another not.
    """
    if batch.timestamps is not None and None in batch.timestamps:
        now = clock.now_ms()
        batch.timestamps = [now if at is None else at for at in batch.timestamps]
    if batch.stamps is not None and None in batch.stamps:
        times = batch.timestamps or [clock.now_ms()] * len(batch)
        batch.stamps = [at if stamp is None else stamp for stamp, at in zip(batch.stamps, times, strict=True)]
    if batch.signs is not None:
        batch.signs = [sign or 1 for sign in batch.signs]
    return batch
