"""The as-of join: each left record with the right one of its key that is nearest to it in event time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

from operators.aggregations.identity import identity
from operators.core.base import (
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
from operators.joins.interval_join import LEAST_WIDTH_MS, NO_KEY
from operators.joins.keyed_join import KeyedJoin
from operators.joins.row_versions import WIDTH_MS, Versions
from operators.joins.waiting_rows import MISSING, WaitingJoin, WaitingRows
from operators.state.keyed_state import DECLARED_SIDES, dumped
from operators.state.time_buckets import Row, RowsByTime

Direction = Literal["backward", "forward", "nearest"]

ENTRIES: EntryKinds = {
    b"l": EntryKind("waiting", Number("bucket"), Rest()),
    b"n": EntryKind("right row", Number("bucket"), Rest()),
    b"v": EntryKind("right version", Number("bucket"), Rest()),
    b"b": EntryKind("oldest right version", Rest()),
}
"""The kinds of entries in the store."""


@dataclass(frozen=True, eq=False, kw_only=True)
class AsofJoin(KeyedJoin):
    """Join each left record at t with the one right record of its key that is nearest to t, in a direction.

    Its parents are the left and the right stream. Backward is the last up to and with t, forward the first from t on,
    and nearest the nearer of these two, the earlier one where both are as near. It lies at most `tolerance_ms` from t;
    None is no bound, which only backward has. Of right records of one time the one with the largest stamp counts, of
    equal stamps the one whose value has the largest bytes: so that never matters which came first. A left record waits
    until no right one can come any more that it might meet; the result keeps its timestamp and stamp. An inner join
    drops one that meets none; a left join hands None to the user's function.
    """

    direction: Direction = "backward"
    tolerance_ms: int | None = None
    how: Literal["inner", "left"] = "inner"
    late: DeadLetterPolicy | None = None
    store: str = "lmdb"
    state: tuple[Serde | None, Serde | None] = (None, None)

    kind: ClassVar[str] = "asof_join"
    declares: ClassVar[str] = DECLARED_SIDES.replace("join(", "join_asof(")
    event_time: ClassVar[bool] = True
    holds: ClassVar[bool] = True
    begins_unread: ClassVar[bool] = True

    @property
    def reach(self) -> tuple[int, int]:
        """The ms before a left record's time and after it in which it meets right ones, where both are bounded."""
        bound = self.tolerance_ms or 0
        return (0 if self.direction == "forward" else bound), (0 if self.direction == "backward" else bound)

    def describe(self) -> str:
        """Return the kind of the join, its direction and its tolerance."""
        within = "" if self.tolerance_ms is None else f", within {self.tolerance_ms:,} ms"
        return f"{self.how} as-of join, {self.direction}{within}"

    def meaning(self) -> str:
        """Return the direction and the tolerance, by which rows are grouped, and kept."""
        return f"as-of join {self.direction} within {self.tolerance_ms}"

    def entry_kinds(self) -> EntryKinds:
        """Return rows by bucket of time, and of each key the last one before the first bucket."""
        return ENTRIES

    def build(self, context: OperatorContext) -> AsofJoinOperator:
        """Return its operator, which keeps the values of either side as was declared."""
        join = context.functions["join"]
        operator = AsofJoinOperator(self, join, context.store, context.keys, context.most_held, context.lowest)
        operator.declare(*map(context.formats.form, self.state))
        operator.encode = context.formats.serde(None).encode
        return operator


class NearRows:
    """The right rows of a join with a tolerance, in buckets that are dropped when nothing can meet them any more."""

    def __init__(self, store: Store, keys: Keys, reach: tuple[int, int]) -> None:
        self._before, self._after = reach
        # A bucket is at least as wide as the reach of a left row, so that lies in two buckets at most.
        self._width = max(sum(reach) + 1, LEAST_WIDTH_MS)
        # A left row at t is due when the watermark is past t and the reach after it.
        self._rows = RowsByTime(store, keys, b"n", self._width, sum(reach))
        self.changing_at, self.relieve, self.load = self._rows.changing_at, self._rows.relieve, self._rows.load
        self.write_back, self.next_past = self._rows.write_back, self._rows.next_past
        self.load()

    @property
    def unwritten(self) -> int:
        """The number of entries, each of a key and a bucket, that have changed since they were written back."""
        return self._rows.unwritten

    def declare(self, form: Form | None) -> None:
        """Set the stored form of values."""
        self._rows.form = form

    def met_by(self, key: Key, at: int) -> object:
        """Return the value of the nearest row within reach of a time, of two as near the earlier one."""
        before = self._last(key, at) if self._before or not self._after else None
        after = self._first(key, at) if self._after else None
        if before is None or (after is not None and after[0] - at < at - before[0]):
            return MISSING if after is None else after[2]
        return before[2]

    def _last(self, key: Key, at: int) -> Row | None:
        """Return the last row up to a time that is within reach."""
        earliest = at - self._before
        for number in {at // self._width: None, earliest // self._width: None}:
            rows = self._rows.rows_of(number, key)
            if rows and rows[0][0] <= at:
                row = rows[-1] if rows[-1][0] <= at else rows[bisect_left(rows, (at + 1,)) - 1]
                return row if row[0] >= earliest else None
        return None

    def _first(self, key: Key, at: int) -> Row | None:
        """Return the first row from a time on that is within reach."""
        latest = at + self._after
        for number in {at // self._width: None, latest // self._width: None}:
            rows = self._rows.rows_of(number, key)
            if rows and rows[-1][0] >= at:
                row = rows[0] if rows[0][0] >= at else rows[bisect_left(rows, (at,))]
                return row if row[0] <= latest else None
        return None

    def drop_past(self, horizon: int, most: int | None = None) -> int:
        """Drop the buckets that are past."""
        left = self._rows.drop_past(horizon, most)
        return 0 if most is None or left is None else most - left


class AsofJoinOperator(WaitingJoin[Versions | NearRows]):
    """One task's share of a join: the left rows that wait, and the right ones that these and later ones may meet."""

    no_key = NO_KEY

    def __init__(
        self,
        spec: AsofJoin,
        join: Callable[..., object],
        store: Store,
        keys: Keys,
        most_held: int = MOST_HELD,
        lowest: int | None = None,
    ) -> None:
        before, after = spec.reach
        rights: Versions | NearRows
        if spec.tolerance_ms is None:
            # Of those below the watermark the last of each key stays.
            rights = Versions(store, keys, retention_ms=0, tombstones=False)
        else:
            rights = NearRows(store, keys, (before, after))
        waiting = WaitingRows(store, keys, b"l", max(after, WIDTH_MS), after, lowest)
        super().__init__(join, waiting, rights, store, keys, most_held, is_left=spec.how == "left")
        self._backward = spec.direction == "backward"
        self._floor = MIN_TIMESTAMP
        self._form: Form | None = None
        self.encode: Callable[[object], bytes] = identity
        """Returns the bytes of a right value that has no identity, such as an array."""

    def declare(self, left: Form | None, right: Form | None) -> None:
        super().declare(left, right)
        self._form = right

    def process(self, batch: Batch) -> Batch | None:
        if self._backward and not self.is_unread:
            # No left row that waits or is still to come lies before it, as none is before its stamp.
            self._floor = min(self.reached, self.waiting.due() - 1)
        return super().process(batch)

    def keep(self, key: Key, at: int, stamp: int, value: object) -> None:
        """Put a right row among those of its key, in the place of one of its time, where it counts before that."""
        rows, row = self.rights.changing_at(key, at), (at, stamp, value, False)
        place = bisect_left(rows, (at,)) if rows and rows[-1][0] >= at else len(rows)
        if place < len(rows) and rows[place][0] == at:
            if self._rank(row) > self._rank(rows[place]):
                rows[place] = row
            return
        rows.insert(place, row)
        # Backward, the last up to the floor hides all before it: however long the tolerance, few rows of a key stay.
        if len(rows) > 1 and rows[1][0] <= self._floor:
            del rows[: bisect_left(rows, (self._floor + 1,)) - 1]

    def _rank(self, row: Row) -> tuple[int, bytes]:
        value = dumped(self._form, row[2])
        try:
            return row[1], identity(value)
        except (TypeError, ValueError):
            return row[1], self.encode(value)
