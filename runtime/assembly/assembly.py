"""The parts that all tasks of a run are made from: its plan, bindings, readers and destinations."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from operators.core.base import Batch, Output, Serde, Spec
from operators.core.policies import DeadLetterPolicy
from operators.io import Input, TableInput
from operators.joins.table_join import TableContents
from operators.partition_by import Broadcast, PartitionBy, hash_
from operators.task import Effects
from planner.checks.copartitioning import meetings
from planner.model.graph import Graph
from planner.model.levers import ALL, Levers
from planner.model.plan import Plan, StagePlan
from runtime.assembly.bindings import Bindings, intermediate_of
from runtime.assembly.partitions import inputs_of, look, repartitions_into
from runtime.encoding.formats.rows import RowSerde, has_columns, type_of_rows, type_of_values, wrong_names_of
from runtime.encoding.formats.subjects import placed
from runtime.encoding.keys import KeySerde
from runtime.encoding.serdes import Json, MessagePack, Tagged
from runtime.encoding.storable import ReadBack, read_back
from runtime.functions.first_call import CheckedAggregations, check_kept
from runtime.functions.user_functions import Around, Functions, has_own
from runtime.job.key_kinds import EqualKeys
from runtime.model.checkpoint import Checkpoint
from runtime.model.clock import Clock
from runtime.model.history import AtRest
from runtime.ports.environment import LiveEnvironment
from runtime.ports.sink import Limit
from runtime.ports.store import TaskStore
from runtime.reading.event_times import EventTimes, Pacing
from runtime.reading.folding import Columnar, FoldingSegment
from runtime.reading.key_places import SAMPLE, KeyPlaces, Meeting
from runtime.reading.reader import Decoding, Reader, Shortcuts, StartPoint, Turn
from runtime.reading.relay import AnyRelay
from runtime.reading.shared_reads import SharedPartitions
from runtime.reading.watermarks import ProducerWatermarks
from runtime.stage.chain import Chain, FusedSegment, StageCode
from runtime.stage.error_policy import Guard
from runtime.stage.outputs import Destination, Outputs
from runtime.stores.memory import MemoryStore
from runtime.stores.registry import store_kind
from runtime.systems.connectors.outbox import is_outbox_of

_log = logging.getLogger("samza_dsl")


@dataclass(frozen=True)
class Assembly:
    """The parts that all tasks of a run are made from."""

    plan: Plan
    graph: Graph
    bindings: Bindings
    clock: Clock
    around: tuple[Around, ...]
    checkpoints: Mapping[str, Checkpoint]
    stop_at: Mapping[tuple[str, int], int]
    on_returned: Callable[[], None]
    request: Callable[[Effects], None]
    data: Path | None = None
    relays: dict[tuple[str, int], AnyRelay] = field(default_factory=dict)
    """What hands rows to the readers of later stages, by stream and partition."""
    shared: SharedPartitions = field(default_factory=SharedPartitions)
    """What the virtual tasks of a partition read together."""
    levers: Levers = ALL
    ceilings: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By task and operator, the event time (ms) beyond which nothing fires."""
    rests: Mapping[str, AtRest] = field(default_factory=dict)
    """By partition as "flights:3", how a run before has come to rest where this one stops."""
    discovers: bool = True
    """Whether streams that come to match a pattern are read as well."""
    only: StagePlan | None = None
    """The one stage that is run, with the tables that it joins; else all are."""
    columnar: Mapping[str, Columnar] = field(default_factory=dict)
    """What folds the batches of inputs that lie in columns, by the ids of these."""
    jumped: set[str] = field(default_factory=set)
    """The streams of which it was told that one record moved event time far."""
    equal_keys: dict[str, EqualKeys] = field(default_factory=dict)
    """By operator, the keys that were looked at for equal ones."""
    told: set[str] = field(default_factory=set)
    """What was told of keys of other kinds than before, of outputs that keep no headers, and of names in records."""
    key_places: KeyPlaces = field(init=False, repr=False, compare=False)
    producers: dict[str, list[str]] = field(default_factory=dict, init=False, repr=False)
    """The names of the tasks of a stage, once for all that read what these write: there may be a thousand of each."""
    code: dict[str, StageCode] = field(default_factory=dict, init=False, repr=False)
    """The code of each stage, which tasks share."""
    joint: dict[str, bool] = field(default_factory=dict, init=False, repr=False)
    """By stage, whether it is run once for all tasks."""
    destinations: dict[int, Destination] = field(default_factory=dict, init=False, repr=False)
    """Where each output of the graph goes, by its identity, looked up once for all tasks."""
    held: KeySerde = field(default_factory=lambda: KeySerde(Tagged()), init=False, repr=False)
    """The keys that users' functions make, as they are held."""
    stays: bool = False
    """Whether all tasks are run here, and commit together."""
    merged: str = ""
    """The one producer of all that comes from other stages, where it comes merged by event time, block by block."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key_places", KeyPlaces(Meeting(*one) for one in meetings(self.graph)))

    def producers_of(self, stage: StagePlan) -> list[str]:
        """Return the names of the tasks that run a stage, under which they tell others of event time."""
        found = self.producers.get(stage.id)
        if found is None:
            found = self.producers[stage.id] = [self.plan.virtual(task).name for task in stage.tasks]
        return found

    def look(self, numbers: Collection[int]) -> None:
        """Refresh the known end offsets of the partitions that tasks of these numbers read, and bring their state."""
        look(self.bindings, self.graph, self.stages, self.joined_tables(), numbers)
        environment = self.bindings.environment
        if isinstance(environment, LiveEnvironment):
            durable = {store.operator for store in self.plan.stores if store_kind(store.kind).durable}
            tasks = {task for stage in self.stages if durable.intersection(stage.operators) for task in stage.tasks}
            if stateful := tasks.intersection(numbers):
                # All at once: each by itself would look through what lies here of all others, at its first entry.
                environment.bring(self.plan.app, stateful)

    @property
    def limits(self) -> Mapping[str, Limit]:
        """The limits of the size of records, by the stream that is written."""
        return self.bindings.limits(self.plan)

    @property
    def stages(self) -> Sequence[StagePlan]:
        """The stages that are run."""
        return self.plan.stages if self.only is None else (self.only,)

    def shared_functions(self) -> Functions:
        """Make ready the functions that belong to no task: those of broadcast tables."""
        specs = [spec for spec in self.joined_tables() if spec.broadcast]
        return Functions(self.plan.app, 0, specs, self.around, self.data)

    def joined_tables(self) -> list[TableInput]:
        """Return the tables that are read here."""
        return [spec for spec in self.graph.tables.values() if self.only is None or spec.stream in self.only.tables]

    def broadcast_tables(self, functions: Functions) -> dict[str, tuple[list[Reader], TableContents, Guard]]:
        """Make the tables that all tasks share: read from their beginning in every run, and kept in memory."""
        found = {}
        for spec in self.joined_tables():
            if spec.broadcast:
                id = spec.op_id or ""
                store = MemoryStore(id)
                contents = TableContents(store, KeySerde(spec.key or Tagged()))
                readers = [
                    self.reader(spec, stream, partition, StartPoint(), functions)
                    for stream in self.bindings.streams_of(spec)
                    for partition in range(self.bindings.partitions(stream))
                ]
                found[id] = (readers, contents, table_guard(self, id, store, Outputs(0)))
        return found

    def reader(
        self,
        spec: Input,
        stream: str,
        partition: int,
        start: StartPoint,
        functions: Functions,
        folding: FoldingSegment | None = None,
        segment: FusedSegment | None = None,
    ) -> Reader:
        """Make the reader of one source partition, which reads what `segment` does not read itself, but needs."""
        named = functions.by_operator[spec.op_id or ""]
        source = self.bindings.sources.get(stream)
        key = spec.key if spec.key is not None else Tagged() if spec.key_of else None
        keyed = segment is None or not segment.plan.reading or start.is_part
        decoding = Decoding(
            value=source.serde(spec.value) if source is not None else spec.value,
            key=key if keyed else None,
            key_of=named.get("key") if keyed else None,
            timestamp_of=named.get("timestamp"),
            timed=segment is None or segment.needs("timestamps"),
            watermark_of=named.get("watermark"),
            stamped=self._needs_event_time(spec),
            tombstones=spec.reads_none,
            located=self.locates(self.graph.below(spec.op_id or "")),
            headed=self.graph.is_headed(spec.op_id or ""),
            unit=spec.unit,
            is_table=spec.tombstones,
        )
        check_kept(spec, decoding, CheckedAggregations(inline=False))
        return Reader(
            self.bindings.origin(stream, partition, start.share.task.bucket),
            decoding,
            spec.op_id or "",
            start,
            Turn(self.stop_at.get((stream, partition)), self.rests.get(f"{stream}:{partition}"), spec.priority),
            self._pacing(spec, stream, partition),
            Shortcuts(
                None if start.is_part else folding,
                self.columnar.get(spec.op_id or ""),
                shared=self.shared.of(spec, stream, partition, start.share),
                look_at=self._look_at(spec, stream, partition),
            ),
        )

    def _look_at(self, spec: Input, stream: str, partition: int) -> Callable[[Batch], bool] | None:
        """Return what looks at the first rows of a partition, at places of keys and at names; None where none count."""
        partitions, kind = self.bindings.partitions(stream), type_of_rows(spec.value)
        stored = spec.key is not None and spec.key_of is None and partitions > 1
        keyed = stored and self.key_places.concerns(spec.subject) and self.bindings.is_of_others(stream)
        by_hash = self.bindings.is_topic(stream)
        named = kind is not None and has_columns(kind)
        unseen = SAMPLE

        def look(raw: Batch) -> bool:
            nonlocal unseen
            if named and unseen == SAMPLE and raw.values:
                self._check_names(spec, stream, kind, raw.values[0])
            if keyed and raw.keys is not None:
                self.key_places.note(spec.subject, partition, partitions, raw.keys[:unseen], by_hash)
            unseen -= min(len(raw), unseen)
            return unseen > 0

        return look if keyed or named else None

    def _check_names(self, spec: Input, stream: str, kind: object, record: object) -> None:
        """Tell once of a stream whose records have other names than their type.

        Files that have their columns in front are held against it before any record is read.
        """
        mark = f"names in {stream}"
        if mark not in self.told and (wrong := wrong_names_of(kind, record)):
            self.told.add(mark)
            _log.warning("%s %r at %s: the first record of %r %s", spec.kind, spec.op_id, spec.site, stream, wrong)

    def _pacing(self, spec: Input, stream: str, partition: int) -> Pacing:
        # What waits for less than a jump makes what follows it late; what allows more does not mind it.
        below = [self.graph.specs[id] for id in self.graph.below(spec.op_id or "")]
        forgiven_ms = min((one.forgives_ms for one in below if one.event_time), default=0)
        place = stream, partition
        times = EventTimes(spec, self.plan.app, place, self.clock, self.jumped, forgiven_ms)
        if not self._needs_event_time(spec):
            return Pacing(spec.max_disorder_ms, times=times)
        return Pacing(spec.max_disorder_ms, spec.idle_after_ms, spec.close_on_idle, spec.max_drift_ms, times)

    def destination(self, output: Output) -> Destination:
        """Return where an output goes."""
        # By identity, as a serde of the user's may have no hash.
        found = self.destinations.get(id(output))
        if found is None:
            found = self.destinations[id(output)] = self._destination(output)
        return found

    def _destination(self, output: Output) -> Destination:
        name = self.bindings.name_of(output.stream)
        value, key = placed(output.value, name), placed(output.key, name, is_key=True)
        kind = type_of_values(value)
        # In a container, too, which knows the stream alone: who has started it delivers.
        if is_outbox_of(self.plan.app, output.stream, name) and kind is not Any:
            value = ReadBack(value, kind)
        if (sink := self.bindings.sinks.get(output.stream)) is None:
            partitions, outbox = self.bindings.partitions(output.stream), self.bindings.outboxes.get(output.stream)
            check = None if outbox is None else outbox.check
            return Destination(output.stream, partitions, read_back(value), key, check=check)
        return Destination(output.stream, sink.partitions, _read_back(sink.serde(value), kind), key, sink=sink)

    def locates(self, ids: Iterable[str]) -> bool:
        """Whether records must carry where they are from, for the dead letters of those that are late."""
        return any(isinstance(self.graph.specs[id].late, DeadLetterPolicy) for id in ids)

    def is_relayed(self, stage: StagePlan) -> bool:
        """Whether a stage is handed in memory what earlier ones write, as where nothing asks for a record's offset.

        What calls a sink reads what is committed, so that a record has the same place again after a restart.
        """
        specs = [self.graph.specs[id] for id in stage.operators]
        # What all virtual tasks of a partition are to have is stored once, and read by each of them.
        to_all = self.graph.of(Broadcast).keys() & {one.op_id for one in repartitions_into(stage, self.graph)}
        if stage.buckets > 1 and to_all:
            return False
        return self.levers.relays and not any(spec.asynchronous or spec.has_effects for spec in specs)

    def is_joint(self, stage: StagePlan) -> bool:
        """Whether a stage is run once for all tasks: its messages are handed on in memory, and no function is a task's.

        Each entry of what it keeps has one key, and goes by the hash of that to the store of a task.
        Task by task, all that a step, a firing and a commit take beside messages is taken as often as there are tasks.
        """
        found = self.joint.get(stage.id)
        if found is None:
            found = self.joint[stage.id] = self._may_be_joint(stage)
        return found

    def _may_be_joint(self, stage: StagePlan) -> bool:
        specs, into = [self.graph.specs[id] for id in stage.operators], repartitions_into(stage, self.graph)
        if not (self.stays and self.levers.joint and self.only is None) or self.plan.options.threads or stage.apart:
            return False
        if len(stage.tasks) < 2 or stage.buckets > 1 or inputs_of(stage, self.graph) or not self.is_relayed(stage):
            return False
        # The partition of a key tells the task that has its state: by the user's own choice nobody could tell it again.
        by_hash = self.graph.of(PartitionBy)
        for id in (spec.op_id or "" for spec in into):
            is_whole = self.bindings.partitions(intermediate_of(self.graph, self.graph.specs[id])) == len(stage.tasks)
            if id not in by_hash or by_hash[id].by is not hash_ or by_hash[id].combines or not is_whole:
                return False
        if not self._is_level({intermediate_of(self.graph, spec) for spec in into}):
            return False
        keys = self.graph.key_serde(into[0].op_id or "")
        kept = [spec for spec in specs if spec.stateful]
        if any(self.graph.key_serde_into(spec.op_id or "") != keys for spec in kept):
            return False
        # A user's own task, what is kept beyond the keys of messages, and tables in partitions are each task's.
        if any(spec.terminal or not spec.keyed or spec.why_whole() is not None for spec in kept):
            return False
        # Heaps of timers are slower the more keys they have, and states lie together by task: that outweighed the steps
        # where processes with timers and lists were measured in 16 and 64 partitions.
        if any(spec.beyond_keys or spec.wall_clock for spec in kept):
            return False
        if any(table.stream in stage.tables and not table.broadcast for table in self.graph.tables.values()):
            return False
        return not any(map(has_own, specs))

    def _is_level(self, streams: Collection[str]) -> bool:
        """Whether event time has come as far in all partitions of each of some streams: rows of all go by the first."""
        reached: dict[str, set[int]] = {}
        for checkpoint in self.checkpoints.values():
            for at in (one for one in checkpoint.positions if one.stream in streams):
                heard = ProducerWatermarks(at.producers, at.producers, at.idle, at.watermark)
                reached.setdefault(at.stream, set()).add(heard.value if at.producers else at.watermark)
        return all(len(found) == 1 for found in reached.values())

    def _needs_event_time(self, spec: Spec) -> bool:
        return any(self.graph.specs[id].event_time for id in self.graph.below(spec.op_id or ""))


def _read_back(serde: Serde, kind: object) -> Serde:
    """Return the serde of a bound output, which refuses what a declared type could not be read from, as of a stream.

    Those that say more than a type refuse by themselves what they can't write.
    """
    is_of_type = kind is not Any and isinstance(serde, Json | MessagePack | RowSerde)
    return ReadBack(serde, kind) if is_of_type else read_back(serde)


def table_guard(assembly: Assembly, id: str, store: TaskStore, outputs: Outputs) -> Guard:
    """Return what guards the table of an input, which is no operator."""
    stage, graph = StagePlan(id=id, inputs=(), operators=(id,)), assembly.graph
    return Guard(Chain(StageCode(stage, graph, {}, frozenset(), {}), {}, {}), graph, [store], outputs, assembly.clock)
