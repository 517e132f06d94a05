"""The rows of a join that wait, each until the watermark is past its time and so much more."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from operators.core.base import MAX_TIMESTAMP, Batch, Form, Key, Keys, Store
from operators.state.agenda import DueItems
from operators.state.stamp_counts import Stamps
from operators.state.time_buckets import Row, RowsByTime


class WaitingRows:
    """Rows by key that come out in the order of their times, equal ones by their stamps and then as they came.

    Each is due when the watermark is past its time and `wait_ms` more.
    """

    def __init__(self, store: Store, keys: Keys, prefix: bytes, width_ms: int, wait_ms: int = 0) -> None:
        self._rows = RowsByTime(store, keys, prefix, width_ms, wait_ms)
        self._width, self._wait_ms = width_ms, wait_ms
        self.load()

    @property
    def unwritten(self) -> int:
        """The number of entries, each of a key and a bucket, that have changed since they were written back."""
        return self._rows.unwritten

    def declare(self, form: Form | None) -> None:
        """Set the stored form of values."""
        self._rows.form = form

    def add(self, key: Key, at: int, stamp: int, value: object) -> None:
        """Keep a row that waits."""
        self._rows.add(key, (at, stamp, value, True))
        self._note(key, at, stamp)

    def due(self) -> int:
        """Return the watermark at which the first row is due, or NEVER."""
        return self._due.first()

    def each(self, until: int) -> Iterator[tuple[int, Key, Row]]:
        """Yield the rows that are due by a watermark, each with when that is, and its key, and removed just before."""
        take, remove = self._rows.take, self._stamps.remove
        for due, stamp, _, key, at in self._due.each(until):
            row = take(key, at, stamp)
            assert row is not None, "each row that waits is kept"
            remove(stamp)
            yield due, key, row

    def drop_due(self, until: int) -> Batch:
        """Remove the first row that is due by a watermark, if there is one, and return its value."""
        for _, key, row in self.each(until):
            return Batch([row[2]], keys=[key])
        return Batch([])

    def lowest_stamp(self) -> int:
        """Return the smallest stamp of all rows, or NEVER."""
        return self._stamps.lowest()

    def next_past(self) -> int:
        """Return the watermark at which something is due, or a bucket of what was taken is past."""
        return min(self._due.first(), self._rows.next_past())

    def drop_past(self, reached: int, most: int | None) -> int | None:
        """Drop the buckets that are past, when nothing in them is due any more; as RowsByTime does it."""
        return self._rows.drop_past(reached, most)

    def write_back(self) -> None:
        """Put what has changed into the store."""
        self._rows.write_back()

    def relieve(self, most_held: int) -> None:
        """Drop entries that the store has as well, if there are more than so many."""
        self._rows.relieve(most_held)

    def load(self) -> None:
        """Drop all that is held, and look up what the store has."""
        self._due: DueItems[tuple[int, int, int, Key, int]] = DueItems(self._width)
        """The rows by the time at which they are due: with stamp, number, key and time."""
        self._stamps = Stamps()
        # A number for each, so that no two keys are compared: an int and a string have no order.
        self._numbers = count()
        self._rows.load()
        for key, at, stamp in self._rows.waiting():
            self._note(key, at, stamp)

    def _note(self, key: Key, at: int, stamp: int) -> None:
        due = min(at + self._wait_ms + 1, MAX_TIMESTAMP)
        self._due.add((due, stamp, next(self._numbers), key, at))
        self._stamps.add(stamp)
