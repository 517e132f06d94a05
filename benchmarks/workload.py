"""What a workload is: a frozen description, the loop by hand, the pipeline, and what both must come to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol


@dataclass(frozen=True)
class Description:
    """What is measured: `bar` is the highest ratio of our time to the hand loop's that is good enough."""

    name: str
    title: str
    messages: int
    quick_messages: int
    bar: float


class Workload(Protocol):
    """One workload with its input made; `messages` says how much of it, `scratch` where it may write files.

    Only `baseline` and `ours` are timed. Each begins with the input in place and all modules imported, and returns
    when everything is written: ours builds, plans, starts, drives and closes the application in that time.
    """

    description: ClassVar[Description]

    def __init__(self, messages: int, scratch: Path) -> None: ...

    def ready(self) -> None:
        """Put things in place for one run."""

    def baseline(self) -> Any:
        """Run the loop that a good engineer writes by hand in 15 minutes; it calls the pipeline's functions."""

    def ours(self) -> Any:
        """Run the pipeline."""

    def outcome(self, result: Any) -> list[Any]:
        """Return what a run came to, in a form that is equal where the runs did the same."""
