"""The main job, examples/flights.py, over a year of flights that are made up."""

from __future__ import annotations

import asyncio
import importlib.util
import sqlite3
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
from msgspec import Struct

from benchmarks.programs.kit.hand import AsyncHand
from benchmarks.programs.kit.program import Program, Stream
from samza_dsl import App

EXAMPLE = Path(__file__).parents[2] / "examples" / "flights.py"
NEW_YORK = ZoneInfo("America/New_York")
YEAR = 1_356_998_400_000
HOUR, DISORDER = 3_600_000, 24 * 3_600_000
LATE, TOP, IN_FLIGHT = 60, 10, 500
CARRIERS, PLANES, DESTINATIONS, ORIGINS = 16, 4_000, 105, ("EWR", "JFK", "LGA")
DAYS = 365
MALFORMED = 100
MISHAPS: tuple[Callable[[bytes], bytes], ...] = (
    lambda row: row[: len(row) // 2],
    lambda row: row + row,
    lambda row: b"[" + row + b"]",
    lambda row: row.replace(b'"carrier":"', b'"carrier":7,"was":"'),
    lambda row: row.replace(b'"scheduled_ms":', b'"scheduled":'),
    lambda row: b"null",
    lambda row: b"",
)
QUERY = "SELECT precip > 0 OR visib < 3 FROM weather WHERE origin = ? AND hour_ms <= ? ORDER BY hour_ms DESC LIMIT 1"


class Flight(Struct, frozen=True):
    """A flight with its delay in minutes, None when it was cancelled."""

    scheduled_ms: int
    carrier: str
    tailnum: str | None
    origin: str
    dest: str
    delay: int | None


class Plane(Struct, frozen=True):
    """What the table of planes says about a tail number."""

    tailnum: str
    seats: int


class Airline(Struct, frozen=True):
    """What the table of airlines says about a carrier's code."""

    carrier: str
    name: str


class Delays(Struct, frozen=True):
    """How the flights of one carrier and hour left; weather counts for those that left late."""

    airline: str | None
    flights: int
    mean_delay: float
    max_delay: int
    seats: int
    in_bad_weather: int


class OfHour(Struct, frozen=True):
    """The delays of a carrier's hour."""

    key: str
    start: int
    end: int
    value: Delays


class TopDestinations(Struct, frozen=True):
    """The destinations with the most flights of one day in New York, the first one first."""

    day: str
    flights: dict[str, int]


@cache
def example() -> ModuleType:
    """Return the example, as the module that it is when it is run beside its data."""
    spec = importlib.util.spec_from_file_location("flights", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = sys.modules["flights"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pipeline(workspace: Path) -> App:
    """Return the example's pipeline; in memory there is no data directory in which it would find the weather."""
    example().DATA = workspace
    app: App = example().pipeline()
    return app


def generate(messages: int, seed: int) -> dict[str, list[Any]]:
    """Make a year of flights as one hears of them, when they leave; a hundred are malformed."""
    chance = Random(seed)
    carriers = [f"{chr(65 + number)}{number % 10}" for number in range(CARRIERS)]
    of_carrier = chance.choices(carriers, [1 / (number + 1) for number in range(CARRIERS)], k=messages)
    busy = [1 / (number + 4) for number in range(DESTINATIONS)]
    dests = chance.choices([f"D{number:02}" for number in range(DESTINATIONS)], busy, k=messages)
    told = []
    for number in range(messages):
        scheduled = YEAR + number * DAYS * 24 * 60 // messages * 60_000
        delay = delay_of(chance)
        tailnum = f"N{chance.randrange(PLANES):04}" if chance.random() > 0.01 else None
        flight = Flight(scheduled, of_carrier[number], tailnum, chance.choice(ORIGINS), dests[number], delay)
        told.append((scheduled + (delay or 0) * 60_000, number, flight))
    flights: list[Any] = [flight for _, _, flight in sorted(told)]
    for mishap in range(min(MALFORMED, messages // 20)):
        place = chance.randrange(len(flights))
        if isinstance(flights[place], Flight):
            flights.insert(place, MISHAPS[mishap % len(MISHAPS)](msgspec.json.encode(flights[place])))
    planes = [Plane(f"N{number:04}", chance.randrange(2, 400)) for number in range(PLANES) if number % 6]
    return {"flights": flights, "planes": planes, "airlines": [Airline(code, f"{code} Airlines") for code in carriers]}


def delay_of(chance: Random) -> int | None:
    """Return a delay in minutes as they are: most leave soon, a twelfth more than an hour late, a few not at all."""
    kind = chance.random()
    if kind < 0.025:
        return None
    if kind < 0.65:
        return chance.randrange(-12, 6)
    return chance.randrange(6, 61) if kind < 0.92 else min(61 + int(chance.expovariate(1 / 60)), 1_300)


def prepare(workspace: Path, seed: int) -> None:
    """Write the weather of the year beside the streams, as the example's data has it."""
    chance = Random(seed)
    hours = range(YEAR - 24 * HOUR, YEAR + (DAYS + 1) * 24 * HOUR, HOUR)
    with closing(sqlite3.connect(workspace / "weather.sqlite")) as database, database:
        database.execute(
            "CREATE TABLE weather (origin TEXT, hour_ms INTEGER, precip REAL, visib REAL, "
            "PRIMARY KEY (origin, hour_ms)) WITHOUT ROWID"
        )
        rows = (
            (origin, hour, float(chance.random() < 0.07), 10.0 if chance.random() < 0.95 else 2.0)
            for origin in ORIGINS
            for hour in hours
        )
        database.executemany("INSERT INTO weather VALUES (?, ?, ?, ?)", rows)


class ByHand(AsyncHand):
    """The sums of open hours by carrier, the counts of open days by destination; SQLite is asked in a thread."""

    keeps = ("hours", "days")

    def __init__(self, workspace: Path) -> None:
        super().__init__()
        self.seats: dict[str, int] = {}
        self.names: dict[str, str] = {}
        self.hours: dict[int, dict[str, list[Any]]] = {}  # [name, flights, sum, most, seats, in bad weather]
        self.days: dict[int, tuple[int, dict[str, int]]] = {}  # the end of the day, and flights
        self.day = (0, 0)
        self.out |= {"carrier-delays": [], "top-destinations": [], "flights-malformed": []}
        path = f"{(workspace / 'weather.sqlite').absolute().as_uri()}?mode=ro"
        self.database = sqlite3.connect(path, uri=True, check_same_thread=False)
        self.thread = ThreadPoolExecutor(1)

    def learn(self, table: str, rows: list[Any]) -> None:
        if table == "planes":
            self.seats = {plane.tailnum: plane.seats for plane in rows}
        else:
            self.names = {airline.carrier: airline.name for airline in rows}

    def takes(self) -> dict[str, Callable[[list[Any], int], Any]]:
        return {"flights": self.take}

    def malformed(self, stream: str, record: bytes, error: Exception) -> None:
        self.out["flights-malformed"].append(record)

    def look_up(self, flight: Flight) -> bool:
        found = self.database.execute(QUERY, (flight.origin, flight.scheduled_ms)).fetchone()
        return found is not None and bool(found[0])

    async def work(self, flights: Iterator[Flight]) -> None:
        loop = asyncio.get_running_loop()
        for flight in flights:
            self.add(flight, await loop.run_in_executor(self.thread, self.look_up, flight))

    async def take(self, flights: list[Flight], watermark: int) -> int:
        newest, days, late = watermark + DISORDER, self.days, []
        for flight in flights:
            at, delay = flight.scheduled_ms, flight.delay
            if at > newest:
                newest = at
            if delay is None:
                continue
            if not self.day[0] <= at < self.day[1]:
                self.day = day_of(at)
            day = days.get(self.day[0])
            if day is None:
                day = days[self.day[0]] = (self.day[1], {})
            day[1][flight.dest] = day[1].get(flight.dest, 0) + 1
            if delay > LATE:
                late.append(flight)
            else:
                self.add(flight, False)
        waiting = iter(late)
        async with asyncio.timeout(30):
            await asyncio.gather(*(self.work(waiting) for _ in range(min(IN_FLIGHT, len(late)))))
        return newest - DISORDER

    def add(self, flight: Flight, in_bad_weather: bool) -> None:
        at, carrier, delay = flight.scheduled_ms, flight.carrier, flight.delay
        assert delay is not None
        hour = at - at % HOUR
        carriers = self.hours.get(hour)
        if carriers is None:
            carriers = self.hours[hour] = {}
        seats = self.seats.get(flight.tailnum, 0)  # type: ignore[arg-type]  # None has none
        sums = carriers.get(carrier)
        if sums is None:
            carriers[carrier] = [self.names.get(carrier), 1, delay, delay, seats, in_bad_weather]
        else:
            sums[1] += 1
            sums[2] += delay
            if delay > sums[3]:
                sums[3] = delay
            sums[4] += seats
            sums[5] += in_bad_weather

    def advance(self, watermark: int) -> None:
        for hour in sorted(hour for hour in self.hours if hour + HOUR <= watermark):
            for carrier, (name, flights, minutes, most, seats, bad) in self.hours.pop(hour).items():
                delays = Delays(name, flights, minutes / flights, most, seats, int(bad))
                self.out["carrier-delays"].append(OfHour(carrier, hour, hour + HOUR, delays))
        for start in sorted(start for start, (end, _) in self.days.items() if end <= watermark):
            _, counts = self.days.pop(start)
            top = sorted(counts.items(), key=lambda counted: (-counted[1], counted[0]))[:TOP]
            day = datetime.fromtimestamp(start // 1_000, NEW_YORK).date().isoformat()
            self.out["top-destinations"].append(TopDestinations(day, dict(top)))

    def close(self) -> None:
        self.thread.shutdown()
        self.database.close()


def day_of(at_ms: int) -> tuple[int, int]:
    """Return the start and the end of the day in New York, which has 23 hours or 25 now and then."""
    day = datetime.fromtimestamp(at_ms // 1_000, NEW_YORK).replace(hour=0, minute=0, second=0)
    return int(day.timestamp()) * 1_000, int((day + timedelta(days=1)).timestamp()) * 1_000


PROGRAM = Program(
    name="flights",
    title="the main job: tables, async look-ups → windows by carrier; top destinations by day",
    messages=336_776,
    streams={
        "flights": Stream(
            Flight,
            key=lambda flight: "" if isinstance(flight, bytes) else f"{flight.carrier}{flight.tailnum}",
            carried=True,
            ours=lambda: example().Flight,
        ),
        "planes": Stream(Plane, key=lambda plane: plane.tailnum, carried=True, single=True),
        "airlines": Stream(Airline, key=lambda airline: airline.carrier, carried=True, single=True),
    },
    outputs=("carrier-delays", "top-destinations", "flights-malformed"),
    generate=generate,
    pipeline=pipeline,
    by_hand=ByHand,
    tables=frozenset({"planes", "airlines"}),
    dead_letters=frozenset({"flights-malformed"}),
    prepare=prepare,
)
