"""The choice of who is fed next: source partitions by priority, what is handed on by rounds, and none starves."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, NamedTuple, TypeVar

from runtime.reading.reader import Reader
from runtime.reading.relay import Relay
from runtime.task.lane import Lane
from runtime.task.task import Task

T = TypeVar("T")

WAITING_EACH, MOST_WAITING = 2_000, 50_000
"""The messages that may wait to be handed on while more can be read: for each partition, and in all."""


class Choice(NamedTuple):
    """One of the readers among which a loop chooses."""

    task: Task
    lane: Lane
    reader: Reader

    def may_be_taken(self, slowest: int | None) -> bool:
        """Whether it may be read on, given how far the slowest input is; what is handed on is taken in apart."""
        return self.may_join(slowest) and not self.is_held_up

    def may_join(self, slowest: int | None) -> bool:
        """Whether it may be read on where one that writes the same streams may."""
        return self.has_room and self.reader.is_stored() and not self.is_ahead(slowest)

    @property
    def has_room(self) -> bool:
        """Whether there is something to take, and room for it."""
        return self.task.room(self.lane) > 0 and self.reader.ready()

    @property
    def is_held_up(self) -> bool:
        """Whether what the lane hands on waits for its readers."""
        return any(relay.is_full for place, relay in self.task.outputs.relays.items() if place[0] in self.lane.writes)

    def is_ahead(self, slowest: int | None) -> bool:
        """Whether the reader is so far ahead in event time that it waits for one that is behind."""
        if slowest is None or self.reader.max_drift_ms is None:
            return False
        return self.reader.watermark > slowest + self.reader.max_drift_ms


PATIENCE = 8
"""One choice in this many begins with a lower priority, with each of these in turn."""


class Chooser(Generic[T]):
    """Goes round what can be chosen, the highest priority first.

    >>> chooser = Chooser([(0, "a"), (0, "b"), (5, "urgent")])
    >>> [chooser.choose(lambda what: what != "urgent") for _ in range(3)]
    ['a', 'b', 'a']
    >>> chooser.choose(lambda what: True)
    'urgent'
    """

    def __init__(self, choices: Iterable[tuple[int, T]]) -> None:
        self._by_priority: dict[int, deque[T]] = {}
        self._groups: list[deque[T]] = []
        self._turn = 0
        for priority, what in choices:
            self.add(priority, what)

    def add(self, priority: int, what: T) -> None:
        """Take in one more that can be chosen."""
        self._by_priority.setdefault(priority, deque()).append(what)
        self._groups = [self._by_priority[priority] for priority in sorted(self._by_priority, reverse=True)]

    def drop(self, goes: Callable[[T], bool]) -> None:
        """Choose no more what goes."""
        for group in self._groups:
            left = [what for what in group if not goes(what)]
            group.clear()
            group.extend(left)

    def choose(self, ready: Callable[[T], bool], awaited: Callable[[T], bool] = lambda what: False) -> T | None:
        """Return the next that is ready, or None; it goes to the end of its group.

        What has a lower priority waits for what is `awaited`, as that will be ready soon.
        """
        lower = len(self._groups) - 1
        # Without these turns a partition of high priority that is never empty would keep all others from ever being
        # read.
        first = lower - self._turn // PATIENCE % lower if lower and self._turn % PATIENCE == PATIENCE - 1 else 0
        for group in self._groups[first:] + self._groups[:first]:
            # Also what is not ready goes to the end, so that the walk is a full round, and the order is kept.
            for _ in range(len(group)):
                what = group[0]
                group.rotate(-1)
                if ready(what):
                    self._turn += 1
                    return what
            # Known to be there and still on its way: to read the lower priority meanwhile would turn the order round
            # for as long as brokers are slow. In a turn of a lower priority nobody is waited for.
            if lower and not first and any(map(awaited, group)):
                return None
        return None


class HandedOn:
    """Goes round those to whom something was handed on in memory: later stages first, and of a stage who has most.

    To look for the most before each step would ask all relays again, as many as there are partitions. And what one
    hands on further waits for the next round, in which it is taken in with what all others have handed on.
    """

    def __init__(self, takes_in: Callable[[Task], bool]) -> None:
        self._takes_in = takes_in
        self._all: list[tuple[Relay, Choice]] = []
        self._round: deque[tuple[Relay, Choice]] = deque()
        """Those who had something when it was last looked, and have not had their turn."""

    def __len__(self) -> int:
        return len(self._all)

    def add(self, relay: Relay, choice: Choice) -> None:
        """Take in one more."""
        self._all.append((relay, choice))

    def drop(self, goes: Callable[[Choice], bool]) -> None:
        """Forget those that go: they take in nothing more."""
        self._all = [one for one in self._all if not goes(one[1])]
        self._round.clear()

    def next(self) -> Choice | None:
        """Return who is fed next, or None where nobody can take anything in."""
        found = None if self._is_much_behind() else self._first()
        if found is None:
            waiting = [one for one in self._all if one[0].batches]
            # Later stages make room for what the earlier ones write.
            self._round = deque(sorted(waiting, key=lambda one: (-one[1].lane.depth, -len(one[0]))))
            found = self._first()
        return found

    def turns(self) -> Iterator[Choice]:
        """Yield those that are fed next, to the end of a round: what they leave waits for the next one."""
        choice = self.next()
        while choice is not None:
            self._round.popleft()
            yield choice
            choice = None if self._is_much_behind() else self._first()

    def wait_enough(self) -> bool:
        """Whether so much is handed on that it is to be taken in before more is read.

        Each piece of work costs something however few messages it has: with many partitions each would be handed few.
        Yet no more waits than a stage can do in some steps, however slow its functions are: a commit waits for it.
        """
        waiting = sum(len(relay) for relay, _ in self._all)
        enough = sum(min(WAITING_EACH, choice.lane.pace.fitting) for _, choice in self._all)
        return waiting >= min(enough, MOST_WAITING)

    def _first(self) -> Choice | None:
        """Return the first of the round that can take something in; who can not waits for the next one."""
        while self._round:
            relay, choice = self._round[0]
            if relay.batches and self._takes_in(choice.task) and choice.has_room:
                return choice
            self._round.popleft()
        return None

    def _is_much_behind(self) -> bool:
        """Whether what the round has handed on further is much, as where many come of one: it goes first, then."""
        if not self._round or not self._round[0][1].lane.writes:
            return False
        depth = self._round[0][1].lane.depth
        return any(len(relay) >= WAITING_EACH for relay, one in self._all if one.lane.depth > depth)
