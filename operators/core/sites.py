"""The place in the user's program that something was said at, and the refusals that name it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from operators.core.base import NOWHERE, Site

ROOT = Path(__file__).resolve().parents[2]
OURS = tuple(str(ROOT / package) + "/" for package in ("samza_dsl", "runtime", "planner", "operators"))


def here() -> Site:
    """Return the file and line of the nearest caller outside our own packages."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(OURS):
        if frame.f_back is None:
            return NOWHERE
        frame = frame.f_back
    return Site(frame.f_code.co_filename, frame.f_lineno)


def mistake(wrong: str, instead: str) -> ValueError:
    """Return the error for an argument that can't be meant: where, what is wrong, and what to write instead."""
    return ValueError(f"{here()}: {wrong}; write instead: {instead}")


def takes(function: Callable[..., object], arguments: int, names: Iterable[str] = ()) -> bool:
    """Whether `function` can be called with so many arguments, and with those names, as far as can be seen.

    >>> takes(len, 1), takes(len, 2), takes("len", 1)
    (True, False, False)
    """
    try:
        inspect.signature(function).bind(*[None] * arguments, **dict.fromkeys(names))
    except TypeError:
        return False
    except ValueError:
        return callable(function)  # a builtin that has no signature to look at
    return True


def check_plain(said: str, function: Callable[..., object], arguments: int = 1) -> None:
    """Refuse what is no plain function of so many arguments; `said` is the call, such as "mean(...)"."""
    if not takes(function, arguments) or inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        names = ("", " value", " value, other")[arguments]
        wrong = f"{said} got {function!r}, which is no plain function of {arguments or 'no'} "
        raise mistake(
            wrong + ("argument" if arguments == 1 else "arguments"), said.replace("...", f"lambda{names}: ...")
        )
