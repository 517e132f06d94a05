"""The words of SQL in which databases differ, and the statements that a sink of rows makes of them."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from runtime.model.errors import SamzaError, Unavailable
from runtime.systems.databases.table_columns import ColumnKind, Made, TableColumn

POSITIONS = "samza_dsl_positions"
"""The table in which a sink keeps how far it has come, in the same database as the rows."""

GRANT = "GRANT it to the user of the connection, and run the application again, which goes on where it was"

PARAMETER = "\0"
"""Stands for a parameter in a statement."""

_log = logging.getLogger("samza_dsl")
_TOLD: set[str] = set()
"""The tables of which was said that no index serves them."""
LOOKED_UP = "samza_dsl_looked_up"
"""The name that a statement gives to the table whose rows it looks up."""


class SqlConnection(Protocol):
    """A connection that begins and ends transactions only by the statements that say so."""

    def execute(self, statement: str, parameters: Sequence[object] = ..., /) -> Any:
        """Run a statement, and return what its rows can be fetched from."""

    def cursor(self) -> Any:
        """Return what runs a statement for each of several rows."""

    def close(self) -> None:
        """Close it; a transaction that is open is rolled back."""


Link = tuple[tuple[str, ...], tuple[str, ...]]
"""Columns of a table that refer to other columns of the same table."""


@dataclass(frozen=True)
class Target:
    """A table that is written: its name as SQL has it, columns, and what becomes of a row whose key is there.

    Where it `folds`, two rows whose keys differ here may be one there, and are written one behind the other. What
    `compares` a column of the key is "=" where nothing else is said: by another one others would be deleted, or none.
    """

    table: str
    columns: tuple[TableColumn, ...]
    key: tuple[str, ...] = ()
    folds: bool = False
    compares: Mapping[str, str] = field(default_factory=dict)

    @property
    def key_columns(self) -> list[TableColumn]:
        """The columns of the key, in its order."""
        columns = {column.name: column for column in self.columns}
        return [columns[name] for name in self.key]


def check_file(path: str | Path, where: str) -> None:
    """Raise SamzaError where a file that is read is not there, which drivers would make."""
    if not Path(path).exists():
        raise SamzaError(f"{where} can't be read: there is no such file; check the path, and where the run was started")


def _untyped(connection: Any, table: str) -> Mapping[str, str]:
    """Return nothing: what the columns of a table are is not known."""
    return {}


def _as_it_is(connection: Any, table: str, statement: str) -> str:
    """Return a statement that reads rows as it is: the driver gives each value as the database has it."""
    return statement


def _apart(connection: Any, target: Target) -> bool:
    """Return that the table takes keys for one where we do."""
    return False


def _by_columns(connection: Any, target: Target) -> Mapping[str, str]:
    """Return nothing: the columns of the key are compared as in the index by which rows are replaced."""
    return {}


def _never_found(connection: SqlConnection, target: Target) -> Iterable[Mapping[str, str]]:
    """Return none: "=" goes by any index that there is."""
    return ()


def _unlinked(connection: Any, target: Target) -> Sequence[Link]:
    """Return none: no row of the table waits for another one."""
    return ()


def delete_each(connection: Any, dialect: Dialect, target: Target, keys: Iterable[tuple[object, ...]]) -> None:
    """Delete the rows of keys by one statement for each, which any driver has."""
    statement = dialect.delete(target, [PARAMETER] * len(target.key))
    connection.cursor().executemany(dialect.with_parameters(statement), dialect.given(target.key_columns, keys))


def _never(error: Exception) -> bool:
    """Return that it is not so: no error says that."""
    return False


@dataclass(frozen=True)
class Dialect:
    """A kind of database: how it is connected to, and the words in which it differs from others.

    `types` has the type of a column by what it holds, and `adapt` what makes a plain Python value of another that the
    driver takes. `typed` returns the types of a table's columns by name, as far as they are known, and `changes` has
    those that would keep other values than they are given, without a word. `put` inserts many rows at once, or replaces
    those of their keys, and `remove` deletes those of many keys. `errors` are the driver's, and those for which
    `passes` says so go away by themselves; `denies` says which ones tell that a right is missing, and `refuses` which
    ones that a row can't be kept, as by a constraint. `ask` has constraints that wait for the end of a transaction
    looked at. All rows that are refused are looked for among `most_tried`: without savepoints those in front are tried
    again behind each of them. `as_read` returns the statement for one that reads all columns of a table where the
    driver would give other values than these. `folds` says whether a table may take keys for one that differ here, as
    those of letters in either case; `compares` has, by columns of the key, what compares them as their index does,
    where that is not "="; and `links` says by which columns its rows may refer to rows behind them. `finds` has the
    same of each index that begins with columns of the key, where that holds for all that "=" holds for; `scans`, where
    the database tells it, whether a statement reads the whole of the table that it calls `LOOKED_UP`. Values of the
    kinds that are `spelled` are given as text, which a column reads whatever its type, where the driver would say one
    that it may not have. As `text_type` a value of any column is whole, and can be cast back, where the driver may give
    less of it.
    """

    name: str
    connect: Callable[[], SqlConnection]
    types: Mapping[ColumnKind, str]
    errors: tuple[type[Exception], ...]
    passes: Callable[[Exception], bool]
    put: Callable[[Any, Dialect, Target, Iterable[tuple[object, ...]]], None]
    remove: Callable[[Any, Dialect, Target, Sequence[tuple[object, ...]]], None] = delete_each
    adapt: Mapping[ColumnKind, Made] = field(default_factory=dict)
    typed: Callable[[Any, str], Mapping[str, str]] = _untyped
    changes: Mapping[ColumnKind, re.Pattern[str]] = field(default_factory=dict)
    denies: Callable[[Exception], bool] = _never
    refuses: Callable[[Exception], bool] = _never
    ask: str = ""
    has_savepoints: bool = True
    most_tried: int = 1 << 60
    as_read: Callable[[Any, str, str], str] = _as_it_is
    folds: Callable[[Any, Target], bool] = _apart
    compares: Callable[[Any, Target], Mapping[str, str]] = _by_columns
    links: Callable[[Any, Target], Sequence[Link]] = _unlinked
    finds: Callable[[SqlConnection, Target], Iterable[Mapping[str, str]]] = _never_found
    scans: Callable[[SqlConnection, str, Sequence[object]], bool] | None = None
    spelled: frozenset[ColumnKind] = frozenset()
    text_type: str = ""
    begin: str = "BEGIN"
    mark: str = "?"
    lock: str = ""

    @contextmanager
    def told(self, where: str, close: Callable[[], None]) -> Iterator[None]:
        """Close what a block has used where it fails; raises `Unavailable` for what passes, else SamzaError."""
        try:
            yield
        except BaseException as error:
            close()
            if isinstance(error, self.errors):
                kind = Unavailable if self.passes(error) else SamzaError
                advice = f": {GRANT}" if self.denies(error) else ""
                raise kind(f"{where}: {str(error).strip()}{advice}") from error
            raise

    def say_index(self, where: str, table: str, columns: Sequence[str], what: str) -> None:
        """Say once that no index of a table serves what it is asked for, and which one would."""
        said = (
            f"{where}, table {table}: {what} reads the whole table, as no index serves it. "
            f"Write CREATE {self.index(table, columns)}"
        )
        if said not in _TOLD:
            _TOLD.add(said)
            _log.warning("%s; where there is such a one, its columns are of other types than what is asked for", said)

    def index(self, table: str, columns: Sequence[str]) -> str:
        """Return what a statement that makes an index of columns says behind its kind."""
        named = self.word("_".join((table.rpartition(".")[2], "by", *columns)))
        return f"INDEX {named} ON {self.quoted(table)} ({self.listed(columns)})"

    def quoted(self, name: str) -> str:
        """Return a name, and that of its schema where it has one, as SQL has it."""
        return ".".join(map(self.word, name.split(".")))

    def listed(self, names: Sequence[str]) -> str:
        """Return names as SQL lists them."""
        return ", ".join(map(self.word, names))

    @staticmethod
    def word(name: str) -> str:
        """Return one name as SQL has it, whatever is in it."""
        doubled = name.replace('"', '""')
        return f'"{doubled}"'

    def with_parameters(self, statement: str) -> str:
        r"""Return a statement whose parameters are NULs, which no name has, as the driver takes it."""
        # Where a parameter is %s, a per cent of a name is doubled.
        escaped = statement.replace("%", "%%") if self.mark == "%s" else statement
        return escaped.replace(PARAMETER, self.mark)

    def given(self, columns: Sequence[TableColumn], rows: Iterable[tuple[object, ...]]) -> Iterable[tuple[object, ...]]:
        """Return rows of columns as the driver is given them as parameters."""
        places = {place for place, column in enumerate(columns) if column.kind in self.spelled}
        if not places:
            return rows
        return (
            tuple(str(value) if place in places and value is not None else value for place, value in enumerate(row))
            for row in rows
        )

    def insert(self, target: Target, rows: str) -> str:
        """Return the statement that inserts rows, which `rows` says, or replaces those of their keys."""
        names = [column.name for column in target.columns]
        statement = f"INSERT INTO {target.table} ({self.listed(names)}) {rows}"
        if not target.key:
            return statement
        others = [name for name in names if name not in target.key]
        set_to = ", ".join(f"{self.listed([name])} = excluded.{self.listed([name])}" for name in others)
        does = f"UPDATE SET {set_to}" if others else "NOTHING"
        return f"{statement} ON CONFLICT ({self.listed(target.key)}) DO {does}"

    def delete(self, target: Target, keys: Sequence[str], using: str = "") -> str:
        """Return the statement that deletes the rows whose columns of the key are what `keys` says of each."""
        said = zip(target.key, keys, strict=True)
        equal = " AND ".join(f"{self.word(name)} {target.compares.get(name, '=')} {key}" for name, key in said)
        return f"DELETE FROM {target.table}{' USING ' + using if using else ''} WHERE {equal}"

    def create(self, target: Target) -> str:
        """Return the statement that makes the table where it is absent."""
        columns = [
            f"{self.listed([one.name])} {self.types[one.kind]}"
            + ("" if one.nullable and one.name not in target.key else " NOT NULL")
            for one in target.columns
        ]
        key = [f"PRIMARY KEY ({self.listed(target.key)})"] if target.key else []
        return f"CREATE TABLE IF NOT EXISTS {target.table} ({', '.join([*columns, *key])})"


def put_each(connection: Any, dialect: Dialect, target: Target, rows: Iterable[tuple[object, ...]]) -> None:
    """Insert rows by one statement for each, which any driver has."""
    statement = dialect.insert(target, f"VALUES ({', '.join([PARAMETER] * len(target.columns))})")
    connection.cursor().executemany(dialect.with_parameters(statement), dialect.given(target.columns, rows))
