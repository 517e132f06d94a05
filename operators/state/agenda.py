"""The things that an operator has to look at by time: places of its state, each at its earliest time, and items."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Any, Generic, TypeVar

from operators.core.base import MIN_TIMESTAMP, NEVER

BUCKETS = 16
"""The stretches that a span of time is divided into."""
P = TypeVar("P")
T = TypeVar("T", bound=tuple[Any, ...])


class Agenda(Generic[P]):
    """Places by time, those of one time by their rank; a place is in it once, until it is taken.

    >>> agenda = Agenda(rank=lambda place: place)
    >>> for place, at in [("b", 7), ("a", 7), ("b", 5), ("b", 9)]:
    ...     agenda.add(place, at)
    >>> agenda.take(), agenda.take_by(6), agenda.take_by(7), agenda.first() == NEVER
    ((5, 'b'), None, (7, 'a'), True)
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

    def first_place(self) -> P:
        """Return the place that is first of all; there must be one."""
        assert self.first() < NEVER, "somebody has asked when the first one is due"
        return self._current[self._taken]

    def clear(self) -> None:
        """Remove all places."""
        self._times.clear()
        self._places.clear()
        self._heap.clear()
        self._current.clear()
        self._at, self._taken = MIN_TIMESTAMP - 1, 0

    def take(self) -> tuple[int, P]:
        """Remove the first place, and return it with its time; there must be one."""
        found = self.take_by(NEVER - 1)
        assert found is not None, "somebody has asked when the first one is due"
        return found

    def take_by(self, at: int) -> tuple[int, P] | None:
        """Remove the first place and return it with its time; None where it is not due by then."""
        due = self.first()
        if due > at:
            return None
        place = self._current[self._taken]
        self._taken += 1
        del self._times[place]
        return due, place

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
        current = self._current = [place for place in self._places.pop(at) if times.get(place) == at]
        if len(current) > 1:
            current.sort(key=self._rank)
        self._taken = 0


class DueItems(Generic[T]):
    """Tuples, each of which begins with the time at which it is due, and with what no two have in common.

    They lie in stretches of a `span_ms` as they come, and those of the first stretch in order: so it costs no heap of
    all to take what is due, in the order of time.

    >>> items = DueItems(span_ms=100)
    >>> for item in [(70, 1), (30, 2), (30, 0), (5, 3)]:
    ...     items.add(item)
    >>> items.take(29), next(items.each(99)), items.first(), items.take(99), items.first() == NEVER
    ([(5, 3)], (30, 0), 30, [(30, 2), (70, 1)], True)
    """

    __slots__ = ("_end", "_first", "_later", "_numbers", "_taken", "_width")

    def __init__(self, span_ms: int) -> None:
        self._width = max(span_ms // BUCKETS, 1)
        self._first: list[T] = []
        """The items before `_end`, in order; so many at its start are `_taken` already."""
        self._taken = 0
        self._end = -NEVER
        self._later: dict[int, list[T]] = {}
        """The other items by the numbers of their stretches, which are also in a heap."""
        self._numbers: list[int] = []

    def add(self, item: T) -> None:
        """Add an item."""
        at = item[0]
        if at < self._end:
            insort(self._first, item, lo=self._taken)
            return
        number = at // self._width
        items = self._later.get(number)
        if items is None:
            items = self._later[number] = []
            heappush(self._numbers, number)
        items.append(item)

    def first(self) -> int:
        """Return the time of the first item, or NEVER."""
        if self._taken == len(self._first):
            if not self._numbers:
                return NEVER
            self._begin()
        time: int = self._first[self._taken][0]
        return time

    def each(self, until: int) -> Iterator[T]:
        """Yield the items that are due by a time, in order, each removed just before; none may be added on the way."""
        while self.first() <= until:
            start = self._taken
            for item in self._first[start : bisect_left(self._first, (until + 1,), lo=start)]:
                self._taken += 1
                yield item

    def take(self, until: int) -> list[T]:
        """Remove the items that are due by a time, and return them in order."""
        found: list[T] = []
        while self.first() <= until:
            start = self._taken
            # A tuple that is shorter comes before all that begin with it.
            self._taken = bisect_left(self._first, (until + 1,), lo=start)
            found += self._first[start : self._taken]
        return found

    def _begin(self) -> None:
        number = heappop(self._numbers)
        self._first, self._taken = sorted(self._later.pop(number)), 0
        self._end = (number + 1) * self._width
