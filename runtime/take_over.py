"""Has an application go on from a handover: the state and positions of a run over history become its own."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from msgspec.structs import replace

from planner.errors import refuse
from planner.graph import Graph
from planner.passes import plan as make_plan
from planner.plan import Options, Plan
from runtime.bindings import Bindings
from runtime.checkpoint import Checkpoint, Position
from runtime.commit import SHARED, STATE
from runtime.errors import SamzaError
from runtime.handover import Handover, read_handover, read_state
from runtime.rewind import UNFINISHED, begin_anew, meanings_of
from runtime.systems.base import Commit, Environment, StateWrites

KEEP_OFFSETS = ("log", "archive", "kafka")
"""The systems whose records have the offsets of the stream."""

Place = int | Literal["earliest", "latest"]


def take_over(
    environment: Environment,
    graph: Graph,
    options: Options,
    directory: Path,
    *,
    wrapped: bool,
    at: Mapping[str, Place],
    bind: Mapping[str, Any] = MappingProxyType({}),
) -> Handover:
    """Put a handover in the place of what the application has come to so far; it must not be running.

    `bind` has what the live run binds, and `at` says where streams go on whose history was read from files that know no
    offsets. Raises SamzaError and PlanError, before anything is changed, where the handover is not of such an
    application, or where records between history and the stream are missing.
    """
    handover = read_handover(directory)
    if handover.app != graph.app:
        raise SamzaError(f"{directory} is of the application {handover.app!r}, and this is {graph.app!r}")
    environment.own(graph.app)
    with closing(Bindings(environment, graph, bind)) as bindings:
        plan = make_plan(graph, options, bindings.partition_counts(graph), wrapped=wrapped)
        _check_alike(handover, graph, plan, directory)
        checkpoints = _going_on(handover, plan, bindings, at)
    _write(environment, graph, plan, handover, checkpoints, directory)
    return handover


def _going_on(handover: Handover, plan: Plan, bindings: Bindings, at: Mapping[str, Place]) -> dict[str, Checkpoint]:
    """Return the checkpoints from which live tasks go on."""
    between = {stream.name for stream in plan.streams if stream.role == "intermediate"}
    return {
        task: replace(
            checkpoint,
            positions=tuple(
                one if one.stream in between else _go_on(bindings, one, at.get(one.stream))
                for one in checkpoint.positions
            ),
        )
        for task, checkpoint in handover.checkpoints.items()
    }


def _write(
    environment: Environment,
    graph: Graph,
    plan: Plan,
    handover: Handover,
    checkpoints: Mapping[str, Checkpoint],
    directory: Path,
) -> None:
    """Drop what the application remembers, and write what is handed over: the last commit says that all is there."""
    begin_anew(environment, graph.app, plan)
    generation = environment.own(graph.app)

    def commit(state: list[StateWrites], checkpoints: dict[str, Checkpoint]) -> None:
        environment.commit(Commit(graph.app, generation, [], state, checkpoints))

    commit([], {STATE: Checkpoint(generation, meanings={UNFINISHED: str(directory)})})
    for one in handover.state:
        for block in read_state(directory, one):
            commit([StateWrites(one.store, one.task, [*block])], {})
    found = {task: replace(checkpoint, generation=generation) for task, checkpoint in checkpoints.items()}
    found[SHARED] = Checkpoint(generation, outputs=handover.outputs)
    found[STATE] = Checkpoint(generation, meanings=meanings_of(plan, graph))
    commit([], found)


def _check_alike(handover: Handover, graph: Graph, plan: Plan, directory: Path) -> None:
    """Raise where state would be orphaned, or read as something else, or by other tasks."""
    now, tasks = meanings_of(plan, graph), {stage.id: len(stage.tasks) for stage in plan.stages}
    orphans = [store for store in handover.meanings if store not in now]
    if orphans:
        raise SamzaError(
            f"{directory} has state of {', '.join(map(repr, orphans))}, and the application has no operator of that id "
            "that keeps any: take it over with the application that has reprocessed, or reprocess again"
        )
    for store, meaning in now.items():
        if handover.meanings.get(store, meaning) != meaning or store not in handover.meanings:
            before = handover.meanings.get(store, "nothing")
            wrong = f"its state was reprocessed as {before!r}, and would now be read as {meaning!r}"
            raise refuse(graph.specs[store], wrong, "it as it was reprocessed; or reprocess again")
    if handover.tasks != tasks:
        raise SamzaError(
            f"history was reprocessed in other tasks than the application has on this data, {handover.tasks} and "
            f"{tasks}: let the inputs of both have as many partitions, or say partitions= of the inputs"
        )


def _go_on(bindings: Bindings, position: Position, at: Place | None) -> Position:
    """Return where a live stream goes on, after a partition of its history; event time goes on as it was."""
    stream, partition = position.stream, position.partition
    exists = stream in bindings.sources or stream in bindings.environment.streams()
    system, start, end = "log", 0, 0
    if exists:
        origin = bindings.origin(stream, partition)
        system, (start, end, _) = origin.system, origin.offsets()
    if at is None and position.system not in (system, *KEEP_OFFSETS):
        raise SamzaError(
            f"the history of {stream!r} was read from {position.system}, whose records have no offsets of the stream: "
            f"say where it goes on, --at {stream}=earliest, latest or an offset"
        )
    offset = position.offset if at is None else {"earliest": start, "latest": end}.get(str(at), at)
    assert isinstance(offset, int)
    if exists and not start <= offset <= end:
        raise SamzaError(
            f"history ends at offset {offset:,} of {stream!r}, partition {partition}, and the stream has {start:,} to "
            f"{end:,}: records between would be missing; reprocess more of it, or say --at {stream}=earliest"
        )
    same = position.system == system and at is None
    return replace(position, system=system, offset=offset, stream_id=position.stream_id if same else 0)
