"""What is asked of a Kafka cluster about topics: what they are, and to make one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from typing import TypeVar

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    AuthenticationFailedError,
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    IncompatibleBrokerVersion,
    InvalidTopicError,
    KafkaConnectionError,
    KafkaError,
    LeaderNotAvailableError,
    MessageSizeTooLargeError,
    NodeNotReadyError,
    PolicyViolationError,
    RecordListTooLargeError,
    RecordTooLargeError,
    SaslAuthenticationFailed,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
    UnsupportedCodecError,
    UnsupportedVersionError,
    for_code,
)
from msgspec.structs import replace

from runtime.clock import sleep_ms
from runtime.errors import EnvironmentFault, Unavailable
from runtime.systems.base import StreamConfig
from runtime.systems.kafka_clients import during
from runtime.systems.kafka_log import reason_of
from runtime.systems.kafka_metadata import TopicMetadata, topics_of
from runtime.systems.kafka_topic import KafkaTopic

R = TypeVar("R")
LOOK_MS = 50.0
MOST_ASKED = 10
"""How often a broker is asked that may be gone, each time any of them."""
LOOKS = 200
"""How often it is looked whether a new topic has its leaders, until that is given up."""

LASTING = (
    *(MessageSizeTooLargeError, RecordTooLargeError, RecordListTooLargeError, InvalidTopicError, PolicyViolationError),
    *(TopicAuthorizationFailedError, GroupAuthorizationFailedError, ClusterAuthorizationFailedError),
    *(TransactionalIdAuthorizationFailed, AuthenticationFailedError, SaslAuthenticationFailed),
    *(UnsupportedVersionError, UnsupportedCodecError, IncompatibleBrokerVersion),
)
"""What would be wrong again if it were asked anew."""
ADVICE = {
    MessageSizeTooLargeError: "A record is larger than the topic's max.message.bytes: raise that, or drop the record.",
}
"""What to do, by the kind of what was wrong."""


@contextmanager
def kafka_errors_told(topic: KafkaTopic, what: str) -> Iterator[None]:
    """Raise `EnvironmentFault`, saying what could not be done to a topic, for a KafkaError in a block.

    Where asking anew may help it is `Unavailable`.
    """
    try:
        yield
    except (KafkaError, TimeoutError, OSError, CancelledError) as error:  # cancelled by aiokafka, at a lost connection
        told = str(error) or type(error).__name__
        if type(error) is KafkaConnectionError:
            told = reason_of(topic.bootstrap) or told
        instead = ADVICE.get(type(error), "Look whether its brokers run, and let this client in.")
        kind = EnvironmentFault if isinstance(error, LASTING) else Unavailable
        raise kind(f"{topic.address} can't be {what}: {told}. {instead}") from error


def administering(topic: KafkaTopic) -> AbstractAsyncContextManager[AIOKafkaAdminClient]:
    """Have a client for the administration of a topic's cluster during a block."""
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
    """  # event time may be ahead of the clock, which Kafka would refuse from an hour on
    kept = config.retention_ms is None and config.retention_bytes is None
    policies = ["compact"] * config.compacted + ["delete"] * (not kept or not config.compacted)
    limits = {"retention.ms": config.retention_ms, "retention.bytes": config.retention_bytes}
    said = {name: str(-1 if limit is None else limit) for name, limit in limits.items()}
    return {"cleanup.policy": ",".join(policies), **said, "message.timestamp.after.max.ms": str(2**63 - 1)}


def config_in(configs: Mapping[str, str], made: StreamConfig) -> StreamConfig:
    """Return what a topic is, by Kafka's words for it, that was made as such a stream.

    >>> config_in({"cleanup.policy": "compact", "retention.ms": "1000", "retention.bytes": "-1"}, StreamConfig())
    StreamConfig(partitions=1, compression=None, compacted=True, retention_ms=None, retention_bytes=None, ...)
    """
    policies = configs.get("cleanup.policy", "delete").split(",")
    limits = [int(configs.get(name, "-1")) for name in ("retention.ms", "retention.bytes")]
    kept = [None if limit < 0 or "delete" not in policies else limit for limit in limits]
    is_compacted = "compact" in policies
    return replace(made, compacted=is_compacted, retention_ms=kept[0], retention_bytes=kept[1])


async def described(topic: KafkaTopic) -> dict[str, str]:
    """Return how a topic is configured, in Kafka's words."""
    async with administering(topic) as client:
        (answer,) = await client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic.name)])
    code, _, _, _, entries = answer.resources[0]
    if code:
        raise for_code(code)(topic.name)
    return {entry[0]: entry[1] for entry in entries if entry[1] is not None}


async def create_topic(topic: KafkaTopic, partitions: int, configs: Mapping[str, str]) -> int:
    """Make a topic, and return how many partitions it has: others than asked for, where another was first."""
    async with administering(topic) as client:
        new = NewTopic(topic.name, partitions, 1, topic_configs=dict(configs))
        new.replication_factor = -1  # as the cluster says; the constructor refuses it
        answer = await client.create_topics([new])
        for _, code, *rest in answer.topic_errors:
            if code and for_code(code) is not TopicAlreadyExistsError:
                raise for_code(code)(*rest[:1])
        for _ in range(LOOKS):
            with suppress(LeaderNotAvailableError):
                found = await _metadata(client, topic)
                if found is not None:
                    return found.partitions
            await sleep_ms(LOOK_MS)
    raise KafkaError("it was made, and has no leaders")


async def _metadata(client: AIOKafkaAdminClient, topic: KafkaTopic) -> TopicMetadata | None:
    """Return what is known of a topic; raises LeaderNotAvailableError where it can't be read just now."""
    found = (await answered(lambda: topics_of(client, [topic.name]))).get(topic.name)
    if found is not None and not found.has_leaders:
        raise LeaderNotAvailableError
    return found
