"""Writes the page of figures: hand-written text from a template, tables and charts from what was measured."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks import WORKLOADS
from benchmarks.charts import TIMES, Dot, dots, lines, readable
from benchmarks.figures import (
    PROGRAM_BAR,
    SPARK_BAR,
    AnyFigure,
    Curve,
    Measurement,
    PeerFigure,
    ProgramFigure,
    SparkFigure,
)
from benchmarks.peers import PEERS
from benchmarks.programs import PROGRAMS
from benchmarks.programs.kit.figure import slopes
from benchmarks.shapes import SHAPES
from benchmarks.workload import COMMIT_EVERY

TEMPLATE = Path(__file__).with_name("performance.md")
PLACE = re.compile(r"^<!-- ([a-z]+)(?: (\S+))? -->$", re.MULTILINE)
NOTHING = "Not measured yet."

Table = list[list[str]]


class Page:
    """What is known, as the pieces of Markdown that the template asks for; `pictures` are the charts by file name."""

    def __init__(self, figures: Iterable[AnyFigure], folder: str) -> None:
        self._folder = folder
        figures = list(figures)
        self._figures = figures
        self._points = sorted(
            (one for one in figures if isinstance(one, Measurement)), key=lambda one: order(WORKLOADS, one.workload)
        )
        self._curves = {one.workload: one for one in figures if isinstance(one, Curve)}
        self._peers = sorted(
            (one for one in figures if isinstance(one, PeerFigure)),
            key=lambda one: (order(PEERS, one.peer), order(WORKLOADS, one.workload), one.variant),
        )
        self._shown: set[str] = set()
        self.pictures: dict[str, str] = {}

    def text(self, template: str) -> str:
        """Return the template with everything in its place."""
        pieces: dict[str, Callable[[str], str]] = {
            "machine": self._machine,
            "programs": self._programs,
            "workloads": self._workloads,
            "commits": self._commits,
            "peers": self._peers_by_workload,
            "notes": self._notes,
            "shape": self._shape,
            "shapes": self._other_shapes,
            "spark": self._on_spark,
        }
        return PLACE.sub(lambda found: pieces[found[1]](found[2] or ""), template)

    def _machine(self, _: str) -> str:
        days = sorted({one.measured for one in self._figures})
        machines = sorted({one.machine for one in self._figures})
        if not days:
            return NOTHING
        return f"Measured {' to '.join(dict.fromkeys((days[0], days[-1])))} on {'; '.join(machines)}."

    def _programs(self, _: str) -> str:
        found: dict[tuple[str, str], dict[int, ProgramFigure]] = {}
        figures = [one for one in self._figures if isinstance(one, ProgramFigure)]
        for one in sorted(figures, key=lambda one: (order(PROGRAMS, one.workload), one.partitions)):
            found.setdefault((one.workload, one.mode), {})[one.partitions] = one
        if not found:
            return NOTHING
        least = [by_partitions[min(by_partitions)] for by_partitions in found.values()]
        chart = self._picture(
            "programs",
            dots(
                "processor time over that of the program by hand (lower is better; red: the bar)",
                [Dot(f"{one.workload}, {one.mode}", one.cpu_ratio, one.low, one.high, PROGRAM_BAR) for one in least],
            ),
        )
        head = [
            "",
            "where",
            f"ratio (bar: {PROGRAM_BAR})",
            "spread",
            "more partitions",
            "a message: hand, ours",
            "hand, ours: MiB",
        ]
        slope_of = slopes(figures)
        rows = [program_row(by_partitions, slope_of.get(of)) for of, by_partitions in found.items()]
        return f"{chart}\n\n{markdown(head, rows)}"

    def _workloads(self, _: str) -> str:
        points = [one for one in self._points if one.commit_every in (None, COMMIT_EVERY)]
        if not points:
            return NOTHING
        rows = [Dot(f"{one.workload}  {short(one.title)}", one.ratio, one.low, one.high, one.bar) for one in points]
        chart = self._picture("workloads", dots("time over the hand loop's (lower is better; red: the bar)", rows))
        head = [
            "",
            "what",
            "bar",
            "ratio",
            "spread",
            "CPU",
            "over all inlined",
            "hand, ours: messages/s",
            "hand, ours: MiB",
        ]
        return f"{chart}\n\n{markdown(head, map(point_row, points))}"

    def _commits(self, _: str) -> str:
        ratios: dict[str, dict[int, Measurement]] = {}
        for one in self._points:
            if one.commit_every is not None:
                ratios.setdefault(one.workload, {})[one.commit_every] = one
        intervals = sorted({interval for found in ratios.values() for interval in found})
        if not intervals:
            return NOTHING
        head = ["", *(f"every {interval:,}" for interval in intervals)]
        rows = [
            [name, *(commit_cell(found[interval]) if interval in found else "" for interval in intervals)]
            for name, found in ratios.items()
        ]
        return markdown(head, rows)

    def _peers_by_workload(self, _: str) -> str:
        timed = [one for one in self._peers if one.ratio is not None]
        if not timed:
            return NOTHING
        ours = {one.workload: one for one in self._points if one.commit_every in (None, COMMIT_EVERY)}
        names = [name for name in WORKLOADS if any(one.workload == name for one in timed)]
        rows = [["**samza-dsl**", *(f"**{ours[name].ratio:.2f}**" if name in ours else "" for name in names)]]
        for peer in dict.fromkeys(one.peer for one in self._peers):
            best = {name: [one for one in timed if (one.peer, one.workload) == (peer, name)] for name in names}
            cells = [readable(min(one.ratio or 0 for one in found)) if found else "-" for found in best.values()]
            rows.append([peer, *cells])
        chart = self._picture("peers", dots("time over the hand loop's, ours in blue", self._peer_dots(names, timed)))
        return f"{chart}\n\n{markdown(['', *names], rows)}"

    def _peer_dots(self, names: list[str], timed: list[PeerFigure]) -> list[Dot]:
        rows = []
        for name in names:
            rows += [
                Dot(f"{name}  samza-dsl", one.ratio, one.low, one.high, leads=True)
                for one in self._points
                if one.workload == name and one.commit_every in (None, COMMIT_EVERY)
            ]
            found = sorted((one for one in timed if one.workload == name), key=lambda one: one.ratio or 0)
            rows += [
                Dot(f"{one.peer} {one.variant}".strip(), one.ratio or 0, one.low or 0, one.high or 0, ours=False)
                for one in found
            ]
        return rows

    def _notes(self, _: str) -> str:
        head = ["peer", "", "messages", "ratio", "spread", "hand, peer: messages/s", "MiB", "how"]
        return markdown(head, map(peer_row, self._peers)) if self._peers else NOTHING

    def _shape(self, name: str) -> str:
        self._shown.add(name)
        one = self._curves.get(name)
        if one is None:
            return NOTHING
        verdict = "" if one.ratio is None else f": {one.ratio:.3g}"
        if one.bar is not None:
            verdict += f" (bar: at most {one.bar:g}, {'met' if one.passed else '**missed**'})"
        pieces = [f"**{one.workload}**, {one.title}{verdict}."]
        if one.chart is not None:
            pieces.append(self._picture(name, lines(one.title, one.chart)))
        pieces.append(markdown(["figure", ""], [[what, readable(value)] for what, value in one.curve.items()]))
        return "\n\n".join(pieces)

    def _on_spark(self, _: str) -> str:
        found = [one for one in self._figures if isinstance(one, SparkFigure)]
        head = [
            "",
            "records",
            f"ratio (bar: {SPARK_BAR})",
            "spread",
            "ours",
            "DataFrames",
            "Python by hand",
            "us",
            "MiB",
        ]
        return markdown(head, map(spark_row, found)) if found else NOTHING

    def _other_shapes(self, _: str) -> str:
        names = sorted(self._curves.keys() - self._shown, key=lambda name: order(SHAPES, name))
        return "\n\n".join(map(self._shape, names))

    def _picture(self, name: str, svg: str) -> str:
        self.pictures[f"{name}.svg"] = svg
        return f"![{name}]({self._folder}/{name}.svg)"


def write(page: Path, figures: Iterable[AnyFigure]) -> None:
    """Write the page, and its charts into the folder of the same name."""
    folder = page.with_suffix("")
    made = Page(figures, folder.name)
    page.write_text(made.text(TEMPLATE.read_text()))
    folder.mkdir(exist_ok=True)
    for name, svg in made.pictures.items():
        (folder / name).write_text(svg)


def order(known: Iterable[str], name: str) -> tuple[int, str]:
    """Return where a name is among those that are known; the others come last."""
    names = list(known)
    return (names.index(name) if name in names else len(names)), name


def short(title: str) -> str:
    words = re.split(r"[,:]", title)[0]
    return words if len(words) <= 28 else words[:27] + "…"


def program_row(by_partitions: dict[int, ProgramFigure], slope: float | None) -> list[str]:
    """Return the row of a program in one mode: its figures at the fewest partitions, and what more of them cost."""
    one = by_partitions[min(by_partitions)]
    ratio = f"**{one.cpu_ratio:.2f}**{'' if one.passed else ', missed'}"
    us = ", ".join(f"{seconds / one.messages * 1e6:.2f} us" for seconds in (one.by_hand_cpu_s, one.ours_cpu_s))
    memory = ", ".join("?" if mib is None else f"{mib:,.0f}" for mib in (one.by_hand_peak_mib, one.ours_peak_mib))
    more = "" if slope is None else f"{max(by_partitions)}: {slope:.2f} {TIMES}"
    what = f"{one.title}; {one.messages:,} messages, {one.pairs} pairs"
    return [what, one.mode, ratio, f"{one.low:.2f} to {one.high:.2f}", more, us, memory]


def point_row(one: Measurement) -> list[str]:
    verdict = "" if one.bar is None else f"{one.bar:g}" if one.passed else f"{one.bar:g}, missed"
    inlined = "" if one.ratio_inlined is None else f"{one.ratio_inlined:.2f}"
    rates = (rate(one.messages, seconds) for seconds in (one.baseline_s, one.ours_s))
    memory = ("" if mib is None else f"{mib:,.0f}" for mib in (one.baseline_mib, one.ours_mib))
    spread = f"{one.low:.2f} to {one.high:.2f}"
    cells = (f"**{one.ratio:.2f}**", spread, f"{one.cpu_ratio:.2f}", inlined, ", ".join(rates), ", ".join(memory))
    return [one.workload, f"{one.title}; {one.messages:,} messages, {one.pairs} pairs", verdict, *cells]


def commit_cell(one: Measurement) -> str:
    return f"{one.ratio:.2f} ({one.low:.2f} to {one.high:.2f}), {rate(one.messages, one.ours_s)}/s"


def peer_row(one: PeerFigure) -> list[str]:
    name = f"{one.peer} {one.version}".strip()
    workload = f"{one.workload} {one.variant}".strip()
    if one.ratio is None or one.baseline_s is None or one.peer_s is None:
        return [name, workload, "", "", "", "", "", one.missing]
    rates = f"{rate(one.messages, one.baseline_s)}, {rate(one.messages, one.peer_s)}"
    memory = "" if one.peer_mib is None else f"{one.peer_mib:,.0f}"
    spread = f"{readable(one.low or 0)} to {readable(one.high or 0)}"
    return [name, workload, f"{one.messages:,}", f"**{readable(one.ratio)}** {TIMES}", spread, rates, memory, one.note]


def spark_row(one: SparkFigure) -> list[str]:
    ratio = "" if one.ratio is None else f"**{one.ratio:.2f}**{'' if one.passed else ', missed'}"
    spread = f"{min(one.ratios):.2f} to {max(one.ratios):.2f}" if one.ratios else ""
    sides = [f"{one.cpu_s[side]:.2f} s" if side in one.cpu_s else "-" for side in ("ours", "frames", "python")]
    cost, grew = f"{one.us_per_record:.2f}", f"{one.driver_mib['ours']:.1f}"
    return [f"{one.workload}: {one.title}", f"{one.records:,}", ratio, spread, *sides, cost, grew]


def rate(messages: int, seconds: float) -> str:
    found = messages / seconds
    return f"{found / 1e3:,.0f}k" if found >= 10_000 else f"{found / 1e3:,.1f}k"


def markdown(head: list[str], rows: Iterable[list[str]]) -> str:
    cells = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells)
