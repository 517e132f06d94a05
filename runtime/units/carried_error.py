"""Errors carried from a worker to the driver: class, words and lines go through Spark's own error as one line."""

from __future__ import annotations

import re
import traceback
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from operators.core.wording import askable, class_name, encodable, raised, words_of
from planner.model.errors import PlanError
from runtime.functions.user_lines import deepest, is_users, user_lines
from runtime.model import errors
from runtime.model.errors import Elsewhere, SamzaError

_MARK = "samza-dsl-failed:"
_FOUND = re.compile(rf"{_MARK}([A-Za-z0-9+/=]+)")
KINDS: dict[str, type[Exception]] = {
    kind.__name__: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, SamzaError)
} | {"PlanError": PlanError}


class Carried(msgspec.Struct, frozen=True):
    """An error: the name of its class, its words, and the lines of the user's program that it came from."""

    kind: str
    words: str
    lines: tuple[str, ...] = ()


class WorkerFailed(Exception):
    """The error that a worker raises: Spark tells its words to the driver, among its own."""


@contextmanager
def carried() -> Iterator[None]:
    """Raise errors in a block as what `told` finds again."""
    try:
        yield
    except GeneratorExit:  # nobody asks for more
        raise
    except BaseException as error:
        error = askable(error)
        lines = tuple(map(encodable, user_lines(deepest(error))))
        data = msgspec.msgpack.encode(Carried(class_name(error), _words(error), lines))
        failed = WorkerFailed(f"{words_of(error)} [{_MARK}{b64encode(data).decode()}]")
        # Spark encodes the traceback, and a worker that fails at that dies without a word.
        raise failed from (error if _can_be_told(error) else None)


def told(error: Exception) -> Exception | None:
    """Return the error that a worker has raised, given what Spark makes of it; None where no worker has.

    >>> try:
    ...     with carried():
    ...         raise errors.OperatorFailure("map 'm' at app.py:3: ZeroDivisionError")
    ... except WorkerFailed as failed:
    ...     print(repr(told(RuntimeError(f"Job aborted: {failed} at org.apache.spark..."))))
    OperatorFailure("map 'm' at app.py:3: ZeroDivisionError")
    """
    found = _FOUND.search(str(error))
    if found is None:
        return None
    what = msgspec.msgpack.decode(b64decode(found[1]), type=Carried)
    same = KINDS.get(what.kind, SamzaError)(what.words)
    same.__cause__ = Elsewhere(what.lines) if what.lines else None
    return same


def _can_be_told(error: BaseException) -> bool:
    """Whether Spark can encode the traceback that it makes of an error, and of what it was raised from."""
    try:
        "".join(traceback.format_exception(error)).encode()
    except KeyboardInterrupt:
        raise
    except BaseException:  # an exit, too
        return False
    return True


def _words(error: BaseException) -> str:
    """Return what an error says; of one that is not of ours where it was raised, too."""
    if isinstance(error, tuple(KINDS.values())):
        return words_of(error)
    if isinstance(error, ImportError):
        return f"{raised(error)}, in a worker of Spark: install there what your program imports"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users(frame.filename)]
    where = encodable(f" at {frames[-1].filename}:{frames[-1].lineno}") if frames else ""
    return f"{raised(error)}, raised{where} in a worker of Spark"
