"""Another file, list or frame in the place of the one that was read: told, and never passed over in part."""

import gzip

import fastavro
import polars as pl
import pyarrow as pa
import pytest
from msgspec import Struct, json
from pyarrow import csv, parquet
from typer.testing import CliRunner

from runtime.model.errors import Damaged
from samza_dsl import App
from samza_dsl.cli.main import commands


class Trip(Struct, frozen=True):
    id: int
    km: float | None = None


def copying():
    app = App("copying")
    app.input("trips", value=Trip).map(lambda trip: trip.id).send_to(app.output("ids", value=int))
    return app


def lines_of(trips):
    return b"".join(json.encode(trip) + b"\n" for trip in trips)


def table_of(trips):
    return pa.table({"id": [trip.id for trip in trips], "km": pa.array([trip.km for trip in trips], pa.float64())})


def jsonl(trips, directory):
    (directory / "trips.jsonl").write_bytes(lines_of(trips))
    return directory / "trips.jsonl"


def zipped(trips, directory):
    with gzip.open(directory / "trips.jsonl.gz", "wb") as file:
        file.write(lines_of(trips))
    return directory / "trips.jsonl.gz"


def cells(trips, directory):
    csv.write_csv(table_of(trips), directory / "trips.csv")
    return directory / "trips.csv"


def columns(trips, directory):
    parquet.write_table(table_of(trips), directory / "trips.parquet")
    return directory / "trips.parquet"


def avro(trips, directory):
    fields = [{"name": "id", "type": "long"}, {"name": "km", "type": ["null", "double"]}]
    with (directory / "trips.avro").open("wb") as file:
        rows = [{"id": trip.id, "km": trip.km} for trip in trips]
        fastavro.writer(file, {"type": "record", "name": "Trip", "fields": fields}, rows)
    return directory / "trips.avro"


def arrow(trips, directory):
    table = table_of(trips)
    with pa.ipc.new_file(directory / "trips.arrow", table.schema) as file:
        file.write_table(table)
    return directory / "trips.arrow"


def folder(trips, directory):
    where = directory / "trips"
    (where / "day=1").mkdir(parents=True, exist_ok=True)
    parquet.write_table(table_of(trips), where / "day=1" / "part.parquet")
    return where


BOUND = {
    "list": lambda trips, directory: trips,
    "pandas": lambda trips, directory: table_of(trips).to_pandas(),
    "polars": lambda trips, directory: pl.from_arrow(table_of(trips)),
    "arrow": lambda trips, directory: table_of(trips),
    "JSON lines": jsonl,
    "gz": zipped,
    "CSV": cells,
    "Parquet": columns,
    "Avro": avro,
    "an Arrow file": arrow,
    "a folder": folder,
}
BEFORE = [Trip(1, 0.5), Trip(2, 1.0), Trip(3, 2.0)]


def ids_of(bound, directory):
    run = copying().run(directory / "data", bind={"trips": bound})
    return [*run.received("ids")]


OTHERS = [Trip(7), Trip(8), Trip(9), Trip(10)]
AFTER = {
    "fewer others": (OTHERS[:2], "is another one than|fewer than the 3"),
    "as many others": (OTHERS[:3], "is another one than"),
    "more others": (OTHERS, "is another one than"),
    "fewer": (BEFORE[:2], "fewer than the 3"),
    "none": ([], "fewer than the 3"),
}


@pytest.mark.parametrize(
    ("kind", "how"),
    [*((kind, "more others") for kind in BOUND), *(("JSON lines", how) for how in AFTER), ("arrow", "fewer")],
)
def test_what_lies_in_the_place_of_what_was_read_is_not_gone_on_with(kind, how, tmp_path):
    after, told = AFTER[how]
    assert ids_of(BOUND[kind](BEFORE, tmp_path), tmp_path) == [1, 2, 3]
    bound = BOUND[kind](after, tmp_path)
    for _ in range(2):
        with pytest.raises(Damaged, match=told):
            ids_of(bound, tmp_path)
    said = CliRunner().invoke(
        commands, ["checkpoint", "set", "copying", "trips:0", "earliest", "--data", str(tmp_path / "data")]
    )
    assert said.exit_code == 0, said.output
    assert ids_of(bound, tmp_path) == [1, 2, 3, *(trip.id for trip in after)]


@pytest.mark.parametrize("kind", BOUND)
def test_what_has_grown_is_gone_on_with(kind, tmp_path):
    ids_of(BOUND[kind](BEFORE, tmp_path), tmp_path)
    assert ids_of(BOUND[kind](BEFORE, tmp_path), tmp_path) == [1, 2, 3]
    assert ids_of(BOUND[kind]([*BEFORE, Trip(4)], tmp_path), tmp_path) == [1, 2, 3, 4]


def test_what_had_nothing_may_have_anything(tmp_path):
    assert ids_of([], tmp_path) == []
    assert ids_of([Trip(1)], tmp_path) == [1]
    with pytest.raises(Damaged, match="is another one than"):
        ids_of([Trip(2), Trip(3)], tmp_path)


@pytest.mark.parametrize(
    ("kind", "is_joined"), [*((kind, False) for kind in BOUND), ("list", True), ("CSV", True), ("Parquet", True)]
)
def test_a_table_whose_rows_were_changed_is_not_gone_on_with(kind, is_joined, tmp_path):
    def ids(rows, asked):
        app = App("looking-up")
        table = app.table("trips", value=Trip, key=lambda trip: trip.id)
        if is_joined:
            table = table.join(app.table("others", value=int, key=lambda number: number), lambda trip, other: trip)
        stream = app.input("asked", value=int, key=lambda number: number)
        stream.join(table, lambda number, trip: trip and trip.km, how="left").send_to(app.output("km"))
        bound = {"trips": BOUND[kind](rows, tmp_path), "asked": asked}
        run = app.run(tmp_path / "data", bind=bound | ({"others": [1, 2, 3, 4]} if is_joined else {}))
        return [*run.received("km")]

    assert ids(BEFORE, [1, 2, 4]) == [0.5, 1.0, None]
    grown = [*BEFORE, Trip(4, 4.0)]
    assert ids(grown, [1, 2, 4, 4]) == [0.5, 1.0, None, 4.0]
    for changed in (
        [BEFORE[0], Trip(2, 9.0), *grown[2:]],
        grown[1:],
        [*grown[:3], Trip(4, 5.0), Trip(5, 5.0)],
        grown[:3],
    ):
        with pytest.raises(Damaged, match="is another one than"):
            ids(changed, [1, 2, 4, 4])
    assert ids(grown, [1, 2, 4, 4, 1]) == [0.5, 1.0, None, 4.0, 0.5]
