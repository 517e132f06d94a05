"""What a run says of itself: plain numbers, gathered when asked for, from counters that are kept per batch."""

from __future__ import annotations

import msgspec

from operators.base import MIN_TIMESTAMP


class OperatorMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Messages into and out of one operator in one task, and its watermark (ms); `counters` are the user's own."""

    operator: str
    task: int
    received: int = 0
    emitted: int = 0
    skipped: int = 0
    dead_lettered: int = 0
    retried: int = 0
    late: int = 0
    watermark: int = MIN_TIMESTAMP
    counters: dict[str, int] = {}


class TaskMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """One task: what it waits for, and where its time went. Get is reading what no cache held, put is writing back.

    Starved is how long it took no messages in while windows or timers fired, calls below them included.
    """

    task: int
    in_flight: int = 0
    process_ms: float = 0.0
    window_ms: float = 0.0
    starved_ms: float = 0.0
    get_ms: float = 0.0
    put_ms: float = 0.0


class InputMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """One source partition: the next offset to read, the end, how many lie between, and the watermark (ms)."""

    stream: str
    partition: int
    task: int
    offset: int
    end: int
    lag: int
    watermark: int
    ended: bool = False
    idle: bool = False


class StageMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """How many tasks a stage has on Spark, which runs some at a time, how many of them run, and how many are done."""

    stage: str
    tasks: int
    running: int = 0
    done: int = 0


class StoreMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """One operator's committed state in one task."""

    store: str
    task: int
    entries: int
    bytes: int


class RunMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Everything at one moment; `since_commit_ms` is None before the first commit."""

    operators: tuple[OperatorMetrics, ...] = ()
    tasks: tuple[TaskMetrics, ...] = ()
    inputs: tuple[InputMetrics, ...] = ()
    stores: tuple[StoreMetrics, ...] = ()
    stages: tuple[StageMetrics, ...] = ()
    commits: int = 0
    commit_ms: float = 0.0
    since_commit_ms: float | None = None
    elapsed_ms: float = 0.0

    def received(self, operator: str) -> int:
        """Return how many messages `operator` has taken in, over all tasks."""
        return sum(one.received for one in self.operators if one.operator == operator)

    def emitted(self, operator: str) -> int:
        """Return how many messages `operator` has sent on, over all tasks."""
        return sum(one.emitted for one in self.operators if one.operator == operator)

    def total(self, field: str) -> int:
        """Return the sum of a count over all operators and tasks, such as "dead_lettered"."""
        return sum(getattr(one, field) for one in self.operators)
