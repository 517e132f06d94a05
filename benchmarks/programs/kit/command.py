"""What `python -m benchmarks --programs` does: measures each program in fresh processes, and shows a table of them."""

from __future__ import annotations

import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from datetime import date

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks import page
from benchmarks.figures import AnyFigure, ProgramFigure, SparkFigure, load, machine, merged, save
from benchmarks.programs.kit.figure import Spread, slopes
from benchmarks.programs.kit.program import MODES
from benchmarks.programs.kit.sides import SIDES

PARTITIONS = (1, 4, 16, 64)
PAIRS = 5
SPARK_PAIRS = 3
SMALL = 2_000
"""The records of a job on Spark in a quick run."""
SWEEP_PAIRS = 3
QUICK_SCALE = 0.01
SEEDS = 10_000
"""The pipelines that a seed has."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add what says which programs run, and how."""
    parser.add_argument(
        "--programs",
        type=lambda text: text.split(",") if text else [],
        nargs="?",
        const=[],
        metavar="readme,fraud",
        help="measure whole programs, all or these of them, instead of workloads",
    )
    parser.add_argument(
        "--partitions",
        type=lambda text: [int(number) for number in text.split(",")],
        default=list(PARTITIONS),
        metavar="1,4,16,64",
        help="the partitions that the inputs of a program have",
    )
    parser.add_argument(
        "--on",
        choices=["spark"],
        help="measure programs as jobs of Spark, each beside DataFrames and its own Python functions by hand",
    )
    parser.add_argument(
        "--records",
        type=lambda text: [int(number) for number in text.split(",")],
        default=[],
        metavar="N,M",
        help="the records of a job on Spark; of several numbers the cost of a record is to stay the same",
    )
    parser.add_argument("--mode", choices=MODES, action="append", help="where a program runs (default: all of them)")
    parser.add_argument(
        "--sweep",
        type=int,
        metavar="N",
        help="measure so many random pipelines, each beside a loop put together with it",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the programs' inputs and of the sweep's pipelines")


def run(said: Namespace, console: Console) -> int:
    """Measure what was asked for, and show it; the status is 1 where a program fails, or differs from the one by hand.

    The figures are written to `--json` as they come.
    """
    if said.on is not None:
        return run_on_spark(said, console)
    figures: list[ProgramFigure] = []
    jobs = list(_jobs(said))
    for name, options in jobs:
        figure = _figure(name, options, said)
        if figure is None:
            console.print(f"{name} {' '.join(options)}: failed, as is said above", soft_wrap=True)
            continue
        figures.append(figure)
        if said.json is not None:
            save(said.json, figures)
        console.print(line_of(figure), soft_wrap=True)
    _write(said, figures)
    if said.sweep and figures:
        show_spread(Spread.of(figures), console)
    else:
        show(figures, console)
    return int(len(figures) < len(jobs))


def _write(said: Namespace, figures: Sequence[AnyFigure]) -> None:
    """Write the page, where that was asked for; random pipelines are not on it."""
    if said.write is None or said.quick or said.sweep:
        return
    kept = said.write.with_suffix(".json")
    save(kept, merged(load(kept), figures))
    page.write(said.write, load(kept))


def run_on_spark(said: Namespace, console: Console) -> int:
    """Measure jobs on Spark, and show them; the status is 1 where one fails, or takes more than the bar allows."""
    from benchmarks.programs.spark_programs import JOBS

    if unknown := set(said.programs).difference(JOBS):
        raise SystemExit(f"no {', '.join(sorted(unknown))}; there are {', '.join(JOBS)}")
    names, sizes = said.programs or [*JOBS], said.records or ([SMALL] if said.quick else [])
    command = [sys.executable, "-m", "benchmarks.programs.kit.on_spark", *names]
    command += ["--pairs", f"{said.pairs or SPARK_PAIRS}"]
    command += ["--records", *map(str, sizes)] if sizes else []
    found: list[SparkFigure] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE) as measuring:
        assert measuring.stdout is not None
        for figure in map(msgspec.json.Decoder(SparkFigure).decode, measuring.stdout):
            found.append(figure)
            console.print(spark_line_of(figure), soft_wrap=True)
            if said.json is not None:
                save(said.json, found)
    _write(said, found)
    failed = measuring.returncode or len(found) < len(names) * max(len(sizes), 1)
    return int(bool(failed) or not (said.quick or all(one.passed for one in found)))


def spark_line_of(one: SparkFigure) -> str:
    """Return a figure of a job on Spark as a line."""
    took = ", ".join(f"{side} {seconds:.2f} s ({one.wall_s[side]:.2f} s)" for side, seconds in one.cpu_s.items())
    ratio = "" if one.ratio is None else f" {one.ratio:.2f} x ({min(one.ratios):.2f} to {max(one.ratios):.2f}),"
    return (
        f"{one.workload}, {one.records:,} records:{ratio} CPU (time) {took}; {one.us_per_record:.2f} us a record, "
        f"the driver grew by {one.driver_mib['ours']:.1f} MiB"
    )


def _jobs(said: Namespace) -> Iterator[tuple[str, list[str]]]:
    """Yield the names of what is measured, with the options of each."""
    scale = said.scale or (QUICK_SCALE if said.quick else 1)
    if said.sweep:
        for number in range(said.sweep):
            seed = f"{said.seed * SEEDS + number}"
            for mode in said.mode or MODES[:1]:
                yield seed, ["--mode", mode, "--scale", f"{scale}", "--seed", seed]
        return
    from benchmarks.programs import PROGRAMS

    if unknown := set(said.programs).difference(PROGRAMS):
        raise SystemExit(f"no {', '.join(sorted(unknown))}; there are {', '.join(PROGRAMS)}")
    for name in said.programs or PROGRAMS:
        for mode in said.mode or [mode for mode in MODES if mode != "kafka" or PROGRAMS[name].is_on_kafka]:
            for partitions in said.partitions:
                yield (
                    name,
                    ["--mode", mode, "--partitions", f"{partitions}", "--scale", f"{scale}", "--seed", f"{said.seed}"],
                )


def _figure(name: str, options: list[str], said: Namespace) -> ProgramFigure | None:
    """Measure one of them in a fresh process, and the memory of each side in others; None where it fails."""
    command = [name, *options]
    pairs = said.pairs or (SWEEP_PAIRS if said.sweep else PAIRS)
    try:
        timed = [*command, "--pairs", f"{pairs}", *(["--profile"] if said.profile else [])]
        found = msgspec.json.decode(_output(timed), type=ProgramFigure)
        if said.quick or said.sweep:
            return found
        mib = {f"{side}_peak_mib": msgspec.json.decode(_output([*command, "--memory", side])) for side in SIDES}
    except subprocess.CalledProcessError:
        return None
    return msgspec.structs.replace(found, **mib, measured=date.today().isoformat(), machine=machine())


def _output(command: list[str]) -> bytes:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.programs.kit.measure", *command], stdout=subprocess.PIPE, check=True
    ).stdout


def line_of(one: ProgramFigure) -> str:
    """Return a figure as a line, to be read while others are measured."""
    return (
        f"{one.workload} {one.mode} {one.partitions}: CPU {one.cpu_ratio:.2f} x ({one.low:.2f} to {one.high:.2f}), "
        f"time {one.wall_ratio:.2f} x, {one.ours_cpu_s:.3f} s of CPU over {one.by_hand_cpu_s:.3f} s"
    )


def show(figures: list[ProgramFigure], console: Console) -> None:
    """Show a table: a row for each program, mode and number of partitions, and the slope beside the last of them."""
    table = Table(title="whole programs, ours over the program by hand")
    for name in (
        "program",
        "mode",
        "partitions",
        "messages",
        "CPU",
        "spread",
        "time",
        "slope",
        "MiB",
        "by hand",
        "per s",
    ):
        table.add_column(name, justify="left" if name in ("program", "mode") else "right", no_wrap=True)
    slope_of = slopes(figures)
    most: dict[tuple[str, str], int] = {}
    for one in figures:
        of = (one.workload, one.mode)
        most[of] = max(most.get(of, 0), one.partitions)
    for one in figures:
        of = (one.workload, one.mode)
        slope = f"{slope_of[of]:.2f}" if of in slope_of and one.partitions == most[of] else ""
        mib = ["?" if peak is None else f"{peak:.0f}" for peak in (one.ours_peak_mib, one.by_hand_peak_mib)]
        table.add_row(
            one.workload,
            one.mode,
            f"{one.partitions}",
            f"{one.messages:,}",
            f"{one.cpu_ratio:.2f} x",
            f"{one.low:.2f}-{one.high:.2f}",
            f"{one.wall_ratio:.2f} x",
            slope,
            *mib,
            f"{one.per_second:,.0f}",
        )
    console.print(table)


def show_spread(spread: Spread, console: Console) -> None:
    """Show how a sweep is distributed, and the pipeline that is worst."""
    worst = spread.worst
    console.print(f"p50 {spread.p50:.2f} x, p90 {spread.p90:.2f} x, worst {worst.cpu_ratio:.2f} x: {worst.workload}")
    console.print(worst.title, soft_wrap=True, markup=False)
