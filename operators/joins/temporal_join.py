"""The temporal join of a stream with a table as it was at each message's time, however far either is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

from operators.core.base import (
    MOST_HELD,
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
from operators.joins.row_versions import WIDTH_MS, Versions, width_of
from operators.joins.waiting_rows import WaitingJoin, WaitingRows
from operators.state.keyed_state import DECLARED_SIDES

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
    begins_unread: ClassVar[bool] = True

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
        operator = TemporalJoinOperator(self, join, context.store, context.keys, context.most_held, context.lowest)
        operator.declare(*map(context.formats.form, self.state))
        return operator


class TemporalJoinOperator(WaitingJoin[Versions]):
    """One task's share of a join: the versions of the table, and the messages that wait for the table to catch up."""

    no_key = "a record has no key, and a join with a table as of its time needs one"

    def __init__(
        self,
        spec: TemporalJoin,
        join: Callable[..., object],
        store: Store,
        keys: Keys,
        most_held: int = MOST_HELD,
        lowest: int | None = None,
    ) -> None:
        retention_ms = spec.table.retention_ms
        waiting = WaitingRows(store, keys, b"s", WIDTH_MS, lowest=lowest)
        versions = Versions(store, keys, retention_ms)
        super().__init__(join, waiting, versions, store, keys, most_held, is_left=spec.how == "left")
        self.allowed_ms = retention_ms

    def keep(self, key: Key, at: int, stamp: int, value: object) -> None:
        """Keep a version."""
        self.rights.add(key, at, value)
