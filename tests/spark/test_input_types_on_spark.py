"""Rows of a DataFrame are the records of its input, whatever columns it has: random schemas, and random rows."""

import math
import tempfile
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import count

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types

from runtime.spark.laid_down import laid_down
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


def record(drawn):
    fields = [(f"f{number}", *one) for number, one in enumerate(drawn)]
    kind = types.StructType([types.StructField(name, of, True) for name, of, _, _ in fields])
    declared = msgspec.defstruct(f"Nested{next(NUMBERS)}", [(name, of) for name, _, of, _ in fields])
    return kind, declared, st.tuples(*(values for *_, values in fields))


KEYS = st.sampled_from([(types.StringType(), str, TEXT), (types.LongType(), int, whole(64))])
COLUMNS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        inner.map(optional),
        inner.map(listed),
        st.builds(mapped, KEYS, inner),
        st.lists(inner, min_size=1, max_size=3).map(record),
    ),
    max_leaves=4,
)


@st.composite
def frames(draw):
    """Return a schema, the declared type of its rows, and rows."""
    kind, declared, values = record(draw(st.lists(COLUMNS, min_size=1, max_size=8)))
    return kind, declared, draw(st.lists(values, max_size=6))


def plain(value):
    """Return a value of ours, or of Spark's, as it is compared: points in time as Spark's `collect` tells them."""
    if isinstance(value, types.Row):
        return {name: plain(one) for name, one in value.asDict().items()}
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
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
