"""The command `python -m benchmarks`: measures workloads, each in fresh processes, and says which pass their bar."""

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
from benchmarks.measure import SIDES, Measurement
from benchmarks.workload import COMMIT_EVERY

QUICK_PAIRS = 1
WIDTH = 120
TITLE = (
    "our time ÷ the hand loop's, and ÷ that of the loop with all inlined (lower is better); growth of anonymous memory"
)


def main() -> int:
    """Measure as the arguments say; the exit status is 1 where a bar is missed."""
    said = _arguments()
    console = Console(highlight=False)
    console.width = max(console.width, WIDTH)
    measurements = []
    for name in said.only:
        description = WORKLOADS[name].description
        messages = description.quick_messages if said.quick else max(int(description.messages * said.scale), 1)
        pairs = QUICK_PAIRS if said.quick else said.pairs or description.pairs
        console.print(f"{name}  {description.title}: {messages:,} messages, {pairs} pairs …", soft_wrap=True)
        command = [sys.executable, "-m", "benchmarks.measure", name, "--messages", str(messages)]
        command += ["--commit-every", str(said.commit_every)]
        timing = [*command, "--pairs", str(pairs), *(["--profile"] if said.profile else [])]
        measured = msgspec.json.decode(_output(timing), type=Measurement)
        if not said.quick:
            mib = {f"{side}_mib": msgspec.json.decode(_output([*command, "--memory", side])) for side in SIDES}
            measured = msgspec.structs.replace(measured, **mib)
        measurements.append(measured)
    if said.json is not None:
        said.json.write_bytes(msgspec.json.format(msgspec.json.encode(measurements)))
    console.print(_table(measurements))
    return 0 if said.quick or all(one.passed for one in measurements) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", type=_names, default=list(WORKLOADS), metavar="B1,B2", help="these workloads")
    parser.add_argument("--pairs", type=int, help="how often each side runs (default: as the workload says, mostly 7)")
    parser.add_argument("--scale", type=float, default=1.0, help="times as many messages (default: %(default)s)")
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
    if min(said.commit_every, said.scale, 1 if said.pairs is None else said.pairs) <= 0:
        parser.error("--pairs, --scale and --commit-every are positive")
    return said


def _names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := set(names).difference(WORKLOADS):
        raise argparse.ArgumentTypeError(f"no workload {', '.join(sorted(unknown))}; there are {', '.join(WORKLOADS)}")
    return names


def _output(command: list[str]) -> bytes:
    return subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout


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
            f"≤ {one.bar} [green]pass[/]" if one.passed else f"≤ {one.bar} [red]FAIL[/]",
            _rate(one.messages, one.baseline_s),
            _rate(one.messages, one.ours_s),
            _mib(one.baseline_mib),
            _mib(one.ours_mib),
        )
    return table


def _rate(messages: int, seconds: float) -> str:
    return f"{messages / seconds / 1_000:,.0f}k/s"


def _mib(mib: float | None) -> str:
    return "" if mib is None else f"{mib:,.0f} MiB"


if __name__ == "__main__":
    sys.exit(main())
