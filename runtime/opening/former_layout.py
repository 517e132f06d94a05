"""The partitions by which an application's state lies, where its streams have others now, and what can't follow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from planner.checks.grouping import layout
from planner.model.graph import Graph
from planner.model.plan import Plan, Unsplit
from runtime.job.job_model import reads_of
from runtime.opening.stored_state import Lies, noted_lies
from runtime.ports.environment import Environment

ANOTHER = "a .partition_by(..., partitions=...) before it in a new application"
OF_BROKERS = Unsplit(
    "writers of a topic learn of its partitions one after the other, and one may go on to write a key where it lay",
    ANOTHER,
)
"""Why state stays that lies by the partitions of a topic: it may be too early to move it, and nobody can tell."""


class Moving(NamedTuple):
    """The move of an application to the partitions of a `plan`; it runs by its former ones until nothing is left there.

    `before` has the former counts of streams that have others now, `drained` the inputs whose keys have state by them:
    what lies there is processed before their state moves.
    """

    plan: Plan
    before: Mapping[str, int]
    drained: frozenset[str]


def moving(environment: Environment, plan: Plan) -> Moving | None:
    """Return how an application comes to the partitions of a plan; None where nothing lies by others."""
    if layout(plan):
        return None
    before = former_sizes(environment, plan)
    kept = {*environment.stores(plan.app)}
    drained = {
        stream
        for stage in plan.stages
        for stream in stage.inputs
        if stream in before and kept & {*stage.operators} and plan.stream(stream).role == "input"
    }
    # Without state and streams between stages nothing remembers how far event time has come: it just reads on.
    has_stages = any(stream.role == "intermediate" for stream in plan.streams)
    return Moving(plan, before, frozenset(drained)) if before and (drained or has_stages) else None


def former_sizes(environment: Environment, plan: Plan) -> dict[str, int]:
    """Return the former partition counts of streams that are read, where a plan has others for them."""
    checkpoints, existing = environment.checkpoints(plan.app), environment.streams()
    noted = {name: size for reads in reads_of(checkpoints).values() for name, size in reads.items()}
    kept = {id: one for id, one in noted_lies(checkpoints).items() if id in environment.stores(plan.app)}
    found = {}
    for stream in plan.streams:
        had = noted.get(stream.name)
        if stream.role == "intermediate":
            here = existing.get(stream.name)
            # Where it is not there, as a crash has cut a move short, the state of those who read it tells.
            lying = (
                kept[id].partitions
                for stage in plan.stages
                if stream.name in stage.inputs
                for id in kept.keys() & {*stage.operators}
            )
            had = here.partitions if here is not None and here.intermediate else next(lying, had)
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
    if noted.partitions > 1 and noted.writer:
        return Unsplit(f"who writes {noted.writer!r} has chosen where its keys lie", ANOTHER)
    origin = graph.keyed_by(graph.streams_into(operator)[0]) or ""
    if origin in graph.inputs and graph.inputs[origin].is_pattern:
        return Unsplit("streams that match a pattern get their partitions one after the other", ANOTHER)
    return None
