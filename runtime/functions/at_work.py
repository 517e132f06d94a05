"""The operator that a thread is at work for, as its frames tell: nobody notes it for each message."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any, TypeVar

from operators.core.sites import FUSED

F = TypeVar("F", bound=Callable[..., Any])
Variables = Mapping[str, Any]
_TELLERS: dict[CodeType, Callable[[Variables], str | None]] = {}
"""By function, how its variables tell the operator that it is at work for."""
_RESTING: set[CodeType] = set()
"""The functions of these that mostly wait."""


def tells(operator: Callable[[Variables], str | None], *, rests: bool = False) -> Callable[[F], F]:
    """Note how a function's variables tell the operator that it is at work for; the function stays as it is.

    One that `rests` waits for most of its time: that a thread is in it does not say that it is at work.
    """

    def noted(function: F) -> F:
        _TELLERS[function.__code__] = operator
        if rests:
            _RESTING.add(function.__code__)
        return function

    return noted


def told_by(frame: FrameType) -> str | None:
    """Return the operator that one frame of ours is at work for, where it knows that."""
    tell = _TELLERS.get(frame.f_code)
    return tell(frame.f_locals) if tell is not None else None


def no_owners(file: str) -> tuple[str, ...]:
    """Return no operators of the lines of a file, as where no fused source is looked for."""
    return ()


def operator_at(
    frame: FrameType | None, owners: Callable[[str], Sequence[str]] = no_owners, *, rests: bool = True
) -> str | None:
    """Return the operator that the innermost frame which knows one is at work for; also one that `rests`, if so said.

    `owners` has the operator of each line of a file of fused source, "" for a line of none.
    """
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(FUSED):
            lines, line = owners(code.co_filename), frame.f_lineno or 0
            if 0 < line <= len(lines) and lines[line - 1]:
                return lines[line - 1]
        elif code in _TELLERS and (rests or code not in _RESTING):
            return _TELLERS[code](frame.f_locals)
        frame = frame.f_back
    return None
