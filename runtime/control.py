"""Event time at a reader: stamps from a source partition's own watermark, and the minimum over producers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import repeat
from typing import Any

from operators.base import EARLIEST_MS, LATEST_MS, MAX_TIMESTAMP, MIN_TIMESTAMP


def is_constant(column: Sequence[Any]) -> bool:
    """Whether all rows have the same, as the times of records have that were appended together.

    >>> is_constant([7, 7, 7]), is_constant([7, 8, 7])
    (True, False)
    """
    return not column or (column[0] == column[-1] and column.count(column[0]) == len(column))


class SourceWatermark:
    """The watermark of one source partition: the highest timestamp seen, less the disorder allowed.

    >>> SourceWatermark(10, watermark=100).stamp([120, 150, 130])
    [100, 110, 140, 140]
    """

    __slots__ = ("_disorder_ms", "value")

    def __init__(self, disorder_ms: int, watermark: int = MIN_TIMESTAMP) -> None:
        self._disorder_ms = disorder_ms
        self.value = watermark

    def stamp(self, timestamps: list[int]) -> list[int]:
        """Return the watermark just before each record, were these to come next, and after the last one."""
        disorder, watermark = self._disorder_ms, self.value
        highest = watermark + disorder
        if is_constant(timestamps):
            after = max(watermark, timestamps[0] - disorder) if timestamps else watermark
            return [watermark, *repeat(after, len(timestamps))]
        following = [watermark if at <= highest else (watermark := (highest := at) - disorder) for at in timestamps]
        return [self.value, *following]


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
        """Take a producer's watermark in; it never goes back, and strangers are not listened to.

        What `by_producer` was before stays as it is, for whoever remembers it.
        """
        if watermark > self.by_producer.get(producer, MAX_TIMESTAMP):
            self.by_producer = {**self.by_producer, producer: watermark}


def to_ms(found: list[Any]) -> list[int]:
    """Return what `timestamp=` functions gave as ms since the epoch; raises ValueError for what is not a time.

    >>> from datetime import timezone
    >>> to_ms([1_000, datetime(1970, 1, 1, 0, 0, 2, tzinfo=timezone.utc)])
    [1000, 2000]
    """
    if not set(map(type, found)) <= {int}:
        found = [_one_to_ms(at) for at in found]
    some = found[:1] if is_constant(found) else found
    if some and not (min(some) >= EARLIEST_MS and max(some) <= LATEST_MS):
        raise ValueError("timestamp= returned a time that is not in the years 1 to 9999; return ms since the epoch")
    return found


def _one_to_ms(at: Any) -> int:
    if type(at) is int:
        return at
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise ValueError(
                f"timestamp= returned {at!r} without a time zone; write e.g. .replace(tzinfo=timezone.utc)"
            )
        return round(at.timestamp() * 1_000)
    raise ValueError(f"timestamp= returned {at!r}; return ms since the epoch as an int, or an aware datetime")
