"""What the tasks of an application read: of each stage its inputs and what earlier ones write for it, and tables."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from operators.base import Spec
from operators.io import Input, Table
from planner.graph import Graph
from planner.plan import StagePlan
from runtime.bindings import Bindings, intermediate_of


def read_by(stage: StagePlan, graph: Graph) -> Iterator[tuple[str, Spec]]:
    """Yield what a stage reads, by id."""
    for id in stage.operators:
        if isinstance(spec := graph.specs[id], Input):
            yield id, spec
    for id, spec in graph.specs.items():
        if spec.repartitions and set(graph.children(id)) & set(stage.operators):
            yield id, spec


def look(
    bindings: Bindings, graph: Graph, stages: Iterable[StagePlan], tables: Iterable[Table], numbers: Collection[int]
) -> None:
    """Have it known how far the partitions are that tasks of these numbers read of stages and tables."""
    places: dict[str, set[int]] = {}
    for stage in stages:
        for _, spec in read_by(stage, graph):
            streams = bindings.streams_of(spec) if isinstance(spec, Input) else [intermediate_of(graph, spec)]
            for stream in streams:
                read = {stage.partition_of(number, stream) for number in numbers if number in stage.tasks}
                places.setdefault(stream, set()).update(read & {*range(bindings.partitions(stream))})
    for table in tables:
        for stream in bindings.streams_of(table):
            partitions = {*range(bindings.partitions(stream))}
            places.setdefault(stream, set()).update(partitions if table.broadcast else partitions & {*numbers})
    bindings.look({stream: read for stream, read in places.items() if read})
