"""Event time at a reader: stamps from a source partition's own watermark, and the minimum over producers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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

    def stamp_by(self, told: Iterable[int | None]) -> list[int]:
        """Return the watermark just before each record, and after the last one, where records tell it themselves.

        >>> SourceWatermark(0, watermark=100).stamp_by([None, 120, 110, None])
        [100, 100, 120, 120, 120]
        """
        stamps = [watermark := self.value]
        stamps += [watermark := watermark if at is None else max(watermark, at) for at in told]
        return stamps

    def stamp(self, timestamps: list[int]) -> list[int]:
        """Return the watermark just before each record, were these to come next, and after the last one."""
        disorder, watermark = self._disorder_ms, self.value
        highest = watermark + disorder
        if is_constant(timestamps):
            after = max(watermark, timestamps[0] - disorder) if timestamps else watermark
            return [watermark, *repeat(after, len(timestamps))]
        following = [watermark if at <= highest else (watermark := (highest := at) - disorder) for at in timestamps]
        return [self.value, *following]


def event_time(watermarks: Iterable[tuple[int, bool]]) -> int:
    """Return how far event time has come over several inputs, given of each its watermark and whether it is idle.

    It is the least watermark of those that are not idle. Where only idle ones are left, which may go on, it is their
    largest; MAX_TIMESTAMP when all have ended.

    >>> event_time([(70, False), (20, True), (50, False)]), event_time([(70, True), (20, True), (MAX_TIMESTAMP, False)])
    (50, 70)
    """
    watermarks = [*watermarks]
    active = min((at for at, is_idle in watermarks if not is_idle), default=MAX_TIMESTAMP)
    if active < MAX_TIMESTAMP:
        return active
    return max((at for at, is_idle in watermarks if is_idle), default=MAX_TIMESTAMP)


class ProducerWatermarks:
    """The watermark of one partition of an intermediate stream: the minimum over all that write to it.

    An idle producer holds nobody back; event time has then come to `floor` without it, also for what it sends when it
    is back.
    """

    __slots__ = ("by_producer", "floor", "idle")

    def __init__(
        self,
        expected: Iterable[str],
        known: Mapping[str, int],
        idle: Iterable[str] = (),
        floor: int = MIN_TIMESTAMP,
    ) -> None:
        self.by_producer = {producer: known.get(producer, MIN_TIMESTAMP) for producer in expected}
        self.idle = frozenset(idle) & self.by_producer.keys()
        self.floor = floor

    @property
    def value(self) -> int:
        """The watermark; MAX_TIMESTAMP when all have ended."""
        if not self.idle:
            return max(self.floor, min(self.by_producer.values(), default=MAX_TIMESTAMP))
        return max(self.floor, event_time((at, one in self.idle) for one, at in self.by_producer.items()))

    @property
    def is_idle(self) -> bool:
        """Whether all that may still send something are idle."""
        return bool(self.idle) and all(one in self.idle for one, at in self.by_producer.items() if at < MAX_TIMESTAMP)

    def hear(self, producer: str, watermark: int, idle: bool = False) -> None:
        """Take a producer's watermark in; it never goes back, and strangers are not listened to.

        What `by_producer` was before stays as it is, for whoever remembers it.
        """
        known = self.by_producer.get(producer)
        if known is None or (watermark <= known and idle == (producer in self.idle)):
            return
        self.by_producer = {**self.by_producer, producer: max(known, watermark)}
        self.idle = self.idle | {producer} if idle else self.idle - {producer}
        if self.idle and (reached := self.value) < MAX_TIMESTAMP:
            self.floor = reached

    @property
    def mark(self) -> tuple[dict[str, int], frozenset[str], int]:
        """Everything that is known, to be remembered."""
        return self.by_producer, self.idle, self.floor

    def raise_stamps(self, stamps: list[int]) -> list[int]:
        """Return the stamps of records as event time has come while their producers were idle."""
        floor = self.floor
        return stamps if floor == MIN_TIMESTAMP else [max(stamp, floor) for stamp in stamps]


def to_ms(found: list[Any], said: str = "timestamp=") -> list[int]:
    """Return what functions of an input gave as ms since the epoch; raises ValueError for what is not a time.

    >>> from datetime import timezone
    >>> to_ms([1_000, datetime(1970, 1, 1, 0, 0, 2, tzinfo=timezone.utc)])
    [1000, 2000]
    """
    if not set(map(type, found)) <= {int}:
        found = [_one_to_ms(at, said) for at in found]
    some = found[:1] if is_constant(found) else found
    if some and not (min(some) >= EARLIEST_MS and max(some) <= LATEST_MS):
        raise ValueError(f"{said} returned a time that is not in the years 1 to 9999; return ms since the epoch")
    return found


def _one_to_ms(at: Any, said: str) -> int:
    if type(at) is int:
        return at
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise ValueError(f"{said} returned {at!r} without a time zone; write e.g. .replace(tzinfo=timezone.utc)")
        return round(at.timestamp() * 1_000)
    raise ValueError(f"{said} returned {at!r}; return ms since the epoch as an int, or an aware datetime")
