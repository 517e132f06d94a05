"""The doorbell of a directory: a file by which a process tells others of the machine that it has written there."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

_CLOSED_AFTER_WRITING = 0x8
"""Linux: IN_CLOSE_WRITE of <sys/inotify.h>."""
_EVENTS_BYTES = 1 << 12
"""More than is there as a rule: equal events in a row are one, of 16 bytes."""


class Doorbell:
    """A file that is opened for writing and closed again, which the system tells to all who listen.

    Nothing is written into it, so that ringing costs some microseconds, no space, and no write to the disk. Whoever
    dies between writing and ringing has rung for nobody, and a listener may miss a ring where the system has no
    means; so listeners look from time to time as well. Any thread may ring.
    """

    def __init__(self, path: Path) -> None:
        self._path = os.fspath(path)
        # On a full or failing disk others look from time to time.
        with suppress(OSError):
            os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))

    def ring(self) -> None:
        """Tell all who listen that there is something to look at."""
        with suppress(OSError):
            os.close(os.open(self._path, os.O_WRONLY | os.O_CLOEXEC))

    def listener(self) -> Listener | None:
        """Return who hears each ring from now on; None where the system has no means, or too few of them left."""
        if sys.platform != "linux":
            return None
        # Imported late: only a live run listens.
        import ctypes

        try:
            libc = ctypes.CDLL(None, use_errno=True)
            descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            if descriptor < 0:
                return None  # each user may have so many, 128 as a rule
            if libc.inotify_add_watch(descriptor, os.fsencode(self._path), _CLOSED_AFTER_WRITING) < 0:
                os.close(descriptor)
                return None
        except (OSError, AttributeError):
            return None
        return Listener(descriptor)


class Listener:
    """The ear of one process: its descriptor is readable while there was a ring that was not taken."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        """Return the descriptor, which an event loop can wait for."""
        return self._descriptor

    def take(self) -> None:
        """Take the rings that have come: it is readable only by those that come after."""
        # Before what was written is looked at: a ring that comes meanwhile makes it readable again.
        with suppress(BlockingIOError):
            os.read(self._descriptor, _EVENTS_BYTES)

    def close(self) -> None:
        """Hear nothing more; nobody may wait for the descriptor any more."""
        os.close(self._descriptor)
