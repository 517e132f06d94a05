"""A Kafka cluster in this process, on virtual time: what clients ask of it may get lost, and who asks may die of it."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

from aiokafka import TopicPartition
from aiokafka.errors import (
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    OffsetOutOfRangeError,
    ProducerFenced,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)

from runtime.systems import kafka, kafka_admin, kafka_fetcher, kafka_group, kafka_runs, kafka_sink, kafka_streams
from runtime.systems import kafka_table as kafka_tables
from runtime.systems.kafka import KafkaEnvironment
from runtime.systems.kafka_topic import KafkaCluster
from samza_dsl.testing.virtual_loop import FilelessLoop

BATCH_BYTES, RECORD_BYTES = 1 << 16, 1_048_588
"""How large a batch and a record may be, where nothing else is said."""
LONGEST_MS = 5
"""How long a request takes at most."""
STEP_S, SESSION_S, TRANSACTION_S = 0.001, 6.0, 60.0
EARLIEST = "earliest"
PROCESS = ContextVar("PROCESS", default="")
"""Which process asks."""


class Record(NamedTuple):
    """A record as a consumer is given it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Sequence[tuple[str, bytes]]


@dataclass
class Stored:
    """What takes an offset: a record, or the marker at the end of a transaction; `writer` is who began that."""

    record: Record | None
    writer: int | None = None


@dataclass
class Partition:
    """The log of one partition; it begins at `start`."""

    start: int = 0
    log: list[Stored] = field(default_factory=list)
    open: dict[int, int] = field(default_factory=dict)
    """By writer, where what it has not ended begins."""
    aborted: set[int] = field(default_factory=set)
    """Offsets that were rolled back."""

    @property
    def end(self) -> int:
        return self.start + len(self.log)

    @property
    def stable(self) -> int:
        """The offset up to which every transaction has ended."""
        return min(self.open.values(), default=self.end)

    def append(self, stored: Stored) -> int:
        if stored.writer is not None and stored.record is not None:
            self.open.setdefault(stored.writer, self.end)
        self.log.append(stored)
        return self.end - 1

    def finish(self, writer: int, committed: bool) -> None:
        """End a transaction with its marker."""
        begun = self.open.pop(writer)
        if not committed:
            places = range(begun, self.end)
            self.aborted |= {at for at in places if self.log[at - self.start].writer == writer}
        self.append(Stored(None, writer))

    def purge(self, before: int) -> None:
        del self.log[: max(before - self.start, 0)]
        self.start = max(self.start, before)


@dataclass
class Topic:
    partitions: list[Partition]
    configs: dict[str, str]


class Trouble(NamedTuple):
    """What happens at the nth request that changes something: it, or its answer, is lost; or who asks dies by then."""

    at: int
    what: str


DYING, LOST, UNHEARD, DEAD = "dies before", "is lost", "is not heard of", "dies after"
TROUBLES = (DYING, LOST, UNHEARD, DEAD)


class Died(BaseException):
    """The process is gone."""


class Cluster:
    """The brokers: topics, transactions, groups, and what shall go wrong."""

    def __init__(self, seed: int = 0) -> None:
        self.chance = random.Random(seed)
        self.topics: dict[str, Topic] = {}
        self.writers: dict[str, int] = {}
        """By transactional id, the one writer that may still write."""
        self.begun: defaultdict[int, set[tuple[str, int]]] = defaultdict(set)
        self.offsets: defaultdict[str, dict[TopicPartition, Any]] = defaultdict(dict)
        self.groups: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        self.troubles: list[Trouble] = []
        self.changes = 0
        self.numbers = count(1)
        self.loop = Loop()
        self.dead: set[str] = set()
        self._news: set[asyncio.Future[None]] = set()

    async def heard(self, work: Callable[[], Any] = lambda: None, changes: bool = False) -> Any:
        """Do what a request asks for, and answer, after a while; unless something goes wrong."""
        if PROCESS.get() in self.dead:
            raise Died
        await asyncio.sleep(self.chance.uniform(0, LONGEST_MS / 1_000))
        self.changes += changes
        struck = next((one for one in self.troubles if changes and one.at == self.changes), None)
        if struck is not None:
            self.troubles.remove(struck)
            if struck.what == LOST:
                raise KafkaTimeoutError("the request was lost")
            if struck.what == DYING:
                raise self.dying()
        found = work()
        if changes:
            self.tell()
        await asyncio.sleep(self.chance.uniform(0, LONGEST_MS / 1_000))
        if struck is not None and struck.what == DEAD:
            raise self.dying()
        if struck is not None and struck.what == UNHEARD:
            raise KafkaTimeoutError("the answer was lost")
        return found

    def dying(self) -> Died:
        """Have the process be dead that asks; others hear of it when its session is over."""
        process = PROCESS.get()
        self.dead.add(process)
        self.loop.call_later(SESSION_S, self.expire, process)
        return Died()

    async def news(self, within_s: float) -> None:
        """Wait for a change, or for so long."""
        change = self.loop.create_future()
        self._news.add(change)
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await change

    def tell(self) -> None:
        """Have those go on who wait for a change."""
        for waiting in self._news:
            if not waiting.done():
                waiting.set_result(None)
        self._news.clear()

    def expire(self, member: str) -> None:
        """Take a process for dead that was in a group: it is not told."""
        for members in self.groups.values():
            if members.pop(member, None) is not None:
                rebalance(members)

    def partition(self, topic: str, number: int) -> Partition:
        if topic not in self.topics:
            raise UnknownTopicOrPartitionError(topic)
        return self.topics[topic].partitions[number]

    def begin(self, transactional_id: str | None) -> int:
        """Return a new writer; the one before it, of the same id, is fenced, and what it has begun rolled back."""
        writer = next(self.numbers)
        if transactional_id is not None:
            former = self.writers.get(transactional_id)
            if former is not None:
                self.end(former, committed=False)
            self.writers[transactional_id] = writer
        return writer

    def end(self, writer: int, committed: bool) -> None:
        for place in sorted(self.begun.pop(writer, ())):
            self.partition(*place).finish(writer, committed)

    def _time_out(self, transactional_id: str, writer: int, begun: set[tuple[str, int]]) -> None:
        """Roll back what has been open for too long; who has begun it is fenced."""
        if self.begun.get(writer) is begun:
            self.begin(transactional_id)

    def write(self, transactional_id: str | None, writer: int, place: tuple[str, int], rows: Sequence[Any]) -> int:
        """Append rows, and return the offset of the first."""
        self.check(transactional_id, writer)
        partition, configs = self.partition(*place), self.topics[place[0]].configs
        most = int(configs.get("max.message.bytes", RECORD_BYTES))
        if any(len(key or b"") + len(value or b"") > most for key, value, *_ in rows):
            raise MessageSizeTooLargeError
        if transactional_id is not None:
            if writer not in self.begun:
                self.loop.call_later(TRANSACTION_S, self._time_out, transactional_id, writer, self.begun[writer])
            self.begun[writer].add(place)
        first = partition.end
        for key, value, timestamp, headers in rows:
            at = int(self.loop.time() * 1_000) if timestamp is None else timestamp
            record = Record(*place, partition.end, key, value, at, tuple(headers))
            partition.append(Stored(record, writer if transactional_id is not None else None))
        return first

    def check(self, transactional_id: str | None, writer: int) -> None:
        if transactional_id is not None and self.writers[transactional_id] != writer:
            raise ProducerFenced

    def delete(self, name: str) -> None:
        if self.topics.pop(name, None) is None:
            raise UnknownTopicOrPartitionError(name)
        for places in self.begun.values():
            places -= {place for place in places if place[0] == name}


class Loop(FilelessLoop):
    """The event loop of Kafka's threads, whose time passes while somebody waits for what is done there."""

    def _wait(self, seconds: float | None) -> None:
        assert seconds is not None, "everything waits, and nothing is scheduled"
        self._now_s += max(seconds, 0)


class Thread:
    """Stands in for the thread: what is asked of it is done at once, with whatever else is due meanwhile."""

    def __init__(self, cluster: Cluster) -> None:
        self.loop = cluster.loop

    def acquire(self) -> Thread:
        return self

    def release(self) -> None:
        """Go on: it is everybody's."""

    def call(self, work: Any) -> Any:
        running = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        try:
            return self.loop.run_until_complete(work)
        finally:
            asyncio._set_running_loop(running)

    def condition(self) -> Condition:
        return Condition(self)


class Condition:
    """Stands in for a lock that is waited at: meanwhile the thread goes on."""

    def __init__(self, thread: Thread) -> None:
        self._thread = thread
        self._told = 0

    def __enter__(self) -> Condition:
        return self

    def __exit__(self, *raised: object) -> None:
        """Let go of nothing: there is one thread."""

    def notify_all(self) -> None:
        self._told += 1

    def wait(self, timeout_s: float) -> bool:
        told, until_s = self._told, self._thread.loop.time() + timeout_s
        while self._told == told and self._thread.loop.time() < until_s:
            self._thread.call(asyncio.sleep(STEP_S))
        return self._told > told


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
        self.client = SimpleNamespace(add_topic=self._add_topic)

    async def start(self) -> None:
        self._writer = await self._cluster.heard(lambda: self._cluster.begin(self._id), changes=True)

    async def stop(self) -> None:
        """Send nothing more; a transaction that is open stays so."""

    def create_batch(self) -> Batch:
        return Batch(self._most_bytes)

    async def send_batch(self, batch: Batch, topic: str, *, partition: int) -> asyncio.Future[Any]:
        async def send() -> Any:
            where = self._id, self._writer, (topic, partition), batch.rows
            offset = await self._cluster.heard(lambda: self._cluster.write(*where), changes=True)
            return SimpleNamespace(offset=offset)

        return await self._in_order((topic, partition), send)

    async def begin_transaction(self) -> None:
        """Do nothing: it begins with what is written in it."""

    async def commit_transaction(self) -> None:
        await self._end(committed=True)

    async def abort_transaction(self) -> None:
        await self._end(committed=False)

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
            self._cluster.offsets[group].update(offsets)

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
        self._positions: dict[TopicPartition, int | None] = {}
        self._paused: set[TopicPartition] = set()
        self._stable: dict[TopicPartition, int] = {}

    async def start(self) -> None:
        await self._cluster.heard()
        if self._group is not None:
            members = self._cluster.groups[self._group]
            members[PROCESS.get()] = self
            rebalance(members)

    async def stop(self) -> None:
        members = self._cluster.groups.get(self._group or "", {})
        for name in [name for name, member in members.items() if member is self]:
            del members[name]
            rebalance(members)

    def subscribe(self, topics: Sequence[str]) -> None:
        self.topics = topics

    def assign(self, places: Sequence[TopicPartition]) -> None:
        self._positions = dict.fromkeys(places)

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

    def last_stable_offset(self, place: TopicPartition) -> int | None:
        return self._stable.get(place)

    async def beginning_offsets(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return await self._cluster.heard(lambda: {place: self._partition(place).start for place in places})

    async def end_offsets(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return await self._cluster.heard(lambda: {place: self._end(place) for place in places})

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
        self._stable[place] = partition.stable
        records = (one.record for one in stored)
        return [record for record in records if record is not None and record.offset not in rolled_back]

    def _partition(self, place: TopicPartition) -> Partition:
        return self._cluster.partition(place.topic, place.partition)

    def _end(self, place: TopicPartition) -> int:
        partition = self._partition(place)
        return partition.stable if self._committed else partition.end


def rebalance(members: dict[str, Any]) -> None:
    """Have the first of a group's members say who runs what, and all of them hear it."""
    if members:
        said = {name: member.assignor.metadata(member.topics) for name, member in members.items()}
        for name, told in next(iter(members.values())).assignor.assign(None, said).items():
            members[name].told = told
            members[name].assignor.on_assignment(told)


class Admin:
    """What aiokafka's client for administration does, as far as it is asked here."""

    def __init__(self, cluster: Cluster, **how: Any) -> None:
        self._cluster = cluster

    async def start(self) -> None:
        await self._cluster.heard()

    async def close(self) -> None:
        """Ask nothing more."""

    async def list_topics(self) -> list[str]:
        return await self._cluster.heard(lambda: [*self._cluster.topics])

    async def describe_topics(self, names: Sequence[str] | None = None) -> list[dict[str, Any]]:
        def describe(name: str) -> dict[str, Any]:
            topic = self._cluster.topics.get(name)
            code = UnknownTopicOrPartitionError.errno if topic is None else 0
            partitions = [{"error_code": 0, "leader": 1} for _ in topic.partitions] if topic is not None else []
            return {"topic": name, "error_code": code, "partitions": partitions, "is_internal": False}

        return await self._cluster.heard(
            lambda: [describe(name) for name in (self._cluster.topics if names is None else names)]
        )

    async def create_topics(self, topics: Sequence[Any]) -> Any:
        def create(topic: Any) -> tuple[str, int, None]:
            if topic.name in self._cluster.topics:
                return topic.name, TopicAlreadyExistsError.errno, None
            made = [Partition() for _ in range(topic.num_partitions)]
            self._cluster.topics[topic.name] = Topic(made, topic.topic_configs)
            return topic.name, 0, None

        def work() -> Any:
            return SimpleNamespace(topic_errors=[create(topic) for topic in topics])

        return await self._cluster.heard(work, changes=True)

    async def delete_topics(self, names: Sequence[str]) -> None:
        await self._cluster.heard(lambda: [self._cluster.delete(name) for name in names], changes=True)

    async def delete_records(self, records: dict[TopicPartition, Any]) -> None:
        def work() -> None:
            for place, told in records.items():
                self._cluster.partition(place.topic, place.partition).purge(told.before_offset)

        await self._cluster.heard(work, changes=True)

    async def describe_consumer_groups(self, names: Sequence[str]) -> list[Any]:
        def group(name: str) -> Any:
            members = self._cluster.groups[name].items()
            told = [(member, "", "", b"", one.told.encode()) for member, one in members if hasattr(one, "told")]
            return 0, name, "Stable", "consumer", "samza-dsl", told

        return await self._cluster.heard(lambda: [SimpleNamespace(groups=[group(name) for name in names])])


@contextmanager
def simulated(cluster: Cluster) -> Iterator[Thread]:
    """Have all that is done with Kafka during a block be done with a simulated cluster."""
    thread = Thread(cluster)
    replaced = {
        "AIOKafkaConsumer": lambda **how: Consumer(cluster, **how),
        "AIOKafkaProducer": lambda **how: Producer(cluster, **how),
        "AIOKafkaAdminClient": lambda **how: Admin(cluster, **how),
        "KafkaThread": thread,
        "monotonic_ms": lambda: cluster.loop.time() * 1_000,
        "threading": SimpleNamespace(Condition=thread.condition),
    }
    modules = kafka_fetcher, kafka_tables, kafka_streams, kafka_sink, kafka_admin, kafka_runs, kafka_group
    with ExitStack() as stack:
        stack.enter_context(patch.object(kafka, "KafkaThread", thread))
        for module in modules:
            for name, instead in replaced.items():
                if hasattr(module, name):
                    stack.enter_context(patch.object(module, name, instead))
        stack.callback(cluster.loop.close)
        yield thread


def opened(directory: Path) -> KafkaEnvironment:
    """Return the environment of a process, whose state is in a directory."""
    return KafkaEnvironment(KafkaCluster("kafka://simulated:9092"), directory)


def die(cluster: Cluster, environment: KafkaEnvironment) -> None:
    """Have a process be gone that has an environment: what it has begun on the brokers stays as it is."""
    for fetcher in environment._streams._fetchers.values():
        if fetcher._pumping is not None:
            fetcher._pumping.cancel()
            fetcher._thread = None
    environment._streams._fetchers.clear()
    environment._owners.clear()
    environment._streams._thread = SimpleNamespace(call=lambda work: work.close())
    environment.close()
    cluster.dying()
    cluster.dead.discard(PROCESS.get())
