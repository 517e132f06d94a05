"""Chooses the few counters that a fused run needs beside the lengths of its exits to tell what each operator emits."""

from __future__ import annotations

from collections.abc import Iterable

from operators.core.base import Spec
from planner.model.graph import Graph


def is_alone(graph: Graph, spec: Spec) -> bool:
    """Whether what leaves through the exit to `spec` goes to nothing else."""
    return sum(one.exit == spec.exit for one in graph.specs.values() if one.code is None and not one.source) == 1


def teller(graph: Graph, id: str) -> str | None:
    """Return an operator below whose numbers tell the messages that `id` emits; None where `id` must count them.

    It takes in just these. Either its exit counts them; or it passes each one on, or drops and counts it, and an
    operator further down tells what it emits.
    """
    for child in graph.children(id):
        spec = graph.specs[child]
        if graph.streams_into(child) != [id]:
            continue
        if spec.code is None and is_alone(graph, spec):
            return child
        if spec.code is not None and (spec.one_to_one or spec.drops) and teller(graph, child) is not None:
            return child
    return None


def exit_below(graph: Graph, id: str) -> str | None:
    """Return the operator behind an exit that takes in just what `id` emits; None where there is none."""
    below = teller(graph, id)
    while below is not None and graph.specs[below].one_to_one:
        below = teller(graph, below)
    return below if below is not None and graph.specs[below].code is None else None


def droppers(graph: Graph, ids: Iterable[str]) -> frozenset[str]:
    """Return the operators that must count their drops, so that the emissions of `ids` can be told."""
    found = set()
    for id in ids:
        # Filters count what they drop: to count each message behind each filter had cost a tenth of the whole chain.
        below = None if graph.specs[id].one_to_one else teller(graph, id)
        while below is not None and graph.specs[below].one_to_one:
            below = teller(graph, below)
        if below is not None and graph.specs[below].drops:
            found.add(below)
    return frozenset(found)
