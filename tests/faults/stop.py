"""Stops the ledger with SIGSTOP for what it takes for minutes, and lets it go on with SIGCONT."""

import mmap
import random
import signal
import time
from contextlib import closing, suppress
from pathlib import Path

from runtime.model.errors import Owned
from runtime.systems.log.environment import LogEnvironment
from tests.faults import broken, ledger
from tests.faults.processes import apart, child, wait_until
from tests.faults.trials import Missed, Order, Verdict, one_by_one

SAFEGUARD = "one owner per application"
NUMBERS = 600
SLOWEST_CALL_MS = 20
LONGEST_STOP_S = 600
STOPS = 3
OTHERS_PATIENCE_S = 5.0


class Watch:
    """Clocks, wall and monotonic, that the harness can set forward in a process that does not run."""

    def __init__(self) -> None:
        self._ahead = memoryview(mmap.mmap(-1, 8)).cast("d")

    def forward(self, seconds: float) -> None:
        self._ahead[0] += seconds

    def wear(self) -> None:
        """Have this process take the time from here."""
        monotonic, wall_ns = time.monotonic, time.time_ns
        time.monotonic = lambda: monotonic() + self._ahead[0]
        time.time_ns = lambda: wall_ns() + int(self._ahead[0] * 1e9)


def campaign(order: Order) -> Verdict:
    """Stop a run up to three times with calls in flight; nobody may take over meanwhile, and it goes on by itself."""
    without = SAFEGUARD if order.broken else None

    def trial(seed: int, work: Path) -> dict[str, int]:
        chance = random.Random(seed)
        data, watch, stops, refused = work / "data", Watch(), 0, 0
        apart(ledger.fill, data, NUMBERS)
        with child(_run, watch, data, seed, without) as run:
            for _ in range(chance.randint(1, STOPS)):
                commits = run.output().count(b"\n") + chance.randint(1, 8)
                wait_until(lambda commits=commits: run.output().count(b"\n") >= commits or run.poll() is not None)
                if run.poll() is not None:
                    break
                run.send(signal.SIGSTOP)
                watch.forward(chance.uniform(60, LONGEST_STOP_S))
                done, answer = run.output(), _answer(data, without)
                run.send(signal.SIGCONT)
                if answer == "owner":  # which is right where the run was over, and only its process not gone
                    run.result()
                    assert run.output() == done, "another process has become the owner while the first one was stopped"
                    break
                stops, refused = stops + 1, refused + (answer == "Owned")
            run.result()
            told = ledger.told_by(run.output())
        apart(ledger.audit, data, NUMBERS, told, None, True)
        if not stops:
            raise Missed("ended before the first stop")
        if not refused:
            raise Missed("the other process never had an answer")
        return {"stops": stops, "others refused": refused}

    return one_by_one(order, trial)


def _run(watch: Watch, data: Path, seed: int, without: str | None) -> None:
    watch.wear()
    ledger.run(data, seed, None, without, "", SLOWEST_CALL_MS)


def _answer(data: Path, without: str | None) -> str:
    """Return what becomes of another process that would own it; where the first was stopped in a commit, it waits."""
    with child(_own, data, without) as other, suppress(TimeoutError):
        wait_until(lambda: other.poll() is not None, OTHERS_PATIENCE_S)
        return str(other.result())
    return "waits"


def _own(data: Path, without: str | None) -> str:
    broken.switch_off(without)
    with closing(LogEnvironment(data)) as log:
        try:
            log.own("ledger")
        except Owned as error:
            return type(error).__name__
        return "owner"
