"""The command `python -m benchmarks`: measures workloads and shapes in fresh processes; says which pass their bar."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks import WORKLOADS
from benchmarks.measure import SIDES, Curve, Measurement
from benchmarks.shapes import SHAPES
from benchmarks.workload import COMMIT_EVERY

WIDTH = 120
TITLE = (
    "our time ÷ the hand loop's, and ÷ that of the loop with all inlined (lower is better); growth of anonymous memory"
)


def main() -> int:
    """Measure as the arguments say; the exit status is 1 where a bar is missed."""
    said = _arguments()
    console = Console(highlight=False)
    console.width = max(console.width, WIDTH)
    points = [_measured(name, said, console) for name in said.only if name in WORKLOADS]
    curves = [_traced(name, said, console) for name in said.only if name in SHAPES]
    if said.json is not None:
        said.json.write_bytes(msgspec.json.format(msgspec.json.encode([*points, *curves])))
    if points:
        console.print(_table(points))
    for curve in curves:
        _show(curve, console)
    return 0 if said.quick or all(one.passed for one in (*points, *curves)) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", type=_names, default=[*WORKLOADS, *SHAPES], metavar="B1,M1", help="these of them")
    parser.add_argument("--pairs", type=int, help="how often each side runs (default: each has its own, mostly 7)")
    parser.add_argument("--scale", type=float, help="times as many messages (default: 1)")
    parser.add_argument(
        "--commit-every",
        type=int,
        default=COMMIT_EVERY,
        metavar="N",
        help="after how many messages both sides of a durable workload commit (default: %(default)s)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers to a file")
    parser.add_argument("--profile", action="store_true", help="first show where one run of ours spends its time")
    parser.add_argument("--quick", action="store_true", help="one pair of tiny runs: results count, times do not")
    said = parser.parse_args()
    if min(said.commit_every, *(1 if given is None else given for given in (said.scale, said.pairs))) <= 0:
        parser.error("--pairs, --scale and --commit-every are positive")
    if said.quick:
        said.pairs = 1
    return said


def _names(text: str) -> list[str]:
    names, known = text.split(","), [*WORKLOADS, *SHAPES]
    if unknown := set(names).difference(known):
        raise argparse.ArgumentTypeError(f"no workload {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return names


def _measured(name: str, said: argparse.Namespace, console: Console) -> Measurement:
    """Time one workload, and measure the memory of each side in a process of its own."""
    description = WORKLOADS[name].description
    scale, pairs = said.scale or (description.quick_scale if said.quick else 1), said.pairs or description.pairs
    messages = description.scaled(scale)
    console.print(f"{name}  {description.title}: {messages:,} messages, {pairs} pairs …", soft_wrap=True)
    command = [name, "--scale", f"{scale}", "--commit-every", f"{said.commit_every}"]
    found = msgspec.json.decode(
        _output([*command, "--pairs", f"{pairs}", *(["--profile"] if said.profile else [])]), type=Measurement
    )
    if said.quick:
        return found
    mib = {f"{side}_mib": msgspec.json.decode(_output([*command, "--memory", side])) for side in SIDES}
    return msgspec.structs.replace(found, **mib)


def _traced(name: str, said: argparse.Namespace, console: Console) -> Curve:
    description = SHAPES[name].description
    scale, rounds = said.scale or (description.quick_scale if said.quick else 1), said.pairs or description.rounds
    console.print(f"{name}  {description.title} …", soft_wrap=True)
    return msgspec.json.decode(_output([name, "--scale", f"{scale}", "--pairs", f"{rounds}"]), type=Curve)


def _output(command: list[str]) -> bytes:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.measure", *command], stdout=subprocess.PIPE, check=True
    ).stdout


def _table(measurements: list[Measurement]) -> Table:
    table = Table(title=TITLE, box=box.SIMPLE)
    table.add_column("")
    for heading in ("ratio", "spread", "CPU", "inlined", "bar", "hand", "ours", "hand", "ours"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in measurements:
        table.add_row(
            one.workload,
            f"{one.ratio:.2f}",
            f"{one.low:.2f}-{one.high:.2f}",
            f"{one.cpu_ratio:.2f}",
            f"{one.ratio_inlined:.2f}" if one.ratio_inlined is not None else "",
            _verdict(one),
            _rate(one.messages, one.baseline_s),
            _rate(one.messages, one.ours_s),
            _mib(one.baseline_mib),
            _mib(one.ours_mib),
        )
    return table


def _show(one: Curve, console: Console) -> None:
    ratio = "" if one.ratio is None else f"{one.ratio:.3g} "
    console.print(f"[bold]{one.workload}[/]  {one.title}: {ratio}{_verdict(one)}", soft_wrap=True)
    for name, value in one.curve.items():
        console.print(f"{value:>14,.4g}  {name}")


def _verdict(one: Measurement | Curve) -> str:
    if one.bar is None or one.ratio is None:
        return ""
    return f"≤ {one.bar} [green]pass[/]" if one.passed else f"≤ {one.bar} [red]FAIL[/]"


def _rate(messages: int, seconds: float) -> str:
    return f"{messages / seconds / 1_000:,.0f}k/s"


def _mib(mib: float | None) -> str:
    return "" if mib is None else f"{mib:,.0f} MiB"


if __name__ == "__main__":
    sys.exit(main())
