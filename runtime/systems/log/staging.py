"""Rows staged for streams of an LMDB environment: nobody sees them before all of them are there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from runtime.ports.streams import Append
from runtime.systems.log.records import fetch, sealed
from runtime.systems.log.state import keys_from
from runtime.systems.log.streams import STAGED, LogStreams, Prepared, Stream, next_id

if TYPE_CHECKING:
    import lmdb

    from runtime.systems.log.database import Database

STAGED_BYTES, ROW_BYTES = 16 << 20, 100
"""The most bytes of rows in a transaction, and so in memory: more only where a single append has more.

The second is what a row is counted for beside its key and value.
"""


class Staging:
    """Streams that have no name yet, one for each that an application fills at once.

    Every method works inside the caller's transaction.
    """

    def __init__(self, database: Database, streams: LogStreams) -> None:
        self._meta, self._streams = database.meta, streams

    def append(self, transaction: lmdb.Transaction[memoryview], app: str, prepared: Iterable[Prepared]) -> None:
        """Write encoded batches behind those that were staged before."""
        for one in prepared:
            self._streams.append_to(transaction, self._staged(transaction, app, one.stream), one)

    def publish(self, transaction: lmdb.Transaction[memoryview], app: str) -> list[str]:
        """Give what is staged the names that it was staged for, and return these.

        Raises `EnvironmentFault` where one of these streams is empty no longer.
        """
        found = list(self._all(transaction, app))
        for key, staged in found:
            # The name moves to the stream that is filled: however much it is, publishing costs a few records.
            self._streams.replace(transaction, staged)
            transaction.delete(key, db=self._meta)
        return [staged.name for _, staged in found]

    def discard(self, transaction: lmdb.Transaction[memoryview], app: str) -> None:
        """Remove what is staged."""
        for key, staged in list(self._all(transaction, app)):
            self._streams.drop(transaction, staged)
            transaction.delete(key, db=self._meta)

    def _staged(self, transaction: lmdb.Transaction[memoryview], app: str, name: str) -> Stream:
        key = _key(app, name)
        data = fetch(transaction, self._meta, key, f"what is staged for stream {name!r}")
        if data is not None:
            return msgspec.msgpack.decode(data, type=Stream)
        named = self._streams.find(transaction, name)
        stream = self._streams.begin(transaction, named._replace(id=next_id(transaction, self._meta)))
        transaction.put(key, sealed(key, msgspec.msgpack.encode(stream)), db=self._meta)
        return stream

    def _all(self, transaction: lmdb.Transaction[memoryview], app: str) -> Iterator[tuple[bytes, Stream]]:
        for key in keys_from(transaction, self._meta, _key(app, "")):
            data = fetch(transaction, self._meta, key, f"what is staged for a stream by {app!r}")
            assert data is not None
            yield key, msgspec.msgpack.decode(data, type=Stream)


def in_pieces(appends: Iterable[Append]) -> Iterator[list[Append]]:
    """Yield appends, as many at a time as one transaction takes.

    >>> from operators.core.base import Batch
    >>> [len(piece) for piece in in_pieces([Append("s", 0, Batch([bytes(STAGED_BYTES // 2)]))] * 3)]
    [2, 1]
    """
    left = iter(appends)
    for first in left:
        piece, size_bytes = [first], _size_bytes(first)
        while size_bytes < STAGED_BYTES and (more := list(islice(left, 1))):
            piece += more
            size_bytes += _size_bytes(more[0])
        yield piece


def _size_bytes(append: Append) -> int:
    columns = append.batch.values, append.batch.keys or ()
    return ROW_BYTES * len(append.batch) + sum(len(item) for column in columns for item in column if item is not None)


def _key(app: str, name: str) -> bytes:
    return STAGED + app.encode() + b"\0" + name.encode()
