"""The words of a reprocessing: the span of history that is computed anew, and the choice between two results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

ALL = "*"
"""All inputs that are not named."""
Point = int | datetime
"""A place in a stream: an offset, or the first record of each partition whose event time is at least so much."""


class AtRest(NamedTuple):
    """The event time (ms) that a run has come to where it has read of a partition so far, and whether that is idle."""

    watermark: int
    idle: bool


@dataclass(frozen=True)
class HistorySpan:
    """The span of a run over history, as its user said it.

    `start` and `until` have points by stream, by partition as "flights:3", or for `ALL`. With `hands_over`
    nothing fires at the end that event time has not come to; partitions that have `ended` end for good all the same.
    Of the inputs `per_second` records are read at most. In a task an operator fires nothing that is due later than its
    ceiling (ms). Where a partition is read to its end, by "flights:3", it `rests` there as another run has.
    """

    start: Mapping[str, Point] = field(default_factory=dict)
    until: Mapping[str, Point] = field(default_factory=dict)
    hands_over: bool = False
    ended: Collection[str] = ()
    per_second: float | None = None
    ceilings: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    rests: Mapping[str, AtRest] = field(default_factory=dict)


Merge = Callable[[Any, Any, Any], object]
"""Returns the result that holds, given a key, the newest live result and the recomputed one; None is the live one."""


def prefer_live(key: object, live: T, recomputed: T) -> T:
    """Return the live result: it is of newer records than history is.

    >>> prefer_live("AA", 12, 11)
    12
    """
    return live
