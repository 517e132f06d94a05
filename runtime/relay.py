"""What a stage has written for the next, handed to its reader in memory: only what a cut leaves there is stored."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

from operators.base import Batch
from runtime.keys import KeySerde

MOST_RELAYED = 10_000
"""Rows that wait for their reader before those that write them take in no more."""


class Relay:
    """Rows on their way to one partition of an intermediate stream, in the order in which they were written.

    Values go on as keys do: an int or a str as itself, any other as the bytes that the stream would keep, so that each
    stage has its own. A reader has read what is stored before it takes these.
    """

    def __init__(self, values: KeySerde, keys: KeySerde) -> None:
        self.values = values
        self.keys = keys
        self.is_plain = True
        """Whether no value was ever held as bytes here."""
        self._batches: deque[Batch] = deque()
        self._taken = 0
        """How many rows of the first batch are taken."""

    def __len__(self) -> int:
        return sum(map(len, [*self._batches])) - self._taken  # a thread may be adding to it

    def __bool__(self) -> bool:
        return bool(self._batches)

    @property
    def is_full(self) -> bool:
        """Whether the reader is so far behind that no more should come."""
        return len(self) >= MOST_RELAYED

    def give(self, batch: Batch) -> None:
        """Hand rows on."""
        self._batches.append(batch)

    def take(self, limit: int) -> tuple[Batch, Relayed]:
        """Return the first rows, at most `limit`: as the next stage's functions see them, and as they are held."""
        first, start = self._batches[0], self._taken
        batch = first.slice(start, start + limit)
        self._taken += len(batch)
        if self._taken == len(first):
            self._batches.popleft()
            self._taken = 0
        held = Relayed(self, batch.values, batch.keys)
        if not self.is_plain:
            decode = self.values.serde.decode
            batch.values = [decode(value) if type(value) is bytes else value for value in batch.values]
        return batch, held

    def stored(self) -> Batch:
        """Return all rows as the stream stores them; they stay until `clear`."""
        starts = chain([self._taken], repeat(0))
        rows = Batch.gather((batch, start, len(batch)) for batch, start in zip(self._batches, starts, strict=False))
        return encoded(rows, self.values, self.keys)

    def clear(self) -> None:
        """Forget the rows, which a commit has stored."""
        self._batches.clear()
        self._taken = 0


@dataclass(frozen=True)
class Relayed:
    """Rows that were handed on, encoded only where a dead letter needs it."""

    relay: Relay
    values: list[Any]
    keys: list[Any] | None

    def row(self, index: int) -> Batch:
        """Return the one at `index`, as bytes."""
        key = self.keys and [self.keys[index]]
        return encoded(Batch([self.values[index]], key), self.relay.values, self.relay.keys)


def encoded(held: Batch, values: KeySerde, keys: KeySerde) -> Batch:
    """Return rows as a stream stores them."""
    as_bytes = None if held.keys is None else keys.encode_all(held.keys)
    return Batch(values.encode_all(held.values), as_bytes, held.timestamps, held.stamps, signs=held.signs)
