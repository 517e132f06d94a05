"""The metrics of a run: plain numbers, gathered when asked for, from counters that are kept per batch."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from operators.core.base import MIN_TIMESTAMP, Batch
from operators.core.wording import shown
from runtime.model.errors import SamzaError

BOUNDS_MS = tuple(2.0**power for power in range(-3, 25))
"""The upper bounds of the buckets of durations, each twice the one before: from an eighth of a ms to 4.7 hours."""
MOST_SAMPLED = 32
"""The rows of a batch whose latency is looked at: more would cost something for each message."""

Timed = Literal["step", "firing", "call", "commit", "drain", "event_to_output", "append_to_commit", "rebalance"]
"""What durations are of: see `HistogramMetrics`."""
DurationListener = Callable[[Timed, str, float, Sequence[Batch]], None]
"""Takes in what a duration is of, of which operator or stream, the duration in ms, and the messages it was spent on."""

LISTENER: ContextVar[DurationListener | None] = ContextVar("LISTENER", default=None)
"""Hears of the durations of a run that is made in this context, as each is counted; who reads the counts needs none."""


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """The address at which a run serves its metrics and its health, as `/metrics`, `/livez` and `/readyz`, and to whom.

    The address is ":9464" for this machine alone, or with a host, as "0.0.0.0:9464"; port 0 is any that is free.
    With `token_file` only who sends its content as a bearer token may read the metrics. The run is ready while its
    inputs lag by no more than `ready_lag` records in all, whatever that is where it is None. With `opentelemetry` its
    metrics and spans go to the providers that the program has set; without an address nothing is served. With `ui` a
    page at `/` shows the run live; with `ui_allow_actions` one can have it commit, stop and scale there, and send dead
    letters again. On Kafka other machines ask for state at the machine's own address and this port, or at `advertise`,
    "HOST" or "HOST:PORT", where they reach it by another one.

    >>> Metrics(address=":9464", ready_lag=100_000).address
    ':9464'
    """

    address: str | None = ":9464"
    token_file: str | Path | None = None
    ready_lag: int | None = None
    opentelemetry: bool = False
    ui: bool = False
    ui_allow_actions: bool = False
    advertise: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.address, str | None):
            raise SamzaError(f'metrics={shown(self.address)} is no address; write instead: metrics=":9464"')


class Durations:
    """Counts durations by bucket; whoever adds to it and whoever reads it are in different threads, and need no lock.

    Invariant: there is one count for each bound, and one for what is above all of them.

    >>> durations = Durations("commit")
    >>> durations.add(3.0)
    >>> durations.add(5.0, 2)
    >>> durations.metrics().count, durations.sum_ms
    (3, 13.0)
    """

    __slots__ = ("counts", "listener", "of", "sum_ms", "what")

    def __init__(self, what: Timed, of: str = "", listener: DurationListener | None = None) -> None:
        self.what, self.of = what, of
        self.listener = listener or LISTENER.get()
        self.counts = [0] * (len(BOUNDS_MS) + 1)
        self.sum_ms = 0.0

    def add(self, ms: float, number: int = 1, held: Sequence[Batch] = ()) -> None:
        """Count a duration, or one that stands for a `number` of them; a clock that was set back makes it 0.

        A listener is told of the messages that it was spent on, where they are `held` by it.
        """
        assert number > 0, "a duration is counted at least once"
        ms = max(ms, 0.0)
        self.counts[bisect_left(BOUNDS_MS, ms)] += number
        self.sum_ms += ms * number
        if self.listener is not None:
            self.listener(self.what, self.of, ms, held)

    def add_since(self, began_ms: Sequence[int | None], now_ms: int) -> None:
        """Count how long ago the times of a batch are, by rows that lie equally far from each other."""
        step = -(-len(began_ms) // MOST_SAMPLED) or 1
        *sampled, last = began_ms[::step] or (None,)
        if self.listener is None:
            # Written out: to call `add` for each would be most of what it costs.
            counts, bounds, at = self.counts, BOUNDS_MS, bisect_left
            for began in sampled:
                if began is not None:
                    ms = now_ms - began if now_ms > began else 0
                    counts[at(bounds, ms)] += step
                    self.sum_ms += ms * step
        else:
            for began in sampled:
                if began is not None:
                    self.add(now_ms - began, step)
        # The last one stands for those that are left.
        if last is not None:
            self.add(now_ms - last, len(began_ms) - step * len(sampled))

    def metrics(self) -> HistogramMetrics:
        """Return the durations as they are now."""
        return HistogramMetrics(what=self.what, of=self.of, counts=tuple(self.counts), sum_ms=self.sum_ms)


class HistogramMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The durations of one kind in one container: how many lie in each bucket of `BOUNDS_MS`, and their sum in ms.

    A "step" takes records in, a "firing" fires windows and timers, a "call" is one of an async operator, a "commit"
    lasts until it is durable, and a "drain" is the wait for what is in flight before it. From "event_to_output" is
    between the time of a message and the commit that writes it, "append_to_commit" between the append of a record and
    the commit that has its effects, and "rebalance" is between tasks leaving or coming and their going on. They are
    `of` an operator (calls) or a stream (the two latencies).

    >>> found = HistogramMetrics(what="commit", counts=(0, 1, 3) + (0,) * 26, sum_ms=1.6)
    >>> found.count, found.quantile(0.5), found.quantile(0.999) <= 0.5
    (4, 0.3333333333333333, True)
    """

    what: Timed
    of: str = ""
    counts: tuple[int, ...]
    sum_ms: float

    @property
    def count(self) -> int:
        """The number of durations."""
        return sum(self.counts)

    def quantile(self, q: float) -> float:
        """Return the duration in ms that a share `q` of all does not exceed, as evenly as they may lie in a bucket.

        It is 0 where there are none, and the highest bound for what is above all bounds.
        """
        assert 0 <= q <= 1, "a share is of all"
        wanted, below = q * self.count, 0
        for number, count in enumerate(self.counts[:-1]):
            if count and below + count >= wanted:
                lower = BOUNDS_MS[number - 1] if number else 0.0
                return lower + (BOUNDS_MS[number] - lower) * max(wanted - below, 0.0) / count
            below += count
        return BOUNDS_MS[-1] if self.counts[-1] else 0.0


def added(histograms: Iterable[HistogramMetrics]) -> tuple[HistogramMetrics, ...]:
    """Return one histogram for each kind and operator or stream, in which the counts of all are added up."""
    found: dict[tuple[str, str], HistogramMetrics] = {}
    for one in histograms:
        before = found.get((one.what, one.of))
        if before is not None:
            counts = tuple(map(sum, zip(before.counts, one.counts, strict=True)))
            one = msgspec.structs.replace(one, counts=counts, sum_ms=before.sum_ms + one.sum_ms)
        found[one.what, one.of] = one
    return tuple(found.values())


class OperatorMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Messages into and out of one operator in one task, and its watermark (ms); `counters` are the user's own.

    `late` counts what came too late for windows and joins, for a duplicate to be known, for state in time to last, or
    for a timer that it has set; `cache_misses` counts the values of its state that no cache held.
    """

    operator: str
    task: int
    received: int = 0
    emitted: int = 0
    skipped: int = 0
    dead_lettered: int = 0
    retried: int = 0
    late: int = 0
    cache_misses: int = 0
    watermark: int = MIN_TIMESTAMP
    counters: dict[str, int] = {}
    keys: dict[str, dict[str, int]] = {}
    """The keys of each side of a join by their types; 0 where one is known to be there, and was not counted.

    Of messages that look a row up only those that found none are counted.
    """


class TaskMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """One task: the messages that it waits for, and its time in ms, by what it was spent on.

    `get_ms` is reading what no cache held, `put_ms` writing back, and `starved_ms` the time in which it took no
    messages in, as windows or timers fired, calls below them included. `read_ms` is reading its inputs, and of a
    virtual task `hash_ms` finding whose each record is by its key, and `own_ms` whose each entry of state is (sampled).
    """

    task: int
    in_flight: int = 0
    process_ms: float = 0.0
    window_ms: float = 0.0
    starved_ms: float = 0.0
    get_ms: float = 0.0
    put_ms: float = 0.0
    read_ms: float = 0.0
    hash_ms: float = 0.0
    own_ms: float = 0.0


class InputMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """One source partition: the next offset to read, the end, the offsets between, and the watermark (ms).

    `jumps` counts the records of which each alone moved event time by more than a day, or by minutes or hours where
    most that came next lay behind it; `warning` tells of one. Of what lies between, an open transaction has kept the
    last `held` from being read, for `held_ms` by now. Where no container has the task now, it is not `owned`, and
    `offset` is that of its last commit.
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


class Lagging(Protocol):
    """The lag of one reader of a partition."""

    @property
    def stream(self) -> str:
        """The stream that is read."""

    @property
    def partition(self) -> int:
        """The partition of it."""

    @property
    def lag(self) -> int:
        """The number of records before the reader."""


def unread(inputs: Iterable[Lagging]) -> dict[str, int]:
    """Return by stream the number of records that are not read yet.

    Virtual tasks of a partition each read all of it, and process a share: of what lies before them each has its part.

    >>> of = lambda task, lag: InputMetrics(
    ...     stream="clicks", partition=0, task=task, offset=0, end=9, lag=lag, watermark=0
    ... )
    >>> unread([of(0, 8), of(1, 6)])
    {'clicks': 7}
    """
    partitions: dict[tuple[str, int], list[int]] = {}
    for one in inputs:
        partitions.setdefault((one.stream, one.partition), []).append(one.lag)
    found: dict[str, int] = {}
    for (stream, _), lags in partitions.items():
        found[stream] = found.get(stream, 0) + round(sum(lags) / len(lags))
    return found


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


class RestoreMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """One operator's state in one task that is being brought back: so many `records` of its changelog, at most."""

    store: str
    task: str
    restored: int
    records: int


class ContainerMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """One container: the tasks that it has, its commits, and its durations.

    `rebalances` counts the times at which tasks came or went, `restored` the records of changelogs from which state was
    brought back, and `moved` the entries that are new where their tasks are; `restoring` has what is on its way. It is
    `settled` while it has all tasks that it shall have. It said all this `silent_ms` ago. Of those in its place before
    it, `deaths` have ended before their time, the last one as `died` says. By operator, `busy_ms` is the time that
    samples have found it at work, taken while somebody looks again and again.
    """

    container: str
    tasks: tuple[int, ...] = ()
    settled: bool = True
    commits: int = 0
    commit_ms: float = 0.0
    since_commit_ms: float | None = None
    rebalances: int = 0
    restored: int = 0
    moved: int = 0
    restoring: tuple[RestoreMetrics, ...] = ()
    silent_ms: float = 0.0
    deaths: int = 0
    died: str = ""
    busy_ms: dict[str, float] = {}
    histograms: tuple[HistogramMetrics, ...] = ()


def restores_told(container: ContainerMetrics) -> Iterator[str]:
    """Yield in words what state a container brings back, and how far that is.

    >>> one = RestoreMetrics(store="total", task="3", restored=450, records=1_000)
    >>> [*restores_told(ContainerMetrics(container="0", restoring=(one,)))]
    ["brings the state of 'total' in task 3 back: 450 of 1,000 records, 45 %"]
    """
    for one in container.restoring:
        share = 100 * one.restored // max(one.records, 1)
        done = f"{one.restored:,} of {one.records:,} records, {share} %"
        yield f"brings the state of {one.store!r} in task {one.task} back: {done}"


class ChangeMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of an operator since records were read last: a sentence for each parameter.

    One that `is_new` was not there then.
    """

    operator: str
    what: tuple[str, ...] = ()
    is_new: bool = False


class JobMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a job: its tasks, virtual ones included, and the time in ms that it took to come to it.

    `model_ms` is planning which tasks there are, and `checkpoints_ms` finding and committing from where each of them
    goes on, where they were split or merged; it is None where they were not, as far as this run knows.
    """

    tasks: int
    model_ms: float
    checkpoints_ms: float | None = None


class RunMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """All numbers of a run at one moment; `since_commit_ms` is None before the first commit.

    Of containers `deaths` counts those that ended before their time, `restarts` those that were started in their place,
    and `take_overs` the tasks that were taken from containers that were gone. `changes` has what was changed when the
    run began, since records were read last, `warnings` what else was told, and `where` the options by which a command
    is about the same environment. `replica_age_ms` is the time since the copy on another disk had all that was there.
    """

    operators: tuple[OperatorMetrics, ...] = ()
    tasks: tuple[TaskMetrics, ...] = ()
    inputs: tuple[InputMetrics, ...] = ()
    stores: tuple[StoreMetrics, ...] = ()
    stages: tuple[StageMetrics, ...] = ()
    job: JobMetrics | None = None
    """The size of the job; None on Spark, whose stages say it."""
    containers: tuple[ContainerMetrics, ...] = ()
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
    replica_age_ms: float | None = None

    def received(self, operator: str) -> int:
        """Return the number of messages that `operator` has taken in, over all tasks."""
        return sum(one.received for one in self.operators if one.operator == operator)

    def emitted(self, operator: str) -> int:
        """Return the number of messages that `operator` has sent on, over all tasks."""
        return sum(one.emitted for one in self.operators if one.operator == operator)

    def unread(self, stream: str) -> int:
        """Return the number of records of a stream that are not read yet, each once, however many tasks share it."""
        return unread(self.inputs).get(stream, 0)

    def histogram(self, what: Timed, of: str = "") -> HistogramMetrics:
        """Return the durations of one kind over all containers; `of` an operator or stream, or of all of them."""
        alike = [one for part in self.containers for one in part.histograms if one.what == what and of in ("", one.of)]
        found = added(msgspec.structs.replace(one, of=of) for one in alike)
        return found[0] if found else Durations(what, of).metrics()

    def total(self, field: str) -> int:
        """Return the sum of a count over all operators and tasks, such as "dead_lettered"."""
        return sum(getattr(one, field) for one in self.operators)
