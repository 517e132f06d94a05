"""The completion of messages: they complete in any order, and the low watermark moves only with the first of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from operators.core.base import MIN_TIMESTAMP


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
        assert self.holds > 0, "held again after it was complete"
        self.holds += number

    def release(self) -> None:
        """Say that one thing is done; when none is left, the message is complete."""
        assert self.holds > 0, "released more often than held"
        self.holds -= 1
        if not self.holds:
            self.tracker.advance()

    def reached(self) -> tuple[int, Any]:
        """Return the offset below which everything is complete, and the watermark there; asked of the first entry."""
        return self.tracker.low_watermark, self.tracker.watermark


class RowsInFlight(Entry):
    """Messages of one source partition that are complete one by one; `before` has the watermark ahead of each."""

    __slots__ = ("_before", "_complete", "_offsets")

    def __init__(
        self, tracker: InFlight, next_offset: int, watermark: Any, offsets: Sequence[int], before: Sequence[Any]
    ) -> None:
        super().__init__(tracker, next_offset, watermark)
        self.holds = len(offsets)
        self._offsets = offsets
        self._before = before
        self._complete: list[Sequence[int]] = []

    @property
    def outstanding(self) -> set[int]:
        """The rows that are not complete."""
        return set(range(len(self._offsets))).difference(*self._complete)

    def release_rows(self, rows: Sequence[int]) -> bool:
        """Say that rows are complete; return whether all are."""
        assert self.holds >= len(rows), "released more often than held"
        self._complete.append(rows)
        self.holds -= len(rows)
        if not self.holds:
            self.tracker.advance()
        return not self.holds

    def reached(self) -> tuple[int, Any]:
        """Return the offset of the first row that is not complete, and the watermark ahead of it."""
        assert self.holds, "a complete entry is no longer the first"
        first = min(self.outstanding)
        # A flight has one entry for all of its rows, so that tracking costs nothing per message. Which rows
        # are missing is looked at only here, when a checkpoint asks, which is so as fine as one with an entry
        # per message.
        return self._offsets[first], self._before[first]


class InFlight:
    """The outstanding messages of one source partition, in offset order.

    `low_watermark` is the offset to go on from after a crash: everything below it is complete, as far as whole entries
    go; `reached` looks into the first one as well. It is the paper's
    checkpoint rule, the largest offset of the contiguous run of completed callbacks. `watermark` is the event-time
    watermark as of there, or that of each producer.

    Entries lie in offset order, and the low watermark never goes back. A task is worked in by one thread at a time, and
    so is its tracker.

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

    def add_rows(self, next_offset: int, watermark: Any, offsets: Sequence[int], before: Sequence[Any]) -> RowsInFlight:
        """Start tracking messages that are complete one by one."""
        entry = RowsInFlight(self, next_offset, watermark, offsets, before)
        self._entries.append(entry)
        return entry

    def reached(self) -> tuple[int, Any]:
        """Return the offset below which everything is complete, be it within an entry, and the watermark there."""
        if not self._entries:
            return self.low_watermark, self.watermark
        reached = self._entries[0].reached()
        assert reached[0] >= self.low_watermark, "a row in flight lies below what is complete"
        return reached

    def advance(self) -> None:
        """Move the low watermark over every message at the front that is complete."""
        before = self.low_watermark
        entries = self._entries
        while entries and not entries[0].holds:
            done = entries.popleft()
            self.low_watermark, self.watermark = done.next_offset, done.watermark
        assert self.low_watermark >= before, "the low watermark never goes back"
