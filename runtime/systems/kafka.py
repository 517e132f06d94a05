"""An environment that is a Kafka cluster: one transaction per commit, state in a local store behind changelogs."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from aiokafka.errors import InvalidProducerEpoch, ProducerFenced
from aiokafka.structs import OffsetAndMetadata, TopicPartition

from operators.base import Batch
from runtime.assignment import Membership
from runtime.checkpoint import Checkpoint
from runtime.errors import EnvironmentFault, Fenced
from runtime.systems.base import (
    END,
    Append,
    Commit,
    Offsets,
    Read,
    StateReader,
    StreamConfig,
    check_name,
    is_fenced,
)
from runtime.systems.kafka_changelog import Changelog, Restored, entries_of, restore
from runtime.systems.kafka_records import is_said
from runtime.systems.kafka_sink import send_all
from runtime.systems.kafka_streams import KafkaStreams, no_containers
from runtime.systems.kafka_table import load, range_of, scan
from runtime.systems.kafka_thread import KafkaThread
from runtime.systems.kafka_topic import KafkaCluster
from runtime.systems.log import LogEnvironment

TRANSACTION_S = 55.0
"""How long a transaction may take: Kafka itself rolls it back after 60 s."""
STOP_S = 10.0
"""How long a producer that failed may take to stop."""
PURGE_EVERY = 16
"""After how many commits what they have consumed is removed from the topics between stages."""
GENERATION, CHANGELOG = b"generation", b"changelog:"
"""The keys in an application's checkpoint topic that are no tasks'."""
_TABLE = StreamConfig(compacted=True)


class _Owner:
    """An application that this process owns: the producer that fences its predecessors, and what is committed."""

    def __init__(self, producer: Any, generation: int, entries: Mapping[bytes, bytes]) -> None:
        self.producer = producer
        self.generation = generation
        self.checkpoints = _checkpoints(entries)
        self.changelogs = {
            key.removeprefix(CHANGELOG).decode(): msgspec.msgpack.decode(said, type=Changelog)
            for key, said in entries.items()
            if key.startswith(CHANGELOG)
        }
        self.local_generation = 0
        self.restored = Restored({}, 0)
        self.consumed: dict[tuple[str, int], int] = {}
        self.commits = 0


class KafkaEnvironment:
    """Streams, changelogs and checkpoints in a cluster; state in `directory`, never ahead of these.

    Whoever owns an application has the transactional id of its name, so that what an earlier owner still commits is
    refused. Raises `EnvironmentFault` where the cluster can't be used.
    """

    def __init__(self, cluster: KafkaCluster, directory: str | Path) -> None:
        self.address = cluster.address
        self._owners: dict[str, _Owner] = {}
        self._outside: Any = None
        self._version = 0
        self._counting = threading.Lock()
        self._told: Callable[[], None] = lambda: None
        self._local = LogEnvironment(directory)
        self._thread: KafkaThread | None = KafkaThread.acquire()
        self._streams = KafkaStreams(cluster, self._thread, self._changed)
        try:
            self._streams.all()
        except BaseException:
            self.close()
            raise

    def listen(self, tell: Callable[[], None]) -> None:
        """Have `tell` called, from any thread, when there may be more to read."""
        self._told = tell

    def create_stream(self, name: str, config: StreamConfig) -> StreamConfig:
        """Make a stream, or return the configuration of the one that exists already."""
        config = self._streams.create(name, config)
        self._changed()
        return config

    def delete_stream(self, name: str) -> None:
        """Remove a stream with all that is in it; nothing happens where it is absent."""
        if name in self._streams.all():
            self._streams.delete(name)
            self._changed()

    def streams(self) -> dict[str, StreamConfig]:
        """Return all streams by name."""
        return self._streams.all()

    def offsets(self, stream: str, partition: int) -> Offsets:
        """Return the readable range of a partition, in Kafka's offsets: not each of them has a record."""
        return self._streams.fetcher(stream, partition).refresh(partition)

    def stream_stats(self, stream: str) -> tuple[int, int]:
        """Return how many records a stream holds, and the bytes of their keys and values; it reads all of them."""
        partitions = self._streams.config(stream).partitions

        async def count() -> tuple[int, int]:
            topic = self._streams.topic(stream)
            rows = size_bytes = 0
            async for scanned in scan(topic, *await range_of(topic, partitions)):
                kept = [one for one in scanned.records if not is_said(one)]
                rows += len(kept)
                size_bytes += sum(len(one.key or b"") + len(one.value or b"") for one in kept)
            return rows, size_bytes

        found: tuple[int, int] = self._streams.call(stream, count())
        return found

    def version(self) -> int:
        """Return a number that grows with every change here, and with what is fetched."""
        return self._version

    def read(self, stream: str, partition: int, offset: int, max_records: int = 10_000) -> Read | None:
        """Return rows from `offset` on, waiting for what is known to be there; None at the end.

        Where only the marker of a transaction lies there, there are no rows, and `next_offset` is behind it.
        """
        return self._streams.fetcher(stream, partition).read_known(partition, offset, max_records)

    def append(self, appends: Iterable[Append]) -> None:
        """Write rows in one transaction, as a producer outside any application does."""
        appends = list(appends)
        pending = self._streams.records_of(appends)
        if pending:
            self._streams.reached(self._streams.call(next(iter(pending))[0], self._append(pending)), appends)
            self._changed()

    def end_stream(self, stream: str) -> None:
        """Append end-of-stream to every partition that has not ended; they take nothing more."""
        partitions = range(self._streams.config(stream).partitions)
        open_ones = [number for number in partitions if not self.offsets(stream, number).ended]
        self.append([Append(stream, number, Batch([]), END) for number in open_ones])

    def compact(self, stream: str) -> None:
        """Leave it to the brokers, which compact when they see fit."""
        self._streams.config(stream)

    def commit(self, commit: Commit) -> None:
        """Make everything in `commit` visible in one transaction, then write its state here.

        Raises `Fenced` when another owner has come since. After any other failure nobody knows whether it was
        committed: the application must be owned anew, and go on from its checkpoint.
        """
        owner = self._owner(commit)
        pending = self._streams.records_of(commit.appends)
        for store in sorted({writes.store for writes in commit.state} - owner.changelogs.keys()):
            self._add_changelog(commit.app, owner, store)
        for writes in commit.state:
            for place, rows in entries_of(commit.app, writes).items():
                pending.setdefault(place, Batch([], [])).extend(rows)
        names = [name.encode() for name in commit.checkpoints]
        said = [msgspec.msgpack.encode(one) for one in commit.checkpoints.values()]
        if names:
            pending[_ledger(commit.app), 0] = Batch([*said], [*names])
        try:
            ends = self._streams.call(_ledger(commit.app), self._transact(owner, pending, commit)) if pending else {}
        except EnvironmentFault as error:
            self._disown(commit.app)
            if isinstance(error.__cause__, ProducerFenced | InvalidProducerEpoch):
                raise is_fenced(commit.app, commit.generation, self.generation(commit.app)) from error
            raise
        owner.restored.positions.update(owner.restored.names_of(commit.app, owner.changelogs, ends))
        self._write_locally(commit, owner)
        owner.checkpoints.update(commit.checkpoints)
        self._streams.reached(ends, commit.appends)
        self._consume(owner, commit)
        self._changed()

    def own(self, app: str) -> int:
        """Become the application's one owner, and bring its state here up to date; raises `Owned`.

        An earlier owner, wherever it runs, is fenced, and what it had not committed is rolled back.
        """
        check_name("application", app)
        self._local.own(app)
        self._disown(app)
        self._streams.create(_ledger(app), _TABLE, own=True)
        owner: _Owner = self._streams.call(_ledger(app), self._begin(app))
        self._owners[app] = owner
        owner.restored = restore(self._streams, self._local, app, owner.changelogs)
        owner.local_generation = self._local.generation(app)
        self._changed()
        return owner.generation

    def generation(self, app: str) -> int:
        """Return the application's generation: 0 before anyone owned it."""
        return _generation(self._entries(app))

    def join(self, app: str, generation: int, container: str, tasks: int) -> Membership:
        """Refuse to share an application: one process runs it."""
        raise no_containers(self.address)

    def checkpoints(self, app: str) -> dict[str, Checkpoint]:
        """Return the application's newest checkpoint of every task."""
        owner = self._owners.get(app)
        return dict(owner.checkpoints) if owner is not None else _checkpoints(self._entries(app))

    def restored(self, app: str) -> int:
        """Return how many changelog records were replayed when the application was last owned here."""
        return self._owners[app].restored.records

    def state_get(self, app: str, store: str, task: int, key: bytes) -> bytes | None:
        """Return the committed value of one entry."""
        return self._local.state_get(app, store, task, key)

    def state_range(
        self, app: str, store: str, task: int, start: bytes = b"", end: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield committed entries with `start` <= key < `end` in key order; nothing may write to them meanwhile."""
        return self._local.state_range(app, store, task, start, end)

    def state_reader(self, app: str, store: str, task: int) -> StateReader:
        """Return what reads single entries of one store and task, many of them more cheaply than `state_get`."""
        return self._local.state_reader(app, store, task)

    def stores(self, app: str) -> list[str]:
        """Return the names of the application's stores that hold anything, in order."""
        return self._local.stores(app)

    def state_stats(self, app: str) -> dict[tuple[str, int], tuple[int, int]]:
        """Return, per (store, task), the number of entries and their bytes."""
        return self._local.state_stats(app)

    def reset(self, app: str, stores: Iterable[str] | None = None) -> None:
        """Remove the application's checkpoints and state (of `stores`, or all) and begin a new generation."""
        self.own(app)
        owner = self._owners[app]
        gone = [store for store in owner.changelogs if stores is None or store in stores]
        ledger = {(_ledger(app), 0): Batch([None] * len(owner.checkpoints), [n.encode() for n in owner.checkpoints])}
        if owner.checkpoints:
            self._streams.call(_ledger(app), self._transact(owner, ledger, None))
        owner.checkpoints.clear()
        for store in gone:
            self._streams.call(_ledger(app), self._empty(app, owner, store))
        self._local.reset(app, gone)
        owner.restored = restore(self._streams, self._local, app, owner.changelogs)
        owner.local_generation = self._local.generation(app)
        self._changed()

    def close(self) -> None:
        """Release everything; a second call does nothing."""
        if self._thread is None:
            return
        thread, self._thread = self._thread, None
        try:
            producers = [self._outside, *(owner.producer for owner in self._owners.values())]
            for producer in filter(None, producers):
                thread.call(producer.stop())
            self._streams.close()
        finally:
            self._owners.clear()
            thread.release()
            self._local.close()

    def _changed(self) -> None:
        with self._counting:
            self._version += 1
        self._told()

    def _entries(self, app: str) -> dict[bytes, bytes]:
        if _ledger(app) not in self._streams.all(own=True):
            return {}
        found: dict[bytes, bytes] = self._streams.call(_ledger(app), load(self._streams.topic(_ledger(app))))
        return found

    def _owner(self, commit: Commit) -> _Owner:
        if commit.tasks:
            raise no_containers(self.address)
        owner = self._owners.get(commit.app)
        if owner is None or owner.generation != commit.generation:
            current = owner.generation if owner is not None else self.generation(commit.app)
            if current == commit.generation:
                raise Fenced(f"A commit of {commit.app!r} has failed: run it again, from its checkpoint.")
            raise is_fenced(commit.app, commit.generation, current)
        return owner

    def _disown(self, app: str) -> None:
        owner = self._owners.pop(app, None)
        if owner is not None and self._thread is not None:
            with suppress(TimeoutError):
                self._thread.call(asyncio.wait_for(owner.producer.stop(), STOP_S))

    async def _begin(self, app: str) -> _Owner:
        """Fence whoever owned it, then read what was committed by then, and say that there is a new generation."""
        producer = await self._streams.producer(app)
        try:
            await producer.begin_transaction()
            entries = await load(self._streams.topic(_ledger(app)))
            generation = _generation(entries) + 1
            said = Batch([msgspec.msgpack.encode(generation)], [GENERATION])
            await send_all(producer, {(_ledger(app), 0): said})
            await producer.commit_transaction()
        except BaseException:
            await producer.stop()
            raise
        return _Owner(producer, generation, entries)

    async def _append(self, pending: Mapping[tuple[str, int], Batch]) -> dict[tuple[str, int], int]:
        if self._outside is None:
            self._outside = await self._streams.producer(f"samza-dsl-{secrets.token_hex(8)}")
        async with self._outside.transaction():
            return await send_all(self._outside, pending)

    async def _transact(
        self, owner: _Owner, pending: Mapping[tuple[str, int], Batch], commit: Commit | None
    ) -> dict[tuple[str, int], int]:
        """Write everything, and where the inputs are, in one transaction; return the offsets behind all of it."""
        producer = owner.producer
        async with asyncio.timeout(TRANSACTION_S):
            await producer.begin_transaction()
            ends = await send_all(producer, pending)
            if commit is not None:
                positions = [one for checkpoint in commit.checkpoints.values() for one in checkpoint.positions]
                offsets = {
                    TopicPartition(one.stream, one.partition): OffsetAndMetadata(one.offset, "")
                    for one in positions
                    if one.system == "log" and self._streams.is_known(one.stream)  # else brokers are asked for ever
                }
                if offsets:
                    await producer.send_offsets_to_transaction(offsets, commit.app)
            await producer.commit_transaction()
        return ends

    def _write_locally(self, commit: Commit, owner: _Owner) -> None:
        if commit.state:
            checkpoints = owner.restored.checkpoint(owner.local_generation)
            self._local.commit(Commit(commit.app, owner.local_generation, [], commit.state, checkpoints))

    def _add_changelog(self, app: str, owner: _Owner, store: str) -> None:
        changelog = Changelog(secrets.token_hex(8))
        self._streams.create(changelog.topic(app, store), changelog.config, own=True)
        said = Batch([msgspec.msgpack.encode(changelog)], [CHANGELOG + store.encode()])
        self._streams.call(_ledger(app), self._transact(owner, {(_ledger(app), 0): said}, None))
        owner.changelogs[store] = changelog
        owner.restored.positions.update(changelog.begun(store))

    async def _empty(self, app: str, owner: _Owner, store: str) -> None:
        """Remove all that a changelog holds."""
        changelog = owner.changelogs[store]
        topic = self._streams.topic(changelog.topic(app, store))
        starts, ends = await range_of(topic, changelog.config.partitions)
        below = {(topic.name, number): end for number, end in ends.items() if starts[number] < end}
        if below:
            await self._streams.purge(below)

    def _consume(self, owner: _Owner, commit: Commit) -> None:
        """Now and then remove what nobody will read again; a failure is made good by the next time."""
        for place, offset in commit.consumed.items():
            if self._streams.config(place[0]).intermediate:
                owner.consumed[place] = offset
        owner.commits += 1
        if owner.consumed and owner.commits % PURGE_EVERY == 0:
            below, owner.consumed = owner.consumed, {}
            with suppress(EnvironmentFault):
                self._streams.call(_ledger(commit.app), self._streams.purge(below))


def _ledger(app: str) -> str:
    """Return the topic of an application's checkpoints."""
    return f"{app}-checkpoints"


def _generation(entries: Mapping[bytes, bytes]) -> int:
    generation: int = msgspec.msgpack.decode(entries[GENERATION], type=int) if GENERATION in entries else 0
    return generation


def _checkpoints(entries: Mapping[bytes, bytes]) -> dict[str, Checkpoint]:
    return {
        key.decode(): msgspec.msgpack.decode(said, type=Checkpoint)
        for key, said in entries.items()
        if key != GENERATION and not key.startswith(CHANGELOG)
    }
