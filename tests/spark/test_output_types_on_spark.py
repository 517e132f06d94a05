"""The types of the columns that outputs on Spark have: of what tasks say together, and what fits none is told."""

from datetime import UTC, datetime, time
from unittest.mock import patch

import msgspec
import pytest
from msgspec import Struct

from samza_dsl import App, SamzaError, Spark
from tests.sample import crossed
from tests.spark.test_outputs_on_spark import NO_ANSI, ansi, odd_app

pytestmark = [pytest.mark.ci, pytest.mark.timeout(900)]


SPARSE = {
    "none": ([{"k": 1, "v": None}, {"k": 2, "v": 5}, {"k": 3}], "bigint"),
    "none of text": ([{"k": 1, "v": None}, {"k": 2, "v": "x"}], "string"),
    "always none": ([{"k": 1, "v": None}, {"k": 2, "v": None}], "string"),
    "a list of maps": ([{"k": 1, "v": [[], None]}, {"k": 2, "v": [[1.5]]}], "array<array<double>>"),
    "an empty list": ([{"k": 1, "v": []}, {"k": 2, "v": ["x"]}, {"k": 3, "v": [None]}], "array<string>"),
    "a list of records": ([{"k": 1, "v": []}, {"k": 2, "v": [{"a": 1}]}], "array<struct<a:bigint>>"),
    "within a record": (
        [{"k": 1, "v": {"a": None, "b": 1}}, {"k": 2, "v": {"a": "x", "b": None}}, {"k": 3, "v": {"a": "y"}}],
        "struct<a:string,b:bigint>",
    ),
    "of a field that holds anything": ([{"k": 1, "v": None}, {"k": 2, "v": 2**40}], "bigint"),
}


class Holding(Struct, frozen=True):
    k: int
    v: object = None


@pytest.mark.parametrize(("case", "is_table"), crossed(SPARSE, [True, False]))
def test_what_one_task_has_no_values_of_is_of_the_type_that_others_say(session, tmp_path, table, case, is_table):
    (tmp_path / "in").mkdir()
    given, kind = SPARSE[case]
    for one in given:  # a task for each
        (tmp_path / "in" / f"{one['k']}.jsonl").write_bytes(msgspec.json.encode(one))
    declared = Holding if case == "of a field that holds anything" else dict
    bind = {"odds": tmp_path / "in", **({"copies": f"table:{table}"} if is_table else {})}
    run = odd_app(declared).run(tmp_path, on=Spark(session), bind=bind, collect=not is_table)
    found = session.table(table) if is_table else run.output("copies")
    assert found.schema["v"].dataType.simpleString() == kind
    rows = {row.k: row.asDict(recursive=True)["v"] for row in found.collect()}
    within = {"a": None, "b": None}
    assert rows == {one["k"]: within | one["v"] if kind.startswith("struct") else one.get("v") for one in given}


@pytest.mark.parametrize(
    ("one", "other"), [(1, "x"), (2**53 + 1, 5.5), (True, 1), ([1], 1), ([1], ["x"]), ({"a": 1}, 5)]
)
def test_values_that_fit_no_one_column_are_told_by_its_name(session, tmp_path, table, one, other):
    (tmp_path / "in").mkdir()
    for number, value in enumerate((one, other)):
        (tmp_path / "in" / f"{number}.jsonl").write_bytes(msgspec.json.encode({"v": value}))
    bind = {"odds": tmp_path / "in", "copies": f"table:{table}"}
    with pytest.raises(SamzaError, match=r"the values of 'v.*' don't fit one column.* declare the output's value"):
        odd_app(dict).run(tmp_path, on=Spark(session), bind=bind)


class Timed(Struct, frozen=True):
    n: int
    opens: dict[str, list[time]]


@pytest.mark.parametrize("into", ["table:never_there", "folder/?partition_by=n", None])
def test_times_of_day_are_told_before_anything_is_computed(session, tmp_path, into):
    bind = {"odds": [Timed(1, {"mo": [time(1, 2)]})], **({"copies": into} if into else {})}
    with (
        patch("runtime.spark.batch._run_bound", side_effect=AssertionError),
        pytest.raises(SamzaError, match="isoformat"),
    ):
        odd_app(Timed).run(tmp_path, on=Spark(session), bind=bind, collect=not into)


def test_a_value_without_columns_is_told(session, tmp_path, table):
    bind = {"odds": [{"n": 1, "more": {}}], "copies": f"table:{table}"}
    with pytest.raises(SamzaError, match=r"output 'copies'.* has no columns, as an empty dict.* as dict\[str, int\]"):
        odd_app(dict).run(tmp_path, on=Spark(session), bind=bind)


def test_a_map_is_no_struct_of_a_table(session, tmp_path, table):
    session.sql(f"CREATE TABLE {table} (counts STRUCT<a: BIGINT>) USING parquet")
    kind = msgspec.defstruct("Counted", [("counts", dict[str, int])])
    bind = {"odds": [kind({"a": 1})], "copies": f"table:{table}?mode=append"}
    with pytest.raises(SamzaError, match=r"counts: wanted map<string,bigint>, found struct<a:bigint>"):
        odd_app(kind).run(tmp_path, on=Spark(session), bind=bind)


def loose(session, data, table, value):
    """Run an application whose output does not say which columns its one value has."""
    app = App("loose")
    app.input("numbers", value=int).map(lambda number: value).send_to(app.output("copies", value=type(value)))
    return app.run(data, on=Spark(session), bind={"numbers": [1], "copies": f"table:{table}?mode=append"})


class When(Struct, frozen=True):
    a: datetime


MOMENT = datetime(2026, 1, 1, 12, tzinfo=UTC)
OTHERS = [
    ({"a": 1, "b": 2}, "a BIGINT", "b: wanted bigint, found no such column"),
    ({"a": [{"x": 1, "y": 2}]}, "a ARRAY<STRUCT<x: BIGINT>>", r"a\[\]\.y: wanted bigint, found no such column"),
    ({"a": "5"}, "a BIGINT", "a: wanted string, found bigint"),
    ({"a": 5}, "a TIMESTAMP", "a: wanted bigint, found timestamp"),
    ({"a": 5}, "a BOOLEAN", "a: wanted bigint, found boolean"),
    (When(MOMENT), "a TIMESTAMP_NTZ", r"timestamp_ntz\..* a could be a\.astimezone\(ZoneInfo\(.*\)\.replace\("),
    (When(MOMENT.replace(tzinfo=None)), "a TIMESTAMP", r"_ntz, found timestamp\..* be a\.replace\(tzinfo=ZoneInfo"),
]
"""Values that a cast would change or drop, columns, and what is told."""


@pytest.mark.parametrize(("value", "columns", "wrong"), OTHERS)
def test_what_values_alone_say_is_held_against_a_table_too(session, tmp_path, table, value, columns, wrong):
    session.sql(f"CREATE TABLE {table} ({columns}) USING parquet")
    with ansi(session, NO_ANSI), pytest.raises(SamzaError, match=wrong):
        loose(session, tmp_path, table, value)
    assert session.table(table).isEmpty()


def test_a_text_is_an_error_that_its_column_would_have_with_other_spaces(session, tmp_path, table):
    session.sql(f"CREATE TABLE {table} (v VARCHAR(3), c CHAR(3)) USING parquet")
    whole = {"v": "\u00e9 ", "c": "ab "}
    loose(session, tmp_path, table, whole)
    for name, wrong in (("v", "abc "), ("c", "ab")):
        with pytest.raises(SamzaError, match=rf"{name} is .*char\(3\) there, and Spark would .* '{wrong}': do so"):
            loose(session, tmp_path / name, table, {**whole, name: wrong})
    assert [row.asDict() for row in session.table(table).collect()] == [whole]
    session.sql(f"ALTER TABLE {table} ADD COLUMNS (within ARRAY<VARCHAR(3)>)")
    loose(session, tmp_path, table, whole)
    with pytest.raises(SamzaError, match=r"within array<varchar\(3\)>, of whose texts"):
        loose(session, tmp_path / "within", table, {**whole, "within": ["abc "]})


def test_a_table_that_lacked_a_column_gets_its_rows_once_it_has_it(session, tmp_path, table):
    session.sql(f"CREATE TABLE {table} (a BIGINT) USING parquet")
    with pytest.raises(SamzaError, match=r"outputs has its rows: run it again once the table takes"):
        loose(session, tmp_path, table, {"a": 1, "b": 2, "c": None})
    session.sql(f"ALTER TABLE {table} ADD COLUMNS (b BIGINT)")
    loose(session, tmp_path, table, {"a": 1, "b": 2, "c": None})
    assert [*map(tuple, session.table(table).collect())] == [(1, 2)]


@pytest.mark.parametrize("is_there", [False, True])
def test_a_point_in_time_is_itself_whatever_timestamp_means_in_a_session(session, tmp_path, table, is_there):
    session.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    session.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    try:
        if is_there:
            session.sql(f"CREATE TABLE {table} (at ARRAY<TIMESTAMP_LTZ>) USING parquet")
        loose(session, tmp_path, table, {"at": [MOMENT]})
        (found,) = session.sql(f"SELECT unix_seconds(at[0]) FROM {table}").collect()
    finally:
        session.conf.unset("spark.sql.timestampType")
        session.conf.unset("spark.sql.session.timeZone")
    assert found[0] == MOMENT.timestamp()


@pytest.mark.parametrize("text", ["", "__HIVE_DEFAULT_PARTITION__"])
def test_a_text_that_folders_would_make_none_is_told(session, tmp_path, table, text):
    session.sql(f"CREATE TABLE {table} (n BIGINT, name STRING) USING parquet PARTITIONED BY (name)")
    app = App("parting")
    app.input("numbers", value=int).map(lambda n: {"name": text, "n": n}).send_to(app.output("copies", value=dict))
    for number, into in enumerate((f"table:{table}?mode=append", f"{tmp_path}/folder/?partition_by=name")):
        with pytest.raises(SamzaError, match="name names folders there, and a text is empty or"):
            app.run(tmp_path / f"{number}", on=Spark(session), bind={"numbers": [1], "copies": into})
    assert session.table(table).isEmpty() and not (tmp_path / "folder").exists()
