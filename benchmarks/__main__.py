"""The command `python -m benchmarks`: measures workloads, each in fresh processes, and says which pass their bar."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks import WORKLOADS
from benchmarks.measure import SIDES, Measurement

QUICK_PAIRS = 1


def main() -> int:
    """Measure as the arguments say; the exit status is 1 where a bar is missed."""
    said = _arguments()
    console = Console(highlight=False)
    measurements = []
    for name in said.only:
        description = WORKLOADS[name].description
        messages = description.quick_messages if said.quick else max(int(description.messages * said.scale), 1)
        console.print(f"{name}  {description.title}: {messages:,} messages, {said.pairs} pairs …", soft_wrap=True)
        measurements.append(_measured(name, messages, said.pairs, said.profile))
    if said.json is not None:
        said.json.write_bytes(msgspec.json.format(msgspec.json.encode(measurements)))
    console.print(_table(measurements))
    return 0 if said.quick or all(one.passed for one in measurements) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", type=_names, default=list(WORKLOADS), metavar="B1,B2", help="these workloads")
    parser.add_argument("--pairs", type=int, default=7, help="how often each side runs (default: %(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="times as many messages (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers to a file")
    parser.add_argument("--profile", action="store_true", help="first show where one run of ours spends its time")
    parser.add_argument("--quick", action="store_true", help="one pair of tiny runs: results count, times do not")
    said = parser.parse_args()
    if said.pairs < 1 or said.scale <= 0:
        parser.error("--pairs and --scale are positive")
    if said.quick:
        said.pairs = QUICK_PAIRS
    return said


def _names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := set(names).difference(WORKLOADS):
        raise argparse.ArgumentTypeError(f"no workload {', '.join(sorted(unknown))}; there are {', '.join(WORKLOADS)}")
    return names


def _measured(name: str, messages: int, pairs: int, profile: bool) -> Measurement:
    """Measure times in one fresh process, and the memory of each side in one of its own."""
    command = [sys.executable, "-m", "benchmarks.measure", name, "--messages", str(messages)]
    timing = [*command, "--pairs", str(pairs), *(["--profile"] if profile else [])]
    found = msgspec.json.decode(_output(timing), type=Measurement)
    mib = {f"{side}_mib": msgspec.json.decode(_output([*command, "--memory", side])) for side in SIDES}
    return msgspec.structs.replace(found, **mib)


def _output(command: list[str]) -> bytes:
    return subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout


def _table(measurements: list[Measurement]) -> Table:
    table = Table(title="our time ÷ the hand loop's (lower is better), and the growth of anonymous memory")
    table.add_column("")
    for heading in ("ratio", "spread", "CPU", "bar", "hand", "ours", "hand", "ours"):
        table.add_column(heading, justify="right")
    for one in measurements:
        table.add_row(
            one.workload,
            f"{one.ratio:.2f}",
            f"{one.low:.2f}-{one.high:.2f}",
            f"{one.cpu_ratio:.2f}",
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
    return "?" if mib is None else f"{mib:,.0f} MiB"


if __name__ == "__main__":
    sys.exit(main())
