"""The waiting of a loop that has nothing to do: until when it lasts, and what ends it before that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from math import inf

from runtime.model.clock import Clock
from runtime.reading.reader import Reader

LOOK_MS = 1_000.0
"""The most ms between looks at inputs that something came of, and those between looks for new streams of patterns."""
LEAST_MS = 1.0
"""The least ms that a wait for a moment lasts, as it may be a part of one too short."""


class Waiting:
    """Waits until the loop is woken, something is due, or a look at what it reads may find something new.

    What it reads is looked at every `poll_ms`. In the thread of the event loop; `woken` may be set from there alone.
    """

    def __init__(self, clock: Clock, poll_ms: float) -> None:
        self.poll_ms = poll_ms
        self.woken = asyncio.Event()
        self.looks_ms = 0.0
        """The ms elapsed at the next look at inputs, as one of them may be idle then."""
        self._clock = clock
        self._every_ms = LOOK_MS
        self._versions: list[Callable[[], int]] = []

    def know(self, sources: Collection[Reader], readers: Collection[Reader]) -> None:
        """Take note of all that is read from now on: of sources, by themselves, it is noticed that nothing comes."""
        # Often enough that an input is taken for idle no more than a quarter later than it said.
        parts_ms = (after / 4 for reader in sources if (after := reader.idle_after_ms) is not None)
        self.looks_ms, self._every_ms = 0.0, min([LOOK_MS, *parts_ms])
        # Most have one in common, that of the environment.
        self._versions = [*dict.fromkeys(reader.origin.version for reader in readers)]

    def versions(self) -> list[int]:
        """Return what is the same for as long as there is nothing new to read."""
        return [version() for version in self._versions]

    def look_soon(self) -> None:
        """Let inputs be looked at soon, as something has come of some."""
        self.looks_ms = min(self.looks_ms, self._clock.elapsed_ms() + self._every_ms)

    def looked(self, sources: Collection[Reader]) -> None:
        """Take note of a look at all inputs: thousands may be quiet, and the next is when one may be idle."""
        now_ms = self._clock.elapsed_ms()
        due_ms = (reader.idle_at_ms for reader in sources)
        self.looks_ms = min((at_ms if at_ms > now_ms else now_ms + self._every_ms for at_ms in due_ms), default=inf)

    def in_ms(self, at_ms: float) -> float:
        """Return the ms from now to a moment, or the least time that is waited for."""
        return max(at_ms - self._clock.elapsed_ms(), LEAST_MS)

    async def wait(self, wait_ms: float, least_ms: float, versions: list[int] | None) -> None:
        """Wait for so long, if nothing comes before; the first look is after `least_ms`.

        With the `versions` of before the loop found nothing to do, there is nothing to be done while these are the
        same: nothing else is looked at, however many tasks there are.
        """
        now_ms = self._clock.elapsed_ms()
        due_ms, set_to_ms = now_ms + wait_ms, self._clock.now_ms() - now_ms
        poll_ms = self.poll_ms if versions is not None else max(self.poll_ms, least_ms)
        while now_ms < due_ms:
            with suppress(TimeoutError):
                # wait_for loses a cancellation that comes as it wakes
                async with asyncio.timeout(min(poll_ms, due_ms - now_ms) / 1_000):
                    await self.woken.wait()
            if self.woken.is_set() or versions is None or versions != self.versions():
                break
            now_ms = self._clock.elapsed_ms()
            if abs(self._clock.now_ms() - now_ms - set_to_ms) > poll_ms:
                break  # the wall clock was set: what is due by it is so at another moment
        self.woken.clear()
