"""The main job: a year of flights from New York, its delays by carrier and hour, its top destinations by day."""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from msgspec import Struct
from msgspec.structs import replace

from samza_dsl import (
    App,
    Context,
    Pane,
    Spark,
    aggregate,
    count,
    daily,
    dead_letter,
    duration_ms,
    maximum,
    mean,
    top_k,
    total,
    tumbling,
)

DATA = Path(".samza-dsl")
NEW_YORK = "America/New_York"
LATE_MINUTES = 60


class Plane(Struct):
    """What the table of planes says about a tail number."""

    seats: int


class Airline(Struct):
    """What the table of airlines says about a carrier's code."""

    name: str


class Flight(Struct, frozen=True):
    """A flight with its delay in minutes, None when it was cancelled; what has a default, the job finds out."""

    scheduled_ms: int
    carrier: str
    tailnum: str | None
    origin: str
    dest: str
    delay: int | None
    airline: str | None = None
    seats: int | None = None
    bad_weather: bool = False


class Delays(Struct, frozen=True):
    """How the flights of one carrier and hour left; weather counts for those that left late."""

    airline: str | None
    flights: int
    mean_delay: float
    max_delay: int
    seats: int
    in_bad_weather: int


class TopDestinations(Struct, frozen=True):
    """The destinations with the most flights of one day in New York, the first one first."""

    day: str
    flights: dict[str, int]


class WeatherAtOrigin:
    """Looks up whether there was rain, snow or fog at the origin, as last observed before a flight was to leave.

    SQLite blocks, so each task has a connection of its own, and a thread that uses it.
    """

    QUERY = """
        SELECT precip > 0 OR visib < 3 FROM weather
        WHERE origin = ? AND hour_ms <= ? ORDER BY hour_ms DESC LIMIT 1
    """

    def open(self, context: Context) -> None:
        path = (context.data or DATA).absolute() / "weather.sqlite"
        self.database = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, check_same_thread=False)
        self.thread = ThreadPoolExecutor(1, "weather")

    def close(self) -> None:
        self.thread.shutdown(cancel_futures=True)
        self.database.close()

    async def __call__(self, flight: Flight) -> Iterable[Flight]:
        is_bad = await asyncio.get_running_loop().run_in_executor(self.thread, self.look_up, flight)
        return [replace(flight, bad_weather=is_bad)]

    def look_up(self, flight: Flight) -> bool:
        found = self.database.execute(self.QUERY, (flight.origin, flight.scheduled_ms)).fetchone()
        return found is not None and bool(found[0])


def with_plane(flight: Flight, plane: Plane | None) -> Flight:
    return replace(flight, seats=plane.seats) if plane else flight


def with_airline(flight: Flight, airline: Airline | None) -> Flight:
    return replace(flight, airline=airline.name) if airline else flight


def punctuality(flight: Flight) -> str:
    return "late" if flight.delay is not None and flight.delay > LATE_MINUTES else "on_time"


def day_in_new_york(pane: Pane[str, int]) -> str:
    return datetime.fromtimestamp(pane.start // 1000, ZoneInfo(NEW_YORK)).date().isoformat()


def ranking(pane: Pane[str, list[Pane[str, int]]]) -> TopDestinations:
    return TopDestinations(pane.key, {counted.key: counted.value for counted in pane.value})


def pipeline() -> App:
    app = App("flights")
    flights = app.input(
        "flights",
        key=str,
        value=Flight,
        timestamp=lambda flight: flight.scheduled_ms,
        max_disorder_ms=duration_ms(hours=24),
        on_error=dead_letter("flights-malformed"),
    )
    planes = app.table("planes", key=str, value=Plane, broadcast=True)
    airlines = app.table("airlines", key=str, value=Airline, broadcast=True)

    departed = flights.filter(lambda flight: flight.delay is not None)

    by_punctuality = (
        departed.join(planes, with_plane, on=lambda flight: flight.tailnum, how="left")
        .join(airlines, with_airline, on=lambda flight: flight.carrier, how="left")
        .branch(punctuality, into=("late", "on_time"))
    )
    (
        by_punctuality["late"]
        .async_flat_map(WeatherAtOrigin(), max_in_flight=500, timeout_ms=5_000, op_id="weather")
        .merge(by_punctuality["on_time"])
        .partition_by(lambda flight: flight.carrier, value=Flight, op_id="by-carrier")
        .window(
            tumbling(hours=1),
            aggregate(
                Delays,
                airline=maximum(lambda flight: flight.airline),  # the same of all flights of a carrier
                flights=count(),
                mean_delay=mean(lambda flight: flight.delay),
                max_delay=maximum(lambda flight: flight.delay),
                seats=total(lambda flight: flight.seats),
                in_bad_weather=total(lambda flight: flight.bad_weather),
            ),
        )
        .send_to(app.output("carrier-delays", key=str, value=Pane[str, Delays]))
    )
    (
        departed.partition_by(lambda flight: flight.dest, value=Flight, op_id="by-destination")
        .window(daily(NEW_YORK), count())
        .partition_by(day_in_new_york, op_id="by-day")
        .window(daily(NEW_YORK), top_k(10, by=lambda counted: counted.value, then=lambda counted: counted.key))
        .map(ranking)
        .send_to(app.output("top-destinations", key=str, value=TopDestinations))
    )
    return app


app = pipeline()


def main() -> None:
    from flights_data import PARTITIONS, load

    parser = argparse.ArgumentParser(description="Loads a year of flights, where it is missing, and runs to its end.")
    parser.add_argument("--data", type=Path, help="the directory of the embedded log")
    parser.add_argument("--on", choices=["spark"], help="run there, on all cores of this machine")
    said = parser.parse_args()
    data = said.data or (DATA if said.on is None else DATA.with_name(".samza-dsl-on-spark"))
    load(data)
    print(app.plan({"flights": PARTITIONS}))
    run = app.run(data, live=True) if said.on is None else app.run(data, on=Spark())
    for stream in ("carrier-delays", "top-destinations", "flights-malformed"):
        values = run.received(stream)
        print(f"{stream:<17} {len(values):>7,}  {str(values[0])[:120] if values else ''}")


if __name__ == "__main__":
    main()
