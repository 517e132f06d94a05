"""Carries an error from a worker to the driver: its class and words go through Spark's own as one line."""

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

_MARK = "samza-dsl-failed:"
_FOUND = re.compile(rf"{_MARK}([A-Za-z0-9+/=]+)")
KINDS: dict[str, type[Exception]] = {
    kind.__name__: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, SamzaError)
} | {"PlanError": PlanError}


class Carried(msgspec.Struct, frozen=True):
    """An error of ours: the name of its class, its words, and where the user's code raised."""

    kind: str
    words: str
    trace: str = ""


class Failed(Exception):
    """What a worker raises: Spark tells its words to the driver, among its own."""


@contextmanager
def carried() -> Iterator[None]:
    """Raise errors of ours in a block as what `told` finds again."""
    try:
        yield
    except tuple(KINDS.values()) as error:
        cause = error.__cause__
        trace = "".join(traceback.format_exception(cause)) if cause is not None else ""
        data = msgspec.msgpack.encode(Carried(type(error).__name__, str(error), trace))
        raise Failed(f"{error} [{_MARK}{b64encode(data).decode()}]") from error


def told(error: Exception) -> Exception | None:
    """Return the error that a worker has raised, given what Spark makes of it; None where it was none of ours.

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
    if what.trace:
        same.add_note(f"In the worker:\n{what.trace}")
    return same
