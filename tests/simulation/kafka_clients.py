"""What clients of a simulated Kafka cluster do, as far as aiokafka's are asked for it here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaTimeoutError,
    OffsetOutOfRangeError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)

from runtime.systems.kafka.client.metadata import DescribeTopics
from runtime.systems.kafka.client.topic_configs import ChangeConfigs
from tests.simulation.kafka_brokers import (
    BATCH_BYTES,
    EARLIEST,
    PROCESS,
    Cluster,
    Died,
    Partition,
    Record,
    Topic,
    rebalance,
)

HANGS, CANCELS = 0.02, 0.02
"""How often a client does not stop, and how often it fails to."""
REQUEST_S = 40.0
"""For how long a client asks for what is not there."""


class Connection:
    """What a client has of the brokers, from when it starts until it is closed."""

    hosts = (("broker", 9092, 0),)

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._told: list[Callable[[object], None]] = []
        self.cluster = SimpleNamespace(
            add_listener=self._told.append, remove_listener=self._told.remove, brokers=lambda: [0]
        )

    async def bootstrap(self) -> None:
        """Begin as aiokafka's clients do: whoever is cancelled before it has heard leaves its first one behind."""
        first = object()
        self._cluster.connections[self] = self._cluster.connections[first] = PROCESS.get()
        await self._cluster.heard()
        del self._cluster.connections[first]
        for tell in self._told:
            tell(self.cluster)
        if self._cluster.ends.random() < self._cluster.refuses:
            raise KafkaConnectionError("refused")

    async def stop(self) -> None:
        """Stop as aiokafka's clients do: where what they wait for never comes, or is cancelled, nothing closes."""
        ends = self._cluster.ends.random()
        if ends < HANGS:
            await asyncio.Event().wait()
        if ends < HANGS + CANCELS:
            raise asyncio.CancelledError
        await self.close()

    async def close(self) -> None:
        self._cluster.connections.pop(self, None)

    async def set_topics(self, topics: Iterable[str]) -> None:
        """Know topics, which takes a request."""
        await self._cluster.heard()


class Batch:
    """Rows that are sent together."""

    def __init__(self, most_bytes: int) -> None:
        self.rows: list[Any] = []
        self._room = most_bytes

    def append(self, *, key: bytes | None, value: bytes | None, timestamp: int | None, headers: Any) -> object | None:
        size = len(key or b"") + len(value or b"")
        if self.rows and size > self._room:
            return None
        self._room -= size
        self.rows.append((key, value, timestamp, headers))
        return self

    def record_count(self) -> int:
        return len(self.rows)


class Producer:
    """What aiokafka's producer does, as far as it is asked here."""

    def __init__(
        self, cluster: Cluster, *, transactional_id: str | None = None, max_batch_size: int = BATCH_BYTES, **how: Any
    ) -> None:
        self._cluster, self._id, self._most_bytes = cluster, transactional_id, max_batch_size
        self._writer = 0
        self._connection = Connection(cluster)
        self.client = SimpleNamespace(
            add_topic=self._add_topic,
            bootstrap=self._connection.bootstrap,
            close=self._connection.close,
            cluster=self._connection.cluster,
            hosts=self._connection.hosts,
        )

    async def start(self) -> None:
        await self.client.bootstrap()
        self._writer = await self._cluster.heard(lambda: self._cluster.begin(self._id), changes=True)

    async def stop(self) -> None:
        """Send nothing more; a transaction that is open stays so."""
        await self._connection.stop()

    def create_batch(self) -> Batch:
        return Batch(self._most_bytes)

    async def send_batch(self, batch: Batch, topic: str, *, partition: int) -> asyncio.Future[Any]:
        async def send() -> Any:
            where = self._id, self._writer, (topic, partition), batch.rows
            offset = await self._cluster.heard(lambda: self._cluster.write(*where), changes=True)
            return SimpleNamespace(offset=offset)

        return await self._in_order((topic, partition), send)

    async def begin_transaction(self) -> None:
        """Begin one behind the other, as aiokafka's does; brokers hear of it by what is written in it."""
        if PROCESS.get() in self._cluster.dead:
            raise Died
        assert not self._is_in_one, "Invalid state transition IN_TRANSACTION -> IN_TRANSACTION"
        self._is_in_one = True

    async def commit_transaction(self) -> None:
        await self._end(committed=True)
        self._is_in_one = False

    async def abort_transaction(self) -> None:
        await self._end(committed=False)
        self._is_in_one = False

    _is_in_one = False

    @asynccontextmanager
    async def transaction(self) -> Any:
        await self.begin_transaction()
        try:
            yield
        except Exception:
            await self.abort_transaction()
            raise
        await self.commit_transaction()

    async def send_offsets_to_transaction(self, offsets: dict[TopicPartition, Any], group: str) -> None:
        def write() -> None:
            self._cluster.check(self._id, self._writer)
            self._cluster.sent.setdefault(self._writer, {}).setdefault(group, {}).update(offsets)

        await self._cluster.heard(write, changes=True)

    async def _add_topic(self, topic: str) -> None:
        """Know a topic."""

    async def _end(self, committed: bool) -> None:
        def end() -> None:
            self._cluster.check(self._id, self._writer)
            self._cluster.end(self._writer, committed)

        await self._cluster.heard(end, changes=True)

    async def _in_order(self, place: tuple[str, int], send: Callable[[], Awaitable[Any]]) -> asyncio.Future[Any]:
        """Send what is for a partition behind what was sent to it before."""
        before: dict[tuple[str, int], asyncio.Future[Any]] = self.__dict__.setdefault("_sending", {})
        former = before.get(place)

        async def after() -> Any:
            if former is not None:
                await asyncio.wait([former])
            return await send()

        before[place] = found = asyncio.ensure_future(after())
        return found


class Consumer:
    """What aiokafka's consumer does, as far as it is asked here."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        isolation_level: str = "read_uncommitted",
        auto_offset_reset: str = "latest",
        group_id: str | None = None,
        partition_assignment_strategy: Sequence[Any] = (),
        **how: Any,
    ) -> None:
        self._cluster, self._reset, self._group = cluster, auto_offset_reset, group_id
        self._committed = isolation_level == "read_committed"
        self.assignor = next(iter(partition_assignment_strategy), None)
        self.topics: Sequence[str] = ()
        self._has_left = False
        self._client = Connection(cluster)
        self._positions: dict[TopicPartition, int | None] = {}
        self._paused: set[TopicPartition] = set()
        self._polled: dict[TopicPartition, tuple[int, int, int]] = {}

    async def start(self) -> None:
        await self._client.bootstrap()
        if self._group is not None:
            self.join(PROCESS.get())

    def join(self, process: str) -> None:
        """Be in the group, unless it was left."""
        if not self._has_left and process not in self._cluster.dead:
            members = self._cluster.groups[self._group or ""]
            members[process] = self
            rebalance(members)

    async def stop(self) -> None:
        self._has_left = True
        members = self._cluster.groups.get(self._group or "", {})
        for name in [name for name, member in members.items() if member is self]:
            del members[name]
            rebalance(members)
        await self._client.stop()

    def subscribe(self, topics: Sequence[str]) -> None:
        self.topics = topics
        members = self._cluster.groups.get(self._group or "", {})
        if self in members.values():  # who subscribes anew joins anew
            rebalance(members)

    def assign(self, places: Sequence[TopicPartition]) -> None:
        self._positions = dict.fromkeys(places)
        self._paused.clear()
        self._polled.clear()

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self._positions)

    def unsubscribe(self) -> None:
        self._positions.clear()

    def seek(self, place: TopicPartition, offset: int) -> None:
        self._positions[place] = offset

    async def seek_to_beginning(self, *places: TopicPartition) -> None:
        for place, start in (await self.beginning_offsets(places)).items():
            self.seek(place, start)

    def pause(self, *places: TopicPartition) -> None:
        self._paused |= {*places}

    def resume(self, *places: TopicPartition) -> None:
        self._paused -= {*places}

    async def position(self, place: TopicPartition) -> int:
        found = self._positions[place]
        if found is None:
            assert self._reset == EARLIEST, "there is no position"
            self._positions[place] = found = self._partition(place).start
        return found

    def highwater(self, place: TopicPartition) -> int | None:
        return self._polled.get(place, (None,))[0]

    def last_stable_offset(self, place: TopicPartition) -> int | None:
        return self._polled[place][1] if place in self._polled else None

    def last_poll_timestamp(self, place: TopicPartition) -> int | None:
        return self._polled[place][2] if place in self._polled else None

    async def beginning_offsets(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        await self._until_there(places)
        return await self._cluster.heard(lambda: {place: self._partition(place).start for place in places})

    async def end_offsets(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        await self._until_there(places)
        return await self._cluster.heard(lambda: {place: self._end(place) for place in places})

    async def _until_there(self, places: Sequence[TopicPartition]) -> None:
        """Ask for topics that are not there, or no longer, on and on, as aiokafka does."""
        until_s = self._cluster.loop.time() + REQUEST_S
        while any(place.topic not in self._cluster.topics for place in places):
            if self._cluster.loop.time() > until_s:
                raise KafkaTimeoutError("there is no such topic")
            await self._cluster.heard()

    async def getmany(self, *places: TopicPartition, timeout_ms: int = 0) -> dict[TopicPartition, list[Record]]:
        until_s = self._cluster.loop.time() + timeout_ms / 1_000
        while True:
            await self._cluster.heard()
            asked = [place for place in places or self._positions if place not in self._paused]
            before = [self._positions[place] for place in asked]
            found = {place: rows for place in asked if (rows := await self._fetch(place))}
            moved = before != [self._positions[place] for place in asked]
            if found or moved or (left_s := until_s - self._cluster.loop.time()) <= 0:
                return found
            await self._cluster.news(left_s)

    async def _fetch(self, place: TopicPartition) -> list[Record]:
        partition, at = self._partition(place), await self.position(place)
        if not partition.start <= at <= partition.end:
            if self._reset != EARLIEST:
                raise OffsetOutOfRangeError({place: at})
            at = partition.start
        end = min(self._end(place), at + self._cluster.chance.randint(1, 50))
        stored = partition.log[at - partition.start : end - partition.start]
        rolled_back = partition.aborted if self._committed else set()
        self._positions[place] = max(at, end)
        self._polled[place] = partition.end, partition.stable, self._cluster.clock_ms()
        records = (one.record for one in stored)
        return [record for record in records if record is not None and record.offset not in rolled_back]

    def _partition(self, place: TopicPartition) -> Partition:
        return self._cluster.partition(place.topic, place.partition)

    def _end(self, place: TopicPartition) -> int:
        partition = self._partition(place)
        return partition.stable if self._committed else partition.end


class Admin:
    """What aiokafka's client for administration does, as far as it is asked here."""

    def __init__(self, cluster: Cluster, **how: Any) -> None:
        self._cluster = cluster
        self._client = Connection(cluster)

    async def start(self) -> None:
        await self._client.bootstrap()

    async def close(self) -> None:
        """Ask nothing more."""
        await self._client.close()

    async def list_topics(self) -> list[str]:
        return await self._cluster.heard(lambda: [*self._cluster.topics])

    async def describe_cluster(self) -> dict[str, Any]:
        return await self._cluster.heard(lambda: {"brokers": [{"node_id": 1}]})

    async def _send_request(self, asked: DescribeTopics | ChangeConfigs) -> Any:
        if isinstance(asked, ChangeConfigs):
            return await self._change(asked)

        def describe(name: str) -> dict[str, Any]:
            topic = self._cluster.topics.get(name)
            if topic is None and name in self._cluster.gone:
                topic, until_s = self._cluster.gone[name]
                topic = topic if self._cluster.loop.time() < until_s else None
            if topic is None:
                return {"topic": name, "error_code": UnknownTopicOrPartitionError.errno, "partitions": []}
            partitions = [{"error_code": 0, "leader": 1, "replicas": [1]} for _ in topic.partitions]
            told = {"id": topic.id, "is_internal": False, "partitions": partitions}
            return {"topic": name, "error_code": 0, **told}

        def work() -> list[dict[str, Any]]:
            return [describe(name) for name in (self._cluster.topics if asked.names is None else asked.names)]

        topics = await self._cluster.heard(work)
        return SimpleNamespace(to_object=lambda: {"topics": topics})

    async def _change(self, asked: ChangeConfigs) -> Any:
        def change(name: str, configs: dict[str, str]) -> tuple[int, str, int, str]:
            refused = name in self._cluster.fixed
            if not refused:
                self._cluster.topics[name].configs.update(configs)
            return TopicAuthorizationFailedError.errno if refused else 0, "", 2, name

        def work() -> Any:
            return SimpleNamespace(resources=[change(name, dict(configs)) for name, configs in asked.changes.items()])

        return await self._cluster.heard(work, changes=True)

    async def describe_configs(self, resources: Sequence[Any]) -> list[Any]:
        def describe(name: str) -> tuple[Any, ...]:
            if name not in self._cluster.topics:
                return UnknownTopicOrPartitionError.errno, None, 2, name, []
            return 0, None, 2, name, [[*one, False] for one in self._cluster.configs(name).items()]

        return await self._cluster.heard(lambda: [SimpleNamespace(resources=[describe(one.name) for one in resources])])

    async def list_consumer_group_offsets(self, group: str) -> dict[TopicPartition, Any]:
        return await self._cluster.heard(lambda: dict(self._cluster.offsets[group]))

    async def create_topics(self, topics: Sequence[Any]) -> Any:
        def create(topic: Any) -> tuple[str, int, None]:
            if topic.name in self._cluster.topics:
                return topic.name, TopicAlreadyExistsError.errno, None
            made = [Partition() for _ in range(topic.num_partitions)]
            self._cluster.topics[topic.name] = Topic(made, topic.topic_configs, self._cluster.topic_id())
            return topic.name, 0, None

        def work() -> Any:
            return SimpleNamespace(topic_errors=[create(topic) for topic in topics])

        return await self._cluster.heard(work, changes=True)

    async def delete_topics(self, names: Sequence[str]) -> None:
        await self._cluster.heard(lambda: [self._cluster.delete(name) for name in names], changes=True)

    async def delete_records(self, records: dict[TopicPartition, Any]) -> None:
        def work() -> None:
            for place, told in records.items():
                self._cluster.purge(place.topic, place.partition, told.before_offset)

        await self._cluster.heard(work, changes=True)

    async def describe_consumer_groups(self, names: Sequence[str]) -> list[Any]:
        def group(name: str) -> Any:
            members = self._cluster.groups[name].items()
            told = [(member, "", "", b"", one.told.encode()) for member, one in members if hasattr(one, "told")]
            return 0, name, "Stable", "consumer", "samza-dsl", told

        return await self._cluster.heard(lambda: [SimpleNamespace(groups=[group(name) for name in names])])
