"""Brokers' metadata of topics, with the id that tells a topic from one that was made anew under its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import BytesIO
from typing import NamedTuple, TypeVar

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import (
    InvalidTopicError,
    LeaderNotAvailableError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from aiokafka.protocol.abstract import AbstractType
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.metadata import MetadataRequest_v5
from aiokafka.protocol.types import Boolean, CompactArray, CompactString, Int16, Int32, Schema, TaggedFields

from runtime.systems.kafka.client.private_names import answer_to

R = TypeVar("R")

UNKNOWN = -(1 << 31)
"""The answer of brokers that were not asked for rights."""
NOT_LISTED = {TopicAuthorizationFailedError.errno, InvalidTopicError.errno}
"""The answers for names that no list of all topics has: this client may not know of it, or none can have that name."""
READ, WRITE, DESCRIBE_CONFIGS = 1 << 3, 1 << 4, 1 << 10
"""Rights to a topic, as bits."""


class TopicMetadata(NamedTuple):
    """A topic that is there: how many partitions it has, and its id, which is 0 where the brokers have none to tell.

    `operations` are what this client may do to it, as far as brokers say, and `replicas` how many each partition has.
    """

    partitions: int
    id: int
    is_internal: bool = False
    has_leaders: bool = True
    operations: int | None = None
    replicas: int = 0


class _TopicId(AbstractType[bytes]):  # type: ignore[misc]
    """Sixteen bytes, which aiokafka has no name for."""

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        """Return them as they are sent."""
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        """Return the next sixteen of them."""
        return data.read(16)


_NO_ID = bytes(16)
_TEXT = CompactString("utf-8")
_TAGS = ("tags", TaggedFields)
_PARTITION = CompactArray(
    ("error_code", Int16),
    ("partition", Int32),
    ("leader", Int32),
    ("leader_epoch", Int32),
    ("replicas", CompactArray(Int32)),
    ("isr", CompactArray(Int32)),
    ("offline_replicas", CompactArray(Int32)),
    _TAGS,
)
_TOPIC = CompactArray(
    ("error_code", Int16),
    ("topic", _TEXT),
    ("id", _TopicId),
    ("is_internal", Boolean),
    ("partitions", _PARTITION),
    ("authorized_operations", Int32),
    _TAGS,
)
_BROKER = CompactArray(("node_id", Int32), ("host", _TEXT), ("port", Int32), ("rack", _TEXT), _TAGS)


class _Answer(Response):  # type: ignore[misc]
    """The answer of brokers since Kafka 2.8; aiokafka's own request stops short of the ids."""

    API_KEY = 3
    API_VERSION = 10
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("brokers", _BROKER),
        ("cluster_id", _TEXT),
        ("controller_id", Int32),
        ("topics", _TOPIC),
        ("authorized_operations", Int32),
        _TAGS,
    )


class MetadataRequestWithIds(RequestStruct):  # type: ignore[misc]
    """The request for it."""

    API_KEY = 3
    API_VERSION = 10
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _Answer
    SCHEMA = Schema(
        ("topics", CompactArray(("id", _TopicId), ("topic", _TEXT), _TAGS)),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
        _TAGS,
    )


class DescribeTopics(Request[MetadataRequest_v5 | MetadataRequestWithIds]):  # type: ignore[misc]
    """Asks for topics, all of them where no names are said; none is made by that."""

    API_KEY = 3

    def __init__(self, names: Sequence[str] | None = None) -> None:
        self.names = names

    def build(self, request_struct_class: Callable[..., R]) -> R:
        """Return the request in the words of a version."""
        if request_struct_class is MetadataRequestWithIds:
            none_tagged: dict[int, bytes] = {}
            asked = None if self.names is None else [(_NO_ID, name, none_tagged) for name in self.names]
            return request_struct_class(asked, False, False, asked is not None, none_tagged)
        return request_struct_class(self.names, False)


def may(topic: TopicMetadata, operation: int) -> bool:
    """Whether brokers let this client do something to a topic, as far as they say.

    >>> may(TopicMetadata(1, 0, operations=1 << 3), WRITE), may(TopicMetadata(1, 0), WRITE)
    (False, True)
    """
    return topic.operations in (None, UNKNOWN) or bool(topic.operations & operation)


async def topics_of(
    client: AIOKafkaAdminClient, names: Sequence[str] | None = None, told_alone: bool = False
) -> dict[str, TopicMetadata]:
    """Return the topics that there are, all or those of `names`; with `told_alone` as a list of all would have them.

    Else it raises LeaderNotAvailableError where what there is of one can't be told just now, and
    TopicAuthorizationFailedError where this client may not know of it. Where no broker answers, that is a KafkaError.
    """
    found = {}
    for one in (await answer_to(client, DescribeTopics(names))).to_object()["topics"]:
        if one["error_code"] == UnknownTopicOrPartitionError.errno:
            continue
        if one["error_code"] in NOT_LISTED and told_alone:
            continue
        if one["error_code"] == TopicAuthorizationFailedError.errno and names is not None:
            raise TopicAuthorizationFailedError(one["topic"])
        if one["error_code"] and names is not None and not told_alone:
            raise LeaderNotAvailableError
        has_leaders = all(not part["error_code"] and part["leader"] >= 0 for part in one["partitions"])
        # The first 63 bits of 128, which fit a signed 64-bit field and tell random ids apart all the same.
        id = int.from_bytes(one.get("id", _NO_ID)[:8], "big") >> 1
        partitions, operations = len(one["partitions"]), one.get("authorized_operations")
        replicas = min((len(part["replicas"]) for part in one["partitions"]), default=0)
        found[one["topic"]] = TopicMetadata(partitions, id, one["is_internal"], has_leaders, operations, replicas)
    return found
