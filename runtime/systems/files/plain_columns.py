"""Values made of whole columns, and columns of values, where that is the same row by row; import it late: pyarrow."""

from __future__ import annotations

import datetime as dt
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from keyword import iskeyword
from typing import Annotated, Any, NamedTuple, cast

import msgspec
import pyarrow as pa
from msgspec import inspect

from runtime.encoding.record_types import fields_of, is_pydantic, is_record

_PLAIN = {
    "int": inspect.IntType(),
    "float": inspect.FloatType(),
    "str": inspect.StrType(),
    "bool": inspect.BoolType(),
    "bytes": inspect.BytesType(),
    "date": inspect.DateType(),
    "duration": inspect.TimeDeltaType(),
    "time": inspect.DateTimeType(),
    "instant": inspect.DateTimeType(tz=True),
    "local": inspect.DateTimeType(tz=False),
}
"""What msgspec knows of types that are no more than their name says: a limit or a pattern is looked at row by row."""


class PlainField(NamedTuple):
    """A field of a Struct whose values are those of a column: of one plain type, or None as well."""

    column: str
    type: str
    optional: bool


def values_in(table: pa.RecordBatch | pa.Table, kind: object) -> list[Any] | None:
    """Return the values of rows; None where their columns may not hold just what a type says, or say more.

    Structs are made by their own constructor, of fields that are int, float, str or bool, or one of these or None.
    Where any JSON object will do, rows are dicts.
    """
    names, types = table.schema.names, [type_of(one) for one in table.schema.types]
    if len(set(names)) < len(names):
        return None
    if kind in (Any, dict, dict[str, Any]):
        return table.to_pylist() if None not in types else None
    fields = _fields_of(kind)
    if fields is None or not {field.column for field in fields} <= set(names):
        return None
    columns = []
    for field in fields:
        column, found = table.column(field.column), types[names.index(field.column)]
        if found == "int" and field.type == "float":
            try:
                column = column.cast(pa.float64())
            except pa.ArrowInvalid:  # an int that is no float: what msgspec makes of it is not Arrow's to say
                return None
        elif found != field.type:
            return None
        if column.null_count and not field.optional:
            return None
        columns.append(column.to_pylist())
    assert isinstance(kind, type)
    return list(map(kind, *columns))


def type_of(kind: pa.DataType) -> str | None:
    """Return what Python reads of a column, where that is plain."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_integer(kind):
        return "int"
    if pa.types.is_float32(kind) or pa.types.is_float64(kind):
        return "float"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "str"
    return "bool" if pa.types.is_boolean(kind) else None


@lru_cache
def _fields_of(kind: object) -> tuple[PlainField, ...] | None:
    """Return the fields of a Struct in the order of its constructor, where its making is msgspec's work alone."""
    if type(kind) is not type(msgspec.Struct) or kind.__struct_config__.tag is not None:
        return None
    info = inspect.type_info(kind)
    if not isinstance(info, inspect.StructType) or info.forbid_unknown_fields or info.array_like:
        return None
    if len(kind.__match_args__) != len(info.fields) or not info.fields:
        return None
    fields = [_plain_field(field) for field in info.fields]
    return None if None in fields else tuple(field for field in fields if field is not None)


def _plain_field(field: inspect.Field) -> PlainField | None:
    kinds = [*field.type.types] if isinstance(field.type, inspect.UnionType) else [field.type]
    plain = [one for one in kinds if not isinstance(one, inspect.NoneType)]
    if len(plain) != 1:
        return None
    name = next((name for name, known in _PLAIN.items() if known == plain[0]), None)
    return None if name is None else PlainField(field.encode_name, name, len(kinds) > 1)


_pack = msgspec.msgpack.Encoder().encode
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_INSTANT = (pa.timestamp("us", "UTC"), Annotated[dt.datetime, msgspec.Meta(tz=True)])
_LOCAL = (pa.timestamp("us"), Annotated[dt.datetime, msgspec.Meta(tz=False)])
_HELD: dict[str, tuple[tuple[pa.DataType, Any], ...]] = {
    "int": ((pa.int64(), int),),
    "float": ((pa.float64(), float),),
    "str": ((pa.string(), str),),
    "bool": ((pa.bool_(), bool),),
    "bytes": ((pa.binary(), bytes),),
    "date": ((pa.date32(), dt.date),),
    "duration": ((pa.duration("us"), dt.timedelta),),
    # Where a type says nothing of zones, its times are instants if all of them have one.
    "time": (_INSTANT, _LOCAL),
    "instant": (_INSTANT,),
    "local": (_LOCAL,),
}
"""By plain type, those that its column may have, each with what msgspec calls it."""
AT_ONCE = 8_192
"""The records that become columns at once: what is made of them on the way stays in the processor's caches."""


class RecordColumns(NamedTuple):
    """The fields of a Struct, each plain or such a Struct itself, by which records become columns."""

    kind: type
    attributes: tuple[str, ...]
    names: tuple[str, ...]
    fields: tuple[PlainField | RecordColumns, ...]

    @classmethod
    def of(cls, kind: object) -> RecordColumns | None:
        """Return those of a type; None where its records are more than plain fields."""
        return _record_columns(kind)

    def batches(self, records: Sequence[Any]) -> list[pa.RecordBatch]:
        """Return records as columns; raises UnlikeDeclared where one holds something else."""
        parts = (records[start : start + AT_ONCE] for start in range(0, len(records), AT_ONCE))
        return [pa.RecordBatch.from_arrays(self._arrays(part), names=[*self.names]) for part in parts]

    def _arrays(self, records: Sequence[Any]) -> list[pa.Array]:
        if [*map(type, records)].count(self.kind) < len(records):
            raise UnlikeDeclared
        return [
            pa.StructArray.from_arrays(field._arrays(column), names=[*field.names])
            if isinstance(field, RecordColumns)
            else _array(field, column)
            for field, column in zip(self.fields, _getter(self.attributes)(records), strict=True)
        ]


def fields_in(records: Sequence[Any], kind: object) -> dict[str, list[Any]] | None:
    """Return what each field of records holds; None where they are not just records of one kind, without a tag."""
    if not records or [*map(type, records)].count(kind) < len(records):  # type: ignore[arg-type]  # Any is no type
        return None
    if type(kind) is type(msgspec.Struct) and kind.__struct_config__.tag is None:
        attributes, names = kind.__struct_fields__, kind.__struct_encode_fields__
    elif is_record(kind) and not is_pydantic(kind) and type(kind) is not type(msgspec.Struct):
        attributes = names = tuple(field.name for field in fields_of(kind))
    else:
        return None
    with suppress(AttributeError):  # a field that was never set
        return dict(zip(names, _getter(attributes)(records), strict=True))
    return None


class UnlikeDeclared(Exception):
    """A value is not just what its field says: what becomes of it is for msgspec to say, row by row."""


def _array(field: PlainField, column: list[Any]) -> pa.Array:
    try:
        _pack(column)  # which takes no value of a subclass, as it takes none in a row
    except (TypeError, OverflowError, ValueError) as error:
        raise UnlikeDeclared from error
    for kind, held in _HELD[field.type]:
        declared = list[held | None] if field.optional else list[held]  # type: ignore[valid-type]
        # What msgspec takes here, it takes of a row's bytes, and makes the same of it; each column is one call in C.
        with suppress(msgspec.ValidationError):
            values = msgspec.convert(column, declared, builtin_types=(bytes,))
            try:
                return _of_declared(values, kind, field.optional)
            except (pa.ArrowException, OverflowError, ValueError):  # an int too large, or text that is none
                break
    raise UnlikeDeclared


def _of_declared(values: list[Any], kind: pa.DataType, optional: bool) -> pa.Array:
    """Return a column of values of its type; what takes Arrow longest is done in less."""
    if kind == pa.int64() and not optional:
        return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(array("q", values))])
    if pa.types.is_timestamp(kind) and values and getattr(values[0], "tzinfo", dt.UTC) in (dt.UTC, None):
        epoch = _EPOCH if kind.tz else _EPOCH.replace(tzinfo=None)
        since = pa.array([None if value is None else value - epoch for value in values], pa.duration("us"))
        return since.view(pa.int64()).view(kind)
    return pa.array(values, kind)


@lru_cache
def _getter(names: tuple[str, ...]) -> Callable[[Sequence[Any]], tuple[list[Any], ...]]:
    """Return what reads the fields of records, each by a loop of its own: half of what `attrgetter` takes."""
    if not all(name.isidentifier() and not iskeyword(name) for name in names):
        return lambda records: tuple([getattr(record, name) for record in records] for name in names)
    lists = (f"[record.{name} for record in records]," for name in names)
    return cast("Callable[[Sequence[Any]], tuple[list[Any], ...]]", eval(f"lambda records: ({''.join(lists)})"))


@lru_cache
def _record_columns(kind: object) -> RecordColumns | None:
    return _columns_of(inspect.type_info(kind)) if type(kind) is type(msgspec.Struct) else None


def _columns_of(info: inspect.Type, nested: bool = False) -> RecordColumns | None:
    if not isinstance(info, inspect.StructType) or info.array_like or info.tag is not None or not info.fields:
        return None
    if type(info.cls) is not type(msgspec.Struct) or (nested and info.cls.__struct_config__.omit_defaults):
        return None
    found: list[PlainField | RecordColumns] = []
    for field in info.fields:
        one = _plain_field(field) or _columns_of(field.type, nested=True)
        if one is None:
            return None
        found.append(one)
    names = tuple(field.name for field in info.fields)
    assert names == info.cls.__struct_fields__, "a record's fields are read in order"
    return RecordColumns(info.cls, names, tuple(field.encode_name for field in info.fields), tuple(found))
