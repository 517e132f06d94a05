"""Kafka topics as inputs of workers: the driver says how far, and each worker fetches what it reads."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

from operators.core.base import Serde
from runtime.model.errors import SamzaError
from runtime.ports.source import Source
from runtime.ports.streams import Offsets, Read
from runtime.systems.kafka.client.topic import KafkaTopic
from runtime.systems.kafka.streams.fetcher import KafkaFetcher
from runtime.systems.kafka.streams.ranges import KafkaRanges
from runtime.units.growing import UpTo


class TopicSplits(Source):
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


class GrowingTopic(KafkaRanges):
    """A topic as an input without an end, as the driver sees it: workers read its `splits`."""

    name = "kafka"

    def __init__(self, topic: KafkaTopic) -> None:
        super().__init__(topic)
        self.splits = TopicSplits(topic, self.partitions)
        self.serde, self.read = self.splits.serde, self.splits.read


def as_it_is(stream: str, topic: KafkaTopic) -> UpTo:
    """Return a topic as an input that ends with what is written in it now; raises `EnvironmentFault`.

    Transactions that are open are waited for.
    """
    with closing(KafkaFetcher(topic)) as fetcher:
        ranges = fetcher.settled()
    return up_to(stream, topic, ranges)


def up_to(stream: str, topic: KafkaTopic, ranges: Sequence[Offsets]) -> UpTo:
    """Return a topic as an input that ends where these ranges of its partitions do."""
    ends = {(stream, number): found._replace(ended=True) for number, found in enumerate(ranges)}
    return UpTo(TopicSplits(topic, len(ranges)), stream, ends)
