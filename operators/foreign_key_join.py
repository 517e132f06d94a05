"""Joining a table with the rows of another that its own rows name: a table that changes when either side does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

from operators.at_once import AtOnce
from operators.base import Batch, Key, Keys, Serde, Spec, Store
from operators.changes import Changes, Row, columns_of, row_of
from operators.key_join import NO_KEY
from operators.store_places import beyond

LEFT = 0
OWN, OTHER, NAMED = b"l", b"r", b"n"
"""What the places of the own rows begin with, of the others, and of which own keys name which other."""
KEY_LENGTH = 4
"""Bytes in which the length of a key is said."""


class KeysOfValues(Keys, Protocol):
    """Keys that are also made of what a user's function returns."""

    def hold_one(self, key: Any, /) -> Key | None:
        """Return what is held of a key."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ForeignKeyJoin(Spec):
    """Join each row of a table with that of the key `on(row)` in another, and emit a Change when either changes.

    Its parents are the changes of the first table, by whose key it goes, and those of the other, which every task has
    all of. With "left" a row that names none that is there is joined with None.
    """

    on: Callable[[Any], Any]
    with_: Callable[[Any, Any], Any]
    foreign_key: Serde | None
    how: Literal["inner", "left"] = "inner"
    is_joined: tuple[bool, bool] = (False, False)
    store: str = "lmdb"

    kind: ClassVar[str] = "foreign_key_join"
    stateful: ClassVar[bool] = True
    keyed: ClassVar[bool] = True
    keyed_by_first: ClassVar[bool] = True
    needs_id: ClassVar[bool] = True
    sided: ClassVar[bool] = True
    order_sensitive: ClassVar[bool] = True

    def functions(self) -> dict[str, Callable[..., Any]]:
        """The user's functions."""
        return {"on": self.on, "join": self.with_}

    def describe(self) -> str:
        """Which rows it has."""
        return f"{self.how} join of tables by foreign key"

    def meaning(self) -> str:
        """The rows of both sides, and the keys of the second."""
        return f"rows of two tables, named by {self.foreign_key!r}"


class ForeignKeyJoinOperator(AtOnce):
    """One task's share of a join by foreign key: its rows of the first table, all of the second, and who names whom."""

    calls = ("on", "join")

    def __init__(
        self,
        spec: ForeignKeyJoin,
        functions: dict[str, Callable[..., Any]],
        store: Store,
        keys: Keys,
        foreign: KeysOfValues,
    ) -> None:
        self.on, self.join = functions["on"], functions["join"]
        self.store = store
        self.keys = keys
        self._foreign = foreign
        self._left = spec.how == "left"
        self._is_joined = spec.is_joined

    def process(self, batch: Batch) -> Batch | None:
        """Take in the changes of either side, and return those that follow."""
        found = Changes(self.keys)
        keys, timestamps, stamps = columns_of(batch)
        for key, (side, value), at, stamp in zip(keys, batch.values, timestamps, stamps, strict=True):
            if key is None:
                raise ValueError(NO_KEY)
            now: Row = (row_of(value, self._is_joined[side]), at, stamp)
            if side == LEFT:
                self._change_own(key, now, found)
            else:
                self._change_other(self._foreign.encode(key), now, found)
        return found.batch()

    def _change_own(self, key: Key, now: Row, found: Changes) -> None:
        encoded = self.keys.encode(key)
        before: Row | None = self.store.get(OWN + encoded)
        named_before, named = self._named(before), self._named(now)
        others = [None if name is None else self.store.get(OTHER + name) for name in (named_before, named)]
        old, new = self._joined(before, others[0]), self._joined(now, others[1])
        if named_before is not None and named_before != named:
            self.store.delete(_naming(named_before) + encoded)
        if named is not None and named_before != named:
            self.store.put(_naming(named) + encoded, True)
        self._keep(OWN + encoded, now)
        found.add(key, old, new, now, others[1])

    def _change_other(self, name: bytes, now: Row, found: Changes) -> None:
        before = self.store.get(OTHER + name)
        self._keep(OTHER + name, now)
        place = _naming(name)
        naming = [encoded[len(place) :] for encoded, _ in self.store.range(place, beyond(place))]
        for encoded, key in zip(naming, self.keys.load(naming), strict=True):
            own = self.store.get(OWN + encoded)
            assert key is not None
            found.add(key, self._joined(own, before), self._joined(own, now), own, now)

    def _named(self, own: Row | None) -> bytes | None:
        """Return the key that a row names, encoded."""
        name = None if own is None or own[0] is None else self.on(own[0])
        held = None if name is None else self._foreign.hold_one(name)
        return None if held is None else self._foreign.encode(held)

    def _joined(self, own: Row | None, other: Row | None) -> Any:
        row = None if other is None else other[0]
        if own is None or own[0] is None or (row is None and not self._left):
            return None
        return self.join(own[0], row)

    def _keep(self, place: bytes, row: Row) -> None:
        if row[0] is None:
            self.store.delete(place)
        else:
            self.store.put(place, row)


def _naming(name: bytes) -> bytes:
    return NAMED + len(name).to_bytes(KEY_LENGTH, "big") + name
