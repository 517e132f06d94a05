"""The lines of a file as one value: rows that were encoded together, and JSON objects that are not cut apart."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from functools import cached_property
from typing import cast, overload

NULL = b"null"
"""The line of a value that is None."""


class Lines(bytes):
    """Some rows, each on a line of its own; behind the last one there is no line break."""

    rows: int

    @classmethod
    def of(cls, rows: int, data: bytes) -> Lines:
        """Return the lines of so many rows, given with a line break behind each."""
        assert not rows or data.endswith(b"\n"), "the last row has no line break behind it"
        found = cls(data[:-1])
        found.rows = rows
        return found


def rows_in(value: object) -> int:
    """Return how many rows there are in what stands for one or for several: lines, or what has rows in columns."""
    if type(value) is Lines:
        return value.rows
    return 1 if value is None or isinstance(value, bytes) else len(cast("Sized", value))


class ObjectLines(Sequence[bytes]):
    r"""Lines that each look like a JSON object; they are cut apart only when one of them is asked for.

    >>> lines = ObjectLines.of(b'{"a": 1}\n{"a": {}}')
    >>> len(lines), lines[1]
    (2, b'{"a": {}}')
    >>> ObjectLines.of(b'{"a": 1}\n[2]') is None
    True
    """

    def __init__(self, data: bytes, rows: int) -> None:
        self.data = data
        self._rows = rows

    @classmethod
    def of(cls, data: bytes) -> ObjectLines | None:
        """Return the lines of `data` if each begins with the same field and ends with `}`; None if one does not."""
        # These three looks run in C over a whole block, and no line is cut out for them. No JSON value goes on from `}`
        # to `{`, so if decoding finds as many values as there are lines, one lies on each line.
        first = data[: data.find(b":") + 1]
        if not first.startswith(b'{"') or not data.endswith(b"}") or not data.startswith(first, data.rfind(b"\n") + 1):
            return None
        rows = data.count(b"\n") + 1
        return cls(data, rows) if data.count(b"}\n" + first) == rows - 1 else None

    def __len__(self) -> int:
        return self._rows

    @overload
    def __getitem__(self, place: int) -> bytes: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[bytes]: ...
    def __getitem__(self, place: int | slice) -> bytes | Sequence[bytes]:
        if isinstance(place, slice) and place.indices(self._rows) == (0, self._rows, 1):
            return self
        return self.rows[place]

    @cached_property
    def rows(self) -> list[bytes]:
        """The lines, one by one."""
        found = self.data.split(b"\n")
        assert len(found) == self._rows, "lines were counted otherwise than they are cut"
        return found
