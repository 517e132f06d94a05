"""The pace of streams: the progress of event time in an input, and the rate of messages."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from typing import Literal, TypedDict, TypeVar, cast

from operators.core.base import Site
from operators.core.durations import Duration
from planner.model.errors import refuse
from runtime.encoding.serdes import Tagged
from runtime.model.clock import LoopClock, sleep_ms
from runtime.reading.event_times import PER_SECOND
from samza_dsl.fluent.checks import check_type, optional_ms_said

HASH_BYTES = 8
AT_ONCE_S = 0.1
"""The seconds that a commit may have to wait for throttled messages: at most so many of them wait at once."""
SPARE_MS = 1_000
LEAST_MS: Mapping[Literal["idle_after_ms", "max_drift_ms", "max_ahead_ms"], int]
LEAST_MS = {"idle_after_ms": 1, "max_drift_ms": 0, "max_ahead_ms": 0}
"""The least that a length of time of a pace can be."""

V = TypeVar("V")


Unit = Literal["s", "ms", "us", "ns"]


class Pace(TypedDict, total=False):
    """The options of an input about its event time; lengths of time in ms.

    A partition that was read to its end, and of which nothing has come for `idle_after_ms` (30,000; None: never), is
    idle: it holds event time back no more, and what then comes of it may be late where others went on without it. With
    `close_on_idle` event time goes on by the clock where all are idle, so that what is open closes. One that is more
    than `max_drift_ms` ahead of another with something to read waits for that. A record whose event time is more than
    `max_ahead_ms` ahead of the clock on the wall meets `on_error`, and moves no event time. `unit` is that of times:
    "s", "ms", "us" or "ns"; datetimes need none.
    """

    idle_after_ms: Duration | None
    close_on_idle: bool
    max_drift_ms: Duration | None
    max_ahead_ms: Duration | None
    unit: Unit


class PaceFields(TypedDict, total=False):
    """The pace of an input as fields of its spec, all lengths of time in whole ms."""

    idle_after_ms: int | None
    close_on_idle: bool
    max_drift_ms: int | None
    max_ahead_ms: int | None
    unit: Unit


def paced(site: Site, pace: Pace) -> PaceFields:
    """Return the pace of an input as fields of its spec; refuses options that can't be meant."""
    if unknown := pace.keys() - Pace.__annotations__.keys():
        names = ", ".join(sorted(unknown))
        raise refuse(site, f"input(...) knows no {names}", ", ".join(f"{name}=" for name in Pace.__annotations__))
    lengths = {
        name: optional_ms_said(site, name, pace[name], least=least) for name, least in LEAST_MS.items() if name in pace
    }
    check_unit(site, pace.get("unit"))
    check_type(site, "input(close_on_idle=...)", pace.get("close_on_idle", False), bool, "True or False")
    if pace.get("close_on_idle") and pace.get("idle_after_ms", 1) is None:
        wrong = "close_on_idle=True closes what is open when an input is idle, and with idle_after_ms=None it never is"
        raise refuse(site, wrong, "idle_after_ms=30_000")
    return cast("PaceFields", {**pace, **lengths})


def check_unit(site: Site, unit: object) -> None:
    """Refuse what is no unit of time."""
    if unit is not None and unit not in PER_SECOND:
        raise refuse(site, f"unit={unit!r} is no unit of time", "unit='s', 'ms', 'us' or 'ns'")


def sampler(share: float, by: Callable[[V], object] | None) -> Callable[[V], bool]:
    """Return a function that is true for this share of values, and the same for equal ones."""
    # By a hash of the bytes, and not by chance: the same values are chosen in every run and on every machine.
    below: float = share * 2 ** (8 * HASH_BYTES)
    encode = Tagged().encode

    def chosen(value: V) -> bool:
        data = encode(value if by is None else by(value))
        place = int.from_bytes(blake2b(data, digest_size=HASH_BYTES).digest(), "big")
        return place < below

    return chosen


class Throttle:
    """Lets calls go on one after the other, at most `per_second` of them in a second.

    `at_once` calls may wait here, none of them longer than `longest_ms`.
    """

    def __init__(self, per_second: float) -> None:
        self.at_once = max(int(per_second * AT_ONCE_S), 1)
        self.longest_ms = math.ceil(self.at_once / per_second * 1_000) + SPARE_MS
        self._apart_ms = 1_000 / per_second
        self._clock = LoopClock()
        self._next_ms = -math.inf

    async def __call__(self, value: V) -> Iterable[V]:
        """Wait for the value's time, and return it."""
        now_ms = self._clock.elapsed_ms()
        # The place in line is taken before the wait, so that calls that wait together go on apart from each other.
        at_ms = max(now_ms, self._next_ms)
        self._next_ms = at_ms + self._apart_ms
        if at_ms > now_ms:
            await sleep_ms(at_ms - now_ms)
        return (value,)
