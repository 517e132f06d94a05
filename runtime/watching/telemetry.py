"""A run's metrics and spans by OpenTelemetry's API: the only place that imports it, and only where it was asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING

from operators.core.base import Batch, Headers
from runtime.functions.calls import AsyncFunction, CallHeaders, Calls
from runtime.model.clock import sleep_ms, wall_clock_ms
from runtime.model.errors import SamzaError
from runtime.model.metrics import BOUNDS_MS, Durations, HistogramMetrics, RunMetrics, Timed
from runtime.run.driver import Watched
from runtime.watching.exposition import DURATIONS, INSTRUMENTS, Instrument, Labels, series

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import CallbackOptions, Histogram, Meter, MeterProvider, Observation
    from opentelemetry.trace import Link, Tracer

SCOPE = "samza_dsl"
"""The name under which OpenTelemetry knows who made metrics and spans."""
LOOK_MS = 5_000.0
"""The interval at which numbers are gathered: readers export once a minute, and ask in threads of their own."""
SPANS: dict[Timed, str] = {"step": "process", "firing": "fire", "commit": "commit", "rebalance": "rebalance"}
"""The spans that are made of durations when these are over; calls have theirs while they run."""
MOST_LINKS = 128
"""The links of a span: SDKs keep so many where nothing else is said, and drop others."""


class Telemetry:
    """The instruments of one meter provider, and the numbers of the newest run that they tell.

    Numbers are gathered in the event loop of a run; the threads of readers only look at what was gathered last.
    """

    def __init__(self, meter: Meter, tracer: Tracer) -> None:
        self._tracer = tracer
        self._values: dict[Instrument, list[tuple[float, dict[str, str]]]] = {}
        self._durations: dict[Timed, tuple[Histogram, str]] = {}
        self.app = ""
        for what, (instrument, label) in DURATIONS.items():
            bounds = [bound / 1_000 for bound in BOUNDS_MS]
            made = meter.create_histogram(
                instrument.name, instrument.unit, instrument.help, explicit_bucket_boundaries_advisory=bounds
            )
            self._durations[what] = made, label
        for instrument in INSTRUMENTS:
            how = {"counter": meter.create_observable_counter, "gauge": meter.create_observable_gauge}
            if instrument.type in how:
                how[instrument.type](instrument.name, [self._observing(instrument)], instrument.unit, instrument.help)

    def _observing(self, instrument: Instrument) -> Callable[[CallbackOptions], Iterable[Observation]]:
        from opentelemetry.metrics import Observation

        def observe(_: CallbackOptions) -> Iterator[Observation]:
            for value, labels in self._values.get(instrument, ()):
                yield Observation(value, labels)

        return observe

    def take(self, metrics: RunMetrics) -> None:
        """Take in the numbers of a run."""
        found: dict[Instrument, list[tuple[float, dict[str, str]]]] = {}
        for instrument, labels, value in series(metrics, wall_clock_ms()):
            if not isinstance(value, HistogramMetrics):
                found.setdefault(instrument, []).append((value, self._attributes(labels)))
        # At once: a reader may be looking.
        self._values = found

    def _attributes(self, labels: Labels) -> dict[str, str]:
        return {f"samza.{name}": value for name, value in (("app", self.app), *labels)}

    def hear(self, what: Timed, of: str, ms: float, held: Sequence[Batch] = ()) -> None:
        """Hear of a duration that is over, in the thread in which it was counted."""
        histogram, label = self._durations[what]
        attributes = self._attributes(((label, of),) if label else ())
        histogram.record(ms / 1_000, attributes)
        if what in SPANS:
            ended_ns = wall_clock_ms() * 1_000_000
            began_ns = ended_ns - int(ms * 1_000_000)
            span = self._tracer.start_span(
                SPANS[what], start_time=began_ns, attributes=attributes, links=_links_of(held)
            )
            span.end(ended_ns)

    async def call(
        self, operator: str, function: AsyncFunction, argument: object, headers: CallHeaders | None
    ) -> object:
        """Make a call within a span, which is the parent of what the call does.

        The span's own parent is that of the message's headers, where it has one, and the results' headers name it.
        """
        from opentelemetry.propagate import inject

        attributes = self._attributes((("operator", operator),))
        parent = _context_in(headers.found) if headers is not None and headers.found else None
        with self._tracer.start_as_current_span(f"call {operator}", parent, attributes=attributes):
            result = await function(argument)
            # Behind the call: another try at it is no part of this one.
            if headers is not None:
                carried: dict[str, str] = {}
                inject(carried)
                headers.add({name: value.encode("latin-1") for name, value in carried.items()})
            return result

    async def watch(self, run: Watched) -> None:
        """Gather the numbers of a run, beside it in its event loop, until cancelled at its end."""
        self.app = run.plan.app
        try:
            while True:
                self.take(run.metrics())
                await sleep_ms(LOOK_MS)
        finally:
            if not run.failed:
                self.take(run.metrics())


def _context_in(headers: Headers) -> Context:
    """Return the context that a message's headers name."""
    from opentelemetry.propagate import extract

    return extract({name: value.decode("latin-1") for name, value in headers.items() if value is not None})


def _links_of(held: Sequence[Batch]) -> list[Link]:
    """Return links to the spans that messages name in their headers, each once, of the first `MOST_LINKS`."""
    from opentelemetry.trace import Link, get_current_span

    found: dict[tuple[int, int], Link] = {}
    for headers in chain.from_iterable(batch.headers or () for batch in held):
        if headers:
            span = get_current_span(_context_in(headers)).get_span_context()
            if span.is_valid:
                found.setdefault((span.trace_id, span.span_id), Link(span))
        if len(found) == MOST_LINKS:
            break
    return [*found.values()]


@cache
def _telemetry(provider: MeterProvider) -> Telemetry:
    """Return what tells a provider, made once: it takes an instrument that it has already for a mistake."""
    from opentelemetry.trace import get_tracer

    return Telemetry(provider.get_meter(SCOPE), get_tracer(SCOPE))


@contextmanager
def telling(app: str) -> Iterator[Telemetry]:
    """Tell the providers of this program of all durations and calls of an application during a block.

    Raises SamzaError where OpenTelemetry is not installed.
    """
    try:
        from opentelemetry.metrics import get_meter_provider
    except ImportError:
        raise SamzaError(
            "opentelemetry=True needs OpenTelemetry's API, and it is not installed: pip install 'samza-dsl[otel]'"
        ) from None
    found = _telemetry(get_meter_provider())
    found.app = app
    before = Durations.listener, Calls.around
    Durations.listener, Calls.around = found.hear, found.call
    try:
        yield found
    finally:
        Durations.listener, Calls.around = before
