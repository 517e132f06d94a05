"""Flights four ways: rolling delays with early panes, bad days of aircraft, the weather of each, and its plane."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from msgspec import Struct

from benchmarks.programs.kit.hand import Hand, joined
from benchmarks.programs.kit.program import Program, Stream
from samza_dsl import App, Pane, after_count, aggregate, count, duration_ms, hopping, maximum, mean, session, total

START = 1_356_998_400_000
MINUTE, HOUR, DAY = 60_000, 3_600_000, 24 * 3_600_000
LENGTH, STEP, GAP = 30 * MINUTE, 10 * MINUTE, 3 * HOUR
DAYS, DELAYED, EARLY = 5, 15, 10
ORIGINS, PLANES = 300, 3_000


class Flight(Struct, frozen=True):
    """A flight with its delay in minutes, None when it was cancelled."""

    scheduled_ms: int
    carrier: str
    number: int
    tailnum: str | None
    origin: str
    delay: int | None


class Observation(Struct, frozen=True):
    """What an airport's weather was at a full hour."""

    at_ms: int
    origin: str
    precip: int
    visib: int


class PlaneVersion(Struct, frozen=True):
    """What is known of a plane from some time on."""

    since_ms: int
    tailnum: str
    model: str
    seats: int


class Rolling(Struct, frozen=True):
    """The flights that left an airport within half an hour."""

    flights: int
    mean_delay: float


class RollingPane(Struct, frozen=True, omit_defaults=True):
    """A pane of those, as it is written by hand."""

    key: str
    start: int
    end: int
    value: Rolling
    index: int = 0
    timing: str = "on_time"


class BadDay(Struct, frozen=True):
    """The delayed flights of one aircraft, of which none left three hours after the one before."""

    flights: int
    minutes: int
    worst: int


class BadDayPane(Struct, frozen=True):
    """A pane of those, as it is written by hand."""

    key: str
    start: int
    end: int
    value: BadDay


class InWeather(Struct, frozen=True):
    """A departure, and the weather of its hour, if it was observed."""

    carrier: str
    number: int
    scheduled_ms: int
    precip: int | None
    visib: int | None


class OnPlane(Struct, frozen=True):
    """A departure, and the plane, if it was known by then."""

    carrier: str
    number: int
    scheduled_ms: int
    model: str | None
    seats: int | None


def generate(messages: int, seed: int) -> dict[str, list[Any]]:
    """Make five days of flights as one hears of them when they leave, of weather, and of planes."""
    chance = Random(seed)
    names = [f"A{number:03}" for number in range(ORIGINS)]
    origins = chance.choices(names, [1 / (number + 4) for number in range(ORIGINS)], k=messages)
    told = []
    for number in range(messages):
        scheduled = START + number * DAYS * 24 * 60 // messages * MINUTE
        kind = chance.random()
        delay = None if kind < 0.025 else chance.randrange(-12, 16) if kind < 0.75 else chance.randrange(16, 300)
        tailnum = f"N{chance.randrange(PLANES):04}" if chance.random() > 0.01 else None
        flight = Flight(scheduled, f"C{number % 16:02}", number, tailnum, origins[number], delay)
        told.append((scheduled + (delay or 0) * MINUTE, number, flight))
    hours = range(START - HOUR, START + DAYS * DAY, HOUR)
    weather = [
        Observation(hour, origin, chance.randrange(10), chance.randrange(1, 11))
        for hour in hours
        for origin in names
        if chance.random() > 0.02
    ]
    versions = [
        PlaneVersion(since, f"N{plane:04}", f"model-{plane % 40}", chance.randrange(2, 400))
        for plane in range(PLANES)
        for since in (START - 12 * HOUR, START + chance.randrange(DAYS * DAY))[plane % 5 == 4 : 1 + (plane % 3 == 0)]
    ]
    versions.sort(key=lambda version: version.since_ms)
    return {"flights": [flight for _, _, flight in sorted(told)], "weather": weather, "plane-versions": versions}


def in_weather(flight: Flight, observed: Observation | None) -> InWeather:
    weather = (None, None) if observed is None else (observed.precip, observed.visib)
    return InWeather(flight.carrier, flight.number, flight.scheduled_ms, *weather)


def on_plane(flight: Flight, plane: PlaneVersion | None) -> OnPlane:
    known = (None, None) if plane is None else (plane.model, plane.seats)
    return OnPlane(flight.carrier, flight.number, flight.scheduled_ms, *known)


def pipeline(workspace: Path) -> App:
    app = App("flight-windows-and-joins")
    flights = app.input(
        "flights", value=Flight, timestamp=lambda flight: flight.scheduled_ms, max_disorder_ms=duration_ms(hours=24)
    )
    weather = app.input("weather", key=str, value=Observation, timestamp=lambda observed: observed.at_ms)
    planes = app.table(
        "plane-versions", key=str, value=PlaneVersion, timestamp=lambda plane: plane.since_ms, retention_ms=0
    )
    departed = flights.filter(lambda flight: flight.delay is not None)
    by_origin = departed.partition_by(lambda flight: flight.origin, key_type=str, value=Flight, op_id="by-origin")
    (
        by_origin.window(
            hopping(minutes=30, every_ms=duration_ms(minutes=10)),
            aggregate(Rolling, flights=count(), mean_delay=mean(lambda flight: flight.delay)),
            early=after_count(EARLY),
        ).send_to(app.output("rolling-delays", key=str, value=Pane[str, Rolling]))
    )
    (
        by_origin.join(weather, in_weather, within=(1 - duration_ms(hours=1), 0), how="left").send_to(
            app.output("departures-in-weather", key=str, value=InWeather)
        )
    )
    by_aircraft = departed.filter(lambda flight: flight.tailnum is not None).partition_by(
        lambda flight: flight.tailnum, key_type=str, value=Flight, op_id="by-aircraft"
    )
    (
        by_aircraft.filter(lambda flight: flight.delay > DELAYED)
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
    by_aircraft.join(planes, on_plane, how="left").send_to(app.output("departures-on-planes", key=str, value=OnPlane))
    return app


class ByHand(Hand):
    """Dicts of open windows, of open bad days and of the weather; flights wait for it; versions are all there."""

    keeps = ("windows", "aircraft", "due", "weather", "waiting")

    def __init__(self) -> None:
        super().__init__()
        self.versions: dict[str, tuple[list[int], list[PlaneVersion]]] = {}
        self.windows: dict[int, dict[str, list[int]]] = {}  # [flights, minutes, panes]
        self.aircraft: dict[str, list[list[int]]] = {}  # [start, end, flights, minutes, worst]
        self.due: list[tuple[int, str]] = []
        self.weather: dict[int, dict[str, Observation]] = {}
        self.waiting: list[tuple[int, int, Flight]] = []
        for name in ("rolling-delays", "bad-days", "departures-in-weather", "departures-on-planes"):
            self.out[name] = []

    def learn(self, table: str, rows: list[PlaneVersion]) -> None:
        for version in rows:
            since, versions = self.versions.setdefault(version.tailnum, ([], []))
            since.append(version.since_ms)
            versions.append(version)

    def takes(self) -> dict[str, Callable[[list[Any], int], int]]:
        return {"flights": self.take_flights, "weather": self.take_weather}

    def take_weather(self, observations: list[Observation], watermark: int) -> int:
        for observed in observations:
            self.weather.setdefault(observed.at_ms - observed.at_ms % HOUR, {})[observed.origin] = observed
        return max(watermark, observations[-1].at_ms)

    def take_flights(self, flights: list[Flight], watermark: int) -> int:
        newest = watermark + DAY
        on_planes = self.out["departures-on-planes"]
        for flight in flights:
            at, delay, tailnum = flight.scheduled_ms, flight.delay, flight.tailnum
            if at > newest:
                newest = at
            if delay is None:
                continue
            self.roll(flight.origin, at, delay)
            self.meet(flight)
            if tailnum is not None:
                on_planes.append(on_plane(flight, self.version(tailnum, at)))
                if delay > DELAYED:
                    self.delay(tailnum, at, delay)
        return newest - DAY

    def roll(self, origin: str, at: int, delay: int) -> None:
        last = at - at % STEP
        for start in range(last - LENGTH + STEP, last + STEP, STEP):
            origins = self.windows.get(start)
            if origins is None:
                origins = self.windows[start] = {}
            sums = origins.get(origin)
            if sums is None:
                origins[origin] = [1, delay, 0]
                continue
            sums[0] += 1
            sums[1] += delay
            if sums[0] % EARLY == 0:
                rolling = Rolling(sums[0], sums[1] / sums[0])
                self.out["rolling-delays"].append(RollingPane(origin, start, start + LENGTH, rolling, sums[2], "early"))
                sums[2] += 1

    def meet(self, flight: Flight) -> None:
        at = flight.scheduled_ms
        observed = self.weather.get(at - at % HOUR, {}).get(flight.origin)
        if observed is None:
            heapq.heappush(self.waiting, (at, flight.number, flight))
        else:
            self.out["departures-in-weather"].append(in_weather(flight, observed))

    def version(self, tailnum: str, at: int) -> PlaneVersion | None:
        since, versions = self.versions.get(tailnum, ((), ()))
        place = bisect_right(since, at)
        return versions[place - 1] if place else None

    def delay(self, tailnum: str, at: int, minutes: int) -> None:
        days = self.aircraft.get(tailnum)
        if days is None:
            days = self.aircraft[tailnum] = []
        for day in days:
            if day[0] < at + GAP and at < day[1]:
                day[0], day[1] = min(day[0], at), max(day[1], at + GAP)
                day[2] += 1
                day[3] += minutes
                day[4] = max(day[4], minutes)
                break
        else:
            days.append([at, at + GAP, 1, minutes, minutes])
            heapq.heappush(self.due, (at + GAP, tailnum))
        if len(days) > 1:
            self.aircraft[tailnum] = joined(days)

    def advance(self, watermark: int) -> None:
        for start in sorted(start for start in self.windows if start + LENGTH <= watermark):
            for origin, (flights, minutes, panes) in self.windows.pop(start).items():
                rolling = Rolling(flights, minutes / flights)
                self.out["rolling-delays"].append(RollingPane(origin, start, start + LENGTH, rolling, panes))
        while self.due and self.due[0][0] <= watermark:
            self.end_day(*heapq.heappop(self.due))
        while self.waiting and self.waiting[0][0] < watermark:
            at, _, flight = heapq.heappop(self.waiting)
            observed = self.weather.get(at - at % HOUR, {}).get(flight.origin)
            self.out["departures-in-weather"].append(in_weather(flight, observed))
        for hour in [hour for hour in self.weather if hour + HOUR <= watermark]:
            del self.weather[hour]

    def end_day(self, end: int, tailnum: str) -> None:
        days = self.aircraft.get(tailnum, [])
        for day in days:
            if day[1] == end:
                self.out["bad-days"].append(BadDayPane(tailnum, day[0], end, BadDay(*day[2:])))
                days.remove(day)
                if not days:
                    del self.aircraft[tailnum]
                return
            if day[0] < end < day[1]:
                heapq.heappush(self.due, (day[1], tailnum))
                return


PROGRAM = Program(
    name="flight_windows",
    title="flights: hopping with early panes, sessions, weather within an hour, planes as of then",
    messages=150_000,
    streams={
        "flights": Stream(Flight, key=lambda flight: flight.origin),
        "weather": Stream(Observation, key=lambda observed: observed.origin, carried=True, single=True),
        "plane-versions": Stream(PlaneVersion, key=lambda plane: plane.tailnum, carried=True, single=True),
    },
    outputs=("rolling-delays", "bad-days", "departures-in-weather", "departures-on-planes"),
    generate=generate,
    pipeline=pipeline,
    by_hand=lambda workspace: ByHand(),
    tables=frozenset({"plane-versions"}),
)
