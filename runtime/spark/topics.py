"""Kafka topics as they are read on Spark: the driver says how far, and each worker fetches what it reads."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from operators.base import Serde
from runtime.clock import monotonic_ms
from runtime.errors import SamzaError
from runtime.spark.growing import UpTo
from runtime.systems.base import Offsets, Read
from runtime.systems.kafka_admin import kafka_errors_told, partitions_of
from runtime.systems.kafka_fetcher import QUIET_MS, KafkaFetcher, begins_at, check_unchanged, is_absent
from runtime.systems.kafka_thread import KafkaThread
from runtime.systems.kafka_topic import KafkaTopic


class TopicSplits:
    """A topic as an input whose partitions are read whole, each by who runs its task; a client is begun for that.

    Raises SamzaError for a topic whose client can't be begun elsewhere, and `EnvironmentFault` as any reader does.
    """

    name = "kafka"

    def __init__(self, topic: KafkaTopic, partitions: int) -> None:
        if "ssl_context" in topic.options:
            raise SamzaError(
                f"{topic.address} is read by workers, which an ssl_context can't be sent to: say ssl_cafile, "
                "ssl_certfile and ssl_keyfile in its options instead, files that are there"
            )
        self.partitions = partitions
        self._topic = replace(topic, start="earliest")  # the driver knows where reading begins
        self._opened: KafkaFetcher | None = None

    def serde(self, declared: Serde) -> Serde:
        """Return the declared serde: what the records of a topic are is between those who write and read it."""
        return declared

    def offsets(self, partition: int) -> Offsets:
        """Return the readable range."""
        return self._fetcher().offsets(partition)

    def read(self, partition: int, offset: int, max_records: int = 10_000) -> Read | None:
        """Return rows from `offset` on, waiting for what is known to be there; None at the end."""
        return self._fetcher().read_known(partition, offset, max_records)

    def close(self) -> None:
        """Stop fetching, until something is read again."""
        if self._opened is not None:
            opened, self._opened = self._opened, None
            opened.close()

    def _fetcher(self) -> KafkaFetcher:
        if self._opened is None:
            self._opened = KafkaFetcher(self._topic)
        return self._opened


class GrowingTopic:
    """A topic as the driver sees it, which looks again and again at how far it is committed, in all partitions at once.

    Raises `EnvironmentFault` where it can't be seen, and `Damaged` where it is not any more what is read.
    """

    name = "kafka"

    def __init__(self, topic: KafkaTopic) -> None:
        self._topic = topic
        self._consumer: Any = None
        self._heard_ms = monotonic_ms()
        self._thread: KafkaThread | None = KafkaThread.acquire()
        try:
            with kafka_errors_told(topic, "read"):
                self._ranges = self._thread.call(self._open())
        except BaseException:
            self.close()
            raise
        self.partitions = len(self._ranges)
        self.splits = TopicSplits(topic, self.partitions)
        self.serde, self.read = self.splits.serde, self.splits.read

    def offsets(self, partition: int) -> Offsets:
        """Return the range that was readable at the last look; it begins where the topic's `start` says."""
        return self._ranges[partition]

    def look(self) -> None:
        """See how far it is committed now."""
        assert self._thread is not None
        with kafka_errors_told(self._topic, "read"):
            ranges = self._thread.call(self._look())
            if ranges != self._ranges:
                self._ranges, self._heard_ms = ranges, monotonic_ms()
            elif monotonic_ms() - self._heard_ms > QUIET_MS:
                self._thread.call(check_unchanged(self._topic, self.partitions))
                self._heard_ms = monotonic_ms()

    def close(self) -> None:
        """Look no more; a second call does nothing."""
        if self._thread is not None:
            thread, self._thread = self._thread, None
            try:
                if self._consumer is not None:
                    thread.call(self._consumer.stop())
            finally:
                thread.release()

    async def _open(self) -> list[Offsets]:
        topic = self._topic
        partitions = await partitions_of(topic)
        if partitions is None:
            raise is_absent(topic)
        self._consumer = AIOKafkaConsumer(**topic.client(), enable_auto_commit=False, isolation_level="read_committed")
        await self._consumer.start()
        self._places = [TopicPartition(topic.name, number) for number in range(partitions)]
        self._starts = await begins_at(self._consumer, topic, self._places)
        return await self._look()

    async def _look(self) -> list[Offsets]:
        firsts = await self._consumer.beginning_offsets(self._places)  # which retention moves on
        ends = await self._consumer.end_offsets(self._places)
        return [Offsets(max(self._starts[place], firsts[place]), ends[place], ended=False) for place in self._places]


def as_it_is(stream: str, topic: KafkaTopic) -> UpTo:
    """Return a topic as an input that ends with what is committed in it now; raises `EnvironmentFault`."""
    with closing(KafkaFetcher(topic)) as fetcher:
        ranges = [fetcher.offsets(partition) for partition in range(fetcher.partitions)]
    return up_to(stream, topic, ranges)


def up_to(stream: str, topic: KafkaTopic, ranges: Sequence[Offsets]) -> UpTo:
    """Return a topic as an input that ends where these ranges of its partitions do."""
    ends = {(stream, number): found._replace(ended=True) for number, found in enumerate(ranges)}
    return UpTo(TopicSplits(topic, len(ranges)), stream, ends)
