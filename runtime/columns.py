"""Rows that lie in columns, and are made one by one only where something asks for them so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload


class Columns(Sequence[bytes]):
    """Rows from `first` on of a source: a table of some columns, of which a slice costs nothing, and rows as stored."""

    def __init__(self, table: Any, first: int, rows: Callable[[int, int], list[bytes]]) -> None:
        self.table = table
        self._first = first
        self._rows = rows

    def __len__(self) -> int:
        return len(self.table)

    @overload
    def __getitem__(self, place: int) -> bytes: ...
    @overload
    def __getitem__(self, place: slice) -> Columns: ...
    def __getitem__(self, place: int | slice) -> bytes | Columns:
        if isinstance(place, int):
            return self.rows()[place]
        start, stop, _ = place.indices(len(self))
        return Columns(self.table[start:stop], self._first + start, self._rows)

    def rows(self) -> list[bytes]:
        """Return the rows as they are stored."""
        return self._rows(self._first, len(self))
