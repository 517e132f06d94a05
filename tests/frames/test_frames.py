"""Frames of pandas, polars and Arrow as inputs, and outputs as such frames."""

import datetime as dt
import math
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.encoding.columns import Columns
from runtime.encoding.serdes import Json
from runtime.model.errors import Damaged
from runtime.systems.files.parquet import ROWS_AT_ONCE
from runtime.systems.frames.frame_source import FrameSource
from runtime.systems.memory.environment import MemoryEnvironment
from samza_dsl import App, MessagePack, SamzaError, skip
from tests.scale import examples


class Trip(msgspec.Struct, frozen=True):
    n: int
    miles: float
    carrier: str
    note: str | None
    late: bool
    at: dt.datetime
    tags: list[str]


TRIPS = st.lists(
    st.builds(
        Trip,
        n=st.integers(-(2**63), 2**63 - 1),
        miles=st.floats(allow_nan=False, allow_infinity=False),
        carrier=st.text(max_size=5),
        note=st.none() | st.text(max_size=5),
        at=st.datetimes(dt.datetime(1970, 1, 1), dt.datetime(2200, 1, 1), timezones=st.just(dt.UTC)),
        tags=st.lists(st.text(max_size=3), max_size=2),
    ),
    max_size=30,
)
SCHEMA = pa.schema(
    {
        "n": pa.int64(),
        "miles": pa.float64(),
        "carrier": pa.string(),
        "note": pa.string(),
        "late": pa.bool_(),
        "at": pa.timestamp("us", "UTC"),
        "tags": pa.list_(pa.string()),
    }
)


def copying(kind: Any = Trip) -> App:
    app = App("copying")
    app.input("trips", value=kind).send_to(app.output("copies", value=kind))
    return app


def table(trips: list[Trip]) -> pa.Table:
    return pa.Table.from_pylist([msgspec.structs.asdict(trip) for trip in trips], SCHEMA)


FRAMES = {
    "table": lambda of: of,
    "pandas": lambda of: of.to_pandas(),
    "arrow in pandas": lambda of: of.to_pandas(types_mapper=pd.ArrowDtype),
    "polars": pl.from_arrow,
    "lazy": lambda of: pl.from_arrow(of).lazy(),
    "batch": lambda of: of.combine_chunks().to_batches()[0] if len(of) else of,
    "pieces": lambda of: pa.concat_tables([of.slice(0, len(of) // 2), of.slice(len(of) // 2)]),
}


@pytest.mark.parametrize("made", FRAMES)
@given(trips=TRIPS)
@settings(deadline=None, max_examples=examples(15, 300))
def test_a_frame_is_read_and_an_output_is_one(made: str, trips: list[Trip]) -> None:
    run = copying().run(MemoryEnvironment(), bind={"trips": FRAMES[made](table(trips))})
    assert run.received("copies") == trips
    found = run.output("copies")
    assert found.to_arrow().to_pylist() == table(trips).to_pylist()
    assert found.to_arrow().schema.names == SCHEMA.names
    assert found.to_polars().to_dicts() == table(trips).to_pylist()
    assert list(found.to_pandas().columns) == SCHEMA.names and len(found.to_pandas()) == len(trips)
    again = copying().run(MemoryEnvironment(), bind={"trips": found.to_pandas()})
    assert again.received("copies") == trips


def test_whole_numbers_of_a_frame_of_pandas_keep_their_digits_beside_what_is_none() -> None:
    class Part(msgspec.Struct):
        n: int | None

    class Counted(msgspec.Struct):
        n: int | None
        many: list[int | None]
        part: Part

    big = 2**62 + 1
    put = [Counted(big, [big, None], Part(big)), Counted(None, [], Part(None))]
    app = App("counting")
    app.input("counts", value=Counted).send_to(app.output("copies", value=Counted))
    found = app.run(MemoryEnvironment(), bind={"counts": put}).output("copies").to_pandas()
    assert str(found["n"].dtype) == "Int64" and [*found["n"]] == [big, pd.NA]
    assert [*found["many"][0]] == [big, None] and found["part"][0] == {"n": big}
    assert app.run(MemoryEnvironment(), bind={"counts": found}).received("copies") == put


def test_decimals_that_polars_has_not_are_told() -> None:
    class Paid(msgspec.Struct):
        sums: list[Decimal]

    put = [Paid([Decimal("1" * 50)])]
    app = App("paying")
    app.input("paid", value=Paid).send_to(app.output("copies", value=Paid))
    found = app.run(MemoryEnvironment(), bind={"paid": put}).output("copies")
    assert found.to_arrow().to_pylist() == [{"sums": [Decimal("1" * 50)]}]
    with pytest.raises(SamzaError, match=r"38 digits in 'sums'.*to_arrow\(\)"):
        found.to_polars()


def test_nan_stays_a_number_and_what_is_missing_is_none() -> None:
    class Seen(msgspec.Struct):
        x: float
        name: str | None

    frame = pd.DataFrame({"x": [1.0, math.nan], "name": ["a", None]})
    app = App("copying")
    app.input("trips", value=Seen).send_to(app.output("copies", value=MessagePack(Seen)))
    first, second = app.run(MemoryEnvironment(), bind={"trips": frame}).received("copies")
    assert first == Seen(1.0, "a") and math.isnan(second.x) and second.name is None


def test_a_run_goes_on_where_the_frame_has_more_rows(tmp_path: Path) -> None:
    frame = pl.DataFrame({"a": [1, 2, 3]})
    app = copying(dict[str, int])
    app.run(tmp_path, bind={"trips": frame[:1]})
    run = app.run(tmp_path, bind={"trips": frame})
    assert run.received("copies") == [{"a": 1}, {"a": 2}, {"a": 3}]
    assert run.output("copies")._repr_html_().count("<tr") == 4
    with pytest.raises(Damaged, match="fewer than the 3"):
        app.run(tmp_path, bind={"trips": frame[:2]}, until_now=True)


def test_plain_values_are_one_column() -> None:
    app = App("lengths")
    app.input("trips", value=dict[str, str]).map(lambda row: len(row["a"])).send_to(app.output("n", value=int))
    run = app.run(MemoryEnvironment(), bind={"trips": pa.table({"a": ["x", "yy"]})})
    assert run.output("n").to_arrow().to_pydict() == {"value": [1, 2]}


@pytest.mark.parametrize(
    ("frame", "error"),
    [
        (pd.DataFrame({"a": [1]}, index=["x"]), "reset_index"),
        (pd.DataFrame({"a": [1]}).rename_axis("id"), "reset_index"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "two columns of one name"),
        (pd.DataFrame({0: [1]}), "names that are no text"),
        (pd.DataFrame({"a": [1, "b"]}), "the column 'a' .* no one type"),
        (pd.DataFrame({"a": [1j]}), "the column 'a' .* no one type"),
        (pd.DataFrame({"a": pd.period_range("2026-01", periods=2, freq="M")}), "'a' .* would be read as the int64"),
        (pd.DataFrame({"a": pd.interval_range(0, 2)}), "'a' .* would be read as the struct"),
        (pl.DataFrame({"a": pl.Series([object()], dtype=pl.Object)}), "'a' .* objects of Python"),
        (pl.DataFrame({"a": pl.Series([2**100], dtype=pl.Int128)}), "the DataFrame for 'trips' is no table"),
        (pa.chunked_array([[1]]), "the ChunkedArray for 'trips' is no table"),
        (pd.Series([1]), "to_frame"),
        (pl.Series([1]), "to_frame"),
        (pa.table({"a": pa.array([b"\xff"]).view(pa.string())}), "the column 'a' of type string holds .* decode"),
        (pa.table({"a": pa.array([0], pa.timestamp("us", "Mars/Phobos"))}), "the column 'a' .* 'Mars/Phobos'"),
        (duckdb.sql("SELECT 1 AS n, '101'::BIT AS a"), "the column 'a' of DuckDB's relation for 'trips' is BIT"),
        (duckdb.sql("SELECT ['10:00+02:00'::TIMETZ] AS a"), "is TIME WITH TIME ZONE"),
        (pa.table([[1], [2]], names=["a", "a"]), "two columns of one name"),
    ],
)
def test_what_would_be_lost_is_told(frame: object, error: str) -> None:
    with pytest.raises(SamzaError, match=error):
        copying(dict[str, int]).run(MemoryEnvironment(), bind={"trips": frame})


UTC = st.just(dt.UTC)
MIXED = st.one_of(
    *(st.none(), st.booleans(), st.integers(-9, 9), st.floats(-9, 9), st.text(max_size=2), st.binary(max_size=2)),
    *(st.dates(), st.times(), st.datetimes(), st.datetimes(timezones=UTC)),
)


@given(st.lists(st.lists(MIXED, max_size=2) | MIXED | st.builds(lambda one: {"k": one}, MIXED), min_size=1, max_size=4))
@settings(max_examples=examples(300, 20_000), deadline=None)
def test_a_column_of_objects_has_the_values_that_each_of_them_is_alone_or_is_refused(values: list[Any]) -> None:
    def read(some: list[Any]) -> list[Any]:
        source = FrameSource(pd.DataFrame({"a": pd.Series(some, dtype=object)}), "rows")
        return [row["a"] for row in source.serde(Json(dict[str, Any])).decode_table(source.read(0, 0).batch.values)]

    with suppress(SamzaError):
        found = read(values)
        assert found == [one for value in values for one in read([value])]
        assert [isinstance(one, bool) for one in found] == [isinstance(value, bool) for value in values]


def test_values_of_several_kinds_are_no_column_of_an_output(tmp_path: Path) -> None:
    for one, other in ((1.5, True), ("a", b"b"), ([1.5], [True])):
        app = App("mixed")
        app.input("rows", value=int).map(lambda n, both=(one, other): {"a": both[n]}).send_to(app.output("out"))
        with pytest.raises(SamzaError, match="some are"):
            app.run(MemoryEnvironment(), bind={"rows": [0, 1], "out": tmp_path / "out.parquet"})


def test_an_output_without_a_type_is_no_frame() -> None:
    app = App("untyped")
    app.input("trips", value=int | None).send_to(app.output("n", value=int | None))
    run = app.run(MemoryEnvironment(), bind={"trips": [1, None]})
    with pytest.raises(SamzaError, match="delete what has their key"):
        run.output("n").to_arrow()
    with pytest.raises(SamzaError, match="has the columns of an output's type"):
        run.output("no")


def test_columns_are_read_where_they_lie_without_a_copy() -> None:
    numbers = pa.array(range(20_000), pa.int64())
    source = FrameSource(pa.table({"n": numbers, "miles": numbers.cast(pa.float64())}), "trips")
    start = numbers.buffers()[1].address
    for offset in (0, ROWS_AT_ONCE, ROWS_AT_ONCE + 1):
        read = source.read(0, offset)
        assert read is not None and isinstance(read.batch.values, Columns)
        column = read.batch.values.table.column("n")
        assert column.buffers()[1].address == start and column.offset == offset and len(column) == ROWS_AT_ONCE


class Noted(msgspec.Struct):
    note: str


class Timed(msgspec.Struct):
    n: int
    at: dt.datetime | None


BEYOND = [
    (pa.timestamp("ms"), 2**62),
    (pa.timestamp("s"), 2**45),
    (pa.timestamp("us", "Asia/Kolkata"), -(2**62)),
    (pa.date32(), 10**7),
    (pa.date64(), 86_400_000 * 10**7),
    (pa.duration("s"), 2**60),
]


@pytest.mark.parametrize(("kind", "number"), BEYOND, ids=[f"{kind}" for kind, _ in BEYOND])
@pytest.mark.parametrize("where", ["frame", "Parquet"])
def test_a_time_that_python_has_not_is_for_the_policy_of_the_input(
    kind: pa.DataType, number: int, where: str, tmp_path: Path
) -> None:
    at = pa.array([1, number, None], pa.int32() if kind == pa.date32() else pa.int64()).view(kind)
    bound: Any = pa.table({"n": [1, 2, 3], "at": at})
    if where == "Parquet":
        pq.write_table(bound, tmp_path / "rows.parquet", store_schema=True)
        bound = tmp_path / "rows.parquet"
    app = App("timed")
    typed = app.input("rows", value=Timed, on_error=skip)
    typed.map(lambda row: row.n).send_to(app.output("typed", value=int))
    any_rows = app.input("any-rows", value=dict[str, Any])
    any_rows.map(lambda row: row["n"]).send_to(app.output("any", value=int))
    run = app.run(MemoryEnvironment(), bind={"rows": bound, "any-rows": bound})
    assert run.received("any") == [1, 2, 3], "without a type it is text, as all times are"
    assert run.received("typed") == ([1, 3] if pa.types.is_timestamp(kind) else [3])


FIRST, LAST = dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31)
LAST_MOMENT = dt.datetime.max
EDGES = [
    (pa.date32(), FIRST.date(), "0001-01-01"),
    (pa.date32(), LAST.date(), "9999-12-31"),
    (pa.date64(), LAST.date(), "9999-12-31"),
    (pa.timestamp("s"), FIRST, "0001-01-01T00:00:00"),
    (pa.timestamp("s"), LAST, "9999-12-31T00:00:00"),
    (pa.timestamp("us"), LAST_MOMENT, "9999-12-31T23:59:59.999999"),
    (pa.timestamp("us", "UTC"), LAST.replace(tzinfo=dt.UTC), "9999-12-31T00:00:00Z"),
    (pa.timestamp("us", "UTC"), LAST_MOMENT.replace(tzinfo=dt.UTC), "9999-12-31T23:59:59.999999Z"),
    (pa.timestamp("us", "+01:00"), LAST.replace(tzinfo=dt.UTC), "9999-12-31T01:00:00+01:00"),
    (pa.timestamp("ms", "Asia/Kolkata"), LAST.replace(tzinfo=dt.UTC), "9999-12-31T05:30:00+05:30"),
    # There clocks show a time that Python has not, and the instant is one that it has.
    (pa.timestamp("us", "+01:00"), LAST_MOMENT.replace(tzinfo=dt.UTC), "9999-12-31T23:59:59.999999Z"),
    (pa.timestamp("s", "America/New_York"), FIRST.replace(tzinfo=dt.UTC), "0001-01-01T00:00:00Z"),
]


@pytest.mark.parametrize(("kind", "time", "text"), EDGES, ids=[f"{kind} {text}" for kind, _, text in EDGES])
def test_the_first_and_last_times_that_python_has_are_read_as_all_others(
    kind: pa.DataType, time: Any, text: str, tmp_path: Path
) -> None:
    at = pa.array([time, None], kind)
    typed: Any = msgspec.defstruct("Typed", [("at", type(time) | None)])
    seen = {}
    for name, value in {"any": dict[str, Any], "text": dict[str, str | None], "typed": typed}.items():
        app = App(name)
        app.input("rows", value=value).send_to(app.output("out", value=value))
        seen[name] = app.run(MemoryEnvironment(), bind={"rows": pa.table({"at": at})}).received("out")
    assert seen["any"] == seen["text"] == [{"at": text}, {"at": None}]
    assert [row.at for row in seen["typed"]] == [time, None]


@pytest.mark.parametrize(
    ("kind", "number", "text"),
    [
        (pa.timestamp("s"), 253_402_300_800, "10000-01-01T00:00:00"),
        (pa.timestamp("us"), 253_402_300_800_500_000, "10000-01-01T00:00:00.500000"),
        (pa.timestamp("ms", "Europe/Berlin"), 253_402_300_800_000, "10000-01-01T00:00:00Z"),
        (pa.date32(), 2_932_897, "10000-01-01"),
        (pa.timestamp("us"), (1 << 63) - 1, "9223372036854775807 timestamp[us]"),
        (pa.dictionary(pa.int8(), pa.timestamp("ns")), 1_500, "1970-01-01T00:00:00.000001"),
        (pa.dictionary(pa.int8(), pa.timestamp("s")), 253_402_300_800, "10000-01-01T00:00:00"),
    ],
)
def test_a_time_that_python_has_not_is_iso_text(kind: pa.DataType, number: int, text: str) -> None:
    of = kind.value_type if pa.types.is_dictionary(kind) else kind
    at = pa.array([number], pa.int32() if kind == pa.date32() else pa.int64()).view(of)
    at = at.dictionary_encode() if of != kind else at
    app = App("text")
    app.input("rows", value=dict[str, Any]).send_to(app.output("out", value=dict[str, Any]))
    assert app.run(MemoryEnvironment(), bind={"rows": pa.table({"at": at})}).received("out") == [{"at": text}]


def test_a_file_with_two_columns_of_one_name_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table([[1], [2]], names=["n", "n"]), tmp_path / "rows.parquet")
    with pytest.raises(SamzaError, match="two columns of one name"):
        copying(dict[str, int]).run(MemoryEnvironment(), bind={"trips": tmp_path / "rows.parquet"})


@pytest.mark.parametrize("declared", [dict[str, str], dict[str, str | None], Noted])
def test_a_column_of_bytes_is_no_text(declared: Any, tmp_path: Path) -> None:
    """It was read as base64."""
    pq.write_table(pa.table({"note": [b"ab"]}), tmp_path / "notes.parquet")
    app = App("noted")
    app.input("rows", value=declared).send_to(app.output("out", value=declared))
    for bound in (pa.table({"note": [b"ab"]}), tmp_path / "notes.parquet"):
        with pytest.raises(SamzaError, match="the column 'note' holds bytes"):
            app.run(MemoryEnvironment(), bind={"rows": bound})
    raw = copying(dict[str, bytes]).run(MemoryEnvironment(), bind={"trips": pa.table({"note": [b"ab"]})})
    assert [row["note"] for row in raw.output("copies").to_arrow().to_pylist()] == [b"ab"]


VIEWS = st.recursive(
    st.just((pa.int64(), st.integers(0, 9))),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from([pa.list_view, pa.large_list_view, pa.list_])).map(
            lambda drawn: (drawn[1](drawn[0][0]), st.lists(drawn[0][1] | st.none(), max_size=3))
        ),
        inner.map(lambda drawn: (pa.struct([("in it", drawn[0])]), st.fixed_dictionaries({"in it": drawn[1]}))),
    ),
    max_leaves=3,
)


@given(drawn=VIEWS.flatmap(lambda one: st.tuples(st.just(one[0]), st.lists(one[1], min_size=1, max_size=4))))
@settings(deadline=None, max_examples=examples(50, 1_000))
def test_columns_of_views_and_of_runs_are_the_values_that_they_stand_for(drawn: tuple[pa.DataType, list[Any]]) -> None:
    """Arrow's own cast of a view of one list loses what is in it."""
    kind, values = drawn
    numbers = pc.run_end_encode(pa.array([len(str(value)) for value in values]))
    source = FrameSource(pa.table({"v": pa.array(values, kind), "runs": numbers}), "rows")
    found = source.read(0, 0)
    assert found is not None
    read = [*map(source.serde(Json(dict)).decode, found.batch.values)]
    assert read == [{"v": value, "runs": len(str(value))} for value in values]


MISSING = {
    "category": (pd.CategoricalDtype(["a", "b", "NaN"]), st.sampled_from(["a", "b", "NaN"])),
    "numbers by category": (pd.CategoricalDtype([1, 2, 7]), st.sampled_from([1, 2, 7])),
    "string": ("string[python]", st.text(max_size=3)),
    "text of arrow": ("string[pyarrow]", st.text(max_size=3)),
    "Int64": ("Int64", st.integers(-(2**63), 2**63 - 1)),
    "UInt8": ("UInt8", st.integers(0, 255)),
    "boolean": ("boolean", st.booleans()),
    "time": (
        "datetime64[us, Europe/Berlin]",
        st.datetimes(dt.datetime(1990, 1, 1), dt.datetime(2040, 1, 1), timezones=st.just(dt.UTC)),
    ),
}


@pytest.mark.parametrize("kind", MISSING)
@given(st.data())
@settings(max_examples=examples(20, 500), deadline=None)
def test_what_a_column_of_pandas_lacks_is_none_whatever_stands_for_it(kind: str, data: st.DataObject) -> None:
    dtype, held = MISSING[kind]
    values = data.draw(st.lists(st.none() | held, min_size=1, max_size=6))
    frame = pd.DataFrame({"value": pd.Series(values, dtype=dtype)})
    app = App("lacking")
    app.input("in").map(lambda row: row["value"]).send_to(app.output("out", value=MessagePack()))
    found = app.run(MemoryEnvironment(), bind={"in": frame}).received("out")
    if kind == "time":
        found = [None if one is None else dt.datetime.fromisoformat(str(one)) for one in found]
    assert found == values
