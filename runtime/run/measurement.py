"""Gathers a run's metrics from counters; the numbers of fused operators follow from those of their neighbours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from operators.core.base import MAX_TIMESTAMP, MIN_TIMESTAMP, Batch
from operators.core.wording import encodable_all
from planner.checks.grouping import layout, task_of
from planner.codegen.counters import exit_below, is_alone, teller
from planner.model.graph import Graph
from planner.model.plan import Plan
from runtime.assembly.bindings import Bindings
from runtime.assembly.history import partitions_of
from runtime.encoding.json_text import to_json
from runtime.loop.loop import Loop
from runtime.model.clock import Clock
from runtime.model.metrics import (
    ContainerMetrics,
    HistogramMetrics,
    InputMetrics,
    OperatorMetrics,
    RunMetrics,
    StoreMetrics,
    TaskMetrics,
    added,
)
from runtime.reading.reader import Reader
from runtime.task.lane import Lane
from runtime.task.task import Task


def measure(
    stats: Mapping[tuple[str, int], tuple[int, int]], graph: Graph, loop: Loop, elapsed_ms: float, clock: Clock
) -> RunMetrics:
    """Return the metrics of a run at this moment; `stats` has entries and bytes by store and task.

    In the thread of the event loop, and without a question to brokers.
    """
    return RunMetrics(
        operators=tuple(one for task in loop.tasks for one in passed(graph, task)),
        tasks=tuple(_task(task, loop) for task in loop.tasks),
        inputs=tuple(_input(reader, task) for task in loop.tasks for lane in task.lanes for reader in lane.readers),
        stores=tuple(StoreMetrics(store=s, task=t, entries=n, bytes=size) for (s, t), (n, size) in stats.items()),
        commits=loop.committer.commits,
        commit_ms=loop.commits.spent_ms,
        since_commit_ms=_since_commit(loop, clock),
        elapsed_ms=elapsed_ms,
        warnings=tuple(one.warning for task in loop.tasks for one in task.kinds.values() if one.warning),
    )


def container_of(loop: Loop, clock: Clock, name: str, former: Sequence[HistogramMetrics]) -> ContainerMetrics:
    """Return the numbers of this container as one of those of a run; `former` are durations of tasks that have left."""
    return ContainerMetrics(
        container=name,
        tasks=tuple(sorted(task.number for task in loop.tasks)),
        commits=loop.committer.commits,
        commit_ms=loop.commits.spent_ms,
        since_commit_ms=_since_commit(loop, clock),
        histograms=added([*former, *_commit_durations(loop), *(one for task in loop.tasks for one in timed(task))]),
    )


def _since_commit(loop: Loop, clock: Clock) -> float | None:
    return None if loop.commits.last_at is None else clock.elapsed_ms() - loop.commits.last_at


def _commit_durations(loop: Loop) -> Iterator[HistogramMetrics]:
    committer = loop.committer
    by_stream = (*committer.event_to_output.values(), *committer.append_to_commit.values())
    for durations in (loop.commits.durations, loop.commits.drains, *by_stream):
        yield durations.metrics()


def timed(task: Task) -> Iterator[HistogramMetrics]:
    """Yield the durations of a task."""
    yield task.steps.metrics()
    yield task.firings.metrics()
    for lane in task.lanes:
        for pool in lane.units.pools.values() if lane.units is not None else ():
            yield pool.durations.metrics()


def passed(graph: Graph, task: Task) -> list[OperatorMetrics]:
    """Return the metrics of the operators of a task."""
    return [one for lane in task.lanes for one in _operators(graph, task, lane)]


def _operators(graph: Graph, task: Task, lane: Lane) -> list[OperatorMetrics]:
    derive = _Derived(graph, lane)
    received, emitted = _taken_back(graph, lane)
    contexts, guard = task.functions.contexts, lane.guard
    return [
        OperatorMetrics(
            operator=id,
            task=task.number,
            received=derive.received(id) + received[id],
            emitted=derive.emitted(id) + emitted[id],
            skipped=guard.skipped[id],
            dead_lettered=guard.dead_lettered[id],
            retried=guard.retried[id]
            + (lane.units.pools[id].retried if lane.units is not None and id in lane.units.pools else 0),
            late=lane.chain.counts.late.get(id, 0),
            cache_misses=sum(store.misses for store in (*task.stores.values(), *task.beside) if store.name == id),
            watermark=lane.time_at(id),
            counters={
                **_met(task, id, derive.received(id)),
                **(task.outputs.first[id].counters() if id in task.outputs.first else {}),
                **(contexts[id].counters if id in contexts else {}),
            },
            keys=task.meetings[id].kinds(_sides(graph, id)) if id in task.meetings else {},
        )
        for id in lane.chain.stage.operators
    ]


REMOTE = "the remote table"
"""The name of the side whose rows a service has."""


def _sides(graph: Graph, id: str) -> list[str]:
    """Return the names of the sides of a join: its parents as the user wrote them, without what was put between."""
    parents = graph.parents(id)
    above = [
        graph.parents(one)[0] if graph.specs[one].repartitions and not graph.specs[one].rekeys else one
        for one in parents
    ]
    sides = above if len(set(above)) == len(parents) else parents
    return sides if len(sides) > 1 else [*sides, REMOTE]


def _met(task: Task, id: str, received: int) -> dict[str, int]:
    return task.meetings[id].counters(received) if id in task.meetings else {}


def _taken_back(graph: Graph, lane: Lane) -> tuple[Counter[str], Counter[str]]:
    """Return what operators have received and emitted of records that failed, of which the counts were taken back.

    What is above a call that was awaited had been counted before.
    """
    received: Counter[str] = Counter()
    emitted: Counter[str] = Counter()
    inside = set(lane.chain.stage.operators)
    for (failed, stream), number in lane.guard.taken_back.items():
        left, met = [failed], {failed}
        while left:
            id = left.pop()
            if id != failed:
                emitted[id] += number
                if graph.specs[id].asynchronous:
                    continue
            received[id] += number
            parents = [one for one in graph.streams_into(id) if one in inside]
            # A record came by one of several ways.
            above = [one for one in parents if len(parents) == 1 or _leads_from(graph, one, stream)]
            left += {*above} - met
            met |= {*above}
    return received, emitted


def _leads_from(graph: Graph, id: str, stream: str) -> bool:
    if (source := graph.inputs.get(id)) is not None:
        return source.matches(stream)
    return graph.specs[id].repartitions or any(_leads_from(graph, one, stream) for one in graph.streams_into(id))


class _Derived:
    """Derives the numbers of messages into and out of each operator from what its chain has counted."""

    def __init__(self, graph: Graph, lane: Lane) -> None:
        self._graph = graph
        self._counts = lane.chain.counts
        self._inside = set(lane.chain.stage.operators)
        self._entries = set(lane.chain.segments)
        self._keyed = {one.id for segment in lane.chain.stage.segments for one in segment.keyed}
        self._known: dict[str, int] = {}

    def received(self, id: str) -> int:
        spec = self._graph.specs[id]
        if spec.source:
            return self._counts.entered.get(id, 0)
        if spec.code is None and is_alone(self._graph, spec):
            return self._counts.left.get(spec.exit, 0)
        return sum(self.emitted(parent) for parent in self._graph.streams_into(id))

    def emitted(self, id: str) -> int:
        if id not in self._known:
            self._known[id] = self._emitted(id)
        return self._known[id]

    def _emitted(self, id: str) -> int:
        spec = self._graph.specs[id]
        if id in self._keyed and spec.one_to_one:
            return self.received(id)
        if id in self._keyed and (exit := exit_below(self._graph, id)) is not None:
            return self._told(exit)
        if id in self._entries:
            return self._counts.entered.get(id, 0) + self._counts.counted.get(id, 0)
        if spec.code is None:
            return self.received(id) if spec.repartitions and id in self._inside else 0
        if spec.one_to_one:
            return self.received(id)
        below = teller(self._graph, id)
        return self._counts.counted.get(id, 0) if below is None else self._told(below)

    def _told(self, id: str) -> int:
        """Return the number of messages that reached an operator, and so left the one above it."""
        spec = self._graph.specs[id]
        if spec.code is None:
            return self._counts.left.get(spec.exit, 0)
        below = teller(self._graph, id)
        assert below is not None
        return self._told(below) + self._counts.counted.get(id, 0)


def _task(task: Task, loop: Loop) -> TaskMetrics:
    return TaskMetrics(
        task=task.number,
        in_flight=task.in_flight,
        process_ms=task.process_ms,
        window_ms=task.window_ms,
        starved_ms=task.starved.ms,
        get_ms=sum(store.get_ms for store in task.stores.values()),
        put_ms=loop.committer.put_ms.get(task.number, 0.0),
        read_ms=sum(reader.read_ms for lane in task.lanes for reader in lane.readers if not reader.later),
        hash_ms=sum(one.sieve.hash_ms for lane in task.lanes for one in lane.readers if one.sieve is not None),
        own_ms=task.own_ms,
    )


def _input(reader: Reader, task: Task) -> InputMetrics:
    end, expected = reader.origin.known().end, reader.origin.expected
    if end == MAX_TIMESTAMP and expected is not None:
        # A bound file is open until it was read to its end: the lag is what its records so far let expect.
        end = max(expected(), reader.next_offset)
    held = reader.origin.held()
    if held is not None:
        # What an open transaction holds back is there, and will have to be read: it counts as lag.
        end = max(end, held.end)
    return InputMetrics(
        stream=reader.origin.stream,
        partition=reader.origin.partition,
        task=task.number,
        offset=reader.next_offset,
        end=end,
        lag=max(end - reader.next_offset, 0),
        watermark=reader.watermark if reader.watermark > MIN_TIMESTAMP else MIN_TIMESTAMP,
        ended=reader.ended,
        idle=reader.idle,
        jumps=reader.times.jumps if reader.times is not None else 0,
        warning=reader.times.warning if reader.times is not None else "",
        held=held.end - max(held.first, reader.next_offset)
        if held is not None and held.end > reader.next_offset
        else 0,
        held_ms=held.for_ms if held is not None else 0.0,
    )


def snapshot_of(app: str, metrics: RunMetrics, now_ms: int) -> Batch:
    """Return the numbers of a container as the row of a stream: JSON, with the container's name as its key."""
    (container,) = metrics.containers
    told = {"app": app, "container": container.container, "at_ms": now_ms, "metrics": msgspec.to_builtins(metrics)}
    key = container.container.encode("utf-8", "backslashreplace")
    return Batch([to_json(encodable_all(told))], [key], [now_ms])


def left_alone(bindings: Bindings, graph: Graph, plan: Plan, tasks: Collection[int]) -> tuple[InputMetrics, ...]:
    """Return the inputs of tasks that no container here runs, as of their last commits; it may wait for brokers."""
    checkpoints = bindings.environment.checkpoints(plan.app)
    known = {(at.stream, at.partition): at for found in checkpoints.values() for at in found.positions}
    streams, written, found = layout(plan), dict[str, list[int]](), []
    for _, stream, partition in partitions_of(bindings, graph):
        task = task_of(streams, stream, partition)
        if task not in tasks:
            continue
        origin, at = bindings.origin(stream, partition), known.get((stream, partition))
        end = origin.known().end
        # The end of a file is not known before it was read to there.
        if end == MAX_TIMESTAMP:
            end = origin.expected() if origin.expected is not None else 0
        elif bindings.have_transactions:
            written[stream] = written.get(stream) or bindings.written(stream)
            end = max(end, written[stream][partition])
        offset = at.offset if at is not None else origin.known().start
        found.append(
            InputMetrics(
                stream=stream,
                partition=partition,
                task=task,
                offset=offset,
                end=max(end, offset),
                lag=max(end - offset, 0),
                watermark=at.watermark if at is not None else MIN_TIMESTAMP,
                owned=False,
            )
        )
    return tuple(found)
