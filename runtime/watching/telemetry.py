"""A run's metrics and spans by OpenTelemetry's API: the only place that imports it, and only where it was asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import chain, count
from typing import TYPE_CHECKING

from operators.core.base import Batch, Headers
from runtime.functions.calls import AsyncFunction, CallHeaders
from runtime.model.clock import sleep_ms, wall_clock_ms
from runtime.model.errors import SamzaError
from runtime.model.metrics import BOUNDS_MS, HistogramMetrics, RunMetrics, Timed
from runtime.run.driver import Watched, numbers_of
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


Values = dict[Instrument, list[tuple[float, dict[str, str]]]]


class Instruments:
    """The instruments of one meter provider, and the numbers of all runs of this process that they tell.

    Numbers are gathered in the event loop of a run; the threads of readers only look at what was gathered last.
    """

    def __init__(self, meter: Meter, tracer: Tracer) -> None:
        self.tracer = tracer
        self.values: dict[Telemetry, Values] = {}
        """The numbers of each run; those of one that is over stay until the next begins, to be told a last time."""
        self.durations: dict[Timed, tuple[Histogram, str]] = {}
        for what, (instrument, label) in DURATIONS.items():
            bounds = [bound / 1_000 for bound in BOUNDS_MS]
            made = meter.create_histogram(
                instrument.name, instrument.unit, instrument.help, explicit_bucket_boundaries_advisory=bounds
            )
            self.durations[what] = made, label
        for instrument in INSTRUMENTS:
            how = {"counter": meter.create_observable_counter, "gauge": meter.create_observable_gauge}
            if instrument.type in how:
                how[instrument.type](instrument.name, [self._observing(instrument)], instrument.unit, instrument.help)

    def _observing(self, instrument: Instrument) -> Callable[[CallbackOptions], Iterable[Observation]]:
        from opentelemetry.metrics import Observation

        def observe(_: CallbackOptions) -> Iterator[Observation]:
            for values in [*self.values.values()]:
                for value, labels in values.get(instrument, ()):
                    yield Observation(value, labels)

        return observe


class Telemetry:
    """One run as it is told by the instruments of this process: its numbers, and durations and spans of a container."""

    def __init__(self, instruments: Instruments, app: str, container: str) -> None:
        self._instruments, self._app, self._container = instruments, app, container
        self._is_over, self._number = False, 1

    def take(self, metrics: RunMetrics) -> None:
        """Take in the numbers of a run."""
        found: Values = {}
        for instrument, labels, value in series(metrics, wall_clock_ms()):
            if not isinstance(value, HistogramMetrics):
                found.setdefault(instrument, []).append((value, self._attributes(labels)))
        # At once: a reader may be looking.
        self._instruments.values[self] = found

    def _attributes(self, labels: Labels) -> dict[str, str]:
        # A second run of one application in one process is told apart: nobody could add the two up, or draw them.
        own = (("app", self._app), *((("run", str(self._number)),) if self._number > 1 else ()))
        return {f"samza.{name}": value for name, value in (*own, *labels)}

    def hear(self, what: Timed, of: str, ms: float, held: Sequence[Batch] = ()) -> None:
        """Hear of a duration that is over, in the thread in which it was counted."""
        histogram, label = self._instruments.durations[what]
        own = ("container", self._container)
        attributes = self._attributes((own, (label, of)) if label else (own,))
        histogram.record(ms / 1_000, attributes)
        if what in SPANS:
            ended_ns = wall_clock_ms() * 1_000_000
            began_ns = ended_ns - int(ms * 1_000_000)
            span = self._instruments.tracer.start_span(
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

        attributes = self._attributes((("container", self._container), ("operator", operator)))
        parent = _context_in(headers.found) if headers is not None and headers.found else None
        tracer = self._instruments.tracer
        with tracer.start_as_current_span(f"call {operator}", parent, attributes=attributes):
            result = await function(argument)
            # Behind the call: another try at it is no part of this one.
            if headers is not None:
                carried: dict[str, str] = {}
                inject(carried)
                headers.add({name: value.encode("latin-1") for name, value in carried.items()})
            return result

    async def watch(self, run: Watched) -> None:
        """Gather the numbers of a run, beside it in its event loop, until cancelled at its end."""
        values = self._instruments.values
        for over in [one for one in [*values] if one._is_over]:
            values.pop(over, None)
        others = {one._number for one in values if (one._app, one._container) == (self._app, self._container)}
        self._is_over, self._number = False, next(number for number in count(1) if number not in others)
        try:
            while True:
                self.take(await numbers_of(run))
                await sleep_ms(LOOK_MS)
        finally:
            self._is_over = True
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
def _instruments(provider: MeterProvider) -> Instruments:
    """Return what tells a provider, made once: it takes an instrument that it has already for a mistake."""
    from opentelemetry.trace import get_tracer

    return Instruments(provider.get_meter(SCOPE), get_tracer(SCOPE))


def telling(app: str, container: str = "0") -> Telemetry:
    """Return what tells the providers of this program of a run's numbers, and of a container's durations and calls.

    Raises SamzaError where OpenTelemetry is not installed.
    """
    try:
        from opentelemetry.metrics import get_meter_provider
    except ImportError:
        raise SamzaError(
            "opentelemetry=True needs OpenTelemetry's API, and it is not installed: pip install 'samza-dsl[otel]'"
        ) from None
    return Telemetry(_instruments(get_meter_provider()), app, container)
