"""Tracks which messages are complete: they may complete out of order, the low watermark moves only with the first."""

from __future__ import annotations

from collections import deque
from typing import Any

from operators.base import MIN_TIMESTAMP


class Entry:
    """A message, or a run of messages, of one source partition, until everything derived from it is done."""

    __slots__ = ("holds", "next_offset", "tracker", "watermark")

    def __init__(self, tracker: InFlight, next_offset: int, watermark: Any) -> None:
        self.tracker = tracker
        self.next_offset = next_offset
        self.watermark = watermark
        self.holds = 1

    def hold(self, number: int = 1) -> None:
        """Say that so many more things derived from the message are under way."""
        self.holds += number

    def release(self) -> None:
        """Say that one thing is done; when none is left, the message is complete."""
        assert self.holds > 0, "released more often than held"
        self.holds -= 1
        if not self.holds:
            self.tracker.advance()


class InFlight:
    """The outstanding messages of one source partition, in offset order.

    `low_watermark` is the offset to go on from after a crash: everything below it is complete. It is the paper's
    checkpoint rule, the largest offset of the contiguous run of completed callbacks. `watermark` is the event-time
    watermark as of there, or that of each producer.

    >>> tracker = InFlight(10)
    >>> first, second = tracker.add(11), tracker.add(12)
    >>> second.release(); tracker.low_watermark
    10
    >>> first.release(); tracker.low_watermark
    12
    """

    __slots__ = ("_entries", "low_watermark", "watermark")

    def __init__(self, offset: int, watermark: Any = MIN_TIMESTAMP) -> None:
        self.low_watermark = offset
        self.watermark = watermark
        self._entries: deque[Entry] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, next_offset: int, watermark: Any = MIN_TIMESTAMP) -> Entry:
        """Start tracking what reaches up to, not including, `next_offset`, where the source's watermark is given."""
        entry = Entry(self, next_offset, watermark)
        self._entries.append(entry)
        return entry

    def advance(self) -> None:
        """Move the low watermark over every message at the front that is complete."""
        entries = self._entries
        while entries and not entries[0].holds:
            done = entries.popleft()
            self.low_watermark, self.watermark = done.next_offset, done.watermark
