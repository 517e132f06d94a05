"""The figures that the command finds, of programs, workloads, shapes and peers, and the file that keeps them."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path

import msgspec


class Figure(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """Of what, and where and when it was measured."""

    workload: str
    title: str
    measured: str = ""
    machine: str = ""


class Measurement(Figure, frozen=True, kw_only=True, tag="workload"):
    """Medians over all pairs; `low` and `high` are the smallest and the largest of their ratios.

    `cpu_ratio` is of the processor's time, all threads together: on a busy machine it tells more than the clock.
    `ratio_inlined` is to the loop with everything inlined by hand, where there is one. A durable workload has a bar
    only where it commits as often as the bar is meant for.
    """

    messages: int
    commit_every: int | None
    pairs: int
    ratio: float
    low: float
    high: float
    cpu_ratio: float
    ratio_inlined: float | None = None
    bar: float | None
    passed: bool
    baseline_s: float
    ours_s: float
    baseline_mib: float | None = None
    ours_mib: float | None = None


class Chart(msgspec.Struct, frozen=True):
    """Lines to draw: points of x and y by the name of the line; `log` names the axes that are logarithmic."""

    x: str
    y: str
    lines: dict[str, list[tuple[float, float]]]
    log: str = ""


class Curve(Figure, frozen=True, kw_only=True, tag="shape"):
    """The figures of a shape; `ratio` is None where they are only shown."""

    ratio: float | None
    bar: float | None
    passed: bool
    curve: dict[str, float]
    chart: Chart | None = None


class PeerFigure(Figure, frozen=True, kw_only=True, tag="peer"):
    """What a peer took for a workload, over the hand loop in the same process; or why nothing is known."""

    peer: str
    version: str = ""
    variant: str = ""
    messages: int = 0
    pairs: int = 0
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    baseline_s: float | None = None
    peer_s: float | None = None
    peer_mib: float | None = None
    note: str = ""
    missing: str = ""


SPARK_BAR = 1.2
"""The most that ours may take on Spark, over the better of the programs by hand."""


class SparkFigure(Figure, frozen=True, kw_only=True, tag="spark"):
    """Medians over all rounds of a job on Spark, by side, in seconds; `ratio` is ours over the better one by hand.

    `ratios` are those of each round, in processor's seconds. `driver_mib` is by how much the driver's Python grew at
    most: where rows were collected they would be there.
    """

    records: int
    rounds: int
    cpu_s: dict[str, float]
    wall_s: dict[str, float]
    driver_mib: dict[str, float]
    ratio: float | None
    ratios: list[float]

    @property
    def passed(self) -> bool:
        """Whether ours took no more than the bar allows."""
        return self.ratio is None or self.ratio <= SPARK_BAR

    @property
    def us_per_record(self) -> float:
        """The microseconds of the processor that ours took for a record."""
        return self.cpu_s["ours"] / self.records * 1e6


PROGRAM_BAR = 1.5
"""The most of the processor's time that a program may take, over the one by hand."""


class ProgramFigure(Figure, frozen=True, kw_only=True, tag="program"):
    """Medians over all pairs, ours over the program by hand; `low` and `high` are the extremes of the CPU ratios.

    `peak` is the largest growth of anonymous memory during a run, in MiB.
    """

    mode: str
    partitions: int
    messages: int
    seed: int
    pairs: int
    cpu_ratio: float
    low: float
    high: float
    wall_ratio: float
    ours_cpu_s: float
    by_hand_cpu_s: float
    ours_s: float
    by_hand_s: float
    ours_peak_mib: float | None = None
    by_hand_peak_mib: float | None = None

    @property
    def passed(self) -> bool:
        """Whether ours took no more than the bar allows."""
        return self.cpu_ratio <= PROGRAM_BAR

    @property
    def per_second(self) -> float:
        """Messages of ours, a second by the clock."""
        return self.messages / self.ours_s


AnyFigure = Measurement | Curve | PeerFigure | SparkFigure | ProgramFigure


def stamped(figure: AnyFigure) -> AnyFigure:
    """Return the figure with today's date and this machine."""
    return msgspec.structs.replace(figure, measured=date.today().isoformat(), machine=machine())


def machine() -> str:
    cpus = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*: (.*)$", cpus.read_text(), re.MULTILINE) if cpus.exists() else None
    model = found[1] if found else platform.machine()
    system = f"{platform.system()} {platform.release()}"
    return f"{os.cpu_count()} cores of {model}, {system}, Python {platform.python_version()}"


def subject(figure: AnyFigure) -> tuple[str, ...]:
    """Return what a figure is of: a newer one of the same replaces it."""
    if isinstance(figure, Measurement):
        return "workload", figure.workload, f"{figure.commit_every}"
    if isinstance(figure, PeerFigure):
        return "peer", figure.peer, figure.workload, figure.variant
    if isinstance(figure, SparkFigure):
        return "spark", figure.workload, f"{figure.records}"
    if isinstance(figure, ProgramFigure):
        return "program", figure.workload, figure.mode, f"{figure.partitions}"
    return "shape", figure.workload


def merged(old: Iterable[AnyFigure], new: Iterable[AnyFigure]) -> list[AnyFigure]:
    """Return the old figures with the new in their places, and behind them those that are new altogether.

    What was known of a peer and a workload goes as a whole: what it could do before, it may not do now.
    """
    new = list(new)
    again = {(figure.peer, figure.workload) for figure in new if isinstance(figure, PeerFigure)}
    peers = {peer for peer, _ in again}

    def is_kept(figure: AnyFigure) -> bool:
        if not isinstance(figure, PeerFigure) or figure.peer not in peers:
            return True
        return bool(figure.workload) and not again & {(figure.peer, figure.workload), (figure.peer, "")}

    return list(({subject(one): one for one in old if is_kept(one)} | {subject(one): one for one in new}).values())


def load(path: Path) -> list[AnyFigure]:
    """Return the figures of a file, none where there is no file."""
    return msgspec.json.decode(path.read_bytes(), type=list[AnyFigure]) if path.exists() else []


def save(path: Path, figures: Sequence[AnyFigure]) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(figures)) + b"\n")
