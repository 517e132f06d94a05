"""Kills containers of one run, and now and then the process that started them, with kill -9 at random moments."""

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import closing, suppress
from pathlib import Path

import msgspec

import runtime.containers.supervisor
from operators.core.base import Batch
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.host.locks import owner_of
from runtime.systems.log.environment import LogEnvironment, verify
from samza_dsl import App, Options
from tests.faults.broken import switch_off
from tests.faults.processes import wait_until
from tests.faults.trials import Missed, Order, Verdict, one_by_one

SAFEGUARD = "a task has one container"
WITHOUT = "KILL_CONTAINER_WITHOUT"
"""The environment variable that tells containers which safeguard to do without."""
ROOT = Path(__file__).parents[2]
PARTITIONS, NUMBERS, ACCOUNTS = 4, 2_000, 50
PATIENCE_S = 300
SHARE_OF_STARTERS = 0.1
"""How many of those that are killed are processes that have started containers."""


async def looked_up(number: int) -> list[int]:
    await asyncio.sleep(random.random() / 100)
    return [number]


def account_of(number: int) -> int:
    return number % ACCOUNTS


def counted(number, context):
    count, total = context.state or (0, 0)
    context.state = (count + 1, total + number)
    return [(context.key, count + 1, total + number)]


def _ledger() -> App:
    app = App("shared-ledger", Options(max_in_flight=20, batch_records=50, commit_interval_ms=50))
    numbers = app.input("numbers", value=int).async_flat_map(looked_up, op_id="look-up")
    by_account = numbers.partition_by(account_of, partitions=PARTITIONS, op_id="by-account")
    by_account.process(counted, op_id="count").send_to(app.output("totals", partitions=PARTITIONS))
    return app


app = _ledger()
switch_off(os.environ.get(WITHOUT))


def campaign(order: Order) -> Verdict:
    """Run and kill, and count what is written."""
    return one_by_one(order, lambda seed, work: _trial(seed, work, SAFEGUARD if order.broken else ""))


def _trial(seed: int, work: Path, without: str) -> dict[str, int]:
    chance, kills, starts = random.Random(seed), 0, 0
    _fill(work)
    while True:
        starts += 1
        job = start(work, chance.randint(2, 3), without)
        try:
            kills += _kill_often(work, job, chance)
            _, errors = job.communicate(timeout=PATIENCE_S)
        finally:
            job.kill()
            job.wait()
        if job.returncode == 0:
            break
        assert job.returncode == -signal.SIGKILL, f"the run failed by itself: {errors.decode(errors='replace')}"
        wait_until(lambda: not is_owned(work))
    check(work)
    if not kills:
        raise Missed("ended before a kill")
    return {"kills": kills, "of them of starters": starts - 1}


def start(work: Path, containers: int, without: str) -> "subprocess.Popen[bytes]":
    """Begin the run in so many containers."""
    program = [sys.executable, "-m", __name__ if __name__ != "__main__" else __spec__.name]
    environment = {**os.environ, WITHOUT: without} if without else None
    arguments = ["--job", str(work / "data"), "--containers", str(containers)]
    return subprocess.Popen([*program, *arguments], cwd=ROOT, env=environment, stderr=subprocess.PIPE)


def _kill_often(work: Path, job: "subprocess.Popen[bytes]", chance: random.Random) -> int:
    """Kill containers until the run ends, or until the process is killed that has started them."""
    kills = 0
    while job.poll() is None:
        time.sleep(chance.uniform(0.05, 1.5))
        alive = containers(work, job.pid)
        if chance.random() < SHARE_OF_STARTERS:
            job.kill()
            return kills + 1
        if alive:
            with suppress(ProcessLookupError):
                os.kill(chance.choice(alive), signal.SIGKILL)
                kills += 1
    return kills


def containers(work: Path, starter: int) -> list[int]:
    """Return the processes that are containers of one that has started them."""
    return sorted({*_members(work)} & {*_children(starter)})


def _children(pid: int) -> list[int]:
    with suppress(FileNotFoundError, ProcessLookupError):
        return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    return []


def _members(work: Path) -> list[int]:
    """Return the processes that are containers, a dead one perhaps among them."""
    found = []
    for file in sorted((work / "data" / "containers" / app.name).glob("*.lock")):
        with suppress(FileNotFoundError, ValueError):
            found.append(int(file.read_text()))
    return found


def is_owned(work: Path) -> bool:
    """Whether a process has the application."""
    return owner_of(work / "data", app.name) is not None


def _fill(work: Path) -> None:
    with closing(LogEnvironment(work / "data")) as log:
        log.create_stream("numbers", StreamConfig(partitions=PARTITIONS))
        for partition in range(PARTITIONS):
            values = [b"%d" % (number * PARTITIONS + partition) for number in range(NUMBERS)]
            log.append([Append("numbers", partition, Batch(values))])
        log.end_stream("numbers")


def check(work: Path, each: int = NUMBERS) -> None:
    """Check that every number is counted once: the totals of each account count up, to all of its numbers."""
    assert verify(work / "data") == []
    totals = defaultdict(list)
    with closing(LogEnvironment(work / "data")) as log:
        for partition in range(PARTITIONS):
            offset = 0
            while read := log.read("totals", partition, offset):
                for account, count, total in map(msgspec.json.decode, read.batch.values):
                    totals[account].append((count, total))
                offset = read.next_offset
    expected = defaultdict(list)
    for number in range(PARTITIONS * each):
        expected[account_of(number)].append(number)
    assert totals.keys() == expected.keys()
    for account, numbers in expected.items():
        counts = [count for count, _ in totals[account]]
        assert counts == list(range(1, len(numbers) + 1)), f"account {account} counts {counts[-3:]} of {len(numbers)}"
        assert totals[account][-1][1] == sum(numbers), f"the last total of account {account} is not {sum(numbers)}"


def main() -> None:
    """Be the run whose containers are killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", type=Path, metavar="DATA", required=True)
    parser.add_argument("--containers", type=int, default=2)
    chosen = parser.parse_args()
    runtime.containers.supervisor.MOST_DEATHS = (
        sys.maxsize
    )  # how many die before they have committed is up to who kills them
    app.run(chosen.job, containers=chosen.containers)


if __name__ == "__main__":
    main()
