"""The metrics of a run by name, unit and labels, and as the text that Prometheus reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

from operators.core.base import MAX_TIMESTAMP, MIN_TIMESTAMP
from runtime.model.metrics import BOUNDS_MS, HistogramMetrics, OperatorMetrics, RunMetrics, Timed, added, unread

Labels = tuple[tuple[str, str], ...]
"""The names and values that tell a series from others of its name; every one has the application's besides."""
Kind = Literal["counter", "gauge", "histogram"]

MOST_COUNTERS = 100
"""The counters of a user that are shown of one operator, by their names: each is a series for ever."""


class Instrument(NamedTuple):
    """A metric as OpenTelemetry names it: a dotted name, its kind, its unit as UCUM writes it, and what it tells."""

    name: str
    type: Kind
    unit: str
    help: str

    @property
    def exposed_as(self) -> str:
        """The name that Prometheus has for it, by OpenTelemetry's rules.

        >>> Instrument("samza.state.size", "gauge", "By", "").exposed_as
        'samza_state_size_bytes'
        >>> Instrument("samza.operator.received", "counter", "{message}", "").exposed_as
        'samza_operator_received_total'
        """
        unit = {"s": "_seconds", "By": "_bytes"}.get(self.unit, "")
        return self.name.replace(".", "_") + unit + "_total" * (self.type == "counter")


class Series(NamedTuple):
    """One value of an instrument, or in place of it a histogram."""

    instrument: Instrument
    labels: Labels
    value: float | HistogramMetrics


def _counter(name: str, unit: str, help: str) -> Instrument:
    return Instrument(name, "counter", unit, help)


def _gauge(name: str, unit: str, help: str) -> Instrument:
    return Instrument(name, "gauge", unit, help)


UPTIME = _gauge("samza.run.uptime", "s", "Time since the run began.")
REPLICA_AGE = _gauge("samza.replica.age", "s", "Time since the replica was last seen to have all that was committed.")
WARNINGS = _gauge("samza.run.warnings", "{warning}", "Warnings that the run tells now, and changes of the application.")
DEATHS = _counter("samza.container.deaths", "{container}", "Containers that ended before their time.")
RESTARTS = _counter("samza.container.restarts", "{container}", "Containers started in the place of others.")
TAKE_OVERS = _counter("samza.task.take_overs", "{task}", "Tasks taken over from containers that were gone.")

BY_OPERATOR: Mapping[Instrument, Callable[[OperatorMetrics], int]] = {
    _counter("samza.operator.received", "{message}", "Messages that an operator took in."): lambda one: one.received,
    _counter("samza.operator.emitted", "{message}", "Messages that an operator sent on."): lambda one: one.emitted,
    _counter("samza.operator.skipped", "{message}", "Messages that failed and were skipped."): lambda one: one.skipped,
    _counter("samza.operator.dead_lettered", "{message}", "Messages that failed, in the dead letters."): (
        lambda one: one.dead_lettered
    ),
    _counter("samza.operator.retried", "{try}", "Tries after the first."): lambda one: one.retried,
    _counter("samza.operator.late", "{message}", "Messages that came too late."): lambda one: one.late,
    _counter("samza.operator.cache.misses", "{value}", "Values of state that no cache held."): (
        lambda one: one.cache_misses
    ),
}
"""The counts of an operator over all tasks: those that ran elsewhere before are in them, so they never fall."""
COUNTED = _counter("samza.operator.counted", "{count}", "Counters of the user's own, and those that joins keep.")
JOIN_KEYS = _counter("samza.join.keys", "{key}", "Keys of a side of a join, by type; of look-ups, those without a row.")
OPERATOR_DELAY = _gauge("samza.operator.watermark.delay", "s", "Time that event time is behind, in the slowest task.")

JOB_TASKS = _gauge("samza.job.tasks", "{task}", "Tasks of the job, virtual ones included.")
MODEL_TIME = _gauge("samza.job.model.time", "s", "Time that it took to plan the tasks of the job.")
CHECKPOINTS_TIME = _gauge("samza.job.checkpoints.time", "s", "Time that the checkpoints of split or merged tasks took.")

IN_FLIGHT = _gauge("samza.task.in_flight", "{message}", "Messages that a task waits for.")
BUSY = _counter("samza.task.busy.time", "s", "Time of a task, by what it was spent on.")
READ_TIME = _counter("samza.task.read.time", "s", "Time in which a task read its inputs.")
HASH_TIME = _counter("samza.task.key_hash.time", "s", "Time to find by keys which records are of a virtual task.")
OWN_TIME = _counter("samza.task.store_share.time", "s", "Time to find which entries of state are of a virtual task.")
ASSIGNED = _gauge("samza.task.assigned", "1", "Which container has a task.")

LAG = _gauge("samza.input.lag", "{record}", "Records of a partition that are not read yet.")
OFFSET = _gauge("samza.input.offset", "{record}", "The next offset of a partition.")
INPUT_DELAY = _gauge("samza.input.watermark.delay", "s", "Time that the event time of a partition is behind.")
HELD = _gauge("samza.input.held", "{record}", "Records that an open transaction keeps from being read.")
IDLE = _gauge("samza.input.idle", "1", "Whether nothing has come of a partition for long.")
OWNED = _gauge("samza.input.owned", "1", "Whether a container has the task of a partition.")
JUMPS = _counter("samza.input.jumps", "{record}", "Records of which each alone moved event time far.")

ENTRIES = _gauge("samza.state.entries", "{entry}", "Entries of an operator's committed state in a task.")
SIZE = _gauge("samza.state.size", "By", "The size of an operator's committed state in a task.")
RESTORED = _counter("samza.state.restored", "{record}", "Records of changelogs from which state was brought back.")
MOVED = _counter("samza.state.moved", "{entry}", "Entries of state that have come to a container with its tasks.")
RESTORING = _gauge("samza.state.restoring", "{record}", "Records of a changelog that are still to be brought back.")

COMMITS = _counter("samza.commits", "{commit}", "Commits.")
COMMIT_AGE = _gauge("samza.commit.age", "s", "Time since the last commit; before the first, since the run began.")
CONTAINER_LAG = _gauge("samza.container.lag", "{record}", "Records that the tasks of a container have not read yet.")
REBALANCES = _counter("samza.rebalances", "{rebalance}", "Times at which tasks came or went.")
SETTLED = _gauge("samza.container.settled", "1", "Whether a container has all tasks that it shall have.")
SILENCE = _gauge("samza.container.silence", "s", "Time since a container said something.")
STAGE_TASKS = _gauge("samza.stage.tasks", "{task}", "Tasks of a stage on Spark, by whether they are done.")

DURATIONS: Mapping[Timed, tuple[Instrument, str]] = {
    "step": (Instrument("samza.step.duration", "histogram", "s", "Time to take in some records at once."), ""),
    "firing": (Instrument("samza.firing.duration", "histogram", "s", "Time to fire windows and timers."), ""),
    "call": (Instrument("samza.call.duration", "histogram", "s", "Time of the calls of an operator."), "operator"),
    "commit": (Instrument("samza.commit.duration", "histogram", "s", "Time of a commit until it is durable."), ""),
    "drain": (
        Instrument("samza.drain.duration", "histogram", "s", "Time that a commit has waited for what is in flight."),
        "",
    ),
    "event_to_output": (
        Instrument("samza.event_to_output.duration", "histogram", "s", "Time from a message's own to its commit."),
        "stream",
    ),
    "append_to_commit": (
        Instrument("samza.append_to_commit.duration", "histogram", "s", "Time from a record's append to the commit."),
        "stream",
    ),
    "rebalance": (
        Instrument("samza.rebalance.duration", "histogram", "s", "Time until tasks that came or went run on."),
        "",
    ),
}
"""The histogram of each kind of duration, and the label that says of what it is."""

INSTRUMENTS = (
    *(
        UPTIME,
        REPLICA_AGE,
        WARNINGS,
        DEATHS,
        RESTARTS,
        TAKE_OVERS,
        *BY_OPERATOR,
        COUNTED,
        JOIN_KEYS,
        OPERATOR_DELAY,
        JOB_TASKS,
    ),
    *(MODEL_TIME, CHECKPOINTS_TIME, IN_FLIGHT, BUSY, READ_TIME, HASH_TIME, OWN_TIME, ASSIGNED),
    *(LAG, OFFSET, INPUT_DELAY, HELD, IDLE, OWNED, JUMPS, ENTRIES, SIZE, RESTORED, MOVED, RESTORING),
    *(COMMITS, COMMIT_AGE, CONTAINER_LAG, REBALANCES),
    *(SETTLED, SILENCE, STAGE_TASKS, *(instrument for instrument, _ in DURATIONS.values())),
)
"""All instruments, in the order in which they are told."""
assert len({one.name for one in INSTRUMENTS}) == len(INSTRUMENTS), "an instrument is there once"


def series(metrics: RunMetrics, now_ms: int) -> Iterator[Series]:
    """Yield the values of all instruments of a run; `now_ms` is the wall clock, from which delays are counted.

    Labels are of what a plan has: operators, streams, partitions and tasks, and of containers by their places. So there
    are never more series than that, however long a run goes on.
    """
    yield Series(UPTIME, (), metrics.elapsed_ms / 1_000)
    if metrics.replica_age_ms is not None:
        yield Series(REPLICA_AGE, (), metrics.replica_age_ms / 1_000)
    yield Series(
        WARNINGS, (), len(metrics.warnings) + len(metrics.changes) + sum(bool(i.warning) for i in metrics.inputs)
    )
    yield Series(DEATHS, (), metrics.deaths)
    yield Series(RESTARTS, (), metrics.restarts)
    yield Series(TAKE_OVERS, (), metrics.take_overs)
    yield from _operators(metrics, now_ms)
    yield from _tasks(metrics)
    yield from _inputs(metrics, now_ms)
    for store in metrics.stores:
        of = ("operator", store.store), ("task", str(store.task))
        yield Series(ENTRIES, of, store.entries)
        yield Series(SIZE, of, store.bytes)
    yield from _containers(metrics)
    for stage in metrics.stages:
        states = {"waiting": stage.tasks - stage.running - stage.done, "running": stage.running, "done": stage.done}
        for state, number in states.items():
            yield Series(STAGE_TASKS, (("stage", stage.stage), ("state", state)), number)


def _delay_s(watermark: int, now_ms: int) -> float | None:
    """Return how far event time is behind; None where there is none yet, and where it has ended."""
    return None if watermark in (MIN_TIMESTAMP, MAX_TIMESTAMP) else max(now_ms - watermark, 0) / 1_000


def _operators(metrics: RunMetrics, now_ms: int) -> Iterator[Series]:
    by_id: dict[str, list[OperatorMetrics]] = {}
    for one in metrics.operators:
        by_id.setdefault(one.operator, []).append(one)
    for id, parts in by_id.items():
        of = ("operator", id)
        for instrument, count in BY_OPERATOR.items():
            yield Series(instrument, (of,), sum(map(count, parts)))
        names = sorted({name for one in parts for name in one.counters})
        for name in names[:MOST_COUNTERS]:
            number = sum(one.counters.get(name, 0) for one in parts)
            yield Series(COUNTED, (of, ("counter", name)), number)
        sides = {(side, kind): 0 for one in parts for side, kinds in one.keys.items() for kind in kinds}
        for side, kind in sides:
            number = sum(one.keys.get(side, {}).get(kind, 0) for one in parts)
            yield Series(JOIN_KEYS, (of, ("side", side), ("type", kind)), number)
        # The last of each task: one that ran elsewhere before has stayed behind there.
        newest = {one.task: one.watermark for one in parts}
        delay = _delay_s(min(newest.values()), now_ms)
        if delay is not None:
            yield Series(OPERATOR_DELAY, (of,), delay)


def _tasks(metrics: RunMetrics) -> Iterator[Series]:
    if (job := metrics.job) is not None:
        yield Series(JOB_TASKS, (), job.tasks)
        yield Series(MODEL_TIME, (), job.model_ms / 1_000)
        if job.checkpoints_ms is not None:
            yield Series(CHECKPOINTS_TIME, (), job.checkpoints_ms / 1_000)
    for task in metrics.tasks:
        of = ("task", str(task.task))
        yield Series(IN_FLIGHT, (of,), task.in_flight)
        spent = {
            "process": task.process_ms,
            "fire": task.window_ms,
            "starve": task.starved_ms,
            "read_state": task.get_ms,
            "write_state": task.put_ms,
        }
        for activity, ms in spent.items():
            yield Series(BUSY, (of, ("activity", activity)), ms / 1_000)
        yield Series(READ_TIME, (of,), task.read_ms / 1_000)
        yield Series(HASH_TIME, (of,), task.hash_ms / 1_000)
        yield Series(OWN_TIME, (of,), task.own_ms / 1_000)


def _inputs(metrics: RunMetrics, now_ms: int) -> Iterator[Series]:
    jumps: dict[str, int] = {}
    # A stream may be read by several inputs, of which the one that is furthest behind counts.
    behind = sorted(metrics.inputs, key=lambda one: one.lag)
    for one in {(one.stream, one.partition): one for one in behind}.values():
        of = ("stream", one.stream), ("partition", str(one.partition))
        yield Series(LAG, of, one.lag)
        yield Series(OFFSET, of, one.offset)
        yield Series(HELD, of, one.held)
        yield Series(IDLE, of, one.idle)
        yield Series(OWNED, of, one.owned)
        delay = None if one.ended else _delay_s(one.watermark, now_ms)
        if delay is not None:
            yield Series(INPUT_DELAY, of, delay)
        jumps[one.stream] = jumps.get(one.stream, 0) + one.jumps
    for stream, number in jumps.items():
        yield Series(JUMPS, (("stream", stream),), number)


def _containers(metrics: RunMetrics) -> Iterator[Series]:
    for one in metrics.containers:
        of = (("container", one.container),)
        yield Series(COMMITS, of, one.commits)
        # One that hangs from its start has committed nothing, and must not be silent.
        since_ms = metrics.elapsed_ms if one.since_commit_ms is None else one.since_commit_ms
        yield Series(COMMIT_AGE, of, since_ms / 1_000)
        own = unread(each for each in metrics.inputs if each.task in one.tasks)
        yield Series(CONTAINER_LAG, of, sum(own.values()))
        yield Series(REBALANCES, of, one.rebalances)
        yield Series(RESTORED, of, one.restored)
        yield Series(MOVED, of, one.moved)
        for each in one.restoring:
            left = each.records - each.restored
            yield Series(RESTORING, (*of, ("operator", each.store), ("task", each.task)), max(left, 0))
        yield Series(SETTLED, of, one.settled)
        yield Series(SILENCE, of, one.silent_ms / 1_000)
        for task in one.tasks:
            yield Series(ASSIGNED, (*of, ("task", str(task))), 1)
        for histogram in added(one.histograms):
            instrument, label = DURATIONS[histogram.what]
            yield Series(instrument, (*of, *(((label, histogram.of),) if label else ())), histogram)


def prometheus_text(app: str, metrics: RunMetrics, now_ms: int) -> str:
    r"""Return the numbers of a run in the text format of Prometheus, version 0.0.4.

    >>> for line in prometheus_text("spending", RunMetrics(elapsed_ms=1_500), 0).splitlines()[:3]:
    ...     print(line)
    # HELP samza_run_uptime_seconds Time since the run began.
    # TYPE samza_run_uptime_seconds gauge
    samza_run_uptime_seconds{app="spending"} 1.5
    """
    by_instrument: dict[Instrument, list[Series]] = {}
    for one in series(metrics, now_ms):
        by_instrument.setdefault(one.instrument, []).append(one)
    lines: list[str] = []
    # All series of a name stand together, as the format wants it.
    for instrument in INSTRUMENTS:
        if instrument in by_instrument:
            name = instrument.exposed_as
            lines += [f"# HELP {name} {instrument.help}", f"# TYPE {name} {instrument.type}"]
            for _, labels, value in by_instrument[instrument]:
                lines += _lines(name, (("app", app), *labels), value)
    return "\n".join(lines) + "\n"


def _lines(name: str, labels: Labels, value: float | HistogramMetrics) -> Iterable[str]:
    if not isinstance(value, HistogramMetrics):
        yield f"{name}{_told(labels)} {float(value)!r}"
        return
    assert len(value.counts) == len(BOUNDS_MS) + 1, "the last count is above all bounds"
    so_far = 0
    for bound_ms, count in zip(BOUNDS_MS, value.counts, strict=False):
        so_far += count
        yield f"{name}_bucket{_told((*labels, ('le', repr(bound_ms / 1_000))))} {so_far}"
    yield f"{name}_bucket{_told((*labels, ('le', '+Inf')))} {value.count}"
    yield f"{name}_sum{_told(labels)} {value.sum_ms / 1_000!r}"
    yield f"{name}_count{_told(labels)} {value.count}"


def _told(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: str) -> str:
    r"""Return a label's value as the format has it.

    >>> print(_escaped('a "b"\n\\c'))
    a \"b\"\n\\c
    """
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
