"""SQLite as a sink and a source of rows, with the driver that Python brings."""

from __future__ import annotations

import datetime as dt
import math
import re
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from runtime.model.errors import SamzaError, SerdeError
from runtime.ports.connectors import PositionedSink, PulledSource
from runtime.systems.databases.column_source import CHANGES, UndecodedText, column_source
from runtime.systems.databases.dialect import LOOKED_UP, Dialect, SqlConnection, Target, check_file, put_each
from runtime.systems.databases.sqlite_changes import SqliteChanges
from runtime.systems.databases.table_columns import ColumnKind, Made, read_as
from runtime.systems.databases.table_sink import table_sink

WAIT_S = 30.0
"""How long another process that writes to the file is waited for."""


def sqlite(path: str | Path, table: str, key: str | Sequence[str] = ()) -> PositionedSink:
    """Put rows into a table of an SQLite file, exactly once: `bind={"orders": connectors.sqlite(path, "orders")}`.

    With a `key`, the names of columns, a row replaces that of the same key, and a record without a value deletes it;
    else rows are appended. The table is made of the output's type where it is absent. Times are text as ISO 8601,
    lengths of time whole microseconds, decimals text, and what is nested is JSON.

    >>> from samza_dsl import connectors
    >>> connectors.sqlite("shop.db", "orders", key="id").name.rpartition("/")[2]
    'shop.db#orders'
    """
    return table_sink(*dialect_at(path, may_make=True), table, key)


def sqlite_source(path: str | Path, table: str, *, by: str = "", key: str | Sequence[str] = ()) -> PulledSource:
    """Read a table of an SQLite file, then its changes: `bind={"orders": connectors.sqlite_source(path, "orders")}`.

    All rows that are there come first, then each insert, update and delete, in order, while others write. An input
    reads rows, and no value where one is deleted, or with `value=Change[int, Order]` each row before and after; the key
    is the primary key. Triggers that this makes note the changes in tables of the same file, until they are read.
    With `by=` a column no trigger is made: rows come in its order, which misses deletions, and updates that leave it
    as it is; their key is then what `key` names.

    >>> from samza_dsl import connectors
    >>> connectors.sqlite_source("shop.db", "orders").name.rpartition("/")[2]
    'shop.db#orders'
    """
    dialect, where = dialect_at(path)
    if by:
        return replace(column_source(dialect, where, table, by, key), adapt=read_as)
    if key:
        raise SamzaError(
            f"{where}: key={key!r}: the key of changes is the table's primary key; leave it out, or say by="
        )
    changes = SqliteChanges(dialect, where, table)
    name, how = f"{where}#{table}", (changes.pull, changes.confirm, changes.close)
    read = PulledSource(name, *how, promise=CHANGES, adapt=read_as, place=name)
    return replace(read, forget=changes.forget, keeps=changes.keeps)


def dialect_at(path: str | Path, *, may_make: bool = False) -> tuple[Dialect, str]:
    """Return the dialect that opens a file, which it `may_make`, and its place."""
    where = f"sqlite:{Path(path).absolute()}"

    def connect() -> SqlConnection:
        if not may_make:
            check_file(path, where)
        # Our own statements begin and end transactions; and one thread at a time uses it, though not always the same.
        connection = sqlite3.connect(path, timeout=WAIT_S, isolation_level=None, check_same_thread=False)
        connection.text_factory = _text_read
        return connection

    dialect = Dialect(
        name="sqlite",
        connect=connect,
        types=_TYPES,
        errors=(sqlite3.Error, OverflowError, UnicodeError),
        passes=lambda error: isinstance(error, sqlite3.OperationalError) and "locked" in str(error),
        put=put_each,
        adapt=_ADAPT,
        typed=_typed,
        changes=_CHANGES,
        refuses=lambda error: isinstance(error, _OF_ROWS),
        begin="BEGIN IMMEDIATE",
        folds=_folds,
        compares=_compares,
        finds=_finds,
        scans=_scans,
    )
    return dialect, where


BYTES = "BINARY"
"""The collation that compares byte by byte."""
_OF_ROWS = (sqlite3.IntegrityError, sqlite3.DataError, OverflowError, UnicodeEncodeError)
"""What says that a row can't be kept: a constraint, a trigger, or what is too large."""


def _told_of(connection: Any, pragma: str, table: str, of: str = "") -> list[Any]:
    """Return what a pragma tells of a table, or of something else in the same schema."""
    schema, dot, name = table.rpartition('"."')
    begins, told = (f'{schema}".', f'"{name}') if dot else ("", table)
    found: list[Any] = connection.execute(f"PRAGMA {begins}{pragma}({of or told})").fetchall()
    return found


def _typed(connection: Any, table: str) -> dict[str, str]:
    return {row[1]: row[2].upper() for row in _told_of(connection, "table_info", table)}


def _collations(connection: Any, target: Target) -> list[tuple[bool, dict[str, str]]]:
    """Return the indexes of a table: whether each may tell rows apart, and the collations of its columns."""
    indexes = _told_of(connection, "index_list", target.table)
    found = [_told_of(connection, "index_xinfo", target.table, Dialect.word(row[1])) for row in indexes]
    columns = [{row[2]: row[4] for row in rows if row[5]} for rows in found]
    return [(row[2] and not row[4], one) for row, one in zip(indexes, columns, strict=True)]


def _folds(connection: SqlConnection, target: Target) -> bool:
    """Whether key columns, or an index of them, compare text in another way than byte by byte, as NOCASE does."""
    parts = [part for _, columns in _collations(connection, target) for part in columns.items()]
    by_index = any(name in target.key and collation.upper() != BYTES for name, collation in parts)
    return by_index or not all(_compares_bytes(connection, target, name) for name in target.key)


def _compares_bytes(connection: SqlConnection, target: Target, name: str) -> bool:
    """Whether "=" compares the text of a column byte by byte.

    SQLite tells the collations of indexes, and not those of columns; but UNION goes by its first column's.
    """
    none = f"SELECT {Dialect.word(name)} FROM {target.table} WHERE 0"
    texts = connection.execute(f"{none} UNION SELECT 'a' UNION SELECT 'A' UNION SELECT 'a '").fetchall()
    return len(texts) == 3


def _finds(connection: SqlConnection, target: Target) -> list[dict[str, str]]:
    """Return how indexes compare key columns in another way than "=" does byte by byte, which they do not narrow."""
    found = []
    for _, columns in _collations(connection, target):
        first = takewhile(lambda part: part[0] in target.key, columns.items())
        said = {
            name: f"COLLATE {Dialect.word(collation)} ="
            for name, collation in first
            if collation.upper() != BYTES and _compares_bytes(connection, target, name)
        }
        found += [said] if said else []
    return found


def _scans(connection: SqlConnection, statement: str, parameters: Sequence[object]) -> bool:
    plan = connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters).fetchall()
    # An automatic index is made for one statement alone, of all rows.
    return any(LOOKED_UP in step and (step.startswith("SCAN") or "AUTOMATIC" in step) for *_, step in plan)


def _compares(connection: SqlConnection, target: Target) -> dict[str, str]:
    """Return the collations of the index that ON CONFLICT goes by, the first one that is of the key alone."""
    unique = (columns for is_unique, columns in _collations(connection, target) if is_unique)
    collations = next((columns for columns in unique if columns.keys() == {*target.key}), {})
    return {name: f"COLLATE {Dialect.word(collation)} =" for name, collation in collations.items()}


def _text_read(data: bytes) -> str | UndecodedText:
    # SQLite keeps whatever it is given as text; by the driver's own way no row of the table would be read any more.
    try:
        return data.decode()
    except UnicodeDecodeError:
        return UndecodedText(data)


def _finite(value: float) -> float:
    if math.isnan(value):
        raise SerdeError("nan can't be kept by SQLite, which makes NULL of it: write None, or another number")
    return value


def _microseconds(value: dt.timedelta) -> int:
    return value // dt.timedelta(microseconds=1)


def _text(value: Any) -> str:
    return value.isoformat() if isinstance(value, dt.date | dt.time) else str(value)


_OF_NUMBERS = re.compile(r"(?!.*(CHAR|CLOB|TEXT|BLOB))..*|.*INT.*")
"""The types of columns in which SQLite makes numbers of text that looks like one, as it makes 7 of 007."""
_CHANGES: dict[ColumnKind, re.Pattern[str]] = {
    **dict.fromkeys(("text", "decimal"), _OF_NUMBERS),
    "int": re.compile(r"(?!.*(INT|CHAR|CLOB|TEXT|BLOB)).*(REAL|FLOA|DOUB).*"),
}
_TYPES: dict[ColumnKind, str] = {
    "bool": "INTEGER",
    "int": "INTEGER",
    "float": "REAL",
    "bytes": "BLOB",
    "duration": "INTEGER",
    **dict.fromkeys(("text", "instant", "local", "date", "time", "decimal", "uuid", "json"), "TEXT"),
}
_ADAPT: dict[ColumnKind, Made] = {
    "float": _finite,
    "duration": _microseconds,
    **dict.fromkeys(("instant", "local", "date", "time", "decimal", "uuid"), _text),
}
