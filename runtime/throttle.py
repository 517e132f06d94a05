"""Holds a run back to so many records a second, so that others on the machine keep their latency."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from runtime.clock import Clock

PARTS = 10
"""In so many parts of a second its records are read, so that no other waits long behind one of them."""


class Throttle:
    """Says when records may be read, and how many at once; what was too much is waited for afterwards.

    >>> class Still:
    ...     def elapsed_ms(self): return 0.0
    >>> throttle = Throttle(1_000, Still(), most=2_000)
    >>> throttle.most, throttle.is_open, throttle.take(lambda: 50), throttle.wait_ms
    (100, True, 50, 50.0)
    """

    def __init__(self, per_second: float | None, clock: Clock, most: int) -> None:
        self.most = most if per_second is None else max(1, min(most, int(per_second / PARTS)))
        self._each_ms = 0.0 if per_second is None else 1_000 / per_second
        self._clock = clock
        self._free_ms = clock.elapsed_ms()

    @property
    def is_open(self) -> bool:
        """Whether records may be read now."""
        return not self._each_ms or self._clock.elapsed_ms() >= self._free_ms

    @property
    def wait_ms(self) -> float:
        """How long records may not be read; without end where nothing is waited for."""
        return inf if self.is_open else self._free_ms - self._clock.elapsed_ms()

    def take(self, read: Callable[[], int]) -> int:
        """Have records read, and count them."""
        number = read()
        self._free_ms = max(self._free_ms, self._clock.elapsed_ms()) + number * self._each_ms
        return number
