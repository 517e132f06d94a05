"""How a run goes, in few numbers: what its metrics say of each operator and input over all tasks, and rates."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from typing import NamedTuple

from operators.base import MIN_TIMESTAMP
from planner.flow import counted
from planner.plan import Plan, StagePlan
from runtime.metrics import InputMetrics, RunMetrics

RATE_OVER_MS = 2_000.0
TROUBLES = {"skipped": "skipped", "dead_lettered": "to dead letters", "retried": "retried", "late": "late"}
"""The counts that are worth a word, where they are not 0."""


class Passed(NamedTuple):
    """What an operator took in and sent on over all tasks, how many a second, and what else it counted."""

    received: int
    emitted: int
    per_second: float
    counted: dict[str, int]


class Read(NamedTuple):
    """How far a stream is read over all partitions: of `end` offsets `offset` are; the watermark is the lowest."""

    stream: str
    offset: int
    end: int
    lag: int
    watermark: int
    ended: bool
    idle: bool


class Progress:
    """The newest metrics of one run, and enough older ones to tell rates."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.metrics = RunMetrics()
        self._older: deque[tuple[float, dict[str, int]]] = deque([(0.0, {})])
        self._ended = False

    def take(self, metrics: RunMetrics, *, ended: bool = False) -> None:
        """Take in newer metrics; rates are of the last seconds, and once the run has ended of all of it."""
        self.metrics = metrics
        self._ended = ended
        self._older.append((metrics.elapsed_ms, self._all_read()))
        while len(self._older) > 2 and self._older[1][0] <= metrics.elapsed_ms - RATE_OVER_MS:
            self._older.popleft()

    def passed(self, operator: str) -> Passed:
        """Return what an operator did."""
        mine = [one for one in self.metrics.operators if one.operator == operator]
        counted: Counter[str] = Counter()
        for one in mine:
            counted.update({words: getattr(one, field) for field, words in TROUBLES.items()})
            counted.update(one.counters)
        received = self._read(operator)
        emitted = sum(one.emitted for one in mine)
        kept = {words: number for words, number in counted.items() if number}
        return Passed(received, emitted, self._rate(operator, received), kept)

    def inputs(self) -> Iterator[Read]:
        """Yield how far each stream is read, in the plan's order."""
        for name in dict.fromkeys(one.stream for one in self.metrics.inputs):
            parts = [one for one in self.metrics.inputs if one.stream == name]
            yield _all_of(name, parts)

    def tasks_of(self, stage: StagePlan) -> str:
        """Return how many tasks a stage has, and how many of them are done where some run after others."""
        known = {one.stage: one for one in self.metrics.stages}.get(stage.id)
        if known is None:
            return counted(stage.partitions, "partition")
        running = f", {known.running} running" if known.running else ""
        return f"{known.done} of {counted(known.tasks, 'task')} done{running}"

    @property
    def watermark(self) -> int:
        """The event time that all of the application's own inputs have come to."""
        return min((one.watermark for one in self._own_inputs()), default=MIN_TIMESTAMP)

    @property
    def lag(self) -> int:
        """How many records of the application's own inputs lie ahead."""
        return sum(one.lag for one in self._own_inputs())

    @property
    def in_flight(self) -> int:
        """How many messages are not complete."""
        return sum(one.in_flight for one in self.metrics.tasks)

    @property
    def read(self) -> int:
        """How many records were taken in from outside."""
        return sum(map(self._read, self._sources()))

    @property
    def read_per_second(self) -> float:
        """How many records a second are taken in from outside."""
        return sum(self._rate(id, self._read(id)) for id in self._sources())

    @property
    def written(self) -> int:
        """How many records left: to outputs and sinks."""
        last = [one.id for one in self.plan.operators if one.kind in ("send_to", "sink")]
        return sum(map(self.metrics.received, last))

    def _own_inputs(self) -> list[InputMetrics]:
        between = {stream.name for stream in self.plan.streams if stream.role == "intermediate"}
        return [one for one in self.metrics.inputs if one.stream not in between]

    def _sources(self) -> list[str]:
        return [one.id for one in self.plan.operators if one.kind == "input"]

    def _all_read(self) -> dict[str, int]:
        return {one.id: self._read(one.id) for one in self.plan.operators}

    def _read(self, operator: str) -> int:
        """Records that can't be decoded are read too, and go no further than the input."""
        mine = [one for one in self.metrics.operators if one.operator == operator]
        malformed = sum(one.skipped + one.dead_lettered for one in mine) if operator in self._sources() else 0
        return sum(one.received for one in mine) + malformed

    def _rate(self, operator: str, received: int) -> float:
        then, before = (0.0, {}) if self._ended else self._older[0]
        passed_ms = self.metrics.elapsed_ms - then
        return (received - before.get(operator, 0)) * 1_000 / passed_ms if passed_ms > 0 else 0.0


def _all_of(stream: str, parts: list[InputMetrics]) -> Read:
    return Read(
        stream,
        sum(one.offset for one in parts),
        sum(one.end for one in parts),
        sum(one.lag for one in parts),
        min(one.watermark for one in parts),
        all(one.ended for one in parts),
        not all(one.ended for one in parts) and all(one.ended or one.idle for one in parts),
    )
