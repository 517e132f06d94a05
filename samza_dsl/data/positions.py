"""Moves an application's positions and event time, with or without its state and what lies between its stages."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from msgspec.structs import replace

from operators.core.base import MIN_TIMESTAMP
from planner.checks.grouping import task_of
from planner.model.plan import Plan
from runtime.commit.commit import DELETED
from runtime.job.job_model import layout_of
from runtime.model.checkpoint import Checkpoint, Position
from runtime.model.errors import SamzaError, command
from runtime.opening.rewind import begin_anew, intermediate_streams
from runtime.ports.commits import Commit
from runtime.ports.environment import Environment

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


def set_back(
    environment: Environment, app: str, places: Collection[tuple[str, int]], watermark: int
) -> dict[tuple[str, int], int]:
    """Set event time back to `watermark` (ms) in partitions of inputs where it is beyond; return the former ones.

    What stages have told each other is set back alike, and what they have told and nobody has heard is passed over.
    State stays as it is: what has fired has fired. Raises SamzaError where stages have records to read of others, which
    tell event time as well.
    """
    checkpoints = environment.checkpoints(app)
    between, before = intermediate_streams(checkpoints), {}
    for checkpoint in checkpoints.values():
        for one in checkpoint.positions:
            if (one.stream, one.partition) in places and one.watermark > watermark:
                before[one.stream, one.partition] = one.watermark

    def moved(one: Position) -> Position:
        if one.stream in between:
            producers = {producer: min(at, watermark) for producer, at in one.producers.items()}
            # What stages have told each other and not read would tell the old time again: it is passed over.
            offset = _behind_controls(environment, app, one)
            return replace(one, offset=offset, producers=producers, watermark=min(one.watermark, watermark))
        return replace(one, watermark=watermark) if (one.stream, one.partition) in before else one

    if before:
        changed = {
            task: replace(checkpoint, positions=tuple(map(moved, checkpoint.positions)))
            for task, checkpoint in checkpoints.items()
        }
        left = {(one.stream, one.partition): one for found in changed.values() for one in found.positions}
        assert all(left[place].watermark <= watermark for place in before), "event time is set back, never forward"
        _commit(environment, app, changed, {})
    return before


def _behind_controls(environment: Environment, app: str, position: Position) -> int:
    """Return the offset behind control messages, which only tell event time; raises SamzaError where records follow."""
    offset = position.offset
    while (read := environment.read(position.stream, position.partition, offset)) is not None:
        if read.batch.values:
            raise SamzaError(
                f"{app!r} has records in {position.stream!r} that its next stage has not read, and they carry event "
                f"time: let it read them first, with {command('run APP --until-now')}, and set event time back then"
            )
        assert read.next_offset > offset, "a read leads on"
        offset = read.next_offset
    return offset


def _commit(environment: Environment, app: str, checkpoints: Mapping[str, Checkpoint], moves: Moves) -> None:
    generation = environment.generation(app)
    # The mark of a deletion would hold again if it were written under this generation.
    kept = {task: checkpoint for task, checkpoint in checkpoints.items() if task != DELETED}
    moved = {task: replace(checkpoint, generation=generation) for task, checkpoint in kept.items()}
    for (stream, partition), offset in moves.items():
        task = _task_of(moved, stream, partition)
        checkpoint = moved.get(task, Checkpoint(generation))
        moved[task] = replace(checkpoint, positions=tuple(_with(checkpoint.positions, stream, partition, offset)))
    environment.commit(Commit(app, generation, [], [], moved))


def _task_of(checkpoints: Mapping[str, Checkpoint], stream: str, partition: int) -> str:
    """Return the task that reads a partition: the one that did, or else the one of its number."""
    for task, checkpoint in checkpoints.items():
        if any((one.stream, one.partition) == (stream, partition) for one in checkpoint.positions):
            return task
    return str(task_of(layout_of(checkpoints), stream, partition))


def _with(positions: Iterable[Position], stream: str, partition: int, offset: int) -> Iterable[Position]:
    found = False
    for position in positions:
        mine = (position.stream, position.partition) == (stream, partition)
        found = found or mine
        # The offset is meant for the stream that is there now, whichever was read before.
        yield replace(position, offset=offset, stream_id=0) if mine else position
    if not found:
        yield Position("log", stream, partition, offset)
