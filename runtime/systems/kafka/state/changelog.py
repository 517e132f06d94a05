"""Changelogs: state as records of compacted topics, of which only what is newer than the state here is replayed."""

from __future__ import annotations

import logging
import struct
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import NamedTuple, TypeVar

import msgspec

from operators.core.base import Batch
from planner.model.virtual_tasks import UNSPLIT, Split, VirtualTask, kin
from runtime.model.checkpoint import Checkpoint
from runtime.model.clock import monotonic_ms, wall_clock_ms
from runtime.model.errors import Damaged, Unavailable, command
from runtime.model.garbage import collector_resting
from runtime.model.restores import Came, bringing_back
from runtime.ports.commits import Commit
from runtime.ports.state import StateWrites
from runtime.ports.streams import StreamConfig
from runtime.stores.held_snapshot import Entries, HeldSnapshot
from runtime.systems.kafka.client.metadata import TopicMetadata
from runtime.systems.kafka.client.topic import KafkaTopic
from runtime.systems.kafka.client.topic_configs import DELETIONS_MS
from runtime.systems.kafka.streams.compacted_topic import Begun, Isolation, range_of, scan
from runtime.systems.kafka.streams.streams import KafkaStreams
from runtime.systems.log.environment import LogEnvironment

PARTITIONS = 8
"""The partitions of each changelog, however many tasks there are or come to be: a record says its task."""
POSITIONS = "changelogs"
"""The name of the local checkpoint of how far each changelog is in the state here."""
TOO_OLD_MS = DELETIONS_MS - 86_400_000
"""The age in ms up to which state here is gone on from: beyond, deletions that it has not seen may be gone."""
_NOTED = "noted_ms"
ROWS, ROWS_BYTES = 200_000, 1 << 26
"""The records, and the bytes of values, that are held until they are written here in one go."""
_TASK = struct.Struct(">I")
T = TypeVar("T")
_log = logging.getLogger("samza_dsl")


class Changelog(msgspec.Struct, frozen=True, array_like=True):
    """The changelog of one store: another one of the same name has another identity.

    Its topic has `topic_id`, 0 where brokers have none to tell, and has all that was committed from `starts` on, an
    offset for each partition. What earlier versions have noted says neither.
    """

    identity: str
    topic_id: int = 0
    starts: tuple[int, ...] = ()

    @property
    def config(self) -> StreamConfig:
        """The configuration that its topic is made with."""
        return StreamConfig(partitions=PARTITIONS, compacted=True)

    def topic(self, app: str, store: str) -> str:
        """Return the name of its topic."""
        return f"{app}-{store}-changelog"

    def start(self, partition: int) -> int:
        """Return the offset from which a partition has all that was committed."""
        return self.starts[partition] if self.starts else 0

    def place(self, store: str, partition: int) -> str:
        """Return what names one of its partitions in a local checkpoint."""
        return f"{store}/{self.identity}/{partition}"


def entries_of(app: str, writes: StateWrites) -> dict[tuple[str, int], Batch]:
    """Return changed entries as changelog records, by topic and partition.

    They say the base task, however it is split: so a split or merge rewrites none of them.
    """
    task = _TASK.pack(writes.task)
    # By the task's number, so that a task's entries of a store lie in one partition, in order.
    place = Changelog("").topic(app, writes.store), writes.task % PARTITIONS
    return {place: Batch([value for _, value in writes.items], [task + key for key, _ in writes.items])}


class TaskState:
    """The state of one task here, and how far each changelog is in it: of a virtual one the entries of its own keys.

    Entries and positions are written in one transaction, so that a crash leaves neither ahead of the other. One thread
    at a time uses it.
    """

    def __init__(self, local: LogEnvironment, app: str, task: VirtualTask, split: Split = UNSPLIT) -> None:
        self.local = local
        self.app = app
        self.task = task
        self.split = split
        self.generation = local.own(app)
        self.positions: dict[str, int] = {}

    @property
    def partition(self) -> int:
        """The partition of each changelog that has its entries."""
        return self.task.base % PARTITIONS

    def entries(self, store: str) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries of a store."""
        return self.local.state_range(self.app, store, self.task.base)

    def has(self, store: str, place: bytes) -> bool:
        """Whether an entry of its base task is its own."""
        return self.split.has(self.task, store, place)

    def write(self, state: list[StateWrites]) -> None:
        """Change entries, and note how far the changelogs are in them."""
        noted = Checkpoint(self.generation, watermarks={_NOTED: wall_clock_ms()}, outputs=dict(self.positions))
        self.local.commit(Commit(self.app, self.generation, [], state, {POSITIONS: noted}))

    def reset(self) -> None:
        """Forget all."""
        self.local.reset(self.app)
        self.generation = self.local.generation(self.app)
        self.positions = {}


Copies = Callable[[TaskState], Iterable[object]]
"""Puts other copies of a task's state in its place, one after the other, each instead of the last."""


def _no_copies(_: TaskState) -> Iterable[object]:
    return ()


class ChangelogEnd(NamedTuple):
    """An offset below which a task has committed entries, and how many they are; -1 where these were not counted."""

    end: int = 0
    entries: int = -1


@dataclass(frozen=True)
class Committed:
    """The ledger's word on state: the changelog of each store, and of each task its stores and how far it wrote.

    What was said of tasks of another split counts for those that have keys in common with them.
    """

    changelogs: Mapping[str, Changelog]
    kept: Mapping[VirtualTask, Collection[str]]
    reached: Mapping[VirtualTask, Mapping[str, ChangelogEnd]]

    def stores(self, task: VirtualTask) -> frozenset[str]:
        """Return the stores that a task has ever written to, or those in whose place it is."""
        return frozenset().union(*(self.kept.get(one, ()) for one in kin(task, self._factors)))

    def ends(self, task: VirtualTask) -> dict[str, ChangelogEnd]:
        """Return how much a task, or those in whose place it is, has committed, by place of a changelog.

        Its entries are counted where nobody else has committed any since it was.
        """
        found = dict(self.reached.get(task, {}))
        for one in kin(task, self._factors):
            for place, end in self.reached.get(one, {}).items() if one != task else ():
                if place not in found or found[place].end < end.end:
                    found[place] = ChangelogEnd(end.end)
        return found

    def is_settled(self, task: VirtualTask, store: str, place: str) -> bool:
        """Whether nobody can have committed entries of a task behind its end at a place of a store's changelog.

        Who was not counted may have died behind one more commit. Others who have come further since, with any keys of
        its own, have begun behind all of that.
        """
        said = {
            one: self.reached.get(one, {}).get(place, ChangelogEnd())
            for one in {task, *kin(task, self._factors)}
            if store in self.kept.get(one, ()) or place in self.reached.get(one, {})
        }
        furthest = [
            end
            for one, end in said.items()
            if not any(end.end < at.end for other, at in said.items() if other.meets(one))
        ]
        return bool(furthest) and all(end.entries >= 0 for end in furthest)

    @cached_property
    def _factors(self) -> list[int]:
        """The factors of all tasks of which anything is said, in order."""
        return sorted({task.factor for task in (*self.kept, *self.reached)})


def restore(
    streams: KafkaStreams, committed: Committed, tasks: Sequence[TaskState], copies: Copies = _no_copies
) -> int:
    """Bring state up to date with its changelogs, and return how many records that took.

    Where it is of others, or too old, it is made anew. Nobody else may still write what is read; who is in the midst of
    other tasks' transactions is waited for. Raises `Damaged` where a changelog is less than was committed, and what is
    missing is neither here nor in any of the copies.
    """
    held = begin_at(streams, committed, tasks, copies)
    if not held:
        return 0
    records = {
        (store, one.task.name): max(begun.ends[one.partition] - one.positions[place], 0)
        for store, begun in held.items()
        for one in tasks
        if (place := committed.changelogs[store].place(store, one.partition)) in one.positions
    }
    with bringing_back(tasks[0].app, records) as came:
        found = sum(_replay(streams, store, committed, begun, tasks, came) for store, begun in held.items())
    for one in tasks:
        _note(one)
    return found


def catch_up(streams: KafkaStreams, committed: Committed, one: TaskState) -> None:
    """Bring a copy of state that others have, and go on with, as far as its changelogs are now.

    Raises `Damaged` where a changelog is less than was committed.
    """
    for store, held in begin_at(streams, committed, [one]).items():
        _replay(streams, store, committed, held, [one], lambda *_: None)
    _note(one)


def _note(one: TaskState) -> None:
    """Note how far changelogs are in state that they have nothing more for: what others have there is not read again.

    It is what is said of it to others, when its task ends well.
    """
    noted = one.local.checkpoints(one.app).get(POSITIONS, Checkpoint(0))
    if noted.outputs != one.positions:
        one.write([])


def begin_at(
    streams: KafkaStreams, committed: Committed, tasks: Sequence[TaskState], copies: Copies = _no_copies
) -> dict[str, Begun]:
    """Find from where on changelogs are beyond the state here, and return what these hold; some state is made anew.

    Raises `Damaged` as `restore` does.
    """
    for one in tasks:
        dropped = {*one.local.stores(one.app)}.difference(committed.stores(one.task))
        if dropped:  # where this was not at hand
            one.local.forget(one.app, dropped)
    stores = sorted({store for one in tasks for store in committed.stores(one.task)})
    if not stores:
        return {}
    app = tasks[0].app
    check_topics(streams, app, committed.changelogs, stores)
    topics = {store: streams.topic(committed.changelogs[store].topic(app, store)) for store in stores}
    with lost_told(streams, app, committed.changelogs, stores):
        held = {
            # Up to all that was written: a transaction of another task that is still open may lie before what this one
            # has committed.
            store: streams.call(topic.name, range_of(topic, PARTITIONS, "read_uncommitted"))
            for store, topic in topics.items()
        }
    for one in tasks:
        positions = _positions(one, committed, held)
        if positions is None:
            try:
                # State that can't be gone on from is dropped only once it is known that its changelogs are whole.
                positions = _first_positions(one, committed, held)
                one.reset()
            except Damaged:
                positions = next(filter(None, (_positions(one, committed, held) for _ in copies(one))), None)
                if positions is None:
                    raise
        one.positions = positions
    return held


@contextmanager
def lost_told(
    streams: KafkaStreams, app: str, changelogs: Mapping[str, Changelog], stores: Collection[str]
) -> Iterator[None]:
    """Raise `Damaged` where the changelog of one of these stores goes while it is read in a block."""
    try:
        yield
    except Unavailable:  # brokers are asked for what is not there until time is up
        check_topics(streams, app, changelogs, stores)
        raise


def check_topics(streams: KafkaStreams, app: str, changelogs: Mapping[str, Changelog], stores: Collection[str]) -> None:
    """Raise `Damaged` where the changelog of one of these stores is not the topic that was written."""
    if lost := lost_of_stores(streams, app, changelogs, stores):
        raise lost_error(app, *next(iter(lost.values())), *lost)


def lost_of_stores(
    streams: KafkaStreams, app: str, changelogs: Mapping[str, Changelog], stores: Collection[str]
) -> dict[str, tuple[str, str]]:
    """Return, of each store whose changelog is not the topic that was written, a topic and what is wrong with it."""
    absent = {store: f"says no more which changelog store {store!r} has" for store in stores if store not in changelogs}
    lost = {store: (f"{app}-checkpoints", what) for store, what in absent.items()}
    names = {store: changelogs[store].topic(app, store) for store in stores if store in changelogs}
    found: Mapping[str, TopicMetadata] = streams.metadata([*names.values()])
    for store, name in names.items():
        topic, id = found.get(name), changelogs[store].topic_id
        if topic is None:
            lost[store] = name, "is no longer there"
        # A topic of the same name that was made anew has other offsets: the noted ones would skip what it holds.
        elif id and topic.id and id != topic.id:
            lost[store] = name, "was deleted and made anew"
        elif topic.partitions != PARTITIONS:
            lost[store] = name, f"has {topic.partitions} partitions, and not the {PARTITIONS} it was made with"
    return lost


def lost_error(app: str, topic: str, what: str, *stores: str) -> Damaged:
    """Return what is wrong where topics hold less than was committed of the state of operators; one is told."""
    # What was staged for an operator goes with what is dropped of it.
    operators = sorted({store.lstrip(".") for store in stores})
    names, their = " ".join(operators), "its" if len(operators) == 1 else "their"
    return Damaged(
        f"The topic {topic!r} {what}: state of {' and '.join(map(repr, operators))} of application {app!r} that was "
        f"committed is lost. Put the topic back as it was. Or drop {their} state alone; a run then begins with none "
        f"there and reads on: {command(f'state forget {app} {names}')}. Or begin anew, which drops "
        f"all state and reads the inputs from their start: {command(f'reset {app}')}."
    )


def _positions(one: TaskState, committed: Committed, held: Mapping[str, Begun]) -> dict[str, int] | None:
    """Return how far changelogs are in the state here; None where that can't go on from there."""
    checkpoint = one.local.checkpoints(one.app).get(POSITIONS, Checkpoint(0))
    noted = dict(checkpoint.outputs)
    too_old = wall_clock_ms() - checkpoint.watermarks.get(_NOTED, 0) > TOO_OLD_MS
    here, stores, ends = one.local.stores(one.app), committed.stores(one.task), committed.ends(one.task)
    found, cut = {}, []
    for store in stores:
        changelog = committed.changelogs[store]
        place = changelog.place(store, one.partition)
        start, end = held[store].starts[one.partition], held[store].ends[one.partition]
        whole_from = changelog.start(one.partition)
        known = ends.get(place, ChangelogEnd())
        if place in noted and noted[place] >= known.end and committed.is_settled(one.task, store, place):
            noted[place] = max(noted[place], min(start, end))
        reached = max(noted.get(place, 0), known.end)
        # The topic ends before what was committed: to go on would silently lose that.
        if reached > end:
            what = f"ends at offset {end} of partition {one.partition}, and was written up to {reached}"
            raise lost_error(one.app, changelog.topic(one.app, store), what, store)
        if place in noted and noted[place] < max(start, whole_from):
            return None
        # What lies here is of a changelog of another identity.
        if place not in noted and store in here:
            return None
        # Compaction may have removed deletions that this state has not seen, and their keys would come back to life.
        if too_old and noted.get(place, end) < end:
            return None
        if start > whole_from:
            # Noted is also that nothing is left of it, as where all windows have closed: that is whole as well.
            if place not in noted:
                return None
            cut.append(store)
        found[place] = noted.get(place, whole_from)
    for store in cut:
        _log.warning(
            "the topic %r was cut, as by a retention: the state of task %s of application %r lies whole in this data "
            "directory, and nowhere else",
            *(committed.changelogs[store].topic(one.app, store), one.task.name, one.app),
        )
    return found


def _first_positions(one: TaskState, committed: Committed, held: Mapping[str, Begun]) -> dict[str, int]:
    """Return from where each changelog is replayed for a task of which nothing is here; raises `Damaged`."""
    found = {}
    for store in committed.stores(one.task):
        changelog = committed.changelogs[store]
        start, whole_from = held[store].starts[one.partition], changelog.start(one.partition)
        if start > whole_from:
            what = (
                f"begins at offset {start} of partition {one.partition}, and not at {whole_from}: what lay between was "
                f"removed, as by a retention or with DeleteRecords, and the state of task {one.task.name} is not in "
                "this data directory. Where another machine has it, run it there"
            )
            raise lost_error(one.app, changelog.topic(one.app, store), what, store)
        found[changelog.place(store, one.partition)] = max(start, whole_from)
    return found


def snapshot_of(
    streams: KafkaStreams,
    app: str,
    changelogs: Mapping[str, Changelog],
    kept: Mapping[VirtualTask, Collection[str]],
    isolation: Isolation,
) -> HeldSnapshot:
    """Return the committed state up to where changelogs end, which `isolation` tells; read when a store is asked for.

    By their ends with `read_uncommitted` transactions that are open there are waited for.
    """

    def read(store: str) -> Entries:
        if store not in changelogs:
            return {}
        # Brokers are asked for a topic that is not there until time is up.
        check_topics(streams, app, changelogs, [store])
        topic = streams.topic(changelogs[store].topic(app, store))
        with lost_told(streams, app, changelogs, [store]):
            newest = streams.call(topic.name, _newest_in(topic, bytes, isolation))
        # What a task has forgotten may lie in its changelog still.
        found: dict[int, dict[bytes, bytes]] = {task.base: {} for task, stores in kept.items() if store in stores}
        for key, value in newest.items():
            task = _TASK.unpack_from(key)[0]
            if task in found:
                found[task][key[_TASK.size :]] = value
        return {task: entries for task, entries in found.items() if entries}

    return HeldSnapshot(read)


async def _newest_in(topic: KafkaTopic, told: Callable[[bytes], T], isolation: Isolation) -> dict[bytes, T]:
    """Return what is told of the newest committed value under each key of a changelog, up to its end."""
    held, found = await range_of(topic, PARTITIONS, isolation), dict[bytes, T]()
    async for scanned in scan(topic, held.starts, held.ends):
        for key, value in zip(scanned.rows.keys or (), scanned.rows.values, strict=True):
            if value is None:
                found.pop(key, None)
            else:
                found[key] = told(value)
    return found


def sizes_of(
    streams: KafkaStreams, app: str, changelogs: Mapping[str, Changelog]
) -> dict[tuple[str, int], tuple[int, int]]:
    """Return, by store and task, how many entries changelogs have and their bytes; its keys are held meanwhile."""
    sizes: dict[tuple[str, int], tuple[int, int]] = {}
    for store, changelog in sorted(changelogs.items()):
        topic = streams.topic(changelog.topic(app, store))
        for key, length in streams.call(topic.name, _newest_in(topic, len, "read_committed")).items():
            task = _TASK.unpack_from(key)[0]
            entries, size_bytes = sizes.get((store, task), (0, 0))
            sizes[store, task] = entries + 1, size_bytes + len(key) - _TASK.size + length
    return sizes


def entries_in(rows: Batch, store: str, one: TaskState, begun: int) -> Batch:
    """Return what a changelog's records have of a task from an offset on, under the keys of its entries."""
    keys, mine = rows.keys or [], _TASK.pack(one.task.base)
    first = bisect_left(rows.offsets or (), begun)
    places = [row for row in range(first, len(keys)) if keys[row].startswith(mine)]
    if one.task.factor > 1:
        places = [row for row in places if one.has(store, keys[row][_TASK.size :])]
    found = rows.take(places) if len(places) < len(keys) else rows
    return Batch(found.values, [key[_TASK.size :] for key in found.keys or ()], offsets=found.offsets)


def _replay(
    streams: KafkaStreams, store: str, committed: Committed, held: Begun, every: Sequence[TaskState], came: Came
) -> int:
    """Write into the state of those tasks that have a store what its changelog has beyond it."""
    changelog = committed.changelogs[store]
    tasks = [one for one in every if store in committed.stores(one.task)]
    places = {one.task: changelog.place(store, one.partition) for one in tasks}
    begun = {one.task: one.positions[places[one.task]] for one in tasks}
    starts: dict[int, int] = {}
    for one in tasks:
        # Several tasks share a partition: it is read once, from where the first of them is.
        starts[one.partition] = min(begun[one.task], starts.get(one.partition, begun[one.task]))
    newest: dict[VirtualTask, dict[bytes, bytes | None]] = {}
    last: dict[VirtualTask, int] = {}
    records = held_bytes = 0

    def write() -> None:
        nonlocal held_bytes
        with collector_resting():
            for one in tasks:
                if one.task in newest:
                    items = sorted(newest[one.task].items(), key=itemgetter(0))
                    one.write([StateWrites(store, one.task.base, items)])
        newest.clear()
        held_bytes = 0

    async def replay() -> None:
        nonlocal records, held_bytes
        ends = {number: held.ends[number] for number in starts}
        replaying = Replaying(topic.name, sum(ends.values()) - sum(starts.values()))
        async for scanned in scan(topic, starts, ends, reset="none"):
            assert scanned.position >= starts[scanned.partition], "a replay only goes on"
            replaying.came(len(scanned.rows))
            for one in tasks:
                if one.partition == scanned.partition:
                    found = entries_in(scanned.rows, store, one, begun[one.task])
                    last[one.task] = max(found.offsets[-1] if found.offsets else 0, last.get(one.task, 0))
                    # Only the newest value of each key is written here, in the order of the keys: that is what LMDB
                    # takes fastest.
                    newest.setdefault(one.task, {}).update(zip(found.keys or (), found.values, strict=True))
                    records += len(found)
                    held_bytes += sum(map(len, filter(None, found.values)))
                    came(store, one.task.name, max(scanned.position - begun[one.task], 0))
                    # Behind the records of other tasks as well, so that they are not read again.
                    one.positions[places[one.task]] = max(one.positions[places[one.task]], scanned.position)
            if sum(map(len, newest.values())) >= ROWS or held_bytes >= ROWS_BYTES:
                write()

    if tasks:
        topic = streams.topic(changelog.topic(tasks[0].app, store))
        with lost_told(streams, tasks[0].app, committed.changelogs, [store]):
            streams.call(topic.name, replay())
        write()
        for one in tasks:
            place = places[one.task]
            # Behind what ends transactions as well, which no record tells of: others may have said that it was here.
            one.positions[place] = max(one.positions[place], held.ends[one.partition])
            known = committed.ends(one.task).get(place, ChangelogEnd())
            made_anew = begun[one.task] == max(held.starts[one.partition], changelog.start(one.partition))
            # All of it was replayed, and its last owner has counted the entries: another number says that records are
            # missing.
            if made_anew and known.entries >= 0 and begun[one.task] <= known.end > last.get(one.task, 0):
                _check_entries(one, topic.name, store, known.entries)
    return records


def _check_entries(one: TaskState, topic: str, store: str, entries: int) -> None:
    """Raise `Damaged` where a store that was brought back has not as many entries as were committed."""
    found, _ = one.local.state_stats(one.app).get((store, one.task.base), (0, 0))
    if found != entries:
        one.reset()  # so that it is not gone on from
        raise lost_error(
            one.app,
            topic,
            f"has {found:,} entries of store {store!r}, task {one.task.name}, and {entries:,} were committed",
            store,
        )


EVERY_MS = 2_000
"""The ms that a replay goes on until it says something, and from then on until it does again."""


class Replaying:
    """The progress of a replay, of `records` at most: some are of other tasks, or say who committed.

    >>> at = iter([0, 1_900, 2_000, 2_100])
    >>> replaying = Replaying("counting-words", 1_000, lambda: next(at), print)
    >>> for records in (400, 50, 50):
    ...     replaying.came(records)
    brings back state from counting-words: 450 of 1,000 records
    """

    def __init__(
        self,
        changelog: str,
        records: int,
        now_ms: Callable[[], float] = monotonic_ms,
        tell: Callable[[str], None] = _log.warning,
    ) -> None:
        self._changelog, self._records = changelog, records
        self._now_ms, self._tell = now_ms, tell
        self._came = 0
        self._told_ms = now_ms()

    def came(self, records: int) -> None:
        """Take note of more records."""
        self._came += records
        if (now_ms := self._now_ms()) - self._told_ms >= EVERY_MS:
            self._told_ms = now_ms
            self._tell(f"brings back state from {self._changelog}: {self._came:,} of {self._records:,} records")
