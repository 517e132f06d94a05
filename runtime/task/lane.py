"""A lane, one stage's share of a task: its chain, the readers that feed it, and its messages in flight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from operators.core.base import MAX_TIMESTAMP, MIN_TIMESTAMP, NEVER, Batch
from runtime.functions.failures import Failure, Whence
from runtime.model.checkpoint import LeftDue
from runtime.reading.reader import Reader
from runtime.reading.watermarks import event_time
from runtime.stage.chain import Chain
from runtime.stage.error_policy import Anew, Guard, on_rows
from runtime.stage.exits import TaskExit
from runtime.task.calls_in_flight import Flights
from runtime.task.in_flight import UnitInFlight, Units
from runtime.task.pace import StepPace

MOST_FIRED = 10_000
"""Panes and timers that fire at once."""

Explored = tuple[list[tuple[str, Batch]], dict[int, Failure]]
"""The rows that reach each exit, and the failures of messages, by number."""


class Unfired(NamedTuple):
    """The things that operators have still to fire: what is due at a cut, and of who begins unread the lowest stamp."""

    due: dict[str, LeftDue]
    lowest: dict[str, int]


@dataclass
class Lane:
    """One stage's chain in a task, with its readers, its messages in flight, and the guard of their effects.

    Only the thread that is at work in the task uses it, or the event loop while none is.
    """

    chain: Chain
    readers: list[Reader]
    guard: Guard
    pace: StepPace
    firing_pace: StepPace = field(default_factory=lambda: StepPace(MOST_FIRED))
    units: Units | Flights | None = None
    """The messages in flight, where something awaits."""
    limit: int = 1
    ahead: int = 0
    """The number of messages that may wait for their calls to begin, beyond those whose calls run."""
    fewest: int = 1
    """The number of messages for which there must be room before more are taken in."""
    width: int = 1
    most_rounds: int | None = None
    one_at_a_time: bool = False
    held_back: bool = False
    explored: dict[Reader, Explored] = field(default_factory=dict)
    task_exits: dict[str, TaskExit] = field(default_factory=dict)
    shares: Mapping[str, Sequence[Reader]] = field(default_factory=dict)
    """Where it is run for several tasks: the readers of each of them, by its name."""
    begun: set[str] = field(default_factory=set)
    """The operators that have fired some of what was due at one time, and not all of it."""
    depth: int = 0
    """The number of stages of the plan before this one."""
    writes: frozenset[str] = frozenset()
    """The intermediate streams that it writes."""
    patterns: frozenset[str] = frozenset()
    """The inputs that may come to read more streams while they run, by id."""
    find_readers: Callable[[], Iterable[Reader]] = tuple
    """Returns readers of streams that match a pattern and are not read yet."""

    def explore(
        self, entry: str, batch: Batch, where: Callable[[int | None], Whence], anew: Anew | None = None
    ) -> Explored:
        """Run stateless operators on rows that have owners; raises what ends the run."""
        try:
            return self.chain.explore(entry, batch), {}
        except Failure as failure:
            # Stateless operators have no effect, so they can simply run again row by row, to find whose
            # failure it is.
            self.guard.must_be_lenient(failure, where)
            found: dict[str, Batch] = {}
            failures: dict[int, Failure] = {}
            for row, owner in enumerate(batch.owners or ()):
                one: list[tuple[str, Batch]] = []
                explore = partial(_explore_into, one, self.chain, entry)
                work = on_rows(explore, batch, range(row, row + 1), anew)
                if owner not in failures and (failed := self.guard.insist(work)) is not None:
                    failures[owner] = failed
                for exit, rows in one:
                    found.setdefault(exit, Batch([])).extend(rows)
            return [*found.items()], failures

    @property
    def repartitions(self) -> bool:
        """Whether another stage hears of this one's watermark."""
        return any(self.chain.graph.specs[id].repartitions for id in self.chain.stage.operators)

    def check_fan_out(self, unit: UnitInFlight, most_rounds: int) -> None:
        """Fail a message that makes more calls than could be waited for at a commit; those of one key go one by one.

        To the user's own task it brings no more messages than that takes at once, whose state is that of before them.
        """
        # A commit waits for all calls in flight: a message that makes more than can end in max_drain_ms would
        # break that promise, however few others there are.
        one_by_one = self.chain.stage.by_key and unit.key is not None
        most_calls = most_rounds if one_by_one else most_rounds * self.width
        for operator, number in Counter(operator for operator, _, _ in unit.calls).items():
            is_task = operator in self.task_exits
            if number > (self.limit if is_task else most_calls):
                by_time = f"at most {most_calls:,} are sure to end in max_drain_ms"
                most = f"the task takes {self.limit:,} at once" if is_task else by_time
                told = f"one message makes {number:,} calls, and {most}"
                unit.failure = Failure(operator, RuntimeError(told))
                unit.calls.clear()
                return

    def time_at(self, id: str, now_ms: int | None = None) -> int:
        """Return how far event time has come at an operator, or of what time by the clock it is told there."""
        if now_ms is None:
            return self.chain.watermark_at(id, self.watermark)
        return MAX_TIMESTAMP if self.watermark == MAX_TIMESTAMP else now_ms

    def unfired(self) -> Unfired:
        """Return what its operators still have to fire."""
        if not self.chain.operators:
            return Unfired({}, {})
        due = {id: LeftDue(at, id in self.begun) for id, at in self.chain.left_due(self.watermark).items()}
        return Unfired(due, self.chain.lowest_unread())

    def begin(self, left: Iterable[tuple[str, LeftDue]]) -> None:
        """Begin with what the last commit has left to fire, of each task by operator."""
        due = dict[str, int]()
        for id, one in left:
            due[id] = min(one.at, due.get(id, NEVER))
            if one.is_begun and id in self.chain.operators:
                self.begun.add(id)
        self.chain.begin_unread(self.watermark, due)

    def read_on(self) -> bool:
        """Let operators read some more of what they had not read where they began; return whether others hear of it."""
        told = self.chain.watermark_below(self.watermark)
        self.chain.read_on()
        return self.repartitions and self.chain.watermark_below(self.watermark) != told

    @property
    def next_alarm(self) -> int:
        """The time at which something is due by the clock; at once, where the inputs have ended."""
        alarm = self.chain.next_alarm()
        return MIN_TIMESTAMP if alarm < NEVER and self.watermark == MAX_TIMESTAMP else alarm

    @property
    def watermark(self) -> int:
        """The minimum over those of the chain's inputs that are not idle."""
        return event_time((reader.watermark, reader.idle) for reader in self.readers)

    @property
    def is_idle(self) -> bool:
        """Whether nothing comes of all that has not ended."""
        open_readers = [reader for reader in self.readers if not reader.ended]
        return bool(open_readers) and all(reader.idle for reader in open_readers)

    @property
    def was_idle(self) -> bool:
        """Whether others may believe that nothing comes of it, as it was before this run."""
        return any(reader.was_idle for reader in self.readers)

    @property
    def has_news(self) -> bool:
        """Whether another stage is to hear as a run begins how far event time is: who ran before may not have said."""
        return self.repartitions and (self.was_idle or any(one.watermark > MIN_TIMESTAMP for one in self.readers))

    def look_for_idle(self, elapsed_ms: float) -> bool:
        """Notice which inputs are idle; return whether event time may go on by that, or others are to hear of it."""
        noticed = [reader.look_for_idle(elapsed_ms) for reader in self.readers]
        if any(noticed):
            self.follow()  # else what was reached would be forgotten where the others end before they commit
        return any(noticed)

    def go_on(self) -> bool:
        """Let event time go on by a ms where nothing comes of any input, and late panes wait for just that.

        Their stamp is how far event time had come, and who else may have something of that stamp is idle. What then
        comes at exactly the old watermark is late, which such windows allow.
        """
        reached = self.watermark
        if not self.is_idle or reached in (MIN_TIMESTAMP, MAX_TIMESTAMP):
            return False
        # What is in flight may still emit at this very time, so nothing is late yet.
        if self.units or not self.chain.awaits_a_ms(reached):
            return False
        went_on = [reader.go_on(reached) for reader in self.readers]
        return any(went_on)

    def come_to_rest(self) -> bool:
        """Be as far in event time as another run was where this one stops, and as idle; return whether it was not yet.

        All that was read before has taken effect.
        """
        resting = [reader for reader in self.readers if reader.rest is not None and reader.exhausted]
        for reader in resting:
            assert reader.rest is not None, "others do not rest"
            reader.idle = reader.rest.idle
            reader.follow(reader.rest.watermark)
            reader.rest = None
        return bool(resting)

    def follow(self) -> None:
        """Let event time go on for inputs that are idle as it does for the others."""
        idle = [reader for reader in self.readers if reader.idle]
        reached = self.watermark if idle else MIN_TIMESTAMP
        for reader in idle:
            reader.follow(reached)


def owned(batch: Batch) -> Batch:
    """Number the rows of a batch as messages, and return it."""
    batch.owners = range(len(batch))
    return batch


def _explore_into(found: list[tuple[str, Batch]], chain: Chain, entry: str, row: Batch) -> None:
    found += chain.explore(entry, row)
