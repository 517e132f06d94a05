"""A file in memory that an output is bound to: what was not flushed may be lost with the process."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from operators.core.base import Batch, Serde
from runtime.model.errors import Damaged
from tests.simulation.crash import Row


@dataclass
class File:
    """Rows as they were written, of which the first `durable` stay whatever happens."""

    rows: list[Row] = field(default_factory=list)
    durable: int = 0

    def lose(self, chance: random.Random) -> None:
        """Lose some of what was not flushed."""
        del self.rows[chance.randint(self.durable, len(self.rows)) :]


class SimulatedSink:
    """A file as one process has it open; `step` sees what it does there."""

    name, partitions = "simulated", 1
    columns = frozenset({"keys", "timestamps"})

    def __init__(self, file: File, step: Callable[[str], None]) -> None:
        self._file, self._step = file, step

    def serde(self, declared: Serde) -> Serde:
        return declared

    def recover(self, position: int) -> None:
        self._step("take the file back")
        if position > self._file.durable:
            raise Damaged(f"the file has {self._file.durable} rows, fewer than the {position} of the last commit")
        del self._file.rows[position:]
        self._file.durable = position

    def write(self, batch: Batch) -> None:
        self._step("write to the file")
        none = [None] * len(batch)
        self._file.rows += zip(batch.keys or none, batch.values, batch.timestamps or none, strict=True)  # type: ignore[arg-type]

    def flush(self) -> int:
        self._step("flush the file")
        self._file.durable = len(self._file.rows)
        return self._file.durable

    def close(self) -> None:
        """Leave it as it is."""
