"""Records as rows of named fields, which is what CSV and Parquet hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, cast

import msgspec
from msgspec import inspect

from operators.core.base import Serde
from runtime.encoding.record_types import is_pydantic, is_record, values_of
from runtime.encoding.serdes import Bytes, Json, MessagePack, String, Tagged
from runtime.encoding.value_types import as_plain, json_told, made_of_plain
from runtime.model.errors import SamzaError, SerdeError

NESTED = (
    inspect.CollectionType,
    inspect.TupleType,
    inspect.DictType,
    inspect.StructType,
    inspect.DataclassType,
    inspect.TypedDictType,
    inspect.NamedTupleType,
)
VALUE = "value"
"""The column of a plain value, where such are rows."""


@dataclasses.dataclass(frozen=True)
class RowSerde:
    """MessagePack of records that have fields: what the sinks of rows are given.

    Where values are `plain`, each is the only field of its row.

    >>> RowSerde().encode(3)
    Traceback (most recent call last):
        ...
    runtime.model.errors.SerdeError: a int is no row: make the value a msgspec Struct, a dataclass, or a dict...
    """

    type: object = Any
    plain: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "decode", msgspec.msgpack.Decoder(self.type, dec_hook=made_of_plain).decode)
        object.__setattr__(self, "_pack", msgspec.msgpack.Encoder(enc_hook=as_plain).encode)

    decode: Callable[[bytes], object] = dataclasses.field(init=False, repr=False, compare=False)

    def encode(self, value: object) -> bytes:
        """Return the bytes of `value`; raises SerdeError when it has no named fields, and is not to be plain."""
        if type(value) is self.type and isinstance(value, msgspec.Struct):
            return self._pack(value)
        if self.plain:
            return self._pack({VALUE: value})
        row = row_of(value)
        return self._pack(row if self.type is Any else value)

    _pack: Callable[[object], bytes] = dataclasses.field(init=False, repr=False, compare=False)


class Model(Protocol):
    """A model of pydantic, which nothing here imports."""

    def model_dump(self, *, by_alias: bool) -> dict[str, object]:
        """Return its fields by name."""


def row_of(value: object) -> dict[str, object]:
    """Return the fields of a record by name; raises SerdeError when it has none.

    >>> row_of({"carrier": "AA"})
    {'carrier': 'AA'}
    """
    if isinstance(value, dict):
        return value
    if isinstance(value, msgspec.Struct):
        config = value.__struct_config__
        tag = {} if config.tag is None else {str(config.tag_field): config.tag}
        values = (getattr(value, name) for name in value.__struct_fields__)
        return tag | dict(zip(value.__struct_encode_fields__, values, strict=True))
    kind: type = type(value)
    if is_pydantic(kind):
        return cast("Model", value).model_dump(by_alias=True)
    if is_record(kind):
        return values_of(value)
    raise SerdeError(
        f"a {type(value).__name__} is no row: make the value a msgspec Struct, a dataclass, or a dict with names, "
        "or bind the output to JSON lines"
    )


def without_value(where: object) -> SerdeError:
    """Return the error that a record without a value is no row."""
    return SerdeError(f"{where}: a record without a value has no row in a file: filter such records out")


def type_of_rows(declared: Serde) -> object:
    """Return the type whose fields are the columns; None where the serde says more than the type of its values."""
    return declared.type if isinstance(declared, Json | MessagePack | Tagged) else None


def type_of_values(declared: Serde) -> object:
    """Return the type of values that may be plain; None where the serde says more than that.

    >>> type_of_values(String()), type_of_values(Json(int))
    (<class 'str'>, <class 'int'>)
    """
    return declared.type if isinstance(declared, String | Bytes) else type_of_rows(declared)


def columns_of(kind: object) -> list[str] | None:
    """Return the columns that values are written as; None where these are not said."""
    return fields_wanted(kind) if has_columns(kind) else [VALUE]


def row_type(kind: object) -> object:
    """Return the type of rows as which values are written.

    >>> row_type(int)
    dict[str, int]
    """
    if has_columns(kind):
        return kind
    return dict[str, kind]  # type: ignore[valid-type]  # a type that is known as the application runs


def rows_of(declared: Serde, where: object, plain: bool = False) -> RowSerde:
    """Return what a sink of rows is written with, `plain` values too where it says so.

    Raises SamzaError where the declared serde can't be replaced.
    """
    if plain and (kind := type_of_values(declared)) is not None and not has_columns(kind):
        return RowSerde(row_type(kind), plain=True)
    kind = type_of_rows(declared)
    if kind is None:
        raise SamzaError(
            f"{where} holds rows of named fields, which {declared!r} does not make: declare the output's value as a "
            "msgspec Struct or a dataclass, or bind it to JSON lines"
        )
    return RowSerde(kind)


def column_types(kind: object, names: Iterable[str]) -> Mapping[str, inspect.Type]:
    """Return what msgspec knows about each named column of `kind`, a record type or a union of such.

    >>> column_types(dict[str, bool], ["late"])
    {'late': BoolType()}
    """
    known: dict[str, inspect.Type] = {}
    other: inspect.Type = inspect.AnyType()
    for member in alternatives(inspect.type_info(kind)):
        if isinstance(member, inspect.DictType):
            other = member.value_type
        for field in getattr(member, "fields", ()):
            known.setdefault(field.encode_name, field.type)
    return {name: known.get(name, other) for name in names}


def model_names(kind: Any) -> list[str]:
    """Return the names by which a model of pydantic reads its fields, where each has one; of any other type none."""
    if not isinstance(kind, type) or not is_pydantic(kind):
        return []
    fields: Mapping[str, Any] = kind.model_fields
    names = [name if one.validation_alias is None else one.validation_alias for name, one in fields.items()]
    return [name for name in names if isinstance(name, str)]


def converted(plain: Any, kind: Any, rows: Sequence[Any], strict: bool = True) -> Any:
    """Return plain values as a type; texts of `rows` that a model of pydantic refuses are what they say as JSON.

    Only then: a model's own validators may read text, as of `a|b` or of `Json`.
    """
    while True:
        try:
            return msgspec.convert(plain, kind, strict=strict, str_keys=True, dec_hook=made_of_plain)
        except msgspec.ValidationError as error:
            # Each row is told of by itself, and its names by those that are refused with them.
            if not _read_within(error, rows):
                raise


def _read_within(error: BaseException, rows: Sequence[Any]) -> bool:
    """Replace texts that a model has refused by the objects and lists that they say; return whether there were such."""
    cause: Any = error.__cause__
    if not hasattr(cause, "error_count"):
        return False  # none of pydantic's, which nothing here imports
    refused = {str(one["loc"][0]) for one in cause.errors(include_url=False) if one["loc"]}
    is_changed = False
    for row in rows:
        for name in refused.intersection(row) if isinstance(row, dict) else ():
            if isinstance(row[name], str) and row[name][:1].strip() in ("[", "{"):
                with suppress(msgspec.DecodeError):
                    row[name] = json_told(row[name])
                    is_changed = True
    return is_changed


def nested_in(kind: Any, names: Sequence[str]) -> tuple[str, ...]:
    """Return the named columns whose values hold others, and are never text: where text is found, that is their JSON.

    >>> nested_in(dict[str, list[int] | None], ["all"]), nested_in(dict[str, list[int] | str], ["all"])
    (('all',), ())
    """
    columns = {name: alternatives(info) for name, info in column_types(kind, names).items()}
    return tuple(
        name
        for name, kinds in columns.items()
        if any(isinstance(one, NESTED) for one in kinds)
        and all(isinstance(one, (inspect.NoneType, *NESTED)) for one in kinds)
    )


def has_columns(kind: object) -> bool:
    """Whether a type's values may be read of rows of named columns.

    >>> has_columns(dict[str, int]), has_columns(int), has_columns(list[str])
    (True, False, False)
    """
    of_rows = (inspect.AnyType, inspect.DictType, inspect.CustomType)
    found = alternatives(inspect.type_info(kind))
    return any(hasattr(one, "fields") or isinstance(one, of_rows) for one in found)


def fields_wanted(kind: object) -> list[str] | None:
    """Return the names of the columns that a type's values have; None where these are not said, and all are taken."""
    found = alternatives(inspect.type_info(kind))
    if not all(hasattr(one, "fields") or isinstance(one, inspect.NoneType) for one in found):
        return None
    tags = [str(tag) for one in found if (tag := getattr(one, "tag_field", None)) is not None]
    return [*dict.fromkeys([*tags, *(field.encode_name for one in found for field in getattr(one, "fields", ()))])]


def alternatives(info: inspect.Type) -> tuple[inspect.Type, ...]:
    """Return the types of a union, or the type alone, without annotations."""
    if isinstance(info, inspect.Metadata):
        return alternatives(info.type)
    if isinstance(info, inspect.UnionType):
        return tuple(member for each in info.types for member in alternatives(each))
    return (info,)
