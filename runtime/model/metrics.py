"""The metrics of a run: plain numbers, gathered when asked for, from counters that are kept per batch."""

from __future__ import annotations

import msgspec

from operators.core.base import MIN_TIMESTAMP


class OperatorMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Messages into and out of one operator in one task, and its watermark (ms); `counters` are the user's own.

    `late` counts what came too late for windows and joins, for a duplicate to be known, for state in time to last, or
    for a timer that it has set.
    """

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
    keys: dict[str, str] = {}
    """The types of keys on each side of a join, as far as anything came of it."""


class TaskMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """One task: the messages that it waits for, and its time in ms, by what it was spent on.

    `get_ms` is reading what no cache held, `put_ms` writing back, and `starved_ms` the time in which it took no
    messages in, as windows or timers fired, calls below them included.
    """

    task: int
    in_flight: int = 0
    process_ms: float = 0.0
    window_ms: float = 0.0
    starved_ms: float = 0.0
    get_ms: float = 0.0
    put_ms: float = 0.0


class InputMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """One source partition: the next offset to read, the end, the offsets between, and the watermark (ms).

    `jumps` counts the records of which each alone moved event time by more than a day; `warning` tells of one.
    Of what lies between, an open transaction has kept the last `held` from being read, for `held_ms` by now. Where
    no container has the task now, it is not `owned`, and `offset` is that of its last commit.
    """

    stream: str
    partition: int
    task: int
    offset: int
    end: int
    lag: int
    watermark: int
    ended: bool = False
    idle: bool = False
    jumps: int = 0
    warning: str = ""
    held: int = 0
    held_ms: float = 0.0
    owned: bool = True


class StageMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks of a stage on Spark, which runs some at a time: all, those that run, and those that are done."""

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


class ChangeMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of an operator since records were read last: a sentence for each parameter.

    One that `is_new` was not there then.
    """

    operator: str
    what: tuple[str, ...] = ()
    is_new: bool = False


class RunMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """All numbers of a run at one moment; `since_commit_ms` is None before the first commit.

    Of containers `deaths` counts those that ended before their time, `restarts` those that were started in their place,
    and `take_overs` the tasks that were taken from containers that were gone. `changes` has what was changed when the
    run began, since records were read last, `warnings` what else was told, and `where` the options by which a command
    is about the same environment.
    """

    operators: tuple[OperatorMetrics, ...] = ()
    tasks: tuple[TaskMetrics, ...] = ()
    inputs: tuple[InputMetrics, ...] = ()
    stores: tuple[StoreMetrics, ...] = ()
    stages: tuple[StageMetrics, ...] = ()
    commits: int = 0
    commit_ms: float = 0.0
    since_commit_ms: float | None = None
    elapsed_ms: float = 0.0
    deaths: int = 0
    restarts: int = 0
    take_overs: int = 0
    changes: tuple[ChangeMetrics, ...] = ()
    warnings: tuple[str, ...] = ()
    where: str = ""

    def received(self, operator: str) -> int:
        """Return the number of messages that `operator` has taken in, over all tasks."""
        return sum(one.received for one in self.operators if one.operator == operator)

    def emitted(self, operator: str) -> int:
        """Return the number of messages that `operator` has sent on, over all tasks."""
        return sum(one.emitted for one in self.operators if one.operator == operator)

    def total(self, field: str) -> int:
        """Return the sum of a count over all operators and tasks, such as "dead_lettered"."""
        return sum(getattr(one, field) for one in self.operators)
