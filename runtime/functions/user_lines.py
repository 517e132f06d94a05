"""Finds the lines of a traceback that are the user's program, and not ours, Python's or a library's above it."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Protocol

from operators.core.sites import OURS
from operators.core.wording import askable
from runtime.functions.at_work import no_owners, operator_at
from runtime.model.errors import Elsewhere

STANDARD_LIBRARY = sysconfig.get_path("stdlib")


class AtWork(Protocol):
    """A task at work in this context."""

    @property
    def number(self) -> int:
        """The task's number."""

    def owners(self, file: str) -> Sequence[str]:
        """Return the operator of each line of a file of fused source, "" for a line of none."""


TASK: ContextVar[AtWork | None] = ContextVar("TASK", default=None)
OPERATOR: ContextVar[str | None] = ContextVar("OPERATOR", default=None)
"""The operator whose async calls are made in this context."""


def place_now() -> tuple[int | None, str | None]:
    """Return the number of the task that works here, and the operator, where they are known; for lines of a log.

    It looks at the frames, so that nobody need take note of the operator for each message.
    """
    task, operator = TASK.get(), OPERATOR.get()
    if operator is None:
        operator = operator_at(sys._getframe(1), no_owners if task is None else task.owners)
    return None if task is None else task.number, operator


def user_lines(error: BaseException) -> list[str]:
    """Return the lines of a traceback that are the user's program, and of what it called."""
    if isinstance(error, Elsewhere):
        return error.lines
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(OURS) and not frame.filename.startswith("<")
    ]
    # A library above the user's lines has only called them; below them it says what they have called.
    while frames and is_installed(frames[0].filename):
        del frames[0]
    return "".join(traceback.format_list(frames)).splitlines()


def is_users(file: str) -> bool:
    """Whether a file is of the user's program."""
    return not file.startswith((*OURS, "<")) and not is_installed(file)


def is_installed(file: str) -> bool:
    """Whether a file is of Python or of a library.

    >>> is_installed("pyarrow/array.pxi"), is_installed("app.py")
    (True, False)
    """
    # What is compiled of Cython names its source as it was where that was done.
    return file.startswith(STANDARD_LIBRARY) or "site-packages" in file or file.endswith((".pxi", ".pyx"))


def deepest(error: BaseException) -> BaseException:
    """Return the exception at the end of the chain of causes."""
    error = askable(error)
    seen = {id(error)}
    # An exception may have been raised from itself.
    while error.__cause__ is not None and id(error.__cause__) not in seen:
        error = error.__cause__
        seen.add(id(error))
    return error
