"""Postgres as a sink of rows, by COPY."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from runtime.model.errors import SamzaError
from runtime.ports.connectors import PositionedSink
from runtime.systems.databases.dialect import POSITIONS, Dialect, SqlConnection, Target
from runtime.systems.databases.table_columns import ColumnKind
from runtime.systems.databases.table_sink import table_sink

STALLED = "30s"
"""How long a transaction may do nothing: a process that hangs in one keeps who takes over waiting no longer."""
STAGED = "samza_dsl_rows"
"""The temporary table that rows are copied to before they replace those of their keys."""


def postgres(url: str, table: str, key: str | Sequence[str] = ()) -> PositionedSink:
    """Put rows into a table of Postgres, exactly once: `bind={"orders": connectors.postgres(url, "orders", key="id")}`.

    With a `key`, the names of columns, a row replaces that of the same key, and a record without a value deletes it;
    else rows are appended. The table is made of the output's type where it is absent. What is nested is jsonb. `url`
    is what libpq takes, as "postgres://user@host/shop"; a password is better in PGPASSWORD or ~/.pgpass than in it.
    Raises SamzaError where psycopg is absent.

    >>> from samza_dsl import connectors
    >>> connectors.postgres("postgres://me:secret@db/shop", "orders", key="id").name
    'postgres://db/shop#orders'
    """
    try:
        import psycopg
        from psycopg.conninfo import conninfo_to_dict
    except ImportError as error:
        raise SamzaError("Postgres needs psycopg: pip install 'samza-dsl[postgres]'") from error
    try:
        said = conninfo_to_dict(url)
    except psycopg.Error as error:
        raise SamzaError('this is no URL of Postgres: write "postgres://user@host/shop"') from error

    def connect() -> SqlConnection:
        connection: Any = psycopg.connect(url, autocommit=True, application_name="samza-dsl")
        connection.execute(f"SET idle_in_transaction_session_timeout = '{STALLED}'")
        return connection  # type: ignore[no-any-return]  # psycopg's, whose statements are literals to type checkers

    def passes(error: Exception) -> bool:
        # Two runs that make a table at once, or claim a place for the first time: the second try finds it there.
        meets = isinstance(error, psycopg.errors.UniqueViolation) and (error.diag.constraint_name or "").startswith(
            ("pg_", POSITIONS)
        )
        return meets or isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)

    dialect = Dialect(
        name="postgres",
        connect=connect,
        types=_TYPES,
        errors=(psycopg.Error, UnicodeEncodeError, OverflowError),
        passes=passes,
        put=_copy,
        mark="%s",
        lock=" FOR UPDATE",
    )
    host, port = (str(said.get(name) or default) for name, default in (("host", "localhost"), ("port", "")))
    where = f"postgres://{quote(host, safe=':/.')}{':' + port if port else ''}/{said.get('dbname') or ''}"
    return table_sink(dialect, where, table, key)


def _copy(connection: Any, dialect: Dialect, target: Target, rows: Sequence[tuple[object, ...]]) -> None:
    names = dialect.listed([column.name for column in target.columns])
    into = target.table
    if target.key:
        into = f'"{STAGED}"'
        columns = ", ".join(f"{dialect.word(one.name)} {dialect.types[one.kind]}" for one in target.columns)
        connection.execute(f"CREATE TEMP TABLE {into} ({columns}) ON COMMIT DROP")
    with connection.cursor() as cursor:
        with cursor.copy(f"COPY {into} ({names}) FROM STDIN") as copy:
            write = copy.write_row
            for row in rows:
                write(row)
        if target.key:
            cursor.execute(dialect.insert(target, f"SELECT {names} FROM {into}"))


_TYPES: dict[ColumnKind, str] = {
    "bool": "boolean",
    "int": "bigint",
    "float": "double precision",
    "text": "text",
    "bytes": "bytea",
    "instant": "timestamptz",
    "local": "timestamp",
    "date": "date",
    "time": "time",
    "duration": "interval",
    "decimal": "numeric",
    "uuid": "uuid",
    "json": "jsonb",
}
