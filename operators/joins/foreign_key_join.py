"""The foreign key join: a table of rows joined with those that they name in another, which changes with both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from operators.core.base import Batch, Form, Key, Keys, OperatorContext, Serde, Store
from operators.core.entry_keys import KEY, LENGTH_BYTES, EntryKind, EntryKinds, LengthAhead, Rest, beyond
from operators.core.untimed import Untimed
from operators.joins.changes import Changes, KeptRows, Row, columns_of, row_of
from operators.joins.key_join import NO_KEY
from operators.joins.keyed_join import KeyedJoin
from operators.joins.match_counts import Meetings
from operators.state.keyed_state import DECLARED_SIDES, typed

LEFT, RIGHT = 0, 1
OWN, OTHER, NAMED = b"l", b"r", b"n"
"""The first byte of entries in the store: of own rows, of the others, and of own keys by the other that they name."""
FOREIGN = "foreign_key"
ENTRIES: EntryKinds = {
    OWN: EntryKind("left row", Rest()),
    # Any own row may come to name another, so each part of a task keeps all of these: they go with no key.
    OTHER: EntryKind("right row", Rest(FOREIGN)),
    NAMED: EntryKind("reference", LengthAhead(FOREIGN), Rest(), of_users=False),
}
"""The kinds of entries in the store."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ForeignKeyJoin(KeyedJoin):
    """Join each row of a table with that of the key `on(row)` in another, and emit a Change when either changes.

    Its parents are the changes of the first table, by whose key it goes, and those of the other, which every task has
    all of. With "left" a row that names none that is there is joined with None.
    """

    on: Callable[..., object]
    foreign_key: Serde | None
    how: Literal["inner", "left"] = "inner"
    is_joined: tuple[bool, bool] = (False, False)
    store: str = "lmdb"
    state: tuple[Serde | None, Serde | None] = (None, None)

    kind: ClassVar[str] = "foreign_key_join"
    declares: ClassVar[str] = DECLARED_SIDES
    keyed_by_first: ClassVar[bool] = True
    order_sensitive: ClassVar[bool] = True

    def by_order(self) -> str:
        """Return that a change is joined with the rows that have come by then."""
        return "each change goes by the rows that have come by then"

    def functions(self) -> dict[str, Callable[..., object]]:
        """The user's functions."""
        return {"on": self.on, "join": self.with_}

    def describe(self) -> str:
        """Return the kind of the join."""
        return f"{self.how} join of tables by foreign key"

    def meaning(self) -> str:
        """The rows of both sides, and the keys of the second."""
        return f"rows of two tables, named by {self.foreign_key!r}"

    def why_whole(self) -> tuple[str, str] | None:
        """Return that each part would have to keep all of the other side, which any own row may come to name."""
        wrong = "each part of a task would keep all rows of the other side, and parts read these differently far"
        return wrong, ".partition_by(...) by the other side's key before a join by key; or Options(elasticity=1)"

    def entry_kinds(self) -> EntryKinds:
        """Return own rows, the others by their own key, and the keys of own rows behind the others that they name."""
        return ENTRIES

    def part_serdes(self, key: Serde | None) -> Mapping[str, Serde | None]:
        """Return the serdes of both keys."""
        return {KEY: key, FOREIGN: self.foreign_key}

    def build(self, context: OperatorContext) -> ForeignKeyJoinOperator:
        """Return its operator, which keeps the rows of either side as was declared."""
        foreign = context.formats.keys(self.foreign_key)
        operator = ForeignKeyJoinOperator(self, context.functions, context.store, context.keys, foreign)
        operator.declare(*map(context.formats.form, self.state))
        return operator


class ForeignKeyJoinOperator(Untimed):
    """One task's share of a join by foreign key: its own rows, all others, and the own keys by the other they name."""

    calls = ("on", "join")

    def __init__(
        self,
        spec: ForeignKeyJoin,
        functions: dict[str, Callable[..., object]],
        store: Store,
        keys: Keys,
        foreign: Keys,
    ) -> None:
        self.on, self.join = functions["on"], functions["join"]
        self.store = store
        self._rows = KeptRows(store)
        self.keys = keys
        self._foreign = foreign
        self.meetings = Meetings(0, foreign.kind_of, notes_batches=False)
        """The meetings of rows that name another, and of those that are named, with the keys that they are named by."""
        self._left = spec.how == "left"
        self._is_joined = spec.is_joined

    def declare(self, left: Form | None, right: Form | None) -> None:
        """Set the stored forms of the rows of either side."""
        self._rows.forms = left, right

    def process(self, batch: Batch) -> Batch | None:
        """Take in the changes of either side, and return those that follow."""
        found = Changes(self.keys)
        keys, timestamps, stamps = columns_of(batch)
        for key, (side, value), at, stamp in zip(keys, batch.values, timestamps, stamps, strict=True):
            if key is None:
                raise ValueError(NO_KEY)
            now: Row = (typed(self._rows.forms[side], row_of(value, self._is_joined[side])), at, stamp)
            if side == LEFT:
                self._change_own(key, now, found)
            else:
                self._change_other(self._foreign.encode(key), now, found)
        return found.batch()

    def _change_own(self, key: Key, now: Row, found: Changes) -> None:
        encoded = self.keys.encode(key)
        before = self._rows.get(LEFT, OWN + encoded)
        named_before, named = self._named(before), self._named(now)
        others = [None if name is None else self._rows.get(RIGHT, OTHER + name) for name in (named_before, named)]
        old, new = self._joined(before, others[0]), self._joined(now, others[1])
        if named_before is not None and named_before != named:
            self.store.delete(_naming(named_before) + encoded)
        if named is not None and named_before != named:
            self.store.put(_naming(named) + encoded, True)
        self._rows.keep(LEFT, OWN + encoded, now)
        if named is not None:
            self.meetings.note(LEFT, [named])
            self.meetings.count(others[1] is not None, others[1] is None, [named] if others[1] is not None else ())
        found.add(key, old, new, now, others[1])

    def _change_other(self, name: bytes, now: Row, found: Changes) -> None:
        before = self._rows.get(RIGHT, OTHER + name)
        self._rows.keep(RIGHT, OTHER + name, now)
        place = _naming(name)
        self.meetings.note(RIGHT, [name])
        naming = [encoded[len(place) :] for encoded, _ in self.store.range(place, beyond(place))]
        self.meetings.count(len(naming), not naming, [name] if naming else ())
        for encoded, key in zip(naming, self.keys.load(naming), strict=True):
            own = self._rows.get(LEFT, OWN + encoded)
            assert key is not None
            found.add(key, self._joined(own, before), self._joined(own, now), own, now)

    def _named(self, own: Row | None) -> bytes | None:
        """Return the key that a row names, encoded."""
        name = None if own is None or own[0] is None else self.on(own[0])
        held = None if name is None else self._foreign.hold_one(name)
        return None if held is None else self._foreign.encode(held)

    def _joined(self, own: Row | None, other: Row | None) -> object:
        row = None if other is None else other[0]
        if own is None or own[0] is None or (row is None and not self._left):
            return None
        return self.join(own[0], row)


def _naming(name: bytes) -> bytes:
    # The length ahead, so that the range of one name holds no longer names that begin with it.
    return NAMED + len(name).to_bytes(LENGTH_BYTES, "big") + name
