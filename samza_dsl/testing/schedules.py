"""The schedules of a run: pieces, order and crashes, which must not be seen in the results."""

from __future__ import annotations

import random
from dataclasses import dataclass

from samza_dsl.testing.environment import CrashPoint

FACTORS = (1, 2, 4)
"""The factors by which tasks are split under a schedule."""
TURNS = 60
"""The turns of the event loop that a short run takes, about."""


@dataclass(frozen=True)
class Schedule:
    """The pieces in which records come, and the order in which callbacks run, by a seed; and the crash points.

    Each crash point counts from the start, or from the restart after the one before it. One that a run does not reach
    is passed over. With `factors` the tasks are split into so many virtual ones, by each factor from one restart to the
    next, where None leaves that to the application; the run is stopped and begun anew now and then as well, and asked
    for other factors while it goes on. Inputs whose records carry keys have so many times as many partitions, one after
    the other, as `grown` says, while records come. Raises ValueError for anything but a crash point.

    >>> Schedule(seed=3, crashes=(CrashPoint("before_commit", 2), CrashPoint("turn", 10))).seed
    3
    """

    seed: int = 0
    crashes: tuple[CrashPoint, ...] = ()
    factors: tuple[int | None, ...] = ()
    grown: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for point in self.crashes:
            if not isinstance(point, CrashPoint):
                raise ValueError(f"{point!r} is no crash point; write instead: Schedule(crashes=(CrashPoint(...),))")


def schedule(seed: int, rescale: bool = False) -> Schedule:
    """Return the schedule of a seed, with up to three crashes; with `rescale` tasks are split and merged as well.

    >>> schedule(7) == schedule(7)
    True
    """
    chance = random.Random(seed)
    crashes = tuple(_crash_point(chance) for _ in range(chance.randint(0, 3)))
    factors = tuple(chance.choice(FACTORS) for _ in range(chance.randint(2, 5))) if rescale else ()
    return Schedule(seed, crashes, factors)


def _crash_point(chance: random.Random) -> CrashPoint:
    if chance.random() < 0.5:
        return CrashPoint("turn", chance.randint(1, TURNS))
    return CrashPoint("before_commit" if chance.random() < 0.5 else "after_commit", chance.randint(1, 4))
