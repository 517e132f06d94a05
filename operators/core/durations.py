"""The lengths of time that users say: whole ms, or a timedelta."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

Duration = int | timedelta
"""A length of time: whole ms, or a timedelta of whole ms."""
MS = timedelta(milliseconds=1)


def whole_ms(length: object) -> Any:
    """Return a timedelta of whole ms as an int of ms; anything else as it is, for the caller to refuse.

    >>> whole_ms(timedelta(minutes=5)), whole_ms(250)
    (300000, 250)
    """
    if not isinstance(length, timedelta) or length % MS:
        return length
    return length // MS
