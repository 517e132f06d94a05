"""The types of windows: frozen values that say in which windows, half-open in ms since the epoch, a time is."""

from __future__ import annotations

import math
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, TypeVar
from zoneinfo import ZoneInfo

from operators.core.durations import MS, Duration, checked_ms
from operators.core.sites import mistake

K = TypeVar("K", contravariant=True)
V = TypeVar("V", contravariant=True)

DAY_MS = 86_400_000
CALENDAR_MS = 146_097 * DAY_MS
"""The ms of 400 years, after which dates and days of the week come again."""
YEAR_2, YEAR_9999 = (date(year, 1, 1).toordinal() - date(1970, 1, 1).toordinal() for year in (2, 9_999))


class Assigner(Protocol[K, V]):
    """Windows of your own: a frozen value that says in which each value is.

    With `merges = True`, those of a key that overlap become one, from the first start to the last end. Such windows
    begin at the time of their value, or later.

    >>> @dataclass(frozen=True)
    ... class WhileCalling:
    ...     merges = True
    ...     def assign(self, key: str, timestamp: int, value: int) -> list[tuple[int, int]]:
    ...         return [(timestamp, timestamp + value)]
    >>> calls: Assigner[str, int] = WhileCalling()
    """

    def assign(self, key: K, timestamp: int, value: V, /) -> Iterable[tuple[int, int]]:
        """Return starts and ends, in ms since the epoch, half-open; in none of them is a value that has none."""


class Cell(NamedTuple):
    """The stretch of time around a timestamp, `low` <= t < `high`, whose times all lie in the same windows.

    `windows` are their starts and ends, in the order of their ends, of which none comes before `high`.
    """

    low: int
    high: int
    windows: tuple[tuple[int, int], ...]


class WindowType(Protocol):
    """Windows that are the same for all keys, and cover the time line."""

    def cell(self, timestamp: int) -> Cell:
        """Return the windows that a timestamp falls in."""


PARTS_MS = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1_000, "milliseconds": 1}
LONGEST_MS, MICROSECOND = timedelta.max // MS, timedelta(microseconds=1)


def duration_ms(
    length: timedelta | None = None,
    /,
    *,
    days: float = 0,
    hours: float = 0,
    minutes: float = 0,
    seconds: float = 0,
    milliseconds: float = 0,
) -> int:
    """Return a length of time in ms: that of a timedelta, or of its parts.

    Raises ValueError for what is no whole number of ms, as a third of a second is none.

    >>> duration_ms(hours=1, seconds=1.5), duration_ms(timedelta(minutes=1))
    (3601500, 60000)
    """
    if length is not None and not isinstance(length, timedelta):
        is_number = isinstance(length, int | float) and not isinstance(length, bool) and 0 < length < math.inf
        number = length if is_number else 1
        raise mistake(f"{length!r} does not say of what it is so many", f"minutes={number!r}, or a timedelta")
    parts = {"days": days, "hours": hours, "minutes": minutes, "seconds": seconds, "milliseconds": milliseconds}
    for name, number in parts.items():
        if not isinstance(number, int | float) or isinstance(number, bool) or not math.isfinite(number):
            raise mistake(f"{name}={number!r} is not a length of time", f"{name}=1")
    # Exactly, in fractions of a ms: a timedelta is rounded to microseconds. Only what floats leave is nothing.
    exact = sum(
        (Fraction(number) * PARTS_MS[name] for name, number in parts.items()),
        Fraction((length or timedelta()) // MICROSECOND, 1_000),
    )
    found = round(exact)
    if abs(exact - found) > abs(found) * 16 * sys.float_info.epsilon:
        raise mistake(f"a length of {float(exact)} ms is none of whole ms", f"milliseconds={max(found, 1)}")
    if abs(found) > LONGEST_MS:
        raise mistake(f"a length of {float(exact):.3g} ms is more than 2.7 million years", "days=365")
    return found


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
        # It begins where the last of these windows does, or the one before the first ends; and it ends where the next
        # one begins, or the first of these ends.
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
class Sliding:
    """Windows that each key has of its own, one up to each time that it has a value of: (t - size, t]."""

    size_ms: int

    def __str__(self) -> str:
        return f"sliding {timedelta(milliseconds=self.size_ms)}"


@dataclass(frozen=True)
class Counted:
    """Windows that each key has of its own: of `number` values, one from every so many on; None is all values."""

    number: int | None
    every: int | None

    def __str__(self) -> str:
        if self.number is None:
            return "all values"
        return f"{self.number:,} values" + (f" every {self.every:,}" if self.every != self.number else "")


@dataclass(frozen=True)
class ByClock:
    """Windows of time on the clock on the wall."""

    windows: WindowType | Sessions | Sliding

    def __str__(self) -> str:
        return f"{self.windows} by the clock"


@dataclass(frozen=True)
class ByRow:
    """Windows of the type that a function chooses for a table's row, which each value comes with, or for None."""

    table: str
    choose: Callable[[Any], WindowType] = field(repr=False)

    def __str__(self) -> str:
        return f"windows by {self.table}"


@dataclass(frozen=True)
class Daily:
    """Calendar days of a time zone: 23, 24 or 25 hours long there."""

    tz: str

    def cell(self, timestamp: int) -> Cell:
        """Return the day that a timestamp falls in."""
        bounds = _midnights(self.tz, timestamp // DAY_MS)
        after = bisect_right(bounds, timestamp)
        start, end = bounds[after - 1], bounds[after]
        return Cell(start, end, ((start, end),))

    def __str__(self) -> str:
        return f"daily in {self.tz}"


@lru_cache(maxsize=4_096)
def _midnights(tz: str, day: int) -> tuple[int, ...]:
    """Return the midnights of a time zone around a day of UTC, by the number of that since the epoch.

    At the ends of the years that a date may have, those of 400 years away are taken, whose days are the same.
    """
    # datetime knows the years 1 to 9999, and the midnights around a day at either end lie beyond these.
    shift = CALENDAR_MS if day < YEAR_2 else -CALENDAR_MS if day > YEAR_9999 else 0
    local = datetime.fromtimestamp((day * DAY_MS + shift) // 1_000, ZoneInfo(tz))
    midnight = local.replace(hour=0, minute=0, second=0, fold=0)
    return tuple(int((midnight + timedelta(days=days)).timestamp()) * 1_000 - shift for days in range(-1, 4))


def tumbling(
    length: timedelta | None = None,
    /,
    *,
    days: float = 0,
    hours: float = 0,
    minutes: float = 0,
    seconds: float = 0,
    milliseconds: float = 0,
    offset_ms: Duration = 0,
) -> Tumbling:
    """Cut event time into windows of one length, aligned to the epoch (UTC).

    Raises ValueError when the length is not positive.

    >>> tumbling(hours=1).cell(7_199_999).windows, tumbling(hours=1).cell(7_200_000).windows
    (((3600000, 7200000),), ((7200000, 10800000),))
    """
    size = duration_ms(length, days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
    if size <= 0:
        raise mistake(f"tumbling windows of {size} ms are no windows", "tumbling(hours=1)")
    return Tumbling(size, checked_ms("offset_ms", offset_ms, None))


def hopping(
    length: timedelta | None = None,
    /,
    *,
    every_ms: Duration,
    days: float = 0,
    hours: float = 0,
    minutes: float = 0,
    seconds: float = 0,
    milliseconds: float = 0,
    offset_ms: Duration = 0,
) -> Hopping:
    """Cut event time into windows of one length, of which one begins every so often: each value is in several.

    Raises ValueError when the length is not positive, or a step is longer and so leaves values in no window.

    >>> hopping(minutes=10, every_ms=duration_ms(minutes=5)).cell(3_600_000).windows
    ((3300000, 3900000), (3600000, 4200000))
    """
    size = duration_ms(length, days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
    if size <= 0:
        raise mistake(f"hopping windows of {size} ms are no windows", "hopping(minutes=30, every_ms=300_000)")
    every = checked_ms("every_ms", every_ms, 1)
    if not 0 < every <= size:
        wrong = f"hopping windows of {size} ms every {every} ms leave values in no window"
        raise mistake(wrong, f"every_ms={size} or less, and at least 1")
    return Hopping(size, every, checked_ms("offset_ms", offset_ms, None))


def session(
    length: timedelta | None = None,
    /,
    *,
    days: float = 0,
    hours: float = 0,
    minutes: float = 0,
    seconds: float = 0,
    milliseconds: float = 0,
) -> Sessions:
    """Put values of a key together that are less than this length apart, however many.

    Raises ValueError when the length is not positive.

    >>> session(minutes=30).gap_ms
    1800000
    """
    gap = duration_ms(length, days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
    if gap <= 0:
        raise mistake(f"sessions with gaps of {gap} ms are no windows", "session(minutes=30)")
    return Sessions(gap)


def sliding(
    length: timedelta | None = None,
    /,
    *,
    days: float = 0,
    hours: float = 0,
    minutes: float = 0,
    seconds: float = 0,
    milliseconds: float = 0,
) -> Sliding:
    """Look back from each value over a length of time: at a time t of its values, a key has the window (t - size, t].

    A pane's `start` and `end` are `t - size + 1` and `t + 1`, since windows are half-open. Values of one time share a
    window. Raises ValueError when the length is not positive.

    >>> sliding(minutes=30).size_ms
    1800000
    """
    size = duration_ms(length, days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
    if size <= 0:
        raise mistake(f"sliding windows of {size} ms are no windows", "sliding(minutes=30)")
    return Sliding(size)


def counted(number: int, every: int | None = None) -> Counted:
    """Put so many values of a key together, in the order in which they come; the next ones go into the next window.

    With `every`, a window of that many begins at every so many values, and a value is in several. A window fires with
    its last value; those that are not complete when all inputs have ended, fire then. A pane's `start` and `end` are
    its smallest timestamp and one ms after its largest.

    What is below waits, in event time, for windows that are not complete, since these may have old values: prefer
    windows of time where that matters. Raises ValueError where the numbers are not whole and positive, or `every` is
    more than `number`.

    >>> counted(100, every=10).number
    100
    """
    if type(number) is not int or number < 1:
        raise mistake(f"counted({number!r}) is not a whole number of at least 1", "counted(100)")
    if every is not None and (type(every) is not int or not 1 <= every <= number):
        wrong = f"every={every!r} is not a whole number from 1 to {number}: values would be in no window"
        raise mistake(wrong, f"counted({number}, every={number})")
    return Counted(number, every or number)


def by_clock(windows: WindowType | Sessions | Sliding) -> ByClock:
    """Cut the time on the clock on the wall, and not event time: a value is in the windows of when it is read.

    A pane comes when the clock has reached its window's end, and at the end of all inputs. Nothing is late, but what
    comes depends on when it was read: it is not the same again after a crash, or in another run. Raises ValueError
    where `windows` are not tumbling, hopping, daily, sliding or sessions.

    >>> str(by_clock(tumbling(seconds=5)))
    'tumbling 0:00:05 by the clock'
    """
    if isinstance(windows, type) or not (isinstance(windows, Sessions | Sliding) or hasattr(windows, "cell")):
        wrong = f"by_clock(...) got {windows!r}, which are not tumbling, hopping, daily, sliding or sessions"
        raise mistake(wrong, "by_clock(tumbling(seconds=5))")
    return ByClock(windows)


def whole() -> Counted:
    """Put all values of a key into one window, which fires when all inputs have ended, and with `early=` before.

    A pane's `start` and `end` are its smallest timestamp and one ms after its largest. What is below waits, in event
    time, for what is in no pane yet; where panes are accumulating, until the end.

    >>> str(whole())
    'all values'
    """
    return Counted(None, None)


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


OfKey = Sessions | Sliding | Counted
"""Windows that each key has of its own."""
Windows = WindowType | OfKey | ByRow | ByClock
