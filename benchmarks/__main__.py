"""The command `python -m benchmarks`: measures workloads, programs and peers in fresh processes; says what passes."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import msgspec
from rich.console import Console

from benchmarks import QUICK_WITHOUT, WORKLOADS, page, shapes
from benchmarks.figures import AnyFigure, Curve, Measurement, PeerFigure, SparkFigure, load, merged, save, stamped
from benchmarks.measure import SIDES
from benchmarks.peers import PEERS
from benchmarks.peers.side_by_side import measured as measured_peer
from benchmarks.programs.kit import command as programs
from benchmarks.report import show
from benchmarks.shapes import SHAPES
from benchmarks.two_builds import build_of, change
from benchmarks.workload import COMMIT_EVERY
from planner.model.levers import Levers

WIDTH = 120
ALSO_EVERY = (1_000, 100_000)
"""How often durable workloads commit, too, for the page."""
ALSO_PAIRS = 3


def main() -> int:
    """Measure as the arguments say; the exit status is 1 where a bar is missed."""
    said = _arguments()
    console = Console(highlight=False)
    console.width = max(console.width, WIDTH)
    if said.programs is not None or said.sweep:
        return programs.run(said, console)
    if said.against is not None:
        return _compared(said, console)
    figures: list[AnyFigure] = []
    for figure in _figures(said, console):
        figures.append(figure if said.quick else stamped(figure))
        if said.json is not None:
            save(said.json, figures)
        if said.write is not None:
            kept = said.write.with_suffix(".json")
            save(kept, merged(load(kept), figures))
    if said.json is not None:
        save(said.json, figures)
    if said.write is not None:
        kept = said.write.with_suffix(".json")
        save(kept, merged(load(kept), figures))
        page.write(said.write, load(kept))
    show(figures, console)
    return 0 if said.quick or all(one.passed for one in figures if not isinstance(one, PeerFigure | SparkFigure)) else 1


def _compared(said: argparse.Namespace, console: Console) -> int:
    """Show what each workload takes in this build over that of a commit."""
    try:
        with build_of(said.against) as build:
            for name in filter(WORKLOADS.get, said.only):
                description = WORKLOADS[name].description
                scale = said.scale or (description.quick_scale if said.quick else 1)
                found = change(name, build, scale, said.pairs or description.pairs)
                console.print(f"{name}  {found.ratio:.3f} ({found.low:.3f} to {found.high:.3f})  of {said.against}")
    except ValueError as error:
        raise SystemExit(str(error)) from None
    return 0


def _figures(said: argparse.Namespace, console: Console) -> Iterator[AnyFigure]:
    for name in said.only:
        if name in SHAPES:
            yield _traced(name, said, console)
            continue
        durable = WORKLOADS[name].description.durable
        for commit_every in said.commit_every if durable else (COMMIT_EVERY,):
            yield _measured(name, commit_every, said, console)
    for name in said.peers:
        console.print(f"{name} …")
        yield from measured_peer(PEERS[name], said.only, said.scale or 1, said.pairs)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    known = [*WORKLOADS, *SHAPES]
    parser.add_argument("--only", type=_names(known), metavar="B1,M1", help="these of them; '' for none")
    parser.add_argument(
        "--peers",
        type=_names(list(PEERS)),
        nargs="?",
        const=list(PEERS),
        default=[],
        metavar="bytewax,streamz",
        help="also run these workloads on other libraries, all or some, each in an environment that is made for it",
    )
    parser.add_argument("--pairs", type=int, help="how often each side runs (default: each has its own, mostly 7)")
    parser.add_argument("--scale", type=float, help="times as many messages (default: 1)")
    parser.add_argument(
        "--commit-every",
        type=lambda text: [int(number) for number in text.split(",")],
        metavar="N,M",
        help=f"after how many messages both sides of a durable workload commit (default: {COMMIT_EVERY}, "
        f"and with --write {' and '.join(map(str, ALSO_EVERY))} too); the bars are for {COMMIT_EVERY}",
    )
    parser.add_argument(
        "--without",
        choices=[lever.name for lever in fields(Levers)],
        help="measure with a lever left out, which shows what it brings; no bar is for that",
    )
    parser.add_argument(
        "--against",
        metavar="COMMIT",
        help="show instead the processor time of workloads in this build over that of a commit: median, middle half",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers to a file")
    parser.add_argument(
        "--write",
        type=Path,
        metavar="PAGE",
        help="write the page: numbers go to the .json beside it, which keeps what is not measured now, charts to a "
        "folder beside it",
    )
    parser.add_argument("--profile", action="store_true", help="first show where one run of ours spends its time")
    parser.add_argument("--quick", action="store_true", help="one pair of tiny runs: results count, times do not")
    programs.add_arguments(parser)
    said = parser.parse_args()
    if said.without and said.write:
        parser.error("--without LEVER is for looking, not for the page")
    if said.quick and said.write:
        parser.error("--quick measures nothing that a page could show")
    if said.commit_every is None:
        said.commit_every = [COMMIT_EVERY, *(ALSO_EVERY if said.write else ())]
    if min(*said.commit_every, *(1 if given is None else given for given in (said.scale, said.pairs))) <= 0:
        parser.error("--pairs, --scale and --commit-every are positive")
    if said.only is None:
        said.only = [name for name in known if not (said.quick and name in QUICK_WITHOUT | shapes.QUICK_WITHOUT)]
    if said.quick:
        said.pairs = 1
    return said


def _names(known: list[str]):  # type: ignore[no-untyped-def]
    def names(text: str) -> list[str]:
        said = text.split(",") if text else []
        families = {name: [one for one in known if one.startswith(f"{name}-")] or [name] for name in said}  # as in B9
        found = [one for name in said for one in ([name] if name in known else families[name])]
        if unknown := set(found).difference(known):
            raise argparse.ArgumentTypeError(f"no {', '.join(sorted(unknown))}; there are {', '.join(known)}")
        return found

    return names


def _measured(name: str, commit_every: int, said: argparse.Namespace, console: Console) -> Measurement:
    """Time one workload, and measure the memory of each side in a process of its own."""
    description = WORKLOADS[name].description
    scale = said.scale or (description.quick_scale if said.quick else 1)
    pairs = said.pairs or (description.pairs if commit_every == COMMIT_EVERY else ALSO_PAIRS)
    messages = description.scaled(scale)
    console.print(f"{name}  {description.title}: {messages:,} messages, {pairs} pairs …", soft_wrap=True)
    command = [name, "--scale", f"{scale}", "--commit-every", f"{commit_every}"]
    command += ["--without", said.without] if said.without else []
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


if __name__ == "__main__":
    sys.exit(main())
