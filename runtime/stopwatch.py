"""How much time something has taken in all, what has begun and not ended included."""

from __future__ import annotations

from runtime.clock import Clock


class Stopwatch:
    """Adds up the times between starts and stops."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stopped_ms = 0.0
        self._since: float | None = None

    @property
    def ms(self) -> float:
        """The time so far."""
        running = 0.0 if self._since is None else self._clock.elapsed_ms() - self._since
        return self._stopped_ms + running

    def start(self) -> None:
        """Let it run."""
        self._since = self._clock.elapsed_ms()

    def stop(self) -> None:
        """Let it stand."""
        self._stopped_ms, self._since = self.ms, None
