"""DuckDB as a sink of rows, by Arrow, and as a source of rows in the order of a column."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from runtime.model.errors import SamzaError
from runtime.ports.connectors import PositionedSink, PulledSource
from runtime.systems.databases.column_source import column_source
from runtime.systems.databases.dialect import Dialect, SqlConnection, Target, check_file, delete_each
from runtime.systems.databases.table_columns import ColumnKind, read_as
from runtime.systems.databases.table_sink import table_sink

ROWS = "samza_dsl_rows"
"""The name by which statements read rows of Arrow."""


def duckdb(path: str | Path, table: str, key: str | Sequence[str] = ()) -> PositionedSink:
    """Put rows into a table of a DuckDB file, exactly once: `bind={"orders": connectors.duckdb(path, "orders")}`.

    With a `key`, the names of columns, a row replaces that of the same key, and a record without a value deletes it;
    else rows are appended. The table is made of the output's type where it is absent. Decimals are text, and what is
    nested is JSON. No other process opens the file while it is written. Raises SamzaError where duckdb is absent.

    >>> from samza_dsl import connectors
    >>> connectors.duckdb("shop.duckdb", "orders", key="id").name.rpartition("/")[2]
    'shop.duckdb#orders'
    """
    return table_sink(*dialect_at(path, may_make=True), table, key)


def duckdb_source(path: str | Path, table: str, *, by: str, key: str | Sequence[str] = ()) -> PulledSource:
    """Read new rows of a table of a DuckDB file: `bind={"orders": connectors.duckdb_source(path, "orders", by="id")}`.

    Rows come in the order of the column `by`, whose values rise with each new row. Deletions are missed, and updates
    that leave that column as it is. `key` names the columns of their key. Raises SamzaError where duckdb is absent.

    >>> from samza_dsl import connectors
    >>> connectors.duckdb_source("shop.duckdb", "orders", by="id").promise
    'rows in the order of id, each once; deletions, and rows whose id does not rise, are not seen'
    """
    return replace(column_source(*dialect_at(path), table, by, key), adapt=read_as)


def dialect_at(path: str | Path, *, may_make: bool = False) -> tuple[Dialect, str]:
    """Return the dialect that opens a file, which it `may_make`, and its place; raises SamzaError without duckdb."""
    try:
        import duckdb as library
        import pyarrow as pa
    except ImportError as error:
        raise SamzaError("DuckDB needs duckdb and pyarrow: pip install 'samza-dsl[duckdb]'") from error

    def put(connection: Any, dialect: Dialect, target: Target, rows: Iterable[tuple[object, ...]]) -> None:
        if target.folds:
            alone = replace(target, folds=False)
            for row in rows:
                put(connection, dialect, alone, [row])
            return
        kinds = _arrow_types(pa)
        columns = {
            column.name: pa.array(values, kinds[column.kind])
            for column, values in zip(target.columns, zip(*rows, strict=True), strict=True)
        }
        names = dialect.listed([column.name for column in target.columns])
        connection.execute_with(dialect.insert(target, f"SELECT {names} FROM {ROWS}"), pa.table(columns))

    def remove(connection: Any, dialect: Dialect, target: Target, keys: Sequence[tuple[object, ...]]) -> None:
        kinds = _arrow_types(pa)
        names = [f"{ROWS}_{place}" for place in range(len(target.key))]
        of_key = zip(names, target.key_columns, zip(*keys, strict=True), strict=True)
        try:
            staged = pa.table({name: pa.array(values, kinds[column.kind]) for name, column, values in of_key})
        except (pa.ArrowException, OverflowError, UnicodeEncodeError):
            delete_each(connection, dialect, target, keys)  # one that no column has is the key of no row
        else:
            connection.execute_with(dialect.delete(target, names, ROWS), staged)

    where = f"duckdb:{Path(path).absolute()}"

    def connect() -> SqlConnection:
        if not may_make:
            check_file(path, where)
        return _DuckDbConnection(library.connect(str(path)))

    of_rows = (library.IntegrityError, library.DataError, pa.ArrowException, OverflowError, UnicodeEncodeError)

    def refuses(error: Exception) -> bool:
        # A value that the driver can't give is an invalid input, as is a database that is only read.
        ungiven = isinstance(error, library.InvalidInputException) and "Python " in str(error)
        return ungiven or isinstance(error, of_rows)

    dialect = Dialect(
        name="duckdb",
        connect=connect,
        types=_TYPES,
        errors=(library.Error, pa.ArrowException, OverflowError, UnicodeEncodeError),
        passes=lambda error: isinstance(error, library.IOException | library.TransactionException),
        put=put,
        remove=remove,
        typed=_typed,
        changes=_CHANGES,
        refuses=refuses,
        adapt={"decimal": str, "uuid": str},
        has_savepoints=False,
        most_tried=512,
        as_read=_as_read,
        folds=_folds,
        text_type="VARCHAR",
    )
    return dialect, where


class _FetchedResult(NamedTuple):
    """All that a statement has returned: DuckDB does nothing else on a connection before that was fetched."""

    rows: list[tuple[object, ...]]
    description: Any

    def fetchall(self) -> list[tuple[object, ...]]:
        """Return the rows."""
        return self.rows


class _DuckDbConnection:
    """A connection to DuckDB that fetches all that a statement returns."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def execute(self, statement: str, parameters: Sequence[object] = ()) -> _FetchedResult:
        """Run a statement."""
        found = self._connection.execute(statement, parameters)
        return _FetchedResult(found.fetchall(), found.description)

    def executemany(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        """Run a statement for each of several rows."""
        for row in rows:
            self.execute(statement, row)

    def execute_with(self, statement: str, rows: Any) -> None:
        """Run a statement that reads `ROWS`, an Arrow table."""
        # Where it fails, the connection is closed: to unregister them would raise what is wrong with the transaction.
        self._connection.register(ROWS, rows)
        self.execute(statement)
        self._connection.unregister(ROWS)

    def sqltype(self, name: str) -> Any:
        """Return the type of a name, with the types within it."""
        return self._connection.sqltype(name)

    def cursor(self) -> Self:
        """Return itself."""
        return self

    def close(self) -> None:
        """Close it."""
        self._connection.close()


def _typed(connection: Any, table: str) -> dict[str, str]:
    return {row[0]: row[1] for row in connection.execute(f"DESCRIBE {table}").fetchall()}


def _as_read(connection: Any, table: str, statement: str) -> str:
    """Return a statement that reads what Python has no time or length of time for as its text.

    The driver makes the last day of the year 9999 of infinity, and 30 days of a month.
    """
    replaced = []
    for name, of in _typed(connection, table).items():
        column = Dialect.word(name)
        if _OF_TIMES.search(of) and (told := _told(column, connection.sqltype(of))) is not None:
            replaced.append(f"{told[0]} AS {column}")
    return f"SELECT * REPLACE ({', '.join(replaced)}) FROM ({statement})" if replaced else statement


def _told(value: str, kind: Any, depth: int = 0) -> tuple[str, str] | None:
    """Return the expression of a value in which times within it are text where need be, and its type.

    None where no times are within it.
    """
    of, word = str(kind), Dialect.word
    for types, condition in _HELD.items():
        if types.fullmatch(of):
            union = f"UNION(held {of}, told VARCHAR)"
            held = condition.format(value)
            return f"CASE WHEN {held} THEN {value}::{union} ELSE ({value}::VARCHAR)::{union} END", union
    parts = _parts(value, kind, depth)
    found = {name: _told(part, one, depth + 1) for name, (part, one) in parts.items()}
    if not any(found.values()):
        return None
    told = {name: found[name] or (part, str(one)) for name, (part, one) in parts.items()}
    if kind.id in ("list", "array"):
        [(item, of_item)] = told.values()
        return f"[{item} FOR x{depth} IN {value}::{parts['child'][1]}[]]", f"{of_item}[]"
    if kind.id == "map":
        (key, of_keys), (held, of_values) = told.values()
        entries = f"[struct_pack(k := {key}, v := {held}) FOR x{depth} IN map_entries({value})]"
        return (
            f"CASE WHEN {value} IS NULL THEN NULL ELSE map_from_entries({entries}) END",
            f"MAP({of_keys}, {of_values})",
        )
    of_parts = ", ".join(f"{word(name)} {of_part}" for name, (_, of_part) in told.items())
    if kind.id == "struct":
        packed = ", ".join(f"{word(name)} := {part}" for name, (part, _) in told.items())
        return f"CASE WHEN {value} IS NULL THEN NULL ELSE struct_pack({packed}) END", f"STRUCT({of_parts})"
    union = f"UNION({of_parts})"
    cases = (
        f"WHEN {_text(name)} THEN union_value({word(name)} := {part})::{union}" for name, (part, _) in told.items()
    )
    return f"CASE union_tag({value}) {' '.join(cases)} END", union


def _parts(value: str, kind: Any, depth: int) -> dict[str, tuple[str, Any]]:
    """Return the expressions of what is within a value of a type, with their types, by name."""
    if kind.id in ("list", "array"):
        return {name: (f"x{depth}", one) for name, one in kind.children if name == "child"}
    if kind.id == "map":
        return {name: (f"x{depth}.{name}", one) for name, one in kind.children}
    if kind.id == "struct":
        return {name: (f"struct_extract({value}, {_text(name)})", one) for name, one in kind.children}
    if kind.id == "union":
        # The first one is the tag, which has no name.
        return {name: (f"union_extract({value}, {_text(name)})", one) for name, one in kind.children if name}
    return {}


def _text(name: str) -> str:
    return "'" + name.replace("'", "''") + "'"


def _folds(connection: Any, target: Target) -> bool:
    """Whether a key is put as text into a column that is none, as a date or DECIMAL, or may have a collation.

    Of rows in one statement whose keys are one there DuckDB keeps the first. Which column has a collation only the
    words say that have made its table; with those of another one rows are put one by one, which is right as well.
    """
    if connection.execute("SELECT 1 FROM duckdb_tables() WHERE sql ILIKE '%COLLATE%'").fetchall():
        return True
    types = _typed(connection, target.table)
    kinds = {column.name: column.kind for column in target.columns}
    return any(
        kinds.get(name) in ("text", "json", "float", "decimal") and types[name] != "VARCHAR" for name in target.key
    )


_OF_TIMES = re.compile("TIMESTAMP|DATE|INTERVAL")
_HELD = {
    re.compile("TIMESTAMP(_M?S)?|TIMESTAMP WITH TIME ZONE|DATE"): "{0} >= '0001-01-01' AND {0} < '10000-01-01'",
    re.compile("TIMESTAMP_NS"): "isfinite({0})",
    re.compile("INTERVAL"): "date_part('year', {0}) = 0 AND date_part('month', {0}) = 0",
}
"""By types of columns, the condition in which Python has their values."""


def _arrow_types(pa: Any) -> dict[ColumnKind, Any]:
    return {
        "bool": pa.bool_(),
        "int": pa.int64(),
        "float": pa.float64(),
        "text": pa.string(),
        "bytes": pa.binary(),
        "instant": pa.timestamp("us", "UTC"),
        "local": pa.timestamp("us"),
        "date": pa.date32(),
        "time": pa.time64("us"),
        "duration": pa.duration("us"),
        "decimal": pa.string(),
        "uuid": pa.string(),
        "json": pa.string(),
    }


_INTEGERS = "U?(TINYINT|SMALLINT|INTEGER|BIGINT|HUGEINT)|BOOLEAN|BIT"
_CHANGES: dict[ColumnKind, re.Pattern[str]] = {
    "int": re.compile("FLOAT|DOUBLE|BOOLEAN|BIT"),
    "float": re.compile(rf"FLOAT|DECIMAL.*|{_INTEGERS}"),
    "decimal": re.compile(rf"FLOAT|DOUBLE|BLOB|INTERVAL|{_INTEGERS}"),
    "text": re.compile(rf"FLOAT|DOUBLE|DECIMAL.*|BLOB|INTERVAL|TIME|TIME WITH.*|{_INTEGERS}"),
    "bytes": re.compile("VARCHAR|JSON|BIT"),
    "instant": re.compile("TIMESTAMP(_.*)?|DATE|TIME( WITH.*)?"),
    "local": re.compile("TIMESTAMP(_M?S| WITH.*)|DATE|TIME( WITH.*)?"),
    "date": re.compile("TIMESTAMP WITH.*"),
}
"""What casts of DuckDB round, cut off, or read in another time zone."""
_TYPES: dict[ColumnKind, str] = {
    "bool": "BOOLEAN",
    "int": "BIGINT",
    "float": "DOUBLE",
    "text": "VARCHAR",
    "bytes": "BLOB",
    "instant": "TIMESTAMPTZ",
    "local": "TIMESTAMP",
    "date": "DATE",
    "time": "TIME",
    "duration": "INTERVAL",
    "decimal": "VARCHAR",
    "uuid": "UUID",
    "json": "JSON",
}
