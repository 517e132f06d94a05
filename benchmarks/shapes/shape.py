"""What a shape is: a frozen description, and the figures that make its curve, with the one ratio that has a bar."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import ClassVar, NamedTuple

import msgspec

from benchmarks.figures import Chart


@dataclass(frozen=True)
class ShapeDescription:
    """What is measured: `bar` is the highest ratio that is good enough; without one the figures are only shown."""

    name: str
    title: str
    bar: float | None = None
    rounds: int = 3
    quick_scale: float = 0.01
    begins_slowly: bool = False
    """Whether a session of Spark or containers on several hosts have to begin first: a quick run leaves it out."""


class Figures(msgspec.Struct, frozen=True):
    """What was found: the ratio that is held against the bar, the numbers by what they are, and what to draw."""

    ratio: float | None
    curve: dict[str, float]
    chart: Chart | None = None


class Took(NamedTuple):
    """How long something took, by the clock and of the processor."""

    seconds: float
    cpu_seconds: float


class Shape(ABC):
    """One shape: how large, as a multiple of its usual size, how often it is measured, and where it may write files."""

    description: ClassVar[ShapeDescription]

    def __init__(self, scale: float, rounds: int, scratch: Path) -> None:
        self.scale = scale
        self.rounds = rounds
        self.scratch = scratch

    def scaled(self, number: int) -> int:
        return max(int(number * self.scale), 1)

    @abstractmethod
    def figures(self) -> Figures:
        """Measure; raises where results are not what they should be."""


def apart(work: Callable[..., None], *arguments: object) -> None:
    """Do it in a process of its own, which leaves no memory behind for what is measured here to use again."""
    process = get_context("spawn").Process(target=work, args=arguments)
    process.start()
    process.join()
    if process.exitcode != 0:
        raise RuntimeError(f"{work.__name__} has failed in a process of its own")
