"""The topics and rights that an application needs on a cluster, from its plan alone, to be applied or handed over."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import msgspec
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError, SecurityDisabled, for_code
from aiokafka.protocol.admin import CreateAclsRequest

from planner.model.plan import Plan, StreamPlan
from runtime.model.errors import EnvironmentFault
from runtime.ports.streams import METRICS_CONFIG, StreamConfig
from runtime.systems.kafka.client.admin import administering, answered, configs_of, create_topic, kafka_errors_told
from runtime.systems.kafka.client.metadata import TopicMetadata, topics_of
from runtime.systems.kafka.client.private_names import answer_to
from runtime.systems.kafka.client.topic import KafkaCluster
from runtime.systems.kafka.client.topic_configs import (
    BETWEEN_CONFIGS,
    TABLE_CONFIGS,
    amend,
    configs_in,
    segments_of,
    wrong_in,
)
from runtime.systems.kafka.state.changelog import Changelog
from runtime.systems.kafka.state.ledger import TABLE, ledger_of
from runtime.systems.kafka.streams.streams import LARGEST_BYTES

OWN = "between stages", "outbox", "changelog", "checkpoints", "registry"
"""The roles of topics that are the application's own."""
BETWEEN = "between stages", "outbox"
"""The roles of those whose records go when they are consumed."""
LARGE = {"max.message.bytes": str(LARGEST_BYTES)}
_RESOURCES = {"topic": 2, "group": 3, "transactional-id": 5}
_OPERATIONS = {"Read": 3, "Write": 4, "Create": 5, "Delete": 6, "Describe": 8, "DescribeConfigs": 10}
_LITERAL, _PREFIXED, _ALLOW = 3, 4, 3
_PLAIN = re.compile(r"[^*?]*")


class NeededTopic(msgspec.Struct, frozen=True):
    """A topic, its role, and the settings that it is made with; `partitions` is None where only its writer knows.

    `state` says how it is on a cluster that was looked at: there, missing, or which settings differ.
    """

    name: str
    role: str
    partitions: int | None
    configs: dict[str, str]
    state: str | None = None


class BoundTopic(NamedTuple):
    """A topic of the application's own that stands in the place of a stream that is bound.

    Without a `config` it is all those whose names begin so: a run itself makes them, as it learns how they end.
    """

    name: str
    role: str
    config: StreamConfig | None


class NeededRight(msgspec.Struct, frozen=True):
    """The operations that a client has to be allowed on a resource of this name, or on all that begin with it."""

    resource: str
    name: str
    prefixed: bool
    operations: tuple[str, ...]


class Needs(msgspec.Struct, frozen=True):
    """All that an application needs on a cluster, where `principal` runs it."""

    app: str
    principal: str
    topics: tuple[NeededTopic, ...]
    rights: tuple[NeededRight, ...]

    @property
    def to_make(self) -> list[NeededTopic]:
        """The topics that can be made ahead of a run: all but those that others write."""
        return [topic for topic in self.topics if topic.role not in ("input", "table")]

    def commands(self, bootstrap: str) -> Iterator[str]:
        """Yield the commands that make all of it, as a shell takes them, for whoever may."""
        where = ["--bootstrap-server", bootstrap]
        for topic in self.to_make:
            if topic.state != "there":
                how = ["--create", "--if-not-exists", "--topic", topic.name, "--partitions", str(topic.partitions)]
                configs = [word for name, value in topic.configs.items() for word in ("--config", f"{name}={value}")]
                yield shlex.join(["kafka-topics.sh", *where, *how, *configs])
        for right in self.rights:
            how = ["--add", "--allow-principal", self.principal, f"--{right.resource}", right.name]
            pattern = ["--resource-pattern-type", "prefixed"] if right.prefixed else []
            operations = [word for one in right.operations for word in ("--operation", one)]
            yield shlex.join(["kafka-acls.sh", *where, *how, *pattern, *operations])


def needs_of(
    plan: Plan,
    cluster: KafkaCluster,
    principal: str,
    bound: Mapping[str, Sequence[BoundTopic]] = MappingProxyType({}),
) -> Needs:
    """Return what an application needs, by its plan; raises SamzaError where its name has not the cluster's prefix.

    Streams that are `bound` need what is said there in their place.
    """
    cluster.check_app(plan.app)
    in_place = [topic for topics in bound.values() for topic in topics]
    plan = msgspec.structs.replace(plan, streams=tuple(stream for stream in plan.streams if stream.name not in bound))
    streams = [_topic_of(stream) for stream in plan.streams]
    streams += [_made(topic.name, topic.role, topic.config) for topic in in_place if topic.config is not None]
    changelog = Changelog("")
    own = [
        NeededTopic(
            changelog.topic(plan.app, store.name),
            "changelog",
            changelog.config.partitions,
            configs_of(changelog.config) | TABLE_CONFIGS | segments_of(changelog.config) | LARGE,
        )
        for store in plan.stores
        if store.kind != "memory"
    ]
    if plan.options.metrics_to is not None:
        streams.append(NeededTopic(plan.options.metrics_to, "metrics", 1, configs_of(METRICS_CONFIG)))
    own.append(
        NeededTopic(
            ledger_of(plan.app), "checkpoints", 1, configs_of(TABLE) | TABLE_CONFIGS | segments_of(TABLE) | LARGE
        )
    )
    own.append(NeededTopic(cluster.registry, "registry", 1, configs_of(TABLE) | TABLE_CONFIGS))
    return Needs(plan.app, principal, (*streams, *own), tuple(_rights(plan, cluster, in_place)))


def _topic_of(stream: StreamPlan) -> NeededTopic:
    if stream.role in ("input", "table"):
        return NeededTopic(stream.name, stream.role, stream.partitions, {})
    kept = StreamConfig(
        partitions=stream.partitions or 1,
        retention_ms=stream.retention_ms,
        retention_bytes=stream.retention_bytes,
        compression=stream.compression,
        intermediate=stream.role == "intermediate",
    )
    return _made(stream.name, stream.role, kept)


def _made(name: str, role: str, config: StreamConfig) -> NeededTopic:
    said = {"intermediate": "between stages", "dead_letter": "dead letters"}.get(role, role)
    between = BETWEEN_CONFIGS | LARGE if config.intermediate else {}
    return NeededTopic(name, said, config.partitions, configs_of(config) | between)


_WRITING = ("Write", "Read", "Describe", "DescribeConfigs")
"""What a run may do with what it writes. Read as well: it looks where its outputs end, and whether they were ended."""


def _rights(plan: Plan, cluster: KafkaCluster, in_place: Sequence[BoundTopic]) -> Iterator[NeededRight]:
    everything = ("Read", "Write", "Create", "Delete", "Describe", "DescribeConfigs")
    for topic in in_place:
        is_beginning = topic.config is None
        yield NeededRight("topic", topic.name, is_beginning, everything)
        if is_beginning:
            # Whoever takes in writes under the name of its notes.
            yield NeededRight("transactional-id", topic.name, True, ("Write", "Describe"))
    for stream in plan.streams:
        if stream.role in ("input", "table"):
            found = _PLAIN.match(stream.name)
            assert found is not None, "an empty beginning matches as well"
            yield NeededRight(
                "topic", found[0] or "*", found[0] not in ("", stream.name), ("Read", "Describe", "DescribeConfigs")
            )
        elif stream.role != "intermediate":
            yield NeededRight("topic", stream.name, False, _WRITING)
    if plan.options.metrics_to is not None:
        yield NeededRight("topic", plan.options.metrics_to, False, _WRITING)
    yield NeededRight("topic", f"{plan.app}-", True, everything)
    yield NeededRight("topic", cluster.registry, False, ("Read", "Write", "Describe", "DescribeConfigs"))
    yield NeededRight("transactional-id", plan.app, True, ("Write", "Describe"))
    for group in (plan.app, f"{plan.app}-members"):
        yield NeededRight("group", group, False, ("Read", "Describe"))


async def found_on(cluster: KafkaCluster) -> dict[str, int]:
    """Return the partitions of all topics of a cluster that this client may know of."""
    any_topic = cluster.topic(cluster.registry)
    with kafka_errors_told(any_topic, "used"):
        async with administering(any_topic) as client:
            return {name: one.partitions for name, one in (await answered(lambda: topics_of(client))).items()}


async def compared(needs: Needs, cluster: KafkaCluster) -> Needs:
    """Return the same needs, with how each topic is on a cluster."""
    any_topic = cluster.topic(cluster.registry)
    with kafka_errors_told(any_topic, "used"):
        async with administering(any_topic) as client:
            there = await answered(lambda: topics_of(client))
            names = [topic.name for topic in needs.topics if topic.name in there]
            configs = await answered(lambda: configs_in(client, names, told_alone=True)) if names else {}
    topics = (msgspec.structs.replace(one, state=_state(one, there, configs)) for one in needs.topics)
    return msgspec.structs.replace(needs, topics=tuple(topics))


def _state(topic: NeededTopic, there: Mapping[str, TopicMetadata], configs: Mapping[str, Mapping[str, str]]) -> str:
    if topic.name not in there:
        return "missing"
    found = there[topic.name].partitions
    different = [f"{name}={configs[topic.name][name]}" for name in _wrong(topic, configs.get(topic.name, {}))]
    # Outputs and what lies between stages keep the partitions that they have: only ours are made with a fixed number.
    if topic.role in OWN and topic.role not in BETWEEN and found != topic.partitions:
        different.append(f"{found} partitions")
    return f"differs: {', '.join(different)}" if different else "there"


def _wrong(topic: NeededTopic, configs: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a topic of our own that a run would have to change."""
    if topic.role not in OWN:
        return {}
    return wrong_in(configs, BETWEEN_CONFIGS if topic.role in BETWEEN else TABLE_CONFIGS)


async def applied(needs: Needs, cluster: KafkaCluster) -> list[str]:
    """Make the topics that are missing, configure our own, and allow what is needed; return what was done.

    Raises `EnvironmentFault` for what this client may not do.
    """
    done = []
    needs = await compared(needs, cluster)
    any_topic = cluster.topic(cluster.registry)
    for topic in needs.to_make:
        if topic.state == "missing":
            assert topic.partitions is not None, "what is made here has a number of partitions"
            with kafka_errors_told(cluster.topic(topic.name), "made"):
                await create_topic(cluster.topic(topic.name), topic.partitions, topic.configs)
            done.append(f"made the topic {topic.name}")
    with kafka_errors_told(any_topic, "used"):
        async with administering(any_topic) as client:
            names = [topic.name for topic in needs.topics if topic.role in OWN]
            configs = await answered(lambda: configs_in(client, names))
            for topic in needs.topics:
                if wrong := _wrong(topic, configs.get(topic.name, {})):
                    await amend(client, cluster.topic(topic.name), configs[topic.name], wrong)
                    done.append(f"changed the topic {topic.name}: {wrong}")
            return [*done, *await _allow(client, needs)]


async def _allow(client: AIOKafkaAdminClient, needs: Needs) -> Sequence[str]:
    done = []
    for right in needs.rights:
        place = _RESOURCES[right.resource], right.name, _PREFIXED if right.prefixed else _LITERAL
        for operation in right.operations:
            asked = CreateAclsRequest(*place, needs.principal, "*", _OPERATIONS[operation], _ALLOW)
            for code, said in (await answer_to(client, asked)).creation_responses:
                if code == SecurityDisabled.errno:
                    return ["no rights: these brokers let everybody do everything"]
                if code:
                    error: KafkaError = for_code(code)(said)
                    raise EnvironmentFault(
                        f"{operation} on the {right.resource} {right.name} can't be allowed: {error}"
                    )
        done.append(f"allowed {needs.principal} {', '.join(right.operations)} on the {right.resource} {right.name}")
    return done
