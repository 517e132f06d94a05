"""One stage's share of a task: its chain, what feeds it, and what it has in flight."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from operators.base import MAX_TIMESTAMP, Batch
from runtime.chain import Chain
from runtime.exits import TaskExit
from runtime.failures import Failure, Whence
from runtime.flights import Flights
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
    units: Units | Flights | None = None
    """What is in flight here, where something awaits."""
    limit: int = 1
    ahead: int = 0
    """How many messages may wait for a call of theirs to begin, beyond those whose calls run."""
    width: int = 1
    most_rounds: int | None = None
    one_at_a_time: bool = False
    held_back: bool = False
    explored: dict[Reader, Explored] = field(default_factory=dict)
    task_exits: dict[str, TaskExit] = field(default_factory=dict)
    depth: int = 0
    """How many stages of the plan come before."""
    writes: frozenset[str] = frozenset()
    """The intermediate streams that it writes."""
    patterns: frozenset[str] = frozenset()
    """The inputs that may come to read more streams while they run, by id."""
    find_readers: Callable[[], Iterable[Reader]] = tuple
    """Returns readers of streams that match a pattern and are not read yet."""

    def explore(self, entry: str, batch: Batch, where: Callable[[int | None], Whence]) -> Explored:
        """Run stateless operators on rows that have owners; raises what ends the run."""
        try:
            return self.chain.explore(entry, batch), {}
        except Failure as failure:
            self.guard.must_be_lenient(failure, where)
            found: dict[str, Batch] = {}
            failures: dict[int, Failure] = {}
            for row, owner in enumerate(batch.owners or ()):
                one: list[tuple[str, Batch]] = []
                work = partial(_explore_into, one, self.chain, entry, batch.row(row))
                if owner not in failures and (failed := self.guard.insist(work)) is not None:
                    failures[owner] = failed
                for exit, rows in one:
                    found.setdefault(exit, Batch([])).extend(rows)
            return [*found.items()], failures

    @property
    def repartitions(self) -> bool:
        """Whether another stage hears of this one's watermark."""
        return any(self.chain.graph.specs[id].repartitions for id in self.chain.stage.operators)

    @property
    def watermark(self) -> int:
        """The minimum over the chain's inputs."""
        return min((reader.watermark for reader in self.readers), default=MAX_TIMESTAMP)


def owned(batch: Batch) -> Batch:
    """Number the rows of a batch as messages, and return it."""
    batch.owners = range(len(batch))
    return batch


def _explore_into(found: list[tuple[str, Batch]], chain: Chain, entry: str, row: Batch) -> None:
    found += chain.explore(entry, row)
