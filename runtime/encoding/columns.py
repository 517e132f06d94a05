"""Rows of a source that lie in columns, and become single rows only when something asks for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    import pyarrow as pa


class Columns(Sequence[bytes]):
    """The rows of a source from `first` on: a table of some columns, whose slices cost nothing, and the stored rows."""

    def __init__(self, table: pa.Table, first: int, rows: Callable[[int, int], list[bytes]]) -> None:
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
        start, stop, step = place.indices(len(self))
        # The rows are read from `first` on, one after the other; nothing else could be asked of the source later.
        assert step == 1, "only neighbouring rows are a slice"
        return Columns(self.table[start:stop], self._first + start, self._rows)

    def rows(self) -> list[bytes]:
        """Return the rows as they are stored."""
        found = self._rows(self._first, len(self))
        assert len(found) == len(self), "the table and the stored rows are of other lengths"
        return found
