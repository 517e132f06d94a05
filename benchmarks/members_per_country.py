"""B19: the Members Per Country job of Samza's paper on Spark, over PySpark that is written by hand."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from operator import add
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from msgspec import Struct

from benchmarks.on_spark import FILES, OnSpark, encode
from benchmarks.workload import Description
from samza_dsl import App, Pane, count, whole

COUNTRIES = 200
PADDING = 200


class Profile(Struct):
    """A member, with what else there is of one."""

    member: int
    country: str
    padding: str


class Members(Struct):
    """How many members a country has."""

    country: str
    members: int


decode = msgspec.json.Decoder(Profile).decode


def country_of(profile: Profile) -> str:
    return profile.country


def members(pane: Pane[str, int]) -> Members:
    return Members(pane.key, pane.value)


def counted_in(lines: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Count the lines of one partition by country, for the job by hand."""
    return iter(Counter(country_of(decode(line)) for line in lines).items())


def encoded(row: tuple[str, int]) -> str:
    return encode.encode(Members(*row)).decode()


def profiles(messages: int, file: int) -> Iterator[Profile]:
    """Make the profiles of a file; a few countries have most of them."""
    draw = Random(file)
    padding = "".join(draw.choices("abcdefghijklmnop", k=2 * PADDING))
    for number in range(messages):
        country = f"c{int(draw.random() ** 3 * COUNTRIES)}"
        yield Profile(number * FILES + file, country, padding[number % PADDING : number % PADDING + PADDING])


class MembersPerCountry(OnSpark):
    """A snapshot of profiles, grouped by country and counted: by hand as RDDs, which count before the shuffle."""

    description = Description(
        name="B19",
        title="Members Per Country, on Spark over PySpark by hand",
        messages=1_000_000,
        quick_scale=0.004,
        bar=1.0,
        pairs=5,
        on_spark=True,
    )

    def make(self, messages: int) -> None:
        self.write(self.files, lambda number: profiles(messages // FILES, number))

    def ready(self) -> None:
        super().ready()
        shutil.rmtree(self.scratch / "by-hand", ignore_errors=True)

    def baseline(self) -> Path:
        session: Any = self.spark.session
        found = session.sparkContext.textFile(str(self.files)).mapPartitions(counted_in).reduceByKey(add, FILES)
        found.map(encoded).saveAsTextFile(str(self.scratch / "by-hand"))
        return self.scratch / "by-hand"

    def ours(self) -> Path:
        app = App("members-per-country")
        by_country = app.input("profiles", value=Profile).partition_by(country_of, partitions=FILES, op_id="by-country")
        counts = by_country.window(whole(), count(), op_id="members")
        counts.map(members).send_to(app.output("counts", value=Members))
        app.run(on=self.spark, bind={"profiles": self.files, "counts": self.written})
        return self.written
