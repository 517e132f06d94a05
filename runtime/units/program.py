"""The program that reaches workers: applications, where their streams lie, and which task runs at which level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from operators.core.policies import skip
from operators.partition_by import Broadcast, PartitionBy
from planner.columnar.lowering import ColumnStart, Lowered
from planner.columnar.projection import Reshaped
from planner.model.graph import Graph
from planner.model.plan import Plan, StagePlan
from runtime.assembly.bindings import intermediate_of
from runtime.assembly.history import History
from runtime.encoding.serdes import Declared, Evolving, Unread
from runtime.functions.user_functions import Around
from runtime.ports.source import Source
from runtime.ports.streams import Offsets, Read, StreamConfig
from runtime.systems.kafka.client.topic import KafkaCluster
from runtime.units.growing import UpTo
from runtime.units.heartbeats import Address
from runtime.units.micro_batch import MicroBatch
from runtime.units.shuffle_rows import PartialsSerde

Native = Lowered | Reshaped | ColumnStart
"""The computation on columns of what an input feeds."""


class Unit(NamedTuple):
    """One task of one stage of one of the jobs."""

    job: int
    stage: int
    task: int


@dataclass(frozen=True)
class ShippedJob:
    """One application: its plan and functions, where its inputs lie and end, and where its outputs are to go.

    `held` has what is read of streams that live in the driver's memory; `directory` is the embedded log, where no
    `cluster` of Kafka is the environment.
    """

    graph: Graph
    plan: Plan
    around: tuple[Around, ...]
    inputs: Mapping[str, Source]
    staging: Mapping[str, Path]
    """By output, the directory that takes the files of all attempts, named for what they hold."""
    streams: Mapping[str, StreamConfig]
    ends: Mapping[tuple[str, int], Offsets]
    directory: Path | None = None
    cluster: KafkaCluster | None = None
    held: Mapping[tuple[str, int], tuple[Read, ...]] = field(default_factory=dict)
    history: History | None = None
    state: Path | None = None
    """The directory that takes the state of all attempts, where history is handed over."""
    rows: Path | None = None
    """The directory that takes what attempts have for the driver to put where it belongs; else they tell it."""
    lowered: Mapping[str, Native] = field(default_factory=dict)
    """The computations on columns of inputs whose records lie in such, by the ids of their operators."""
    kept: frozenset[str] = frozenset()
    """The outputs that are made of the files of attempts as they are."""
    batch: MicroBatch | None = None
    """The micro-batch that is run; None where all that there is, is run at once."""

    @property
    def hands_over(self) -> bool:
        """Whether nothing fires at the end of the inputs."""
        return self.history is not None and self.history.hands_over

    def at(self, batch: MicroBatch) -> ShippedJob:
        """Return it as one micro-batch of it is run."""
        inputs = {**self.inputs, **batch.growing}
        return replace(self, batch=batch, inputs=inputs, streams=batch.streams, ends=batch.ends, held=batch.held)

    @property
    def sources(self) -> Mapping[str, Source]:
        """The inputs that are bound, as far as they are read."""
        if self.batch is None:
            return self.inputs
        return {name: UpTo(source, name, self.ends) for name, source in self.inputs.items()}

    @cached_property
    def places(self) -> dict[str, int]:
        """The streams between stages, by name, with their numbers."""
        between = [stream.name for stream in self.plan.streams if stream.role == "intermediate"]
        return {name: number for number, name in enumerate(between)}

    @cached_property
    def reads(self) -> list[list[str]]:
        """By stage, the streams between stages that it reads."""
        found: list[list[str]] = [[] for _ in self.plan.stages]
        for id, spec in self.graph.specs.items():
            if spec.repartitions:
                for number, stage in enumerate(self.plan.stages):
                    if set(self.graph.children(id)) & set(stage.operators):
                        found[number].append(intermediate_of(self.graph, spec))
        return found

    @cached_property
    def writes(self) -> list[list[str]]:
        """By stage, the streams between stages that it writes."""
        return [
            [intermediate_of(self.graph, spec) for id in stage.operators if (spec := self.graph.specs[id]).repartitions]
            for stage in self.plan.stages
        ]

    @cached_property
    def folded(self) -> frozenset[str]:
        """The streams between stages in which a row has many keys, of one window."""
        folding = (spec for spec in self.graph.of(PartitionBy).values() if spec.combines is not None)
        return frozenset(intermediate_of(self.graph, spec) for spec in folding)

    @cached_property
    def evolving(self) -> frozenset[str]:
        """The streams between stages whose values are bytes of `Evolving`, as no serde of a user's makes them."""
        graph = self.graph
        writing: list[PartitionBy | Broadcast] = [*graph.of(PartitionBy).values()]
        writing += graph.of(Broadcast).values()
        of_ours = (spec for spec in writing if spec.value is None or type(spec.value) in (Evolving, Declared))
        return frozenset(intermediate_of(graph, spec) for spec in of_ours) - self.folded

    @cached_property
    def levels(self) -> list[int]:
        """By stage, how many stages come before it at most."""
        written = {stream: number for number, streams in enumerate(self.writes) for stream in streams}
        found: dict[int, int] = {}

        def level(stage: int) -> int:
            if stage not in found:
                found[stage] = max((level(written[stream]) + 1 for stream in self.reads[stage]), default=0)
            return found[stage]

        return [level(stage) for stage in range(len(self.plan.stages))]

    def graph_of(self, stage: int) -> Graph:
        """Return the graph as a stage sees it: what is malformed in a table is told by the first that reads it.

        Values that no operator behind the shuffle reads do not go through it.
        """
        told = {stream for before in self.plan.stages[:stage] for stream in before.tables}
        specs = dict(self.graph.specs)
        for id, table in self.graph.tables.items():
            if table.stream in told:
                # Each stage reads a table by itself, and one dead letter per malformed record is enough.
                specs[id] = replace(table, on_error=skip)
        for id, partitioning in self.graph.of(PartitionBy).items():
            if partitioning.combines is not None:
                specs[id] = replace(partitioning, value=PartialsSerde())
            elif self._ignores_values(id):
                # What nobody reads need not be encoded, sorted and copied.
                specs[id] = replace(partitioning, value=Unread())
        return replace(self.graph, specs=specs)

    def _ignores_values(self, id: str) -> bool:
        return all(self.graph.specs[child].ignores_values for child in self.graph.children(id))

    def held_read(self, stream: str, partition: int, offset: int) -> Read | None:
        """Return what comes next of a stream in memory."""
        for held in self.held.get((stream, partition), ()):
            if held.next_offset > offset:
                # A copy: other units of this process read the same rows.
                return Read(held.batch.copy(), held.control, held.next_offset, held.stream_id)
        return None


@dataclass(frozen=True)
class Program:
    """All that one run on Spark does, level by level: a unit reads what units of lower levels have written."""

    jobs: tuple[ShippedJob, ...]
    at_once: int = 1
    """The most units that run at the same time."""
    heard_at: Address | None = None
    """The address at which workers say how far they are, where somebody watches."""

    def at(self, batches: Sequence[MicroBatch]) -> Program:
        """Return it as one micro-batch of each job is run."""
        return Program(tuple(job.at(batch) for job, batch in zip(self.jobs, batches, strict=True)))

    @cached_property
    def units(self) -> list[Unit]:
        """All units, those of lower levels first."""
        found = [
            (level, Unit(job, stage, task))
            for job, one in enumerate(self.jobs)
            for stage, level in enumerate(one.levels)
            for task in range(one.plan.stages[stage].partitions)
        ]
        return [unit for _, unit in sorted(found)]

    @cached_property
    def levels(self) -> list[range]:
        """The numbers of the units of each level."""
        levels = [self.jobs[unit.job].levels[unit.stage] for unit in self.units]
        starts = [levels.index(level) for level in sorted(set(levels))]
        return [range(start, stop) for start, stop in zip(starts, [*starts[1:], len(levels)], strict=True)]

    def stage(self, unit: Unit) -> StagePlan:
        """Return the stage of a unit."""
        return self.jobs[unit.job].plan.stages[unit.stage]

    @cached_property
    def readers(self) -> dict[tuple[int, str, int], list[int]]:
        """The units that read a partition between stages, by job, stream and partition."""
        found: dict[tuple[int, str, int], list[int]] = {}
        for number, unit in enumerate(self.units):
            for stream in self.jobs[unit.job].reads[unit.stage]:
                found.setdefault((unit.job, stream, unit.task), []).append(number)
        return found
