"""The only place that knows the time: wall clock, monotonic clock, and sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio


class Clock(Protocol):
    """The port through which the runtime asks for the time, so that a test can be its master."""

    def now_ms(self) -> int:
        """Return the wall clock, in ms since the epoch."""

    def elapsed_ms(self) -> float:
        """Return a clock that only goes forward, in ms since some moment."""

    def pause_ms(self, ms: float) -> None:
        """Let the calling thread wait for so long."""


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        """Return the wall clock, in ms since the epoch."""
        return time.time_ns() // 1_000_000

    def elapsed_ms(self) -> float:
        """Return the monotonic clock, in ms."""
        return time.monotonic() * 1_000

    def pause_ms(self, ms: float) -> None:
        """Let the calling thread wait for so long."""
        if ms > 0:
            time.sleep(ms / 1_000)


class LoopClock:
    """The running event loop's own time: virtual where the loop's is."""

    def __init__(self, start_ms: int = 0) -> None:
        self.start_ms = start_ms

    def now_ms(self) -> int:
        """Return the loop's time as if it were the wall clock, from `start_ms` on."""
        return self.start_ms + int(self.elapsed_ms())

    def elapsed_ms(self) -> float:
        """Return the loop's time, in ms."""
        # Imported late, here and below: it is a quarter of the import of samza_dsl, and only what runs needs it.
        from asyncio import get_running_loop

        return get_running_loop().time() * 1_000

    def pause_ms(self, ms: float) -> None:
        """Return at once: the time of a virtual loop stands still while something runs."""


async def sleep_ms(ms: float) -> None:
    """Sleep for so long, and let the other tasks of the loop run."""
    from asyncio import sleep

    await sleep(ms / 1_000)


def monotonic_ms() -> float:
    """Return the machine's monotonic clock, in ms."""
    return time.monotonic() * 1_000


def wall_clock_ms() -> int:
    """Return the machine's wall clock, in ms since the epoch."""
    return time.time_ns() // 1_000_000


def clock_of(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """Return a function that tells an event loop's time, in s, as directly as can be."""
    from asyncio import BaseEventLoop

    # Asked around each call of a user: where the loop takes it from there, one call of Python is spared.
    return time.monotonic if type(loop).time is BaseEventLoop.time else loop.time


def utc(ms: int) -> str:
    """Return a time in ms since the epoch as a person reads it.

    >>> utc(1_500), utc(-1_000)
    ('1970-01-01 00:00:01.500', '1969-12-31 23:59:59')
    """
    try:
        at = datetime.fromtimestamp(ms // 1_000, UTC).replace(microsecond=ms % 1_000 * 1_000, tzinfo=None)
    except (OverflowError, ValueError, OSError):
        return f"{ms:,} ms"
    return at.isoformat(" ", "milliseconds").removesuffix(".000")


class Stopwatch:
    """Adds up the times between starts and stops; one thread lets it run and stand, and any thread reads it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # One value, replaced as a whole: whoever reads it between two changes would find half of one.
        self._so_far: tuple[float, float | None] = 0.0, None
        """The time up to the last stop, and since when it runs, if it does."""

    @property
    def ms(self) -> float:
        """The time so far."""
        stopped_ms, since_ms = self._so_far
        return stopped_ms + (0.0 if since_ms is None else self._clock.elapsed_ms() - since_ms)

    def start(self) -> None:
        """Let it run."""
        self._so_far = self._so_far[0], self._clock.elapsed_ms()

    def stop(self) -> None:
        """Let it stand."""
        self._so_far = self.ms, None
