"""Records as rows of named fields, which is what CSV and Parquet hold."""

from __future__ import annotations

import dataclasses
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias, cast, get_origin

import msgspec
from msgspec import inspect

from operators.core.base import Serde
from operators.core.declared_types import type_info, types_in
from operators.core.wording import type_named
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
Columns: TypeAlias = Mapping[str, "Columns"]
ANY_KEY = "{}"
"""Stands for the keys of a map among the names of columns, each of which has the same within it."""
"""The names of columns, each with those of the records that it holds, or that its lists do; none of other columns."""
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
    for member in alternatives(type_info(kind)):
        if isinstance(member, inspect.DictType):
            other = member.value_type
        for field in getattr(member, "fields", ()):
            known.setdefault(field.encode_name, field.type)
    return {name: known.get(name, other) for name in names}


def columns_of_model(kind: Any) -> dict[str, inspect.Type]:
    """Return the columns that a model of pydantic is written as, and what msgspec knows of each; of others none."""
    fields: Mapping[str, Any] = kind.model_fields if is_pydantic(kind) else {}
    return {
        one.serialization_alias or one.alias or name: inspect.type_info(one.annotation)
        for name, one in fields.items()
        if not one.exclude
    }


class ReadField(NamedTuple):
    """A field of a record, with the names of which it is read by the first that is there."""

    names: tuple[str, ...]
    required: bool
    type: inspect.Type


class Misnamed(NamedTuple):
    """A field that no column is named as, and the column that is almost named so."""

    field: str
    column: str


def fields_read(kind: inspect.Type) -> list[ReadField]:
    """Return the fields that a record type or a model of pydantic reads by name; of any other type none."""
    if isinstance(kind, inspect.CustomType) and is_pydantic(kind.cls):
        return _fields_of_model(kind.cls)
    fields: Sequence[inspect.Field] = getattr(kind, "fields", ())
    return [ReadField((one.encode_name,), one.required, one.type) for one in fields]


def _fields_of_model(kind: Any) -> list[ReadField]:
    """Return the fields of a model, none where functions of its own see what is there before they are read."""
    if any(one.info.mode != "after" for one in kind.__pydantic_decorators__.model_validators.values()):
        return []
    config: Mapping[str, object] = kind.model_config
    by_name = bool(config.get("populate_by_name") or config.get("validate_by_name"))
    found = []
    for name, one in kind.model_fields.items():
        said = one.validation_alias
        # One name, several of which any will do, or the path to a value, which begins with one.
        said = [said] if isinstance(said, str) else getattr(said, "choices", [] if said is None else [said])
        aliases = [each if isinstance(each, str) else each.path[0] for each in said]
        names = (*aliases, *([name] if by_name or not aliases else ()))
        found.append(ReadField(names, one.is_required(), inspect.AnyType()))
    return found


def misnamed(kind: inspect.Type, columns: Columns, where: str = "") -> Iterator[Misnamed]:
    """Yield the fields, also nested ones, that are not there while a column is named so but for case and signs.

    >>> from collections import namedtuple
    >>> kind = inspect.type_info(namedtuple("Order", ["order_id", "total"]))
    >>> [*misnamed(kind, {"OrderId": {}, " total": {}})]
    [Misnamed(field='order_id', column='OrderId'), Misnamed(field='total', column=' total')]
    """
    if not columns:
        return
    members = alternatives(kind)
    fields = [field for member in members for field in fields_read(member)]
    for member in members:
        if isinstance(member, inspect.CollectionType):
            yield from misnamed(member.item_type, columns, f"{where}[]")
        elif isinstance(member, inspect.DictType):
            for name, within in columns.items():
                yield from misnamed(member.value_type, within, f"{where}.{name}".lstrip("."))
    own = {name for field in fields for name in field.names}
    others = {_bare(name): name for name in columns if name not in own}
    for names, _, of in fields:
        there = next((name for name in names if name in columns), None)
        if there is not None:
            yield from misnamed(of, columns[there], f"{where}.{there}" if where else there)
        elif like := next((found for name in names if (found := others.get(_bare(name))) is not None), None):
            yield Misnamed(f"{where}.{names[0]}" if where else names[0], like)


def check_names(kind: object, columns: Columns, where: object) -> None:
    """Raise SamzaError where fields would be missing in each row, as columns are named almost as they are, or none is.

    Fields that have a default would have it in each row, without a word.
    """
    if wrong := wrong_names(kind, columns):
        raise SamzaError(f"{where} {wrong}")


def wrong_names(kind: object, columns: Columns) -> str:
    """Return what is wrong with the names of columns that are read as a type; "" where nothing is.

    >>> kind = msgspec.defstruct("Order", [("cents", int, 0)])
    >>> wrong_names(kind, {"Cents": {}})
    "has 'Cents' where 'cents' is read, so that that field is not there: ..."
    >>> wrong_names(kind, {"price": {}})
    'has price, and nothing of cents, so that all fields would be their defaults: ...'
    """
    info = type_info(kind)
    if found := [*misnamed(info, columns)]:
        listed = ", ".join(f"{one.column!r} where {one.field!r} is read" for one in found)
        return (
            f"has {listed}, so that that field is not there: rename it, or say how it is written: "
            f"msgspec.field(name={found[0].column!r}), or pydantic.Field(alias=...)"
        )
    members = [fields_read(one) for one in alternatives(info) if not isinstance(one, inspect.NoneType)]
    fields = [field for member in members for field in member]
    names = {name for field in fields for name in field.names}
    if not columns or not all(members) or columns.keys() & names or any(field.required for field in fields):
        return ""
    return (
        f"has {', '.join(columns)}, and nothing of {', '.join(sorted(names))}, so that all fields would be their "
        "defaults: rename what there is, or declare it"
    )


def wrong_names_of(kind: object, data: object) -> str:
    """Return what is wrong with the names in a record, a dict or one as JSON; "" where nothing is, or it is neither.

    >>> wrong_names_of(msgspec.defstruct("Order", [("cents", int, 0)]), b'{"CENTS": 5}')
    "has 'CENTS' where 'cents' is read, ..."
    """
    try:
        told = msgspec.json.decode(data) if isinstance(data, bytes) else data
        return wrong_names(kind, columns_of_record(told)) if isinstance(told, dict) else ""
    # What can't be read is for whoever reads it to tell; and it may lie deeper than Python calls.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


def columns_of_record(value: object) -> Columns:
    """Return the names in a plain value, and in what it holds: of a list those of its first element.

    >>> columns_of_record({"id": 1, "lines": [{"cents": 5}]})
    {'id': {}, 'lines': {'cents': {}}}
    """
    if isinstance(value, list):
        return columns_of_record(value[0]) if value else {}
    return {str(name): columns_of_record(one) for name, one in value.items()} if isinstance(value, dict) else {}


def _bare(name: str) -> str:
    """Return a name without what is easily written otherwise: case, spaces, signs, and marks that nobody sees."""
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", name).casefold())) or name


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
        if any(map(_is_nested, kinds)) and all(isinstance(one, inspect.NoneType) or _is_nested(one) for one in kinds)
    )


def _is_nested(kind: inspect.Type) -> bool:
    """Whether values of a type hold others; a model of pydantic does but for one that stands for a plain value."""
    if isinstance(kind, inspect.CustomType) and is_pydantic(kind.cls):
        return not getattr(kind.cls, "__pydantic_root_model__", False)
    return isinstance(kind, NESTED)


def has_columns(kind: object) -> bool:
    """Whether a type's values may be read of rows of named columns.

    >>> has_columns(dict[str, int]), has_columns(int), has_columns(list[str])
    (True, False, False)
    """
    of_rows = (inspect.AnyType, inspect.DictType, inspect.CustomType)
    found = alternatives(type_info(kind))
    return any(hasattr(one, "fields") or isinstance(one, of_rows) for one in found)


def fields_wanted(kind: object) -> list[str] | None:
    """Return the names of the columns that a type's values have; None where these are not said, and all are taken."""
    found = alternatives(type_info(kind))
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


def unclear_keys(kinds: Iterable[inspect.Type]) -> Iterator[str]:
    """Yield the keys of TypedDicts among some types that may be None or not be there, which columns tell alike.

    >>> from typing import NotRequired, TypedDict
    >>> [*unclear_keys(types_in(list[TypedDict("Named", {"id": int, "name": NotRequired[str | None]})]))]
    ['Named.name']
    """
    for one in [each for each in kinds if isinstance(each, inspect.TypedDictType)]:
        for field in one.fields:
            if not field.required and any(isinstance(each, inspect.NoneType) for each in alternatives(field.type)):
                yield f"{one.cls.__name__}.{field.encode_name}"


def absent_keys(kind: object) -> frozenset[str]:
    """Return the keys of a TypedDict that are not there in a row whose column has None; of any other type none.

    >>> from typing import TypedDict
    >>> absent_keys(TypedDict("Named", {"name": str}, total=False))
    frozenset({'name'})
    """
    dicts = [one for one in alternatives(type_info(kind)) if isinstance(one, inspect.TypedDictType)]
    return frozenset(field.encode_name for one in dicts for field in one.fields if _lacks(field))


def without_absent(kind: inspect.Type) -> Callable[[Any], Any] | None:
    """Return what leaves out the keys of TypedDicts that rows lack: those that have None, as columns do, and can't.

    None where no TypedDict in a type may lack a key that can't be None.

    >>> from typing import TypedDict
    >>> without_absent(inspect.type_info(TypedDict("Named", {"id": int, "name": str}, total=False)))({"id": None})
    {}
    """
    dicts = [one for one in types_in(kind) if isinstance(one, inspect.TypedDictType)]
    return partial(_without_absent, kind) if any(not field.required for one in dicts for field in one.fields) else None


def _without_absent(kind: inspect.Type, plain: Any) -> Any:
    for one in alternatives(kind) if isinstance(plain, dict | list) else ():
        if isinstance(one, inspect.CollectionType) and isinstance(plain, list):
            return [_without_absent(one.item_type, each) for each in plain]
        if isinstance(one, inspect.TupleType) and isinstance(plain, list):
            return [*map(_without_absent, one.item_types, plain)]
        if isinstance(one, inspect.DictType) and isinstance(plain, dict):
            return {key: _without_absent(one.value_type, each) for key, each in plain.items()}
        fields = {field.encode_name: field for field in getattr(one, "fields", ())}
        tag = getattr(one, "tag", None)
        if isinstance(plain, dict) and fields and (tag is None or plain.get(getattr(one, "tag_field", None)) == tag):
            may_lack = isinstance(one, inspect.TypedDictType)
            return {
                name: each if name not in fields else _without_absent(fields[name].type, each)
                for name, each in plain.items()
                if each is not None or name not in fields or not may_lack or not _lacks(fields[name])
            }
    return plain


def _lacks(field: inspect.Field) -> bool:
    """Whether None in a column of a TypedDict's key can only mean that it is not there."""
    may_be_none = inspect.NoneType | inspect.AnyType
    return not field.required and not any(isinstance(one, may_be_none) for one in alternatives(field.type))


def leaves_out(info: inspect.Type) -> bool:
    """Whether a type has records that are written without what is as they have it by default."""
    structs = (get_origin(one.cls) or one.cls for one in types_in(info) if isinstance(one, inspect.StructType))
    return any(kind.__struct_config__.omit_defaults for kind in structs)


Fielded: TypeAlias = inspect.StructType | inspect.DataclassType | inspect.TypedDictType
"""A type whose values are records of named fields, of which a nested column has one each."""


def records_within(kind: Fielded, within: tuple[inspect.Type, ...]) -> tuple[inspect.Type, ...]:
    """Return the records that lie within each other, with one more; raises SerdeError for one that holds itself."""
    if any(kind is one for one in within):
        raise SerdeError(
            f"a {type_named(kind.cls)} holds itself, and a column can't: bind the output to JSON lines or Avro"
        )
    return *within, kind
