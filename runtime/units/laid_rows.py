"""The rows of a table as a worker lays them down: one file for each group of them, and a report of each file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from runtime.model.errors import SamzaError
from runtime.systems.files.parquet import json_rows, json_values
from runtime.systems.files.table_files import OFFSET, OWN
from runtime.units.carried_error import carried

GROUP = "samza_dsl_group"
"""The column that says to which file a row goes; all rows of a group come to one task, one behind the other.

Where it is absent, all rows of a task are one group, which has its number.
"""
TEXT = "value"
"""The only other column where rows are lines of text."""
REPORT = "group string, file string, rows bigint, first bigint, last bigint"
REPORT_SCHEMA = pa.schema(
    [("group", pa.string()), ("file", pa.string()), *((name, pa.int64()) for name in ("rows", "first", "last"))]
)
ROWS_AT_ONCE = 1 << 17
BYTES_AT_ONCE = 1 << 26
"""The most that a row group has of rows, or about so many bytes of memory."""


@dataclass(frozen=True)
class Laying:
    """The place where rows are laid down: as Parquet, or as lines of files with a suffix.

    Lines are what rows have as text; where `as_json` says so, JSON of whole rows, or of their only values. With
    `offsets` a column says where each row lay in its stream, which must rise.
    """

    directory: Path
    name: str
    suffix: str = ".parquet"
    offsets: bool = False
    as_json: Literal["rows", "values"] | None = None

    def lines(self, rows: pa.RecordBatch) -> list[bytes]:
        """Return rows as lines."""
        if self.as_json is None:
            # As bytes: a line need not be UTF-8, which its reader tells of.
            return cast("list[bytes]", rows.column(TEXT).cast(pa.binary()).to_pylist())
        return json_rows({}, in_utc(rows)) if self.as_json == "rows" else json_values(in_utc(rows))


@dataclass
class LaidRows:
    """A file that a worker has written: of which group, how many rows, and the first and last of their offsets."""

    group: str
    file: str
    rows: int = 0
    first: int | None = None
    last: int | None = None


def lay_down(laying: Laying, task: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the rows of a task to files of this attempt, and yield the reports of these."""
    with carried():
        done: list[LaidRows] = []
        part: _Part | None = None
        for batch in batches:
            for group, rows in _runs(with_offsets(batch), str(task)):
                if group is None:
                    raise SamzaError(f"{laying.name}: a row has no _partition; give each a number, or drop the column")
                if part is None or part.said.group != group:
                    if part is not None:
                        done.append(part.ended())
                    part = _Part(laying, group)
                part.take(rows)
        if part is not None:
            done.append(part.ended())
        columns = [[getattr(one, name) for one in done] for name in REPORT_SCHEMA.names]
        yield pa.record_batch(columns, schema=REPORT_SCHEMA)


class _Part:
    """One file while it is written, of one attempt alone: what is not reported is none of the table."""

    def __init__(self, laying: Laying, group: str) -> None:
        self._laying = laying
        self.said = LaidRows(group, str(laying.directory / f"{uuid4().hex}{laying.suffix}"))
        self._pending: list[pa.RecordBatch] = []
        self._parquet: pq.ParquetWriter | None = None

    def take(self, rows: pa.RecordBatch) -> None:
        if self._laying.offsets:
            self._check(rows.column(OWN[OFFSET]))
        self.said.rows += len(rows)
        self._pending.append(rows)
        full = sum(map(len, self._pending)) >= ROWS_AT_ONCE
        if full or sum(one.nbytes for one in self._pending) >= BYTES_AT_ONCE:
            self._write()

    def ended(self) -> LaidRows:
        """Write what is left, and return what there is."""
        self._write()
        if self._parquet is not None:
            self._parquet.close()
        return self.said

    def _write(self) -> None:
        pending, self._pending = self._pending, []
        if self._laying.suffix == ".parquet":
            rows = pa.Table.from_batches(map(in_utc, pending)) if pending else None
            if rows is not None:
                self._parquet = self._parquet or pq.ParquetWriter(self.said.file, rows.schema)
                self._parquet.write_table(rows, row_group_size=ROWS_AT_ONCE)
            return
        with open(self.said.file, "ab") as file:
            for rows in pending:
                file.write(b"\n".join([*self._laying.lines(rows), b""]))
            if self._laying.as_json is not None:
                # It is read once Spark has forgotten the rows.
                file.flush()
                os.fsync(file.fileno())

    def _check(self, offsets: pa.Array) -> None:
        if offsets.null_count:
            raise SamzaError(f"{self._laying.name}: a row has no {OFFSET}; give each a number, or drop the column")
        offsets = offsets.cast(pa.int64())
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        rise = pc.all(pc.greater(offsets[1:], offsets[:-1])).as_py() in (True, None)
        if not rise or (self.said.last is not None and first <= self.said.last):
            raise SamzaError(
                f"{self._laying.name}: two rows of partition {self.said.group} have the same {OFFSET}; a record has an "
                "offset of its own: drop what is there twice"
            )
        self.said.first = first if self.said.first is None else self.said.first
        self.said.last = last


def _runs(batch: pa.RecordBatch, task: str) -> Iterator[tuple[str | None, pa.RecordBatch]]:
    """Yield the stretches of rows that are of one group, without the column that says so."""
    if not len(batch):
        return
    if GROUP not in batch.schema.names:
        yield task, batch
        return
    at = batch.schema.names.index(GROUP)
    runs, rows, start = pc.run_end_encode(batch.column(at)), batch.remove_column(at), 0
    for end, group in zip(runs.run_ends.to_pylist(), runs.values.to_pylist(), strict=True):
        yield group, rows.slice(start, end - start)
        start = end


def with_offsets(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows as Spark has sent them, with the offset that an array of no lists has, too.

    Spark before 4.2 sends none (Arrow's Java before 19), as of lists of lists of which all are empty or null. Arrow
    reads it all the same, beyond what was sent, even to tell the size of rows: a worker may die of it.
    """
    return pa.RecordBatch.from_arrays([*map(_with_offsets, rows.columns)], schema=rows.schema)


def _with_offsets(array: pa.Array) -> pa.Array:
    kind = array.type
    if not len(array):
        return pa.array([], kind)
    if pa.types.is_struct(kind):
        within = [_with_offsets(array.field(place)) for place in range(kind.num_fields)]
        return pa.StructArray.from_arrays(within, fields=[*kind], mask=array.is_null() if array.null_count else None)
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        own, within = array.buffers()[:2], [_with_offsets(array.values)]
        return pa.Array.from_buffers(kind, len(array), own, offset=array.offset, children=within)
    return array


def in_utc(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows whose points in time are told in UTC, whatever the time zone of the session.

    No column says that it has no nulls: Arrow refuses to write one that lies in a list, map or struct that has.
    """
    schema = pa.schema([(one.name, _utc(one.type)) for one in rows.schema])
    return rows if rows.schema == schema else rows.cast(schema)


def _utc(kind: pa.DataType) -> pa.DataType:
    """Return the type of a column whose points in time are told in UTC, and which may have nulls at any depth."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp(kind.unit, kind.tz and "UTC")
    if pa.types.is_list(kind):
        return pa.list_(_utc(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_utc(kind.key_type), _utc(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([(one.name, _utc(one.type)) for one in kind])
    return kind
