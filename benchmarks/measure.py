"""Measures one workload in this process: pairs of runs, baseline and ours in turn, with results checked equal."""

from __future__ import annotations

import argparse
import cProfile
import logging
import pstats
import sys
from dataclasses import fields
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from benchmarks import WORKLOADS
from benchmarks.figures import Curve, Measurement
from benchmarks.memory import growth_mib
from benchmarks.running import Ran, run
from benchmarks.shapes import SHAPES
from benchmarks.shapes.shape import Shape
from benchmarks.workload import COMMIT_EVERY, Workload
from planner.model.levers import Levers

SIDES = ("baseline", "ours")


class Differs(Exception):
    """The two sides did not come to the same: no time of theirs counts."""


def measure(workload: Workload, messages: int, pairs: int) -> Measurement:
    """Time `pairs` pairs; raises Differs when a run came to something else than the first baseline."""
    sides = {side: of_side for side in ("baseline", "baseline_inlined", "ours") if (of_side := getattr(workload, side))}
    expected = run(workload, workload.baseline)
    _checked(workload, run(workload, workload.ours), expected)  # one that does not count: what is lazy is done now
    ran: dict[str, list[Ran]] = {side: [] for side in sides}
    for _ in range(pairs):
        for side, of_side in sides.items():
            ran[side].append(_checked(workload, run(workload, of_side), expected))
    ratios = _ratios(ran, "baseline")
    ratio, bar, durable = round(median(ratios), 3), workload.description.bar, workload.description.durable
    if durable and workload.commit_every != COMMIT_EVERY:
        bar = None
    return Measurement(
        workload=workload.description.name,
        title=workload.description.title,
        messages=messages,
        commit_every=workload.commit_every if durable else None,
        pairs=pairs,
        ratio=ratio,
        low=round(min(ratios), 3),
        high=round(max(ratios), 3),
        cpu_ratio=round(median(_ratios(ran, "baseline", "cpu_seconds")), 3),
        ratio_inlined=round(median(_ratios(ran, "baseline_inlined")), 3) if "baseline_inlined" in ran else None,
        bar=bar,
        passed=bar is None or ratio <= bar,
        baseline_s=round(median(one.seconds for one in ran["baseline"]), 4),
        ours_s=round(median(one.seconds for one in ran["ours"]), 4),
    )


def _ratios(ran: dict[str, list[Ran]], side: str, of: str = "seconds") -> list[float]:
    return [getattr(ours, of) / getattr(theirs, of) for theirs, ours in zip(ran[side], ran["ours"], strict=True)]


def trace(shape: Shape) -> Curve:
    """Measure a shape."""
    description = shape.description
    found = shape.figures()
    ratio = None if found.ratio is None else round(found.ratio, 4)
    return Curve(
        workload=description.name,
        title=description.title,
        ratio=ratio,
        bar=description.bar,
        passed=description.bar is None or ratio is None or ratio <= description.bar,
        curve={name: round(value, 3) for name, value in found.curve.items()},
        chart=found.chart,
    )


def _checked(workload: Workload, ran: Ran, expected: Ran) -> Ran:
    if not ran.same_as(expected):
        raise Differs(
            f"{workload.description.name}: {ran.results:,} results (digest {ran.digest[:8]}) where the baseline has "
            f"{expected.results:,} (digest {expected.digest[:8]})"
        )
    return ran


def _profile(workload: Workload) -> None:
    """Show where one run of ours spends its time, on this thread."""
    workload.ready()
    profiler = cProfile.Profile()
    profiler.runcall(workload.ours)
    pstats.Stats(profiler, stream=sys.stderr).strip_dirs().sort_stats("tottime").print_stats(25)


def main() -> None:
    """Print a Measurement or a Curve as JSON, or with `--memory` by how many MiB one run of a side makes us grow."""
    parser = argparse.ArgumentParser(description="Measure one workload or shape in this process.")
    parser.add_argument("name", choices=[*WORKLOADS, *SHAPES])
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--commit-every", type=int, default=COMMIT_EVERY)
    parser.add_argument("--memory", choices=SIDES)
    parser.add_argument("--without", choices=[lever.name for lever in fields(Levers)])
    parser.add_argument("--profile", action="store_true")
    said = parser.parse_args()
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # it tells each try, of which a new broker needs a few
    with TemporaryDirectory(prefix="samza-dsl-benchmark-") as scratch:
        if said.name in SHAPES:
            found: Any = trace(SHAPES[said.name](said.scale, said.pairs, Path(scratch)))
        else:
            kind = WORKLOADS[said.name]
            messages = kind.description.scaled(said.scale)
            workload = kind(messages, Path(scratch), said.commit_every)
            if said.without:
                workload.levers = Levers(**{said.without: False})
            if said.profile:
                _profile(workload)
            if said.memory:
                workload.ready()
                found = growth_mib(getattr(workload, said.memory))
            else:
                found = measure(workload, messages, said.pairs)
        print(msgspec.json.encode(found).decode())


if __name__ == "__main__":
    main()
