"""Copies of values that share no part which can be changed, made for less than encoding and decoding costs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from operator import is_
from typing import Any
from uuid import UUID

from runtime.encoding.record_types import PLAIN_TYPES

SHARED = frozenset({*PLAIN_TYPES, dt.date, dt.timedelta, Decimal, Fraction, complex, UUID})
"""Types whose values nobody can change, and which come back as they are."""

COPIED = SHARED | {dict, list, tuple, set, frozenset}
"""Types whose values are copied here; of others `through` makes copies."""


def copied(value: Any, through: Callable[[object], object]) -> object:
    """Return a copy of a value; `through` copies by its bytes what is no collection, such as a record.

    What nobody can change is not copied.

    >>> held = {"a": [1, (2, 3)]}
    >>> one = copied(held, through=repr)
    >>> one == held, one["a"] is held["a"], one["a"][1] is held["a"][1]
    (True, False, True)
    """
    kind = type(value)
    if kind in SHARED:
        return value
    # Collections of immutable parts, which are most, are copied in C; only others are walked through.
    if kind is dict:
        if not SHARED.issuperset(map(type, value)):
            return {copied(key, through): copied(part, through) for key, part in value.items()}
        if SHARED.issuperset(map(type, value.values())):
            return value.copy()
        return {key: copied(part, through) for key, part in value.items()}
    if kind is list or kind is tuple:
        if SHARED.issuperset(map(type, value)):
            return value if kind is tuple else value.copy()
        parts = [copied(part, through) for part in value]
        return parts if kind is list else value if all(map(is_, parts, value)) else tuple(parts)
    if kind is set or kind is frozenset:
        if SHARED.issuperset(map(type, value)):
            return value if kind is frozenset else value.copy()
        return kind([copied(part, through) for part in value])
    return through(value)
