"""The partition counts of streams and stages: what is declared, what must agree, and what follows from the inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

from operators.core.base import Spec
from operators.io import Input
from planner.checks.copartitioning import check_streams_alike, entries_of
from planner.model.errors import PlanError, refuse
from planner.model.graph import Graph, intermediate
from planner.model.plan import Plan, StagePlan


def source_sizes(plan: Plan, graph: Graph, partitions: Mapping[str, int]) -> dict[str, int]:
    """Return the partition count of each stream that is read from outside."""
    sizes: dict[str, int] = {}
    for spec in graph.inputs.values():
        known = _known(plan, spec, partitions)
        sizes[spec.stream] = partitions.get(spec.stream) or max([spec.partitions or 1, *known.values()])
        check_streams_alike(graph, spec, known, sizes[spec.stream], plan.options.max_partitions)
    return sizes


def grown_sizes(plan: Plan, graph: Graph, partitions: Mapping[str, int], sizes: dict[str, int]) -> dict[str, int]:
    """Add to `sizes` the streams that are written, and return the partition count of each stage.

    All that meets by key in a stage, directly or through other joins there, has one count: that of an input, or the one
    that was said, or else the largest that one of them would have by itself. A stream between stages that `partitions`
    names is as large as it says there.
    """
    stages: dict[str, int] = {}
    # Stages come behind those that they read, and all that meets is read by one stage: one walk settles every size.
    for stage in plan.stages:
        _agree(plan, graph, stage, sizes, partitions)
        size = stages[stage.id] = max((sizes[name] for name in stage.inputs), default=1)
        for id in stage.operators:
            spec = graph.specs[id]
            if spec.repartitions:
                name = intermediate(graph.app, id)
                sizes[name] = partitions.get(name) or _intermediate_size(plan, graph, spec, sizes, size)
            for output in spec.outputs:
                name = output.stream
                sizes[name] = partitions.get(name) or output.partitions or max(size, sizes.get(name, 1))
    assert min((*stages.values(), *sizes.values()), default=1) > 0, "every stream and stage has a partition"
    return stages


def _agree(plan: Plan, graph: Graph, stage: StagePlan, sizes: dict[str, int], partitions: Mapping[str, int]) -> None:
    """Give all streams that meet by key in a stage one partition count, as far as they are free to take it."""
    streams = {
        entry: spec.subject if spec.source else intermediate(graph.app, entry)
        for entry, spec in graph.specs.items()
        if spec.source or spec.repartitions
    }
    sized = {entry for entry, name in streams.items() if name in partitions}
    for free, given in _meetings(graph, stage, {entry: sizes.get(name) for entry, name in streams.items()}, sized):
        size = max(sizes[streams[entry]] for entry in free)
        # Beyond the cap a repartitioning keeps its own size, and `check_keys_meet` then refuses what does not meet.
        if given is not None and given <= plan.options.max_partitions:
            size = given
        sizes.update((streams[entry], size) for entry in free)
    # The other side of a join by foreign key is copied to every task of the first side, so it has as many partitions.
    copies: dict[str, int] = {}
    for id in (id for id in stage.operators if graph.specs[id].keyed_by_first):
        size = max(sizes[streams[entry]] for entry in entries_of(graph, id))
        others = {parent for parent in graph.streams_into(id)[1:] if graph.specs[parent].repartitions}
        for copy in others - sized:
            copies[copy] = max(size, copies.get(copy, 0))
    sizes.update((streams[copy], size) for copy, size in copies.items())


def _meetings(
    graph: Graph, stage: StagePlan, sizes: Mapping[str, int | None], sized: Set[str]
) -> Iterable[tuple[set[str], int | None]]:
    """Return the free repartitionings that meet in a stage, set by set, with the partition count given there, or None.

    Refuses an operator by which two sizes that are given meet through what is free.
    """
    found: list[tuple[set[str], int | None]] = []
    for id in stage.operators:
        if not graph.specs[id].keyed:
            continue
        met = entries_of(graph, id)
        free = {entry for entry in met - sized if _is_free(graph, graph.specs[entry])}
        given = {size for entry in met - free if (size := sizes[entry]) is not None}
        touched = [one for one in found if one[0] & free]
        if len(given) > 1 or not free:
            # Nothing here is free to follow: whether all of it agrees is for `check_keys_meet`.
            continue
        if len(given | {size for _, size in touched if size is not None}) > 1:
            raise _torn_error(graph, id, given, touched)
        known = given.union(size for _, size in touched if size is not None)
        found = [one for one in found if not one[0] & free]
        found.append((free.union(*(one[0] for one in touched)), next(iter(known), None)))
    return found


def _torn_error(graph: Graph, id: str, given: set[int], touched: Sequence[tuple[set[str], int | None]]) -> PlanError:
    """Return the error for an operator by which a repartitioning would need two partition counts."""
    spec = graph.specs[id]
    ends = sorted(given.union(size for _, size in touched if size is not None))
    told = " and ".join(f"{size} partitions" for size in ends)
    free = " and ".join(
        sorted(f"{entry!r}" for entry in entries_of(graph, id) if any(entry in one for one, _ in touched))
    )
    met = "joined" if spec.sided else "merged above"
    wrong = (
        f"streams of {told} are {met}, so equal keys do not meet: {free} is of the size of what it meets elsewhere, "
        "and can have but one"
    )
    before = ".partition_by(...) on both, before they meet here" if spec.sided else ".partition_by(...) before it"
    return refuse(spec, wrong, f"{before}, which need not say how many partitions")


def _is_free(graph: Graph, spec: Spec) -> bool:
    """Whether a repartitioning may be of any size: nothing was said, and no table that is partitioned says it."""
    is_keyed = spec.repartitions and spec.gives_keys
    return is_keyed and spec.declared_partitions is None and next(graph.key_joins(spec.op_id or ""), None) is None


def _known(plan: Plan, spec: Input, partitions: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes of the streams that a pattern stands for; none where its own is said, which is that of all."""
    if not spec.is_pattern or spec.stream in partitions:
        return {}
    own = {stream.name for stream in plan.streams if stream.role not in ("input", "table")}
    return {name: partitions[name] for name in sorted(partitions) if spec.matches(name) and name not in own}


def _intermediate_size(plan: Plan, graph: Graph, spec: Spec, sizes: Mapping[str, int], largest: int) -> int:
    explicit, cap = spec.declared_partitions, plan.options.max_partitions
    if explicit is not None:
        if explicit > cap:
            raise refuse(spec, f"partitions={explicit} is above the cap max_partitions={cap}", f"partitions={cap}")
        return explicit
    # Tables of several sizes are refused where the second one is joined.
    join = next(graph.key_joins(spec.op_id or ""), None)
    return min(largest, cap) if join is None else sizes[join.table.stream]
