"""A compacted topic as the table that it stands for: the newest value of each key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Literal, NamedTuple, cast

from aiokafka import AIOKafkaConsumer, TopicPartition

from operators.core.base import Batch
from runtime.model.clock import sleep_ms
from runtime.systems.kafka.client.admin import kafka_errors_told
from runtime.systems.kafka.client.clients import BEGIN_S, Consumer, Patience, begun, during, ended
from runtime.systems.kafka.client.private_names import give_up
from runtime.systems.kafka.client.thread import KafkaThread
from runtime.systems.kafka.client.topic import KafkaTopic
from runtime.systems.kafka.streams.record_batches import by_batches, rows_of

Isolation = Literal["read_committed", "read_uncommitted"]
WAIT_MS = 200
FETCH_WAIT_MS = 10
"""The ms that the broker holds back the answer that there is nothing new, and with it whatever else is asked."""
SEEN_S, SEEN_MS = 2.0, 10.0
"""The s that a commit is waited for at most until all see it, and the ms between two looks."""
REST_S = 2.0
"""The s without a read after which a table's consumer rests."""


class Scanned(NamedTuple):
    """Records of one partition, and the offset behind them."""

    partition: int
    rows: Batch
    position: int


class Begun(NamedTuple):
    """The first offset that each partition has, and the one behind its last committed record."""

    starts: dict[int, int]
    ends: dict[int, int]


async def range_of(topic: KafkaTopic, partitions: int, isolation: Isolation = "read_committed") -> Begun:
    """Return what the partitions of a topic hold now: what is committed, or with `read_uncommitted` all."""
    return (await ranges_of(topic, {topic.name: partitions}, isolation))[topic.name]


async def ranges_of(
    any_topic: KafkaTopic, partitions: Mapping[str, int], isolation: Isolation = "read_committed"
) -> dict[str, Begun]:
    """Return what topics of so many partitions, all of one cluster, hold now."""
    places = [TopicPartition(name, number) for name, count in partitions.items() for number in range(count)]
    if not places:
        return {}
    async with during(_consumer(any_topic, isolation), *partitions) as consumer:
        starts, ends = await consumer.beginning_offsets(places), await consumer.end_offsets(places)
    begun = {name: Begun({}, {}) for name in partitions}
    for topic, number in places:
        begun[topic].starts[number] = starts[TopicPartition(topic, number)]
        begun[topic].ends[number] = ends[TopicPartition(topic, number)]
    return begun


def ranges_now(topic: KafkaTopic, partitions: int) -> Begun:
    """Return what is committed now, as `range_of` does, waiting for it; raises `EnvironmentFault`."""
    thread = KafkaThread.acquire()
    try:
        with kafka_errors_told(topic, "looked at"):
            return thread.call(range_of(topic, partitions))
    finally:
        thread.release()


async def until_seen(any_topic: KafkaTopic, written: Mapping[tuple[str, int], int]) -> None:
    """Wait until all see what was committed below offsets of one cluster's partitions, whose topics are there.

    Brokers answer a commit before they mark it so in each partition: who reads at once may not find it yet. Raises
    TimeoutError where that takes long, as it does where others leave transactions open, or brokers do not answer.
    """
    ends = {TopicPartition(*place): end for place, end in written.items()}
    if not ends:
        return
    async with asyncio.timeout(SEEN_S):
        consumer = await begun(_consumer(any_topic), *{topic for topic, _ in ends})
    try:
        async with asyncio.timeout(SEEN_S):
            while any(seen < ends[place] for place, seen in (await consumer.end_offsets([*ends])).items()):
                await sleep_ms(SEEN_MS)
    finally:
        await ended(consumer)


async def scan(
    topic: KafkaTopic, starts: Mapping[int, int], ends: Mapping[int, int], reset: str = "earliest"
) -> AsyncIterator[Scanned]:
    """Yield what is committed from `starts` up to `ends`, partitions side by side.

    With "none" as `reset` it raises OffsetOutOfRangeError where some of that is removed meanwhile, and TimeoutError
    where brokers give nothing for long.
    """
    behind = {number: end for number, end in ends.items() if starts[number] < end}
    if not behind:
        return
    async with during(_consumer(topic, reset=reset)) as consumer:
        by_batches(consumer)
        consumer.assign([TopicPartition(topic.name, number) for number in behind])
        for number in behind:
            consumer.seek(TopicPartition(topic.name, number), starts[number])
        patience, positions = Patience(), dict(starts)
        while behind:
            patience.spend({**positions})
            found = await consumer.getmany(timeout_ms=WAIT_MS)
            for number in [*behind]:
                place = TopicPartition(topic.name, number)
                positions[number] = position = await consumer.position(place)
                if place in found:
                    yield Scanned(number, rows_of(found[place]), position)
                # By the position, and not by records: a transaction's marker, or what was rolled back, takes offsets
                # without any.
                if position >= behind[number]:
                    del behind[number]


async def no_id() -> int:
    """Return what stands for the id of a topic of which none is told."""
    return 0


class KafkaTable:
    """A topic of one partition as a dict, which can be brought up to date again and again.

    It lives on Kafka's thread, where one at a time reads (`_reading`); what is known only grows towards the end, as
    long as it is the same topic. One that was made anew meanwhile has another `id`, which is asked for where it was not
    looked for a while, or ends before what is known: so it does for a moment, too, where another broker leads it.
    """

    def __init__(self, topic: KafkaTopic, id_of: Callable[[], Awaitable[int]] = no_id) -> None:
        self._topic, self._id_of = topic, id_of
        self._place = TopicPartition(topic.name, 0)
        self._opened: Consumer | None = None
        self._beyond: Consumer | None = None
        self._id, self._is_doubted = 0, True
        self.known_to: int | None = None
        """The offset up to which it is known, as `now` has returned it last; None where nothing is known."""
        self._reading = asyncio.Lock()
        self._resting: asyncio.TimerHandle | None = None
        self._newest: dict[bytes, bytes | None] = {}

    async def now(self) -> dict[bytes, bytes]:
        """Return the newest values, by key, of what is committed now; raises TimeoutError as `scan` does."""
        async with self._reading:
            await self._wake()
            end = (await self._consumer.end_offsets([self._place]))[self._place]
            if self._is_doubted or end < (self.known_to or 0):
                await self._check_same(end)
            patience = Patience()
            while (position := await self._position()) < end:
                patience.spend(position)
                for records in (await self._consumer.getmany(timeout_ms=WAIT_MS)).values():
                    rows = ((record.key, record.value) for record in records)
                    self._newest.update(cast("Iterator[tuple[bytes, bytes | None]]", rows))  # all have keys
            self.known_to = position
            self._consumer.pause(self._place)
            self._resting = asyncio.get_running_loop().call_later(REST_S, self._rest)
        return {key: value for key, value in self._newest.items() if value is not None}

    async def forget(self) -> dict[bytes, bytes]:
        """Return nothing, as where the topic is not there any more, and forget what is known."""
        async with self._reading:
            self._newest, self.known_to = {}, None
            if self._opened is not None:
                self._rest()
        return {}

    def doubt(self) -> None:
        """Look at once whether it is still the same topic."""
        self._is_doubted = True

    async def start(self) -> int:
        """Return the first offset that there is, once it was looked what is committed."""
        return (await self._consumer.beginning_offsets([self._place]))[self._place]

    async def end_of_all(self) -> int:
        """Return the offset behind all that was written, also by transactions that are still open."""
        async with self._reading:
            if self._beyond is None:
                # A consumer of its own, which sees what is open as well: the end that the other sees stops at the first
                # open transaction.
                self._beyond = await begun(_consumer(self._topic, "read_uncommitted"), self._topic.name)
            return (await self._beyond.end_offsets([self._place]))[self._place]

    async def stop(self) -> None:
        """Read it no more."""
        if self._resting is not None:
            self._resting.cancel()
        for consumer in filter(None, (self._opened, self._beyond)):
            await ended(consumer)

    @property
    def _consumer(self) -> Consumer:
        assert self._opened is not None
        return self._opened

    async def _wake(self) -> None:
        """Be able to read on."""
        if self._resting is not None:
            self._resting.cancel()
        if self._opened is None:
            self._opened = await begun(_consumer(self._topic))
        if self._place in self._consumer.assignment():
            self._consumer.resume(self._place)
            return
        self._is_doubted = True  # it has rested, or never read
        self._consumer.assign([self._place])
        if self.known_to is None:
            await self._consumer.seek_to_beginning(self._place)
        else:
            self._consumer.seek(self._place, self.known_to)

    async def _check_same(self, end: int) -> None:
        """Begin anew where it is not the topic any more that was read; without ids that is so where it is shorter."""
        before, self._id = self._id, await self._id_of()
        self._is_doubted = False
        if self.known_to is not None and (self._id != before or (not self._id and end < self.known_to)):
            self._newest, self.known_to = {}, None
            await self._consumer.seek_to_beginning(self._place)

    async def _position(self) -> int:
        async with asyncio.timeout(BEGIN_S):  # where a place begins is asked of brokers, again and again
            return await self._consumer.position(self._place)

    def _rest(self) -> None:
        """Cost nothing: what is assigned, even paused, is looked after five times a second.

        Not as soon as it was read: while aiokafka gives up a fetch, a stop of the consumer would be lost to it.
        """
        give_up(self._consumer)


async def load(topic: KafkaTopic) -> dict[bytes, bytes]:
    """Return the newest values in a topic of one partition, by key."""
    table = KafkaTable(topic)
    try:
        return await table.now()
    finally:
        await table.stop()


def _consumer(topic: KafkaTopic, isolation: str = "read_committed", reset: str = "earliest") -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        **topic.client(),
        enable_auto_commit=False,
        auto_offset_reset=reset,
        isolation_level=isolation,
        fetch_max_wait_ms=FETCH_WAIT_MS,
    )
