"""What may differ between two runs of the same application on the same records, and must not be seen in the results."""

from __future__ import annotations

import random
from dataclasses import dataclass

from samza_dsl.testing.environment import CrashPoint

TURNS = 60
"""A short run takes about so many turns of the event loop."""


@dataclass(frozen=True)
class Schedule:
    """In which pieces records come and in which order what is ready runs, by a seed; and where the process dies.

    Each crash point counts from the start, or from the restart after the one before it. One that a run does not come
    to is passed over. Raises ValueError for what is none.

    >>> Schedule(seed=3, crashes=(CrashPoint("before_commit", 2), CrashPoint("turn", 10))).seed
    3
    """

    seed: int = 0
    crashes: tuple[CrashPoint, ...] = ()

    def __post_init__(self) -> None:
        for point in self.crashes:
            if not isinstance(point, CrashPoint):
                raise ValueError(f"{point!r} is no crash point; write instead: Schedule(crashes=(CrashPoint(...),))")


def schedule(seed: int) -> Schedule:
    """Return a schedule that a seed decides, with up to three crashes.

    >>> schedule(7) == schedule(7)
    True
    """
    chance = random.Random(seed)
    return Schedule(seed, tuple(_crash_point(chance) for _ in range(chance.randint(0, 3))))


def _crash_point(chance: random.Random) -> CrashPoint:
    if chance.random() < 0.5:
        return CrashPoint("turn", chance.randint(1, TURNS))
    return CrashPoint("before_commit" if chance.random() < 0.5 else "after_commit", chance.randint(1, 4))
