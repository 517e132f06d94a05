"""The temporal join of a stream with a table as it was at each message's time, however far either is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
from operators.io import VersionedTable
from operators.joins.keyed_join import KeyedJoin
from operators.joins.match_counts import Meetings
from operators.joins.row_versions import WIDTH_MS, Versions, width_of
from operators.joins.waiting_rows import WaitingRows
from operators.state.keyed_state import DECLARED_SIDES, typed_sides
from operators.state.time_buckets import OverRows

STREAM, TABLE = 0, 1
NO_KEY = "a record has no key, and a join with a table as of its time needs one"

ENTRIES: EntryKinds = {
    b"s": EntryKind("waiting", Number("bucket"), Rest()),
    b"v": EntryKind("version", Number("bucket"), Rest()),
    b"b": EntryKind("oldest version", Rest()),
}
"""The kinds of entries in the store."""


@dataclass(frozen=True, eq=False, kw_only=True)
class TemporalJoin(KeyedJoin):
    """Join each message at t with the row that its key has in the table at t: the last version up to and with t.

    Its parents are the stream and the table. A message waits until no version of its time can come any more; the
    result keeps its timestamp and stamp. An inner join drops a message without a row; a left join hands `None` to the
    user's function. A message is late that lies more than the table's retention before its stamp, a version any time
    before its own.
    """

    how: Literal["inner", "left"] = "inner"
    late: DeadLetterPolicy | None = None
    store: str = "lmdb"
    state: tuple[Serde | None, Serde | None] = (None, None)

    kind: ClassVar[str] = "temporal_join"
    declares: ClassVar[str] = DECLARED_SIDES
    by_table_key: ClassVar[bool] = True
    event_time: ClassVar[bool] = True
    holds: ClassVar[bool] = True

    @property
    def table(self) -> VersionedTable:
        """The table that is looked into."""
        table = self.parents[1]
        assert isinstance(table, VersionedTable)
        return table

    def describe(self) -> str:
        """Return the kind of the join and the table."""
        return f"{self.how} join with {self.table.stream} as of then"

    def meaning(self) -> str:
        """Return the ms by which versions are grouped."""
        return f"join with versions by {width_of(self.table.retention_ms)} ms"

    def parameters(self) -> dict[str, str]:
        """Return its own parameters, and the ms for which the table keeps versions."""
        return {**super().parameters(), "retention_ms": str(self.table.retention_ms)}

    def entry_kinds(self) -> EntryKinds:
        """Return waiting messages and versions of rows, by bucket of time, and the oldest version of each key."""
        return ENTRIES

    def build(self, context: OperatorContext) -> TemporalJoinOperator:
        """Return its operator, which keeps the values of either side as was declared."""
        join = context.functions["join"]
        operator = TemporalJoinOperator(self, join, context.store, context.keys, context.most_held)
        operator.declare(*map(context.formats.form, self.state))
        return operator


class TemporalJoinOperator(OverRows):
    """One task's share of a join: the versions of the table, and the messages that wait for the table to catch up.

    Messages leave in the order of their times.
    """

    calls = ("join",)

    def __init__(
        self,
        spec: TemporalJoin,
        join: Callable[..., object],
        store: Store,
        keys: Keys,
        most_held: int = MOST_HELD,
    ) -> None:
        self.join = join
        super().__init__(store, keys, most_held)
        self.meetings = Meetings(0, keys.kind_of)
        self._left = spec.how == "left"
        self._retention = spec.table.retention_ms
        self._waiting = WaitingRows(store, keys, b"s", WIDTH_MS)
        self._versions = Versions(store, keys, self._retention)
        self.held = (self._waiting, self._versions)
        self._forms: tuple[Form | None, Form | None] | None = None
        self._reached = MIN_TIMESTAMP

    def declare(self, left: Form | None, right: Form | None) -> None:
        """Set the stored forms of messages and of versions of rows."""
        self._waiting.declare(left)
        self._versions.declare(right)
        self._forms = None if left is right is None else (left, right)

    def process(self, batch: Batch) -> Batch | None:
        """Keep each message and each version; late ones are set aside in `late`."""
        assert batch.timestamps is not None and batch.stamps is not None
        late, allowed = [], (self._retention, 0)
        values = batch.values if self._forms is None else typed_sides(self._forms, batch.values)
        columns = zip(batch.keys or [None] * len(batch), values, batch.timestamps, batch.stamps, strict=True)
        for place, (key, (side, value), at, stamp) in enumerate(columns):
            if key is None:
                raise ValueError(NO_KEY)
            if at < stamp - allowed[side]:
                late.append(place)
            elif side == TABLE:
                self._versions.add(key, at, value)
            else:
                self._waiting.add(key, at, stamp, value)
        self.late = batch.take(late) if late else None
        if self.late is not None:
            self.late.values = [value for _, value in self.late.values]
        self.relieve()
        return None

    def on_watermark(self, watermark: int, most: int | None = None) -> Batch | None:
        """Join the messages before the watermark, in the order of their times, and drop versions nobody asks for."""
        self._reached = max(self._reached, watermark)
        out = Batch([], keys=[], timestamps=[], stamps=[])
        assert out.keys is not None and out.timestamps is not None and out.stamps is not None
        assert most is None or most > 0, "a firing is of at least one row"
        done = joined = missed = 0
        met: list[Key] = []
        versions, join, first_end = self._versions, self.join, self._versions.first_end()
        for _, key, (at, stamp, value, _) in self._waiting.each(self._reached):
            if at >= first_end:
                # Versions are folded only up to this message's time, which is still to ask for them.
                done += versions.fold(self._reached, at)
                first_end = versions.first_end()
            row = versions.as_of(key, at)
            joined += 1
            if row is None:
                missed += 1
            else:
                met.append(key)
            if row is not None or self._left:
                out.values.append(join(value, row))
                out.keys.append(key)
                out.timestamps.append(at)
                out.stamps.append(stamp)
            if most is not None and joined + done >= most:
                break
        done += joined
        self.meetings.count(len(met), missed, met)
        if self._waiting.due() > self._reached:
            left = self._waiting.drop_past(self._reached, None if most is None else max(most - done, 0))
            if left != 0:
                self._versions.fold(self._reached, MAX_TIMESTAMP, left)
        return out if out.values else None

    def drop_due(self) -> Batch:
        """Remove the first message that would be joined, and return its value."""
        return self._waiting.drop_due(self._reached)

    def next_due(self) -> int:
        """Return the watermark at which the next message can be joined, or rows are past."""
        return min(self._waiting.next_past(), self._versions.due())

    def lowest_stamp(self) -> int:
        """Return the smallest stamp of a message that waits."""
        return self._waiting.lowest_stamp()

    def forget(self) -> None:
        """Drop all that is held, and look up what the store has."""
        self._waiting.load()
        self._versions.load()
