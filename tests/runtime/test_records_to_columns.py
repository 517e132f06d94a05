"""Records of plain fields are written to Parquet by columns, and come to just what they come to row by row."""

import datetime as dt
from typing import Annotated

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from operators.core.base import Batch
from runtime.encoding.formats.rows import RowSerde
from runtime.encoding.serdes import Json
from runtime.model.errors import SerdeError
from runtime.systems.files.parquet import ApartSerde, ParquetSink
from runtime.systems.files.plain_columns import RecordColumns


class Inner(msgspec.Struct):
    number: int
    text: str | None = None


class Record(msgspec.Struct, rename={"price": "cost"}, omit_defaults=True):
    key: str
    inner: Inner
    flag: bool = False
    price: float = 0.0
    count: int | None = None
    raw: bytes | None = None
    day: dt.date | None = None
    took: dt.timedelta | None = None
    at: dt.datetime | None = None
    instant: Annotated[dt.datetime, msgspec.Meta(tz=True)] | None = None
    local: Annotated[dt.datetime, msgspec.Meta(tz=False)] | None = None


class Sparse(msgspec.Struct, omit_defaults=True):
    number: int = 0


class WithSparse(msgspec.Struct):
    within: Sparse


TIMES = st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1))
INSTANTS = st.datetimes(
    dt.datetime(1900, 1, 1),
    dt.datetime(2200, 1, 1),
    timezones=st.sampled_from([dt.UTC, dt.timezone(dt.timedelta(hours=5))]),
)
inners = st.builds(Inner, st.integers(-(2**63), 2**63 - 1), st.none() | st.text(max_size=5))
records = st.builds(
    Record,
    st.text(max_size=5),
    inners,
    st.booleans(),
    st.floats(allow_nan=False) | st.integers(-(2**53), 2**53),
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.binary(max_size=3),
    st.none() | st.dates(),
    st.none() | st.timedeltas(dt.timedelta(days=-9_999), dt.timedelta(days=9_999)),
    st.none() | TIMES | INSTANTS,
    st.none() | INSTANTS,
    st.none() | TIMES,
)
odd = st.sampled_from(
    [
        Record("k", Inner(2**64)),
        Record("k", Inner(1), price=2**60 + 1),
        Record("k", Inner(True)),
        Record(1, Inner(1)),
        Record("k", Inner(1), price="1"),
        Record("k", Inner(1), count=1.0),
        Record("k", Inner(1), instant=dt.datetime(2026, 1, 1)),
        Record("k", Inner(1), local=dt.datetime(2026, 1, 1, tzinfo=dt.UTC)),
        Record("k", Inner(1), day=dt.datetime(2026, 1, 1)),
        Record("k", Inner(1), raw=bytearray(b"a")),
        Record("k", {"number": 1}),
        {"key": "k", "inner": {"number": 1}},
        Inner(1),
    ]
)


def written(path, values, by_columns, monkeypatch):
    if not by_columns:
        monkeypatch.setattr(RecordColumns, "of", lambda kind: None)
    sink = ParquetSink(path)
    serde = sink.serde(Json(Record))
    assert isinstance(serde, ApartSerde) == by_columns
    try:
        sink.recover(0)
        sink.write(Batch([serde.encode(value) for value in values]))
        sink.flush()
    except SerdeError as error:
        return str(error).replace(str(path), "")
    except (msgspec.MsgspecError, OverflowError) as error:
        return type(error)
    finally:
        sink.close()
        monkeypatch.undo()
    table = parquet.read_table(path)
    return table.schema, table.to_pylist()


@given(st.lists(records | odd, min_size=1, max_size=6))
def test_columns_hold_what_rows_hold_also_where_a_value_is_not_what_its_field_says(tmp_path_factory, values):
    with pytest.MonkeyPatch.context() as patched:
        first, second = (written(tmp_path_factory.mktemp("out"), values, one, patched) for one in (True, False))
    assert first == second


def test_a_record_that_changes_later_is_written_as_it_was(tmp_path):
    sink = ParquetSink(tmp_path / "out")
    serde, record = sink.serde(Json(Record)), Record("k", Inner(1))
    sink.recover(0)
    sink.write(Batch([serde.encode(record)]))
    record.key, record.inner.number = "later", 2
    sink.flush()
    assert parquet.read_table(tmp_path / "out").to_pylist()[0]["inner"] == {"number": 1, "text": None}
    assert parquet.read_table(tmp_path / "out").column("key").to_pylist() == ["k"]


@pytest.mark.parametrize("kind", [dict[str, int], Record | Inner, list[int], WithSparse, int])
def test_what_is_more_than_plain_fields_goes_row_by_row(kind):
    assert RecordColumns.of(kind) is None


@pytest.mark.parametrize(
    ("record", "error"),
    [
        (Record("k", Inner(2**64)), OverflowError),
        (Record("k", Inner(-(2**63) - 1)), OverflowError),
        (Record("\ud800", Inner(1)), UnicodeEncodeError),
        (Record("k", Inner(1), count=object()), TypeError),
    ],
)
def test_a_record_without_bytes_fails_as_it_is_sent_and_not_as_its_file_is_written(record, error, tmp_path):
    with pytest.raises(error):
        RowSerde(Record).encode(record)
    with pytest.raises(error):
        ParquetSink(tmp_path / "out.parquet").serde(Json(Record)).encode(record)


def test_times_with_and_without_a_time_zone_are_not_one_column(tmp_path):
    sink = ParquetSink(tmp_path / "out")
    serde, at = sink.serde(Json(Record)), dt.datetime(2026, 1, 1)
    sink.recover(0)
    sink.write(Batch([serde.encode(Record("k", Inner(1), at=one)) for one in (at, at.replace(tzinfo=dt.UTC))]))
    with pytest.raises(SerdeError, match="some have a time zone, and some have none"):
        sink.flush()
