"""Takes a handover over: the state and positions of a run over history become those of the live application."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from msgspec.structs import replace

from planner.model.errors import refuse
from planner.model.graph import Graph
from planner.model.plan import Options, Plan
from planner.passes import plan as make_plan
from runtime.assembly.bindings import Bindings
from runtime.commit.commit import STATE
from runtime.model.checkpoint import SHARED, Checkpoint, Position
from runtime.model.errors import SamzaError
from runtime.opening.rewind import UNFINISHED, begin_anew, meanings_of
from runtime.ports.commits import Commit
from runtime.ports.environment import Environment
from runtime.ports.state import StateWrites
from runtime.reprocessing.handover import Handover, read_handover, read_state

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
    bind: Mapping[str, object] = MappingProxyType({}),
) -> Handover:
    """Put a handover in the place of all positions and state of an application, which must not be running.

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
    anew = [one for found in handover.checkpoints.values() for one in found.positions if one.stream in between]
    assert all((one.offset, one.stream_id) == (0, 0) for one in anew), "streams between stages begin anew"
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
    """Drop the positions and state of the application, and write those of the handover in several commits."""
    # All checks are done: only from here on is anything changed.
    begin_anew(environment, graph.app, plan)
    generation = environment.own(graph.app)

    def commit(state: list[StateWrites], checkpoints: dict[str, Checkpoint]) -> None:
        environment.commit(Commit(graph.app, generation, [], state, checkpoints))

    # The first commit says that this is going on, and the last one that all is there: a run refuses what lies between.
    commit([], {STATE: Checkpoint(generation, meanings={UNFINISHED: str(directory)})})
    for one in handover.state:
        for block in read_state(directory, one):
            commit([StateWrites(one.store, one.task, [*block])], {})
    found = {task: replace(checkpoint, generation=generation) for task, checkpoint in checkpoints.items()}
    found[SHARED] = Checkpoint(generation, outputs=handover.outputs)
    found[STATE] = Checkpoint(generation, meanings=meanings_of(plan, graph))
    assert UNFINISHED not in found[STATE].meanings, "the last commit says that all is there"
    commit([], found)


def _check_alike(handover: Handover, graph: Graph, plan: Plan, directory: Path) -> None:
    """Raise SamzaError or PlanError where state would be orphaned, or read as something else, or by other tasks."""
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
    """Return the position in a live stream behind a partition of its history, with the same watermark.

    Raises SamzaError where records between the two would be missing, or where nobody can tell.
    """
    stream, partition = position.stream, position.partition
    exists = stream in bindings.sources or stream in bindings.environment.streams([stream])
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
    # The number tells one stream of a name from another; where the stream is another system's, or was chosen, it says
    # nothing.
    same = position.system == system and at is None
    return replace(position, system=system, offset=offset, stream_id=position.stream_id if same else 0)
