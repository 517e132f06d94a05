"""Sets the wall clock an hour forward or back under a run, about the night in which summer time begins or ends."""

import os
import random
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import msgspec

from operators.base import Batch
from runtime.clock import LoopClock
from runtime.run import Run
from runtime.systems.base import Append, StreamConfig
from runtime.systems.log import LogEnvironment
from samza_dsl import App, Options, count, every, tumbling
from tests.faults import broken
from tests.faults.processes import apart
from tests.faults.trials import Order, Verdict, one_by_one
from tests.simulation.loop import rest, simulate

SAFEGUARD = "timers run by the monotonic clock"
HOUR_MS = 3_600_000
NIGHTS_MS = (1_762_063_200_000, 1_772_953_200_000)
"""When summer time ended in New York in 2025, and when it began in 2026."""
EVENTS, LONGEST_CALL_MS, WINDOW_MS = 60, 8_000, 1_000
DISORDER_MS = 500


class Event(msgspec.Struct, frozen=True):
    key: str
    at: int


class Found(NamedTuple):
    """What came of a run: counts per key and window, calls of the timer, and commits."""

    panes: Counter[tuple[str, int, int]]
    ticks: int
    commits: int


class JumpingClock(LoopClock):
    """Virtual time whose wall clock is set anew at some moments; the monotonic one just goes on."""

    def __init__(self, start_ms: int, jumps: list[tuple[float, int]]) -> None:
        super().__init__(start_ms)
        self.jumps = jumps

    def now_ms(self) -> int:
        elapsed_ms = int(LoopClock.elapsed_ms(self))
        return self.start_ms + elapsed_ms + sum(by_ms for at_ms, by_ms in self.jumps if at_ms <= elapsed_ms)


def campaign(order: Order) -> Verdict:
    """Compare each run with the one whose clock is left alone, and with counts made without the library."""

    def trial(seed: int, work: Path) -> dict[str, int]:
        chance = random.Random(seed)
        jumps = [(chance.random() * 60_000, chance.choice((-HOUR_MS, HOUR_MS))) for _ in range(chance.randint(1, 6))]
        events = _events(chance)
        undisturbed = apart(_run, work / "undisturbed", seed, events, [], False)
        disturbed = apart(_run, work / "disturbed", seed, events, jumps, order.broken)
        expected = Counter((event.key, event.at // WINDOW_MS * WINDOW_MS) for event in events)
        assert disturbed.panes == Counter((key, start, n) for (key, start), n in expected.items()), "panes are wrong"
        assert disturbed == undisturbed, f"{disturbed[1:]} ticks and commits with jumps, {undisturbed[1:]} without"
        return {"jumps": len(jumps), "ticks": disturbed.ticks}

    return one_by_one(order, trial)


def _events(chance: random.Random) -> list[Event]:
    times = [number * 100 + chance.randrange(DISORDER_MS) for number in range(EVENTS)]
    return [Event(f"k{chance.randrange(3)}", at) for at in times]


def _run(data: Path, seed: int, events: list[Event], jumps: list[tuple[float, int]], without: bool) -> Found:
    os.environ["TZ"] = "America/New_York"
    time.tzset()
    broken.switch_off(SAFEGUARD if without else None)
    chance, ticks = random.Random(seed), []
    app = App("jumped", Options(max_in_flight=4, commit_interval_ms=1_000))

    async def slowly(event: Event) -> list[Event]:
        await rest(chance.random() * LONGEST_CALL_MS)
        return [event]

    source = app.input("events", value=Event, key=_key, timestamp=_at, max_disorder_ms=DISORDER_MS)
    panes = (
        source.async_flat_map(slowly, timeout_ms=10_000, order="none")
        .partition_by(_key, partitions=1, op_id="by-key")
        .window(tumbling(milliseconds=WINDOW_MS), count())
    )
    panes.map(lambda pane: (pane.key, pane.start, pane.value)).send_to(app.output("panes", value=tuple[str, int, int]))
    app.task(source, lambda message, context: None, op_id="ticking", window=every(ticks.append, seconds=1))
    clock = JumpingClock(chance.choice(NIGHTS_MS) - 30_000, jumps)

    async def main() -> Run:
        with closing(LogEnvironment(data, sync=False, now_ms=clock.now_ms)) as log:
            log.create_stream("events", StreamConfig())
            log.append([Append("events", 0, Batch(list(map(msgspec.json.encode, events))))])
            log.end_stream("events")
            run = Run(app.graph(), app.options, app.around, log, clock=clock)
            await run.drive()
            found = run.received("panes")
            return Found(Counter(found), len(ticks), run.metrics(stores=False).commits)

    return simulate(main, seed)


def _key(event: Event) -> str:
    return event.key


def _at(event: Event) -> int:
    return event.at
