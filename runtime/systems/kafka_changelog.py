"""State as records of compacted topics, from which it is brought back: only what is newer than what lies here."""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from operator import itemgetter

import msgspec

from operators.base import Batch
from runtime.checkpoint import Checkpoint
from runtime.clock import wall_clock_ms
from runtime.garbage import collector_resting
from runtime.systems.base import Commit, StateWrites, StreamConfig
from runtime.systems.kafka_replaying import Replaying
from runtime.systems.kafka_streams import DELETIONS_MS, KafkaStreams
from runtime.systems.kafka_table import Begun, range_of, scan
from runtime.systems.log import LogEnvironment

PARTITIONS = 8
"""How many each changelog has, however many tasks there are or come to be: a record says its task."""
POSITIONS = "changelogs"
"""The local checkpoint of how far each changelog is in the state here."""
TOO_OLD_MS = DELETIONS_MS - 86_400_000
"""How old the state here may be to go on from: beyond it, deletions that it has not seen may be gone."""
_NOTED = "noted_ms"
ROWS, ROWS_BYTES = 200_000, 1 << 26
"""How many records, and how large values together, are held until they are written here in one go."""
_TASK = struct.Struct(">I")


class Changelog(msgspec.Struct, frozen=True, array_like=True):
    """The changelog of one store: another one of the same name has another identity."""

    identity: str

    @property
    def config(self) -> StreamConfig:
        """What its topic is made with."""
        return StreamConfig(partitions=PARTITIONS, compacted=True)

    def topic(self, app: str, store: str) -> str:
        """Return the name of its topic."""
        return f"{app}-{store}-changelog"

    def place(self, store: str, partition: int) -> str:
        """Return what names one of its partitions in a local checkpoint."""
        return f"{store}/{self.identity}/{partition}"


def entries_of(app: str, writes: StateWrites) -> dict[tuple[str, int], Batch]:
    """Return changed entries as changelog records, by topic and partition."""
    task = _TASK.pack(writes.task)
    place = Changelog("").topic(app, writes.store), writes.task % PARTITIONS
    return {place: Batch([value for _, value in writes.items], [task + key for key, _ in writes.items])}


class TaskState:
    """The state of one task here, and how far each changelog is in it."""

    def __init__(self, local: LogEnvironment, app: str, task: int) -> None:
        self.local = local
        self.app = app
        self.task = task
        self.generation = local.own(app)
        self.positions: dict[str, int] = {}

    @property
    def partition(self) -> int:
        """Which partition of each changelog is its."""
        return self.task % PARTITIONS

    def write(self, state: list[StateWrites]) -> None:
        """Change entries, and note how far the changelogs are in them."""
        noted = Checkpoint(self.generation, watermarks={_NOTED: wall_clock_ms()}, outputs=dict(self.positions))
        self.local.commit(Commit(self.app, self.generation, [], state, {POSITIONS: noted}))

    def reset(self) -> None:
        """Forget all."""
        self.local.reset(self.app)
        self.generation = self.local.generation(self.app)
        self.positions = {}


def restore(
    streams: KafkaStreams,
    changelogs: Mapping[str, Changelog],
    kept: Mapping[int, Collection[str]],
    tasks: Sequence[TaskState],
) -> int:
    """Bring state up to date with its changelogs, and return how many records that took.

    Where it is of others, or too old, it is made anew. Nobody else may still write what is read; who is in the midst of
    other tasks' transactions is waited for.
    """
    held = begin_at(streams, changelogs, kept, tasks)
    return sum(
        _replay(streams, store, changelogs[store], begun, [one for one in tasks if store in kept.get(one.task, ())])
        for store, begun in held.items()
    )


def begin_at(
    streams: KafkaStreams,
    changelogs: Mapping[str, Changelog],
    kept: Mapping[int, Collection[str]],
    tasks: Sequence[TaskState],
) -> dict[str, Begun]:
    """Know of state from where on its changelogs are beyond it, and return what these hold; some is made anew."""
    topics = {store: streams.topic(changelogs[store].topic(one.app, store)) for one in tasks for store in changelogs}
    held = {
        store: streams.call(topic.name, range_of(topic, PARTITIONS, "read_uncommitted"))
        for store, topic in topics.items()
    }
    for one in tasks:
        stores = kept.get(one.task, ())
        positions = _positions(one, changelogs, held, stores)
        if positions is None:
            one.reset()
            positions = {
                changelogs[store].place(store, one.partition): held[store].starts[one.partition] for store in stores
            }
        one.positions = positions
    return held


def _positions(
    one: TaskState, changelogs: Mapping[str, Changelog], held: Mapping[str, Begun], stores: Collection[str]
) -> dict[str, int] | None:
    """Return how far changelogs are in the state here; None where that can't go on from there."""
    checkpoint = one.local.checkpoints(one.app).get(POSITIONS, Checkpoint(0))
    noted = checkpoint.outputs
    too_old = wall_clock_ms() - checkpoint.watermarks.get(_NOTED, 0) > TOO_OLD_MS
    here = one.local.stores(one.app)
    found = {}
    for store in stores:
        place = changelogs[store].place(store, one.partition)
        start, end = held[store].starts[one.partition], held[store].ends[one.partition]
        if not start <= noted.get(place, start) <= end or (place not in noted and store in here):
            return None
        if too_old and noted.get(place, end) < end:
            return None
        found[place] = noted.get(place, start)
    return None if any(store not in stores for store in here) else found


def entries_in(rows: Batch, task: int, begun: int) -> Batch:
    """Return what the records of a changelog have of a task from an offset on, under the keys of its entries."""
    keys, mine = rows.keys or [], _TASK.pack(task)
    first = bisect_left(rows.offsets or (), begun)
    places = [row for row in range(first, len(keys)) if keys[row].startswith(mine)]
    found = rows.take(places) if len(places) < len(keys) else rows
    return Batch(found.values, [key[_TASK.size :] for key in found.keys or ()])


def _replay(streams: KafkaStreams, store: str, changelog: Changelog, held: Begun, tasks: Sequence[TaskState]) -> int:
    """Write into the state of tasks what one changelog has beyond it."""
    begun = {one.task: one.positions[changelog.place(store, one.partition)] for one in tasks}
    starts: dict[int, int] = {}
    for one in tasks:
        starts[one.partition] = min(begun[one.task], starts.get(one.partition, begun[one.task]))
    newest: dict[int, dict[bytes, bytes | None]] = {}
    records = held_bytes = 0

    def write() -> None:
        nonlocal held_bytes
        with collector_resting():
            for one in tasks:
                if one.task in newest:
                    one.write([StateWrites(store, one.task, sorted(newest[one.task].items(), key=itemgetter(0)))])
        newest.clear()
        held_bytes = 0

    async def replay() -> None:
        nonlocal records, held_bytes
        ends = {number: held.ends[number] for number in starts}
        replaying = Replaying(topic.name, sum(ends.values()) - sum(starts.values()))
        async for scanned in scan(topic, starts, ends):
            replaying.came(len(scanned.rows))
            for one in tasks:
                if one.partition == scanned.partition:
                    found = entries_in(scanned.rows, one.task, begun[one.task])
                    newest.setdefault(one.task, {}).update(zip(found.keys or (), found.values, strict=True))
                    records += len(found)
                    held_bytes += sum(map(len, filter(None, found.values)))
                    place = changelog.place(store, one.partition)
                    one.positions[place] = max(one.positions[place], scanned.position)
            if sum(map(len, newest.values())) >= ROWS or held_bytes >= ROWS_BYTES:
                write()

    if tasks:
        topic = streams.topic(changelog.topic(tasks[0].app, store))
        streams.call(topic.name, replay())
        write()
        for one in tasks:
            if one.positions[changelog.place(store, one.partition)] > begun[one.task]:
                one.write([])  # what others have written there is then not read again
    return records
