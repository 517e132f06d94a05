"""Opens an application on an environment: its streams are made, its state is as planned, and it has one owner."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from operators.core.base import Spec
from planner.model.errors import PlanError
from planner.model.graph import Graph
from planner.model.levers import ALL, Levers
from planner.model.plan import Options, Plan
from planner.passes import plan as make_plan
from runtime.assembly.bindings import Bindings
from runtime.assembly.history import History
from runtime.commit.commit import STATE
from runtime.job.job_model import JOB, configuration
from runtime.job.key_kinds import KEYS, kinds_noted
from runtime.job.parameters import PARAMETERS, changed_now, changes_of, to_note, traded
from runtime.job.pipeline import Pipeline
from runtime.model.assignment import Scale
from runtime.model.checkpoint import SHARED, Checkpoint
from runtime.model.clock import monotonic_ms
from runtime.model.errors import command
from runtime.model.metrics import ChangeMetrics, JobMetrics, RunMetrics
from runtime.model.state_choice import Forget, State
from runtime.opening.former_inputs import TABLES, followed, tables_noted
from runtime.opening.former_layout import Moving, check_moves, check_replay, moving
from runtime.opening.regrouping import REGROUPED, as_run, regrouped, regrouped_in, to_regroup
from runtime.opening.rescaling import check_hash, rescale, tell_split
from runtime.opening.rewind import (
    UNFINISHED,
    check_state,
    drop_laid_otherwise,
    drop_read_streams,
    drop_what_a_reset_left,
    forget_what_does_not_fit,
    meanings_of,
    rewind,
    told_of_split,
)
from runtime.opening.stored_state import STORES, check_between, finish, forget, lies, lost, noted_lies, reshuffled
from runtime.ports.commits import Commit
from runtime.ports.environment import Environment, LiveEnvironment, own_whole, typed, where_typed
from runtime.ports.sink import Sink
from runtime.ports.source import Source, Stamping
from runtime.ports.streams import gone_error, grown_error

Ends = Mapping[tuple[str, int], int]
"""By stream and partition, the offset at which a run stops."""


_log = logging.getLogger("samza_dsl")


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """The share of a container in a run, as it is told; the container's name is no other one's in that run.

    `counts` has the partitions of each stream as the whole run sees them, `ends` the offsets where it stops reading,
    `placement` the way in which tasks are shared out, and `standby` the number of other hosts with a copy of state.
    Each task is split by the `factor`. What was asked of the size `since` a request of this number is asked of the run.
    Inputs that are `regrouped` go by their keys first.
    """

    container: str
    generation: int
    counts: dict[str, int] = {}
    ends: tuple[tuple[str, int, int], ...] = ()
    levers: Levers = ALL
    history: History | None = None
    placement: str = "sticky"
    standby: int = 0
    factor: int | None = None
    since: int = 0
    regrouped: tuple[str, ...] = ()


class Opened(NamedTuple):
    """An application that is ready to run: its generation, bindings, partition counts of streams, plan, and graph.

    Where it is to move to the partitions of a `target`, these are those by which its state lies, with a task for each.
    `job` has its size, and how long it took to come to it; `since` is the number of the request for a size behind which
    others hold whatever the program says, and `asked` the newest one that it goes by.
    """

    generation: int
    bindings: Bindings
    counts: dict[str, int]
    plan: Plan
    graph: Graph
    job: JobMetrics
    moving: Moving | None = None
    target: Plan | None = None
    since: int = 0
    asked: Scale = Scale()


def open_application(
    environment: Environment,
    pipeline: Pipeline,
    bind: Mapping[str, object],
    *,
    levers: Levers = ALL,
    from_start: bool = False,
    state: State = None,
    since: int | None = None,
) -> Opened:
    """Own an application, plan it, and make what it writes to; raises `Owned`, PlanError and SamzaError.

    A run that begins anew has the size that was asked of it `since` a request of this number, when it began at first.
    """
    generation = _owned(environment, pipeline.graph.app, state)
    graph, bindings, counts = _bound(environment, pipeline.graph, bind, state)
    to, target = None, None
    made = partial(make_plan, graph, wrapped=pipeline.wrapped, levers=levers)
    try:
        asked = environment.asked_scale(graph.app)
        since = asked.number if since is None else since
        began_ms, checkpoints_ms = monotonic_ms(), None
        plan = _made(pipeline, asked, since, lambda options: made(options, counts))
        options, model_ms = plan.options, monotonic_ms() - began_ms
        if state == "reset":
            generation = rewind(environment, plan, bindings, state)
            if moving(environment, plan, graph) is not None:
                for stream in (one.name for one in plan.streams if one.role == "intermediate"):
                    environment.delete_stream(stream)
                bindings.close()
                return open_application(environment, pipeline, bind, levers=levers, since=since)
        else:
            can_move = partial(_can_move, plan, bindings)
            if isinstance(state, Forget):
                forget_what_does_not_fit(environment, plan, graph, counts, state.operators, can_move)
            # Before any stream is made or removed: what is refused here leaves them as they were.
            check_state(environment, plan, graph, counts, moves=can_move)
            drop_laid_otherwise(environment, plan)
            if (to := moving(environment, plan, graph)) is not None:
                target = made(options, {**counts, **to.now})
                counts |= to.before
                bindings.hold(to.before)
                plan = made(replace(options, elasticity=1), counts)
                check_moves(plan, target, graph)
            drop_what_a_reset_left(environment, plan)
            drop_read_streams(environment, plan)
            bindings.create_streams(plan)
            why = asked.why if asked.factor == plan.options.factor else "as it began"
            checkpoints_ms = rescale(environment, plan, graph, generation, why)
        _check_rights(environment, bindings, plan, graph)
        # A reset has rewound already, before its streams were made anew.
        if from_start and state != "reset":
            check_replay(environment, plan, 'begin anew (state="reset"), or go on without a rewind')
            generation = rewind(environment, plan, bindings, state)
        tell_split(environment, plan, graph)
        _tell_times(environment, plan, graph, bindings)
    except BaseException:
        bindings.close()
        raise
    job = JobMetrics(tasks=plan.tasks, model_ms=model_ms, checkpoints_ms=checkpoints_ms)
    return Opened(generation, bindings, counts, plan, graph, job, to, target, since, asked)


def _bound(
    environment: Environment, graph: Graph, bind: Mapping[str, object], state: State
) -> tuple[Graph, Bindings, dict[str, int]]:
    """Return the graph by which an application is run, with its bindings and the partition counts of its streams."""
    goes_on = state != "reset"
    graph = as_run(graph, environment.checkpoints(graph.app)) if goes_on else graph
    bindings = Bindings(environment, graph, bind)
    try:
        counts = bindings.partition_counts(graph)
        grown = to_regroup(environment, graph, bindings, counts) if goes_on else []
    except BaseException:
        bindings.close()
        raise
    if not grown:
        return graph, bindings, counts
    bindings.close()
    return _bound(environment, regrouped(graph, grown), bind, state)


def _owned(environment: Environment, app: str, state: State) -> int:
    """Own an application and return its new generation; what is lost of it is dropped as far as it is to forget that.

    What a crash has left half dropped or half moved is completed: nothing may be read before that. Raises `Damaged`
    where more is lost than is to be forgotten.
    """
    # A reset needs nothing of what is there, so it may be damaged, as what is to be forgotten.
    may_be_damaged = state == "reset" or isinstance(state, Forget)
    generation = environment.own(app) if may_be_damaged else own_whole(environment, app)
    finish(environment, app)
    if isinstance(state, Forget):
        less = lost(environment, app)
        if gone := [operator for operator in state.operators if operator in less]:
            forget(environment, app, gone)
            _log.warning("drops the state of %s, which application %r said to forget: it is lost", ", ".join(gone), app)
        if isinstance(environment, LiveEnvironment):
            environment.check_kept(app)
    if state != "reset":
        check_between(environment, app)
        check_hash(environment, app)
    return generation


def _made(pipeline: Pipeline, asked: Scale, since: int, made: Callable[[Options], Plan]) -> Plan:
    """Return the plan of a size; where a command has asked for one that can't be, the error says how to undo that."""
    said = pipeline.options
    # What is asked of a run holds until that ends, also where the program says another size, and it begins anew.
    is_of_run = asked.since(since).factor is not None
    options = with_factor(replace(said, elasticity=None) if is_of_run else said, asked.factor)
    try:
        return made(options)
    except PlanError as error:
        if options.elasticity in (None, 1, said.elasticity):
            raise
        made(replace(options, elasticity=1))  # raises itself where the size has nothing to do with it
        without = command(f"scale {pipeline.graph.app} --factor 1")
        undo = f"samza-dsl scale has asked for this size; without it: {without}"
        raise PlanError(f"{error}\n{undo}") from None


def _can_move(plan: Plan, bindings: Bindings, stream: str) -> bool:
    """Whether what lies by the former partitions of a stream can be moved to those that it has now."""
    # What lies between stages is written by the application alone, on brokers as well.
    is_ours = any(one.name == stream and one.role == "intermediate" for one in plan.streams)
    return is_ours or not bindings.is_of_others(stream)


def with_factor(options: Options, asked: int | None) -> Options:
    """Return options by which tasks are split as was asked last, where they say nothing of it themselves."""
    return options if options.elasticity is not None or asked is None else replace(options, elasticity=asked)


def _tell_times(environment: Environment, plan: Plan, graph: Graph, bindings: Bindings) -> None:
    """Warn of inputs and outputs whose times are those of the broker, where the application goes by event time."""
    by_time = next((spec for spec in graph.specs.values() if spec.event_time), None)
    if by_time is not None:
        _tell_stamped_inputs(environment, graph, bindings, by_time)
    elif all(spec.timestamp_of is None for spec in graph.flowing):
        return
    for result in plan.results:
        if _is_stamped(environment, bindings.place_of(result.name), bindings.sinks.get(result.name)):
            _log.warning(
                "%s %r: its topic has message.timestamp.type=LogAppendTime, so that its records have there when they "
                "were written in the place of their event time, and who reads them goes by that. Have the topic keep "
                "its writers' times (kafka-configs.sh --alter --add-config message.timestamp.type=CreateTime), or "
                "write the time into the values",
                *(result.role.replace("_", " "), result.name),
            )


def _tell_stamped_inputs(environment: Environment, graph: Graph, bindings: Bindings, by_time: Spec) -> None:
    for spec in (one for one in graph.flowing if one.timestamp_of is None):
        for stream in bindings.streams_of(spec):
            if _is_stamped(environment, stream, bindings.sources.get(stream)):
                _log.warning(
                    "input at %s: the topic of %r has message.timestamp.type=LogAppendTime, so that %s %r at %s "
                    "goes by when its records were written, not by when what they tell has happened. Say "
                    "timestamp=lambda value: ... at the input, or have the topic keep its writers' times "
                    "(CreateTime)",
                    *(spec.site, stream, by_time.kind, by_time.op_id or "", by_time.site),
                )


def _is_stamped(environment: Environment, stream: str, bound: Source | Sink | None) -> bool:
    """Whether the times of a stream's records are the broker's, as far as it tells."""
    if bound is not None:
        return isinstance(bound, Stamping) and bound.is_stamped()
    return isinstance(environment, LiveEnvironment) and environment.is_stamped(stream)


def _check_rights(environment: Environment, bindings: Bindings, plan: Plan, graph: Graph) -> None:
    """Ask the brokers for the rights that the run needs; raises what the first read or commit would else be refused."""
    if not isinstance(environment, LiveEnvironment):
        return
    between = {stream.name for stream in plan.streams if stream.role == "intermediate"}
    read = {name for spec in graph.inputs.values() for name in bindings.streams_of(spec)} | between
    results = {stream.name for stream in plan.results} - bindings.sinks.keys()
    written = {*map(bindings.place_of, results | between)}
    environment.check_rights(plan.app, read - bindings.sources.keys(), written)


def join_application(environment: Environment, pipeline: Pipeline, bind: Mapping[str, object], share: Share) -> Opened:
    """Return an application as another process has opened it; raises `Grown` where streams have more partitions now."""
    graph = regrouped(pipeline.graph, share.regrouped)
    # The size of the run, whatever the program says of it: it may have been asked for another one since it began.
    options, began_ms = replace(pipeline.options, elasticity=share.factor), monotonic_ms()
    plan = make_plan(graph, options, share.counts, wrapped=pipeline.wrapped, levers=share.levers)
    job = JobMetrics(tasks=plan.tasks, model_ms=monotonic_ms() - began_ms)
    bindings = Bindings(environment, graph, bind)
    try:
        now = bindings.partition_counts(graph)
        for stream in plan.streams:
            if stream.role in ("input", "table") and now.get(stream.name, 0) > share.counts.get(stream.name, 0) > 0:
                raise grown_error(f"The stream {stream.name!r}", now[stream.name], share.counts[stream.name])
        tell_split(environment, plan, graph)
    except BaseException:
        bindings.close()
        raise
    return Opened(share.generation, bindings, share.counts, plan, graph, job, since=share.since)


class Recovered(NamedTuple):
    """The start of a run: the positions of bound outputs, and what was changed since records were read.

    `where` are the options by which a command is about the same environment.
    """

    positions: dict[str, int]
    changes: tuple[ChangeMetrics, ...] = ()
    where: str = ""


def recover(environment: Environment, opened: Opened, graph: Graph, now_ms: int) -> Recovered:
    """Cut bound outputs back to what was committed, note the application as it is now, and warn of its changes."""
    generation, bindings, plan = opened.generation, opened.bindings, opened.plan
    checkpoints = environment.checkpoints(plan.app)
    recorded = checkpoints.get(SHARED, Checkpoint(0)).outputs
    # Rows behind what was committed are of a run that died: they come again.
    positions = bindings.recover_outputs(recorded, generation)
    bindings.catch_up(generation)
    meanings, noted = told_of_split(meanings_of(plan, graph), plan), checkpoints.get(STATE, Checkpoint(0))
    begun = {SHARED: Checkpoint(generation, outputs=positions)} if positions != recorded else {}
    if meanings != noted.meanings:
        since = {
            store: noted.watermarks.get(store) for store in meanings if noted.meanings.get(store) == meanings[store]
        }
        # Of a store whose meaning is as before the time is kept, also where that is not known.
        known = {store: since.get(store, now_ms) for store in meanings if store != UNFINISHED}
        watermarks = {store: at for store, at in known.items() if at is not None}
        begun[STATE] = Checkpoint(generation, meanings=meanings, watermarks=watermarks)
    job = configuration(plan, opened.counts)
    job[TABLES] = tables_noted(graph, bindings)
    lie = lies(plan, graph)
    if opened.moving is not None:
        # Until it has moved, state lies as whoever writes the inputs has chosen.
        before = noted_lies(checkpoints)
        lie |= {id: before[id] for id in reshuffled(before, lie)}
    job[STORES] = msgspec.json.encode(lie).decode()
    job[PARAMETERS] = to_note(graph, checkpoints)
    kept = environment.stores(plan.app)
    job[KEYS] = kinds_noted(checkpoints, kept)
    if inputs := regrouped_in(graph):
        job[REGROUPED] = msgspec.json.encode(inputs).decode()
    if job != checkpoints.get(JOB, Checkpoint(0)).meanings:
        begun[JOB] = Checkpoint(generation, meanings=job)
    for name, checkpoint in followed(environment, plan, graph, bindings, checkpoints).items():
        begun[name] = replace(checkpoint, generation=generation)
    # Compared before the commit below notes what is now.
    changed = [*changed_now(graph, checkpoints, job[PARAMETERS], kept)]
    exchanged = [*traded(checkpoints, job[PARAMETERS], kept)]
    # One commit for all: a crash before it finds all as the last run left it.
    if begun:
        environment.commit(Commit(plan.app, generation, [], [], begun))
    for one in changed:
        spec = graph.specs[one.operator]
        _log.warning(
            "%s: %s %r at %s is not what it was in the run before: %s. What it keeps and has written was made as it "
            "was, and what was changed holds from here on; to compute it again from history: %s; or all: %s",
            *(plan.app, spec.kind, one.operator, spec.site, "; ".join(one.what)),
            typed(environment, f"evolve {spec.site.file} --apply --again {one.operator}"),
            typed(environment, f"reset {plan.app}"),
        )
    for id, other in exchanged:
        _log.warning(
            "%s: %s %r at %s calls what %r called in the run before, and reads the state of what was %r then, as state "
            "goes by ids. If it is to have its own, end this run and give it back its id: op_id=%r",
            *(plan.app, graph.specs[id].kind, id, graph.specs[id].site, other, id, other),
        )
    return Recovered(positions, changes_of(graph, environment.checkpoints(plan.app)), where_typed(environment))


def with_changes(
    metrics: RunMetrics, recovered: Recovered, job: JobMetrics, replica_age_ms: Callable[[], float] | None = None
) -> RunMetrics:
    """Return metrics with the changes that were found when the run began, the job's size, and its replica's age."""
    age_ms = None if replica_age_ms is None else replica_age_ms()
    return replace(metrics, changes=recovered.changes, where=recovered.where, job=job, replica_age_ms=age_ms)


def ends_of(environment: Environment, opened: Opened, graph: Graph, drains: bool = False) -> dict[tuple[str, int], int]:
    """Return the end offsets of the inputs, but for tables; raises `Damaged` where more was read of one than there is.

    They lie behind what open transactions have written: a run waits for these, and for those of tables here. Where it
    `drains`, they are where the application has come to, so that nothing more is read but what lies between stages;
    and so where it moves to other partitions, but for what has to be processed before.
    """
    bindings = opened.bindings
    for table in graph.tables.values():
        for stream in bindings.streams_of(table):
            bindings.settle(stream)
    streams = {stream for spec in graph.flowing for stream in bindings.streams_of(spec)}
    ranges = {}
    for stream in sorted(streams):
        # The end that can be read lies before a transaction that is still open, and its records were there at the
        # start.
        written = bindings.written(stream)
        for partition, readable in bindings.ranges(stream, range(bindings.partitions(stream))).items():
            ranges[stream, partition] = readable._replace(end=max(readable.end, written[partition]))
    reached = {place: found.start for place, found in ranges.items()}
    for checkpoint in environment.checkpoints(opened.plan.app).values():
        for position in checkpoint.positions:
            place = position.stream, position.partition
            # Of virtual tasks that share a partition the others come to where the first of them is.
            if place in ranges:
                reached[place] = max(reached[place], position.offset)
            if place in ranges and position.offset > ranges[place].end:
                # The source may tell of it in its own words.
                bindings.origin(*place).read(position.offset)
                raise gone_error(*place, position.offset, ranges[place].start, ranges[place].end)
    if opened.moving is not None:
        ends = opened.moving.ends
        return {place: max(at, ends.get(place, at)) for place, at in reached.items()}
    return reached if drains else {place: found.end for place, found in ranges.items()}
