"""The changes of a table of SQLite: triggers note each in a table of the same file, in the writer's own transaction."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

import msgspec

from operators.joins.changes import Change
from runtime.model.errors import Damaged, SamzaError
from runtime.ports.connectors import Pulled, PulledRecord
from runtime.systems.databases.column_source import check_text, key_of, plain_row, read_anew
from runtime.systems.databases.dialect import Dialect, SqlConnection

READERS = "samza_dsl_readers"
"""The table that has the readers of changes, with what they have confirmed."""
MOST_CHANGES, CHUNK_ROWS = 10_000, 5_000


class SqlitePosition(msgspec.Struct, array_like=True, frozen=True):
    """The last change that was read, and the last key of the snapshot; that is complete where it has no more."""

    seq: int = 0
    done: tuple[object, ...] | None = None
    is_complete: bool = False


class TableShape(msgspec.Struct, frozen=True):
    """The columns of a table, those of its primary key with their collations, and those of other unique indexes."""

    columns: tuple[str, ...]
    key: tuple[str, ...]
    collations: tuple[str, ...]
    unique: tuple[tuple[str, ...], ...] = ()


class SqliteChanges:
    """The snapshot of a table and then its changes, as one sequence without a gap or a double.

    Invariants: the position names the changes that were read, and the rows that were, by the last key in the order of
    the primary key. One transaction reads the changes up to now, and then some more rows as they are now; changes of
    rows that were not read yet are passed over, as a later look has them as they are then. So of each key the first
    record is its row, and `old` of each later one is `new` of the one before. One thread at a time calls it.
    """

    def __init__(self, dialect: Dialect, where: str, table: str) -> None:
        self._dialect, self._where, self._name = dialect, f"{where}, table {table}", table
        self._table = dialect.quoted(table)
        self._connection: SqlConnection | None = None
        self._shape: TableShape | None = None

    def pull(self, reader: str, position: bytes) -> Pulled:
        """Return what comes behind a position; from none on, the triggers are made anew."""
        names = _Names(reader, self._dialect.word)
        if not position:
            with self._transaction("BEGIN IMMEDIATE") as connection:
                self._prepare(connection, names)
            return Pulled((), _encode(SqlitePosition()), more=True)
        with self._transaction("BEGIN") as connection:
            return self._pulled(connection, names, msgspec.msgpack.decode(position, type=SqlitePosition))

    def confirm(self, reader: str, position: bytes) -> None:
        """Drop the changes that are kept elsewhere by now."""
        seq, names = msgspec.msgpack.decode(position, type=SqlitePosition).seq, _Names(reader, self._dialect.word)
        with self._transaction("BEGIN IMMEDIATE") as connection:
            # The last one stays: numbers rise from the highest that is there. AUTOINCREMENT does not hold that where a
            # statement ends by OR FAIL.
            connection.execute(f"DELETE FROM {names.changes} WHERE seq < ?", (seq,))
            connection.execute(f"UPDATE {READERS} SET confirmed = ? WHERE reader = ?", (seq, reader))

    def forget(self, reader: str) -> None:
        """Drop the triggers and tables of a reader, and the table of readers with the last of them."""
        names = _Names(reader, self._dialect.word)
        with self._transaction("BEGIN IMMEDIATE") as connection:
            self._drop(connection, names)
            if connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (READERS,)).fetchall():
                connection.execute(f"DELETE FROM {READERS} WHERE reader = ?", (reader,))
                if not connection.execute(f"SELECT 1 FROM {READERS} LIMIT 1").fetchall():
                    connection.execute(f"DROP TABLE {READERS}")

    def keeps(self, reader: str) -> str:
        """Return what there is in the file for a reader, which is not opened."""
        return f"the triggers and tables samza_dsl_*_{_Names(reader, self._dialect.word).mark}"

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()

    def _prepare(self, connection: SqlConnection, names: _Names) -> None:
        """Make the table of changes and the triggers, in place of those of an earlier try."""
        shape = self._read_shape(connection)
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {READERS} (reader TEXT PRIMARY KEY, name TEXT, shape BLOB, confirmed INTEGER)"
        )
        self._drop(connection, names)
        for statement in _statements(self._table, shape, names, self._dialect.word):
            connection.execute(statement)
        row = (names.reader, self._name, msgspec.msgpack.encode(shape), 0)
        connection.execute(f"INSERT OR REPLACE INTO {READERS} VALUES (?, ?, ?, ?)", row)

    def _drop(self, connection: SqlConnection, names: _Names) -> None:
        for trigger in names.triggers:
            connection.execute(f"DROP TRIGGER IF EXISTS {trigger}")
        for table in (names.changes, names.replaced):
            connection.execute(f"DROP TABLE IF EXISTS {table}")

    def _pulled(self, connection: SqlConnection, names: _Names, at: SqlitePosition) -> Pulled:
        shape = self._known_shape(connection, names, at)
        changes, seq = self._changes(connection, shape, names, at)
        if len(changes) == MOST_CHANGES or at.is_complete:
            position = msgspec.structs.replace(at, seq=seq)
            kept = [one for one in changes if one is not None]
            return Pulled(kept, _encode(position), more=len(changes) == MOST_CHANGES)
        # All changes up to this transaction were read: rows come as they are in it.
        columns, marks = self._dialect.listed(shape.columns), ", ".join("?" * len(shape.key))
        key = self._dialect.listed(shape.key)
        behind = f" WHERE ({key}) > ({marks})" if at.done is not None else ""
        rows = connection.execute(
            f"SELECT {columns} FROM {self._table}{behind} ORDER BY {key} LIMIT {CHUNK_ROWS}", at.done or ()
        ).fetchall()
        records = [one for one in changes if one is not None]
        records += [self._record(shape, None, row) for row in rows]
        places = [shape.columns.index(name) for name in shape.key]
        done = tuple(rows[-1][place] for place in places) if rows else at.done
        is_complete = len(rows) < CHUNK_ROWS
        return Pulled(records, _encode(SqlitePosition(seq, done, is_complete)), more=not is_complete)

    def _changes(
        self, connection: SqlConnection, shape: TableShape, names: _Names, at: SqlitePosition
    ) -> tuple[list[PulledRecord | None], int]:
        """Return the next changes, None for those of rows that are still to be read, and the number of the last."""
        width = len(shape.columns)
        read = ["1", "1"]
        said: tuple[object, ...] = ()
        if not at.is_complete and at.done is None:
            read = ["0", "0"]
        elif not at.is_complete:
            assert at.done is not None, "some rows were read"
            # In the order of the table's own key, whatever its collation.
            marks = ", ".join("?" * len(shape.key))
            sides = (_side(shape, which, self._dialect.word) for which in ("old", "new"))
            read = [f"({side}) <= ({marks})" for side in sides]
            said = (*at.done, *at.done)
        statement = (
            f"SELECT seq, kind, {', '.join(read)}, {_columns(width)} FROM {names.changes} "
            f"WHERE seq > ? ORDER BY seq LIMIT {MOST_CHANGES}"
        )
        found: list[PulledRecord | None] = []
        rows = connection.execute(statement, (*said, at.seq)).fetchall()
        for _, kind, had, has, *values in rows:
            old = values[:width] if kind != "insert" and had else None
            new = values[width:] if kind != "delete" and has else None
            found.append(None if old is None and new is None else self._record(shape, old, new))
        return found, rows[-1][0] if rows else at.seq

    def _record(self, shape: TableShape, old: Sequence[object] | None, new: Sequence[object] | None) -> PulledRecord:
        rows = [None if row is None else plain_row(shape.columns, row) for row in (old, new)]
        there, values = (rows[1], new) if new is not None else (rows[0], old)
        assert there is not None and values is not None, "a change has a row on one side"
        check_text(self._where, shape.key, [values[shape.columns.index(name)] for name in shape.key])
        key = key_of(there, shape.key)
        if key is None or (isinstance(key, tuple) and None in key):
            raise SamzaError(f"{self._where} has a row whose primary key is NULL, which names no row: {there!r}")
        return PulledRecord(Change(key, *rows), key)

    def _known_shape(self, connection: SqlConnection, names: _Names, at: SqlitePosition) -> TableShape:
        """Return the shape that the triggers know; raises where the table has another one, or this is an old copy."""
        there = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (READERS,)).fetchall()
        found = (
            there
            and connection.execute(
                f"SELECT shape, confirmed FROM {READERS} WHERE reader = ?", (names.reader,)
            ).fetchall()
        )
        if not found or found[0][1] > at.seq:
            raise Damaged(
                f"{self._where} keeps no changes for this application from {at.seq:,} on: it, or the data directory, "
                "was restored from a copy of another time, or another copy of the directory has read them: "
                f"{read_anew()}"
            )
        known = msgspec.msgpack.decode(found[0][0], type=TableShape)
        # They go with their table, and go along where it gets another name.
        of = self._name.rpartition(".")[2]
        told = connection.execute(
            f"SELECT count(*) FROM sqlite_master WHERE type = 'trigger' AND tbl_name = ? COLLATE NOCASE AND name IN "
            f"({', '.join('?' * len(names.triggers))})",
            (of, *names.triggers),
        ).fetchall()
        if told != [(len(names.triggers),)]:
            raise Damaged(
                f"{self._where} has lost the triggers samza_dsl_*_{names.mark}: it was dropped and made anew, or they "
                f"were, and changes since then are missing: {read_anew()}"
            )
        if self._shape != known:
            self._shape = known
        now = self._read_shape(connection)
        if now != known:
            raise SamzaError(
                f"{self._where} has the columns {', '.join(now.columns)} and the key {', '.join(now.key)}, or other "
                f"unique indexes, and had {', '.join(known.columns)}, key {', '.join(known.key)}, as its triggers were "
                f"made: {read_anew()}"
            )
        return known

    def _read_shape(self, connection: SqlConnection) -> TableShape:
        columns = connection.execute(f"PRAGMA table_info({self._table})").fetchall()
        if not columns:
            raise SamzaError(f"{self._where} is not there")
        if not any(one[5] for one in columns):
            raise SamzaError(
                f"{self._where} has no primary key, by which its rows are told apart: read it by= a column"
            )
        key = tuple(one[1] for one in sorted(columns, key=lambda one: one[5]) if one[5])
        unique, collations = [], ["BINARY"] * len(key)
        for _, name, is_unique, origin, is_partial in connection.execute(
            f"PRAGMA index_list({self._table})"
        ).fetchall():
            found = connection.execute(f"PRAGMA index_xinfo({self._dialect.word(name)})").fetchall()
            names = [one[2] for one in found if one[5]]
            if origin == "pk":
                by_name = {one[2]: one[4] for one in found if one[5]}
                collations = [by_name[one] for one in key]
            elif is_unique and (is_partial or None in names):
                raise SamzaError(
                    f"{self._where} has the unique index {name} on a part of its rows, or on an expression: nobody is "
                    "told of the rows that INSERT OR REPLACE removes by it. Read the table by= a column"
                )
            elif is_unique:
                unique.append(tuple(names))
        return TableShape(tuple(one[1] for one in columns), key, tuple(collations), tuple(sorted(unique)))

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[SqlConnection]:
        with self._dialect.told(self._where, self.close):
            if self._connection is None:
                self._connection = self._dialect.connect()
            self._connection.execute(begin)
            yield self._connection
            self._connection.execute("COMMIT")


class _Names:
    """The names of what a reader has made in a database."""

    def __init__(self, reader: str, word: Callable[[str], str]) -> None:
        self.reader = reader
        self.mark = mark = f"{zlib.crc32(reader.encode()):08x}"
        self.changes, self.replaced = word(f"samza_dsl_changes_{mark}"), word(f"samza_dsl_replaced_{mark}")
        self._word = word

    @cached_property
    def triggers(self) -> tuple[str, ...]:
        """The triggers, in the order of `_statements`."""
        kinds = ("before_insert", "before_update", "insert", "update", "delete")
        return tuple(f"samza_dsl_{kind}_{self.mark}" for kind in kinds)


def _statements(table: str, shape: TableShape, names: _Names, word: Callable[[str], str]) -> Iterator[str]:
    """Yield the statements that make the table of changes and its triggers.

    INSERT OR REPLACE, and UPDATE OR REPLACE, remove the rows that are in the way by any unique index, and fire no
    trigger for these. So such rows are put aside before, and looked for after it: those that are gone were deleted.
    """
    width = len(shape.columns)
    # Without types: a value is kept as it is, whatever its column says.
    yield f"CREATE TABLE {names.changes} (seq INTEGER PRIMARY KEY, kind, {_columns(width)})"
    yield f"CREATE TABLE {names.replaced} ({', '.join(f'old_{n}' for n in range(width))})"
    new, old = (", ".join(f"{side}.{word(name)}" for name in shape.columns) for side in ("NEW", "OLD"))
    kept = ", ".join(f"old_{n}" for n in range(width))
    as_new = ", ".join(f"new_{n}" for n in range(width))
    there = ", ".join(f"t.{word(name)}" for name in shape.columns)
    in_the_way = " OR ".join(
        "(" + " AND ".join(f"t.{word(name)} = NEW.{word(name)}" for name in index) + ")"
        for index in (shape.key, *shape.unique)
    )

    def equal(left: str, right: str) -> str:
        pairs = zip(_key_of(left, shape, word), _key_of(right, shape, word), strict=True)
        return " AND ".join(f"{one} COLLATE BINARY = {other}" for one, other in pairs)

    gone = (
        f"INSERT INTO {names.changes} (kind, {kept}) SELECT 'delete', {kept} FROM {names.replaced} AS r "
        f"WHERE NOT EXISTS (SELECT 1 FROM {table} AS t WHERE {equal('t', 'r')})"
    )
    aside = f"INSERT INTO {names.replaced} SELECT {there} FROM {table} AS t WHERE ({in_the_way})"
    forget = f"DELETE FROM {names.replaced}"
    from_old = ", ".join(f"r.old_{n}" for n in range(width))
    before_insert, before_update, insert, update, delete = names.triggers
    yield f"CREATE TRIGGER {before_insert} BEFORE INSERT ON {table} BEGIN {forget}; {aside}; END"
    not_itself = f"NOT ({equal('t', 'OLD')})"
    yield f"CREATE TRIGGER {before_update} BEFORE UPDATE ON {table} BEGIN {forget}; {aside} AND {not_itself}; END"
    yield (
        f"CREATE TRIGGER {insert} AFTER INSERT ON {table} BEGIN {gone}; "
        f"INSERT INTO {names.changes} (kind, {kept}, {as_new}) SELECT 'update', {from_old}, {new} "
        f"FROM {names.replaced} AS r WHERE {equal('r', 'NEW')}; "
        f"INSERT INTO {names.changes} (kind, {as_new}) SELECT 'insert', {new} "
        f"WHERE NOT EXISTS (SELECT 1 FROM {names.replaced} AS r WHERE {equal('r', 'NEW')}); {forget}; END"
    )
    same = equal("OLD", "NEW")
    # A row that gets another key is gone under the one it had.
    yield (
        f"CREATE TRIGGER {update} AFTER UPDATE ON {table} BEGIN {gone}; "
        f"INSERT INTO {names.changes} (kind, {kept}, {as_new}) SELECT 'update', {old}, {new} WHERE {same}; "
        f"INSERT INTO {names.changes} (kind, {kept}) SELECT 'delete', {old} WHERE NOT ({same}); "
        f"INSERT INTO {names.changes} (kind, {kept}, {as_new}) SELECT 'update', {from_old}, {new} "
        f"FROM {names.replaced} AS r WHERE NOT ({same}) AND {equal('r', 'NEW')}; "
        f"INSERT INTO {names.changes} (kind, {as_new}) SELECT 'insert', {new} WHERE NOT ({same}) "
        f"AND NOT EXISTS (SELECT 1 FROM {names.replaced} AS r WHERE {equal('r', 'NEW')}); {forget}; END"
    )
    yield (
        f"CREATE TRIGGER {delete} AFTER DELETE ON {table} BEGIN "
        f"DELETE FROM {names.replaced} WHERE {equal(names.replaced, 'OLD')}; "
        f"INSERT INTO {names.changes} (kind, {kept}) VALUES ('delete', {old}); END"
    )


def _key_of(side: str, shape: TableShape, word: Callable[[str], str]) -> list[str]:
    """Return the key columns of a row in SQL: of the table, or of one that was put aside."""
    if side in ("NEW", "OLD", "t"):
        return [f"{side}.{word(name)}" for name in shape.key]
    return [f"{side}.old_{shape.columns.index(name)}" for name in shape.key]


def _columns(width: int) -> str:
    return ", ".join(f"{side}_{n}" for side in ("old", "new") for n in range(width))


def _side(shape: TableShape, side: str, word: Callable[[str], str]) -> str:
    return ", ".join(
        f"{side}_{shape.columns.index(name)} COLLATE {word(collation)}"
        for name, collation in zip(shape.key, shape.collations, strict=True)
    )


def _encode(position: SqlitePosition) -> bytes:
    return msgspec.msgpack.encode(position)
