"""The entries of state, and beside each store their number, their size and the XOR of their checksums."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from runtime.systems.log.records import (
    CRC,
    PLACE,
    SHORT_BYTES,
    crc_of,
    entry_bytes,
    fetch,
    place_of_key,
    record_of,
    sealed,
)

if TYPE_CHECKING:
    import lmdb

    from runtime.systems.log.database import Database

TALLY = b"tally\0"
_TALLY = struct.Struct("<QQI")


class Tally(NamedTuple):
    """The count kept of a store in one task beside its entries, of which a damaged page may lose some."""

    entries: int = 0
    size_bytes: int = 0
    """The length of all keys and values."""
    checksums: int = 0

    @staticmethod
    def of(data: bytes) -> Tally:
        """Return the tally that was stored as `data`."""
        return Tally(*_TALLY.unpack(data))


class Placed(NamedTuple):
    """Entries of the store and task at `place` as they are stored, None where one is deleted, and what they tally."""

    place: bytes
    records: list[tuple[bytes, bytes | None]]
    tally: Tally


def placed(place: bytes, items: Iterable[tuple[bytes, bytes | None]]) -> Placed:
    """Return entries of the store and task at `place` with where they lie, and what is stored there."""
    found: list[tuple[bytes, bytes | None]] = []
    # Local names, and no call per entry: this loop runs once for every entry that a commit merges.
    append, pack, entries, size_bytes, checksums = found.append, CRC.pack, 0, 0, 0
    for key, value in items:
        at = place + key if len(key) <= SHORT_BYTES else place_of_key(place, key)
        if value is None:
            append((at, None))
            continue
        entries += 1
        size_bytes += len(key) + len(value)
        if len(key) > SHORT_BYTES:
            record = record_of(at, key, value)
            append((at, record))
            checksums ^= crc_of(record)
        else:
            checksum = crc32(value, crc32(at))  # as record_of does, without a call for each
            append((at, pack(checksum) + value))
            checksums ^= checksum
    return Placed(place, found, Tally(entries, size_bytes, checksums))


def write_entries(transaction: lmdb.Transaction[memoryview], database: Database, written: Placed) -> None:
    """Put and delete the entries of a store and task."""
    key = TALLY + written.place
    before, now = tally_of(transaction, database, written.place), written.tally
    entries, size_bytes = before.entries + now.entries, before.size_bytes + now.size_bytes
    checksums = before.checksums ^ now.checksums
    cursor = transaction.cursor(database.state)
    replace, pop = cursor.replace, cursor.pop
    for at, record in written.records:
        # One walk down the tree puts the new and returns the old, whose share the tally loses.
        old = pop(at) if record is None else replace(at, record)
        if old is not None:
            entries -= 1
            size_bytes -= entry_bytes(at, old)
            checksums ^= crc_of(old)
    transaction.put(key, sealed(key, _TALLY.pack(entries, size_bytes, checksums)), db=database.meta)


def tally_of(transaction: lmdb.Transaction[memoryview], database: Database, place: bytes) -> Tally:
    """Return what is known of the store and task at `place`; raises `Damaged` at a changed bit."""
    data = fetch(transaction, database.meta, TALLY + place, "a store's number of entries")
    return Tally() if data is None else Tally.of(data)


def drop_entries(transaction: lmdb.Transaction[memoryview], database: Database, prefix: bytes) -> None:
    """Delete all entries at places that begin with `prefix`, as the id of a store does."""
    for table, first in ((database.state, prefix), (database.meta, TALLY + prefix)):
        for key in keys_from(transaction, table, first):
            transaction.delete(key, db=table)


def keys_from(transaction: lmdb.Transaction[memoryview], table: lmdb._Database, prefix: bytes) -> list[bytes]:
    """Return all keys of a table that begin with `prefix`."""
    keys = []
    cursor = transaction.cursor(table)
    found = cursor.set_range(prefix)
    while found and (key := bytes(cursor.key())).startswith(prefix):
        keys.append(key)
        found = cursor.next()
    return keys


def tallied(entries: Iterable[tuple[bytes | memoryview, memoryview]]) -> dict[bytes, Tally]:
    """Return what should be known of each store and task, given all entries of state."""
    tallies: dict[bytes, Tally] = {}
    for at, record in entries:
        place = bytes(at[: PLACE.size])
        count, size_bytes, checksums = tallies.get(place, Tally())
        tallies[place] = Tally(count + 1, size_bytes + entry_bytes(at, record), checksums ^ crc_of(record))
    return tallies
