"""Records that are made of columns, without a look at each, are those that are made one by one."""

import tempfile
from pathlib import Path
from unittest.mock import patch

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.columnar.projection import reshaped
from planner.columnar.terms import NotColumnar
from runtime.units.worker.columnar import ColumnarReshaping
from samza_dsl import App, Options, SamzaError
from tests.planner.test_inline import defined
from tests.scale import examples
from tests.simulation.crash import memory, run_once
from tests.spark.combining import ways_of
from tests.spark.shuffling import run_here
from tests.spark.test_columnar import ROWS, Row, numbers_of, table_of

pytestmark = pytest.mark.filterwarnings("ignore::SyntaxWarning")


class Kept(msgspec.Struct):
    """What goes to Parquet."""

    at: int
    text: str
    real: float
    word: str | None = None
    flag: bool = True
    renamed: int = msgspec.field(name="other", default=0)


def reshaping(source, condition, timestamp, disorder_ms=0):
    """Say an application that makes records of others, of which `source` gives the first field."""
    app = App("reshaping")
    how = {"timestamp": lambda seen: seen.whole, "unit": "ms"} if timestamp else {}
    rows = app.input("rows", value=Row, max_disorder_ms=disorder_ms, **how)
    rows = rows.filter(defined(f"f = lambda r: {condition}"), op_id="some")
    made = defined(
        f"f = lambda r: Kept({source}, r.text, r.real, flag=r.flag, word=r.word, renamed=r.named)", Kept=Kept
    )
    kept = rows.map(made, op_id="made").filter(lambda kept: kept.at != 3, op_id="others")
    kept.send_to(app.output("kept", value=Kept))
    return app


def rows_in(directory):
    files = sorted(directory.glob("*.parquet"))
    for file in files:
        schema = pq.read_schema(file)
        assert [(one.name, one.type) for one in schema] == [
            *(("at", pa.int64()), ("text", pa.string()), ("real", pa.float64()), ("word", pa.string())),
            *(("flag", pa.bool_()), ("other", pa.int64())),
        ]
    return [repr(row) for file in files for row in pq.read_table(file).to_pylist()]


def errors_of_each(app, parts):
    """Return the errors that a live run over one row or another alone ends with."""
    found = set()
    for row in (row for part in parts for row in part):
        with tempfile.TemporaryDirectory() as scratch:
            pq.write_table(pa.Table.from_batches([table_of([row])]), Path(scratch, "row.parquet"))
            try:
                bind = {"rows": Path(scratch, "row.parquet"), "kept": Path(scratch, "kept.parquet")}
                run_once(app, memory(), bind=bind)
            except SamzaError as error:
                found.add(type(error))
    return found


@given(
    st.sampled_from(["r.whole", "7", "r.whole + 1", "-r.named", "r.whole * r.named - r.whole % 10"]),
    st.sampled_from(["r.flag", "r.whole >= 0 or r.maybe is None", "r.real < 1", "r.maybe > 3", "True"]),
    st.booleans(),
    st.lists(st.lists(ROWS, max_size=7), min_size=1, max_size=3),
    st.integers(0, 999),
)
@settings(max_examples=examples(60, 30_000))
def test_records_that_are_made_of_columns_are_those_of_a_live_run(source, condition, timestamp, parts, seed):
    app = reshaping(source, condition, timestamp)
    app.options = Options(max_uncommitted=seed % 7 + 1)
    seen = []
    with tempfile.TemporaryDirectory() as scratch:
        place, ours, theirs = (Path(scratch, name) for name in ("in", "ours.parquet", "theirs.parquet"))
        place.mkdir()
        for number, part in enumerate(parts):
            table = pa.Table.from_batches([table_of(part)])
            pq.write_table(table, place / f"{number}.parquet", row_group_size=3)
        run, told, expected = ColumnarReshaping.run, [], []
        with patch.object(ColumnarReshaping, "run", lambda *given: seen.append(run(*given)) or seen[-1]):
            try:
                units = run_here(app, memory(), {"rows": place, "kept": ours}, seed)
            except SamzaError as error:
                told.append(type(error))
        try:
            live = run_once(app, memory(), bind={"rows": place, "kept": theirs})
        except SamzaError as error:
            expected.append(type(error))
        if told != expected:  # of several errors, another may be the first
            assert told and expected and {*told, *expected} <= errors_of_each(app, parts)
        if not told:
            assert sorted(rows_in(ours)) == sorted(rows_in(theirs))
            assert numbers_of(units) == numbers_of(live)
    assert bool(seen) == any(parts)


class Doubled(msgspec.Struct):
    """What has no column that could be missing."""

    whole: int
    text: str


def test_records_are_made_of_columns_batch_by_batch_and_one_by_one_where_they_have_to_be(tmp_path):
    """Of three files, one has a number that is too large when it is doubled, which Python's is not."""
    app = App("doubling")
    rows = app.input("rows", value=Row).map(lambda r: Doubled(r.whole * 2, r.text), op_id="doubled")
    rows.filter(lambda doubled: doubled.whole < 1_000_000_000).send_to(app.output("doubled", value=Doubled))
    (tmp_path / "in").mkdir()
    for number, whole in enumerate([1, 2**63 - 1, 3]):
        part = [Row(whole, None, 0.5, str(number), None, True, 0)]
        pq.write_table(pa.Table.from_batches([table_of(part)]), tmp_path / "in" / f"{number}.parquet")
    run, seen = ColumnarReshaping.run, []
    with patch.object(ColumnarReshaping, "run", lambda *given: seen.append(run(*given)) or seen[-1]):
        run_here(app, memory(), {"rows": tmp_path / "in", "doubled": tmp_path / "out.parquet"})
    assert [one is None for one in seen].count(True) == 1
    found = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert found == [{"whole": 2, "text": "0"}, {"whole": 6, "text": "2"}]


class Checked(msgspec.Struct):
    whole: int

    def __post_init__(self):
        raise ValueError


class Defaulted(msgspec.Struct):
    whole: int
    rest: int = 0


def passing(function, kind=Doubled, **how):
    app = App("passing")
    rows = app.input("rows", value=Row, **how).map(function, op_id="made")
    rows.send_to(app.output("out", value=kind))
    return app


@pytest.mark.parametrize(
    ("app", "why"),
    [
        (passing(lambda r: Doubled(r.whole, r.word)), "Doubled.text is given something else than its type says"),
        (passing(lambda r: Doubled(r.flag, r.text)), "Doubled.whole is given something else"),
        (passing(lambda r: Doubled(r.whole, text=r.text.upper())), "does not just make a Struct"),
        (passing(lambda r: Doubled(r.whole, r.text), kind=Row), "'out' is not declared to hold a Doubled"),
        (passing(lambda r: Doubled(r.whole, r.text), kind=dict), "'out' is not declared to hold a Doubled"),
        (passing(lambda r: Checked(r.whole), kind=Checked), "Checked is checked as a whole"),
        (passing(lambda r: Defaulted(r.whole), kind=Defaulted), "does not give each field of Defaulted once"),
        (passing(lambda r: ways_of(r.whole, r.text), kind=dict), "no msgspec Struct"),
        (passing(lambda r: r, kind=Row), "does not just make a Struct"),
        (passing(lambda r: Doubled(r.whole, r.text), key=lambda r: r.text), "has a key="),
        (passing(lambda r: Doubled(1, "a")), "nothing looks at any column"),
    ],
)
def test_what_is_not_known_to_be_the_same_record_is_made_one_by_one(app, why):
    told = ways_of(app, rows=Row)["rows"]
    assert why in told and "mapped and written" not in told
    with pytest.raises(NotColumnar, match=why.replace("(", r"\(")):
        reshaped(app.graph(), "rows", Row)


def test_what_goes_elsewhere_than_to_parquet_is_made_one_by_one(tmp_path):
    app = passing(lambda r: Doubled(r.whole, r.text))
    assert ways_of(app, rows=Row)["rows"].startswith("native where it and out are bound to Parquet")
    pq.write_table(pa.Table.from_batches([table_of([Row(1, None, 0.5, "a", None, True, 0)])]), tmp_path / "in.parquet")
    with patch.object(ColumnarReshaping, "run", side_effect=AssertionError):
        run_here(app, memory(), {"rows": tmp_path / "in.parquet", "out": tmp_path / "out.jsonl"})
    assert (tmp_path / "out.jsonl").read_text() == '{"whole":1,"text":"a"}\n'


def test_functions_that_are_wrapped_are_called_for_each_record(tmp_path):
    app = passing(lambda r: Doubled(r.whole, r.text))
    app.wrap(lambda function, operator: function)
    pq.write_table(pa.Table.from_batches([table_of([Row(1, None, 0.5, "a", None, True, 0)])]), tmp_path / "in.parquet")
    with patch.object(ColumnarReshaping, "run", side_effect=AssertionError):
        run_here(app, memory(), {"rows": tmp_path / "in.parquet", "out": tmp_path / "out.parquet"})
    assert pq.read_table(tmp_path / "out.parquet").to_pylist() == [{"whole": 1, "text": "a"}]
