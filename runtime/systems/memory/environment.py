"""An environment in memory, with the contract of the embedded log, for tests and for runs that keep nothing."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from operators.core.base import Batch
from runtime.model.assignment import JobModel, Placement, Scale, sticky
from runtime.model.checkpoint import Checkpoint
from runtime.model.clock import wall_clock_ms
from runtime.ports.commits import Commit, fenced_error, taken_error
from runtime.ports.environment import GrowingEnvironment, SnapshotEnvironment
from runtime.ports.membership import Membership
from runtime.ports.state import SettledCommits, StateReader
from runtime.ports.streams import (
    END,
    NO_SIZES,
    Append,
    Control,
    Offsets,
    Read,
    StreamConfig,
    absent_error,
    check_among,
    check_config,
    check_grown,
    check_keys,
    check_name,
    ended_error,
    ends,
    gone_error,
    grown_config,
    no_partition_error,
)
from runtime.stores.held_snapshot import HeldSnapshot
from runtime.stores.key_order import KeyOrder
from runtime.systems.log.batch import StoredBatch, check_columns
from runtime.systems.log.membership import Members, Shared, holding_of, model_in
from runtime.systems.log.newest_rows import Newest, is_due, joined


class _Partition:
    """The batches of one partition, in order."""

    def __init__(self) -> None:
        self.batches: list[StoredBatch] = []
        self.lasts: list[int] = []
        """The last offset of each batch."""
        self.start = self.end = 0
        self.ended = False
        self.batches_left = 0
        """By the last compaction."""

    def add(self, batch: Batch, control: Control | None, now_ms: int) -> None:
        rows = len(batch.values)
        # The caller goes on with its batch, and may add to it.
        copied = batch.copy()
        copied.offsets = range(self.end, self.end + rows)
        copied.owners = None
        if copied.timestamps is None:
            copied.timestamps = [now_ms] * rows
        last = self.end + max(rows, 1) - 1
        assert self.start <= self.end <= last, "a partition only grows"
        self.batches.append(StoredBatch(self.end, last, now_ms, copied, control))
        self.lasts.append(last)
        self.end = last + 1
        self.ended = ends(control)

    def drop_old(self, config: StreamConfig, now_ms: int) -> None:
        size_bytes = sum(map(_size_bytes, self.batches)) if config.retention_bytes is not None else 0
        while len(self.batches) > 1:
            oldest = self.batches[0]
            too_old = config.retention_ms is not None and oldest.appended_ms < now_ms - config.retention_ms
            too_much = config.retention_bytes is not None and size_bytes > config.retention_bytes
            if not (too_old or too_much):
                break
            size_bytes -= _size_bytes(oldest)
            self.start = oldest.last + 1
            del self.batches[0], self.lasts[0]

    def purge(self, offset: int) -> None:
        while self.batches and self.lasts[0] < offset:
            self.start = self.lasts[0] + 1
            del self.batches[0], self.lasts[0]
        assert self.start <= self.end, "a range begins before it ends"

    def compact(self, now_ms: int) -> None:
        newest = Newest()
        for stored in reversed(self.batches):
            newest.see(stored)
        self.batches = joined(kept for stored in self.batches if (kept := newest.kept(stored, now_ms)) is not None)
        self.lasts = [stored.last for stored in self.batches]
        self.batches_left = len(self.batches)


@dataclass
class _Stream:
    id: int
    config: StreamConfig
    partitions: list[_Partition]


class _Entries:
    """The committed entries of one store in one task."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.order = KeyOrder(self.values)

    def write(self, items: Iterable[tuple[bytes, bytes | None]]) -> None:
        for key, value in items:
            if value is None:
                self.values.pop(key, None)
            else:
                self.order.add(key)
                self.values[key] = value


@dataclass
class _Application:
    generation: int = 0
    commits: int = 0
    checkpoints: dict[str, Checkpoint] = field(default_factory=dict)
    state: defaultdict[tuple[str, int], _Entries] = field(default_factory=lambda: defaultdict(_Entries))
    agreed: dict[str, bytes] = field(default_factory=dict)
    scale: Scale = field(default_factory=Scale)
    containers: set[tuple[int, str]] = field(default_factory=set)
    """The containers that are alive, by the generation of their run and their name."""


class MemoryEnvironment(SnapshotEnvironment, GrowingEnvironment):
    """Streams, state and checkpoints in this object: they live as long as it does, beyond `close`.

    It stands in for a data directory: who takes an application over by `own` fences the one before, as after a crash.
    Any thread may call it: one lock is held for each call, and what is handed out is copied or never changes. Offsets,
    generations and the version only grow.

    >>> from runtime.ports.streams import Append
    >>> memory = MemoryEnvironment(now_ms=lambda: 1_000)
    >>> _ = memory.create_stream("greetings", StreamConfig())
    >>> memory.append([Append("greetings", 0, Batch([b"hello", b"world"]))])
    >>> memory.read("greetings", 0, 1).batch.timestamps
    [1000]
    """

    def __init__(self, *, now_ms: Callable[[], int] = wall_clock_ms) -> None:
        self._now_ms = now_ms
        self._lock = threading.RLock()
        self._version = 0
        self._streams: dict[str, _Stream] = {}
        self._applications: defaultdict[str, _Application] = defaultdict(_Application)

    def create_stream(self, name: str, config: StreamConfig) -> StreamConfig:
        check_config(name, config)
        with self._lock:
            if name not in self._streams:
                self._version += 1
                self._streams[name] = _Stream(self._version, config, [_Partition() for _ in range(config.partitions)])
            return self._streams[name].config

    def grow_stream(self, name: str, partitions: int) -> StreamConfig:
        with self._lock:
            found = self._stream(name)
            check_grown(name, found.config, partitions)
            if any(one.ended for one in found.partitions):
                raise ended_error(name, 0)
            if partitions == found.config.partitions:
                return found.config
            self._version += 1
            found.config = grown_config(found.config, partitions, [one.end for one in found.partitions])
            found.partitions.extend(_Partition() for _ in range(partitions - len(found.partitions)))
            return found.config

    def delete_stream(self, name: str) -> None:
        with self._lock:
            self._version += 1
            self._streams.pop(name, None)

    def streams(self, among: Collection[str] | None = None) -> dict[str, StreamConfig]:
        with self._lock:
            names = self._streams if among is None else self._streams.keys() & among
            return {name: self._streams[name].config for name in sorted(names)}

    def offsets(self, stream: str, partition: int) -> Offsets:
        with self._lock:
            found = self._partition(stream, partition)
            return Offsets(found.start, found.end, found.ended)

    def stream_id(self, stream: str) -> int:
        with self._lock:
            return self._stream(stream).id

    def stream_stats(self, stream: str) -> tuple[int, int]:
        """Return how many records a stream holds, and the bytes of their keys and values."""
        with self._lock:
            batches = [stored for partition in self._stream(stream).partitions for stored in partition.batches]
            return sum(len(stored.batch) for stored in batches), sum(map(_size_bytes, batches))

    def version(self) -> int:
        """Return how many changes there were."""
        return self._version

    def read(self, stream: str, partition: int, offset: int, max_records: int = 10_000) -> Read | None:
        with self._lock:
            found = self._partition(stream, partition)
            if not found.start <= offset <= found.end:
                raise gone_error(stream, partition, offset, found.start, found.end)
            for stored in found.batches[bisect_left(found.lasts, offset) :]:
                rows = stored.cut(offset, max_records)
                if rows:
                    batch, control, next_offset = rows
                    return Read(batch.copy(), control, next_offset, self._stream(stream).id, stored.appended_ms)
            return None

    def append(self, appends: Iterable[Append], among: Mapping[str, int] = NO_SIZES) -> None:
        with self._lock:
            check_among(among, lambda stream: self._stream(stream).config.partitions)
            self._append(self._checked(appends))

    def end_stream(self, stream: str) -> None:
        with self._lock:
            partitions = range(self._stream(stream).config.partitions)
            open_ones = [number for number in partitions if not self._partition(stream, number).ended]
            self._append([Append(stream, number, Batch([]), END) for number in open_ones])

    def commit(self, commit: Commit) -> None:
        with self._lock:
            application = self._applications[commit.app]
            if application.generation != commit.generation:
                raise fenced_error(commit.app, commit.generation, application.generation)
            for task, taken in commit.tasks.items():
                if (current := holding_of(application.agreed, task).generation) != taken:
                    raise taken_error(commit.app, task, taken, current)
            check_among(commit.among, lambda stream: self._stream(stream).config.partitions)
            # Everything that can fail comes before: all of a commit is there, or nothing of it.
            self._append(self._checked(commit.appends))
            for (stream, partition), offset in commit.consumed.items():
                if self._stream(stream).config.intermediate:
                    self._partition(stream, partition).purge(offset)
            for store, task, items in commit.state:
                application.state[store, task].write(items)
            for name in commit.gone:
                application.checkpoints.pop(name, None)
            application.checkpoints.update(commit.checkpoints)
            application.commits += 1

    def compact(self, stream: str) -> None:
        with self._lock:
            self._version += 1
            for partition in self._stream(stream).partitions:
                partition.compact(self._now_ms())

    def own(self, app: str) -> int:
        """Become the application's owner, fencing any other, and return its new generation."""
        check_name("application", app)
        with self._lock:
            self._version += 1
            self._applications[app].generation += 1
            return self._applications[app].generation

    def generation(self, app: str) -> int:
        with self._lock:
            return self._applications[app].generation

    def applications(self) -> list[str]:
        with self._lock:
            return sorted(name for name, application in self._applications.items() if application.generation)

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
        with self._lock:
            return _MemoryMembers(self, app, generation, container, tasks, placement)

    def ask_scale(self, app: str, scale: Scale) -> Scale:
        check_name("application", app)
        with self._lock:
            found = self._applications[app]
            found.scale = scale.behind(found.scale)
            return found.scale

    def refuse_scale(self, app: str, refusal: Scale) -> None:
        with self._lock:
            found = self._applications[app]
            found.scale = found.scale.refused(refusal)

    def asked_scale(self, app: str) -> Scale:
        with self._lock:
            return self._applications[app].scale

    def job_model(self, app: str) -> JobModel:
        with self._lock:
            return model_in(self._applications[app].agreed)

    def checkpoints(self, app: str) -> dict[str, Checkpoint]:
        with self._lock:
            return dict(self._applications[app].checkpoints)

    def state_get(self, app: str, store: str, task: int, key: bytes) -> bytes | None:
        with self._lock:
            return self._applications[app].state[store, task].values.get(key)

    def state_reader(self, app: str, store: str, task: int) -> StateReader:
        return _StateReader(self, app, store, task)

    def state_range(
        self, app: str, store: str, task: int, start: bytes = b"", end: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        with self._lock:
            entries = self._applications[app].state[store, task]
            found = [(key, entries.values[key]) for key in entries.order.between(start, end)]
        yield from found

    def snapshot(self, app: str) -> HeldSnapshot:
        with self._lock:
            held: dict[str, dict[int, dict[bytes, bytes]]] = defaultdict(dict)
            for (store, task), entries in self._applications[app].state.items():
                held[store][task] = dict(entries.values)
        return HeldSnapshot(lambda store: held.get(store, {}))

    def settled_snapshot(self, app: str) -> HeldSnapshot:
        return self.snapshot(app)

    def settled_commits(self, app: str) -> SettledCommits:
        with self._lock:
            return SettledCommits(self.checkpoints(app), self._applications[app].commits)

    def stores(self, app: str) -> list[str]:
        with self._lock:
            return sorted({store for (store, _), entries in self._applications[app].state.items() if entries.values})

    def state_stats(self, app: str) -> dict[tuple[str, int], tuple[int, int]]:
        with self._lock:
            return {
                place: (len(entries.values), sum(len(key) + len(value) for key, value in entries.values.items()))
                for place, entries in self._applications[app].state.items()
                if entries.values
            }

    def reset(self, app: str, stores: Iterable[str] | None = None) -> None:
        self.own(app)
        with self._lock:
            application = self._applications[app]
            application.checkpoints.clear()
        self.forget(app, self.stores(app) if stores is None else [*stores])

    def forget(self, app: str, stores: Collection[str]) -> None:
        with self._lock:
            state = self._applications[app].state
            for place in [place for place in state if place[0] in stores]:
                del state[place]

    def close(self) -> None:
        """Do nothing: what is here can be read, and taken over, as after a restart."""

    def _stream(self, name: str) -> _Stream:
        if name not in self._streams:
            raise absent_error(name)
        return self._streams[name]

    def _partition(self, stream: str, partition: int) -> _Partition:
        config, partitions = (found := self._stream(stream)).config, found.partitions
        if not 0 <= partition < len(partitions):
            raise no_partition_error(stream, config, partition)
        return partitions[partition]

    def _checked(self, appends: Iterable[Append]) -> list[Append]:
        checked = []
        ended = set()
        for append in appends:
            stream, partition, batch, control = append
            check_keys(stream, self._stream(stream).config, batch)
            check_columns(batch)
            found = self._partition(stream, partition)
            if found.ended or (stream, partition) in ended:
                raise ended_error(stream, partition)
            if ends(control):
                ended.add((stream, partition))
            if batch.values or control is not None:
                checked.append(append)
        return checked

    def _append(self, appends: Iterable[Append]) -> None:
        now_ms = self._now_ms()
        self._version += 1
        for stream, partition, batch, control in appends:
            found = self._partition(stream, partition)
            found.add(batch, control, now_ms)
            config = self._stream(stream).config
            found.drop_old(config, now_ms)
            if config.compacted and is_due(len(found.batches), found.batches_left):
                found.compact(now_ms)


class _MemoryMembers(Members):
    """A container on an environment in memory, alive until it leaves."""

    def __init__(
        self, memory: MemoryEnvironment, app: str, run: int, name: str, tasks: int, placement: Placement
    ) -> None:
        super().__init__(app, run, name, tasks, placement)
        self._lock = memory._lock
        self._application = memory._applications[app]
        self._application.containers.add((run, name))

    def leave(self) -> None:
        with self._lock:
            self._application.containers.discard((self._run, self.name))

    def _alive(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(sorted(name for run, name in self._application.containers if run == self._run))

    def _is_alive(self, container: str) -> bool:
        return (self._run, container) in self._application.containers

    @contextmanager
    def _looking(self) -> Iterator[Shared]:
        with self._lock:
            yield self._application.agreed

    @contextmanager
    def _changing(self) -> Iterator[Shared]:
        with self._lock:
            if self._application.generation != self._run:
                raise fenced_error(self._app, self._run, self._application.generation)
            yield self._application.agreed


def _size_bytes(stored: StoredBatch) -> int:
    columns = [stored.batch.values, stored.batch.keys or []]
    return sum(len(item) for column in columns for item in column if item is not None)


class _StateReader(NamedTuple):
    """Reads single entries; memory has them at hand."""

    environment: MemoryEnvironment
    app: str
    store: str
    task: int

    def get(self, key: bytes) -> bytes | None:
        return self.environment.state_get(self.app, self.store, self.task, key)

    def release(self) -> None:
        """Hold nothing."""
