"""A topic as the output of a run on Spark that goes on: each micro-batch is a part of it, published once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from runtime.spark.publishing import remove_others
from runtime.spark.topic_rows import rows_in
from runtime.systems.base import StreamConfig, system_errors_told
from runtime.systems.kafka_published import KafkaPublisher
from runtime.systems.kafka_topic import KafkaTopic


class PartTopic:
    """A topic, with the directory where attempts leave rows for it; `name` tells it from those of all other runs."""

    def __init__(self, topic: KafkaTopic, config: StreamConfig, staging: Path, name: str) -> None:
        self.path, self.staging, self.config = topic.address, staging, config
        self._publisher = KafkaPublisher(topic, config, name)

    def begin(self) -> None:
        """Make the place where attempts write to."""
        with system_errors_told(self.staging, "written"):
            self.staging.mkdir(parents=True, exist_ok=True)

    def publish(self, batch: int, files: Sequence[str]) -> None:
        """Write what is not yet committed of a micro-batch."""
        self._publisher.publish(batch, rows_in(self.staging / name for name in files))

    def sweep(self, kept: Iterable[str]) -> None:
        """Remove what attempts wrote that nobody will publish."""
        remove_others(self.staging, kept)

    def close(self) -> None:
        """Let go of the client."""
        self._publisher.close()
