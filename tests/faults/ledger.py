"""The application that faults happen to: it counts and sums numbers per account, behind async calls and two stages."""

import argparse
import asyncio
import os
import random
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import msgspec

from operators.core.base import Batch
from operators.state.keyed_state import STATE
from runtime.commit.commit import SHARED
from runtime.encoding.serdes import Tagged
from runtime.model.checkpoint import Position
from runtime.ports.commits import Commit
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.host import locks as log_locks
from runtime.systems.log.environment import LogEnvironment
from samza_dsl import App, Options, fail, retry
from tests.faults import broken
from tests.simulation.crash import NOW_MS

ACCOUNTS = 7
BY_ACCOUNT = "by-account"
TOTALS = "totals"


class Total(msgspec.Struct, frozen=True):
    """How many numbers an account has had, and what they come to."""

    account: str
    count: int
    sum: int


class Told(NamedTuple):
    """What a run has acknowledged: the numbers that are done with, and the totals that are written."""

    position: int
    totals: int


def account_of(number: int) -> str:
    return f"account-{number % ACCOUNTS}"


def ledger(seed: int = 0, slowest_ms: int = 0) -> App:
    """Build the application; its calls take a few turns of the loop, or up to `slowest_ms`, as `seed` decides."""
    pace = random.Random(seed)
    app = App("ledger", Options(max_in_flight=20, batch_records=50, max_uncommitted=30))

    async def looked_up(number: int) -> list[int]:
        for _ in range(pace.randrange(4)):
            await asyncio.sleep(pace.random() * slowest_ms / 4_000)
        return [number]

    def counted(number, context):
        count, total = context.state or (0, 0)
        context.state = (count + 1, total + number)
        return [Total(context.key, count + 1, total + number)]

    (
        app.input("numbers", value=int)
        .async_flat_map(looked_up, timeout_ms=2_000, order="none", on_error=retry(3, then=fail), op_id="look-up")
        .partition_by(account_of, partitions=2, op_id=BY_ACCOUNT)
        .process(counted, op_id="count")
        .send_to(app.output(TOTALS, value=Total))
    )
    return app


def fill(data: Path, numbers: int, end: bool = True) -> None:
    """Make a data directory that holds the input, the numbers from 0 on, or go on with making it: always the same."""
    with closing(LogEnvironment(data, now_ms=lambda: NOW_MS)) as log:
        log.create_stream("numbers", StreamConfig())
        while (start := log.offsets("numbers", 0).end) < numbers:
            values = [b"%d" % number for number in range(start, min(start + 100, numbers))]
            log.append([Append("numbers", 0, Batch(values))])
        if end:
            log.end_stream("numbers")


# What may be in a data directory at any moment


def audit(data: Path, numbers: int, told: Told, rows: Path | None = None, done: bool = False) -> Told:
    """Return what a data directory has; raises AssertionError unless it is of one moment, and none before `told`.

    Whatever is counted in the state is written as totals, each count once; and what was taken from the input but is
    not counted yet lies between the stages. `rows` is the file that the totals are bound to; with `done`, all is.
    """
    with closing(LogEnvironment(data)) as log:
        checkpoints = log.checkpoints("ledger")
        positions = {(at.stream, at.partition): at for held in checkpoints.values() for at in held.positions}
        taken = min(positions[("numbers", 0)].offset, numbers) if positions else 0
        waiting = _waiting(log, positions)
        state = dict(_state(log))
        recorded = checkpoints[SHARED].outputs if SHARED in checkpoints else {}
        totals = _bound(rows, recorded) if rows is not None else _written(log)
    expected = defaultdict(list)
    for number in range(taken):
        expected[account_of(number)].append(number)
    assert state.keys() | waiting.keys() <= expected.keys(), f"{state} and {waiting} have more than {taken} numbers"
    for account, fed in expected.items():
        count, total = state.get(account, (0, 0))
        has = (count + len(waiting[account]), total + sum(waiting[account]))
        assert has == (len(fed), sum(fed)), f"{account} has {has}, not {(len(fed), sum(fed))}, of {taken} numbers"
        counts = [one.count for one in totals[account]]
        assert counts == list(range(1, count + 1)), f"{account} counts to {count}, and its totals are {counts}"
        assert not counts or totals[account][-1].sum == total, f"{account}: the last total is not {total}"
    found = Told(taken, sum(map(len, totals.values())))
    least = Told(min(told.position, numbers), told.totals)
    kept = found.position >= least.position and found.totals >= least.totals
    assert kept, f"{least} was acknowledged, and {found} is left"
    assert not done or found == (numbers, numbers), f"at the end there is {found}"
    return found


def _waiting(log: LogEnvironment, positions: dict[tuple[str, int], Position]) -> dict[str, list[int]]:
    waiting = defaultdict(list)
    for stream in (name for name in log.streams() if name.endswith(BY_ACCOUNT)):
        for partition in range(log.streams()[stream].partitions):
            at = positions.get((stream, partition))
            for _, value in _rows(log, stream, partition, at.offset if at else 0):
                waiting[account_of(number := Tagged().decode(value))].append(number)
    return waiting


def _state(log: LogEnvironment) -> Iterator[tuple[str, tuple[int, int]]]:
    for store in log.stores("ledger"):
        for task in range(2):
            for key, value in log.state_range("ledger", store, task):
                if key.startswith(STATE):
                    yield Tagged().decode(key.removeprefix(STATE)), Tagged().decode(value)


def _written(log: LogEnvironment) -> dict[str, list[Total]]:
    totals = defaultdict(list)
    for partition in range(log.streams()[TOTALS].partitions if TOTALS in log.streams() else 0):
        for _, value in _rows(log, TOTALS, partition, log.offsets(TOTALS, partition).start):
            total = msgspec.json.decode(value, type=Total)
            totals[total.account].append(total)
    return totals


def _bound(rows: Path, recorded: dict[str, int]) -> dict[str, list[Total]]:
    """Return what is in a bound file, as far as the last commit knows of it."""
    totals = defaultdict(list)
    for place, length_bytes in recorded.items():
        if place.startswith(f"{TOTALS}="):
            data = rows.read_bytes() if rows.exists() else b""
            assert len(data) >= length_bytes, f"{rows} has {len(data)} bytes of {length_bytes} that were committed"
            for line in data[:length_bytes].splitlines():
                total = msgspec.json.decode(line, type=Total)
                totals[total.account].append(total)
    return totals


def _rows(log: LogEnvironment, stream: str, partition: int, offset: int) -> Iterator[tuple[bytes | None, bytes]]:
    while read := log.read(stream, partition, offset):
        keys = read.batch.keys or [None] * len(read.batch)
        yield from zip(keys, read.batch.values, strict=True)
        offset = read.next_offset


# The program


class Acknowledging:
    """An environment that tells on standard output what each durable commit has made of the ledger."""

    def __init__(self, log: LogEnvironment) -> None:
        self._log = log
        self._position = self._totals = 0
        for checkpoint in log.checkpoints("ledger").values():
            self._note(checkpoint.positions)
        self._counted: dict[bytes, int] = {}

    def __getattr__(self, name):
        return getattr(self._log, name)

    def commit(self, commit: Commit) -> None:
        self._log.commit(commit)
        for checkpoint in commit.checkpoints.values():
            self._note(checkpoint.positions)
        for writes in commit.state:
            self._counted |= {key: Tagged().decode(value)[0] for key, value in writes.items if key.startswith(STATE)}
        os.write(1, b"%d %d\n" % (self._position, sum(self._counted.values())))

    def _note(self, positions) -> None:
        self._position = max([self._position, *(at.offset for at in positions if at.stream == "numbers")])


def told_by(output: bytes) -> Told:
    """Return the last acknowledgement in what the program has written; half a line is none."""
    lines = [line.split() for line in output.split(b"\n")[:-1]]
    return Told(*map(int, lines[-1])) if lines else Told(0, 0)


def run(
    data: Path,
    seed: int = 0,
    rows: Path | None = None,
    without: str | None = None,
    boot: str = "",
    slowest_ms: int = 0,
    numbers: int = 0,
) -> None:
    """Run the ledger to its end, telling every commit; make its input first, where it has not all `numbers`.

    `rows` is a file to bind the totals to, `without` a safeguard to do without, and `boot` names another run of the
    operating system.
    """
    reboot(boot)
    broken.switch_off(without)
    fill(data, numbers)
    bind = {TOTALS: rows} if rows else {}
    with closing(LogEnvironment(data)) as log:
        ledger(seed, slowest_ms).run(Acknowledging(log), bind=bind)  # type: ignore[arg-type]


def reboot(boot: str) -> None:
    """Have this process take the operating system for another run of it."""
    number = log_locks.boot_id() + boot.encode()
    log_locks.boot_id = lambda: number


def command(data: Path, seed: int, rows: Path | None = None, without: str | None = None) -> list[str]:
    """Return how to run the ledger as a program of its own."""
    said = {"seed": seed, "rows": rows, "without": without}
    options = [word for name, value in said.items() if value is not None for word in (f"--{name}", str(value))]
    return [sys.executable, "-W", "error", "-m", "tests.faults.ledger", str(data), *options]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--without", choices=broken.SAFEGUARDS)
    run(**vars(parser.parse_args()))
