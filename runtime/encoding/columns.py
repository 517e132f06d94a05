"""Rows of a source that lie in columns, and become single rows only when something asks for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, overload, runtime_checkable

from operators.core.protocols import CheckedProtocol

if TYPE_CHECKING:
    import pyarrow as pa


class Columns(Sequence[bytes]):
    """The rows of a source from `first` on: a table of columns, whose slices cost nothing, and the stored rows."""

    def __init__(self, table: pa.Table, first: int, rows: Callable[[int, int], list[bytes]]) -> None:
        self.table = table
        self._first = first
        self._rows = rows
        self._stored: list[bytes] | None = None

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
        return type(self)(self.table[start:stop], self._first + start, self._rows)

    def rows(self) -> list[bytes]:
        """Return the rows as they are stored."""
        if self._stored is None:
            self._stored = self._rows(self._first, len(self))
            assert len(self._stored) == len(self), "the table and the stored rows are of other lengths"
        return self._stored


class SureColumns(Columns):
    """Columns that are sure to hold what is declared, whatever the rows: they are computed on as they are."""

    is_whole = False
    """Whether a record may be made of them, and not of its stored row alone."""

    def others(self) -> Columns | list[bytes]:
        """Return them as whoever computes nothing on columns reads them."""
        return Columns(self.table, self._first, self._rows) if self.is_whole else self.rows()


class WholeColumns(SureColumns):
    """The same, with all that a record has."""

    is_whole = True


class ChosenColumns(Columns):
    """Some rows of columns, of which only the stored ones are ever asked for."""

    def __init__(self, columns: Columns, places: Sequence[int]) -> None:
        super().__init__(columns.table, 0, self._chosen)
        self._of, self._places = columns, places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, place: int | slice) -> bytes | Columns:  # type: ignore[override]
        if isinstance(place, int):
            return self.rows()[place]
        return ChosenColumns(self._of, self._places[place])

    def _chosen(self, first: int, number: int) -> list[bytes]:
        assert (first, number) == (0, len(self)), "they are cut by their places"
        rows = self._of.rows()
        return [rows[place] for place in self._places]


@runtime_checkable
class TableSerde(Protocol, metaclass=CheckedProtocol):
    """A serde that makes values of columns, and not of each row's bytes, where that comes to the same."""

    def decode_table(self, columns: Columns, /) -> list[object]:
        """Return the values of all rows."""
