"""Values made of whole columns, where that comes to the same as row by row; a home of pyarrow: import it late."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from msgspec import inspect

_PLAIN = {"int": inspect.IntType(), "float": inspect.FloatType(), "str": inspect.StrType(), "bool": inspect.BoolType()}
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
