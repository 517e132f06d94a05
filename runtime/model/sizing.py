"""The size that an application should have by its load: a function of the last loads decides how many containers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

GROWS_AFTER, SHRINKS_AFTER = 3, 24
"""So many looks in a row must say the same: more is needed within seconds, and less can wait for two minutes."""
REMEMBERED = 60
"""The number of looks that a decision may go by."""
USEFUL = 1.15
"""A larger size that reads less than so many times as much as the one before has brought nothing."""
FULL = 0.7
"""The share of their time that containers may be at work, so that a smaller number of them is enough."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The load of an application between two looks, and the size that it had.

    `lag` is the records that were not read then; `came_per_s` and `read_per_s` are those that came and were read, and
    `busy` is the share of the time in which containers were at work, from 0 to 1.

    >>> Load(containers=2, lag=500, read_per_s=1_000.0).factor
    1
    """

    containers: int
    factor: int = 1
    lag: int = 0
    came_per_s: float = 0.0
    read_per_s: float = 0.0
    busy: float = 0.0


class Sized(NamedTuple):
    """A size that an application is to have, and why, as `samza-dsl job history` tells it.

    >>> by_night = lambda loads: Sized(1, "by night") if loads[-1].containers > 1 else None
    >>> by_night([Load(containers=4)])
    Sized(containers=1, why='by night')
    """

    containers: int
    why: str


Sizing = Callable[[Sequence[Load]], Sized | None]
"""Decides by the newest loads, the last one at the end, on another number of containers; None leaves it as it is."""


def remembered(loads: Sequence[Load]) -> list[Load]:
    """Return the loads to go on with: of one size the newest, so that those of the size before it stay known.

    >>> [one.containers for one in remembered([Load(containers=1)] * 3 + [Load(containers=2)] * 90)].count(1)
    3
    """
    same = _of_one_size(loads)
    return [*loads[: len(loads) - len(same)], *reversed(same[:SHRINKS_AFTER])][-REMEMBERED:]


def _of_one_size(loads: Sequence[Load]) -> list[Load]:
    """Return the loads in the size of the last one, the newest first."""
    return list(takewhile(lambda one: one.containers == loads[-1].containers, reversed(loads)))


class ByLoad(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes an application between `min` and `max` containers, twice as many or half as many at a time.

    There are to be more where, look after look, it would take longer than `behind_s` to read what lies unread; and
    fewer where hardly anything is unread for minutes, and half of the containers would have time enough. No more are
    added where the last ones brought nothing.

    >>> sizing = ByLoad(max=8)
    >>> behind = Load(containers=2, lag=90_000, read_per_s=1_000, busy=1)
    >>> sizing([behind] * 3)
    Sized(containers=4, why='90,000 records behind at 1,000 a second')
    >>> sizing([behind]) is None
    True
    """

    min: Annotated[int, Meta(ge=1, description="The least number of containers.")] = 1
    max: Annotated[int, Meta(ge=1, description="The largest number of containers.")] = 8
    behind_s: Annotated[float, Meta(gt=0, description="The seconds of reading that may lie unread.")] = 10.0

    def __post_init__(self) -> None:
        if self.min > self.max:
            raise ValueError(f"min={self.min} containers are more than max={self.max}; write instead: max={self.min}")

    def __call__(self, loads: Sequence[Load]) -> Sized | None:
        """Return the size to have."""
        now = loads[-1]
        same = _of_one_size(loads)
        if not self.min <= now.containers <= self.max:
            within = max(self.min, min(now.containers, self.max))
            return Sized(within, f"{self.min} to {self.max} containers are asked for")
        newest = same[:GROWS_AFTER]
        if len(newest) == GROWS_AFTER and all(map(self._is_behind, newest)) and now.containers < self.max:
            if _brought_nothing(same, loads):
                return None
            why = f"{now.lag:,} records behind at {now.read_per_s:,.0f} a second"
            return Sized(min(now.containers * 2, self.max), why)
        newest = same[:SHRINKS_AFTER]
        if len(newest) == SHRINKS_AFTER and all(map(self._is_calm, newest)) and now.containers > self.min:
            busiest = max(one.busy for one in newest)
            return Sized(_half(now.containers, self.min), f"at work for {busiest:.0%} of the time at most")
        return None

    def _is_behind(self, load: Load) -> bool:
        # Nothing is read while state is brought back, or where all hangs: more containers would not help then.
        return load.read_per_s > 0 and load.lag > self.behind_s * load.read_per_s

    def _is_calm(self, load: Load) -> bool:
        fewer = _half(load.containers, self.min)
        return load.lag <= max(load.came_per_s, 1.0) and load.busy * load.containers <= FULL * fewer


def _half(containers: int, least: int) -> int:
    return max(containers // 2, least)


def _brought_nothing(same: Sequence[Load], loads: Sequence[Load]) -> bool:
    """Whether an application reads hardly more than it did in the smaller size before, when it was behind."""
    before = loads[: len(loads) - len(same)]
    if not before or before[-1].containers >= same[0].containers:
        return False
    smaller = _of_one_size(before)[:GROWS_AFTER]
    return max(one.read_per_s for one in same) < USEFUL * max(one.read_per_s for one in smaller)
