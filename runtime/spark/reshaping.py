"""Filters and maps at work over Arrow columns, from an input that lies in columns to an output that does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from operators.base import EARLIEST_MS, LATEST_MS, Batch
from planner.columns import Term
from planner.reshaping import Reshaped
from runtime.folding import Folded
from runtime.spark.columnar import TYPES, Unusual, column, optional_column


class ColumnarReshaping:
    """Reads, filters and maps a source partition's batches. It changes nothing: what it returns takes effect later."""

    def __init__(self, how: Reshaped, counted: Sequence[str]) -> None:
        self._how, self._counted = how, counted

    def run(self, table: pa.RecordBatch, watermark: int, disorder_ms: int) -> Folded | None:
        """Return what a batch comes to; None where anything is not as in most batches."""
        try:
            return self._run(table, watermark)
        except (pa.ArrowException, Unusual):
            return None

    def _run(self, table: pa.RecordBatch, watermark: int) -> Folded:
        how, number = self._how, len(table)
        if how.timestamp is not None and number:
            lowest, highest = pc.min_max(column(how.timestamp, table)).values()
            if lowest.as_py() < EARLIEST_MS or highest.as_py() > LATEST_MS:
                raise Unusual
        dropped = {}
        for step in how.steps:
            if step.condition is None:
                table = _table((name, term, _evaluated(term, table)) for name, term in step.made)
                continue
            kept = column(step.condition, table)
            dropped[step.id] = len(table) - (pc.sum(kept).as_py() or 0)
            if dropped[step.id]:
                table = table.filter(kept)
        written = _table((str(one.parts[0]), one, _evaluated(one, table)) for one in how.written)
        return Folded(number, [(how.exit, written, Batch([]))], watermark, [dropped[id] for id in self._counted])


def _evaluated(term: Term, table: pa.RecordBatch) -> pa.Array:
    return optional_column(term, table) if term.optional else column(term, table)


def _table(columns: Any) -> pa.RecordBatch:
    """Return columns of which the types are those that their terms say."""
    names, terms, arrays = zip(*columns, strict=True)
    schema = pa.schema([(name, TYPES[term.type]) for name, term in zip(names, terms, strict=True)])
    return pa.RecordBatch.from_arrays([*arrays], schema=schema)
