"""The versions of a table's rows as of any time that may still be asked for, with one older version of each key."""

from __future__ import annotations

from bisect import bisect_right, insort

from operators.core.base import NEVER, Form, Key, Keys, Store
from operators.joins.waiting_rows import MISSING
from operators.state.keyed_state import dumped, loaded
from operators.state.time_buckets import Row, RowsByTime

WIDTH_MS = 60_000
"""The least ms of a bucket."""


def width_of(retention_ms: int) -> int:
    """Return the ms of a bucket."""
    return max(retention_ms, WIDTH_MS)


class Versions:
    """Buckets of versions by time, and under them, for each key, the last version of the buckets that are gone.

    With `tombstones` a version that is None says that its key has no row. Left rows may ask for versions that lie up to
    `retention_ms` before the watermark.
    """

    def __init__(self, store: Store, keys: Keys, retention_ms: int, tombstones: bool = True) -> None:
        self._store = store
        self._tombstones = tombstones
        self._keys = keys
        self._retention = retention_ms
        self._width = width_of(retention_ms)
        self._rows = RowsByTime(store, keys, b"v", self._width)
        self.load()

    @property
    def unwritten(self) -> int:
        """The number of entries, each of a key and a bucket, that have changed since they were written back."""
        return self._rows.unwritten

    def declare(self, form: Form | None) -> None:
        """Set the stored form of versions."""
        self._rows.form = form

    def add(self, key: Key, at: int, value: object) -> None:
        """Keep the row that a key has from a time on."""
        self._open(at)
        self._rows.add(key, (at, at, value, False))

    def changing_at(self, key: Key, at: int) -> list[Row]:
        """Return the versions of a key in the bucket of a time for the caller to change."""
        self._open(at)
        return self._rows.changing(at // self._width, key)

    def met_by(self, key: Key, at: int) -> object:
        """Return a key's row at a time: the last version up to then, of equal times the last to come; else MISSING."""
        # From the newest bucket back: the first row found is the last version up to then.
        for place in range(bisect_right(self._numbers, at // self._width) - 1, -1, -1):
            rows = self._rows.rows_of(self._numbers[place], key)
            if rows and rows[0][0] <= at:
                row = rows[bisect_right(rows, at, key=_time) - 1][2]
                return MISSING if row is None and self._tombstones else row
        stored = self._store.get(self._base(key), MISSING)
        return MISSING if stored is MISSING else loaded(self._rows.form, stored)

    def next_past(self) -> int:
        """Return the watermark at which the first bucket is folded, or NEVER."""
        return min(self._first_end() + self._retention, NEVER)

    def drop_past(self, horizon: int, most: int | None = None) -> int:
        """Fold the buckets that nobody asks for from a watermark on to a last version per key.

        Returns the number of entries that went, at most `most`.
        """
        folded = 0
        while self._first_end() + self._retention <= horizon and (most is None or folded < most):
            number = self._numbers[0]
            for key, rows in self._rows.pop(number, None if most is None else most - folded):
                # Buckets are folded in the order of time, so the last one folded has the newest of the old versions.
                folded += 1
                value = rows[-1][2]
                if value is None and self._tombstones:
                    self._store.delete(self._base(key))
                else:
                    self._store.put(self._base(key), dumped(self._rows.form, value))
            if number not in self._rows.buckets:
                del self._numbers[0]
        return folded

    def write_back(self) -> None:
        """Put what has changed into the store."""
        self._rows.write_back()

    def relieve(self, most_held: int) -> None:
        """Drop entries that the store has as well, if there are more than so many."""
        self._rows.relieve(most_held)

    def load(self) -> None:
        """Drop all that is held, and look up which buckets the store has."""
        self._rows.load()
        self._numbers = sorted(self._rows.buckets)

    def _open(self, at: int) -> None:
        number = at // self._width
        if number not in self._rows.buckets:
            self._rows.open(number)
            insort(self._numbers, number)

    def _first_end(self) -> int:
        """Return the end of the first bucket, or NEVER."""
        return (self._numbers[0] + 1) * self._width if self._numbers else NEVER

    def _base(self, key: Key) -> bytes:
        return b"b" + self._keys.encode(key)


def _time(row: Row) -> int:
    return row[0]
