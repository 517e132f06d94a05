"""One stage's share of a task: its chain, what feeds it, and what it has in flight."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from operators.base import MAX_TIMESTAMP, Batch
from runtime.chain import Chain
from runtime.exits import TaskExit
from runtime.failures import Failure
from runtime.guard import Guard
from runtime.inputs import Reader
from runtime.pace import Pace
from runtime.units import Units

MOST_FIRED = 10_000
"""Panes and timers that fire at once."""

Explored = tuple[list[tuple[str, Batch]], dict[int, Failure]]
"""What reaches which exit, and the messages that fail, by number."""


@dataclass
class Lane:
    """One stage's chain in a task, with its readers, its messages in flight, and the guard of their effects."""

    chain: Chain
    readers: list[Reader]
    guard: Guard
    pace: Pace
    firing_pace: Pace = field(default_factory=lambda: Pace(MOST_FIRED))
    units: Units | None = None
    limit: int = 1
    width: int = 1
    most_rounds: int | None = None
    one_at_a_time: bool = False
    held_back: bool = False
    explored: dict[Reader, Explored] = field(default_factory=dict)
    task_exits: dict[str, TaskExit] = field(default_factory=dict)
    patterns: frozenset[str] = frozenset()
    """The inputs that may come to read more streams while they run, by id."""
    find_readers: Callable[[], Iterable[Reader]] = tuple
    """Returns readers of streams that match a pattern and are not read yet."""

    @property
    def repartitions(self) -> bool:
        """Whether another stage hears of this one's watermark."""
        return any(self.chain.graph.specs[id].repartitions for id in self.chain.stage.operators)

    @property
    def watermark(self) -> int:
        """The minimum over the chain's inputs."""
        return min((reader.watermark for reader in self.readers), default=MAX_TIMESTAMP)
