"""The administration of topics of a Kafka cluster: what they are, and to make one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from typing import TypeVar

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
    LeaderNotAvailableError,
    NodeNotReadyError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    for_code,
)
from msgspec.structs import replace

from runtime.model.clock import sleep_ms
from runtime.ports.streams import StreamConfig
from runtime.systems.kafka.client.clients import during
from runtime.systems.kafka.client.kafka_errors import kafka_fault
from runtime.systems.kafka.client.metadata import WRITE, TopicMetadata, may, topics_of
from runtime.systems.kafka.client.topic import KafkaTopic
from runtime.systems.kafka.client.topic_configs import (
    APPENDED,
    AS_WRITTEN,
    CODECS,
    COMPRESSION,
    LATEST_MS,
    RETENTION,
    RETENTION_BYTES,
    STAMPS,
    configs_in,
)

R = TypeVar("R")
LOOK_MS = 50.0
MOST_ASKED = 10
"""The tries to ask a broker that may be gone, each time any of them."""
LOOKS = 200
"""The looks whether a new topic has its leaders, until that is given up."""


@contextmanager
def kafka_errors_told(topic: KafkaTopic, what: str) -> Iterator[None]:
    """Raise `EnvironmentFault`, saying what could not be done to a topic, for a KafkaError in a block.

    Where asking anew may help it is `Unavailable`.
    """
    try:
        yield
    except (KafkaError, TimeoutError, OSError, CancelledError) as error:  # cancelled by aiokafka, at a lost connection
        raise kafka_fault(topic, what, error) from error


def administering(topic: KafkaTopic) -> AbstractAsyncContextManager[AIOKafkaAdminClient]:
    """Open a client for the administration of a topic's cluster during a block."""
    return during(AIOKafkaAdminClient(**topic.client()))


async def answered(ask: Callable[[], Awaitable[R]]) -> R:
    """Return what is asked of any broker, of another one where one is gone; raises KafkaError where none answers."""
    for _ in range(MOST_ASKED):
        with suppress(NodeNotReadyError, KafkaConnectionError):
            return await ask()
        await sleep_ms(LOOK_MS)
    return await ask()


async def metadata_of(topic: KafkaTopic) -> TopicMetadata | None:
    """Return what the brokers know of a topic; None where there is none."""
    async with administering(topic) as client:
        return await _metadata(client, topic)


def configs_of(config: StreamConfig) -> dict[str, str]:
    """Return what a topic is made with, in Kafka's words.

    >>> configs_of(StreamConfig(compacted=True, retention_bytes=1_000))
    {'cleanup.policy': 'compact,delete', 'retention.ms': '-1', 'retention.bytes': '1000', ...}
    """  # event time may be far from the clock, which Kafka would refuse or, as a cluster may say, replace
    kept = config.retention_ms is None and config.retention_bytes is None
    policies = ["compact"] * config.compacted + ["delete"] * (not kept or not config.compacted)
    limits = {RETENTION: config.retention_ms, RETENTION_BYTES: config.retention_bytes}
    said = {name: str(-1 if limit is None else limit) for name, limit in limits.items()}
    times = {
        "message.timestamp.after.max.ms": LATEST_MS,
        "message.timestamp.before.max.ms": LATEST_MS,
        STAMPS: "CreateTime",
    }
    compressed = {COMPRESSION: CODECS[config.compression]} if config.compression else {}
    return {"cleanup.policy": ",".join(policies), **said, **times, **compressed}


def config_in(configs: Mapping[str, str], made: StreamConfig) -> StreamConfig:
    """Return what a topic is, by Kafka's words for it, that was made as such a stream.

    >>> config_in({"cleanup.policy": "compact", "retention.ms": "1000", "retention.bytes": "-1"}, StreamConfig())
    StreamConfig(partitions=1, compression=None, compacted=True, retention_ms=None, retention_bytes=None, ...)
    """
    policies = configs.get("cleanup.policy", "delete").split(",")
    limits = [int(configs.get(name, "-1")) for name in (RETENTION, RETENTION_BYTES)]
    kept = [None if limit < 0 or "delete" not in policies else limit for limit in limits]
    codec, compressions = configs.get(COMPRESSION), {codec: said for said, codec in CODECS.items()}
    return replace(
        made,
        compacted="compact" in policies,
        retention_ms=kept[0],
        retention_bytes=kept[1],
        # Also one that an earlier version has made, which did not tell the brokers, and left it to who writes.
        compression=made.compression if codec in (None, AS_WRITTEN) else compressions.get(codec),
    )


async def described(topic: KafkaTopic) -> dict[str, str]:
    """Return how a topic is configured, in Kafka's words."""
    async with administering(topic) as client:
        return (await configs_in(client, [topic.name]))[topic.name]


async def told_of(topic: KafkaTopic) -> dict[str, str]:
    """Return how a topic is configured, in Kafka's words; nothing where brokers do not tell this client."""
    try:
        return await described(topic)
    except TopicAuthorizationFailedError:
        return {}


async def is_stamped(topic: KafkaTopic) -> bool:
    """Whether the time of a topic's records is when brokers took them, as far as they tell."""
    try:
        return (await described(topic)).get(STAMPS) == APPENDED
    except (KafkaError, OSError, TimeoutError):
        return False


async def create_topic(topic: KafkaTopic, partitions: int, configs: Mapping[str, str]) -> int:
    """Make a topic, and return how many partitions it has: others than asked for, where another was first."""
    async with administering(topic) as client:
        new = NewTopic(topic.name, partitions, 1, topic_configs=dict(configs))
        new.replication_factor = -1  # as the cluster says; the constructor refuses it
        answer = await client.create_topics([new])
        for _, code, *rest in answer.topic_errors:
            if code and for_code(code) is TopicAuthorizationFailedError:
                raise kafka_fault(topic, "made", TopicAuthorizationFailedError(topic.name))
            # Another process may have been faster: its topic is as good, and its partitions are what is returned.
            if code and for_code(code) is not TopicAlreadyExistsError:
                raise for_code(code)(*rest[:1])
        for _ in range(LOOKS):
            # A topic that was just made can't be written before its partitions have leaders.
            with suppress(LeaderNotAvailableError):
                found = await _metadata(client, topic)
                if found is not None and may(found, WRITE):
                    return found.partitions
                if found is not None:
                    raise kafka_fault(topic, "written", TopicAuthorizationFailedError(topic.name))
            await sleep_ms(LOOK_MS)
    raise KafkaError("it was made, and has no leaders")


async def _metadata(client: AIOKafkaAdminClient, topic: KafkaTopic) -> TopicMetadata | None:
    """Return what is known of a topic; raises LeaderNotAvailableError where it can't be read just now."""
    found = (await answered(lambda: topics_of(client, [topic.name]))).get(topic.name)
    if found is not None and not found.has_leaders:
        raise LeaderNotAvailableError
    return found
