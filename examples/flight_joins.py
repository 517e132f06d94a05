"""Over the same flights: the weather in which each one left, and the plane as it was known at that time."""

from __future__ import annotations

import argparse
from pathlib import Path

from flights import DATA, Flight
from flights_data import load
from msgspec import Struct

from samza_dsl import App, dead_letter, duration_ms


class Observation(Struct, frozen=True):
    """What an airport's weather was at a full hour."""

    at_ms: int
    precip: float
    visib: float


class PlaneVersion(Struct, frozen=True):
    """What is known of a plane, from the year on in which it was built."""

    since_ms: int
    model: str
    seats: int


class InWeather(Struct, frozen=True):
    """A departure, and the weather of its hour, if it was observed."""

    carrier: str
    number: int
    scheduled_ms: int
    precip: float | None
    visib: float | None


class OnPlane(Struct, frozen=True):
    """A departure, and the plane, if it was known by then."""

    carrier: str
    number: int
    scheduled_ms: int
    model: str | None
    seats: int | None


class Departure(Flight, frozen=True, kw_only=True):
    """A flight by its number."""

    number: int


def in_weather(flight: Departure, observed: Observation | None) -> InWeather:
    weather = (None, None) if observed is None else (observed.precip, observed.visib)
    return InWeather(flight.carrier, flight.number, flight.scheduled_ms, *weather)


def on_plane(flight: Departure, plane: PlaneVersion | None) -> OnPlane:
    known = (None, None) if plane is None else (plane.model, plane.seats)
    return OnPlane(flight.carrier, flight.number, flight.scheduled_ms, *known)


def pipeline() -> App:
    app = App("flight-joins")
    flights = app.input(
        "flights",
        key=str,
        value=Departure,
        timestamp=lambda flight: flight.scheduled_ms,
        max_disorder_ms=duration_ms(hours=24),
        on_error=dead_letter("flights-malformed-again"),
    )
    weather = app.input("weather", key=str, value=Observation, timestamp=lambda observed: observed.at_ms)
    planes = app.table(
        "plane-versions", key=str, value=PlaneVersion, timestamp=lambda plane: plane.since_ms, retention_ms=0
    )
    departed = flights.filter(lambda flight: flight.delay is not None)
    (
        departed.partition_by(lambda flight: flight.origin, key_type=str, value=Departure, op_id="by-origin")
        .join(weather, in_weather, within=(1 - duration_ms(hours=1), 0), how="left")
        .send_to(app.output("departures-in-weather", key=str, value=InWeather))
    )
    (
        departed.filter(lambda flight: flight.tailnum is not None)
        .partition_by(lambda flight: flight.tailnum, key_type=str, value=Departure, op_id="by-aircraft")
        .join(planes, on_plane, how="left")
        .send_to(app.output("departures-on-planes", key=str, value=OnPlane))
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
