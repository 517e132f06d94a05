"""The Kafka group of an application's containers: its members read nothing, its leader shares the tasks out."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

from runtime.model.assignment import JobModel, Placement, Placing, placed, standbys, sticky
from runtime.model.clock import wall_clock_ms
from runtime.model.errors import SamzaError
from runtime.systems.kafka.client.clients import Consumer, begun, ended
from runtime.systems.kafka.client.topic import KafkaTopic

SESSION_MS = 6_000
"""The ms that a container may be silent until its tasks are others'; the least that brokers allow by default."""
HEARTBEAT_MS = 250
"""The ms in which a member hears that others come or go: who comes gets no task before all have heard."""
STOP_S = 5.0
logging.getLogger("aiokafka.consumer.group_coordinator").setLevel(logging.CRITICAL)  # it tells each try, and goes on
NEVER_MS = 2**31 - 1


class Standing(NamedTuple):
    """The place of a member: the name of its machine, and the address at which its state is asked for, if any."""

    host: str
    address: str = ""


class Awaited(msgspec.Struct, frozen=True, array_like=True):
    """The containers that are to come to the run behind another one: how many of each host."""

    behind: int
    hosts: Mapping[str, int]


class Joining(msgspec.Struct, frozen=True, array_like=True):
    """The word of a member on itself: the run of `tasks` tasks that it is in, and which of these it has or is taking.

    Who has an application to itself shares no tasks.

    `homes` has for each task the hosts that have its state, as they were known at an offset of the ledger. So many
    `standby` copies shall there be of each task's state, and this member has the `copies` of some. Its state is asked
    for at its `address`. Who spans two runs says which containers are `awaited` in the next one.
    """

    name: str
    run: int
    tasks: int
    model: JobModel
    held: Sequence[int] = ()
    host: str = ""
    homes: Sequence[Sequence[str]] = ()
    known: int = 0
    standby: int = 0
    copies: Sequence[int] = ()
    address: str = ""
    awaited: Awaited | None = None


class KafkaGroup:
    """One member; `model` is the newest job model that it was told.

    aiokafka calls it on Kafka's thread; another thread reads `model` and sets `held` and `copies`, each as a whole.
    """

    name = "samza-dsl"
    """The name of this way to assign in the protocol."""

    def __init__(self, app: str, topic: KafkaTopic, said: Joining, placement: Placement = sticky) -> None:
        self._group = group_of(app)
        self._topic = topic
        self._said = said
        self._placement = placement
        self.model = said.model
        self._above = 0
        self.held: frozenset[int] = frozenset()
        """The tasks that this member has, or is taking."""
        self.copies: Sequence[int] = ()
        """The tasks of others of whose state this member has a copy."""
        self.failure: SamzaError | None = None
        """The fault of the placement, where this member shares tasks out."""
        self._consumer: Consumer | None = None

    async def join(self) -> None:
        """Become a member, and wait until it is said what to run."""
        consumer = AIOKafkaConsumer(
            **self._topic.client(),
            group_id=self._group,
            enable_auto_commit=False,
            partition_assignment_strategy=[self],
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            # A member polls nothing, and would be thrown out for it.
            max_poll_interval_ms=NEVER_MS,
            auto_offset_reset="none",
        )
        consumer.subscribe([self._topic.name])
        self._consumer = await begun(consumer)

    def know(self, homes: Sequence[Sequence[str]], known: int) -> None:
        """Know from now on which hosts have the state of each task."""
        self._said = msgspec.structs.replace(self._said, homes=homes, known=known)

    async def surpass(self, generation: int) -> None:
        """Ask for tasks to be shared out anew, by a model that is newer than one that is known from elsewhere."""
        assert self._consumer is not None
        self._above = generation
        self._consumer.subscribe([self._topic.name])

    async def leave(self) -> None:
        """Be a member no more."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await ended(consumer)

    def metadata(self, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
        """Return what is said when joining."""
        model = msgspec.structs.replace(self.model, generation=max(self.model.generation, self._above))
        said = msgspec.structs.replace(self._said, model=model, held=sorted(self.held), copies=self.copies)
        return ConsumerProtocolMemberMetadata(0, [*topics], msgspec.msgpack.encode(said))

    def assign(
        self, cluster: object, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        """Share the tasks of the newest run out among its containers; this is the leader's work."""
        said = [msgspec.msgpack.decode(one.user_data, type=Joining) for one in members.values()]
        try:
            shared = shared_out(said, wall_clock_ms(), self._placement)
        except SamzaError as error:
            self.failure = error
            # The error must not be lost within aiokafka: it is kept, and raised where the container asks for its tasks.
            # Until then tasks are shared out by the default placement.
            shared = shared_out(said, wall_clock_ms())
        model = msgspec.msgpack.encode(shared)
        return {member: ConsumerProtocolMemberAssignment(0, [], model) for member in members}

    def on_assignment(self, assignment: ConsumerProtocolMemberAssignment) -> None:
        """Hear what the leader has said."""
        self.model = msgspec.msgpack.decode(assignment.user_data, type=JobModel)


def group_of(app: str) -> str:
    """Return the group of an application's containers."""
    return f"{app}-members"


def shared_out(members: Iterable[Joining], now_ms: int, placement: Placement = sticky) -> JobModel:
    """Return who runs what from now on, as a placement says; raises SamzaError where that says what can't be.

    Its generation is above all that any of them knows, and, by the clock, above what was known before all of them.

    >>> had = JobModel(1, 5, ("a",), ("a", "a"))
    >>> shared_out([Joining("a", 1, 2, had, held=[0, 1]), Joining("b", 1, 2, JobModel())], now_ms=0)
    JobModel(run=1, generation=6, containers=('a', 'b'), tasks=('a', 'b'), ..., addresses=('', ''))
    """
    known = [*members]
    run = max(member.run for member in known)
    those = [member for member in known if member.run == run]
    tasks, generation = those[0].tasks, max(member.model.generation for member in known)
    before = [""] * tasks
    # Where two say that they have a task, the one who knows the newer model is right.
    for member in sorted(those, key=lambda member: member.model.generation):
        for task in member.held:
            before[task] = member.name
    hosts = {member.name: member.host for member in sorted(those, key=lambda member: member.name)}
    # Tasks of those who are to come at once are left for them: who took them would have to give them up again.
    coming = _coming(hosts.values(), [one.awaited for one in known if one.awaited and one.awaited.behind < run])
    homes = max(those, key=lambda member: member.known).homes
    copies = [[member.name for member in those if task in member.copies] for task in range(tasks)]
    placing = Placing(tasks, {**hosts, **coming}, before, homes, copies)
    found = placed(placing, placement)
    kept = standbys(placing, found, those[0].standby)
    kept = tuple(tuple(name for name in names if name in hosts) for names in kept)
    found = tuple(name if name in hosts else "" for name in found)
    addresses = {member.name: member.address for member in those}
    told = tuple(addresses[name] for name in hosts)
    return JobModel(run, max(generation + 1, now_ms), tuple(hosts), found, tuple(hosts.values()), kept, told)


def as_before(model: JobModel, host: str, more: int) -> Awaited:
    """Return what is awaited behind a run of which the containers come again, and so many `more` on a host.

    >>> as_before(JobModel(3, 7, ("a", "b"), hosts=("north", "south")), "north", 1)
    Awaited(behind=3, hosts={'north': 2, 'south': 1})
    """
    hosts = Counter(model.hosts)
    hosts[host] += more
    return Awaited(model.run, {name: number for name, number in hosts.items() if number > 0})


def _coming(here: Iterable[str], awaited: Iterable[Awaited]) -> dict[str, str]:
    """Return names for the containers that are awaited and not here yet, with the host of each."""
    wanted = Counter({host: number for one in awaited for host, number in one.hosts.items()})
    missing = wanted - Counter(here)
    return {f"{host} {number}": host for host, count in sorted(missing.items()) for number in range(count)}
