"""The former inputs of an application, whose positions are kept: each record of one that comes back counts once."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from operators.io import Input, TableInput
from planner.checks.grouping import layout, task_of
from planner.model.graph import Graph
from planner.model.plan import Plan
from planner.model.virtual_tasks import WHOLE, VirtualTask, is_task, share_of
from runtime.assembly.bindings import Bindings
from runtime.commit.commit import STATE
from runtime.job.job_model import JOB
from runtime.model.checkpoint import Checkpoint, Position
from runtime.ports.environment import Environment

FORMER = "former inputs"
"""The checkpoint with the positions in inputs that the application does not read now."""
TABLES = "tables"
"""The word under which the job notes the streams that were read as tables."""


def tables_noted(graph: Graph, bindings: Bindings) -> str:
    """Return the note of the job on the streams that are read as tables."""
    return msgspec.json.encode(sorted(_streams(graph, bindings, TableInput))).decode()


def followed(
    environment: Environment, plan: Plan, graph: Graph, bindings: Bindings, checkpoints: Mapping[str, Checkpoint]
) -> dict[str, Checkpoint]:
    """Return the checkpoints that change because the application reads other inputs than before, or others as tables.

    The position in an input that was removed is kept, and used where the input is there again, unless its stream was
    made anew meanwhile. A table needs all of its rows: what was read as an input before is read from its start.
    """
    read = _streams(graph, bindings, Input)
    anew = _streams(graph, bindings, TableInput) - _tables_before(checkpoints, graph, bindings)
    # What lies between stages is no input: its positions stay with the tasks that hear producers in it.
    own = {stream.name for stream in plan.streams if stream.role == "intermediate"}
    former = list(checkpoints.get(FORMER, Checkpoint(0)).positions)
    found: dict[str, list[Position]] = {}
    for name, checkpoint in checkpoints.items():
        if is_task(name):
            found[name] = [one for one in checkpoint.positions if one.stream in (read | own) - anew]
            share = VirtualTask.of(name).share
            gone = [one for one in checkpoint.positions if one.stream not in read | own]
            former += [replace(one, bucket=share) if one.bucket == WHOLE else one for one in gone]
    left = []
    for one in former:
        if one.stream not in read:
            left.append(one)
        # A stream that was deleted and made anew has other records under the same offsets.
        elif one.stream not in anew and _is_of(environment, one):
            base = task_of(layout(plan), one.stream, one.partition)
            for bucket in range(plan.options.factor):
                heir = VirtualTask(base, bucket, plan.options.factor)
                if heir.meets(share_of(one.bucket, base)):
                    # Of a share that was another one it is read from the start, past what was read before.
                    is_own = one.bucket in (WHOLE, heir.share)
                    found.setdefault(heir.name, []).append(replace(one, bucket=WHOLE) if is_own else one)
    for task, positions in found.items():
        places = {(one.stream, one.partition, one.bucket) for one in positions}
        assert len(places) == len(positions), f"task {task} has one position in each partition"
    now = {name: tuple(positions) for name, positions in found.items()} | {FORMER: tuple(left)}
    before = {name: checkpoints.get(name, Checkpoint(0)) for name in now}
    return {
        name: replace(before[name], positions=positions)
        for name, positions in now.items()
        if positions != before[name].positions
    }


def _streams(graph: Graph, bindings: Bindings, kind: type[Input]) -> set[str]:
    return {stream for spec in graph.of(kind).values() for stream in bindings.streams_of(spec)}


def _tables_before(checkpoints: Mapping[str, Checkpoint], graph: Graph, bindings: Bindings) -> set[str]:
    """Return the streams that were read as tables; where that was not noted, all that may have been."""
    noted = checkpoints.get(JOB, Checkpoint(0)).meanings
    if TABLES in noted:
        return msgspec.json.decode(noted[TABLES], type=set[str])
    kept = checkpoints.get(STATE, Checkpoint(0)).meanings
    unknown = [spec for id, spec in graph.tables.items() if spec.broadcast or not noted or id in kept]
    return {stream for spec in unknown for stream in bindings.streams_of(spec)}


def _is_of(environment: Environment, position: Position) -> bool:
    """Whether a position is in the stream that has its name now."""
    stream = position.stream
    if position.system != "log" or not position.stream_id or stream not in environment.streams([stream]):
        return True
    return environment.stream_id(stream) == position.stream_id
