"""A look at a run: its numbers between two moments as a page shows them, and what makes it slow, ranked in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf

import msgspec

from operators.core.base import MAX_TIMESTAMP, MIN_TIMESTAMP
from planner.model.flow import edges, family, place
from planner.model.plan import OperatorPlan, Plan
from runtime.model.metrics import (
    ContainerMetrics,
    HistogramMetrics,
    OperatorMetrics,
    RunMetrics,
    StoreMetrics,
    Timed,
    restores_told,
    unread,
)
from runtime.run.driver import Watched
from samza_dsl.view.progress import TROUBLES
from samza_dsl.view.readable import duration_of, rate_of, watermark_of

LEAST_SHARE = 0.02
"""The share of the time from which something is worth a sentence."""
SILENT_MS = 10_000.0
"""The silence of a container that is worth a word."""
LEAST_BEHIND, BEHIND_S = 10, 2.0
"""The records that wait, and the seconds that reading them takes, beyond which a stream falls behind if they grow."""
MOST_ALIKE = 1_000
"""The partitions, tasks and stores of which each is told; beyond that there are too many to read."""


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """A cause of slowness in words, with its share of the time, and the operator that it is about, if it is one."""

    words: str
    share: float
    operator: str = ""


class OperatorLook(msgspec.Struct, frozen=True, kw_only=True):
    """An operator: messages in all and per second, its share of the time of the busiest container, and its calls.

    About `waiting` calls of it are under way at a time, of which half take `p50_ms`; both are None without calls.
    """

    id: str
    kind: str
    label: str
    site: str
    family: str
    on_error: str
    received: int
    emitted: int
    received_per_s: float
    emitted_per_s: float
    busy: float
    waiting: float = 0.0
    p50_ms: float | None = None
    p99_ms: float | None = None
    watermark: str = ""
    troubles: dict[str, int] = {}
    counters: dict[str, int] = {}


class InputLook(msgspec.Struct, frozen=True, kw_only=True):
    """A source partition: how far it is read, and by how many ms its event time is behind the clock, if it has any."""

    stream: str
    partition: int
    task: int
    offset: int
    end: int
    lag: int
    watermark: str
    behind_ms: float | None = None
    words: tuple[str, ...] = ()


class ContainerLook(msgspec.Struct, frozen=True, kw_only=True):
    """A container, and whether all is well with it: else `words` say what is not."""

    name: str
    tasks: tuple[int, ...]
    well: bool
    words: tuple[str, ...]
    commits: int
    busy: float
    commit_p99_ms: float | None = None
    deaths: int = 0
    died: str = ""


class StoreLook(msgspec.Struct, frozen=True, kw_only=True):
    """The committed state of an operator over all tasks."""

    store: str
    tasks: int
    entries: int
    bytes: int


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """A run at one moment; rates and shares are of the last seconds, and `alerts` what somebody ought to know."""

    state: str
    elapsed_ms: float
    commits: int
    since_commit_ms: float | None
    commit_p99_ms: float | None
    in_flight: int
    lag: int
    behind_ms: float | None
    received_per_s: float
    written_per_s: float
    deaths: int
    restarts: int
    causes: tuple[Cause, ...]
    alerts: tuple[str, ...]
    edges: dict[str, str]
    operators: tuple[OperatorLook, ...]
    inputs: tuple[InputLook, ...]
    containers: tuple[ContainerLook, ...]
    stores: tuple[StoreLook, ...]
    stages: tuple[str, ...] = ()


@dataclass(frozen=True)
class Interval:
    """The numbers of a run at two moments, between which rates are told."""

    before: RunMetrics
    now: RunMetrics

    @cached_property
    def by_operator(self) -> tuple[Mapping[str, list[OperatorMetrics]], Mapping[str, list[OperatorMetrics]]]:
        """The numbers of each operator in all of its tasks, then and now: they are gone through once, however many."""
        return _by_operator(self.before), _by_operator(self.now)

    @property
    def ms(self) -> float:
        """The time between the two."""
        return max(self.now.elapsed_ms - self.before.elapsed_ms, 1.0)

    def per_second(self, operator: str, field: str) -> float:
        """Return the rate at which a count of an operator has grown, over all tasks."""
        then, now = (int(sum(getattr(one, field) for one in part.get(operator, ()))) for part in self.by_operator)
        return max(now - then, 0) * 1_000 / self.ms

    def durations(self, what: Timed, of: str = "") -> HistogramMetrics:
        """Return the durations that were counted between the two."""
        then, now = self.before.histogram(what, of), self.now.histogram(what, of)
        # A container that has died may have taken some with it that nobody was told of.
        counts = tuple(max(late - early, 0) for early, late in zip(then.counts, now.counts, strict=True))
        return msgspec.structs.replace(now, counts=counts, sum_ms=max(now.sum_ms - then.sum_ms, 0.0))

    def share(self, *fields: str) -> float:
        """Return the share of the time that tasks have spent so, 1 where one of them did nothing else."""
        known = {one.task: sum(getattr(one, field) for field in fields) for one in self.before.tasks}
        spent = [sum(getattr(one, field) for field in fields) - known.get(one.task, 0.0) for one in self.now.tasks]
        return float(max([0.0, *spent])) / self.ms

    def busy(self) -> dict[str, dict[str, float]]:
        """Return by container the share of the time that each operator had of it, as samples tell."""
        then = {one.container: one.busy_ms for one in self.before.containers}
        return {
            one.container: {
                id: min(max(spent_ms - then.get(one.container, {}).get(id, 0.0), 0.0) / self.ms, 1.0)
                for id, spent_ms in one.busy_ms.items()
            }
            for one in self.now.containers
        }


def state_of(run: Watched, is_over: bool) -> str:
    """Return the word for how a run is."""
    if run.failed:
        return "begins anew" if run.begins_anew else "has failed"
    if is_over:
        return "was stopped" if run.stopping else "has ended"
    return "is stopping" if run.stopping else "runs"


def look(plan: Plan, span: Interval, state: str, stores: tuple[StoreMetrics, ...], now_ms: int) -> Look:
    """Return a look at a run at the end of an interval, at a time of the wall clock."""
    now, commits = span.now, span.durations("commit")
    by_id = span.by_operator[1]
    sources = [one.id for one in plan.operators if family(one) == "source"]
    last = [one.id for one in plan.operators if one.terminal]
    between = {stream.name for stream in plan.streams if stream.role == "intermediate"}
    inputs = tuple(_inputs(now, now_ms))
    behind = [one.behind_ms for one in inputs if one.behind_ms is not None and one.stream not in between]
    busy = span.busy()
    return Look(
        state=state,
        elapsed_ms=now.elapsed_ms,
        commits=now.commits,
        since_commit_ms=now.since_commit_ms,
        commit_p99_ms=commits.quantile(0.99) if commits.count else None,
        in_flight=sum(one.in_flight for one in now.tasks),
        lag=sum(lag for stream, lag in unread(now.inputs).items() if stream not in between),
        behind_ms=max(behind, default=None),
        received_per_s=sum(span.per_second(id, "received") for id in sources),
        written_per_s=sum(span.per_second(id, "received") for id in last),
        deaths=now.deaths,
        restarts=now.restarts,
        causes=tuple(causes(plan, span)),
        alerts=tuple(_alerts(span)),
        edges={f"{source}>{target}": rate for (source, target), rate in edge_rates(plan, span).items()},
        operators=tuple(_operator(one, by_id.get(one.id, []), span, busy) for one in plan.operators),
        inputs=inputs[:MOST_ALIKE],
        containers=tuple(_container(one, busy.get(one.container, {})) for one in now.containers),
        stores=tuple(_stores(stores)),
        stages=tuple(f"{one.stage}: {one.done} of {one.tasks} tasks done" for one in now.stages),
    )


def causes(plan: Plan, span: Interval) -> list[Cause]:
    """Return in words what takes the time of a run, what takes most of it first; nothing where it is idle."""
    by_container = span.busy()
    sampled = {id: max(held.get(id, 0.0) for held in by_container.values()) for id in _all_in(by_container)}
    known = sum(max(by_container.values(), key=lambda held: sum(held.values()), default={}).values())
    busy = known or span.share("process_ms", "window_ms")
    found = [*_calls(plan, span, busy)]
    names = {one.id for one in plan.operators}
    for id, share in sampled.items():
        if id in names:
            words = f"{_named(plan, id)} takes {share:.0%} of the time of the busiest container"
            found.append(Cause(words=words, share=share, operator=id))
    shares = {
        # What operators take of it is told by operator, where samples say it.
        ("reading, decoding and handing on" if known else "functions and operators on records"): max(
            span.share("process_ms") - known, 0.0
        ),
        "windows and timers that fire": 0.0 if known else span.share("window_ms"),
        "reading state that no cache held": span.share("get_ms"),
        "commits": span.durations("commit").sum_ms / span.ms / max(len(span.now.containers), 1),
        "waiting for calls in flight before commits": span.durations("drain").sum_ms / span.ms,
    }
    for what, share in shares.items():
        found.append(Cause(words=f"{what}: {min(share, 1.0):.0%} of the time, in the busiest task", share=share))
    return sorted((one for one in found if one.share >= LEAST_SHARE), key=lambda one: -one.share)


def _calls(plan: Plan, span: Interval, busy: float) -> Iterator[Cause]:
    """Yield the async operators that have made calls, each with the share of the time for which nothing else was done.

    Calls that are under way cost nobody anything while the loop has other work.
    """
    for operator in plan.operators:
        calls = span.durations("call", operator.id)
        if operator.asynchronous and calls.count:
            # The calls that are under way at a time, of which each waits for somebody else.
            at_once = calls.sum_ms / span.ms
            told = f"half of its calls take {_time_of(calls.quantile(0.5))}, one in a hundred longer than "
            told += f"{_time_of(calls.quantile(0.99))}; about {at_once:,.1f} are under way at a time"
            words = f"{_named(plan, operator.id)} waits for others: {told}"
            yield Cause(words=words, share=min(at_once, max(1.0 - busy, LEAST_SHARE)), operator=operator.id)


def _all_in(shares: Mapping[str, Mapping[str, float]]) -> list[str]:
    return [*dict.fromkeys(id for held in shares.values() for id in held)]


def _alerts(span: Interval) -> Iterator[str]:
    yield from dict.fromkeys([*span.now.warnings, *(one.warning for one in span.now.inputs if one.warning)])
    for one in span.now.containers:
        if one.silent_ms > SILENT_MS:
            yield f"container {one.container} has said nothing for {duration_of(one.silent_ms)}"
    unowned = len({one.task for one in span.now.inputs if not one.owned})
    if unowned:
        yield f"{unowned:,} tasks are in no container: nobody reads their partitions"
    for stream, lag in _growing(span):
        yield f"{stream} falls behind: {lag:,} records wait"


def _growing(span: Interval) -> Iterator[tuple[str, int]]:
    """Yield the streams whose lag has grown beyond what one commit may leave, the longest first."""
    then, now = unread(span.before.inputs), unread(span.now.inputs)
    read_then, read_now = _read(span.before), _read(span.now)
    grown = [(stream, lag) for stream, lag in now.items() if lag > then.get(stream, inf)]
    for stream, lag in sorted(grown, key=lambda one: -one[1]):
        # What was appended just now, or is read with the next commit, waits as well, and lags behind nothing.
        per_second = max(read_now[stream] - read_then[stream], 0) * 1_000 / span.ms
        if lag > max(LEAST_BEHIND, BEHIND_S * per_second):
            yield stream, lag


def _read(metrics: RunMetrics) -> Counter[str]:
    """Return by stream the sum of the offsets to which its partitions are read, whichever tasks share them."""
    places: dict[tuple[str, int], int] = {}
    for one in metrics.inputs:
        places[one.stream, one.partition] = max(one.offset, places.get((one.stream, one.partition), 0))
    found: Counter[str] = Counter()
    for (stream, _), offset in places.items():
        found[stream] += offset
    return found


def edge_rates(plan: Plan, span: Interval) -> dict[tuple[str, str], str]:
    """Return the messages per second on the lines of a plan's picture, as these are named there."""
    into = Counter(target for _, target in edges(plan))
    known = {operator.id for operator in plan.operators}
    found = {}
    for source, target in edges(plan):
        if source in known and (target not in known or into[target] > 1):
            last = source in known and plan.operator(source).terminal
            rate = span.per_second(source, "received" if last else "emitted")
        elif target in known:
            rate = span.per_second(target, "received")
        else:
            continue
        found[source, target] = f"{rate_of(rate)}/s"
    dead = {f"stream:{one.name}" for one in plan.streams if one.role == "dead_letter"}
    return {
        (source, target): f"{rate_of(span.per_second(source, 'dead_lettered'))}/s" if target in dead else rate
        for (source, target), rate in found.items()
    }


def _operator(
    operator: OperatorPlan, mine: list[OperatorMetrics], span: Interval, busy: Mapping[str, Mapping[str, float]]
) -> OperatorLook:
    calls = span.durations("call", operator.id)
    troubles = {words: sum(getattr(one, field) for one in mine) for field, words in TROUBLES.items()}
    counters: dict[str, int] = {}
    for one in mine:
        for name, number in one.counters.items():
            counters[name] = counters.get(name, 0) + number
    return OperatorLook(
        id=operator.id,
        kind=operator.kind.replace("_", " "),
        label=operator.label,
        site=place(operator.site),
        family=family(operator),
        on_error=operator.on_error,
        received=sum(one.received for one in mine),
        emitted=sum(one.emitted for one in mine),
        received_per_s=span.per_second(operator.id, "received"),
        emitted_per_s=span.per_second(operator.id, "emitted"),
        busy=max((held.get(operator.id, 0.0) for held in busy.values()), default=0.0),
        waiting=calls.sum_ms / span.ms if operator.asynchronous else 0.0,
        p50_ms=calls.quantile(0.5) if calls.count else None,
        p99_ms=calls.quantile(0.99) if calls.count else None,
        watermark=watermark_of(min((one.watermark for one in mine), default=MIN_TIMESTAMP)),
        troubles={words: number for words, number in troubles.items() if number},
        counters={name: number for name, number in counters.items() if number},
    )


def _inputs(now: RunMetrics, now_ms: int) -> Iterator[InputLook]:
    for one in sorted(now.inputs, key=lambda one: (-one.lag, one.stream, one.partition)):
        words = ["in no container"] * (not one.owned) + ["ended"] * one.ended + ["idle"] * one.idle
        words += [f"{one.held:,} held back by an open transaction"] if one.held else []
        has_time = MIN_TIMESTAMP < one.watermark < MAX_TIMESTAMP
        yield InputLook(
            stream=one.stream,
            partition=one.partition,
            task=one.task,
            offset=one.offset,
            end=min(one.end, MAX_TIMESTAMP),
            lag=one.lag,
            watermark=watermark_of(one.watermark),
            behind_ms=float(now_ms - one.watermark) if has_time else None,
            words=tuple(words),
        )


def _container(one: ContainerMetrics, busy: Mapping[str, float]) -> ContainerLook:
    commits = next((part for part in one.histograms if part.what == "commit"), None)
    words = [] if one.settled else ["has not all tasks that it shall have"]
    words += restores_told(one)
    words += [f"silent for {duration_of(one.silent_ms)}"] if one.silent_ms > SILENT_MS else []
    return ContainerLook(
        name=one.container,
        tasks=one.tasks,
        well=not words,
        words=tuple(words),
        commits=one.commits,
        busy=min(sum(busy.values()), 1.0),
        commit_p99_ms=commits.quantile(0.99) if commits is not None and commits.count else None,
        deaths=one.deaths,
        died=one.died,
    )


def _stores(stores: tuple[StoreMetrics, ...]) -> Iterator[StoreLook]:
    by_name: dict[str, list[StoreMetrics]] = {}
    for one in stores:
        by_name.setdefault(one.store, []).append(one)
    for name, held in by_name.items():
        entries, size_bytes = sum(one.entries for one in held), sum(one.bytes for one in held)
        yield StoreLook(store=name, tasks=len(held), entries=entries, bytes=size_bytes)


def _by_operator(metrics: RunMetrics) -> dict[str, list[OperatorMetrics]]:
    found: dict[str, list[OperatorMetrics]] = {}
    for one in metrics.operators:
        found.setdefault(one.operator, []).append(one)
    return found


def _time_of(ms: float) -> str:
    return f"{ms:,.3g} ms" if ms < 1_000 else duration_of(ms)


def _named(plan: Plan, id: str) -> str:
    site = place(plan.operator(id).site)
    return f"{id} ({site})" if site else id
