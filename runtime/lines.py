"""Values that were encoded together, as what a file of lines takes."""

from __future__ import annotations

from typing import Any


class Lines(bytes):
    """Some rows, each on a line of its own; behind the last one there is no line break."""

    rows: int

    @classmethod
    def of(cls, rows: int, data: bytes) -> Lines:
        """Return the lines of so many rows, given with a line break behind each."""
        found = cls(data[:-1])
        found.rows = rows
        return found


def rows_in(value: Any) -> int:
    """Return how many rows there are in what stands for one or for several."""
    return value.rows if type(value) is Lines else 1
