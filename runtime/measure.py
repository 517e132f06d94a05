"""Gathers a run's metrics from counters, deriving for fused operators what their neighbours tell."""

from __future__ import annotations

from collections.abc import Mapping

from operators.base import MAX_TIMESTAMP, MIN_TIMESTAMP
from planner.counting import exit_below, exit_of, is_alone, teller
from planner.graph import Graph
from runtime.clock import Clock
from runtime.inputs import Reader
from runtime.lane import Lane
from runtime.loop import Loop
from runtime.metrics import InputMetrics, OperatorMetrics, RunMetrics, StoreMetrics, TaskMetrics
from runtime.task import Task


def measure(
    stats: Mapping[tuple[str, int], tuple[int, int]], graph: Graph, loop: Loop, elapsed_ms: float, clock: Clock
) -> RunMetrics:
    """Return everything that is known of a run at this moment; `stats` has entries and bytes by store and task."""
    since = None if loop.commits.last_at is None else clock.elapsed_ms() - loop.commits.last_at
    return RunMetrics(
        operators=tuple(one for task in loop.tasks for one in passed(graph, task)),
        tasks=tuple(_task(task, loop) for task in loop.tasks),
        inputs=tuple(_input(reader, task) for task in loop.tasks for lane in task.lanes for reader in lane.readers),
        stores=tuple(StoreMetrics(store=s, task=t, entries=n, bytes=size) for (s, t), (n, size) in stats.items()),
        commits=loop.committer.commits,
        commit_ms=loop.commits.spent_ms,
        since_commit_ms=since,
        elapsed_ms=elapsed_ms,
    )


def passed(graph: Graph, task: Task) -> list[OperatorMetrics]:
    """Return what passed through the operators of a task."""
    return [one for lane in task.lanes for one in _operators(graph, task, lane)]


def _operators(graph: Graph, task: Task, lane: Lane) -> list[OperatorMetrics]:
    derive = _Derived(graph, lane)
    contexts, guard = task.functions.contexts, lane.guard
    return [
        OperatorMetrics(
            operator=id,
            task=task.number,
            received=derive.received(id),
            emitted=derive.emitted(id),
            skipped=guard.skipped[id],
            dead_lettered=guard.dead_lettered[id],
            retried=guard.retried[id]
            + (lane.units.pools[id].retried if lane.units is not None and id in lane.units.pools else 0),
            late=lane.chain.counts.late.get(id, 0),
            watermark=lane.time_at(id),
            counters=dict(contexts[id].counters) if id in contexts else {},
        )
        for id in lane.chain.stage.operators
    ]


class _Derived:
    """How many messages passed an operator, from what its chain has counted."""

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
            return self._counts.left.get(exit_of(spec), 0)
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
        """How many messages reached an operator that tells what the one above it emitted."""
        spec = self._graph.specs[id]
        if spec.code is None:
            return self._counts.left.get(exit_of(spec), 0)
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
        get_ms=sum(getattr(store, "get_ms", 0.0) for store in task.stores.values()),
        put_ms=loop.committer.put_ms.get(task.number, 0.0),
    )


def _input(reader: Reader, task: Task) -> InputMetrics:
    end, expected = reader.origin.known().end, reader.origin.expected
    if end == MAX_TIMESTAMP and expected is not None:
        end = max(expected(), reader.next_offset)
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
    )
