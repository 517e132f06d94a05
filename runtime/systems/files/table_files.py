"""Rows of a table as Spark's workers have laid them down in Parquet: with offsets of their own, or plain values."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple, cast

import pyarrow as pa
import pyarrow.parquet as pq

from operators.core.base import Batch, Serde
from runtime.encoding.columns import Columns
from runtime.encoding.serdes import Bytes
from runtime.ports.streams import Offsets, Read
from runtime.systems.files.jsonl import json_of
from runtime.systems.files.parquet import LaxJson, ParquetSource, RowFile, json_values, open_parquet
from runtime.systems.files.places.locations import DataFile
from runtime.systems.files.record_files import check_not_beyond

PARTITION = "_partition"
OFFSET = "_offset"
"""The columns that say where a row lay in a stream, as those of an archive do."""


class PlainRows(ParquetSource):
    """A bounded input of Parquet of one column, whose values are the records."""

    name = "values"

    def __init__(self, files: Sequence[DataFile]) -> None:
        super().__init__(files)
        self._files = [RowFile(file.path, made=json_values) for file in files]

    def read(self, partition: int, offset: int, max_records: int = 10_000) -> Read | None:
        """Return values from `offset` on; None at the end, and `Damaged` beyond it."""
        found = super().read(partition, offset, max_records)
        if found is not None:
            columns = cast("Columns", found.batch.values)
            found.batch.values = [*columns.rows()]
        return found

    def serde(self, declared: Serde) -> Serde:
        """Return lax JSON of the declared type; a serde of the user's own reads the JSON itself."""
        if isinstance(declared, Bytes):
            return LaxJson(bytes)
        found = json_of(declared)
        return declared if found is None else LaxJson(found.type)


class OffsetRows(ParquetSource):
    """A bounded input of Parquet whose rows have the offsets that they say, which rise in each file."""

    name = "table"

    def __init__(self, files: Sequence[DataFile]) -> None:
        super().__init__(files)
        self._next: dict[int, tuple[int, int]] = {}
        """By partition, the offset behind the last read, and the row that has it or a later one."""

    def offsets(self, partition: int) -> Offsets:
        """Return the range from the first row's offset on, up to that behind the last one's."""
        groups = self._groups(partition)
        return Offsets(groups[0].least, groups[-1].most + 1, ended=True) if groups else Offsets(0, 0, ended=True)

    def read(self, partition: int, offset: int, max_records: int = 10_000) -> Read | None:
        """Return rows whose offsets are not below `offset`; None at the end, and `Damaged` beyond it."""
        file = self._files[partition]
        expected, row = self._next.get(partition, (None, 0))
        if expected != offset:
            row = self._row(partition, offset)
        table: pa.RecordBatch = self._tables[partition].read(row, max_records)
        if not len(table):
            check_not_beyond(offset, self.offsets(partition).end, file.path)
            return None
        offsets: list[int] = table.column(OFFSET).to_pylist()
        end = offsets[-1] + 1
        self._next[partition] = (end, row + len(table))
        values = cast("list[object]", Columns(table, row, partial(self._rows, partition)))
        return Read(Batch(values, offsets=offsets), None, end)

    def _row(self, partition: int, offset: int) -> int:
        """Return the number of the first row whose offset is not below another."""
        groups = self._groups(partition)
        at = bisect_left(groups, offset, key=lambda group: group.most)
        start = sum(group.rows for group in groups[:at])
        if at == len(groups):
            return start
        with open_parquet(self._files[partition].path) as file:
            return start + bisect_left(file.read_row_group(groups[at].number, [OFFSET])[OFFSET].to_pylist(), offset)

    def _groups(self, partition: int) -> list[RowGroup]:
        """Return the row groups of a file that have rows, with their least and greatest offsets, as its footer says."""
        with open_parquet(self._files[partition].path) as file:
            groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
        found = []
        for number, group in enumerate(groups):
            if group.num_rows:
                told = next(one for one in _columns(group) if one.path_in_schema == OFFSET).statistics
                found.append(RowGroup(number, group.num_rows, told.min, told.max))
        return found


class RowGroup(NamedTuple):
    """A part of a file of Parquet, and the offsets between which its rows lie."""

    number: int
    rows: int
    least: int
    most: int


def _columns(group: pq.RowGroupMetaData) -> Iterator[pq.ColumnChunkMetaData]:
    return (group.column(place) for place in range(group.num_columns))
