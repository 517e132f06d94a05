"""Opens an application on an environment: its streams are made, its state is as planned, and it has one owner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from operators.io import Input, Table
from planner.graph import Graph
from planner.levers import ALL, Levers
from planner.passes import plan as make_plan
from planner.plan import Options, Plan
from runtime.bindings import Bindings
from runtime.checkpoint import Checkpoint
from runtime.commit import SHARED, STATE
from runtime.history import History
from runtime.job import JOB, configuration
from runtime.rewind import check_state, meanings_of, rewind
from runtime.systems.base import Commit, Environment, has_grown, is_gone

Ends = Mapping[tuple[str, int], int]
"""By stream and partition, the offset at which a run stops."""


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """What a container is told of the run that it has a share in; its name is no other one's in that run.

    `counts` has the partitions of each stream as the whole run sees them, `ends` where it stops reading, `placement`
    says how tasks are shared out, and `standby` on how many other hosts there is a copy of each one's state.
    """

    container: str
    generation: int
    counts: dict[str, int] = {}
    ends: tuple[tuple[str, int, int], ...] = ()
    levers: Levers = ALL
    history: History | None = None
    placement: str = "sticky"
    standby: int = 0


class Opened(NamedTuple):
    """An application that is ready to run: its generation, where its streams live, their partitions, and its plan."""

    generation: int
    bindings: Bindings
    counts: dict[str, int]
    plan: Plan


def open_application(
    environment: Environment,
    graph: Graph,
    options: Options,
    bind: Mapping[str, Any],
    *,
    wrapped: bool,
    levers: Levers = ALL,
    from_start: bool = False,
    state: Literal["reset", "keep"] | None = None,
) -> Opened:
    """Own an application, plan it, and make what it writes to; raises `Owned`, PlanError and SamzaError."""
    generation = environment.own(graph.app)
    bindings = Bindings(environment, graph, bind)
    try:
        counts = bindings.partition_counts(graph)
        plan = make_plan(graph, options, counts, wrapped=wrapped, levers=levers)
        if state != "reset":
            check_state(environment, plan, graph, counts)
        bindings.create_streams(plan)
        if from_start:
            generation = rewind(environment, plan, bindings, state)
    except BaseException:
        bindings.close()
        raise
    return Opened(generation, bindings, counts, plan)


def join_application(
    environment: Environment,
    graph: Graph,
    options: Options,
    bind: Mapping[str, Any],
    share: Share,
    *,
    wrapped: bool,
) -> Opened:
    """Return an application as another process has opened it; raises `Grown` where it reads more than that has seen."""
    plan = make_plan(graph, options, share.counts, wrapped=wrapped, levers=share.levers)
    bindings = Bindings(environment, graph, bind)
    try:
        now = bindings.partition_counts(graph)
        for stream in plan.streams:
            if stream.role in ("input", "table") and now.get(stream.name, 0) > share.counts.get(stream.name, 0) > 0:
                raise has_grown(f"The stream {stream.name!r}", now[stream.name], share.counts[stream.name])
    except BaseException:
        bindings.close()
        raise
    return Opened(share.generation, bindings, share.counts, plan)


def recover(environment: Environment, opened: Opened, graph: Graph) -> dict[str, int]:
    """Take bound outputs back to what was committed, note what the application is; return the outputs' positions."""
    generation, bindings, _, plan = opened
    checkpoints = environment.checkpoints(plan.app)
    recorded = checkpoints.get(SHARED, Checkpoint(0)).outputs
    positions = bindings.recover_outputs(recorded)
    meanings = meanings_of(plan, graph)
    begun = {SHARED: Checkpoint(generation, outputs=positions)} if positions != recorded else {}
    if meanings != checkpoints.get(STATE, Checkpoint(0)).meanings:
        begun[STATE] = Checkpoint(generation, meanings=meanings)
    job = configuration(plan, opened.counts)
    if job != checkpoints.get(JOB, Checkpoint(0)).meanings:
        begun[JOB] = Checkpoint(generation, meanings=job)
    if begun:
        environment.commit(Commit(plan.app, generation, [], [], begun))
    return positions


def ends_of(environment: Environment, opened: Opened, graph: Graph) -> dict[tuple[str, int], int]:
    """Return where the inputs end now, but for tables; raises `Damaged` where that is before what was read of one."""
    bindings = opened.bindings
    ranges = {
        (stream, partition): bindings.origin(stream, partition).offsets()
        for spec in graph.specs.values()
        if isinstance(spec, Input) and not isinstance(spec, Table)
        for stream in bindings.streams_of(spec)
        for partition in range(bindings.partitions(stream))
    }
    for checkpoint in environment.checkpoints(opened.plan.app).values():
        for position in checkpoint.positions:
            place = position.stream, position.partition
            if place in ranges and position.offset > ranges[place].end:
                bindings.origin(*place).read(position.offset)  # which may say it in its own words
                raise is_gone(*place, position.offset, ranges[place].start, ranges[place].end)
    return {place: found.end for place, found in ranges.items()}
