"""Parquet read as columns, where these hold what a declared type says; only this module says when they do."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq

from operators.core.base import Batch
from planner.columnar.terms import Term
from runtime.encoding.columns import Columns
from runtime.ports.streams import Read
from runtime.systems.files.parquet import ParquetSource, RowFile

ROWS_AT_ONCE = 1 << 16


class ColumnsOfParquet(ParquetSource):
    """A bounded input of Parquet whose rows come as some columns, where all `fields` are sure to be read.

    `needed` are the names of these columns. Rows of other files come as rows.
    """

    def __init__(self, paths: Sequence[Path], fields: Sequence[Term], needed: Sequence[str]) -> None:
        super().__init__(paths)
        self._columns = [
            RowFile(path, ROWS_AT_ONCE, list(needed), _itself) if holds(path, fields) else None for path in paths
        ]

    def read(self, partition: int, offset: int, max_records: int = 10_000) -> Read | None:
        """Return rows from `offset` on, more where they come as columns; None at the end, and `Damaged` beyond it."""
        columns = self._columns[partition]
        table = columns.read(offset, ROWS_AT_ONCE) if columns is not None else ()
        if not len(table):
            return super().read(partition, offset, max_records)
        end = offset + len(table)
        values = cast("list[object]", Columns(table, offset, partial(self._rows, partition)))
        return Read(Batch(values, offsets=range(offset, end)), None, end)

    def close(self) -> None:
        super().close()
        for file in self._columns:
            if file is not None:
                file.close()

    def _rows(self, partition: int, first: int, number: int) -> list[bytes]:
        found: list[bytes] = []
        while len(found) < number:
            found += self._files[partition].read(first + len(found), number - len(found))
        return found


def holds(path: Path, fields: Sequence[Term]) -> bool:
    """Whether each row of a file is sure to be a record of these fields, whatever it holds."""
    with pq.ParquetFile(path) as file:
        schema, metadata = file.schema_arrow, file.metadata
    names = schema.names
    if len(set(names)) < len(names) or len(names) != metadata.num_columns:
        return False
    types = dict(zip(names, map(_type_of, schema.types), strict=True))
    known = {str(field.parts[0]): field for field in fields}
    if None in types.values() or not known.keys() <= types.keys():
        return False
    # An int column may stand for floats, as msgspec takes ints there, too; nothing else is converted.
    fits = all(types[name] in ({"float", "int"} if one.type == "float" else {one.type}) for name, one in known.items())
    return fits and all(_is_full(metadata, names.index(name)) for name, one in known.items() if not one.optional)


def _type_of(kind: pa.DataType) -> str | None:
    """Return what Python reads of a column, where that is plain."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_integer(kind):
        return "int"
    if pa.types.is_floating(kind):
        return "float"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "str"
    return "bool" if pa.types.is_boolean(kind) else None


def _is_full(metadata: pq.FileMetaData, column: int) -> bool:
    """Whether no row lacks a value, as the file says."""
    for group in range(metadata.num_row_groups):
        statistics = metadata.row_group(group).column(column).statistics
        if statistics is None or not statistics.has_null_count or statistics.null_count:
            return False
    return True


def _itself(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch
