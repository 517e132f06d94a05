"""What tables that are joined emit: how the row of a key has changed."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from operators.base import Batch, Key, Keys

K = TypeVar("K")
R = TypeVar("R")

Row = tuple[Any, int | None, int | None]
"""A row, with the timestamp and the stamp of the record that it came with."""


class Change(msgspec.Struct, Generic[K, R], frozen=True):
    """The row of a key in a table before and after something has changed it; None where there is none.

    >>> Change("AA", None, 7)
    Change(key='AA', old=None, new=7)
    """

    key: K
    old: R | None
    new: R | None


def row_of(value: Any, is_change: bool) -> Any:
    """Return the row that a message leaves its key with, None where it has none any more."""
    return value.new if is_change else value


def columns_of(batch: Batch) -> tuple[list[Any], list[Any], list[Any]]:
    """Return keys, timestamps and stamps of a batch, with None for what it does not carry."""
    none = [None] * len(batch)
    return batch.keys or none, batch.timestamps or none, batch.stamps or none


class Changes:
    """Changes while they are gathered; one that leaves its key without a row, as it was, is none."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._rows: list[tuple[Change[Any, Any], Key, int | None, int | None]] = []

    def add(self, key: Key, old: Any, new: Any, *sides: Row | None) -> None:
        """Add what became of a key: the later of its sides' times is that of the change."""
        if old is not None or new is not None:
            timestamps, stamps = ([side[place] for side in sides if side is not None] for place in (1, 2))
            change = Change(self._keys.decode(key), old, new)
            self._rows.append((change, key, _latest(timestamps), _latest(stamps)))

    def batch(self) -> Batch | None:
        """Return the changes as rows, None where there are none."""
        if not self._rows:
            return None
        values, keys, timestamps, stamps = map(list, zip(*self._rows, strict=True))
        return Batch(values, keys, *(None if None in column else column for column in (timestamps, stamps)))


def _latest(times: list[int | None]) -> int | None:
    return max((time for time in times if time is not None), default=None)
