"""Columns held against a declared type, before a row is read; one of the homes of pyarrow, so import it late."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import inspect

from operators.core.declared_types import types_in
from operators.core.wording import type_named
from runtime.encoding.formats.rows import (
    ANY_KEY,
    Columns,
    Fielded,
    alternatives,
    check_names,
    column_types,
    fields_wanted,
    records_within,
    unclear_keys,
)
from runtime.encoding.value_types import reads_text_as_bytes
from runtime.model.errors import SamzaError, SerdeError
from runtime.systems.files.places.locations import RemoteFile

MOST_AT_ONCE = 1 << 27
"""The bytes for which rows stand that are taken from a file at a time: a few bytes there can stand for any number."""
MOST_OF_A_ROW = 1 << 28
"""The bytes for which a row stands at most by what lies in a file once, and is the value of many."""
OF_A_VALUE = 32
"""The bytes that a number or the like takes at least where it is an object of Python."""
TOGETHER = 64
"""The row groups that are looked at, and read, together at most."""
LOOKED_AT = 8_192
"""The rows among which a text of each dictionary is looked for at a time."""
MOST_OF_A_CHUNK = 1 << 30
"""The bytes for which a column of a row group stands at most where it takes less than a thousandth of them."""
ColumnType: TypeAlias = "pa.DataType | str"
"""The type of a column; a text where Arrow has none for it."""


class FieldDifference(NamedTuple):
    """A field that a row can't have as it is declared."""

    field: str
    wanted: str
    found: str

    def __str__(self) -> str:
        return f"{self.field}: wanted {self.wanted}, found {self.found}"


def differences(kind: object, columns: Mapping[str, ColumnType]) -> list[FieldDifference]:
    """Return what of a declared type these columns can't give: fields that are not there, or of other types."""
    found = [one for one in alternatives(inspect.type_info(kind)) if not isinstance(one, inspect.NoneType)]
    tried = [[*_in_columns(one, columns, "")] for one in found]
    return min(tried, key=len, default=[])


def columns_in(columns: Mapping[str, ColumnType]) -> Columns:
    """Return the names of columns, and of those within them.

    >>> columns_in({"lines": pa.list_(pa.struct({"cents": pa.int64()})), "id": pa.int64()})
    {'lines': {'cents': {}}, 'id': {}}
    """
    return {name: _columns_within(kind) for name, kind in columns.items()}


def _columns_within(kind: ColumnType) -> Columns:
    if isinstance(kind, str):
        return {}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _columns_within(kind.value_type)
    if pa.types.is_map(kind):
        return {ANY_KEY: _columns_within(kind.item_type)}
    return columns_in({one.name: one.type for one in kind}) if pa.types.is_struct(kind) else {}


def check_columns(schema: pa.Schema, kind: object, where: object) -> None:
    """Raise SamzaError where rows would lose what columns hold, as they are read as a type.

    A field of text is not to have a column of bytes, which would be read as base64; and none its default where a
    column is named almost so.
    """
    columns = dict(zip(schema.names, schema.types, strict=True))
    held = [name for name, one in columns.items() if pa.types.is_binary(one) or pa.types.is_large_binary(one)]
    for name, info in column_types(kind, held).items() if held else ():
        kinds = {type(one) for one in alternatives(info)}
        if inspect.StrType in kinds and not kinds - {inspect.StrType, inspect.NoneType}:
            raise SamzaError(
                f"the column {name!r} holds bytes, and the field of that name is text: declare it as bytes, and decode "
                "these, or write the column as text"
            )
    wanted = fields_wanted(kind)
    read = [one for name, one in columns.items() if wanted is None or name in wanted]
    if any(map(_holds_bytes, read)) and reads_text_as_bytes(kind):
        raise SamzaError(
            f"{where} has a column of bytes, and the model of pydantic in {type_named(kind)} reads bytes of text: say "
            "model_config = ConfigDict(ser_json_bytes='base64', val_json_bytes='base64')"
        )
    check_names(kind, columns_in(columns), where)


def _holds_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_holds_bytes(kind.field(place).type) for place in range(kind.num_fields))
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


_RECORDS = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType, inspect.NamedTupleType)


def check_fields(kind: object, where: object) -> None:
    """Raise SamzaError for records without fields, of which there are no columns, and for what these tell alike."""
    names = unclear = ""
    with suppress(TypeError):  # of one that msgspec does not know nothing is said
        empty = [one for one in types_in(kind) if isinstance(one, _RECORDS) and not one.fields]
        names = ", ".join(one.cls.__name__ for one in empty if not getattr(one, "tag", None))
        unclear = ", ".join(unclear_keys(types_in(kind)))
    if unclear:
        wrong = "may be None or not be there, and a column has null for both"
        raise SamzaError(f"{where}: {unclear} {wrong}: make the key required, or write JSON lines")
    if names:
        raise SamzaError(f"{where}: {names} has no fields, and so no columns: give it one, or leave it out")


_SCALARS: dict[type[inspect.Type], pa.DataType] = {
    inspect.BoolType: pa.bool_(),
    inspect.IntType: pa.int64(),
    inspect.FloatType: pa.float64(),
    inspect.StrType: pa.string(),
    inspect.BytesType: pa.binary(),
    inspect.UUIDType: pa.string(),
    inspect.DateType: pa.date32(),
    inspect.TimeType: pa.time64("us"),
    inspect.TimeDeltaType: pa.duration("us"),
}


def arrow_type(info: inspect.Type, within: tuple[inspect.Type, ...] = ()) -> pa.DataType | None:
    """Return the column type for what msgspec knows of a field, `within` records; None where the values must say it.

    Raises SerdeError for a record that holds itself, but for a dict.
    """
    kinds = [kind for kind in alternatives(info) if not isinstance(kind, inspect.NoneType)]
    if {type(kind) for kind in kinds} == {inspect.IntType, inspect.FloatType}:
        return pa.float64()
    if len(kinds) != 1:
        return None
    kind = kinds[0]
    if isinstance(kind, inspect.DateTimeType) and kind.tz is not None:
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if isinstance(kind, inspect.CollectionType):
        item = arrow_type(kind.item_type, within)
        return item and pa.list_(item)
    if isinstance(kind, inspect.DictType):
        key, value = arrow_type(kind.key_type, within), arrow_type(kind.value_type, within)
        return key and value and pa.map_(key, value)
    if isinstance(kind, inspect.TypedDictType) and any(kind is one for one in within):
        return None  # it lacks the key of itself somewhere, and values say where
    if isinstance(kind, Fielded):
        inner = records_within(kind, within)
        return struct_type(kind, lambda field: arrow_type(field.type, inner))
    return _SCALARS.get(type(kind))


def struct_type(kind: Fielded, of_field: Callable[[inspect.Field], pa.DataType | None]) -> pa.DataType | None:
    """Return the type of a column of records; None where that of a field is not known, or a tag says the class."""
    fields = [(each.encode_name, of_field(each)) for each in kind.fields]
    if not fields or getattr(kind, "tag", None) is not None or any(each is None for _, each in fields):
        return None
    return pa.struct(fields)


def open_parquet(
    path: Path | RemoteFile, dictionaries: Sequence[str] = (), metadata: pq.FileMetaData | None = None
) -> pq.ParquetFile:
    """Return a file of Parquet, open, some columns as dictionaries; raises SamzaError where it is none."""
    try:
        source = path.opened() if isinstance(path, RemoteFile) else path
        # In nanoseconds, as which Arrow takes INT96, there are six centuries.
        return pq.ParquetFile(
            source, coerce_int96_timestamp_unit="us", read_dictionary=[*dictionaries], metadata=metadata
        )
    except Exception as error:  # of a file behind a URL, those of any library
        raise SamzaError(f"can't read {path} as Parquet: {error}") from error


def batches_in(
    file: pq.ParquetFile, at_once: int, groups: Iterable[int], columns: list[str] | None, path: Path | RemoteFile
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of row groups of a file of Parquet, some of its columns or all.

    Points in time that Spark writes as INT96 are in UTC, as Spark reads them: Arrow takes them for local ones. Raises
    SamzaError for dates and times that are others there than they say, and for what stands for more than is read.
    """
    has_old_calendar = _has_old_calendar(file.metadata.metadata or {})
    kinds: dict[str, pa.DataType] = {}
    if b"ARROW:schema" not in (file.metadata.metadata or {}):  # which says itself what Arrow has written
        leaves = (file.schema.column(place).physical_type for place in range(len(file.schema)))
        kinds = {one.name: _with_instants(one.type, leaves) for one in file.schema_arrow}
    for batch in _bounded_batches(file, at_once, groups, columns, path):
        wanted = pa.schema([one.with_type(kinds.get(one.name, one.type)) for one in batch.schema])
        found = batch if batch.schema == wanted else batch.cast(wanted)
        if has_old_calendar:
            _check_calendar(found, path)
        yield found


def _bounded_batches(
    file: pq.ParquetFile, at_once: int, groups: Iterable[int], columns: list[str] | None, path: Path | RemoteFile
) -> Iterator[pa.RecordBatch]:
    """Yield rows that stand for no more than is read at a time; raises SamzaError where one stands for more."""
    looked_at = (
        (group, _repeated(file, group, at_once, columns, path), _rows_at_once(file, group, at_once, columns))
        for group in groups
    )
    # Row groups without such columns are read together, as a file may have many small ones. Those with some are not, as
    # Arrow makes no nested column of two dictionaries.
    runs = groupby(looked_at, lambda one: (one[0] // (1 if one[1] else TOGETHER), *one[1:]))
    for (_, repeated, rows), run in runs:
        read = [group for group, *_ in run]
        try:
            with open_parquet(path, repeated, file.metadata) if repeated else nullcontext(file) as reader:
                batches = reader.iter_batches(rows, row_groups=read, columns=columns)
                for batch in batches if rows == at_once else _in_larger(batches, at_once):
                    for part in bounded(batch, path):
                        yield part.cast(_plain_schema(file, columns, part.schema)) if repeated else part
        except MemoryError as error:
            raise SamzaError(
                f"there is not the memory that rows of {path} need: {error}; write it in smaller row groups"
            ) from error


def _plain_schema(file: pq.ParquetFile, columns: list[str] | None, found: pa.Schema) -> pa.Schema:
    """Return the schema of rows without dictionaries in place of texts."""
    return file.schema_arrow if columns is None else pa.schema([file.schema_arrow.field(one) for one in found.names])


def _repeated(
    file: pq.ParquetFile, group: int, at_once: int, columns: list[str] | None, path: Path | RemoteFile
) -> tuple[str, ...]:
    """Return the columns of a row group that have texts once for so many rows that these stand for too much.

    The footer says how much lies in a column, and in how many values; where that can be too much, its dictionary is
    looked at. Raises SamzaError where a column stands for more than is read.
    """
    told, found = file.metadata.row_group(group), dict[str, int]()
    rows = min(at_once, file.metadata.num_rows)
    for place in range(told.num_columns):
        leaf, kind = told.column(place), file.schema.column(place)
        if columns is not None and not _is_in(leaf.path_in_schema, columns):
            continue
        is_text, may_repeat = leaf.physical_type == "BYTE_ARRAY", kind.max_repetition_level > 0
        width = 4 if is_text else max(kind.length, _WIDTHS.get(leaf.physical_type, 1))
        # Any row may have all values of a list; and rows of small groups are read together.
        values = leaf.num_values * -(-rows // max(told.num_rows, 1)) if may_repeat else rows
        whole = max(leaf.total_uncompressed_size, leaf.num_values * width if may_repeat else 0)
        if whole > max(MOST_OF_A_CHUNK, 1_000 * leaf.total_compressed_size):
            raise SamzaError(
                f"{path} has the column {leaf.path_in_schema!r} of row group {group} in {leaf.total_compressed_size:,} "
                f"bytes, which stand for {whole:,}, and up to {MOST_OF_A_CHUNK:,} are read of so few: write it in "
                "smaller row groups"
            )
        if is_text and leaf.has_dictionary_page and values * leaf.total_uncompressed_size > MOST_AT_ONCE:
            found[leaf.path_in_schema] = values
    longest = _longest_texts(path, file.metadata, group, [*found]) if found else {}
    return tuple(name for name, values in found.items() if values * longest[name] > MOST_AT_ONCE)


def _rows_at_once(file: pq.ParquetFile, group: int, at_once: int, columns: list[str] | None) -> int:
    """Return how many rows of a row group are read at a time: fewer where they are long, or have many values each.

    A column of DELTA_BYTE_ARRAY keeps what differs from the text before, so that none of its texts is longer than all
    that lies there.
    """
    told, found, whole = file.metadata.row_group(group), at_once, 1
    for place in range(told.num_columns):
        leaf = told.column(place)
        if columns is not None and not _is_in(leaf.path_in_schema, columns):
            continue
        is_text, may_repeat = leaf.physical_type == "BYTE_ARRAY", file.schema.column(place).max_repetition_level > 0
        whole += max(leaf.total_uncompressed_size, leaf.num_values * OF_A_VALUE if may_repeat else 0)
        if is_text and "DELTA_BYTE_ARRAY" in leaf.encodings:
            values = -(-leaf.num_values // max(told.num_rows, 1))
            found = min(found, MOST_OF_A_CHUNK // max(leaf.total_uncompressed_size * values, 1))
    if whole > MOST_AT_ONCE:
        found = min(found, MOST_AT_ONCE * told.num_rows // whole)
    return max(found, 1)


def _in_larger(batches: Iterable[pa.RecordBatch], at_once: int) -> Iterator[pa.RecordBatch]:
    """Yield rows together that were read a few at a time, until they are many, or stand for much."""
    some: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        some.append(batch)
        rows, size = rows + len(batch), size + sum(map(_stands_for, batch.columns))
        if rows >= at_once or size > MOST_AT_ONCE:
            yield pa.concat_batches(some)
            some, rows, size = [], 0, 0
    if some:
        yield pa.concat_batches(some)


def _is_in(path: str, columns: Iterable[str]) -> bool:
    """Whether a leaf is one of some columns, or lies within one."""
    return any(path == name or path.startswith(f"{name}.") for name in columns)


_WIDTHS = {"INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}


def _longest_texts(path: Path | RemoteFile, metadata: pq.FileMetaData, group: int, names: list[str]) -> dict[str, int]:
    """Return the bytes of the longest text in the dictionaries of some columns.

    Dictionaries come with the first rows that have a text: those of lists may be empty before.
    """
    found = dict.fromkeys(names, 0)
    with open_parquet(path, names, metadata) as file:
        for rows in file.iter_batches(LOOKED_AT, row_groups=[group], columns=names):
            # Two columns may have one name.
            columns = zip(rows.schema.names, rows.columns, strict=True)
            dictionaries = [(name, texts) for name, column in columns for texts in _dictionaries(column)]
            for one in names:
                texts_of = (texts for name, texts in dictionaries if _is_in(one, [name]))
                found[one] = max(found[one], *(pc.max(pc.binary_length(texts)).as_py() or 0 for texts in texts_of), 0)
            if all(len(texts) for _, texts in dictionaries):
                break
    return found


def _dictionaries(column: pa.Array) -> Iterator[pa.Array]:
    """Yield the dictionaries of a column, at any depth."""
    if pa.types.is_dictionary(column.type):
        yield column.dictionary
    else:
        for part in _parts(column):
            yield from _dictionaries(part)


def bounded(batch: pa.RecordBatch, where: object) -> Iterator[pa.RecordBatch]:
    """Yield rows in parts that stand for no more than is read at a time; raises SamzaError where one stands for more.

    Rows have long texts, or lists of many values. Only a batch that has a value once for many rows, as the text of a
    dictionary, holds a row that is refused: of any other the row takes as much in its file.
    """
    left, shares = [batch], any(map(_shares, batch.schema.types))
    while left:
        part = left.pop()
        size = sum(map(_stands_for, part.columns))
        if size <= MOST_AT_ONCE or (len(part) <= 1 and (size <= MOST_OF_A_ROW or not shares)):
            yield part
        elif len(part) <= 1:
            raise SamzaError(
                f"a row of {where} stands for {size:,} bytes, and up to {MOST_OF_A_ROW:,} are read: write its values "
                "as several rows"
            )
        else:
            left += [part.slice(len(part) // 2), part.slice(0, len(part) // 2)]


def _shares(kind: pa.DataType) -> bool:
    """Whether values of a type may lie in one place, at any depth."""
    types = pa.types
    if types.is_dictionary(kind) or types.is_string_view(kind) or types.is_binary_view(kind):
        return True
    if types.is_run_end_encoded(kind) or types.is_list_view(kind) or types.is_large_list_view(kind):
        return True
    return types.is_nested(kind) and any(_shares(kind.field(place).type) for place in range(kind.num_fields))


def _stands_for(column: pa.Array) -> int:
    """Return how many bytes the values of a column would take one by one, about."""
    kind, types = column.type, pa.types
    if types.is_dictionary(kind):
        if types.is_nested(kind.value_type) or types.is_primitive(kind.value_type):
            return OF_A_VALUE * len(column)
        return _sum(pc.take(pc.binary_length(column.dictionary), column.indices))
    if types.is_run_end_encoded(kind):
        return len(column) * max((_stands_for(column.values.slice(n, 1)) for n in range(len(column.values))), default=0)
    if types.is_string_view(kind) or types.is_binary_view(kind):
        # Arrow has no such function for these, in which the length is the first of four numbers of each value.
        words = pa.Array.from_buffers(pa.int32(), 4 * (column.offset + len(column)), [None, column.buffers()[1]])
        lengths = pc.list_element(pa.FixedSizeListArray.from_arrays(words, 4), 0).slice(column.offset)
        return _sum(pc.if_else(column.is_valid(), lengths, 0))
    if types.is_string(kind) or types.is_binary(kind) or types.is_large_string(kind) or types.is_large_binary(kind):
        return int(column.nbytes)
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        values = _sum(pc.list_value_length(column))
        if values > MOST_AT_ONCE:
            return values
    return sum(map(_stands_for, _parts(column))) if types.is_nested(kind) else OF_A_VALUE * len(column)


def _sum(numbers: pa.Array) -> int:
    return pc.sum(numbers).as_py() or 0


def _parts(column: pa.Array) -> list[pa.Array]:
    """Return the columns within one, of its own rows."""
    kind, types = column.type, pa.types
    if types.is_struct(kind):
        return [*column.flatten()]
    if types.is_map(kind):
        first, last = column.offsets[0].as_py(), column.offsets[-1].as_py()
        return [column.keys.slice(first, last - first), column.items.slice(first, last - first)]
    return [column.flatten()] if types.is_nested(kind) and hasattr(column, "flatten") else []


def _with_instants(kind: pa.DataType, leaves: Iterator[str]) -> pa.DataType:
    """Return a type with points in time where its parts that have none themselves lie as INT96."""
    types = pa.types
    if types.is_struct(kind):
        return pa.struct([one.with_type(_with_instants(one.type, leaves)) for one in kind])
    if types.is_map(kind):
        key = _with_instants(kind.key_type, leaves)
        return pa.map_(key, kind.item_field.with_type(_with_instants(kind.item_type, leaves)))
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_with_instants(kind.value_type, leaves)))
    return pa.timestamp("us", "UTC") if next(leaves) == "INT96" else kind


def _has_old_calendar(told: Mapping[bytes, bytes]) -> bool:
    """Whether Spark has written a file with the calendar of its versions before 3, as it can still be told to."""
    version = told.get(b"org.apache.spark.version", b"")
    return not _OLD_CALENDAR.isdisjoint(told) or version.startswith((b"1.", b"2."))


_OLD_CALENDAR = {b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96"}


def _check_calendar(batch: pa.RecordBatch, where: object) -> None:
    """Raise SamzaError where rows of a file with the older calendar hold what is another date or time in this one.

    Dates are before 1582-10-15, and times before 1900, as that calendar goes by time zones then.
    """
    old = [name for name, column in zip(batch.schema.names, batch.columns, strict=True) if _is_old(column)]
    if old:
        raise SamzaError(
            f"{where} has dates before 1582-10-15 or times before 1900 in the column {old[0]!r}, and says that they "
            "are of the calendar of Spark before 3.0, in which these are others: let Spark write it anew, "
            "session.read.parquet(...).write.parquet(...), or bind such a DataFrame in a run on Spark"
        )


def _is_old(column: pa.Array) -> bool:
    """Whether a column holds such dates or times, at any depth."""
    kind, types = column.type, pa.types
    if types.is_struct(kind):
        return any(map(_is_old, column.flatten()))
    if types.is_map(kind):
        return _is_old(column.keys) or _is_old(column.items)
    if types.is_list(kind) or types.is_large_list(kind):
        return _is_old(column.flatten())
    if not (types.is_date(kind) or types.is_timestamp(kind)):
        return False
    first = dt.date(1582, 10, 15) if types.is_date(kind) else dt.datetime(1900, 1, 1, tzinfo=kind.tz and dt.UTC)
    return pc.any(pc.less(column, pa.scalar(first, kind))).as_py() is True


@contextmanager
def columns_needed(where: object) -> Iterator[None]:
    """Raise SerdeError where rows are written that hold records without fields, which Parquet has not."""
    try:
        yield
    except pa.ArrowNotImplementedError as error:
        raise SerdeError(
            f"a value of {where} has no columns, as an empty dict: {error}; declare the output's value as a Struct "
            "whose field says what is in it, as dict[str, int], or leave it out"
        ) from error


def without_names(kind: pa.DataType) -> bool:
    """Whether values of a column hold maps by keys that no text stands for, which records can't have.

    >>> without_names(pa.map_(pa.date32(), pa.int64())), without_names(pa.list_(pa.map_(pa.bool_(), pa.int64())))
    (False, True)
    """
    if pa.types.is_map(kind):
        key = kind.key_type
        return pa.types.is_boolean(key) or pa.types.is_nested(key) or without_names(kind.item_type)
    parts = range(kind.num_fields) if pa.types.is_nested(kind) else ()
    return any(without_names(kind.field(place).type) for place in parts)


def differences_of_value(kind: object, column: str, found: ColumnType) -> list[FieldDifference]:
    """Return what is different where one column gives values of a plain type."""
    return [*_of(inspect.type_info(kind), found, column)]


def _in_columns(kind: inspect.Type, columns: Mapping[str, ColumnType], where: str) -> Iterator[FieldDifference]:
    if isinstance(kind, inspect.DictType):
        for name, found in columns.items():
            yield from _of(kind.value_type, found, f"{where}{name}")
    for field in getattr(kind, "fields", ()):
        name = field.encode_name
        if name in columns:
            yield from _of(field.type, columns[name], f"{where}{name}")
        elif field.required:
            like = next((one for one in columns if one.lower() == name.lower()), None)
            yield FieldDifference(
                f"{where}{name}", told(field.type), "no such column" + (f", but {like}" if like else "")
            )


def _of(wanted: inspect.Type, found: ColumnType, where: str) -> Iterator[FieldDifference]:
    """Yield what is different in the place of a field."""
    kinds = alternatives(wanted)
    if not any(_takes(kind, found) for kind in kinds):
        yield FieldDifference(where, told(wanted), str(found))
        return
    # Of several types that take a column as a whole, the one that differs least within is meant.
    within = [[*_within(kind, found, where)] for kind in kinds if _takes(kind, found)]
    yield from min(within, key=len)


def _within(kind: inspect.Type, found: ColumnType, where: str) -> Iterator[FieldDifference]:
    if isinstance(found, str):
        return
    if isinstance(kind, inspect.CollectionType) and pa.types.is_list(found):
        yield from _of(kind.item_type, found.value_type, f"{where}[]")
    elif isinstance(kind, inspect.TupleType) and pa.types.is_list(found):
        for item in kind.item_types:
            yield from _of(item, found.value_type, f"{where}[]")
    elif isinstance(kind, inspect.DictType) and pa.types.is_map(found):
        yield from _of(kind.key_type, found.key_type, f"{where}{{}}")
        yield from _of(kind.value_type, found.item_type, f"{where}[]")
    elif pa.types.is_struct(found):
        yield from _in_columns(kind, {one.name: one.type for one in found}, f"{where}.")


_TEXTS = (
    *(inspect.StrType, inspect.BytesType, inspect.DateTimeType, inspect.DateType, inspect.TimeType),
    *(inspect.TimeDeltaType, inspect.DecimalType, inspect.UUIDType, inspect.EnumType, inspect.LiteralType),
)
"""The types that JSON has as text, and that are read of columns of text, too."""


def _takes(kind: inspect.Type, found: ColumnType) -> bool:
    """Whether values of a type are read of a column, as far as the column as a whole tells."""
    if isinstance(kind, inspect.AnyType | inspect.CustomType | inspect.RawType):
        return not isinstance(found, str)
    if isinstance(found, str):
        return False
    types = pa.types
    if types.is_null(found):
        return isinstance(kind, inspect.NoneType)
    if types.is_string(found) or types.is_large_string(found):
        return isinstance(kind, _TEXTS)
    if types.is_struct(found):
        return hasattr(kind, "fields") or isinstance(kind, inspect.DictType)
    taking = next(taking for holds, taking in _COLUMNS if holds(found))
    if isinstance(kind, inspect.DateTimeType) and types.is_timestamp(found):
        return kind.tz is None or kind.tz == (found.tz is not None)
    return isinstance(kind, taking)


_COLUMNS = (
    (pa.types.is_boolean, (inspect.BoolType,)),
    (
        pa.types.is_integer,
        (inspect.IntType, inspect.FloatType, inspect.DecimalType, inspect.EnumType, inspect.LiteralType),
    ),
    (pa.types.is_floating, (inspect.FloatType,)),
    (pa.types.is_decimal, (inspect.DecimalType,)),
    (lambda one: pa.types.is_binary(one) or pa.types.is_large_binary(one), (inspect.BytesType,)),
    (pa.types.is_date, (inspect.DateType,)),
    (pa.types.is_timestamp, ()),
    (pa.types.is_time, (inspect.TimeType,)),
    (pa.types.is_duration, (inspect.TimeDeltaType,)),
    (pa.types.is_list, (inspect.CollectionType, inspect.TupleType)),
    (pa.types.is_map, (inspect.DictType,)),
    (lambda one: True, ()),
)
"""The types that are read of columns, by the kind of these; what is none of them nothing is read of."""


def told(kind: inspect.Type) -> str:
    """Return a type as it is written in a program, about.

    >>> told(inspect.type_info(dict[str, list[int] | None]))
    'dict[str, list[int] | None]'
    """
    kinds = alternatives(kind)
    if len(kinds) != 1:
        return " | ".join(map(told, kinds))
    (kind,) = kinds
    if isinstance(kind, inspect.DateTimeType):
        return {None: "datetime", True: "datetime with a time zone", False: "datetime without a time zone"}[kind.tz]
    if isinstance(kind, inspect.DictType):
        return f"dict[{told(kind.key_type)}, {told(kind.value_type)}]"
    name = type(kind).__name__.removesuffix("Type").lower()
    if isinstance(kind, inspect.CollectionType):
        return f"{name}[{told(kind.item_type)}]"
    own = getattr(kind, "cls", None)
    return own.__name__ if own is not None else {"none": "None", "decimal": "Decimal", "any": "Any"}.get(name, name)
