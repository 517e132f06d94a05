"""The lengths of time that users say: whole ms, or a timedelta."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from operators.core.sites import mistake

Duration = int | timedelta
"""A length of time: whole ms, or a timedelta of whole ms."""
MS = timedelta(milliseconds=1)
FIRST_REAL_S, LAST_REAL_S = 10**9 + 1, 41 * 10**8
"""From 2001 to 2099, in seconds: what the times of real records are. Taken as ms they are some weeks of early 1970.

A round 10**9 is a number of somebody's who tests.
"""
FIRST_REAL_MS = FIRST_REAL_S * 1_000


def whole_ms(length: object) -> Any:
    """Return a timedelta of whole ms as an int of ms; anything else as it is, for the caller to refuse.

    >>> whole_ms(timedelta(minutes=5)), whole_ms(250)
    (300000, 250)
    """
    if not isinstance(length, timedelta) or length % MS:
        return length
    return length // MS


def checked_ms(said: str, length: object, least: int | None = 0) -> int:
    """Return a length of time in ms; raises ValueError for what is none in whole ms, of at least `least` or any.

    >>> checked_ms("timeout_ms", timedelta(seconds=2))
    2000
    """
    ms = whole_ms(length)
    if type(ms) is not int or (least is not None and ms < least):
        bound = "" if least is None else f" of at least {least}"
        wrong = f"{said}={length!r} is not a whole number{bound}, of ms, nor a timedelta of whole ms"
        raise mistake(wrong, f"{said}={max(least or 0, 1)}")
    return ms
