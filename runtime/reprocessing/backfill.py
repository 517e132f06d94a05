"""Back-fills operators: computes their state from history alone, and joins it to the live application at its cut."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, product
from types import MappingProxyType
from typing import NamedTuple

from msgspec.structs import replace

from operators.core.base import MIN_TIMESTAMP
from planner.model.errors import refuse
from planner.model.graph import Graph, intermediate
from planner.model.part import part_of
from planner.model.plan import Options, Plan, StagePlan
from planner.model.virtual_tasks import VirtualTask, is_task
from planner.passes import plan as make_plan
from runtime.assembly.bindings import Bindings
from runtime.assembly.distinct_places import ANOTHER
from runtime.assembly.history import beside
from runtime.job.job_model import JOB
from runtime.job.parameters import PARAMETERS, noted_as, noted_parameters
from runtime.job.pipeline import Pipeline
from runtime.model.checkpoint import Checkpoint, Position
from runtime.model.clock import wall_clock_ms
from runtime.model.errors import SamzaError, command
from runtime.model.history import AtRest, HistorySpan
from runtime.opening.former_inputs import FORMER
from runtime.opening.opening import with_factor
from runtime.opening.regrouping import as_run
from runtime.opening.rescaling import factor_of
from runtime.opening.rewind import begin_anew, meanings_of
from runtime.opening.stored_state import STAGED, lies, pieces, replace_staged, unread
from runtime.ports.commits import Commit
from runtime.ports.environment import Environment, LiveEnvironment, typed
from runtime.ports.state import StateWrites
from runtime.reprocessing.ceilings import LiveCut
from runtime.reprocessing.takeover import KEEP_OFFSETS
from runtime.run.driver import Watched
from runtime.run.run import Run, run_blocking
from runtime.run.settings import RunSettings
from runtime.stores.registry import kind_of

BESIDE = "backfilling"
"""The suffix of the name under which operators are back-filled."""
Place = tuple[str, int]
"""A stream and a partition of it."""
Pieces = Iterable[Sequence[tuple[bytes, bytes | None]]]
Runs = Callable[[Pipeline, HistorySpan, Mapping[str, object]], Watched]
"""Runs a pipeline over a span of history, with bindings, to its end."""


class Undrained(SamzaError):
    """The program that has run has something to read or to write before another one can go on."""


@dataclass(frozen=True)
class Backfill:
    """Operators that are to be computed anew, the part of the application that does so, and the live run's cut.

    `until` has by stream and partition the offset that the live run has come to, and `starts` the first one that there
    is; of those that have `ended` it was told the end there. Into the streams of `scratch` the part writes what the
    live run has written already; what that had not fired yet is left to the run that follows, by the `ceilings` of
    tasks and operators.
    """

    operators: tuple[str, ...]
    part: Pipeline
    bind: Mapping[str, object]
    starts: Mapping[Place, int]
    until: Mapping[Place, int]
    ended: Collection[Place]
    scratch: Mapping[str, str]
    ceilings: Mapping[str, Mapping[str, int]]
    rests: Mapping[str, AtRest]
    """By partition as "flights:3", how far event time was there at that cut."""
    left: Sequence[str]
    """The operators that had something to write there."""

    @property
    def app(self) -> str:
        """The name under which the part runs."""
        return self.part.graph.app

    @property
    def bound(self) -> Mapping[str, object]:
        """The places of what the part reads and writes."""
        return {**self.bind, **{name: ANOTHER + other for name, other in self.scratch.items()}}

    @property
    def reads(self) -> bool:
        """Whether there is anything to read: else the operators have missed nothing."""
        return any(end > self.starts[place] for place, end in self.until.items())

    @property
    def told(self) -> str:
        """The words for what is read, with what is gone of it."""
        read, gone = Counter[str](), Counter[str]()
        for (stream, partition), end in self.until.items():
            start = self.starts[stream, partition]
            read[stream] += end - start
            gone[stream] += start if end > start else 0
        lost = " (the first {:,} are gone)"
        each = (
            f"{count:,} offsets of {name!r}{lost.format(gone[name]) if gone[name] else ''}"
            for name, count in read.items()
        )
        return " and ".join(each)

    @property
    def ends(self) -> dict[str, int]:
        """The offsets of the cut, by stream and partition as a span names them."""
        return {f"{name}:{part}": end for (name, part), end in self.until.items()}

    @property
    def span(self) -> HistorySpan:
        """The history up to the cut, at whose end nothing fires that has not fired in the live run."""
        ended = [f"{name}:{part}" for name, part in self.ended]
        return HistorySpan(until=self.ends, hands_over=True, ended=ended, ceilings=self.ceilings, rests=self.rests)

    def goes_on_from(self, done: Backfill) -> bool:
        """Whether it computes what another one of the same program has computed, and only up to a later cut."""
        return (
            (self.operators, self.scratch, self.until.keys()) == (done.operators, done.scratch, done.until.keys())
            and all(self.starts[place] <= at <= self.until[place] for place, at in done.until.items())
            and not done.ended
        )


def backfill_of(
    environment: Environment,
    pipeline: Pipeline,
    operators: Collection[str],
    bind: Mapping[str, object] = MappingProxyType({}),
    *,
    is_ahead: bool = False,
) -> Backfill:
    """Return the back-fill of some operators up to where their application has come, which this process owns.

    Where it `is_ahead`, the application goes on meanwhile, so that this is not all. `bind` has what is read in the
    place of inputs. Raises PlanError for an operator whose state is in memory alone, and SamzaError where records lie
    between stages that the old program has not read.
    """
    # Read once: a live run goes on meanwhile, and all that is taken from it must be of one cut.
    checkpoints = environment.checkpoints(pipeline.graph.app)
    graph = as_run(pipeline.graph, checkpoints)
    for id in operators:
        if not (kind := kind_of(graph.specs[id])).durable:
            wrong = f'its state is in memory alone (store="{kind.name}"), and begins with nothing whenever it is run'
            raise refuse(graph.specs[id], wrong, f"no store=; or evolve with --keep {id}")
    options = _split_as(environment, pipeline, checkpoints)
    own = replace(options, metrics_to=None)
    with closing(Bindings(environment, graph, bind)) as bindings:
        whole = make_plan(graph, options, bindings.partition_counts(graph), wrapped=pipeline.wrapped)
        part = beside(part_of(graph, whole, operators), BESIDE)
        if not is_ahead:
            _check_drained(environment, graph.app, part)
        starts, until, ended = _spans(checkpoints, part, bindings, graph.app, is_ahead)
        plan = make_plan(part, own, bindings.partition_counts(part), wrapped=pipeline.wrapped)
        cut = LiveCut(whole, graph, checkpoints)
    ceilings: dict[str, dict[str, int]] = defaultdict(dict)
    for task, id, at in _ceilings(environment, plan, part, whole, cut, is_ahead):
        ceilings[task][id] = at
    left = [id for id in part.specs if id in cut.left]
    read = {spec.stream for spec in part.inputs.values()}
    bound = {name: what for name, what in bind.items() if name in read}
    scratch = {one.name: f"{part.app}.{one.name}" for one in plan.results}
    run = Pipeline(part, own, pipeline.around)
    return Backfill(tuple(operators), run, bound, starts, until, ended, scratch, ceilings, cut.rests(), left)


def _split_as(environment: Environment, pipeline: Pipeline, checkpoints: Mapping[str, Checkpoint]) -> Options:
    """Return the options by which tasks are split as those that have run, whatever the next run is to have."""
    found = factor_of(checkpoints)
    if found is not None:
        return replace(pipeline.options, elasticity=found)
    return with_factor(pipeline.options, environment.asked_scale(pipeline.graph.app).factor)


def _ceilings(
    environment: Environment, plan: Plan, part: Graph, whole: Plan, cut: LiveCut, is_ahead: bool
) -> Iterator[tuple[str, str, int]]:
    """Yield the ceilings of operators in tasks of a part of an application, as they were at the live run's cut.

    Raises SamzaError where nobody knows what has fired: the rest is computed only while the live run goes on.
    """
    places = _Places(plan, whole)
    for stage in plan.stages:
        mine = [id for id in stage.operators if part.specs[id].stateful]
        for task, id in product(stage.tasks, mine):
            ceiling = cut.ceiling(places.task(id, task), id)
            if ceiling is None:
                continue
            if ceiling.is_torn and not is_ahead:
                raise _torn_error(environment, part, id)
            yield plan.virtual(task).name, id, ceiling.at


def _torn_error(environment: Environment, part: Graph, id: str) -> Undrained:
    return Undrained(
        f"the program that has run was killed as {id!r} wrote results of one time, and nobody knows which of them are "
        f"written: let that program write the rest, {_instead(environment, part, id)}"
    )


def _instead(environment: Environment, part: Graph, id: str) -> str:
    drain = typed(environment, f"drain {part.specs[id].site.file}")
    return f"{drain}, and evolve then; or evolve with --was and its file, which does both"


def _check_drained(environment: Environment, app: str, part: Graph) -> None:
    """Raise SamzaError where records lie in front of operators that are to be computed anew."""
    existing = environment.streams([intermediate(app, id) for id in part.specs])
    for id, spec in part.specs.items():
        stream = intermediate(app, id)
        if spec.repartitions and stream in existing and (count := unread(environment, app, stream)):
            raise Undrained(
                f"{count:,} record{'s' * (count > 1)} in {stream!r}, between stages, were not read by the program that "
                f"has run, and operators behind it are to be computed anew: let that program empty it, "
                f"{_instead(environment, part, id)}"
            )


def _not_level_error(app: str, stream: str, partition: int) -> Undrained:
    return Undrained(
        f"the virtual tasks of {app!r} have come to different offsets of {stream!r}, partition {partition}, and "
        "history has one end: drain the application with the program that has run, and evolve then"
    )


def _spans(
    checkpoints: Mapping[str, Checkpoint], part: Graph, bindings: Bindings, app: str, is_ahead: bool
) -> tuple[dict[Place, int], dict[Place, int], list[Place]]:
    """Return where each partition begins that a part of an application reads, how far it is read, and which ended."""
    found: dict[str, dict[int, list[Position]]] = defaultdict(lambda: defaultdict(list))
    for name, checkpoint in checkpoints.items():
        if is_task(name) or name == FORMER:
            for one in checkpoint.positions:
                found[one.stream][one.partition].append(one)
    starts, until, ended = {}, {}, []
    environment = bindings.environment
    there = bindings.sources.keys() | environment.streams().keys()
    for stream in {stream: None for spec in part.flowing for stream in bindings.streams_of(spec)}:
        read = found[stream]
        if stream not in there:
            # A stream that is new as its input is has no history: the run that follows makes it.
            if read:
                system = next(one.system for places in read.values() for one in places)
                raise SamzaError(
                    f"the application has read {stream!r} from {system}, and there is no such stream in {environment}: "
                    f"say where it is, --bind {stream}=PATH, as in a run"
                )
            continue
        for partition in range(bindings.partitions(stream)):
            positions, origin = read[partition], bindings.origin(stream, partition)
            if len({one.offset for one in positions}) > 1 and not is_ahead:
                raise _not_level_error(app, stream, partition)
            for one in positions:
                _check_same_offsets(one, origin.system)
            there_now = origin.offsets()
            starts[stream, partition] = start = there_now.start
            # What was never read is read by the live run from its start.
            until[stream, partition] = max(start, min((one.offset for one in positions), default=start))
            # Of what is new and has nothing the live run hears the end at once.
            is_empty = there_now.ended and there_now.end == start
            has_ended = all(one.has_ended for one in positions) if positions else is_empty
            # What is ahead goes on behind its end: nothing closes before the live run is through.
            if has_ended and not is_ahead:
                ended.append((stream, partition))
    return starts, until, ended


def _check_same_offsets(position: Position, system: str) -> None:
    """Raise SamzaError where offsets of a system do not count what the live run has read."""
    if position.system != system and not {position.system, system} <= {*KEEP_OFFSETS}:
        stream, live = position.stream, position.system
        raise SamzaError(
            f"the live run has read {stream!r} from {live}, and history would be read from {system}, whose offsets "
            f"are others, so that nobody knows which of its records the live run has read: "
            + (
                f"archive the stream ({command(f'streams archive {stream} DIR')}), and read that"
                if live in KEEP_OFFSETS
                else f"say what the live run reads, --bind {stream}=PATH"
            )
        )


def over_history(environment: Environment, part: Pipeline, span: HistorySpan, bind: Mapping[str, object]) -> Run:
    """Run a part of an application over history here, to its end or until it is stopped."""
    return run_blocking(part, environment, RunSettings(span=span, bind=bind))


class Computed(NamedTuple):
    """The plan, checkpoints and state of a back-fill that has come to its end."""

    plan: Plan
    checkpoints: Mapping[str, Checkpoint]
    state: Iterable[tuple[str, int, Pieces]]


def run_backfill(
    environment: Environment,
    pipeline: Pipeline,
    backfill: Backfill,
    run: Runs,
    *,
    begin: Callable[[Backfill], None] | None = None,
) -> Watched:
    """Compute operators anew by `run`, and let their state join that of the application, which this process owns.

    Where it is stopped or killed before the state has joined, the application is as it was. It begins with nothing
    where `begin` does not say from where it goes on.
    """
    if begin is None:
        # What a back-fill has left that was killed may be of another program, or of another cut.
        drop_backfill(environment, pipeline.graph.app)
    else:
        begin(backfill)
    done = run(backfill.part, backfill.span, backfill.bound)
    if not done.stopping:
        own = backfill.app
        stores = sorted(one for one in environment.state_stats(own) if one[0] in backfill.operators)
        state = ((store, task, pieces(environment.state_range(own, store, task))) for store, task in stores)
        join(environment, pipeline, backfill, Computed(done.plan, environment.checkpoints(own), state))
    drop_backfill(environment, pipeline.graph.app)
    return done


def drop_backfill(environment: Environment, app: str) -> None:
    """Remove what a back-fill of an application has left, if there is anything."""
    own = f"{app}.{BESIDE}"
    if own in environment.applications():
        environment.own(own)
        begin_anew(environment, own)
        if isinstance(environment, LiveEnvironment):
            environment.reclaim(own)
    for stream in [one for one in environment.streams() if one.startswith(f"{own}.")]:
        environment.delete_stream(stream)


def join(environment: Environment, pipeline: Pipeline, backfill: Backfill, computed: Computed) -> None:
    """Put the state that was computed in the place of what operators have had, at the cut of the live application.

    It is staged, and is there as a whole by one commit: a crash leaves all as it was, or is made good.
    """
    checkpoints = environment.checkpoints(pipeline.graph.app)
    graph = as_run(pipeline.graph, checkpoints)
    generation = environment.generation(graph.app)
    options = _split_as(environment, pipeline, checkpoints)
    with closing(Bindings(environment, graph, backfill.bind)) as bindings:
        plan = make_plan(graph, options, bindings.partition_counts(graph), wrapped=pipeline.wrapped)
    places = _Places(computed.plan, plan)
    for store, task, found in computed.state:
        to = places.task(store, task)
        # A virtual task without a position has read nothing of what the others have: it would read that once more.
        if options.factor > 1 and plan.virtual(to).name not in checkpoints:
            raise _not_level_error(plan.app, *next(iter(backfill.until)))
        for items in found:
            environment.commit(Commit(plan.app, generation, [], [StateWrites(STAGED + store, to, [*items])], {}))
    means, how = meanings_of(plan, graph), lies(plan, graph)
    joined = _joined(checkpoints, computed.checkpoints, graph, backfill, places)
    replace_staged(
        environment,
        plan.app,
        {id: means[id] for id in backfill.operators},
        {id: how[id] for id in backfill.operators if id in how},
        wall_clock_ms(),
        joined,
    )


class _Places:
    """The tasks of an application that have what the tasks of a part of it, which runs by itself, have."""

    def __init__(self, own: Plan, plan: Plan) -> None:
        self._own, self._plan = own, plan
        self._ids = {one.id for one in plan.operators}

    def task(self, operator: str, task: int) -> int:
        """Return the number of the task that has what a task of the part has of an operator's state."""
        own, live = _stage(self._own, operator), _stage(self._plan, operator)
        base = self._base(own, live, own.base_of(task))
        found = base + live.width * own.bucket_of(task)
        assert found in live.tasks, "a part of an application lays keys as the whole does"
        return found

    def name(self, name: str, stream: str) -> str:
        """Return the name of the task that has the position in a stream of a task of the part."""
        task = VirtualTask.of(name)
        own = next(stage for stage in self._own.stages if stream in stage.inputs)
        known = next(id for id in own.operators if id in self._ids)
        return task._replace(base=self._base(own, _stage(self._plan, known), task.base)).name

    @staticmethod
    def _base(own: StagePlan, live: StagePlan, base: int) -> int:
        if not own.apart:
            return base
        place = next((stream, partition) for task, stream, partition in own.apart if task == base)
        return next(task for task, *other in live.apart if tuple(other) == place)


def _stage(plan: Plan, operator: str) -> StagePlan:
    return next(stage for stage in plan.stages if operator in stage.operators)


def _joined(
    checkpoints: Mapping[str, Checkpoint],
    own: Mapping[str, Checkpoint],
    graph: Graph,
    backfill: Backfill,
    places: _Places,
) -> dict[str, Checkpoint]:
    """Return the checkpoints of the application that change as what was computed joins it."""
    part = backfill.part.graph
    # An engine hands streams between stages over under the application's own name.
    between = {intermediate(app, id): id for id in part.specs for app in (part.app, graph.app)}
    found: dict[str, Checkpoint] = {}
    for name, one in ((name, one) for name, has in own.items() if is_task(name) for one in has.positions):
        live = places.name(name, one.stream)
        before = found.get(live, checkpoints.get(live, Checkpoint(0)))
        now = {(place.stream, place.partition, place.bucket): place for place in before.positions}
        id = between.get(one.stream)
        stream = one.stream if id is None else intermediate(graph.app, id)
        place = (stream, one.partition, one.bucket)
        entries = [id] if id else [known for known, spec in graph.inputs.items() if spec.matches(stream)]
        if place in now:
            now[place] = _told(now[place], one, all(_is_anew(graph, entry, backfill) for entry in entries))
        elif id is not None:
            # The live run writes the stream anew: what its producers have told of event time holds there, too.
            now[place] = replace(one, stream=stream, offset=0, stream_id=0)
        found[live] = replace(before, positions=tuple(now.values()))
    if JOB in checkpoints:
        job = checkpoints[JOB]
        if noted_parameters(checkpoints) is not None:
            ids = {*backfill.operators} | part.inputs.keys()
            noted = noted_as(job.meanings[PARAMETERS], graph, ids)
            found[JOB] = replace(job, meanings={**job.meanings, PARAMETERS: noted})
    return found


def _is_anew(graph: Graph, entry: str, backfill: Backfill) -> bool:
    """Whether all state below where messages come into a stage is computed anew."""
    return all(id in backfill.operators for id in graph.below(entry) if graph.specs[id].stateful)


def _told(live: Position, own: Position, is_anew: bool) -> Position:
    """Return the position of the live run with event time as far as it must be for state that was computed anew.

    Where other state goes on below it, event time does not go back.
    """
    if is_anew and (own.producers or own.watermark > MIN_TIMESTAMP):
        return replace(live, watermark=own.watermark, producers=own.producers, idle=own.idle)
    producers = {
        name: max(at, own.producers.get(name, at)) for name, at in chain(own.producers.items(), live.producers.items())
    }
    return replace(live, watermark=max(live.watermark, own.watermark), producers=producers)
