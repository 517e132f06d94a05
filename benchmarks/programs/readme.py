"""README's pipeline: delays by carrier and hour, as a mean, a count and a worst one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from msgspec import Struct

from benchmarks.programs.kit.hand import END, Hand
from benchmarks.programs.kit.program import Program, Stream
from samza_dsl import App, aggregate, count, maximum, mean, tumbling

HOUR = 3_600_000
DISORDER = 3_600_000
CARRIERS = 16


class Flight(Struct):
    """A flight with its delay in minutes, None when it was cancelled."""

    carrier: str
    scheduled_ms: int
    delay: int | None


class Delays(Struct):
    """How the flights of one carrier and hour left."""

    flights: int
    mean_minutes: float
    most: int


def generate(messages: int, seed: int) -> dict[str, list[Flight]]:
    """Make flights a second and a half apart that are told up to an hour late; one in forty is cancelled."""
    chance = Random(seed)
    carriers = [f"{letter}{digit}" for letter in "ABCD" for digit in range(CARRIERS // 4)]
    flights = []
    for number in range(messages):
        delay = None if chance.random() < 0.025 else int(chance.expovariate(0.07)) - 5
        flights.append(Flight(chance.choice(carriers), number * 1_500 + DISORDER - chance.randrange(DISORDER), delay))
    return {"flights": flights}


def pipeline(workspace: Path) -> App:
    """Return README's pipeline, with the worst delay beside the mean."""
    app = App("carrier-delays")
    flights = app.input("flights", value=Flight, timestamp=lambda f: f.scheduled_ms, max_disorder_ms=DISORDER)
    (
        flights.filter(lambda f: f.delay is not None)
        .partition_by(lambda f: f.carrier)
        .window(
            tumbling(hours=1),
            aggregate(
                Delays,
                flights=count(),
                mean_minutes=mean(lambda f: f.delay),
                most=maximum(lambda f: f.delay),
            ),
        )
        .map(lambda pane: {"carrier": pane.key, "hour": pane.start, "delays": pane.value})
        .send_to(app.output("carrier-delays"))
    )
    return app


class ByHand(Hand):
    """A dict of carriers for each open hour."""

    keeps = ("hours",)

    def __init__(self) -> None:
        super().__init__()
        self.hours: dict[int, dict[str, list[int]]] = {}
        self.out["carrier-delays"] = []

    def takes(self) -> dict[str, Callable[[list[Any], int], int]]:
        return {"flights": self.take}

    def take(self, flights: list[Flight], watermark: int) -> int:
        hours, newest = self.hours, watermark + DISORDER
        for flight in flights:
            at, delay = flight.scheduled_ms, flight.delay
            if delay is not None:
                hour = at - at % HOUR
                carriers = hours.get(hour)
                if carriers is None:
                    if hour + HOUR <= newest - DISORDER:
                        continue  # late
                    carriers = hours[hour] = {}
                sums = carriers.get(flight.carrier)
                if sums is None:
                    carriers[flight.carrier] = [1, delay, delay]
                else:
                    sums[0] += 1
                    sums[1] += delay
                    if delay > sums[2]:
                        sums[2] = delay
            if at > newest:
                newest = at
        return newest - DISORDER

    def advance(self, watermark: int) -> None:
        out = self.out["carrier-delays"]
        for hour in sorted(hour for hour in self.hours if hour + HOUR <= watermark or watermark == END):
            for carrier, (flights, minutes, most) in self.hours.pop(hour).items():
                delays = Delays(flights, minutes / flights, most)
                out.append({"carrier": carrier, "hour": hour, "delays": delays})


PROGRAM = Program(
    name="readme",
    title="README: filter → partition_by → tumbling count, mean, max",
    messages=1_000_000,
    streams={"flights": Stream(Flight)},
    outputs=("carrier-delays",),
    generate=generate,
    pipeline=pipeline,
    by_hand=lambda workspace: ByHand(),
    is_on_kafka=True,
)
