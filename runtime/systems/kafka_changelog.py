"""State as records of compacted topics, from which it is brought back: only what is newer than what lies here."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from operators.base import Batch
from runtime.checkpoint import Checkpoint
from runtime.clock import wall_clock_ms
from runtime.systems.base import Commit, StateWrites, StreamConfig
from runtime.systems.kafka_streams import DELETIONS_MS, KafkaStreams
from runtime.systems.kafka_table import Begun, Scanned, range_of, scan
from runtime.systems.log import LogEnvironment

PARTITIONS = 8
"""How many each changelog has, however many tasks there are or come to be: a record says its task."""
POSITIONS = "changelogs"
"""The local checkpoint of how far each changelog is in the state here."""
TOO_OLD_MS = DELETIONS_MS - 86_400_000
"""How old the state here may be to go on from: beyond it, deletions that it has not seen may be gone."""
_NOTED = "noted_ms"
ROWS = 50_000
"""How many records are written here in one go."""
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

    def begun(self, store: str) -> dict[str, int]:
        """Return where its partitions are before anything was written."""
        return {self.place(store, partition): 0 for partition in range(PARTITIONS)}


class Restored(NamedTuple):
    """How far each changelog is in the state here, and how many records it took to come there."""

    positions: dict[str, int]
    records: int

    def names_of(
        self, app: str, changelogs: Mapping[str, Changelog], ends: Mapping[tuple[str, int], int]
    ) -> Iterator[tuple[str, int]]:
        """Yield the positions behind what was written to changelogs, among other topics."""
        for store, changelog in changelogs.items():
            for partition in range(PARTITIONS):
                end = ends.get((changelog.topic(app, store), partition))
                if end is not None:
                    yield changelog.place(store, partition), end

    def checkpoint(self, generation: int) -> dict[str, Checkpoint]:
        """Return what is committed here together with the state."""
        return {POSITIONS: Checkpoint(generation, watermarks={_NOTED: wall_clock_ms()}, outputs=dict(self.positions))}


def entries_of(app: str, writes: StateWrites) -> dict[tuple[str, int], Batch]:
    """Return changed entries as changelog records, by topic and partition."""
    task = _TASK.pack(writes.task)
    place = Changelog("").topic(app, writes.store), writes.task % PARTITIONS
    return {place: Batch([value for _, value in writes.items], [task + key for key, _ in writes.items])}


def restore(streams: KafkaStreams, local: LogEnvironment, app: str, changelogs: Mapping[str, Changelog]) -> Restored:
    """Bring the state here up to date with its changelogs; where it is of others, or too old, it is made anew."""
    topics = {store: streams.topic(changelog.topic(app, store)) for store, changelog in changelogs.items()}
    held = {store: streams.call(topic.name, range_of(topic, PARTITIONS)) for store, topic in topics.items()}
    positions = _positions(local, app, changelogs, held)
    if positions is None:
        local.reset(app)
        positions = {
            changelogs[store].place(store, number): start
            for store, begun in held.items()
            for number, start in begun.starts.items()
        }
    restored = Restored(positions, 0)
    for store, changelog in changelogs.items():
        restored = _replay(streams, local, app, store, changelog, held[store], restored)
    return restored


def _positions(
    local: LogEnvironment, app: str, changelogs: Mapping[str, Changelog], held: Mapping[str, Begun]
) -> dict[str, int] | None:
    """Return how far changelogs are in the state here; None where that can't go on from there."""
    checkpoint = local.checkpoints(app).get(POSITIONS, Checkpoint(0))
    noted = checkpoint.outputs
    too_old = wall_clock_ms() - checkpoint.watermarks.get(_NOTED, 0) > TOO_OLD_MS
    found = {}
    for store, changelog in changelogs.items():
        for number in range(PARTITIONS):
            place = changelog.place(store, number)
            start, end = held[store].starts[number], held[store].ends[number]
            if not start <= noted.get(place, start) <= end or (place not in noted and _holds(local, app, store)):
                return None
            if too_old and noted.get(place, end) < end:
                return None
            found[place] = noted.get(place, start)
    if any(store not in changelogs for store in local.stores(app)):
        return None
    return found


def _holds(local: LogEnvironment, app: str, store: str) -> bool:
    return store in local.stores(app)


def _replay(
    streams: KafkaStreams,
    local: LogEnvironment,
    app: str,
    store: str,
    changelog: Changelog,
    held: Begun,
    restored: Restored,
) -> Restored:
    topic = streams.topic(changelog.topic(app, store))
    starts = {number: restored.positions[changelog.place(store, number)] for number in held.ends}
    positions, records = dict(restored.positions), restored.records
    generation = local.generation(app)
    newest: dict[int, dict[bytes, bytes | None]] = {}

    def write() -> None:
        state = [StateWrites(store, task, sorted(items.items())) for task, items in sorted(newest.items())]
        local.commit(Commit(app, generation, [], state, Restored(positions, 0).checkpoint(generation)))
        newest.clear()

    async def replay() -> None:
        nonlocal records
        async for scanned in scan(topic, starts, held.ends):
            _keep(scanned, newest)
            records += len(scanned.records)
            positions[changelog.place(store, scanned.partition)] = scanned.position
            if sum(map(len, newest.values())) >= ROWS:
                write()

    streams.call(topic.name, replay())
    write()
    return Restored(positions, records)


def _keep(scanned: Scanned, newest: dict[int, dict[bytes, bytes | None]]) -> None:
    for record in scanned.records:
        newest.setdefault(_TASK.unpack_from(record.key)[0], {})[record.key[_TASK.size :]] = record.value
