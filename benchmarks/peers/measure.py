"""Measures one case of one peer in this process, which has the peer's own environment: pairs of hand loop and peer."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from benchmarks import WORKLOADS
from benchmarks.figures import PeerFigure
from benchmarks.measure import measure
from benchmarks.memory import growth_mib, tree_mib
from benchmarks.peers import PEERS
from benchmarks.peers.case import Against, Case


class Described(msgspec.Struct, frozen=True):
    """A case as the command has to know it before it runs it."""

    name: str
    messages: int
    pairs: int


def cases(peer: str) -> dict[str, Case]:
    """Import the module that drives the peer, and the peer with it."""
    found: dict[str, Case] = importlib.import_module(f"benchmarks.peers.{PEERS[peer].module}").CASES
    return found


def described(peer: str) -> list[Described]:
    return [Described(name, case.messages, case.pairs) for name, case in cases(peer).items()]


def figure(peer: str, name: str, messages: int, pairs: int, scratch: Path) -> PeerFigure:
    """Time a case; raises Differs where its results are not the hand loop's."""
    workload, _, variant = name.partition(" ")
    case = cases(peer)[name]
    found = measure(Against(WORKLOADS[workload](messages, scratch), case), messages, pairs)
    return PeerFigure(
        workload=workload,
        title=found.title,
        peer=peer,
        version=PEERS[peer].version,
        variant=variant,
        messages=messages,
        pairs=pairs,
        ratio=found.ratio,
        low=found.low,
        high=found.high,
        baseline_s=found.baseline_s,
        peer_s=found.ours_s,
        note=case.note,
    )


def memory(peer: str, name: str, messages: int, scratch: Path) -> float | None:
    """Return by how many MiB this process and those that it starts grow, the peer's import included."""
    workload = WORKLOADS[name.partition(" ")[0]](messages, scratch)
    workload.ready()
    return growth_mib(lambda: cases(peer)[name].run(workload), tree_mib)


def main() -> None:
    """Print as the last line the cases of a peer, the figure of one case, or with `--memory` its memory."""
    parser = argparse.ArgumentParser(description="Measure a peer in this process.")
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("--case")
    parser.add_argument("--messages", type=int, default=1_000)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--memory", action="store_true")
    said = parser.parse_args()
    with TemporaryDirectory(prefix="samza-dsl-benchmark-") as scratch:
        found: Any
        if said.case is None:
            found = described(said.peer)
        elif said.memory:
            found = memory(said.peer, said.case, said.messages, Path(scratch))
        else:
            found = figure(said.peer, said.case, said.messages, said.pairs, Path(scratch))
    print(msgspec.json.encode(found).decode(), flush=True)


if __name__ == "__main__":
    main()
