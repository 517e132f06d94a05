"""Locks that the operating system drops when a process ends, and the marks of who has a directory open."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from runtime.model.clock import SystemClock
from runtime.model.errors import Owned, SamzaError, system_errors_told

try:
    import fcntl
except ImportError as error:
    wrong = "samza-dsl runs on POSIX systems such as Linux, and not on MS Windows: run the program in WSL"
    raise SamzaError(wrong) from error

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_USERS = "users"
_BLOCK_BYTES = 512
MOST_LOOKS, LOOK_MS = 50, 1.0
"""The most looks at a lock that are waited for as one is taken, and for how long each time: most last microseconds."""
MOST_LEFT_MS, LEFT_LOOK_MS = 30_000.0, 50.0
"""How long containers are waited for whose starter has died, and between two looks: they drain as long by default."""
_OPEN, _SUSPECT = b"open", b"suspect"
_WRITER = "user.samza-dsl.writer"
"""The extended attribute that names the application whose output a file is."""


def boot_id() -> bytes:
    """Return what names this run of the operating system, or nothing where it has no name."""
    try:
        return _BOOT_ID.read_bytes().strip()
    except OSError:
        return b""


def lock(path: Path, *, wait: bool) -> int | None:
    """Lock a file, made where it is absent, and return its descriptor; None when it is taken and `wait` is false."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if wait:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        elif not _taken_by(descriptor):
            os.close(descriptor)
            return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _taken_by(descriptor: int) -> bool:
    """Take a lock that nobody has; who only looks shares it for a moment, and is waited for."""
    for _ in range(MOST_LOOKS):
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        SystemClock().pause_ms(LOOK_MS)
    return False


def lock_within(folder: Path, name: str) -> int | None:
    """Return the descriptor of the lock of a name in a folder, made where it is absent; None where it is taken."""
    path = folder / f"{name}.lock"
    with system_errors_told(path, "made"):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return lock(path, wait=False)


def owner_lock(directory: Path, app: str) -> int:
    """Return the descriptor of an application's lock in a directory; raises `Owned` where another process has it.

    The containers of a process that has died end by themselves, and are waited for.
    """
    path, waited_ms = directory / "owners" / f"{app}.lock", 0.0
    while (descriptor := lock_within(directory / "owners", app)) is None:
        said = path.read_text().strip()
        if not _has_died(said):
            raise Owned(
                f"Process {said or 'unknown'} runs application {app!r} on {directory}: end it "
                "first, or use another application name or directory."
            )
        if waited_ms >= MOST_LEFT_MS:
            raise Owned(
                f"Process {said} that ran application {app!r} on {directory} has died, and containers of it still "
                "commit what they have begun, or hang: begin again later, or end them."
            )
        SystemClock().pause_ms(LEFT_LOOK_MS)
        waited_ms += LEFT_LOOK_MS
    with system_errors_told(path, "written"):
        # Written into the locked file, for whoever is refused to name the process.
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
    return descriptor


def _has_died(process: str) -> bool:
    """Whether there is no process of a number here; one without a number is about to write it."""
    with suppress(PermissionError):  # another user's, which lives
        try:
            os.kill(int(process or os.getpid()), 0)
        except ProcessLookupError:
            return True
    return False


def owner_of(directory: Path, app: str) -> int | None:
    """Return the process that runs an application in a directory; None where none does."""
    path = directory / "owners" / f"{app}.lock"
    if not is_locked(path):
        return None
    said = path.read_text().strip()
    return int(said) if said.isdigit() else None


def writer_of(path: Path) -> str:
    """Return the application that has marked a file or directory as its output; nothing where none has, or could."""
    with suppress(OSError, AttributeError):
        return os.getxattr(path, _WRITER).decode(errors="replace")
    return ""


def mark_writer(path: Path, app: str) -> None:
    """Mark a file or directory as the output of an application, where the file system keeps such marks."""
    with suppress(OSError, AttributeError):
        os.setxattr(path, _WRITER, app.encode())


def is_locked(path: Path) -> bool:
    """Whether a process has the lock of a file; whoever looks shares it for a moment, for which `lock` waits."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)


def allocate(path: Path, least_bytes: int) -> None:
    """Give a file, made where it is absent, all of its blocks: who writes into a hole by memory dies on a full disk."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        status = os.fstat(descriptor)
        size_bytes = max(status.st_size, least_bytes)
        if status.st_blocks * _BLOCK_BYTES < size_bytes and os.pwrite(descriptor, bytes(size_bytes), 0) < size_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
    finally:
        os.close(descriptor)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file during a block, waiting for it as long as it takes."""
    descriptor = lock(path, wait=True)
    assert descriptor is not None
    try:
        yield
    finally:
        os.close(descriptor)


class Marker:
    """The mark of this process in a directory that it has open: locked while it lives, removed when it ends well."""

    def __init__(self, path: Path) -> None:
        users = path / _USERS
        users.mkdir(mode=0o700, exist_ok=True)
        self._path = users / f"{os.getpid()}-{secrets.token_hex(4)}"
        descriptor = lock(self._path, wait=True)
        assert descriptor is not None
        self._descriptor: int | None = descriptor
        self._write(_OPEN)
        # The mark must be in the directory before anything is written: after a power cut it says that somebody was
        # here.
        directory = os.open(users, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def suspect(self) -> None:
        """Say that the files must be verified before they are used again."""
        self._write(_SUSPECT)

    def remove(self) -> None:
        """End well: nobody will ask why this process is gone."""
        with suppress(FileNotFoundError):
            self._path.unlink()
        self.leave()

    def leave(self) -> None:
        """Let go of the mark but leave it, so that the next to open the directory looks after it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _write(self, word: bytes) -> None:
        # On a full disk the mark stays empty, which asks for a verification as well: reading must be possible there.
        with suppress(OSError):
            if self._descriptor is not None:
                os.pwrite(self._descriptor, word.ljust(8) + boot_id(), 0)
                os.fsync(self._descriptor)


class LeftBehind:
    """The result of `survey`: whether others have the directory open, and the marks of those who did not end well."""

    def __init__(self) -> None:
        self.others_alive = False
        self.suspicious = False
        self._marks: list[Path] = []

    def add(self, mark: Path, content: bytes) -> None:
        """Count the mark of a dead process in."""
        self._marks.append(mark)
        word, boot = content[:8].strip(), content[8:]
        # A process that was killed leaves what the kernel has taken over; a machine that went down may not have
        # written all of it.
        if word != _OPEN or not boot or boot != boot_id():
            self.suspicious = True

    def forget(self) -> None:
        """Remove the marks, once the directory is known to be sound."""
        for mark in self._marks:
            with suppress(FileNotFoundError):
                mark.unlink()


def survey(path: Path) -> LeftBehind:
    """Look at the marks in a directory; nobody may open it meanwhile."""
    found = LeftBehind()
    for mark in sorted((path / _USERS).glob("*")):
        try:
            descriptor = os.open(mark, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its process may have removed it between the look at the folder and the lock.
            if os.fstat(descriptor).st_nlink:
                found.add(mark, os.pread(descriptor, 200, 0))
        except BlockingIOError:
            found.others_alive = True
        finally:
            os.close(descriptor)
    return found
