"""An environment that is a Kafka cluster: one transaction per commit, state in local stores behind changelogs."""

from __future__ import annotations

import os
import platform
import secrets
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from aiokafka.errors import InvalidProducerEpoch, ProducerFenced

from operators.base import Batch
from runtime.assignment import JobModel, Membership, Placement, sticky
from runtime.checkpoint import Checkpoint
from runtime.errors import EnvironmentFault, Fenced
from runtime.homes import Homes
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
    is_taken,
)
from runtime.systems.kafka_announced import Announced
from runtime.systems.kafka_changelog import PARTITIONS
from runtime.systems.kafka_clients import ended
from runtime.systems.kafka_group import Joining
from runtime.systems.kafka_ledger import (
    TABLE,
    Ledger,
    forgotten,
    ledger_of,
    said_of_homes,
    said_of_stores,
    writer_of,
)
from runtime.systems.kafka_members import KafkaMembers
from runtime.systems.kafka_owner import (
    Owner,
    add_changelog,
    begin,
    claim_all,
    empty,
    let_go,
    records_of,
    seen,
    stores_of,
    transact,
    write_alone,
)
from runtime.systems.kafka_runs import KafkaRuns
from runtime.systems.kafka_standby import Standby
from runtime.systems.kafka_state import KafkaState
from runtime.systems.kafka_streams import KafkaStreams
from runtime.systems.kafka_thread import KafkaThread, stop
from runtime.systems.kafka_topic import KafkaCluster
from runtime.systems.kafka_writers import Writers
from runtime.systems.log import LogEnvironment
from runtime.systems.log_locks import owner_lock

FENCED = ProducerFenced, InvalidProducerEpoch
PURGE_EVERY = 16
"""After how many commits what they have consumed is removed from the topics between stages."""


class KafkaEnvironment:
    """Streams, changelogs and checkpoints in a cluster; state in `directory`, never ahead of these.

    `host` names the machine that has the directory, where that is not its own name. Whoever comes to own an application
    takes the transactional ids of who did before, whose commits are refused then. Raises `EnvironmentFault` where the
    cluster can't be used.
    """

    def __init__(self, cluster: KafkaCluster, directory: str | Path, host: str | None = None) -> None:
        self.address = cluster.address
        self._host = host or platform.node()
        self._owners: dict[str, Owner] = {}
        self._outside: Any = None
        self._outside_id = f"samza-dsl-{secrets.token_hex(8)}"
        """What the transactions of no application are made under: the next one ends what one has left open."""
        self._version = 0
        self._counting = threading.Lock()
        self._told: Callable[[], None] = lambda: None
        self._directory = Path(directory)
        self._locks: dict[str, int] = {}
        self._by_task: set[str] = set()
        """The applications that are about to be joined, and whose tasks commit by themselves."""
        self._committing, self._appending = threading.Lock(), threading.Lock()
        self._announced: list[Announced] = []
        self._thread: KafkaThread | None = KafkaThread.acquire()
        self._streams = KafkaStreams(cluster, self._thread, self._changed)
        self._state = KafkaState(self._streams, self._directory)
        try:
            self._streams.all()
        except BaseException:
            self.close()
            raise

    def __str__(self) -> str:
        return self.address

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

    def look(self, stream: str, partitions: Collection[int]) -> None:
        """Ask how far partitions are, so that it is known."""
        self._streams.fetcher(stream, max(partitions)).ask(partitions)

    def known(self, stream: str, partition: int) -> Offsets:
        """Return what `offsets` has said last, and how far the partition is known to have come since."""
        return self._streams.fetcher(stream, partition).offsets(partition)

    def expect(self, stream: str, offsets: Mapping[int, int]) -> None:
        """Fetch partitions together from where they are about to be read."""
        self._streams.fetcher(stream, max(offsets)).expect(offsets)

    def stream_id(self, stream: str) -> int:
        """Return what tells a topic from others that have had its name."""
        return self._streams.fetcher(stream, 0).stream_id()

    def stream_stats(self, stream: str) -> tuple[int, int]:
        """Return how many records a stream holds, and the bytes of their keys and values; it reads all of them."""
        return self._streams.stats(stream)

    def ranges(self) -> dict[str, list[Offsets]]:
        """Return the readable range of each partition of all streams, without a look at whether any has ended."""
        return self._streams.ranges()

    def described(self, stream: str) -> StreamConfig:
        """Return what a topic is kept as now, whoever has made it."""
        return self._streams.described(stream)

    def version(self) -> int:
        """Return a number that grows with every change here, and with what is fetched."""
        return self._version

    def read(self, stream: str, partition: int, offset: int, max_records: int = 10_000) -> Read | None:
        """Return rows from `offset` on, waiting for what is known to be there; None at the end.

        Where only the marker of a transaction lies there, there are no rows, and `next_offset` is behind it.
        """
        return self._streams.fetcher(stream, partition).read_known(partition, offset, max_records)

    def fetched(self, stream: str, partition: int, offset: int) -> Read | None:
        """Return rows from `offset` on that have come already; None where none have.

        So nobody waits for what is known to be there and is late, as the transaction of another task may lie before it.
        """
        return self._streams.fetcher(stream, partition).fetched(partition, offset)

    def unheard_ms(self, stream: str, partition: int, offset: int) -> float:
        """Return for how long no broker has said whether something lies at or beyond an offset."""
        return self._streams.fetcher(stream, partition).unheard_ms(partition, offset)

    def is_caught_up(self) -> bool:
        """Whether all that anybody had written between stages, when it was asked, was read here."""
        return self._streams.is_caught_up()

    def append(self, appends: Iterable[Append]) -> None:
        """Write rows in one transaction, as a producer outside any application does."""
        appends = list(appends)
        pending = self._streams.records_of(appends)
        if pending:
            with self._appending:
                ends = self._streams.call(next(iter(pending))[0], self._append(pending))
            self._streams.reached(ends, appends)
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

        Tasks that commit by themselves may do so at once. Raises `Fenced` when another owner has come since. After any
        other failure nobody knows whether it was committed: the application must be owned anew, and go on from its
        checkpoint.
        """
        commit = commit._replace(state=[writes for writes in commit.state if writes.items])
        with self._committing:
            owner = self._owner(commit)
            kept = stores_of(commit, owner.ledger)
            for store in sorted({writes.store for writes in commit.state} - owner.ledger.changelogs.keys()):
                owner.ledger.changelogs[store] = add_changelog(self._streams, commit.app, store)
            pending = records_of(self._streams, commit, owner.ledger, kept)
            writer = owner.writer(*commit.tasks) if len(commit.tasks) == 1 else owner.producer
        try:
            ends = self._call(commit.app, transact(self._streams, writer, pending, commit)) if pending else {}
        except EnvironmentFault as error:
            failure = self._fenced(commit) if isinstance(error.__cause__, FENCED) else error
            owner.failure = owner.failure or failure
            if owner.failure is error:
                raise
            raise owner.again() from error
        with self._committing:
            owner.ledger.kept.update(kept)
            self._write_locally(commit, owner, ends)
            owner.ledger.checkpoints.update(commit.checkpoints)
            self._streams.reached(ends, commit.appends)
            consumed = self._consumed(owner, commit)
        if consumed:
            with suppress(EnvironmentFault):  # which the next time makes good
                self._call(commit.app, self._streams.purge(consumed))
        self._changed()

    def own(self, app: str) -> int:
        """Become the application's one owner; raises `Owned`.

        An earlier owner and its containers, wherever they run, are fenced, and what they had not committed is rolled
        back.
        """
        check_name("application", app)
        if app not in self._locks:
            self._locks[app] = owner_lock(self._directory, app)
        self._disown(app)
        self._state.drop(app)
        self._streams.create(ledger_of(app), TABLE, own=True)
        owner: Owner = self._as_owner(app, begin(self._streams, app))
        self._owners[app] = owner
        self._changed()
        return owner.generation

    def announce(self, app: str, generation: int) -> None:
        """Let others see, until this is closed, that this process has the application to itself."""
        assert self._thread is not None
        self._announced.append(Announced(self._streams, self._thread, app, generation, self._host))

    def commit_by_task(self, app: str, tasks: Collection[int]) -> dict[int, int]:
        """Have each task commit by itself, under a transactional id of its own.

        Returns the generations of those that are given, which are all this owner's; a container takes its own later.
        """
        if not tasks:
            self._by_task.add(app)
            return {}
        claiming = claim_all(self._streams, app, self._owners[app], frozenset(tasks))
        return self._as_owner(app, claiming)  # type: ignore[no-any-return]

    def generation(self, app: str) -> int:
        """Return the application's generation: 0 before anyone owned it."""
        return self._ledger(app).generation

    def applications(self) -> list[str]:
        """Return the names of all applications that were ever owned, in order."""
        own = [name for name in self._streams.all(own=True) if self._streams.is_own(name)]
        return sorted(app for name in own if ledger_of(app := name.removesuffix(ledger_of(""))) == name)

    def join(
        self,
        app: str,
        generation: int,
        container: str,
        tasks: int,
        placement: Placement = sticky,
        standby: int = 0,
    ) -> Membership:
        """Be one of the containers that share so many tasks, in the run of `generation`, under a name of its own.

        So many other hosts keep a copy of each task's state.
        """
        check_name("application", app)
        by_task = app in self._by_task
        self._by_task.discard(app)
        writers = Writers(self._streams, app, generation, container) if by_task else None
        producer = None
        if not by_task:
            producer = self._call(app, self._streams.producer(writer_of(app, generation, container)))
        self._disown(app)
        owner = self._owners[app] = Owner(producer, generation, Ledger({}), writers)
        owner.ledger = self._ledger(app)

        def took(ledger: Ledger, won: Collection[int]) -> None:
            owner.ledger.take_over(ledger, won)
            self._state.bring(app, ledger, won)

        def gave(given: Collection[int]) -> None:
            if writers is not None:
                self._call(app, writers.end(given))
            self._state.drop(app, given)
            self._streams.drop(given)

        said = Joining(container, generation, tasks, JobModel(), host=self._host, standby=standby)
        copies = Standby(self._streams, self._state, app) if standby else None
        owner.members = KafkaMembers(self._streams, app, said, placement, took, gave, copies, writers)
        return owner.members

    def job_model(self, app: str) -> JobModel:
        """Return who runs what in the newest run, as far as containers that live are known."""
        runs = self.runs(app)
        model, generation = runs.model(), runs.generation()
        return model if model.run == generation else JobModel(generation)

    def runs(self, app: str) -> KafkaRuns:
        """Return what is said of the application's newest run, for those who start containers."""

        def say(said: Batch) -> None:
            producer, pending = self._owners[app].producer, {(ledger_of(app), 0): said}
            self._as_owner(app, transact(self._streams, producer, pending))

        return KafkaRuns(self._streams, app, say)

    def checkpoints(self, app: str) -> dict[str, Checkpoint]:
        """Return the application's newest checkpoint of every task."""
        return dict(self._known(app).checkpoints)

    def restored(self, app: str) -> int:
        """Return how many changelog records were replayed since the application was last owned here."""
        self._here(app)
        return self._state.replayed.get(app, 0)

    def state_get(self, app: str, store: str, task: int, key: bytes) -> bytes | None:
        """Return the committed value of one entry."""
        local = self._here(app, task)
        return local.state_get(app, store, task, key) if local is not None else None

    def state_range(
        self, app: str, store: str, task: int, start: bytes = b"", end: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield committed entries with `start` <= key < `end` in key order; nothing may write to them meanwhile."""
        local = self._here(app, task)
        return local.state_range(app, store, task, start, end) if local is not None else iter(())

    def state_reader(self, app: str, store: str, task: int) -> StateReader:
        """Return what reads single entries of one store and task, many of them more cheaply than `state_get`."""
        local = self._here(app, task)
        if local is None:
            raise EnvironmentFault(f"Application {app!r} is not run here: its state can't be read.")
        return local.state_reader(app, store, task)

    def stores(self, app: str) -> list[str]:
        """Return the names of the stores that the application has ever written to, in order."""
        return sorted({store for stores in self._known(app).kept.values() for store in stores})

    def state_stats(self, app: str) -> dict[tuple[str, int], tuple[int, int]]:
        """Return, per (store, task), the number of entries and their bytes, of the tasks that are here."""
        self._here(app)
        locals = (self._state.of(app, task) for task in self._state.tasks(app))
        return {place: found for local in locals if local for place, found in local.state_stats(app).items()}

    def reset(self, app: str, stores: Iterable[str] | None = None) -> None:
        """Remove the application's checkpoints and state (of `stores`, or all) and begin a new generation."""
        self.own(app)
        owner = self._owners[app]
        ledger = owner.ledger
        gone = {store for store in ledger.changelogs if stores is None or store in stores}
        kept = {task: names - gone for task, names in ledger.kept.items()}
        said = forgotten([name.encode() for name in ledger.checkpoints])
        said.extend(said_of_stores(kept))
        if len(said):
            self._as_owner(app, transact(self._streams, owner.producer, {(ledger_of(app), 0): said}))
        ledger.checkpoints.clear()
        ledger.kept = kept
        for store in sorted(gone):
            self._call(app, empty(self._streams, ledger.changelogs[store].topic(app, store)))
        self._changed()

    def reclaim(self, app: str) -> bool:
        """Remove the changelogs of an application that was reset, and the state that is here; return if there was any.

        Changelogs are empty by then, so that one that were left by a crash would mean nothing.
        """
        ledger = self._known(app)
        topics = [changelog.topic(app, store) for store, changelog in ledger.changelogs.items()]
        if topics:
            self._streams.write(ledger_of(app), forgotten(ledger.changelog_keys))
            ledger.changelogs.clear()
        for topic in topics:
            self._streams.delete(topic)
        return self._state.remove(app) or bool(topics)

    def close(self) -> None:
        """Release everything; a second call does nothing."""
        if self._thread is None:
            return
        for announced in self._announced:
            announced.leave()
        thread, self._thread = self._thread, None
        try:
            for app, owner in self._owners.items():
                stop(thread, let_go(self._streams, app, owner))
            if self._outside is not None:
                stop(thread, ended(self._outside))
            self._streams.close()
        finally:
            self._owners.clear()
            thread.release()
            self._state.close()
            for descriptor in self._locks.values():
                os.close(descriptor)
            self._locks.clear()

    def _changed(self) -> None:
        with self._counting:
            self._version += 1
        self._told()

    def _call(self, app: str, work: Any) -> Any:
        return self._streams.call(ledger_of(app), work)

    def _as_owner(self, app: str, work: Any) -> Any:
        """Do what only an application's owner can; raises `Fenced` where another one has come to be that."""
        try:
            return self._call(app, work)
        except EnvironmentFault as error:
            if isinstance(error.__cause__, FENCED):
                told = f"Another process has begun a run of application {app!r} while this one did: the newest goes on."
                raise Fenced(told) from error
            raise

    def _known(self, app: str) -> Ledger:
        owner = self._owners.get(app)
        return owner.ledger if owner is not None and owner.failure is None else self._ledger(app)

    def _ledger(self, app: str) -> Ledger:
        if ledger_of(app) not in self._streams.all(own=True):
            return Ledger({})
        return self._call(app, seen(self._streams, app))  # type: ignore[no-any-return]

    def _here(self, app: str, task: int | None = None) -> LogEnvironment | None:
        """Have the state of an application here that has one owner, and return that of a task."""
        owner = self._owners.get(app)
        if owner is not None and owner.members is None:
            missing = set() if owner.has_all else {*owner.ledger.kept}
            if task is not None:
                missing.add(task)
            missing -= {*self._state.tasks(app)}
            if missing:
                self._state.bring(app, owner.ledger, missing)
                self._move_in(app, owner.ledger, missing)
            owner.has_all = True
        return self._state.of(app, task) if task is not None else None

    def _move_in(self, app: str, ledger: Ledger, tasks: Collection[int]) -> None:
        """Say that the state of tasks is here now, for when containers share them."""
        known = {task: ledger.homes.get(task, Homes()) for task in tasks}
        homes = {task: one.taken(self._host, ledger.progress(task), was_given=True) for task, one in known.items()}
        self._streams.write(ledger_of(app), said_of_homes(homes))
        ledger.homes |= homes

    def _owner(self, commit: Commit) -> Owner:
        owner = self._owners.get(commit.app)
        if owner is None or owner.generation != commit.generation:
            current = owner.generation if owner is not None else self.generation(commit.app)
            raise is_fenced(commit.app, commit.generation, current)
        if owner.failure is not None:
            raise owner.again()
        taken = owner.members.taken if owner.members is not None else owner.taken
        for task, generation in commit.tasks.items():
            if taken.get(task) != generation:
                raise is_taken(commit.app, task, generation, taken.get(task, 0))
        return owner

    def _fenced(self, commit: Commit) -> Fenced:
        """Return what is wrong where a commit was refused: who has come since."""
        ledger = self._ledger(commit.app)
        for task, generation in commit.tasks.items():
            if (current := ledger.claims[task].generation) != generation:
                return is_taken(commit.app, task, generation, current)
        return is_fenced(commit.app, commit.generation, ledger.generation)

    def _disown(self, app: str) -> None:
        owner = self._owners.pop(app, None)
        if owner is not None and self._thread is not None:
            stop(self._thread, owner.end())

    async def _append(self, pending: Mapping[tuple[str, int], Batch]) -> dict[tuple[str, int], int]:
        producer, self._outside = self._outside, None  # which is kept where nothing goes wrong
        if producer is None:
            producer = await self._streams.producer(self._outside_id)
        ends = await write_alone(self._streams, producer, pending)
        self._outside = producer
        return ends

    def _write_locally(self, commit: Commit, owner: Owner, ends: Mapping[tuple[str, int], int]) -> None:
        positions = {}
        for writes in commit.state:
            self._here(commit.app, writes.task)
            changelog, number = owner.ledger.changelogs[writes.store], writes.task % PARTITIONS
            end = ends[changelog.topic(commit.app, writes.store), number]
            positions[writes.store, writes.task] = {changelog.place(writes.store, number): end}
        self._state.write(commit.app, commit.state, positions)

    def _consumed(self, owner: Owner, commit: Commit) -> dict[tuple[str, int], int]:
        """Return, now and then, below which offsets nobody will read again."""
        for place, offset in commit.consumed.items():
            if self._streams.config(place[0]).intermediate:
                owner.consumed[place] = offset
        owner.commits += 1
        if owner.commits % PURGE_EVERY:
            return {}
        below, owner.consumed = owner.consumed, {}
        return below
