"""The environment of a test: streams, state and checkpoints in memory, beyond the process that a test lets die."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from runtime.systems.base import Commit
from runtime.systems.memory import MemoryEnvironment

Moment = Literal["now", "before_commit", "after_commit"]


class Crash(BaseException):
    """The process is gone."""


@dataclass(frozen=True)
class CrashPoint:
    """Where a run dies: right before or after its nth commit is durable, or at the nth turn of its event loop.

    >>> CrashPoint("before_commit", 2)
    CrashPoint(when='before_commit', number=2)
    """

    when: Literal["before_commit", "after_commit", "turn"]
    number: int = 1


class MortalEnvironment(MemoryEnvironment):
    """Keeps what is committed; at a crash point the process that commits dies, and commits no more.

    >>> environment = MortalEnvironment()
    >>> environment.doom(CrashPoint("after_commit"))
    >>> environment.commit(Commit("app", 0, [], [], {}))
    Traceback (most recent call last):
        ...
    samza_dsl.testing.environment.Crash
    >>> environment.commits
    1
    """

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.commits = 0
        self.dead = False
        self._doom: CrashPoint | None = None
        self._so_far = 0

    def doom(self, point: CrashPoint | None) -> None:
        """Have the process die at a crash point, counted from now; None lets it live."""
        self._doom, self._so_far = point, 0

    def die(self) -> None:
        """Commit nothing more."""
        self.dead, self._doom = True, None

    def revive(self) -> None:
        """Let a new process commit."""
        self.dead = False

    def commit(self, commit: Commit) -> None:
        """Make everything visible, or nothing where the process dies before."""
        self._so_far += 1
        self._die_if("before_commit")
        super().commit(commit)
        self.commits += 1
        self._die_if("after_commit")

    def _die_if(self, moment: str) -> None:
        if self._doom is not None and (self._doom.when, self._doom.number) == (moment, self._so_far):
            self.die()
        if self.dead:
            raise Crash
