"""SQLite as a sink of rows, with the driver that Python brings."""

from __future__ import annotations

import datetime as dt
import math
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runtime.model.errors import SerdeError
from runtime.ports.connectors import PositionedSink
from runtime.systems.databases.dialect import Dialect, SqlConnection, put_each
from runtime.systems.databases.table_columns import ColumnKind, Made
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

    def connect() -> SqlConnection:
        # Our own statements begin and end transactions; and one thread at a time uses it, though not always the same.
        return sqlite3.connect(path, timeout=WAIT_S, isolation_level=None, check_same_thread=False)

    dialect = Dialect(
        name="sqlite",
        connect=connect,
        types=_TYPES,
        errors=(sqlite3.Error, OverflowError, UnicodeEncodeError),
        passes=lambda error: isinstance(error, sqlite3.OperationalError) and "locked" in str(error),
        put=put_each,
        adapt=_ADAPT,
        begin="BEGIN IMMEDIATE",
    )
    return table_sink(dialect, f"sqlite:{Path(path).absolute()}", table, key)


def _finite(value: float) -> float:
    if math.isnan(value):
        raise SerdeError("nan can't be kept by SQLite, which makes NULL of it: write None, or another number")
    return value


def _microseconds(value: dt.timedelta) -> int:
    return value // dt.timedelta(microseconds=1)


def _text(value: Any) -> str:
    return value.isoformat() if isinstance(value, dt.date | dt.time) else str(value)


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
