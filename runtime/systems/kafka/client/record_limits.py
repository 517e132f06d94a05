"""The largest record of a topic, known when a run begins, so that a larger one meets the policy of its writer."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.codec import has_zstd
from aiokafka.errors import UnsupportedCodecError
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from operators.core.base import Batch
from runtime.model.errors import Refused
from runtime.systems.kafka.client.admin import administering, answered
from runtime.systems.kafka.client.metadata import DESCRIBE_CONFIGS, may, topics_of
from runtime.systems.kafka.client.topic import KafkaTopic, beside
from runtime.systems.kafka.client.topic_configs import COMPRESSION

SIZE, IN_SYNC = "max.message.bytes", "min.insync.replicas"
SPARE = 512
"""The most bytes that we say beside a record between stages."""
CODECS = {
    None: 0,
    "gzip": DefaultRecordBatch.CODEC_GZIP,
    "snappy": DefaultRecordBatch.CODEC_SNAPPY,
    "lz4": DefaultRecordBatch.CODEC_LZ4,
    "zstd": DefaultRecordBatch.CODEC_ZSTD,
}


@dataclass(frozen=True)
class KafkaLimit:
    """The most bytes that brokers take in one batch of records, which is of one record where that is large."""

    where: str
    bytes: int
    compression: str | None = None
    setting: str = f"the topic's {SIZE}"

    def size(self, batch: Batch, row: int) -> int:
        """Return what a record takes, as it is sent.

        >>> KafkaLimit("kafka://broker:9092/flights", 1_000).size(Batch([b"x" * 900], [b"k"]), 0)
        971
        """
        # Built as it is sent: only so is it known what compression makes of it.
        builder = DefaultRecordBatchBuilder(2, CODECS[self.compression], 0, -1, -1, 0, 1 << 30)
        key, value = batch.keys[row] if batch.keys else None, batch.values[row]
        headers = batch.headers[row] if batch.headers else None
        builder.append(0, batch.timestamps[row] if batch.timestamps else 0, key, value, [*(headers or {}).items()])
        return len(builder.build())


async def limits_of(any_topic: KafkaTopic, names: Collection[str]) -> dict[str, int]:
    """Return what topics of one cluster take, of those that there are and that this client may look at."""
    return {name: int(size) for name, size in (await _settings(any_topic, names, SIZE)).items()}


async def check_replicas(any_topic: KafkaTopic, written: Collection[str]) -> None:
    """Raise `EnvironmentFault` where a topic has fewer replicas than have to be in sync: brokers take nothing."""
    needed = await _settings(any_topic, written, IN_SYNC)
    if max(map(int, needed.values()), default=1) == 1:
        return
    async with administering(any_topic) as client:
        known = await answered(lambda: topics_of(client, sorted(needed)))
    for name, one in sorted(known.items()):
        least = int(needed[name])
        if 0 < one.replicas < least:
            raise Refused(
                f"{beside(any_topic, name).address} can't be written: of {least} replicas that its {IN_SYNC} asks for "
                f"it has {one.replicas}. Give it more (kafka-reassign-partitions.sh), or set that to {one.replicas} "
                "(kafka-configs.sh)."
            )


async def check_codecs(topic: KafkaTopic) -> None:
    """Raise UnsupportedCodecError where the brokers compress a topic by what is not installed here."""
    if not has_zstd():
        codec = (await _settings(topic, [topic.name], COMPRESSION)).get(topic.name)
        if codec in ("snappy", "lz4", "zstd"):
            raise UnsupportedCodecError(f"Libraries for {codec} compression codec not found")


async def _settings(any_topic: KafkaTopic, names: Collection[str], setting: str) -> dict[str, str]:
    async with administering(any_topic) as client:
        known = await answered(lambda: topics_of(client, sorted(names))) if names else {}
        seen = [name for name, one in known.items() if one.operations is not None and may(one, DESCRIBE_CONFIGS)]
        resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in seen]
        answers = await client.describe_configs(resources) if resources else []
    return {
        resource[3]: entry[1]
        for answer in answers
        for resource in answer.resources
        if not resource[0]
        for entry in resource[4]
        if entry[0] == setting
    }
