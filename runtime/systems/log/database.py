"""The LMDB environment of one data directory, which all who open it in this process share."""

from __future__ import annotations

import errno
import math
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakSet

from runtime.model.errors import NO_SPACE, Damaged, EnvironmentFault, EnvironmentFull, system_errors_told
from runtime.model.urls import check_is_text
from runtime.systems.host.doorbell import Doorbell
from runtime.systems.host.locks import Marker, allocate, locked, survey
from runtime.systems.log.journal import Journals
from runtime.systems.log.records import RESTORE, sealed
from runtime.systems.log.recovery import (
    DATA_FILE,
    LAST_TRANSACTION,
    check_format,
    drop_unfinished,
    is_short,
    note_newest,
    records,
    set_format,
    structure,
)

if TYPE_CHECKING:
    import lmdb

    from runtime.systems.log.state_reader import LogStateReader, SeenStores

MAP_SIZES_BYTES = tuple(1 << bits for bits in (40, 38, 36, 34, 32, 30, 28, 26))
"""Far beyond need, so that the disk is the limit; a smaller one where the system refuses so much address space."""
MAPS_OF_A_SIZE = 64
"""The number of environments in a process behind which others get the next smaller map.

A process has 128 TiB of addresses: with the largest map for all, there were none left behind 173 environments.
"""
_MAX_READERS = 1000
_WRITES_BETWEEN_READER_CHECKS = 1024
_LITTLE_BYTES = 1 << 20
"""With less than this left, an input/output error is taken for a full disk: LMDB reports a short write as one."""
_NUMBER = struct.Struct("<Q")
_OPENING = "opening.lock"
_DOORBELL = "doorbell"
_READERS, _READERS_BYTES = "lock.mdb", 1 << 16
"""LMDB's table of readers, and its least length: every process writes into it by memory."""


class Reading:
    """A transaction that only reads, from the beginning of a block to its end."""

    __slots__ = ("_database", "_transaction")

    def __init__(self, database: Database) -> None:
        self._database = database

    def __enter__(self) -> lmdb.Transaction[memoryview]:
        self._transaction = self._database.begin_reading()
        return self._transaction

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._transaction.abort()
        if isinstance(error, self._database.errors):
            raise self._database.failed(error) from error


class Database:
    """One open LMDB environment with its tables; `attach` makes it, the last `release` closes it.

    After any error of LMDB but "map full" it is not used again (`fault` says so): LMDB itself may go on after a failed
    fsync as if nothing had happened.

    Any thread may read, in a transaction of its own; one at a time writes, under the write lock, which other processes
    respect by LMDB's. Opening is one at a time on the machine (`opening.lock`), opening and closing in the process
    (`_shared_lock`). The marker lies in the directory from before LMDB is opened until after it was closed.
    """

    def __init__(self, path: Path, sync: bool, most_bytes: int = MAP_SIZES_BYTES[0]) -> None:
        check_is_text(path)
        self.path = path
        self.sync = sync
        self._most_bytes = most_bytes
        self.users = 0
        self.fault: str | None = None
        self.owner_locks: set[int] = set()
        self.readers: WeakSet[LogStateReader] = WeakSet()
        """The readers with an open transaction."""
        self.store_ids: dict[tuple[str, str], int] = {}
        """The ids of stores by application and name, as committed; an id is never taken away."""
        self.journals = Journals(self)
        self.seen: SeenStores | None = None
        """What the newest transaction that somebody reads in has of stores, as far as they were looked up."""
        self.doorbell = Doorbell(path / _DOORBELL)
        self._write_lock = threading.Lock()
        self._writes = 0
        self._distrusted = False
        self._pid = os.getpid()
        with locked(path / _OPENING):
            is_new = check_format(path)
            left_behind = survey(path)
            alone = not left_behind.others_alive
            if alone:
                # LMDB writes into it by memory, and a hole in it on a full disk would end the process.
                allocate(path / _READERS, _READERS_BYTES)
                if is_new:
                    drop_unfinished(path)
            # A killed process leaves LMDB sound, so its mark is enough to look at the length only. After a reboot, or
            # an error of LMDB, all is verified.
            suspicious = left_behind.suspicious or (alone and is_short(path))
            if suspicious and alone:
                _refuse(path, structure(path))
            # Before LMDB is opened: should this process die in the middle of it, the next one knows.
            self._marker = Marker(path)
            with ExitStack() as undo:
                undo.callback(self._marker.remove)
                self.env = self._open(is_new)
                undo.callback(self.env.close)
                self._open_tables(create=is_new)
                if suspicious:
                    _refuse(path, self.verify())
                set_format(path)
                # Last of all: as long as anything above may fail, the marks ask the next one to look again.
                left_behind.forget()
                undo.pop_all()

    def _open(self, is_new: bool) -> lmdb.Environment:
        import lmdb

        self._lmdb = lmdb
        self.errors = lmdb.Error
        crowded = MAP_SIZES_BYTES[min(len(_shared) // MAPS_OF_A_SIZE, len(MAP_SIZES_BYTES) - 1)]
        needed_bytes = 4 * (self.path / DATA_FILE).stat().st_size if not is_new else 0
        most_bytes = max(min(self._most_bytes, crowded), needed_bytes)
        # Address space costs nothing where the system grants it, and a map that is too small would refuse a commit
        # some day.
        for map_size_bytes in [size for size in MAP_SIZES_BYTES if size <= most_bytes] or MAP_SIZES_BYTES[-1:]:
            try:
                return lmdb.open(
                    os.fspath(self.path),
                    map_size=map_size_bytes,
                    max_dbs=8,
                    max_readers=_MAX_READERS,
                    max_spare_txns=0,  # A spare one would be the parent's in a forked child, which ends it at its end.
                    sync=self.sync,
                    metasync=self.sync,
                    mode=0o600,
                )
            except (lmdb.Error, MemoryError) as error:
                refused = error
                if getattr(error, "code", None) in NO_SPACE:
                    break
        kind = EnvironmentFull if getattr(refused, "code", None) in NO_SPACE else EnvironmentFault
        raise kind(f"LMDB can't open {self.path}: {refused}.") from refused

    def _open_tables(self, create: bool) -> None:
        names = (b"meta", b"log", b"state", b"journal", b"checkpoints", b"tails")
        try:
            self.env.reader_check()
            self.meta, self.log, self.state, self.journal, self.checkpoints, self.tails = (
                self.env.open_db(name, create=create) for name in names
            )
        except self._lmdb.Error as error:
            if self._is_full(error):
                raise self.failed(error) from error
            raise Damaged(f"The tables in {self.path} are not what was written: {error}. {RESTORE}") from error

    def begin_reading(self) -> lmdb.Transaction[memoryview]:
        """Begin to read what is committed now; whoever asks ends it."""
        if self.fault:
            raise EnvironmentFault(self.fault)
        try:
            return self.env.begin(buffers=True)
        except self.errors as error:
            raise self.failed(error) from error

    def reading(self) -> Reading:
        """A transaction that sees what is committed now, and hands out memory that is gone when it ends."""
        return Reading(self)

    @contextmanager
    def writing(self) -> Iterator[lmdb.Transaction[memoryview]]:
        """The one transaction that may write: it commits at the end of the block, or leaves nothing when that raises.

        Raises `EnvironmentFull` when there is no space, `Damaged` after any other error of LMDB.
        """
        with self._exclusive() as transaction:
            yield transaction
            # LMDB takes the higher of two numbers for the newest state: this tells when a changed bit made it so.
            number = _NUMBER.pack(transaction.id())
            transaction.put(LAST_TRANSACTION, sealed(LAST_TRANSACTION, number))

    @contextmanager
    def _exclusive(self) -> Iterator[lmdb.Transaction[memoryview]]:
        with self._write_lock:
            if self.fault:
                raise EnvironmentFault(self.fault)
            try:
                self._writes += 1
                # A reader that was killed keeps its slot, and with it every page that it saw from being used again.
                if self._writes % _WRITES_BETWEEN_READER_CHECKS == 0:
                    self.env.reader_check()
                with self.env.begin(write=True, buffers=True) as transaction:
                    yield transaction
            except self._lmdb.MapFullError as error:
                raise EnvironmentFull(
                    f"The map of {self.path} is full: this process has too little address space for more. Have more of "
                    "it (see `ulimit -v`), or fewer tasks in a process (more containers). Nothing of this was written."
                ) from error
            except self._lmdb.Error as error:
                raise self.failed(error) from error

    def failed(self, error: lmdb.Error) -> EnvironmentFault:
        """Refuse everything from now on, and return the error that says why."""
        self.fault = (
            f"The environment in {self.path} failed before ({error}) and is closed: close everything that has it open "
            "in this process, open it again (which verifies it), and go on from the checkpoint."
        )
        self._marker.suspect()
        if self._is_full(error):
            return EnvironmentFull(
                f"No space is left for {self.path} ({error}); nothing of this was written. Make room, close the "
                "environment, open it again, and go on from the checkpoint."
            )
        return Damaged(
            f"LMDB failed in {self.path}: {error}. The environment is closed: open it again (which verifies it), and "
            "go on from the checkpoint."
        )

    def distrust(self) -> None:
        """After a damaged record, have all of it looked at before it is used again, if it can be made anew."""
        if not self.sync:
            self._distrusted = True
            self._marker.suspect()

    def _is_full(self, error: lmdb.Error) -> bool:
        return error.code in NO_SPACE or _space_left_bytes(self.path) < _LITTLE_BYTES

    def verify(self) -> list[str]:
        """Return what is wrong in the files, as nobody may write meanwhile: nothing, when all is as it was written."""
        with self._exclusive() as transaction:
            return structure(self.path) or records(transaction, self)

    def join(self) -> None:
        """Use the environment as one more, until `release`; raises `EnvironmentFault` where all others have left it."""
        with _shared_lock:
            if not self.users:
                raise EnvironmentFault(f"The environment in {self.path} is closed: open it again.")
            self.users += 1

    def release(self) -> None:
        """Leave the environment; the last one out closes it."""
        with _shared_lock:
            assert self.users > 0, "released more often than attached"
            self.users -= 1
            # A forked child must not close what is its parent's.
            if self.users or self._pid != os.getpid():
                return
            for identity in [key for key, database in _shared.items() if database is self]:
                del _shared[identity]
            with self._write_lock:
                # Without a sync per commit the file may lie in the page cache only: closed well it is to outlive a
                # power cut as well.
                if not self.sync and not self.fault:
                    self.env.sync(True)
                if not self.fault:
                    # Not env.info(): that tells of a transaction that is not durable yet, too.
                    with suppress(self._lmdb.Error), self.env.begin() as transaction:
                        note_newest(self.path, transaction.id())
                self.env.close()
                self.journals.close()
                if self.fault or self._distrusted:
                    self._marker.leave()
                else:
                    self._marker.remove()

    def unlock(self, descriptor: int) -> None:
        """Give up an owner's lock; in a forked child that is done already."""
        if descriptor in self.owner_locks:
            self.owner_locks.remove(descriptor)
            os.close(descriptor)

    def forked(self) -> None:
        """Refuse everything in a forked child: LMDB must be neither used nor closed there, nor opened again."""
        self.fault = (
            f"The environment in {self.path} was open when this process was forked, and can't be used in the child: "
            'start a new process instead (multiprocessing: "spawn" or "forkserver").'
        )
        self._marker.leave()
        for reader in self.readers:
            reader.leave()
        for descriptor in self.owner_locks:
            os.close(descriptor)
        self.owner_locks.clear()


@contextmanager
def _scarcity_told() -> Iterator[None]:
    """Say in the error of an opening what to do where this process has none left of what an environment takes."""
    try:
        yield
    except EnvironmentFault as error:
        # LMDB has the system's number as well; a MemoryError is Python's own.
        cause = error.__cause__
        own = errno.ENOMEM if isinstance(cause, MemoryError) else None
        code = own or getattr(cause, "code", None) or getattr(cause, "errno", None)
        scarce = {errno.ENOMEM: ("address space", "ulimit -v"), errno.EMFILE: ("file descriptors", "ulimit -n")}
        if code not in scarce:
            raise
        lacks, limit = scarce[code]
        raise EnvironmentFault(
            f"{error} This process has {len(_shared)} other data directories open, and no {lacks} left for one more: "
            f"close what is done with (runs, queries, LogEnvironment), or allow it more (`{limit}`)."
        ) from cause


_shared: dict[tuple[int, int], Database] = {}
_shared_lock = threading.Lock()


def attach(path: Path, *, sync: bool | None = None, most_bytes: int = MAP_SIZES_BYTES[0]) -> Database:
    """Open the environment in `path`, or join those who have it open in this process: LMDB allows one opening.

    Without `sync` it joins in any way, and opens durably. It takes at most `most_bytes` of address space, or what lies
    there already.
    """
    with _scarcity_told(), system_errors_told(path, "opened"):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        # By device and inode: one directory may have several names, and LMDB must not open it twice in a process.
        status = path.stat()
        with _shared_lock:
            database = _shared.get((status.st_dev, status.st_ino))
            if database is None:
                database = _shared[status.st_dev, status.st_ino] = Database(path, sync is not False, most_bytes)
            elif database.fault:
                raise EnvironmentFault(database.fault)
            elif sync not in (None, database.sync):
                raise EnvironmentFault(f"{path} is open in this process with sync={database.sync}: do the same.")
            database.users += 1
            return database


def verify(path: str | os.PathLike[str]) -> list[str]:
    """Return what is wrong in a data directory, in words: nothing, when all is as it was written.

    It looks at every page and record, and others can read but not write meanwhile. Raises `EnvironmentFault` where
    there is no data directory.
    """
    directory = Path(path)
    if not (directory / DATA_FILE).exists():
        raise EnvironmentFault(f"There is no data directory at {directory}.")
    with locked(directory / _OPENING):
        # The pages first and without LMDB, which may end the process at damaged ones. Not where others have it
        # open:
        # they may write meanwhile.
        findings = [] if survey(directory).others_alive else structure(directory)
    if findings:
        return findings
    try:
        database = attach(directory)
    except EnvironmentFault as error:
        return [str(error)]
    try:
        return database.verify()
    finally:
        database.release()


def _refuse(path: Path, findings: list[str]) -> None:
    if findings:
        more = f" (and {len(findings) - 5} more)" if len(findings) > 5 else ""
        raise Damaged(
            f"{path} was not closed well, and is not what was written: {'; '.join(findings[:5])}{more}. Restore it "
            "from a copy, or delete it to start anew."
        )


def _forget_after_fork() -> None:
    global _shared_lock
    # Another thread may have held it at the fork, and nobody is left here to release it.
    _shared_lock = threading.Lock()
    for database in _shared.values():
        database.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)


def _space_left_bytes(path: Path) -> float:
    """Return how much the data file may grow, by the file system and the process's own limit, as far as is known."""
    left = math.inf
    with suppress(OSError):
        status = os.statvfs(path)
        left = status.f_bavail * status.f_frsize
    with suppress(ImportError, OSError):
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        if limit != resource.RLIM_INFINITY:
            left = min(left, limit - (path / DATA_FILE).stat().st_size)
    return left
