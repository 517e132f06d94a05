"""A task's own function that is due every so often by the wall clock."""

from __future__ import annotations

from dataclasses import dataclass

from operators.base import Batch
from runtime.exits import TaskExit
from runtime.failures import Whence, attributed
from runtime.guard import Guard


@dataclass
class Timer:
    """When a function is due next, and what happens to what it returns, or raises."""

    operator: str
    interval_ms: int
    exit: TaskExit
    guard: Guard
    due_ms: float

    def call(self, now_ms: int) -> None:
        """Call the function, under its policy."""

        def work() -> None:
            with attributed(self.operator):
                self.exit.call_window(now_ms)

        self.guard.one(work, Batch([None], timestamps=[now_ms]), Whence(self.operator))
