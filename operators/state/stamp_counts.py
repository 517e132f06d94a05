"""The stamps of the rows that an operator still has to emit, and the lowest of them."""

from __future__ import annotations

from heapq import heappop, heappush

from operators.core.base import NEVER


class Stamps:
    """The stamps of rows that wait, each as often as there are rows.

    >>> stamps = Stamps()
    >>> for stamp in (7, 5, 7):
    ...     stamps.add(stamp)
    >>> stamps.remove(5)
    >>> stamps.lowest()
    7
    """

    __slots__ = ("_heap", "_number")

    def __init__(self) -> None:
        self._number: dict[int, int] = {}
        self._heap: list[int] = []

    def __contains__(self, stamp: int) -> bool:
        return stamp in self._number

    def add(self, stamp: int) -> None:
        """Count one more row."""
        number = self._number.get(stamp)
        if number is None:
            heappush(self._heap, stamp)
        self._number[stamp] = (number or 0) + 1

    def remove(self, stamp: int) -> None:
        """Count one less."""
        if self._number[stamp] == 1:
            del self._number[stamp]
        else:
            self._number[stamp] -= 1

    def lowest(self) -> int:
        """Return the smallest stamp, or NEVER where no row waits."""
        # Stamps whose rows are gone stay in the heap until they come up, as a heap can't take them out of its middle.
        while self._heap and self._heap[0] not in self._number:
            heappop(self._heap)
        return self._heap[0] if self._heap else NEVER
