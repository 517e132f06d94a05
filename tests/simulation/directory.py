"""A data directory in memory: a transactional environment that works as LMDB does, under the production log."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runtime.model.errors import Owned
from runtime.ports.commits import Commit
from runtime.ports.streams import check_name
from runtime.systems.log.compaction import Compactor
from runtime.systems.log.environment import LogEnvironment
from runtime.systems.log.journal import Budget, Journals
from runtime.systems.log.member_locks import LogMembers
from runtime.systems.log.staging import Staging
from runtime.systems.log.streams import LogStreams

TABLES = ("meta", "log", "state", "journal", "checkpoints", "tails")
LONGEST_KEY_BYTES = 511

Step = Callable[[str], None]
"""Is told of everything that a process does to a directory, before it does it, and may raise instead."""


class Table:
    """An ordered map from bytes to bytes."""

    __slots__ = ("keys", "values")

    def __init__(self, values: dict[bytes, bytes], keys: list[bytes]) -> None:
        self.values, self.keys = values, keys

    def copy(self) -> Table:
        """Return one that may be changed by itself."""
        return Table(self.values.copy(), self.keys.copy())


@dataclass
class Directory:
    """What is durable, and who holds the owners' locks."""

    tables: dict[str, Table] = field(default_factory=lambda: {name: Table({}, []) for name in TABLES})
    version: int = 0
    owners: dict[str, object] = field(default_factory=dict)
    """By application: who holds its lock. Taking an entry out is what a file system without locks does."""
    containers: dict[tuple[str, int, str], object] = field(default_factory=dict)
    """By application, run and name: whose process a container is that is alive."""

    def leave(self, holder: object) -> None:
        """Give up all locks of who is gone."""
        self.owners = {app: other for app, other in self.owners.items() if other is not holder}
        self.containers = {place: other for place, other in self.containers.items() if other is not holder}


class Transaction:
    """Sees what was durable when it began, and its own writes; what it hands out is gone when it ends."""

    def __init__(self, directory: Directory, step: Step | None = None) -> None:
        self._directory = directory
        self._step = step
        self._version = directory.version
        self.tables = directory.tables
        self._views: list[memoryview] = []

    def id(self) -> int:
        return self._version + (self._step is not None)

    def get(self, key: bytes, default: Any = None, db: str = "") -> Any:
        value = self.tables[db].values.get(key)
        return default if value is None else self.view(value)

    def put(self, key: bytes, value: bytes, db: str = "") -> None:
        assert 0 < len(key) <= LONGEST_KEY_BYTES, f"LMDB takes no key of {len(key)} bytes"
        table = self._changed(db)
        if key not in table.values:
            insort(table.keys, key)
        table.values[key] = bytes(value)

    def delete(self, key: bytes, db: str = "") -> bool:
        table = self._changed(db)
        if table.values.pop(key, None) is None:
            return False
        del table.keys[bisect_left(table.keys, key)]
        return True

    def cursor(self, db: str) -> Cursor:
        return Cursor(self, db)

    def stat(self, db: str) -> dict[str, int]:
        return {"entries": len(self.tables[db].keys)}

    def view(self, data: bytes) -> memoryview:
        """Return memory that is gone when the transaction ends."""
        found = memoryview(data)
        self._views.append(found)
        return found

    def __enter__(self) -> Transaction:
        return self

    def __exit__(self, *error: object) -> None:
        self.abort()

    def abort(self) -> None:
        for view in self._views:
            view.release()

    def _changed(self, db: str) -> Table:
        assert self._step is not None, "a transaction that only reads was written to"
        self._step(f"write {db}")
        if self.tables is self._directory.tables:
            self.tables = dict(self.tables)
        if self.tables[db] is self._directory.tables[db]:
            self.tables[db] = self.tables[db].copy()
        return self.tables[db]


class Cursor:
    """Stands at a key of a table, or nowhere."""

    def __init__(self, transaction: Transaction, db: str) -> None:
        self._transaction, self._db = transaction, db
        self._at: bytes | None = None

    def set_range(self, key: bytes) -> bool:
        return self._move(bisect_left(self._keys, key))

    def next(self) -> bool:
        return self._move(bisect_right(self._keys, self._here()))

    def prev(self) -> bool:
        return self._move(bisect_left(self._keys, self._here()) - 1)

    def last(self) -> bool:
        return self._move(len(self._keys) - 1)

    def key(self) -> memoryview:
        return self._transaction.view(self._at or b"")

    def value(self) -> memoryview:
        values = self._transaction.tables[self._db].values
        return self._transaction.view(b"" if self._at is None else values[self._at])

    def delete(self) -> bool:
        at = self._here()
        self._transaction.delete(at, self._db)
        self._move(bisect_left(self._keys, at))
        return True

    def replace(self, key: bytes, value: bytes) -> bytes | None:
        before = self._transaction.tables[self._db].values.get(key)
        self._transaction.put(key, value, self._db)
        return before

    def pop(self, key: bytes) -> bytes | None:
        before = self._transaction.tables[self._db].values.get(key)
        self._transaction.delete(key, self._db)
        return before

    def iternext(self) -> Iterator[tuple[memoryview, memoryview]]:
        if self._at is None:
            self._move(0)
        while self._at is not None:
            yield self.key(), self.value()
            self.next()

    def _here(self) -> bytes:
        assert self._at is not None, "what LMDB does with a cursor that stands nowhere, nobody should rely on"
        return self._at

    @property
    def _keys(self) -> list[bytes]:
        return self._transaction.tables[self._db].keys

    def _move(self, index: int) -> bool:
        keys = self._keys
        self._at = keys[index] if 0 <= index < len(keys) else None
        return self._at is not None


class SimulatedDatabase:
    """What the production log asks of an open LMDB environment, over a directory in memory.

    A write transaction is made of steps: "begin", every write, "sync", and "acknowledge" when it is durable. Who is
    told of them may raise: before "acknowledge" nothing of the transaction remains.
    """

    meta, log, state, journal, checkpoints, tails = TABLES
    errors = ()

    def __init__(self, directory: Directory, step: Step) -> None:
        self.directory = directory
        self.store_ids: dict[tuple[str, str], int] = {}
        self.readers: set[object] = set()
        self.doorbell = SilentDoorbell()
        self.journals = Journals(self, Budget(most_entries=32), most_records=4)
        self._step = step

    def reading(self) -> Transaction:
        self._step("read")
        return Transaction(self.directory)

    begin_reading = reading

    @contextmanager
    def writing(self) -> Iterator[Transaction]:
        self._step("begin")
        with Transaction(self.directory, self._step) as transaction:
            yield transaction
            self._step("sync")
            self.directory.tables = transaction.tables
            self.directory.version += 1
            self._step("acknowledge")

    def release(self) -> None:
        """Leave the directory, which nothing is to be done for."""

    def distrust(self) -> None:
        """Nothing is damaged in memory."""

    def unlock(self, lock: Any) -> None:
        """Give up an owner's lock, unless somebody else has it by now."""
        app, holder = lock
        if self.directory.owners.get(app) is holder:
            del self.directory.owners[app]


class SilentDoorbell:
    """A doorbell that nobody hears: in virtual time a process looks as often as it is told."""

    def ring(self) -> None:
        """Do nothing."""

    def listener(self) -> None:
        """Return nobody."""


class SimulatedLog(LogEnvironment):
    """The embedded log over a directory in memory, as one process has it open.

    `step` sees what it does there, and `on_commit` every commit when it is durable, before it is acknowledged.
    """

    def __init__(
        self,
        directory: Directory,
        *,
        now_ms: Callable[[], int],
        step: Step = lambda name: None,
        on_commit: Callable[[Commit], None] = lambda commit: None,
    ) -> None:
        # Nothing of what the log does to files is wanted here; all else of it is.
        self.path = Path("simulated")
        self.directory = directory
        self._step, self._on_commit = step, on_commit
        self._committing: Commit | None = None
        database: Any = SimulatedDatabase(directory, self._see)
        self._database = database
        self._streams = LogStreams(database, now_ms)
        self._compactor = Compactor(database, self._streams, now_ms)
        self._staging = Staging(database, self._streams)
        self._owned: dict[str, Any] = {}
        self.sharing, self.starting = set(), set()
        self._closed = False

    def commit(self, commit: Commit) -> None:
        self._committing = commit
        super().commit(commit)

    def _see(self, step: str) -> None:
        if step == "acknowledge" and self._committing is not None:
            self._on_commit(self._committing)
            self._committing = None
        self._step(step)

    def _lock(self, app: str) -> None:
        if app in self.directory.owners:
            raise Owned(f"Another process runs application {app!r} on {self.path}.")
        self.directory.owners[app] = self
        self._owned[app] = (app, self)

    def join(self, app: str, generation: int, container: str, tasks: int, *how: Any) -> SimulatedMembers:
        check_name("application", app)
        return SimulatedMembers(self, app, generation, container, tasks, *how)


class SimulatedMembers(LogMembers):
    """A container that is alive while a directory in memory says so."""

    _log: SimulatedLog

    def _join(self) -> int:
        self._log.directory.containers[self._app, self._run, self.name] = self._log
        return 0

    def leave(self) -> None:
        self._log.directory.containers.pop((self._app, self._run, self.name), None)

    def _alive(self) -> tuple[str, ...]:
        places = self._log.directory.containers
        return tuple(sorted(name for app, run, name in places if (app, run) == (self._app, self._run)))

    def _is_alive(self, container: str) -> bool:
        return (self._app, self._run, container) in self._log.directory.containers
