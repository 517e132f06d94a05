"""The fetcher of a Kafka topic: it fetches ahead on Kafka's thread, and the run's thread reads without waiting."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError, KafkaTimeoutError, OffsetOutOfRangeError, TopicAuthorizationFailedError

from operators.core.base import Serde
from runtime.model.clock import monotonic_ms, sleep_ms, wall_clock_ms
from runtime.model.errors import Damaged, EnvironmentFault, SamzaError, Unavailable, command
from runtime.ports import open_transactions as held
from runtime.ports.live_streams import OpenTransaction
from runtime.ports.streams import Offsets, Read, ends, gone_error, grown_error
from runtime.systems.kafka.client.admin import is_stamped, kafka_errors_told, metadata_of
from runtime.systems.kafka.client.clients import Consumer, Fetched, Patience, begun, during, ended
from runtime.systems.kafka.client.kafka_errors import kafka_fault
from runtime.systems.kafka.client.metadata import READ, TopicMetadata, may
from runtime.systems.kafka.client.record_limits import check_codecs
from runtime.systems.kafka.client.thread import KafkaThread
from runtime.systems.kafka.client.topic import KafkaTopic
from runtime.systems.kafka.streams.record_batches import by_batches, hold_back, rows_of
from runtime.systems.kafka.streams.records import as_reads

AHEAD = 4
"""The fetches of one partition, of a megabyte each, that wait to be read; no more are made meanwhile."""
WAIT_MS = 50
"""The ms that a fetch is waited for before a look whether it had only the markers of transactions."""
BUSY_MS = 2_000.0
"""The ms without anything new after which that is done less often."""
TOGETHER_MS = 5.0
"""The ms that other partitions are waited for to be asked for, so that they are fetched together."""
FETCH_WAIT_MS, QUIET_WAIT_MS = 500, 2_000
"""The ms that the broker holds back the answer that there is nothing new, and with it whatever else is asked.

So long where something came lately, and where nothing has for `QUIET_MS`; what comes is answered at once.
"""
QUIET_MS = 5_000.0
"""The ms without anything of a topic after which it is looked whether there is still one, again and again."""
CHECK_MS = 30_000.0
"""The ms between these looks while something comes of it."""
PATIENCE_MS = 60_000.0
"""The ms that records known to be there are waited for, while a broker restarts."""
HELD_TOLD_MS = 10_000.0
"""The ms after which the log tells of an open transaction that holds records back: our own commits take seconds."""
_log = logging.getLogger("samza_dsl")


@dataclass
class _FetchedRows:
    """The rows that were fetched of one partition and not yet read."""

    position: int
    """The offset that is read next."""
    fetched: int
    """The offset that is fetched next."""
    reads: deque[Read] = field(default_factory=deque)
    is_new: bool = True
    """Whether it has still to be fetched from there."""
    version: int = 0
    awaited_ms: float | None = None
    """The time since which records known to be there have been waited for."""
    polled: int | None = None
    """The consumer's time of the newest answer of a broker."""
    heard_ms: float = -math.inf
    """The newest time at which surely nothing lay beyond what was fetched."""
    stable: int = -1
    """The offset where the first open transaction begins, or the end where none is open, as a broker has said last."""
    written: int = -1
    """The end of all that was written, by open transactions as well."""
    held_since_ms: float | None = None
    """The time since which the same open transaction has been the first one."""
    held_told: bool = False


class KafkaFetcher:
    """Reads what is committed in a topic, partition by partition; what its writers have rolled back is left out.

    Raises `EnvironmentFault` where the topic can't be read.

    Kafka's thread fetches (`_pump`, and all that is async); any other thread reads and asks. `_lock` guards what was
    fetched; a known range is replaced as a whole. Of a partition, what is read next lies at or below what is fetched
    next, and known ends only grow. Who reads from another offset begins the partition anew, and what is still under way
    for the old one is dropped as it comes.
    """

    def __init__(self, topic: KafkaTopic, is_between: bool = False) -> None:
        self._topic = topic
        self.is_between = is_between
        """Whether the topic lies between stages, so that all that is in it was written by them."""
        self._lock = threading.Condition()
        self._fetched: dict[int, _FetchedRows] = {}
        self._heard_ms = self._checked_ms = self._polled_ms = monotonic_ms()
        self._looked_at: set[TopicPartition] = set()
        self._failure: SamzaError | None = None
        self._tell: Callable[[], None] = lambda: None
        self._tell_end: Callable[[int, int], None] = lambda partition, end: None
        self._room = asyncio.Event()
        self._pumping: asyncio.Task[None] | None = None
        self._opened: Consumer | None = None
        self._asking: Consumer | None = None
        self._one_asks = asyncio.Lock()
        self._thread: KafkaThread | None = KafkaThread.acquire()
        try:
            with kafka_errors_told(topic, "read"):
                self._metadata, self._offsets = self._thread.call(self._open())
                self.partitions = self._metadata.partitions
        except BaseException:
            self.close()
            raise

    def offsets(self, partition: int) -> Offsets:
        """Return the range that is known to be readable; it begins where the topic's `start` says."""
        return self._offsets[partition]

    def stream_id(self) -> int:
        """Return what tells the topic, as it was when it was begun to be read, from others that have had its name."""
        return self._metadata.id

    def refresh(self, partition: int) -> Offsets:
        """Return the range that is readable now, asking the brokers where the partition is not being read."""
        self.ask([partition])
        return self._offsets[partition]

    def ask(self, partitions: Iterable[int]) -> None:
        """Ask the brokers how far partitions are, those of them that are not being read."""
        # Of partitions that are being fetched every answer of a broker tells the end.
        places = [self._place(number) for number in sorted(partitions) if number not in self._fetched]
        if places and self._thread is not None:
            with kafka_errors_told(self._topic, "read"):
                self._thread.call(self._ask(places))

    def wrote(self, partition: int, end: int, ended: bool = False) -> None:
        """Take note that this process has written below `end`, and whether that is an end-of-stream."""
        with self._lock:
            self._reach(partition, end, ended)

    def unheard_ms(self, partition: int, offset: int) -> float:
        """Return for how long no broker has said whether something lies at or beyond an offset."""
        found = self._fetched.get(partition)
        if found is None or found.reads or found.fetched != offset:
            return math.inf
        return monotonic_ms() - found.heard_ms

    def written(self) -> list[int]:
        """Ask how far each partition is written, by transactions that are still open as well."""
        assert self._thread is not None
        with kafka_errors_told(self._topic, "read"):
            return self._thread.call(self._written())

    def settled(self) -> list[Offsets]:
        """Return the ranges that hold all that is written by now, once transactions that are open have ended.

        Raises `HeldBack` where others leave some open.
        """
        assert self._thread is not None
        written, since_ms = self.written(), monotonic_ms()
        while True:
            self.ask(range(self.partitions))
            left = [number for number, end in enumerate(written) if self._offsets[number].end < end]
            if not left:
                return [*self._offsets]
            for_ms = monotonic_ms() - since_ms
            if for_ms >= held.HELD_MS:
                raise held.held_back_error([(written[one], self._held_at(one, written[one], for_ms)) for one in left])
            self._thread.call(sleep_ms(held.LOOK_MS))

    def _held_at(self, partition: int, end: int, for_ms: float) -> OpenTransaction:
        first = self._offsets[partition].end
        place = f"{self._topic.address}, partition {partition}"
        return OpenTransaction(first, end, for_ms, place, self._ending_of(partition, first))

    def held(self, partition: int) -> OpenTransaction | None:
        """Return what an open transaction keeps from being read, as of the last fetch; None where nothing is."""
        found = self._fetched.get(partition)
        # Looked at once: Kafka's thread forgets it at any moment, where the transaction has ended.
        since_ms = None if found is None else found.held_since_ms
        if found is None or since_ms is None:
            return None
        place = f"{self._topic.address}, partition {partition}"
        for_ms = monotonic_ms() - since_ms
        return OpenTransaction(found.stable, found.written, for_ms, place, self._ending_of(partition, found.stable))

    def positions(self) -> dict[int, int]:
        """Return the offset that is read next of each partition that is read."""
        with self._lock:
            return {number: found.position for number, found in self._fetched.items()}

    @property
    def has_failed(self) -> bool:
        """Whether it fetches no more, as what it reads is not there any more, or brokers have not answered."""
        return self._failure is not None

    def drop(self, partitions: Iterable[int]) -> None:
        """Fetch partitions no more, until they are read again."""
        with self._lock:
            for partition in partitions:
                self._fetched.pop(partition, None)

    def _reach(self, partition: int, end: int, ended: bool = False) -> None:
        start, known, had_ended = self._offsets[partition]
        self._offsets[partition] = Offsets(start, max(known, end), ended or had_ended)

    def version(self, partition: int) -> int:
        """Return a number that grows when there may be more to read."""
        found = self._fetched.get(partition)
        return found.version if found is not None else 0

    def listen(self, tell: Callable[[], None]) -> None:
        """Call `tell`, from another thread, when there may be more to read."""
        self._tell = tell

    def listen_for_ends(self, tell: Callable[[int, int], None]) -> None:
        """Call `tell`, before that, with each partition that has ended, and with its end."""
        self._tell_end = tell

    def expect(self, offsets: Mapping[int, int]) -> None:
        """Fetch partitions together, each from where it is about to be read: one by one, they wait for each other."""
        with self._lock:
            for partition, offset in offsets.items():
                if partition not in self._fetched:
                    self._fetched[partition] = _FetchedRows(offset, offset)
            self._look()

    def read(self, partition: int, offset: int, max_records: int = 10_000) -> Read | None:
        """Return rows from `offset` on that were fetched already, at most one fetch; None where nothing was.

        Raises `Damaged` where the topic has no such offset any more.
        """
        with self._lock:
            return self._next(partition, offset, max_records)

    def fetched(self, partition: int, offset: int, max_records: int = 10_000) -> Read | None:
        """Return what `read` does, for who is told when more comes and asks again.

        Raises `Unavailable` where what is known to be there has not come for a minute.
        """
        with self._lock:
            read = self._next(partition, offset, max_records)
            found = self._fetched[partition]
            if read is not None or offset >= self._offsets[partition].end:
                found.awaited_ms = None
            elif found.awaited_ms is None:
                found.awaited_ms = monotonic_ms()
            elif monotonic_ms() - found.awaited_ms > PATIENCE_MS:
                raise self._unavailable()
            return read

    def read_known(self, partition: int, offset: int, max_records: int = 10_000) -> Read | None:
        """Return rows from `offset` on, waiting for what is known to be there; None at the end."""
        start, end, _ = self._offsets[partition]
        if not start <= offset <= end:
            raise gone_error(self._topic.name, partition, offset, start, end)
        until_ms = monotonic_ms() + PATIENCE_MS
        while True:
            with self._lock:
                read = self._next(partition, offset, max_records)
                if read is not None or offset >= self._offsets[partition].end:
                    return read
                if not self._lock.wait((until_ms - monotonic_ms()) / 1_000):
                    raise self._unavailable()

    def close(self) -> None:
        """Stop fetching; a second call does nothing."""
        if self._thread is not None:
            thread, self._thread = self._thread, None
            try:
                thread.call(self._stop())
            finally:
                thread.release()

    def _unavailable(self) -> Unavailable:
        return Unavailable(f"{self._topic.address} has not answered for {PATIENCE_MS / 1_000:.0f} s.")

    def _next(self, partition: int, offset: int, max_records: int) -> Read | None:
        if self._failure is not None:
            raise self._failure
        found = self._fetched.get(partition)
        if found is None or found.position != offset:
            version = 0 if found is None else found.version
            self._fetched[partition] = _FetchedRows(offset, offset, version=version)
            self._look()
            return None
        if not found.reads:
            return None
        read = found.reads.popleft()
        assert found.position < read.next_offset <= found.fetched, "a read leads on, and not beyond what was fetched"
        # Room again: the pump may be waiting for just that.
        if len(found.reads) == AHEAD - 1:
            self._look()
        if len(read.batch) > max_records:
            offsets = read.batch.offsets or []
            rest = read.batch.slice(max_records, len(read.batch))
            found.reads.appendleft(read._replace(batch=rest))
            read = read._replace(batch=read.batch.slice(0, max_records), control=None, next_offset=offsets[max_records])
        found.position = read.next_offset
        return read

    def _look(self) -> None:
        """Wake the pump, to look again what may be fetched."""
        if self._thread is not None:
            self._thread.loop.call_soon_threadsafe(self._room.set)

    async def _open(self) -> tuple[TopicMetadata, list[Offsets]]:
        topic = self._topic
        metadata = await metadata_of(topic)
        if metadata is None:
            raise absent_topic_error(topic)
        if not may(metadata, READ):
            raise kafka_fault(topic, "read", TopicAuthorizationFailedError(topic.name))
        await check_codecs(topic)
        consumer = AIOKafkaConsumer(
            **topic.client(),
            enable_auto_commit=False,
            auto_offset_reset="none",
            isolation_level="read_committed",
            fetch_max_wait_ms=FETCH_WAIT_MS,
        )
        self._opened = await begun(consumer, topic.name)
        by_batches(self._consumer)
        places = [TopicPartition(topic.name, number) for number in range(metadata.partitions)]
        try:
            starts = await begins_at(self._consumer, topic, places)
            ends = await self._consumer.end_offsets(places)
        except KafkaTimeoutError:  # brokers are asked for what has gone meanwhile until time is up
            await check_unchanged(topic, metadata)
            raise
        self._pumping = asyncio.create_task(self._pump())
        return metadata, [Offsets(starts[place], ends[place], ended=False) for place in places]

    async def _ask(self, places: Sequence[TopicPartition]) -> None:
        asked = await self._asked()
        starts, ends = await asked.beginning_offsets(places), await asked.end_offsets(places)
        behind = {}
        for place in places:
            _, known, ended = self._offsets[place.partition]
            is_new = ends[place] > known or place not in self._looked_at
            if is_new and not ended and starts[place] < ends[place]:
                behind[place] = max(starts[place], ends[place] - 2)  # the record, and the marker of its transaction
        ended_ones = await self._ended_of(behind, ends) if behind else ()
        self._looked_at |= {*places}
        for place in places:
            _, known, ended = self._offsets[place.partition]
            end = max(ends[place], known)
            self._offsets[place.partition] = Offsets(starts[place], end, ended or place in ended_ones)

    @property
    def _consumer(self) -> Consumer:
        assert self._opened is not None
        return self._opened

    async def _asked(self) -> Consumer:
        """Return what asks without waiting for a fetch: brokers answer each connection in turn."""
        async with self._one_asks:
            if self._asking is None and self._fetched:
                self._asking = await begun(self._asker(), self._topic.name)
            return self._asking or self._consumer

    async def _ended_of(
        self, behind: Mapping[TopicPartition, int], until: Mapping[TopicPartition, int]
    ) -> set[TopicPartition]:
        """Return those partitions, of some that nobody reads, where the last thing that was said is that they ended."""
        async with during(self._asker()) as consumer:
            consumer.assign([*behind])
            for place, offset in behind.items():
                consumer.seek(place, offset)
            said, left, patience = {}, {*behind}, Patience()
            while left:
                patience.spend({*left})
                for place, records in (await consumer.getmany(timeout_ms=WAIT_MS)).items():
                    said[place] = self._reads(place.partition, records, until[place])[-1].control
                left = {place for place in left if await consumer.position(place) < until[place]}
            return {place for place, control in said.items() if ends(control)}

    def _asker(self) -> AIOKafkaConsumer:
        return AIOKafkaConsumer(**self._topic.client(), enable_auto_commit=False, isolation_level="read_committed")

    async def _stop(self) -> None:
        if self._pumping is not None:
            self._pumping.cancel()
            with suppress(asyncio.CancelledError):
                await self._pumping
        for consumer in filter(None, (self._opened, self._asking)):
            await ended(consumer)

    async def _pump(self) -> None:
        """Fetch ahead for ever; what keeps it from that is raised where the next record would have been read."""
        try:
            with kafka_errors_told(self._topic, "read"):
                while True:
                    try:
                        await self._fetch()
                    except asyncio.CancelledError:
                        task = asyncio.current_task()
                        if task is None or task.cancelling():
                            raise
                        await sleep_ms(WAIT_MS)  # a lost connection has cancelled it, and not who stops reading
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._fail(
                error if isinstance(error, SamzaError) else EnvironmentFault(f"{self._topic.address}: {error!r}")
            )

    def _fail(self, failure: SamzaError) -> None:
        with self._lock:
            self._failure = failure
            for found in self._fetched.values():
                found.version += 1
            self._lock.notify_all()
        self._tell()

    async def _fetch(self) -> None:
        self._room.clear()
        with self._lock:
            asked = any(found.is_new for found in self._fetched.values())
        if asked:
            # Readers of several partitions ask one after the other: assigned one by one, each would wait for the fetch
            # of the last.
            await sleep_ms(TOGETHER_MS)
        with self._lock:
            # As of this moment: partitions that are asked for anew meanwhile are other objects, and `_take` tells them
            # by that.
            known = dict(self._fetched)
        wanted = [self._place(number) for number, found in known.items() if len(found.reads) < AHEAD]
        if any(found.is_new for found in known.values()):
            self._assign(known)
        if not wanted:
            await self._room.wait()
            return
        try:
            found = await self._something_of(wanted)
        except OffsetOutOfRangeError as error:
            raise await self._gone(error) from error
        has_moved, before_ms, self._polled_ms = False, self._polled_ms, monotonic_ms()
        for number, fetched in known.items():
            place = self._place(number)
            # Asked for all, also without records: a position that moves past markers is news, too.
            position, stable = await self._consumer.position(place), self._consumer.last_stable_offset(place)
            has_moved |= self._take(number, fetched, found.get(place, ()), position, stable)
            self._hear(fetched, place, position, before_ms)
            self._note_held(number, fetched, stable, self._consumer.highwater(place))
        if has_moved:
            self._heard_ms = monotonic_ms()
            self._tell()
        is_quiet = monotonic_ms() - self._heard_ms > QUIET_MS
        if monotonic_ms() - self._checked_ms > (QUIET_MS if is_quiet else CHECK_MS):
            with suppress(KafkaError, OSError, TimeoutError):  # who doesn't answer is waited for
                await check_unchanged(self._topic, self._metadata)
            self._checked_ms = monotonic_ms()

    async def _something_of(self, places: Sequence[TopicPartition]) -> Mapping[TopicPartition, Sequence[Fetched]]:
        """Wait for records, and no longer when other partitions have come to be asked for or have room again."""
        unheard_ms = monotonic_ms() - self._heard_ms
        # Held back shortly while much comes, as whatever else is asked waits behind it; long where nothing does, to
        # spare the brokers.
        held_ms = WAIT_MS if unheard_ms < BUSY_MS else FETCH_WAIT_MS if unheard_ms < QUIET_MS else QUIET_WAIT_MS
        hold_back(self._consumer, held_ms)
        wait_ms = WAIT_MS if held_ms == WAIT_MS else 2 * held_ms
        getting = asyncio.ensure_future(self._consumer.getmany(*places, timeout_ms=wait_ms))
        looking = asyncio.ensure_future(self._room.wait())
        try:
            await asyncio.wait([getting, looking], return_when=asyncio.FIRST_COMPLETED)
            return getting.result() if getting.done() else {}
        finally:
            getting.cancel()  # while it waits it has taken nothing yet
            looking.cancel()

    def _assign(self, known: dict[int, _FetchedRows]) -> None:
        """Fetch each partition from where it is to be fetched next."""
        self._consumer.assign([self._place(number) for number in known])
        for number, fetched in known.items():
            fetched.is_new = False
            self._consumer.seek(self._place(number), fetched.fetched)

    def _take(
        self, number: int, fetched: _FetchedRows, records: Sequence[Fetched], position: int, end: int | None
    ) -> bool:
        """Keep what was fetched, unless it was asked for another offset meanwhile; return whether that was anything.

        It may have been the marker of a transaction alone.
        """
        if position == fetched.fetched:
            return False
        now_ms = wall_clock_ms()
        # A broker tells the time that a producer gave, which may be an event's, and not when it was appended.
        reads = [one._replace(appended_ms=now_ms) for one in self._reads(number, records, position)]
        with self._lock:
            if self._fetched.get(number) is not fetched:
                return False
            assert position > fetched.fetched, "a fetch leads on"
            fetched.reads += reads
            fetched.fetched = position
            fetched.version += 1
            has_ended = ends(reads[-1].control)
            self._reach(number, position if has_ended else max(end or 0, position), has_ended)
            self._lock.notify_all()
        if has_ended:
            self._tell_end(number, position)
        return True

    def _reads(self, number: int, records: Sequence[Fetched], position: int) -> list[Read]:
        between = f"{self._topic.address}/{number}" if self.is_between else None
        return as_reads(rows_of(records), position, self._metadata.id, between)

    def _hear(self, fetched: _FetchedRows, place: TopicPartition, position: int, since_ms: float) -> None:
        """Note whether a broker has said, since the last look, that nothing lies beyond a position."""
        polled = self._consumer.last_poll_timestamp(place)
        if polled is not None and polled != fetched.polled:
            ago_ms = max(wall_clock_ms() - polled, 0)
            is_all = self._consumer.highwater(place) == position
            fetched.polled = polled
            fetched.heard_ms = max(monotonic_ms() - ago_ms, since_ms) if is_all else -math.inf

    def _note_held(self, number: int, fetched: _FetchedRows, stable: int | None, written: int | None) -> None:
        """Note what an open transaction holds back, and say so once where it is open for long."""
        if stable is None or written is None:
            return
        is_other = stable != fetched.stable
        fetched.stable, fetched.written = stable, written
        place = f"{self._topic.address}, partition {number}"
        if is_other and fetched.held_told:
            _log.warning("%s: the transaction has ended that held records back; they are read now", place)
            fetched.held_told = False
        if stable >= written:
            fetched.held_since_ms = None
        elif is_other or fetched.held_since_ms is None:
            fetched.held_since_ms = monotonic_ms()
        elif not fetched.held_told and monotonic_ms() - fetched.held_since_ms >= HELD_TOLD_MS:
            fetched.held_told = True
            said = place, written - stable, stable, HELD_TOLD_MS / 1_000, self._ending_of(number, stable)
            _log.warning(
                "%s: an open transaction holds %s offsets back, from %s on, for %.0f s by now. They are read once it "
                "has ended. %s",
                *said,
            )

    def _ending_of(self, partition: int, first: int) -> str:
        """Return how a transaction is found and ended that whoever began it has left open."""
        tool = f"kafka-transactions.sh --bootstrap-server {self._topic.bootstrap}"
        where = f"--topic {self._topic.name} --partition {partition}"
        return (
            f"Who has begun it is shown by: {tool} describe-producers {where}. "
            f"Where that is gone for good, end it by: {tool} abort {where} --start-offset {first}"
        )

    async def _written(self) -> list[int]:
        """Ask as who reads all that was written does."""
        places = [self._place(number) for number in range(self._metadata.partitions)]
        asker = AIOKafkaConsumer(**self._topic.client(), enable_auto_commit=False, isolation_level="read_uncommitted")
        async with during(asker, self._topic.name) as consumer:
            ends = await consumer.end_offsets(places)
        return [ends[place] for place in places]

    async def _gone(self, error: OffsetOutOfRangeError) -> SamzaError:
        place, offset = next(iter(error.args[0].items()))
        start = (await self._consumer.beginning_offsets([place]))[place]
        end = (await self._consumer.end_offsets([place]))[place]
        return gone_error(place.topic, place.partition, offset, start, end)

    def _place(self, number: int) -> TopicPartition:
        return TopicPartition(self._topic.name, number)


class KafkaSource(KafkaFetcher):
    """A bound input that is a topic, and has no end. Its partitions are the topic's; a record's offset is Kafka's."""

    name = "kafka"

    def __init__(self, topic: KafkaTopic) -> None:
        self._readers: dict[int, KafkaSource] = {}
        super().__init__(topic)

    def reader(self, number: int) -> KafkaSource:
        """Return what reads the topic for one of several tasks that share its partitions, each at its own pace."""
        if number == 0:
            return self
        if number not in self._readers:
            self._readers[number] = KafkaSource(self._topic)
            self._readers[number].listen(lambda: self._tell())
        return self._readers[number]

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
        super().close()

    def serde(self, declared: Serde) -> Serde:
        """Return the declared serde: what the records of a topic are is between those who write and read it."""
        return declared

    def is_stamped(self) -> bool:
        """Whether the time of its records is when brokers took them, as far as they tell."""
        return self._thread is not None and self._thread.call(is_stamped(self._topic))


def absent_topic_error(topic: KafkaTopic) -> EnvironmentFault:
    """Return the error of a topic that is read and was never made."""
    return EnvironmentFault(
        f"there is no topic {topic.name!r} at {topic.bootstrap}: create it, or look at how its name is written"
    )


async def check_unchanged(topic: KafkaTopic, read: TopicMetadata) -> None:
    """Raise `Damaged` where a topic is not any more what is read."""
    name, where = topic.name, topic.bootstrap
    found = await metadata_of(topic)
    if found is None:
        raise Damaged(
            f"The topic {name!r} at {where} is gone, and this run reads it: bring it back, or make it anew and let the "
            f"application begin anew ({command('reset APP')})."
        )
    if found.id != read.id:
        raise Damaged(
            f"The topic {name!r} at {where} was made anew while this run read it: set where the application goes on "
            f"({command(f'checkpoint set APP {name}:PARTITION earliest')}), or let it begin anew "
            f"({command('reset APP')})."
        )
    if found.partitions != read.partitions:
        raise grown_error(f"The topic {name!r} at {where}", found.partitions, read.partitions)


async def begins_at(
    consumer: Consumer, topic: KafkaTopic, places: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return the offsets at which a topic's `start` says that reading begins."""
    ends = await consumer.end_offsets(places)
    if topic.start == "latest":
        return dict(ends)
    if topic.start == "earliest":
        return dict(await consumer.beginning_offsets(places))
    at = await consumer.offsets_for_times(dict.fromkeys(places, int(topic.start)))
    return {place: ends[place] if found is None else found.offset for place, found in at.items()}
