"""The brokers of a simulated Kafka cluster, on virtual time: what is asked may get lost, and who asks may die of it."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

from aiokafka import TopicPartition
from aiokafka.errors import (
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    NotLeaderForPartitionError,
    PolicyViolationError,
    ProducerFenced,
    UnknownTopicOrPartitionError,
)

from samza_dsl.testing.virtual_loop import FilelessLoop

BATCH_BYTES, RECORD_BYTES = 1 << 16, 1_048_588
"""How large a batch and a record may be, where nothing else is said."""
LONGEST_MS = 5
"""How long a request takes at most."""
STEP_S, SESSION_S, SILENCE_S, TRANSACTION_S = 0.001, 6.0, 2.0, 60.0
MARKERS_S = 1.0
"""How long it takes at most, and seldom, until what was ended is marked so where it was written."""
NOW_MS, SKEW_MS = 1_700_000_000_000, 3_600_000
"""When it is, and how far a clock may be wrong."""
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

    def written(self, writer: int) -> list[Record]:
        """Return what a transaction that is open has written."""
        log = self.log[self.open[writer] - self.start :] if writer in self.open else []
        return [one.record for one in log if one.writer == writer and one.record is not None]

    def purge(self, before: int) -> None:
        del self.log[: max(before - self.start, 0)]
        self.start = max(self.start, before)


@dataclass
class Topic:
    partitions: list[Partition]
    configs: dict[str, str]
    id: bytes


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
        self.ending: dict[int, tuple[set[tuple[str, int]], bool]] = {}
        """By writer, where the end of its transaction is not marked yet, and whether that is a commit."""
        self.offsets: defaultdict[str, dict[TopicPartition, Any]] = defaultdict(dict)
        self.sent: dict[int, dict[str, dict[TopicPartition, Any]]] = {}
        """By writer, the offsets of groups in its transaction, which count when that is committed."""
        self.defaults: dict[str, str] = {"cleanup.policy": "delete", "message.timestamp.type": "CreateTime"}
        """How topics are configured where nothing else is said."""
        self.fixed: set[str] = set()
        """The topics whose configuration clients may not change."""
        self.gone: dict[str, tuple[Topic, float]] = {}
        """Topics that are gone, and of which brokers tell until then."""
        self.groups: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        self.troubles: list[Trouble] = []
        self.changes = 0
        self.numbers = count(1)
        self.loop = Loop()
        self.dead: set[str] = set()
        self.silent_until_s = 0.0
        """Until when no broker answers anybody."""
        self._skews_ms = random.Random(seed)
        self._clocks_ms: dict[str, int] = {}
        self.connections: dict[Any, str] = {}
        """Those that are open, and of which process."""
        self.ends = random.Random(seed)
        """Decides how clients begin and end."""
        self.refuses = 0.0
        """How often a client can't begin."""
        self.committed: Callable[[dict[tuple[str, int], list[Record]]], None] | None = None
        """Is told what each transaction has written that is committed, before anybody is answered."""
        self._news: list[asyncio.Future[None]] = []  # a set would have them go on in the order of their addresses

    def clock_ms(self) -> int:
        """Return what the clock shows of the process that looks: each goes wrong in its own way."""
        skew_ms = self._clocks_ms.setdefault(PROCESS.get(), self._skews_ms.randint(-SKEW_MS, SKEW_MS))
        return NOW_MS + int(self.loop.time() * 1_000) + skew_ms

    async def heard(self, work: Callable[[], Any] = lambda: None, changes: bool = False) -> Any:
        """Do what a request asks for, and answer, after a while; unless something goes wrong."""
        if PROCESS.get() in self.dead:
            raise Died
        silent_s = max(self.silent_until_s - self.loop.time(), 0)
        await asyncio.sleep(silent_s + self.chance.uniform(0, LONGEST_MS / 1_000))
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
        self._news.append(change)
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await change

    def tell(self) -> None:
        """Have those go on who wait for a change."""
        for waiting in self._news:
            if not waiting.done():
                waiting.set_result(None)
        self._news.clear()

    def expire(self, process: str) -> Any:
        """Take a process for dead that was in a group, and return what it was there; it is not told."""
        for members in self.groups.values():
            member = members.pop(process, None)
            if member is not None:
                rebalance(members)
                return member
        return None

    def silence(self, process: str) -> None:
        """Take a process for dead that is not, and comes again after a while, if it has not left."""
        member = self.expire(process)
        if member is not None:
            self.loop.call_later(SILENCE_S, member.join, process)

    def topic_id(self) -> bytes:
        """Return an id that no topic has had."""
        return next(self.numbers).to_bytes(7, "big") + bytes(9)

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
                self.mark(former)
            self.writers[transactional_id] = writer
        return writer

    def end(self, writer: int, committed: bool) -> None:
        """Decide how a transaction ends; that is answered before it can be seen."""
        sent, places = self.sent.pop(writer, {}), self.begun.pop(writer, None)
        for group, offsets in sent.items() if committed else ():
            self.offsets[group].update(offsets)
        if places and committed and self.committed is not None:
            self.committed({place: self.partition(*place).written(writer) for place in sorted(places)})
        if places:
            self.ending[writer] = places, committed
            self.loop.call_later(MARKERS_S * self.chance.random() ** 4, self.mark, writer)

    def mark(self, writer: int) -> None:
        """Have it be seen how a writer's last transaction has ended, before it begins another one."""
        places, committed = self.ending.pop(writer, (set(), False))
        for place in sorted(places):
            self.partition(*place).finish(writer, committed)
        if places:
            self.tell()

    def _time_out(self, transactional_id: str, writer: int, begun: set[tuple[str, int]]) -> None:
        """Roll back what has been open for too long; who has begun it is fenced."""
        if self.begun.get(writer) is begun:
            self.begin(transactional_id)

    def write(self, transactional_id: str | None, writer: int, place: tuple[str, int], rows: Sequence[Any]) -> int:
        """Append rows, and return the offset of the first."""
        self.check(transactional_id, writer)
        partition, configs = self.partition(*place), self.configs(place[0])
        most = int(configs.get("max.message.bytes", RECORD_BYTES))
        if any(len(key or b"") + len(value or b"") > most for key, value, *_ in rows):
            raise MessageSizeTooLargeError
        if transactional_id is not None:
            self.mark(writer)
            if writer not in self.begun:
                self.loop.call_later(TRANSACTION_S, self._time_out, transactional_id, writer, self.begun[writer])
            self.begun[writer].add(place)
        first = partition.end
        for key, value, timestamp, headers in rows:
            at = int(self.loop.time() * 1_000) if timestamp is None else timestamp
            if configs["message.timestamp.type"] == "LogAppendTime":
                at = NOW_MS + int(self.loop.time() * 1_000)
            record = Record(*place, partition.end, key, value, at, tuple(headers))
            partition.append(Stored(record, writer if transactional_id is not None else None))
        return first

    def configs(self, topic: str) -> dict[str, str]:
        """Return how a topic is configured."""
        return {**self.defaults, **self.topics[topic].configs}

    def purge(self, topic: str, number: int, before: int) -> None:
        """Remove what is below an offset, as clients ask for it."""
        if topic not in self.topics:
            raise NotLeaderForPartitionError(topic)  # as aiokafka's administrator finds nobody to ask
        if "delete" not in self.configs(topic)["cleanup.policy"]:
            raise PolicyViolationError(topic)
        self.partition(topic, number).purge(before)

    def check(self, transactional_id: str | None, writer: int) -> None:
        if transactional_id is not None and self.writers[transactional_id] != writer:
            raise ProducerFenced

    def delete(self, name: str) -> None:
        if self.topics.pop(name, None) is None:
            raise UnknownTopicOrPartitionError(name)
        for places in [*self.begun.values(), *(places for places, _ in self.ending.values())]:
            places -= {place for place in places if place[0] == name}
        for offsets in self.offsets.values():
            for place in [place for place in offsets if place.topic == name]:
                del offsets[place]


def rebalance(members: dict[str, Any]) -> None:
    """Have the first of a group's members say who runs what, and all of them hear it."""
    if members:
        said = {name: member.assignor.metadata(member.topics) for name, member in members.items()}
        for name, told in next(iter(members.values())).assignor.assign(None, said).items():
            members[name].told = told
            members[name].assignor.on_assignment(told)


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
        # Since Python 3.14 a thread has one task that runs, and not each loop.
        swap = getattr(asyncio.tasks, "_swap_current_task", None) if running is not None else None
        task = swap(running, None) if swap is not None else None
        asyncio._set_running_loop(None)
        try:
            return self.loop.run_until_complete(work)
        finally:
            asyncio._set_running_loop(running)
            if swap is not None:
                swap(running, task)

    def catch_up(self, until_s: float) -> None:
        """Let time pass up to a moment, if it is not there yet."""
        if until_s > self.loop.time():
            self.call(asyncio.sleep(until_s - self.loop.time()))

    def following(self) -> Callable[[], None]:
        """Return what has as much time pass here as has passed, since now, on the loop that begins then."""
        begun_s = self.loop.time()
        return lambda: self.catch_up(begun_s + asyncio.get_running_loop().time())

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
