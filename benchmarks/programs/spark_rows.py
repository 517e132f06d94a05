"""Small jobs on Spark, each of which shows one way of working: a window, a map, state, sessions, skew, many columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from benchmarks.programs.kit.spark_job import FILES, SparkJob, batches_of, in_batches, records_in, write_parts
from samza_dsl import App, Options, Pane, aggregate, count, maximum, mean, session, total, tumbling

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

KEYS, WINDOW_MS, GAP_MS, STEP_MS = 1_000, 60_000, 20_000, 8
COLUMNS, PARTITIONS, SMALL_FILES = 100, 500, 5_000


class Tick(Struct):
    """What the files hold."""

    key: str
    at: int
    number: int
    price: float


class Counted(Struct):
    """The number of ticks of a key in a window."""

    key: str
    start: int
    ticks: int


class Averaged(Struct):
    """The mean price of a key in a window."""

    key: str
    start: int
    price: float


class Visit(Struct):
    """A session of a key: its bounds, its ticks, and the largest number among them."""

    key: str
    start: int
    end: int
    ticks: int
    largest: int


class Running(Struct):
    """A tick with the sum of all numbers of its key so far, and how far the last one was."""

    key: str
    at: int
    running: int
    step: int


class Sum(Struct):
    """What is known of a key."""

    total: int = 0
    last: int = 0


def ticks(records: int, directory: Path, skewed: bool = False, files: int = FILES, keys: int = KEYS) -> None:
    """Write ticks in the order of time, each key some seven times in a window; all of a key are in one file."""
    import numpy as np
    import pyarrow as pa

    draw = np.random.default_rng(1)
    places = draw.integers(0, keys, records)
    if skewed:
        places[::2] = 0
    columns = {
        "key": pa.DictionaryArray.from_arrays(places, [f"k{number}" for number in range(keys)]).cast(pa.string()),
        "at": np.arange(records) * STEP_MS,
        "number": draw.integers(0, 1_000, records),
        "price": draw.random(records) * 100,
    }
    write_parts(directory / "ticks.parquet", pa.table(columns), places, files)


def scaled(tick: Tick) -> Tick:
    """Return it as a function of a user's own makes it, which no planner can look into."""
    factor = int(tick.key[-1]) + 1
    return Tick(tick.key, tick.at, tick.number * factor, tick.price)


def step(tick: Tick, sum: Sum) -> Running:
    """Take a tick into what is known of its key."""
    sum.total += tick.number
    found = Running(tick.key, tick.at, sum.total, tick.number - sum.last)
    sum.last = tick.number
    return found


def on_tick(tick: Tick, context: Any) -> Iterable[Running]:
    return [step(tick, context.state)]


def counted(pane: Pane[str, int]) -> Counted:
    return Counted(pane.key, pane.start, pane.value)


def averaged(pane: Pane[str, float]) -> Averaged:
    return Averaged(pane.key, pane.start, pane.value)


class Sizes(Struct):
    """The ticks of a session, and the largest number."""

    ticks: int
    largest: int


def visit(pane: Pane[str, Sizes]) -> Visit:
    return Visit(pane.key, pane.start, pane.end, pane.value.ticks, pane.value.largest)


def begun(name: str, options: Options | None = None) -> tuple[App, Any]:
    app = App(name, options)
    return app, app.input("ticks", value=Tick, timestamp=lambda tick: tick.at)


def window(_: Path) -> App:
    app, ticks = begun("window")
    keyed = ticks.partition_by(lambda tick: tick.key, op_id="by-key")
    panes = keyed.window(tumbling(milliseconds=WINDOW_MS), count(), op_id="counting")
    panes.map(counted).send_to(app.output("found", value=Counted))
    return app


def map_window(_: Path) -> App:
    app, ticks = begun("map-window")
    keyed = ticks.map(scaled).partition_by(lambda tick: tick.key, op_id="by-key")
    panes = keyed.window(tumbling(milliseconds=WINDOW_MS), total(lambda tick: tick.number), op_id="adding")
    panes.map(counted).send_to(app.output("found", value=Counted))
    return app


def mean_window(_: Path) -> App:
    app, ticks = begun("mean")
    keyed = ticks.partition_by(lambda tick: tick.key, op_id="by-key")
    panes = keyed.window(tumbling(milliseconds=WINDOW_MS), mean(lambda tick: tick.price), op_id="averaging")
    panes.map(averaged).send_to(app.output("found", value=Averaged))
    return app


def process(_: Path, partitions: int | None = None) -> App:
    app, ticks = begun("process", None if partitions is None else Options(max_partitions=partitions))
    keyed = ticks.partition_by(lambda tick: tick.key, partitions=partitions, op_id="by-key")
    keyed.process(on_tick, init=Sum, state=Sum, op_id="running").send_to(app.output("found", value=Running))
    return app


def sessions(_: Path) -> App:
    app, ticks = begun("sessions")
    keyed = ticks.partition_by(lambda tick: tick.key, op_id="by-key")
    sizes = aggregate(Sizes, ticks=count(), largest=maximum(lambda tick: tick.number))
    panes = keyed.window(session(milliseconds=GAP_MS), sizes, op_id="visits")
    panes.map(visit).send_to(app.output("found", value=Visit))
    return app


def read(session: SparkSession, inputs: Path) -> DataFrame:
    return session.read.parquet(str(inputs / "ticks.parquet"))


def window_start() -> Any:
    from pyspark.sql import functions as f

    return (f.col("at") - f.col("at") % WINDOW_MS).alias("start")


def window_in_frames(spark: SparkSession, inputs: Path) -> dict[str, DataFrame]:
    from pyspark.sql import functions as f

    return {"found": read(spark, inputs).groupBy("key", window_start()).agg(f.count("*").alias("ticks"))}


def map_window_in_frames(spark: SparkSession, inputs: Path) -> dict[str, DataFrame]:
    from pyspark.sql import functions as f

    factor = f.substring("key", -1, 1).cast("int") + 1
    number = f.sum(f.col("number") * factor).alias("ticks")
    return {"found": read(spark, inputs).groupBy("key", window_start()).agg(number)}


def mean_in_frames(spark: SparkSession, inputs: Path) -> dict[str, DataFrame]:
    from pyspark.sql import functions as f

    return {"found": read(spark, inputs).groupBy("key", window_start()).agg(f.avg("price").alias("price"))}


def sessions_in_frames(spark: SparkSession, inputs: Path) -> dict[str, DataFrame]:
    from pyspark.sql import functions as f

    at = f.timestamp_millis("at")
    # Spark joins what lies just a gap apart, where ours and Flink's sessions end: there the gap is a millisecond less.
    found = (
        read(spark, inputs)
        .groupBy("key", f.session_window(at, f"{GAP_MS - 1} milliseconds").alias("lasts"))
        .agg(f.count("*").alias("ticks"), f.max("number").alias("largest"))
    )
    start, end = (f.unix_millis(f.col(f"lasts.{name}")) for name in ("start", "end"))
    return {"found": found.select("key", start.alias("start"), (end + 1).alias("end"), "ticks", "largest")}


def window_by_hand(spark: SparkSession, inputs: Path, what: str) -> dict[str, DataFrame]:
    from pyspark.sql import functions as f

    parts = read(spark, inputs).mapInArrow(partial(folded, what), "key string, start bigint, sum double, ticks bigint")
    whole = parts.groupBy("key", "start").agg(f.sum("sum").alias("sum"), f.sum("ticks").alias("ticks"))
    if what == "mean":
        return {"found": whole.select("key", "start", (f.col("sum") / f.col("ticks")).alias("price"))}
    counted = f.col("ticks" if what == "count" else "sum").cast("bigint").alias("ticks")
    return {"found": whole.select("key", "start", counted)}


def folded(what: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Fold the ticks of a task by key and window, before the shuffle."""
    sums: dict[tuple[str, int], list[Any]] = {}
    for batch in batches:
        for tick in records_in(batch, Tick):
            if what == "map":
                tick = scaled(tick)
            place = tick.key, tick.at - tick.at % WINDOW_MS
            found = sums.get(place)
            if found is None:
                found = sums[place] = [0, 0]
            found[0] += tick.price if what == "mean" else tick.number
            found[1] += 1
    rows = ((*place, float(found), ticks) for place, (found, ticks) in sums.items())
    yield from in_batches(rows, schema("key", start=int, sum=float, ticks=int))


@cache
def _kinds() -> dict[type, Any]:
    import pyarrow as pa

    return {int: pa.int64(), float: pa.float64(), str: pa.string()}


def schema(key: str, **kinds: type) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([(key, pa.string()), *((name, _kinds()[kind]) for name, kind in kinds.items())])


def by_key(spark: SparkSession, inputs: Path) -> DataFrame:
    """Return the ticks of a key in one task, in their order."""
    return read(spark, inputs).repartition("key").sortWithinPartitions("key", "at")


def process_by_hand(spark: SparkSession, inputs: Path, partitions: int | None = None) -> dict[str, DataFrame]:
    kinds = "key string, at bigint, running bigint, step bigint"
    rows = by_key(spark, inputs)
    if partitions is not None:
        rows = read(spark, inputs).repartition(partitions, "key").sortWithinPartitions("key", "at")
    return {"found": rows.mapInArrow(processed, kinds)}


def processed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    sums: dict[str, Sum] = {}
    kinds = schema("key", at=int, running=int, step=int)
    for batch in batches:
        found = []
        for tick in records_in(batch, Tick):
            sum = sums.get(tick.key)
            if sum is None:
                sum = sums[tick.key] = Sum()
            found.append(step(tick, sum))
        rows = [[getattr(one, name) for one in found] for name in kinds.names]
        yield batches_of(rows, kinds)


def sessions_by_hand(spark: SparkSession, inputs: Path) -> dict[str, DataFrame]:
    kinds = "key string, start bigint, end bigint, ticks bigint, largest bigint"
    return {"found": by_key(spark, inputs).mapInArrow(visited, kinds)}


def visited(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return in_batches(visits(batches), schema("key", start=int, end=int, ticks=int, largest=int))


def visits(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, int, int, int, int]]:
    key, start, end, number, largest = "", 0, 0, 0, 0
    for batch in batches:
        for tick in records_in(batch, Tick):
            if tick.key != key or tick.at >= end:
                if number:
                    yield key, start, end, number, largest
                key, start, number, largest = tick.key, tick.at, 0, tick.number
            end = tick.at + GAP_MS
            number += 1
            if tick.number > largest:
                largest = tick.number
    if number:
        yield key, start, end, number, largest


@cache
def wide() -> type[Struct]:
    """Return the type of records with a hundred fields: a key, an event time, whole numbers, floats and texts."""
    kinds = [int, float, str]
    fields = [("key", str), ("at", int)] + [(f"f{number}", kinds[number % 3]) for number in range(2, COLUMNS)]
    return msgspec.defstruct("Wide", fields, module=__name__)


def __getattr__(name: str) -> Any:
    if name == "Wide":
        return wide()
    raise AttributeError(name)


def wide_rows(records: int, directory: Path) -> None:
    import numpy as np
    import pyarrow as pa

    draw = np.random.default_rng(1)
    columns: dict[str, Any] = {
        "key": pa.array([f"k{number}" for number in draw.integers(0, KEYS, records)]),
        "at": np.arange(records) * STEP_MS,
    }
    texts = [f"text {number}" for number in range(1_000)]
    places = draw.integers(0, FILES, records)
    for number in range(2, COLUMNS):
        drawn = draw.integers(0, 1_000, records)
        column = [drawn, drawn / 7, pa.DictionaryArray.from_arrays(drawn, texts).cast(pa.string())][number % 3]
        columns[f"f{number}"] = column
    write_parts(directory / "ticks.parquet", pa.table(columns), places)


def is_kept(record: Any) -> bool:
    return bool(record.f3 % 10 != 0)


def doubled(record: Any) -> Any:
    return msgspec.structs.replace(record, f6=record.f6 * 2)


def wide_app(_: Path) -> App:
    app = App("wide")
    kind = wide()
    rows = app.input("ticks", value=kind, timestamp=lambda record: record.at)
    rows.filter(is_kept).map(doubled).send_to(app.output("found", value=kind))
    return app


def wide_in_frames(spark: SparkSession, inputs: Path) -> dict[str, DataFrame]:
    from pyspark.sql import functions as f

    return {"found": read(spark, inputs).where("f3 % 10 != 0").withColumn("f6", f.col("f6") * 2)}


def wide_by_hand(spark: SparkSession, inputs: Path) -> dict[str, DataFrame]:
    rows = read(spark, inputs)
    return {"found": rows.mapInArrow(doubled_batches, rows.schema)}


def doubled_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    kind = wide()
    for batch in batches:
        rows = [msgspec.structs.astuple(doubled(one)) for one in records_in(batch, kind) if is_kept(one)]
        yield batches_of([*zip(*rows, strict=True)], batch.schema)


def job(name: str, title: str, app: Any, frames: Any = None, python: Any = None, **how: Any) -> SparkJob:
    how = {"records": 1_000_000, "make": ticks} | how
    return SparkJob(name, title, app=app, inputs=("ticks",), outputs=("found",), frames=frames, python=python, **how)


ROWS = (
    job("window", "keyed tumbling count, native", window, window_in_frames, partial(window_by_hand, what="count")),
    job(
        "map-window",
        "a called map, then a keyed tumbling sum",
        map_window,
        map_window_in_frames,
        partial(window_by_hand, what="map"),
    ),
    job("mean", "mean of a float by key and window", mean_window, mean_in_frames, partial(window_by_hand, what="mean")),
    job("process", "process by key, with state", process, None, process_by_hand),
    job("sessions", "sessions by key", sessions, sessions_in_frames, sessions_by_hand),
    job(
        "skewed",
        "process where one key has half of the records",
        process,
        None,
        process_by_hand,
        make=partial(ticks, skewed=True),
    ),
    job(
        "partitions",
        f"process in {PARTITIONS} partitions",
        partial(process, partitions=PARTITIONS),
        None,
        partial(process_by_hand, partitions=PARTITIONS),
    ),
    job(
        "files",
        f"keyed tumbling count of {SMALL_FILES:,} small files",
        window,
        window_in_frames,
        partial(window_by_hand, what="count"),
        make=partial(ticks, files=SMALL_FILES, keys=SMALL_FILES),
    ),
    job(
        "wide",
        f"filter and map of {COLUMNS} columns",
        wide_app,
        wide_in_frames,
        wide_by_hand,
        make=wide_rows,
        records=200_000,
    ),
)
