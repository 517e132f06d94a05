"""Rows of a DataFrame are the records of its input, whatever columns it has: random schemas, and random rows."""

import math
import tempfile
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import count
from types import UnionType
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types

from runtime.encoding.serdes import Json
from runtime.spark.laid_down import laid_down
from runtime.systems.frames.frame_source import FrameSource
from samza_dsl import App, Spark, SparkTable, skip
from tests.scale import examples

pytestmark = [pytest.mark.ci, pytest.mark.timeout(900)]


NUMBERS = count()
"""Tells the classes of nested records apart."""


def whole(bits):
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
LEAVES = st.sampled_from(
    [
        (types.ByteType(), int, whole(8)),
        (types.ShortType(), int, whole(16)),
        (types.IntegerType(), int, whole(32)),
        (types.LongType(), int, whole(64)),
        (types.LongType(), float, st.integers(-(2**50), 2**50)),
        (types.FloatType(), float, st.floats(width=32)),
        (types.DoubleType(), float, st.floats()),
        (types.StringType(), str, TEXT),
        (types.BooleanType(), bool, st.booleans()),
        (types.BinaryType(), bytes, st.binary(max_size=5)),
        (types.DateType(), date, st.dates()),
        (
            types.TimestampType(),
            datetime,
            st.datetimes(datetime(1900, 1, 2), datetime(2200, 1, 1), timezones=st.just(UTC)),
        ),
        (types.TimestampNTZType(), datetime, st.datetimes()),
        (types.DecimalType(20, 5), Decimal, st.decimals(-(10**14), 10**14, places=5)),
        (types.DayTimeIntervalType(), timedelta, st.timedeltas(timedelta(days=-1000), timedelta(days=1000))),
    ]
)


def optional(drawn):
    kind, declared, values = drawn
    return kind, declared | None, values | st.none()


def may_be_none(declared):
    """Whether a column may have nulls: one that has none says so, as those of Spark's own expressions do."""
    return isinstance(declared, UnionType)


def listed(drawn):
    kind, declared, values = drawn
    return types.ArrayType(kind, may_be_none(declared)), list[declared], st.lists(values, max_size=3)


def mapped(key, drawn):
    (of_key, declared_key, keys), (kind, declared, values) = key, drawn
    found = types.MapType(of_key, kind, may_be_none(declared))
    return found, dict[declared_key, declared], st.dictionaries(keys, values, max_size=3)


NAMES = st.sampled_from(["", ".", "`", " ", "é", "-", "1"]).map("f{}x".format)
"""Names that have to be quoted, too."""


def record(drawn):
    fields = [(f"f{number}", f"{name}{number}", *one) for number, (name, one) in enumerate(drawn)]
    kind = types.StructType([types.StructField(name, of, may_be_none(own)) for _, name, of, own, _ in fields])
    renamed = {field: name for field, name, *_ in fields}
    declared = msgspec.defstruct(
        f"Nested{next(NUMBERS)}", [(field, of) for field, _, _, of, _ in fields], rename=renamed
    )
    return kind, declared, st.tuples(*(values for *_, values in fields))


KEYS = st.sampled_from([(types.StringType(), str, TEXT), (types.LongType(), int, whole(64))])
COLUMNS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        inner.map(optional),
        inner.map(listed),
        st.builds(mapped, KEYS, inner),
        st.lists(st.tuples(NAMES, inner), min_size=1, max_size=3).map(record),
    ),
    max_leaves=4,
)


@st.composite
def frames(draw):
    """Return a schema, the declared type of its rows, and rows."""
    kind, declared, values = record(draw(st.lists(st.tuples(NAMES, COLUMNS), min_size=1, max_size=8)))
    return kind, declared, draw(st.lists(values, max_size=6))


def plain(value):
    """Return a value of ours, or of Spark's, as it is compared: points in time as Spark's `collect` tells them."""
    if isinstance(value, types.Row):
        return {name: plain(one) for name, one in value.asDict().items()}
    if isinstance(value, msgspec.Struct):
        names = zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
        return {name: plain(getattr(value, field)) for field, name in names}
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [*map(plain, value)]
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone().replace(tzinfo=None)
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    return bytes(value) if isinstance(value, bytearray) else value


def records(session, frame, declared):
    """Return the records of an input that is bound to a frame."""
    app = App("reading")
    app.input("rows", value=declared).send_to(app.output("out", value=declared))
    with tempfile.TemporaryDirectory() as data, laid_down(Spark(session), app.graph(), {"rows": frame}, data) as bind:
        source = bind["rows"]
        serde = next(iter(app.graph().inputs.values())).value
        decode, found = source.serde(serde).decode, []
        for partition in range(source.partitions):
            offset = source.offsets(partition).start
            while (read := source.read(partition, offset)) is not None:
                found += map(decode, read.batch.values)
                offset = read.next_offset
        return found


@given(drawn=frames())
@settings(deadline=None, max_examples=examples(25, 1_000))
def test_records_are_what_collect_returns(session, drawn):
    kind, declared, rows = drawn
    frame = session.createDataFrame(rows, kind)
    expected = [*map(plain, frame.collect())]
    assert [*map(plain, records(session, frame, declared))] == expected
    assert [*map(plain, records(session, session.sparkContext.parallelize(rows, 1), declared))] == expected


@given(drawn=COLUMNS.flatmap(lambda column: st.tuples(st.just(column), st.lists(column[2], max_size=5))))
@settings(deadline=None, max_examples=examples(15, 500))
def test_a_single_column_feeds_a_plain_type(session, drawn):
    (kind, declared, _), values = drawn
    frame = session.createDataFrame([(value,) for value in values], types.StructType([types.StructField("only", kind)]))
    if isinstance(kind, types.StructType | types.MapType):
        return  # a record of fields, which are not columns
    assert [*map(plain, records(session, frame, declared))] == [plain(row.only) for row in frame.collect()]


MICROS = st.datetimes(datetime(1900, 1, 2), datetime(2200, 1, 1))
TIMES = [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")] if hasattr(types, "TimeType") else []
"""The times of day, which Spark has from 4.1 on."""
ARROW = st.sampled_from(
    [
        *((kind, st.integers(0, 200)) for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.int16())),
        *((kind, TEXT) for kind in (pa.string(), pa.large_string(), pa.string_view())),
        *((kind, st.binary(min_size=2, max_size=2)) for kind in (pa.large_binary(), pa.binary_view(), pa.binary(2))),
        *((kind, st.sampled_from([0.0, 1.5, -2.0])) for kind in (pa.float16(), pa.float32(), pa.float64())),
        *((pa.timestamp(unit), MICROS.map(lambda at: at.replace(microsecond=0))) for unit in ("s", "ms", "us", "ns")),
        (pa.timestamp("ns", "Europe/Berlin"), MICROS.map(lambda at: at.replace(tzinfo=UTC))),
        (pa.decimal256(40, 2), st.decimals(-(10**9), 10**9, places=2)),
        (pa.date64(), st.dates()),
        *((kind, st.times().map(lambda at: at.replace(microsecond=0))) for kind in TIMES),
    ]
)
ARROW_COLUMNS = st.recursive(
    ARROW.map(lambda drawn: (drawn[0], drawn[1] | st.none())),
    lambda inner: st.one_of(
        inner.map(lambda drawn: (pa.list_(drawn[0]), st.lists(drawn[1], max_size=3))),
        inner.map(lambda drawn: (pa.large_list(drawn[0]), st.lists(drawn[1], max_size=3))),
        inner.map(lambda drawn: (pa.list_view(drawn[0]), st.lists(drawn[1], max_size=3))),
        inner.map(lambda drawn: (pa.struct([("in it", drawn[0])]), st.fixed_dictionaries({"in it": drawn[1]}))),
    ),
    max_leaves=2,
)


def in_utc(value):
    """Return a record as it is compared: points in time are told in UTC on Spark."""
    if isinstance(value, dict):
        return {name: in_utc(one) for name, one in value.items()}
    if isinstance(value, list):
        return [*map(in_utc, value)]
    with suppress(TypeError, ValueError):
        found = datetime.fromisoformat(value)
        return found.astimezone(UTC) if found.tzinfo is not None else value
    return value


@given(drawn=st.lists(ARROW_COLUMNS, min_size=1, max_size=6), data=st.data())
@settings(deadline=None, max_examples=examples(15, 300))
def test_a_frame_in_memory_has_the_records_that_a_local_run_has(session, drawn, data):
    rows = data.draw(st.lists(st.tuples(*(values for _, values in drawn)), min_size=1, max_size=5))
    columns = [pa.array([row[at] for row in rows], kind) for at, (kind, _) in enumerate(drawn)]
    table = pa.table(columns, names=[f"c{at}" for at in range(len(drawn))])
    local = FrameSource(table, "rows")
    decode = local.serde(Json(dict)).decode
    session.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    try:
        found = records(session, table, dict)
    finally:
        session.conf.unset("spark.sql.session.timeZone")
    assert [*map(in_utc, found)] == [in_utc(decode(one)) for one in local.read(0, 0).batch.values]


class Partly(msgspec.Struct, frozen=True):
    a: int
    b: str = "absent"
    c: list[int] = []


@pytest.mark.parametrize(
    ("declared", "rows"),
    [
        (Partly, [{"a": 1}, {"a": 2, "b": "here"}, {"a": 3, "c": [1]}]),
        (dict, [{"a": 1, "b": None}, {"a": 2, "b": 1.5}]),
        (int, [1, 2]),
        (str, ["1", ""]),
        (list[int], [[1], []]),
    ],
)
def test_rows_of_an_rdd_are_the_records_that_a_list_of_them_has(session, tmp_path, declared, rows):
    app = App("reading")
    app.input("rows", value=declared).send_to(app.output("out", value=declared))
    live = app.run(bind={"rows": rows}, data=tmp_path / "live").received("out")
    assert records(session, session.sparkContext.parallelize(rows, 1), declared) == live


MOMENTS = st.datetimes(timezones=st.none() | st.just(UTC))
OBJECTS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | TEXT
    | MOMENTS
    | st.binary(max_size=3)
    | st.decimals(allow_nan=False)
    | st.dates()
    | st.timedeltas()
    | st.uuids(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)


@given(rows=st.lists(st.dictionaries(TEXT, OBJECTS, max_size=4), max_size=5), data=st.data())
@settings(deadline=None, max_examples=examples(15, 500))
def test_rows_of_an_rdd_that_nothing_is_declared_of_are_what_json_has_of_them(session, rows, data):
    rdd = session.sparkContext.parallelize(rows, data.draw(st.integers(1, 3)))
    for kind in (dict, Any):
        assert records(session, rdd, kind) == msgspec.to_builtins(rows)


class Told(msgspec.Struct, frozen=True):
    text: str = ""
    day: date = date(2026, 1, 1)
    at: datetime = datetime(2026, 1, 1)
    number: int = 0
    share: Decimal = Decimal()
    who: UUID = UUID(int=0)
    held: object = None


@pytest.mark.parametrize(
    ("field", "value", "is_one"),
    [
        *(("text", 5, False), ("day", datetime(2026, 1, 1, 5), False), ("number", "2", False), ("number", 2.5, False)),
        *(
            ("number", 2**63, True),
            ("at", datetime(2026, 1, 1, 5), True),
            ("at", datetime(2026, 1, 1, 5, tzinfo=UTC), True),
        ),
        *(
            ("share", Decimal("1.0000000000000000001"), True),
            ("share", Decimal(10) ** 30, True),
            ("who", UUID(int=5), True),
        ),
        *(("held", [1, "x", 2.5], True), ("held", {"a": 1, "b": [{}]}, True)),
    ],
)
def test_a_value_of_an_rdd_is_that_of_its_field_or_an_error_of_its_record(session, tmp_path, field, value, is_one):
    """Spark makes a number text, a time a day, a long number null, and rounds, all without a word."""
    app = App("reading")
    app.input("rows", value=Told, on_error=skip).send_to(app.output("out", value=Told))
    rdd = session.sparkContext.parallelize([{field: value}, {"text": "one"}], 1)
    read = app.run(on=Spark(session), bind={"rows": rdd}, data=tmp_path).received("out")
    assert read == [*([msgspec.convert({field: value}, Told)] if is_one else []), Told("one")]
    assert not is_one or getattr(read[0], field) == value


@pytest.mark.parametrize("declared", [dict, int, Told])
def test_an_rdd_without_rows_is_an_input_without_records(session, declared):
    assert records(session, session.sparkContext.emptyRDD(), declared) == []
    asked = {"order_by": "text", "partition_by": "at"} if declared is Told else {}
    assert records(session, SparkTable(session.sparkContext.parallelize([], 3), **asked), declared) == []


def test_rows_of_an_rdd_are_arranged_by_what_they_hold(session):
    at = [datetime(2026, 1, day) for day in (3, 1, 2)]
    rdd = session.sparkContext.parallelize([{"at": one, "number": one.day % 2} for one in at], 3)
    for declared in (dict, Told):
        asked = SparkTable(rdd, order_by="at", partition_by="number")
        found = msgspec.to_builtins(records(session, asked, declared))
        days = {odd: [one["at"][8:10] for one in found if one["number"] == odd] for odd in (0, 1)}
        assert days == {0: ["02"], 1: ["01", "03"]}
