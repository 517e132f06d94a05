"""Moves an application's place in its inputs: what becomes of its state and of what lies between its stages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from operators.base import MIN_TIMESTAMP
from planner.grouping import task_of
from planner.plan import Plan
from runtime.checkpoint import Checkpoint, Position
from runtime.commit import DELETED
from runtime.job import layout_of
from runtime.rewind import begin_anew, intermediate_streams
from runtime.systems.base import Commit, Environment

Moves = Mapping[tuple[str, int], int]
"""The next offset to read, by stream and partition."""


def has_state(environment: Environment, app: str) -> bool:
    """Whether a rewind must say what becomes of state: stores or intermediate streams have something in them."""
    return bool(environment.stores(app) or intermediate_streams(environment.checkpoints(app)))


def move_keeping(environment: Environment, app: str, moves: Moves) -> None:
    """Set positions and leave state and watermarks as they are; replayed records are late where windows have fired."""
    _commit(environment, app, environment.checkpoints(app), moves)


def move_resetting(environment: Environment, app: str, moves: Moves, plan: Plan) -> None:
    """Set positions, and begin with no state, timers, watermarks nor intermediate streams; tables are read anew."""
    before = environment.checkpoints(app)
    inputs = {stream.name for stream in plan.streams if stream.role == "input"}
    begin_anew(environment, app, plan)
    kept = {
        task: replace(
            checkpoint,
            positions=tuple(
                replace(position, watermark=MIN_TIMESTAMP)
                for position in checkpoint.positions
                if position.stream in inputs
            ),
            watermarks={},
        )
        for task, checkpoint in before.items()
    }
    _commit(environment, app, kept, moves)


def _commit(environment: Environment, app: str, checkpoints: Mapping[str, Checkpoint], moves: Moves) -> None:
    generation = environment.generation(app)
    kept = {task: checkpoint for task, checkpoint in checkpoints.items() if task != DELETED}
    moved = {task: replace(checkpoint, generation=generation) for task, checkpoint in kept.items()}
    for (stream, partition), offset in moves.items():
        task = _task_of(moved, stream, partition)
        checkpoint = moved.get(task, Checkpoint(generation))
        moved[task] = replace(checkpoint, positions=tuple(_with(checkpoint.positions, stream, partition, offset)))
    environment.commit(Commit(app, generation, [], [], moved))


def _task_of(checkpoints: Mapping[str, Checkpoint], stream: str, partition: int) -> str:
    """The task that reads a partition: the one that did, or else the one of its number."""
    for task, checkpoint in checkpoints.items():
        if any((one.stream, one.partition) == (stream, partition) for one in checkpoint.positions):
            return task
    return str(task_of(layout_of(checkpoints), stream, partition))


def _with(positions: Iterable[Position], stream: str, partition: int, offset: int) -> Iterable[Position]:
    found = False
    for position in positions:
        mine = (position.stream, position.partition) == (stream, partition)
        found = found or mine
        yield replace(position, offset=offset, stream_id=0) if mine else position
    if not found:
        yield Position("log", stream, partition, offset)
