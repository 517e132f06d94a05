"""Finds the lines of a traceback that are the user's program, and not ours, Python's or a library's above it."""

from __future__ import annotations

import sysconfig
import traceback

from operators.core.sites import OURS
from runtime.model.errors import Elsewhere

STANDARD_LIBRARY = sysconfig.get_path("stdlib")


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
    """Whether a file is of Python or of a library."""
    return file.startswith(STANDARD_LIBRARY) or "site-packages" in file


def deepest(error: BaseException) -> BaseException:
    """Return the exception at the end of the chain of causes."""
    seen = {id(error)}
    # An exception may have been raised from itself.
    while error.__cause__ is not None and id(error.__cause__) not in seen:
        error = error.__cause__
        seen.add(id(error))
    return error
