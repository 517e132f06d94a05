"""The partitions by which an application's state lies, where its streams have others now, and what can't follow."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from planner.checks.grouping import layout
from planner.model.errors import refuse
from planner.model.graph import Graph
from planner.model.plan import Plan, StagePlan, Unsplit
from runtime.job.job_model import reads_of
from runtime.model.errors import SamzaError
from runtime.opening.regrouping import regrouped_streams
from runtime.opening.stored_state import Lies, lies, noted_lies, reshuffled, unread
from runtime.ports.environment import Environment, typed
from runtime.stores.registry import store_kind

ANOTHER = "a .partition_by(..., partitions=...) before it in a new application"
OF_BROKERS = Unsplit(
    "writers of a topic learn of its partitions one after the other, and one may go on to write a key where it lay",
    "a .partition_by(KEY, key_type=...) before it, by the same key, with the key type of the input: state moves along",
)
"""Why state stays that lies by the partitions of a topic: it may be too early to move it, and nobody can tell."""


class Moving(NamedTuple):
    """The move of an application to other partitions; it runs by its former ones until nothing is left there.

    `before` has the former counts of streams that get others, `now` what inputs have next, which may be more in a
    further step; `ends` says up to where inputs by whose keys state lies are processed before it moves.
    """

    before: Mapping[str, int]
    now: Mapping[str, int]
    ends: Mapping[tuple[str, int], int]


def moving(environment: Environment, plan: Plan, graph: Graph) -> Moving | None:
    """Return how an application comes to the partitions of a plan; None where nothing lies by others."""
    if layout(plan):
        return None
    before, existing = former_sizes(environment, plan), environment.streams(read_by(plan))
    # Where messages come by a `partition_by` now, the writers of an input may have had keys elsewhere than that has.
    anew = reshuffled(noted_lies(environment.checkpoints(plan.app)), lies(plan, graph))
    regrouped, now, ends = regrouped_streams(graph), dict[str, int](), dict[tuple[str, int], int]()
    for stage in plan.stages:
        for stream in (one for one in stage.inputs if one in before and one in existing):
            if stream not in regrouped and not _keeps_keys(plan, stage):
                continue
            grown = existing[stream].grown
            step = next((number for number, at in enumerate(grown) if len(at) == before[stream]), None)
            if step is None or existing[stream].intermediate:
                continue
            if stream in regrouped and anew:
                now[stream] = before[stream]  # nothing of it is read until the state lies behind the `partition_by`
                continue
            ends |= {(stream, partition): at for partition, at in enumerate(grown[step])}
            now[stream] = len(grown[step + 1]) if step + 1 < len(grown) else existing[stream].partitions
    # Without state and streams between stages nothing remembers how far event time has come: it just reads on.
    has_stages = any(stream.role == "intermediate" for stream in plan.streams)
    return Moving(before, now, ends) if (before or anew) and (ends or has_stages) else None


def check_replay(environment: Environment, plan: Plan, instead: str) -> None:
    """Refuse to read an input by whose keys state is kept, and that has grown, by its partitions of today alone."""
    existing = environment.streams(read_by(plan))
    for stage in plan.stages:
        for stream in (one for one in stage.inputs if one in existing and _keeps_keys(plan, stage)):
            if existing[stream].grown:
                raise SamzaError(
                    f"{stream!r} was given more partitions since its start, and {plan.app!r} keeps state by its keys, "
                    f"which lay elsewhere before: {instead}"
                )


def check_set_back(environment: Environment, app: str, moves: Mapping[tuple[str, int], int], plan: Plan | None) -> None:
    """Refuse to read an input from before it was given more partitions, where state lies by its keys.

    What comes again there has keys whose state lies elsewhere now. Without a plan any state by keys may be that.
    """
    existing, checkpoints = environment.streams({stream for stream, _ in moves}), environment.checkpoints(app)
    for (stream, partition), offset in moves.items():
        grown = existing[stream].grown if stream in existing else ()
        reached = next((at[partition] for at in reversed(grown) if partition < len(at)), 0)
        if plan is None:
            by_keys = bool(noted_lies(checkpoints).keys() & {*environment.stores(app)})
        else:
            by_keys = any(stream in stage.inputs and _keeps_keys(plan, stage) for stage in plan.stages)
        if offset < reached and by_keys:
            told = (
                "" if plan is not None else f", or name the file of {app!r}, which tells whether it keeps state by them"
            )
            raise SamzaError(
                f"{stream!r}, partition {partition}, ended at offset {reached:,} when the stream was given more "
                f"partitions, and {app!r} keeps state by keys that lie in these since: what lies before can't be "
                f"read again from {offset:,} on. Say an offset from {reached:,} on{told}; or begin anew, which "
                f"reads all in its order: {typed(environment, f'reset {app}')}"
            )


def check_moves(former: Plan, target: Plan, graph: Graph) -> None:
    """Refuse to move from the partitions of one plan to those of another what can't move; raises PlanError."""
    had, has, sizes = lies(former, graph), lies(target, graph), {stage.id: stage.partitions for stage in former.stages}
    for stage in (one for one in target.stages if sizes.get(one.id, one.partitions) != one.partitions):
        for store in (one for one in target.stores if one.operator in stage.operators and store_kind(one.kind).durable):
            why = why_it_stays(target, graph, store.operator, had.get(store.operator), has.get(store.operator))
            if why is not None:
                wrong = f"its stage has had {sizes[stage.id]} partitions and is to have {stage.partitions}"
                raise refuse(graph.specs[store.operator], f"{wrong}, and it can't be moved: {why.wrong}", why.instead)


def read_by(plan: Plan) -> set[str]:
    """Return the streams that the stages of a plan read, but for tables."""
    return {stream for stage in plan.stages for stream in stage.inputs}


def _keeps_keys(plan: Plan, stage: StagePlan) -> bool:
    return any(store.operator in stage.operators and store_kind(store.kind).durable for store in plan.stores)


def laid_otherwise(environment: Environment, plan: Plan) -> set[str]:
    """Return the streams between stages that do not lie as the state behind them, and are read to the end.

    So is a stream that was left of an operator whose place another one has taken, with the state that `move` gave it,
    and one in front of several operators of which one has taken such a place: the state of each is then laid by itself.
    """
    existing, kept = environment.streams(read_by(plan)), _kept_lies(environment, plan)
    found = set()
    for stage in plan.stages:
        by = {kept[id].partitions for id in stage.operators if id in kept}
        found |= {
            name
            for name in stage.inputs
            if by
            and name in existing
            and existing[name].intermediate
            and by != {existing[name].partitions}
            and plan.stream(name).partitions == stage.partitions  # a copy for each task may be of any size
        }
    return {name for name in found if not unread(environment, plan.app, name)}


def _kept_lies(environment: Environment, plan: Plan) -> dict[str, Lies]:
    """Return the noted partitioning of the state that is there."""
    stores = environment.stores(plan.app)
    return {id: one for id, one in noted_lies(environment.checkpoints(plan.app)).items() if id in stores}


def former_sizes(environment: Environment, plan: Plan, without: Collection[str] = ()) -> dict[str, int]:
    """Return the former partition counts of streams that are read, where a plan has others for them.

    Those `without` which the plan runs are taken as if they were gone.
    """
    checkpoints, existing = environment.checkpoints(plan.app), environment.streams({one.name for one in plan.streams})
    noted = {name: size for reads in reads_of(checkpoints).values() for name, size in reads.items()}
    kept, found = _kept_lies(environment, plan), {}
    for stream in plan.streams:
        had, here = noted.get(stream.name), existing.get(stream.name) if stream.name not in without else None
        if had is None and here is not None and here.grown and stream.role == "input":
            had = len(here.grown[0])  # what is read from its start lies by its first partitions
        if stream.role == "intermediate":
            # Where it is not there, as a crash has cut a move short, the state of those who read it tells.
            lying = {
                kept[id].partitions
                for stage in plan.stages
                if stream.name in stage.inputs
                for id in stage.operators
                if id in kept
            }
            if here is not None and here.intermediate:
                had = here.partitions
            elif lying:
                had = lying.pop() if len(lying) == 1 else None  # what lies in several ways can't move in one
        if had not in (None, stream.partitions) and stream.role in ("input", "table", "intermediate"):
            found[stream.name] = had
    return found


def why_it_stays(plan: Plan, graph: Graph, operator: str, noted: Lies | None, now: Lies | None) -> Unsplit | None:
    """Return why the state of an operator can't move to other partitions, and what to write; None where it can."""
    spec = graph.specs[operator]
    told = next((one.unsplit for one in plan.operators if one.id == operator), None)
    if spec.looked_into:
        wrong = "rows that were written before lie where they lay, and who reads the table anew finds them there"
        return Unsplit(wrong, "the table's rows written to a stream that has as many partitions from its start")
    if told is not None:
        return told
    if layout(plan):
        return Unsplit("each partition of each stream has a task of its own", ANOTHER)
    if noted is None or now is None:
        return Unsplit("nobody knows where its keys are", ANOTHER)
    if now.partitions > 1 and now.writer:
        wrong = f"only who writes {now.writer!r} knows in which partition a key is"
        return Unsplit(wrong, ANOTHER)
    if noted.partitions > 1 and noted.writer and now.read:
        return Unsplit(f"who writes {noted.writer!r} has chosen where its keys lie", ANOTHER)
    origin = graph.keyed_by(graph.streams_into(operator)[0]) or ""
    if origin in graph.inputs and graph.inputs[origin].is_pattern:
        return Unsplit("streams that match a pattern get their partitions one after the other", ANOTHER)
    return None
