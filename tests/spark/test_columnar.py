"""Terms over columns are what Python makes of the fields, and inputs that are folded as columns come to the same."""

import tempfile
from collections import Counter
from itertools import accumulate
from pathlib import Path
from unittest.mock import patch

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.columnar.combining import combined
from planner.columnar.lowering import lowered
from planner.columnar.terms import NotColumnar, columns_of, condition_of, term_of
from runtime.ports.stream_values import values_of
from runtime.systems.files import parquet, schemas
from runtime.systems.files.parquet_columns import holds
from runtime.units.worker import columnar
from runtime.units.worker.columnar import ColumnarFolding, ColumnarPreparing, column
from runtime.units.worker.columnar_states import Unusual
from samza_dsl import (
    App,
    Options,
    SamzaError,
    aggregate,
    collect,
    count,
    daily,
    dead_letter,
    hopping,
    maximum,
    mean,
    minimum,
    session,
    top_k,
    total,
    tumbling,
)
from tests.planner.test_inline import defined
from tests.scale import examples
from tests.simulation.crash import memory, run_once
from tests.spark.combining import choices, ways_of
from tests.spark.shuffling import run_here

SECONDS, COUNT = tumbling(seconds=1), count()
BEGUN = 1_600_000_000_000
"""A time (ms) of our days, before the clock's."""
pytestmark = pytest.mark.filterwarnings("ignore::SyntaxWarning")


class Row(msgspec.Struct, frozen=True):
    whole: int
    maybe: int | None
    real: float
    text: str
    word: str | None
    flag: bool
    named: int = msgspec.field(name="other")


WHOLE = st.sampled_from([0, 1, -1, 7, -7, 10, 2**31, 2**53 + 1, 2**63 - 1, -(2**63)])
REAL = st.sampled_from([0.0, -0.0, 0.5, -7.25, 1e300, 2.0**53, float("inf"), float("nan")])
TEXT = st.sampled_from(["", "a", "b", "é", "\U0001f600", "￿", "a\0"])
ROWS = st.builds(
    Row,
    whole=WHOLE,
    maybe=st.none() | WHOLE,
    real=REAL,
    text=TEXT,
    word=st.none() | TEXT,
    flag=st.booleans(),
    named=WHOLE,
)
SCHEMA = pa.schema(
    [
        ("whole", pa.int64()),
        ("maybe", pa.int64()),
        ("real", pa.float64()),
        ("text", pa.string()),
        ("word", pa.string()),
        ("flag", pa.bool_()),
        ("other", pa.int64()),
    ]
)
FIELDS = ["r.whole", "r.maybe", "r.real", "r.text", "r.word", "r.flag", "r.named"]
LITERALS = ["0", "1", "-3", "7", "9007199254740993", "9223372036854775807", "0.5", "1e400", "''", "'a'", "True", "None"]


def grown(part):
    """Make larger expressions of smaller ones."""
    return st.one_of(
        st.tuples(part, st.sampled_from(["+", "-", "*", "/", "//", "%", "**"]), part),
        st.tuples(part, st.sampled_from(["==", "!=", "<", "<=", ">", ">=", "is", "is not", "in"]), part),
        st.tuples(part, st.sampled_from(["<", "<="]), part, st.sampled_from(["<", "=="]), part),
        st.tuples(part, st.sampled_from(["and", "or"]), part),
        st.tuples(st.sampled_from(["not", "-"]), part),
    ).map(lambda parts: f"({' '.join(parts)})")


NUMBERS = st.recursive(
    st.sampled_from(["r.whole", "r.named", "r.maybe", "7", "10", "-3"]),
    lambda part: st.tuples(part, st.sampled_from(["+", "-", "*", "//", "%"]), part).map(
        lambda parts: f"({' '.join(parts)})"
    ),
    max_leaves=4,
)
EXPRESSIONS = st.recursive(st.sampled_from([*FIELDS, *FIELDS, *LITERALS]), grown, max_leaves=6)


def outcome(function, row):
    try:
        return function(row)
    except Exception as error:
        return type(error)


def table_of(rows, schema=SCHEMA):
    return pa.RecordBatch.from_pylist(
        [{name: row[name] for name in schema.names} for row in map(msgspec.to_builtins, rows)], schema
    )


@given(EXPRESSIONS, st.lists(ROWS, min_size=1, max_size=5))
@settings(max_examples=examples(500, 200_000))
def test_a_condition_over_columns_is_what_python_makes_of_it(source, rows):
    function = defined(f"f = lambda r: {source}")
    try:
        term = condition_of(function, columns_of(Row))
        found = column(term, table_of(rows)).to_pylist()
    except (NotColumnar, Unusual, pa.ArrowException):
        return
    assert found == [outcome(lambda row: bool(function(row)), row) for row in rows]


@given(NUMBERS, st.lists(ROWS, min_size=1, max_size=5))
@settings(max_examples=examples(500, 200_000))
def test_a_value_over_columns_is_what_python_makes_of_it(source, rows):
    function = defined(f"f = lambda r: {source}")
    try:
        found = column(term_of(function, columns_of(Row), ("int", "str")), table_of(rows)).to_pylist()
    except (NotColumnar, Unusual, pa.ArrowException):
        return
    assert [(type(one), one) for one in found] == [(type(one), one) for one in (outcome(function, row) for row in rows)]


@pytest.mark.parametrize(
    "source",
    ["r.whole > 0", "r.maybe is not None and r.maybe >= 1", "r.word == 'a' or not r.text", "0 < r.real < 1", "r.flag"],
)
def test_what_people_write_is_said_of_columns(source):
    rows = [Row(1, None, 0.5, "", "a", True, 3), Row(0, 2, 2.0, "b", None, False, 4)]
    function = defined(f"f = lambda r: {source}")
    found = column(condition_of(function, columns_of(Row)), table_of(rows)).to_pylist()
    assert found == [bool(function(row)) for row in rows]


KINDS = {"total": total, "mean": mean, "maximum": maximum, "minimum": minimum}
FILES = {"number": pa.int64(), "at": pa.int64()}


class Found(msgspec.Struct, frozen=True):
    """What lies in Parquet."""

    key: str
    at: int
    number: int | None


NATIVE = {"hopping": hopping(milliseconds=30, every_ms=10), "sessions": session(milliseconds=25)}


def columnar_app(one, aggregation):
    """Say a drawn application over records whose columns are known."""
    app = App("combining")
    found = app.input("seen", value=Found, timestamp=lambda seen: seen.at, max_disorder_ms=one.disorder_ms)
    if one.is_filtered:
        found = found.filter(lambda seen: seen.number != 1, op_id="not-one")
    keyed = found.partition_by(lambda seen: seen.key, partitions=one.tasks, op_id="by-key")
    windows = NATIVE.get(one.windows, tumbling(milliseconds=25))
    is_final = one.is_final or (one.lateness_ms > 0 and one.windows == "sessions")
    late = {"allowed_lateness_ms": one.lateness_ms, "emit": "final" if is_final else "all"}
    panes = keyed.window(windows, aggregation, op_id="windows", **late)
    panes.map(repr).send_to(app.output("panes", value=str))
    return app


def whole(number):
    """Return an int that a column has room for, though not for many of them."""
    return min(number, 2**62) if isinstance(number, int) else None


def write(directory, parts, kinds=FILES):
    for number, part in enumerate(parts):
        columns = {
            "key": pa.array([str(seen.key) for seen in part], pa.string()),
            "at": pa.array([seen.at for seen in part], kinds["at"]),
            "number": pa.array([whole(seen.number) for seen in part], kinds["number"]),
        }
        pq.write_table(pa.table(columns), directory / f"{number}.parquet", row_group_size=5)


def measuring(one, kind):
    """Say a drawn application with an aggregation of one kind, for which late values can be folded in parts."""
    if kind != "count" and one.lateness_ms:
        one = msgspec.structs.replace(one, is_final=True)
    return columnar_app(one, count() if kind == "count" else KINDS[kind](lambda seen: seen.number))


def numbers_of(run):
    """Return what came to each operator, was late there, and left it."""
    found = Counter()
    for one in run.metrics().operators:
        for name in ("received", "late", "emitted"):
            found[one.operator, name] += getattr(one, name)
    return found


@given(choices(), st.sampled_from(["count", *KINDS]), st.integers(1, 4), st.integers(0, 999))
@settings(max_examples=examples(60, 30_000))
def test_inputs_that_are_folded_as_columns_come_to_what_a_live_run_comes_to(one, kind, at_once, seed):
    app, live, other = measuring(one, kind), memory(), memory()
    app.options = Options(batch_records=at_once, max_uncommitted=seed % 7 + 1)
    seen = []
    with tempfile.TemporaryDirectory() as scratch:
        write(Path(scratch), one.parts)
        run = ColumnarFolding.run
        with patch.object(ColumnarFolding, "run", lambda *given: seen.append(run(*given)) or seen[-1]):
            units = run_here(app, other, {"seen": Path(scratch)}, seed)
        expected = run_once(app, live, bind={"seen": Path(scratch)})
    assert sorted(values_of(other, "panes", None)) == sorted(values_of(live, "panes", None))
    assert numbers_of(units) == numbers_of(expected)
    assert bool(seen) == any(one.parts)


FILTERS = {
    "not-one": lambda seen: seen.number != 1,
    "late": lambda seen: seen.at >= 20,
    "some-key": lambda seen: seen.key != "a",
    "called": lambda seen: len(seen.key) < 20,
}


def by_key(seen):
    """Fail for some."""
    return {"b": 1}[seen.key] if seen.number == 0 else seen.key


def panes_of(keyed, windows):
    return keyed.window(windows, count()).map(repr)


GROUPED = "grouped as it is read"
"""A loop reads times and groups values at once, which is not begun on columns."""
SHAPES = {
    "written": lambda seen: [seen.map(repr)],
    "in two ways": lambda seen: [
        panes_of(seen.partition_by(lambda one: one.key, partitions=2, op_id="by-key"), SECONDS),
        seen.filter(lambda one: one.at % 2 == 0).map(repr),
    ],
    "sessions": lambda seen: [
        panes_of(seen.partition_by(lambda one: one.key, partitions=2, op_id="by-key"), session(milliseconds=20))
    ],
    "taken apart": lambda seen: [seen.flat_map(lambda one: [one.key, str(one.at)])],
    GROUPED: lambda seen: [panes_of(seen.filter(lambda one: one.at > 0), tumbling(milliseconds=25))],
}


@given(
    choices(),
    st.sampled_from([*SHAPES]),
    st.lists(st.sampled_from([*FILTERS]), max_size=3, unique=True),
    st.integers(1, 9),
    st.integers(0, 999),
)
@settings(max_examples=examples(60, 30_000))
def test_inputs_that_are_begun_on_columns_come_to_what_a_live_run_comes_to(one, shape, filters, at_once, seed):
    """Times and filters, then records: what is malformed, late and counted is the same, whatever comes behind."""
    app, live, other = App("begun"), memory(), memory()
    found = app.input(
        "seen",
        value=Found,
        key=by_key,
        timestamp=lambda seen: seen.at,
        max_disorder_ms=one.disorder_ms,
        on_error=dead_letter("bad"),
        partitioned_by_key=shape == GROUPED,
    )
    for name in filters:
        found = found.filter(FILTERS[name], op_id=name)
    for number, way in enumerate(SHAPES[shape](found)):
        way.send_to(app.output(f"out-{number}", value=str))
    app.options = Options(batch_records=at_once, max_uncommitted=seed % 7 + 1)
    seen = []
    with tempfile.TemporaryDirectory() as scratch:
        write(Path(scratch), one.parts)
        run = ColumnarPreparing.run
        with (
            patch.object(columnar, "FEW", 1 + seed % 3),
            patch.object(ColumnarPreparing, "run", lambda *given: seen.append(run(*given)) or seen[-1]),
        ):
            units = run_here(app, other, {"seen": Path(scratch)}, seed)
        expected = run_once(app, live, bind={"seen": Path(scratch)})
    for name in expected.plan.results:
        assert sorted(values_of(other, name.name, None)) == sorted(values_of(live, name.name, None)), name.name
    assert numbers_of(units) == numbers_of(expected)
    assert bool(seen) == (any(one.parts) and shape != GROUPED)


def app_with(
    value=Found, filtered=None, mapped=None, key=lambda seen: seen.key, aggregation=COUNT, windows=SECONDS, **how
):
    app = App("columns")
    found = app.input("seen", value=value, **{"timestamp": lambda seen: seen.at, **how})
    found = found.filter(filtered, op_id="some") if filtered else found
    found = found.map(mapped, op_id="mapped") if mapped else found
    found.partition_by(key, op_id="by-key").window(windows, aggregation, op_id="windows").send_to(app.output("panes"))
    return app


def asked(seen):
    print(seen)
    return True


class Tagged(msgspec.Struct, tag=True):
    key: str
    at: int


class Nested(msgspec.Struct):
    key: str
    at: int
    rest: list[int]


@pytest.mark.parametrize(
    ("app", "why"),
    [
        (app_with(filtered=asked), "asked is no expression of one record"),
        (app_with(filtered=lambda seen: seen.key.startswith("a")), "is no expression of one record"),
        (app_with(filtered=lambda seen: seen.at / 2 > 1), "Div of int and int"),
        (app_with(mapped=lambda seen: seen), "mapped is no filter"),
        (app_with(key=lambda seen: (seen.key, seen.at)), "is not known to be the same of columns"),
        (app_with(aggregation=collect()), "by-key sends messages one by one"),
        (app_with(aggregation=top_k(1, by=lambda seen: seen.at, then=repr)), "top 1 is none of count, total"),
        (app_with(windows=daily("UTC")), "found by arithmetic"),
        (app_with(value=dict), "no msgspec Struct"),
        (app_with(value=Tagged), "Tagged is checked as a whole"),
        (app_with(value=Nested), "Nested.rest is no plain int"),
        (app_with(watermark=lambda seen: seen.at), "event time must come of timestamp="),
    ],
)
def test_what_is_not_known_to_be_the_same_of_columns_is_read_record_by_record(app, why):
    spec = app.graph().specs["seen"]
    with pytest.raises(NotColumnar, match=why):
        lowered(combined(app.graph()), "seen", spec.value.type)
    told = ways_of(app, seen=spec.value.type)["seen"]
    assert why in told and "columns are read, filtered and folded" not in told


def test_what_is_native_is_told():
    native = "native where it is bound to Parquet: columns are read, filtered and folded"
    assert ways_of(app_with(filtered=lambda seen: seen.at > 3), seen=Found) == {
        **dict.fromkeys(("seen", "some", "by-key"), native),
        "windows": "folded: it merges what was folded before the shuffle",
    }


ROWS_OF_FOUND = {"key": pa.array(["a", "b"]), "at": pa.array([1, 2]), "number": pa.array([1, None])}


@pytest.mark.parametrize(
    ("columns", "is_sure"),
    [
        ({}, True),
        ({"key": pa.array(["a", "b"]).dictionary_encode(), "at": pa.array([1, 2], pa.uint8())}, True),
        ({"more": pa.array([1.5, None])}, True),
        ({"at": pa.array([1, None])}, False),
        ({"at": pa.array([1.0, 2.0])}, False),
        ({"key": pa.array([b"a", b"b"])}, False),
        ({"number": pa.array(["1", "2"])}, False),
        ({"more": pa.array([[1], [2]])}, False),
        ({"at": None}, False),
    ],
)
def test_a_file_is_read_as_columns_where_each_row_is_sure_to_be_a_record(tmp_path, columns, is_sure):
    found = {name: values for name, values in {**ROWS_OF_FOUND, **columns}.items() if values is not None}
    pq.write_table(pa.table(found), tmp_path / "rows.parquet")
    fields = lowered(combined(app_with().graph()), "seen", Found).columns
    with pq.ParquetFile(tmp_path / "rows.parquet") as file:
        assert holds(file, fields) is is_sure


@pytest.mark.parametrize(
    ("odd", "told"),
    [(Found("b", 2**62, 1), "timestamp"), (Found("b", 7, None), "windows.*\n*.*"), (Found("b", 8, 2**62), "")],
)
def test_a_batch_in_which_something_is_odd_is_read_row_by_row(tmp_path, odd, told):
    parts = [[Found("a", 1, 1), Found("a", 2, 5)], [Found("c", 3, 2**62), odd]]
    write(tmp_path, parts)
    app = app_with(aggregation=total(lambda seen: seen.number + 1))
    if told:
        with pytest.raises(SamzaError, match=told):
            run_here(app, memory(), {"seen": tmp_path})
        return
    other, live = memory(), memory()
    run_here(app, other, {"seen": tmp_path})
    run_once(app, live, bind={"seen": tmp_path})
    assert sorted(values_of(other, "panes", None), key=repr) == sorted(values_of(live, "panes", None), key=repr)


def test_plain_batches_are_all_folded_as_columns(tmp_path):
    write(tmp_path, [[Found("a", at, at) for at in range(40)], [Found("b", at % 30, None) for at in range(40)]])
    seen, run = [], ColumnarFolding.run
    app = app_with(aggregation=aggregate(dict, n=count(), most=maximum(lambda seen: seen.number)))
    with patch.object(ColumnarFolding, "run", lambda *given: seen.append(run(*given)) or seen[-1]):
        other = memory()
        run_here(app, other, {"seen": tmp_path})
    assert seen and None not in seen
    found = map(msgspec.json.decode, sorted(values_of(other, "panes", None)))
    assert [(pane["key"], pane["value"]) for pane in found] == [
        ("a", {"n": 40, "most": 39}),
        ("b", {"n": 40, "most": None}),
    ]


def wide_app(windows=SECONDS, **how):
    """Say an application whose records are made of columns, as two windows read them."""
    app = App("columns", Options(batch_records=50))
    found = app.input("seen", value=Found, timestamp=lambda seen: seen.at, **how)
    for number, window in enumerate((windows, session(seconds=1))):
        keyed = found.partition_by(lambda seen: seen.key, partitions=2, op_id=f"by-{number}")
        keyed.window(window, count(), op_id=f"windows-{number}").map(repr).send_to(app.output(f"panes-{number}"))
    return app


MINUTE = 60_000


@pytest.mark.parametrize("app", [app_with, wide_app])
@pytest.mark.parametrize("disorder_ms", [0, 10 * MINUTE])
def test_no_row_of_a_history_of_days_is_read_by_itself(app, disorder_ms, tmp_path):
    write(tmp_path, [[Found("a", BEGUN + at * MINUTE, at) for at in range(part, 3_000, 2)] for part in range(2)])
    asked = app(max_disorder_ms=disorder_ms)
    asked.options = Options(batch_records=50)
    with (
        patch.object(columnar, "FEW", 1),
        patch("runtime.systems.files.parquet.json_rows", side_effect=AssertionError("a row was read by itself")),
    ):
        units = run_here(asked, memory(), {"seen": tmp_path})
    assert sum(one.jumps for one in units.metrics().inputs) == 0


@given(
    st.lists(st.sampled_from([-MINUTE, 0, 1, 1_000, MINUTE, 6 * MINUTE, 180 * MINUTE, 3_000 * MINUTE]), max_size=60),
    st.sampled_from([app_with, wide_app]),
    st.sampled_from([0, 2 * MINUTE]),
    st.integers(1, 40),
)
@settings(max_examples=examples(60, 10_000))
def test_jumps_of_event_time_are_counted_on_columns_as_in_a_live_run(steps, app, disorder_ms, at_once):
    asked, live, other = app(max_disorder_ms=disorder_ms), memory(), memory()
    asked.options = Options(batch_records=at_once)
    with tempfile.TemporaryDirectory() as scratch, patch.object(columnar, "FEW", 1):
        write(Path(scratch), [[Found("a", at, 1) for at in accumulate(steps, initial=BEGUN)]])
        units = run_here(asked, other, {"seen": Path(scratch)})
        expected = run_once(asked, live, bind={"seen": Path(scratch)})
    assert [one.jumps for one in units.metrics().inputs] == [one.jumps for one in expected.metrics().inputs]
    assert numbers_of(units) == numbers_of(expected)


@given(choices(), st.integers(1, 9), st.integers(0, 999))
@settings(max_examples=examples(20, 5_000))
def test_versions_of_rows_are_begun_on_columns_as_well(one, at_once, seed):
    app, live, other = App("versions"), memory(), memory()
    app.options = Options(batch_records=at_once)
    how = {"value": Found, "timestamp": lambda seen: seen.at, "max_disorder_ms": one.disorder_ms}
    versions = app.table("rows", key=lambda seen: seen.key, retention_ms=1_000, partitioned_by_key=True, **how)
    seen = app.input("seen", key=lambda seen: seen.key, partitioned_by_key=True, **how)
    joined = seen.join(versions, lambda left, right: [left.key, left.at, right and right.number], how="left")
    joined.send_to(app.output("out", value=list))
    with tempfile.TemporaryDirectory() as scratch:
        write(Path(scratch), one.parts)
        run, called = ColumnarPreparing.run, []
        with (
            patch.object(columnar, "FEW", 1),
            patch.object(ColumnarPreparing, "run", lambda *given: called.append(run(*given)) or called[-1]),
        ):
            run_here(app, other, {"seen": Path(scratch), "rows": Path(scratch)}, seed)
        run_once(app, live, bind={"seen": Path(scratch), "rows": Path(scratch)})
    assert len(values_of(other, "out", None)) == len(values_of(live, "out", None))
    assert bool(called) == any(one.parts)


class Stamped(msgspec.Struct):
    """What small files hold."""

    key: str
    at: int


def test_a_unit_opens_its_own_file_of_parquet_once_and_no_other(tmp_path):
    (tmp_path / "in").mkdir()
    for number in range(5):
        table = pa.table({"key": ["a", "b"] * 20, "at": [BEGUN + at for at in range(40)]})
        pq.write_table(table, tmp_path / "in" / f"{number}.parquet")
    app = App("small")
    stamped = app.input("ats", value=Stamped, timestamp=lambda one: one.at)
    keyed = stamped.partition_by(lambda one: one.key, op_id="by-key")
    keyed.window(SECONDS, COUNT, op_id="windows").map(repr).send_to(app.output("panes", value=str))
    before, opened = schemas.open_parquet, Counter()

    def counted(path, *how):
        opened[path.name] += 1
        return before(path, *how)

    environment = memory()
    with patch.object(parquet, "open_parquet", counted), patch.object(schemas, "open_parquet", counted):
        run_here(app, environment, bind={"ats": tmp_path / "in"})
    assert len(values_of(environment, "panes", None)) == 2
    # The driver, and each process of workers, looks at the first file to know what they are.
    assert opened.pop("0.parquet") <= 4
    assert opened == {f"{number}.parquet": 1 for number in range(1, 5)}
