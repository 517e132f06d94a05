"""The items that are due at times, taken all at once when event time has come there."""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heappop, heappush
from typing import Any, Generic, TypeVar

from operators.core.base import NEVER

BUCKETS = 16
"""The stretches that a span of time is divided into."""
T = TypeVar("T", bound=tuple[Any, ...])


class DueItems(Generic[T]):
    """Tuples, each of which begins with the time at which it is due, and with what no two have in common.

    They lie in stretches of a `span_ms` as they come, and those of the first stretch in order: so it costs no heap of
    all to take what is due, in the order of time.

    >>> items = DueItems(span_ms=100)
    >>> for item in [(70, 1), (30, 2), (30, 0), (5, 3)]:
    ...     items.add(item)
    >>> items.take(30), items.first(), items.take(99), items.first() == NEVER
    ([(5, 3), (30, 0), (30, 2)], 70, [(70, 1)], True)
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
