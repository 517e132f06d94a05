"""The rows of a table as of any time that may still be asked for: the newer ones by time, one older one of each key."""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import Any

from operators.base import NEVER, Key, Keys, Store
from operators.rows_by_time import RowsByTime

WIDTH_MS = 60_000
"""How much time lies together at least."""


def width_of(retention_ms: int) -> int:
    """Return how much time lies together in a bucket."""
    return max(retention_ms, WIDTH_MS)


class Versions:
    """Buckets of versions by time, and under them, for each key, the last version of the buckets that are gone."""

    def __init__(self, store: Store, keys: Keys, retention_ms: int) -> None:
        self._store = store
        self._keys = keys
        self._retention = retention_ms
        self._width = width_of(retention_ms)
        self._rows = RowsByTime(store, keys, b"v", self._width)
        self.load()

    @property
    def unwritten(self) -> int:
        """How many keys' versions of a bucket have changed since they were written back."""
        return self._rows.unwritten

    def add(self, key: Key, at: int, value: Any) -> None:
        """Keep what a key's row is from a time on; None where there is none."""
        number = at // self._width
        if number not in self._rows.buckets:
            self._rows.open(number)
            insort(self._numbers, number)
        self._rows.add(key, (at, at, value, False))

    def as_of(self, key: Key, at: int) -> Any:
        """Return a key's row at a time: the last version up to then, of equal times the last to come; or None."""
        for place in range(bisect_right(self._numbers, at // self._width) - 1, -1, -1):
            rows = self._rows.rows_of(self._numbers[place], key)
            if rows and rows[0][0] <= at:
                return rows[bisect_right(rows, at, key=_time) - 1][2]
        return self._store.get(self._base(key))

    def due(self) -> int:
        """Return the watermark at which the first bucket is to be folded, or NEVER."""
        return self._end() + self._retention if self._numbers else NEVER

    def fold(self, watermark: int, asked_for: int, most: int | None = None) -> int:
        """Keep but the last version of what nobody asks for at a watermark, nor before a time that is still asked for.

        Returns how many keys' versions of a bucket went, no more than `most`.
        """
        folded, horizon = 0, min(watermark - self._retention, asked_for)
        while self._numbers and self._end() <= horizon and (most is None or folded < most):
            number = self._numbers[0]
            for key, rows in self._rows.pop(number, None if most is None else most - folded):
                folded += 1
                value = rows[-1][2]
                if value is None:
                    self._store.delete(self._base(key))
                else:
                    self._store.put(self._base(key), value)
            if number not in self._rows.buckets:
                del self._numbers[0]
        return folded

    def write_back(self) -> None:
        """Put what has changed into the store."""
        self._rows.write_back()

    def relieve(self, most_held: int) -> None:
        """Hold no more than so many entries that the store has, too."""
        self._rows.relieve(most_held)

    def load(self) -> None:
        """Hold nothing, and see which buckets the store has."""
        self._rows.load()
        self._numbers = sorted(self._rows.buckets)

    def _end(self) -> int:
        return (self._numbers[0] + 1) * self._width

    def _base(self, key: Key) -> bytes:
        return b"b" + self._keys.encode(key)


def _time(row: tuple[int, int, Any, bool]) -> int:
    return row[0]
