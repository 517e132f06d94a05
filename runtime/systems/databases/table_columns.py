"""The columns of a table that an output's type has, and rows of these from its values."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Literal

import msgspec
from msgspec import inspect

from runtime.encoding.formats.rows import VALUE, absent_keys, alternatives, columns_of_model, has_columns, row_of
from runtime.encoding.json_text import to_json
from runtime.encoding.record_types import is_pydantic
from runtime.encoding.value_types import json_told
from runtime.model.errors import SamzaError, SerdeError

ColumnKind = Literal[
    "bool", "int", "float", "text", "bytes", "instant", "local", "date", "time", "duration", "decimal", "uuid", "json"
]
Made = Callable[[Any], Any]
RowsMade = Callable[[Sequence[Any]], Iterator[tuple[object, ...]]]
_KINDS: tuple[tuple[type[inspect.Type], ColumnKind], ...] = (
    (inspect.BoolType, "bool"),
    (inspect.IntType, "int"),
    (inspect.FloatType, "float"),
    (inspect.StrType, "text"),
    (inspect.BytesType, "bytes"),
    (inspect.DateType, "date"),
    (inspect.TimeDeltaType, "duration"),
    (inspect.DecimalType, "decimal"),
    (inspect.UUIDType, "uuid"),
)


@dataclass(frozen=True)
class TableColumn:
    """A column of a table: what it holds, and whether it may be NULL.

    Records have it as their `attribute`; `make` makes its plain value of theirs, where that is another.
    """

    name: str
    kind: ColumnKind
    nullable: bool = False
    attribute: str = ""
    make: Made | None = field(default=None, compare=False, repr=False)


def columns_for(kind: Any, where: str) -> tuple[TableColumn, ...]:
    """Return the columns of values of a type; raises SamzaError where these are not said.

    >>> columns_for(int | None, "shop.db")
    (TableColumn(name='value', kind='int', nullable=False, attribute=''),)
    """
    if kind is not None and isinstance(kind, type) and is_pydantic(kind):
        return tuple(_column(name, info) for name, info in columns_of_model(kind).items())
    if kind is not None and not has_columns(kind):
        # Never NULL: a record without a value is a deletion.
        plain = _column(VALUE, inspect.type_info(kind))
        return (TableColumn(VALUE, plain.kind, make=plain.make),)
    found = [] if kind is None else [one for one in alternatives(inspect.type_info(kind)) if not _is_none(one)]
    if len(found) != 1 or not hasattr(found[0], "fields"):
        raise SamzaError(
            f"{where} holds rows of named columns, which the output's type does not say: declare its value as a "
            "msgspec Struct or a dataclass: app.output(..., value=Order)"
        )
    of: Any = found[0]
    tag = [TableColumn(str(of.tag_field), "text")] if getattr(of, "tag", None) is not None else []
    # Of a class a field that is not required has a default; of a TypedDict it may be absent.
    may_lack = isinstance(of, inspect.TypedDictType)
    return (*tag, *(_column(one.encode_name, one.type, one.name, may_lack and not one.required) for one in of.fields))


def rows_maker(columns: Sequence[TableColumn], adapted: Callable[[ColumnKind], Made | None], where: str) -> RowsMade:
    """Return what makes rows of values: tuples in the order of the columns, of what a database takes, one by one.

    >>> columns = [TableColumn("id", "int", attribute="id"), TableColumn("note", "text")]
    >>> make = rows_maker(columns, lambda kind: None, "shop.db")
    >>> [*make([{"id": 1, "note": "a"}])]
    [(1, 'a')]
    """
    makers = [(place, _composed(column.make, adapted(column.kind))) for place, column in enumerate(columns)]
    needed = [(place, make) for place, make in makers if make is not None]
    get = _getter(columns)

    def plain(row: Sequence[object]) -> tuple[object, ...]:
        found = [*row]
        for place, make in needed:
            if found[place] is not None:
                try:
                    found[place] = make(found[place])
                except SerdeError as error:
                    raise SerdeError(f"{where}, column {columns[place].name}: {error}") from error
        return tuple(found)

    return (lambda values: map(plain, get(values))) if needed else get


def left_out(kind: Any) -> Made:
    """Return what leaves out of a row the keys of a TypedDict that have NULL there, and can't be None.

    >>> from typing import TypedDict
    >>> left_out(TypedDict("Named", {"name": str}, total=False))({"name": None})
    {}
    """
    absent = frozenset[str]() if kind is None else absent_keys(kind)

    def made(row: Any) -> Any:
        if not absent or not isinstance(row, dict):
            return row
        return {name: value for name, value in row.items() if value is not None or name not in absent}

    return made


def read_as(kind: Any) -> Made:
    """Return what makes a row of a type, which a sink has kept as text and numbers, as plain as that type is.

    >>> read_as(dict[str, int])({"n": 1})
    {'n': 1}
    """
    try:
        columns = columns_for(kind, "") if kind is not None and has_columns(kind) else ()
    except SamzaError:
        columns = ()  # the type says no columns: rows are read as they are
    needed = [(column.name, *_KEPT_AS[column.kind]) for column in columns if column.kind in _KEPT_AS]
    leave_out = left_out(kind)

    def made(row: Any) -> Any:
        row = leave_out(row)
        if not isinstance(row, dict):
            return row
        found = [(name, read(row[name])) for name, of, read in needed if isinstance(row.get(name), of)]
        return {**row, **dict(found)} if found else row

    return made


def key_maker(columns: Sequence[TableColumn], adapted: Callable[[ColumnKind], Made | None], where: str) -> Made:
    """Return what makes the values of key columns of a record's key: of one, or of several in their order."""
    makers = [_composed(column.make, adapted(column.kind)) for column in columns]
    names = ", ".join(column.name for column in columns)

    def made(key: Any) -> tuple[object, ...]:
        if hasattr(key, "__struct_fields__") or isinstance(key, dict):
            found = row_of(key)
            values = tuple(found.get(column.name) for column in columns)
        else:
            values = tuple(key) if isinstance(key, tuple | list) else (key,)
        # Bytes are a key that nobody has said how to read, and would name no row.
        unread = any(
            isinstance(value, bytes) and one.kind != "bytes" for value, one in zip(values, columns, strict=False)
        )
        if len(values) != len(columns) or None in values or unread:
            raise SerdeError(
                f"{where}: a record without a value deletes the row of its key, and {key!r} is no key of ({names}): "
                "declare key= of the output, and let its records have these columns as their key"
            )
        return tuple(value if make is None else make(value) for value, make in zip(values, makers, strict=True))

    return made


def _getter(columns: Sequence[TableColumn]) -> RowsMade:
    if [column.name for column in columns] == [VALUE] and not columns[0].attribute:
        return lambda values: ((value,) for value in values)
    attributes = tuple(column.attribute for column in columns)
    fast = attrgetter(*attributes) if len(columns) > 1 and all(attributes) else None

    def rows(values: Sequence[Any]) -> Iterator[tuple[object, ...]]:
        kinds = set(map(type, values))
        # In C, and never all at once: a hundred thousand tuples that live cost more than they take to make.
        if fast is not None and all(getattr(kind, "__struct_fields__", None) == attributes for kind in kinds):
            return map(msgspec.structs.astuple, values)
        if fast is not None and all(_has_all(kind, attributes) for kind in kinds):
            return map(fast, values)
        return (_by_name(columns, value) for value in values)

    return rows


def _has_all(kind: type, attributes: Sequence[str]) -> bool:
    fields = getattr(kind, "__struct_fields__", ()) or getattr(kind, "__dataclass_fields__", ())
    return all(name in fields for name in attributes)


def _by_name(columns: Sequence[TableColumn], value: Any) -> tuple[object, ...]:
    row = row_of(value)
    return tuple(row.get(column.name) for column in columns)


def _column(name: str, info: inspect.Type, attribute: str = "", is_left_out: bool = False) -> TableColumn:
    """Return the column of a field, which `is_left_out` where values may be without it."""
    found = alternatives(info)
    kinds = [one for one in found if not _is_none(one)]
    kind, make = _kind_of(kinds[0]) if len(kinds) == 1 else JSON
    nullable = is_left_out or len(kinds) < len(found) or any(isinstance(one, inspect.AnyType) for one in kinds)
    return TableColumn(name, kind, nullable, attribute, make)


def _kind_of(info: inspect.Type) -> tuple[ColumnKind, Made | None]:
    if isinstance(info, inspect.DateTimeType):
        return ("local", None) if info.tz is False else ("instant", _as_instant)
    if isinstance(info, inspect.TimeType):
        return ("time", None) if info.tz is False else ("text", dt.time.isoformat)
    if isinstance(info, inspect.EnumType):
        values = [member.value for member in info.cls]
        return _kind_of_values(values) if all(type(one) in (int, str) for one in values) else JSON
    if isinstance(info, inspect.LiteralType):
        return _kind_of_values(info.values)
    found = next((kind for of, kind in _KINDS if isinstance(info, of)), None)
    return (found, None) if found is not None else JSON


def _kind_of_values(values: Sequence[object]) -> tuple[ColumnKind, Made]:
    kinds = {type(value) for value in values}
    if kinds == {str}:
        return "text", _plain_member
    return ("int", _plain_member) if kinds == {int} else JSON


def _is_none(info: inspect.Type) -> bool:
    return isinstance(info, inspect.NoneType)


def _composed(first: Made | None, then: Made | None) -> Made | None:
    if first is None or then is None:
        return first or then
    return lambda value: then(first(value))


def _plain_member(value: Any) -> object:
    """Return the value of a member of an enumeration, or what is written so already."""
    return getattr(value, "value", value)


def _as_instant(value: Any) -> dt.datetime:
    if value.tzinfo is None:
        raise SerdeError(
            f"{value!r} has no time zone, and its column keeps instants: give it one (tzinfo=UTC), or declare "
            "Annotated[datetime, Meta(tz=False)]"
        )
    instant: dt.datetime = value.astimezone(dt.UTC)
    return instant


def _as_json(value: Any) -> str:
    return to_json(value).decode()


def _json_or_text(text: str) -> object:
    """Return what JSON says; any other text, which a field of Any may have, is itself."""
    try:
        return json_told(text)
    except msgspec.DecodeError:
        return text


_KEPT_AS: dict[ColumnKind, tuple[type, Made]] = {
    "bool": (int, bool),
    "duration": (int, lambda value: dt.timedelta(microseconds=value)),
    "json": (str, _json_or_text),
}
"""The kinds of columns that are kept as values of another type, and what makes their values of these."""
JSON: tuple[ColumnKind, Made] = ("json", _as_json)
"""What holds whatever has no column of its own."""
