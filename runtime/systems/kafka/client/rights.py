"""The rights of this client, asked for when a run begins: else it would only meet a refusal at its first commit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import TypeVar

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import GroupAuthorizationFailedError, IncompatibleBrokerVersion, KafkaError
from aiokafka.errors import TopicAuthorizationFailedError as TopicDenied
from aiokafka.protocol.admin import DescribeGroupsRequest_v3, DescribeGroupsResponse_v3
from aiokafka.protocol.api import Request

from runtime.systems.kafka.client.admin import administering, answered
from runtime.systems.kafka.client.kafka_errors import kafka_fault
from runtime.systems.kafka.client.metadata import READ, UNKNOWN, WRITE, may, topics_of
from runtime.systems.kafka.client.private_names import answer_to
from runtime.systems.kafka.client.record_limits import check_replicas
from runtime.systems.kafka.client.topic import KafkaTopic, beside

READ_GROUP, DELETE = 1 << 3, 1 << 6
_log = logging.getLogger("samza_dsl")


R = TypeVar("R")


class _DescribeGroup(DescribeGroupsRequest_v3):  # type: ignore[misc]
    """Reads the answer to its end, which aiokafka's own does not."""

    RESPONSE_TYPE = DescribeGroupsResponse_v3


class DescribeGroups(Request[_DescribeGroup]):  # type: ignore[misc]
    """Asks what this client may do with a group."""

    API_KEY = 15

    def __init__(self, group: str) -> None:
        self._group = group

    def build(self, request_struct_class: Callable[..., R]) -> R:
        """Return the request in the words of a version."""
        return request_struct_class([self._group], True)


async def check_rights(
    any_topic: KafkaTopic,
    read: Collection[str],
    written: Collection[str],
    groups: Iterable[str],
    emptied: Collection[str] = (),
) -> None:
    """Raise `EnvironmentFault` where this client may not read or write topics that are there, or not use groups.

    So where a topic to be written has too few replicas for that. Topics to be `emptied` of what was read, where it may
    not do that, are told in the log: they grow for good. Brokers that are too old to be asked are not.
    """
    async with administering(any_topic) as client:
        found = await answered(lambda: topics_of(client, sorted({*read, *written})))
        for names, right, what in ((read, READ, "read"), (written, WRITE, "written")):
            denied = [name for name in sorted(names) if name in found and not may(found[name], right)]
            if denied:
                raise kafka_fault(beside(any_topic, denied[0]), what, TopicDenied(denied))
        if growing := [name for name in sorted(emptied) if name in found and not may(found[name], DELETE)]:
            _log.warning(
                "records that were read between stages stay for good, as this client may not remove them: allow it, as "
                "by kafka-acls.sh --bootstrap-server %s --add --allow-principal User:NAME %s --operation Delete",
                any_topic.bootstrap,
                " ".join(f"--topic {name}" for name in growing),
            )
        tells = any(one.operations not in (None, UNKNOWN) for one in found.values())
        # Brokers that tell no rights of topics tell none of groups.
        for group in groups if tells else ():
            if not await _may_use(client, group):
                raise kafka_fault(any_topic, "used", GroupAuthorizationFailedError(group))
    await check_replicas(any_topic, written)


async def _may_use(client: AIOKafkaAdminClient, group: str) -> bool:
    with suppress(IncompatibleBrokerVersion):
        try:
            node = await client.find_coordinator(group)
            answer = (await answer_to(client, DescribeGroups(group), node)).to_object()["groups"][0]
        except GroupAuthorizationFailedError:
            return False
        except KafkaError:  # the brokers are not ready to say so; commits will
            return True
        is_denied = answer["error_code"] == GroupAuthorizationFailedError.errno
        operations = answer.get("authorized_operations", UNKNOWN)
        return not is_denied and (operations == UNKNOWN or bool(operations & READ_GROUP))
    return True
