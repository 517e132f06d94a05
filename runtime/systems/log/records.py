"""The records in LMDB: a checksum over key and value, and for entries of state ordered keys of any length."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING
from zlib import crc32

from runtime.model.errors import Damaged

if TYPE_CHECKING:
    import lmdb

CRC = struct.Struct("<I")
RESTORE = "Restore the data directory from a copy, or delete what is damaged (a stream, an application's state)."
STORE = b"store\0"
"""The prefix of the key of a store's id; the application's name and the store's follow."""
PLACE = struct.Struct(">II")
"""The id of a store and the number of a task, with which every key of state begins."""
_LENGTH = struct.Struct("<I")
_MAX_KEY_BYTES = 511
_DIGEST_BYTES = 32
SHORT_BYTES = _MAX_KEY_BYTES - PLACE.size - _DIGEST_BYTES
"""Keys up to this length are stored as they are; of longer ones this many bytes, then a digest of the whole."""


_LONG_PREFIX_BYTES = PLACE.size + SHORT_BYTES


def sealed(key: bytes, data: bytes) -> bytes:
    """Return `data` behind a checksum over it and over the key it is stored at."""
    return CRC.pack(crc32(data, crc32(key))) + data


def opened(key: bytes, record: memoryview | bytes) -> bytes:
    """Return what `sealed` put behind the checksum; raises ValueError when one of its bits has changed."""
    data = bytes(record[CRC.size :])
    if len(record) < CRC.size or CRC.unpack_from(record)[0] != crc32(data, crc32(key)):
        raise ValueError("its checksum does not match")
    return data


def fetch(transaction: lmdb.Transaction[memoryview], table: lmdb._Database, key: bytes, what: str) -> bytes | None:
    """Return the data of the sealed record at `key`; raises `Damaged`, saying `what` is, at a changed bit."""
    record = transaction.get(key, db=table)
    if record is None:
        return None
    try:
        return opened(key, record)
    except ValueError as error:
        raise Damaged(f"The record of {what} is not what was written: {error}. {RESTORE}") from error


def place_of_key(prefix: bytes, key: bytes) -> bytes:
    """Return where the entry of `key` lies among those that begin with `prefix`."""
    if len(key) <= SHORT_BYTES:
        return prefix + key
    # LMDB's keys have 511 bytes at most: the digest tells long keys apart, and the record has the whole key.
    return prefix + key[:SHORT_BYTES] + blake2b(key, digest_size=_DIGEST_BYTES).digest()


def record_of(place: bytes, key: bytes, value: bytes) -> bytes:
    """Return what is stored at `place` for an entry."""
    if _is_long(place):
        value = _LENGTH.pack(len(key)) + key + value
    return CRC.pack(crc32(value, crc32(place))) + value


def crc_of(record: memoryview | bytes) -> int:
    """Return the checksum that an entry is stored with."""
    return int.from_bytes(record[: CRC.size], "little")


def entry_of(place: bytes, record: memoryview | bytes) -> tuple[bytes, bytes]:
    """Return the key and value of an entry; raises ValueError when one of its bits has changed."""
    data = opened(place, record)
    if not _is_long(place):
        return place[PLACE.size :], data
    stop = _LENGTH.size + _LENGTH.unpack_from(data)[0]
    return data[_LENGTH.size : stop], data[stop:]


def entry_bytes(place: memoryview | bytes, record: memoryview | bytes) -> int:
    """Return how long the key and value of an entry are together, without looking at them."""
    length_bytes = len(record) - CRC.size
    return length_bytes - _LENGTH.size if _is_long(place) else length_bytes + len(place) - PLACE.size


def entries_between(
    cursor: lmdb.Cursor[memoryview], prefix: bytes, start: bytes, end: bytes | None
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the entries with `start` <= key < `end` in key order; raises ValueError at a damaged one.

    Long keys that agree in their first 471 bytes lie in the order of their digests: they are sorted here.
    """
    if not cursor.set_range(prefix + start[:SHORT_BYTES]):
        return
    last_place = None if end is None else prefix + end[:SHORT_BYTES]
    alike: list[tuple[bytes, bytes]] = []
    for view, record in cursor.iternext():
        place = bytes(view)
        if not place.startswith(prefix) or (last_place is not None and place[:_LONG_PREFIX_BYTES] > last_place):
            break
        entry = entry_of(place, record)
        key = entry[0]
        if alike and key[:SHORT_BYTES] != alike[0][0][:SHORT_BYTES]:
            yield from sorted(alike)
            alike.clear()
        if key >= start and (end is None or key < end):
            if _is_long(place):
                alike.append(entry)
            else:
                yield entry
    yield from sorted(alike)


def _is_long(place: bytes | memoryview) -> bool:
    return len(place) == _MAX_KEY_BYTES
