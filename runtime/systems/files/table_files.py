"""Rows of a table as Spark's workers have laid them down: with what each had in a stream, or plain values."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from operators.core.base import Batch, Serde
from runtime.encoding.columns import Columns
from runtime.encoding.serdes import Bytes
from runtime.encoding.value_types import as_plain, made_of_plain
from runtime.ports.streams import Offsets, Read
from runtime.systems.files.archive import ArchiveRows, read_of
from runtime.systems.files.jsonl import json_of
from runtime.systems.files.parquet import LaxJson, ParquetSource, RowFile, Rows, json_rows, json_values
from runtime.systems.files.places.locations import DataFile
from runtime.systems.files.record_files import check_not_beyond
from runtime.systems.files.schemas import open_parquet

PARTITION = "_partition"
OFFSET = "_offset"
"""The columns that say where a row lay in a stream, as those of an archive do."""
KEY = "_key"
TIMES = ("_timestamp_ms", "_timestamp")
VALUE = "_value"
WATERMARK = "_watermark"
"""The columns that say what else a record had there: its key, its own time, its bytes, and what its producer told."""
OF_ARCHIVE = frozenset({PARTITION, OFFSET, KEY, *TIMES, VALUE, WATERMARK})
OWN = {name: f"samza_dsl{name}" for name in (OFFSET, KEY, TIMES[0], VALUE, WATERMARK)}
"""The names under which they are laid down, where a row's own columns may have the others."""
OWN_TYPES = {OFFSET: pa.int64(), KEY: pa.binary(), TIMES[0]: pa.int64(), VALUE: pa.binary(), WATERMARK: pa.int64()}


class StoredRows(ParquetSource):
    """A bounded input of Parquet whose rows may say what they had in a stream, in the columns `OWN`.

    Their offsets rise in each file; without these a row's number is its offset. Without bytes of its own a row is its
    other columns.
    """

    name = "table"

    def __init__(self, files: Sequence[DataFile]) -> None:
        super().__init__(files)
        self._files = [RowFile(file.path, made=partial(self._json, number)) for number, file in enumerate(files)]
        self._next: dict[int, tuple[int, int]] = {}
        """By partition, the offset behind the last read, and the row that has it or a later one."""
        self._known: dict[int, list[str]] = {}

    def offsets(self, partition: int) -> Offsets:
        """Return the range from the first row's offset on, up to that behind the last one's."""
        if not self._has_offsets(partition):
            return super().offsets(partition)
        groups = self._groups(partition)
        return Offsets(groups[0].least, groups[-1].most + 1, ended=True) if groups else Offsets(0, 0, ended=True)

    def read(self, partition: int, offset: int, max_records: int = 10_000) -> Read | None:
        """Return rows whose offsets are not below `offset`; None at the end, and `Damaged` beyond it."""
        expected, row = self._next.get(partition, (None, 0))
        if expected != offset:
            row = self._row(partition, offset)
        table: pa.RecordBatch = self._tables[partition].read(row, max_records)
        if not len(table):
            check_not_beyond(offset, self.offsets(partition).end, self._files[partition].path)
            return None
        offsets = cast("list[int]", _told(table, OFFSET) or [*range(row, row + len(table))])
        found = self._read(partition, row, table, offsets)
        self._next[partition] = found.next_offset, row + bisect_left(offsets, found.next_offset)
        return found

    def serde(self, declared: Serde) -> Serde:
        """Return the declared serde where rows are the bytes of a stream; else that of rows."""
        return declared if OWN[VALUE] in self._names(0) else super().serde(declared)

    def stored(self, partition: int, start: int, end: int) -> Iterable[object]:
        """Return nothing of rows that say their own offsets: those of lower ones may be removed, and come again."""
        return () if self._has_offsets(partition) else super().stored(partition, start, end)

    def _json(self, partition: int, batch: pa.RecordBatch) -> Rows:
        return json_rows(self.folders.values(partition), _without_own(batch))

    def _values(self, columns: Columns) -> list[object]:
        return cast("list[object]", columns)

    def _read(self, partition: int, row: int, table: pa.RecordBatch, offsets: list[int]) -> Read:
        """Return rows that begin with that of a number."""
        keys, times, values = _told(table, KEY), _told(table, TIMES[0]), _told(table, VALUE)
        if values is None:
            values = self._values(Columns(_without_own(table), row, partial(self._rows, partition)))
        elif times is not None and (watermarks := _told(table, WATERMARK)) is not None:
            none: list[bytes | None] = [None] * len(table)
            return read_of(ArchiveRows(offsets, times, keys or none, values, watermarks), 0, len(table))
        return Read(Batch(values, keys, times, offsets=offsets), None, offsets[-1] + 1)

    def _row(self, partition: int, offset: int) -> int:
        """Return the number of the first row whose offset is not below another."""
        if not self._has_offsets(partition):
            return offset
        groups = self._groups(partition)
        at = bisect_left(groups, offset, key=lambda group: group.most)
        start = sum(group.rows for group in groups[:at])
        if at == len(groups):
            return start
        with open_parquet(self._files[partition].path) as file:
            column = file.read_row_group(groups[at].number, [OWN[OFFSET]])[OWN[OFFSET]]
        return start + bisect_left(column.to_pylist(), offset)

    def _has_offsets(self, partition: int) -> bool:
        return OWN[OFFSET] in self._names(partition)

    def _names(self, partition: int) -> list[str]:
        """Return the columns of a file, which never changes."""
        if partition not in self._known:
            with open_parquet(self._files[partition].path) as file:
                self._known[partition] = list(file.schema_arrow.names)
        return self._known[partition]

    def _groups(self, partition: int) -> list[RowGroup]:
        """Return the row groups of a file that have rows, with their least and greatest offsets, as its footer says."""
        with open_parquet(self._files[partition].path) as file:
            groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
        found = []
        for number, group in enumerate(groups):
            if group.num_rows:
                told = next(one for one in _columns(group) if one.path_in_schema == OWN[OFFSET]).statistics
                found.append(RowGroup(number, group.num_rows, told.min, told.max))
        return found


class PlainRows(StoredRows):
    """The same of rows of one column, whose values are the records."""

    name = "values"

    def serde(self, declared: Serde) -> Serde:
        """Return lax JSON of the declared type; a serde of the user's own reads the JSON itself."""
        if isinstance(declared, Bytes):
            return LaxJson(bytes)
        found = json_of(declared)
        return declared if found is None else LaxJson(found.type)

    def _json(self, partition: int, batch: pa.RecordBatch) -> Rows:
        return json_values(_without_own(batch))

    def _values(self, columns: Columns) -> list[object]:
        return [*columns.rows()]


@dataclass(frozen=True)
class PackedJson:
    """MessagePack of what JSON has of values of `type`, in which NaN and the infinities are numbers.

    >>> PackedJson(float).decode(PackedJson().encode(float("inf")))
    inf
    """

    type: object = Any

    def encode(self, value: object) -> bytes:
        """Return MessagePack; raises TypeError or OverflowError for what JSON has not."""
        return msgspec.msgpack.encode(msgspec.to_builtins(value, str_keys=True, enc_hook=as_plain))

    def decode(self, data: bytes) -> object:
        """Return the value; raises ValidationError for one of another type."""
        return msgspec.convert(msgspec.msgpack.decode(data), self.type, str_keys=True, dec_hook=made_of_plain)


class PackedValues(StoredRows):
    """The same of records that are bytes alone."""

    name = "rows"

    def serde(self, declared: Serde) -> Serde:
        """Return packed JSON of the declared type; a serde of the user's own has written the bytes itself."""
        found = json_of(declared)
        return declared if found is None else PackedJson(found.type)


class RowGroup(NamedTuple):
    """A part of a file of Parquet, and the offsets between which its rows lie."""

    number: int
    rows: int
    least: int
    most: int


def _columns(group: pq.RowGroupMetaData) -> Iterator[pq.ColumnChunkMetaData]:
    return (group.column(place) for place in range(group.num_columns))


def _told(table: pa.RecordBatch, name: str) -> list[Any] | None:
    """Return what rows say of themselves in a column; None where they say nothing."""
    return table.column(OWN[name]).to_pylist() if OWN[name] in table.schema.names else None


def _without_own(table: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows without what they say of themselves."""
    own = {*OWN.values()}
    return table.select([name for name in table.schema.names if name not in own])
