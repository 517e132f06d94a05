"""Going back on purpose: what happens to state, and refusing plans that would orphan it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Literal

from msgspec.structs import replace

from operators.base import Spec
from operators.io import Table
from operators.partition_by import hash_
from planner.errors import refuse
from planner.graph import Graph
from planner.grouping import layout
from planner.plan import Plan
from runtime.bindings import Bindings
from runtime.checkpoint import Checkpoint, Position
from runtime.commit import SHARED, STATE
from runtime.errors import SamzaError
from runtime.job import layout_of, reads_of
from runtime.serdes import Tagged
from runtime.systems.base import Commit, Environment

_MODULES = re.compile(r"\b(?:\w+\.)+(?=[A-Za-z_])|(?: object)? at 0x[0-9a-fA-F]+")


UNFINISHED = ""
"""Among what stores mean, the handover that is being taken over: it is no store's name."""


def check_state(
    environment: Environment, plan: Plan, graph: Graph, partitions: Mapping[str, int] = MappingProxyType({})
) -> None:
    """Refuse a plan without the operator that existing state belongs to, or with one that would read it differently.

    So is one on streams of other partitions than those by which state lies. Raises SamzaError for the first, PlanError
    for the others.
    """
    checkpoints = environment.checkpoints(plan.app)
    before = checkpoints.get(STATE, Checkpoint(0)).meanings
    if UNFINISHED in before:
        raise SamzaError(
            f"the app {plan.app!r} has only a part of what {before[UNFINISHED]} hands over: take it over again (samza-"
            f"dsl take-over), or begin anew: samza-dsl reset {plan.app}"
        )
    kept = environment.stores(plan.app)
    known = {store.name for store in plan.stores}
    orphans = [store for store in kept if store not in known]
    if orphans:
        raise SamzaError(
            f"the app {plan.app!r} has state of {', '.join(map(repr, orphans))}, and no operator of that id now: name "
            f"the operator as before (op_id={orphans[0]!r}), or begin anew: samza-dsl reset {plan.app}"
        )
    for store, now in meanings_of(plan, graph).items():
        if store in kept and before.get(store, now) != now:
            raise refuse(
                graph.specs[store],
                f"its state was kept as {before[store]!r}, and would now be read as {now!r}",
                f"it as before, or another op_id=; or begin anew, which drops all state: samza-dsl reset {plan.app}",
            )

    _check_partitions(reads_of(checkpoints), plan, graph, kept, partitions)
    _check_layout(layout_of(checkpoints), plan, any(name.isdecimal() for name in checkpoints))


def _check_layout(before: tuple[str, ...], plan: Plan, has_run: bool) -> None:
    """Refuse tasks of other numbers than those by which positions and state are kept."""
    now = layout(plan)
    if has_run and now != before:
        kinds = [f"a task for each partition of each of {', '.join(one)}" if one else "" for one in (before, now)]
        had, has = (kind or "a task for each partition" for kind in kinds)
        raise SamzaError(
            f"the app {plan.app!r} has run with {had}, and would now have {has}: what it has read and keeps lies by "
            f"its tasks. Leave group_by= and its inputs as they were, or begin anew: samza-dsl reset {plan.app}"
        )


def _check_partitions(
    before: Mapping[str, Mapping[str, int]], plan: Plan, graph: Graph, kept: Collection[str], now: Mapping[str, int]
) -> None:
    """Refuse state in a stage that reads a stream of which keys lie in other partitions than they did."""
    for stage in plan.stages:
        had = before.get(stage.id, {})
        store = next((one.name for one in plan.stores if one.name in kept and one.operator in stage.operators), None)
        for stream in (*stage.inputs, *stage.tables):
            if store is not None and stream in had and now.get(stream, had[stream]) != had[stream]:
                raise refuse(
                    graph.specs[store],
                    f"its state lies where {stream!r} had {had[stream]} partitions, and that has {now[stream]} now, so "
                    "that keys lie in others",
                    "a .partition_by(..., partitions=...) before it in a new application; or begin anew, which drops "
                    f"all state: samza-dsl reset {plan.app}",
                )


def meanings_of(plan: Plan, graph: Graph) -> dict[str, str]:
    """Return what the entries of each durable store mean: the operator's own words, its keys, and their partitions.

    Names of types go without their modules, which depend on how the program is started, and objects without addresses.
    """
    found = {}
    for store in plan.stores:
        if store.kind != "memory":
            spec = graph.specs[store.operator]
            words = [spec.kind, spec.meaning(), *_keys(spec, graph)]
            found[store.name] = _MODULES.sub("", ", ".join(filter(None, words)))
    return found


def _keys(spec: Spec, graph: Graph) -> list[str]:
    if isinstance(spec, Table):
        return [f"keys {spec.key or Tagged()!r}"]
    if not spec.keyed:
        return []
    origin = graph.keyed_by(graph.streams_into(spec.op_id or "")[0]) or ""
    by = getattr(graph.specs[origin], "by", hash_)
    return [f"keys {graph.key_serde(origin) or Tagged()!r}", f"partitioned by {by}"]


def rewind(environment: Environment, plan: Plan, bindings: Bindings, state: Literal["reset", "keep"] | None) -> int:
    """Set an application's inputs back to their start, and return its generation.

    "reset" drops state, timers, watermarks and what lies in intermediate streams. "keep" keeps them, so that replayed
    records are late wherever their windows have fired. Raises SamzaError when the application has state and neither
    was said.
    """
    intermediates = [stream for stream in plan.streams if stream.role == "intermediate"]
    durable = [store for store in plan.stores if store.kind != "memory"]
    if state is None and (intermediates or durable) and environment.checkpoints(plan.app):
        raise SamzaError(
            f"the app {plan.app!r} has state and intermediate streams, and a rewind must say what becomes of them: "
            "--state reset (begin anew) or --state keep (replayed records are late where their windows have fired)"
        )
    if state == "keep":
        return _keep(environment, plan, bindings)
    written = environment.checkpoints(plan.app).get(SHARED)
    bindings.empty_outputs(written.outputs if written is not None else {})
    environment.reset(plan.app)
    for stream in intermediates:
        environment.delete_stream(stream.name)
    bindings.create_streams(plan)
    return environment.own(plan.app)


def intermediate_streams(checkpoints: Mapping[str, Checkpoint]) -> set[str]:
    """Return the streams between the application's own stages: those that it hears producers in."""
    return {one.stream for checkpoint in checkpoints.values() for one in checkpoint.positions if one.producers}


def begin_anew(environment: Environment, app: str, plan: Plan | None = None) -> set[str]:
    """Drop an application's positions, state and intermediate streams, under a new generation; return the streams."""
    between = intermediate_streams(environment.checkpoints(app))
    between |= {stream.name for stream in plan.streams if stream.role == "intermediate"} if plan else set()
    between &= {name for name, config in environment.streams().items() if config.intermediate}
    environment.reset(app)
    for stream in between:
        environment.delete_stream(stream)
    return between


def check_rewind(from_start: bool, state: str | None) -> None:
    """Refuse to guess what becomes of state; raises SamzaError."""
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
                else replace(position, offset=_start(bindings, position), stream_id=0)
                for position in checkpoint.positions
            ),
        )
        for task, checkpoint in environment.checkpoints(plan.app).items()
    }
    environment.commit(Commit(plan.app, generation, [], [], checkpoints))
    return generation


def _start(bindings: Bindings, position: Position) -> int:
    exists = position.stream in bindings.sources or position.stream in bindings.environment.streams()
    return bindings.origin(position.stream, position.partition).offsets().start if exists else 0
