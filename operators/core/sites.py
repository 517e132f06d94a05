"""The place in the user's program that something was said at, and the refusals that name it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FunctionType

from operators.core.base import NOWHERE, Site

FUSED = "<fused "
"""The start of the file names of generated source."""

ROOT = Path(__file__).resolve().parents[2]
OURS = tuple(str(ROOT / package) + "/" for package in ("samza_dsl", "runtime", "planner", "operators"))


def here() -> Site:
    """Return the file and line of the nearest caller outside our own packages."""
    frame = sys._getframe(1)
    # A dataclass has its constructor made of text: it belongs to the module that it was made for.
    while frame.f_code.co_filename.startswith(OURS) or (
        frame.f_code.co_filename == "<string>" and str(frame.f_globals.get("__file__")).startswith(OURS)
    ):
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


def does_the_same(one: Callable[..., object], other: Callable[..., object]) -> bool:
    """Whether two functions are one, or have the same code, and nothing beside it that might differ.

    >>> does_the_same(lambda n: n % 7, lambda n: n % 7), does_the_same(lambda n: n % 7, lambda n: n % 8)
    (True, False)
    """
    if one is other:
        return True
    if not (inspect.isfunction(one) and inspect.isfunction(other)) or one.__globals__ is not other.__globals__:
        return False
    if one.__closure__ or other.__closure__ or one.__defaults__ or other.__defaults__ or one.__kwdefaults__:
        return False
    return other.__kwdefaults__ is None and _code_of(one) == _code_of(other)


# What kind of function it is; other flags say where it was written, such as in a class.
_KINDS = (
    inspect.CO_VARARGS
    | inspect.CO_VARKEYWORDS
    | inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
)


def _code_of(function: FunctionType) -> tuple[object, ...]:
    code = function.__code__
    # By their words, since 1 and True are equal; functions within have addresses there, and so are never the same.
    constants = repr(code.co_consts)
    return (
        code.co_code,
        constants,
        code.co_names,
        code.co_varnames,
        code.co_argcount,
        code.co_flags & _KINDS,
    )
