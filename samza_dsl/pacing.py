"""The pace of streams: that of event time where they enter, and how many messages go on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Any, TypedDict

from operators.base import Site
from planner.errors import refuse
from runtime.clock import LoopClock, sleep_ms
from runtime.serdes import Tagged
from samza_dsl.checks import check_type, check_whole

HASH_BYTES = 8
AT_ONCE_S = 0.1
"""For how long a commit may have to wait for messages that wait for their time, where there are many in a second."""
SPARE_MS = 1_000


class Pace(TypedDict, total=False):
    """What an input may say of how its event time goes on; lengths of time in ms.

    A partition that was read to its end, and of which nothing has come for `idle_after_ms` (30,000; None: never), is
    idle: it holds event time back no more, and what then comes of it may be late where others went on without it. With
    `close_on_idle` event time goes on by the clock where all are idle, so that what is open closes. One that is more
    than `max_drift_ms` ahead of another with something to read waits for that.
    """

    idle_after_ms: int | None
    close_on_idle: bool
    max_drift_ms: int | None


def paced(site: Site, pace: Pace) -> Pace:
    """Return what was said of an input's pace; refuses what can't be meant."""
    if unknown := pace.keys() - Pace.__annotations__.keys():
        names = ", ".join(sorted(unknown))
        raise refuse(site, f"input(...) knows no {names}", "idle_after_ms=, close_on_idle=, max_drift_ms=")
    check_whole(site, "idle_after_ms", pace.get("idle_after_ms"), optional=True)
    check_whole(site, "max_drift_ms", pace.get("max_drift_ms"), least=0, optional=True)
    check_type(site, "input(close_on_idle=...)", pace.get("close_on_idle", False), bool, "True or False")
    if pace.get("close_on_idle") and pace.get("idle_after_ms", 1) is None:
        wrong = "close_on_idle=True closes what is open when an input is idle, and with idle_after_ms=None it never is"
        raise refuse(site, wrong, "idle_after_ms=30_000")
    return pace


def is_in_sample(share: float, by: Callable[[Any], object] | None) -> Callable[[Any], bool]:
    """Return a function that is true for so large a share of values, equal ones alike."""
    below: float = share * 2 ** (8 * HASH_BYTES)
    encode = Tagged().encode

    def chosen(value: Any) -> bool:
        data = encode(value if by is None else by(value))
        place = int.from_bytes(blake2b(data, digest_size=HASH_BYTES).digest(), "big")
        return place < below

    return chosen


class Throttle:
    """Lets calls go on one after the other, no more than so many in a second.

    `at_once` calls may wait here, none of them longer than `longest_ms`.
    """

    def __init__(self, per_second: float) -> None:
        self.at_once = max(int(per_second * AT_ONCE_S), 1)
        self.longest_ms = math.ceil(self.at_once / per_second * 1_000) + SPARE_MS
        self._apart_ms = 1_000 / per_second
        self._clock = LoopClock()
        self._next_ms = -math.inf

    async def __call__(self, value: Any) -> Iterable[Any]:
        """Wait for the value's time, and return it."""
        now_ms = self._clock.elapsed_ms()
        at_ms = max(now_ms, self._next_ms)
        self._next_ms = at_ms + self._apart_ms
        if at_ms > now_ms:
            await sleep_ms(at_ms - now_ms)
        return (value,)
