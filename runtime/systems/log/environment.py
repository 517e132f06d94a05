"""The embedded durable log: streams, state and checkpoints of a data directory, in one LMDB environment."""

from __future__ import annotations

import logging
import os
import platform
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from shutil import rmtree
from threading import Lock
from typing import TYPE_CHECKING

import msgspec

from operators.core.base import Batch
from runtime.model.assignment import JobModel, Placement, Scale, sticky
from runtime.model.checkpoint import Checkpoint
from runtime.model.clock import wall_clock_ms
from runtime.model.errors import Damaged, EnvironmentFault, Owned
from runtime.ports.commits import Commit, fenced_error, taken_error
from runtime.ports.environment import (
    AudibleEnvironment,
    GrowingEnvironment,
    QueryableEnvironment,
    RememberingEnvironment,
    SnapshotEnvironment,
    StagingEnvironment,
)
from runtime.ports.membership import Membership
from runtime.ports.state import SettledCommits, StateReader, StateWrites
from runtime.ports.streams import (
    END,
    NO_SIZES,
    Append,
    Offsets,
    Read,
    StreamConfig,
    check_among,
    check_config,
    check_name,
)
from runtime.systems.host.doorbell import Listener
from runtime.systems.host.locks import owner_lock, owner_of
from runtime.systems.log.batch import pack
from runtime.systems.log.compaction import Compactor
from runtime.systems.log.database import MAP_SIZES_BYTES, attach, verify
from runtime.systems.log.journal import drop_journal, encode_items, holds_any, live_tally, overlaid, places_of
from runtime.systems.log.member_locks import Agreed, LogMembers, LogRuns, alive_in
from runtime.systems.log.membership import holding_of, model_in
from runtime.systems.log.records import PLACE, STORE, entries_between, fetch, sealed
from runtime.systems.log.recovery import AnotherFormat
from runtime.systems.log.staging import Staging, in_pieces
from runtime.systems.log.state import drop_entries, keys_from
from runtime.systems.log.state_reader import LogSnapshot, LogStateReader, damaged_entry
from runtime.systems.log.streams import LogStreams, next_id

if TYPE_CHECKING:
    import lmdb


__all__ = ["LogEnvironment", "verify"]

ANSWERS = "answers"
"""The directory, in that of a log, of answers that are kept apart."""
_log = logging.getLogger("samza_dsl")
_NUMBER = struct.Struct("<Q")
_SCALE = b"scale\0"
_MAX_PURGED_AT_LEAST = 256
"""The most consumed batches that a commit drops, beside two for each that it appends."""
_ENTRIES_PER_STEP = 256
"""A range is read in steps, each in a transaction of its own: a long one would keep all pages written meanwhile."""


class LogEnvironment(
    StagingEnvironment,
    AudibleEnvironment,
    SnapshotEnvironment,
    QueryableEnvironment,
    GrowingEnvironment,
    RememberingEnvironment,
):
    """Streams, state and checkpoints in the directory `path`, made where it is absent (mode 0700).

    Several processes may read and append at a time; each application has one owner. The same directory may be opened
    several times in a process; LMDB's environment is then shared. With `sync=False` a power cut may destroy what is
    there, so it is only for what can be rebuilt; a killed process loses nothing in either way. `now_ms` gives rows
    without a timestamp theirs, and tells retention how old they are. The environment takes `map_bytes` of address space
    at most: it can't become larger than that until it is opened anew with more.

    What was not closed well is checked at opening. A forked child can't use a directory that its parent has open, and
    is refused: start a new process instead.

    Offsets, generations and the ids of streams and stores only grow, and an id is never given again. A transaction is
    the unit of everything: what a method writes is durable as a whole, or not there. Any thread may call it, `close`
    last of all; writes of one process queue up for one lock.

    Raises `Damaged` at opening when the files are not what was written, `EnvironmentFault` when they can't be used.

    >>> import tempfile
    >>> from runtime.ports.streams import Append
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     log = LogEnvironment(directory)
    ...     _ = log.create_stream("greetings", StreamConfig())
    ...     log.append([Append("greetings", 0, Batch([b"hello", b"world"]))])
    ...     log.read("greetings", 0, 1).batch.values
    ...     log.close()
    [b'world']
    """

    _answers: LogEnvironment | None = None
    _opening_answers = Lock()

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        sync: bool = True,
        now_ms: Callable[[], int] = wall_clock_ms,
        map_bytes: int = MAP_SIZES_BYTES[0],
    ) -> None:
        self.path = Path(path)
        self._database = attach(self.path, sync=sync, most_bytes=map_bytes)
        self._streams = LogStreams(self._database, now_ms)
        self._compactor = Compactor(self._database, self._streams, now_ms)
        self._staging = Staging(self._database, self._streams)
        self._owned: dict[str, int] = {}
        self.sharing: set[str] = set()
        """The applications whose run, begun by another process, is shared here."""
        self.starting: set[str] = set()
        """The applications whose containers are started here."""
        self._closed = False

    def __str__(self) -> str:
        return str(self.path)

    def create_stream(self, name: str, config: StreamConfig) -> StreamConfig:
        check_config(name, config)
        with self._writing() as transaction:
            return self._streams.create(transaction, name, config)

    def grow_stream(self, name: str, partitions: int) -> StreamConfig:
        with self._writing() as transaction:
            return self._streams.grow(transaction, name, partitions)

    def delete_stream(self, name: str) -> None:
        with self._writing() as transaction:
            self._streams.delete(transaction, name)

    def streams(self, among: Collection[str] | None = None) -> dict[str, StreamConfig]:
        with self._reading() as transaction:
            found = self._streams.all(transaction)
        return found if among is None else {name: config for name, config in found.items() if name in among}

    def offsets(self, stream: str, partition: int) -> Offsets:
        with self._reading() as transaction:
            return self._streams.offsets(transaction, stream, partition)

    def stream_id(self, stream: str) -> int:
        with self._reading() as transaction:
            return self._streams.find(transaction, stream).id

    def stream_stats(self, stream: str) -> tuple[int, int]:
        with self._reading() as transaction:
            return self._streams.stats(transaction, stream)

    def version(self) -> int:
        """Return the number of the last transaction of any process that readers see."""
        with self._reading() as transaction:
            return transaction.id()

    def read(self, stream: str, partition: int, offset: int, max_records: int = 10_000) -> Read | None:
        with self._reading() as transaction:
            return self._streams.read(transaction, stream, partition, offset, max_records)

    def append(self, appends: Iterable[Append], among: Mapping[str, int] = NO_SIZES) -> None:
        with self._reading() as transaction:
            # Encoded before the write lock is taken, which all writers of the directory share.
            prepared = self._streams.prepare(transaction, appends)
        with self._writing() as transaction:
            check_among(among, lambda stream: self._streams.find(transaction, stream).config.partitions)
            self._streams.append(transaction, prepared)
        self._after_appending(append.stream for append in prepared)

    def end_stream(self, stream: str) -> None:
        packed = pack(Batch([]), END, 0, 0)
        with self._writing() as transaction:
            self._streams.end(transaction, stream, packed)
        self._database.doorbell.ring()

    def commit(self, commit: Commit) -> None:
        # All encoding is done before the write transaction: LMDB lets one process write at a time, so containers share
        # the time that a commit spends in it.
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
                # Compared inside of the transaction that writes: a task that another container has taken meanwhile
                # can't be committed for.
                agreed = Agreed(transaction, self._database.meta, app)
                for task, taken in commit.tasks.items():
                    if (current := holding_of(agreed, task).generation) != taken:
                        raise taken_error(app, task, taken, current)
            check_among(commit.among, lambda stream: self._streams.find(transaction, stream).config.partitions)
            self._streams.append(transaction, prepared)
            # Behind the appends, and bounded: the log keeps up with what is consumed, and no commit becomes long.
            self._streams.purge(transaction, commit.consumed, _MAX_PURGED_AT_LEAST + 2 * len(prepared))
            journaled = [
                journals.write(transaction, self._place(transaction, app, writes), writes.items, data)
                for writes, data in state
            ]
            for name in commit.gone:
                transaction.delete(_task_key(app, name), db=self._database.checkpoints)
            for key, record in checkpoints:
                transaction.put(key, record, db=self._database.checkpoints)
            last = _commits_key(app)
            transaction.put(last, sealed(last, _NUMBER.pack(transaction.id())), db=self._database.meta)
        # Only once it is durable: a commit that fails must leave nothing in memory that readers would see.
        for one in journaled:
            journals.adopt(one)
        self._after_appending(append.stream for append in prepared)

    def stage(self, app: str, generation: int, appends: Iterable[Append]) -> None:
        # Bounded transactions, so that neither memory nor the pages that LMDB holds grow with what is staged.
        for piece in in_pieces(appends):
            with self._reading() as transaction:
                prepared = self._streams.prepare(transaction, piece)
            with self._writing() as transaction:
                self._check_generation(transaction, app, generation)
                self._staging.append(transaction, app, prepared)

    def publish(self, app: str, generation: int) -> None:
        with self._writing() as transaction:
            self._check_generation(transaction, app, generation)
            filled = self._staging.publish(transaction, app)
        self._after_appending(filled)

    def discard(self, app: str) -> None:
        with self._writing() as transaction:
            self._staging.discard(transaction, app)

    def listener(self) -> Listener | None:
        self._check_open()
        return self._database.doorbell.listener()

    def compact(self, stream: str) -> None:
        self._check_open()
        self._compactor.compact(stream)

    def own(self, app: str) -> int:
        check_name("application", app)
        # The lock says that no other process runs it; the generation, that whoever ran it before can't commit any
        # more.
        if app not in self._owned:
            self._check_open()
            self._lock(app)
            if app not in self.sharing and self.runs(app).is_alive():
                self._unlock(app)
                raise Owned(
                    f"Containers that have joined application {app!r} live on {self.path}, though who began its run is "
                    "gone: end them first, or add --join to run it with them."
                )
        with self._writing() as transaction:
            if app not in self.starting:
                Agreed(transaction, self._database.meta, app).note_starter(False)
            return self._begin_generation(transaction, app)

    def generation(self, app: str) -> int:
        with self._reading() as transaction:
            return self._generation(transaction, app)

    def applications(self) -> list[str]:
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
        check_name("application", app)
        return LogMembers(self, app, generation, container, tasks, placement)

    def ask_scale(self, app: str, scale: Scale) -> Scale:
        check_name("application", app)
        return self._note_scale(app, scale.behind)

    def refuse_scale(self, app: str, refusal: Scale) -> None:
        self._note_scale(app, lambda asked: asked.refused(refusal))

    def _note_scale(self, app: str, change: Callable[[Scale], Scale]) -> Scale:
        key = _SCALE + app.encode()
        with self._writing() as transaction:
            noted = change(self._asked_scale(transaction, app))
            transaction.put(key, sealed(key, msgspec.msgpack.encode(noted)), db=self._database.meta)
        self._database.doorbell.ring()
        return noted

    def asked_scale(self, app: str) -> Scale:
        with self._reading() as transaction:
            return self._asked_scale(transaction, app)

    def _asked_scale(self, transaction: lmdb.Transaction[memoryview], app: str) -> Scale:
        data = fetch(transaction, self._database.meta, _SCALE + app.encode(), f"the size asked for of {app!r}")
        return Scale() if data is None else msgspec.msgpack.decode(data, type=Scale)

    def job_model(self, app: str) -> JobModel:
        """Return who runs what in the newest run: the containers, or the one process that has all tasks."""
        with self._reading() as transaction:
            run, agreed = self._generation(transaction, app), Agreed(transaction, self._database.meta, app)
            model, has_starter = model_in(agreed), agreed.has_starter
        alive = alive_in(self.path / "containers" / app, run)
        if model.run == run and alive:
            found = msgspec.structs.replace(model, containers=alive)
        else:
            # Whoever starts containers is none, also while all of them are still to come.
            alone = None if has_starter else owner_of(self.path, app)
            found = JobModel(run, containers=(f"process {alone}",) if alone else ())
        return msgspec.structs.replace(found, hosts=(platform.node(),) * len(found.containers))

    def runs(self, app: str) -> LogRuns:
        """Return what is said of the application's newest run, for those who start containers."""
        return LogRuns(self, app)

    def lock_of(self, app: str) -> int | None:
        """Return the descriptor of the owner's lock, which holds for every process that has it: for one's children.

        There is none where another process is the owner, whose run is joined here.
        """
        return self._owned.get(app)

    def checkpoints(self, app: str) -> dict[str, Checkpoint]:
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
        reader = self.state_reader(app, store, task)
        try:
            return reader.get(key)
        finally:
            reader.release()

    def state_reader(self, app: str, store: str, task: int) -> StateReader:
        self._check_open()
        find_store = partial(self._committed_store_id, app=app, store=store)
        return LogStateReader(self._database, find_store, app, store, task)

    def snapshot(self, app: str) -> LogSnapshot:
        self._check_open()
        return LogSnapshot(self._database, app, self._committed_store_id)

    def settled_snapshot(self, app: str) -> LogSnapshot:
        return self.snapshot(app)

    def settled_commits(self, app: str) -> SettledCommits:
        with self._reading() as transaction:
            data = fetch(transaction, self._database.meta, _commits_key(app), f"the last commit of {app!r}")
        return SettledCommits(self.checkpoints(app), 0 if data is None else int(_NUMBER.unpack(data)[0]))

    def progress(self, app: str) -> dict[str, Checkpoint]:
        return self.checkpoints(app)

    def snapshot_here(self, app: str) -> LogSnapshot:
        return self.snapshot(app)

    def state_range(
        self, app: str, store: str, task: int, start: bytes = b"", end: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
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
            # The least key behind the last one of the step.
            start = step[-1][0] + b"\0"

    def stores(self, app: str) -> list[str]:
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

    def answers(self) -> LogEnvironment:
        self._check_open()
        with self._opening_answers:
            if self._answers is None:
                # A sync takes about as long as a call. What is lost here is asked again, and nothing is wrong by it.
                self._answers = opened_or_anew(self.path / ANSWERS, "answers of calls", sync=False)
            return self._answers

    def _forget_answers(self, app: str, stores: Iterable[str] | None = None) -> None:
        if (self.path / ANSWERS).is_dir():
            answers = self.answers()
            answers.forget(app, answers.stores(app) if stores is None else stores)

    def reset(self, app: str, stores: Iterable[str] | None = None) -> None:
        check_name("application", app)
        stores = None if stores is None else [*stores]
        self._forget_answers(app, stores)  # first: a crash in between leaves less of what is not needed
        with self._writing() as transaction:
            # First of all, in the same transaction: whoever still runs the application is fenced by that.
            self._begin_generation(transaction, app)
            for key in keys_from(transaction, self._database.checkpoints, _task_key(app, "")):
                transaction.delete(key, db=self._database.checkpoints)
            prefix = _store_key(app, "")
            if stores is None:
                stores = [key[len(prefix) :].decode() for key in keys_from(transaction, self._database.meta, prefix)]
            self._drop(transaction, app, stores)

    def forget(self, app: str, stores: Iterable[str]) -> None:
        stores = [*stores]
        self._forget_answers(app, stores)
        with self._writing() as transaction:
            self._drop(transaction, app, stores)

    def close(self) -> None:
        """Release everything; a second call does nothing. No other thread may be using it."""
        if self._closed:
            return
        self._closed = True
        for descriptor in self._owned.values():
            self._database.unlock(descriptor)
        self._owned.clear()
        if self._answers is not None:
            self._answers.close()
        self._database.release()

    def _check_open(self) -> None:
        if self._closed:
            raise EnvironmentFault(f"The environment in {self.path} is closed: open it again.")

    def _reading(self) -> AbstractContextManager[lmdb.Transaction[memoryview]]:
        self._check_open()
        return self._database.reading()

    def _writing(self) -> AbstractContextManager[lmdb.Transaction[memoryview]]:
        self._check_open()
        return self._database.writing()

    def _after_appending(self, streams: Iterable[str]) -> None:
        filled = {*streams}
        if not filled:
            return
        # Once it can be read, and not before: who hears of it looks at once.
        self._database.doorbell.ring()
        # What was appended is durable already: an error here must not deny it, and comes up with the next write.
        with suppress(EnvironmentFault):
            self._compactor.step_where_due(filled)

    def _lock(self, app: str) -> None:
        descriptor = owner_lock(self.path, app)
        self._database.owner_locks.add(descriptor)
        self._owned[app] = descriptor

    def _unlock(self, app: str) -> None:
        descriptor = self._owned.pop(app)
        self._database.owner_locks.discard(descriptor)
        os.close(descriptor)

    def _generation(self, transaction: lmdb.Transaction[memoryview], app: str) -> int:
        data = fetch(transaction, self._database.meta, _generation_key(app), f"the generation of {app!r}")
        return 0 if data is None else int(_NUMBER.unpack(data)[0])

    def _check_generation(self, transaction: lmdb.Transaction[memoryview], app: str, generation: int) -> None:
        current = self._generation(transaction, app)
        if current != generation:
            raise fenced_error(app, generation, current)

    def _begin_generation(self, transaction: lmdb.Transaction[memoryview], app: str) -> int:
        # What the last generation has staged and not published belongs to nobody any more.
        self._staging.discard(transaction, app)
        key = _generation_key(app)
        generation = self._generation(transaction, app) + 1
        transaction.put(key, sealed(key, _NUMBER.pack(generation)), db=self._database.meta)
        return generation

    def _store_id(self, transaction: lmdb.Transaction[memoryview], app: str, store: str) -> int | None:
        # Of committed ids only: one that this transaction has made is gone if it fails.
        number = self._database.store_ids.get((app, store))
        if number is None:
            data = fetch(transaction, self._database.meta, _store_key(app, store), f"store {store!r} of {app!r}")
            number = None if data is None else int(_NUMBER.unpack(data)[0])
        return number

    def _committed_store_id(self, transaction: lmdb.Transaction[memoryview], app: str, store: str) -> int | None:
        number = self._store_id(transaction, app, store)
        if number is not None:
            self._database.store_ids[app, store] = number
        return number

    def _drop(self, transaction: lmdb.Transaction[memoryview], app: str, stores: Iterable[str]) -> None:
        for store in stores:
            number = self._store_id(transaction, app, store)
            if number is not None:
                for drop in (drop_entries, drop_journal):
                    drop(transaction, self._database, number.to_bytes(4, "big"))

    def _place(self, transaction: lmdb.Transaction[memoryview], app: str, writes: StateWrites) -> bytes:
        return PLACE.pack(self._new_store_id(transaction, app, writes.store), writes.task)

    def _new_store_id(self, transaction: lmdb.Transaction[memoryview], app: str, store: str) -> int:
        number = self._store_id(transaction, app, store)  # which another task may have made in this transaction
        if number is None:
            number = next_id(transaction, self._database.meta)
            key = _store_key(app, store)
            transaction.put(key, sealed(key, _NUMBER.pack(number)), db=self._database.meta)
        return number


def opened_or_anew(path: Path, what: str, sync: bool = True, map_bytes: int = MAP_SIZES_BYTES[0]) -> LogEnvironment:
    """Open a directory of what can be made anew; what is damaged there is dropped, and the log says so."""
    try:
        return LogEnvironment(path, sync=sync, map_bytes=map_bytes)
    except (Damaged, AnotherFormat) as error:
        _log.warning("drops the %s in %s, which are made anew: %s", what, path, error)
        rmtree(path)
        return LogEnvironment(path, sync=sync, map_bytes=map_bytes)


def _generation_key(app: str) -> bytes:
    return b"generation\0" + app.encode()


def _commits_key(app: str) -> bytes:
    """Return where the number of the transaction is kept that has committed last."""
    return b"commits\0" + app.encode()


def _store_key(app: str, store: str) -> bytes:
    return STORE + app.encode() + b"\0" + store.encode()


def _task_key(app: str, task: str) -> bytes:
    return app.encode() + b"\0" + task.encode()
