"""A real Kafka broker for the workloads of this process, in a fresh directory, and topics on it."""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import Sequence
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from operators.core.base import Batch
from runtime.systems.kafka.broker import broker as kafka_broker
from runtime.systems.kafka.client.admin import create_topic
from runtime.systems.kafka.client.topic import KafkaTopic
from runtime.systems.kafka.streams.sink import BATCH_BYTES, send_all

PARTITIONS = 4

_numbers = count()

Record = tuple[bytes | None, bytes | None]
"""A key and a value."""


@cache
def bootstrap() -> str:
    """Return where the broker is: it is started when it is first asked for, and stopped when this process ends."""
    directory = TemporaryDirectory(prefix="samza-dsl-benchmark-kafka-")
    path = Path(directory.name)
    atexit.register(directory.cleanup)
    atexit.register(kafka_broker.stop, path, kill=True)
    return kafka_broker.start(path).bootstrap


def fresh_name(of: str) -> str:
    """Return a name for a topic or an application that nothing on the broker has yet."""
    return f"{of}-{next(_numbers)}"


def fresh_topic(of: str) -> str:
    """Make an empty topic of four partitions, and return its name."""
    name = fresh_name(of)
    asyncio.run(create_topic(topic_of(name), PARTITIONS, {}))
    return name


def topic_of(name: str) -> KafkaTopic:
    return KafkaTopic(f"kafka://{bootstrap()}/{name}")


def filled_topic(of: str, partitions: Sequence[Sequence[Record]]) -> str:
    """Make a topic that holds such records, partition by partition, and return its name."""
    name = fresh_topic(of)
    batches = {
        (name, number): Batch([value for _, value in records], [key for key, _ in records])
        for number, records in enumerate(partitions)
    }

    async def fill() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap(), enable_idempotence=True, max_batch_size=BATCH_BYTES)
        await producer.start()
        try:
            await send_all(producer, batches)
        finally:
            await producer.stop()

    asyncio.run(fill())
    return name


def records_in(name: str) -> list[list[tuple[int, Any, Any]]]:
    """Return the times, keys and values of all that is committed in a topic, partition by partition."""
    found: list[list[tuple[int, Any, Any]]] = [[] for _ in range(PARTITIONS)]

    async def read() -> None:
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap(), isolation_level="read_committed")
        await consumer.start()
        try:
            places = [TopicPartition(name, number) for number in range(PARTITIONS)]
            ends = await consumer.end_offsets(places)
            consumer.assign(places)
            await consumer.seek_to_beginning(*places)
            while any([await consumer.position(place) < ends[place] for place in places]):
                for place, records in (await consumer.getmany(timeout_ms=100)).items():
                    found[place.partition] += [(one.timestamp, one.key, one.value) for one in records]
        finally:
            await consumer.stop()

    asyncio.run(read())
    return found
