"""The environment of a test: streams, state and checkpoints in memory, which outlive the process under test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from runtime.model.clock import wall_clock_ms
from runtime.ports.commits import Commit
from runtime.systems.memory.environment import MemoryEnvironment

Moment = Literal["before_commit", "after_commit", "turn"]
MOMENTS = ("before_commit", "after_commit", "turn")


class Crash(BaseException):
    """The death of the process under test: a BaseException, so that no handler of errors survives it."""


@dataclass(frozen=True)
class CrashPoint:
    """A point at which a run dies: right before or after its nth commit is durable, or the nth turn of its event loop.

    Raises ValueError for an unknown moment.

    >>> CrashPoint("before_commit", 2)
    CrashPoint(when='before_commit', number=2)
    """

    when: Moment
    number: int = 1

    def __post_init__(self) -> None:
        if self.when not in MOMENTS or type(self.number) is not int or self.number < 1:
            raise ValueError(
                f"a run can't die at {self}; write instead: "
                'CrashPoint("before_commit"), CrashPoint("after_commit", 2), CrashPoint("turn", 10), or crash() for now'
            )


class Doom:
    """Counts the moments that a process comes to, and lets it die at its crash point, if it has one.

    >>> doom = Doom(CrashPoint("after_commit"))
    >>> doom.meet("before_commit")
    >>> doom.meet("after_commit")
    Traceback (most recent call last):
        ...
    samza_dsl.testing.environment.Crash
    """

    def __init__(self, point: CrashPoint | None = None, dead: bool = False) -> None:
        self.point = point
        """The point at which it is still to die; None before there is one and after it."""
        self.dead = dead
        self.met = 0

    def meet(self, moment: Moment) -> None:
        """Come to a moment; raises Crash at the crash point, and ever after."""
        if not self.dead and self.point is not None and self.point.when == moment:
            self.met += 1
            if self.met == self.point.number:
                self.point, self.dead = None, True
            assert self.point is None or self.met < self.point.number, "the process has lived on beyond its crash point"
        if self.dead:
            raise Crash


class MortalEnvironment(MemoryEnvironment):
    """An environment in whose commits the process may die; a dead process commits no more.

    >>> environment = MortalEnvironment()
    >>> environment.doom = Doom(CrashPoint("after_commit"))
    >>> environment.commit(Commit("app", 0, [], [], {}))
    Traceback (most recent call last):
        ...
    samza_dsl.testing.environment.Crash
    >>> environment.commits
    1
    """

    def __init__(self, *, now_ms: Callable[[], int] = wall_clock_ms) -> None:
        super().__init__(now_ms=now_ms)
        self.commits = 0
        self.doom = Doom()

    def commit(self, commit: Commit) -> None:
        """Make everything visible, or nothing where the process dies before."""
        # On both sides of the one line that makes it durable: these are the two outcomes that a crash can have.
        self.doom.meet("before_commit")
        super().commit(commit)
        self.commits += 1
        self.doom.meet("after_commit")
