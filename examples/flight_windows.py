"""Over the same flights: how late each airport runs, every ten minutes and soon, and the bad days of each aircraft."""

from __future__ import annotations

import argparse
from pathlib import Path

from flights import DATA, Flight
from flights_data import load
from msgspec import Struct

from samza_dsl import (
    App,
    Pane,
    after_count,
    aggregate,
    count,
    dead_letter,
    duration_ms,
    hopping,
    maximum,
    mean,
    session,
    total,
)

DELAYED_MINUTES = 15
EARLY_FLIGHTS = 10
"""Flights whose reports may be a day late are waited for; after so many a half hour is told of as it is by then."""


class Rolling(Struct, frozen=True):
    """The flights that left an airport within half an hour."""

    flights: int
    mean_delay: float


class BadDay(Struct, frozen=True):
    """The delayed flights of one aircraft, of which none left three hours after the one before."""

    flights: int
    minutes: int
    worst: int


def pipeline() -> App:
    app = App("flight-windows")
    flights = app.input(
        "flights",
        key=str,
        value=Flight,
        timestamp=lambda flight: flight.scheduled_ms,
        max_disorder_ms=duration_ms(hours=24),
        on_error=dead_letter("flights-malformed-too"),
    )
    departed = flights.filter(lambda flight: flight.delay is not None)
    (
        departed.partition_by(lambda flight: flight.origin, value=Flight, op_id="by-origin")
        .window(
            hopping(minutes=30, every_ms=duration_ms(minutes=10)),
            aggregate(Rolling, flights=count(), mean_delay=mean(lambda flight: flight.delay)),
            early=after_count(EARLY_FLIGHTS),
        )
        .send_to(app.output("rolling-delays", key=str, value=Pane[str, Rolling]))
    )
    (
        departed.filter(lambda flight: flight.tailnum is not None and flight.delay > DELAYED_MINUTES)
        .partition_by(lambda flight: flight.tailnum, value=Flight, op_id="by-aircraft")
        .window(
            session(hours=3),
            aggregate(
                BadDay,
                flights=count(),
                minutes=total(lambda flight: flight.delay),
                worst=maximum(lambda flight: flight.delay),
            ),
        )
        .send_to(app.output("bad-days", key=str, value=Pane[str, BadDay]))
    )
    return app


app = pipeline()


def main() -> None:
    parser = argparse.ArgumentParser(description="Loads a year of flights, where it is missing, and runs to its end.")
    parser.add_argument("--data", type=Path, default=DATA, help="the directory of the embedded log")
    data = parser.parse_args().data
    load(data)
    app.run(data)


if __name__ == "__main__":
    main()
