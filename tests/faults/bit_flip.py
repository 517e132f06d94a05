"""Changes a bit of the ledger's files, or cuts one short, and reads what a verification then finds no fault with."""

import random
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from planner.model.levers import Levers
from runtime.model.errors import EnvironmentFault
from runtime.systems.log.environment import LogEnvironment, verify
from tests.faults import broken, ledger
from tests.faults.processes import Child, apart
from tests.faults.trials import Order, Verdict
from tests.simulation.crash import NOW_MS, run_once

SAFEGUARD = "checksums"
NUMBERS, MORE = 1_000, 1_200
"""The numbers before the damage, and after it."""
FILES = ("data.mdb", "lock.mdb", "format", "newest")
META_BYTES = 160
"""How far the first two pages say which state is the newest."""
TRIALS_PER_CHILD = 100
GOES_ON = 10
"""The ledger goes on after every so many of the changes that are harmless."""

Damage = Callable[[random.Random, Path], str]
"""Changes something in a directory, and says what."""


def campaign(order: Order) -> Verdict:
    """Flip bits: no wrong record may come out of a directory that was verified."""
    return damaged(order, SAFEGUARD if order.broken else None, flip)


def damaged(order: Order, without: str | None, damage: Damage) -> Verdict:
    """Make trials in children, since a damaged file may kill who reads it without having verified it."""
    apart(_write, order.work / "whole", without)
    verdict = Verdict()
    seed, end = order.seed, order.seed + order.times
    while seed < end:
        stop = min(seed + TRIALS_PER_CHILD, end)
        child = Child(_trials, range(seed, stop), order.work, without, damage)
        status = child.wait()
        for line in child.output().decode().splitlines():
            number, _, found = line.partition(" ")
            seed = int(number) + 1
            if found.startswith("silently wrong"):
                verdict.fail(int(number), found)
            else:
                verdict.passed({found: 1})
        if status:
            verdict.fail(seed, f"the process that verifies and reads ended with {status}: {child.errors()}")
            seed += 1
        child.close()
    return verdict


def flip(chance: random.Random, data: Path) -> str:
    """Change a bit: mostly of the data file, every fourth time where it says which state is the newest."""
    file = chance.choices([data / name for name in FILES], [20, 1, 1, 1])[0]
    content = bytearray(file.read_bytes())
    place = chance.randrange(len(content))
    if file.name == "data.mdb" and chance.random() < 0.25:
        place = chance.choice([0, 4096]) + chance.randrange(META_BYTES)
    bit = chance.randrange(8)
    content[place] ^= 1 << bit
    file.write_bytes(content)
    return f"bit {bit} of byte {place} of {file.name}"


def _write(data: Path, without: str | None) -> None:
    """Make a directory as a run leaves it in its middle; its data file is always the same."""
    broken.switch_off(without)
    ledger.fill(data, NUMBERS, end=False)
    with closing(LogEnvironment(data, now_ms=lambda: NOW_MS)) as log:
        run_once(ledger.ledger(), log, until_now=True, levers=Levers(gathering=False))


def _trials(seeds: range, work: Path, without: str | None, damage: Damage) -> None:
    broken.switch_off(without)
    expected = contents(work / "whole")
    data = work / "damaged"
    for seed in seeds:
        shutil.rmtree(data, ignore_errors=True)
        shutil.copytree(work / "whole", data)
        what = damage(random.Random(seed), data)
        print(seed, _found(data, seed, what, expected), flush=True)


def _found(data: Path, seed: int, what: str, expected: object) -> str:
    try:
        if verify(data):
            return "found by verification"
    except EnvironmentFault:
        return "refused"
    try:
        if contents(data) != expected:
            return f"silently wrong: {what}"
    except EnvironmentFault as error:
        return f"silently wrong: {what}: verification passed, and reading says {error}"
    if seed % GOES_ON == 0:
        ledger.fill(data, MORE)
        ledger.ledger().run(data)
        ledger.audit(data, MORE, ledger.Told(NUMBERS, NUMBERS), done=True)
        if findings := verify(data):
            return f"silently wrong: {what}: harmless at first, and then {findings}"
    return "harmless"


def contents(data: Path) -> Any:
    """Return all that can be read from a directory."""
    with closing(LogEnvironment(data)) as log:
        streams = log.streams()
        rows = {
            (stream, partition): (log.offsets(stream, partition), list(_rows(log, stream, partition)))
            for stream, config in streams.items()
            for partition in range(config.partitions)
        }
        stores = log.stores("ledger")
        state = {(store, task): list(log.state_range("ledger", store, task)) for store in stores for task in range(2)}
        return streams, rows, state, log.checkpoints("ledger"), log.generation("ledger")


def _rows(log: LogEnvironment, stream: str, partition: int) -> Any:
    offset = log.offsets(stream, partition).start
    while read := log.read(stream, partition, offset):
        yield read
        offset = read.next_offset
