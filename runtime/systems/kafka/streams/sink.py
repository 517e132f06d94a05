"""A Kafka topic as a bound output: written before each commit, at least once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TypeVar

import msgspec
from aiokafka import AIOKafkaProducer
from aiokafka.errors import TopicAuthorizationFailedError

from operators.core.base import Batch, Serde
from runtime.model.errors import SamzaError, TooLarge
from runtime.ports.sink import Limit, PartitionedSink
from runtime.ports.streams import StreamConfig
from runtime.systems.kafka.client.admin import (
    configs_of,
    create_topic,
    is_stamped,
    kafka_errors_told,
    metadata_of,
    told_of,
)
from runtime.systems.kafka.client.clients import Producer, begun, ended, side_by_side
from runtime.systems.kafka.client.kafka_errors import TOO_LARGE, kafka_fault
from runtime.systems.kafka.client.metadata import WRITE, may
from runtime.systems.kafka.client.record_limits import KafkaLimit, limits_of
from runtime.systems.kafka.client.retention import Retention
from runtime.systems.kafka.client.thread import KafkaThread
from runtime.systems.kafka.client.topic import KafkaTopic
from runtime.systems.kafka.client.topic_configs import CODECS

_log = logging.getLogger("samza_dsl")
R = TypeVar("R")
BATCH_BYTES = 1 << 16


class KafkaSink(PartitionedSink):
    """An output that is a topic, made as `config` says where it is absent.

    Each commit writes it before it becomes durable: what was written by one that then failed is written again, so that
    a record is there at least once. Retries neither double nor reorder (the producer is idempotent). The thread that
    commits uses it.
    """

    name = "kafka"
    columns = frozenset({"keys", "timestamps", "headers"})

    def __init__(self, topic: KafkaTopic, config: StreamConfig) -> None:
        self._topic = topic
        self._compression = compression_of(topic, config)
        self._pending: dict[int, Batch] = {}
        self._limit: Limit | None = None
        self._producer: Producer | None = None
        self._retention = Retention(lambda _: told_of(topic))
        self._thread: KafkaThread | None = KafkaThread.acquire()
        try:
            with kafka_errors_told(topic, "written"):
                self.partitions = self._thread.call(self._open(config))
        except BaseException:
            self.close()
            raise

    def serde(self, declared: Serde) -> Serde:
        """Return the declared serde: what the records of a topic are is between those who write and read it."""
        return declared

    def limit(self) -> Limit | None:
        """Return how large records may be; None where this client may not look at that."""
        return self._limit

    def is_stamped(self) -> bool:
        """Whether the time of its records is when brokers took them, as far as they tell."""
        return self._thread is not None and self._thread.call(is_stamped(self._topic))

    def recover(self, position: int) -> None:
        """Do nothing but say so: what was written stays, as others may have read it."""
        _log.warning("%s is written at least once: what a crash comes between is written again", self._topic.address)

    def write(self, batch: Batch) -> None:
        """Take rows for a topic of one partition."""
        self.write_to(0, batch)

    def write_to(self, partition: int, batch: Batch) -> None:
        if partition in self._pending:
            self._pending[partition].extend(batch)
        else:
            self._pending[partition] = batch.copy()

    def flush(self) -> int:
        """Send all rows, and wait until all replicas have them; there is no position to go back to, so it is 0."""
        assert self._thread is not None and self._producer is not None
        with kafka_errors_told(self._topic, "written"):
            self._thread.call(self._send(self._producer))
        self._pending = {}
        return 0

    def close(self) -> None:
        """Drop what was not flushed; a second call does nothing."""
        if self._thread is not None:
            thread, self._thread = self._thread, None
            try:
                if self._producer is not None:
                    thread.call(ended(self._producer))
            finally:
                thread.release()

    async def _send(self, producer: Producer) -> None:
        pending = {(self._topic.name, number): batch for number, batch in self._pending.items()}
        await self._retention.look(pending)
        await send_all(producer, pending)

    async def _open(self, config: StreamConfig) -> int:
        found = await metadata_of(self._topic)
        if found is not None and not may(found, WRITE):
            raise kafka_fault(self._topic, "written", TopicAuthorizationFailedError(self._topic.name))
        partitions = (
            found.partitions if found else await create_topic(self._topic, config.partitions, bound_configs(config))
        )
        size = (await limits_of(self._topic, [self._topic.name])).get(self._topic.name)
        if size is not None:
            self._limit = KafkaLimit(self._topic.address, size, self._compression)
        producer = AIOKafkaProducer(
            **self._topic.client(),
            enable_idempotence=True,
            compression_type=self._compression,
            max_batch_size=BATCH_BYTES,
        )
        self._producer = await begun(producer)
        return partitions


def bound_configs(config: StreamConfig) -> dict[str, str]:
    """Return what a bound topic is made with: its producer compresses, by the codec that its address may say."""
    return configs_of(msgspec.structs.replace(config, compression=None))


def compression_of(topic: KafkaTopic, config: StreamConfig) -> str | None:
    """Return what a topic is written with, in Kafka's words; raises SamzaError where that is not installed."""
    found = topic.compression or CODECS.get(config.compression or "")
    if found not in (None, "gzip") and find_spec("cramjam") is None:
        raise SamzaError(
            f"{topic.address} is to be written with {found}, which needs cramjam: pip install cramjam; or say "
            'compression="gzip" where the topic is bound'
        )
    return found


async def send_all(producer: Producer, pending: Mapping[tuple[str, int], Batch]) -> dict[tuple[str, int], int]:
    """Send rows of several partitions, each in order, and wait until all are acknowledged; raises KafkaError.

    Returns the offset behind the last one, by topic and partition.
    """
    pending = {place: batch for place, batch in pending.items() if len(batch)}
    for topic in {topic for topic, _ in pending}:
        await producer.client.add_topic(topic)  # else what it learned at its start it may forget, and waits for ever
    ends = await side_by_side(_send(producer, *place, batch) for place, batch in pending.items())
    return dict(zip(pending, ends, strict=True))


async def _send(producer: Producer, topic: str, partition: int, batch: Batch) -> int:
    rows = len(batch)
    none = [None] * rows
    columns = zip(batch.keys or none, batch.values, batch.timestamps or none, batch.headers or none, strict=True)
    sent = []
    # Built here and sent as whole batches: one future for each batch, and not one for each record.
    building = producer.create_batch()
    for key, value, timestamp, headers in columns:
        said = list(headers.items()) if headers else []
        if building.append(key=key, value=value, timestamp=timestamp, headers=said) is None:
            sent.append(_heard(await producer.send_batch(building, topic, partition=partition)))
            building = producer.create_batch()
            building.append(key=key, value=value, timestamp=timestamp, headers=said)
    sent.append(_heard(await producer.send_batch(building, topic, partition=partition)))
    try:
        last: int = (await side_by_side(sent))[-1].offset
    except TOO_LARGE as error:
        size = max((len(value) for value in batch.values if value is not None), default=0)
        raise TooLarge(
            f"{topic} can't be written: a record, of {size:,} bytes, is larger than the topic's max.message.bytes: "
            "raise that, or write less."
        ) from error
    return last + int(building.record_count())


def _heard(sending: asyncio.Future[R]) -> asyncio.Future[R]:
    """Return what is sent, whose failure needs not be looked at where another one was met before."""
    sending.add_done_callback(lambda done: done.cancelled() or done.exception())
    return sending
