"""Compaction of the streams in an LMDB environment, in steps that each take a bounded transaction."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any

from runtime.systems.compaction import Newest, is_due, joined
from runtime.systems.log_batch import Stored, compression_codes, pack, seal
from runtime.systems.log_streams import BATCH, PARTITION, Stream, Streams

if TYPE_CHECKING:
    import lmdb

    from runtime.systems.log_database import Database

    _Round = Generator[None, lmdb.Transaction[Any], None]

_BATCHES_PER_STEP = 64


class Compactor:
    """Compacts streams step by step; a round under way is forgotten when the process ends, and begun anew."""

    def __init__(self, database: Database, streams: Streams, now_ms: Callable[[], int]) -> None:
        self._database, self._streams, self._now_ms = database, streams, now_ms
        self._log = database.log
        self._rounds: dict[bytes, _Round] = {}
        self._batches_left: dict[bytes, int] = {}
        """How many batches a partition had after its last round."""

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
        place = PARTITION.pack(stream.id, partition)
        # When the transaction fails, the round is forgotten: a deletion must not go before what it deletes has gone.
        steps = self._rounds.pop(place, None)
        with self._database.writing() as transaction:
            if steps is None:
                steps = self._round(stream, partition, self._streams.tail(transaction, stream, partition).end)
                next(steps)
            try:
                steps.send(transaction)
            except StopIteration:
                self._batches_left[place] = self._streams.tail(transaction, stream, partition).batches
                return True
        self._rounds[place] = steps
        return False

    def _round(self, stream: Stream, partition: int, end: int) -> _Round:
        """Look backwards from `end` for each key's newest row, then rewrite forwards; each step takes a transaction."""
        newest = Newest()
        offset = end
        while batches := self._before(stream, partition, offset, (yield)):
            for stored in batches:
                newest.see(stored)
            offset = batches[-1].base
        offset = 0
        while True:
            transaction = yield
            batches = self._from(stream, partition, offset, end, transaction)
            if not batches:
                return
            self._rewrite(stream, partition, batches, newest, transaction)
            offset = batches[-1].last + 1

    def _rewrite(
        self, stream: Stream, partition: int, batches: list[Stored], newest: Newest, transaction: lmdb.Transaction[Any]
    ) -> None:
        now_ms = self._now_ms()
        kept = joined(stored for batch in batches if (stored := newest.kept(batch, now_ms)) is not None)
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

    def _before(self, stream: Stream, partition: int, offset: int, transaction: lmdb.Transaction[Any]) -> list[Stored]:
        """The batches that end before `offset`, nearest first, as many as one step takes."""
        place = PARTITION.pack(stream.id, partition)
        cursor = transaction.cursor(self._log)
        found = cursor.prev() if cursor.set_range(BATCH.pack(stream.id, partition, offset)) else cursor.last()
        batches: list[Stored] = []
        while found and (key := bytes(cursor.key())).startswith(place) and len(batches) < _BATCHES_PER_STEP:
            batches.append(self._streams.unpack(stream, key, cursor.value()))
            found = cursor.prev()
        return batches

    def _from(
        self, stream: Stream, partition: int, offset: int, end: int, transaction: lmdb.Transaction[Any]
    ) -> list[Stored]:
        """The batches from `offset` on that end before `end`, as many as one step takes."""
        place = PARTITION.pack(stream.id, partition)
        cursor = transaction.cursor(self._log)
        found = cursor.set_range(BATCH.pack(stream.id, partition, offset))
        batches: list[Stored] = []
        while found and (key := bytes(cursor.key())).startswith(place) and len(batches) < _BATCHES_PER_STEP:
            if BATCH.unpack(key)[2] >= end:
                break
            batches.append(self._streams.unpack(stream, key, cursor.value()))
            found = cursor.next()
        return batches
