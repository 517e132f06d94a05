"""Which window a timestamp falls in: frozen values, half-open [start, end), in ms since the epoch."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol
from zoneinfo import ZoneInfo

from operators.sites import mistake


class WindowType(Protocol):
    """Windows that tile the time line: every timestamp falls in exactly one."""

    def starts(self, timestamps: list[int]) -> list[int]:
        """Return the start of each timestamp's window."""

    def end(self, start: int) -> int:
        """Return the end of the window that begins at `start`."""


def duration_ms(
    *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0, milliseconds: float = 0
) -> int:
    """Return a length of time in ms.

    >>> duration_ms(hours=1, seconds=1.5)
    3601500
    """
    parts = {"days": days, "hours": hours, "minutes": minutes, "seconds": seconds, "milliseconds": milliseconds}
    for name, number in parts.items():
        if not isinstance(number, int | float) or isinstance(number, bool) or not math.isfinite(number):
            raise mistake(f"{name}={number!r} is not a length of time", f"{name}=1")
    length = timedelta(**parts)
    return length // timedelta(milliseconds=1)


@dataclass(frozen=True)
class Tumbling:
    """Windows of equal length, one after the other, aligned to the epoch plus `offset_ms`."""

    size_ms: int
    offset_ms: int = 0

    def starts(self, timestamps: list[int]) -> list[int]:
        """Return the start of each timestamp's window."""
        size, offset = self.size_ms, self.offset_ms
        if offset:
            return [at - (at - offset) % size for at in timestamps]
        return [at - at % size for at in timestamps]

    def end(self, start: int) -> int:
        """Return the end of the window that begins at `start`."""
        return start + self.size_ms

    def __str__(self) -> str:
        return f"tumbling {timedelta(milliseconds=self.size_ms)}"


@dataclass(frozen=True)
class Daily:
    """Calendar days of a time zone: 23, 24 or 25 hours long there."""

    tz: str
    _bounds: list[int] = field(default_factory=list, repr=False, compare=False)

    def starts(self, timestamps: list[int]) -> list[int]:
        """Return the midnight, in the zone, that each timestamp follows."""
        if not timestamps:
            return []
        bounds = self._known(min(timestamps), max(timestamps))
        return [bounds[bisect_right(bounds, at) - 1] for at in timestamps]

    def end(self, start: int) -> int:
        """Return the next midnight in the zone."""
        bounds = self._known(start, start)
        return bounds[bisect_right(bounds, start)]

    def _known(self, low: int, high: int) -> list[int]:
        """Return the midnights known so far, which reach from before `low` to after `high`."""
        bounds = self._bounds
        if not bounds or low < bounds[0] or high >= bounds[-1]:
            first = self._midnight(min(low, bounds[0]) if bounds else low)
            last = max(high, bounds[-1]) if bounds else high
            day, found = first, [self._at(first)]
            while found[-1] <= last:
                day = day + timedelta(days=1)
                found.append(self._at(day))
            bounds[:] = found
        return bounds

    def _midnight(self, at: int) -> datetime:
        seconds = at // 1000
        return datetime.fromtimestamp(seconds, ZoneInfo(self.tz)).replace(hour=0, minute=0, second=0, fold=0)

    def _at(self, midnight: datetime) -> int:
        return int(midnight.timestamp()) * 1000

    def __str__(self) -> str:
        return f"daily in {self.tz}"


def tumbling(
    *,
    days: float = 0,
    hours: float = 0,
    minutes: float = 0,
    seconds: float = 0,
    milliseconds: float = 0,
    offset_ms: int = 0,
) -> Tumbling:
    """Cut event time into windows of one length, aligned to the epoch (UTC).

    Raises ValueError when the length is not positive.

    >>> tumbling(hours=1).starts([3_600_000, 3_600_001, 7_199_999, 7_200_000])
    [3600000, 3600000, 3600000, 7200000]
    """
    size = duration_ms(days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
    if size <= 0:
        raise mistake(f"tumbling windows of {size} ms are no windows", "tumbling(hours=1)")
    if type(offset_ms) is not int:
        raise mistake(f"tumbling(offset_ms={offset_ms!r}) is not a whole number", "offset_ms=1_800_000")
    return Tumbling(size, offset_ms)


def daily(tz: str = "UTC") -> Daily:
    """Cut event time into the calendar days of a time zone, daylight saving included.

    Raises ValueError when the zone is not known.

    >>> windows = daily(tz="America/New_York")
    >>> start = windows.starts([1_362_898_800_000])[0]  # 2013-03-10, when clocks went forward
    >>> (windows.end(start) - start) / 3_600_000
    23.0
    """
    try:
        ZoneInfo(tz)
    except Exception:
        raise mistake(f"daily(tz={tz!r}) is no time zone", 'daily(tz="America/New_York") or daily()') from None
    return Daily(tz)
