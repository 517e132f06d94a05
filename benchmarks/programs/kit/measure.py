"""Measures one program in this process: pairs of runs, by hand and ours in turn, with results checked equal."""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any, NamedTuple

import msgspec

from benchmarks.figures import ProgramFigure
from benchmarks.memory import growth_mib
from benchmarks.programs import PROGRAMS
from benchmarks.programs.kit.on_kafka import OnKafka
from benchmarks.programs.kit.on_log import OnLog
from benchmarks.programs.kit.program import MODES, Program
from benchmarks.programs.kit.sides import SIDES, InMemory, Rows, Sides, differences, digest
from benchmarks.programs.sweep.drawing import draw, program_of

SIDES_OF: dict[str, type[Sides]] = {"memory": InMemory, "log": OnLog, "kafka": OnKafka}


class Differs(Exception):
    """Ours and the program by hand did not come to the same: no time of theirs counts."""


class Timing(NamedTuple):
    """How long one run took."""

    seconds: float
    cpu_seconds: float


def timed(sides: Sides, side: str) -> tuple[Timing, Any]:
    """Time one run of a side; both begin with the same: things in place, and no garbage."""
    sides.ready()
    run: Callable[[], Any] = getattr(sides, side)
    gc.collect()
    began, cpu_began = perf_counter(), process_time()
    result = run()
    return Timing(perf_counter() - began, process_time() - cpu_began), result


def agreed(sides: Sides) -> Rows:
    """Run each side once, and return what both have come to; raises Differs, in words."""
    found = {side: sides.outcome(timed(sides, side)[1]) for side in SIDES}
    if wrong := differences(found["ours"], found["by_hand"]):
        raise Differs(f"{sides.program.name}: {'; '.join(wrong)}")
    return found["by_hand"]


def pairs_of(sides: Sides, pairs: int) -> dict[str, list[Timing]]:
    """Time pairs of runs after one of each that does not count; raises Differs where one comes to something else."""
    expected = digest(agreed(sides))
    timings: dict[str, list[Timing]] = {side: [] for side in SIDES}
    for _ in range(pairs):
        for side in SIDES:
            timing, result = timed(sides, side)
            if digest(sides.outcome(result)) != expected:
                raise Differs(f"{sides.program.name}: a run of {side} came to something else than the one before")
            del result
            timings[side].append(timing)
    return timings


def ratios(timings: dict[str, list[Timing]], of: str) -> list[float]:
    """Return the ratios of the pairs, ours over by hand."""
    both = zip(timings["ours"], timings["by_hand"], strict=True)
    return [getattr(ours, of) / max(getattr(by_hand, of), 1e-9) for ours, by_hand in both]


def measured(program: Program, sides: Sides, messages: int, mode: str, partitions: int, pairs: int) -> ProgramFigure:
    """Return the figures of a program."""
    timings = pairs_of(sides, pairs)
    cpu = ratios(timings, "cpu_seconds")
    ours, by_hand = timings["ours"], timings["by_hand"]
    return ProgramFigure(
        workload=program.name,
        title=program.title,
        mode=mode,
        partitions=partitions,
        messages=messages,
        seed=sides.seed,
        pairs=pairs,
        cpu_ratio=round(median(cpu), 3),
        low=round(min(cpu), 3),
        high=round(max(cpu), 3),
        wall_ratio=round(median(ratios(timings, "seconds")), 3),
        ours_cpu_s=round(median(one.cpu_seconds for one in ours), 4),
        by_hand_cpu_s=round(median(one.cpu_seconds for one in by_hand), 4),
        ours_s=round(median(one.seconds for one in ours), 4),
        by_hand_s=round(median(one.seconds for one in by_hand), 4),
    )


def profile(sides: Sides) -> None:
    """Show where one run of ours spends its time, on this thread."""
    import cProfile
    import pstats

    sides.ready()
    profiler = cProfile.Profile()
    profiler.runcall(sides.ours)
    pstats.Stats(profiler, stream=sys.stderr).strip_dirs().sort_stats("tottime").print_stats(25)


def named(name: str, scratch: Path) -> tuple[Program, int | None]:
    """Return the program of that name, or of that number in a sweep, which has its partitions drawn with it."""
    if not name.isdigit():
        return PROGRAMS[name], None
    drawn = draw(int(name))
    return program_of(drawn, int(name), scratch), drawn.partitions


def main() -> None:
    """Print a ProgramFigure as JSON, or with `--memory` by how many MiB one run of a side makes us grow."""
    parser = argparse.ArgumentParser(description="Measure one program in this process.")
    parser.add_argument("name", help="of a program, or the seed of a random pipeline")
    parser.add_argument("--mode", choices=MODES, default="memory")
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--memory", choices=SIDES)
    parser.add_argument("--profile", action="store_true")
    said = parser.parse_args()
    with TemporaryDirectory(prefix="samza-dsl-program-") as directory:
        scratch = Path(directory)
        program, drawn = named(said.name, scratch)
        partitions, messages = drawn or said.partitions, program.scaled(said.scale)
        streams = program.made(messages, said.seed, partitions)
        sides = SIDES_OF[said.mode](program, streams, said.seed, scratch)
        if said.profile:
            profile(sides)
        if said.memory:
            sides.ready()
            found: Any = growth_mib(getattr(sides, said.memory))
        else:
            found = measured(program, sides, messages, said.mode, partitions, said.pairs)
    print(msgspec.json.encode(found).decode())


if __name__ == "__main__":
    main()
