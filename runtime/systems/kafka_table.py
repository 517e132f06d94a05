"""A compacted topic as what it stands for: the newest value of each key."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition

from runtime.systems.kafka_admin import kafka_errors_told
from runtime.systems.kafka_thread import KafkaThread
from runtime.systems.kafka_topic import KafkaTopic

WAIT_MS = 200
FETCH_WAIT_MS = 10
"""How long the broker holds back the answer that there is nothing new, and with it whatever else is asked."""


class Scanned(NamedTuple):
    """Records of one partition, and the offset behind them."""

    partition: int
    records: Sequence[Any]
    position: int


class Begun(NamedTuple):
    """The first offset that each partition has, and the one behind its last committed record."""

    starts: dict[int, int]
    ends: dict[int, int]


async def range_of(topic: KafkaTopic, partitions: int, isolation: str = "read_committed") -> Begun:
    """Return what the partitions of a topic hold now: what is committed, or with `read_uncommitted` all."""
    async with _consuming(topic, isolation) as consumer:
        places = [TopicPartition(topic.name, number) for number in range(partitions)]
        starts, ends = await consumer.beginning_offsets(places), await consumer.end_offsets(places)
    return Begun(*({place.partition: offset for place, offset in found.items()} for found in (starts, ends)))


def ranges_now(topic: KafkaTopic, partitions: int) -> Begun:
    """Return what is committed now, as `range_of` does, waiting for it; raises `EnvironmentFault`."""
    thread = KafkaThread.acquire()
    try:
        with kafka_errors_told(topic, "looked at"):
            return thread.call(range_of(topic, partitions))
    finally:
        thread.release()


async def scan(topic: KafkaTopic, starts: Mapping[int, int], ends: Mapping[int, int]) -> AsyncIterator[Scanned]:
    """Yield what is committed from `starts` up to `ends`, partitions side by side."""
    behind = {number: end for number, end in ends.items() if starts[number] < end}
    if not behind:
        return
    async with _consuming(topic) as consumer:
        consumer.assign([TopicPartition(topic.name, number) for number in behind])
        for number in behind:
            consumer.seek(TopicPartition(topic.name, number), starts[number])
        while behind:
            found = await consumer.getmany(timeout_ms=WAIT_MS)
            for number in [*behind]:
                place = TopicPartition(topic.name, number)
                position = await consumer.position(place)
                if place in found:
                    yield Scanned(number, found[place], position)
                if position >= behind[number]:
                    del behind[number]


class KafkaTable:
    """A topic of one partition as a dict, which can be brought up to date again and again."""

    def __init__(self, topic: KafkaTopic) -> None:
        self._topic = topic
        self._place = TopicPartition(topic.name, 0)
        self._consumer: Any = None
        self._beyond: Any = None
        self._newest: dict[bytes, bytes | None] = {}

    async def now(self) -> dict[bytes, bytes]:
        """Return the newest values, by key, of what is committed now."""
        if self._consumer is None:
            self._consumer = _consumer(self._topic)
            await self._consumer.start()
            self._consumer.assign([self._place])
            await self._consumer.seek_to_beginning(self._place)
        self._consumer.resume(self._place)
        end = (await self._consumer.end_offsets([self._place]))[self._place]
        while await self._consumer.position(self._place) < end:
            for records in (await self._consumer.getmany(timeout_ms=WAIT_MS)).values():
                self._newest.update((record.key, record.value) for record in records)
        self._consumer.pause(self._place)
        return {key: value for key, value in self._newest.items() if value is not None}

    async def position(self) -> int:
        """Return the offset up to which it is known."""
        position: int = await self._consumer.position(self._place)
        return position

    async def end_of_all(self) -> int:
        """Return the offset behind all that was written, also by transactions that are still open."""
        if self._beyond is None:
            self._beyond = _consumer(self._topic, isolation="read_uncommitted")
            await self._beyond.start()
        end: int = (await self._beyond.end_offsets([self._place]))[self._place]
        return end

    async def stop(self) -> None:
        """Read it no more."""
        for consumer in filter(None, (self._consumer, self._beyond)):
            await consumer.stop()


async def load(topic: KafkaTopic) -> dict[bytes, bytes]:
    """Return the newest values in a topic of one partition, by key."""
    table = KafkaTable(topic)
    try:
        return await table.now()
    finally:
        await table.stop()


@asynccontextmanager
async def _consuming(topic: KafkaTopic, isolation: str = "read_committed") -> AsyncIterator[Any]:
    """Have a consumer of no group during a block."""
    consumer = _consumer(topic, isolation)
    try:
        await consumer.start()
        yield consumer
    finally:
        await consumer.stop()


def _consumer(topic: KafkaTopic, isolation: str = "read_committed") -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        **topic.client(),
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level=isolation,
        fetch_max_wait_ms=FETCH_WAIT_MS,
    )
