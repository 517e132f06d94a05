"""Parquet read as columns, where these hold what a declared type says; only this module says when they do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import inspect

from operators.core.base import Batch
from planner.columnar.terms import Term
from runtime.encoding.columns import SureColumns, WholeColumns
from runtime.ports.streams import Offsets, Read
from runtime.systems.files.folders import typed
from runtime.systems.files.parquet import ParquetSource, RowFile
from runtime.systems.files.places.locations import DataFile
from runtime.systems.files.plain_columns import type_of
from runtime.systems.files.record_files import check_not_beyond

ROWS_AT_ONCE = 1 << 16


class ColumnsOfParquet(ParquetSource):
    """A bounded input of Parquet whose rows come as some columns, where all `fields` are sure to be read.

    `needed` are the names of these columns, which are `whole` where a record may be made of them. Rows of other files
    come as rows.
    """

    def __init__(
        self, files: Sequence[DataFile], fields: Sequence[Term], needed: Sequence[str], whole: bool = False
    ) -> None:
        super().__init__(files)
        self._kind_of_columns = WholeColumns if whole else SureColumns
        self._columns = [self._file(file, number, fields, needed) for number, file in enumerate(files)]

    def offsets(self, partition: int) -> Offsets:
        """Return the readable range, which the footer says of the file that is open."""
        columns = self._columns[partition]
        return super().offsets(partition) if columns is None else Offsets(0, columns.count(), ended=True)

    def read(self, partition: int, offset: int, max_records: int = 10_000) -> Read | None:
        """Return rows from `offset` on, more where they come as columns; None at the end, and `Damaged` beyond it."""
        columns = self._columns[partition]
        if columns is None:
            return super().read(partition, offset, max_records)
        table = columns.read(offset, ROWS_AT_ONCE)
        if not len(table):
            check_not_beyond(offset, columns.count(), columns.path)
            return None
        end = offset + len(table)
        values = cast("list[object]", self._kind_of_columns(table, offset, partial(self._rows, partition)))
        return Read(Batch(values, offsets=range(offset, end)), None, end)

    def close(self) -> None:
        super().close()
        for file in self._columns:
            if file is not None:
                file.close()

    def _file(self, file: DataFile, partition: int, fields: Sequence[Term], needed: Sequence[str]) -> RowFile | None:
        """Return a file as columns, where these and the fields of its folders hold what is declared."""
        said, given, own = self.folders.values(partition), dict[str, pa.Scalar](), []
        for field in fields:
            name = str(field.parts[0])
            if name not in said:
                own.append(field)
            elif (scalar := _scalar(said[name], field)) is not None:
                given[name] = scalar
            else:
                return None
        # Without a column of its own a batch would not say how many rows it has.
        columns = [name for name in needed if name not in given] or [str(field.parts[0]) for field in own[:1]]
        if not columns:
            return None
        # It stays open for who reads the rows: of small files to open one takes as long as all else.
        found = RowFile(file.path, ROWS_AT_ONCE, columns, partial(_with, given, list(needed)))
        if not holds(found.opened(), own):
            found.close()
            return None
        if said and not partition:
            self.folders.told_of(partition, found.opened().schema_arrow.names)
        return found


def holds(file: pq.ParquetFile, fields: Sequence[Term]) -> bool:
    """Whether each row of a file is sure to be a record of these fields, whatever it holds."""
    schema, metadata = file.schema_arrow, file.metadata
    names = schema.names
    if len(set(names)) < len(names) or len(names) != metadata.num_columns:
        return False
    types = dict(zip(names, map(type_of, schema.types), strict=True))
    known = {str(field.parts[0]): field for field in fields}
    if None in types.values() or not known.keys() <= types.keys():
        return False
    # An int column may stand for floats, as msgspec takes ints there, too; nothing else is converted.
    fits = all(types[name] in ({"float", "int"} if one.type == "float" else {one.type}) for name, one in known.items())
    return fits and all(_is_full(metadata, names.index(name)) for name, one in known.items() if not one.optional)


def _is_full(metadata: pq.FileMetaData, column: int) -> bool:
    """Whether no row lacks a value, as the file says."""
    for group in range(metadata.num_row_groups):
        statistics = metadata.row_group(group).column(column).statistics
        if statistics is None or not statistics.has_null_count or statistics.null_count:
            return False
    return True


_KINDS = {"int": inspect.IntType(), "float": inspect.FloatType(), "str": inspect.StrType(), "bool": inspect.BoolType()}
_ARROW = {"int": pa.int64(), "float": pa.float64(), "str": pa.string(), "bool": pa.bool_()}


def _scalar(said: object, field: Term) -> pa.Scalar | None:
    """Return what a folder says of a field as the field's type has it; None where it is not of that type."""
    if said is None:
        return pa.scalar(None, _ARROW[field.type]) if field.optional else None
    try:
        return pa.scalar(typed(str(said), _KINDS[field.type]), _ARROW[field.type])
    except pa.ArrowException:
        return None


def _with(given: Mapping[str, pa.Scalar], needed: list[str], batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the columns that are needed, with those that are the same in all rows of a file."""
    if not given:
        return batch
    return pa.RecordBatch.from_arrays(
        [pa.repeat(given[name], len(batch)) if name in given else batch.column(name) for name in needed], names=needed
    )
