"""The operator that a thread is at work for, as its frames tell: nobody notes it for each message."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any, TypeVar

from planner.codegen.fusion import FUSED

F = TypeVar("F", bound=Callable[..., Any])
Variables = Mapping[str, Any]
_TELLERS: dict[CodeType, Callable[[Variables], str | None]] = {}
"""By function, how its variables tell the operator that it is at work for."""


def tells(operator: Callable[[Variables], str | None]) -> Callable[[F], F]:
    """Note how a function's variables tell the operator that it is at work for; the function stays as it is."""

    def noted(function: F) -> F:
        _TELLERS[function.__code__] = operator
        return function

    return noted


def told_by(frame: FrameType) -> str | None:
    """Return the operator that one frame of ours is at work for, where it knows that."""
    tell = _TELLERS.get(frame.f_code)
    return tell(frame.f_locals) if tell is not None else None


def operator_at(frame: FrameType | None, owners: Callable[[str], Sequence[str]]) -> str | None:
    """Return the operator that the innermost frame which knows one is at work for.

    `owners` has the operator of each line of a file of fused source, "" for a line of none.
    """
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(FUSED):
            lines, line = owners(code.co_filename), frame.f_lineno or 0
            if 0 < line <= len(lines) and lines[line - 1]:
                return lines[line - 1]
        elif code in _TELLERS:
            return _TELLERS[code](frame.f_locals)
        frame = frame.f_back
    return None
