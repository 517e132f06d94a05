"""The agenda of an operator: places of its state by the earliest time at which each has to be looked at."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Generic, TypeVar

from operators.core.base import NEVER

P = TypeVar("P")


class Agenda(Generic[P]):
    """Places by time, those of one time by their rank; a place is in it once, until it is taken.

    >>> agenda = Agenda(rank=lambda place: place)
    >>> for place, at in [("b", 7), ("a", 7), ("b", 5), ("b", 9)]:
    ...     agenda.add(place, at)
    >>> agenda.take(), agenda.take(), agenda.first() == NEVER
    ((5, 'b'), (7, 'a'), True)
    """

    def __init__(self, rank: Callable[[P], object]) -> None:
        self._rank = rank
        self._heap: list[tuple[int, object, P]] = []
        self._times: dict[P, int] = {}
        """The time of each place whose entry in the heap counts; its other entries are passed over."""

    def add(self, place: P, at: int) -> None:
        """Add a place, to be looked at by then at the latest."""
        # A heap can't take an entry out, so an earlier one is added, and the later one is passed over when it comes up.
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
