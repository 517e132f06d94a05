"""The changes that joins of tables emit: the row of a key before and after."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from operators.core.base import Batch, Form, Key, Keys, Store
from operators.state.keyed_state import Encoded, loaded

K = TypeVar("K")
R = TypeVar("R")

Row = tuple[object, int | None, int | None]
"""A row, with the timestamp and the stamp of the record that it came with."""


class Change(msgspec.Struct, Generic[K, R], frozen=True):
    """The row of a key in a table before and after something has changed it; None where there is none.

    >>> Change("AA", None, 7)
    Change(key='AA', old=None, new=7)
    """

    key: K
    old: R | None
    new: R | None


def row_of(value: Any, is_change: bool) -> object:
    """Return the row that a key has after a message; None if it has none any more."""
    return value.new if is_change else value


class KeptRows:
    """The rows of both sides in a store, of each side in its declared form, if it has one."""

    def __init__(self, store: Store, forms: tuple[Form | None, Form | None] = (None, None)) -> None:
        self._store = store
        self.forms = forms

    def get(self, side: int, place: bytes) -> Row | None:
        """Return the row at a place of a side."""
        found: Row | None = self._store.get(place)
        if found is None or (type(found[0]) is not Encoded and self.forms[side] is None):
            return found
        return loaded(self.forms[side], found[0]), *found[1:]

    def keep(self, side: int, place: bytes, row: Row) -> None:
        """Put a row at a place of a side; a row of None removes what is there."""
        if row[0] is None:
            self._store.delete(place)
        else:
            form = self.forms[side]
            self._store.put(place, row if form is None else (form.dump(row[0]), *row[1:]))


def columns_of(batch: Batch) -> tuple[list[Any], Sequence[int | None], Sequence[int | None]]:
    """Return the keys, timestamps and stamps of a batch, with Nones for columns that it does not carry."""
    none = [None] * len(batch)
    return batch.keys or none, batch.timestamps or none, batch.stamps or none


class Changes:
    """Gathers changes; a key that had no row and has none after it is no change."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._rows: list[tuple[Change[object, object], Key, int | None, int | None]] = []

    def add(self, key: Key, old: object, new: object, *sides: Row | None) -> None:
        """Add the change of a key, whose time is the later of its sides' times."""
        if old is not None or new is not None:
            there = [side for side in sides if side is not None]
            change = Change(self._keys.decode(key), old, new)
            self._rows.append((change, key, _latest(side[1] for side in there), _latest(side[2] for side in there)))

    def batch(self) -> Batch | None:
        """Return the changes as rows, None where there are none."""
        if not self._rows:
            return None
        values, keys, timestamps, stamps = map(list, zip(*self._rows, strict=True))
        return Batch(values, keys, *(None if None in column else column for column in (timestamps, stamps)))


def _latest(times: Iterable[int | None]) -> int | None:
    return max((time for time in times if time is not None), default=None)
