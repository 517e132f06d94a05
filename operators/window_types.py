"""Which window a timestamp falls in: frozen values, half-open [start, end), in ms since the epoch."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol
from zoneinfo import ZoneInfo

from operators.sites import mistake


class Cell(NamedTuple):
    """The stretch of time around a timestamp, `low` <= t < `high`, in which all lie in the same windows.

    `windows` are their starts and ends, in the order of their ends, of which none comes before `high`.
    """

    low: int
    high: int
    windows: tuple[tuple[int, int], ...]


class WindowType(Protocol):
    """Windows that are the same for all keys, and cover the time line."""

    def cell(self, timestamp: int) -> Cell:
        """Return the windows that a timestamp falls in."""


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

    def cell(self, timestamp: int) -> Cell:
        """Return the window that a timestamp falls in."""
        start = timestamp - (timestamp - self.offset_ms) % self.size_ms
        end = start + self.size_ms
        return Cell(start, end, ((start, end),))

    def __str__(self) -> str:
        return f"tumbling {timedelta(milliseconds=self.size_ms)}"


@dataclass(frozen=True)
class Hopping:
    """Windows of equal length, one of which begins at every step; they overlap where the step is the smaller."""

    size_ms: int
    every_ms: int
    offset_ms: int = 0

    def cell(self, timestamp: int) -> Cell:
        """Return the windows that a timestamp falls in."""
        size, every = self.size_ms, self.every_ms
        last = timestamp - (timestamp - self.offset_ms) % every
        first = last - (last + size - 1 - timestamp) // every * every
        windows = tuple((start, start + size) for start in range(first, last + 1, every))
        return Cell(max(last, first - every + size), min(last + every, first + size), windows)

    def __str__(self) -> str:
        every = timedelta(milliseconds=self.every_ms)
        return f"hopping {timedelta(milliseconds=self.size_ms)} every {every}"


@dataclass(frozen=True)
class Sessions:
    """Windows that each key has of its own: they go on until nothing has come for `gap_ms`."""

    gap_ms: int

    def __str__(self) -> str:
        return f"sessions with gaps of {timedelta(milliseconds=self.gap_ms)}"


@dataclass(frozen=True)
class Daily:
    """Calendar days of a time zone: 23, 24 or 25 hours long there."""

    tz: str
    _bounds: list[int] = field(default_factory=list, repr=False, compare=False)

    def cell(self, timestamp: int) -> Cell:
        """Return the day that a timestamp falls in."""
        bounds = self._known(timestamp, timestamp)
        after = bisect_right(bounds, timestamp)
        start, end = bounds[after - 1], bounds[after]
        return Cell(start, end, ((start, end),))

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

    >>> tumbling(hours=1).cell(7_199_999).windows, tumbling(hours=1).cell(7_200_000).windows
    (((3600000, 7200000),), ((7200000, 10800000),))
    """
    size = duration_ms(days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
    if size <= 0:
        raise mistake(f"tumbling windows of {size} ms are no windows", "tumbling(hours=1)")
    return Tumbling(size, _whole("tumbling", "offset_ms", offset_ms))


def hopping(
    *,
    every_ms: int,
    days: float = 0,
    hours: float = 0,
    minutes: float = 0,
    seconds: float = 0,
    milliseconds: float = 0,
    offset_ms: int = 0,
) -> Hopping:
    """Cut event time into windows of one length, of which one begins every so often: each value is in several.

    Raises ValueError when the length is not positive, or a step is longer and so leaves values in no window.

    >>> hopping(minutes=10, every_ms=duration_ms(minutes=5)).cell(3_600_000).windows
    ((3300000, 3900000), (3600000, 4200000))
    """
    size = duration_ms(days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
    if size <= 0:
        raise mistake(f"hopping windows of {size} ms are no windows", "hopping(minutes=30, every_ms=300_000)")
    if not 0 < _whole("hopping", "every_ms", every_ms) <= size:
        wrong = f"hopping windows of {size} ms every {every_ms} ms leave values in no window"
        raise mistake(wrong, f"every_ms={size} or less, and at least 1")
    return Hopping(size, every_ms, _whole("hopping", "offset_ms", offset_ms))


def session(
    *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0, milliseconds: float = 0
) -> Sessions:
    """Put values of a key together that are less than this length apart, however many.

    Raises ValueError when the length is not positive.

    >>> session(minutes=30).gap_ms
    1800000
    """
    gap = duration_ms(days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
    if gap <= 0:
        raise mistake(f"sessions with gaps of {gap} ms are no windows", "session(minutes=30)")
    return Sessions(gap)


def _whole(said: str, name: str, number: int) -> int:
    if type(number) is not int:
        raise mistake(f"{said}({name}={number!r}) is not a whole number", f"{name}=1_800_000")
    return number


def daily(tz: str = "UTC") -> Daily:
    """Cut event time into the calendar days of a time zone, daylight saving included.

    Raises ValueError when the zone is not known.

    >>> day = daily(tz="America/New_York").cell(1_362_898_800_000)  # 2013-03-10, when clocks went forward
    >>> (day.high - day.low) / 3_600_000
    23.0
    """
    try:
        ZoneInfo(tz)
    except Exception:
        raise mistake(f"daily(tz={tz!r}) is no time zone", 'daily(tz="America/New_York") or daily()') from None
    return Daily(tz)
