"""The choice of the source partition that is read next: by priority, in turn among equals, and none starves."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

from runtime.reading.reader import Reader
from runtime.task.lane import Lane
from runtime.task.task import Task

T = TypeVar("T")


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
