"""Shows figures in a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.figures import AnyFigure, Curve, Measurement, PeerFigure

TITLE = (
    "our time ÷ the hand loop's, and ÷ that of the loop with all inlined (lower is better); growth of anonymous memory"
)
PEERS_TITLE = "other libraries' time ÷ the hand loop's; growth of anonymous memory, with all the processes they start"


def show(figures: Iterable[AnyFigure], console: Console) -> None:
    """Print tables of the workloads and the peers, and the numbers of each shape."""
    figures = list(figures)
    if points := [one for one in figures if isinstance(one, Measurement)]:
        console.print(points_table(points))
    for one in figures:
        if isinstance(one, Curve):
            show_curve(one, console)
    if peers := [one for one in figures if isinstance(one, PeerFigure)]:
        console.print(peers_table(peers))


def points_table(measurements: list[Measurement]) -> Table:
    table = Table(title=TITLE, box=box.SIMPLE)
    table.add_column("", no_wrap=True)
    for heading in ("ratio", "spread", "CPU", "inlined", "bar", "hand", "ours", "hand", "ours"):
        table.add_column(heading, justify="right", no_wrap=True)
    several = len({one.commit_every for one in measurements if one.commit_every is not None}) > 1
    for one in measurements:
        name = f"{one.workload}, every {one.commit_every:,}" if several and one.commit_every else one.workload
        table.add_row(
            name,
            f"{one.ratio:.2f}",
            f"{one.low:.2f}-{one.high:.2f}",
            f"{one.cpu_ratio:.2f}",
            f"{one.ratio_inlined:.2f}" if one.ratio_inlined is not None else "",
            verdict(one),
            rate(one.messages, one.baseline_s),
            rate(one.messages, one.ours_s),
            in_mib(one.baseline_mib),
            in_mib(one.ours_mib),
        )
    return table


def peers_table(figures: list[PeerFigure]) -> Table:
    table = Table(title=PEERS_TITLE, box=box.SIMPLE)
    table.add_column("", no_wrap=True)
    table.add_column("", no_wrap=True)
    for heading in ("messages", "ratio", "spread", "rate", "memory"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("how")
    for one in figures:
        name, case = f"{one.peer} {one.version}", f"{one.workload} {one.variant}"
        if one.ratio is None or one.peer_s is None:
            table.add_row(name, case, "", "", "", "", "", one.missing)
            continue
        spread = f"{one.low:.3g}-{one.high:.3g}"
        figures_of_it = (f"{one.ratio:.3g}", spread, rate(one.messages, one.peer_s), in_mib(one.peer_mib))
        table.add_row(name, case, f"{one.messages:,}", *figures_of_it, one.note)
    return table


def show_curve(one: Curve, console: Console) -> None:
    ratio = "" if one.ratio is None else f"{one.ratio:.3g} "
    console.print(f"[bold]{one.workload}[/]  {one.title}: {ratio}{verdict(one)}", soft_wrap=True)
    for name, value in one.curve.items():
        console.print(f"{value:>14,.4g}  {name}")


def verdict(one: Measurement | Curve) -> str:
    if one.bar is None or one.ratio is None:
        return ""
    return f"≤ {one.bar} [green]pass[/]" if one.passed else f"≤ {one.bar} [red]FAIL[/]"


def rate(messages: int, seconds: float) -> str:
    return f"{messages / seconds / 1_000:,.0f}k/s" if seconds < messages / 1e4 else f"{messages / seconds:,.0f}/s"


def in_mib(mib: float | None) -> str:
    return "" if mib is None else f"{mib:,.0f} MiB"
