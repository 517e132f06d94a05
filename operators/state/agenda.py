"""The agenda of an operator: places of its state by the earliest time at which each has to be looked at."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Generic, TypeVar

from operators.core.base import MIN_TIMESTAMP, NEVER

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
        self._times: dict[P, int] = {}
        """The time of each place, under which it counts; where else it lies it is passed over."""
        # Many places share a time, as the windows of many keys that end together: so the heap has each time once, and
        # the places of one are put in order when it comes up.
        self._places: dict[int, list[P]] = {}
        self._heap: list[int] = []
        self._at = MIN_TIMESTAMP - 1
        """The time that came up last."""
        self._current: list[P] = []
        """Its places by rank; so many at the start are `_taken`."""
        self._taken = 0

    def add(self, place: P, at: int) -> None:
        """Add a place, to be looked at by then at the latest."""
        if at >= self._times.get(place, NEVER):
            return
        self._times[place] = at
        if at == self._at:
            insort(self._current, place, lo=self._taken, key=self._rank)
        else:
            self._put(at, [place])

    def first(self) -> int:
        """Return the first time of all, NEVER where there is none."""
        while True:
            if self._taken == len(self._current):
                if not self._heap:
                    return NEVER
                self._come_up()
            elif self._heap and self._heap[0] < self._at:
                self._put(self._at, self._current[self._taken :])
                self._come_up()
            elif self._times.get(self._current[self._taken]) == self._at:
                return self._at
            else:
                self._taken += 1

    def clear(self) -> None:
        """Remove all places."""
        self._times.clear()
        self._places.clear()
        self._heap.clear()
        self._current.clear()
        self._at, self._taken = MIN_TIMESTAMP - 1, 0

    def take(self) -> tuple[int, P]:
        """Remove the first place, and return it with its time."""
        self.first()
        place = self._current[self._taken]
        self._taken += 1
        del self._times[place]
        return self._at, place

    def _put(self, at: int, places: list[P]) -> None:
        known = self._places.get(at)
        if known is None:
            self._places[at] = places
            heappush(self._heap, at)
        else:
            known += places

    def _come_up(self) -> None:
        at = self._at = heappop(self._heap)
        times = self._times
        self._current = sorted((place for place in self._places.pop(at) if times.get(place) == at), key=self._rank)
        self._taken = 0
