"""The committed ranges of a Kafka topic, for a driver whose workers read it."""

from __future__ import annotations

from contextlib import suppress

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from runtime.model.clock import monotonic_ms
from runtime.ports.streams import Offsets
from runtime.systems.kafka.client.admin import kafka_errors_told, metadata_of
from runtime.systems.kafka.client.clients import Consumer, begun, ended
from runtime.systems.kafka.client.metadata import TopicMetadata
from runtime.systems.kafka.client.thread import KafkaThread
from runtime.systems.kafka.client.topic import KafkaTopic
from runtime.systems.kafka.streams.fetcher import QUIET_MS, absent_topic_error, begins_at, check_unchanged


class KafkaRanges:
    """Looks at what is committed in a topic, in all partitions at once; reads nothing of it.

    Raises `EnvironmentFault` where it can't be seen, and `Damaged` where it is not any more what is read.
    """

    def __init__(self, topic: KafkaTopic) -> None:
        self._topic = topic
        self._consumer: Consumer | None = None
        self._heard_ms = monotonic_ms()
        self._thread: KafkaThread | None = KafkaThread.acquire()
        try:
            with kafka_errors_told(topic, "read"):
                self._metadata, self._ranges = self._thread.call(self._open())
        except BaseException:
            self.close()
            raise
        self.partitions = self._metadata.partitions

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
                with suppress(KafkaError, OSError, TimeoutError):  # who doesn't answer is waited for
                    self._thread.call(check_unchanged(self._topic, self._metadata))
                self._heard_ms = monotonic_ms()

    def close(self) -> None:
        """Look no more; a second call does nothing."""
        if self._thread is not None:
            thread, self._thread = self._thread, None
            try:
                if self._consumer is not None:
                    thread.call(ended(self._consumer))
            finally:
                thread.release()

    async def _open(self) -> tuple[TopicMetadata, list[Offsets]]:
        topic = self._topic
        metadata = await metadata_of(topic)
        if metadata is None:
            raise absent_topic_error(topic)
        consumer = AIOKafkaConsumer(**topic.client(), enable_auto_commit=False, isolation_level="read_committed")
        self._consumer = await begun(consumer, topic.name)
        self._places = [TopicPartition(topic.name, number) for number in range(metadata.partitions)]
        self._starts = await begins_at(consumer, topic, self._places)
        return metadata, await self._look()

    async def _look(self) -> list[Offsets]:
        assert self._consumer is not None
        firsts = await self._consumer.beginning_offsets(self._places)  # which retention moves on
        ends = await self._consumer.end_offsets(self._places)
        return [Offsets(max(self._starts[place], firsts[place]), ends[place], ended=False) for place in self._places]
