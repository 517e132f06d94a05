"""Plays the scenarios of many seeds, and tells of those that fail: made smaller, and with their schedule."""

from __future__ import annotations

import argparse
import gc
import sys
import time
import traceback
from collections import Counter

from tests.scale import positive
from tests.simulation.kafka_world import KafkaWorld
from tests.simulation.scenario import KINDS, Kind, Scenario, scenario
from tests.simulation.shrink import shrink
from tests.simulation.world import World

MOST_SHOWN = 3
LAST_LINES = 60


def failure(what: Scenario, trace: list[str] | None = None, struck: Counter[str] | None = None) -> BaseException | None:
    """Play a scenario, and return what is wrong; the faults that came over it are counted in `struck`."""
    try:
        world = KafkaWorld(what, trace) if what.on_kafka else World(what, trace)
        try:
            world.play()
        finally:
            if struck is not None:
                struck.update(+world.struck)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        return error
    return None


def tell(seed: int, kind: Kind, error: BaseException, whole: bool) -> None:
    """Print a failing seed: its scenario, as small as it can be made, what is wrong, and the schedule."""
    print(f"seed {seed} fails; again: python -m tests.simulation --kind {kind} --seeds 1 --seed {seed}")
    traceback.print_exception(error, file=sys.stdout)
    small = shrink(scenario(seed, kind), lambda one: type(failure(one)) is type(error))
    trace: list[str] = []
    print("made smaller:")
    print(f"  {small}")
    print(f"which fails with {failure(small, trace)!r}")
    print("its schedule:" if whole else f"the last of its schedule (all of it with --seeds 1 --seed {seed}):")
    print("\n".join(trace if whole else trace[-LAST_LINES:]))


def main(arguments: list[str] | None = None) -> int:
    """Play seeds, and return how many failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=positive, default=1_000, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--kind", choices=KINDS, default="crashes")
    parser.add_argument("--first", action="store_true", help="stop at the first that fails")
    parser.add_argument("--brief", action="store_true", help="only say what fails")
    asked = parser.parse_args(arguments)
    gc.freeze()  # what was imported stays, and need not be looked through for garbage
    began, failed, played, disturbed = time.monotonic(), 0, 0, 0
    faults: Counter[str] = Counter()
    for seed in range(asked.seed, asked.seed + asked.seeds):
        played += 1
        struck: Counter[str] = Counter()
        error = failure(scenario(seed, asked.kind), struck=struck)
        disturbed += bool(struck)
        faults += struck
        if error is not None:
            failed += 1
            if failed <= MOST_SHOWN and not asked.brief:
                tell(seed, asked.kind, error, whole=asked.seeds == 1)
            else:
                print(f"seed {seed} fails: {error!r}")
            if asked.first:
                break
    print(f"{played / (time.monotonic() - began):,.0f} seeds a second")
    told = ", ".join(f"{number:,} {kind}" for kind, number in faults.most_common())
    print(f"{disturbed:,} of {played:,} were struck: {told or 'nothing'}")
    print(f"{played} seeds, {failed} failed")
    return failed


if __name__ == "__main__":
    sys.exit(min(main(), 1))
