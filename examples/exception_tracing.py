"""Exception tracing: on which machine an exception was thrown (Table 1 of Samza's paper, VLDB 2017)."""

from __future__ import annotations

import random
from collections.abc import Iterator

from msgspec import Struct

from samza_dsl import App, duration_ms, testing


class Thrown(Struct, frozen=True):
    """An exception of an instance of an application."""

    at_ms: int
    instance: str
    kind: str


class Placement(Struct, frozen=True):
    """An instance runs on a machine from now on."""

    at_ms: int
    instance: str
    machine: str


class Traced(Struct, frozen=True):
    """An exception with the machine that its instance ran on, None where nobody knows."""

    thrown: Thrown
    machine: str | None


def traced(thrown: Thrown, placement: Placement | None) -> Traced:
    return Traced(thrown, placement.machine if placement else None)


app = App("exception-tracing")
placements = app.table(
    "placements",
    key=lambda placement: placement.instance,
    value=Placement,
    partitioned_by_key=True,
    timestamp=lambda placement: placement.at_ms,
    retention_ms=duration_ms(hours=1),
)
(
    app.input("exceptions", value=Thrown, key=lambda thrown: thrown.instance, timestamp=lambda thrown: thrown.at_ms)
    .join(placements, traced, how="left")  # the machine as of the exception's time, wherever the instance is by now
    .send_to(app.output("traced", value=Traced))
)


def placed(minutes: int = 30, seed: int = 0) -> Iterator[Placement]:
    """Yield where five instances run, one of which moves every minute."""
    chance = random.Random(seed)
    for minute in range(minutes):
        moved = range(5) if minute == 0 else [chance.randrange(5)]
        for number in moved:
            yield Placement(minute * 60_000, f"instance {number}", f"machine {chance.randrange(100)}")


def thrown(minutes: int = 30, seed: int = 1) -> Iterator[Thrown]:
    """Yield an exception every ten seconds; a sixth instance was never placed."""
    chance = random.Random(seed)
    for number in range(minutes * 6):
        yield Thrown(number * 10_000, f"instance {chance.randrange(6)}", chance.choice(("IOError", "KeyError")))


if __name__ == "__main__":
    results = testing.run(app, {"placements": [*placed()], "exceptions": [*thrown()]})["traced"]
    for one in sorted(results, key=lambda one: one.thrown.at_ms):
        print(f"{one.thrown.at_ms // 1_000:>5} s: {one.thrown.kind} in {one.thrown.instance} on {one.machine}")
