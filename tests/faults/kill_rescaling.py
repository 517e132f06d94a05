"""Kills runs and their containers with kill -9 around splits and merges of their tasks, while records come in."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from operators.core.base import Batch
from runtime.model.assignment import Scale
from runtime.opening.rescaling import scalings
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.log.environment import LogEnvironment
from tests.faults import kill_container
from tests.faults.processes import child, wait_until
from tests.faults.trials import Order, Verdict

SAFEGUARD = "one transaction per commit"
SIZES = (Scale(4, 3), Scale(2, 2), Scale(1, 2), Scale(4, 2), Scale(2, 3), Scale(1, 3))
"""What is asked for; also while the one before is taken up. Of equal factors containers alone come and go."""
KILLS_PER_RUN, MOST_MOVES = 12, 200
"""About how often a run is killed before its input ends; then another one begins from nothing."""
EACH, PAUSE_S = 5, 0.02
"""So many numbers come to each partition at a time, all the while: there is always something that a kill can undo."""
LONGEST_S, PATIENCE_S = 0.5, 5.0
"""A kill comes this long after something has happened, at most; and so long is waited for that."""
SHARE_OF_CUTS, SHARE_OF_STARTERS = 0.5, 0.2
"""How many kills wait for the cut of tasks, and how many are of the process that has started the containers."""


def campaign(order: Order) -> Verdict:
    """Kill as often as was ordered; whether a kill did harm is known at the end of its run, so all of a run count."""
    verdict, seed = Verdict(), order.seed
    while verdict.done < order.times:
        with TemporaryDirectory(dir=order.work) as work:
            trial = Trial(seed, Path(work), SAFEGUARD if order.broken else "")
            most = min(KILLS_PER_RUN, order.times - verdict.done)
            try:
                counts = trial.run(most)
            except (AssertionError, TimeoutError, subprocess.TimeoutExpired) as error:
                verdict.fail(seed, error)
                verdict.failed += max(trial.kills, 1) - 1
                verdict.done += max(trial.kills, 1) - 1
            else:
                verdict.passed(counts)
                verdict.done += trial.kills - 1
        print(f"run {seed}: {verdict.done:,} kills, {verdict.failed:,} failed", flush=True)
        seed += 1
    return verdict


def _feed(data: Path, enough: Path) -> int:
    """Have numbers come, a few at a time, until there are enough; return how many each partition has got."""
    given = 0
    with closing(LogEnvironment(data)) as log:
        log.create_stream("numbers", StreamConfig(partitions=kill_container.PARTITIONS))
        while not enough.exists():
            for partition in range(kill_container.PARTITIONS):
                numbers = range(given, given + EACH)
                values = [b"%d" % (number * kill_container.PARTITIONS + partition) for number in numbers]
                log.append([Append("numbers", partition, Batch(values))])
            given += EACH
            time.sleep(PAUSE_S)
        log.end_stream("numbers")
    return given


class Trial:
    """One run from its first record to its last, in as many lives as it takes."""

    def __init__(self, seed: int, work: Path, without: str) -> None:
        self.kills = 0
        self._chance = random.Random(seed)
        self._work, self._without = work, without
        self._starts = self._containers = 0
        self._job: subprocess.Popen[bytes] | None = None

    def run(self, most: int) -> dict[str, int]:
        """Kill it so often, and return what was counted; raises AssertionError where a number is not counted once."""
        app, moves, enough = kill_container.app.name, 0, self._work / "enough"
        # Forked before the log is opened here: a process opens it once.
        with child(_feed, self._work / "data", enough) as feeder, closing(LogEnvironment(self._work / "data")) as log:
            try:
                wait_until(lambda: "numbers" in log.streams() or feeder.poll() is not None)
                self._begin()
                while self.kills < most:
                    moves += 1
                    assert moves < MOST_MOVES, "no container came up to be killed"
                    changes = len(scalings(log.checkpoints(app)))
                    asked = log.asked_scale(app)
                    before = asked.factor, asked.containers
                    others = [one for one in SIZES if (one.factor, one.containers) != before]
                    log.ask_scale(app, self._chance.choice(others))
                    if self._chance.random() < SHARE_OF_CUTS:
                        self._await(lambda changes=changes: len(scalings(log.checkpoints(app))) > changes)
                    time.sleep(self._chance.uniform(0, LONGEST_S))
                    self._kill()
                enough.touch()
                given = feeder.result()
                wait_until(lambda: self._ended() is not None)
            finally:
                self._end()
            changes = len(scalings(log.checkpoints(app)))
        kill_container.check(self._work, given)
        return {"kills of starters": self._starts - 1, "splits and merges": changes, "runs": 1}

    def _begin(self) -> None:
        self._starts += 1
        self._containers = self._chance.randint(1, 3)
        self._job = kill_container.start(self._work, self._containers, self._without)

    def _await(self, happened: Callable[[], bool]) -> None:
        """Wait for a while for what may as well not happen, as where a size is asked for that the run has."""
        with suppress(TimeoutError):
            wait_until(lambda: happened() or self._ended() is not None, PATIENCE_S)

    def _kill(self) -> None:
        """Kill a container, or now and then, or where there is none, the process that has started them."""
        assert self._job is not None
        pid = self._job.pid
        is_starter = self._containers == 1 or self._chance.random() < SHARE_OF_STARTERS
        if not is_starter:
            self._await(lambda: bool(kill_container.containers(self._work, pid)))
        assert self._ended() is None, "the run has ended before its input did"
        containers = kill_container.containers(self._work, pid)
        if containers and not is_starter:
            with suppress(ProcessLookupError):
                os.kill(self._chance.choice(containers), signal.SIGKILL)
                self.kills += 1
        elif kill_container.is_owned(self._work):
            self._end()
            self.kills += 1
            wait_until(lambda: not kill_container.is_owned(self._work))
            self._begin()

    def _ended(self) -> int | None:
        """Return how the run has ended, None while it goes on; raises AssertionError where it has failed by itself."""
        assert self._job is not None
        status = self._job.poll()
        if status:
            assert self._job.stderr is not None
            raise AssertionError(f"the run failed by itself: {self._job.stderr.read().decode(errors='replace')}")
        return status

    def _end(self) -> None:
        if self._job is not None:
            self._job.kill()
            self._job.communicate(timeout=kill_container.PATIENCE_S)
