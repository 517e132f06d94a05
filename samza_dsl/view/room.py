"""The control room: a page that shows a run live, with what makes it slow ranked in words; it needs no network."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from html import escape
from math import inf
from typing import NamedTuple

import msgspec

from planner.model.flow import counted, edges
from planner.model.plan import Plan
from planner.picture.drawing import to_svg
from runtime.model.clock import sleep_ms
from runtime.model.metrics import HistogramMetrics, OperatorMetrics, RunMetrics, Timed
from runtime.run.driver import Watched
from runtime.watching.server import Answer, Page, Request
from samza_dsl.view.progress import TROUBLES
from samza_dsl.view.readable import duration_of, rate_of, watermark_of

LOOK_MS, OVER_MS = 1_000.0, 10_000.0
"""The interval at which a run is looked at, and the time over which rates and shares are told."""
LEAST_SHARE = 0.02
"""The share of the time from which something is worth a sentence."""


class Interval(NamedTuple):
    """The numbers of a run at two moments, between which rates are told."""

    before: RunMetrics
    now: RunMetrics

    @property
    def ms(self) -> float:
        """The time between the two."""
        return max(self.now.elapsed_ms - self.before.elapsed_ms, 1.0)

    def per_second(self, operator: str, field: str) -> float:
        """Return the rate at which a count of an operator has grown, over all tasks."""
        then, now = (_count(part, operator, field) for part in self)
        return max(now - then, 0) * 1_000 / self.ms

    def durations(self, what: Timed, of: str = "") -> HistogramMetrics:
        """Return the durations that were counted between the two."""
        then, now = (part.histogram(what, of) for part in self)
        # A container that has died may have taken some with it that nobody was told of.
        counts = tuple(max(late - early, 0) for early, late in zip(then.counts, now.counts, strict=True))
        return msgspec.structs.replace(now, counts=counts, sum_ms=max(now.sum_ms - then.sum_ms, 0.0))

    def share(self, *fields: str) -> float:
        """Return the share of the time that tasks have spent so, 1 where one of them did nothing else."""
        known = {one.task: sum(getattr(one, field) for field in fields) for one in self.before.tasks}
        spent = [sum(getattr(one, field) for field in fields) - known.get(one.task, 0.0) for one in self.now.tasks]
        return float(max([0.0, *spent])) / self.ms


def _count(metrics: RunMetrics, operator: str, field: str) -> int:
    return sum(getattr(one, field) for one in metrics.operators if one.operator == operator)


def slow(plan: Plan, span: Interval) -> list[str]:
    """Return in words what takes the time of a run, what takes most of it first; nothing where it is idle."""
    found: list[tuple[float, str]] = []
    for operator in plan.operators:
        calls = span.durations("call", operator.id)
        if operator.asynchronous and calls.count:
            # The calls that are under way at a time, of which each waits for somebody else.
            at_once = calls.sum_ms / span.ms
            told = f"half of its calls take {_time_of(calls.quantile(0.5))}, one in a hundred longer than "
            told += f"{_time_of(calls.quantile(0.99))}; about {at_once:,.1f} are under way at a time"
            found.append((min(at_once, 1.0), f"{_named(plan, operator.id)} waits for others: {told}"))
    shares = {
        "functions and operators on records": span.share("process_ms"),
        "windows and timers that fire": span.share("window_ms"),
        "reading state that no cache held": span.share("get_ms"),
        "commits": span.durations("commit").sum_ms / span.ms / max(len(span.now.containers), 1),
        "waiting for calls in flight before commits": span.durations("drain").sum_ms / span.ms,
    }
    for what, share in shares.items():
        found.append((share, f"{what}: {min(share, 1.0):.0%} of the time, in the busiest task"))
    ranked = sorted((one for one in found if one[0] >= LEAST_SHARE), key=lambda one: -one[0])
    behind = [f"{stream} falls behind: {lag:,} records wait" for stream, lag in _growing(span)]
    return [*behind, *(words for _, words in ranked)]


def _growing(span: Interval) -> Iterator[tuple[str, int]]:
    """Yield the streams whose lag has grown, the longest first."""
    then, now = ({one.stream: 0 for one in part.inputs} for part in span)
    for lags, part in ((then, span.before), (now, span.now)):
        for one in part.inputs:
            lags[one.stream] += one.lag
    grown = [(stream, lag) for stream, lag in now.items() if lag > then.get(stream, inf)]
    yield from sorted(grown, key=lambda one: -one[1])


def _time_of(ms: float) -> str:
    return f"{ms:,.3g} ms" if ms < 1_000 else duration_of(ms)


def _named(plan: Plan, id: str) -> str:
    site = plan.operator(id).site
    return f"{id} ({site})" if site else id


def edge_rates(plan: Plan, span: Interval) -> dict[tuple[str, str], str]:
    """Return the messages per second on the lines of a plan's picture, as these are named there."""
    into = [target for _, target in edges(plan)]
    known = {operator.id for operator in plan.operators}
    found = {}
    for source, target in edges(plan):
        if source in known and (target not in known or into.count(target) > 1):
            last = source in known and plan.operator(source).terminal
            rate = span.per_second(source, "received" if last else "emitted")
        elif target in known:
            rate = span.per_second(target, "received")
        else:
            continue
        found[source, target] = f"{rate_of(rate)}/s"
    return found


class ControlRoom:
    """Watches a run, and shows it as a page: looked at in the run's event loop, drawn by whoever asks.

    Invariant: what is drawn from never changes; a newer look takes its place as a whole.
    """

    def __init__(self) -> None:
        self._plan: Plan | None = None
        self._looks: deque[RunMetrics] = deque([RunMetrics()])
        self._span = Interval(RunMetrics(), RunMetrics())
        self._state = "begins"

    async def watch(self, run: Watched) -> None:
        """Look at a run again and again, beside it in its event loop, until cancelled at its end."""
        self._plan, self._looks = run.plan, deque([RunMetrics()])
        try:
            while True:
                self._take(run.metrics(stores=False), "is stopping" if run.stopping else "runs")
                await sleep_ms(LOOK_MS)
        finally:
            self._state = "has failed" if run.failed else "has ended"

    def _take(self, metrics: RunMetrics, state: str) -> None:
        assert metrics.elapsed_ms >= self._looks[-1].elapsed_ms, "looks come in the order of their time"
        self._looks.append(metrics)
        while len(self._looks) > 2 and self._looks[1].elapsed_ms <= metrics.elapsed_ms - OVER_MS:
            self._looks.popleft()
        self._span, self._state = Interval(self._looks[0], metrics), state

    def html(self) -> str:
        """Return the page as of the last look."""
        plan, span, state = self._plan, self._span, self._state
        if plan is None:
            return _page("samza-dsl", ["<h1>The run begins</h1><p>It opens its inputs, and brings state back.</p>"])
        return _page(plan.app, _parts(plan, span, state))


def shown(room: ControlRoom) -> Page:
    """Return the page of a control room as a server shows it: nothing in it is loaded, and nothing runs."""

    async def answer(_: Request) -> Answer:
        return Answer(200, room.html(), "text/html; charset=utf-8", "default-src 'none'; style-src 'unsafe-inline'")

    return Page(answer)


def _parts(plan: Plan, span: Interval, state: str) -> Iterator[str]:
    now = span.now
    facts = [duration_of(now.elapsed_ms), counted(now.commits, "commit")]
    if now.since_commit_ms is not None:
        facts.append(f"last {duration_of(now.since_commit_ms)} ago")
    facts.append(f"{sum(one.in_flight for one in now.tasks):,} in flight")
    yield f"<h1>{escape(plan.app)} {escape(state)}</h1><p>{escape(' · '.join(facts))}</p>"
    warnings = dict.fromkeys([*now.warnings, *(one.warning for one in now.inputs if one.warning)])
    yield "".join(f'<p class="bad">{escape(warning)}</p>' for warning in warnings)
    sentences = slow(plan, span) or ["Nowhere: it waits for records."]
    yield f"<h2>Where is it slow?</h2><ol>{''.join(f'<li>{escape(one)}</li>' for one in sentences)}</ol>"
    yield f'<div class="wide">{to_svg(plan, edge_rates(plan, span))}</div>'
    yield _table("Inputs", ("stream", "partition", "lag", "watermark (UTC)", ""), _inputs(now))
    yield _table("Operators", ("operator", "in", "out", "in per s", "calls p50", "p99", ""), _operators(plan, span))
    yield _table("Containers", ("container", "tasks", "commits", "commit p99", ""), _containers(now))


def _inputs(now: RunMetrics) -> Iterator[tuple[str, ...]]:
    for one in sorted(now.inputs, key=lambda one: (-one.lag, one.stream, one.partition)):
        words = ["in no container"] * (not one.owned) + ["ended"] * one.ended + ["idle"] * one.idle
        words += [f"{one.held:,} held back"] if one.held else []
        yield one.stream, str(one.partition), f"{one.lag:,}", watermark_of(one.watermark), ", ".join(words)


def _operators(plan: Plan, span: Interval) -> Iterator[tuple[str, ...]]:
    by_id: dict[str, list[OperatorMetrics]] = {}
    for one in span.now.operators:
        by_id.setdefault(one.operator, []).append(one)
    for operator in plan.operators:
        mine = by_id.get(operator.id, [])
        calls = span.durations("call", operator.id)
        times = [_time_of(calls.quantile(q)) if calls.count else "" for q in (0.5, 0.99)]
        troubles = {words: sum(getattr(one, field) for one in mine) for field, words in TROUBLES.items()}
        told = ", ".join(f"{number:,} {words}" for words, number in troubles.items() if number)
        received, emitted = (f"{sum(getattr(one, field) for one in mine):,}" for field in ("received", "emitted"))
        yield operator.id, received, emitted, rate_of(span.per_second(operator.id, "received")), *times, told


def _containers(now: RunMetrics) -> Iterator[tuple[str, ...]]:
    for one in now.containers:
        commits = next((part for part in one.histograms if part.what == "commit"), None)
        slowest = _time_of(commits.quantile(0.99)) if commits is not None and commits.count else ""
        words = [] if one.settled else ["has not all its tasks"]
        words += [f"silent for {duration_of(one.silent_ms)}"] if one.silent_ms > OVER_MS else []
        yield one.container, ", ".join(map(str, one.tasks)), f"{one.commits:,}", slowest, ", ".join(words)


def _table(title: str, heads: Iterable[str], rows: Iterable[tuple[str, ...]]) -> str:
    head = "".join(f"<th>{escape(one)}</th>" for one in heads)
    # The last cell says what is wrong.
    body = "".join(
        f'<tr>{"".join(f"<td>{escape(one)}</td>" for one in cells)}<td class="bad">{escape(last)}</td></tr>'
        for *cells, last in rows
    )
    return f'<h2>{title}</h2><div class="wide"><table><tr>{head}</tr>{body}</table></div>'


_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 0 auto; padding: 12px 16px 48px; max-width: 1100px; }
h1 { font-size: 22px; margin: 8px 0 0; } h2 { font-size: 17px; margin: 26px 0 6px; } p { margin: 2px 0; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 3px 14px 3px 0; border-bottom: 1px solid #8884; white-space: nowrap; }
.bad { color: #d33; } svg { max-width: none; }
"""


def _page(title: str, parts: Iterable[str]) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="2">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>"
    )
