"""What a workload is: a frozen description, the loop by hand, the pipeline, and what both must come to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from planner.model.levers import ALL, Levers

COMMIT_EVERY = 10_000
"""After how many messages both sides of a durable workload commit."""


@dataclass(frozen=True)
class Description:
    """What is measured: `bar` is the highest ratio of our time to the hand loop's that is good enough, or None."""

    name: str
    title: str
    messages: int
    quick_scale: float
    bar: float | None
    pairs: int = 7
    durable: bool = False
    on_spark: bool = False
    """Whether it begins with a session of Spark, which takes long: a quick run leaves it out."""
    with_server: bool = False
    """Whether it begins with a server, as a broker."""

    def scaled(self, scale: float) -> int:
        """Return the messages of a run at `scale` times its size."""
        return max(round(self.messages * scale), 1)


class Workload(ABC):
    """One workload with its input made: how much of it, where it may write files, and how often both sides commit.

    Only `baseline`, `baseline_inlined` and `ours` are timed. Each begins with the input in place and all modules
    imported, and returns when everything is written: ours builds, plans, starts, drives and closes the application in
    that time.
    """

    description: ClassVar[Description]
    levers: Levers = ALL
    """What is left out is in no bar: it shows what a lever brings."""
    baseline_inlined: Callable[[], Any] | None = None
    """The hand loop with everything inlined, and state in a dict until the commit, where there is such a loop."""

    def __init__(self, messages: int, scratch: Path, commit_every: int = COMMIT_EVERY) -> None:
        self.scratch = scratch
        self.commit_every = commit_every
        self.prepare(messages)

    @abstractmethod
    def prepare(self, messages: int) -> None:
        """Make the input."""

    def ready(self) -> None:  # noqa: B027  (most have nothing to do here)
        """Put things in place for one run."""

    @abstractmethod
    def baseline(self) -> Any:
        """Run the loop that a good engineer writes by hand in 15 minutes; it calls the pipeline's functions."""

    @abstractmethod
    def ours(self) -> Any:
        """Run the pipeline."""

    @abstractmethod
    def outcome(self, result: Any) -> list[Any]:
        """Return what a run came to, in a form that is equal where the runs did the same."""
