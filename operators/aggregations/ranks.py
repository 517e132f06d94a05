"""The order of values among which NaN may be, which Python finds neither smaller nor larger than others."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, TypeVar

import msgspec

V = TypeVar("V")

NEVER_NAN = frozenset({int, str, bytes, bool})
NUMBERS = frozenset({int, float})
SCALARS = NEVER_NAN | {float}
FEW = 128
"""The number of values up to which sorting is faster than to look for the largest."""
BELOW, READ, ABOVE = 0, 1, 2
"""The rank of a value: NaN ranks below or above all others, which have the rank READ."""


def largest(values: list[Any]) -> Any:
    """Return the largest value; NaN only where there is nothing else.

    >>> from math import nan
    >>> largest([nan, 1.0, 3.0]), largest([nan])
    (3.0, nan)
    """
    return _outermost(max, values, _rank_from_below)


def smallest(values: list[Any]) -> Any:
    """Return the smallest value; NaN only where there is nothing else.

    >>> from math import nan
    >>> smallest([nan, 3.0, 1.0]), smallest([nan])
    (1.0, nan)
    """
    return _outermost(min, values, _rank_from_above)


def ranked(keys: list[Any], nan: int = BELOW) -> list[Any]:
    """Return values that sort as the keys do, with NaN and None `BELOW` or `ABOVE` all others; the keys if none is.

    >>> from math import nan
    >>> ranked([2, 1]), sorted(ranked([2.0, nan]))
    ([2, 1], [(0, 'float', 'nan'), (1, 2.0)])
    """
    # The sum of numbers, which C makes, is NaN where one of them is, or infinities are: so it clears most columns.
    try:
        whole = sum(keys)
    except (TypeError, ArithmeticError):
        whole = None
    if type(whole) in (int, float) and whole == whole:
        return keys
    has_nan = not NEVER_NAN.issuperset(map(type, keys)) and any(holds_nan(key) or _holds_none(key) for key in keys)
    return [_rank(key, nan) for key in keys] if has_nan else keys


def inserted(held: Sequence[V], more: Sequence[V], by: Callable[[V], Any], k: int, tied: bool) -> list[V] | None:
    """Return the `k` largest of values that are held in falling order of rank and some more, in that order.

    It is None where they are to be ranked all together: ranks may be NaN, or tie and what is `tied` has another order
    than to come first.

    >>> inserted([3, 1], [2, 0], abs, 3, tied=True), inserted([3, 1], [1], abs, 3, tied=False)
    ([3, 2, 1], None)
    """
    least = by(held[-1])
    if type(least) not in SCALARS or least != least:
        return None
    found = [*held]
    for value in more:
        rank = by(value)
        if type(rank) not in SCALARS or rank != rank:
            return None
        if rank < least and len(held) >= k:
            continue
        low, high = 0, len(found)
        while low < high:
            middle = (low + high) // 2
            if by(found[middle]) < rank:
                high = middle
            else:
                low = middle + 1
        if not tied and low and by(found[low - 1]) == rank:
            return None
        found.insert(low, value)
    return found[:k]


def candidates(k: int, ranks: list[Any], held: int) -> Sequence[int]:
    """Return, in rising order, the places of the `k` largest ranks, with all that tie with them, and maybe others.

    The first `held` ranks are the largest ones so far, in falling order: a rank below the `k`th of them is left out.

    >>> candidates(2, [3, 2, 1, 2, 4], held=2), candidates(2, [1, 2], held=0)
    ([0, 1, 3, 4], range(0, 2))
    """
    if held >= k:
        least = ranks[k - 1]
    elif len(ranks) > FEW:
        least = heapq.nlargest(k, ranks)[-1]
    else:
        return range(len(ranks))
    return [place for place, rank in enumerate(ranks) if rank >= least]


def holds_nan(value: Any) -> bool:
    """Whether a value is NaN or another that is unlike itself, or a tuple, a list or a record that orders by such.

    >>> from math import nan
    >>> holds_nan(nan), holds_nan((1, Decimal("NaN"))), holds_nan((1, "nan"))
    (True, True, False)
    """
    if type(value) in NEVER_NAN:
        return False
    if isinstance(value, Decimal):
        return value.is_nan()
    if (parts := _parts(value)) is not None:
        return any(map(holds_nan, parts))
    try:
        return bool(value != value)
    except (TypeError, ValueError):  # such as an array: that it has no order is told where it is compared
        return False


def _outermost(choose: Callable[..., Any], values: list[Any], rank: Callable[[Any], Any]) -> Any:
    try:
        found = choose(values)
    except InvalidOperation:  # Decimal("NaN") is not compared at all
        return choose(values, key=rank)
    # NaN takes no other value's place, as none is larger or smaller: only where it comes first is it found.
    if type(found) in SCALARS and found == found:
        return found
    return choose(values, key=rank) if holds_nan(found) else found


def _holds_none(value: Any) -> bool:
    return value is None or any(map(_holds_none, _parts(value) or ()))


def _rank_from_below(value: Any) -> Any:
    return _rank(value, BELOW)


def _rank_from_above(value: Any) -> Any:
    return _rank(value, ABOVE)


def _rank(value: Any, nan: int) -> tuple[Any, ...]:
    parts = _parts(value)
    if parts is not None:
        return READ, tuple(_rank(part, nan) for part in parts)
    return (nan, type(value).__qualname__, str(value)) if value is None or holds_nan(value) else (READ, value)


def _parts(value: Any) -> tuple[Any, ...] | None:
    """Return the parts that a value is compared by, in order; None if it is compared as a whole."""
    if isinstance(value, tuple | list):
        return tuple(value)
    kind: Any = type(value)
    if isinstance(value, msgspec.Struct):
        names = kind.__struct_fields__ if kind.__struct_config__.order else ()
    elif dataclasses.is_dataclass(kind):
        named = [field.name for field in dataclasses.fields(kind) if field.compare]
        names = named if value.__dataclass_params__.order else ()
    else:
        names = [one.name for one in getattr(kind, "__attrs_attrs__", ()) if one.order]
    return tuple(getattr(value, name) for name in names) or None
