"""A task's own function that is due every so often by the wall clock."""

from __future__ import annotations

from dataclasses import dataclass

from operators.core.base import Batch
from runtime.functions.at_work import tells
from runtime.functions.failures import Whence, attributed
from runtime.stage.error_policy import Guard
from runtime.stage.exits import TaskExit


@dataclass
class Timer:
    """The time at which a function is due next, with what becomes of its results and errors."""

    operator: str
    interval_ms: int
    exit: TaskExit
    guard: Guard
    due_ms: float

    @tells(lambda known: known["self"].operator)
    def call(self, now_ms: int) -> None:
        """Call the function, under its policy."""

        def work() -> None:
            with attributed(self.operator):
                self.exit.call_window(now_ms)

        self.guard.one(work, Batch([None], timestamps=[now_ms]), Whence(self.operator))
