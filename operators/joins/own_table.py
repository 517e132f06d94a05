"""Tables that an application makes itself: the newest row of each key of a stream, and the join of streams with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from operators.core.base import Batch, Form, Key, Keys, OperatorContext, Serde, Spec, Store
from operators.core.entry_keys import OF_KEYS, EntryKinds
from operators.core.untimed import Untimed
from operators.io import UNJOINED
from operators.joins.changes import Changes, columns_of
from operators.joins.key_join import NO_KEY
from operators.joins.keyed_join import KeyedJoin
from operators.joins.match_counts import Meetings
from operators.state.keyed_state import dumped, loaded, typed


@dataclass(frozen=True, eq=False, kw_only=True)
class OwnTable(Spec):
    """Keep the newest value of each key as its row, and emit a Change for each that comes; None removes the row."""

    store: str = "lmdb"
    state: Serde | None = None

    kind: ClassVar[str] = "own_table"
    declares: ClassVar[str] = "to_table(..., state=MySerde())"
    unread: ClassVar[tuple[str, str]] = UNJOINED
    stateful: ClassVar[bool] = True
    keyed: ClassVar[bool] = True
    needs_id: ClassVar[bool] = True
    order_sensitive: ClassVar[bool] = True

    def by_order(self) -> str:
        """Return that the last value of a key stays."""
        return "the row of a key is the one that came last"

    def meaning(self) -> str:
        """The rows."""
        return "rows"

    def entry_kinds(self) -> EntryKinds:
        """Return rows by key."""
        return OF_KEYS

    def declared_of(self, parts: Mapping[str, object]) -> Serde | None:
        """Return that of rows."""
        return self.state

    def build(self, context: OperatorContext) -> OwnTableOperator:
        """Return its operator, which keeps rows as was declared."""
        return OwnTableOperator(context.store, context.keys, context.formats.form(self.state))


@dataclass(frozen=True, eq=False, kw_only=True)
class OwnTableJoin(KeyedJoin):
    """Join each message with the row that its key has by then in a table of the application's own.

    Its parents are the stream and the changes of the table, whose rows it keeps. An inner join drops a message without
    a row; a left join hands None to the user's function.
    """

    left: bool = False
    store: str = "lmdb"
    state: Serde | None = None

    kind: ClassVar[str] = "own_table_join"
    declares: ClassVar[str] = "join(..., state=(None, MySerde()))"
    order_sensitive: ClassVar[bool] = True

    def by_order(self) -> str:
        """Return that a message finds the row that is there by then."""
        return "finds the row that its key has by then"

    def describe(self) -> str:
        """Return the kind of the join and the table."""
        return f"{'left' if self.left else 'inner'} join with {self.parents[1].op_id}"

    def meaning(self) -> str:
        """The rows of the table."""
        return "rows of a table"

    def entry_kinds(self) -> EntryKinds:
        """Return rows by key."""
        return OF_KEYS

    def declared_of(self, parts: Mapping[str, object]) -> Serde | None:
        """Return that of rows."""
        return self.state

    def build(self, context: OperatorContext) -> OwnTableJoinOperator:
        """Return its operator, which keeps rows as was declared."""
        form = context.formats.form(self.state)
        return OwnTableJoinOperator(self.left, context.functions["join"], context.store, context.keys, form)


class OwnTableOperator(Untimed):
    """One task's share of a table: the newest row of each key."""

    calls = ()

    def __init__(self, store: Store, keys: Keys, form: Form | None = None) -> None:
        self.store, self.keys = store, keys
        self._form = form

    def process(self, batch: Batch) -> Batch | None:
        """Keep the rows that have come, and return the changes."""
        found, store, form = Changes(self.keys), self.store, self._form
        for key, value, at, stamp in zip(*_with_values(batch), strict=True):
            if key is None:
                raise ValueError(NO_KEY)
            row, place = typed(form, value), self.keys.encode(key)
            before = loaded(form, store.get(place))
            if row is None:
                store.delete(place)
            else:
                store.put(place, dumped(form, row))
            found.add(key, before, row, (row, at, stamp))
        return found.batch()


class OwnTableJoinOperator(Untimed):
    """One task's share of a join with a table of the application's own: the rows of that table."""

    calls = ("join",)

    def __init__(
        self, left: bool, join: Callable[..., object], store: Store, keys: Keys, form: Form | None = None
    ) -> None:
        self.join = join
        self.store, self.keys = store, keys
        self.meetings = Meetings(0, keys.kind_of)
        self._left, self._form = left, form

    def process(self, batch: Batch) -> Batch | None:
        """Take in rows, and return the messages that have met one, or any in a left join."""
        store, form, missed = self.store, self._form, 0
        met: list[Key] = []
        values: list[object] = []
        rows: list[int] = []
        for number, (key, (side, value)) in enumerate(
            zip(batch.keys or [None] * len(batch), batch.values, strict=True)
        ):
            if key is None:
                raise ValueError(NO_KEY)
            place = self.keys.encode(key)
            if side:
                row = typed(form, value.new)
                if row is None:
                    store.delete(place)
                else:
                    store.put(place, dumped(form, row))
                continue
            row = loaded(form, store.get(place))
            if row is None:
                missed += 1
            else:
                met.append(key)
            if row is not None or self._left:
                values.append(self.join(value, row))
                rows.append(number)
        self.meetings.count(len(met), missed, met)
        if not rows:
            return None
        joined = batch.take(rows)
        joined.values = values
        return joined


def _with_values(batch: Batch) -> tuple[list[Any], list[Any], Any, Any]:
    keys, timestamps, stamps = columns_of(batch)
    return keys, batch.values, timestamps, stamps
