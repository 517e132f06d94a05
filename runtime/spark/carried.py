"""Carries an error from a worker to the driver: its class, words and lines go through Spark's own as one line."""

from __future__ import annotations

import re
import traceback
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from planner.errors import PlanError
from runtime import errors
from runtime.errors import SamzaError
from runtime.talk import Elsewhere
from runtime.users_lines import deepest, is_users, user_lines

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


class Failed(Exception):
    """What a worker raises: Spark tells its words to the driver, among its own."""


@contextmanager
def carried() -> Iterator[None]:
    """Raise errors in a block as what `told` finds again."""
    try:
        yield
    except GeneratorExit:  # nobody asks for more
        raise
    except BaseException as error:
        lines = tuple(user_lines(deepest(error)))
        data = msgspec.msgpack.encode(Carried(type(error).__name__, _words(error), lines))
        raise Failed(f"{error} [{_MARK}{b64encode(data).decode()}]") from error


def told(error: Exception) -> Exception | None:
    """Return the error that a worker has raised, given what Spark makes of it; None where no worker has.

    >>> try:
    ...     with carried():
    ...         raise errors.OperatorFailure("map 'm' at app.py:3: ZeroDivisionError")
    ... except Failed as failed:
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


def _words(error: BaseException) -> str:
    """Return what an error says; of one that is not of ours where it was raised, too."""
    if isinstance(error, tuple(KINDS.values())):
        return str(error)
    raised = "".join(traceback.format_exception_only(error)).strip()
    if isinstance(error, ImportError):
        return f"{raised}, in a worker of Spark: install there what your program imports"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users(frame.filename)]
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{raised}, raised{where} in a worker of Spark"
