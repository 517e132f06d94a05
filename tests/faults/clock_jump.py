"""Sets the wall clock an hour forward or back under a run, about the night in which summer time begins or ends."""

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

import msgspec

from operators.core.base import Batch
from runtime.model.clock import SystemClock
from runtime.ports.streams import Append, StreamConfig
from runtime.run.run import Run
from runtime.run.settings import RunSettings
from runtime.systems.log.environment import LogEnvironment
from samza_dsl import App, Options, count, daily, every, tumbling
from tests.faults import broken
from tests.faults.processes import apart
from tests.faults.trials import Missed, Order, Verdict, one_by_one
from tests.simulation.clock import HOUR_MS, NIGHTS_MS
from tests.simulation.loop import rest, simulate

SAFEGUARD = "timers run by the monotonic clock"
ZONE = "America/New_York"
EVENTS, LONGEST_CALL_MS, LONGEST_RUN_MS = 60, 8_000, 20_000
STEP_MS, DISORDER_MS, WINDOW_MS = 72 * 60_000, HOUR_MS // 2, 3 * HOUR_MS
"""Event time: from one event to the next, by how much they may be out of order, and the length of a window."""


class Event(msgspec.Struct, frozen=True):
    key: str
    at: int


class Found(NamedTuple):
    """What came of a run: counts per key and window, and per key and day; calls of the timer, commits, and its time."""

    panes: Counter[tuple[str, int, int]]
    days: Counter[tuple[str, int, int]]
    ticks: int
    commits: int
    lasted_ms: float


class Watch:
    """The machine's clocks by virtual time: the monotonic one just goes on, the wall clock is set at some moments."""

    def __init__(self, start_ms: int, jumps: list[tuple[float, int]]) -> None:
        self.start_ms, self.jumps = start_ms, jumps

    def wear(self) -> None:
        """Have this process take the time from here."""
        time.monotonic = lambda: asyncio.get_running_loop().time()
        time.time_ns = self._wall_ns
        time.time = lambda: self._wall_ns() / 1e9

    def _wall_ns(self) -> int:
        elapsed_ms = asyncio.get_running_loop().time() * 1_000
        ahead_ms = sum(by_ms for at_ms, by_ms in self.jumps if at_ms <= elapsed_ms)
        return int((self.start_ms + elapsed_ms + ahead_ms) * 1e6)


def campaign(order: Order) -> Verdict:
    """Compare each run with the one whose clock is left alone, and with counts made without the library."""

    def trial(seed: int, work: Path) -> dict[str, int]:
        chance = random.Random(seed)
        night_ms = chance.choice(NIGHTS_MS)
        jumps = [
            (chance.random() * LONGEST_RUN_MS, chance.choice((-HOUR_MS, HOUR_MS))) for _ in range(chance.randint(1, 6))
        ]
        events = _events(chance, night_ms)
        undisturbed = apart(_run, work / "undisturbed", seed, events, Watch(night_ms - 30_000, []), False)
        watch = Watch(night_ms - 30_000, jumps)
        disturbed = apart(_run, work / "disturbed", seed, events, watch, order.broken)
        assert disturbed.panes == _counts(events, lambda at: at // WINDOW_MS * WINDOW_MS), "panes are wrong"
        assert disturbed.days == _counts(events, _midnight), "days are wrong"
        assert disturbed == undisturbed, f"{disturbed[2:]} ticks, commits and ms with jumps, {undisturbed[2:]} without"
        struck = sum(at_ms <= disturbed.lasted_ms for at_ms, _ in jumps)
        if not struck:
            raise Missed("ended before the first jump")
        return {"jumps": struck, "ticks": disturbed.ticks}

    return one_by_one(order, trial)


def _events(chance: random.Random, night_ms: int) -> list[Event]:
    """Return events of some days about the night."""
    first_ms = night_ms - EVENTS * STEP_MS // 2
    times = [first_ms + number * STEP_MS + chance.randrange(DISORDER_MS) for number in range(EVENTS)]
    return [Event(f"k{chance.randrange(3)}", at) for at in times]


def _counts(events: list[Event], start_of: Callable[[int], int]) -> Counter[tuple[str, int, int]]:
    counts = Counter((event.key, start_of(event.at)) for event in events)
    return Counter((key, start, number) for (key, start), number in counts.items())


def _midnight(at: int) -> int:
    there = datetime.fromtimestamp(at // 1_000, ZoneInfo(ZONE))
    return int(datetime(there.year, there.month, there.day, tzinfo=ZoneInfo(ZONE)).timestamp()) * 1_000


def _run(data: Path, seed: int, events: list[Event], watch: Watch, without: bool) -> Found:
    os.environ["TZ"] = ZONE
    time.tzset()
    watch.wear()
    broken.switch_off(SAFEGUARD if without else None)
    chance, ticks = random.Random(seed), []
    app = App("jumped", Options(max_in_flight=4, commit_interval_ms=1_000))

    async def slowly(event: Event) -> list[Event]:
        await rest(chance.random() * LONGEST_CALL_MS)
        return [event]

    source = app.input("events", value=Event, key=_key, timestamp=_at, max_disorder_ms=DISORDER_MS)
    by_key = source.async_flat_map(slowly, timeout_ms=10_000, order="none").partition_by(
        _key, partitions=1, op_id="by-key"
    )
    for name, window in (("panes", tumbling(milliseconds=WINDOW_MS)), ("days", daily(ZONE))):
        panes = by_key.window(window, count(), op_id=f"counted-{name}")
        output = app.output(name, value=tuple[str, int, int])
        panes.map(lambda pane: (pane.key, pane.start, pane.value)).send_to(output)
    app.task(source, lambda message, context: None, op_id="ticking", window=every(ticks.append, seconds=1))

    clock = SystemClock()

    async def main() -> Found:
        with closing(LogEnvironment(data, sync=False)) as log:
            log.create_stream("events", StreamConfig())
            log.append([Append("events", 0, Batch(list(map(msgspec.json.encode, events))))])
            log.end_stream("events")
            run = Run(app.pipeline(), log, RunSettings(clock=clock))
            await run.drive()
            panes, days = (Counter(run.received(name)) for name in ("panes", "days"))
            return Found(panes, days, len(ticks), run.metrics(stores=False).commits, clock.elapsed_ms())

    return simulate(main, seed)


def _key(event: Event) -> str:
    return event.key


def _at(event: Event) -> int:
    return event.at
