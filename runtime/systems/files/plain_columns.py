"""Values made of whole columns, and columns of values, where that is the same row by row; import it late: pyarrow."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from msgspec import inspect

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


_HELD: dict[str, tuple[pa.DataType, frozenset[type]]] = {
    "int": (pa.int64(), frozenset({int})),
    "float": (pa.float64(), frozenset({float, int})),
    "str": (pa.string(), frozenset({str})),
    "bool": (pa.bool_(), frozenset({bool})),
    "bytes": (pa.binary(), frozenset({bytes})),
    "date": (pa.date32(), frozenset({dt.date})),
    "duration": (pa.duration("us"), frozenset({dt.timedelta})),
    "time": (pa.timestamp("us", "UTC"), frozenset({dt.datetime})),
    "instant": (pa.timestamp("us", "UTC"), frozenset({dt.datetime})),
    "local": (pa.timestamp("us"), frozenset({dt.datetime})),
}
"""By plain type, that of its column, and those of the values that may lie there as they are."""
_TIMES = {"time", "instant", "local"}
"""The plain types whose values have a time zone, or have none."""


class RecordColumns(NamedTuple):
    """The fields of a Struct, each plain or such a Struct itself, by which records are taken apart into columns."""

    kind: type
    names: tuple[str, ...]
    fields: tuple[PlainField | RecordColumns, ...]

    @classmethod
    def of(cls, kind: object) -> RecordColumns | None:
        """Return those of a type; None where its records are more than plain fields."""
        return _record_columns(kind)

    def taking(self) -> Callable[[Any], tuple[Any, ...] | None]:
        """Return what takes a record apart, as deep as it goes: what becomes of the record later changes no part.

        It is only asked of records of just this kind, and returns None where one within is of another.
        """
        nested = {place: one.taking() for place, one in enumerate(self.fields) if isinstance(one, RecordColumns)}
        kinds = {place: one.kind for place, one in enumerate(self.fields) if isinstance(one, RecordColumns)}
        if not nested:
            return msgspec.structs.astuple

        def taken(record: Any) -> tuple[Any, ...] | None:
            parts = [*msgspec.structs.astuple(record)]
            for place, take in nested.items():
                if type(parts[place]) is not kinds[place] or (within := take(parts[place])) is None:
                    return None
                parts[place] = within
            return tuple(parts)

        return taken

    def made(self, parts: tuple[Any, ...]) -> Any:
        """Return the record that was taken apart."""
        values = [
            one.made(part) if isinstance(one, RecordColumns) else part
            for one, part in zip(self.fields, parts, strict=True)
        ]
        return self.kind(**dict(zip(self.kind.__struct_fields__, values, strict=True)))  # type: ignore[attr-defined]

    def arrays(self, rows: Sequence[tuple[Any, ...]]) -> list[pa.Array]:
        """Return the columns of rows that were taken apart; raises UnlikeDeclared where one holds something else."""
        assert rows, "a column without rows has no type"
        return [_array(one, column) for one, column in zip(self.fields, zip(*rows, strict=True), strict=True)]


class UnlikeDeclared(Exception):
    """A value is not just what its field says: what becomes of it is for msgspec to say, row by row."""


def _array(field: PlainField | RecordColumns, column: tuple[Any, ...]) -> pa.Array:
    if isinstance(field, RecordColumns):
        return pa.StructArray.from_arrays(field.arrays(column), names=[*field.names])
    kind, held = _HELD[field.type]
    found = set(map(type, column))
    if not found <= (held | {type(None)} if field.optional else held):
        raise UnlikeDeclared
    # Where a type says nothing of zones, its times are instants if all of them have one.
    if field.type in _TIMES and any(
        one is not None and (one.tzinfo is None) != (field.type == "local") for one in column
    ):
        raise UnlikeDeclared
    try:
        return pa.array(column, kind)
    except (pa.ArrowException, OverflowError, ValueError) as error:  # an int too large, or text that is none
        raise UnlikeDeclared from error


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
    assert tuple(field.name for field in info.fields) == info.cls.__struct_fields__, "records are taken apart in order"
    return RecordColumns(info.cls, tuple(field.encode_name for field in info.fields), tuple(found))
