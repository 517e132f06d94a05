"""When places of an operator's state are to be looked at, each at the earliest time that was said of it."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Generic, TypeVar

from operators.base import NEVER

P = TypeVar("P")


class Agenda(Generic[P]):
    """Places by time, those of one time by their rank; a place is in it once, until it is taken.

    >>> agenda = Agenda(rank=lambda place: place)
    >>> for place, at in [("b", 7), ("a", 7), ("b", 5), ("b", 9)]:
    ...     agenda.add(place, at)
    >>> agenda.take(), agenda.take(), agenda.first() == NEVER
    ((5, 'b'), (7, 'a'), True)
    """

    def __init__(self, rank: Callable[[P], Any]) -> None:
        self._rank = rank
        self._heap: list[tuple[int, Any, P]] = []
        self._times: dict[P, int] = {}
        """Which of the entries in the heap still count: one of each place."""

    def add(self, place: P, at: int) -> None:
        """See to it that a place is looked at by then."""
        if at < self._times.get(place, NEVER):
            self._times[place] = at
            heappush(self._heap, (at, self._rank(place), place))

    def first(self) -> int:
        """Return the first time of all, NEVER where there is none."""
        while self._heap:
            at, _, place = self._heap[0]
            if self._times.get(place) == at:
                return at
            heappop(self._heap)
        return NEVER

    def clear(self) -> None:
        """Remove all places."""
        self._heap.clear()
        self._times.clear()

    def take(self) -> tuple[int, P]:
        """Remove the first place, and return it with its time."""
        self.first()
        at, _, place = heappop(self._heap)
        del self._times[place]
        return at, place
