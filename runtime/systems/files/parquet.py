"""Parquet as bound inputs and outputs; the one place that imports pyarrow, so import it late."""

from __future__ import annotations

import json
import logging
import math
import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from itertools import accumulate, chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import inspect

from operators.core.base import Batch, Serde, has_none
from operators.core.declared_types import type_info
from runtime.encoding.columns import Columns
from runtime.encoding.formats.rows import (
    VALUE,
    Fielded,
    RowSerde,
    alternatives,
    column_types,
    columns_of,
    columns_of_model,
    fields_wanted,
    has_columns,
    leaves_out,
    row_of,
    row_type,
    rows_of,
    type_of_rows,
    without_absent,
    without_value,
)
from runtime.encoding.json_text import to_json
from runtime.encoding.value_types import as_plain, made_of_plain
from runtime.model.errors import Damaged, SamzaError, SerdeError, system_errors_told
from runtime.ports.sink import Sink
from runtime.ports.source import ReplaceableSource
from runtime.ports.streams import Offsets, Read
from runtime.systems.files.folders import Folders
from runtime.systems.files.places.locations import DataFile, RemoteFile, folder_name
from runtime.systems.files.plain_columns import (
    MIXED,
    RowColumns,
    UnlikeDeclared,
    batches_of,
    check_one_kind,
    column_of,
    fields_in,
    in_microseconds,
    row_columns,
    tell_finer,
    times_beyond,
    times_within,
    values_in,
)
from runtime.systems.files.record_files import check_not_beyond
from runtime.systems.files.schemas import (
    arrow_type,
    batches_in,
    check_columns,
    check_fields,
    columns_needed,
    open_parquet,
    struct_type,
    without_names,
)
from runtime.systems.host.durable import make_durable

if TYPE_CHECKING:
    from typing import BinaryIO

_log = logging.getLogger("samza_dsl")

ROWS_AT_ONCE = 8_192
ROWS_PER_PART = 100_000
FEW = 32
"""So many records are columns in less time than bytes one by one."""
OF_ARROW = (datetime, date, time, timedelta, Decimal, bytes)
_AS_THEY_ARE = frozenset({int, float, str, bool, type(None), *OF_ARROW})
"""The types of values that become columns as they are."""
MARK = b'"\\u00'
"""The start of the text of a float that JSON has not: no other text has its first, readable, letter escaped."""
_MARKED = {
    "nan": msgspec.Raw(MARK + b'6ean"'),
    "inf": msgspec.Raw(MARK + b'69nf"'),
    "-inf": msgspec.Raw(MARK + b'2dinf"'),
}
_NUMBERS = {
    bytes(_MARKED[text]): spelled for text, spelled in (("nan", b"NaN"), ("inf", b"Infinity"), ("-inf", b"-Infinity"))
}
_REFUSALS = (pa.ArrowException, ValueError, TypeError, OverflowError)
"""What Arrow and msgspec raise for values that are no column."""
PART = re.compile(r"part-(\d{6,})\.\w+")
NAMING = (pa.string(), pa.int64(), pa.bool_(), pa.date32())
"""The types of columns whose values may be the names of folders, and are the same read from there."""
Rows: TypeAlias = Any
"""Rows as JSON, with their offsets or without, or as columns: a list, or a batch of Arrow."""
PendingRow: TypeAlias = Any
"""A row that is to be written as its bytes; or a batch of Arrow, which is several."""


class ParquetSource(ReplaceableSource):
    """A bounded input of Parquet, one file per partition; values are rows as JSON, keys are None.

    Dates and times are ISO 8601, bytes are base64 and decimals are text: the serde turns them into what the declared
    type says. So are NaN and the infinities, which JSON has not, and the serde tells them from other text.
    """

    name = "parquet"

    def __init__(self, files: Sequence[DataFile]) -> None:
        self.partitions = len(files)
        self.folders = Folders(files)
        self._files = [self.opened(file.path, partial(self._json_rows, number)) for number, file in enumerate(files)]
        self._tables = [self.opened(file.path, partial(self._table, number)) for number, file in enumerate(files)]
        self._kind: object = Any
        self._checked: set[int] = set()
        """The files whose columns were held against the type."""

    def opened(self, path: Path | RemoteFile, made: Callable[[pa.RecordBatch], Rows]) -> RowFile:
        """Return the rows of a file, as what is made of them."""
        return RowFile(path, made=made)

    def serde(self, declared: Serde) -> Serde:
        """Return lax JSON of the declared type; String, Bytes or one of the user's reads the JSON itself."""
        kind = type_of_rows(declared)
        if kind is None:
            return declared
        self._kind = kind
        return LaxJson(kind)

    def offsets(self, partition: int) -> Offsets:
        """Return the readable range, which the file's footer says."""
        return Offsets(0, self._files[partition].count(), ended=True)

    def read(self, partition: int, offset: int, max_records: int = 10_000) -> Read | None:
        """Return rows from `offset` on; None at the end, and `Damaged` beyond it."""
        table: pa.RecordBatch = self._tables[partition].read(offset, max_records)
        if not len(table):
            check_not_beyond(offset, self._files[partition].count(), self._files[partition].path)
            return None
        if partition not in self._checked:
            self._checked.add(partition)
            check_columns(table.schema, self._kind, self._files[partition].path)
        end = offset + len(table)
        values = cast("list[object]", Columns(table, offset, partial(self._rows, partition)))
        return Read(Batch(values, offsets=range(offset, end)), None, end)

    def stored(self, partition: int, start: int, end: int) -> Iterable[object]:
        """Return rows as JSON, with all of their columns."""
        return self._rows(partition, start, max(0, min(end, self._files[partition].count()) - start))

    def close(self) -> None:
        """Close the files."""
        for file in (*self._files, *self._tables):
            file.close()

    def _json_rows(self, partition: int, batch: pa.RecordBatch) -> Rows:
        self.folders.told_of(partition, batch.schema.names)
        return json_rows(self.folders.values(partition, self._kind), batch)

    def _table(self, partition: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows with what the folders of their file say of all of them."""
        said = self.folders.values(partition, self._kind)
        self.folders.told_of(partition, batch.schema.names)
        if not said:
            return batch
        given = [pa.repeat(pa.scalar(value), len(batch)) for value in said.values()]
        return pa.RecordBatch.from_arrays([*batch.columns, *given], names=[*batch.schema.names, *said])

    def _rows(self, partition: int, first: int, number: int) -> list[bytes]:
        found: list[bytes] = []
        while len(found) < number:
            found += self._files[partition].read(first + len(found), number - len(found))
        return found


class ParquetSink(Sink):
    """An output of Parquet: a directory of part files, one per flush (and one per 100,000 rows); keys are not written.

    A declared plain value, as an int, is a row of the column `value`.
    Columns have the types of the declared value's fields; where these don't say (Any, Decimal, datetime without a
    time zone rule), of the part's values. Its position is the number of parts. A part gets its name when it is whole.
    """

    name = "parquet"
    suffix = ".parquet"
    columns = frozenset[str]()
    partitions = 1

    def __init__(self, path: Path) -> None:
        if path.exists() and not path.is_dir():
            raise SamzaError(
                f"{path} is a file, and {self.name.capitalize()} is written as a directory of part files; name a "
                "directory"
            )
        if not path.absolute().parent.is_dir():
            raise SamzaError(f"can't write to {path}: it is in no existing directory; make it")
        self._path = path
        self._rows = RowSerde()
        self._columns: RowColumns | None = None
        self._pending: list[PendingRow] = []
        self._parts = max(self._numbers(), default=0)

    def serde(self, declared: Serde) -> Serde:
        """Return the serde of rows with the declared type; raises SamzaError when that can't be rows."""
        self._rows = rows_of(declared, self._path, plain=True)
        check_fields(self._rows.type, self._path)
        self._columns = None if self._rows.plain else row_columns(self._rows.type)
        return self._rows

    def together(self, serde: Serde) -> Callable[[list[object]], list[object]] | None:
        """Return what makes columns of records; what has no bytes fails there, and not when a whole file is written."""
        columns = self._columns

        def made(records: list[object]) -> list[object]:
            if columns is not None and len(records) >= FEW:
                with suppress(UnlikeDeclared):
                    return batches_of(columns, records)
            return list(map(serde.encode, records))

        return None if columns is None else made

    def recover(self, position: int) -> None:
        """Remove all parts beyond the first `position`; raises `Damaged` when one of these is missing."""
        numbers = self._numbers()
        missing = [number for number in range(1, position + 1) if number not in numbers]
        if missing:
            raise Damaged(
                f"{self._path} lacks part-{missing[0]:06}{self.suffix}, which the last commit had written: it was "
                "changed from outside; restore it, or reset the application to write the output anew"
            )
        if beyond := [number for number in numbers if number > position]:
            _log.warning(
                "%s has %d parts more than its last commit had written, which are removed: what a run that died had "
                "written comes again, and what another program has added is gone. Bind outputs to directories of their "
                "own",
                *(self._path, len(beyond)),
            )
        # From the end, so that a crash in between leaves parts without gaps.
        for number in sorted(numbers, reverse=True):
            if number > position:
                for file in numbers[number]:
                    file.unlink()
        for unfinished in self._path.rglob(f".part-*{self.suffix}.tmp"):
            unfinished.unlink()
        self._pending.clear()
        self._parts = position
        _make(self._path)
        make_durable(self._path)

    def write(self, batch: Batch) -> None:
        """Take rows, in order, some of which may lie in columns already; raises SerdeError for a tombstone."""
        if has_none(batch.values):
            raise SerdeError(
                f"{self.name.capitalize()} has no way to write a tombstone (a value of None) to {self._path}: filter "
                "it out, or bind the output to JSON lines"
            )
        if not batch.values:
            return
        kinds = set(map(type, batch.values))
        runs = [(False, batch.values)] if pa.RecordBatch not in kinds else groupby(batch.values, _is_columns)
        for in_columns, run in runs:
            if not in_columns and self._columns is not None:
                records = self._records(run)
                in_columns, run = True, _batches(table_of_records(records, self._rows.type, self._path), len(records))
            if self._pending and _is_columns(self._pending[0]) != in_columns:
                # Rows and columns become parts of their own: one part has one schema.
                self.flush()
            self._pending += run
            while sum(map(len, self._pending)) >= ROWS_PER_PART if in_columns else len(self._pending) >= ROWS_PER_PART:
                self._write_part()

    def save(self, rows: pa.Table, file: BinaryIO) -> None:
        """Write the rows of a part; raises SerdeError for records without fields."""
        with columns_needed(self._path):
            pq.write_table(rows, file)

    def flush(self) -> int:
        """Make all rows durable and return the number of parts; raises SerdeError for values of mixed types."""
        if self._pending:
            self._write_part()
        return self._parts

    def close(self) -> None:
        """Drop what was not flushed; a second call does nothing."""
        self._pending.clear()

    def _write_part(self) -> None:
        table, rest = self._first_columns() if _is_columns(self._pending[0]) else self._first_rows()
        part = f"part-{self._parts + 1:06}{self.suffix}"
        unfinished: list[Path] = []
        with system_errors_told(self._path, "written"):
            for folder, rows in self._folders(table):
                _make(folder)
                unfinished.append(folder / f".{part}.tmp")
                with unfinished[-1].open("wb") as file:
                    self.save(rows, file)
                    file.flush()
                    os.fsync(file.fileno())
            if taken := [name for one in unfinished if (name := one.with_name(part)).exists()]:
                raise Damaged(
                    f"{taken[0]} is there, and this run has not written it: another program writes to {self._path}. "
                    "Bind the output to a directory of its own"
                )
            # Names come last, so that a part that has one is whole. A crash leaves only what `recover` removes.
            for one in unfinished:
                one.replace(one.with_name(part))
                make_durable(one.parent)
        self._parts += 1
        self._pending = rest

    def _folders(self, table: pa.Table) -> Iterator[tuple[Path, pa.Table]]:
        """Yield the rows of a part by the folders where they belong."""
        yield self._path, table

    def _first_rows(self) -> tuple[pa.Table, list[PendingRow]]:
        """Return the rows of the next part, and what stays pending."""
        pending, rest = self._pending[:ROWS_PER_PART], self._pending[ROWS_PER_PART:]
        return table_of(self._records(pending), self._rows.type, self._path), rest

    def _first_columns(self) -> tuple[pa.Table, list[PendingRow]]:
        table = in_one(self._pending, self._rows.type, self._path)
        return table.slice(0, ROWS_PER_PART), table.slice(ROWS_PER_PART).to_batches()

    def _records(self, rows: Iterable[bytes]) -> list[object]:
        try:
            return [*map(self._rows.decode, rows)]
        except msgspec.ValidationError as error:
            raise SerdeError(
                f"a value for {self._path} is not of the type that the output declares: {error}; return what it "
                "declares, or declare what is returned"
            ) from error

    def _numbers(self) -> dict[int, list[Path]]:
        """Return the files of each part."""
        found: dict[int, list[Path]] = {}
        for file in self._path.rglob(f"part-*{self.suffix}") if self._path.exists() else ():
            if match := PART.fullmatch(file.name):
                found.setdefault(int(match[1]), []).append(file)
        return found


class PartedParquetSink(ParquetSink):
    """The same, with a folder for each value of some columns, as Hive and Spark name it: `day=2026-01-01`.

    These columns are in no file: who reads the folder has them of the names.
    """

    def __init__(self, path: Path, by: Sequence[str]) -> None:
        super().__init__(path)
        self._by = by

    def serde(self, declared: Serde) -> Serde:
        """Return the serde of rows with the declared type; raises SamzaError for columns that name no folders."""
        found = super().serde(declared)
        check_parted(self._rows.type, self._by, self._path)
        return found

    def _folders(self, table: pa.Table) -> Iterator[tuple[Path, pa.Table]]:
        for folder, rows in parted(table, self._by):
            yield self._path / folder, rows


def check_rows(kind: object, by: Sequence[str], where: object) -> None:
    """Raise SamzaError for values that can't be rows, or columns that name no folders."""
    if kind is None:
        raise SamzaError(
            f"{where} holds rows of named fields: declare the output's value as a msgspec Struct or a dataclass, or "
            "write JSON lines"
        )
    check_parted(row_type(kind), by, where)
    check_fields(row_type(kind), where)


def check_parted(kind: object, by: Sequence[str], where: object) -> None:
    """Raise SamzaError for columns of rows that name no folders."""
    known = columns_of_model(kind) or column_types(kind, by)
    columns = columns_of(kind) or [*columns_of_model(kind)]
    odd = [name for name in by if name not in columns or arrow_type(known[name]) not in NAMING]
    if by and (odd or not {*columns} - {*by}):
        wrong = f"{', '.join(odd)} is no declared text, whole number, bool or date" if odd else "no column is left"
        raise SamzaError(
            f"{where}: partition_by={[*by]}: {wrong}: the values of these columns are the names of "
            "folders, beside which the output's type has other fields"
        )


def parted(table: pa.Table, by: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
    """Yield rows by the folders where they belong, as `day=2026-01-01/`, without the columns that these name."""
    if not by:
        yield "", table
        return
    rows: dict[tuple[object, ...], list[int]] = {}
    for row, found in enumerate(zip(*(table.column(name).to_pylist() for name in by), strict=True)):
        rows.setdefault(found, []).append(row)
    # All names first: one that is none is told before any file is written.
    folders = ["".join(f"{folder_name(*one)}/" for one in zip(by, found, strict=True)) for found in rows]
    rest = table.drop_columns([*by])
    for folder, places in zip(folders, rows.values(), strict=True):
        yield folder, rest.take(places)


def bytes_of(table: pa.Table) -> bytes:
    """Return the bytes of a file of some rows."""
    pq.write_table(table, sink := pa.BufferOutputStream())
    return bytes(sink.getvalue())


def _make(folder: Path) -> None:
    """Make a folder, and durable that it is there."""
    if not folder.exists():
        _make(folder.absolute().parent)
        folder.mkdir()
        make_durable(folder.absolute().parent)


@dataclass(frozen=True)
class LaxJson:
    """JSON whose texts may stand for numbers, dates and the like, and has NaN and the infinities marked as such.

    >>> LaxJson(dict[str, float]).decode(b'{"delay": "nan"}'), LaxJson().decode(b'["nan", ' + MARK + b'6ean"]')
    ({'delay': nan}, ['nan', nan])
    """

    type: object = Any

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "_decode", msgspec.json.Decoder(self.type, strict=False, dec_hook=made_of_plain).decode
        )
        object.__setattr__(self, "_lacks", without_absent(type_info(self.type)))

    def encode(self, value: object) -> bytes:
        """Return JSON; raises SerdeError for a NaN or an infinity."""
        return to_json(value)

    def decode_table(self, columns: Columns) -> list[object]:
        """Return the values of rows: made of their columns at once, where these hold what the type says."""
        made = values_in(columns.table, self.type)
        return list(map(self.decode, columns.rows())) if made is None else made

    def decode(self, data: bytes) -> object:
        """Return the value of a row."""
        if MARK not in data and self._lacks is None:
            return self._decode(data)
        for marked, spelled in _NUMBERS.items():
            data = data.replace(marked, spelled)
        plain = json.loads(data) if self._lacks is None else self._lacks(json.loads(data))
        return msgspec.convert(plain, self.type, strict=False, str_keys=True, dec_hook=made_of_plain)

    _decode: Callable[[bytes], object] = field(init=False, repr=False, compare=False)
    _lacks: Callable[[Any], Any] | None = field(init=False, repr=False, compare=False)


class RowFile:
    """The rows of one Parquet file, read on from where the last read ended, or from a row group's start.

    So many are read `at_once`, some of their `columns` or all, and come as what is `made` of these: as JSON, if nothing
    is said.
    """

    def __init__(
        self,
        path: Path | RemoteFile,
        at_once: int = ROWS_AT_ONCE,
        columns: list[str] | None = None,
        made: Callable[[pa.RecordBatch], Rows] | None = None,
    ) -> None:
        self.path = path
        self._at_once, self._columns, self._made = at_once, columns, made or partial(json_rows, {})
        self._file: pq.ParquetFile | None = None
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._starts: list[int] = []
        self._next = 0
        self._first = 0
        self._rows: Rows = []

    def count(self) -> int:
        """Return how many rows there are."""
        self.opened()
        return self._starts[-1]

    def read(self, row: int, max_rows: int) -> Rows:
        """Return rows from `row` on, up to `max_rows` of them; none at the end."""
        if not 0 <= row - self._first < len(self._rows):
            self._find(row)
        start = row - self._first
        return self._rows[start : start + max_rows]

    def close(self) -> None:
        """Close the file; a later read opens it again."""
        self._batches = iter(())
        self._rows = []
        if self._file is not None:
            self._file.close()
            self._file = None

    def opened(self) -> pq.ParquetFile:
        """Return the file, which stays open until this is closed."""
        if self._file is None:
            self._file = open_parquet(self.path)
            groups = (self._file.metadata.row_group(group).num_rows for group in range(self._file.num_row_groups))
            self._starts = list(accumulate(groups, initial=0))
            self._next = self._starts[-1]
        return self._file

    def _find(self, row: int) -> None:
        file = self.opened()
        if row >= self._starts[-1]:
            self._rows = []
            return
        group = bisect_right(self._starts, row) - 1
        # Read on where that is possible; else from the start of the row group, as Parquet can't be entered within one.
        if not self._starts[group] <= self._next <= row:
            self._next = self._starts[group]
            groups = range(group, file.num_row_groups)
            self._batches = batches_in(file, self._at_once, groups, self._columns, self.path)
        for batch in self._batches:
            self._first = self._next
            self._next += batch.num_rows
            if row < self._next:
                self._rows = self._made(batch)
                return


def json_rows(fields: Mapping[str, object], batch: pa.RecordBatch) -> list[bytes]:
    """Return rows as JSON, with what the folders of their file say of all of them."""
    rows = _spelled_rows(batch)
    if fields:
        for row in rows:
            row.update(fields)
    return list(map(msgspec.json.encode, rows))


def _unread_error(columns: Sequence[pa.Array], names: Sequence[str], error: Exception) -> SamzaError:
    """Return the error for a column of which values can't be made, as of text that is none, or an unknown time zone."""
    for name, column in zip(names, columns, strict=True):
        try:
            column.to_pylist()
        except (KeyError, ValueError):
            return SamzaError(
                f"the column {name!r} of type {column.type} holds what can't be read as that: {error}; write it as "
                "another type, as text that is not UTF-8 as bytes"
            )
    return SamzaError(f"the columns {', '.join(names)} hold what can't be read: {error}")


def json_values(batch: pa.RecordBatch) -> list[bytes]:
    """Return the values of the only column as JSON."""
    (name,) = batch.schema.names
    return [msgspec.json.encode(row[name]) for row in _spelled_rows(batch)]


def _spelled_rows(batch: pa.RecordBatch) -> list[dict[str, object]]:
    """Return rows whose numbers that JSON has not are spelled out, and whose times that Python has not are text."""
    if len({*batch.schema.names}) < len(batch.schema.names):
        raise SamzaError(f"a file has two columns of one name, of {batch.schema.names}: rename one")
    if odd := [one.name for one in batch.schema if without_names(one.type)]:
        raise SamzaError(
            f"the columns {', '.join(odd)} hold maps by keys that no text stands for, as bools or records: write them "
            "as lists of records with a key and a value, or leave them out"
        )
    columns = [
        in_microseconds(column, partial(tell_finer, name))
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    beyond = {
        name: found for name, column in zip(batch.schema.names, columns, strict=True) if (found := times_beyond(column))
    }
    if beyond:
        columns = [
            pc.if_else(times_within(column), column, None) if name in beyond else column
            for name, column in zip(batch.schema.names, columns, strict=True)
        ]
    try:
        rows = pa.RecordBatch.from_arrays(columns, names=batch.schema.names).to_pylist(maps_as_pydicts="strict")
    except OverflowError as error:
        told = ", ".join(one.name for one in batch.schema if pa.types.is_nested(one.type))
        raise SamzaError(
            f"one of the columns {told} holds a time that Python has not, before year 1 or after 9999"
        ) from error
    except (KeyError, ValueError) as error:
        if "duplicate" not in str(error):
            raise _unread_error(columns, batch.schema.names, error) from error
        told = ", ".join(one.name for one in batch.schema if pa.types.is_nested(one.type))
        raise SamzaError(
            f"one of the columns {told} holds a map that has a key twice, or a record that has a field twice, and a "
            "dict has each once"
        ) from error
    for name, texts in beyond.items():
        for place, text in texts.items():
            rows[place][name] = text
    for name, column in zip(batch.schema.names, columns, strict=True):
        if pa.types.is_floating(column.type) and pc.all(pc.is_finite(column)).as_py() is False:
            for row in rows:
                if row[name] is not None and not math.isfinite(row[name]):
                    row[name] = _MARKED[str(row[name])]
        elif pa.types.is_nested(column.type):
            for row in rows:
                row[name] = _spelled(row[name])
    return cast("list[dict[str, object]]", rows)


def _spelled(value: object) -> object:
    """Return a nested value with its numbers that JSON has not spelled out."""
    if isinstance(value, list):
        return list(map(_spelled, value))
    if isinstance(value, dict):
        return {name: _spelled(one) for name, one in value.items()}
    return _MARKED[str(value)] if isinstance(value, float) and not math.isfinite(value) else value


def _batches(table: pa.Table, rows: int) -> list[pa.RecordBatch]:
    """Return the batches of a table; where it has no columns, one that still knows how many rows there are."""
    if table.num_columns:
        return [*table.to_batches()]
    return [pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))]


def _is_columns(value: object) -> bool:
    return isinstance(value, pa.RecordBatch)


def table_of_records(
    values: Sequence[Any],
    kind: object,
    where: object,
    read: Callable[[Sequence[Any]], Sequence[Any]] | None = None,
) -> pa.Table:
    """Return the same as `table_of`, of records of plain fields by their columns, without a look at each.

    Where something else holds the values, `read` returns them: a few at a time, while they are in the processor's
    caches, that is a tenth less in all.
    """
    if values and (columns := row_columns(kind)) is not None:
        with suppress(UnlikeDeclared):
            return in_one(batches_of(columns, values, read), kind, where)
    return table_of(values if read is None else read(values), kind, where)


def in_one(batches: Sequence[pa.RecordBatch], kind: object, where: object) -> pa.Table:
    """Return rows that lie in columns as one table; raises SerdeError where those of one field don't fit one column."""
    if all(batch.schema.equals(batches[0].schema) for batch in batches):
        return pa.Table.from_batches(batches)
    # Columns that some of them lack, or have no value in, are filled by Arrow; what differs by more is made anew.
    with suppress(pa.ArrowException):
        if all(batch.num_columns for batch in batches):
            return pa.concat_tables((pa.Table.from_batches([one]) for one in batches), promote_options="default")
    return table_of([row for batch in batches for row in batch.to_pylist(maps_as_pydicts="strict")], kind, where)


def table_of(values: Sequence[Any], kind: object, where: object) -> pa.Table:
    """Return values as rows of a table; raises SerdeError where those of one field don't fit one column."""
    if has_none(values):
        raise without_value(where)
    if not has_columns(kind):
        kind, values = row_type(kind), [{VALUE: value} for value in values]
    if (found := fields_in(values, kind)) is None:
        rows = values if set(map(type, values)) == {dict} else [*map(row_of, values)]
        names = dict.fromkeys(chain(fields_wanted(kind) or (), *rows))
        if set(map(type, names)) - {str}:
            rows = [msgspec.to_builtins(row, builtin_types=OF_ARROW, enc_hook=as_plain) for row in rows]
            names = dict.fromkeys(chain(fields_wanted(kind) or (), *rows))
            if odd := [name for name in names if type(name) is not str]:
                raise SerdeError(
                    f"a row of {where} has the key {odd[0]!r}, and the names of columns are text: give it text as keys"
                )
        found = {name: _values_of(rows, name) for name in names}
    columns = {}
    for name, info in column_types(kind, found).items():
        try:
            columns[name] = _column_of(found[name], info)
        except _REFUSALS as error:
            raise SerdeError(
                f"the values of {name!r} don't fit one column of {where}: {error}; declare the output's value as a "
                "Struct whose field has one type"
            ) from error
    return pa.table(columns)


def _values_of(rows: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    try:
        return [row[name] for row in rows]
    except KeyError:
        return [row.get(name) for row in rows]


def _column_of(values: list[Any], info: inspect.Type) -> pa.Array:
    """Return values as a column, made plain first only where Arrow does not take them as they are."""
    if _AS_THEY_ARE.issuperset(map(type, values)):
        return _column(values, info)
    if arrow_type(info) is not None:  # as lists of text: what is not of the type is refused
        with suppress(*_REFUSALS):
            return _column(values, info)
    return _plain_column(values, info)


def _plain_column(values: list[Any], info: inspect.Type) -> pa.Array:
    if leaves_out(info):
        values = [*map(_whole, values)]
    return _column(msgspec.to_builtins(values, builtin_types=OF_ARROW, enc_hook=as_plain), info)


def _whole(value: Any) -> Any:
    """Return a value whose records have all of their fields: a column would have no value for what is left out."""
    kind = type(value)
    if isinstance(value, list | tuple | set | frozenset):
        return [*map(_whole, value)]
    is_struct = isinstance(value, msgspec.Struct)
    is_by_name = not kind.__struct_config__.array_like if is_struct else kind is dict or is_dataclass(value)
    return {name: _whole(one) for name, one in row_of(value).items()} if is_by_name else value


def _column(values: list[Any], info: inspect.Type) -> pa.Array:
    kind = _type_in(values, info)
    column = column_of(values, kind)
    if kind is None:
        check_one_kind(values)
        # Arrow would take an instant for the hour that it has in UTC.
        if getattr(column.type, "tz", None):
            return column.cast(pa.timestamp("us", "UTC"))
    return column


def _type_in(values: Sequence[Any], info: inspect.Type) -> pa.DataType | None:
    """Return the type of a column of plain values, which say whether times have a zone; None where they must say more.

    Raises ValueError where some times of a field have a zone, and some have none.
    """
    known = arrow_type(info)
    kinds = [kind for kind in alternatives(info) if not isinstance(kind, inspect.NoneType)]
    if known is not None or len(kinds) != 1:
        return known
    kind, some = kinds[0], [value for value in values if value is not None]
    if isinstance(kind, inspect.DateTimeType):
        zones = {one.tzinfo is None for one in some if isinstance(one, datetime)}
        if len(zones) > 1:
            raise ValueError(MIXED)
        return pa.timestamp("us", None if True in zones else "UTC") if _are_all(some, datetime) else None
    if isinstance(kind, inspect.DecimalType) and _are_all(some, Decimal):
        return pa.infer_type(some) if some else pa.decimal128(38, 18)
    if isinstance(kind, inspect.CollectionType) and _are_all(some, list):
        item = _type_in([*chain.from_iterable(some)], kind.item_type)
        return item and pa.list_(item)
    if isinstance(kind, inspect.DictType) and _are_all(some, dict):
        keys, parts = [*chain.from_iterable(some)], [*chain.from_iterable(map(dict.values, some))]
        key, value = arrow_type(kind.key_type), _type_in(parts, kind.value_type)
        if not isinstance(kind.value_type, inspect.AnyType):
            # As a struct a row would have None for each key of another row.
            key, value = key or pa.infer_type(keys), value or pa.infer_type(parts)
        return key and value and pa.map_(key, value)
    # A dict that holds itself ends where no value has another one in it.
    if isinstance(kind, Fielded) and _are_all(some, dict) and (some or not isinstance(kind, inspect.TypedDictType)):
        return struct_type(kind, lambda field: _type_in([one.get(field.encode_name) for one in some], field.type))
    return None


def _are_all(values: Sequence[object], kind: type) -> bool:
    return all(isinstance(value, kind) for value in values)
