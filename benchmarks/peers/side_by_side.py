"""Runs all that a peer can do of the workloads, each in a process of its own, and says of the rest why it can't."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from benchmarks import WORKLOADS
from benchmarks.figures import PeerFigure
from benchmarks.peers import Peer
from benchmarks.peers.environment import Unavailable, output, ready
from benchmarks.peers.measure import Described

CASE_SECONDS = 900


def measured(peer: Peer, only: Iterable[str], scale: float, pairs: int | None) -> Iterator[PeerFigure]:
    """Yield a figure for each case of a peer; one without a ratio tells what is missing."""
    try:
        python = str(ready(peer))
        known = told(python, peer, [], list[Described])
    except Unavailable as error:
        yield PeerFigure(workload="", title="", peer=peer.name, version=pinned(peer), missing=f"not installed: {error}")
        return
    wanted = set(only)
    for case in known:
        workload, _, variant = case.name.partition(" ")
        if workload not in wanted:
            continue
        size = ["--case", case.name, "--messages", f"{max(round(case.messages * scale), 1)}"]
        try:
            found = told(python, peer, [*size, "--pairs", f"{pairs or case.pairs}"], PeerFigure)
            mib = told(python, peer, [*size, "--memory"], float | None)
        except Unavailable as error:
            yield PeerFigure(
                workload=workload,
                title=WORKLOADS[workload].description.title,
                peer=peer.name,
                version=pinned(peer),
                variant=variant,
                missing=f"failed: {error}",
            )
        else:
            yield msgspec.structs.replace(found, peer_mib=mib)


def told(python: str, peer: Peer, arguments: list[str], kind: Any) -> Any:
    """Return what the measuring process says in its last line."""
    shown = output([python, "-m", "benchmarks.peers.measure", peer.name, *arguments], CASE_SECONDS)
    return msgspec.json.decode(shown.splitlines()[-1], type=kind)


def pinned(peer: Peer) -> str:
    return peer.requirements[0].partition("==")[2] if peer.requirements else ""
