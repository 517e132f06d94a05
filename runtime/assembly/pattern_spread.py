"""Patterns that match streams of fewer partitions than there are tasks: some of these have nothing to read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from operators.io import Input
from planner.model.errors import refuse
from planner.model.graph import Graph
from planner.model.plan import Plan
from runtime.assembly.bindings import Bindings


class Followers(NamedTuple):
    """A pattern that not all of the tasks that read it have a partition of, and by which the next stage is told."""

    pattern: Input
    partitions: int
    tasks: int


def followers(plan: Plan, bindings: Bindings, graph: Graph) -> Iterator[Followers]:
    """Yield where tasks without a partition tell the next stage what they would have to hear from others first."""
    for stage in plan.stages:
        specs = [graph.specs[id] for id in stage.operators]
        inputs = [graph.inputs[id] for id in stage.operators if id in graph.inputs]
        pattern = next((spec for spec in inputs if spec.is_pattern), None)
        if pattern is None or not any(spec.repartitions for spec in specs):
            continue
        streams = [name for spec in inputs for name in bindings.streams_of(spec)]
        streams += [name for name in stage.inputs if plan.stream(name).role == "intermediate"]
        widest = max(map(bindings.partitions, streams), default=0)
        if widest < stage.partitions:
            yield Followers(pattern, widest, stage.partitions)


def check_spread(plan: Plan, bindings: Bindings, graph: Graph, otherwise: str) -> None:
    """Refuse such patterns: only tasks that commit together can follow each other. `otherwise` says how they do."""
    for pattern, partitions, tasks in followers(plan, bindings, graph):
        wrong = f"its streams have {partitions} partitions at most, and {tasks} tasks read it"
        instead = f"partitions={partitions or 1}, or {otherwise}: tasks without a partition follow the others"
        raise refuse(pattern, wrong, instead)
