"""How the partitions of inputs become tasks: one for each number, or one for each partition of each stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from operators.base import Spec
from operators.io import Input, Table
from operators.table_join import TableJoin
from planner.errors import refuse
from planner.graph import Graph, intermediate
from planner.plan import Plan, StagePlan

AWAY = 'Options(group_by="partition")'


def group_tasks(plan: Plan, graph: Graph, partitions: Mapping[str, int]) -> Plan:
    """Give each partition of each stream a task of its own, in the stages that read inputs, where that was asked for.

    Refuses what needs the partitions of one number in one task. A task has the same number however many partitions
    streams come to have.
    """
    if plan.options.group_by == "partition":
        return plan
    reading = [stage for stage in plan.stages if any(map(_is_input, _specs(graph, stage)))]
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
    return replace(plan, stages=tuple(replace(stage, apart=found.get(stage.id, ())) for stage in plan.stages))


def layout(plan: Plan) -> tuple[str, ...]:
    """Return what the numbers of tasks come from beside partitions: streams in order, where each has tasks of its own.

    >>> layout(Plan(app="numbered"))
    ()
    """
    streams = [*dict.fromkeys(name for stage in plan.stages if stage.apart for name in stage.inputs)]
    return tuple(streams) if len(streams) > 1 else ()


def task_of(streams: Sequence[str], stream: str, partition: int) -> int:
    """Return the task that reads a partition, where these `streams` have tasks of their own, if any.

    >>> task_of(("a", "b"), "b", 2), task_of((), "b", 2)
    (5, 2)
    """
    return partition * len(streams) + streams.index(stream) if stream in streams else partition


def _specs(graph: Graph, stage: StagePlan) -> list[Spec]:
    return [graph.specs[id] for id in stage.operators]


def _is_input(spec: Spec) -> bool:
    return isinstance(spec, Input) and not isinstance(spec, Table)


def _check_may_be_apart(graph: Graph, stage: StagePlan) -> None:
    for spec in _specs(graph, stage):
        if isinstance(spec, Input) and spec.is_pattern:
            wrong = "streams that come to match it would need new tasks, and each stream has its own"
            raise refuse(spec, wrong, f"an app.input(...) for each stream, and .merge(...); or {AWAY}")
        if isinstance(spec, TableJoin) and not spec.table.broadcast:
            wrong = f"partitions of {spec.table.stream!r} are not in the tasks of those of the stream"
            raise refuse(spec, wrong, f"broadcast=True in app.table(...), a .partition_by(...) before it, or {AWAY}")
        met = sorted(_streams_into(graph, stage, spec.op_id or "")) if spec.stateful else []
        if len(met) > 1:
            wrong = f"its state is of {' and '.join(map(repr, met))}, of which each partition has a task of its own"
            raise refuse(spec, wrong, f".partition_by(...) before it, or {AWAY}")


def _streams_into(graph: Graph, stage: StagePlan, id: str) -> set[str]:
    """Return the streams from which messages come to an operator within its stage."""
    found, above, seen = set(), [id], {id}
    while above:
        one = above.pop()
        spec = graph.specs[one]
        if isinstance(spec, Input):
            found.add(spec.stream)
        elif one != id and spec.repartitions:
            found.add(intermediate(graph.app, one))
        else:
            parents = [parent for parent in graph.streams_into(one) if parent not in seen]
            seen.update(parents)
            above += parents
    return found
