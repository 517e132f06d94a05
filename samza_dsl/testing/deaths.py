"""Deaths of a run in the middle of what it does, as the suites for connectors play them."""

from __future__ import annotations

import gc
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from numbers import Number
from pathlib import Path
from traceback import clear_frames
from types import FrameType, FunctionType
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
        found = map(_function_of, functions)
        self._files = {one.__code__.co_filename for one in found if one is not None}
        self.lines = 0
        """The most lines that a call has run until now; 0 for functions that are not of Python."""
        self.place = ""
        """The line at which a call has died last."""

    def call(
        self,
        function: Callable[..., R],
        *arguments: object,
        alive: int | None = None,
        then: Callable[[], object] | None = None,
    ) -> R:
        """Call a function, which dies behind so many lines, or goes on behind what is to be called `then`.

        Raises what it raises, in the end `PlayedDeath`.
        """
        seen = 0

        def trace(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal seen
            if frame.f_code.co_filename not in self._files:
                return None
            if event == "line":
                if seen == alive:
                    self.place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                    if then is None:
                        raise PlayedDeath
                    then()
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
    """Call a function in a thread of its own, and return what it returns; one that dies lets go of all that it had."""
    try:
        with ThreadPoolExecutor(1, thread_name_prefix="samza-dsl-suite") as pool:
            return pool.submit(function, *arguments).result()
    except Exception as error:
        if is_of_death(error):
            _let_go(error)
        raise


def _let_go(error: BaseException | None) -> None:
    """Drop what was in the frames of a death, as the end of a process does: a connection there would hold its locks.

    One of sqlite3 is in a circle with its statements, which the collector alone undoes.
    """
    while error is not None:
        clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
    gc.collect()


def is_of_death(error: BaseException | None) -> bool:
    """Whether an error is a played death, or was raised as one came."""
    while error is not None:
        if isinstance(error, PlayedDeath):
            return True
        error = error.__cause__ or error.__context__
    return False


class HashOfLives:
    """Lets the modules of a connector's functions have another `hash` in each life, as each process has for text.

    Within a life equal values have one. What a class says of itself, `__hash__`, is for the dicts of this process.
    """

    def __init__(self, functions: Iterable[Callable[..., Any]]) -> None:
        found = [one.__globals__ for one in map(_function_of, functions) if one is not None]
        self._names = [names for names in {id(names): names for names in found}.values() if "hash" not in names]
        self.life = 0
        self.is_asked = False
        """Whether somebody has asked for one that the next process would not have."""

    def __enter__(self) -> None:
        for names in self._names:
            names["hash"] = self._hash

    def __exit__(self, *_: object) -> None:
        for names in self._names:
            del names["hash"]

    def _hash(self, value: object) -> int:
        found = hash(value)
        if _has_lasting_hash(value) or sys._getframe(1).f_code.co_name == "__hash__":
            return found
        self.is_asked = True
        return hash((self.life, found))


def _has_lasting_hash(value: object) -> bool:
    """Whether the hash of a value is the same in each process.

    >>> _has_lasting_hash((1, 2.5)), _has_lasting_hash((1, "a"))
    (True, False)
    """
    return all(map(_has_lasting_hash, value)) if type(value) is tuple else value is None or isinstance(value, Number)


def _function_of(function: Any) -> FunctionType | None:
    """Return the function of Python that is called, of whatever shape; None for any other.

    >>> _function_of(partial(is_of_death, None)) is is_of_death, _function_of([].append)
    (True, None)
    """
    if isinstance(function, partial):
        return _function_of(function.func)
    if inspect.ismethod(function):
        return _function_of(function.__func__)
    found = inspect.unwrap(function) if inspect.isfunction(function) else type(function).__call__
    return found if inspect.isfunction(found) else None
