"""Which stages have messages that make one async call each, and have no effect before it has returned."""

from __future__ import annotations

from itertools import islice

import networkx

from operators.async_flat_map import AsyncFlatMap
from planner.graph import Graph
from planner.plan import StagePlan


def makes_one_call(stage: StagePlan, graph: Graph) -> str | None:
    """Return the operator that awaits, where each message of a stage makes one call there and has no effect before."""
    awaiting = [id for id in stage.operators if graph.specs[id].asynchronous]
    if stage.ordered or len(awaiting) != 1:
        return None
    id, spec = awaiting[0], graph.specs[awaiting[0]]
    below = {id, *graph.below(id)}
    entries = [segment for segment in stage.segments if segment.entry not in below]
    if not isinstance(spec, AsyncFlatMap) or spec.stateful:
        return None
    if any([exit.operators for exit in segment.exits] != [(id,)] for segment in entries):
        return None
    return id if all(_leads_once(graph, segment.entry, id) for segment in entries) else None


def _leads_once(graph: Graph, entry: str, id: str) -> bool:
    """Whether a message comes from one operator to another at most once."""
    ways = list(islice(networkx.all_simple_paths(graph.edges, entry, id), 2))
    return len(ways) == 1 and all(graph.specs[between].kind != "flat_map" for between in ways[0])
