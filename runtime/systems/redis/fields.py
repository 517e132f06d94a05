"""The fields of entries and hashes in Redis, which are all bytes: of values of a type, and as a type reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from runtime.encoding.formats.rows import VALUE, has_columns
from runtime.model.errors import SamzaError, SerdeError
from runtime.systems.databases.table_columns import (
    ColumnKind,
    Made,
    TableColumn,
    columns_for,
    key_maker,
    rows_maker,
)

Fields = dict[str, bytes]
"""The fields of an entry or a hash by name; one without a value is left out."""


class FieldsOfRows:
    """A maker of fields of rows of a type, and of a row's key from some of these, or from the record's own key."""

    def __init__(self, kind: Any, key: Sequence[str], where: str) -> None:
        self._where, self._key = where, tuple(key)
        self._columns = columns_for(kind, where)
        names = [column.name for column in self._columns]
        for name in self._key:
            if name not in names:
                raise SamzaError(f"{where}: key={name!r} is no field of {names}: name fields of the value")
        self._made = rows_maker(self._columns, _AS_BYTES.get, where)
        of_key = [next(column for column in self._columns if column.name == name) for name in self._key]
        self._key_of = key_maker(of_key, _AS_BYTES.get, where) if of_key else self._own_key

    def made(self, values: Sequence[Any]) -> Iterator[Fields]:
        """Return the fields of each value; raises SerdeError where one has none."""
        names = [column.name for column in self._columns]
        for row in self._made(values):
            fields: Any = {name: value for name, value in zip(names, row, strict=True) if value is not None}
            if not fields:
                raise SerdeError(f"{self._where}: a row all of whose fields are None has nothing that Redis could keep")
            yield fields

    def key_of(self, fields: Fields, key: Any) -> bytes:
        """Return the key of a row as Redis has it: of its own fields, or of the record's key where none is named."""
        if not self._key:
            return joined(self._key_of(key))
        if missing := [name for name in self._key if name not in fields]:
            raise SerdeError(f"{self._where}: a row has None as {missing[0]!r}, which is of its key")
        return joined([fields[name] for name in self._key])

    def key_of_gone(self, key: Any) -> bytes:
        """Return the key of a row that is deleted, of the record's key."""
        return joined(self._key_of(key))

    def _own_key(self, key: Any) -> tuple[object, ...]:
        parts = key if isinstance(key, tuple) else (key,)
        if not parts or not all(isinstance(part, str | int) for part in parts):
            raise SerdeError(
                f"{self._where}: {key!r} is no key of a row: name fields of the value, key=, or declare the output's "
                'key as text or a number: app.output("totals", value=int, key=str)'
            )
        return tuple(_AS_BYTES["bool" if isinstance(part, bool) else _kind_of_part(part)](part) for part in parts)


def joined(parts: Sequence[Any]) -> bytes:
    """Return the parts of a key as one, so that no two keys are the same.

    >>> joined([b"7"]), joined([b"a:b", b"c"])
    (b'7', b'a%3Ab:c')
    """
    if len(parts) == 1:
        return bytes(parts[0])
    return b":".join(part.replace(b"%", b"%25").replace(b":", b"%3A") for part in parts)


def read_as(kind: Any) -> Callable[[Any], Any]:
    """Return what makes the fields of an entry as plain as a type has them: numbers of text, lists of JSON.

    >>> read_as(dict)({"n": b"1"}), read_as(int)({"value": b"1"})
    ({'n': '1'}, 1)
    """
    if kind is not None and not has_columns(kind):
        column = columns_for(kind, "")[0]
        return lambda fields: _read(column, fields[VALUE]) if {*fields} == {VALUE} else _texts(fields)
    try:
        columns = columns_for(kind, "") if kind is not None else ()
    except SamzaError:
        columns = ()  # the type says no fields: they are read as text
    by_name = {column.name: column for column in columns}
    absent = {column.name: None for column in columns if column.nullable}

    def made(fields: Mapping[str, bytes]) -> dict[str, Any]:
        found = {name: _read(by_name[name], data) for name, data in fields.items() if name in by_name}
        return {**absent, **_texts({name: data for name, data in fields.items() if name not in by_name}), **found}

    return made


def _texts(fields: Mapping[str, bytes]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, data in fields.items():
        try:
            found[name] = _text(data)
        except UnicodeDecodeError as error:
            raise _no_text_error(name, data) from error
    return found


def _no_text_error(name: str, data: bytes) -> SerdeError:
    return SerdeError(f"the field {name!r} is no text: {data[:40]!r}; declare it as bytes in the input's type")


def _text(data: bytes) -> str:
    return data.decode()


def _read(column: TableColumn, data: bytes) -> Any:
    try:
        return _READ.get(column.kind, _text)(data)
    except UnicodeDecodeError as error:
        raise _no_text_error(column.name, data) from error
    except msgspec.DecodeError as error:
        raise SerdeError(f"the field {column.name!r} holds {data[:40]!r}, and no {column.kind}: {error}") from error


def _kind_of_part(part: object) -> ColumnKind:
    return "text" if isinstance(part, str) else "int"


def _number(kind: type, data: bytes) -> Any:
    return msgspec.convert(data.decode(), kind, strict=False)


def _as_number(value: float) -> bytes:
    return repr(value).encode()


def _as_plain(value: Any) -> bytes:
    return str(msgspec.to_builtins(value)).encode()


_AS_BYTES: dict[ColumnKind, Made] = {
    "bool": lambda value: b"true" if value else b"false",
    "int": _as_number,
    "float": _as_number,
    "bytes": bytes,
    **dict.fromkeys(("text", "json"), lambda value: str(value).encode()),
    **dict.fromkeys(("instant", "local", "date", "time", "duration", "decimal", "uuid"), _as_plain),
}
_READ: dict[ColumnKind, Made] = {
    "bytes": bytes,
    "json": msgspec.json.decode,
    "bool": partial(_number, bool),
    "int": partial(_number, int),
    "float": partial(_number, float),
}
