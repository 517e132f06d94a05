"""The key join of two tables: a table whose row of a key changes when that of either side does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from operators.core.base import Batch, Form, Key, Keys, OperatorContext, Serde, Store
from operators.core.entry_keys import EntryKind, EntryKinds, Rest
from operators.core.untimed import Untimed
from operators.joins.changes import Changes, KeptRows, Row, columns_of, row_of
from operators.joins.keyed_join import KeyedJoin
from operators.joins.match_counts import Meetings
from operators.state.keyed_state import DECLARED_SIDES, typed

How = Literal["inner", "left", "right", "outer"]
PLACES = (b"l", b"r")
ENTRIES: EntryKinds = {b"l": EntryKind("left row", Rest()), b"r": EntryKind("right row", Rest())}
"""The kinds of entries in the store."""
"""The first byte of the entries of either side's rows."""
NO_KEY = "a record of a table has no key; give the table key=, or key the stream"


@dataclass(frozen=True, eq=False, kw_only=True)
class KeyJoin(KeyedJoin):
    """Join the rows that two tables have for a key, and emit a Change whenever the joined row may be another.

    Its parents are the changes of the tables: their records, or, of a side that `is_joined`, the changes of a join.
    """

    how: How = "inner"
    is_joined: tuple[bool, bool] = (False, False)
    store: str = "lmdb"
    state: tuple[Serde | None, Serde | None] = (None, None)

    kind: ClassVar[str] = "key_join"
    declares: ClassVar[str] = DECLARED_SIDES
    order_sensitive: ClassVar[bool] = True

    def by_order(self) -> str:
        """Return that a change is joined with the rows that have come by then."""
        return "each change goes by the rows that have come by then"

    def describe(self) -> str:
        """Return the kind of the join."""
        return f"{self.how} join of tables"

    def meaning(self) -> str:
        """The rows of both sides."""
        return "rows of two tables"

    def entry_kinds(self) -> EntryKinds:
        """Return the rows of either side."""
        return ENTRIES

    def build(self, context: OperatorContext) -> KeyJoinOperator:
        """Return its operator, which keeps the rows of either side as was declared."""
        operator = KeyJoinOperator(self, context.functions["join"], context.store, context.keys)
        operator.declare(*map(context.formats.form, self.state))
        return operator


class KeyJoinOperator(Untimed):
    """One task's share of a join of tables: the rows of both sides."""

    calls = ("join",)

    def __init__(self, spec: KeyJoin, join: Callable[..., object], store: Store, keys: Keys) -> None:
        self.join = join
        self.store = store
        self._rows = KeptRows(store)
        self.keys = keys
        self.meetings = Meetings(0, keys.kind_of)
        self._is_joined = spec.is_joined
        self._alone = (spec.how in ("left", "outer"), spec.how in ("right", "outer"))

    def declare(self, left: Form | None, right: Form | None) -> None:
        """Set the stored forms of the rows of either side."""
        self._rows.forms = left, right

    def process(self, batch: Batch) -> Batch | None:
        """Take in the changes of either side, and return those that follow."""
        found, rows, met = Changes(self.keys), self._rows, list[Key]()
        for key, (side, value), at, stamp in zip(*_with_values(batch), strict=True):
            if key is None:
                raise ValueError(NO_KEY)
            encoded = self.keys.encode(key)
            place, row = PLACES[side] + encoded, typed(rows.forms[side], row_of(value, self._is_joined[side]))
            before, other = rows.get(side, place), rows.get(1 - side, PLACES[1 - side] + encoded)
            now: Row = (row, at, stamp)
            if other is not None:
                met.append(key)
            rows.keep(side, place, now)
            found.add(key, self._joined(side, before, other), self._joined(side, now, other), now, other)
        self.meetings.count(len(met), len(batch) - len(met), met)
        return found.batch()

    def _joined(self, side: int, own: Row | None, other: Row | None) -> object:
        """Return the joined row of a key, None where there is none."""
        rows = [None if one is None else one[0] for one in (own, other)]
        left, right = rows if side == 0 else reversed(rows)
        if (left is None and not self._alone[1]) or (right is None and not self._alone[0]):
            return None
        return None if left is None and right is None else self.join(left, right)


def _with_values(batch: Batch) -> tuple[list[Any], list[Any], Sequence[int | None], Sequence[int | None]]:
    keys, timestamps, stamps = columns_of(batch)
    return keys, batch.values, timestamps, stamps
