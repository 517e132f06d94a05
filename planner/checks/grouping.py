"""Groups the partitions of inputs into tasks: one for each number, or one for each partition of each stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from operators.joins.table_join import TableJoin
from planner.model.errors import refuse
from planner.model.graph import Graph, intermediate
from planner.model.plan import Plan, StagePlan

AWAY = 'Options(group_by="partition")'


def group_tasks(plan: Plan, graph: Graph, partitions: Mapping[str, int]) -> Plan:
    """Give each partition of each stream a task of its own in the stages that read inputs, if the options say so.

    Raises PlanError for an operator that needs the partitions of one number in one task.
    """
    if plan.options.group_by == "partition":
        return plan
    reading = [stage for stage in plan.stages if any(graph.specs[id].source for id in stage.operators)]
    streams = [*dict.fromkeys(name for stage in reading for name in stage.inputs)]
    sizes = {stream.name: stream.partitions or 1 for stream in plan.streams}
    found = {}
    for stage in reading:
        _check_may_be_apart(graph, stage)
        found[stage.id] = tuple(
            sorted(
                (task_of(streams, name, partition), name, partition)
                for name in stage.inputs
                for partition in range(sizes[name])
            )
        )
        assert len({task for task, _, _ in found[stage.id]}) == len(found[stage.id]), "a task has one partition"
    return replace(plan, stages=tuple(replace(stage, apart=found.get(stage.id, ())) for stage in plan.stages))


def layout(plan: Plan) -> tuple[str, ...]:
    """Return the streams, in order, from which the numbers of tasks come; () where they come from partitions alone.

    >>> layout(Plan(app="numbered"))
    ()
    """
    streams = [*dict.fromkeys(name for stage in plan.stages if stage.apart for name in stage.inputs)]
    # Of a single stream both ways to group come to the same numbers, so an application may change between them.
    return tuple(streams) if len(streams) > 1 else ()


def task_of(streams: Sequence[str], stream: str, partition: int) -> int:
    """Return the task that reads a partition, where these `streams` have tasks of their own, if any.

    >>> task_of(("a", "b"), "b", 2), task_of((), "b", 2)
    (5, 2)
    """
    # Streams take turns, so that one which gets more partitions moves no other task: checkpoints lie by these numbers.
    return partition * len(streams) + streams.index(stream) if stream in streams else partition


def _check_may_be_apart(graph: Graph, stage: StagePlan) -> None:
    joins = graph.of(TableJoin)
    for id in stage.operators:
        spec, source, join = graph.specs[id], graph.inputs.get(id), joins.get(id)
        if source is not None and source.is_pattern:
            wrong = "streams that come to match it would need new tasks, and each stream has its own"
            raise refuse(spec, wrong, f"an app.input(...) for each stream, and .merge(...); or {AWAY}")
        if join is not None and not join.table.broadcast:
            wrong = f"partitions of {join.table.stream!r} are not in the tasks of those of the stream"
            raise refuse(spec, wrong, f"broadcast=True in app.table(...), a .partition_by(...) before it, or {AWAY}")
        met = sorted(_streams_into(graph, stage, id)) if spec.stateful else []
        if len(met) > 1:
            wrong = f"its state is of {' and '.join(map(repr, met))}, of which each partition has a task of its own"
            raise refuse(spec, wrong, f".partition_by(...) before it, or {AWAY}")


def _streams_into(graph: Graph, stage: StagePlan, id: str) -> set[str]:
    """Return the streams from which messages come to an operator within its stage."""
    found, above, seen = set(), [id], {id}
    while above:
        one = above.pop()
        spec = graph.specs[one]
        if spec.source:
            found.add(spec.subject)
        elif one != id and spec.repartitions:
            found.add(intermediate(graph.app, one))
        else:
            parents = [parent for parent in graph.streams_into(one) if parent not in seen]
            seen.update(parents)
            above += parents
    return found
