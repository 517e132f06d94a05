"""The interval join: each left record with the right ones of its key from some time before or after it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import ClassVar, Literal

from operators.core.base import (
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    MOST_HELD,
    Batch,
    Form,
    Key,
    Keys,
    OperatorContext,
    Serde,
    Store,
)
from operators.core.entry_keys import EntryKind, EntryKinds, Number, Rest
from operators.core.policies import DeadLetterPolicy
from operators.joins.keyed_join import KeyedJoin
from operators.joins.match_counts import Meetings
from operators.state.agenda import DueItems
from operators.state.keyed_state import DECLARED_SIDES, typed_sides
from operators.state.stamp_counts import Stamps
from operators.state.time_buckets import Bucket, OverRows, Row, RowsByTime

How = Literal["inner", "left", "right", "outer"]
Keep = Literal["all", "latest"]
LEFT, RIGHT = 0, 1
LEAST_WIDTH_MS = 1_000
"""The least ms of a bucket, however narrow the bounds are."""
NO_KEY = "a record has no key, and a join of streams needs one; partition_by(...) first"

ENTRIES: EntryKinds = {
    b"l": EntryKind("left row", Number("bucket"), Rest()),
    b"r": EntryKind("right row", Number("bucket"), Rest()),
}
"""The kinds of entries in the store."""


@dataclass(frozen=True, eq=False, kw_only=True)
class IntervalJoin(KeyedJoin):
    """Join each left record at t with the right ones of its key at t + `low_ms` to t + `high_ms`, both included.

    Its parents are the left and the right stream. With "left", "right" or "outer" a record of that side, or of either,
    that has met none is joined with None, once no match can come any more. With `keep` "latest" a record joins, when it
    comes, only the newest of the other side in its bounds: of the largest timestamp, of equal ones the last to come.
    """

    low_ms: int
    high_ms: int
    how: How = "inner"
    keep: Keep = "all"
    late: DeadLetterPolicy | None = None
    store: str = "lmdb"
    state: tuple[Serde | None, Serde | None] = (None, None)

    kind: ClassVar[str] = "interval_join"
    declares: ClassVar[str] = DECLARED_SIDES
    event_time: ClassVar[bool] = True
    expires: ClassVar[bool] = True
    holds: ClassVar[bool] = True
    begins_unread: ClassVar[bool] = True
    keeps_order: ClassVar[bool] = False

    @property
    def order_sensitive(self) -> bool:  # type: ignore[override]
        """Whether a record meets only the newest that has come by then."""
        return self.keep == "latest"

    def by_order(self) -> str:
        """Return that a record joins the newest that has come by then."""
        return "joins the newest that has come by then"

    def describe(self) -> str:
        """Return the kind and the bounds of the join."""
        latest = ", latest" if self.keep == "latest" else ""
        return f"{self.how} join within ({self.low_ms:+,}, {self.high_ms:+,}) ms{latest}"

    def meaning(self) -> str:
        """Return the bounds, by which rows are grouped, and the kind, by which rows wait."""
        return f"{self.how} join within ({self.low_ms}, {self.high_ms})"

    def entry_kinds(self) -> EntryKinds:
        """Return the rows of either side, by bucket of time."""
        return ENTRIES

    def build(self, context: OperatorContext) -> IntervalJoinOperator:
        """Return its operator, which keeps the values of either side as was declared."""
        join = context.functions["join"]
        operator = IntervalJoinOperator(self, join, context.store, context.keys, context.most_held, context.lowest)
        operator.declare(*map(context.formats.form, self.state))
        return operator


class IntervalJoinOperator(OverRows):
    """One task's share of a join: the rows of both sides that may still be met, and those that wait for a first match.

    A row that waits is in `_waiting` until the watermark is past all that could meet it, and in `_ripe` from then on,
    by its stamp, until it is emitted alone. One that has met another in the meantime is passed over there.
    """

    calls = ("join",)

    def __init__(
        self,
        spec: IntervalJoin,
        join: Callable[..., object],
        store: Store,
        keys: Keys,
        most_held: int = MOST_HELD,
        lowest: int | None = None,
    ) -> None:
        self.join = join
        super().__init__(store, keys, most_held)
        self.meetings = Meetings(0, keys.kind_of)
        self._latest = spec.keep == "latest"
        low, high = spec.low_ms, spec.high_ms
        self._width = max(high - low + 1, LEAST_WIDTH_MS)
        self._bounds = ((low, high), (-high, -low))
        self._reach = (high, -low)
        """The ms after a row of each side in which it may still be met."""
        self._outer = (spec.how in ("left", "outer"), spec.how in ("right", "outer"))
        left, right = (
            RowsByTime(store, keys, prefix, self._width, reach)
            for prefix, reach in zip((b"l", b"r"), self._reach, strict=True)
        )
        self._sides = self.held = (left, right)
        self._forms: tuple[Form | None, Form | None] | None = None
        self.waits_in = tuple(rows for rows, waits in zip(self._sides, self._outer, strict=True) if waits)
        self._reached = MIN_TIMESTAMP
        self._begin(lowest)

    def declare(self, left: Form | None, right: Form | None) -> None:
        """Set the stored forms of the values of either side."""
        for side, form in zip(self._sides, (left, right), strict=True):
            side.form = form
        self._forms = None if left is right is None else (left, right)

    def process(self, batch: Batch) -> Batch | None:
        """Join each row with those that have come before, and keep it; late ones are set aside in `late`."""
        assert batch.timestamps is not None and batch.stamps is not None
        sides, width, late, met = self._sides, self._width, list[int](), list[Key]()
        spans: list[tuple[int, int] | None] = [None, None]
        near: list[list[tuple[int, Bucket]]] = [[], []]
        """The other side's buckets that the bounds of a row of each side reach into, as they were for the last one."""
        out = Batch([], keys=[], timestamps=[], stamps=[])
        values = batch.values if self._forms is None else typed_sides(self._forms, batch.values)
        columns = zip(batch.keys or [None] * len(batch), values, batch.timestamps, batch.stamps, strict=True)
        for place, (key, (side, value), at, stamp) in enumerate(columns):
            if key is None:
                raise ValueError(NO_KEY)
            if at < stamp:
                late.append(place)
                continue
            own, waits, (low, high) = sides[side], self._outer[side], self._bounds[side]
            span = (at + low) // width, (at + high) // width
            if span != spans[side]:
                spans[side], near[side] = span, self._near(side, span)
            has_met = False
            for number, bucket in near[side]:
                # As RowsByTime.rows_of does it.
                rows = bucket.changed.get(key)
                if rows is None and (rows := bucket.clean.get(key)) is None and not bucket.is_whole:
                    rows = sides[1 - side].rows_of(number, key)
                if rows and self._meet(side, key, (at, stamp, value), number, rows, out):
                    has_met = True
                    # Its buckets come the newest first, and in these the newest row is the one that counts.
                    if self._latest:
                        break
            if has_met:
                waits = False
                met.append(key)
            elif waits:
                self._wait(side, key, at, stamp)
            # As RowsByTime.add does it, written out to spare a call for each row.
            number = at // width
            bucket = own.buckets.get(number)
            if bucket is None:
                bucket, spans[1 - side] = own.open(number), None
            rows = bucket.changed.get(key)
            if rows is None:
                rows = own.changing(number, key)
            if not rows or rows[-1][0] <= at:
                rows.append((at, stamp, value, waits))
            else:
                rows.insert(bisect_left(rows, (at + 1,)), (at, stamp, value, waits))
        self.meetings.count(len(met), len(batch) - len(late) - len(met), met)
        self.late = batch.take(late) if late else None
        if self.late is not None:
            self.late.values = [value for _, value in self.late.values]
        self.relieve()
        return out if out.values else None

    def _near(self, side: int, span: tuple[int, int]) -> list[tuple[int, Bucket]]:
        """Return the other side's buckets that the bounds of a row reach into, in the order in which it meets rows."""
        # A bucket is at least as wide as the bounds, so a row's bounds lie in two buckets at most.
        others = self._sides[1 - side].buckets
        return [(number, others[number]) for number in sorted({*span}, reverse=self._latest) if number in others]

    def _meet(
        self, side: int, key: Key, row: tuple[int, int, object], number: int, rows: list[Row], out: Batch
    ) -> bool:
        """Join a row with those of its key in a bucket of the other side; return whether any lie in its bounds."""
        assert out.keys is not None and out.timestamps is not None and out.stamps is not None
        (at, stamp, value), (low, high), join, waited = row, self._bounds[side], self.join, False
        # Places are looked for only where the outermost rows lie outside of the bounds.
        start, stop = 0, len(rows)
        if rows[0][0] < at + low:
            start = bisect_left(rows, (at + low,))
        if rows[-1][0] > at + high:
            stop = bisect_left(rows, (at + high + 1,))
        if start >= stop:
            return False
        # Rows lie in the order of their times, equal ones as they came: the last in the bounds is the newest.
        if self._latest:
            start = stop - 1
        # No copy of the rows where all of them are met.
        for theirs, their_stamp, their_value, waits in rows if stop - start == len(rows) else rows[start:stop]:
            out.values.append(join(value, their_value) if side == LEFT else join(their_value, value))
            out.keys.append(key)
            out.timestamps.append(at if at > theirs else theirs)
            out.stamps.append(stamp if stamp > their_stamp else their_stamp)
            waited = waited or waits
        if waited:
            self._no_longer_wait(self._sides[1 - side], number, key, start, stop)
        return True

    def on_watermark(self, watermark: int, most: int | None = None) -> Batch | None:
        """Emit the rows that have waited in vain, in stamp order, and drop those that nothing can meet any more."""
        if watermark == MAX_TIMESTAMP:
            self.read_all()
        self._reached = max(self._reached, watermark)
        self._ripen()
        out = Batch([], keys=[], timestamps=[], stamps=[])
        assert out.keys is not None and out.timestamps is not None and out.stamps is not None
        looked_at = 0
        while self._ripe and (most is None or looked_at < most):
            looked_at += 1
            found = self._take_first()
            if found is not None:
                side, key, (at, stamp, value, _) = found
                out.values.append(self.join(value, None) if side == LEFT else self.join(None, value))
                out.keys.append(key)
                out.timestamps.append(at)
                out.stamps.append(stamp)
        if not self._ripe:
            more = None if most is None else most - looked_at
            for rows in self._sides:
                more = rows.drop_past(self._reached, more)
        return out if out.values else None

    def drop_due(self) -> Batch:
        """Remove the first row that would be emitted alone, and return its value."""
        self._ripen()
        while self._ripe:
            found = self._take_first()
            if found is not None:
                return Batch([found[2][2]], keys=[found[1]])
        return Batch([])

    def next_due(self) -> int:
        """Return the watermark at which the next row has waited long enough, or the next bucket is past."""
        if self._ripe:
            return self._reached
        if self.is_unread:
            return MAX_TIMESTAMP
        return min(self._waiting.first(), *(side.next_past() for side in self._sides))

    def lowest_stamp(self) -> int:
        """Return the smallest stamp of a row that waits."""
        return min(self._stamps.lowest(), self.lowest_unread)

    def forget(self) -> None:
        """Drop all that is held, and look up what the store has."""
        self._begin(None)

    def _begin(self, lowest: int | None) -> None:
        """Look up what the store has; given the lowest stamp of what waits, note bit by bit which rows do."""
        self._waiting: DueItems[tuple[int, int, int, Key, int, int]] = DueItems(self._width)
        """The rows that wait, by the time at which that is enough: with number, side, key, time and stamp."""
        self._ripe: list[tuple[int, int, int, int, Key]] = []
        """The rows that have waited long enough, by stamp: with time, side, number and key."""
        self._stamps = Stamps()
        """The stamps of the rows that wait."""
        # A number for each, so that a heap never compares two keys: an int and a string have no order.
        self._numbers = count()
        for side, rows in enumerate(self._sides):
            rows.load()
            if self._outer[side]:
                rows.find_waiting(partial(self._wait, side), lowest)

    def _wait(self, side: int, key: Key, at: int, stamp: int) -> None:
        due = min(at + self._reach[side] + 1, MAX_TIMESTAMP)
        self._waiting.add((due, next(self._numbers), side, key, at, stamp))
        self._stamps.add(stamp)

    def _no_longer_wait(self, side: RowsByTime, number: int, key: Key, start: int, stop: int) -> None:
        """Note that rows were met, and wait no longer."""
        rows = side.buckets[number].changed.get(key)
        if rows is None:
            rows = side.changing(number, key)
        for index in range(start, stop):
            at, stamp, value, waits = rows[index]
            if waits:
                rows[index] = (at, stamp, value, False)
                self._stamps.remove(stamp)

    def _ripen(self) -> None:
        for _, number, side, key, at, stamp in self._waiting.take(self._reached):
            # Most have met another by now.
            if self._sides[side].waits_at(key, at, stamp) is not None:
                heappush(self._ripe, (stamp, at, side, number, key))

    def _take_first(self) -> tuple[int, Key, Row] | None:
        """Remove the first row that has waited long enough; None where it was met."""
        # Rows that were met are not taken out of the heaps when they are; they are found to be met here.
        stamp, at, side, _, key = heappop(self._ripe)
        row = self._sides[side].take(key, at, stamp)
        if row is None:
            return None
        self._stamps.remove(stamp)
        return side, key, row
