"""A group of Kafka's own protocol whose members read nothing: its leader says which container runs which task."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import msgspec
from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

from runtime.assignment import JobModel, assign
from runtime.clock import wall_clock_ms
from runtime.systems.kafka_topic import KafkaTopic

SESSION_MS = 6_000
"""How long a container may be silent until its tasks are others'; what Kafka's brokers allow at least by default."""
HEARTBEAT_MS = 1_000
STOP_S = 5.0
logging.getLogger("aiokafka.consumer.group_coordinator").setLevel(logging.CRITICAL)  # it tells each try, and goes on
NEVER_MS = 2**31 - 1


class Joining(msgspec.Struct, frozen=True, array_like=True):
    """What a member says of itself: the run of `tasks` tasks that it is in, and what it knows of who runs what."""

    name: str
    run: int
    tasks: int
    model: JobModel


class KafkaGroup:
    """One member; `model` is the newest job model that it was told."""

    name = "samza-dsl"
    """How the protocol calls this way to assign."""

    def __init__(self, app: str, topic: KafkaTopic, run: int, container: str, tasks: int) -> None:
        self._group = group_of(app)
        self._topic = topic
        self._said = container, run, tasks
        self.model = JobModel()
        self._consumer: Any = None

    async def join(self) -> None:
        """Become a member, and wait until it is said what to run."""
        self._consumer = AIOKafkaConsumer(
            **self._topic.client(),
            group_id=self._group,
            enable_auto_commit=False,
            partition_assignment_strategy=[self],
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            max_poll_interval_ms=NEVER_MS,
            auto_offset_reset="none",
        )
        self._consumer.subscribe([self._topic.name])
        await self._consumer.start()

    async def leave(self) -> None:
        """Be a member no more."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._consumer.stop(), STOP_S)

    def metadata(self, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
        """Return what is said when joining."""
        return ConsumerProtocolMemberMetadata(0, [*topics], msgspec.msgpack.encode(Joining(*self._said, self.model)))

    def assign(
        self, cluster: Any, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        """Share the tasks of the newest run out among its containers; this is the leader's work."""
        said = [msgspec.msgpack.decode(one.user_data, type=Joining) for one in members.values()]
        model = msgspec.msgpack.encode(shared_out(said, wall_clock_ms()))
        return {member: ConsumerProtocolMemberAssignment(0, [], model) for member in members}

    def on_assignment(self, assignment: ConsumerProtocolMemberAssignment) -> None:
        """Hear what the leader has said."""
        self.model = msgspec.msgpack.decode(assignment.user_data, type=JobModel)


def group_of(app: str) -> str:
    """Return the group of an application's containers."""
    return f"{app}-members"


def shared_out(members: Iterable[Joining], now_ms: int) -> JobModel:
    """Return who runs what from now on, so that as few tasks move as can be.

    Its generation is above all that any of them knows, and, by the clock, above what was known before all of them.

    >>> had = JobModel(1, 5, ("a",), ("a", "a"))
    >>> shared_out([Joining("a", 1, 2, had), Joining("b", 1, 2, JobModel())], now_ms=0)
    JobModel(run=1, generation=6, containers=('a', 'b'), tasks=('a', 'b'))
    """
    known = [*members]
    run = max(member.run for member in known)
    those = [member for member in known if member.run == run]
    tasks, generation = those[0].tasks, max(member.model.generation for member in known)
    before = [""] * tasks
    for member in sorted(those, key=lambda member: member.model.generation):
        for task in member.model.of(member.name) if member.model.run == run else ():
            before[task] = member.name
    names = sorted(member.name for member in those)
    return JobModel(run, max(generation + 1, now_ms), tuple(names), assign(tasks, names, before))
