"""Inputs that a Spark user has: DataFrames, tables, RDDs and URLs, beside the same records in files."""

import datetime as dt
import json
from collections import Counter
from pathlib import Path
from typing import Literal, NamedTuple
from unittest.mock import patch

import duckdb
import msgspec
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import Row
from pyspark.sql import functions as f
from typer.testing import CliRunner

from runtime.spark.laid_down import laid_down
from runtime.systems.files.files import open_source
from runtime.units.staging import LOCK
from samza_dsl import App, Bytes, SamzaError, Spark, SparkTable, String, archive, count, produce, skip, total, tumbling
from samza_dsl.cli.main import commands
from tests.runtime.test_locations import Leg, laid_out, read_all
from tests.sample import crossed

pytestmark = [pytest.mark.ci, pytest.mark.timeout(900)]


class Flight(msgspec.Struct, frozen=True):
    carrier: str
    at: int
    delay: float | None = None


FLIGHTS = [Flight("AB"[n % 2], 1_000 * (n * 7 % 40), None if n % 3 else n / 2) for n in range(40)]
"""Out of the order of their times."""


def flights_app(**options):
    app = App("flights")
    flights = app.input("flights", value=Flight, timestamp=lambda flight: flight.at, **options)
    counted = flights.partition_by(lambda flight: flight.carrier).window(tumbling(seconds=10), count())
    counted.map(lambda pane: [pane.key, pane.start, pane.value]).send_to(app.output("counts", value=list))
    return app


def panes(flights=FLIGHTS):
    found = Counter((flight.carrier, flight.at // 10_000 * 10_000) for flight in flights)
    return sorted([carrier, start, number] for (carrier, start), number in found.items())


def counts(session, what, data, app=None):
    return sorted((app or flights_app()).run(on=Spark(session), bind={"flights": what}, data=data).received("counts"))


def rows(flights=FLIGHTS):
    return [{"carrier": one.carrier, "at": one.at, "delay": one.delay, "other": "x"} for one in flights]


@pytest.fixture(scope="module")
def frame(session):
    return session.createDataFrame(
        [Row(**row) for row in rows()], "carrier string, at bigint, delay double, other string"
    )


FORMS = {
    "a DataFrame": lambda frame, session: frame,
    "one that was shuffled": lambda frame, session: frame.repartition(7).filter("at >= 0").union(frame.limit(0)),
    "a view": lambda frame, session: (frame.createOrReplaceTempView("flights"), "table:flights")[1],
    "a table": lambda frame, session: (frame.write.mode("overwrite").saveAsTable("kept_flights"), "table:kept_flights")[
        1
    ],
    "pandas": lambda frame, session: pd.DataFrame(rows()).astype({"delay": object}),
    "Arrow": lambda frame, session: pa.Table.from_pylist(rows()),
    "a batch of Arrow": lambda frame, session: pa.RecordBatch.from_pylist(rows()),
    "a reader of Arrow": lambda frame, session: pa.Table.from_pylist(rows()).to_reader(),
    "polars": lambda frame, session: pl.DataFrame(rows()),
    "a lazy frame of polars": lambda frame, session: pl.LazyFrame(rows()),
    "a relation of DuckDB": lambda frame, session: duckdb.from_arrow(pa.Table.from_pylist(rows())),
    "an RDD of rows": lambda frame, session: frame.rdd,
    "an RDD of dicts": lambda frame, session: session.sparkContext.parallelize(rows(), 3),
    "an RDD of records": lambda frame, session: session.sparkContext.parallelize(FLIGHTS, 3),
    "an RDD of tuples": lambda frame, session: session.sparkContext.parallelize(
        [msgspec.structs.astuple(one) for one in FLIGHTS]
    ),
}


@pytest.fixture(autouse=True)
def warehouse(session, tmp_path_factory, request):
    """Keep tables where tests keep what they write, for as long as they run."""
    yield
    session.sql("DROP TABLE IF EXISTS kept_flights")


class OldLeg(NamedTuple):
    code: str
    city: str


class OldTrip(NamedTuple):
    """A trip as a version before had it: fields of one type lie in another order, and a whole number is one."""

    start: str
    end: str
    km: int
    legs: list[OldLeg]
    first: OldLeg
    gone: str = "gone"


class NewLeg(msgspec.Struct):
    city: str
    code: str
    paid: bool = False


class Trip(msgspec.Struct):
    end: str
    start: str
    km: float
    first: NewLeg
    legs: list[NewLeg]
    notes: list[str] = []
    how: Literal["air", "rail"] = "air"


class TripOfAny(Trip):
    more: dict | None = None


class SameLeg(msgspec.Struct):
    city: str
    code: str


class Reordered(msgspec.Struct):
    """As many fields as before within, of the same types: by their places these are others, and nothing fails."""

    end: str
    start: str
    first: SameLeg
    legs: list[SameLeg]


OLD = OldTrip("OSL", "LHR", 3, [OldLeg("LHR", "London")], OldLeg("OSL", "Oslo"))


def as_dicts(value):
    if isinstance(value, tuple):
        return {name: as_dicts(one) for name, one in value._asdict().items()}
    return [*map(as_dicts, value)] if isinstance(value, list) else value


def as_rows(value):
    if isinstance(value, tuple):
        return Row(**{name: as_rows(one) for name, one in value._asdict().items()})
    return [*map(as_rows, value)] if isinstance(value, list) else value


FORMS_OF_ROWS = {"dicts": as_dicts, "rows": as_rows, "named tuples": lambda value: value}


@pytest.mark.parametrize("kind", [Trip, TripOfAny, Reordered])
@pytest.mark.parametrize("form", FORMS_OF_ROWS)
def test_rows_of_an_rdd_that_an_older_class_has_made_are_read_by_name(session, tmp_path, kind, form):
    """Spark goes by the places of the fields of a row within a row, and takes no whole number for a float."""
    app = App("trips")
    app.input("trips", value=kind).send_to(app.output("read", value=kind))
    rdd = session.sparkContext.parallelize([FORMS_OF_ROWS[form](OLD)], 1)
    (read,) = app.run(on=Spark(session), bind={"trips": rdd}, data=tmp_path).received("read")
    assert repr(read) == repr(msgspec.convert(as_dicts(OLD), kind))
    assert (read.end, read.legs[0].city) == ("LHR", "London")


def test_a_tuple_may_lack_the_last_fields_and_has_none_beside(session, tmp_path):
    """A field that was added with a default is behind those that tuples of before have."""
    app = App("flights")
    app.input("flights", value=Flight).send_to(app.output("read", value=Flight))
    rdd = session.sparkContext.parallelize([("AA", 7)], 1)
    run = app.run(on=Spark(session), bind={"flights": rdd}, data=tmp_path / "few")
    assert run.received("read") == [Flight("AA", 7)]
    rdd = session.sparkContext.parallelize([("AA", 7, 1.0, "more")], 1)
    with pytest.raises(SamzaError, match="has 4 values, and there are fields carrier, at, delay"):
        app.run(on=Spark(session), bind={"flights": rdd}, data=tmp_path / "many")


@pytest.mark.parametrize("form", FORMS)
def test_whatever_a_table_is_its_rows_are_the_records(session, frame, tmp_path, monkeypatch, form):
    monkeypatch.chdir(tmp_path)
    what = SparkTable(FORMS[form](frame, session), order_by="at")
    assert counts(session, what, tmp_path / "data") == panes()
    assert not [*(tmp_path / "data" / "spark").rglob("*")], "what was laid down is removed"


def test_a_table_without_an_order_is_read_in_that_of_event_time(session, frame, tmp_path):
    assert counts(session, frame, tmp_path / "data") == panes()


def test_rows_that_have_an_order_keep_it(session, frame, tmp_path):
    """As a live run over these records has it: what comes late is dropped, as event time was further."""
    app = flights_app()
    live = app.run(bind={"flights": FLIGHTS}, data=tmp_path / "live").received("counts")
    one_partition = session.sparkContext.parallelize(rows(), 1)
    assert counts(session, one_partition, tmp_path / "data") == sorted(live) != panes()


def numbered(flights, partitions=3):
    """Return rows with the partitions and the offsets that they have in a stream, in which some offsets have no row."""
    found, ends = [], [0] * partitions
    for number, row in enumerate(rows(flights)):
        partition = number % (partitions - 1) * 2  # one has nothing
        found.append({**row, "_partition": partition, "_offset": ends[partition] * 3 + 100})
        ends[partition] += 1
    return found


def test_columns_of_an_archive_say_partition_and_order(session, tmp_path):
    table = session.createDataFrame(numbered(FLIGHTS)).orderBy(f.rand(1)).repartition(5)
    parts = [[row for row in numbered(FLIGHTS) if row["_partition"] == number] for number in range(3)]
    app = App("reading")
    app.input("flights", value=Flight).send_to(app.output("out", value=Flight))
    with laid_down(Spark(session), app.graph(), {"flights": table}, tmp_path) as bind:
        source = bind["flights"]
        assert source.partitions == 3
        serde = source.serde(next(iter(app.graph().inputs.values())).value)
        for number, part in enumerate(parts):
            offsets = [row["_offset"] for row in part]
            assert source.offsets(number)[:2] == ((offsets[0], offsets[-1] + 1) if part else (0, 0))
            for start in range(len(part)):
                read = source.read(number, offsets[start] - 1, 4)
                assert (
                    read.batch.offsets == offsets[start : start + 4] and read.next_offset == read.batch.offsets[-1] + 1
                )
                assert [serde.decode(one).at for one in read.batch.values] == [
                    row["at"] for row in part[start : start + 4]
                ]
            assert source.read(number, source.offsets(number).end) is None


def test_results_are_those_of_a_live_run_over_the_same_partitions(session, tmp_path):
    table = session.createDataFrame(numbered(FLIGHTS)).repartition(5)
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(3):
        part = [json.dumps(row) for row in numbered(FLIGHTS) if row["_partition"] == number]
        (folder / f"{number}.jsonl").write_text("\n".join(part))
    live = flights_app().run(bind={"flights": folder}, data=tmp_path / "live").received("counts")
    assert counts(session, table, tmp_path / "data") == sorted(live) != panes()


def test_reprocessing_begins_and_stops_at_the_offsets_of_a_table(session, tmp_path):
    table = session.createDataFrame(numbered(FLIGHTS, partitions=2)).repartition(2)
    app = App("reading")
    app.input("flights", value=Flight).map(lambda one: one.at).send_to(app.output("out", value=int))
    options = {"on": Spark(session), "bind": {"flights": table}, "data": tmp_path / "data"}
    found = app.reprocess(start={"flights": 110}, until={"flights": 130}, **options).received("out")
    assert sorted(found) == sorted(row["at"] for row in numbered(FLIGHTS, partitions=2) if 110 <= row["_offset"] < 130)


def test_partitions_and_order_may_be_said(session, frame, tmp_path):
    app = App("ordered")
    app.input("flights", value=Flight, partitions=3).send_to(app.output("out", value=Flight))
    what = SparkTable(frame, order_by=["at", "delay"], partition_by="carrier")
    with laid_down(Spark(session), app.graph(), {"flights": what}, tmp_path) as bind:
        source = bind["flights"]
        found = [read_partition(source, app, number) for number in range(source.partitions)]
    assert sorted(map(len, found)) == [20, 20]
    assert all(
        part == sorted((one for one in FLIGHTS if one.carrier == part[0].carrier), key=lambda one: one.at)
        for part in found
    )


def read_partition(source, app, number):
    decode = source.serde(next(iter(app.graph().inputs.values())).value).decode
    read = source.read(number, source.offsets(number).start)
    return [*map(decode, read.batch.values)] if read is not None else []


def test_all_fields_that_differ_are_told_at_once(session, frame, tmp_path):
    class Wanted(msgspec.Struct):
        carrier: int
        delay: float
        Other: str
        at: dt.date
        legs: list[int]
        late: dict[bool, int]
        absent: str = ""

    app = App("flights")
    app.input("flights", value=Wanted).send_to(app.output("out", value=Wanted))
    error = (
        r"input 'flights' at .*test_inputs_on_spark.py:\d+: what 'flights' .*: carrier: wanted int, found string; "
        r"Other: wanted str, found no such column, but other; at: wanted date, found int64; "
        r"legs: wanted list\[int\], found map<string, int64.*>; "
        r"late: wanted dict\[bool, int\], found map<boolean,bigint>\. Select"
    )
    table = frame.withColumns({"legs": f.expr("map('a', at)"), "late": f.expr("map(true, at)")})
    with pytest.raises(SamzaError, match=error):
        app.run(on=Spark(session), bind={"flights": table}, data=tmp_path / "data")


def test_a_null_that_a_type_has_not_names_its_field_and_goes_by_the_policy(session, tmp_path):
    table = session.createDataFrame([("A", 1), (None, 2), ("B", 3)], "carrier string, at bigint").coalesce(1)
    app = App("flights")
    app.input("flights", value=Flight, on_error=skip).send_to(app.output("out", value=Flight))
    assert len(app.run(on=Spark(session), bind={"flights": table}, data=tmp_path / "a").received("out")) == 2
    app = App("flights")
    app.input("flights", value=Flight).send_to(app.output("out", value=Flight))
    with pytest.raises(
        SamzaError, match=r"input 'flights' at .*py:\d+: .*Expected `str`, got `null` - at `\$.carrier`"
    ):
        app.run(on=Spark(session), bind={"flights": table}, data=tmp_path / "b")


def test_only_the_columns_of_the_fields_are_read(session, tmp_path):
    """The function that another column is made by is never called."""
    fails = f.udf(lambda at: 1 // 0, "bigint")
    table = session.createDataFrame(rows()).withColumn("wrong", fails("at"))
    assert counts(session, table, tmp_path / "data") == panes()


def test_tables_of_spark_are_looked_up_and_joined(session, frame, tmp_path):
    names = session.createDataFrame([("A", "Aer"), ("B", "Ber")], "key string, name string")

    class Name(msgspec.Struct):
        key: str
        name: str

    app = App("joined")
    table = app.table("names", value=Name, key=lambda one: one.key, broadcast=True)
    flights = app.input("flights", value=Flight)
    named = flights.join(table, lambda one, name: [one.at, name.name], on=lambda one: one.carrier)
    named.send_to(app.output("out", value=list))
    bound = {"names": names, "flights": frame}
    found = app.run(on=Spark(session), bind=bound, data=tmp_path / "data").received("out")
    assert sorted(found) == sorted([one.at, f"{one.carrier}er"] for one in FLIGHTS)


def test_what_a_driver_has_left_that_died_goes(session, frame, tmp_path):
    left = tmp_path / "data" / "spark" / "flights" / "inputs" / "of-one-that-died"
    left.mkdir(parents=True)
    (left / "0.parquet").touch()
    (left / LOCK).touch()
    assert counts(session, frame, tmp_path / "data") == panes()
    assert not left.parent.exists()


def test_runs_of_one_application_have_inputs_of_their_own(session, frame, tmp_path):
    app, data = App("flights"), tmp_path / "data"
    app.input("flights", value=Flight)
    with laid_down(Spark(session), app.graph(), {"flights": frame}, data) as bind:
        assert counts(session, frame, data) == panes()
        assert all(file.path.exists() for file in bind["flights"]._files)


def test_an_output_that_holds_something_is_refused_before_inputs_are_laid_down(session, frame, tmp_path):
    out = tmp_path / "out.jsonl"
    out.write_text("1")
    app = App("flights")
    app.input("flights", value=Flight).send_to(app.output("out"))
    with (
        patch("runtime.spark.laid_down.laid", side_effect=AssertionError("it was laid down")),
        pytest.raises(SamzaError, match="has something in it already"),
    ):
        app.run(on=Spark(session), bind={"flights": frame, "out": out}, data=tmp_path / "data")
    produce("out", [1], data=tmp_path / "data")
    with (
        patch("runtime.spark.laid_down.laid", side_effect=AssertionError("it was laid down")),
        pytest.raises(SamzaError, match="the stream 'out' holds records already"),
    ):
        app.run(on=Spark(session), bind={"flights": frame}, data=tmp_path / "data")


def test_without_a_declared_type_records_are_dicts(session, frame, tmp_path):
    app = App("flights")
    app.input("flights").send_to(app.output("out"))
    found = app.run(on=Spark(session), bind={"flights": frame}, data=tmp_path / "data").received("out")
    assert sorted(found, key=repr) == sorted(rows(), key=repr)


@pytest.mark.parametrize(
    ("what", "error"),
    [
        (
            lambda session: session.readStream.format("rate").load(),
            "a streaming DataFrame .* Spark\\(session, checkpoint=...\\)",
        ),
        (lambda session: "table:not.there", "Spark can't open table:not.there: .*not found|cannot be found"),
        (lambda session: "delta:/nowhere", "Spark can't open delta:/nowhere: "),
        (lambda session: "s3a://bucket/x.jsonl", "Spark can't open s3a://bucket/x.jsonl: .*S3AFileSystem not found"),
        (lambda session: "viewfs:///absent", "Spark can't open viewfs:///absent: "),
        (lambda session: SparkTable("table:x", order_by="at"), "Spark can't open table:x"),
        (
            lambda session: SparkTable(session.range(3), order_by="nothing"),
            "order_by=.*no column nothing; there are id",
        ),
        (lambda session: session.range(3).selectExpr("id", "id AS id"), "several columns id: rename or drop"),
        (lambda session: session.range(3).selectExpr("id", "id AS ID"), "several columns id, ID: rename or drop"),
        (
            lambda session: pa.array([1]),
            "the Int64Array for 'flights' is no table that Arrow has",
        ),
        (
            lambda session: session.range(3).selectExpr("id", "1.5D AS _partition"),
            "_partition .* whole number, and is double",
        ),
        (
            lambda session: session.createDataFrame(
                [("A", 1, 0, 5), ("A", 1, 0, 5)], "carrier string, at long, _partition int, _offset int"
            ),
            "two rows of partition 0 have the same _offset",
        ),
        (
            lambda session: session.range(3).selectExpr("id", "id * 1000000 AS _partition"),
            "_partition goes from 0 to 2,000,000, and partitions are numbered from 0",
        ),
        (
            lambda session: session.createDataFrame([("A", 1, None)], "carrier string, at long, _partition int"),
            "a row has no _partition",
        ),
        (
            lambda session: session.range(3).selectExpr("'A' AS carrier", "id AS at", "current_date() AS _timestamp"),
            "_timestamp says the time of a record, as ms or a timestamp, and is date32",
        ),
        (lambda session: session.range(3).selectExpr("raise_error('it is broken') AS id"), "it is broken"),
        (lambda session: pd.Series([1]), r"a Series of pandas is bound to 'flights': write \.to_frame\(\)"),
        (lambda session: pa.table({"n": [1], "far": pa.array([2**64 - 1], pa.uint64())}), "the column 'far' is uint64"),
        (lambda session: pa.table({"months": [pa.MonthDayNano([1, 2, 3])]}), "'months' is month_day_nano_interval"),
    ],
)
def test_what_can_not_be_read_is_told_in_one_error(session, tmp_path, what, error):
    app = App("flights")
    app.input("flights", value=dict).send_to(app.output("out", value=dict))
    with pytest.raises(SamzaError, match=error):
        app.run(on=Spark(session), bind={"flights": what(session)}, data=tmp_path / "data")
    assert not [*(tmp_path / "data").rglob("*.parquet")]


def test_a_run_that_goes_on_refuses_tables(session, frame, tmp_path):
    for what in (frame, "table:flights", "s3a://b/x"):
        with pytest.raises(SamzaError, match=r"is read by a run on Spark that ends\. One with a checkpoint reads"):
            flights_app().run(
                on=Spark(session, checkpoint=tmp_path / "c"), bind={"flights": what}, data=tmp_path / "data"
            )


@pytest.fixture
def mounted(session, tmp_path):
    """Return a folder, and the URL by which Hadoop alone knows it."""
    session.sparkContext._jsc.hadoopConfiguration().set(
        f"fs.viewfs.mounttable.{tmp_path.name}.link./lake", (tmp_path / "lake").as_uri()
    )
    (tmp_path / "lake").mkdir()
    return tmp_path / "lake", f"viewfs://{tmp_path.name}/lake"


@pytest.mark.parametrize(
    ("kind", "bound"),
    crossed(
        ["jsonl", "jsonl.gz", "csv", "csv.bz2", "parquet"],
        ["", "/day=*", "/day=2026-01-0{1,2,3}/hour=*", "/**", "/day=*[12]/**/code=*/*"],
    ),
)
@pytest.mark.parametrize("is_local", [False, True])
def test_urls_are_read_as_the_same_files_are_by_a_local_run(session, mounted, tmp_path, kind, bound, is_local):
    folder, url = mounted
    what = SparkTable(f"{folder}{bound}") if is_local else url + bound
    legs = [
        Leg(n, 'AÄ"B,'[n % 5] * n, dt.date(2026, 1, 1 + n % 3), n % 4 or None, "a/b é%"[n % 2 * 3 :])
        for n in range(1, 50)
    ]
    laid_out(folder, kind, legs)
    app = App("legs")
    app.input("legs", value=Leg).send_to(app.output("out", value=Leg))
    local = open_source(f"{folder}{bound}")
    with laid_down(Spark(session), app.graph(), {"legs": what}, tmp_path / "data") as bind:
        source = bind["legs"]
        assert source.partitions == local.partitions
        found = [read_partition(source, app, number) for number in range(source.partitions)]
    assert found == [read_partition(local, app, number) for number in range(local.partitions)]
    expected = [leg for leg in legs if "[12]" not in bound or leg.day.day in (1, 2)]
    assert sorted((leg for part in found for leg in part), key=repr) == sorted(expected, key=repr)


def test_a_large_file_is_one_partition_in_its_order(session, mounted, tmp_path):
    folder, url = mounted
    pq.write_table(pa.table({"n": range(100_000)}), folder / "a.parquet", row_group_size=1_000)
    (folder / "lines").mkdir()
    (folder / "lines" / "a.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(100_000)))
    (folder / "lines" / "b.jsonl").touch()
    for what, partitions in ((f"{url}/a.parquet", 1), (f"{url}/lines", 2)):
        app = App("numbers")
        app.input("numbers", value=dict[str, int]).send_to(app.output("out", value=dict))
        session.conf.set("spark.sql.files.maxPartitionBytes", "10000")
        try:
            with laid_down(Spark(session), app.graph(), {"numbers": what}, tmp_path / "data") as bind:
                assert bind["numbers"].partitions == partitions
                found = read_all(_Only(bind["numbers"]), dict)
        finally:
            session.conf.unset("spark.sql.files.maxPartitionBytes")
        assert [one["n"] for one in found] == [*range(100_000)]


def test_a_plan_says_which_partitions_and_which_order_there_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("app.py").write_text(PROGRAM)
    told = CliRunner().invoke(commands, ["plan", "app.py", "--on", "spark"]).output
    assert "flights  of files each is a partition; of a table _partition and _offset say it, else each" in told
    assert told.rstrip().endswith("that Spark has, in the order of at")


class _Only:
    """A source whose partitions are read one after the other, in large pieces."""

    def __init__(self, source):
        self.partitions, self.serde, self.close = source.partitions, source.serde, source.close
        self.read = lambda partition, offset, _: source.read(partition, offset)


def test_a_url_of_parquet_is_checked_and_reads_the_fields_alone(session, mounted, tmp_path):
    folder, url = mounted
    pq.write_table(pa.Table.from_pylist(rows()), folder / "a.parquet")
    for number, what in enumerate((url, folder / "a.parquet", str(folder))):
        assert counts(session, SparkTable(what, order_by="at"), tmp_path / f"data{number}") == panes()
    pq.write_table(pa.table({"carrier": [1]}), folder / "a.parquet")
    with pytest.raises(SamzaError, match="carrier: wanted str, found int64; at: wanted int, found no such column"):
        counts(session, url, tmp_path / "data")


PROGRAM = """
import msgspec
from samza_dsl import App

class Flight(msgspec.Struct):
    carrier: str
    at: int

app = App("flights")
app.input("flights", value=Flight, timestamp=lambda flight: flight.at).send_to(app.output("out", value=Flight))
"""


def test_the_commands_take_tables_and_urls(session, frame, mounted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("app.py").write_text(PROGRAM)
    frame.createOrReplaceTempView("flights")
    folder, url = mounted
    laid_out(folder, "jsonl", [Leg(1, "AA", dt.date(2026, 1, 1), 7, "007")])
    Path("plain/day=2026-01-01").mkdir(parents=True)
    Path("plain/day=2026-01-01/a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows()))
    run, again = ["run", "app.py"], ["reprocess", "app.py"]
    for number, (command, source, done) in enumerate(
        [
            ([*run, "--on", "spark", "--bind"], "flights=table:flights", 40),
            ([*again, "--on", "spark", "--from"], "table:flights", 40),
            ([*again, "--on", "spark", "--from"], "plain/day=2026-01-01", 40),
            ([*run, "--bind"], "flights=plain/day=*/", 40),
            ([*run, "--bind"], "flights=table:flights", "a table is read by a run on Spark alone"),
            ([*run, "--on", "spark", "--bind"], "flights=s3a://b/x", "Spark can't open s3a://b/x"),
            ([*run, "--on", "spark", "--bind"], f"flights={url}", "missing required field `at`"),
        ]
    ):
        to = ["--to" if command[0] == "reprocess" else "--bind", f"out=out{number}.jsonl", "--data", f"data{number}"]
        result = CliRunner().invoke(commands, [*command, source, *to])
        if isinstance(done, int):
            assert (result.exit_code, result.stderr) == (0, ""), result.output
            assert len(Path(f"out{number}.jsonl").read_text().splitlines()) == done
        else:
            assert result.exit_code in (1, 2) and done in result.output
            assert "there is no file or directory s3a:/" not in result.output


class Paid(msgspec.Struct, frozen=True):
    who: str
    amount: int


def payments(session=None, data=None, what=None):
    """Return the sums of keys in windows of the records' own times, of a live run or of one on Spark."""
    app = App("payments")
    paid = app.input("paid", value=Paid, key=String(), max_disorder_ms=3_000, on_error=skip)
    summed = paid.window(tumbling(seconds=10), total(lambda one: one.amount))
    summed.map(lambda pane: [pane.key, pane.start, pane.value]).send_to(app.output("sums", value=list))
    run = app.run(
        data, bind={} if what is None else {"paid": what}, **({} if session is None else {"on": Spark(session)})
    )
    return sorted(run.received("sums"))


ARCHIVED = {
    "the rows of an archive": lambda session, path, url: session.read.parquet(str(path)).repartition(3),
    "an archive behind a URL": lambda session, path, url: url,
    "fields beside key and time": lambda session, path, url: (
        session.read.parquet(str(path))
        .where("_value IS NOT NULL")
        .withColumn("paid", f.from_json(f.col("_value").cast("string"), "who string, amount bigint"))
        .selectExpr("paid.*", "_partition", "_offset", "decode(_key, 'UTF-8') AS _key", "_timestamp AS _timestamp_ms")
        .where("who IS NOT NULL")
        .repartition(4)
    ),
}


@pytest.mark.parametrize("form", ARCHIVED)
def test_columns_of_an_archive_say_keys_and_times(session, mounted, tmp_path, form):
    folder, url = mounted
    data, records = tmp_path / "data", [Paid("ab"[n % 2], n) for n in range(60)]
    said = {"data": data, "key": lambda one: one.who, "timestamp": lambda one: 1_000 * (one.amount * 7 % 60)}
    produce("paid", records[:40], partitions=2, **said)
    produce("paid", [b"no JSON"], value=Bytes(), data=data, timestamp=lambda _: 0)
    produce("paid", records[40:], end=True, **said)
    archive("paid", folder / "archived", data=data)
    live = payments(data=data)
    assert 0 < sum(amount for _, _, amount in live) < sum(one.amount for one in records), "some come late"
    what = ARCHIVED[form](session, folder / "archived", f"{url}/archived")
    assert payments(session, tmp_path / "on-spark", what) == live


def test_a_table_with_times_is_read_in_their_order(session, tmp_path):
    rows = [("a", n, dt.datetime.fromtimestamp(n * 7 % 40, dt.UTC)) for n in range(40)]
    frame = session.createDataFrame(rows, "who string, amount bigint, _timestamp timestamp").coalesce(1)
    app = App("timed")
    paid = app.input("paid", value=Paid).partition_by(lambda one: one.who)
    paid.window(tumbling(seconds=10), count()).map(lambda pane: pane.value).send_to(app.output("out", value=int))
    found = app.run(on=Spark(session), bind={"paid": frame}, data=tmp_path / "data").received("out")
    assert found == [10] * 4, "nothing is late"


class Departure(msgspec.Struct, frozen=True):
    at: dt.datetime
    local: dt.datetime
    stops: list[dict[str, dt.datetime]]


def test_times_in_files_that_spark_has_written_are_those_of_its_frames(session, tmp_path):
    app = App("departures")
    app.input("departures", value=Departure).send_to(app.output("read", value=Departure))
    said = "timestamp'2026-03-29 01:30:00Z' at, timestamp_ntz'1600-01-01 00:00:00' local"
    frame = session.range(1).selectExpr(*said.split(", "), "array(map('LHR', timestamp'9000-01-01 00:00:00Z')) stops")
    places = {form: str(tmp_path / form) for form in ("INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS")}
    for form, place in places.items():
        session.conf.set("spark.sql.parquet.outputTimestampType", form)
        frame.write.parquet(place)
    session.conf.unset("spark.sql.parquet.outputTimestampType")
    (expected,) = app.run(on=Spark(session), bind={"departures": frame}, data=tmp_path / "data").received("read")
    assert (expected.at.tzinfo, expected.local.tzinfo) == (dt.UTC, None)
    for place in places.values():
        for on in (None, Spark(session)):
            done = app.run(on=on, bind={"departures": place}, data=Path(place, f".{on is None}"))
            assert done.received("read") == [expected]
