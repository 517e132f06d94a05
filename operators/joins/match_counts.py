"""The counts of a join: messages that have met something and that have not, and the types of its sides' keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from operators.core.base import Batch
from operators.core.protocols import CheckedProtocol

MET, MISSED = "met", "met nothing"
"""The names of these counts among an operator's counters."""


class Meetings:
    """The counts of one task's share of a join since it began, and a key of each side.

    Where `met` is None, all that did not miss has met. They count attempts: a record that is tried again counts again.

    >>> meetings = Meetings(met=0)
    >>> meetings.missed, meetings.keys[0] = 3, 7
    >>> meetings.counters(received=3), meetings.kinds(["left", "right"])
    ({'met': 0, 'met nothing': 3}, {'left': 'int', 'right': ''})
    """

    __slots__ = ("decode", "keys", "met", "missed", "of_table")

    def __init__(
        self,
        met: int | None = None,
        decode: Callable[..., object] = lambda key: key,
        of_table: Callable[[], object] | None = None,
    ) -> None:
        self.met = met
        self.of_table = of_table
        """Returns a key of the table that is looked into."""
        self.missed = 0
        self.keys: dict[int, object] = {}
        """A key of each side by its place, as it is held, where a message has come."""
        self.decode = decode

    def count(self, met: int, missed: int) -> None:
        """Add to both counts."""
        self.met = (self.met or 0) + met
        self.missed += missed

    def note(self, batch: Batch, met: int, missed: int) -> None:
        """Count a batch of both sides, and note a key of each that is among its first and last."""
        self.count(met, missed)
        if batch.keys:
            for place in (0, -1):
                self.keys[batch.values[place][0]] = batch.keys[place]

    def counters(self, received: int) -> dict[str, int]:
        """Return both counts, given how many messages have come."""
        met = max(received - self.missed, 0) if self.met is None else self.met
        return {MET: met, MISSED: self.missed} if met or self.missed else {}

    def kinds(self, sides: list[str]) -> dict[str, str]:
        """Return the types of keys by side; nothing for one of which no message has come."""
        keys = self.keys if self.of_table is None else {**self.keys, 1: self.of_table()}
        return {side: self._kind(keys.get(place)) for place, side in enumerate(sides)}

    def _kind(self, held: object) -> str:
        if held is None:
            return ""
        # A key of another serde than the first side's can't be decoded, and is told as such: this is a hint for a user
        # who wonders why nothing meets, and no reason to fail.
        try:
            return kind_of(self.decode(held))
        except Exception:
            return "of another type"


@runtime_checkable
class MatchCounting(Protocol, metaclass=CheckedProtocol):
    """An operator that counts what it has met."""

    meetings: Meetings


def kind_of(key: object, told: Callable[[type], str] = lambda kind: kind.__name__) -> str:
    """Return the type of a key as it is `told`, and of its parts.

    >>> kind_of(7), kind_of(("AA", 7)), kind_of(["AA"])
    ('int', '(str, int)', '[str]')
    """
    if type(key) is tuple or type(key) is list:
        parts = ", ".join(kind_of(part, told) for part in key)
        return f"({parts})" if type(key) is tuple else f"[{parts}]"
    return told(type(key))
