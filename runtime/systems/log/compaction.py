"""Compaction of the streams in an LMDB environment, in steps that each take a bounded transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from runtime.systems.log.batch import StoredBatch, compression_codes, pack, seal
from runtime.systems.log.newest_rows import Newest, is_due, joined
from runtime.systems.log.streams import BATCH, PARTITION, LogStreams, Stream, last_offset

if TYPE_CHECKING:
    import lmdb

    from runtime.systems.log.database import Database

_BATCHES_PER_STEP = 64


class Compactor:
    """Compacts streams step by step; a round under way is forgotten when the process ends, and begun anew.

    The thread that has appended or committed drives it. Another thread or process may compact the same partition
    meanwhile: rows that are newer than what was seen stay.
    """

    def __init__(self, database: Database, streams: LogStreams, now_ms: Callable[[], int]) -> None:
        self._database, self._streams, self._now_ms = database, streams, now_ms
        self._log = database.log
        self._rounds: dict[bytes, Iterator[None]] = {}
        self._batches_left: dict[bytes, int] = {}
        """The number of batches that a partition had after its last round."""

    def step_where_due(self, names: Iterable[str]) -> None:
        """Take a step in each partition of the compacted ones among the streams that is worth it."""
        due = []
        with self._database.reading() as transaction:
            for stream in (self._streams.find(transaction, name) for name in sorted(set(names))):
                for partition in range(stream.config.partitions if stream.config.compacted else 0):
                    place = PARTITION.pack(stream.id, partition)
                    batches = self._streams.tail(transaction, stream, partition).batches
                    if place in self._rounds or is_due(batches, self._batches_left.get(place, 0)):
                        due.append((stream, partition))
        for stream, partition in due:
            self._step(stream, partition)

    def compact(self, name: str) -> None:
        """Compact all of a stream, whether it is worth it or not."""
        with self._database.reading() as transaction:
            stream = self._streams.find(transaction, name)
        for partition in range(stream.config.partitions):
            self._rounds.pop(PARTITION.pack(stream.id, partition), None)
            while not self._step(stream, partition):
                pass

    def _step(self, stream: Stream, partition: int) -> bool:
        """Go on with a partition's round, or begin one; return whether it is done."""
        place = PARTITION.pack(stream.id, partition)
        # A round that fails is forgotten: a deletion must not go before what it deletes has gone.
        steps = self._rounds.pop(place, None) or self._round(stream, partition)
        for _ in steps:
            self._rounds[place] = steps
            return False
        return True

    def _round(self, stream: Stream, partition: int) -> Iterator[None]:
        """Look backwards from the end for each key's newest row, then rewrite forwards; pause after every step."""
        newest = Newest()
        with self._database.reading() as transaction:
            # What is appended from here on is left to the next round, so that a round comes to an end.
            offset = end = self._streams.tail(transaction, stream, partition).end
        while True:
            with self._database.reading() as transaction:
                # Backwards, so that the first row that is met of a key is its newest: one offset per key is all that
                # is held.
                batches = self._before(transaction, stream, partition, offset)
            if not batches:
                break
            for stored in batches:
                newest.see(stored)
            offset = batches[-1].base
            yield
        while True:
            with self._database.writing() as transaction:
                # Forwards, in bounded transactions: deletions go after what they delete, so a crash between two steps
                # brings nothing back.
                batches = self._from(transaction, stream, partition, offset, end)
                self._rewrite(transaction, stream, partition, batches, newest)
                left = self._streams.tail(transaction, stream, partition).batches
            if not batches:
                break
            offset = batches[-1].last + 1
            yield
        self._batches_left[PARTITION.pack(stream.id, partition)] = left

    def _rewrite(
        self,
        transaction: lmdb.Transaction[memoryview],
        stream: Stream,
        partition: int,
        batches: list[StoredBatch],
        newest: Newest,
    ) -> None:
        now_ms = self._now_ms()
        kept = joined(stored for batch in batches if (stored := newest.kept(batch, now_ms)) is not None)
        # Batches that stay as they are are not written again; after the first round these are most.
        unchanged = set(map(id, kept)) & set(map(id, batches))
        tail = self._streams.tail(transaction, stream, partition)
        count, size_bytes = tail.batches, tail.size_bytes
        for stored in batches:
            if id(stored) not in unchanged:
                key = BATCH.pack(stream.id, partition, stored.last)
                count, size_bytes = count - 1, size_bytes - len(transaction.get(key, b"", db=self._log))
                transaction.delete(key, db=self._log)
        codec = compression_codes()[stream.config.compression]
        for stored in kept:
            if id(stored) not in unchanged:
                key = BATCH.pack(stream.id, partition, stored.last)
                packed = pack(stored.batch, stored.control, stored.appended_ms, codec, stored.batch.offsets)
                data = seal(packed, key, stored.base)
                transaction.put(key, data, db=self._log)
                count, size_bytes = count + 1, size_bytes + len(data)
        place = PARTITION.pack(stream.id, partition)
        self._streams.put_tail(transaction, place, tail._replace(batches=count, size_bytes=size_bytes))

    def _before(
        self, transaction: lmdb.Transaction[memoryview], stream: Stream, partition: int, offset: int
    ) -> list[StoredBatch]:
        """The batches that end before `offset`, nearest first, as many as one step takes."""
        place = PARTITION.pack(stream.id, partition)
        cursor = transaction.cursor(self._log)
        found = cursor.prev() if cursor.set_range(BATCH.pack(stream.id, partition, offset)) else cursor.last()
        batches: list[StoredBatch] = []
        while found and (key := bytes(cursor.key())).startswith(place) and len(batches) < _BATCHES_PER_STEP:
            batches.append(self._streams.unpack(stream, key, cursor.value()))
            found = cursor.prev()
        return batches

    def _from(
        self, transaction: lmdb.Transaction[memoryview], stream: Stream, partition: int, offset: int, end: int
    ) -> list[StoredBatch]:
        """The batches from `offset` on that end before `end`, as many as one step takes."""
        place = PARTITION.pack(stream.id, partition)
        cursor = transaction.cursor(self._log)
        found = cursor.set_range(BATCH.pack(stream.id, partition, offset))
        batches: list[StoredBatch] = []
        while found and (key := bytes(cursor.key())).startswith(place) and len(batches) < _BATCHES_PER_STEP:
            if last_offset(stream, key) >= end:
                break
            batches.append(self._streams.unpack(stream, key, cursor.value()))
            found = cursor.next()
        return batches
