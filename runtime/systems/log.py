"""The embedded durable log: streams, state and checkpoints of a data directory, in one LMDB environment."""

from __future__ import annotations

import os
import platform
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from operators.base import Batch
from runtime.assignment import JobModel, Membership, Placement, sticky
from runtime.checkpoint import Checkpoint
from runtime.clock import wall_clock_ms
from runtime.errors import EnvironmentFault
from runtime.systems.base import (
    END,
    Append,
    Commit,
    Offsets,
    Read,
    StateReader,
    StateWrites,
    StreamConfig,
    check_config,
    check_name,
    is_fenced,
    is_taken,
)
from runtime.systems.log_batch import pack
from runtime.systems.log_compaction import Compactor
from runtime.systems.log_database import attach, verify
from runtime.systems.log_journal import drop_journal, encode_items, holds_any, live_tally, overlaid, places_of
from runtime.systems.log_locks import owner_lock, owner_of
from runtime.systems.log_members import Agreed, LogMembers, alive_in
from runtime.systems.log_reader import LogStateReader, damaged_entry
from runtime.systems.log_records import (
    PLACE,
    STORE,
    entries_between,
    fetch,
    sealed,
)
from runtime.systems.log_staging import Staging, in_pieces
from runtime.systems.log_state import drop_entries, keys_from
from runtime.systems.log_streams import Streams, next_id
from runtime.systems.members import holding_of, model_in

if TYPE_CHECKING:
    import lmdb


__all__ = ["LogEnvironment", "verify"]

_NUMBER = struct.Struct("<Q")
_MAX_PURGED_AT_LEAST = 256
"""How many consumed batches a commit drops at most, beside two for each that it appends."""
_ENTRIES_PER_STEP = 256
"""A range is read in steps, each in a transaction of its own: a long one would keep all pages written meanwhile."""


class LogEnvironment:
    """Streams, state and checkpoints in the directory `path`, made where it is absent (mode 0700).

    Several processes may read and append at a time; each application has one owner. The same directory may be opened
    several times in a process; LMDB's environment is then shared. With `sync=False` a power cut may destroy what is
    there, so it is only for what can be rebuilt; a killed process loses nothing in either way. `now_ms` gives rows
    without a timestamp theirs, and tells retention how old they are.

    What was not closed well is checked at opening. A forked child can't use a directory that its parent has open, and
    is refused: start a new process instead.

    Raises `Damaged` at opening when the files are not what was written, `EnvironmentFault` when they can't be used.

    >>> import tempfile
    >>> from runtime.systems.base import Append
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     log = LogEnvironment(directory)
    ...     _ = log.create_stream("greetings", StreamConfig())
    ...     log.append([Append("greetings", 0, Batch([b"hello", b"world"]))])
    ...     log.read("greetings", 0, 1).batch.values
    ...     log.close()
    [b'world']
    """

    def __init__(
        self, path: str | os.PathLike[str], *, sync: bool = True, now_ms: Callable[[], int] = wall_clock_ms
    ) -> None:
        self.path = Path(path)
        self._database = attach(self.path, sync=sync)
        self._streams = Streams(self._database, now_ms)
        self._compactor = Compactor(self._database, self._streams, now_ms)
        self._staging = Staging(self._database, self._streams)
        self._owned: dict[str, int] = {}
        self._closed = False

    def __str__(self) -> str:
        return str(self.path)

    def create_stream(self, name: str, config: StreamConfig) -> StreamConfig:
        """Make a stream, or return the configuration of the one that exists already."""
        check_config(name, config)
        with self._writing() as transaction:
            return self._streams.create(transaction, name, config)

    def delete_stream(self, name: str) -> None:
        """Remove a stream with all that is in it; nothing happens where it is absent."""
        with self._writing() as transaction:
            self._streams.delete(transaction, name)

    def streams(self) -> dict[str, StreamConfig]:
        """Return all streams by name."""
        with self._reading() as transaction:
            return self._streams.all(transaction)

    def offsets(self, stream: str, partition: int) -> Offsets:
        """Return the readable range of a partition."""
        with self._reading() as transaction:
            return self._streams.offsets(transaction, stream, partition)

    def stream_id(self, stream: str) -> int:
        """Return what tells a stream from others that have had its name."""
        with self._reading() as transaction:
            return self._streams.find(transaction, stream).id

    def stream_stats(self, stream: str) -> tuple[int, int]:
        """Return how many records a stream holds, and their bytes as they are stored; it looks at every batch."""
        with self._reading() as transaction:
            return self._streams.stats(transaction, stream)

    def version(self) -> int:
        """Return the number of the last transaction of any process that readers see."""
        with self._reading() as transaction:
            return transaction.id()

    def read(self, stream: str, partition: int, offset: int, max_records: int = 10_000) -> Read | None:
        """Return rows from `offset` on, never more than one appended batch nor `max_records`; None at the end.

        What a producer said without rows takes an offset of its own, and is read as an empty batch with a control.
        Raises `Damaged` when a batch is not what was written, or when the partition has no such offset any more.
        """
        with self._reading() as transaction:
            return self._streams.read(transaction, stream, partition, offset, max_records)

    def append(self, appends: Iterable[Append]) -> None:
        """Write rows in one transaction of their own; raises `EnvironmentFault` where the partition has ended."""
        with self._reading() as transaction:
            prepared = self._streams.prepare(transaction, appends)
        with self._writing() as transaction:
            self._streams.append(transaction, prepared)
        self._compact_where_due(append.stream for append in prepared)

    def end_stream(self, stream: str) -> None:
        """Append end-of-stream to every partition that has not ended; they take nothing more."""
        packed = pack(Batch([]), END, 0, 0)
        with self._writing() as transaction:
            self._streams.end(transaction, stream, packed)

    def commit(self, commit: Commit) -> None:
        """Make everything in `commit` visible and durable, or nothing of it.

        Of what is consumed of intermediate streams whole batches go, by and by: more in each commit than it appends.
        Raises `Fenced` when `commit.generation` is not the application's, or one of `commit.tasks` not the task's;
        `EnvironmentFull` when there is no space.
        """
        app, journals = commit.app, self._database.journals
        with self._reading() as transaction:
            prepared = self._streams.prepare(transaction, commit.appends)
        state = [(writes, encode_items(writes.items)) for writes in commit.state]
        checkpoints = [
            (key := _task_key(app, task), sealed(key, msgspec.msgpack.encode(checkpoint)))
            for task, checkpoint in commit.checkpoints.items()
        ]
        with self._writing() as transaction:
            self._check_generation(transaction, app, commit.generation)
            if commit.tasks:
                agreed = Agreed(transaction, self._database.meta, app)
                for task, taken in commit.tasks.items():
                    if (current := holding_of(agreed, task).generation) != taken:
                        raise is_taken(app, task, taken, current)
            self._streams.append(transaction, prepared)
            self._streams.purge(transaction, commit.consumed, _MAX_PURGED_AT_LEAST + 2 * len(prepared))
            journaled = [
                journals.write(transaction, self._place(transaction, app, writes), writes.items, data)
                for writes, data in state
            ]
            for key, record in checkpoints:
                transaction.put(key, record, db=self._database.checkpoints)
        for one in journaled:
            journals.adopt(one)
        self._compact_where_due(append.stream for append in prepared)

    def stage(self, app: str, generation: int, appends: Iterable[Append]) -> None:
        """Write rows for streams that are empty to where nobody sees them, in transactions of bounded size.

        They are behind what is staged already. Whoever owns or resets the application has all of it removed. Raises
        `Fenced` when `generation` is not the application's.
        """
        for piece in in_pieces(appends):
            with self._reading() as transaction:
                prepared = self._streams.prepare(transaction, piece)
            with self._writing() as transaction:
                self._check_generation(transaction, app, generation)
                self._staging.append(transaction, app, prepared)

    def publish(self, app: str, generation: int) -> None:
        """Make all that is staged visible at once, or nothing of it: the streams have it, and are made anew by that.

        Raises `Fenced`, and `EnvironmentFault` where one of these streams is empty no longer.
        """
        with self._writing() as transaction:
            self._check_generation(transaction, app, generation)
            filled = self._staging.publish(transaction, app)
        self._compact_where_due(filled)

    def discard(self, app: str) -> None:
        """Remove what is staged."""
        with self._writing() as transaction:
            self._staging.discard(transaction, app)

    def compact(self, stream: str) -> None:
        """Keep only the newest row of each key, now; appending does it by and by where the stream is `compacted`.

        A deletion (None) goes as well, a day after it was appended. What each producer said last stays.
        """
        self._check_open()
        self._compactor.compact(stream)

    def own(self, app: str) -> int:
        """Become the application's one owner until `close`, and return its new generation.

        Raises `Owned`, with the process that has it, when another one does.
        """
        check_name("application", app)
        if app not in self._owned:
            self._check_open()
            self._lock(app)
        with self._writing() as transaction:
            return self._begin_generation(transaction, app)

    def generation(self, app: str) -> int:
        """Return the application's generation: 0 before anyone owned it."""
        with self._reading() as transaction:
            return self._generation(transaction, app)

    def applications(self) -> list[str]:
        """Return the names of all applications that were ever owned, in order."""
        with self._reading() as transaction:
            keys = keys_from(transaction, self._database.meta, _generation_key(""))
        return [key.removeprefix(_generation_key("")).decode() for key in keys]

    def join(
        self,
        app: str,
        generation: int,
        container: str,
        tasks: int,
        placement: Placement = sticky,
        standby: int = 0,
    ) -> Membership:
        """Be one of the containers that share so many tasks, in the run of `generation`, under a name of its own."""
        check_name("application", app)
        return LogMembers(self, app, generation, container, tasks, placement)

    def job_model(self, app: str) -> JobModel:
        """Return who runs what in the newest run: the containers, or the one process that has all tasks."""
        with self._reading() as transaction:
            run = self._generation(transaction, app)
            model = model_in(Agreed(transaction, self._database.meta, app))
        alive = alive_in(self.path / "containers" / app, run)
        if model.run == run and alive:
            found = msgspec.structs.replace(model, containers=alive)
        else:
            alone = owner_of(self.path, app)
            found = JobModel(run, containers=(f"process {alone}",) if alone else ())
        return msgspec.structs.replace(found, hosts=(platform.node(),) * len(found.containers))

    def lock_of(self, app: str) -> int:
        """Return the descriptor of the owner's lock, which holds for every process that has it: for one's children."""
        return self._owned[app]

    def checkpoints(self, app: str) -> dict[str, Checkpoint]:
        """Return the application's newest checkpoint of every task."""
        prefix = _task_key(app, "")
        table = self._database.checkpoints
        found = {}
        with self._reading() as transaction:
            for key in keys_from(transaction, table, prefix):
                task = key[len(prefix) :].decode()
                data = fetch(transaction, table, key, f"the checkpoint of task {task!r} of {app!r}")
                assert data is not None
                found[task] = msgspec.msgpack.decode(data, type=Checkpoint)
        return found

    def state_get(self, app: str, store: str, task: int, key: bytes) -> bytes | None:
        """Return the committed value of one entry; raises `Damaged` when it is not what was written."""
        reader = self.state_reader(app, store, task)
        try:
            return reader.get(key)
        finally:
            reader.release()

    def state_reader(self, app: str, store: str, task: int) -> StateReader:
        """Return what reads single entries of one store and task in one transaction, until it is released."""
        self._check_open()
        find_store = partial(self._committed_store_id, app=app, store=store)
        return LogStateReader(self._database, find_store, app, store, task)

    def state_range(
        self, app: str, store: str, task: int, start: bytes = b"", end: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield committed entries with `start` <= key < `end` in key order; nothing may write to them meanwhile."""
        with self._reading() as transaction:
            number = self._committed_store_id(transaction, app, store)
            if number is None:
                return
            place = PLACE.pack(number, task)
            changed = self._database.journals.at(transaction, place).between(start, end)
        try:
            yield from overlaid(changed, self._stored_between(place, start, end))
        except ValueError as error:
            raise damaged_entry(self._database, app, store, task, start, error) from error

    def _stored_between(self, place: bytes, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        while True:
            with self._reading() as transaction:
                entries = entries_between(transaction.cursor(self._database.state), place, start, end)
                step = list(islice(entries, _ENTRIES_PER_STEP))
            yield from step
            if len(step) < _ENTRIES_PER_STEP:
                return
            start = step[-1][0] + b"\0"

    def stores(self, app: str) -> list[str]:
        """Return the names of the application's stores that hold anything, in order."""
        prefix = _store_key(app, "")
        with self._reading() as transaction:
            names = [key[len(prefix) :].decode() for key in keys_from(transaction, self._database.meta, prefix)]
            numbers = {name: self._store_id(transaction, app, name) or 0 for name in names}
            return sorted(
                name
                for name, number in numbers.items()
                if any(
                    holds_any(transaction, self._database, place)
                    for place in places_of(transaction, self._database, number)
                )
            )

    def state_stats(self, app: str) -> dict[tuple[str, int], tuple[int, int]]:
        """Return, per (store, task), the number of entries and their bytes, as they are kept beside the entries."""
        prefix = _store_key(app, "")
        stats: dict[tuple[str, int], tuple[int, int]] = {}
        with self._reading() as transaction:
            for key in keys_from(transaction, self._database.meta, prefix):
                store = key[len(prefix) :].decode()
                number = self._store_id(transaction, app, store)
                assert number is not None
                for place in places_of(transaction, self._database, number):
                    tally = live_tally(transaction, self._database, place)
                    if tally.entries:
                        stats[store, PLACE.unpack(place)[1]] = tally.entries, tally.size_bytes
        return stats

    def reset(self, app: str, stores: Iterable[str] | None = None) -> None:
        """Remove the application's checkpoints and state (of `stores`, or all) and begin a new generation."""
        check_name("application", app)
        with self._writing() as transaction:
            self._begin_generation(transaction, app)
            for key in keys_from(transaction, self._database.checkpoints, _task_key(app, "")):
                transaction.delete(key, db=self._database.checkpoints)
            prefix = _store_key(app, "")
            if stores is None:
                stores = [key[len(prefix) :].decode() for key in keys_from(transaction, self._database.meta, prefix)]
            for store in stores:
                number = self._store_id(transaction, app, store)
                if number is not None:
                    for drop in (drop_entries, drop_journal):
                        drop(transaction, self._database, number.to_bytes(4, "big"))

    def close(self) -> None:
        """Release everything; a second call does nothing. No other thread may be using it."""
        if self._closed:
            return
        self._closed = True
        for descriptor in self._owned.values():
            self._database.unlock(descriptor)
        self._owned.clear()
        self._database.release()

    def _check_open(self) -> None:
        if self._closed:
            raise EnvironmentFault(f"The environment in {self.path} is closed: open it again.")

    def _reading(self) -> AbstractContextManager[lmdb.Transaction[Any]]:
        self._check_open()
        return self._database.reading()

    def _writing(self) -> AbstractContextManager[lmdb.Transaction[Any]]:
        self._check_open()
        return self._database.writing()

    def _compact_where_due(self, streams: Iterable[str]) -> None:
        # What was appended is durable already: an error here must not deny it, and comes up with the next write.
        with suppress(EnvironmentFault):
            self._compactor.step_where_due(streams)

    def _lock(self, app: str) -> None:
        descriptor = owner_lock(self.path, app)
        self._database.owner_locks.add(descriptor)
        self._owned[app] = descriptor

    def _generation(self, transaction: lmdb.Transaction[Any], app: str) -> int:
        data = fetch(transaction, self._database.meta, _generation_key(app), f"the generation of {app!r}")
        return 0 if data is None else int(_NUMBER.unpack(data)[0])

    def _check_generation(self, transaction: lmdb.Transaction[Any], app: str, generation: int) -> None:
        current = self._generation(transaction, app)
        if current != generation:
            raise is_fenced(app, generation, current)

    def _begin_generation(self, transaction: lmdb.Transaction[Any], app: str) -> int:
        self._staging.discard(transaction, app)
        key = _generation_key(app)
        generation = self._generation(transaction, app) + 1
        transaction.put(key, sealed(key, _NUMBER.pack(generation)), db=self._database.meta)
        return generation

    def _store_id(self, transaction: lmdb.Transaction[Any], app: str, store: str) -> int | None:
        number = self._database.store_ids.get((app, store))
        if number is None:
            data = fetch(transaction, self._database.meta, _store_key(app, store), f"store {store!r} of {app!r}")
            number = None if data is None else int(_NUMBER.unpack(data)[0])
        return number

    def _committed_store_id(self, transaction: lmdb.Transaction[Any], app: str, store: str) -> int | None:
        number = self._store_id(transaction, app, store)
        if number is not None:
            self._database.store_ids[app, store] = number
        return number

    def _place(self, transaction: lmdb.Transaction[Any], app: str, writes: StateWrites) -> bytes:
        return PLACE.pack(self._new_store_id(transaction, app, writes.store), writes.task)

    def _new_store_id(self, transaction: lmdb.Transaction[Any], app: str, store: str) -> int:
        number = self._store_id(transaction, app, store)  # which another task may have made in this transaction
        if number is None:
            number = next_id(transaction, self._database.meta)
            key = _store_key(app, store)
            transaction.put(key, sealed(key, _NUMBER.pack(number)), db=self._database.meta)
        return number


def _generation_key(app: str) -> bytes:
    return b"generation\0" + app.encode()


def _store_key(app: str, store: str) -> bytes:
    return STORE + app.encode() + b"\0" + store.encode()


def _task_key(app: str, task: str) -> bytes:
    return app.encode() + b"\0" + task.encode()
