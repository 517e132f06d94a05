"""An environment that is a Kafka cluster: one transaction per commit, state in local stores behind changelogs."""

from __future__ import annotations

import os
import platform
import secrets
import threading
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from heapq import merge
from pathlib import Path
from typing import TypeVar

from operators.core.base import Batch
from planner.model.virtual_tasks import UNSPLIT, Split, VirtualTask
from runtime.model.assignment import JobModel, Placement, Scale, sticky
from runtime.model.checkpoint import Checkpoint
from runtime.model.errors import EnvironmentFault, Fenced
from runtime.ports.commits import NOTHING_BROUGHT, Brought, Commit, fenced_error, taken_error
from runtime.ports.environment import LiveEnvironment, QueryableEnvironment, SnapshotEnvironment
from runtime.ports.membership import Membership
from runtime.ports.sink import Limit
from runtime.ports.state import SettledCommits, StateReader, StateSnapshot, StateWrites
from runtime.ports.streams import END, NO_SIZES, Append, Offsets, StreamConfig, absent_error, check_name
from runtime.stores.held_snapshot import HeldSnapshot
from runtime.systems.host.locks import owner_lock
from runtime.systems.kafka.client.clients import Producer, ended
from runtime.systems.kafka.client.record_limits import SPARE, KafkaLimit, limits_of
from runtime.systems.kafka.client.rights import check_rights
from runtime.systems.kafka.client.thread import KafkaThread, stop
from runtime.systems.kafka.client.topic import KafkaCluster
from runtime.systems.kafka.client.topic_configs import TABLE_CONFIGS, had_limits
from runtime.systems.kafka.coordination.appender import KafkaAppender
from runtime.systems.kafka.coordination.group import Awaited, Joining, Standing, as_before
from runtime.systems.kafka.coordination.members import KafkaMembers, Moved
from runtime.systems.kafka.coordination.owner import (
    FENCED,
    Owner,
    add_changelog,
    adopted,
    all_of,
    begin_again,
    claim_all,
    left_by,
    let_go,
    lost_checkpoints,
    owned,
    records_of,
    say_counted,
    stores_of,
    whose,
    write_alone,
)
from runtime.systems.kafka.coordination.shared_runs import Announced, KafkaRuns
from runtime.systems.kafka.coordination.task_producers import Writers
from runtime.systems.kafka.state.changelog import (
    PARTITIONS,
    Changelog,
    ChangelogEnd,
    check_topics,
    lost_of_stores,
    lost_told,
    sizes_of,
    snapshot_of,
)
from runtime.systems.kafka.state.ledger import (
    REACHED,
    Ledger,
    forgotten,
    key_of,
    ledger_of,
    said_of_changelog,
    said_of_generation,
    said_of_reached,
    said_of_refusal,
    said_of_scale,
    said_of_stores,
    say_moved,
    scale_in,
    store_of,
    writer_of,
)
from runtime.systems.kafka.state.standby import Standby
from runtime.systems.kafka.state.task_state import KafkaState, PartsReader, parted
from runtime.systems.kafka.streams.compacted_topic import Isolation
from runtime.systems.kafka.streams.streams import KafkaReading, KafkaStreams
from runtime.systems.log.environment import LogEnvironment

R = TypeVar("R")


class KafkaEnvironment(KafkaReading, LiveEnvironment, SnapshotEnvironment, QueryableEnvironment):
    """Streams, changelogs and checkpoints in a cluster; state in `directory`, never ahead of these.

    `host` names the machine that has the directory, where that is not its own name, and state that is here is asked for
    `at` an address. Whoever comes to own an application takes the transactional ids of who did before, whose commits
    are refused then. Raises `EnvironmentFault` where the cluster can't be used.

    What is committed is what the transactions of topics say; what lies in `directory` follows, and notes how far it
    is. Of an application nothing is committed after a commit that failed. A run's loop reads, its writer's threads
    commit, and all of aiokafka's work is done on Kafka's own thread: `_committing` guards what the ledger and the
    state are known to be, `_appending` the one producer outside of applications. `own`, `join`, `reset` and `close`
    are for one thread, while nothing is committed.
    """

    def __init__(self, cluster: KafkaCluster, directory: str | Path, host: str | None = None, at: str = "") -> None:
        self.address = cluster.address
        self.cluster = cluster
        self._place = Standing(host or platform.node(), at)
        self._owners: dict[str, Owner] = {}
        self._outside: Producer | None = None
        self._outside_id = f"{cluster.prefix}samza-dsl-{secrets.token_hex(8)}"
        """The transactional id of what is appended for no application: the next one ends what one has left open."""
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
        super().__init__(KafkaStreams(cluster, self._thread, self._changed))
        self._state = KafkaState(self._streams, self._directory)
        try:
            self._streams.all()
        except BaseException:
            self.close()
            raise

    def __str__(self) -> str:
        return self.address

    def listen(self, tell: Callable[[], None]) -> None:
        self._told = tell

    def create_stream(self, name: str, config: StreamConfig) -> StreamConfig:
        config = self._streams.create(name, config)
        self._changed()
        return config

    def delete_stream(self, name: str) -> None:
        if name in self._streams.all(among=[name]):
            self._streams.delete(name)
            for owner in self._owners.values():
                owner.forget_consumed(name)
            self._changed()

    def streams(self, among: Collection[str] | None = None) -> dict[str, StreamConfig]:
        return self._streams.streams(among)

    def is_stamped(self, stream: str) -> bool:
        """Whether the time of a stream's records is when brokers took them."""
        return self._streams.is_stamped(stream)

    def stream_id(self, stream: str) -> int:
        return self._streams.fetcher(stream, 0).stream_id()

    def stream_stats(self, stream: str) -> tuple[int, int]:
        """Return how many records a stream holds, and the bytes of their keys and values; it reads all of them."""
        return self._streams.stats(stream)

    def ranges(self) -> dict[str, list[Offsets]]:
        return self._streams.ranges()

    def described(self, stream: str) -> StreamConfig:
        return self._streams.described(stream)

    def reader(self, number: int) -> KafkaReading:
        return self if number == 0 else KafkaReading(self._streams, number)

    def version(self) -> int:
        """Return a number that grows with every change here, and with what is fetched."""
        return self._version

    def written(self, stream: str) -> list[int]:
        return self._streams.fetcher(stream, 0).written()

    def settled(self, stream: str) -> list[Offsets]:
        return self._streams.fetcher(stream, 0).settled()

    def is_caught_up(self) -> bool:
        return self._streams.is_caught_up()

    def append(self, appends: Iterable[Append], among: Mapping[str, int] = NO_SIZES) -> None:
        appends = list(appends)
        pending = self._streams.records_of(appends)
        if pending:
            with self._appending:
                ends = self._streams.call(next(iter(pending))[0], self._append(pending))
            self._streams.reached(ends, appends)
            self._changed()

    def end_stream(self, stream: str) -> None:
        found = self._streams.all(among=[stream])
        if stream not in found:
            raise absent_error(stream)
        partitions = range(found[stream].partitions)
        if self._streams.fetcher(stream, 0).partitions < len(partitions):
            self._streams.forget(stream)  # which has got more of them since it was begun to be read
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
            owner, split = self._owner(commit), self._state.split_of(commit.app)
            state = parted(split, commit.state)
            # Stores, changelogs and state are made ready under the lock and before the transaction begins: a
            # transaction that is open keeps the ledger from being read by others.
            kept = stores_of(state, owner.ledger)
            for store in sorted({writes.store for writes in commit.state} - owner.ledger.changelogs.keys()):
                owner.ledger.changelogs[store] = add_changelog(self._streams, commit.app, store)
            wrote = {task: None for task, _ in state}
            pending = records_of(self._streams, commit, owner.ledger, kept, wrote, self._state)
            # A task that commits by itself has a producer of its own, so that its commits wait for no other's.
            writer = owner.writer(*commit.tasks) if len(commit.tasks) == 1 else owner.producer
            left = left_by(commit, owner.ledger.checkpoints)
            if any(self._state.of(commit.app, task) is None for task in wrote):
                self._bring_for(commit.app, owner, wrote)
        try:
            # Outside of the lock: tasks that commit by themselves do so at the same time.
            committing = partial(owner.transact, self._streams, writer, pending, commit, left)
            ends = self._call(commit.app, committing()) if pending else {}
        except EnvironmentFault as error:
            failure = self._fenced(commit) if isinstance(error.__cause__, FENCED) else whose(error, commit)
            # The first failure is what was wrong; others fail of it. After it nobody knows what is committed, so there
            # are no more commits.
            owner.failure = owner.failure or failure
            if owner.failure is error:
                raise
            raise owner.again() from error
        with self._committing:
            owner.ledger.kept.update(kept)
            # Only behind the transaction: state here is never ahead of its changelogs. A crash in between costs a
            # replay.
            self._write_locally(commit.app, owner, state, ends)
            if merged := owner.ledger.merged_whole(commit.checkpoints, commit.gone):
                owner.ledger.follow_merge(merged)
            owner.ledger.checkpoints.update(commit.checkpoints)
            for name in commit.gone:
                owner.ledger.checkpoints.pop(name, None)
            self._streams.reached(ends, commit.appends)
            between = {one: at for one, at in commit.consumed.items() if self._streams.config(one[0]).intermediate}
            consumed = owner.to_purge(between)
        # Behind the commit: an offset that is not committed must stay readable.
        if consumed is not None:
            with suppress(EnvironmentFault):  # which the next time makes good
                if consumed:
                    self._call(commit.app, self._streams.purge(consumed))
                # What others have read of the partitions that they share with tasks here may go once they have it.
                if split.factor > 1 and owner.members is not None:
                    later = self._ledger(commit.app)
                    with self._committing:
                        owner.ledger.follow(later)
        self._changed()

    def own(self, app: str) -> int:
        """Become the application's one owner; raises `Owned`.

        An earlier owner and its containers, wherever they run, are fenced, and what they had not committed is rolled
        back.
        """
        check_name("application", app)
        self.cluster.check_app(app)
        if app not in self._locks:
            self._locks[app] = owner_lock(self._directory, app)
        self._disown(app)
        self._state.drop(app)
        self._state.split(app, UNSPLIT)
        owner = self._owners[app] = owned(self._streams, app)
        self._streams.know((one.topic(app, store) for store, one in owner.ledger.changelogs.items()), own=True)
        positions = (one for checkpoint in owner.ledger.checkpoints.values() for one in checkpoint.positions)
        self._streams.know({one.stream for one in positions if one.producers}, own=False)
        self._changed()
        return owner.generation

    def limits(self, streams: Collection[str]) -> Mapping[str, Limit]:
        found: dict[str, int] = {}
        with suppress(EnvironmentFault):  # who may not look at them is told when they are written
            any_topic = self._streams.registry
            found = self._streams.call(any_topic, limits_of(self._streams.topic(any_topic), streams))
        between = {stream for stream in found if self._streams.config(stream).intermediate}
        return {
            stream: KafkaLimit(self._streams.topic(stream).address, size - (SPARE if stream in between else 0))
            for stream, size in found.items()
        }

    def check_rights(self, app: str, read: Collection[str], written: Collection[str]) -> None:
        topics = {*(one.topic(app, store) for store, one in self._ledger(app).changelogs.items()), ledger_of(app)}
        where = self._streams.topic(ledger_of(app))
        between = {name for name in (*read, *written) if self._streams.config(name).intermediate}
        self._call(app, check_rights(where, {*read, *topics}, {*written, *topics}, (app,), between))

    def appender(self, name: str) -> KafkaAppender:
        return KafkaAppender(self._streams, name, self._changed)

    def announce(self, app: str, generation: int) -> None:
        self._announce(app, generation)

    def span(self, app: str, more: int = 0) -> Announced:
        return self._announce(app, 0, as_before(self.job_model(app), self._place.host, more))

    def _announce(self, app: str, run: int, awaited: Awaited | None = None) -> Announced:
        assert self._thread is not None
        self._announced.append(Announced(self._streams, self._thread, app, run, self._place, awaited))
        return self._announced[-1]

    def commit_by_task(self, app: str, tasks: Collection[int]) -> dict[int, int]:
        """Let each task commit by itself, under a transactional id of its own.

        Returns the generations of those that are given, which are all this owner's; a container takes its own later.
        """
        if not tasks:
            self._by_task.add(app)
            return {}
        split = self._state.split_of(app)
        self._state.want(app, len({*map(split.task, tasks)} - {*self._state.tasks(app)}))
        return self._as_owner(app, partial(claim_all, self._streams, app, self._owners[app], frozenset(tasks)))

    def check_kept(self, app: str) -> None:
        """Raise `Damaged` where the cluster has less of an application, which is owned here, than was committed.

        The topics that it is kept in are configured as they must be from then on; raises `EnvironmentFault` where this
        client may not change one that is not.
        """
        owner, ledger = self._owners[app], self._owners[app].ledger
        if owner.lost:
            raise lost_checkpoints(app, owner.lost)
        kept = sorted(set().union(*ledger.kept.values()))
        if unused := ledger.changelogs.keys() - {*kept}:
            # Nothing was ever committed there, and whoever failed at making it may have removed the topic.
            self._streams.write(ledger_of(app), forgotten([key for store in unused for key in ledger.keys_of(store)]))
            ledger.without(unused)
        check_topics(self._streams, app, ledger.changelogs, kept)
        topics = {ledger.changelogs[store].topic(app, store): store for store in kept}
        with lost_told(self._streams, app, ledger.changelogs, kept):
            had = self._streams.amend([self._streams.registry, ledger_of(app), *topics], TABLE_CONFIGS)
        limited = [store for topic, store in topics.items() if had_limits(had.get(topic, {}))]
        changed: dict[str, Changelog] = self._call(app, adopted(self._streams, app, ledger, limited))
        for store, changelog in changed.items():
            others = [key for key in ledger.changelog_keys if store_of(key) == store]
            said = said_of_changelog(store, changelog)
            said.extend(forgotten([key for key in others if key not in (said.keys or ())]))
            self._streams.write(ledger_of(app), said)
            ledger.changelogs[store] = changelog

    def generation(self, app: str) -> int:
        return self._ledger(app).generation

    def applications(self) -> list[str]:
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
        split = self._state.split_of(app)

        def took(ledger: Ledger, won: Collection[int]) -> None:
            taken = [*map(split.task, won)]
            self._state.bring(app, ledger, taken)
            owner.ledger.take_over(ledger, taken)

        def gave(given: Collection[int], within_s: float | None) -> None:
            if owner.failure is not None:  # what is not settled is not given up: who takes it fences this one
                raise owner.again()
            gone = [*map(split.task, given)]
            self._call(app, say_counted(self._streams, app, owner, self._counted(app, owner, gone), within_s))
            if writers is not None:
                self._call(app, writers.end(given))
            self._state.drop(app, gone)
            self._streams.drop(gone)

        said = Joining(container, generation, tasks, JobModel(), **self._place._asdict(), standby=standby)
        copies = Standby(self._streams, self._state, app) if standby else None
        owner.members = KafkaMembers(self._streams, app, said, placement, Moved(took, gave, split), copies, writers)
        return owner.members

    def split(self, app: str, split: Split) -> None:
        with self._committing, self._state.bringing:
            self._streams.drop_readers(split.factor)
            if (owner := self._owners.get(app)) is not None:
                owner.has_all, owner.moved = False, set()
            # Where it was: who starts containers owns an application, and has nothing of its state.
            if self._state.split(app, split):
                self._here(app)

    def prepare_split(self, app: str, split: Split, goes_on: Callable[[], bool]) -> None:
        self._state.prepare(app, split, lambda: self._ledger(app).committed, goes_on)

    def ask_scale(self, app: str, scale: Scale) -> Scale:
        noted = scale.behind(self.asked_scale(app))
        self._streams.write(ledger_of(app), said_of_scale(noted))
        return noted

    def refuse_scale(self, app: str, refusal: Scale) -> None:
        self._streams.write(ledger_of(app), said_of_refusal(refusal))

    def asked_scale(self, app: str) -> Scale:
        return scale_in(self._entries(app))

    def job_model(self, app: str) -> JobModel:
        model, generation = self.runs(app).model(), self.generation(app)
        return model if model.run == generation else JobModel(generation)

    def runs(self, app: str) -> KafkaRuns:
        """Return what is said of the application's newest run, for those who start containers."""

        def say(said: Batch) -> None:
            owner, pending = self._owners[app], {(ledger_of(app), 0): said}
            self._as_owner(app, partial(owner.transact, self._streams, owner.producer, pending))

        return KafkaRuns(self._streams, app, partial(self._entries, app), say)

    def checkpoints(self, app: str) -> dict[str, Checkpoint]:
        return dict(self._known(app).checkpoints)

    def progress(self, app: str) -> dict[str, Checkpoint]:
        owner = self._owners.get(app)
        if owner is None or owner.members is None:
            return self.checkpoints(app)
        found = self._ledger(app).checkpoints
        # State here follows the transaction, which others can see before: of tasks here our own word counts.
        with self._committing:
            here = {self._state.split_of(app).task(number).name for number in owner.members.taken}
            found.update((name, one) for name, one in owner.ledger.checkpoints.items() if name in here)
        return found

    def restored(self, app: str) -> int:
        """Return how many changelog records were replayed since the application was last owned here."""
        self._here(app)
        return self.brought(app).replayed

    def bring(self, app: str, tasks: Collection[int]) -> None:
        self._here(app, tasks=[*map(self._state.split_of(app).task, tasks)])

    def brought(self, app: str) -> Brought:
        return self._state.brought.get(app, NOTHING_BROUGHT)

    def state_get(self, app: str, store: str, task: int, key: bytes) -> bytes | None:
        local = self._here(app, self._state.split_of(app).owner(task, store, key))
        return local.state_get(app, store, task, key) if local is not None else None

    def state_range(
        self, app: str, store: str, task: int, start: bytes = b"", end: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        locals = [self._here(app, part) for part in self._state.split_of(app).parts(task)]
        found = [one.state_range(app, store, task, start, end) for one in locals if one is not None]
        return found[0] if len(found) == 1 else merge(*found)

    def state_reader(self, app: str, store: str, task: int) -> StateReader:
        def opened(part: VirtualTask) -> StateReader:
            local = self._here(app, part)
            if local is None:
                raise EnvironmentFault(f"Application {app!r} is not run here: its state can't be read.")
            return local.state_reader(app, store, task)

        split = self._state.split_of(app)
        if split.factor == 1:
            return opened(VirtualTask(task))
        return PartsReader(partial(split.owner, task, store), opened)

    def snapshot(self, app: str) -> HeldSnapshot:
        """Return the state that changelogs hold now, read when a store is asked for: each task as of its own commit."""
        return self._snapshot(app, "read_committed")

    def settled_snapshot(self, app: str) -> HeldSnapshot:
        """Return the same when no transaction that has begun there is open; a store is waited for when it is read."""
        return self._snapshot(app, "read_uncommitted")

    def _snapshot(self, app: str, isolation: Isolation) -> HeldSnapshot:
        ledger = self._known(app)
        return snapshot_of(self._streams, app, ledger.changelogs, ledger.kept, isolation)

    def settled_commits(self, app: str) -> SettledCommits:
        """Return what the ledger says once no transaction that was begun there is open."""
        name, streams = ledger_of(app), self._streams
        return streams.read(name, lambda: self._call(app, all_of(streams, app)), lambda: Ledger({})).settled

    def snapshot_here(self, app: str) -> StateSnapshot:
        """Return what is committed of the tasks that are here; raises `EnvironmentFault` where none can be."""
        with self._committing:
            owner = self._owners.get(app)
            if owner is None:
                raise EnvironmentFault(
                    f"State of application {app!r} lies with the containers that run it, and not here: ask one of "
                    "these, with run.state(...) or at the port of its metrics."
                )
            if not owner.has_all:
                self._here(app)
            return self._state.snapshot(app)

    def stores(self, app: str) -> list[str]:
        """Return the names of the stores that the application has ever written to, in order."""
        return sorted({store for stores in self._known(app).kept.values() for store in stores})

    def state_stats(self, app: str) -> dict[tuple[str, int], tuple[int, int]]:
        """Return, per (store, task), the number of entries and their bytes, of the tasks that are here.

        Of an application that this process neither owns nor shares it is counted what all changelogs hold.
        """
        if app not in self._owners:
            return self._sizes(app)
        # The loop asks for numbers, and waits for no thread that brings state, as at a split: what is here counts.
        with self._state.unless_brought() as is_free:
            if is_free:
                self._here(app)
        return self._state.stats(app)

    def reset(self, app: str, stores: Iterable[str] | None = None) -> None:
        self.own(app)
        owner = self._owners[app]
        ledger = owner.ledger
        written = {*ledger.changelogs}.union(*ledger.kept.values())
        gone = {store for store in written if stores is None or store in stores}
        kept = {task: names - gone for task, names in ledger.kept.items()}
        keys = [key for key in ledger.changelog_keys if store_of(key) in gone]
        # All that is forgotten goes in one transaction with the new beginning; the topics go after it. A crash between
        # leaves topics that nothing names.
        said = forgotten([*keys, *(name.encode() for name in ledger.checkpoints)])
        said.extend(forgotten([key_of(REACHED, task) for task in ledger.reached]))
        said.extend(said_of_stores(kept))
        offsets = self._call(app, self._streams.group_offsets(app))
        self._as_owner(app, partial(begin_again, self._streams, app, owner, said, offsets))
        ledger.checkpoints.clear()
        ledger.kept, ledger.reached = kept, {}
        ledger.changelog_keys = [key for key in ledger.changelog_keys if key not in keys]
        topics = [Changelog("").topic(app, store) for store in sorted(gone)]
        for store in gone:
            ledger.changelogs.pop(store, None)
        for topic in self._streams.metadata(topics):
            self._streams.delete(topic)
        self._changed()

    def forget(self, app: str, stores: Collection[str]) -> None:
        """Remove the state of these stores, in all tasks, with their changelogs; a second call does nothing.

        A store of that name begins with a changelog of its own, so that nobody takes what lies elsewhere for its state.
        """
        owner, gone = self._owners[app], set(stores)
        ledger = owner.ledger
        kept = {task: names - gone for task, names in ledger.kept.items() if names & gone}
        said = forgotten([key for store in gone for key in ledger.keys_of(store)])
        said.extend(said_of_stores(kept))
        # Said even where nothing else is: who is fenced must remove no topic that the next owner has made anew.
        said.extend(said_of_generation(owner.generation))
        self._as_owner(app, partial(owner.transact, self._streams, owner.producer, {(ledger_of(app), 0): said}))
        ledger.without(gone)
        for task in self._state.tasks(app):
            if (local := self._state.of(app, task)) is not None:
                local.forget(app, gone)
        topics = {Changelog("").topic(app, store) for store in gone}
        for topic in sorted(topics & self._streams.all(own=True, among=topics).keys()):
            self._streams.delete(topic)
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

    def let_go(self, app: str) -> None:
        self._end(app)
        self._state.drop(app)
        self._told = lambda: None
        self._streams.rest()

    def close(self) -> None:
        if self._thread is None:
            return
        for announced in self._announced:
            announced.leave()
        try:
            for app in [*self._owners]:
                self._end(app)
            if self._outside is not None:
                stop(self._thread, ended(self._outside))
            self._streams.close()
        finally:
            thread, self._thread = self._thread, None
            self._owners.clear()
            thread.release()
            self._state.close()
            for descriptor in self._locks.values():
                os.close(descriptor)
            self._locks.clear()

    def _end(self, app: str) -> None:
        owner = self._owners.pop(app, None)
        if owner is not None and self._thread is not None:
            stop(self._thread, let_go(self._streams, app, owner, self._counted(app, owner)))

    def _counted(self, app: str, owner: Owner, tasks: Collection[VirtualTask] | None = None) -> dict[int, Batch]:
        """Return, by number, what says how much state tasks have that were run here, all or some of them."""
        wrote, number = owner.wrote | self._state.uncounted(app), self._state.split_of(app).number
        wrote = wrote if tasks is None else wrote & {*tasks}
        owner.wrote -= wrote
        reached = self._state.reached(app, wrote)
        return {number(task): said_of_reached({task: ends}) for task, ends in reached.items() if ends}

    def lost_stores(self, app: str) -> dict[str, str]:
        """Return the stores of an application whose changelogs are not what was written, with what is wrong."""
        lost = lost_of_stores(self._streams, app, self._known(app).changelogs, self.stores(app))
        return {store: f"the topic {topic!r} {what}" for store, (topic, what) in lost.items()}

    def _sizes(self, app: str) -> dict[tuple[str, int], tuple[int, int]]:
        ledger = self._ledger(app)
        kept = set().union(*ledger.kept.values()) - self.lost_stores(app).keys()
        return sizes_of(self._streams, app, {store: one for store, one in ledger.changelogs.items() if store in kept})

    def _changed(self) -> None:
        # `+=` on its own may lose a change of another thread, and with it a wake-up.
        with self._counting:
            self._version += 1
        self._told()

    def _call(self, app: str, work: Coroutine[object, object, R]) -> R:
        return self._streams.call(ledger_of(app), work)

    def _as_owner(self, app: str, work: Callable[[], Coroutine[object, object, R]]) -> R:
        """Do what only an application's owner can; raises `Fenced` where another one has come to be that."""
        with self._owners[app].unless_failed(app):
            return self._call(app, work())

    def _known(self, app: str) -> Ledger:
        owner = self._owners.get(app)
        return owner.ledger if owner is not None and owner.failure is None else self._ledger(app)

    def _entries(self, app: str) -> dict[bytes, bytes]:
        """Return what the ledger says now, nothing where there is none."""
        name, table = ledger_of(app), self._streams.table(ledger_of(app))
        return self._streams.read(name, lambda: self._call(app, table.now()), lambda: self._call(app, table.forget()))

    def _ledger(self, app: str) -> Ledger:
        return Ledger(self._entries(app))

    def _here(
        self, app: str, task: VirtualTask | None = None, tasks: Collection[VirtualTask] = ()
    ) -> LogEnvironment | None:
        """Bring the state of an application here that has one owner, of `tasks` as well, and return that of a task."""
        owner = self._owners.get(app)
        if owner is None or owner.members is not None:
            return self._state.of(app, task) if task is not None else None
        with self._state.bringing:
            missing, kept = {*tasks} if task is None else {task}, set[VirtualTask]()
            if owner.moved or not owner.has_all:  # each entry that is read asks for its task
                parts = self._state.split_of(app).parts
                kept = {part for base in {one.base for one in owner.ledger.kept} for part in parts(base)}
            missing = {one for one in missing | (set() if owner.has_all else kept) if self._state.of(app, one) is None}
            if missing:
                self._state.bring(app, owner.ledger, missing)
                owner.moved |= missing
            if owner.moved and (task is None or owner.moved & kept):
                # Of one task after the other that is new, at once, for when containers share them.
                say_moved(self._streams, app, owner.ledger, self._place.host, dict.fromkeys(owner.moved, True))
                owner.moved = set()
            owner.has_all = True
        return self._state.of(app, task) if task is not None else None

    def _owner(self, commit: Commit) -> Owner:
        owner = self._owners.get(commit.app)
        if owner is None or owner.generation != commit.generation:
            current = owner.generation if owner is not None else self.generation(commit.app)
            raise fenced_error(commit.app, commit.generation, current)
        if owner.failure is not None:
            raise owner.again()
        taken = owner.members.taken if owner.members is not None else owner.taken
        for task, generation in commit.tasks.items():
            if taken.get(task) != generation:
                raise taken_error(commit.app, task, generation, taken.get(task, 0))
        return owner

    def _fenced(self, commit: Commit) -> Fenced:
        """Return what is wrong where a commit was refused: who has come since."""
        ledger = self._ledger(commit.app)
        for task, generation in commit.tasks.items():
            if (current := ledger.claims[task].generation) != generation:
                return taken_error(commit.app, task, generation, current)
        return fenced_error(commit.app, commit.generation, ledger.generation)

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

    def _bring_for(self, app: str, owner: Owner, wrote: Iterable[VirtualTask]) -> None:
        """Bring the state here that a commit writes to, with that of all tasks that commit by themselves."""
        self._here(app, tasks={*map(self._state.split_of(app).task, owner.taken), *wrote})

    def _write_locally(
        self,
        app: str,
        owner: Owner,
        state: Sequence[tuple[VirtualTask, StateWrites]],
        ends: Mapping[tuple[str, int], int],
    ) -> None:
        positions = {}
        if state:
            self._bring_for(app, owner, (task for task, _ in state))
        for task, writes in state:
            changelog, number = owner.ledger.changelogs[writes.store], writes.task % PARTITIONS
            end, place = ends[changelog.topic(app, writes.store), number], changelog.place(writes.store, number)
            positions[writes.store, task] = {place: end}
            owner.ledger.reached[task] = {**owner.ledger.reached.get(task, {}), place: ChangelogEnd(end)}
            owner.wrote.add(task)
        self._state.write(app, state, positions)
