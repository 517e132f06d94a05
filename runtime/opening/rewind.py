"""Rewinds of an application, and the refusal of plans that would orphan its state or read it as something else."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from msgspec.structs import replace

from operators.core.base import Spec
from operators.io import TableInput
from planner.checks.grouping import layout
from planner.model.errors import refuse
from planner.model.graph import Graph
from planner.model.plan import Plan
from planner.model.virtual_tasks import is_task
from runtime.assembly.bindings import Bindings
from runtime.commit.commit import STATE
from runtime.job.job_model import layout_of, reads_of
from runtime.job.parameters import key_words, without_modules
from runtime.model.checkpoint import SHARED, Checkpoint, Position
from runtime.model.errors import SamzaError, command
from runtime.model.state_choice import Forget, State
from runtime.opening.former_layout import ANOTHER, OF_BROKERS, former_sizes, laid_otherwise, why_it_stays
from runtime.opening.stored_state import (
    Lies,
    forget,
    lies,
    noted_lies,
    operator_of,
    reshuffled,
    stored,
    streams_between,
    unread,
)
from runtime.ports.commits import Commit
from runtime.ports.environment import Environment, typed
from runtime.stores.registry import store_kind

_log = logging.getLogger("samza_dsl")
AS_BEFORE = "it as before"
UNFINISHED = ""
"""The key, among the meanings of stores, of a handover that is being taken over: no store has this name."""
SPLIT = "the newer version that has split its tasks"
"""The word there that begins so tells versions that know no split tasks to refuse them: they look at this key alone."""


class Complaint(NamedTuple):
    """The reason why a run can't go on with the state of an operator, and the advice `instead` that keeps it.

    `spec` is the operator that would read it; None where there is none. `convert` is the advice that changes it, and
    the `heirs` are the operators that it could be given to.
    """

    operator: str
    spec: Spec | None
    wrong: str
    instead: str
    convert: str = ""
    heirs: tuple[str, ...] = ()


def check_state(
    environment: Environment,
    plan: Plan,
    graph: Graph,
    partitions: Mapping[str, int] = MappingProxyType({}),
    anew: str | None = None,
    *,
    moves: Callable[[str], bool] | None = None,
) -> None:
    """Refuse a plan without the operator of existing state, or with one that would read it as something else.

    Refused as well are streams with other partition counts than those by which state lies, and records between stages
    that no stage reads any more. The error names the command that helps, or `anew` where there is none. For who moves
    state to other partitions `moves` tells whether it can by a stream; refused is what stays. Raises PlanError where an
    operator of the plan is to blame, else SamzaError.
    """
    check_whole(environment, plan)
    _check_layout(environment.checkpoints(plan.app), plan, typed(environment, f"reset {plan.app}"))
    found = complaints_of(environment, plan, graph, partitions, moves=moves)
    if not found:
        return
    first, operators = found[0], list(dict.fromkeys(one.operator for one in found))
    command = typed(environment, " ".join(("state forget", plan.app, *operators)))
    drop = anew or f"drop what does not fit alone, the state of {' and '.join(map(repr, operators))}: {command}"
    again = f"compute all again with it: {typed(environment, f'reset {plan.app}')}"
    is_read_otherwise = first.instead == AS_BEFORE and anew is None
    ways = (first.instead, first.convert if anew is None else "", drop, again if is_read_otherwise else "")
    instead = "; or ".join(filter(None, ways))
    if first.spec is not None:
        raise refuse(first.spec, first.wrong, instead)
    raise SamzaError(f"the app {plan.app!r} has {first.wrong}: {instead}")


def complaints_of(
    environment: Environment,
    plan: Plan,
    graph: Graph,
    partitions: Mapping[str, int],
    *,
    moves: Callable[[str], bool] | None = None,
) -> list[Complaint]:
    """Return all complaints about an application's state, which does not fit a plan.

    What can move to other partitions, as `moves` tells of a stream, is none.
    """
    checkpoints = environment.checkpoints(plan.app)
    before = checkpoints.get(STATE, Checkpoint(0)).meanings
    kept = environment.stores(plan.app)
    now = meanings_of(plan, graph)
    known = {store.name for store in plan.stores}
    found = [_orphan(environment, plan, graph, store, checkpoints) for store in kept if store not in known]
    for store, means in now.items():
        if store in kept and before.get(store, means) != means:
            spec = graph.specs[store]
            wrong = f"its state was kept as {before[store]!r}, and would now be read as {means!r}"
            convert = typed(environment, f"state convert {spec.site.file} {store} MODULE:FUNCTION")
            by = f"convert it by a function of yours: {convert}" if can_convert(before[store], spec, graph) else ""
            found.append(Complaint(store, spec, wrong, AS_BEFORE, by))
    found += _without_readers(environment, plan)
    found += _resized(environment, plan, graph, None if layout(plan) else moves)
    told = {one.operator for one in found}
    elsewhere = _elsewhere(environment, checkpoints, plan, graph, kept, partitions, moves)
    found += [one for one in elsewhere if one.operator not in told]
    return found


def is_unfinished(meanings: Mapping[str, str]) -> bool:
    """Whether only a part of a handover was taken over, given the meanings of stores."""
    return not meanings.get(UNFINISHED, SPLIT).startswith(SPLIT)


def told_of_split(meanings: Mapping[str, str], plan: Plan) -> dict[str, str]:
    """Return the meanings of stores with a word for versions before elasticity, where tasks are split.

    Such a version finds no checkpoint by the names that it knows, and would read everything again.
    """
    told = {store: means for store, means in meanings.items() if store != UNFINISHED}
    if plan.options.factor > 1:
        told[UNFINISHED] = f"{SPLIT} (there, {command(f'scale {plan.app} --factor 1')} makes them one again)"
    return told


def check_whole(environment: Environment, plan: Plan) -> None:
    """Refuse state of which only a part is there, as a handover was not taken over to its end."""
    before = environment.checkpoints(plan.app).get(STATE, Checkpoint(0)).meanings
    if is_unfinished(before):
        raise SamzaError(
            f"the app {plan.app!r} has only a part of what {before[UNFINISHED]} hands over: take it over again (samza-"
            f"dsl take-over), or begin anew: {typed(environment, f'reset {plan.app}')}"
        )


def _check_layout(checkpoints: Mapping[str, Checkpoint], plan: Plan, anew: str) -> None:
    """Refuse tasks of other numbers than those by which positions and state are kept."""
    before, now = layout_of(checkpoints), layout(plan)
    # Before its first commit an application has nothing that lies by tasks.
    if any(is_task(name) for name in checkpoints) and now != before:
        kinds = [f"a task for each partition of each of {', '.join(one)}" if one else "" for one in (before, now)]
        had, has = (kind or "a task for each partition" for kind in kinds)
        raise SamzaError(
            f"the app {plan.app!r} has run with {had}, and would now have {has}: what it has read and keeps lies by "
            f"its tasks. Leave group_by= and its inputs as they were, or begin anew: {anew}"
        )


def _orphan(
    environment: Environment, plan: Plan, graph: Graph, store: str, checkpoints: Mapping[str, Checkpoint]
) -> Complaint:
    """Return the complaint about state without an operator, with the operator of the plan that could have it."""
    before, now = checkpoints.get(STATE, Checkpoint(0)).meanings, meanings_of(plan, graph)
    means = before.get(store, "")
    wrong = f"state of {store!r}{f' (kept as {means!r})' if means else ''}, and no operator of that id now"
    kept, had, has = environment.stores(plan.app), noted_lies(checkpoints).get(store), lies(plan, graph)
    # Not one that has state, or had: its own would be lost; nor one with its keys elsewhere, which a move refuses.
    alike = [
        id
        for id, other in now.items()
        if other == means and id not in kept and id not in before
        if had is None or (id in has and had.is_as(has[id]))
    ]
    # The rows of a table are those of its own stream: no other table can have them.
    is_table = means.startswith(TableInput.kind)
    if not alike or is_table:
        return Complaint(store, None, wrong, f"keep the {'table' if is_table else 'operator'} of that id")
    spec = graph.specs[alike[0]]
    command = typed(environment, f"state move {spec.site.file} {store} {alike[0]}")
    return Complaint(
        store,
        None,
        wrong,
        f"where it is the {spec.kind} {alike[0]!r} at {spec.site} now, move it: {command}; or name that one as before "
        f"(op_id={store!r})",
        heirs=tuple(alike),
    )


def _without_readers(environment: Environment, plan: Plan) -> Iterator[Complaint]:
    """Yield complaints about records between stages that nobody would read."""
    planned = {stream.name for stream in plan.streams if stream.role == "intermediate"}
    for name in sorted(streams_between(environment, plan.app) - planned):
        if count := unread(environment, plan.app, name):
            records = f"{count:,} record" + "s" * (count > 1)
            yield Complaint(
                operator_of(plan.app, name),
                None,
                f"{records} in {name!r}, between stages, and no stage that reads them now",
                "run it as it was before with --until-now, which reads them",
            )


def _resized(
    environment: Environment, plan: Plan, graph: Graph, moves: Callable[[str], bool] | None
) -> Iterator[Complaint]:
    """Yield complaints about streams between stages whose keys would go to other partitions."""
    planned = {stream.name: stream for stream in plan.streams if stream.role == "intermediate"}
    existing = environment.streams(planned)
    for name, stream in planned.items():
        if moves is not None and moves(name):
            continue
        if name in existing and existing[name].intermediate and stream.partitions != existing[name].partitions:
            had, operator = existing[name].partitions, operator_of(plan.app, name)
            count = unread(environment, plan.app, name)
            lost = f", and {count:,} of its records are not read yet" if count else ""
            wrong = f"the intermediate stream {name!r} has {had} partitions and the plan wants {stream.partitions}"
            why = f"{wrong}: keys would move away from their state{lost}"
            yield Complaint(operator, graph.specs[operator], why, f"partitions={had} in its partition_by")


def _elsewhere(
    environment: Environment,
    checkpoints: Mapping[str, Checkpoint],
    plan: Plan,
    graph: Graph,
    kept: Collection[str],
    partitions: Mapping[str, int],
    moves: Callable[[str], bool] | None,
) -> Iterator[Complaint]:
    """Yield complaints about state whose keys lie in other partitions than they did, and can't be moved there."""
    before, noted, now = reads_of(checkpoints), noted_lies(checkpoints), lies(plan, graph)
    # What is removed before anything moves has no say.
    former = former_sizes(environment, plan, laid_otherwise(environment, plan)) if moves is not None else {}
    for stage in plan.stages:
        had, read = before.get(stage.id, {}), (*stage.inputs, *stage.tables)
        streams = [one for one in read if one in had and partitions.get(one, had[one]) != had[one]]
        if moves is not None:
            had, streams = former, [one for one in read if one in former]
            partitions = {**partitions, **{one: plan.stream(one).partitions or 1 for one in streams}}
        for store in (one.name for one in plan.stores if one.name in kept and one.operator in stage.operators):
            spec = graph.specs[store]
            why = None
            if moves is not None:
                why = why_it_stays(plan, graph, store, noted.get(store), now.get(store))
                if why is None and not all(map(moves, streams)):
                    why = OF_BROKERS
            if streams and moves is not None and why is None:
                if (lying := noted[store]).partitions != had[streams[0]]:
                    # As where it was laid anew by hand, and what lies between the stages was not.
                    wrong = f"its state lies {_said(lying)}, and {streams[0]!r} has {had[streams[0]]} partitions"
                    between = operator_of(plan.app, streams[0])
                    drop = typed(environment, f"state forget {plan.app} {between}")
                    records = unread(environment, plan.app, streams[0])
                    lost = f" with {records:,} record{'s' * (records > 1)} that nobody has read" if records else ""
                    yield Complaint(store, spec, wrong, f"what lies between the stages dropped{lost}: {drop}")
                continue
            if streams:
                name = streams[0]
                wrong = f"its state lies where {name!r} had {had[name]} partitions, and that has {partitions[name]} now"
                if why is not None:
                    yield Complaint(store, spec, f"{wrong}, and can't be moved: {why.wrong}", why.instead)
                    continue
                yield Complaint(store, spec, f"{wrong}, so that keys lie in others", ANOTHER)
            elif store in noted and store in now and not noted[store].is_as(now[store]):
                if moves is not None and why is None and store in reshuffled(noted, now):
                    continue
                wrong = f"its state lies {_said(noted[store])}, and its stage has its keys {_said(now[store])} now"
                yield Complaint(store, spec, wrong, "what is above it as before", _anew(environment, spec, now[store]))


def _anew(environment: Environment, spec: Spec, now: Lies) -> str:
    """Return the advice that lays state where its keys are now; "" where only the writer of the input knows that."""
    if now.writer and now.partitions > 1:
        return ""
    export, file = f"state export {spec.site.file} {spec.op_id} --to {spec.op_id}.jsonl", f"{spec.op_id}.jsonl"
    again = typed(environment, f"state import {spec.site.file} --from {file}")
    return f"lay it where its keys are now: {typed(environment, export)}, and then {again}"


def _said(one: Lies) -> str:
    chosen = f", chosen by who writes {one.writer!r}" if one.writer else ""
    return f"in {one.partitions} partition{'s' * (one.partitions > 1)}{chosen}"


def can_convert(means: str, spec: Spec, graph: Graph) -> bool:
    """Whether entries that were kept with a meaning lie as those of an operator do: it is of the kind, and its keys."""
    words = without_modules(", ".join(" ".join(one) for one in key_words(spec, graph).items()))
    return means.partition(",")[0] == spec.kind and (not words or means.endswith(words))


def check_move(environment: Environment, plan: Plan, graph: Graph, old: str, new: str) -> None:
    """Refuse to give an operator state of another kind, or with keys in other partitions, or beside its own.

    Raises PlanError where the operator of the plan is to blame, else SamzaError.
    """
    check_whole(environment, plan)
    app, checkpoints, kept = plan.app, environment.checkpoints(plan.app), environment.stores(plan.app)
    means, now = checkpoints.get(STATE, Checkpoint(0)).meanings.get(old), meanings_of(plan, graph)
    again = typed(environment, f"state forget {app} {old}")
    if old not in kept:
        raise no_state_error(app, old, kept)
    if old in now:
        raise refuse(graph.specs[old], "it is there still, and keeps its state", f"remove it first; or {again}")
    had, has_now = noted_lies(checkpoints).get(old), lies(plan, graph).get(new)
    if means is None or (had is None and has_now is not None):
        raise SamzaError(
            f"what the state of {old!r} means, and how it lies, was not noted by the version that kept it: run the app "
            f"as it was once more with --until-now, which notes it; or {again}"
        )
    if means.startswith(TableInput.kind):
        raise SamzaError(f"the state of {old!r} are the rows of its own stream, and {new!r} reads another: {again}")
    if new not in now:
        can = [id for id, other in now.items() if other == means and id not in kept]
        has = f"write {' or '.join(map(repr, can))}" if can else f"it has none that keeps {means!r}: {again}"
        raise SamzaError(f"the app {app!r} has no operator {new!r} that keeps state: {has}")
    if new in kept:
        drop = typed(environment, f"state forget {app} {new}")
        raise refuse(graph.specs[new], "it has state of its own", f"{drop}, before the move; or {again}")
    if means != now[new]:
        wrong = f"the state of {old!r} was kept as {means!r}, and it would read it as {now[new]!r}"
        raise refuse(graph.specs[new], wrong, f"it as {old!r} was; or {again}")
    if had is not None and (has_now is None or not had.is_as(has_now)):
        its = f"its stage has its keys {_said(has_now)}" if has_now is not None else "it has no key"
        wrong = f"the state of {old!r} lies {_said(had)}, and {its}"
        raise refuse(graph.specs[new], wrong, f"what is above it as it was above {old!r}; or {again}")


def no_state_error(app: str, operator: str, kept: Collection[str]) -> SamzaError:
    """Return the error for state that a command names and that is not there."""
    return SamzaError(f"the app {app!r} has no state of {operator!r}: it has of {', '.join(sorted(kept)) or 'none'}")


def forget_what_does_not_fit(
    environment: Environment,
    plan: Plan,
    graph: Graph,
    partitions: Mapping[str, int],
    operators: Collection[str],
    moves: Callable[[str], bool] | None = None,
) -> None:
    """Drop the state of those operators for which a run would be refused, and of no others."""
    # Whatever restarts programs types the same command again, and must not drop what the first run has made.
    found = {one.operator for one in complaints_of(environment, plan, graph, partitions, moves=moves)}
    gone = [operator for operator in operators if operator in found]
    if gone:
        forget(environment, plan.app, gone)
        _log.warning("drops the state of %s, which application %r said to forget", ", ".join(gone), plan.app)
    if left := [operator for operator in operators if operator not in found]:
        _tell_unforgotten(environment, plan.app, left, graph.specs)


def _tell_unforgotten(environment: Environment, app: str, operators: Collection[str], specs: Collection[str]) -> None:
    """Say of operators that are to be forgotten why nothing of them is dropped."""
    kept = [one.operator for one in stored(environment, app)]
    for operator in operators:
        if operator in kept and operator in specs:
            drop = typed(environment, f"state forget {app} {operator}")
            _log.warning(
                "the state of %s fits the application, so it stays; to drop it all the same: %s", operator, drop
            )
        elif operator not in kept and operator not in specs:
            others = ", ".join(kept) or "none"
            _log.warning("nothing is kept of %s, so nothing is dropped; %r keeps state of: %s", operator, app, others)


def drop_read_streams(environment: Environment, plan: Plan) -> None:
    """Remove the streams between stages that the plan has no more, all of whose records were read."""
    # Else one that is there again some day would be read from its start.
    planned = {stream.name for stream in plan.streams if stream.role == "intermediate"}
    gone = [operator_of(plan.app, name) for name in sorted(streams_between(environment, plan.app) - planned)]
    if gone:
        forget(environment, plan.app, gone)


def drop_laid_otherwise(environment: Environment, plan: Plan) -> None:
    """Remove the streams between stages that are read to the end and lie as no state behind them does."""
    # Else state that `move` has given to an operator would have to lie as what was there before had it.
    if gone := [operator_of(plan.app, name) for name in sorted(laid_otherwise(environment, plan))]:
        forget(environment, plan.app, gone)


def drop_what_a_reset_left(environment: Environment, plan: Plan) -> None:
    """Remove the streams between stages of an application that has no checkpoint at all.

    What a commit writes to them comes with a checkpoint. So where there is none, a reset has died between the two
    transactions of `begin_anew`, and what it left would be read beside what is written anew.
    """
    if environment.checkpoints(plan.app):
        return
    there = environment.streams({stream.name for stream in plan.streams})
    for stream in (one.name for one in plan.streams if one.role == "intermediate" and one.name in there):
        holds = any(environment.offsets(stream, number).end for number in range(there[stream].partitions))
        # A stream of the user's may happen to have the name.
        if holds and there[stream].intermediate:
            environment.delete_stream(stream)


def meanings_of(plan: Plan, graph: Graph) -> dict[str, str]:
    """Return the meaning of the entries of each durable store: the operator's own words, its keys, their partitioner.

    Names of types go without their modules, which depend on how the program is started, and objects without addresses.
    """
    found = {}
    for store in plan.stores:
        if store_kind(store.kind).durable:
            spec = graph.specs[store.operator]
            keys = (" ".join(words) for words in key_words(spec, graph).items())
            found[store.name] = without_modules(", ".join(filter(None, [spec.kind, spec.meaning(), *keys])))
    return found


def rewind(environment: Environment, plan: Plan, bindings: Bindings, state: State) -> int:
    """Set an application's inputs back to their start, and return its generation, a new one under "reset".

    "reset" drops state, timers, watermarks and what lies in intermediate streams. "keep" keeps them, so that replayed
    records are late wherever their windows have fired. Raises SamzaError when the application has state and neither
    was said.
    """
    intermediates = [stream for stream in plan.streams if stream.role == "intermediate"]
    durable = [store for store in plan.stores if store_kind(store.kind).durable]
    if state is None and (intermediates or durable) and environment.checkpoints(plan.app):
        raise SamzaError(
            f"the app {plan.app!r} has state and intermediate streams, and a rewind must say what becomes of them: "
            "--state reset (begin anew) or --state keep (replayed records are late where their windows have fired)"
        )
    if state == "keep":
        return _keep(environment, plan, bindings)
    # Outputs first: after `begin_anew` nobody knows how far they were written.
    written = environment.checkpoints(plan.app).get(SHARED)
    bindings.empty_outputs(written.outputs if written is not None else {})
    begin_anew(environment, plan.app, plan)
    bindings.create_streams(plan)
    return environment.own(plan.app)


def intermediate_streams(checkpoints: Mapping[str, Checkpoint]) -> set[str]:
    """Return the streams between the application's own stages: those whose positions have producers."""
    return {one.stream for checkpoint in checkpoints.values() for one in checkpoint.positions if one.producers}


def begin_anew(environment: Environment, app: str, plan: Plan | None = None) -> set[str]:
    """Drop an application's positions, state and intermediate streams, under a new generation; return the streams."""
    between = streams_between(environment, app)
    between |= {stream.name for stream in plan.streams if stream.role == "intermediate"} if plan else set()
    # A stream of the user's may happen to have the name: only one that is marked as intermediate is ever removed.
    between = {name for name, config in environment.streams(between).items() if config.intermediate}
    environment.reset(app)
    for stream in between:
        environment.delete_stream(stream)
    return between


def check_rewind(from_start: bool, state: object) -> None:
    """Raise SamzaError where a rewind does not say what becomes of state, or where that is said of no rewind."""
    if isinstance(state, Forget):
        if from_start:
            raise SamzaError(f'state={state} is about a run that goes on: with from_start=True say state="reset"')
        return
    if state not in (None, "reset", "keep"):
        raise SamzaError(f'state={state!r} says nothing of the state; write state="reset" or state="keep"')
    if state is not None and not from_start:
        raise SamzaError(f"state={state!r} is about a rewind: add from_start=True, or leave it out")


def _keep(environment: Environment, plan: Plan, bindings: Bindings) -> int:
    left = {stream.name for stream in plan.streams if stream.role in ("intermediate", "table")}
    generation = environment.generation(plan.app)
    checkpoints = {
        task: replace(
            checkpoint,
            positions=tuple(
                position
                if position.stream in left
                # The stream that is there now counts, so its number is not compared with the former one's.
                else replace(position, offset=_start(bindings, position), stream_id=0)
                for position in checkpoint.positions
            ),
        )
        for task, checkpoint in environment.checkpoints(plan.app).items()
    }
    environment.commit(Commit(plan.app, generation, [], [], checkpoints))
    return generation


def _start(bindings: Bindings, position: Position) -> int:
    exists = position.stream in bindings.sources or position.stream in bindings.environment.streams([position.stream])
    return bindings.origin(position.stream, position.partition).offsets().start if exists else 0
