"""The part of its inputs that a run recomputes: from where, to where, and what becomes of what is open at its end."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from types import MappingProxyType

import msgspec

from operators.core.base import MAX_TIMESTAMP
from operators.io import Input
from planner.checks.grouping import layout, task_of
from planner.model.graph import Graph
from planner.model.plan import Plan, StreamPlan
from planner.model.virtual_tasks import VirtualTask
from runtime.assembly.bindings import Bindings
from runtime.model.checkpoint import Checkpoint, Position
from runtime.model.errors import SamzaError, command
from runtime.model.history import ALL, HistorySpan, Point
from runtime.ports.commits import Commit
from runtime.ports.environment import Environment
from runtime.reading.origin import Origin
from runtime.reading.watermarks import to_ms

HISTORY = "history"
"""The checkpoint that says where a run over history ends."""


class History(msgspec.Struct, frozen=True, kw_only=True):
    """A span as it was found: the offsets at which partitions of inputs are begun and left.

    Where it `hands_over`, only the partitions that have `ended` end for good.
    """

    starts: tuple[tuple[str, int, int], ...] = ()
    ends: tuple[tuple[str, int, int], ...] = ()
    hands_over: bool = False
    ended: tuple[tuple[str, int], ...] = ()
    per_second: float | None = None


def history_of(span: HistorySpan, bindings: Bindings, graph: Graph) -> History:
    """Find the offsets of a span; raises SamzaError for a point that a stream has not, or that no stream has."""
    starts: list[tuple[str, int, int]] = []
    ends: list[tuple[str, int, int]] = []
    known = {ALL}
    written: dict[str, list[int]] = {}
    for spec, stream, partition in partitions_of(bindings, graph):
        origin = bindings.origin(stream, partition)
        start, end, _ = origin.offsets()
        if stream not in written:
            written[stream] = bindings.written(stream)
        end = max(end, written[stream][partition])  # by transactions that are open as well: these are waited for
        known |= {stream, f"{stream}:{partition}"}
        for said, found in ((span.start, starts), (span.until, ends)):
            point = next((said[place] for place in (f"{stream}:{partition}", stream, ALL) if place in said), None)
            if point is not None:
                found.append((stream, partition, _offset(point, origin, _read_as(spec, bindings), start, end)))
            elif said is span.until and end < MAX_TIMESTAMP:  # else its end is found where it is read
                found.append((stream, partition, end))
    strangers = {*span.start, *span.until} - known
    if strangers:
        raise SamzaError(f"the app reads no {min(strangers)!r}; what it reads: {', '.join(sorted(known - {ALL}))}")
    ended = tuple((stream, partition) for stream, partition, _ in ends if f"{stream}:{partition}" in span.ended)
    return History(
        starts=tuple(starts),
        ends=tuple(ends),
        hands_over=span.hands_over,
        ended=ended,
        per_second=span.per_second,
    )


def partitions_of(bindings: Bindings, graph: Graph) -> Iterator[tuple[Input, str, int]]:
    """Yield the partitions of all inputs but tables."""
    for spec in graph.flowing:
        for stream in bindings.streams_of(spec):
            for partition in range(bindings.partitions(stream)):
                yield spec, stream, partition


def open_history(
    span: HistorySpan, environment: Environment, bindings: Bindings, graph: Graph, plan: Plan, generation: int
) -> History:
    """Find the offsets of a span, and note where an application begins and ends that has read nothing yet.

    One that has goes on to the same ends. Raises SamzaError for a point that there is not, and where an application
    that begins would add to what an output holds.
    """
    history = history_of(span, bindings, graph)
    known = environment.checkpoints(plan.app).get(HISTORY)
    if known is not None:
        ends = (
            (stream, partition, known.outputs.get(f"{stream}:{partition}", end))
            for stream, partition, end in history.ends
        )
        return msgspec.structs.replace(history, ends=tuple(ends))
    for stream in plan.results:
        if stream.name not in bindings.sinks:
            _check_empty(environment, bindings.place_of(stream.name), stream)
    ends_by_place = {f"{stream}:{partition}": end for stream, partition, end in history.ends}
    begun = {HISTORY: Checkpoint(generation, outputs=ends_by_place)}
    systems = {stream: bindings.origin(stream, partition).system for stream, partition, _ in history.starts}
    streams = layout(plan)
    for task in {task_of(streams, stream, partition) for stream, partition, _ in history.starts}:
        begun |= {
            VirtualTask(task, bucket, plan.options.factor).name: checkpoint
            for checkpoint in begun_at(history, task, systems, generation, streams).values()
            for bucket in range(plan.options.factor)
        }
    environment.commit(Commit(plan.app, generation, [], [], begun))
    return history


def shared_among(history: History, number: int) -> History:
    """Return a span as each of several containers reads it, with its share of the rate."""
    share = None if history.per_second is None else history.per_second / number
    return msgspec.structs.replace(history, per_second=share)


def follow(history: History, bindings: Bindings) -> dict[tuple[str, int], int]:
    """Let the inputs end where history does, and return these offsets."""
    bindings.end_at(history.ends, ended=history.ended if history.hands_over else None)
    return {(stream, partition): offset for stream, partition, offset in history.ends}


def _check_empty(environment: Environment, place: str, stream: StreamPlan) -> None:
    config = environment.streams([place])[place]
    if any(environment.offsets(place, partition).end for partition in range(config.partitions)):
        # Dead letters, which are bytes of any kind, are bound to no file.
        or_to_a_file = "" if stream.role == "dead_letter" else " or to a file"
        raise SamzaError(
            f"the stream {place!r} holds records already, and what is recomputed would be added to them: write it to "
            f"another stream ({stream.name}=stream:{place}-recomputed){or_to_a_file}, or remove the stream "
            f"({command(f'streams delete {place}')})"
        )


def begun_at(
    history: History | None,
    task: int,
    systems: Mapping[str, str] = MappingProxyType({}),
    generation: int = 0,
    streams: Sequence[str] = (),
) -> dict[str, Checkpoint]:
    """Return the checkpoint with which a task begins: it reads partitions of its number, or one of one of `streams`."""
    positions = [
        Position(systems.get(stream, "log"), stream, partition, offset)
        for stream, partition, offset in (history.starts if history else ())
        if task_of(streams, stream, partition) == task
    ]
    return {str(task): Checkpoint(generation, tuple(positions))} if positions else {}


def _read_as(spec: Input, bindings: Bindings) -> Input:
    source = bindings.sources.get(spec.stream)
    return spec if source is None else dataclasses.replace(spec, value=source.serde(spec.value))


def _offset(point: Point, origin: Origin, spec: Input, start: int, end: int) -> int:
    if isinstance(point, datetime):
        return _offset_at(to_ms([point])[0], origin, spec, start)
    if not start <= point <= end:
        raise SamzaError(
            f"{point:,} is no offset of {origin.stream!r}, partition {origin.partition}: it has {start:,} to {end:,}; "
            "or say a time"
        )
    return point


def _offset_at(at_ms: int, origin: Origin, spec: Input, offset: int) -> int:
    """Return the offset of the first record whose event time is at least so much, or the partition's end."""
    while (read := origin.read(offset)) is not None:
        batch = read.batch
        for row, value in enumerate(batch.values):
            if event_time_of(spec, value, batch.timestamps[row] if batch.timestamps is not None else None) >= at_ms:
                assert batch.offsets is not None
                return batch.offsets[row]
        offset = read.next_offset
    return offset


def event_time_of(spec: Input, value: bytes | None, timestamp: int | None) -> int:
    """Return the event time of a stored record; of one that can't be read that of the stream, or none."""
    with suppress(Exception):  # what is malformed is for the run to tell
        if spec.timestamp_of is not None and value is not None:
            return to_ms([spec.timestamp_of(spec.value.decode(value))], unit=spec.unit)[0]
        if timestamp is not None:
            return to_ms([timestamp], unit=spec.unit)[0]
    return -1 if timestamp is None else timestamp


def beside(graph: Graph, name: str) -> Graph:
    """Return an application as one of another name, whose state, positions and streams between stages are its own."""
    return dataclasses.replace(graph, app=f"{graph.app}.{name}") if name else graph
