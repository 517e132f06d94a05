"""A wall clock that is set forward and back while virtual time goes on, and the nights in which summer time changes."""

from __future__ import annotations

from collections.abc import Sequence

from runtime.model.clock import LoopClock

HOUR_MS = 3_600_000
NIGHTS_MS = (1_762_063_200_000, 1_772_953_200_000)
"""When summer time ended in New York in 2025, and when it began in 2026."""


class JumpingClock(LoopClock):
    """The loop's time, and a wall clock that is set by so much when so many ms have passed."""

    def __init__(self, start_ms: int, jumps: Sequence[tuple[int, int]]) -> None:
        super().__init__(start_ms)
        self.jumps = jumps

    def now_ms(self) -> int:
        return super().now_ms() + sum(by_ms for at_ms, by_ms in self.passed())

    def passed(self) -> list[tuple[int, int]]:
        """Return the jumps so far."""
        elapsed_ms = self.elapsed_ms()
        return [jump for jump in self.jumps if jump[0] <= elapsed_ms]
