"""The offer of a reader: rows with their columns, as they were stored, and those that could not be read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from operators.core.base import Batch
from runtime.encoding.ownership import are_unchangeable
from runtime.model.errors import NO_RECORDS_FAULT
from runtime.ports.streams import Control
from runtime.reading.folding import Folded
from runtime.reading.relay import Relayed


@dataclass(frozen=True)
class Malformed:
    """A record that could not be read: its raw row, why, and which part of it: its value, key or timestamp."""

    row: Batch
    error: Exception
    part: str

    @property
    def offset(self) -> int:
        """Its offset in its partition, -1 where it has none."""
        return self.row.offsets[0] if self.row.offsets is not None else -1


@dataclass(frozen=True)
class Taken:
    """The offer of a reader: the readable rows, the same rows as they were stored, and those that are malformed.

    `next_offset`, `watermark` and `control` are what the reader goes on with once all of it was accepted. Where it was
    `folded`, the batch has values only.
    """

    batch: Batch
    raw: Any
    malformed: list[Malformed]
    next_offset: int
    watermark: int
    control: Control | None = None
    folded: Folded | None = None
    dropped: Mapping[str, int] = field(default_factory=dict)
    """How many rows filters have dropped already, by filter."""


def after(taken: Taken, part: str, step: Callable[[Batch], dict[int, Exception]]) -> Taken:
    """Return what is left after reading a part of each record, and with the malformed what could not be read."""
    errors = step(taken.batch)
    if not errors:
        return taken
    malformed = [*taken.malformed, *(Malformed(taken.raw.row(row), error, part) for row, error in errors.items())]
    readable = [row for row in range(len(taken.batch)) if row not in errors]
    return replace(taken, batch=taken.batch.take(readable), raw=taken.raw.take(readable), malformed=malformed)


def column_of(make: Callable[[list[Any]], list[Any]], values: list[Any]) -> tuple[list[Any], dict[int, Exception]]:
    """Make a column of `values` at once; where that fails, row by row, with the errors of the rows that fail."""
    try:
        # The whole column at once is the hot path: nothing is guarded per record, and only a column that fails
        # is done again row by row, to find which rows those are.
        return make(values), {}
    except NO_RECORDS_FAULT:
        raise
    except Exception:
        column: list[Any] = []
        errors: dict[int, Exception] = {}
        for row, value in enumerate(values):
            try:
                column += make([value])
            except NO_RECORDS_FAULT:
                raise
            except Exception as error:
                column.append(None)
                errors[row] = error
        return column, errors


def values_anew(
    batch: Batch, raw: Batch | Relayed, rows: range, decode: Callable[[Batch], dict[int, Exception]]
) -> list[Any]:
    """Return the values of rows as they were read; those that nobody can change, or without bytes, as they are."""
    values = batch.values[rows.start : rows.stop]
    if are_unchangeable(values):
        return values
    if isinstance(raw, Relayed):
        return raw.read(rows)
    again = Batch(raw.values[rows.start : rows.stop])
    return values if decode(again) else again.values
