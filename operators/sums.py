"""Exact sums: the same whatever the order and grouping of their terms, any of which can be taken away again."""

from __future__ import annotations

import math
import operator
from fractions import Fraction

LARGEST_EXACT = 2**53
"""Up to here every int is a float."""

Sum = tuple[float, ...]
"""The sum of the ints, how many floats are finite, inf, -inf and nan, and an expansion of the finite ones."""

NOTHING: Sum = (0, 0, 0, 0, 0)


def plus(state: Sum, numbers: list[float]) -> Sum:
    """Return the sum with more terms.

    >>> value_of(plus(NOTHING, [0.1] * 10))
    1.0
    """
    return _with(state, numbers, 1)


def minus(state: Sum, numbers: list[float]) -> Sum:
    """Return the sum as if these terms had never been there.

    >>> value_of(minus(plus(NOTHING, [7, 1e300, 0.5]), [1e300, 0.5]))
    7
    """
    return _with(state, numbers, -1)


def joined(a: Sum, b: Sum) -> Sum:
    """Return the sum of the terms of both."""
    return (*map(operator.add, a[:5], b[:5]), *_expansion([*a[5:], *b[5:]]))


def value_of(state: Sum) -> float:
    """Return the number that is nearest to the sum: an int where all terms are, else a float."""
    whole, finite, above, below, unknown, *expansion = state
    if unknown or (above and below):
        return math.nan
    if above or below:
        return math.inf if above else -math.inf
    if not finite:
        return whole
    if abs(whole) > LARGEST_EXACT:
        return float(sum(map(Fraction, (whole, *expansion))))
    return math.fsum((whole, *expansion))


def _with(state: Sum, numbers: list[float], sign: int) -> Sum:
    floats = [number for number in numbers if not isinstance(number, int)]
    whole, finite, *rest = state
    if len(floats) < len(numbers):
        whole += sign * sum(number for number in numbers if isinstance(number, int))
        if not floats:
            return (whole, finite, *rest)
    known = [*filter(math.isfinite, floats)]
    if len(known) < len(floats):
        rest[0] += sign * floats.count(math.inf)
        rest[1] += sign * floats.count(-math.inf)
        rest[2] += sign * sum(map(math.isnan, floats))
    terms = known if sign > 0 else map(operator.neg, known)
    return (whole, finite + sign * len(known), *rest[:3], *_expansion([*rest[3:], *terms]))


def _expansion(terms: list[float]) -> list[float]:
    """Return the floats, each nearest to what is left, that add up to `terms`, which are changed.

    They are Shewchuk's expansion, as in `math.fsum`.
    """
    expansion: list[float] = []
    while rest := math.fsum(terms):
        expansion.append(rest)
        terms.append(-rest)
    return expansion
