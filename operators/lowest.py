"""Which key has the lowest of a number that changes, where looking at every key would take too long."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from operators.base import NEVER, Key, Keys


class Lowest:
    """Keys by a number that each is at least at, in a heap that is right only at its top.

    What it says of a key is brought up to date, by `number_of`, when the key comes first there; NEVER is no number.
    """

    def __init__(self, keys: Keys, number_of: Callable[[Key], int]) -> None:
        self._encode = keys.encode
        self._number_of = number_of
        self._heap: list[tuple[int, bytes, Key]] = []
        self._known: dict[Key, int] = {}
        """Which number of each key counts in the heap."""
        self._before: dict[Key, int] = {}
        """Which one counted before, where that has changed since the last `settle`."""

    def first(self) -> tuple[int, Key] | None:
        """Return the lowest number and its key, of equal ones the first by its bytes."""
        while self._heap:
            number, _, key = self._heap[0]
            if self._known.get(key) == number:
                actual = self._number_of(key)
                if actual == number:
                    return number, key
                heapq.heappop(self._heap)
                self._know(key, actual)
            else:
                heapq.heappop(self._heap)
        return None

    def lower(self, key: Key, number: int) -> None:
        """Take in the number that a key has now: where it is no lower, there is time for that."""
        if number < self._known.get(key, NEVER):
            self._know(key, number)

    def settle(self) -> None:
        """Remember what is known of the keys, to come back to."""
        self._before.clear()

    def forget(self) -> None:
        """Come back to what was known when it was last remembered."""
        for key, number in [*self._before.items()]:
            self._know(key, number)
        self._before.clear()

    def _know(self, key: Key, number: int) -> None:
        self._before.setdefault(key, self._known.get(key, NEVER))
        if number == NEVER:
            self._known.pop(key, None)
        else:
            self._known[key] = number
            heapq.heappush(self._heap, (number, self._encode(key), key))
