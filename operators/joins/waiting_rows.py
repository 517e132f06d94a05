"""The rows of a join that wait, each until the watermark is past its time and so much more, and what joins them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import ClassVar, Generic, Protocol, TypeVar

from operators.core.base import MAX_TIMESTAMP, MIN_TIMESTAMP, MOST_HELD, Batch, Form, Key, Keys, Store
from operators.joins.match_counts import Meetings
from operators.state.agenda import DueItems
from operators.state.keyed_state import typed_sides
from operators.state.stamp_counts import Stamps
from operators.state.time_buckets import Held, OverRows, Row, RowsByTime

LEFT, RIGHT = 0, 1
MISSING = object()
"""Stands for the value of a right row where there is none; None may be the value of one."""


class WaitingRows:
    """Rows by key that come out in the order of their times, equal ones by their stamps and then as they came.

    Each is due when the watermark is past its time and `wait_ms` more.
    """

    def __init__(
        self, store: Store, keys: Keys, prefix: bytes, width_ms: int, wait_ms: int = 0, lowest: int | None = None
    ) -> None:
        self.rows = RowsByTime(store, keys, prefix, width_ms, wait_ms)
        self._width, self._wait_ms = width_ms, wait_ms
        self.load(lowest)

    @property
    def unwritten(self) -> int:
        """The number of entries, each of a key and a bucket, that have changed since they were written back."""
        return self.rows.unwritten

    def declare(self, form: Form | None) -> None:
        """Set the stored form of values."""
        self.rows.form = form

    def add(self, key: Key, at: int, stamp: int, value: object) -> None:
        """Keep a row that waits."""
        self.rows.add(key, (at, stamp, value, True))
        self._note(key, at, stamp)

    def due(self) -> int:
        """Return the watermark at which the first row is due, as far as rows are noted, or NEVER."""
        return self._due.first()

    def each(self, until: int) -> Iterator[tuple[int, Key, Row]]:
        """Yield the rows that are due by a watermark, each with when that is, and its key, and removed just before."""
        take, remove = self.rows.take, self._stamps.remove
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
        return min(self._due.first(), self.rows.next_past())

    def drop_past(self, reached: int, most: int | None) -> int | None:
        """Drop the buckets that are past, when nothing in them is due any more; as RowsByTime does it."""
        return self.rows.drop_past(reached, most)

    def write_back(self) -> None:
        """Put what has changed into the store."""
        self.rows.write_back()

    def relieve(self, most_held: int) -> None:
        """Drop entries that the store has as well, if there are more than so many."""
        self.rows.relieve(most_held)

    def load(self, lowest: int | None = None) -> None:
        """Drop all that is held, and look up what the store has; given the lowest stamp of it, bit by bit."""
        self._due: DueItems[tuple[int, int, int, Key, int]] = DueItems(self._width)
        """The rows by the time at which they are due: with stamp, number, key and time."""
        self._stamps = Stamps()
        # A number for each, so that no two keys are compared: an int and a string have no order.
        self._numbers = count()
        self.rows.load()
        self.rows.find_waiting(self._note, lowest)

    def _note(self, key: Key, at: int, stamp: int) -> None:
        due = min(at + self._wait_ms + 1, MAX_TIMESTAMP)
        self._due.add((due, stamp, next(self._numbers), key, at))
        self._stamps.add(stamp)


class Candidates(Held, Protocol):
    """The right rows that may still be met, by key and time."""

    def declare(self, form: Form | None) -> None:
        """Set the stored form of values."""

    def met_by(self, key: Key, at: int) -> object:
        """Return the value of the right row that a left one at a time meets; MISSING where there is none."""

    def drop_past(self, horizon: int, most: int | None = None) -> int:
        """Drop what only left rows that are due before a watermark may meet, at most so many entries; return how many.

        Without `most` it may return fewer than there were.
        """

    def next_past(self) -> int:
        """Return the watermark at which something can be dropped, or NEVER."""

    def load(self) -> None:
        """Drop all that is held, and look up what the store has."""


R = TypeVar("R", bound=Candidates)


class WaitingJoin(OverRows, Generic[R]):
    """One task's share of a join of left rows, which wait, each with one of its `rights`.

    A row is late that lies before its stamp, a left one more than `allowed_ms` before it. Results leave in the order of
    the left rows' times.
    """

    calls = ("join",)
    no_key: ClassVar[str]
    """The mistake of a row without a key."""
    allowed_ms = 0

    def __init__(
        self,
        join: Callable[..., object],
        waiting: WaitingRows,
        rights: R,
        store: Store,
        keys: Keys,
        most_held: int = MOST_HELD,
        *,
        is_left: bool,
    ) -> None:
        self.join = join
        super().__init__(store, keys, most_held)
        self.meetings = Meetings(0, keys.kind_of)
        self.waiting, self.rights, self.is_left = waiting, rights, is_left
        self.held, self.waits_in = (waiting, rights), (waiting.rows,)
        self.reached = MIN_TIMESTAMP
        self._forms: tuple[Form | None, Form | None] | None = None

    def declare(self, left: Form | None, right: Form | None) -> None:
        """Set the stored forms of the values of either side."""
        self.waiting.declare(left)
        self.rights.declare(right)
        self._forms = None if left is right is None else (left, right)

    def keep(self, key: Key, at: int, stamp: int, value: object) -> None:
        """Keep a right row."""
        raise NotImplementedError

    def process(self, batch: Batch) -> Batch | None:
        """Keep each row; late ones are set aside in `late`."""
        assert batch.timestamps is not None and batch.stamps is not None
        # By side: LEFT, and RIGHT.
        late, allowed, keep = [], (self.allowed_ms, 0), (self.waiting.add, self.keep)
        values = batch.values if self._forms is None else typed_sides(self._forms, batch.values)
        columns = zip(batch.keys or [None] * len(batch), values, batch.timestamps, batch.stamps, strict=True)
        for place, (key, (side, value), at, stamp) in enumerate(columns):
            if key is None:
                raise ValueError(self.no_key)
            if at < stamp - allowed[side]:
                late.append(place)
            else:
                keep[side](key, at, stamp, value)
        self.late = batch.take(late) if late else None
        if self.late is not None:
            self.late.values = [value for _, value in self.late.values]
        self.relieve()
        return None

    def on_watermark(self, watermark: int, most: int | None = None) -> Batch | None:
        """Join the left rows that are due, in the order of their times, and drop right ones that nothing can meet."""
        if watermark == MAX_TIMESTAMP:
            self.read_all()
        self.reached = max(self.reached, watermark)
        out = Batch([], keys=[], timestamps=[], stamps=[])
        assert out.keys is not None and out.timestamps is not None and out.stamps is not None
        assert most is None or most > 0, "a firing is of at least one row"
        waiting, rights, join = self.waiting, self.rights, self.join
        done = missed = 0
        found: list[Key] = []
        past = rights.next_past()
        for due, key, (at, stamp, value, _) in waiting.each(self.reached):
            if due > past:
                # Only what none of the rows that are due from now on may meet: so no look-up passes many buckets.
                done += rights.drop_past(due - 1)
                past = rights.next_past()
            met = rights.met_by(key, at)
            done += 1
            if met is MISSING:
                missed += 1
            else:
                found.append(key)
            if met is not MISSING or self.is_left:
                out.values.append(join(value, None if met is MISSING else met))
                out.keys.append(key)
                out.timestamps.append(at)
                out.stamps.append(stamp)
            if most is not None and done >= most:
                break
        self.meetings.count(len(found), missed, found)
        if waiting.due() > self.reached:
            left = waiting.drop_past(self.reached, None if most is None else max(most - done, 0))
            if left != 0:
                rights.drop_past(self.reached, left)
        return out if out.values else None

    def drop_due(self) -> Batch:
        """Remove the first left row that is due, and return its value."""
        return self.waiting.drop_due(self.reached)

    def next_due(self) -> int:
        """Return the watermark at which the next left row is due, or rows are past."""
        return MAX_TIMESTAMP if self.is_unread else min(self.waiting.next_past(), self.rights.next_past())

    def lowest_stamp(self) -> int:
        """Return the smallest stamp of a left row that waits."""
        return min(self.waiting.lowest_stamp(), self.lowest_unread)

    def forget(self) -> None:
        """Drop all that is held, and look up what the store has."""
        self.waiting.load()
        self.rights.load()
