"""From a plan to tasks ready to run: which task has which chains, readers, stores and exits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import RLock
from typing import Any, cast

from operators.async_flat_map import AsyncFlatMap, StatefulCalls
from operators.base import MOST_HELD, Batch, Operator, Serde, Spec, Store
from operators.io import Input, Output, SendTo, Sink, Table
from operators.partition_by import ByFunction, PartitionBy, hash_
from operators.policies import DeadLetter
from operators.remote_join import RemoteJoin
from operators.table_join import TableContents, TableJoin
from operators.task import Effects, TaskContext, TaskOperator
from operators.task import Task as TaskSpec
from operators.window import Window
from operators.window_join import WindowJoin
from planner.copartitioning import check_streams_alike
from planner.counting import exit_of
from planner.errors import refuse
from planner.graph import Graph
from planner.levers import ALL, Levers
from planner.plan import Plan, StagePlan
from runtime.awaiting import feed_ahead, let_await
from runtime.bindings import Bindings, intermediate_of
from runtime.chain import Chain, Exit, FusedSegment
from runtime.checkpoint import Checkpoint
from runtime.clock import Clock
from runtime.combining import CombinedExit, CombiningExit
from runtime.exits import (
    AwaitedExit,
    BroadcastExit,
    NowhereExit,
    PartitionByExit,
    SendToExit,
    SinkExit,
    StatefulExit,
    TaskExit,
    operator_of,
)
from runtime.first_call import check_kept
from runtime.folding import FoldingSegment
from runtime.functions import Around, Functions
from runtime.guard import Guard
from runtime.inputs import Columnar, Decoding, Pacing, Reader
from runtime.keys import KeySerde
from runtime.lane import Lane
from runtime.late import late_exit
from runtime.lookups import lookups
from runtime.outputs import Destination, Outputs
from runtime.pace import Pace
from runtime.reading import look, read_by
from runtime.relay import Relay
from runtime.remote_rows import RemoteJoining
from runtime.serdes import Natural, Tagged
from runtime.stores.cache import CachedStore
from runtime.stores.memory import MemoryStore
from runtime.stores.shared import SharedStore
from runtime.task import Task
from runtime.timer import Timer


@dataclass(frozen=True)
class Assembly:
    """What all tasks of a run are made from."""

    plan: Plan
    graph: Graph
    bindings: Bindings
    clock: Clock
    around: tuple[Around, ...]
    checkpoints: Mapping[str, Checkpoint]
    stop_at: Mapping[tuple[str, int], int]
    wake: Callable[[], None]
    request: Callable[[Effects], None]
    data: Path | None = None
    relays: dict[tuple[str, int], Relay] = field(default_factory=dict)
    """What hands rows to the readers of later stages, by stream and partition."""
    levers: Levers = ALL
    discovers: bool = True
    """Whether streams that come to match a pattern are read as well."""
    only: StagePlan | None = None
    """The one stage that is run, with the tables that it joins; else all are."""
    columnar: Mapping[str, Columnar] = field(default_factory=dict)
    """What folds the batches of inputs that lie in columns, by the ids of these."""
    merged: str = ""
    """The one producer of all that comes from other stages, where it comes merged in the order of event time."""

    def tasks(self, broadcast: Mapping[str, TableContents], numbers: Iterable[int]) -> list[Task]:
        """Make the tasks of these numbers."""
        return [_TaskBuilder(self, number, broadcast).build() for number in numbers]

    def look(self, numbers: Collection[int]) -> None:
        """Have it known how far the partitions are that tasks of these numbers read."""
        look(self.bindings, self.graph, self.stages, self.joined_tables(), numbers)

    @property
    def stages(self) -> Sequence[StagePlan]:
        """The stages that are run."""
        return self.plan.stages if self.only is None else (self.only,)

    def shared_functions(self) -> Functions:
        """Make ready the functions that belong to no task: those of broadcast tables."""
        specs = [spec for spec in self.joined_tables() if spec.broadcast]
        return Functions(self.plan.app, 0, specs, self.around, self.data)

    def joined_tables(self) -> list[Table]:
        """Return the tables that are read here."""
        tables = [spec for spec in self.graph.specs.values() if isinstance(spec, Table)]
        return [spec for spec in tables if self.only is None or spec.stream in self.only.tables]

    def broadcast_tables(self, functions: Functions) -> dict[str, tuple[list[Reader], TableContents, Guard]]:
        """Make the tables that all tasks share: read from their beginning in every run, and kept in memory."""
        found = {}
        for spec in self.joined_tables():
            if spec.broadcast:
                id = spec.op_id or ""
                contents = TableContents(MemoryStore(id), KeySerde(spec.key or Tagged()))
                readers = [
                    self.reader(spec, stream, partition, Checkpoint(0), functions)
                    for stream in self.bindings.streams_of(spec)
                    for partition in range(self.bindings.partitions(stream))
                ]
                found[id] = (readers, contents, _table_guard(self, id, contents.store, Outputs(0)))
        return found

    def reader(
        self,
        spec: Input,
        stream: str,
        partition: int,
        checkpoint: Checkpoint,
        functions: Functions,
        folding: FoldingSegment | None = None,
        segment: FusedSegment | None = None,
    ) -> Reader:
        """Make the reader of one source partition, which reads what `segment` does not read itself, but needs."""
        named = functions.by_operator[spec.op_id or ""]
        source = self.bindings.sources.get(stream)
        key = spec.key if spec.key is not None else Tagged() if spec.key_of else None
        keyed = segment is None or not segment.plan.reading
        decoding = Decoding(
            value=source.serde(spec.value) if source is not None else spec.value,
            key=key if keyed else None,
            key_of=named.get("key") if keyed else None,
            timestamp_of=named.get("timestamp"),
            timed=segment is None or segment.needs("timestamps"),
            watermark_of=named.get("watermark"),
            stamped=self._needs_event_time(spec),
            tombstones=spec.tombstones,
            located=self.locates(self.graph.below(spec.op_id or "")),
        )
        check_kept(spec, decoding)
        return Reader(
            self.bindings.origin(stream, partition),
            decoding,
            entry=spec.op_id or "",
            position=checkpoint.position_of(stream, partition),
            pacing=self._pacing(spec),
            stop_at=self.stop_at.get((stream, partition)),
            priority=spec.priority,
            folding=folding,
            columnar=self.columnar.get(spec.op_id or ""),
        )

    def _pacing(self, spec: Input) -> Pacing:
        if not self._needs_event_time(spec):
            return Pacing(spec.max_disorder_ms)
        return Pacing(spec.max_disorder_ms, spec.idle_after_ms, spec.close_on_idle, spec.max_drift_ms)

    def destination(self, output: Output) -> Destination:
        """Return where an output goes."""
        if (sink := self.bindings.sinks.get(output.stream)) is None:
            return Destination(output.stream, self.bindings.partitions(output.stream), output.value, output.key)
        return Destination(output.stream, sink.partitions, sink.serde(output.value), output.key, sink=sink)

    def locates(self, ids: Iterable[str]) -> bool:
        """Whether records must carry where they are from, for the dead letters of those that are late."""
        return any(isinstance(self.graph.specs[id].late, DeadLetter) for id in ids)

    def is_relayed(self, stage: StagePlan) -> bool:
        """Whether a stage is handed in memory what earlier ones write, as where nothing asks for a record's offset.

        What calls a sink reads what is committed, so that a record has the same place again after a restart.
        """
        specs = [self.graph.specs[id] for id in stage.operators]
        return self.levers.relays and not any(spec.asynchronous or isinstance(spec, Sink | TaskSpec) for spec in specs)

    def _needs_event_time(self, spec: Spec) -> bool:
        return any(self.graph.specs[id].event_time for id in self.graph.below(spec.op_id or ""))


class _TaskBuilder:
    """Makes one task."""

    def __init__(self, assembly: Assembly, number: int, broadcast: Mapping[str, TableContents]) -> None:
        self.assembly = assembly
        self.graph = assembly.graph
        self.number = number
        self.stages = [stage for stage in assembly.stages if number in stage.tasks]
        self.checkpoint = assembly.checkpoints.get(str(number), Checkpoint(0))
        self.tables = dict(broadcast)
        specs = [self.graph.specs[id] for stage in self.stages for id in stage.operators]
        specs += [spec for spec in assembly.joined_tables() if not spec.broadcast]
        self.functions = Functions(assembly.plan.app, number, specs, assembly.around, assembly.data)
        self.outputs = Outputs(number)
        self.outputs.relays = assembly.relays
        self.stores: dict[str, Any] = {}
        self.home: int | None = None
        self.alone: AbstractContextManager[object] = RLock() if assembly.plan.options.threads else nullcontext()

    def build(self) -> Task:
        """Make the task."""
        options = self.assembly.plan.options
        self.task = task = Task(self.number, options, self.assembly.clock, self.functions, self.outputs, self.stores)
        for spec in self.assembly.joined_tables():
            if not spec.broadcast:
                self._add_table(spec.op_id or "", spec)
        task.lanes = [self._lane(stage) for stage in self.stages]
        feed_ahead(task.lanes)
        return task

    def _lane(self, stage: StagePlan) -> Lane:
        ids, levers = stage.operators, self.assembly.levers
        most_held = MOST_HELD if levers.hot_state else 0
        operators = {
            id: operator_of(spec, self.functions.by_operator[id], self._store(id, spec), self._keys(id), most_held)
            for id in ids
            if (spec := self.graph.specs[id]).stateful and not isinstance(spec, TaskSpec | AsyncFlatMap)
        }
        self.home = next((partition for task, _, partition in stage.apart if task == self.number), None)
        exits = {exit_of(self.graph.specs[id]): self._exit(id, operators) for id in ids if self._takes(id)}
        functions = {
            **self.functions.by_operator,
            **{id: self._join(id) for id in ids if self._is_join(id)},
            **{id: self._encoding(id) for id in ids if self.graph.specs[id].encodes},
            **{id: self._keyed(id, one) for id, one in operators.items()},
            **{id: self._held(id) for id in ids if self.graph.specs[id].source},
        }
        columns = {"keys", "timestamps", "stamps"}
        columns |= {"signs"} if any(self.graph.specs[id].reads_signs for id in ids) else set()
        asynchronous = any(self.graph.specs[id].asynchronous for id in ids)
        if asynchronous:
            columns.add("owners")
        if asynchronous or any(isinstance(self.graph.specs[id], TaskSpec) for id in ids):
            columns.add("offsets")
        if self.assembly.locates(ids):
            columns |= {"offsets", "headers"}
        chain = Chain(stage, self.graph, functions, exits, operators, frozenset(columns), levers)
        stores = [self.stores[id] for id in ids if id in self.stores]
        reads_on_loop = any(isinstance(spec := self.graph.specs[id], TaskSpec) and spec.asynchronous for id in ids)
        alone = self.alone if reads_on_loop else None
        guard = Guard(chain, self.graph, stores, self.outputs, self.assembly.clock, alone)
        foldings = {} if asynchronous or not guard.together else chain.foldings
        readers = list(self._readers(chain, foldings))
        lane = Lane(chain, readers, guard, Pace(self.assembly.plan.options.batch_records if levers.batches else 1))
        lane.depth = self.assembly.plan.stages.index(stage)
        writing = [self.graph.specs[id] for id in ids if self.graph.specs[id].repartitions]
        lane.writes = frozenset(intermediate_of(self.graph, spec) for spec in writing)
        lane.task_exits = {id: one for id, one in exits.items() if isinstance(one, TaskExit)}
        if self.assembly.discovers:
            lane.patterns = frozenset(filter(self._may_match_more, ids))
            lane.find_readers = lambda: self._input_readers(
                chain, foldings, {reader.origin.stream for reader in lane.readers}
            )
        self._add_timers(lane)
        if asynchronous:
            located = self.assembly.locates(ids) or bool(lane.task_exits)
            let_await(lane, self.graph, self.assembly.plan.options, self.assembly.wake, located, levers.flights)
        return lane

    def _input_readers(
        self, chain: Chain, foldings: Mapping[str, FoldingSegment], known: Collection[str] = ()
    ) -> Iterable[Reader]:
        bindings, stage = self.assembly.bindings, chain.stage
        for id, spec in read_by(stage, self.graph):
            if isinstance(spec, Input):
                counts = {stream: bindings.partitions(stream) for stream in bindings.streams_of(spec)}
                if spec.is_pattern:
                    read = self.assembly.plan.stream(spec.stream).partitions or 1
                    check_streams_alike(self.graph, spec, counts, read)
                for stream, partitions in counts.items():
                    if partitions > stage.partitions:
                        wrong = f"{partitions} partitions, and {stage.partitions} are read"
                        instead = f"partitions={partitions}, or start the app again"
                        raise refuse(spec, f"the new stream {stream!r} has {wrong}", instead)
                    if 0 <= (number := stage.partition_of(self.number, stream)) < partitions and stream not in known:
                        how = self.checkpoint, self.functions, foldings.get(id), chain.segments[id]
                        yield self.assembly.reader(spec, stream, number, *how)

    def _readers(self, chain: Chain, foldings: Mapping[str, FoldingSegment]) -> Iterable[Reader]:
        bindings, stage = self.assembly.bindings, chain.stage
        yield from self._input_readers(chain, foldings)
        for id, spec in read_by(stage, self.graph):
            if spec.repartitions:
                stream = intermediate_of(self.graph, spec)
                if 0 <= (number := stage.partition_of(self.number, stream)) < bindings.partitions(stream):
                    yield self._intermediate_reader(stage, id, spec, stream, number)

    def _intermediate_reader(self, stage: StagePlan, id: str, spec: Any, stream: str, number: int) -> Reader:
        writing = next(stage for stage in self.assembly.plan.stages if id in stage.operators)
        relay = None
        if self.assembly.is_relayed(stage):
            keys, values = self.graph.key_serde(id) or Tagged(), spec.value or Tagged()
            relay = Relay(KeySerde(values), KeySerde(keys))
        return Reader(
            self.assembly.bindings.origin(stream, number),
            Decoding(
                value=spec.value or Tagged(),
                key=self.graph.key_serde(id) or Tagged(),
                trusted=True,
                tombstones=True,
                located=self.assembly.locates(self.graph.below(id)),
            ),
            entry=id,
            position=self.checkpoint.position_of(stream, number),
            producers=[self.assembly.merged] if self.assembly.merged else map(str, writing.tasks),
            later=True,
            relay=relay,
        )

    def _exit(self, id: str, operators: Mapping[str, Operator]) -> Exit:
        spec = self.graph.specs[id]
        named = self.functions.by_operator[id]
        if isinstance(spec, SendTo):
            to = replace(self.assembly.destination(spec.output), home=self.home)
            if to.key is None and self.graph.key_serde(self.graph.parents(id)[0]) is None:
                to = replace(to, key=Natural())
            return SendToExit(self.outputs, to, self._keys(id))
        if isinstance(spec, Sink):
            return SinkExit(named["sink"]) if named else NowhereExit()
        if spec.repartitions:
            to = replace(self._intermediate(id, spec), home=self.home)
            if not isinstance(spec, PartitionBy):
                return BroadcastExit(self.outputs, to, self._keys(id))
            if spec.combines is not None:
                now_ms = self.assembly.clock.now_ms
                return CombiningExit(spec.combines, named["aggregation"], self.outputs, to, now_ms)
            return PartitionByExit(self.outputs, to)
        if isinstance(spec, TaskSpec):
            return self._task_exit(id, spec)
        if isinstance(spec, AsyncFlatMap):
            return self._awaited(id, spec)
        if isinstance(spec, Window) and spec.takes_partials:
            return CombinedExit(cast(Any, operators[id]), spec.allowed_lateness_ms, partial(self._count, id))
        return StatefulExit(operators[id], self._late(id, spec))

    def _awaited(self, id: str, spec: AsyncFlatMap) -> Exit:
        named = self.functions.by_operator[id]
        if isinstance(spec, RemoteJoin):
            tasks = next(len(stage.tasks) for stage in self.stages if id in stage.operators)
            return RemoteJoining(spec, named, tasks, self.functions.contexts[id].count)
        if spec.stateful:
            return StatefulCalls(named, self._store(id, spec), self._keys(id), Tagged())
        return AwaitedExit(named["async_flat_map"])

    def _intermediate(self, id: str, spec: Any) -> Destination:
        stream = intermediate_of(self.graph, spec)
        partitions = self.assembly.bindings.partitions(stream)
        by = spec.by if isinstance(spec, PartitionBy) else hash_
        if isinstance(by, ByFunction):
            by = ByFunction(self.functions.by_operator[id]["by"])
        return Destination(stream, partitions, spec.value or Tagged(), self.graph.key_serde(id) or Tagged(), by)

    def _task_exit(self, id: str, spec: TaskSpec) -> TaskExit:
        store = self._shared_store(id, spec)
        return TaskExit(
            TaskOperator(store),
            self.outputs,
            {output: replace(self.assembly.destination(output), home=self.home) for output in spec.outputs},
            self.functions.by_operator[id],
            spec.form,
            lambda: TaskContext(self.number, store, Tagged()),
            self._keys(id),
            self.assembly.request,
            lambda: (
                (self.task.current.origin.stream, self.task.current.origin.partition) if self.task.current else ("", 0)
            ),
        )

    def _add_timers(self, lane: Lane) -> None:
        for id, exit in lane.task_exits.items():
            spec = self.graph.specs[id]
            if isinstance(spec, TaskSpec) and spec.window is not None:
                interval, now = spec.window.interval_ms, self.assembly.clock.elapsed_ms()
                self.task.timers.append(Timer(id, interval, exit, lane.guard, now + interval))

    def _add_table(self, id: str, spec: Table) -> None:
        stream = spec.stream
        if self.number < self.assembly.bindings.partitions(stream):
            contents = TableContents(self._store(id, spec, spec.value), KeySerde(spec.key or Tagged()))
            reader = self.assembly.reader(spec, stream, self.number, self.checkpoint, self.functions)
            guard = _table_guard(self.assembly, id, contents.store, self.outputs)
            self.task.tables[stream] = (reader, contents, guard)
            self.tables[id] = contents

    def _encoding(self, id: str) -> dict[str, Any]:
        spec = self.graph.specs[id]
        assert isinstance(spec, SendTo)
        serde = self.assembly.destination(spec.output).value
        return {} if getattr(serde, "unchanged", False) else {"encode": serde.encode}

    def _keyed(self, id: str, operator: Operator) -> dict[str, Any]:
        named = {name: getattr(operator, name) for name in self.graph.specs[id].binds}
        return {**self.functions.by_operator[id], **named}

    def _held(self, id: str) -> dict[str, Any]:
        return {**self.functions.by_operator[id], "hold": KeySerde(Tagged()).hold_one}

    def _join(self, id: str) -> dict[str, Any]:
        spec = self.graph.specs[id]
        assert isinstance(spec, TableJoin)
        found = lookups(self.tables[spec.table.op_id or ""], spec.table.key or Tagged(), self._keys(id))
        return {**self.functions.by_operator[id], **found}

    def _late(self, id: str, spec: Spec) -> Callable[[Batch], None]:
        to = spec.late.stream if isinstance(spec.late, DeadLetter) else None

        take = late_exit(id, to, partial(self._count, id, 0), self.outputs, self._keys(id))
        return (lambda late: take(_without_sides(late))) if isinstance(spec, WindowJoin) else take

    def _count(self, id: str, more: int, late: int) -> None:
        counts = next(one for one in self.task.lanes if id in one.chain.stage.operators).chain.counts
        counts.leave(id, more)
        counts.late[id] = counts.late.get(id, 0) + late

    def _store(self, id: str, spec: Spec, serde: Serde | None = None) -> Any:
        if id not in self.stores:
            if getattr(spec, "store", "lmdb") == "memory":
                self.stores[id] = MemoryStore(id, self.number)
            else:
                plan = self.assembly.plan
                where = self.assembly.bindings.environment, plan.app, id, self.number
                how = serde or Tagged(), plan.options.cache_entries
                self.stores[id] = CachedStore(*where, *how, keeps_plain=spec.keyed_code is None)
        return self.stores[id]

    def _shared_store(self, id: str, spec: Spec) -> Store:
        """Return a store as a user's task uses it, whose async calls read it while a thread may be at work with it."""
        store: Store = self._store(id, spec)
        return SharedStore(store, self.alone) if self.assembly.plan.options.threads and spec.asynchronous else store

    def _keys(self, id: str) -> KeySerde:
        parent = self.graph.streams_into(id)
        serde = self.graph.key_serde(parent[0]) if parent else None
        return KeySerde(serde or Tagged())

    def _takes(self, id: str) -> bool:
        spec = self.graph.specs[id]
        return spec.code is None and not spec.source

    def _may_match_more(self, id: str) -> bool:
        spec = self.graph.specs[id]
        return isinstance(spec, Input) and spec.is_pattern and spec.stream not in self.assembly.bindings.sources

    def _is_join(self, id: str) -> bool:
        return isinstance(self.graph.specs[id], TableJoin)


def _without_sides(late: Batch) -> Batch:
    """Return what is late without the places of the parents that it came from."""
    return replace(late, values=[value for _, value in late.values])


def _table_guard(assembly: Assembly, id: str, store: Any, outputs: Outputs) -> Guard:
    stage, graph = StagePlan(id=id, inputs=(), operators=(id,)), assembly.graph
    return Guard(Chain(stage, graph, {}, {}, {}, frozenset()), graph, [store], outputs, assembly.clock)
