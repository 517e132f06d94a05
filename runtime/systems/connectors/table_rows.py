"""The rows of a table of a database by their keys, as a remote table asks for them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from decimal import Decimal
from math import isfinite
from typing import Any, Generic, TypeVar

import msgspec

from operators.core.base import Context
from runtime.encoding.formats.rows import check_names
from runtime.encoding.value_types import made_of_plain
from runtime.model.errors import SamzaError, SerdeError, Unavailable
from runtime.systems.connectors.schemes import database_table
from runtime.systems.databases.column_source import plain_row
from runtime.systems.databases.dialect import LOOKED_UP, PARAMETER, SqlConnection, Target
from runtime.systems.databases.table_columns import ColumnKind, Made, columns_for, left_out, read_as

V = TypeVar("V")
Stored = tuple[object, ...]
"""The values of a key as its columns have them."""
NO_ROW = object()
"""Stands for a part of a key that no row has."""


class TableRows(Generic[V]):
    """Asks a table for the rows of keys; each task has one with a connection and a thread of its own."""

    def __init__(self, url: str, value: type[V]) -> None:
        self._url, self._value = url, value
        # What is wrong with the URL is told here, and not by the first look-up.
        if not (found := database_table(url)).key:
            raise SamzaError(
                f"{found.where}: a URL of a table whose rows are looked up says the columns of its key: "
                "sqlite:///shop.db?table=orders&key=id"
            )
        self._connection: SqlConnection | None = None
        self._folds = False
        self._finds: Mapping[str, str] = {}
        """By columns of the key, what else compares them so that an index is used."""
        self._statements: dict[int, str] = {}
        """By the number of keys, the statement that looks these up on the connection."""

    def open(self, context: Context) -> None:
        """Make ready for a task; the connection is made by the first look-up."""
        self._table = database_table(self._url)
        self._thread = ThreadPoolExecutor(1, f"samza-dsl-rows-{context.task}")
        dialect = self._table.dialect
        self._columns = columns_for(self._value, self._table.where)
        kinds = {column.name: column.kind for column in self._columns}
        of_key = [kinds.get(name) for name in self._table.key]
        self._adapt = [None if kind is None else dialect.adapt.get(kind) for kind in of_key]
        makes = {column.name: column.make for column in self._columns}
        own: dict[ColumnKind | None, Made] = {"int": _whole_number, "local": _local}
        self._make = [own.get(kind) or makes.get(name) for name, kind in zip(self._table.key, of_key, strict=True)]
        # Said of what type each is: several keys are a table of their own, whose types some databases don't guess.
        casts = [PARAMETER if kind is None else f"CAST({PARAMETER} AS {dialect.types[kind]})" for kind in of_key]
        self._mark = f"({', '.join(casts)})"
        # A driver that takes all values as they are gives them back so: its text is no JSON.
        self._read: Made = (read_as if dialect.adapt else left_out)(self._value)

    async def __call__(self, keys: list[Any]) -> Mapping[Any, V | Exception]:
        """Return the rows of keys, by key, and errors for keys that are wrong; raises `Unavailable` for what passes."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._fetch, keys)

    def close(self) -> None:
        """Close the connection, once what is asked has been answered."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._drop()

    def _fetch(self, keys: Sequence[object]) -> dict[object, V | Exception]:
        """Return the row of each key that has one; what is wrong with a key or its row is an error in place of it."""
        said: dict[Stored, list[object]] = {}
        result: dict[object, V | Exception] = {}
        for key in keys:
            try:
                stored = self._stored(key)
            except SamzaError as error:
                result[key] = error
            else:
                # Keys that are two here may be one there, as an enum's member and its value.
                if stored is not None:
                    said.setdefault(stored, []).append(key)
        found = self._looked_up({stored: equal[0] for stored, equal in said.items()}) if said else {}
        for key, *others in said.values():
            if key in found:
                result |= dict.fromkeys((key, *others), found[key])
        return result

    def _looked_up(self, said: Mapping[Stored, object]) -> dict[object, V | Exception]:
        """Return rows by key; halves are asked where the database refuses one of the keys, and does not say which."""
        table, dialect = self._table, self._table.dialect
        try:
            return self._found(said)
        except dialect.errors as error:
            kind = Unavailable if dialect.passes(error) else SamzaError
            told = kind(f"{table.where}, table {table.name}: {error}")
            if not dialect.refuses(error):
                self._drop()
                raise told from error
            if len(said) == 1:
                told.__cause__ = error
                return dict.fromkeys(said.values(), told)
        stored, half = [*said], len(said) // 2
        first, second = ({one: said[one] for one in part} for part in (stored[:half], stored[half:]))
        return self._looked_up(first) | self._looked_up(second)

    def _found(self, said: Mapping[Stored, object]) -> dict[object, V | Exception]:
        table, dialect = self._table, self._table.dialect
        if self._connection is None:
            connection = dialect.connect()
            target = Target(dialect.quoted(table.name), self._columns, table.key)
            self._connection, self._folds = connection, dialect.folds(connection, target)
            self._choose(connection, target, next(iter(said)))
        if self._folds:
            return self._fetched_alone(self._connection, said)
        result: dict[object, V | Exception] = {}
        # Of "7" and 7 a row has the one, and a column of text finds it for both.
        is_known = len({tuple(map(type, stored)) for stored in said}) == 1
        for fields in self._asked(self._connection, [*said]):
            stored = tuple(fields[name] for name in table.key)
            # Some drivers take a value as text, and give it back as what it is.
            found = stored if stored in said else self._adapted(stored)
            if found in said:
                key = said[found]
                result[key] = self._several_error(key) if key in result else self._made(fields)
            else:
                is_known = False
        left = {} if is_known else {stored: key for stored, key in said.items() if key not in result}
        return result | self._fetched_alone(self._connection, left)

    def _fetched_alone(self, connection: SqlConnection, said: Mapping[Stored, object]) -> dict[object, V | Exception]:
        """Return the rows of keys of which only the table knows which row they name, as it takes others for one."""
        alone = {key: self._asked(connection, [stored]) for stored, key in said.items()}
        return {
            key: self._several_error(key) if len(rows) > 1 else self._made(rows[0])
            for key, rows in alone.items()
            if rows
        }

    def _several_error(self, key: object) -> SamzaError:
        # Which of them a look-up gets, the database leaves open: another one each time.
        table, names = self._table, ", ".join(self._table.key)
        return SamzaError(
            f"{table.where}, table {table.name} has several rows whose ({names}) is {key!r}, and a look-up "
            "gives one: name columns that tell rows apart, as key=shop,id, or a view that has one row for each key"
        )

    def _asked(self, connection: SqlConnection, keys: Sequence[Stored]) -> list[dict[str, object]]:
        """Return the rows of keys; of one that the table compares in its own way, by the types that it has."""
        # What the table is like is asked once for a connection: a look-up is to cost one statement.
        statement = self._statements.get(len(keys)) or self._statement(connection, len(keys))
        found = connection.execute(statement, self._parameters(keys))
        names = [one[0] for one in found.description]
        if not self._statements:
            check_names(self._value, {name: {} for name in names}, f"{self._table.where}, table {self._table.name},")
        self._statements[len(keys)] = statement
        return [plain_row(names, row) for row in found.fetchall()]

    def _choose(self, connection: SqlConnection, target: Target, key: Stored) -> None:
        """Choose what has an index used, whose collation need not be that of "="; say so where none serves."""
        table, dialect = self._table, self._table.dialect
        if dialect.scans is None:
            return
        keys = [key] if self._folds else [key, key]
        for self._finds in ({}, *dialect.finds(connection, target)):
            if not dialect.scans(connection, self._statement(connection, len(keys)), self._parameters(keys)):
                return
        self._finds = {}
        dialect.say_index(table.where, table.name, table.key, "each look-up")

    def _parameters(self, keys: Sequence[Stored]) -> Stored:
        said = tuple(part for key in keys for part in key)
        # A value whose type only its column says stands for itself: what names it once more would give it one.
        return said * 2 if self._folds and self._finds else said

    def _statement(self, connection: SqlConnection, number: int) -> str:
        """Return the statement that looks so many keys up.

        Beside "=" it says what an index compares with, which all rows have that "=" finds.
        """
        table, dialect = self._table, self._table.dialect
        named, names = dialect.quoted(table.name), [*map(dialect.word, table.key)]
        source, marks = f"{named} AS {LOOKED_UP}", ", ".join([self._mark] * number)
        compared = [(name, "=", place) for place, name in enumerate(names)]
        if self._finds:
            compared += [(names[place], self._finds.get(name, "="), place) for place, name in enumerate(table.key)]
        if self._folds:
            equal = " AND ".join(f"{name} {by} {PARAMETER}" for name, by, _ in compared)
            statement = f"SELECT * FROM {source} WHERE {equal}"
        elif len(compared) == 1:
            statement = f"SELECT * FROM {source} WHERE {names[0]} IN ({marks})"
        else:
            # A join, as SQLite uses no index for IN with several columns; there CROSS has it begin with the keys.
            equal = " AND ".join(f"{LOOKED_UP}.{name} {by} asked.k{place}" for name, by, place in compared)
            keys = ", ".join(f"k{place}" for place in range(len(names)))
            statement = (
                f"WITH asked({keys}) AS (VALUES {marks}) "
                f"SELECT {LOOKED_UP}.* FROM asked CROSS JOIN {source} WHERE {equal}"
            )
        return dialect.as_read(connection, named, dialect.with_parameters(statement))

    def _made(self, row: dict[str, object]) -> V | SerdeError:
        try:
            return msgspec.convert(self._read(row), self._value, str_keys=True, dec_hook=made_of_plain)
        except (msgspec.ValidationError, ValueError, TypeError, RecursionError) as error:
            key = ", ".join(f"{name} {row.get(name)!r}" for name in self._table.key)
            told = SerdeError(f"{self._table.where}, table {self._table.name}, row of {key}: {error}")
            told.__cause__ = error
            return told

    def _stored(self, key: object) -> Stored | None:
        """Return the values of a key as the sink of such a type keeps them; None where no row can have it."""
        parts, table = key if isinstance(key, tuple) else (key,), self._table
        if len(parts) != len(table.key):
            raise SamzaError(f"{table.where}, table {table.name}: {key!r} is no key of ({', '.join(table.key)})")
        try:
            made = [
                part if make is None or part is None else make(part)
                for part, make in zip(parts, self._make, strict=True)
            ]
            return None if NO_ROW in made else self._adapted(tuple(made))
        except (SerdeError, AttributeError, TypeError, ValueError, ArithmeticError) as error:
            raise SamzaError(f"{table.where}, table {table.name}: {key!r} is no key of it: {error}") from error

    def _adapted(self, parts: Stored) -> Stored:
        return tuple(part if adapt is None else adapt(part) for part, adapt in zip(parts, self._adapt, strict=True))

    def _drop(self) -> None:
        self._statements.clear()
        if self._connection is not None:
            connection, self._connection = self._connection, None
            with suppress(*self._table.dialect.errors):
                connection.close()


def _whole_number(part: object) -> object:
    """Return a number by which a column of whole ones is asked: a database would round one that is none.

    >>> _whole_number(2.0), _whole_number(1.5) is NO_ROW
    (2, True)
    """
    if isinstance(part, float | Decimal):
        # Not by // 1, which a Decimal of more digits than its context has refuses.
        return int(part) if isfinite(part) and part == int(part) else NO_ROW
    return part


def _local(part: object) -> object:
    if getattr(part, "tzinfo", None) is not None:
        raise SerdeError(
            "it has a time zone, and its column keeps times without one, which each session reads in its own"
        )
    return part


def table_rows(url: str, value: type[V]) -> TableRows[V]:
    """Return what looks up rows of a database: `remote_table(connectors.table_rows("postgres://db/shop?…", Item))`.

    The URL names the table, and the columns of its key, as those of inputs and outputs do. `value` is the type of rows;
    a key is the value of its column, or a tuple of several. Look-ups of one call are one statement. A database that
    can't be reached fails the call, which `on_error=retry(...)` of the join makes again; a key that several rows have
    fails the messages of that key, as do a row that is not of the type and a key that the database can't take. Raises
    SamzaError for a URL without a table or a key.

    >>> import sqlite3, tempfile, msgspec
    >>> from samza_dsl import App, connectors, remote_table
    >>> class Item(msgspec.Struct):
    ...     id: int
    ...     name: str
    >>> path = tempfile.mkdtemp() + "/shop.db"
    >>> with sqlite3.connect(path) as database:
    ...     _ = database.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT)")
    ...     _ = database.execute("INSERT INTO items VALUES (1, 'cup')")
    >>> items = remote_table(connectors.table_rows(f"sqlite:///{path}?table=items&key=id", Item))
    >>> app = App("example")
    >>> sold = app.input("sold", value=int).join(items, lambda n, item: item.name, on=lambda n: n)
    >>> sold.send_to(app.output("names", value=str))
    >>> app.run(path + ".data", bind={"sold": [1, 2]}).received("names")
    ['cup']
    """
    return TableRows(url, value)
