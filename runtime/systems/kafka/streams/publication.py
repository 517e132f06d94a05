"""Rows on their way to a topic in transactions, each of which notes in the cluster how far they came."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec
from aiokafka import AIOKafkaProducer
from aiokafka.errors import InvalidProducerEpoch, ProducerFenced

from operators.core.base import Batch
from runtime.model.clock import sleep_ms
from runtime.model.errors import Damaged, EnvironmentFault, Fenced
from runtime.ports.streams import StreamConfig
from runtime.systems.kafka.client.admin import (
    LOOK_MS,
    administering,
    create_topic,
    kafka_errors_told,
    metadata_of,
    told_of,
)
from runtime.systems.kafka.client.clients import Producer, begun, ended
from runtime.systems.kafka.client.retention import Retention
from runtime.systems.kafka.client.thread import KafkaThread, stop
from runtime.systems.kafka.client.topic import KafkaTopic, beside
from runtime.systems.kafka.client.topic_configs import POLICY, TABLE_CONFIGS, amend, configs_in, wrong_in
from runtime.systems.kafka.streams.compacted_topic import KafkaTable, until_seen
from runtime.systems.kafka.streams.records import as_records
from runtime.systems.kafka.streams.sink import BATCH_BYTES, bound_configs, compression_of, send_all

PUBLISHED = "samza-dsl-published"
"""The topic of a cluster that tells how far each name has come."""
ROWS, ROWS_BYTES = 50_000, 32 << 20
"""The rows that a transaction takes, or the bytes that end it sooner."""
TRANSACTION_S = 55.0
"""The s that one may take: Kafka itself rolls it back after 60 s."""


class PublishedEnd(NamedTuple):
    """The end of what is committed under a name: its last part, and the number of rows of that."""

    part: int = 0
    rows: int = 0


class KafkaPublisher:
    """Writes parts, numbered from 1 on, to a topic: each row of each once, however often it is tried under its name.

    Who begins another one of that name has this one refused. Raises `EnvironmentFault`, after which it is of no use;
    and `Fenced`.

    `reached` only grows, and is written in the transaction of the rows that it counts. One thread at a time uses it.
    """

    def __init__(self, topic: KafkaTopic, config: StreamConfig, name: str) -> None:
        self._topic, self._name, self._config = topic, name, config
        self._ledger = beside(topic, PUBLISHED)
        self._producer: Producer | None = None
        self._retention = Retention(lambda _: told_of(topic))
        self._written: dict[tuple[str, int], int] = {}
        self._thread: KafkaThread | None = KafkaThread.acquire()
        try:
            with kafka_errors_told(topic, "written"):
                self.reached = self._thread.call(self._begin())
        except BaseException:
            self.close()
            raise

    def publish(self, part: int, rows: Iterable[tuple[int, Batch]]) -> None:
        """Write what is not yet committed of a part, given its rows by partition, the same ones in the same order."""
        assert self._thread is not None
        if part < self.reached.part:
            return
        done = self.reached.rows if part == self.reached.part else 0
        for taken, pending in _cut(rows, done):
            try:
                with kafka_errors_told(self._topic, "written"):
                    self._thread.call(self._transact(pending, PublishedEnd(part, taken)))
            except EnvironmentFault as error:
                if isinstance(error.__cause__, ProducerFenced | InvalidProducerEpoch):
                    raise Fenced(
                        f"Another run publishes {self._name!r} to {self._topic.address}: this one has ended, and that "
                        "one goes on."
                    ) from error
                raise

    def forget(self) -> None:
        """Remove the note of how far the name has come: nobody will go on."""
        assert self._thread is not None
        with kafka_errors_told(self._topic, "written"):
            self._thread.call(self._transact({}, None))

    def close(self) -> None:
        """Let go of the client, when all see what was committed; a second call does nothing."""
        if self._thread is not None:
            thread, self._thread = self._thread, None
            stop(thread, until_seen(self._topic, self._written))
            try:
                if self._producer is not None:
                    thread.call(ended(self._producer))
            finally:
                thread.release()

    async def _begin(self) -> PublishedEnd:
        for topic, config in ((self._topic, self._config), (self._ledger, StreamConfig(compacted=True))):
            if await metadata_of(topic) is None:
                await create_topic(topic, config.partitions, bound_configs(config))
        async with administering(self._ledger) as client:
            configs = (await configs_in(client, [PUBLISHED], told_alone=True)).get(PUBLISHED, {})
            await amend(client, self._ledger, configs, wrong_in(configs, {POLICY: TABLE_CONFIGS[POLICY]}))
        producer = AIOKafkaProducer(
            **self._topic.client(),
            transactional_id=f"samza-dsl-{self._name}",
            compression_type=compression_of(self._topic, self._config),
            max_batch_size=BATCH_BYTES,
        )
        self._producer = await begun(
            producer
        )  # what an earlier one of the name has begun is committed or rolled back by now
        return await self._look()

    async def _look(self) -> PublishedEnd:
        """Return what is committed; behind transactions of others that are open nothing can be read, and they end."""
        table = KafkaTable(self._ledger)
        try:
            await table.now()
            if await table.start() > 0:
                raise Damaged(
                    f"The topic {PUBLISHED!r} at {self._topic.bootstrap} was cut, as by a retention: it says no more "
                    f"how far {self._name!r} has come, and rows would be written twice. Remove what was written to "
                    f"{self._topic.name!r} and that topic, and begin anew."
                )
            end = await table.end_of_all()
            entries = await table.now()
            while (table.known_to or 0) < end:
                await sleep_ms(LOOK_MS)
                entries = await table.now()
            said = entries.get(self._name.encode())
        finally:
            await table.stop()
        return PublishedEnd() if said is None else msgspec.msgpack.decode(said, type=PublishedEnd)

    async def _transact(self, pending: dict[int, Batch], reached: PublishedEnd | None) -> None:
        assert reached is None or reached > self.reached, "a publication only goes on"
        # Rows and the note of how far they are, in one transaction: whoever tries again goes on behind exactly these.
        said = None if reached is None else msgspec.msgpack.encode(reached)
        records = {
            (self._topic.name, number): as_records(batch, None, between=False) for number, batch in pending.items()
        }
        await self._retention.look(records)
        records[self._ledger.name, 0] = Batch([said], [self._name.encode()])
        assert self._producer is not None
        async with asyncio.timeout(TRANSACTION_S):
            await self._producer.begin_transaction()
            ends = await send_all(self._producer, records)
            await self._producer.commit_transaction()
        self._written |= ends
        self.reached = reached or PublishedEnd()


def _cut(rows: Iterable[tuple[int, Batch]], done: int) -> Iterator[tuple[int, dict[int, Batch]]]:
    """Yield what each transaction takes, by partition, with the number of rows up to its end; not the first `done`.

    >>> ((taken, pending),) = _cut([(0, Batch([b"a", b"b"])), (1, Batch([b"c"]))], 1)
    >>> taken, {partition: batch.values for partition, batch in pending.items()}
    (3, {0: [b'b'], 1: [b'c']})
    """
    pending: dict[int, Batch] = {}
    taken = count = size_bytes = 0
    for partition, batch in rows:
        start = min(max(done - taken, 0), len(batch))
        taken += start
        while start < len(batch):
            stop = start
            while stop < len(batch) and count < ROWS and size_bytes < ROWS_BYTES:
                size_bytes += len(batch.values[stop] or b"")
                stop, count = stop + 1, count + 1
            if partition in pending:
                pending[partition].extend(batch.slice(start, stop))
            else:
                pending[partition] = batch.slice(start, stop)
            taken, start = taken + stop - start, stop
            if count >= ROWS or size_bytes >= ROWS_BYTES:
                yield taken, pending
                pending, count, size_bytes = {}, 0, 0
    if pending:
        yield taken, pending
