"""An application that this process owns, or has a share in, with its transactions."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

from aiokafka.errors import InvalidProducerEpoch, KafkaError, ProducerFenced, TopicAuthorizationFailedError
from aiokafka.structs import OffsetAndMetadata, TopicPartition

from operators.core.base import Batch
from planner.model.virtual_tasks import VirtualTask, is_task
from runtime.model.checkpoint import Checkpoint
from runtime.model.errors import Damaged, EnvironmentFault, Fenced, SamzaError, TooLarge, Unavailable, command
from runtime.ports.commits import Commit, fenced_error
from runtime.ports.state import StateWrites
from runtime.systems.kafka.client.clients import STOP_S, Producer, ended, side_by_side
from runtime.systems.kafka.client.rights import check_rights
from runtime.systems.kafka.client.topic_configs import TABLE_CONFIGS
from runtime.systems.kafka.coordination.members import KafkaMembers
from runtime.systems.kafka.coordination.task_producers import Writers
from runtime.systems.kafka.state.changelog import PARTITIONS, Changelog, entries_of
from runtime.systems.kafka.state.ledger import (
    TABLE,
    Claim,
    Ledger,
    Whole,
    forgotten,
    ledger_of,
    look,
    said_of_changelog,
    said_of_checkpoints,
    said_of_claims,
    said_of_generation,
    said_of_given,
    said_of_reached,
    said_of_stores,
    said_of_whole,
    settle,
)
from runtime.systems.kafka.state.task_state import KafkaState
from runtime.systems.kafka.streams.compacted_topic import range_of
from runtime.systems.kafka.streams.sink import send_all
from runtime.systems.kafka.streams.streams import KafkaStreams

FENCED = ProducerFenced, InvalidProducerEpoch
"""The errors of who writes under a transactional id under which another one has begun since."""
MOST_TOLD = 8
"""The number of partitions that are named of those whose checkpoints are lost."""
PURGE_EVERY = 16
"""The number of commits after which what they have consumed is removed from the topics between stages."""
TRANSACTION_S = 55.0
"""The s that a transaction may take: Kafka itself rolls it back after 60 s."""


class Owner:
    """The producers of an application's transactions, and what is committed.

    After its first `failure` nothing is committed by it any more. Only the environment uses it, under its lock.
    """

    def __init__(
        self, producer: Producer | None, generation: int, ledger: Ledger, writers: Writers | None = None
    ) -> None:
        self.producer = producer
        self.generation = generation
        self.ledger = ledger
        self.writers = writers
        """The producers of tasks that commit by themselves; else the one producer writes for all."""
        self.members: KafkaMembers | None = None
        self.taken: dict[int, int] = {}
        """The generations of tasks where there is one container."""
        self.has_all = False
        """Whether the state of all tasks is here."""
        self.wrote: set[VirtualTask] = set()
        """The tasks that have committed state here."""
        self.moved: set[VirtualTask] = set()
        """Tasks whose state is here now, which is not yet said."""
        self.one_writes = asyncio.Lock()
        """Held by a transaction of the one producer: tasks are given up while others commit."""
        self._consumed: dict[tuple[str, int], int] = {}
        self._commits = 0
        self.lost = ""
        """The description of what the ledger has lost, "" where it has lost nothing."""
        self.failure: SamzaError | None = None
        """The error of the first commit that failed, after which there are no others."""

    def writer(self, task: int | None = None) -> Producer | None:
        """Return the producer of a task's transactions, or of those that are of no single task."""
        return self.producer if self.writers is None or task is None else self.writers.of(task)

    def to_purge(self, consumed: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int] | None:
        """Return, now and then, below which offsets nobody will read again, as commits have consumed; else None."""
        self._consumed.update(consumed)
        self._commits += 1
        # A request of its own to the brokers each time: seldom is enough, as what stays is only consumed records.
        if self._commits % PURGE_EVERY:
            return None
        below, self._consumed = self._consumed, {}
        return below

    def forget_consumed(self, stream: str) -> None:
        """Purge nothing of a stream that is gone: a request that names what does not exist removes nothing at all."""
        self._consumed = {place: offset for place, offset in self._consumed.items() if place[0] != stream}

    def again(self) -> SamzaError:
        """Return what commits are told of which an earlier one has failed."""
        assert self.failure is not None
        return type(self.failure)(str(self.failure))

    async def transact(
        self,
        streams: KafkaStreams,
        producer: Producer | None,
        pending: Mapping[tuple[str, int], Batch],
        commit: Commit | None = None,
        left: Collection[tuple[str, int]] = (),
    ) -> dict[tuple[str, int], int]:
        """Write in a transaction of one of its producers, as `transact` does."""
        if producer is not self.producer:
            return await transact(streams, producer, pending, commit, left)
        async with self.one_writes:
            return await transact(streams, producer, pending, commit, left)

    @contextmanager
    def unless_failed(self, app: str) -> Iterator[None]:
        """Do what only an owner can; raises `Fenced` where another one has come to be that.

        As after a commit that failed it does nothing more then: its producer may be in the midst of a transaction.
        """
        if self.failure is not None:
            raise self.again()
        try:
            with fenced_told(app):
                yield
        except SamzaError as error:
            self.failure = self.failure or error
            raise

    async def end(self) -> None:
        """Let go of all producers."""
        if self.writers is not None:
            await self.writers.end()
        if self.producer is not None:
            await ended(self.producer)


@contextmanager
def fenced_told(app: str) -> Iterator[None]:
    """Raise `Fenced` where another process has come to own an application while a block does what its owner can."""
    try:
        yield
    except EnvironmentFault as error:
        if isinstance(error.__cause__, FENCED):
            told = f"Another process has begun a run of application {app!r} while this one did: the newest goes on."
            raise Fenced(told) from error
        raise


def owned(streams: KafkaStreams, app: str) -> Owner:
    """Begin to own an application, whose ledger is made where there is none."""

    def begun() -> Owner:
        streams.create(ledger_of(app), TABLE, own=True)
        # Fences earlier owners and settles what they left open. Checkpoints and changelogs are read only after that.
        with fenced_told(app):
            return streams.call(ledger_of(app), begin(streams, app))

    try:
        return begun()
    except Unavailable:  # brokers may have told of it for a moment after it was deleted
        if streams.is_there(ledger_of(app)):
            raise
        return begun()


async def begin(streams: KafkaStreams, app: str) -> Owner:
    """Fence whoever owned it, say that there is a new generation, and read what was committed by then."""
    # The application's own id first: from here on every earlier owner is fenced, and what it left open is rolled back.
    producer = await streams.producer(app)
    try:
        streams.table(ledger_of(app)).doubt()
        before, offsets = await look(streams, app), await streams.group_offsets(app)
        generation, whole = before.generation + 1, await whole_now(streams, app, before, offsets)
        said = said_of_generation(generation)
        said.extend(said_of_whole(whole))
        # Said in a transaction under that id: where another owner has come since, this one is fenced, and says nothing.
        async with producer.transaction():
            await send_all(producer, {(ledger_of(app), 0): said})
        # Containers of earlier runs write under ids of their own: each is fenced by its claim before the ledger is
        # believed.
        ledger = await settle(streams, app, lambda claim: claim.run < generation)
    except BaseException:
        await ended(producer)
        raise
    owner = Owner(producer, generation, ledger)
    owner.lost = whole.lost or ("" if before.whole is None else lost_of(app, ledger.checkpoints.values(), offsets))
    return owner


async def whole_now(streams: KafkaStreams, app: str, ledger: Ledger, offsets: Mapping[tuple[str, int], int]) -> Whole:
    """Return from where on the ledger has all that was committed, and what it has lost, at the beginning of a run.

    Earlier versions have said a generation alone, and never removed anything below it.
    """
    name = ledger_of(app)
    start = await streams.table(name).start()
    topic_id = (await streams.metadata_of([name]))[name].id
    before = ledger.whole
    if before is not None and (before.lost or start <= before.start):
        return before
    if before is None and not ledger.generation and offsets:
        return Whole(topic_id, start, lost_of(app, [], offsets))
    if start > (before.start if before is not None else 0) and (ledger.generation or offsets):
        return Whole(topic_id, start, f"begins at offset {start} now: what lay below was removed")
    return Whole(topic_id, start)


def lost_of(app: str, checkpoints: Iterable[Checkpoint], offsets: Mapping[tuple[str, int], int]) -> str:
    """Return which checkpoints are lost, given those that there are and what the application's group has committed.

    What is committed of one is so of the other, so that no position is behind the group's; one of a stream that no
    checkpoint names any more may be of an input that the application has no longer.
    """
    reached: dict[tuple[str, int], int] = {}
    for checkpoint in checkpoints:
        for one in checkpoint.positions:
            place = one.stream, one.partition
            reached[place] = max(one.offset, reached.get(place, 0))
    read = {stream for stream, _ in reached}
    lost = {
        place: offset
        for place, offset in sorted(offsets.items())
        if offset > reached.get(place, 0 if place[0] in read or not read else offset)
    }
    said = [f"{stream!r}, partition {partition}, up to {at}" for (stream, partition), at in [*lost.items()][:MOST_TOLD]]
    more = f" and {len(lost) - MOST_TOLD} more" if len(lost) > MOST_TOLD else ""
    return f"has no checkpoint of what the group {app!r} has committed: {'; '.join(said)}{more}" if lost else ""


def lost_checkpoints(app: str, lost: str) -> Damaged:
    """Return what is wrong where checkpoints are lost: a run would read again, and write again, what it has done."""
    return Damaged(
        f"The topic {ledger_of(app)!r} {lost}. Checkpoints of application {app!r} are lost, as where the topic was "
        "cut, deleted or made anew, and a run would read and write all of it again. Put the topic back as it was. Or "
        f"begin anew: {command(f'reset {app}')}; after that {command('checkpoint set APP.py STREAM:PARTITION OFFSET')} "
        "has it go on from such an offset, without state. Where it has lost those of single partitions alone, "
        f"{command(f'checkpoint set {app} STREAM:PARTITION OFFSET --state keep')}, for each of them, goes on with "
        "state. Where the group is another program's, give the application another name."
    )


async def claim_all(streams: KafkaStreams, app: str, owner: Owner, tasks: frozenset[int]) -> dict[int, int]:
    """Let each task commit by itself, under a transactional id that the next owner will find, and fence.

    Returns the tasks' generations. Raises `Fenced` where the next owner is there already.
    """
    if owner.writers is None:
        owner.writers = Writers(streams, app, owner.generation, "")
    # Before the claims, as in every container: a claim names a producer that has begun.
    await owner.writers.begin(tasks - owner.taken.keys())
    ledger = owner.ledger
    while missing := tasks - owner.taken.keys():
        claims = [Claim(task, ledger.newest_of(task) + 1, "", owner.generation, 0, alone=True) for task in missing]
        await streams.say(ledger_of(app), said_of_claims(claims))
        ledger = await settle(streams, app, lambda claim: claim.run < owner.generation)
        if ledger.generation != owner.generation:
            raise fenced_error(app, owner.generation, ledger.generation)
        owner.taken |= {claim.task: claim.generation for claim in claims if ledger.claims[claim.task] == claim}
    outlived = [key for task in tasks for key in ledger.outlived.get(task, ())]
    if outlived:
        await streams.say(ledger_of(app), forgotten(outlived))
    return owner.taken


async def transact(
    streams: KafkaStreams,
    producer: Producer | None,
    pending: Mapping[tuple[str, int], Batch],
    commit: Commit | None = None,
    left: Collection[tuple[str, int]] = (),
) -> dict[tuple[str, int], int]:
    """Write everything, and where the inputs are, in one transaction; return the offsets behind all of it.

    The places that were `left` for good are told as not read, so that no checkpoint seems lost. Raises `Damaged` where
    a topic has been deleted that the commit has read, or writes, and `Refused` where this client may read one no more.
    """
    assert producer is not None
    try:
        return await _transacted(streams, producer, pending, commit, left)
    except TimeoutError:
        # Brokers are asked for ever of a topic that is not there, which is no fault of theirs.
        places = {*pending, *(_told_of(streams, commit, left) if commit is not None else ())}
        names = sorted({stream for stream, _ in places})
        there: Collection[str] = names
        with suppress(Exception):  # brokers that do not answer this either are what the timeout tells of
            async with asyncio.timeout(STOP_S):
                there = await streams.metadata_of(names)
        if gone := [name for name in names if name not in there]:
            raise Damaged(
                f"The topic {gone[0]!r} is gone, which this run reads or writes: bring it back, or make it anew and "
                f"let the application begin anew ({command('reset APP')})."
            ) from None
        raise


async def _transacted(
    streams: KafkaStreams,
    producer: Producer,
    pending: Mapping[tuple[str, int], Batch],
    commit: Commit | None,
    left: Collection[tuple[str, int]],
) -> dict[tuple[str, int], int]:
    async with asyncio.timeout(TRANSACTION_S):
        await streams.retention.look(pending)
        await producer.begin_transaction()
        ends = await send_all(producer, pending)
        if commit is not None:
            offsets = {place: OffsetAndMetadata(at, "") for place, at in _told_of(streams, commit, left).items()}
            if offsets:
                # For other tools, which see in the group how far the application is, and to tell when the ledger has
                # lost a checkpoint.
                await _tell_group(streams, producer, offsets, commit.app)
        await producer.commit_transaction()
    return ends


async def _tell_group(
    streams: KafkaStreams, producer: Producer, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: str
) -> None:
    """Commit a group's offsets with a transaction; raises `Refused` where this client may not read their topics."""
    try:
        await producer.send_offsets_to_transaction(offsets, group)
    except KafkaError as error:
        # aiokafka says only that something has failed, and the brokers do not say of which topic.
        if isinstance(error.__cause__, TopicAuthorizationFailedError):
            read = {place.topic for place in offsets}
            await check_rights(streams.topic(streams.registry), read, written=(), groups=())
        raise


def _told_of(streams: KafkaStreams, commit: Commit, left: Collection[tuple[str, int]]) -> dict[TopicPartition, int]:
    """Return the offsets that a commit tells the application's group, of partitions that there are."""
    found = dict.fromkeys(left, 0)
    positions = [one for checkpoint in commit.checkpoints.values() for one in checkpoint.positions]
    # Of virtual tasks that share a partition the one that is furthest behind counts: they come in that order.
    for one in sorted(positions, key=lambda one: one.offset, reverse=True):
        if one.system == "log":
            found[one.stream, one.partition] = one.offset
    # Brokers are asked for ever of a topic that is not there, and of partitions that it gets only when it is made anew.
    return {
        TopicPartition(stream, partition): at
        for (stream, partition), at in found.items()
        if streams.is_known(stream) and partition < streams.config(stream).partitions
    }


def left_by(commit: Commit, checkpoints: Mapping[str, Checkpoint]) -> set[tuple[str, int]]:
    """Return the partitions between stages that tasks of a commit have read, and that no task goes on to read."""
    before = [checkpoints[name] for name in (*commit.gone, *commit.checkpoints) if name in checkpoints]
    left = {(one.stream, one.partition) for checkpoint in before for one in checkpoint.positions if one.producers}
    left -= _read_by(commit.checkpoints.values())
    if left:
        # Tasks that the commit says nothing of may share a partition with one that leaves it.
        unchanged = checkpoints.keys() - commit.checkpoints.keys() - {*commit.gone}
        left -= _read_by(checkpoints[name] for name in unchanged)
    return left


def _read_by(checkpoints: Iterable[Checkpoint]) -> set[tuple[str, int]]:
    return {(one.stream, one.partition) for checkpoint in checkpoints for one in checkpoint.positions}


async def write_alone(
    streams: KafkaStreams, producer: Producer, pending: Mapping[tuple[str, int], Batch]
) -> dict[tuple[str, int], int]:
    """Write in one transaction, of nobody's application; a producer that could not is stopped."""
    try:
        return await transact(streams, producer, pending)
    except BaseException:
        with suppress(Exception):
            # Rolled back at once where that is possible: an open transaction holds back all readers of its topics.
            await asyncio.wait_for(producer.abort_transaction(), STOP_S)
        await ended(producer)
        raise


def records_of(
    streams: KafkaStreams,
    commit: Commit,
    ledger: Ledger,
    kept: Mapping[VirtualTask, Collection[str]],
    wrote: Collection[VirtualTask],
    here: KafkaState,
) -> dict[tuple[str, int], Batch]:
    """Return all that a commit writes: what it appends, to changelogs what has changed, and how far all was read.

    Of tasks that are gone with it, and whose state is `here`, it says how much that is.
    """
    pending = streams.records_of(commit.appends)
    for writes in commit.state:
        for place, rows in entries_of(commit.app, writes).items():
            pending.setdefault(place, Batch([], [])).extend(rows)
    said = said_of_checkpoints(commit.checkpoints)
    said.extend(forgotten([name.encode() for name in commit.gone]))
    if merged := ledger.merged_whole(commit.checkpoints, commit.gone):
        # Versions before elasticity read no ledger in which anything is said of virtual tasks.
        said.extend(said_of_stores(merged.kept))
        said.extend(said_of_reached(merged.reached))
        said.extend(forgotten(ledger.said_of_parts()))
    else:
        # They commit nothing behind it: what others count at the same place from then on is all that there is.
        gone = [VirtualTask.of(name) for name in commit.gone if is_task(name)]
        said.extend(said_of_reached(here.reached(commit.app, gone)))
    # Behind what was committed until now, since what this commit says counts.
    said.extend(said_of_stores(kept))
    # Said though a task may have reached nothing yet: who looks twice sees by the ledger that there was a commit.
    said.extend(said_of_reached({task: ledger.reached.get(task, {}) for task in wrote}))
    if len(said):
        pending[ledger_of(commit.app), 0] = said
    return pending


def add_changelog(streams: KafkaStreams, app: str, store: str) -> Changelog:
    """Make a changelog for a store, and return the one that it has: where several make one, it is the first.

    A topic that is there already is of no store that anybody knows: what lies in it counts for nothing. Raises
    `EnvironmentFault` where it can't be a changelog.
    """
    topic, ledger = Changelog("").topic(app, store), ledger_of(app)
    made = streams.create(topic, Changelog("").config, own=True)
    if made.partitions != PARTITIONS:
        raise EnvironmentFault(
            f"The topic {topic!r} is to be the changelog of store {store!r} of application {app!r}, for which it needs "
            f"{PARTITIONS} partitions, and has {made.partitions}: delete it, so that it is made as it must be, or give "
            "the operator another op_id=."
        )
    streams.amend([topic], TABLE_CONFIGS)
    # Of everything that was written: a transaction that is still open and ends later is none of this store's.
    begun = streams.call(topic, range_of(streams.topic(topic), PARTITIONS, "read_uncommitted"))
    starts = tuple(begun.ends[number] for number in range(PARTITIONS))
    changelog = Changelog(secrets.token_hex(8), streams.metadata([topic])[topic].id, starts)
    streams.write(ledger, said_of_changelog(store, changelog))
    # Several containers may make one at once: the first in the ledger counts, for all.
    return streams.call(ledger, all_of(streams, app)).changelogs[store]


async def begin_again(
    streams: KafkaStreams, app: str, owner: Owner, said: Batch, offsets: Collection[tuple[str, int]]
) -> None:
    """Say in one transaction what is forgotten, that nothing is lost now, and that the group has read nothing."""
    name = ledger_of(app)
    start = (await range_of(streams.topic(name), 1)).starts[0]
    said.extend(said_of_whole(Whole((await streams.metadata_of([name]))[name].id, start)))
    nothing = {TopicPartition(*place): OffsetAndMetadata(0, "") for place in offsets if streams.is_known(place[0])}
    producer = owner.producer
    assert producer is not None
    async with asyncio.timeout(TRANSACTION_S), producer.transaction():
        await send_all(producer, {(name, 0): said})
        if nothing:
            await _tell_group(streams, producer, nothing, app)
    owner.lost = ""


async def adopted(streams: KafkaStreams, app: str, ledger: Ledger, limited: Collection[str]) -> dict[str, Changelog]:
    """Return changelogs, of which earlier versions have not noted it, with what tells when something is lost of them.

    Only a retention, which the topics of `limited` stores had, or a reset has removed anything of such a one.
    """
    found = {}
    for store, changelog in ledger.changelogs.items():
        if not changelog.starts:
            name = changelog.topic(app, store)
            starts = (await range_of(streams.topic(name), PARTITIONS)).starts
            whole = [0 if store in limited else starts[number] for number in range(PARTITIONS)]
            topic_id = (await streams.metadata_of([name]))[name].id
            found[store] = Changelog(changelog.identity, topic_id, tuple(whole))
    return found


async def say_counted(
    streams: KafkaStreams, app: str, owner: Owner, counted: Mapping[int, Batch], within_s: float | None = None
) -> None:
    """Say how much tasks have committed that end well here, or go to others; `counted` has the words, by their number.

    In transactions of their own producers: who was taken for dead meanwhile says nothing of tasks with which others
    have come further, as nobody would miss what these have committed.
    """
    if owner.failure is not None:  # nobody knows what is committed
        return
    by_producer: dict[Producer, Batch] = {}
    for number, said in counted.items():
        producer = owner.producer or owner.writer(number)
        assert producer is not None, "who commits has a producer, or each of its tasks"
        by_producer.setdefault(producer, Batch([], [])).extend(said)
    with suppress(*FENCED):
        async with asyncio.timeout(within_s):
            await side_by_side(
                owner.transact(streams, producer, {(ledger_of(app), 0): said}) for producer, said in by_producer.items()
            )


async def let_go(streams: KafkaStreams, app: str, owner: Owner, counted: Mapping[int, Batch]) -> None:
    """End what an owner writes with; tasks that are its own need not be fenced by the next one."""
    with suppress(Exception):  # which the next owner does not need
        await say_counted(streams, app, owner, counted, STOP_S)
    await owner.end()
    if owner.failure is None and owner.taken:
        async with asyncio.timeout(STOP_S):
            await streams.say(ledger_of(app), said_of_given(owner.taken))


async def all_of(streams: KafkaStreams, app: str) -> Ledger:
    """Return the ledger with all that was written; who is in the midst of a transaction is waited for."""
    return await settle(streams, app, lambda claim: False)


def stores_of(state: Iterable[tuple[VirtualTask, StateWrites]], ledger: Ledger) -> dict[VirtualTask, frozenset[str]]:
    """Return the stores of those tasks that write to some for the first time."""
    found: dict[VirtualTask, frozenset[str]] = {}
    for task, writes in state:
        known = found.get(task, ledger.kept.get(task, frozenset()))
        if writes.store not in known:
            found[task] = known | {writes.store}
    return found


def whose(error: EnvironmentFault, commit: Commit) -> EnvironmentFault:
    """Return what is wrong with a commit; where it is the state of one key that is too large, whose that is."""
    items = [(len(value), one.store, one.task) for one in commit.state for _, value in one.items if value is not None]
    if not isinstance(error, TooLarge) or not items or "-changelog" not in str(error):
        return error
    size, store, task = max(items)
    if not commit.checkpoints:  # answers are written as they come, before what comes of them
        return TooLarge(
            f"{error} It is an answer that {store!r} remembers in task {task}, {size:,} bytes: let its function return "
            "less, or leave remember= out, with which each answer goes to its policy."
        )
    return TooLarge(
        f"{error} It is what {store!r} keeps of one key in task {task}, {size:,} bytes: keep less under one key, as "
        "with a window, a time to live or a collection."
    )
