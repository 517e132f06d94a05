"""Rows of a source that lie in columns, and become single rows only when something asks for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, overload, runtime_checkable

import msgspec

from operators.core.protocols import CheckedProtocol

if TYPE_CHECKING:
    import pyarrow as pa

ARRAY = b"\xdd"
"""The first byte of an array in MessagePack whose length takes four."""
_rows_of = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


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


class AlikeRecords(Sequence[bytes]):
    """Stored records that begin with the same bytes, which tell their class; what follows lies in one array for many.

    The arrays are those of MessagePack with a length of four bytes, as `joined` makes them.
    """

    def __init__(self, start: bytes, arrays: list[bytes]) -> None:
        self.start, self.arrays = start, arrays
        self._stored: list[bytes] | None = None

    @staticmethod
    def joined(start: bytes, rows: Sequence[bytes]) -> bytes:
        """Return what follows the start of each row as one array."""
        skipped = len(start)
        return ARRAY + len(rows).to_bytes(4, "big") + b"".join([row[skipped:] for row in rows])

    def __len__(self) -> int:
        return sum(int.from_bytes(array[1:5], "big") for array in self.arrays)

    @overload
    def __getitem__(self, place: int) -> bytes: ...
    @overload
    def __getitem__(self, place: slice) -> list[bytes]: ...
    def __getitem__(self, place: int | slice) -> bytes | list[bytes]:
        return self.rows()[place]

    def extend(self, others: AlikeRecords) -> None:
        """Put others that begin with the same bytes behind these."""
        assert self.start == others.start, "records that begin with other bytes are of another class"
        self.arrays, self._stored = [*self.arrays, *others.arrays], None

    def rows(self) -> list[bytes]:
        """Return the rows as they are stored."""
        if self._stored is None:
            self._stored = [self.start + bytes(row) for array in self.arrays for row in _rows_of(array)]
        return self._stored


@runtime_checkable
class TableSerde(Protocol, metaclass=CheckedProtocol):
    """A serde that makes values of columns, and not of each row's bytes, where that comes to the same."""

    def decode_table(self, columns: Columns, /) -> list[object]:
        """Return the values of all rows."""
