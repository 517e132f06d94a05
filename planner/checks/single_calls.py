"""Finds the stages whose messages make one async call each, and have no effect before it has returned."""

from __future__ import annotations

from operators.async_flat_map import AsyncFlatMap
from planner.model.graph import Graph
from planner.model.plan import StagePlan


def makes_one_call(stage: StagePlan, graph: Graph) -> str | None:
    """Return the operator that awaits, if each message of a stage makes one call there and has no effect before it."""
    # Such messages stay columns while they await: an object for each had cost six times what the call itself costs.
    # Whatever needs more of a message (state, order, several calls, an early effect) goes on as units.
    awaiting = [id for id in stage.operators if graph.specs[id].asynchronous]
    if stage.ordered or len(awaiting) != 1:
        return None
    id, call = awaiting[0], graph.of(AsyncFlatMap).get(awaiting[0])
    below = {id, *graph.below(id)}
    entries = [segment for segment in stage.segments if segment.entry not in below]
    if call is None or call.stateful:
        return None
    if any([exit.operators for exit in segment.exits] != [(id,)] for segment in entries):
        return None
    return id if all(_leads_once(graph, segment.entry, id) for segment in entries) else None


def _leads_once(graph: Graph, entry: str, id: str) -> bool:
    """Whether a message comes from one operator to another at most once."""
    inside = graph.below(entry) & {id, *graph.above(id)}
    is_one_way = all(len({entry, *inside}.intersection(graph.parents(one))) == 1 for one in inside)
    return id in inside and is_one_way and not any(graph.specs[one].fans_out for one in (entry, *inside))
