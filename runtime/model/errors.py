"""Errors of a run: each says which operator or file, what is wrong, and what to do.

SamzaError
├── OperatorFailure     a user's function raised, or took too long
├── ExitAsked           a user's function asked its process to end
├── SerdeError          bytes that are not what the serde reads
└── EnvironmentFault    the data directory
    ├── EnvironmentFull     no space left: nothing of the commit was written
    ├── Damaged             a file or record is not what was written
    ├── HeldBack            a transaction that nobody ends keeps records from being read
    ├── Refused             brokers do not let this client do what would be refused again
    ├── TooLarge            a record is larger than where it is to be written takes
    ├── Unavailable         brokers did not answer in time; what is asked anew may succeed
    │   └── Unreachable         a registry of schemas did not answer
    ├── Fenced              a newer generation of the application has taken over
    └── Owned               another process runs this application on this directory
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

INTERRUPTED = 130
"""The exit code of a process that was interrupted."""
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The error numbers of the operating system where a disk, a quota or a limit leaves no room."""


PLACE: ContextVar[str] = ContextVar("PLACE", default="")
"""The options, with a space ahead, by which a command is about the environment that was opened last in this context."""


def command(words: str) -> str:
    """Return a command as it can be typed, about the environment of the run or command in whose context this is.

    So that whoever finds a mistake can say what to type, wherever that is, without knowing where the run is.

    >>> command("reset spending")
    'samza-dsl reset spending'
    """
    return f"samza-dsl {words}{PLACE.get()}"


def threads_here(most: int, name: str) -> ThreadPoolExecutor:
    """Return threads whose errors advise commands about the same environment as those of who makes them."""
    return ThreadPoolExecutor(most, name, initializer=PLACE.set, initargs=(PLACE.get(),))


class SamzaError(Exception):
    """The base of all errors of a run.

    >>> issubclass(OperatorFailure, SamzaError)
    True
    """


class OperatorFailure(SamzaError):
    """A user's function raised, or took longer than it may."""


class ExitAsked(SamzaError):
    """A user's function has called `sys.exit()`, or raised KeyboardInterrupt; `code` is what it has asked for."""

    def __init__(self, text: str = "", code: int = 1) -> None:
        super().__init__(text)
        self.code = code

    def exit(self) -> BaseException:
        """Return what ends the process as was asked."""
        return KeyboardInterrupt() if self.code == INTERRUPTED else SystemExit(self.code)


class SerdeError(SamzaError):
    """Bytes that are not what the serde reads, or a value that it can't write."""


class UnreadState(SerdeError):
    """Stored state that can't be read by the types as they are now: of no record's fault, and no policy heeds it."""


class EnvironmentFault(SamzaError):
    """The data directory can't be used as asked."""


class EnvironmentFull(EnvironmentFault):
    """No space is left; nothing of the refused commit was written."""


class Damaged(EnvironmentFault):
    """A file or a record is not what was written."""


class Grown(Damaged):
    """A stream that is read has more partitions than when the run began."""


class Repartitioned(Grown):
    """All that lay by former partitions was processed, and moved: the run goes on with those that are there now."""


class Unavailable(EnvironmentFault):
    """Brokers, or another system, did not do what was asked, or not in time; what is asked anew may succeed.

    Who is asked may have said to come again no sooner than `after_s`, or have done a part: what is left `goes_on`.
    """

    def __init__(self, told: str = "", after_s: float = 0.0, *, goes_on: bool = False) -> None:
        super().__init__(told)
        self.after_s = after_s
        self.goes_on = goes_on


class RowRefused(SamzaError):
    """A sink refuses one of the rows that it was given, of which it has taken none: the one at `row`.

    It is for the `on_error=` of the operator that writes the output. A sink that has tried all of the rows names the
    others that it refuses in `also`, in their order: they are noted together. None says that it does not know.

    >>> RowRefused("CHECK constraint failed: cents > 0", row=2).row
    2
    """

    def __init__(self, told: str, row: int = 0, also: Sequence[RowRefused] | None = None) -> None:
        super().__init__(told)
        self.row = row
        self.also = also


class Unreachable(Unavailable):
    """A registry of schemas did not answer: no record is at fault, and none is skipped for it."""


class Refused(EnvironmentFault):
    """Brokers do not let this client do something; to ask again would change nothing."""


NO_RECORDS_FAULT = (Unreachable, Refused)
"""The errors that end a run, or begin it anew, whatever the policies for records say."""


class TooLarge(EnvironmentFault):
    """A record is larger than its topic takes; an operator whose policy lets such records pass goes on."""


class HeldBack(EnvironmentFault):
    """A transaction that nobody ends holds back records that a run was to read."""


class Fenced(EnvironmentFault):
    """A newer generation of the application has taken over; this run must not commit."""


class Owned(EnvironmentFault):
    """Another process runs this application on this directory."""


class Elsewhere(Exception):
    """The cause of an error in another process, as the lines of the user's program there."""

    def __init__(self, lines: tuple[str, ...]) -> None:
        super().__init__("\n".join(lines))
        self.lines = list(lines)


@contextmanager
def system_errors_told(path: Path, what: str) -> Iterator[None]:
    """Raise `EnvironmentFull` or `EnvironmentFault`, saying that `path` can't be `what`, for an OSError in a block.

    >>> with system_errors_told(Path("out.jsonl"), "written"):
    ...     raise OSError(errno.ENOSPC, "No space left on device")
    Traceback (most recent call last):
        ...
    runtime.model.errors.EnvironmentFull: out.jsonl can't be written: [Errno 28] No space left on device. ...
    """
    try:
        yield
    except OSError as error:
        if error.errno in NO_SPACE:
            raise EnvironmentFull(
                f"{path} can't be {what}: {error}. What was there is as it was: make room, and run the same again."
            ) from error
        raise EnvironmentFault(f"{path} can't be {what}: {error}.") from error
