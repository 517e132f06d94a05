"""How many partitions each stream and stage has: what is said, what must be alike, and what follows from the inputs."""

from __future__ import annotations

from collections.abc import Mapping

from operators.base import Spec
from operators.io import Input
from operators.partition_by import ByRanges, PartitionBy
from planner.copartitioning import check_streams_alike, entries_of
from planner.errors import refuse
from planner.graph import Graph, intermediate
from planner.plan import Plan
from planner.rules import outputs_of


def source_sizes(plan: Plan, graph: Graph, partitions: Mapping[str, int]) -> dict[str, int]:
    """Return how many partitions each stream has that is read from outside."""
    sizes: dict[str, int] = {}
    for spec in graph.specs.values():
        if isinstance(spec, Input):
            known = _known(plan, spec, partitions)
            sizes[spec.stream] = partitions.get(spec.stream) or max([spec.partitions or 1, *known.values()])
            check_streams_alike(graph, spec, known, sizes[spec.stream])
    return sizes


def grown_sizes(plan: Plan, graph: Graph, partitions: Mapping[str, int], sizes: dict[str, int]) -> dict[str, int]:
    """Add to `sizes` the streams that are written, and return how many partitions each stage has.

    What a `partition_by` writes without saying how many, and what it meets below, come to as many: those of the others,
    or else the most. What comes to every task of a join does so to those that the first of its sides has.
    """
    sources, agreed = dict(sizes), dict[str, int]()
    while True:
        stages: dict[str, int] = {}
        for stage in plan.stages:
            size = stages[stage.id] = max((sizes[name] for name in stage.inputs), default=1)
            for id in stage.operators:
                spec = graph.specs[id]
                if spec.repartitions:
                    sizes[intermediate(graph.app, id)] = _intermediate_size(plan, graph, spec, sizes, size, agreed)
                for output in outputs_of(spec):
                    name = output.stream
                    sizes[name] = partitions.get(name) or output.partitions or max(size, sizes.get(name, 1))
        more = {id: size for id, size in _alike(plan, graph, sizes) if size > agreed.get(id, 0)}
        if not more:
            return stages
        agreed |= more
        sizes.clear()
        sizes.update(sources)


def _alike(plan: Plan, graph: Graph, sizes: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the repartitionings that have not as many partitions as what they meet, with what they should have."""
    found = []
    for id, spec in graph.specs.items():
        met = {entry: graph.specs[entry] for entry in entries_of(graph, id)} if spec.keyed else {}
        have = {
            entry: sizes[one.stream if isinstance(one, Input) else intermediate(graph.app, entry)]
            for entry, one in met.items()
        }
        free = [entry for entry, one in met.items() if _is_free(graph, one)]
        said = {have[entry] for entry in met.keys() - set(free)}
        if free and len(said) <= 1:
            size = said.pop() if said else max(have[entry] for entry in free)
            if size <= plan.options.max_partitions:
                found += [(entry, size) for entry in free if have[entry] != size]
        if spec.keyed_by_first:
            size = max(have.values())
            copies = [parent for parent in graph.streams_into(id)[1:] if graph.specs[parent].repartitions]
            found += [(copy, size) for copy in copies if sizes[intermediate(graph.app, copy)] != size]
    return found


def _is_free(graph: Graph, spec: Spec) -> bool:
    if not isinstance(spec, PartitionBy) or spec.partitions is not None or isinstance(spec.by, ByRanges):
        return False
    return next(graph.key_joins(spec.op_id or ""), None) is None


def _known(plan: Plan, spec: Input, partitions: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes of the streams that a pattern stands for; none where its own is said, which is that of all."""
    if not spec.is_pattern or spec.stream in partitions:
        return {}
    own = {stream.name for stream in plan.streams if stream.role not in ("input", "table")}
    return {name: partitions[name] for name in sorted(partitions) if spec.matches(name) and name not in own}


def _intermediate_size(
    plan: Plan, graph: Graph, spec: Spec, sizes: Mapping[str, int], largest: int, agreed: Mapping[str, int]
) -> int:
    explicit: int | None = getattr(spec, "partitions", None)
    if isinstance(spec, PartitionBy) and isinstance(spec.by, ByRanges):
        explicit = len(spec.by.bounds) + 1
    cap = plan.options.max_partitions
    if explicit is not None:
        if explicit > cap:
            raise refuse(spec, f"partitions={explicit} is above the cap max_partitions={cap}", f"partitions={cap}")
        return explicit
    joined = {sizes[join.table.stream] for join in graph.key_joins(spec.op_id or "")}
    if len(joined) > 1:
        raise refuse(spec, f"it is joined with tables of {sorted(joined)} partitions", "tables of one partition count")
    return joined.pop() if joined else agreed.get(spec.op_id or "", min(largest, cap))
