"""Copies of values: those that share no part which can be changed, for less than bytes cost, and with sets in order."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from operator import is_
from typing import Any, cast
from uuid import UUID

import msgspec

from runtime.encoding.record_types import PLAIN_TYPES, is_pydantic, is_record, is_struct, values_of

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


def with_sets_in_order(value: Any, encode: Callable[[object], bytes]) -> Any:
    """Return a value to be encoded alone, with tuples for its sets, at every depth, in the order of their parts' bytes.

    Python orders a set otherwise in each process, and knows no order of most values.

    >>> from msgspec.json import encode
    >>> with_sets_in_order({"a": {2, 1, "b"}}, encode)
    {'a': ('b', 1, 2)}
    """
    kind = type(value)
    if kind in SHARED or isinstance(value, Enum):
        return value
    if isinstance(value, set | frozenset):
        return tuple(sorted((with_sets_in_order(part, encode) for part in value), key=encode))
    if isinstance(value, dict):
        return {with_sets_in_order(key, encode): with_sets_in_order(part, encode) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return tuple(with_sets_in_order(part, encode) for part in value)
    if not is_record(kind) or is_pydantic(kind):
        return value
    return with_parts(value, lambda part: with_sets_in_order(part, encode), _made_like)


def with_parts(
    record: Any, change: Callable[[object], object], make: Callable[[Any, Mapping[str, object]], object]
) -> Any:
    """Return a record whose fields are changed, as `make` makes one like it; itself where all of them stay."""
    held = values_of(record)
    changed = {name: change(part) for name, part in held.items()}
    return record if all(map(is_, changed.values(), held.values())) else make(record, changed)


def _made_like(record: Any, values: Mapping[str, object]) -> object:
    """Return a record by no constructor and no `__post_init__`, which would be handed what their types do not say."""
    if is_struct(type(record)):
        found = cast(Any, msgspec.Struct).__copy__(record)
        for name, part in values.items():
            msgspec.structs.force_setattr(found, name, part)
    else:
        found = object.__new__(type(record))
        for name, part in values.items():
            object.__setattr__(found, name, part)
    return found
