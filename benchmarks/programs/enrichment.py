"""Views with what an async service knows of their customers, tried again where it fails; counted by country."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from benchmarks.programs.kit.hand import END, AsyncHand
from benchmarks.programs.kit.program import Program, Stream
from samza_dsl import App, Pane, count, dead_letter, retry, tumbling

MINUTE, DISORDER = 60_000, 2_000
COUNTRIES = [f"country-{number:02}" for number in range(40)]
IN_FLIGHT, RETRIES = 500, 2


class View(Struct, frozen=True):
    """A customer has looked at something; the service knows the country."""

    at_ms: int
    number: int
    customer: int
    country: str | None = None


class Viewed(Struct, frozen=True):
    """How often something was looked at from a country in a minute."""

    country: str
    minute: int
    views: int


class Unavailable(Exception):
    """The service does not answer this time."""


class Service:
    """A service that takes a millisecond, fails now and then, and always for a few."""

    def __init__(self) -> None:
        self.failed: set[int] = set()

    async def country_of(self, view: View) -> str:
        await asyncio.sleep(0.001)
        number = view.number
        if number % 400 == 7 or (number % 50 == 3 and number not in self.failed):
            self.failed.add(number)
            raise Unavailable(f"view {number}")
        return COUNTRIES[view.customer % len(COUNTRIES)]


class WithCountry:
    """The async function of the pipeline."""

    def __init__(self) -> None:
        self.service = Service()

    async def __call__(self, view: View) -> list[View]:
        return [replace(view, country=await self.service.country_of(view))]


def generate(messages: int, seed: int) -> dict[str, list[View]]:
    """Make views 10 ms apart, up to two seconds out of order."""
    chance = Random(seed)
    return {
        "views": [
            View(number * 10 + DISORDER - chance.randrange(DISORDER), number, chance.randrange(100_000))
            for number in range(messages)
        ]
    }


def viewed(pane: Pane[str, int]) -> Viewed:
    return Viewed(pane.key, pane.start, pane.value)


def pipeline(workspace: Path) -> App:
    app = App("enrichment")
    views = app.input("views", value=View, timestamp=lambda view: view.at_ms, max_disorder_ms=DISORDER)
    (
        views.async_flat_map(
            WithCountry(),
            max_in_flight=IN_FLIGHT,
            order="none",
            on_error=retry(RETRIES, backoff_ms=1, then=dead_letter("views-without-a-country")),
            op_id="country",
        )
        .partition_by(lambda view: view.country, value=View, op_id="by-country")
        .window(tumbling(minutes=1), count())
        .map(viewed)
        .send_to(app.output("views-by-country", value=Viewed))
    )
    return app


class ByHand(AsyncHand):
    """Five hundred workers on a chunk of views, and the counts of each open minute."""

    keeps = ("minutes",)

    def __init__(self) -> None:
        super().__init__()
        self.service = Service()
        self.minutes: dict[int, dict[str, int]] = {}
        self.out |= {"views-by-country": [], "views-without-a-country": []}

    def takes(self) -> dict[str, Callable[[list[Any], int], Any]]:
        return {"views": self.take}

    async def work(self, views: Iterator[View]) -> None:
        minutes, country_of = self.minutes, self.service.country_of
        for view in views:
            for attempt in range(RETRIES + 1):
                try:
                    country = await country_of(view)
                except Unavailable:
                    if attempt == RETRIES:
                        self.out["views-without-a-country"].append(view)
                    else:
                        await asyncio.sleep(0.001 * 2**attempt)
                else:
                    minute = view.at_ms - view.at_ms % MINUTE
                    counts = minutes.get(minute)
                    if counts is None:
                        counts = minutes[minute] = {}
                    counts[country] = counts.get(country, 0) + 1
                    break

    async def take(self, views: list[View], watermark: int) -> int:
        waiting = iter(views)
        async with asyncio.timeout(30):
            await asyncio.gather(*(self.work(waiting) for _ in range(min(IN_FLIGHT, len(views)))))
        return max(watermark, max(view.at_ms for view in views) - DISORDER)

    def advance(self, watermark: int) -> None:
        out = self.out["views-by-country"]
        for minute in sorted(minute for minute in self.minutes if minute + MINUTE <= watermark or watermark == END):
            out += [Viewed(country, minute, views) for country, views in self.minutes.pop(minute).items()]


PROGRAM = Program(
    name="enrichment",
    title="enrichment: async service, retries, dead letters → partition_by → count",
    messages=100_000,
    streams={"views": Stream(View)},
    outputs=("views-by-country", "views-without-a-country"),
    generate=generate,
    pipeline=pipeline,
    by_hand=lambda workspace: ByHand(),
    dead_letters=frozenset({"views-without-a-country"}),
)
