"""The counts of things, which grow, are joined, and are taken away from, all in place."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def plus(counts: dict[T, int], more: dict[T, int]) -> dict[T, int]:
    """Return `counts`, changed, with more of them.

    >>> plus({"a": 2}, {"a": 1, "b": 1})
    {'a': 3, 'b': 1}
    """
    for one, times in more.items():
        counts[one] = counts.get(one, 0) + times
    return counts


def minus(counts: dict[T, int], gone: dict[T, int]) -> dict[T, int]:
    """Return `counts`, changed, without those that are gone; raises ValueError where they were not there.

    >>> minus({"a": 2, "b": 1}, {"a": 1, "b": 1})
    {'a': 1}
    """
    for one, times in gone.items():
        left = counts.get(one, 0) - times
        if left < 0:
            raise ValueError("a value is to be taken away that was not added before")
        if left:
            counts[one] = left
        else:
            # Gone and not 0, so that the counts are what they would be if it had never been there.
            del counts[one]
    return counts
