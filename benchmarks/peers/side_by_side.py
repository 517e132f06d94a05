"""Runs all that a peer can do of the workloads, each in a process of its own, and says of the rest why it can't."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import msgspec

from benchmarks import WORKLOADS
from benchmarks.figures import PeerFigure
from benchmarks.peers import Peer
from benchmarks.peers.environment import Unavailable, output, ready
from benchmarks.peers.measure import Described

CASE_SECONDS = 900


def measured(peer: Peer, only: Collection[str], scale: float, pairs: int | None) -> Iterator[PeerFigure]:
    """Yield a figure for each case of a peer; one without a ratio tells what is missing."""
    try:
        python = str(ready(peer))
        known = told(python, peer, [], list[Described])
    except Unavailable as error:
        yield without(peer, "", f"not installed: {error}")
        return
    for case in known:
        workload, _, variant = case.name.partition(" ")
        if workload not in only:
            continue
        size = ["--case", case.name, "--messages", f"{max(round(case.messages * scale), 1)}"]
        try:
            found = told(python, peer, [*size, "--pairs", f"{pairs or case.pairs}"], PeerFigure)
            mib = told(python, peer, [*size, "--memory"], float | None)
        except Unavailable as error:
            yield without(peer, workload, f"failed: {error}", variant)
        else:
            yield msgspec.structs.replace(found, peer_mib=mib)
    yield from (without(peer, workload, why) for workload, why in peer.cannot.items() if workload in only)


def without(peer: Peer, workload: str, why: str, variant: str = "") -> PeerFigure:
    """Return the row of a peer that was not measured, for a workload or, as "", for all."""
    title = WORKLOADS[workload].description.title if workload else ""
    return PeerFigure(
        workload=workload, title=title, peer=peer.name, version=peer.version, variant=variant, missing=why
    )


def told(python: str, peer: Peer, arguments: list[str], kind: Any) -> Any:
    """Return what the measuring process says in its last line."""
    shown = output([python, "-m", "benchmarks.peers.measure", peer.name, *arguments], CASE_SECONDS)
    return msgspec.json.decode(shown.splitlines()[-1], type=kind)
