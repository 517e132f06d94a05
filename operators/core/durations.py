"""The lengths of time that users say: whole ms, or a timedelta."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

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
