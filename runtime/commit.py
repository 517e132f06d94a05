"""The commit at a cut: outputs, intermediate messages, state and positions of all tasks become visible together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from operators.base import MIN_TIMESTAMP, Batch
from runtime.bindings import Bindings
from runtime.checkpoint import Checkpoint
from runtime.clock import Clock
from runtime.lane import Lane
from runtime.relay import Relay
from runtime.systems.base import Append, Commit, Control, PartitionedSink, StateWrites
from runtime.task import Task

SHARED = "outputs"
"""The checkpoint of what belongs to no task: the positions of bound outputs."""
STATE = "state"
"""The checkpoint that says what the state of all tasks means."""
DELETED = "deleted"
"""The checkpoint that marks an application as deleted, while its generation is the application's."""


class Committer:
    """Gathers what the tasks have done into one commit, and tells them when it is durable."""

    def __init__(
        self,
        app: str,
        generation: int,
        bindings: Bindings,
        clock: Clock,
        positions: dict[str, int],
        relays: dict[tuple[str, int], Relay],
        least_state: int = 0,
    ) -> None:
        self.app = app
        self.generation = generation
        self.commits = 0
        self.put_ms: dict[int, float] = {}
        self.taken: dict[int, int] = {}
        """The generations of the tasks that were taken among several containers."""
        self._bindings = bindings
        self._clock = clock
        self._positions = positions
        self.relays = relays
        self._told: dict[tuple[int, str], tuple[int, bool]] = {}
        self._least_state = least_state
        """With how many changed entries of a task's state a commit has them: with fewer they wait for a later one."""
        self._with_state: set[int] = set()
        """The tasks whose state the commit at hand has."""

    def gather(self, tasks: Sequence[Task], among: Sequence[Task]) -> Commit:
        """Return the commit of everything that some of the tasks here have done; nothing is changed yet."""
        appends = [
            Append(*place, _without_gaps(relay.stored(), self._clock)) for place, relay in self.relays.items() if relay
        ]
        state: list[StateWrites] = []
        checkpoints: dict[str, Checkpoint] = {}
        consumed: dict[tuple[str, int], int] = {}
        for task in tasks:
            if not task.touched and not any(map(_only_tells, task.lanes)):
                continue
            task.touched = True
            started = self._clock.elapsed_ms()
            for lane in task.lanes:
                lane.follow()
            state += self._changes(task)
            appends += self._messages(task, among)
            positions = tuple(reader.position() for reader in task.readers)
            checkpoints[str(task.number)] = Checkpoint(self.generation, positions)
            between = {(r.origin.stream, r.origin.partition) for lane in task.lanes for r in lane.readers if r.later}
            consumed |= {where: p.offset for p in positions if (where := (p.stream, p.partition)) in between}
            self.put_ms[task.number] = self.put_ms.get(task.number, 0) + self._clock.elapsed_ms() - started
        taken = {task.number: self.taken[task.number] for task in tasks if task.touched and task.number in self.taken}
        return Commit(self.app, self.generation, appends, state, checkpoints, consumed, taken)

    def write(self, commit: Commit, tasks: Iterable[Task]) -> None:
        """Make it durable: bound outputs first, which a restart takes back to the positions that the commit holds."""
        positions = dict(self._positions)
        for stream, sink in self._bindings.sinks.items():
            places = [(task.outputs.pending, (stream, number)) for task in tasks for number in range(sink.partitions)]
            found = [(place[1], pending[place]) for pending, place in places if place in pending]
            for partition, batch in found:
                if isinstance(sink, PartitionedSink):
                    sink.write_to(partition, batch)
                else:
                    sink.write(batch)
            if found:
                positions[self._bindings.places[stream]] = sink.flush()
        if positions != self._positions:
            commit.checkpoints[SHARED] = Checkpoint(self.generation, outputs=positions)
        self._bindings.environment.commit(commit)
        self._positions = positions

    def done(self, commit: Commit, tasks: Iterable[Task]) -> None:
        """After a commit: what was pending is no more, what was written is clean."""
        self.commits += 1
        for relay in self.relays.values():
            relay.clear()
        for append in commit.appends:
            if append.control is not None:
                told = append.control
                self._told[int(told.producer), append.stream] = told.watermark, told.idle
        for task in tasks:
            if task.touched:
                task.touched = False
                task.outputs.clear()
                for store in task.stores.values() if task.number in self._with_state else ():
                    store.committed()

    def _changes(self, task: Task) -> Iterator[StateWrites]:
        """Yield what has changed in the state of a task; nothing while that is little."""
        self._with_state.discard(task.number)
        if task.dirty_count < self._least_state:
            return
        self._with_state.add(task.number)
        for lane in task.lanes:
            lane.chain.write_back(durable_only=True)
        yield from (changes for store in task.stores.values() if (changes := store.changes()).items)

    def _messages(self, task: Task, tasks: Sequence[Task]) -> list[Append]:
        controls = {
            stream: Control(str(task.number), max(watermark, told), self.generation, lane.is_idle)
            for lane in task.lanes
            for stream in lane.writes
            for told, was_idle in (self._told.get((task.number, stream), (MIN_TIMESTAMP, lane.was_idle)),)
            if (watermark := _told_below(lane, tasks)) > told or lane.is_idle != was_idle
        }
        appends = []
        for (stream, partition), batch in task.outputs.pending.items():
            if stream not in self._bindings.sinks and batch.values and stream not in controls:
                place = self._bindings.place_of(stream), partition
                appends.append(Append(*place, _without_gaps(batch, self._clock)))
        for stream, control in controls.items():
            for partition in range(self._bindings.partitions(stream)):
                batch = task.outputs.pending.get((stream, partition), Batch([]))
                appends.append(Append(stream, partition, _without_gaps(batch, self._clock), control))
        return appends


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
