"""The streams of an LMDB environment: batches by stream, partition and last offset, and a tail per partition."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from runtime.model.errors import Damaged, EnvironmentFault
from runtime.ports.commits import filled_error
from runtime.ports.streams import (
    Append,
    Offsets,
    Read,
    StreamConfig,
    absent_error,
    check_grown,
    check_keys,
    ended_error,
    ends,
    gone_error,
    grown_config,
    no_partition_error,
)
from runtime.systems.log.batch import Packed, StoredBatch, compression_codes, header, pack, seal, unpack
from runtime.systems.log.records import RESTORE, fetch, opened, sealed

if TYPE_CHECKING:
    import lmdb

    from runtime.systems.log.database import Database

PARTITION = struct.Struct(">II")
BATCH = struct.Struct(">IIQ")
"""Stream id, partition, last offset: big-endian, so that LMDB's order is the log's."""
TAIL = struct.Struct("<qq?qq")
_NUMBER = struct.Struct("<Q")
_MAX_DROPPED_PER_APPEND = 16
STREAM = b"stream\0"
"""The prefix of the key of a stream; its name follows."""
STAGED = b"staged\0"
"""The prefix of the key of a stream that nobody sees yet; an application's name and the stream's follow."""


class Stream(NamedTuple):
    """A stream as it is recorded; its id is never given to another one."""

    id: int
    name: str
    config: StreamConfig


class Tail(NamedTuple):
    """The readable range of a partition, whether it has ended, and how much is stored for it."""

    start: int = 0
    end: int = 0
    ended: bool = False
    batches: int = 0
    size_bytes: int = 0


class Prepared(NamedTuple):
    """An append that is encoded, before the write transaction that gives it offsets."""

    stream: str
    partition: int
    packed: Packed
    ends: bool


def next_id(transaction: lmdb.Transaction[memoryview], meta: lmdb._Database) -> int:
    """Return a number that no stream and no store of this environment has."""
    data = fetch(transaction, meta, b"ids", "the last id")
    number = 1 if data is None else _NUMBER.unpack(data)[0] + 1
    transaction.put(b"ids", sealed(b"ids", _NUMBER.pack(number)), db=meta)
    return number


def last_offset(stream: Stream, key: bytes | memoryview) -> int:
    """Return the offset in a batch's key; raises `Damaged` when it is no such key."""
    if len(key) != BATCH.size:
        raise Damaged(f"Stream {stream.name!r} has a batch at {bytes(key)!r}, which is no place for one. {RESTORE}")
    return int(BATCH.unpack(key)[2])


class LogStreams:
    """The streams of one database; every method works inside the caller's transaction.

    A partition's end only grows, its start follows, and an offset is given once: a batch lies under its last offset,
    so that the first batch at or behind an offset is the one that holds it. Any thread may read; whoever writes is
    alone, as its transaction is. What is kept in memory is only what cannot change: a batch, and a stream by its
    record.
    """

    def __init__(self, database: Database, now_ms: Callable[[], int]) -> None:
        self._meta, self._log, self._tails = database.meta, database.log, database.tails
        self._now_ms = now_ms
        self._known: dict[bytes, Stream] = {}
        self._partly_read: dict[bytes, StoredBatch] = {}
        """The batches that a reader has not come to the end of, so that each is decoded once."""

    def create(self, transaction: lmdb.Transaction[memoryview], name: str, config: StreamConfig) -> StreamConfig:
        """Make a stream, or return the configuration of the one that exists already."""
        if transaction.get(STREAM + name.encode(), db=self._meta) is not None:
            return self.find(transaction, name).config
        if config.compression not in compression_codes():
            raise EnvironmentFault(f"Stream {name!r}: for {config.compression} compression install `zstandard`.")
        self._name(transaction, self.begin(transaction, Stream(next_id(transaction, self._meta), name, config)))
        return config

    def grow(self, transaction: lmdb.Transaction[memoryview], name: str, partitions: int) -> StreamConfig:
        """Give a stream more partitions, which are empty."""
        found = self.find(transaction, name)
        check_grown(name, found.config, partitions)
        number = found.config.partitions
        tails = [self.tail(transaction, found, place) for place in range(number)]
        if any(tail.ended for tail in tails):
            raise ended_error(name, 0)
        if partitions == number:
            return found.config
        for partition in range(number, partitions):
            self.put_tail(transaction, PARTITION.pack(found.id, partition), Tail())
        grown = found._replace(config=grown_config(found.config, partitions, [tail.end for tail in tails]))
        self._name(transaction, grown)
        return grown.config

    def begin(self, transaction: lmdb.Transaction[memoryview], stream: Stream) -> Stream:
        """Make room for the rows of a stream of a new id, and return it."""
        for partition in range(stream.config.partitions):
            self.put_tail(transaction, PARTITION.pack(stream.id, partition), Tail())
        return stream

    def delete(self, transaction: lmdb.Transaction[memoryview], name: str) -> None:
        """Remove a stream with all that is in it, even when it is damaged; nothing happens where it is absent."""
        key = STREAM + name.encode()
        if transaction.get(key, db=self._meta) is None:
            return
        self.drop(transaction, self.find(transaction, name))
        transaction.delete(key, db=self._meta)

    def drop(self, transaction: lmdb.Transaction[memoryview], stream: Stream) -> None:
        """Remove all that is in a stream."""
        number = stream.id.to_bytes(4, "big")
        for table in (self._log, self._tails):
            cursor = transaction.cursor(table)
            found = cursor.set_range(number)
            while found and cursor.key()[:4] == number:
                cursor.delete()
                found = bool(cursor.key())

    def replace(self, transaction: lmdb.Transaction[memoryview], stream: Stream) -> None:
        """Put a stream in the place of the one of its name; raises `EnvironmentFault` unless that one is empty."""
        named = self.find(transaction, stream.name)
        if any(self.tail(transaction, named, place) != Tail() for place in range(named.config.partitions)):
            raise filled_error(stream.name)
        self.drop(transaction, named)
        self._name(transaction, stream._replace(config=named.config))

    def _name(self, transaction: lmdb.Transaction[memoryview], stream: Stream) -> None:
        key = STREAM + stream.name.encode()
        transaction.put(key, sealed(key, msgspec.msgpack.encode(stream)), db=self._meta)

    def all(self, transaction: lmdb.Transaction[memoryview]) -> dict[str, StreamConfig]:
        """Return all streams by name."""
        names = []
        cursor = transaction.cursor(self._meta)
        found = cursor.set_range(STREAM)
        while found and bytes(cursor.key()).startswith(STREAM):
            names.append(bytes(cursor.key())[len(STREAM) :].decode())
            found = cursor.next()
        return {name: self.find(transaction, name).config for name in names}

    def find(self, transaction: lmdb.Transaction[memoryview], name: str) -> Stream:
        """Return a stream by name; raises `EnvironmentFault` where there is none."""
        key = STREAM + name.encode()
        record = transaction.get(key, db=self._meta)
        if record is None:
            raise absent_error(name)
        raw = bytes(record)
        # By the whole record: one that was made anew under the name has another id, and so another record.
        stream = self._known.get(raw)
        if stream is None:
            try:
                stream = msgspec.msgpack.decode(opened(key, raw), type=Stream)
            except ValueError as error:
                raise Damaged(f"The record of stream {name!r} is not what was written: {error}. {RESTORE}") from error
            self._known[raw] = stream
        return stream

    def prepare(self, transaction: lmdb.Transaction[memoryview], appends: Iterable[Append]) -> list[Prepared]:
        """Encode what shall be appended; rows without a timestamp will have the time of this call."""
        prepared = []
        now_ms = self._now_ms()
        codes = None
        for stream, partition, batch, control in appends:
            config = self.find(transaction, stream).config
            check_keys(stream, config, batch)
            codec = 0
            if config.compression is not None:
                codes = codes or compression_codes()
                codec = codes[config.compression]
            if batch.values or control is not None:
                prepared.append(Prepared(stream, partition, pack(batch, control, now_ms, codec), ends(control)))
        return prepared

    def append(self, transaction: lmdb.Transaction[memoryview], prepared: Iterable[Prepared]) -> None:
        """Write encoded batches at the ends of their partitions, and drop what retention no longer keeps."""
        for one in prepared:
            self.append_to(transaction, self.find(transaction, one.stream), one)

    def append_to(self, transaction: lmdb.Transaction[memoryview], stream: Stream, prepared: Prepared) -> None:
        """Write an encoded batch at the end of a partition, and drop what retention no longer keeps."""
        name, partition, packed, ended = prepared
        tail = self.tail(transaction, stream, partition)
        if tail.ended:
            raise ended_error(name, partition)
        place = PARTITION.pack(stream.id, partition)
        key = BATCH.pack(stream.id, partition, tail.end + packed.slots - 1)
        data = seal(packed, key, tail.end)
        transaction.put(key, data, db=self._log)
        # The end moves in the transaction that puts the batch, so nobody sees one without the other.
        tail = Tail(tail.start, tail.end + packed.slots, ended, tail.batches + 1, tail.size_bytes + len(data))
        tail = self._drop_old(transaction, stream, place, tail, packed.appended_ms)
        self.put_tail(transaction, place, tail)

    def end(self, transaction: lmdb.Transaction[memoryview], name: str, packed: Packed) -> None:
        """Append end-of-stream to every partition that has not ended."""
        stream = self.find(transaction, name)
        for partition in range(stream.config.partitions):
            if not self.tail(transaction, stream, partition).ended:
                self.append(transaction, [Prepared(name, partition, packed, True)])

    def offsets(self, transaction: lmdb.Transaction[memoryview], name: str, partition: int) -> Offsets:
        """Return the readable range of a partition."""
        return Offsets(*self.tail(transaction, self.find(transaction, name), partition)[:3])

    def stats(self, transaction: lmdb.Transaction[memoryview], name: str) -> tuple[int, int]:
        """Return how many records a stream holds, by the headers of its batches, and their bytes."""
        stream = self.find(transaction, name)
        records = size_bytes = 0
        cursor = transaction.cursor(self._log)
        for partition in range(stream.config.partitions):
            size_bytes += self.tail(transaction, stream, partition).size_bytes
            place = PARTITION.pack(stream.id, partition)
            found = cursor.set_range(place)
            while found and cursor.key()[: len(place)] == place:
                records += header(cursor.value())[0]
                found = cursor.next()
        return records, size_bytes

    def read(
        self, transaction: lmdb.Transaction[memoryview], name: str, partition: int, offset: int, max_records: int
    ) -> Read | None:
        """Return rows from `offset` on, of one batch; None at the end."""
        stream = self.find(transaction, name)
        place = PARTITION.pack(stream.id, partition)
        partly_read = self._partly_read.get(place)
        if partly_read and partly_read.base <= offset <= partly_read.last:
            return self._cut(stream, place, partly_read, offset, max_records)
        cursor = transaction.cursor(self._log)
        found = cursor.set_range(BATCH.pack(stream.id, partition, max(offset, 0)))
        first = True
        while found:
            key = bytes(cursor.key())
            if not key.startswith(place):
                break
            stored = self.unpack(stream, key, cursor.value())
            # A gap at the front is compaction's where the offset is within the range, else it was removed or never
            # there. Asked only then: it takes a look at the tail.
            if first and offset < stored.base:
                self._check_range(transaction, stream, partition, offset)
            first = False
            read = self._cut(stream, place, stored, offset, max_records)
            if read:
                return read
            found = cursor.next()
        self._check_range(transaction, stream, partition, offset)
        return None

    def _cut(self, stream: Stream, place: bytes, stored: StoredBatch, offset: int, max_records: int) -> Read | None:
        rows = stored.cut(offset, max_records)
        assert rows is None or offset < rows[2] <= stored.last + 1, "a read leads on, and not beyond its batch"
        if rows is None or rows[2] > stored.last:
            self._partly_read.pop(place, None)
        else:
            self._partly_read[place] = stored
        return rows and Read(*rows, stream.id, stored.appended_ms)

    def unpack(self, stream: Stream, key: bytes, data: memoryview) -> StoredBatch:
        """Return the batch that was found at `key`; raises `Damaged` when a bit of it has changed."""
        last = last_offset(stream, key)
        try:
            return unpack(key, data, last)
        except (ValueError, msgspec.MsgspecError) as error:
            where = f"Stream {stream.name!r}, partition {PARTITION.unpack_from(key)[1]}"
            raise Damaged(
                f"{where}: the batch up to offset {last} is not what was written: {error}. {RESTORE}"
            ) from error

    def _check_range(
        self, transaction: lmdb.Transaction[memoryview], stream: Stream, partition: int, offset: int
    ) -> None:
        tail = self.tail(transaction, stream, partition)
        if not tail.start <= offset <= tail.end:
            raise gone_error(stream.name, partition, offset, tail.start, tail.end)

    def tail(self, transaction: lmdb.Transaction[memoryview], stream: Stream, partition: int) -> Tail:
        """Return how far a partition goes; raises `EnvironmentFault` where the stream has no such partition."""
        if not 0 <= partition < stream.config.partitions:
            raise no_partition_error(stream.name, stream.config, partition)
        what = f"the end of stream {stream.name!r}, partition {partition},"
        data = fetch(transaction, self._tails, PARTITION.pack(stream.id, partition), what)
        if data is None:
            raise Damaged(f"The record of {what} is missing. {RESTORE}")
        tail = Tail(*TAIL.unpack(data))
        assert 0 <= tail.start <= tail.end, "a range begins before it ends"
        return tail

    def put_tail(self, transaction: lmdb.Transaction[memoryview], place: bytes, tail: Tail) -> None:
        """Set how far the partition at `place` goes."""
        assert 0 <= tail.start <= tail.end, "a range begins before it ends"
        assert tail.batches >= 0 and tail.size_bytes >= 0, "what has gone was counted"
        transaction.put(place, sealed(place, TAIL.pack(*tail)), db=self._tails)

    def purge(
        self, transaction: lmdb.Transaction[memoryview], consumed: Mapping[tuple[str, int], int], most_batches: int
    ) -> None:
        """Drop whole batches of intermediate streams that end below an offset, the first `most_batches` of them."""
        for (name, partition), offset in consumed.items():
            stream = self.find(transaction, name)
            tail = self.tail(transaction, stream, partition)
            # Only streams between stages: an input is somebody else's, who may have other readers.
            if not stream.config.intermediate or not most_batches or tail.start >= offset:
                continue

            def goes(tail: Tail, last: int, value: memoryview, offset: int = offset) -> bool:
                return last < offset

            place = PARTITION.pack(stream.id, partition)
            left = self._drop(transaction, stream, place, tail, most_batches, goes)
            if left != tail:
                self.put_tail(transaction, place, left)
            most_batches -= tail.batches - left.batches

    def _drop_old(
        self, transaction: lmdb.Transaction[memoryview], stream: Stream, place: bytes, tail: Tail, now_ms: int
    ) -> Tail:
        config = stream.config
        if config.retention_ms is None and config.retention_bytes is None:
            return tail

        def goes(tail: Tail, last: int, value: memoryview) -> bool:
            too_old = config.retention_ms is not None and header(value)[2] < now_ms - config.retention_ms
            too_much = config.retention_bytes is not None and tail.size_bytes > config.retention_bytes
            return tail.batches > 1 and (too_old or too_much)

        return self._drop(transaction, stream, place, tail, _MAX_DROPPED_PER_APPEND, goes)

    def _drop(
        self,
        transaction: lmdb.Transaction[memoryview],
        stream: Stream,
        place: bytes,
        tail: Tail,
        most_batches: int,
        goes: Callable[[Tail, int, memoryview], bool],
    ) -> Tail:
        """Drop batches from the front for which `goes(tail, last offset, bytes)`; return the tail that is left."""
        cursor = transaction.cursor(self._log)
        cursor.set_range(place)
        for _ in range(min(tail.batches, most_batches)):
            last, value = last_offset(stream, cursor.key()), cursor.value()
            assert last >= tail.start, "batches lie within the range"
            if not goes(tail, last, value):
                break
            # Taken before the delete: the memory of a value is gone with its place.
            size_bytes = len(value)
            cursor.delete()
            tail = Tail(last + 1, tail.end, tail.ended, tail.batches - 1, tail.size_bytes - size_bytes)
        return tail
