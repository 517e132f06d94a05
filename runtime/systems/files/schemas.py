"""Columns held against a declared type, before a row is read; one of the homes of pyarrow, so import it late."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import inspect

from operators.core.declared_types import types_in
from operators.core.wording import type_named
from runtime.encoding.formats.rows import ANY_KEY, Columns, alternatives, check_names, column_types, fields_wanted
from runtime.encoding.value_types import reads_text_as_bytes
from runtime.model.errors import SamzaError, SerdeError

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
    """Raise SamzaError for records without fields, of which there are no columns."""
    names = ""
    with suppress(TypeError):  # of one that msgspec does not know nothing is said
        empty = [one for one in types_in(kind) if isinstance(one, _RECORDS) and not one.fields]
        names = ", ".join(one.cls.__name__ for one in empty if not getattr(one, "tag", None))
    if names:
        raise SamzaError(f"{where}: {names} has no fields, and so no columns: give it one, or leave it out")


def batches_in(
    file: pq.ParquetFile, at_once: int, groups: Iterable[int], columns: list[str] | None, where: object
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of row groups of a file of Parquet, some of its columns or all.

    Points in time that Spark writes as INT96 are in UTC, as Spark reads them: Arrow takes them for local ones. Raises
    SamzaError for dates and times that are others there than they say.
    """
    has_old_calendar = _has_old_calendar(file.metadata.metadata or {})
    kinds: dict[str, pa.DataType] = {}
    if b"ARROW:schema" not in (file.metadata.metadata or {}):  # which says itself what Arrow has written
        leaves = (file.schema.column(place).physical_type for place in range(len(file.schema)))
        kinds = {one.name: _with_instants(one.type, leaves) for one in file.schema_arrow}
    for batch in file.iter_batches(at_once, row_groups=groups, columns=columns):
        wanted = pa.schema([one.with_type(kinds.get(one.name, one.type)) for one in batch.schema])
        found = batch if batch.schema == wanted else batch.cast(wanted)
        if has_old_calendar:
            _check_calendar(found, where)
        yield found


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
