"""The triggers of early and late panes: frozen values, each with a small state per key and window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from operators.core.base import MIN_TIMESTAMP, NEVER
from operators.core.sites import mistake
from operators.windows.window_types import duration_ms

Taken = tuple[Any, int, int, int]
"""A trigger's state, how many values it has taken in, and the row and stamp of the pane that is due, or row -1."""
NOW = MIN_TIMESTAMP
"""The time of a trigger that is due already; one that needs further values is NEVER due so far."""


class Trigger:
    """A trigger of early panes: a window makes one whenever it is due, or with `once()` a single time.

    Its state is a plain value: `begin()` is that of no values, `add` takes in a value's event time and the time by the
    clock at which it came, `merge` makes one of two windows that have become one, and `after` follows a pane. `due` is
    the watermark at which a pane is due while the clock stands, and `alarm` the time by the clock while the watermark
    stands: NOW where a pane is due already, NEVER while something else has to come first. Only a trigger `by_clock` is
    told the time.

    >>> hundred = after_count(100)
    >>> hundred.due(hundred.begin(), now_ms=0) == NEVER
    True
    """

    by_clock: bool = False
    at_once: bool = False
    """Whether a pane is due with a value, or not before another one has come."""

    def begin(self) -> Any:
        """Return the state of a window without values."""
        raise NotImplementedError

    def add(self, state: Any, timestamp: int, now_ms: int) -> Any:
        """Return the state with one more value."""
        raise NotImplementedError

    def merge(self, one: Any, other: Any) -> Any:
        """Return the state of two windows that have become one."""
        raise NotImplementedError

    def due(self, state: Any, now_ms: int) -> int:
        """Return the watermark at which a pane is due."""
        raise NotImplementedError

    def take(
        self, state: Any, rows: list[int], begun: int, timestamps: Sequence[int], stamps: Sequence[int], now_ms: int
    ) -> Taken:
        """Take in values in time, given their rows in a batch from `begun` on, until a pane is due.

        The source of a value has passed its stamp, so a pane that was due by then comes before the value.
        """
        for place in range(begun, len(rows)):
            row = rows[place]
            stamp = stamps[row]
            if (due := self.due(state, now_ms)) <= stamp:
                return state, place, row, due - 1
            state = self.add(state, timestamps[row], now_ms)
            if self.due(state, now_ms) <= stamp:
                return state, place + 1, row, stamp
        return state, len(rows), -1, NOW

    def alarm(self, state: Any, watermark: int) -> int:
        """Return the time at which a pane is due by the clock; where nothing goes by that, as the watermark says."""
        return NOW if self.due(state, NOW) <= watermark else NEVER

    def after(self, state: Any) -> Any:
        """Return the state behind a pane."""
        return self.begin()

    def in_clock_time(self) -> Trigger:
        """Return the trigger for windows for which the clock is event time."""
        return self

    def once(self) -> Trigger:
        """Return the trigger that makes one early pane per window, and no more.

        >>> print(after_count(100).once())
        once after 100 values
        """
        return Once(self)


@dataclass(frozen=True)
class AfterCount(Trigger):
    """A trigger that is due with every so many values."""

    number: int
    at_once = True

    def begin(self) -> int:
        """Return how many values there are."""
        return 0

    def add(self, state: int, timestamp: int, now_ms: int) -> int:
        """Count one more."""
        return state + 1

    def merge(self, one: int, other: int) -> int:
        """Count those of both."""
        return one + other

    def due(self, state: int, now_ms: int) -> int:
        """Return NOW when there are enough."""
        return NOW if state >= self.number else NEVER

    def take(
        self, state: int, rows: list[int], begun: int, timestamps: Sequence[int], stamps: Sequence[int], now_ms: int
    ) -> Taken:
        """Find the value with which there are enough, without a look at those before."""
        assert state < self.number, "a pane that is due has come"
        last = begun + self.number - state - 1
        if last >= len(rows):
            return state + len(rows) - begun, len(rows), -1, NOW
        return self.number, last + 1, rows[last], stamps[rows[last]]

    def __str__(self) -> str:
        return f"after {self.number} values"


@dataclass(frozen=True)
class AfterDelay(Trigger):
    """A trigger that is due so much event time after the earliest value since the last pane."""

    delay_ms: int

    def begin(self) -> int:
        """Return the time of the earliest value."""
        return NEVER

    def add(self, state: int, timestamp: int, now_ms: int) -> int:
        """Take note of an earlier one."""
        return timestamp if timestamp < state else state

    def merge(self, one: int, other: int) -> int:
        """Return the earlier."""
        return min(one, other)

    def due(self, state: int, now_ms: int) -> int:
        """Return when the delay is over."""
        return NEVER if state == NEVER else state + self.delay_ms

    def take(
        self, state: int, rows: list[int], begun: int, timestamps: Sequence[int], stamps: Sequence[int], now_ms: int
    ) -> Taken:
        """Take in all values at once where none has a stamp at which the delay of one is over."""
        # Stamps only grow from a source's value to its next, but a batch may have values of several sources.
        left = rows[begun:] if begun else rows
        earliest = min(map(timestamps.__getitem__, left), default=NEVER)
        if earliest > state:
            earliest = state
        if self.due(earliest, now_ms) > max(map(stamps.__getitem__, left), default=NOW):
            return earliest, len(rows), -1, NOW
        return super().take(state, rows, begun, timestamps, stamps, now_ms)

    def __str__(self) -> str:
        return f"{self.delay_ms} ms of event time after a value"


@dataclass(frozen=True)
class AfterClockDelay(Trigger):
    """A trigger that is due so long by the clock after the first value since the last pane has come."""

    delay_ms: int
    by_clock = True

    def begin(self) -> int:
        """Return when the first value came."""
        return NEVER

    def add(self, state: int, timestamp: int, now_ms: int) -> int:
        """Take note of the first one."""
        return min(state, now_ms)

    def merge(self, one: int, other: int) -> int:
        """Return the earlier."""
        return min(one, other)

    def due(self, state: int, now_ms: int) -> int:
        """Return NOW when the delay is over."""
        return NOW if self.alarm(state, NEVER) <= now_ms else NEVER

    def alarm(self, state: int, watermark: int) -> int:
        """Return when the delay is over."""
        return NEVER if state == NEVER else state + self.delay_ms

    def in_clock_time(self) -> Trigger:
        """Return a delay of event time, which is the clock there."""
        return AfterDelay(self.delay_ms)

    def __str__(self) -> str:
        return f"{self.delay_ms} ms after a value"


@dataclass(frozen=True)
class Several(Trigger):
    """A trigger that is due with the first of several, or with all of them; each begins anew after a pane."""

    triggers: tuple[Trigger, ...]
    needs_all: bool

    @property
    def by_clock(self) -> bool:  # type: ignore[override]
        """Whether one of them does."""
        return any(one.by_clock for one in self.triggers)

    @property
    def at_once(self) -> bool:  # type: ignore[override]
        """Whether all of them do."""
        return all(one.at_once for one in self.triggers)

    def begin(self) -> tuple[Any, ...]:
        """Return the state of each."""
        return tuple(one.begin() for one in self.triggers)

    def add(self, state: tuple[Any, ...], timestamp: int, now_ms: int) -> tuple[Any, ...]:
        """Tell each."""
        return tuple(one.add(part, timestamp, now_ms) for one, part in zip(self.triggers, state, strict=True))

    def merge(self, one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
        """Merge those of each."""
        return tuple(each.merge(a, b) for each, a, b in zip(self.triggers, one, other, strict=True))

    def due(self, state: tuple[Any, ...], now_ms: int) -> int:
        """Return when the first is due, or the last."""
        dues = [one.due(part, now_ms) for one, part in zip(self.triggers, state, strict=True)]
        return max(dues) if self.needs_all else min(dues)

    def alarm(self, state: tuple[Any, ...], watermark: int) -> int:
        """Return when the first is due by the clock, or the last."""
        alarms = [one.alarm(part, watermark) for one, part in zip(self.triggers, state, strict=True)]
        return max(alarms) if self.needs_all else min(alarms)

    def after(self, state: tuple[Any, ...]) -> tuple[Any, ...]:
        """Tell each."""
        return tuple(one.after(part) for one, part in zip(self.triggers, state, strict=True))

    def in_clock_time(self) -> Trigger:
        """Return several of those."""
        return Several(tuple(one.in_clock_time() for one in self.triggers), self.needs_all)

    def __str__(self) -> str:
        return (" and " if self.needs_all else " or ").join(map(str, self.triggers))


@dataclass(frozen=True)
class Once(Trigger):
    """A trigger that is spent after a pane."""

    trigger: Trigger

    @property
    def by_clock(self) -> bool:  # type: ignore[override]
        """Whether the trigger does."""
        return self.trigger.by_clock

    @property
    def at_once(self) -> bool:  # type: ignore[override]
        """Whether the trigger does."""
        return self.trigger.at_once

    def begin(self) -> Any:
        """Return the state of the trigger, which is in a tuple that is empty when it is spent."""
        return (self.trigger.begin(),)

    def add(self, state: tuple[Any, ...], timestamp: int, now_ms: int) -> tuple[Any, ...]:
        """Tell the trigger."""
        return tuple(self.trigger.add(one, timestamp, now_ms) for one in state)

    def merge(self, one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
        """Be spent where one of them is."""
        return tuple(self.trigger.merge(a, b) for a, b in zip(one, other, strict=False))

    def due(self, state: tuple[Any, ...], now_ms: int) -> int:
        """Return when the trigger is due."""
        return self.trigger.due(state[0], now_ms) if state else NEVER

    def take(
        self,
        state: tuple[Any, ...],
        rows: list[int],
        begun: int,
        timestamps: Sequence[int],
        stamps: Sequence[int],
        now_ms: int,
    ) -> Taken:
        """Let the trigger take values in, and take in all others when it is spent."""
        if not state:
            return state, len(rows), -1, NOW
        taken = self.trigger.take(state[0], rows, begun, timestamps, stamps, now_ms)
        return (taken[0],), *taken[1:]

    def alarm(self, state: tuple[Any, ...], watermark: int) -> int:
        """Return when the trigger is due by the clock."""
        return self.trigger.alarm(state[0], watermark) if state else NEVER

    def after(self, state: tuple[Any, ...]) -> tuple[Any, ...]:
        """Be spent."""
        return ()

    def in_clock_time(self) -> Trigger:
        """Return that one, once."""
        return Once(self.trigger.in_clock_time())

    def once(self) -> Trigger:
        """Return itself."""
        return self

    def __str__(self) -> str:
        return f"once {self.trigger}"


def after_count(number: int) -> Trigger:
    """Make an early pane with every so many further values of a key and window.

    Raises ValueError where the number is less than 1.

    >>> print(after_count(100))
    after 100 values
    """
    if type(number) is not int or number < 1:
        raise mistake(f"after_count({number!r}) is not a whole number of at least 1", "after_count(100)")
    return AfterCount(number)


def after_delay(
    length: timedelta | None = None,
    /,
    *,
    days: float = 0,
    hours: float = 0,
    minutes: float = 0,
    seconds: float = 0,
    milliseconds: float = 0,
    by_clock: bool = False,
) -> Trigger:
    """Make an early pane when event time is so far behind the earliest value that is in no pane yet.

    With `by_clock` it is when the first such value has come so long ago by the clock on the wall. Raises ValueError
    when the length is not positive.

    >>> print(after_delay(seconds=10))
    10000 ms of event time after a value
    >>> print(after_delay(seconds=10, by_clock=True))
    10000 ms after a value
    """
    delay = duration_ms(length, days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
    if delay <= 0:
        raise mistake(f"after_delay of {delay} ms is no delay", "after_delay(minutes=1)")
    return AfterClockDelay(delay) if by_clock else AfterDelay(delay)


def any_of(*triggers: Trigger) -> Trigger:
    """Make an early pane when one of several triggers is due; all of them begin anew then.

    Raises ValueError for less than two.

    >>> print(any_of(after_count(100), after_delay(minutes=1)))
    after 100 values or 60000 ms of event time after a value
    """
    return Several(_checked("any_of", triggers), needs_all=False)


def all_of(*triggers: Trigger) -> Trigger:
    """Make an early pane when several triggers are all due; all of them begin anew then.

    Raises ValueError for less than two.

    >>> print(all_of(after_count(100), after_delay(minutes=1)))
    after 100 values and 60000 ms of event time after a value
    """
    return Several(_checked("all_of", triggers), needs_all=True)


def _checked(said: str, triggers: tuple[Trigger, ...]) -> tuple[Trigger, ...]:
    for one in triggers:
        if not isinstance(one, Trigger):
            raise mistake(f"{said}(...) got {one!r}, which is no trigger", f"{said}(after_count(100), ...)")
    if len(triggers) < 2:
        raise mistake(f"{said}(...) got {len(triggers)} triggers", f"{said}(after_count(100), after_delay(minutes=1))")
    return triggers
