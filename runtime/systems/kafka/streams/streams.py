"""The streams of a Kafka cluster: topics, and a registry of what Kafka does not know of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import msgspec
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    GroupCoordinatorNotAvailableError,
    KafkaError,
    TopicAuthorizationFailedError,
)

from operators.core.base import Batch
from planner.model.virtual_tasks import VirtualTask
from runtime.model.clock import sleep_ms
from runtime.model.errors import Damaged, Unavailable, command
from runtime.ports.live_streams import OpenTransaction
from runtime.ports.streams import (
    Append,
    Offsets,
    Read,
    StreamConfig,
    absent_error,
    check_config,
    check_keys,
    ended_error,
    ends,
    no_partition_error,
)
from runtime.systems.kafka.client.admin import (
    LOOK_MS,
    LOOKS,
    answered,
    config_in,
    configs_of,
    create_topic,
    described,
    kafka_errors_told,
)
from runtime.systems.kafka.client.clients import Producer, SharedClients, begun, ended
from runtime.systems.kafka.client.metadata import TopicMetadata, topics_of
from runtime.systems.kafka.client.retention import Retention
from runtime.systems.kafka.client.thread import KafkaThread, stop
from runtime.systems.kafka.client.topic import KafkaCluster, KafkaTopic
from runtime.systems.kafka.client.topic_configs import (
    APPENDED,
    AS_WRITTEN,
    BETWEEN_CONFIGS,
    CODECS,
    COMPRESSION,
    STAMPS,
    TABLE_CONFIGS,
    altering,
    amend,
    configs_in,
    segments_of,
    wrong_in,
)
from runtime.systems.kafka.streams.compacted_topic import (
    SEEN_S,
    Begun,
    KafkaTable,
    range_of,
    ranges_of,
    scan,
    until_seen,
)
from runtime.systems.kafka.streams.fetcher import KafkaFetcher
from runtime.systems.kafka.streams.publication import PUBLISHED
from runtime.systems.kafka.streams.records import as_records, control_of
from runtime.systems.kafka.streams.sink import BATCH_BYTES, send_all
from runtime.systems.log.batch import check_columns

R = TypeVar("R")

LARGEST_BYTES = 1 << 24
"""The most bytes of a record of state, or between stages; other streams have what their topic says."""
LOOKS_EACH = 3
"""The looks in a row, times the brokers, in which any of several has to know what has become of a topic."""
GONE_S = 2.0
"""The s without an answer after which it is looked whether a topic that was asked for is there at all."""
PRODUCER_TRIES, PRODUCER_TRY_S = 4, 30.0
"""The tries to begin a producer, and the s of each."""
_TABLE = StreamConfig(compacted=True)
_log = logging.getLogger("samza_dsl")


class _Known(msgspec.Struct, frozen=True, array_like=True):
    """The configuration that a topic was made with, and whether it is no stream, but for our own use."""

    config: StreamConfig
    own: bool = False


class KafkaStreams:
    """Streams that are topics, each read by a fetcher of its own, or by one for each of several readers.

    What is said of a topic in the registry is said before it is made. What is known of ends only grows. A run's loop
    and the thread that commits both call it, and wait for Kafka's thread, on which all that is async runs; aiokafka's
    clients for administration and registry are made there once, by whoever is first (`_one_begins`).
    """

    def __init__(self, cluster: KafkaCluster, thread: KafkaThread, tell: Callable[[], None]) -> None:
        self._cluster = cluster
        self._thread = thread
        self._tell = tell
        self._fetchers: dict[tuple[str, int], KafkaFetcher] = {}
        """By stream and the number of a reader."""
        self._doubted: set[tuple[str, int]] = set()
        """Those whose topics others may have made anew, or given more partitions, since they were read."""
        self._known: dict[str, _Known] = {}
        self._looked_at: set[tuple[str, int]] = set()
        self._written: dict[tuple[str, int], int] = {}
        self.registry = cluster.registry
        self._tables: dict[str, KafkaTable] = {}
        """What is known here of compacted topics of our own."""
        self._admin: AIOKafkaAdminClient | None = None
        self._registrar: Producer | None = None
        self._one_begins = asyncio.Lock()
        self._shared = SharedClients()
        self.retention = Retention(self._configs_of)

    def topic(self, name: str) -> KafkaTopic:
        """Return where a topic is."""
        return self._cluster.topic(name)

    def table(self, name: str) -> KafkaTable:
        """Return a compacted topic of our own, which is read on from where it is known; for Kafka's thread alone."""
        found = self._tables.get(name)
        if found is None:
            found = self._tables[name] = KafkaTable(self.topic(name), partial(self._id_of, name))
        return found

    async def _id_of(self, name: str) -> int:
        found = (await self.metadata_of([name])).get(name)
        return found.id if found is not None else 0

    def call(self, name: str, work: Coroutine[object, object, R]) -> R:
        """Do work on Kafka's thread; errors are told of the topic of that name."""
        with kafka_errors_told(self.topic(name), "used"):
            return self._thread.call(work)

    def read(self, name: str, work: Callable[[], R], absent: Callable[[], R]) -> R:
        """Return what work reads of a topic, or what `absent` says where there is none.

        It may go while it is read, and brokers may tell of it for a moment yet: they are asked for it until time is up.
        """
        if self.is_there(name):
            try:
                return work()
            except Unavailable:
                if self.is_there(name):
                    raise
        return absent()

    def create(self, name: str, config: StreamConfig, own: bool = False) -> StreamConfig:
        """Make a stream, or a topic of our `own`; or return the configuration of the one that exists already."""
        check_config(name, config)
        found = self.all(own=True, among=[name])
        if name not in found:
            self.call(name, self._create(name, config, own))
            self.call(name, self._until_known(name))
            found = self.all(own=True, among=[name])
        elif own:
            self.know([name], own=True)
        elif config.intermediate and (found[name].intermediate or self._was_made_ahead(name, found[name].partitions)):
            self.know([name], own=False)
            found = self.all(own=True, among=[name])
            self.amend([name], BETWEEN_CONFIGS)
        elif config.compression and config.compression == found[name].compression:
            self._tell_uncompressed(name, CODECS[config.compression])
        return found[name] if own else self._as_kept({name: found[name]})[name]

    def _tell_uncompressed(self, name: str, codec: str) -> None:
        """Tell of a topic of an earlier version, which noted its compression and did not tell the brokers."""
        if self.call(name, self._configs_of(name)).get(COMPRESSION) == AS_WRITTEN:
            topic, wanted = self.topic(name), f"{COMPRESSION}={codec}"
            _log.warning("the topic %r is not compressed; type: %s", name, altering(topic, wanted))

    def _was_made_ahead(self, name: str, partitions: int) -> bool:
        """Whether a topic of which nobody has said what it is has never had a record, which could be lost."""
        begun: Begun = self.call(name, range_of(self.topic(name), partitions, "read_uncommitted"))
        return not any(begun.ends.values())

    def know(self, names: Iterable[str], own: bool) -> None:
        """Register topics again that are there, as our own, or as lying between stages.

        Others have made them beforehand, or what says what streams were made with has lost it.
        """
        for name in names:
            known = self._known.get(name)
            if known is not None and not (known.own if own else known.config.intermediate):
                config = msgspec.structs.replace(known.config, compacted=own, intermediate=not own)
                self._known[name] = _Known(config, own)
                for fetcher in self._readers_of(name):
                    fetcher.is_between = not own
                self.call(name, self._register(name, msgspec.msgpack.encode(self._known[name])))

    def amend(self, names: Sequence[str], wanted: Mapping[str, str]) -> dict[str, dict[str, str]]:
        """Configure topics of our own as they must be, and return how they were.

        Raises `EnvironmentFault` where this client may not change one that is otherwise. Where brokers do not tell it
        how they are, that is said in the log.
        """
        return self.call(names[0], self._amend(names, wanted)) if names else {}

    def metadata(self, names: Sequence[str]) -> dict[str, TopicMetadata]:
        """Return what brokers know of these topics, those of them that there are."""
        return self.call(names[0], self.metadata_of(names)) if names else {}

    def is_there(self, name: str) -> bool:
        """Whether brokers know of a topic now; they are asked for no other, however many a cluster has."""
        return name in self.metadata([name])

    def delete(self, name: str) -> None:
        """Remove a stream with all that is in it; nothing happens where it is absent."""
        self.forget(name)
        self.call(name, self._delete(name))
        self._known.pop(name, None)

    def all(self, own: bool = False, among: Collection[str] | None = None) -> dict[str, StreamConfig]:
        """Return streams by name, those of our `own` as well: all, or those `among` these that there are."""
        # Who asks for all of a cluster waits for its thousands of topics, most of which are of others.
        counts, looked = self.call(self.registry, self._look(among))
        others = {} if among is None else {name: one for name, one in self._known.items() if name not in among}
        self._known = others | looked
        found = {}
        for name, partitions in sorted(counts.items()):
            known = self._known.get(name, _Known(StreamConfig()))
            config = msgspec.structs.replace(known.config, partitions=partitions)
            self._known[name] = _Known(config, known.own)
            if own or not known.own:
                found[name] = config
        return found

    def streams(self, among: Collection[str] | None = None) -> dict[str, StreamConfig]:
        """Return streams by name, all or those `among` these, each as the brokers keep it now, as far as they tell."""
        return self._as_kept(self.all(among=among))

    def is_stamped(self, name: str) -> bool:
        """Whether the time of a topic's records is when brokers took them, as far as they tell."""
        return self.call(name, self._configs_of(name)).get(STAMPS) == APPENDED

    def config(self, name: str) -> StreamConfig:
        """Return what a stream was made with, and the partitions it had when it was last looked.

        Raises `EnvironmentFault` where it is absent.
        """
        if name not in self._known and name not in self.all(own=True, among=[name]):
            raise absent_error(name)
        return self._known[name].config

    def ranges(self) -> dict[str, list[Offsets]]:
        """Return the readable range of each partition of all streams, without a look at whether any has ended."""
        found = None
        while found is None:
            counts = {name: config.partitions for name, config in self.all().items()}
            found = self.call(self.registry, self._ranges(counts))
        return {
            name: [Offsets(starts[number], ends[number], ended=False) for number in range(counts[name])]
            for name, (starts, ends) in found.items()
        }

    def stats(self, name: str) -> tuple[int, int]:
        """Return how many records a stream holds, and the bytes of their keys and values; it reads all of them."""
        found: tuple[int, int] = self.call(name, self._count(name, self.config(name).partitions))
        return found

    def described(self, name: str) -> StreamConfig:
        """Return what a topic is kept as now, whoever has made it; raises `EnvironmentFault` where it is absent."""
        made = self.all(among=[name]).get(name)
        if made is None:
            raise absent_error(name)
        found: Mapping[str, str] = self.call(name, described(self.topic(name)))
        return config_in(found, made)

    def is_own(self, name: str) -> bool:
        """Whether a topic is none of the streams, but for our own use, as it was when it was last looked."""
        return name in self._known and self._known[name].own

    def is_known(self, name: str) -> bool:
        """Whether there was such a stream when it was last looked."""
        return name in self._known

    def fetcher(self, name: str, partition: int, reader: int = 0) -> KafkaFetcher:
        """Return what reads a stream, which has such a partition, for one of its readers here."""
        fetcher = self._fetchers.get((name, reader))
        if fetcher is not None and (name, reader) in self._doubted:
            self._doubted.remove((name, reader))
            found = self.metadata([name]).get(name)
            if found is None or (found.id, found.partitions) != (fetcher.stream_id(), fetcher.partitions):
                self.forget(name)
                fetcher = None
        if fetcher is None:
            between = self.config(name).intermediate
            fetcher = self._fetchers[name, reader] = KafkaFetcher(self.topic(name), between)
            fetcher.listen(self._tell)
            # Siblings share what one of them has fetched: brokers never tell the others what lies before their offsets.
            fetcher.listen_for_ends(partial(self._end_read, name))
            for (stream, number), end in self._written.items():
                if stream == name:  # which brokers need not have marked as committed yet when they were asked
                    fetcher.wrote(number, end)
        if not 0 <= partition < fetcher.partitions:
            raise no_partition_error(name, StreamConfig(partitions=fetcher.partitions), partition)
        return fetcher

    def forget(self, name: str) -> None:
        """Read a stream no more."""
        self._looked_at = {place for place in self._looked_at if place[0] != name}
        self._written = {place: end for place, end in self._written.items() if place[0] != name}
        for place in [place for place in self._fetchers if place[0] == name]:
            self._fetchers.pop(place).close()

    def records_of(self, appends: Iterable[Append]) -> dict[tuple[str, int], Batch]:
        """Return rows as records, by partition; raises `EnvironmentFault` for what a stream does not take."""
        found: dict[tuple[str, int], Batch] = {}
        ended = set()
        for stream, partition, batch, control in appends:
            config = self.config(stream)
            check_keys(stream, config, batch)
            check_columns(batch)
            place = stream, partition
            if place in ended or self._has_ended(stream, partition):
                raise ended_error(stream, partition)
            if ends(control):
                ended.add(place)
            if batch.values or control is not None:
                records = as_records(batch, control, config.intermediate)
                if place in found:
                    found[place].extend(records)
                else:
                    found[place] = records
        return found

    def _has_ended(self, stream: str, partition: int) -> bool:
        """Whether a partition has ended: asked once, and then known of what is written here."""
        fetcher = self.fetcher(stream, partition)
        if (stream, partition) in self._looked_at:
            return fetcher.offsets(partition).ended
        # Once per partition: only who writes here could end it later, and that is known.
        self._looked_at.add((stream, partition))
        return fetcher.refresh(partition).ended

    def reached(self, offsets: Mapping[tuple[str, int], int], appends: Iterable[Append]) -> None:
        """Take note how far the partitions have come that were appended to, and which of them have ended."""
        for place, end in offsets.items():
            self._written[place] = max(self._written.get(place, 0), end)
        ended = {(one.stream, one.partition) for one in appends if ends(one.control)}
        for (stream, partition), end in offsets.items():
            for fetcher in self._readers_of(stream):
                fetcher.wrote(partition, end, (stream, partition) in ended)

    def _end_read(self, stream: str, partition: int, end: int) -> None:
        for fetcher in self._readers_of(stream):
            fetcher.wrote(partition, end, ended=True)

    def _readers_of(self, stream: str) -> list[KafkaFetcher]:
        return [fetcher for (name, _), fetcher in [*self._fetchers.items()] if name == stream]

    def write(self, name: str, records: Batch) -> None:
        """Write records to a topic of one partition, in no transaction."""
        self.call(name, self.say(name, records))

    async def say(self, name: str, records: Batch) -> None:
        """Write records as `write` does."""
        async with self._one_begins:
            if self._registrar is None:
                registrar = AIOKafkaProducer(**self.topic(self.registry).client(), enable_idempotence=True)
                self._registrar = await begun(registrar)
        await send_all(self._registrar, {(name, 0): records})

    def is_caught_up(self) -> bool:
        """Whether all that was written between stages was read here, in the partitions that are read here."""
        for (name, _), fetcher in self._fetchers.items():
            if self.config(name).intermediate:
                positions = fetcher.positions()
                begun = self.call(name, range_of(self.topic(name), fetcher.partitions, "read_uncommitted"))
                if any(begun.ends[partition] > position for partition, position in positions.items()):
                    return False
        return True

    def drop(self, tasks: Collection[VirtualTask]) -> None:
        """Fetch nothing between stages any more for these tasks, until it is read again."""
        for (name, reader), fetcher in self._fetchers.items():
            if self.config(name).intermediate:
                fetcher.drop(task.base for task in tasks if task.bucket == reader)

    def drop_readers(self, number: int) -> None:
        """Let go of what reads for more than so many readers."""
        for place in [place for place in self._fetchers if place[1] >= number]:
            self._fetchers.pop(place).close()

    async def producer(self, transactional_id: str, shared: bool = False) -> Producer:
        """Return a producer that has begun, in transactions of that id; `shared` spares connections of its own."""
        for tries_left in reversed(range(PRODUCER_TRIES)):
            client = self.topic(self.registry).client()
            producer = AIOKafkaProducer(**client, transactional_id=transactional_id, max_batch_size=BATCH_BYTES)
            if shared:
                self._shared.share(producer)
            try:
                return await begun(producer, within_s=PRODUCER_TRY_S)
            except TimeoutError:
                # aiokafka's may wait for ever when the coordinator went away and came back while it was looked for.
                if not tries_left:
                    raise
        raise AssertionError("the last try returns or raises")

    async def purge(self, below: Mapping[tuple[str, int], int]) -> None:
        """Remove what is below offsets."""
        places = {TopicPartition(*place): RecordsToDelete(before_offset=offset) for place, offset in below.items()}
        await (await self._administrator()).delete_records(places)

    def rest(self) -> None:
        """Fetch nothing until it is read again; what was written here can be read by everybody then.

        Unless brokers do not answer, or others leave transactions open.
        """
        stop(self._thread, self._until_seen())
        for place, fetcher in [*self._fetchers.items()]:
            if fetcher.has_failed or not fetcher.stream_id():
                self._fetchers.pop(place).close()
            else:
                fetcher.drop(range(fetcher.partitions))
        self._doubted = {*self._fetchers}

    def close(self) -> None:
        """Read nothing more."""
        self.rest()
        for name in {name for name, _ in self._fetchers}:
            self.forget(name)
        self._thread.call(self._stop())

    async def _until_seen(self) -> None:
        """Wait for what was written here, but in topics that others have deleted meanwhile."""
        if self._written:
            async with asyncio.timeout(SEEN_S):
                names = sorted({name for name, _ in self._written})
                there = await topics_of(await self._administrator(), names, told_alone=True)
            left = {place: end for place, end in self._written.items() if place[0] in there}
            await until_seen(self.topic(self.registry), left)

    async def _look(self, among: Collection[str] | None = None) -> tuple[dict[str, int], dict[str, _Known]]:
        client, names = await self._administrator(), None if among is None else sorted({*among, self.registry})
        found = await answered(lambda: topics_of(client, names, told_alone=True))
        counts = {name: one.partitions for name, one in found.items() if not one.is_internal and name != PUBLISHED}
        if counts.pop(self.registry, None) is None:
            await create_topic(self.topic(self.registry), 1, configs_of(_TABLE) | TABLE_CONFIGS)
            return counts, {}
        entries = await self.table(self.registry).now()
        known = {name.decode(): msgspec.msgpack.decode(said, type=_Known) for name, said in entries.items()}
        return counts, {name: one for name, one in known.items() if name in counts}

    async def _count(self, name: str, partitions: int) -> tuple[int, int]:
        topic = self.topic(name)
        rows = size_bytes = 0
        async for scanned in scan(topic, *await range_of(topic, partitions)):
            found = scanned.rows
            said = [row for row in range(len(found)) if control_of(found, row) is not None]
            kept = found.without(said)
            rows += len(kept)
            size_bytes += sum(len(data) for column in (kept.keys or (), kept.values) for data in column if data)
        return rows, size_bytes

    async def _ranges(self, partitions: Mapping[str, int]) -> dict[str, Begun] | None:
        """Return the ranges of topics; None where one has gone meanwhile, of which aiokafka would ask on and on."""
        asking = asyncio.ensure_future(ranges_of(self.topic(self.registry), partitions))
        try:
            while not (await asyncio.wait([asking], timeout=GONE_S))[0]:
                if partitions.keys() - (await self._look())[0].keys():
                    return None
            return await asking
        finally:
            asking.cancel()
            await asyncio.wait([asking])

    async def _create(self, name: str, config: StreamConfig, own: bool) -> None:
        configs = configs_of(config)
        if own or config.intermediate:
            configs |= TABLE_CONFIGS | segments_of(config) if own else BETWEEN_CONFIGS
            configs["max.message.bytes"] = str(LARGEST_BYTES)
        # Said first: a topic of which nobody has said what it is would never become a stream between stages.
        await self._register(name, msgspec.msgpack.encode(_Known(config, own)))
        await create_topic(self.topic(name), config.partitions, configs)

    async def group_offsets(self, group: str) -> dict[tuple[str, int], int]:
        """Return what a group has committed, of partitions of which it has read something."""
        client = await self._administrator()
        try:
            found = await answered(lambda: client.list_consumer_group_offsets(group))
        except (GroupCoordinatorNotAvailableError, GroupAuthorizationFailedError):
            return {}  # none has committed yet; or it can't be seen, as commits will tell
        return {(place.topic, place.partition): at.offset for place, at in found.items() if at.offset > 0}

    async def metadata_of(self, names: Sequence[str]) -> dict[str, TopicMetadata]:
        """Return what `metadata` does."""
        client = await self._administrator()
        return await answered(lambda: topics_of(client, names))

    async def _amend(self, names: Sequence[str], wanted: Mapping[str, str]) -> dict[str, dict[str, str]]:
        client = await self._administrator()
        try:
            found = await answered(lambda: configs_in(client, names))
        except TopicAuthorizationFailedError as error:
            _log.warning("this client may not see how topics are configured, so that it is not checked: %s", error)
            return {}
        for name, configs in found.items():
            if wanted is BETWEEN_CONFIGS and configs.get(STAMPS) == APPENDED:
                await self._check_empty(name)
            await amend(client, self.topic(name), configs, wrong_in(configs, wanted))
        return found

    def _as_kept(self, streams: Mapping[str, StreamConfig]) -> dict[str, StreamConfig]:
        """Return streams as the brokers keep them: others may have made them, or changed them since."""
        names = [name for name, config in streams.items() if not config.intermediate]
        configs = self.call(self.registry, self._configs(names)) if names else {}
        return {
            name: config_in(configs[name], config) if name in configs else config for name, config in streams.items()
        }

    async def _configs_of(self, name: str) -> Mapping[str, str]:
        return (await self._configs([name])).get(name, {})

    async def _configs(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return how topics are configured as streams are, those of which brokers tell this client."""
        client = await self._administrator()
        try:
            return await answered(lambda: configs_in(client, names, told_alone=True))
        except TopicAuthorizationFailedError:
            return {}

    async def _check_empty(self, name: str) -> None:
        """Raise `Damaged` where a topic between stages, which brokers stamp, holds records without their event time."""
        starts, ends = await range_of(self.topic(name), self._known[name].config.partitions, "read_uncommitted")
        if starts != ends:
            raise Damaged(
                f"The topic {name!r} lies between the stages of an application and has {STAMPS}={APPENDED}, so that "
                "what it holds has the brokers' time in the place of its event time: windows and joins behind it come "
                f"to nothing. Begin anew, which makes it as it must be: {command('reset APP')}."
            )

    async def _until_known(self, name: str, known: bool = True) -> None:
        """Wait until brokers know of a topic, or of its end: each hears of it by itself, and any may be asked."""
        client = await self._administrator()
        brokers = len((await answered(client.describe_cluster))["brokers"])
        enough, agreed = LOOKS_EACH * brokers if brokers > 1 else 1, 0
        for _ in range(LOOKS):
            agreed = agreed + 1 if (name in await answered(client.list_topics)) == known else 0
            if agreed == enough:
                return
            if not agreed:
                await sleep_ms(LOOK_MS)
        raise KafkaError(f"the brokers do not agree on whether there is a topic {name!r}")

    async def _delete(self, name: str) -> None:
        await (await self._administrator()).delete_topics([name])
        await self._until_known(name, known=False)
        # Last: a topic that is gone and still registered costs nothing, one that is there and not registered would
        # look like a stream.
        await self._register(name, None)

    async def _register(self, name: str, said: bytes | None) -> None:
        await self.say(self.registry, Batch([said], [name.encode()]))

    async def _administrator(self) -> AIOKafkaAdminClient:
        async with self._one_begins:
            if self._admin is None:
                self._admin = await begun(AIOKafkaAdminClient(**self.topic(self.registry).client()))
            return self._admin

    async def _stop(self) -> None:
        for client in filter(None, (self._admin, self._registrar)):
            await ended(client)
        for table in self._tables.values():
            await table.stop()


class KafkaReading:
    """One of several readers of the same partitions, with fetchers of its own: the first one by default.

    Any thread may call it; it waits for Kafka's thread where it asks brokers.
    """

    def __init__(self, streams: KafkaStreams, reader: int = 0) -> None:
        self._streams = streams
        self._reader = reader

    def offsets(self, stream: str, partition: int) -> Offsets:
        """Return the readable range of a partition, in Kafka's offsets: not each of them has a record."""
        return self._fetcher(stream, partition).refresh(partition)

    def look(self, stream: str, partitions: Collection[int]) -> None:
        """Ask for the ranges of partitions that are about to be read, so that they are `known`."""
        self._fetcher(stream, max(partitions)).ask(partitions)

    def known(self, stream: str, partition: int) -> Offsets:
        """Return the last answer of `offsets`, and how far the partition is known to have come since; asks nobody."""
        return self._fetcher(stream, partition).offsets(partition)

    def expect(self, stream: str, offsets: Mapping[int, int]) -> None:
        """Announce the offsets that partitions are about to be read from, so that none waits for another."""
        self._fetcher(stream, max(offsets)).expect(offsets)

    def read(self, stream: str, partition: int, offset: int, max_records: int = 10_000) -> Read | None:
        """Return rows from `offset` on, waiting for what is known to be there; None at the end.

        Where only the marker of a transaction lies there, there are no rows, and `next_offset` is behind it.
        """
        return self._fetcher(stream, partition).read_known(partition, offset, max_records)

    def fetched(self, stream: str, partition: int, offset: int) -> Read | None:
        """Return rows from `offset` on that have come already; None where none have.

        So nobody waits for what is known to be there and is late, as the transaction of another task may lie before it.
        """
        return self._fetcher(stream, partition).fetched(partition, offset)

    def unheard_ms(self, stream: str, partition: int, offset: int) -> float:
        """Return the ms for which it has been unknown whether something lies at or beyond an offset."""
        return self._fetcher(stream, partition).unheard_ms(partition, offset)

    def held(self, stream: str, partition: int) -> OpenTransaction | None:
        """Return the open transaction that holds records back, as of the last fetch; None if none does."""
        return self._fetcher(stream, partition).held(partition)

    def _fetcher(self, stream: str, partition: int) -> KafkaFetcher:
        return self._streams.fetcher(stream, partition, self._reader)
