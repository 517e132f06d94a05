"""How few counters tell what each operator of a fused run emits, the rows that leave the run being counted anyway."""

from __future__ import annotations

from collections.abc import Iterable

from operators.base import Spec
from operators.io import SendTo
from planner.graph import Graph


def exit_of(spec: Spec) -> str:
    """Return the name of the exit through which rows reach `spec`: all `send_to`s of one output share one."""
    assert spec.op_id is not None
    return f"send_to-{spec.output.stream}" if isinstance(spec, SendTo) else spec.op_id


def is_alone(graph: Graph, spec: Spec) -> bool:
    """Whether what leaves through the exit to `spec` goes to nothing else."""
    exit = exit_of(spec)
    return sum(exit_of(one) == exit for one in graph.specs.values() if one.code is None and not one.source) == 1


def teller(graph: Graph, id: str) -> str | None:
    """Return an operator whose numbers tell how many messages `id` emits; None where `id` must count them.

    It takes in just these. Either its exit counts them, or it passes each on, or drops and counts it, and what it
    emits is told further down.
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
    """Return the operator behind an exit that takes in just what `id` emits, whichever function it comes from."""
    below = teller(graph, id)
    while below is not None and graph.specs[below].one_to_one:
        below = teller(graph, below)
    return below if below is not None and graph.specs[below].code is None else None


def droppers(graph: Graph, ids: Iterable[str]) -> frozenset[str]:
    """Return the operators that have to count what they drop, so that it is known what each of `ids` emits."""
    found = set()
    for id in ids:
        below = None if graph.specs[id].one_to_one else teller(graph, id)
        while below is not None and graph.specs[below].one_to_one:
            below = teller(graph, below)
        if below is not None and graph.specs[below].drops:
            found.add(below)
    return frozenset(found)
