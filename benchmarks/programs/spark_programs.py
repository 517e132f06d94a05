"""Whole programs as Spark jobs, each beside what one writes by hand: so far the main job."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import msgspec

from benchmarks.programs import flights
from benchmarks.programs.kit.program import Program
from benchmarks.programs.kit.spark_job import FILES, SparkJob, in_batches, records_in, write_parts
from benchmarks.programs.spark_rows import ROWS, schema
from samza_dsl import App, Pane, aggregate, count, daily, duration_ms, maximum, mean, top_k, total, tumbling

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

SEED = 1
HOUR, LATE, TOP = flights.HOUR, flights.LATE, flights.TOP
NEW_YORK = "America/New_York"


class Delays(msgspec.Struct):
    """The delays of a carrier's hour, as a row."""

    carrier: str
    start: int
    airline: str | None
    flights: int
    mean_delay: float
    max_delay: int
    seats: int
    in_bad_weather: int


def made(program: Program, records: int, directory: Path) -> None:
    """Write the streams of a program, but for what is malformed, which no column of Parquet can hold."""
    import numpy as np
    import pyarrow as pa

    if program.prepare is not None:
        program.prepare(directory, SEED)
    for name, values in program.generate(records, SEED).items():
        stream, rows = program.streams[name], [value for value in values if not isinstance(value, bytes)]
        assert stream.key is not None
        places = np.array([0 if stream.single else crc32(stream.key(row).encode()) for row in rows])
        table = pa.Table.from_pylist([msgspec.structs.asdict(row) for row in rows])
        write_parts(directory / f"{name}.parquet", table, places, 1 if stream.single else FILES)


def row_of(pane: Pane[str, Any]) -> Delays:
    return Delays(pane.key, pane.start, *msgspec.structs.astuple(pane.value))


def main_job(inputs: Path) -> App:
    """Return the example's pipeline with its functions, over files: tables have their keys in their rows."""
    job = flights.example()
    job.DATA = inputs
    app = App("flights")
    told = app.input(
        "flights",
        value=job.Flight,
        timestamp=lambda flight: flight.scheduled_ms,
        max_disorder_ms=duration_ms(hours=24),
    )
    planes = app.table("planes", key=lambda plane: plane.tailnum, value=flights.Plane, broadcast=True)
    airlines = app.table("airlines", key=lambda airline: airline.carrier, value=flights.Airline, broadcast=True)
    departed = told.filter(lambda flight: flight.delay is not None)
    by_punctuality = (
        departed.join(planes, job.with_plane, on=lambda flight: flight.tailnum, how="left")
        .join(airlines, job.with_airline, on=lambda flight: flight.carrier, how="left")
        .branch(job.punctuality, into=("late", "on_time"))
    )
    (
        by_punctuality["late"]
        .async_flat_map(job.WeatherAtOrigin(), max_in_flight=500, timeout_ms=5_000, op_id="weather")
        .merge(by_punctuality["on_time"])
        .partition_by(lambda flight: flight.carrier, value=job.Flight, op_id="by-carrier")
        .window(
            tumbling(hours=1),
            aggregate(
                job.Delays,
                airline=maximum(lambda flight: flight.airline),
                flights=count(),
                mean_delay=mean(lambda flight: flight.delay),
                max_delay=maximum(lambda flight: flight.delay),
                seats=total(lambda flight: flight.seats),
                in_bad_weather=total(lambda flight: flight.bad_weather),
            ),
        )
        .map(row_of)
        .send_to(app.output("carrier-delays", value=Delays))
    )
    (
        departed.partition_by(lambda flight: flight.dest, value=job.Flight, op_id="by-destination")
        .window(daily(NEW_YORK), count())
        .partition_by(job.day_in_new_york, op_id="by-day")
        .window(daily(NEW_YORK), top_k(TOP, by=lambda counted: counted.value, then=lambda counted: counted.key))
        .map(job.ranking)
        .send_to(app.output("top-destinations", value=flights.TopDestinations))
    )
    return app


def read(spark: SparkSession, inputs: Path, name: str) -> DataFrame:
    return spark.read.parquet(str(inputs / f"{name}.parquet"))


def top(counted: DataFrame) -> DataFrame:
    """Return the first of each day, as a map, of days and destinations with their flights."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    place = f.row_number().over(Window.partitionBy("day").orderBy(f.desc("flights"), "dest"))
    first = counted.withColumn("place", place).where(f.col("place") <= TOP)
    ranked = f.map_from_entries(f.collect_list(f.struct("dest", "flights"))).alias("flights")
    return first.groupBy("day").agg(ranked)


def main_job_in_frames(spark: SparkSession, inputs: Path) -> dict[str, DataFrame]:
    from pyspark.sql import functions as f

    with closing(sqlite3.connect(inputs / "weather.sqlite")) as database:
        rows = database.execute("SELECT origin, hour_ms, precip > 0 OR visib < 3 FROM weather").fetchall()
    weather = spark.createDataFrame(rows, "origin string, start bigint, bad bigint")
    departed = read(spark, inputs, "flights").where("delay IS NOT NULL")
    hour = (f.col("scheduled_ms") - f.col("scheduled_ms") % HOUR).alias("start")
    planes = read(spark, inputs, "planes")
    airlines = read(spark, inputs, "airlines").withColumnRenamed("name", "airline")
    delays = (
        departed.withColumn("start", hour)
        .join(f.broadcast(planes), "tailnum", "left")
        .join(f.broadcast(airlines), "carrier", "left")
        .join(f.broadcast(weather), ["origin", "start"], "left")
        .groupBy("carrier", "start")
        .agg(
            f.max("airline").alias("airline"),
            f.count("*").alias("flights"),
            f.avg("delay").alias("mean_delay"),
            f.max("delay").alias("max_delay"),
            f.coalesce(f.sum("seats"), f.lit(0)).alias("seats"),
            f.sum(f.when((f.col("delay") > LATE) & (f.col("bad") == 1), 1).otherwise(0)).alias("in_bad_weather"),
        )
    )
    day = f.date_format(f.from_utc_timestamp(f.timestamp_millis("scheduled_ms"), NEW_YORK), "yyyy-MM-dd")
    counted = departed.groupBy(day.alias("day"), "dest").agg(f.count("*").alias("flights"))
    return {"carrier-delays": delays, "top-destinations": top(counted)}


def main_job_by_hand(spark: SparkSession, inputs: Path) -> dict[str, DataFrame]:
    from pyspark.sql import functions as f

    told = read(spark, inputs, "flights")
    seats = {row.tailnum: row.seats for row in read(spark, inputs, "planes").collect()}
    names = {row.carrier: row.name for row in read(spark, inputs, "airlines").collect()}
    kinds = "carrier string, start bigint, flights bigint, minutes bigint, most bigint, seats bigint, bad bigint"
    hours = told.mapInArrow(partial(hours_of, inputs, seats, names), f"airline string, {kinds}")
    sums = [f.sum(name).alias(name) for name in ("flights", "minutes", "seats", "bad")]
    whole = hours.groupBy("carrier", "start").agg(f.max("airline").alias("airline"), f.max("most").alias("most"), *sums)
    delays = whole.select(
        "carrier",
        "start",
        "airline",
        "flights",
        (f.col("minutes") / f.col("flights")).alias("mean_delay"),
        f.col("most").alias("max_delay"),
        "seats",
        f.col("bad").alias("in_bad_weather"),
    )
    days = told.mapInArrow(days_of, "day string, dest string, flights bigint")
    counted = days.groupBy("day", "dest").agg(f.sum("flights").alias("flights"))
    return {"carrier-delays": delays, "top-destinations": top(counted)}


def hours_of(
    inputs: Path, seats: dict[str, int], names: dict[str, str], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    with closing(flights.ByHand(inputs)) as hand:
        hand.seats, hand.names = seats, names
        for batch in batches:
            for flight in records_in(batch, flights.Flight):
                if flight.delay is not None:
                    hand.add(flight, flight.delay > LATE and hand.look_up(flight))
    rows = (
        (name, carrier, hour, *sums[:-1], int(sums[-1]))
        for hour, carriers in hand.hours.items()
        for carrier, (name, *sums) in carriers.items()
    )
    kinds = {"carrier": str, **dict.fromkeys(("start", "flights", "minutes", "most", "seats", "bad"), int)}
    yield from in_batches(rows, schema("airline", **kinds))


def days_of(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    counts: dict[tuple[int, str], int] = {}
    bounds = (0, 0)
    for batch in batches:
        for flight in records_in(batch, flights.Flight):
            if flight.delay is not None:
                at = flight.scheduled_ms
                if not bounds[0] <= at < bounds[1]:
                    bounds = flights.day_of(at)
                place = bounds[0], flight.dest
                counts[place] = counts.get(place, 0) + 1
    rows = (
        (datetime.fromtimestamp(day // 1_000, flights.NEW_YORK).date().isoformat(), dest, number)
        for (day, dest), number in counts.items()
    )
    yield from in_batches(rows, schema("day", dest=str, flights=int))


MAIN_JOB = SparkJob(
    name="flights",
    title="the main job, over Parquet",
    records=flights.PROGRAM.messages,
    make=partial(made, flights.PROGRAM),
    app=main_job,
    inputs=("flights", "planes", "airlines"),
    outputs=("carrier-delays", "top-destinations"),
    frames=main_job_in_frames,
    python=main_job_by_hand,
)

JOBS: dict[str, SparkJob] = {one.name: one for one in (MAIN_JOB, *ROWS)}
"""All jobs by name."""
