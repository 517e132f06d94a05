"""Rows of a DataFrame are the records of its input, whatever columns it has: random schemas, and random rows."""

import math
import tempfile
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import count

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types

from runtime.encoding.serdes import Json
from runtime.spark.laid_down import laid_down
from runtime.systems.frames.frame_source import FrameSource
from samza_dsl import App, Spark
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


def listed(drawn):
    kind, declared, values = drawn
    return types.ArrayType(kind), list[declared], st.lists(values, max_size=3)


def mapped(key, drawn):
    (of_key, declared_key, keys), (kind, declared, values) = key, drawn
    return types.MapType(of_key, kind), dict[declared_key, declared], st.dictionaries(keys, values, max_size=3)


NAMES = st.sampled_from(["", ".", "`", " ", "é", "-", "1"]).map("f{}x".format)
"""Names that have to be quoted, too."""


def record(drawn):
    fields = [(f"f{number}", f"{name}{number}", *one) for number, (name, one) in enumerate(drawn)]
    kind = types.StructType([types.StructField(name, of, True) for _, name, of, _, _ in fields])
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
    assert [*map(plain, records(session, frame, declared))] == [*map(plain, frame.collect())]


@given(drawn=COLUMNS.flatmap(lambda column: st.tuples(st.just(column), st.lists(column[2], max_size=5))))
@settings(deadline=None, max_examples=examples(15, 500))
def test_a_single_column_feeds_a_plain_type(session, drawn):
    (kind, declared, _), values = drawn
    frame = session.createDataFrame([(value,) for value in values], types.StructType([types.StructField("only", kind)]))
    if isinstance(kind, types.StructType | types.MapType):
        return  # a record of fields, which are not columns
    assert [*map(plain, records(session, frame, declared))] == [plain(row.only) for row in frame.collect()]


MICROS = st.datetimes(datetime(1900, 1, 2), datetime(2200, 1, 1))
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
    ]
)
ARROW_COLUMNS = st.recursive(
    ARROW.map(lambda drawn: (drawn[0], drawn[1] | st.none())),
    lambda inner: st.one_of(
        inner.map(lambda drawn: (pa.list_(drawn[0]), st.lists(drawn[1], max_size=3))),
        inner.map(lambda drawn: (pa.large_list(drawn[0]), st.lists(drawn[1], max_size=3))),
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
    if declared is dict:
        cut = session.sparkContext.parallelize([{"a": 1}, {"a": 2, "b": 1.5}], 2)
        assert records(session, cut, declared) == live, "the first row has not all columns"
