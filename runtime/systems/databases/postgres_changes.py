"""The changes of a table of Postgres: chunks of its rows, and the log of the server by logical replication."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from operators.joins.changes import Change
from runtime.model.errors import Damaged, SamzaError
from runtime.ports.connectors import Pulled, PulledRecord
from runtime.systems.databases.column_source import key_of, read_anew
from runtime.systems.databases.dialect import PARAMETER, Dialect
from runtime.systems.databases.pgoutput import PgTransaction, RowChange, TextRow, transactions
from runtime.systems.databases.postgres_table import PgTable, check_published, parts_of, read_table

MOST_CHANGES, CHUNK_ROWS = 10_000, 5_000
NOTED_BYTES = 1 << 20
"""The bytes of the server's log after which a position is noted though nothing of this table is among them.

Else the server would keep its log for a table at rest.
"""
PAUSE, OPEN_NOW = "SELECT pg_sleep(0.01)", "SELECT pg_snapshot_xip(pg_current_snapshot())::text"
_log = logging.getLogger("samza_dsl")
Key = tuple[str, ...]
"""The values of a primary key as text, as the server writes them."""


class OpenChunk(msgspec.Struct, array_like=True, frozen=True):
    """Rows that were read in one snapshot: the last key, None for the end of the table, and the snapshot.

    `until` is a place in the server's log behind which no transaction is that the snapshot has seen.
    """

    last: Key | None
    snapshot: str
    until: int


class PgPosition(msgspec.Struct, array_like=True, frozen=True):
    """The place in the server's log up to which its transactions were read, and how far the snapshot has come.

    `columns` are those that rows have had so far, and `parts` the partitions that there were. `key` has the numbers of
    the columns of the primary key, which stay where one gets another name.
    """

    lsn: int
    done: Key | None = None
    is_complete: bool = False
    chunk: OpenChunk | None = None
    columns: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    key: str = ""


class PostgresChanges:
    """The snapshot of a table and then its changes, as one sequence without a gap or a double.

    Invariants: rows are read in chunks, by the order of the primary key, each with the snapshot of its transaction.
    That tells exactly which transactions the rows of a chunk have in them: the changes of these are passed over, all
    others come behind the rows. Changes of rows beyond the last chunk are passed over as well, as a later chunk has
    them: `_passed` has the transactions for which it must be seen that it has. So of each key the first record is its
    row, and `old` of each later one is `new` of the one before. The slot is moved on only to a place that was kept.
    One thread at a time calls it.
    """

    def __init__(self, dialect: Dialect, where: str, table: str, load: Callable[[Any, int], Callable[[bytes], Any]]):
        self._dialect, self._where, self._table = dialect, f"{where}, table {table}", table
        self._load = load
        """Returns what makes a value of text, by a connection and the number of a type."""
        self._connection: Any = None
        self._known: PgTable | None = None
        self._loaders: dict[int, Callable[[bytes], Any]] = {}
        self._passed: set[int] = set()
        self._is_settled = False

    def pull(self, reader: str, position: bytes) -> Pulled:
        """Return what comes behind a position; from none on, the slot is made anew."""
        with self._connected() as connection:
            if not position:
                return Pulled((), _encode(self._begin(connection, reader)), more=True)
            at = msgspec.msgpack.decode(position, type=PgPosition)
            key = self._check_told(connection, reader, at)
            if at.key != key:  # positions of former versions know of none
                at = msgspec.structs.replace(at, key=key)
                position = _encode(at)
            if self._table_now(connection).is_partitioned:
                at = self._with_parts(at, parts_of(connection, self._table_now(connection).oid))
                position = _encode(at)
            if not at.is_complete and at.chunk is None:
                return self._chunk(connection, at)
            return self._log(connection, reader, at, position)

    def confirm(self, reader: str, position: bytes) -> None:
        """Move the slot on, so that the server may drop its log up to there."""
        at = msgspec.msgpack.decode(position, type=PgPosition)
        with self._connected() as connection:
            connection.execute("SELECT pg_replication_slot_advance(%s, %s::pg_lsn)", (slot_of(reader), _lsn(at.lsn)))

    def forget(self, reader: str) -> None:
        """Drop the slot of a reader, and publications where no slot of ours is left in the database to tell by them."""
        with self._connected() as connection:
            connection.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s",
                (slot_of(reader),),
            )
            publications = connection.execute(
                "SELECT pubname FROM pg_publication WHERE starts_with(pubname, 'samza_dsl_') AND NOT EXISTS ("
                "SELECT 1 FROM pg_replication_slots WHERE starts_with(slot_name, 'samza_dsl_') "
                "AND database = current_database())"
            ).fetchall()
            for (publication,) in publications:
                connection.execute(f"DROP PUBLICATION IF EXISTS {self._dialect.quoted(publication)}")

    def keeps(self, reader: str) -> str:
        """Return what there is in the database for a reader; no connection is made."""
        return f"the replication slot {slot_of(reader)}, and the publication of the table, samza_dsl_*"

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            self._known, self._is_settled, self._loaders = None, False, {}
            with suppress(*self._dialect.errors):
                connection.close()

    def _begin(self, connection: Any, reader: str) -> PgPosition:
        """Make publication and slot; whatever an earlier try has left under the reader's name is of nobody's use."""
        table, slot = self._table_now(connection), slot_of(reader)
        check_published(connection, self._where, table)
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s", (slot,)
        )
        # The server makes no slot before they have ended.
        self._open_now(connection)
        made = connection.execute(
            "SELECT lsn - '0/0'::pg_lsn FROM pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,)
        ).fetchone()
        return PgPosition(int(made[0]), columns=table.columns, parts=parts_of(connection, table.oid))

    def _check_told(self, connection: Any, reader: str, at: PgPosition) -> str:
        """Return the numbers of the columns of the primary key.

        Raises `Damaged` where changes since a position are gone, those of the table are not told any more, or rows had
        another primary key then.
        """
        table, slot = self._table_now(connection), slot_of(reader)
        # Of a table that was made anew the server tells nothing, in silence. It is asked in one round trip.
        confirmed, status, is_told, key = connection.execute(
            "SELECT confirmed_flush_lsn - '0/0'::pg_lsn, wal_status, EXISTS ("
            "SELECT 1 FROM pg_publication AS p JOIN pg_publication_rel ON prpubid = p.oid "
            "WHERE pubname = %s AND prrelid = to_regclass(%s)"
            "), (SELECT indkey::text FROM pg_index WHERE indrelid = to_regclass(%s) AND indisprimary) "
            "FROM (VALUES (1)) AS one LEFT JOIN pg_replication_slots ON slot_name = %s",
            (table.publication, table.quoted, table.quoted, slot),
        ).fetchone()
        if confirmed is None or status == "lost" or int(confirmed) > at.lsn:
            dropped = "was dropped by the server" if status == "lost" else "has moved on"
            raise Damaged(
                f"{self._where}: the slot {slot} {'is gone' if status is None else dropped}, and changes from "
                f"{_lsn(at.lsn)} on are missing: the database or the data directory was restored from a copy of "
                f"another time, or another copy of the directory reads by the slot: {read_anew()}"
            )
        if not is_told:
            raise Damaged(
                f"{self._where} is not in the publication {table.publication} any more: it was dropped and made anew, "
                f"or was taken out, and changes since then are missing. DROP PUBLICATION, and {read_anew()}"
            )
        if key is None or at.key not in ("", key):
            raise Damaged(
                f"{self._where} has another primary key than it had, or none, and rows that were read have the former "
                f"one: {read_anew()}"
            )
        return str(key)

    def _chunk(self, connection: Any, at: PgPosition) -> Pulled:
        """Read the next rows, with the snapshot that they are of."""
        self._settle(connection)
        table = self._table_now(connection)
        columns, key = self._dialect.listed(table.columns), self._dialect.listed(table.key)
        behind = f"WHERE ({key}) > ({_marks(table)})" if at.done is not None else ""
        statement = self._dialect.with_parameters(
            f"SELECT {columns} FROM {table.quoted} {behind} ORDER BY {key} LIMIT {CHUNK_ROWS}"
        )
        while True:
            # One snapshot for both statements.
            with connection.transaction():
                connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
                snapshot = connection.execute("SELECT pg_current_snapshot()::text").fetchone()[0]
                cursor = connection.execute(statement, at.done or ())
                rows = text_rows(cursor)
            # A transaction is in the log a moment before others see it.
            if all(_sees(snapshot, xid) for xid in self._passed):
                break
            connection.execute(PAUSE)
        self._passed.clear()
        until = int(connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()[0])
        types = [column.type_code for column in cursor.description]
        records = [self._record(table.columns, types, table.key, None, row) for row in rows]
        last = _text_key(table.columns, table.key, rows[-1]) if len(rows) == CHUNK_ROWS else None
        at = self._with_columns(at, table.columns)
        chunk = OpenChunk(last, snapshot, until)
        return Pulled(records, _encode(msgspec.structs.replace(at, chunk=chunk)), more=True)

    def _log(self, connection: Any, reader: str, at: PgPosition, before: bytes) -> Pulled:
        """Read the transactions behind a position, up to the end of the open chunk, or to what is written by now."""
        written = int(connection.execute("SELECT pg_current_wal_flush_lsn() - '0/0'::pg_lsn").fetchone()[0])
        target = written if at.chunk is None else min(written, at.chunk.until)
        table = self._table_now(connection)
        cursor = connection.execute(
            "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, %s::pg_lsn, %s, 'proto_version', '1', "
            "'publication_names', %s)",
            (slot_of(reader), _lsn(max(target, 1)), MOST_CHANGES, table.publication),
        )
        messages = [bytes(row[0]) for row in cursor.fetchall()]
        found = [one for one in transactions(messages) if one.end_lsn > at.lsn]
        is_cut = len(messages) >= MOST_CHANGES
        lsn = max([at.lsn, *(one.end_lsn for one in found), *(() if is_cut else (target,))])
        if is_cut and not found:
            # All that came lies before the position: the slot was not moved on since.
            self.confirm(reader, before)
            return Pulled((), before, more=True)
        records = self._changes(connection, at, found)
        # Before all rows are read, a change may be older than the chunk before it.
        for change in (change for one in found if at.is_complete for change in one.changes):
            if change.relation.oid == table.oid:
                at = self._with_columns(at, change.relation.columns)
        position = msgspec.structs.replace(at, lsn=lsn)
        if at.chunk is not None:
            if lsn < at.chunk.until:
                if not is_cut:
                    connection.execute(PAUSE)  # what commits without waiting for the disk is written a moment later
                return Pulled(records, _encode(position), more=True)
            is_complete = at.chunk.last is None
            done = None if is_complete else at.chunk.last
            position = msgspec.structs.replace(position, done=done, is_complete=is_complete, chunk=None)
            return Pulled(records, _encode(position), more=True)
        is_worth_noting = bool(records) or lsn - at.lsn >= NOTED_BYTES
        return Pulled(records, _encode(position) if is_worth_noting else before, more=is_cut)

    def _with_columns(self, at: PgPosition, columns: tuple[str, ...]) -> PgPosition:
        """Return a position behind rows of some columns, and say which ones are gone: these read as no value is there.

        What no input reads may be dropped, so it is no error.
        """
        if at.columns == columns:
            return at
        if lost := [name for name in at.columns if name not in columns]:
            _log.warning(
                "%s has lost the columns %s: from now on a row has no value there, and reads as the type of the input "
                "has it where that says a default, else as a row that can't be read",
                self._where,
                ", ".join(lost),
            )
        return msgspec.structs.replace(at, columns=columns)

    def _with_parts(self, at: PgPosition, parts: tuple[str, ...]) -> PgPosition:
        """Return a position that knows the partitions there are, and say what the server does not tell of others."""
        # Positions of former versions know of none.
        if at.parts and (gone := [name for name in at.parts if name not in parts]):
            _log.warning(
                "%s has lost the partitions %s: of the rows that they had, none is told as a deletion",
                self._where,
                ", ".join(gone),
            )
        if at.parts and (come := [name for name in parts if name not in at.parts]):
            _log.warning(
                "%s has the new partitions %s: rows that were in one before it was attached are not told",
                self._where,
                ", ".join(come),
            )
        return msgspec.structs.replace(at, parts=parts)

    def _changes(self, connection: Any, at: PgPosition, found: Sequence[PgTransaction]) -> list[PulledRecord]:
        """Return the changes of transactions that no chunk has, or will have, in its rows."""
        table = self._table_now(connection)
        sides: list[tuple[PgTransaction, RowChange, TextRow | None, TextRow | None]] = []
        for one in found:
            if table.oid in one.truncated:
                raise SamzaError(
                    f"{self._where} was emptied by TRUNCATE, which tells of no row: use DELETE, or {read_anew()}"
                )
            for change in one.changes:
                if change.relation.oid == table.oid:
                    sides += [(one, change, *pair) for pair in self._split(table, change)]
        keys = [
            _text_key(change.relation.columns, table.key, new if new is not None else old or [])
            for _, change, old, new in sides
        ]
        records = []
        for (one, change, old, new), (is_done, is_in_chunk) in zip(
            sides, self._judged(connection, table, at, keys), strict=True
        ):
            if not is_done and not is_in_chunk:
                self._passed.add(one.xid)
            elif is_done or not _sees(at.chunk.snapshot if at.chunk is not None else "", one.xid):
                relation = change.relation
                record = self._record(relation.columns, relation.types, table.key, old, new)
                records.append(record._replace(timestamp_ms=one.timestamp_ms))
        return records

    def _split(self, table: PgTable, change: RowChange) -> Iterator[tuple[TextRow | None, TextRow | None]]:
        """Yield a change as one of each key: a row that gets another key is gone under the one that it had."""
        old, new, names = change.old, change.new, change.relation.columns
        if missing := [name for name in table.key if name not in names]:
            raise Damaged(f"{self._where} has lost the columns {', '.join(missing)} of its key")
        others = [value for name, value in zip(names, old or (), strict=False) if name not in table.key]
        # Of a partition that is not told in full the server has NULL for all but the key.
        if not change.is_whole or (change.partial and others and all(value is None for value in others)):
            raise SamzaError(
                f"{self._where} does not tell rows as they were before: "
                + "; ".join(f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in change.partial or (table.quoted,))
                + f", and {read_anew()}"
            )
        if old is None or new is None or _text_key(names, table.key, old) == _text_key(names, table.key, new):
            yield old, new
        else:
            yield old, None
            yield None, new

    def _judged(
        self, connection: Any, table: PgTable, at: PgPosition, keys: Sequence[Key]
    ) -> Sequence[tuple[bool, bool]]:
        """Return of each key whether it lies in what the snapshot had before, and whether in the open chunk.

        The server compares: it alone knows the order of its types and collations.
        """
        if at.is_complete or not keys:
            return [(True, False)] * len(keys)
        names = self._dialect.listed(table.key)
        casts = ", ".join(f"k{n}::{kind}" for n, kind in enumerate(table.key_types))
        columns = [[key[place] for key in keys] for place in range(len(table.key))]
        arrays = ", ".join([f"{PARAMETER}::text[]"] * len(columns))
        given = ", ".join(f"k{n}" for n in range(len(columns)))
        # The union gives the keys the collations of the table's own columns.
        statement = self._dialect.with_parameters(
            f"SELECT ({names}) <= ({_marks(table)}) FROM (SELECT {names}, 0::bigint AS samza_dsl_n FROM {table.quoted} "
            f"WHERE false UNION ALL SELECT {casts}, n FROM unnest({arrays}) WITH ORDINALITY AS given ({given}, n)) "
            "AS all_keys ORDER BY samza_dsl_n"
        )

        def reached(last: Key | None) -> list[bool]:
            if last is None:
                return [False] * len(keys)
            return [bool(row[0]) for row in connection.execute(statement, (*last, *columns)).fetchall()]

        is_done = reached(at.done)
        if at.chunk is None:
            return [(one, False) for one in is_done]
        in_chunk = [True] * len(keys) if at.chunk.last is None else reached(at.chunk.last)
        return list(zip(is_done, in_chunk, strict=True))

    def _record(
        self, names: Sequence[str], types: Sequence[int], key: Sequence[str], old: TextRow | None, new: TextRow | None
    ) -> PulledRecord:
        rows = [None if row is None else self._loaded(names, types, row) for row in (old, new)]
        there = rows[1] if rows[1] is not None else rows[0]
        assert there is not None, "a change has a row on one side"
        found = key_of(there, key)
        return PulledRecord(Change(found, *rows), found)

    def _loaded(self, names: Sequence[str], types: Sequence[int], row: TextRow) -> dict[str, object]:
        loaders = self._loaders
        for kind in types:
            if kind not in loaders:
                loaders[kind] = self._load(self._connection, kind)
        return {
            name: None if value is None else loaders[kind](value)  # type: ignore[arg-type]  # bytes, as it was told whole
            for name, kind, value in zip(names, types, row, strict=True)
        }

    def _settle(self, connection: Any) -> None:
        """Wait for what was under way as the slot was made, or this was opened, before the first chunk is read.

        Such a transaction may be in the log, before the slot, and still be hidden from a snapshot.
        """
        if self._is_settled:
            return
        open_now = self._open_now(connection)
        while open_now:
            connection.execute(PAUSE)
            open_now &= {row[0] for row in connection.execute(OPEN_NOW).fetchall()}
        self._is_settled = True

    def _open_now(self, connection: Any) -> set[str]:
        """Return the transactions that are under way, and say that they are waited for: it may be long."""
        found = {row[0] for row in connection.execute(OPEN_NOW).fetchall()}
        if found:
            _log.warning("%s is read once the transactions %s have ended", self._where, ", ".join(sorted(found)))
        return found

    def _table_now(self, connection: Any) -> PgTable:
        if self._known is None:
            self._known = read_table(connection, self._where, self._table, self._dialect.quoted(self._table))
        return self._known

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        with self._dialect.told(self._where, self.close):
            if self._connection is None:
                self._connection = self._dialect.connect()
                self._connection.execute("SET TimeZone = 'UTC'")
                # Policies of rows hold for what is selected, and not for the log: the server refuses to go by them.
                self._connection.execute("SET row_security = off")
            yield self._connection


def slot_of(reader: str) -> str:
    """Return the name of a reader's slot, of what such a name may have.

    >>> slot_of("shop.orders.0a1b2c3d")
    'samza_dsl_shop_orders_0a1b2c3d'
    """
    plain = "".join(one if one.isascii() and one.isalnum() else "_" for one in reader.lower())
    named = f"samza_dsl_{plain}"
    return named if len(named) < 64 else f"{named[:54]}_{zlib.crc32(reader.encode()):08x}"


def text_rows(cursor: Any) -> list[TextRow]:
    """Return the rows of a cursor as the server has sent them, as text."""
    result = cursor.pgresult
    return [[result.get_value(row, column) for column in range(result.nfields)] for row in range(result.ntuples)]


def _sees(snapshot: str, xid: int) -> bool:
    """Whether a snapshot, as xmin:xmax:in-progress, has the effects of a transaction, of whose number it is the end.

    >>> _sees("10:20:12,15", 9), _sees("10:20:12,15", 12), _sees("10:20:12,15", 13), _sees("10:20:12,15", 20)
    (True, False, True, False)
    >>> _sees("4294967300:4294967310:", 5), _sees("4294967300:4294967310:", 4294967290)
    (True, True)
    """
    least, most, open_then = snapshot.split(":")
    full = (int(most) & ~0xFFFFFFFF) | xid
    if full > int(most) + (1 << 31):
        full -= 1 << 32
    return full < int(least) or (full < int(most) and str(full) not in open_then.split(","))


def _text_key(names: Sequence[str], key: Sequence[str], row: TextRow) -> Key:
    found = [row[names.index(name)] for name in key]
    assert all(isinstance(one, bytes) for one in found), "a primary key is told whole"
    return tuple(one.decode() for one in found if isinstance(one, bytes))


def _marks(table: PgTable) -> str:
    return ", ".join([PARAMETER] * len(table.key))


def _lsn(number: int) -> str:
    return f"{number >> 32:X}/{number & 0xFFFFFFFF:X}"


def _encode(position: PgPosition) -> bytes:
    return msgspec.msgpack.encode(position)
