"""Has several processes try to own an application at once, and kills the owner at times."""

import os
import random
import signal
import time
from contextlib import closing, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from operators.core.base import Batch
from runtime.model.errors import Fenced, Owned
from runtime.ports.commits import Commit
from runtime.ports.state import StateWrites
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.log.environment import LogEnvironment
from tests.faults import broken
from tests.faults.trials import Order, Verdict

SAFEGUARD = "one owner per application"
RACERS = 3
COUNT = b"count"


class Racer:
    """A process that tries to own the application when it is told to, and commits when it does."""

    def __init__(self, data: Path, without: str | None) -> None:
        self.data, self.without = data, without
        self._start()

    def _start(self) -> None:
        self._pipe, theirs = get_context("fork").Pipe()
        self._process = get_context("fork").Process(target=_race, args=(self.data, theirs, self.without), daemon=True)
        self._process.start()
        theirs.close()

    def tell(self, order: object) -> None:
        self._pipe.send(order)

    def hear(self) -> object:
        return self._pipe.recv()

    def kill(self) -> None:
        """Kill it, and start another in its place."""
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.join()
        self._start()

    def end(self) -> None:
        self._process.kill()
        self._process.join()


def _race(data: Path, pipe: Connection, without: str | None) -> None:
    """Per order, which is a delay in seconds: try to own, tell what came of it, and close when told to."""
    broken.switch_off(without)
    while True:
        with suppress(EOFError):
            delay_s = pipe.recv()
        with closing(LogEnvironment(data)) as log:
            until = time.perf_counter() + delay_s
            while time.perf_counter() < until:
                pass
            try:
                generation = log.own("app")
                _count(log, generation)
                pipe.send(("owner", generation))
            except (Owned, Fenced) as error:
                pipe.send((type(error).__name__, 0))
            pipe.recv()


def _count(log: LogEnvironment, generation: int) -> None:
    count = int(log.state_get("app", "st", 0, COUNT) or 0) + 1
    state = StateWrites("st", 0, [(COUNT, b"%d" % count)])
    log.commit(Commit("app", generation, [Append("s", 0, Batch([b"%d" % count]))], [state], {}))


def campaign(order: Order) -> Verdict:
    """Race again and again; a third of the owners is killed before the others give up."""
    data = order.work / "data"
    with closing(LogEnvironment(data)) as log:
        log.create_stream("s", StreamConfig())
    verdict = Verdict()
    racers = [Racer(data, SAFEGUARD if order.broken else None) for _ in range(RACERS)]
    try:
        for seed in range(order.seed, order.seed + order.times):
            chance = random.Random(seed)
            for racer in racers:
                racer.tell(chance.choice((0, 0, chance.random() / 1_000)))
            found = [racer.hear() for racer in racers]
            owners = [racer for racer, (kind, _) in zip(racers, found, strict=True) if kind == "owner"]
            killed = chance.random() < 0.3
            for racer in racers:
                if killed and racer in owners:
                    racer.kill()
                else:
                    racer.tell("close")
            if len(owners) == 1:
                verdict.passed({"owners killed": int(killed)})
            else:
                verdict.fail(seed, f"{len(owners)} owners: {found}")
    finally:
        for racer in racers:
            racer.end()
    with closing(LogEnvironment(data)) as log:
        rows = [log.read("s", 0, offset).batch.values[0] for offset in range(log.offsets("s", 0).end)]  # type: ignore[union-attr]
    if rows != [b"%d" % number for number in range(1, len(rows) + 1)]:
        verdict.fail(order.seed, "two owners have counted from the same number")
    return verdict
