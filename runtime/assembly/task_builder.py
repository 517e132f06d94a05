"""A task made ready to run: its chains, readers, stores and exits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial, singledispatchmethod
from threading import RLock
from typing import Any, cast

from operators.async_flat_map import AsyncFlatMap, StatefulCalls
from operators.core.base import (
    MOST_HELD,
    NEVER,
    Batch,
    Operator,
    OperatorContext,
    Serde,
    Spec,
    Store,
    unnoted,
    unobserved,
)
from operators.core.policies import DeadLetterPolicy
from operators.io import SendTo, SinkCall, TableInput, admits_none, headed
from operators.joins.match_counts import MatchCounting, Meetings
from operators.joins.remote_join import RemoteJoin
from operators.joins.table_join import TableContents, TableJoin
from operators.partition_by import Broadcast, ByFunction, PartitionBy, entry_bucket, hash_
from operators.state.key_collections import EntryKeys
from operators.task import TaskContext, TaskOperator
from operators.task import UserTask as TaskSpec
from operators.windows.window import Window, WindowOperator
from planner.checks.copartitioning import check_streams_alike
from planner.codegen.folding import window_behind
from planner.model.errors import late_use, refuse
from planner.model.plan import StagePlan
from runtime.assembly.assembly import Assembly, table_guard
from runtime.assembly.awaiting import feed_ahead, let_await
from runtime.assembly.bindings import intermediate_of
from runtime.assembly.lookups import lookups
from runtime.assembly.partitions import Repartition, inputs_of, repartitions_into, start_of
from runtime.encoding.keys import KeySerde
from runtime.encoding.ownership import AsItIs, OwnValues
from runtime.encoding.serdes import Evolving, Natural, Tagged, copying, kept
from runtime.encoding.storable import StoredFormats, form_of, read_back
from runtime.functions.answers import Answers, asking_of
from runtime.functions.remote_rows import RemoteJoining
from runtime.functions.user_functions import Functions
from runtime.job.key_kinds import EqualKeys, KeptKeys, KeyKinds, kinds_before, kinds_of_task, tells_kinds
from runtime.model.checkpoint import Checkpoint
from runtime.model.clock import monotonic_ms
from runtime.ports.environment import RememberingEnvironment
from runtime.ports.store import StorePlace, TaskStore
from runtime.reading.folding import FoldingSegment
from runtime.reading.reader import Decoding, Reader, Shortcuts, Turn
from runtime.reading.relay import Relay
from runtime.reading.sieve import WHOLE, KeyShare
from runtime.stage.chain import Chain, Exit, StageCode
from runtime.stage.combining import CombinedExit, CombiningExit
from runtime.stage.error_policy import Guard, is_lenient
from runtime.stage.exits import (
    AwaitedExit,
    BroadcastExit,
    NowhereExit,
    PartitionByExit,
    SendToExit,
    SinkExit,
    StatefulExit,
    TaskAsks,
    TaskCalls,
    TaskExit,
)
from runtime.stage.outputs import Destination, Outputs, late_exit, routed, without_sides
from runtime.stage.timer import Timer
from runtime.stores.joint import EntryPlaces, JointStore
from runtime.stores.registry import kind_of
from runtime.stores.shared import SharedStore
from runtime.task.lane import Lane
from runtime.task.pace import StepPace
from runtime.task.task import Task

OWN_SAMPLED = 16
"""Of so many entries of state that a virtual task looks at, it is timed how one is found to be its own."""
_log = logging.getLogger("samza_dsl")


def tasks_of(assembly: Assembly, broadcast: Mapping[str, TableContents], numbers: Collection[int]) -> list[Task]:
    """Make the tasks of these numbers; the first runs the stages that are run once for all of them."""
    if not numbers:
        return []
    first, *others = numbers
    beside = [TaskBuilder(assembly, number, broadcast) for number in others]
    return [one.build() for one in (TaskBuilder(assembly, first, broadcast, beside), *beside)]


class TaskBuilder:
    """Makes one task, which runs some stages for those that are made `beside` it as well."""

    def __init__(
        self,
        assembly: Assembly,
        number: int,
        broadcast: Mapping[str, TableContents],
        beside: Sequence[TaskBuilder] | None = None,
    ) -> None:
        self.assembly = assembly
        self.graph = assembly.graph
        self.number = number
        self.virtual = assembly.plan.virtual(number)
        self.beside = beside or ()
        mine = [stage for stage in assembly.stages if stage.is_run_by(number)]
        self.stages = [stage for stage in mine if beside is not None or not assembly.is_joint(stage)]
        self.joint: list[Lane] = []
        """The lanes that are run for this task and others."""
        self.joint_stores: dict[str, JointStore] = {}
        self.checkpoint = assembly.checkpoints.get(self.virtual.name, Checkpoint(0))
        self.tables = dict(broadcast)
        self.meetings: dict[str, Meetings] = {}
        self.kinds: dict[str, KeyKinds] = {}
        specs = [self.graph.specs[id] for stage in self.stages for id in stage.operators]
        specs += [spec for spec in assembly.joined_tables() if not spec.broadcast]
        self.functions = Functions(assembly.plan.app, number, specs, assembly.around, assembly.data)
        self.outputs = Outputs(self.virtual.base)
        self.outputs.relays, self.outputs.limits = assembly.relays, assembly.limits
        self.stores: dict[str, TaskStore] = {}
        self.home: int | None = None
        self._asked = 0
        self.alone: AbstractContextManager[object] = RLock() if assembly.plan.options.threads else nullcontext()

    def build(self) -> Task:
        """Make the task."""
        options = self.assembly.plan.options
        self.task = task = Task(self.number, options, self.assembly.clock, self.functions, self.outputs, self.stores)
        task.name = self.virtual.name
        for spec in self.assembly.joined_tables():
            if not spec.broadcast:
                self._add_table(spec.op_id or "", spec)
        task.lanes = [self._lane(stage) for stage in self.stages]
        task.meetings, task.kinds = self.meetings, self.kinds
        task.joint = self.joint
        if self.beside:
            task.beside = [one for joint in self.joint_stores.values() for one in joint.stores[1:]]
        else:
            task.lent = frozenset(id for lane in self.joint for id in lane.chain.operators)
        kinds_of_task(self.checkpoint, self.kinds, kinds_before(self.assembly.checkpoints))
        feed_ahead(task.lanes, self.assembly.plan.options)
        return task

    def _lane(self, stage: StagePlan) -> Lane:
        ids, levers = stage.operators, self.assembly.levers
        specs = [(id, self.graph.specs[id]) for id in ids]
        operators = {
            id: spec.build(self._context(id, spec)) for id, spec in specs if spec.stateful and not spec.in_calls
        }
        self.meetings |= {id: one.meetings for id, one in operators.items() if isinstance(one, MatchCounting)}
        self.home = next((partition for task, _, partition in stage.apart if task == self.virtual.base), None)
        exits = {
            self.graph.specs[id].exit: self._exit(self.graph.specs[id], operators) for id in ids if self._takes(id)
        }
        functions = {
            **self.functions.by_operator,
            **{id: self._join(id) for id in ids if self.graph.specs[id].looks_up},
            **{id: self._encoding(id) for id in ids if self.graph.specs[id].encodes},
            **{id: self._keyed(id, one) for id, one in operators.items()},
            **{id: self._held(id) for id in ids if self.graph.specs[id].source},
        }
        columns = {"keys", "timestamps", "stamps"}
        columns |= {"signs"} if any(self.graph.specs[id].reads_signs for id in ids) else set()
        asynchronous = any(self.graph.specs[id].asynchronous for id in ids)
        if asynchronous:
            columns.add("owners")
        if asynchronous or any(self.graph.specs[id].reads_offsets for id in ids):
            columns.add("offsets")
        if self.assembly.locates(ids):
            columns |= {"offsets", "origins"}
        if any(self.graph.is_headed(id) or self.graph.specs[id].is_given_headers for id in ids):
            columns.add("headers")
        chain = Chain(self._code(stage, functions, frozenset(columns), exits), exits, operators)
        ceilings = self.assembly.ceilings.get(self.virtual.name, {})
        chain.ceilings = {id: ceilings[id] for id in operators if id in ceilings}
        stores = [self.joint_stores.get(id, self.stores[id]) for id in ids if id in self.stores]
        reads_on_loop = any(spec.terminal and spec.asynchronous for _, spec in specs)
        alone = self.alone if reads_on_loop else None
        guard = Guard(chain, self.graph, stores, self.outputs, self.assembly.clock, alone, exactly=not levers.trust)
        foldings = {
            entry: folding
            for entry, folding in chain.foldings.items()
            if guard.together and levers.trust and not asynchronous and all(map(self._hands_groups, folding.grouped))
        }
        readers = list(self._readers(chain, foldings))
        lane = Lane(chain, readers, guard, StepPace(self.assembly.plan.options.batch_records if levers.batches else 1))
        lane.depth = self.assembly.plan.stages.index(stage)
        self._share_out(lane, self._members(stage))
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
            let_await(lane, self.graph, self.assembly.plan.options, self.assembly.on_returned, located, levers.flights)
            self._remember(lane)
        return lane

    def _share_out(self, lane: Lane, members: Sequence[TaskBuilder]) -> None:
        """Note what of a lane is whose, where it is run for several tasks, and what these have begun to fire."""
        lane.begin([left for member in members for left in member.checkpoint.due.items()])
        if len(members) > 1:
            lane.shares = {
                one.virtual.name: [reader for reader in lane.readers if reader.origin.partition == one.number]
                for one in members
            }
            for one in members:
                one.joint.append(lane)

    def _code(
        self,
        stage: StagePlan,
        functions: Mapping[str, Mapping[str, Any]],
        columns: frozenset[str],
        exits: Mapping[str, Exit],
    ) -> StageCode:
        """Return the code of a stage: that of a task before, where it calls the same functions."""
        found, options = self.assembly.code.get(stage.id), self.assembly.plan.options
        if found is not None and found.calls(functions):
            return found
        inlining = replace(self.assembly.levers, inlining=options.inline)
        made = StageCode(stage, self.graph, functions, columns, exits, inlining)
        # Not by threads: a function that is settled is put into place while others may call it.
        if not options.threads:
            self.assembly.code.setdefault(stage.id, made)
        return made

    def _remember(self, lane: Lane) -> None:
        """Keep the answers of calls where a user wants it; a batch engine's workers have nowhere to keep them."""
        remembering = [id for id in lane.chain.stage.operators if self.graph.specs[id].remembers]
        if not remembering or self.assembly.only is not None:
            return
        assert lane.units is not None, "what remembers answers awaits them"
        environment, app = self.assembly.bindings.environment, self.assembly.plan.app
        place = environment.answers() if isinstance(environment, RememberingEnvironment) else environment
        ends = {(one.origin.stream, one.origin.partition): one.origin.known().end for one in lane.readers}
        for id, spec in self.graph.of(AsyncFlatMap).items():
            if id in remembering:
                entries = place.state_range(app, id, self.virtual.base)
                found = [one for one in entries if self.virtual.factor == 1 or self._owns(spec, one[0])]
                word = spec.remember or ""
                asking = asking_of(spec.function, word)
                lane.units.pools[id].answers = Answers(id, self.virtual, self._keys(id), asking, found, ends, word)

    def _input_readers(
        self, chain: Chain, foldings: Mapping[str, FoldingSegment], known: Collection[str] = ()
    ) -> Iterable[Reader]:
        bindings, stage = self.assembly.bindings, chain.stage
        for spec in inputs_of(stage, self.graph):
            id = spec.op_id or ""
            counts = {stream: bindings.partitions(stream) for stream in bindings.streams_of(spec)}
            if spec.is_pattern:
                read = self.assembly.plan.stream(spec.stream).partitions or 1
                check_streams_alike(self.graph, spec, counts, read, self.assembly.plan.options.max_partitions)
            for stream, partitions in counts.items():
                if partitions > stage.partitions:
                    wrong = f"{partitions} partitions, and {stage.partitions} are read"
                    instead = f"partitions={partitions}, or start the app again"
                    raise refuse(spec, f"the new stream {stream!r} has {wrong}", instead)
                if 0 <= (number := stage.partition_of(self.number, stream)) < partitions and stream not in known:
                    start = start_of(self.checkpoint, stream, number, share=self._share(stage))
                    how = self.functions, foldings.get(id), chain.segments[id]
                    yield self.assembly.reader(spec, stream, number, start, *how)

    def _readers(self, chain: Chain, foldings: Mapping[str, FoldingSegment]) -> Iterable[Reader]:
        bindings, stage = self.assembly.bindings, chain.stage
        yield from self._input_readers(chain, foldings)
        for spec in repartitions_into(stage, self.graph):
            stream, relay = intermediate_of(self.graph, spec), None
            if self.assembly.is_relayed(stage):
                keys, values = self.graph.key_serde(spec.op_id or "") or Tagged(), spec.value or Evolving()
                relay = Relay(KeySerde(values), KeySerde(keys), spec.op_id or "", asked=is_lenient(self.graph, stage))
            found = [
                one._intermediate_reader(stage, spec, stream, number, relay)
                for one in self._members(stage)
                if 0 <= (number := stage.partition_of(one.number, stream)) < bindings.partitions(stream)
            ]
            for reader in found[:1]:
                reader.beside = found[1:]
            if relay is not None:
                relay.partitions = len(found)
            yield from found

    def _members(self, stage: StagePlan) -> Sequence[TaskBuilder]:
        """Return those for whose tasks a stage is run here, this one first."""
        if not self.assembly.is_joint(stage):
            return [self]
        members = [self, *(one for one in self.beside if stage.is_run_by(one.number))]
        assert [one.number for one in members] == [*range(len(members))], "each has the partition of its number"
        return members

    def _intermediate_reader(
        self, stage: StagePlan, spec: Repartition, stream: str, number: int, relay: Relay | None
    ) -> Reader:
        id = spec.op_id or ""
        writing = next(stage for stage in self.assembly.plan.stages if id in stage.operators)
        return Reader(
            self.assembly.bindings.origin(stream, number, self.virtual.bucket),
            Decoding(
                value=spec.value or Evolving(),
                key=self.graph.key_serde(id) or Tagged(),
                trusted=True,
                tombstones=True,
                located=self.assembly.locates(self.graph.below(id)),
                headed=self.graph.is_headed(id),
            ),
            id,
            start_of(
                self.checkpoint,
                stream,
                number,
                [self.assembly.merged] if self.assembly.merged else self.assembly.producers_of(writing),
                WHOLE if isinstance(spec, Broadcast) else self._share(stage),
            ),
            Turn(later=True),
            shortcuts=Shortcuts(relay=relay),
        )

    def _share(self, stage: StagePlan) -> KeyShare:
        """Return what the task has of the partitions that it reads in a stage."""
        keeps = any(self.graph.specs[id].stateful for id in stage.operators)
        return KeyShare(self.virtual, by_key=keeps)

    def _context(self, id: str, spec: Spec) -> OperatorContext:
        levers = self.assembly.levers
        stage = next(stage for stage in self.stages if id in stage.operators)
        members = self._members(stage)
        return OperatorContext(
            self.functions.by_operator[id],
            self._store(id, spec) if len(members) == 1 else self._joint_store(id, spec, members),
            self._kept_keys(id),
            StoredFormats(exactly=not levers.trust),
            MOST_HELD * len(members) if levers.hot_state else 0,
            partial(self._observer, spec),
            self._entry_note(spec),
            partial(late_use, spec),
            self._lowest(id, spec, members),
        )

    def _lowest(self, id: str, spec: Spec, members: Sequence[TaskBuilder]) -> int | None:
        """Return the lowest stamp of what an operator held at the last commit; None where that was not noted."""
        lowest = NEVER
        for one in members:
            noted = one.checkpoint.watermarks.get(id)
            if noted is not None:
                lowest = min(lowest, noted)
            elif next(one._store(id, spec).range(), None) is not None:
                return None
        return lowest

    def _entry_note(self, spec: Spec) -> Callable[[object], None]:
        """Return what takes note of keys by which a user's function finds entries, where these outlive the process."""
        return self._kinds_of(spec).note_entry_key if kind_of(spec).durable else unnoted

    def _observer(self, spec: Spec, serde: Serde) -> Callable[[list[object]], None]:
        """Return what takes note of the kinds of ids, where they outlive the process."""
        is_kept = kind_of(spec).durable and tells_kinds(serde)
        return partial(self._kinds_of(spec).note_ids, serde.encode) if is_kept else unobserved(serde)

    @singledispatchmethod
    def _exit(self, spec: Spec, operators: Mapping[str, Operator]) -> Exit:
        """Return the exit through which rows reach an operator that is no code of a fused function.

        This is the one dispatch of the runtime: exits write, call and keep, which specs know nothing of. What only
        keeps state has its operator, whatever its class; raises PlanError for what has neither.
        """
        id = spec.op_id or ""
        if id not in operators:
            wrong = f"nothing says where the messages go that come to a {type(spec).__qualname__}"
            raise refuse(spec, wrong, "code = (...) in its class, or stateful = True and def build(self, context)")
        return self._stateful_exit(spec, operators[id])

    def _stateful_exit(self, spec: Spec, operator: Operator) -> StatefulExit:
        id = spec.op_id or ""
        meetings = self.meetings.get(id)
        noting = meetings if meetings is not None and meetings.notes_batches else None
        return StatefulExit(operator, self._late(id, spec), noting)

    @_exit.register
    def _window_exit(self, spec: Window, operators: Mapping[str, Operator]) -> Exit:
        id = spec.op_id or ""
        if spec.takes_partials:
            count = partial(self._count, id)
            return CombinedExit(cast(WindowOperator, operators[id]), spec.allowed_lateness_ms, count)
        return self._stateful_exit(spec, operators[id])

    @_exit.register
    def _send_to_exit(self, spec: SendTo, operators: Mapping[str, Operator]) -> Exit:
        id = spec.op_id or ""
        to = replace(self.assembly.destination(spec.output), home=self.home)
        if to.key is None and self.graph.key_serde(self.graph.parents(id)[0]) is None:
            to = replace(to, key=Natural())
        writing = SendToExit(self.outputs, to, self._keys(id))
        self._tell_of_headers(spec, to)
        # All that is sent to one output leaves by one exit.
        if any(one.headers is not None and one.output.stream == to.stream for one in self.graph.of(SendTo).values()):
            writing.take_headed()
        # None among the first values is no mistake where the output says that there is such.
        writing.first.wanted *= not admits_none(spec.output.value)
        self.outputs.first[id] = writing.first
        return writing

    def _tell_of_headers(self, spec: SendTo, to: Destination) -> None:
        """Say once where an output drops the headers of what is written."""
        drops = to.sink is not None and "headers" not in to.sink.columns
        note = f"headers of {to.stream}"
        if drops and note not in self.assembly.told and (spec.headers is not None or spec.is_given_headers):
            self.assembly.told.add(note)
            _log.warning(
                "%s: send_to %r at %s writes headers, and the place that the output is bound to keeps none",
                *(self.assembly.plan.app, spec.op_id, spec.site),
            )

    @_exit.register
    def _sink_exit(self, spec: SinkCall, operators: Mapping[str, Operator]) -> Exit:
        named = self.functions.by_operator[spec.op_id or ""]
        return SinkExit(named["sink"]) if named else NowhereExit()

    @_exit.register
    def _partition_by_exit(self, spec: PartitionBy, operators: Mapping[str, Operator]) -> Exit:
        to = self._intermediate(spec.op_id or "", spec)
        if spec.combines is not None:
            aggregation = self.functions.by_operator[spec.op_id or ""]["aggregation"]
            return CombiningExit(spec.combines, aggregation, self.outputs, to, self.assembly.clock.now_ms)
        values = OwnValues(to.value, self._as_it_is(spec))
        exactly = not self.assembly.levers.trust
        found = PartitionByExit(self.outputs, to, values, exactly, spec.rekeys)
        found.is_joint = any(
            self.assembly.is_joint(stage) and spec in repartitions_into(stage, self.graph)
            for stage in self.assembly.stages
        )
        behind = window_behind(self.graph, spec.op_id or "")
        found.behind = "" if behind is None else behind.exit
        return found

    def _hands_groups(self, id: str) -> bool:
        """Whether what a repartitioning writes may go on in groups, as it does in memory."""
        child, stages = self.graph.children(id)[0], self.assembly.plan.stages
        return any(child in stage.operators and self.assembly.is_relayed(stage) for stage in stages)

    def _as_it_is(self, spec: PartitionBy) -> AsItIs:
        """Return what goes on as it is in memory: not what a policy asks for."""
        (stage,) = (stage for stage in self.stages if spec.op_id in stage.operators)
        if not self.assembly.levers.trust or is_lenient(self.graph, stage):
            return "nothing"
        # Others may see, and change, what was read only where it goes elsewhere as well, or state has it.
        segments = [segment for segment in stage.segments if any(exit.id == spec.op_id for exit in segment.exits)]
        entries = [self.graph.specs[segment.entry] for segment in segments]
        is_alone = all(entry.source or entry.repartitions for entry in entries) and not any(
            segment.keyed or len(segment.exits) > 1 for segment in segments
        )
        looks_up = any(self.graph.specs[id].looks_up for id in stage.operators)
        return "all" if is_alone and not looks_up else "unchangeable"

    @_exit.register
    def _broadcast_exit(self, spec: Broadcast, operators: Mapping[str, Operator]) -> Exit:
        id = spec.op_id or ""
        return BroadcastExit(self.outputs, self._intermediate(id, spec), self._keys(id), not self.assembly.levers.trust)

    @_exit.register
    def _calls_exit(self, spec: AsyncFlatMap, operators: Mapping[str, Operator]) -> Exit:
        id, named = spec.op_id or "", self.functions.by_operator[spec.op_id or ""]
        if not spec.stateful:
            return AwaitedExit(named["async_flat_map"])
        copies = copying(spec.state or Evolving())
        calls = StatefulCalls(named, self._store(id, spec), self._kept_keys(id), copies, partial(late_use, spec))
        calls.form = form_of(spec.state, exactly=not self.assembly.levers.trust)
        return calls

    @_exit.register
    def _remote_join_exit(self, spec: RemoteJoin, operators: Mapping[str, Operator]) -> Exit:
        id = spec.op_id or ""
        # They share in what is asked for a second.
        tasks = next(len(stage.bases) * stage.buckets for stage in self.stages if id in stage.operators)
        meetings = self.meetings[id] = Meetings(0)
        return RemoteJoining(spec, self.functions.by_operator[id], tasks, self.functions.contexts[id].count, meetings)

    def _intermediate(self, id: str, spec: Repartition) -> Destination:
        stream = intermediate_of(self.graph, spec)
        partitions = self.assembly.bindings.partitions(stream)
        partitioning = self.graph.of(PartitionBy).get(id)
        by = hash_ if partitioning is None else partitioning.by
        if isinstance(by, ByFunction):
            by = ByFunction(self.functions.by_operator[id]["by"])
        value, key = spec.value or Evolving(), self.graph.key_serde(id) or Tagged()
        return Destination(stream, partitions, read_back(value), key, by, home=self.home)

    @_exit.register
    def _task_exit(self, spec: TaskSpec, operators: Mapping[str, Operator]) -> Exit:
        id = spec.op_id or ""
        store = self._shared_store(id, spec)
        form = form_of(spec.state, exactly=not self.assembly.levers.trust)
        functions = self.functions.by_operator[id]
        # By the bytes of its messages' keys, which say to which part of a task an entry belongs.
        serde = self._key_serde(id) if spec.by_key else Tagged()
        places = EntryKeys(serde, KeySerde(serde), self._entry_note(spec))
        return TaskExit(
            TaskOperator(store, form),
            self.outputs,
            {output: replace(self.assembly.destination(output), home=self.home) for output in spec.outputs},
            TaskCalls(functions["process"], functions.get("window"), spec.form, spec.by_key),
            self._keys(id),
            TaskAsks(
                context=lambda: TaskContext(self.number, store, places, form),
                request=self.assembly.request,
                source=self._source_at_hand,
                late_use=partial(late_use, spec),
            ),
        )

    def _source_at_hand(self) -> tuple[str, int]:
        reader = self.task.current
        return (reader.origin.stream, reader.origin.partition) if reader else ("", 0)

    def _add_timers(self, lane: Lane) -> None:
        for id, exit in lane.task_exits.items():
            window = self.graph.of(TaskSpec)[id].window
            if window is not None:
                interval, now = window.interval_ms, self.assembly.clock.elapsed_ms()
                self.task.timers.append(Timer(id, interval, exit, lane.guard, now + interval))

    def _add_table(self, id: str, spec: TableInput) -> None:
        stream = spec.stream
        base = self.virtual.base
        if base < self.assembly.bindings.partitions(stream):
            store = self._store(id, spec, read_back(kept(spec.value)))
            most_used = self.assembly.plan.options.cache_entries if self.assembly.levers.trust else 0
            contents = TableContents(store, self._kept_keys(id), most_used)
            start = start_of(self.checkpoint, stream, base, share=KeyShare(self.virtual))
            reader = self.assembly.reader(spec, stream, base, start, self.functions)
            guard = table_guard(self.assembly, id, store, self.outputs)
            self.task.tables[stream] = (reader, contents, guard)
            self.tables[id] = contents

    def _encoding(self, id: str) -> dict[str, Callable[..., object]]:
        (output,) = self.graph.specs[id].outputs
        serde = self.assembly.destination(output).value
        named: dict[str, Callable[..., object]] = {"headed": headed} if self.graph.specs[id].header_code else {}
        return (
            self.functions.by_operator[id]
            | named
            | ({} if getattr(serde, "unchanged", False) else {"encode": serde.encode})
        )

    def _keyed(self, id: str, operator: Operator) -> dict[str, Callable[..., object]]:
        named = {name: getattr(operator, name) for name in self.graph.specs[id].binds}
        return {**self.functions.by_operator[id], **named}

    def _held(self, id: str) -> dict[str, Callable[..., object]]:
        # One thread at a time may use it.
        keys = KeySerde(Tagged()) if self.assembly.plan.options.threads else self.assembly.held
        return {**self.functions.by_operator[id], "hold": keys.hold_one}

    def _join(self, id: str) -> dict[str, Callable[..., object]]:
        spec = self.graph.of(TableJoin)[id]
        contents = self.tables[spec.table.op_id or ""]
        keys = self._keys(id)
        meetings = self.meetings[id] = Meetings(kind=(contents.keys if spec.on else keys).kind_of)
        # A table that all tasks share is counted by one of them.
        counts = self.number == 0 or not spec.table.broadcast
        meetings.of_table = lambda: contents.kinds if counts else dict.fromkeys(contents.kinds, 0)
        found = lookups(contents, spec.table.key or Tagged(), keys, meetings)
        return {**self.functions.by_operator[id], **found}

    def _late(self, id: str, spec: Spec) -> Callable[[Batch], None]:
        to = spec.late.stream if isinstance(spec.late, DeadLetterPolicy) else None

        take = late_exit(id, to, partial(self._count, id, 0), self.outputs, self._keys(id))
        # Windows hand on what is late as it came, with its side; joins take the side off themselves.
        return (lambda late: take(without_sides(late))) if spec.windowed and spec.sided else take

    def _count(self, id: str, more: int, late: int) -> None:
        counts = next(one for one in self.task.lanes if id in one.chain.stage.operators).chain.counts
        counts.leave(id, more)
        counts.late[id] = counts.late.get(id, 0) + late

    def _store(self, id: str, spec: Spec, serde: Serde | None = None) -> TaskStore:
        if id not in self.stores:
            plan = self.assembly.plan
            place = StorePlace(
                self.assembly.bindings.environment,
                plan.app,
                id,
                self.virtual.base,
                serde or Evolving(),
                plan.options.cache_entries,
                keeps_plain=not spec.holds_plain,
                keeps_written=not spec.holds,
                reads_again=not self.assembly.levers.trust,
                owner=f"{spec.kind} {id!r} at {spec.site}",
                owns=None if self.virtual.factor == 1 else partial(self._owns, spec),
            )
            self.stores[id] = kind_of(spec).open(place)
        return self.stores[id]

    def _joint_store(self, id: str, spec: Spec, members: Sequence[TaskBuilder]) -> JointStore:
        """Return the stores of several tasks as one, in which an entry lies by the partition of its key."""
        places = EntryPlaces(spec.entry_kinds(), routed(hash_, self._keys(id), len(members)))
        found = self.joint_stores[id] = JointStore([one._store(id, spec) for one in members], places)
        return found

    def _owns(self, spec: Spec, place: bytes) -> bool:
        self._asked += 1
        # The clock is looked at for some: for each it would cost much of what is measured.
        began_ms = monotonic_ms() if self._asked % OWN_SAMPLED == 0 else None
        is_own = entry_bucket(spec, place, self.virtual.factor) == self.virtual.bucket
        if began_ms is not None:
            self.task.own_ms += (monotonic_ms() - began_ms) * OWN_SAMPLED
        return is_own

    def _shared_store(self, id: str, spec: Spec) -> Store:
        """Return a store as a user's task uses it, whose async calls read it while a thread may be at work with it."""
        store: Store = self._store(id, spec)
        return SharedStore(store, self.alone) if self.assembly.plan.options.threads and spec.asynchronous else store

    def _keys(self, id: str) -> KeySerde:
        return KeySerde(self._key_serde(id))

    def _key_serde(self, id: str) -> Serde:
        return self.graph.key_serde_into(id) or Tagged()

    def _kept_keys(self, id: str) -> KeySerde:
        """Return the keys that an operator's state lies under, whose kinds are noted where there may be several."""
        serde, spec = self._key_serde(id), self.graph.specs[id]
        is_kept = kind_of(spec).durable and (spec.keyed or spec.looked_into)
        return KeptKeys(serde, self._kinds_of(spec)) if is_kept and tells_kinds(serde) else KeySerde(serde)

    def _kinds_of(self, spec: Spec) -> KeyKinds:
        app, environment = self.assembly.plan.app, self.assembly.bindings.environment
        id = spec.op_id or ""
        if id not in self.kinds:
            equal = self.assembly.equal_keys.setdefault(id, EqualKeys())
            self.kinds[id] = KeyKinds(spec, app, environment, self.assembly.told, equal)
        return self.kinds[id]

    def _takes(self, id: str) -> bool:
        spec = self.graph.specs[id]
        return spec.code is None and not spec.source

    def _may_match_more(self, id: str) -> bool:
        spec = self.graph.inputs.get(id)
        return spec is not None and spec.is_pattern and spec.stream not in self.assembly.bindings.sources
