"""Kills the main job with kill -9 while lookups are in flight, restarts it, and compares with an undisturbed run."""

import argparse
import asyncio
import mmap
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import msgspec

from tests.faults.broken import switch_off
from tests.faults.trials import Order, Verdict
from tests.flights.streams import OUTPUTS, Record, example, records
from tests.scale import positive

SAFEGUARD = "one transaction per commit"
ROOT = Path(__file__).parents[2]
SLOWEST_LOOKUP_S = 0.02
POLL_S = 0.0005
PATIENCE_S = 600
FLIGHTS = 60_000
"""Of how many flights a campaign's runs are: so many that each is killed in the midst of its commits."""
KILLS_PER_RUN = 8
"""About how often a run is killed before it comes to its end; then another one begins from nothing."""


class Meter:
    """What the job tells from inside, through shared memory: lookups in flight, and lookups so far."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(16))
        with path.open("r+b") as file:
            self._numbers = memoryview(mmap.mmap(file.fileno(), 16)).cast("q")

    def change(self, in_flight: int, started: int = 0) -> None:
        self._numbers[0] += in_flight
        self._numbers[1] += started

    def clear(self) -> None:
        self._numbers[0] = self._numbers[1] = 0

    @property
    def in_flight(self) -> int:
        return self._numbers[0]

    @property
    def started(self) -> int:
        return self._numbers[1]


def job(data: Path, without: str | None = None) -> None:
    """Run the main job to its end, with slow lookups that complete in any order, and often or seldom a commit."""
    switch_off(without)
    app, meter = example("flights").pipeline(), Meter(data / "meter")
    app.options = msgspec.structs.replace(app.options, commit_interval_ms=random.choice((20, 100, 500)))

    @app.wrap
    def metered(function, operator):
        if operator != "weather":
            return function

        async def look_up(flight):
            meter.change(1, started=1)
            try:
                await asyncio.sleep(random.uniform(0, SLOWEST_LOOKUP_S))
                return await function(flight)
            finally:
                meter.change(-1)

        return look_up

    app.run(data)


class Killer:
    """Starts the job again and again on one data directory, and kills it at random moments."""

    def __init__(self, data: Path, chance: random.Random, typical_s: float, without: str | None = None) -> None:
        self.data = data
        self.without = [f"--without={without}"] if without else []
        self.meter = Meter(data / "meter")
        self.chance = chance
        self.typical_s = typical_s

    def start(self) -> subprocess.Popen[bytes]:
        self.meter.clear()
        program = [sys.executable, "-m", __spec__.name, "--job", self.data, *self.without]
        return subprocess.Popen(program, cwd=ROOT, stderr=subprocess.PIPE)

    def kill_once(self) -> str | None:
        """Let the job live for a while, and kill it; return what was killed, or None when it had ended before.

        Half of the moments are with lookups in flight; the others may as well be in a commit, when none is.
        """
        process = self.start()
        if not self._wait_for_lookups(process, 0):
            return None
        delay_s = self.chance.uniform(0, 2 * self.typical_s / KILLS_PER_RUN)
        if not self._wait_for_lookups(process, delay_s, least=self.chance.randrange(2)):
            return None
        in_flight, started = self.meter.in_flight, self.meter.started
        process.send_signal(signal.SIGKILL)
        process.communicate()
        return f"after {delay_s:.3f} s and {started:,} lookups, {in_flight} in flight"

    def finish(self) -> None:
        """Let the job come to its end; raises when it fails."""
        self._check(self.start())

    def _wait_for_lookups(self, process: subprocess.Popen[bytes], delay_s: float, least: int = 1) -> bool:
        """Wait until `least` lookups are in flight, `delay_s` from now or later; False when the job ends before."""
        until = time.monotonic() + delay_s
        while (now := time.monotonic()) < until or self.meter.in_flight < least:
            if process.poll() is not None or now > until + PATIENCE_S:
                self._check(process)
                return False
            time.sleep(POLL_S)
        return True

    @staticmethod
    def _check(process: subprocess.Popen[bytes]) -> None:
        try:
            _, errors = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise AssertionError(f"the job has not ended in {PATIENCE_S} s") from None
        if process.returncode:
            raise AssertionError(f"the job failed by itself:\n{errors.decode(errors='replace')}")


def differences(data: Path, expected: dict[str, list[Record]]) -> list[str]:
    """Return what is wrong with the outputs in `data`: all records must be there once, in order per key."""
    wrong = []
    for stream, wanted in expected.items():
        found = records(data, stream)
        if sorted(map(repr, found)) != sorted(map(repr, wanted)):
            wrong.append(f"{stream} has {len(found):,} records that are not the {len(wanted):,} of an undisturbed run")
        elif by_key(found) != by_key(wanted):
            wrong.append(f"{stream} has the records of a key in another order")
    return wrong


def by_key(found: list[Record]) -> dict[bytes | None, list[Record]]:
    """Group records by key, in their order."""
    groups = defaultdict(list)
    for record in found:
        groups[record.key].append(record)
    return groups


def campaign(order: Order) -> Verdict:
    """Kill the job; whether a kill did harm is known at the end of its run, so a run counts as a whole."""
    failed = kill_often(order.work, order.times, order.seed, FLIGHTS, SAFEGUARD if order.broken else None)
    return Verdict(order.times, failed)


def kill_often(work: Path, times: int, seed: int, flights: int | None, without: str | None = None) -> int:
    """Kill the job `times` times, in as many runs as it takes; return how many kills were in a run that went wrong."""
    loaded, undisturbed = work / "loaded", work / "undisturbed"
    example("flights_data").load(loaded, flights)
    shutil.copytree(loaded, undisturbed)
    began = time.monotonic()
    Killer(undisturbed, random.Random(seed), 0).finish()
    typical_s = time.monotonic() - began
    expected = {stream: records(undisturbed, stream) for stream in OUTPUTS}
    print(f"undisturbed: {typical_s:.1f} s, " + ", ".join(f"{len(found):,} {name}" for name, found in expected.items()))
    chance, kills, failed, run = random.Random(seed), 0, 0, 0
    while kills < times:
        run += 1
        data, before = work / f"run-{run}", kills
        shutil.copytree(loaded, data)
        killer = Killer(data, chance, typical_s, without)
        try:
            while kills < times and (killed := killer.kill_once()):
                kills += 1
                print(f"kill {kills} of {times}, run {run}: {killed}", flush=True)
            killer.finish()
            wrong = differences(data, expected)
        except AssertionError as error:
            wrong = [str(error)]
        print(f"run {run} after {kills - before} kills: {'; '.join(wrong) or 'equal'}", flush=True)
        failed += kills - before if wrong else 0
        shutil.rmtree(data)
        if wrong and kills == before:
            raise SystemExit("the job fails without being killed")
    return failed


def main(arguments: list[str] | None = None) -> int:
    """Run a campaign, print its verdict, and return how many kills failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=positive, default=20, help="how often to kill")
    parser.add_argument("--seed", type=int, default=0, help="what decides the moments")
    parser.add_argument("--flights", type=int, help="how many flights to load; all, if not given")
    parser.add_argument("--job", type=Path, metavar="DATA", help="be the job that is killed")
    parser.add_argument("--without", help="have the job do without one of the library's safeguards")
    chosen = parser.parse_args(arguments)
    if chosen.job:
        job(chosen.job, chosen.without)
        return 0
    with tempfile.TemporaryDirectory() as work:
        failed = kill_often(Path(work), chosen.times, chosen.seed, chosen.flights, chosen.without)
    print(f"{chosen.times} kills, {failed} failed")
    return failed


if __name__ == "__main__":
    sys.exit(main() > 0)
