"""The partitions that tasks read: of which streams, from where, and how far these reach."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import cast

import msgspec

from operators.core.base import MAX_TIMESTAMP, MIN_TIMESTAMP
from operators.io import Input, TableInput
from operators.partition_by import Broadcast, PartitionBy
from planner.model.graph import Graph
from planner.model.plan import Plan, StagePlan
from planner.model.virtual_tasks import WHOLE as TASKS_OWN
from planner.model.virtual_tasks import VirtualTask, is_task
from runtime.assembly.bindings import Bindings, intermediate_of
from runtime.model.checkpoint import Checkpoint, Position
from runtime.reading.reader import StartPoint
from runtime.reading.sieve import WHOLE, KeyShare

Repartition = PartitionBy | Broadcast


def start_of(
    checkpoint: Checkpoint,
    stream: str,
    partition: int,
    producers: Iterable[str] | None = None,
    share: KeyShare = WHOLE,
) -> StartPoint:
    """Return from where a task reads a partition, whose positions are of several shares where it was merged from them.

    Producers are those that were heard until there: who has taken over from one is told behind what is not read yet.
    """
    found = [one for one in checkpoint.positions if (one.stream, one.partition) == (stream, partition)]
    own = next((one for one in found if one.bucket == TASKS_OWN), None)
    ahead = tuple(one for one in found if one is not own)
    if producers is not None and own is not None:
        heard = {VirtualTask.of(name).base for name in own.producers if is_task(name)}
        new = (name for name in producers if not is_task(name) or VirtualTask.of(name).base not in heard)
        producers = [*new, *own.producers]
    return StartPoint(own, producers, share, ahead)


def without_past_ends(
    checkpoints: Mapping[str, Checkpoint], plan: Plan, bindings: Bindings
) -> Mapping[str, Checkpoint]:
    """Return the checkpoints with which a run begins, without the ends of bound inputs that have grown since.

    Who reads such a one tells later stages anew how far event time is. Were its end believed until then, and for good,
    all windows would close behind each batch.
    """
    if not bindings.sources:
        return checkpoints
    found = {**checkpoints}
    writers = {stream.name: stream.written_by for stream in plan.streams}
    growing: dict[str, set[str]] = {}
    """By stream between stages, the tasks that have more to read than when they ended."""
    for stage in plan.stages:
        for name in {plan.virtual(task).name for task in stage.tasks} & checkpoints.keys():
            mine = [one for one in checkpoints[name].positions if one.stream in stage.inputs]
            grown = [one for one in mine if growing.get(one.stream, set()) & one.producers.keys()]
            if not grown and not any(_has_grown(one, bindings) for one in mine):
                continue
            for stream in (stream for stream, by in writers.items() if {*by} & {*stage.operators}):
                growing.setdefault(stream, set()).add(name)
            awake = {id(one): _awake(one, growing[one.stream]) for one in grown}
            positions = tuple(awake.get(id(one), one) for one in found[name].positions)
            found[name] = msgspec.structs.replace(found[name], positions=positions)
    return found


def _has_grown(position: Position, bindings: Bindings) -> bool:
    """Whether a bound source, which was read to its end, has more."""
    if position.stream not in bindings.sources or position.partition >= bindings.partitions(position.stream):
        return False
    known = bindings.origin(position.stream, position.partition).known()
    return known.end > position.offset or not known.ended


def _awake(position: Position, growing: Set[str]) -> Position:
    producers = {
        name: MIN_TIMESTAMP if at == MAX_TIMESTAMP and name in growing else at
        for name, at in position.producers.items()
    }
    return msgspec.structs.replace(position, producers=producers)


def inputs_of(stage: StagePlan, graph: Graph) -> list[Input]:
    """Return the inputs that a stage reads."""
    return [graph.inputs[id] for id in stage.operators if id in graph.inputs]


def repartitions_into(stage: StagePlan, graph: Graph) -> list[Repartition]:
    """Return the operators whose streams between stages a stage reads."""
    found = ((id, spec) for id, spec in graph.specs.items() if spec.repartitions)
    return [cast("Repartition", spec) for id, spec in found if set(graph.children(id)) & set(stage.operators)]


def look(
    bindings: Bindings,
    graph: Graph,
    stages: Sequence[StagePlan],
    tables: Iterable[TableInput],
    numbers: Collection[int],
) -> None:
    """Refresh the known end offsets of the partitions that tasks of these numbers read of stages and tables."""
    tables = [*tables]
    # Of these all tasks share one reader.
    shared = [stream for table in tables if table.broadcast for stream in bindings.streams_of(table)]
    bindings.look({stream: range(bindings.partitions(stream)) for stream in shared})
    by_bucket: dict[int, list[int]] = {}
    for stage in stages[:1]:
        for number in numbers:
            by_bucket.setdefault(stage.bucket_of(number), []).append(number)
    for bucket, alike in by_bucket.items():
        bindings.look(_read_by(bindings, graph, stages, tables, alike), bucket)


def _read_by(
    bindings: Bindings,
    graph: Graph,
    stages: Sequence[StagePlan],
    tables: Iterable[TableInput],
    numbers: Collection[int],
) -> dict[str, set[int]]:
    places: dict[str, set[int]] = {}
    for stage in stages:
        streams = [stream for spec in inputs_of(stage, graph) for stream in bindings.streams_of(spec)]
        streams += [intermediate_of(graph, spec) for spec in repartitions_into(stage, graph)]
        for stream in streams:
            read = {stage.partition_of(number, stream) for number in numbers if stage.is_run_by(number)}
            places.setdefault(stream, set()).update(read & {*range(bindings.partitions(stream))})
    bases = {base for stage in stages for base in map(stage.base_of, numbers)}
    for table in (table for table in tables if not table.broadcast):
        for stream in bindings.streams_of(table):
            places.setdefault(stream, set()).update(bases & {*range(bindings.partitions(stream))})
    return {stream: read for stream, read in places.items() if read}
