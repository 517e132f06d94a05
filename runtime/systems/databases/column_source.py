"""A table as a source, read in the order of a column that rises with every new row."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from runtime.encoding.serdes import Tagged
from runtime.model.errors import SamzaError, command
from runtime.ports.connectors import Pulled, PulledRecord, PulledSource
from runtime.systems.databases.dialect import LOOKED_UP, PARAMETER, Dialect, SqlConnection

MOST_ROWS = 10_000
"""The rows that are read at a time."""


class UndecodedText(bytes):
    """The bytes of a text that is not in the encoding of its database, where a driver gives these."""


PLACE = "samza_dsl_place"
"""The name that a statement gives to the column by whose values rows are read, as the driver gives them whole."""

PROMISE = "rows in the order of {by}, each once; deletions, and rows whose {by} does not rise, are not seen"


class ColumnReader:
    """The rows of a table that are new, by a column whose values rise.

    Invariant: the position is the highest value of which all rows were read: of rows with one value, all are read at
    once. One thread at a time calls it.
    """

    def __init__(self, dialect: Dialect, where: str, table: str, by: str, key: Sequence[str]) -> None:
        self._dialect, self._place, self._where = dialect, where, f"{where}, table {table}"
        self._by, self._key = by, tuple(key)
        self._table, self._column = dialect.quoted(table), dialect.word(by)
        self._name = table
        self._connection: SqlConnection | None = None
        self._is_checked = False
        """Whether it was asked which way the database reads what is new."""

    def pull(self, reader: str, position: bytes) -> Pulled:
        """Return the rows behind a position, of as many values as fit."""
        with self._dialect.told(self._where, self.close):
            return self._pulled(position)

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            with suppress(*self._dialect.errors):
                connection.close()

    def _pulled(self, position: bytes) -> Pulled:
        last = _POSITIONS.decode(position) if position else None
        behind, said = (f"{self._column} > {PARAMETER}", (last,)) if position else (f"{self._column} IS NOT NULL", ())
        names, rows = self._read(f"{behind} ORDER BY {self._column} LIMIT {MOST_ROWS}", said)
        if not rows:
            return Pulled((), position)
        missing = [name for name in (self._by, *self._key) if name not in names]
        if missing:
            raise SamzaError(f"{self._where} has the columns {', '.join(names)}, and none of {', '.join(missing)}")
        last = rows[-1][-1]
        check_text(self._where, (self._by,), [last])
        more = len(rows) == MOST_ROWS
        if more:
            # Others may have the value of the last one: all of these are read at once. The database says which ones
            # they are: it takes values for one that differ here, as letters of either case, and NaN for NaN.
            same = self._read(f"{self._column} = {PARAMETER}", (last,))[1]
            ends = {_POSITIONS.encode(row[-1]) for row in same}
            rows = [*(row for row in rows if _POSITIONS.encode(row[-1]) not in ends), *same]
        return Pulled([self._record(names, row) for row in rows], _POSITIONS.encode(last), more)

    def _read(self, which: str, said: tuple[object, ...]) -> tuple[list[str], list[tuple[object, ...]]]:
        """Return the columns, and rows that have the value of their place behind those of the columns."""
        if self._connection is None:
            self._connection = self._dialect.connect()
        dialect, place = self._dialect, self._column
        if dialect.text_type:
            place = f"CAST({place} AS {dialect.text_type})"
            of = dialect.typed(self._connection, self._table).get(self._by, dialect.text_type)
            which = which.replace(PARAMETER, f"CAST({PARAMETER} AS {of})")
        statement = dialect.with_parameters(
            f"SELECT *, {place} AS {PLACE} FROM {self._table} AS {LOOKED_UP} WHERE {which}"
        )
        if said and not self._is_checked:
            self._is_checked = True
            if dialect.scans is not None and dialect.scans(self._connection, statement, said):
                dialect.say_index(self._place, self._name, (self._by,), "each look for new rows")
        found = self._connection.execute(dialect.as_read(self._connection, self._table, statement), said)
        return [one[0] for one in found.description][:-1], found.fetchall()

    def _record(self, names: Sequence[str], row: tuple[object, ...]) -> PulledRecord:
        value = plain_row(names, row[:-1])
        if self._key:
            check_text(self._where, self._key, [row[names.index(name)] for name in self._key])
        return PulledRecord(value, key_of(value, self._key) if self._key else None)


def plain_row(names: Sequence[str], row: Sequence[object]) -> dict[str, object]:
    r"""Return the values of a row by name; a text that is not in its encoding is bytes, which no field of text reads.

    >>> plain_row(["id", "name"], (1, UndecodedText(b"Troms\xf8")))
    {'id': 1, 'name': b'Troms\xf8'}
    """
    if UndecodedText in map(type, row):
        row = [bytes(value) if type(value) is UndecodedText else value for value in row]
    return dict(zip(names, row, strict=True))


def check_text(where: str, names: Sequence[str], values: Sequence[object]) -> None:
    """Raise SamzaError where one of the values by which rows are found again is no text, though it is kept as one."""
    for name, value in zip(names, values, strict=True):
        if type(value) is UndecodedText:
            raise SamzaError(
                f"{where}: {bytes(value)!r} in the column {name} is text that is not UTF-8, and rows are found by it: "
                f"mend it there (UPDATE), or keep it as a BLOB"
            )


def key_of(row: dict[str, object], key: Sequence[str]) -> object:
    """Return the key of a row: the value of one column, or those of several.

    >>> key_of({"id": 1, "note": "a"}, ["id"]), key_of({"shop": 1, "id": 2}, ["shop", "id"])
    (1, (1, 2))
    """
    return row[key[0]] if len(key) == 1 else tuple(row[name] for name in key)


def column_source(dialect: Dialect, where: str, table: str, by: str, key: Sequence[str] | str) -> PulledSource:
    """Return a source of the rows of a table in the order of a column; raises SamzaError where that has no name."""
    if not isinstance(by, str) or not by:
        raise SamzaError(f'{where}: by={by!r} names no column: name one that rises with every new row: by="id"')
    names = (key,) if isinstance(key, str) else tuple(key)
    reader = ColumnReader(dialect, where, table, by, names)
    return PulledSource(
        f"{where}#{table} by {by}",
        reader.pull,
        close=reader.close,
        promise=PROMISE.format(by=by),
        snapshot=reader.pull,
    )


_POSITIONS = Tagged()
CHANGES = "all rows and then their changes, each once"
"""The promise of a source that reads changes."""


def read_anew() -> str:
    """Return the way out where changes are missing, in words: the second command drops what was read."""
    drop = command("delete APP --bind INPUT=URL")
    return f"let the application read the table anew: {command('reset APP')}, and {drop}"
