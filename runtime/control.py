"""Event time at a reader: stamps from a source partition's own watermark, and the minimum over producers."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from itertools import accumulate
from typing import Any

from operators.base import MAX_TIMESTAMP, MIN_TIMESTAMP


class SourceWatermark:
    """The watermark of one source partition: the highest timestamp seen, less the disorder allowed."""

    __slots__ = ("_disorder_ms", "_highest")

    def __init__(self, disorder_ms: int, watermark: int = MIN_TIMESTAMP) -> None:
        self._disorder_ms = disorder_ms
        self._highest = watermark if watermark == MIN_TIMESTAMP else watermark + disorder_ms

    @property
    def value(self) -> int:
        """The watermark: no record below it is expected."""
        return MIN_TIMESTAMP if self._highest == MIN_TIMESTAMP else self._highest - self._disorder_ms

    def stamp(self, timestamps: list[int]) -> list[int]:
        """Take records in, and return for each the watermark as it was just before it."""
        highest = list(accumulate(timestamps, max, initial=self._highest))
        self._highest = highest.pop()
        disorder, lowest = self._disorder_ms, MIN_TIMESTAMP
        if highest and highest[0] == lowest:
            return [lowest if at == lowest else at - disorder for at in highest]
        return [at - disorder for at in highest]


class ProducerWatermarks:
    """The watermark of one partition of an intermediate stream: the minimum over all that write to it."""

    __slots__ = ("by_producer",)

    def __init__(self, expected: Iterable[str], known: dict[str, int]) -> None:
        self.by_producer = {producer: known.get(producer, MIN_TIMESTAMP) for producer in expected}

    @property
    def value(self) -> int:
        """The watermark; MAX_TIMESTAMP when all have ended."""
        return min(self.by_producer.values(), default=MAX_TIMESTAMP)

    def hear(self, producer: str, watermark: int) -> None:
        """Take a producer's watermark in; it never goes back, and strangers are not listened to."""
        if watermark > self.by_producer.get(producer, MAX_TIMESTAMP):
            self.by_producer[producer] = watermark


def to_ms(found: list[Any]) -> list[int]:
    """Return what `timestamp=` functions gave as ms since the epoch; raises ValueError for what is not a time.

    >>> from datetime import timezone
    >>> to_ms([1_000, datetime(1970, 1, 1, 0, 0, 2, tzinfo=timezone.utc)])
    [1000, 2000]
    """
    if all(type(at) is int for at in found):
        return found
    return [_one_to_ms(at) for at in found]


def _one_to_ms(at: Any) -> int:
    if type(at) is int:
        return at
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise ValueError(f"timestamp= returned {at!r} without a time zone; write e.g. .replace(tzinfo=timezone.utc)")
        return round(at.timestamp() * 1_000)
    raise ValueError(f"timestamp= returned {at!r}; return ms since the epoch as an int, or an aware datetime")
