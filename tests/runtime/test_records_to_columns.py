"""Records of plain fields are written to Parquet by columns, and come to just what they come to row by row."""

import dataclasses
import datetime as dt
import enum
import uuid
from collections import OrderedDict
from typing import Annotated, Any, NamedTuple, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from operators.core.base import Batch
from runtime.encoding.formats.rows import RowSerde
from runtime.encoding.serdes import Json
from runtime.model.errors import SerdeError
from runtime.systems.files import parquet as parquet_files
from runtime.systems.files import plain_columns
from runtime.systems.files.parquet import ParquetSink, table_of_records
from runtime.systems.files.plain_columns import row_columns
from samza_dsl import App


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


class Float(float):
    pass


class Text(str):
    pass


class Whole(int):
    pass


class Raw(bytes):
    pass


class Moment(dt.datetime):
    pass


class Day(dt.date):
    pass


class Length(dt.timedelta):
    pass


class Number(enum.IntEnum):
    ONE = 1


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
        Record("k", Inner(1), raw="YQ=="),
        Record("k", Inner(1), raw=memoryview(b"a")),
        Record("k", Inner(1), day="2026-01-01"),
        Record("k", Inner(1), took="PT1S"),
        Record("k", Inner(1), took=1),
        Record("k", Inner(1), at="2026-01-01T00:00:00Z"),
        Record("k", Inner(1), flag=1),
        Record("k", Inner(1), price=float("nan")),
        Record("k", Inner(1), price=Float(1.5)),
        Record("k", Inner(1), count=Number.ONE),
        Record(Text("k"), Inner(1)),
        Record("k", Inner(Whole(1))),
        Record("k", Inner(1), raw=Raw(b"a")),
        Record("k", Inner(1), at=Moment(2026, 1, 1, tzinfo=dt.UTC)),
        Record("k", Inner(1), local=Moment(2026, 1, 1)),
        Record("k", Inner(1), day=Day(2026, 1, 1)),
        Record("k", Inner(1), took=Length(1)),
        Record("k", None),
        Record("k", {"number": 1}),
        {"key": "k", "inner": {"number": 1}},
        Inner(1),
    ]
)


class Point(msgspec.Struct, omit_defaults=True):
    x: float = 0.0
    name: str = "origin"


class Frozen(msgspec.Struct, frozen=True):
    number: int
    raw: bytes = b""


@dataclasses.dataclass
class Stop:
    name: str
    at: dt.datetime | None
    points: list[Point]


class Parts(msgspec.Struct, rename={"tags": "labels"}):
    id: int
    tags: list[str]
    marks: tuple[int, ...]
    counts: dict[str, int]
    raw: bytes = b""
    maybe: list[float] | None = None
    grid: list[list[int]] = []
    points: list[Point] = []
    frozen: Frozen | None = None
    stops: dict[str, Stop] = {}
    by_number: dict[int, list[str | None]] | None = None
    times: list[dt.datetime] = []
    days: list[dt.date | None] = []


class Counted(TypedDict):
    name: str
    numbers: list[int]
    inner: Inner | None


@dataclasses.dataclass
class Deep:
    parts: Parts | None
    more: list[Parts]


class Node(msgspec.Struct):
    name: str
    children: list["Node"] = []


class Marked(msgspec.Struct):
    marks: set[str]


class Few(msgspec.Struct):
    tags: Annotated[list[str], msgspec.Meta(max_length=2)]


def written(path, kind, pieces, by_columns, monkeypatch):
    if not by_columns:
        monkeypatch.setattr(parquet_files, "row_columns", lambda kind: None)
    monkeypatch.setattr(parquet_files, "FEW", 2)
    monkeypatch.setattr(plain_columns, "AT_ONCE", 3)
    sink = ParquetSink(path)
    serde = sink.serde(Json(kind))
    encode_all = (sink.together(serde) if by_columns else None) or (lambda piece: list(map(serde.encode, piece)))
    try:
        sink.recover(0)
        encoded = [encode_all(piece) for piece in pieces]  # a commit writes what was encoded before it
        try:
            for values in encoded:
                sink.write(Batch(values))
            sink.flush()
        except (SerdeError, msgspec.ValidationError):
            return "refused"  # of several reasons either may be told first
    except (SerdeError, msgspec.MsgspecError, OverflowError, TypeError, UnicodeEncodeError) as error:
        return type(error)
    finally:
        sink.close()
        monkeypatch.undo()
    table = parquet.read_table(path)
    return table.schema, repr(table.to_pylist())  # NaN is no other than itself there


@given(st.lists(st.lists(records | odd, min_size=1, max_size=6), min_size=1, max_size=3))
def test_columns_hold_what_rows_hold_also_where_a_value_is_not_what_its_field_says(tmp_path_factory, pieces):
    with pytest.MonkeyPatch.context() as patched:
        first, second = (written(tmp_path_factory.mktemp("out"), Record, pieces, one, patched) for one in (True, False))
    assert first == second


@dataclasses.dataclass
class Data:
    key: str
    inner: Inner
    price: float = 0.0
    count: int | None = None
    day: dt.date | None = None
    at: dt.datetime | None = None
    _hidden: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Slotted:
    key: str
    data: Data | None = None
    data_again: Data


@dataclasses.dataclass
class Doubling:
    number: int

    def __post_init__(self):
        self.number *= 2


class Keys(TypedDict):
    key: str
    count: int | None


class SomeKeys(Keys, total=False):
    price: float


def unset():
    data = Data("k", Inner(1))
    del data.price
    return data


def grown():
    data = Data("k", Inner(1))
    data.more = 1
    return data


texts = st.text(max_size=3)
scalars = st.one_of(
    st.none(),
    texts,
    st.integers(-9, 9),
    st.floats(allow_nan=False, width=16),
    st.booleans(),
    st.binary(max_size=2),
    INSTANTS,
    TIMES,
)
odd_values = st.sampled_from(
    [2**63, 2**64, -(2**63), -(2**63) - 1, "\ud800", Text("t"), Whole(1), Number.ONE]
) | st.sampled_from(
    [
        Float(1.5),
        Moment(2026, 1, 1),
        Moment(2026, 1, 1, tzinfo=dt.UTC),
        dt.date(2026, 1, 1),
        dt.timedelta(1),
        bytearray(b"a"),
        [1],
        {"a": 1},
        object(),
    ]
)
alike = st.fixed_dictionaries({"a": st.integers(-9, 9), "b": texts | st.none(), "c": INSTANTS, "d": st.booleans()})
loose = st.dictionaries(st.sampled_from("abc"), scalars | odd_values, max_size=3)
datas = st.builds(
    Data,
    texts,
    inners,
    st.floats(allow_nan=False) | st.integers(-9, 9),
    st.none() | st.integers(),
    st.none() | st.dates(),
    st.none() | TIMES | INSTANTS,
    st.integers(0, 9),
)


points = st.builds(Point, st.sampled_from([0.0, 1.5, 2]), st.sampled_from(["origin", "here"]))
frozen = st.builds(Frozen, st.integers(-9, 9), st.binary(max_size=2))
times = st.lists(TIMES, max_size=2) | st.lists(INSTANTS, max_size=2)
stops = st.builds(Stop, texts, st.none() | TIMES | INSTANTS, st.lists(points, max_size=2))
parts = st.builds(
    Parts,
    st.integers(0, 9),
    st.lists(texts, max_size=2),
    st.lists(st.integers(-9, 9), max_size=2).map(tuple),
    st.dictionaries(texts, st.integers(-9, 9), max_size=2),
    st.binary(max_size=2),
    st.none() | st.lists(st.floats(allow_nan=False) | st.integers(-9, 9), max_size=2),
    st.lists(st.lists(st.integers(-9, 9), max_size=2), max_size=2),
    st.lists(points, max_size=2),
    st.none() | frozen,
    st.dictionaries(texts, stops, max_size=2),
    st.none() | st.dictionaries(st.integers(0, 3), st.lists(st.none() | texts, max_size=2), max_size=2),
    times,
    st.lists(st.none() | st.dates(), max_size=2),
)
odd_fields = st.sampled_from(
    [
        ("tags", ("a",)),
        ("tags", ["a", 1]),
        ("tags", [Text("a")]),
        ("tags", ["\ud800"]),
        ("tags", {"a"}),
        ("tags", None),
        ("tags", "ab"),
        ("marks", [1]),
        ("marks", (True,)),
        ("marks", (2**63,)),
        ("counts", OrderedDict(a=1)),
        ("counts", {Text("a"): 1}),
        ("counts", {"a": 1.0}),
        ("counts", {1: 1}),
        ("counts", [("a", 1)]),
        ("raw", bytearray(b"a")),
        ("maybe", [Float(1.5)]),
        ("maybe", [None]),
        ("grid", [[1], (2,), []]),
        ("grid", [[1], None]),
        ("points", [{"x": 1.0}]),
        ("points", [Point(Float(1.0))]),
        ("points", (Point(),)),
        ("frozen", {"number": 1}),
        ("frozen", Frozen(1, bytearray(b"a"))),
        ("frozen", Inner(1)),
        ("stops", {"a": None}),
        ("stops", {"a": {"name": "b", "at": None, "points": []}}),
        ("by_number", {"1": ["a"]}),
        ("by_number", {True: ["a"]}),
        ("times", [dt.datetime(2026, 1, 1), dt.datetime(2026, 1, 1, tzinfo=dt.UTC)]),
        ("days", [dt.datetime(2026, 1, 1)]),
    ]
)


@st.composite
def odd_parts(draw):
    """Records with parts, one of which has a field of something else, or lacks it."""
    record = draw(parts)
    name, value = draw(odd_fields)
    setattr(record, name, value)
    return record


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        (Parts, parts | odd_parts()),
        (Deep, st.builds(Deep, st.none() | parts, st.lists(parts, max_size=2))),
        (dict[str, list[int]], st.fixed_dictionaries({"a": st.lists(st.integers(-9, 9)), "b": st.just([])})),
        (
            Counted,
            st.fixed_dictionaries({"name": texts, "numbers": st.lists(st.integers()), "inner": st.none() | inners}),
        ),
        (Any, alike | loose | st.just({}) | st.sampled_from([{1: 2}, OrderedDict(a=1), {Text("a"): 1}, {"\ud800": 1}])),
        (dict, alike | loose),
        (dict[str, Any], alike | loose),
        (dict[str, float | None], st.dictionaries(st.sampled_from("abc"), st.floats() | st.integers() | st.none())),
        (dict[str, int], st.dictionaries(st.sampled_from("ab"), st.integers() | odd_values, min_size=1)),
        (Keys, st.fixed_dictionaries({"key": texts, "count": st.none() | st.integers()}, optional={"more": scalars})),
        (SomeKeys, st.fixed_dictionaries({"key": texts, "count": st.none()}, optional={"price": st.floats()})),
        (Data, datas | st.builds(unset) | st.builds(grown) | inners),
        (Slotted, st.builds(Slotted, key=texts, data_again=datas)),
        (Doubling, st.builds(Doubling, st.integers(0, 9))),
    ],
)
@given(data=st.data())
def test_dicts_and_dataclasses_by_columns_are_what_they_are_row_by_row(kind, rows, tmp_path_factory, data):
    pieces = data.draw(st.lists(st.lists(rows, min_size=1, max_size=6), min_size=1, max_size=3))
    with pytest.MonkeyPatch.context() as patched:
        first, second = (written(tmp_path_factory.mktemp("o"), kind, pieces, one, patched) for one in (True, False))
    assert first == second


def test_a_record_that_changes_later_is_written_as_it_was(tmp_path):
    sink = ParquetSink(tmp_path / "out")
    serde, record = sink.serde(Json(Record)), Record("k", Inner(1))
    sink.recover(0)
    for encoded in ([serde.encode(record)], sink.together(serde)([record] * parquet_files.FEW)):
        sink.write(Batch(encoded))
    record.key, record.inner.number = "later", 2
    sink.flush()
    table = parquet.read_table(tmp_path / "out")
    assert {row["inner"]["number"] for row in table.to_pylist()} == {1}
    assert set(table.column("key").to_pylist()) == {"k"}


@pytest.mark.parametrize("kind", [Record | None, list[int], int, Doubling, dict[int, int], Node, Marked, Few])
def test_what_is_more_than_fields_and_their_parts_goes_row_by_row(kind):
    assert row_columns(kind) is None


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
    with pytest.raises(SerdeError, match="some have a time zone, and some have none"):
        sink.write(Batch([serde.encode(Record("k", Inner(1), at=one)) for one in (at, at.replace(tzinfo=dt.UTC))]))


class Kind(enum.Enum):
    LARGE = "large"


@dataclasses.dataclass
class Plain:
    number: int
    class_: str | None
    tags: list[str]


class Named(NamedTuple):
    number: int
    inner: Inner | None


class Nested(msgspec.Struct, rename={"kind": "of"}):
    kind: Kind
    inner: Inner | None
    counts: dict[str, int]


class Sets(msgspec.Struct):
    marks: set[str]
    pairs: tuple[int, ...]
    dates: list[dt.date]
    kinds: list[Kind]
    known: uuid.UUID
    each: dict[str, list[float]]


class Loose(msgspec.Struct):
    anything: Any


anything = st.none() | st.integers(-9, 9) | st.lists(st.text(max_size=3), max_size=2) | st.just(Kind.LARGE)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (Plain, st.builds(Plain, st.integers(0, 9), st.none() | st.text(max_size=3), st.lists(st.text(max_size=3)))),
        (Named, st.builds(Named, st.integers(0, 9), st.none() | inners)),
        (Nested, st.builds(Nested, st.just(Kind.LARGE), st.none() | inners, st.dictionaries(st.text(), st.integers()))),
        (Sets, st.builds(Sets, each=st.dictionaries(st.text(), st.lists(st.floats(allow_nan=False))))),
        (Loose, st.builds(Loose, anything)),
        (dict[str, Any], st.dictionaries(st.sampled_from("abc"), anything, min_size=1)),
        (Any, st.dictionaries(st.sampled_from("abc"), anything, min_size=1) | inners),
    ],
)
@given(data=st.data())
def test_fields_that_are_read_all_at_once_are_those_of_each_row(kind, values, data):
    values = data.draw(st.lists(values, min_size=1, max_size=4))

    def table():
        try:
            return table_of_records(values, kind, "out").to_pydict()
        except SerdeError as error:
            return str(error)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(parquet_files, "fields_in", lambda records, kind: None)
        patched.setattr(parquet_files, "_column_of", parquet_files._plain_column)
        by_rows = table()
    assert table() == by_rows


@pytest.mark.parametrize("function", [lambda number: Inner(number), None], ids=["inlined", "called"])
def test_rows_that_go_as_columns_are_counted_one_by_one(function, tmp_path):
    def made(number: int) -> Inner:
        return Inner(int(str(number)))

    app = App("counted")
    app.input("numbers", value=int).map(function or made).send_to(app.output("rows", value=Inner))
    run = app.run(tmp_path / "data", bind={"numbers": [*range(1_000)], "rows": str(tmp_path / "rows.parquet")})
    assert run.metrics().received("send_to-rows") == 1_000
    assert parquet.read_table(tmp_path / "rows.parquet").column("number").to_pylist() == [*range(1_000)]
