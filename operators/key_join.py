"""Joining two tables by their keys: a table, whose row changes when that of either side does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from operators.at_once import AtOnce
from operators.base import Batch, Keys, Spec, Store
from operators.changes import Changes, Row, columns_of, row_of

How = Literal["inner", "left", "right", "outer"]
PLACES = (b"l", b"r")
"""What the places of the rows of either side begin with."""
NO_KEY = "a record of a table has no key; give the table key=, or key the stream"


@dataclass(frozen=True, eq=False, kw_only=True)
class KeyJoin(Spec):
    """Join the rows that two tables have for a key, and emit a Change whenever what they come to may be another.

    Its parents are the changes of the tables: their records, or, of a side that `is_joined`, what such a join emits.
    """

    with_: Callable[[Any, Any], Any]
    how: How = "inner"
    is_joined: tuple[bool, bool] = (False, False)
    store: str = "lmdb"

    kind: ClassVar[str] = "key_join"
    stateful: ClassVar[bool] = True
    keyed: ClassVar[bool] = True
    needs_id: ClassVar[bool] = True
    sided: ClassVar[bool] = True
    order_sensitive: ClassVar[bool] = True

    def functions(self) -> dict[str, Callable[..., Any]]:
        """The user's function."""
        return {"join": self.with_}

    def describe(self) -> str:
        """Which keys it has."""
        return f"{self.how} join of tables"

    def meaning(self) -> str:
        """The rows of both sides."""
        return "rows of two tables"


class KeyJoinOperator(AtOnce):
    """One task's share of a join of tables: the rows of both sides."""

    calls = ("join",)

    def __init__(self, spec: KeyJoin, join: Callable[[Any, Any], Any], store: Store, keys: Keys) -> None:
        self.join = join
        self.store = store
        self.keys = keys
        self._is_joined = spec.is_joined
        self._alone = (spec.how in ("left", "outer"), spec.how in ("right", "outer"))

    def process(self, batch: Batch) -> Batch | None:
        """Take in the changes of either side, and return those that follow."""
        found, store = Changes(self.keys), self.store
        for key, (side, value), at, stamp in zip(*_with_values(batch), strict=True):
            if key is None:
                raise ValueError(NO_KEY)
            encoded = self.keys.encode(key)
            place, row = PLACES[side] + encoded, row_of(value, self._is_joined[side])
            before, other = store.get(place), store.get(PLACES[1 - side] + encoded)
            now: Row = (row, at, stamp)
            if row is None:
                store.delete(place)
            else:
                store.put(place, now)
            found.add(key, self._joined(side, before, other), self._joined(side, now, other), now, other)
        return found.batch()

    def _joined(self, side: int, own: Row | None, other: Row | None) -> Any:
        """Return what the rows of a key come to, None where that is no row."""
        rows = [None if one is None else one[0] for one in (own, other)]
        left, right = rows if side == 0 else reversed(rows)
        if (left is None and not self._alone[1]) or (right is None and not self._alone[0]):
            return None
        return None if left is None and right is None else self.join(left, right)


def _with_values(batch: Batch) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
    keys, timestamps, stamps = columns_of(batch)
    return keys, batch.values, timestamps, stamps
