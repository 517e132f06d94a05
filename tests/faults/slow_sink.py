"""Has a sink take a millisecond per record while a million or more wait, and measures what piles up."""

import asyncio
import re
import time
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from operators.core.base import Batch
from runtime.ports.streams import Append, StreamConfig
from runtime.run.run import Run
from runtime.systems.log.environment import LogEnvironment
from samza_dsl import App, Options
from tests.faults import broken
from tests.faults.processes import apart
from tests.faults.trials import Order, Verdict

SAFEGUARD = "in flight is bounded"
LEAST_BACKLOG, BATCH = 1_000_000, 10_000
SINK_S = 0.001
MOST_CALLS, MOST_IN_FLIGHT = 4, 200
MOST_GROWTH_BYTES = 64 << 20
SAMPLE_S = 0.2
ANONYMOUS = re.compile(r"RssAnon:\s+(\d+) kB")


class Measured(NamedTuple):
    """What a run has come to: records, growth of anonymous memory, most messages in flight, most calls at once."""

    records: int
    growth_bytes: int
    in_flight: int
    at_once: int


def campaign(order: Order) -> Verdict:
    """Run for as many seconds as asked for, half of them with an async sink, half with one that blocks."""
    data = order.work / "data"
    seconds = order.times / 2
    backlog = max(LEAST_BACKLOG, round(seconds * MOST_CALLS / SINK_S))
    apart(_fill, data, backlog)
    verdict = Verdict()
    for blocking in (False, True):
        try:
            measured = apart(_run, data, seconds, blocking, order.broken)
            _check(measured, seconds, backlog)
        except AssertionError as error:
            verdict.fail(order.seed, f"{'blocking' if blocking else 'async'}: {error}")
        else:
            verdict.counts["records"] += measured.records
            verdict.counts["KiB grown at most"] = max(verdict.counts["KiB grown at most"], measured.growth_bytes >> 10)
            verdict.counts["in flight at most"] = max(verdict.counts["in flight at most"], measured.in_flight)
    verdict.done = order.times
    return verdict


def _check(measured: Measured, seconds: float, backlog: int) -> None:
    assert measured.growth_bytes < MOST_GROWTH_BYTES, f"memory has grown by {measured.growth_bytes:,} bytes"
    assert measured.in_flight <= MOST_IN_FLIGHT, f"{measured.in_flight:,} messages in flight, not {MOST_IN_FLIGHT}"
    assert measured.at_once <= MOST_CALLS, f"{measured.at_once} calls at once, not {MOST_CALLS}"
    assert 0 < measured.records < backlog, f"{measured.records:,} records of {backlog:,} in {seconds} s"


def _fill(data: Path, backlog: int) -> None:
    with closing(LogEnvironment(data, sync=False)) as log:
        log.create_stream("numbers", StreamConfig())
        for start in range(0, backlog, BATCH):
            log.append([Append("numbers", 0, Batch([b"%d" % number for number in range(start, start + BATCH)]))])


def _run(data: Path, seconds: float, blocking: bool, without: bool) -> Measured:
    broken.switch_off(SAFEGUARD if without else None)
    calls = at_once = most_at_once = most_in_flight = growth_bytes = 0
    before_bytes = _anonymous_bytes()
    app = App(f"slow-{blocking}", Options(max_in_flight=MOST_IN_FLIGHT, batch_records=1_000))

    def block(number: int) -> None:
        nonlocal calls
        calls += 1
        time.sleep(SINK_S)

    async def wait(number: int) -> None:
        nonlocal calls, at_once, most_at_once
        calls += 1
        at_once += 1
        most_at_once = max(most_at_once, at_once)
        await asyncio.sleep(SINK_S)
        at_once -= 1

    async def watch(run: Run) -> None:
        nonlocal most_in_flight, growth_bytes
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await asyncio.sleep(SAMPLE_S)
            most_in_flight = max(most_in_flight, *(task.in_flight for task in run.metrics(stores=False).tasks), 0)
            growth_bytes = max(growth_bytes, _anonymous_bytes() - before_bytes)
        run.stop()

    app.input("numbers", value=int).sink(block if blocking else wait, max_in_flight=MOST_CALLS)
    app.run(data, watch=watch)
    with closing(LogEnvironment(data)) as log:
        checkpoint = log.checkpoints(app.name)["0"]
    assert calls == checkpoint.positions[0].offset, f"{calls:,} calls, and {checkpoint.positions} are committed"
    return Measured(calls, growth_bytes, most_in_flight, most_at_once)


def _anonymous_bytes() -> int:
    found = ANONYMOUS.search(Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) << 10
