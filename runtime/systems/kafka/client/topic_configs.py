"""Configurations of Kafka topics: those that our own must have, and the request that changes single settings."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Array, Boolean, Int8, Int16, Int32, Schema, String

from runtime.model.errors import EnvironmentFault
from runtime.ports.streams import StreamConfig
from runtime.systems.kafka.client.private_names import answer_to
from runtime.systems.kafka.client.topic import KafkaTopic

R = TypeVar("R")

_log = logging.getLogger("samza_dsl")
DELETIONS_MS = 7 * 86_400_000
"""The ms that a deletion is kept in compacted topics: who has not read it by then would keep what it deletes."""
LATEST_MS = str(2**63 - 1)
POLICY, STAMPS, DELETIONS = "cleanup.policy", "message.timestamp.type", "delete.retention.ms"
RETENTION, RETENTION_BYTES = "retention.ms", "retention.bytes"
COMPRESSION = "compression.type"
AS_WRITTEN = "producer"
"""The brokers' compression where records stay as who writes them has compressed them."""
CODECS = {"zlib": "gzip", "zstd": "zstd"}
"""Kafka's word for each compression of a stream."""
APPENDED = "LogAppendTime"
"""The kind of timestamps that are the brokers' own, in the place of those that were written."""
TABLE_CONFIGS = {POLICY: "compact", STAMPS: "CreateTime", DELETIONS: str(DELETIONS_MS)}
"""The settings of our own compacted topics: with `delete` as a policy, any limit would remove live entries."""
CHANGELOG_SEGMENT_BYTES, LEDGER_SEGMENT_BYTES = 1 << 26, 1 << 22
"""What a segment of theirs takes: brokers compact no open one, so that by default up to 1 GiB, or what a week brings,
would be read at each start. Of a ledger, to which each commit writes and which has few keys, 64 MiB took 3 s."""
BETWEEN_CONFIGS = {POLICY: "delete", RETENTION: "-1", RETENTION_BYTES: "-1", STAMPS: "CreateTime"}
"""The settings of topics between stages: the records in them carry event time, and go when they are consumed."""
KEPT = (POLICY, RETENTION, RETENTION_BYTES, STAMPS, COMPRESSION)
"""The settings that say how brokers keep the records of a stream."""
_TEXT = String("utf-8")
_SET = 0


class _ConfigAnswer(Response):  # type: ignore[misc]
    """The brokers' answer to a change."""

    API_KEY = 44
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("resources", Array(("error_code", Int16), ("message", _TEXT), ("type", Int8), ("name", _TEXT))),
    )


class _Asked(RequestStruct):  # type: ignore[misc]
    """The request for a change."""

    API_KEY = 44
    API_VERSION = 0
    RESPONSE_TYPE = _ConfigAnswer
    SCHEMA = Schema(
        (
            "resources",
            Array(("type", Int8), ("name", _TEXT), ("configs", Array(("name", _TEXT), ("op", Int8), ("value", _TEXT)))),
        ),
        ("validate_only", Boolean),
    )


class ChangeConfigs(Request[_Asked]):  # type: ignore[misc]
    """Sets single settings of topics, and leaves the others as they are; aiokafka's own request drops these."""

    API_KEY = 44

    def __init__(self, changes: Mapping[str, Mapping[str, str]]) -> None:
        self.changes = changes

    def build(self, request_struct_class: Callable[..., R]) -> R:
        """Return the request in the words of the one version that is known here."""
        topic = int(ConfigResourceType.TOPIC)
        asked = [
            (topic, name, [(setting, _SET, value) for setting, value in settings.items()])
            for name, settings in self.changes.items()
        ]
        return request_struct_class(asked, False)


async def configs_in(
    client: AIOKafkaAdminClient, names: Sequence[str], told_alone: bool = False
) -> dict[str, dict[str, str]]:
    """Return how topics are configured, in Kafka's words; raises KafkaError where that is not told.

    With `told_alone` only those are returned that brokers tell this client of, as far as it is about what they keep.
    """
    only = dict.fromkeys(KEPT) if told_alone else None
    asked = [ConfigResource(ConfigResourceType.TOPIC, name, only) for name in names]
    found = {}
    for answer in await client.describe_configs(asked):
        for code, _, _, name, entries in answer.resources:
            if code and told_alone:
                continue
            if code:
                raise for_code(code)(name)
            found[name] = {entry[0]: entry[1] for entry in entries if entry[1] is not None}
    return found


def segments_of(config: StreamConfig) -> dict[str, str]:
    """Return the segments with which a compacted topic of our own is made: a ledger has one partition."""
    return {"segment.bytes": str(LEDGER_SEGMENT_BYTES if config.partitions == 1 else CHANGELOG_SEGMENT_BYTES)}


def wrong_in(configs: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that a topic must have and has not.

    >>> wrong_in({"cleanup.policy": "compact,delete", "delete.retention.ms": "999999999"}, TABLE_CONFIGS)
    {'cleanup.policy': 'compact'}
    """

    def is_so(name: str, value: str) -> bool:
        has = configs.get(name)
        return has is None or has == value or (name == DELETIONS and int(has) >= int(value))

    return {name: value for name, value in wanted.items() if not is_so(name, value)}


def had_limits(configs: Mapping[str, str]) -> bool:
    """Whether a topic removes records by their age, or by how much there is.

    >>> had_limits({"cleanup.policy": "compact,delete", "retention.ms": "1000", "retention.bytes": "-1"})
    True
    """
    limits = (configs.get(name, "-1") for name in (RETENTION, RETENTION_BYTES))
    return "delete" in configs.get(POLICY, "") and any(int(limit) >= 0 for limit in limits)


def altering(topic: KafkaTopic, settings: str) -> str:
    """Return the command of Kafka's own that changes settings of a topic."""
    where = f"--bootstrap-server {topic.bootstrap} --alter --entity-type topics --entity-name {topic.name}"
    return f"kafka-configs.sh {where} --add-config {settings}"


async def amend(
    client: AIOKafkaAdminClient, topic: KafkaTopic, configs: Mapping[str, str], wrong: Mapping[str, str]
) -> None:
    """Change settings of a topic of our own; raises `EnvironmentFault`, which says what to type, where that fails."""
    if not wrong:
        return
    had = ", ".join(f"{name}={configs[name]}" for name in wrong)
    now = ",".join(f"{name}={value}" for name, value in wrong.items())
    try:
        answer = await answer_to(client, ChangeConfigs({topic.name: wrong}))
        for code, said, *_ in answer.resources:
            if code:
                raise for_code(code)(said)
    except KafkaError as error:
        raise EnvironmentFault(
            f"The topic {topic.name!r} has {had}, with which it would lose what is kept in it, or its times; this "
            f"client can't change that: {error}. Have somebody who may do it type: {altering(topic, now)}"
        ) from error
    _log.warning("changes the topic %r, which had %s: it has %s now", topic.name, had, now)
