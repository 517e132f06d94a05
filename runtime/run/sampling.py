"""Tells by samples in which operators the threads of a run spend their time, at no cost for each message."""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from types import FrameType

from runtime.functions.at_work import operator_at
from runtime.model.clock import monotonic_ms
from runtime.stage.chain import Chain

EVERY_MS = 50.0
"""The time between two samples: each costs some 20 us, so that a watched run pays less than a thousandth."""
LONGEST_MS = 250.0
"""The most that one sample stands for: a machine that slept has not worked meanwhile."""
UNHEEDED_MS = 5_000.0
"""The time after which samples are no longer taken, as nobody asks for them."""


class Sampler:
    """Looks now and then where all threads are, while somebody asks again and again what operators have taken.

    `heed` and `close` are called in the event loop's thread, and `chains` in the sampler's own. Invariant: there is at
    most one thread, and none after `close`.
    """

    def __init__(self, chains: Callable[[], Iterable[Chain]]) -> None:
        self._chains = chains
        self._lines: dict[str, tuple[str, ...]] = {}
        self._spent_ms: defaultdict[str, float] = defaultdict(float)
        self._heeded_ms: float | None = None
        self._thread: threading.Thread | None = None
        self._done = threading.Event()

    def heed(self) -> dict[str, float]:
        """Return the ms that operators have taken while samples were taken, which they are from the second call on."""
        before, self._heeded_ms = self._heeded_ms, monotonic_ms()
        is_watched = before is not None and self._heeded_ms - before < UNHEEDED_MS
        if is_watched and not self._done.is_set() and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._sample, name="samza-dsl-sampler", daemon=True)
            self._thread.start()
        return dict(self._spent_ms)

    def close(self) -> None:
        """Take no more samples; a second call does nothing."""
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def _sample(self) -> None:
        at_ms = monotonic_ms()
        while not self._done.wait(EVERY_MS / 1_000):
            now_ms = monotonic_ms()
            assert self._heeded_ms is not None, "only who is asked takes samples"
            if now_ms - self._heeded_ms > UNHEEDED_MS:
                return
            spent_ms, at_ms = min(now_ms - at_ms, LONGEST_MS), now_ms
            for frame in sys._current_frames().values():
                operator = self._operator_at(frame)
                if operator is not None:
                    self._spent_ms[operator] += spent_ms

    def _operator_at(self, frame: FrameType | None) -> str | None:
        """Return the operator for which a thread is at work, the innermost; None where it does something else."""
        return operator_at(frame, self._owners, rests=False)

    def _owners(self, file: str) -> tuple[str, ...]:
        """Return the operator of each line of fused source."""
        if file not in self._lines:
            # Tasks come and go in the event loop meanwhile: what is not found now is found at the next sample.
            try:
                self._lines = {name: lines for one in self._chains() for name, lines in one.lines.items()}
            except RuntimeError:
                return ()
        return self._lines.get(file, ())
