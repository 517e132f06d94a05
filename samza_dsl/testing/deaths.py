"""Deaths of a run in the middle of what it does, as the suites for connectors play them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeVar

from runtime.ports.connectors import SinkRow

R = TypeVar("R")


class PlayedDeath(Exception):
    """The death of a run in the middle of what it does, as a suite plays it."""


class DyingRows(Sequence[SinkRow]):
    """Rows of which one can't be had, as where the process dies while it writes."""

    def __init__(self, rows: Sequence[SinkRow], alive: int) -> None:
        self._rows, self._alive = rows, alive

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return DyingRows(self._rows[place], max(self._alive - (place.start or 0), 0))
        if place >= self._alive:
            raise PlayedDeath
        return self._rows[place]

    def __iter__(self) -> Iterator[SinkRow]:
        yield from self._rows[: self._alive]
        raise PlayedDeath


class DyingLines:
    """Calls functions of a connector, which die at a line of their own files where that is asked for.

    So they die also where they call nothing of ours: between two commits to a database, say. Each call is made in a
    thread of its own, as a run may make it.
    """

    def __init__(self, functions: Iterable[Callable[..., Any]]) -> None:
        codes = map(_code_of, functions)
        self._files = {code.co_filename for code in codes if code is not None}
        self.lines = 0
        """The most lines that a call has run until now; 0 for functions that are not of Python."""
        self.place = ""
        """The line at which a call has died last."""

    def call(self, function: Callable[..., R], *arguments: object, alive: int | None = None) -> R:
        """Call a function, which dies behind so many lines; raises what it raises, in the end `PlayedDeath`."""
        seen = 0

        def trace(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal seen
            if frame.f_code.co_filename not in self._files:
                return None
            if event == "line":
                if seen == alive:
                    self.place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                    raise PlayedDeath
                seen += 1
            return trace

        def traced() -> R:
            sys.settrace(trace)  # of this thread alone, which ends behind the call
            return function(*arguments)

        try:
            return apart(traced)
        finally:
            self.lines = max(self.lines, seen)


def apart(function: Callable[..., R], *arguments: object) -> R:
    """Call a function in a thread of its own, and return what it returns."""
    with ThreadPoolExecutor(1, thread_name_prefix="samza-dsl-suite") as pool:
        return pool.submit(function, *arguments).result()


def is_of_death(error: BaseException | None) -> bool:
    """Whether an error is a played death, or was raised as one came."""
    while error is not None:
        if isinstance(error, PlayedDeath):
            return True
        error = error.__cause__ or error.__context__
    return False


def _code_of(function: Any) -> CodeType | None:
    """Return the code of a function of Python, of whatever shape; None for any other.

    >>> _code_of(partial(is_of_death, None)) is is_of_death.__code__, _code_of([].append)
    (True, None)
    """
    if isinstance(function, partial):
        return _code_of(function.func)
    if inspect.ismethod(function):
        return _code_of(function.__func__)
    if inspect.isfunction(function):
        code: CodeType = inspect.unwrap(function).__code__
        return code
    called = type(function).__call__
    return _code_of(called) if inspect.isfunction(called) else None
