"""Outputs of a run on Spark as DataFrames and tables of its session: all of them once, whoever dies on the way."""

import gc
import re
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest
from msgspec import Struct
from pyspark.sql import DataFrameWriter

from runtime.spark import batch, table_outputs, table_writer
from runtime.spark.table_outputs import into_tables
from runtime.systems.files.places.tables import into_table
from runtime.systems.memory.environment import MemoryEnvironment
from runtime.units.driver import application
from runtime.units.driver import micro_batch_application as streamed
from runtime.units.publication import intent, manifest, publishing
from runtime.units.publication.intent import Intent
from runtime.units.staging import LOCK
from samza_dsl import App, IntoTable, PlanError, SamzaError, Spark, count, produce, tumbling
from tests.sample import crossed
from tests.simulation.crash import memory
from tests.spark.deaths import death
from tests.spark.streaming import opened
from tests.spark.test_streaming import Died, dying, ran


class Leg(Struct, frozen=True):
    """A flight's leg."""

    carrier: str
    day: date
    at: datetime
    km: float | None
    stops: list[str]


class Total(Struct, frozen=True):
    """The number of legs of a carrier."""

    carrier: str
    legs: int


LEGS = [
    Leg(f"C{n % 3}", date(2026, 1, 1 + n % 2), datetime(2026, 1, 1, n, tzinfo=UTC), n or None, ["a"] * (n % 3))
    for n in range(12)
]
TOTALS = [("C0", 4), ("C1", 4), ("C2", 4)]


def pipeline(legs=True):
    app = App("legs")
    read = app.input("legs", value=Leg, timestamp=lambda leg: leg.at)
    if legs:
        read.filter(lambda leg: leg.km is None or leg.km > 0).send_to(app.output("copies", value=Leg))
    totals = read.partition_by(lambda leg: leg.carrier, partitions=2).window(tumbling(days=1), count())
    totals.map(lambda pane: Total(pane.key, pane.value)).send_to(app.output("totals", value=Total))
    return app


def run(session, data, collect=False, app=None, **outputs):
    return (app or pipeline()).run(data, on=Spark(session), bind={"legs": LEGS, **outputs}, collect=collect)


def totals_in(frame):
    return sorted(map(tuple, frame.collect()))


@pytest.mark.parametrize("in_memory", [False, True])
def test_outputs_are_collected_as_frames_of_their_declared_types(session, tmp_path, in_memory):
    data = MemoryEnvironment() if in_memory else tmp_path
    done = run(session, data, collect=True)
    found = done.output("copies")
    assert [(field.name, field.dataType.simpleString()) for field in found.schema.fields] == [
        ("carrier", "string"),
        ("day", "date"),
        ("at", "timestamp"),
        ("km", "double"),
        ("stops", "array<string>"),
    ]
    expected = sorted((leg.carrier, leg.day, leg.at.timestamp(), leg.km, leg.stops) for leg in LEGS)
    rows = found.selectExpr("carrier", "day", "unix_micros(at) / 1e6", "km", "stops").collect()
    assert sorted(map(tuple, rows), key=lambda row: row[:3]) == sorted(expected, key=lambda row: row[:3])
    assert totals_in(done.output("totals")) == TOTALS
    with pytest.raises(SamzaError, match=r"run\.output\('totals'\)"):
        done.received("totals")
    done.close()
    done.close()
    with pytest.raises(SamzaError, match="closed"):
        done.output("totals")
    if not in_memory:
        assert not (tmp_path / "spark" / "legs").exists()


def test_what_was_collected_goes_with_the_run(session, tmp_path):
    done = run(session, tmp_path, collect="totals", copies=str(tmp_path / "copies.jsonl"))
    assert [*(tmp_path / "spark" / "legs").iterdir()]
    assert totals_in(done.output("totals")) == TOTALS
    with pytest.raises(SamzaError, match="it was not collected"):
        done.output("copies")
    del done
    assert not [*(tmp_path / "spark").glob("legs/*")]


def test_what_was_collected_stays_for_as_long_as_a_frame_is_made_of_it(session, tmp_path):
    left = tmp_path / "spark" / "legs"
    frame = run(session, tmp_path, collect=True).output("totals")
    made = frame.where("legs > 0").select("carrier", "legs")
    del frame
    gc.collect()
    assert totals_in(made) == TOTALS
    del made
    gc.collect()
    assert not [*left.glob("*")]


def test_what_was_collected_by_one_that_died_goes_with_the_next(session, tmp_path):
    left = tmp_path / "spark" / "legs" / "collected-by-one-that-died"
    left.mkdir(parents=True)
    (left / LOCK).touch()
    done = run(session, tmp_path, collect=True)
    other = run(session, tmp_path, collect=True)
    assert not left.exists()
    assert totals_in(done.output("totals")) == totals_in(other.output("totals")) == TOTALS


def test_an_output_without_rows_is_an_empty_frame(session, tmp_path):
    app = App("none")
    app.input("legs", value=Leg).filter(lambda leg: False).send_to(app.output("none", value=Total))
    found = run(session, tmp_path, collect=True, app=app).output("none")
    assert (found.columns, found.count()) == (["carrier", "legs"], 0)


class Odd(Struct, frozen=True, rename={"name": "order.id", "part": "`q` %"}):
    """Columns of odd names, and of types that values alone say."""

    name: str
    part: int
    at: datetime
    took: timedelta
    cost: Decimal
    costs: list[Decimal] = []
    notes: int | str | None = None


ODDS = [
    Odd(f"a{n}", n % 2, datetime(2026, 1, n), timedelta(days=n), Decimal(f"{n}.50"), [Decimal(n)]) for n in range(1, 5)
]


def odd_app(kind=Odd):
    app = App("odd")
    app.input("odds", value=kind).send_to(app.output("copies", value=kind))
    return app


def test_a_frame_has_its_columns_with_rows_or_without(session, tmp_path):
    """Those that values alone say are, without any, what Spark has where nothing else is said."""
    kinds = []
    for given in (ODDS, []):
        done = odd_app().run(tmp_path, on=Spark(session), bind={"odds": given}, collect=True)
        frame = done.output("copies")
        assert [tuple(row)[:5] for row in frame.orderBy("`order.id`").collect()] == [
            (one.name, one.part, one.at, one.took, one.cost) for one in given
        ]
        kinds.append({one.name: one.dataType.simpleString() for one in frame.schema.fields})
    whole, empty = kinds
    assert [*whole] == [*empty] == ["order.id", "`q` %", "at", "took", "cost", "costs", "notes"]
    assert whole["took"] == empty["took"] == "interval day to second"
    assert (empty["at"], empty["cost"], empty["costs"]) == ("timestamp", "decimal(38,18)", "array<decimal(38,18)>")


@pytest.mark.parametrize("parted", [(), "`q` %"])
def test_rows_of_odd_columns_are_added_to_a_table_that_they_have_made(session, tmp_path, table, parted):
    into = IntoTable(f"table:{table}", "append", partition_by=parted)
    for _ in range(2):
        odd_app().run(tmp_path, on=Spark(session), bind={"odds": ODDS, "copies": into})
    found = session.table(table).select("`order.id`", "```q`` %`", "took", "cost").collect()
    assert sorted(map(tuple, found)) == sorted([(one.name, one.part, one.took, one.cost) for one in ODDS] * 2)


class Pair(Struct, frozen=True):
    x: int
    y: int = 0


class Pairs(Struct, frozen=True):
    pairs: list[Pair]


NO_ANSI, ANSI = "false", "true"
FINEST = Decimal("1.0000000000000000001")
FITTING = [
    (int, 2**40, "INT", "1099511627776"),
    (int, -(2**31), "INT", None),
    (Decimal, Decimal("1.555"), "DECIMAL(10, 2)", "1.555"),
    (Decimal, Decimal(10**9), "DECIMAL(10, 2)", "1000000000"),
    (Decimal, Decimal("-12345678.90"), "DECIMAL(10, 2)", None),
    (Decimal, FINEST, "DECIMAL(38, 18)", str(FINEST)),
    (Decimal, FINEST, "DECIMAL(38, 30)", None),
    (Decimal, Decimal("1.5"), "INT", "1.5"),
    (float, 1.5, "BIGINT", "1.5"),
    (float, float("nan"), "BIGINT", "NaN"),
    (float, -3.0, "BIGINT", None),
    (float, 1e300, "FLOAT", "1.0E300"),
    (float, -2.5, "FLOAT", None),
    (Pair, Pair(1, 2**40), "STRUCT<x: BIGINT, y: INT>", "1099511627776"),
    (Pair, Pair(1, 2), "STRUCT<y: BIGINT, x: BIGINT>", None),
    (Pair, Pair(1, 2), "STRUCT<y: INT, more: STRING, x: TINYINT>", None),
]
"""Types, values, the columns that they come to, and what of them is told where they do not fit."""
HOLDERS = [
    (lambda kind: kind, lambda value: value, "{}"),
    (lambda kind: kind | None, lambda value: value, "{}"),
    (lambda kind: list[kind], lambda value: [value], "ARRAY<{}>"),
    (lambda kind: dict[str, kind], lambda value: {"it's": value}, "MAP<STRING, {}>"),
    (lambda kind: dict[str, list[kind]], lambda value: {"k": [value]}, "MAP<STRING, ARRAY<{}>>"),
]
"""What values may lie in: types, values, and columns."""


@contextmanager
def ansi(session, said):
    session.conf.set("spark.sql.ansi.enabled", said)
    try:
        yield
    finally:
        session.conf.unset("spark.sql.ansi.enabled")


@pytest.mark.parametrize("is_ansi", [ANSI, NO_ANSI])
def test_values_that_fit_are_in_a_table_as_they_are(session, tmp_path, table, is_ansi):
    """Spark itself goes by places within structs."""
    fitting = [(kind, value, column) for kind, value, column, wrong in FITTING if wrong is None]
    cells = [
        (kinds(kind), values(value), columns.format(column))
        for kinds, values, columns in HOLDERS
        for kind, value, column in fitting
    ]
    row = msgspec.defstruct("Held", [(f"c{place}", kind) for place, (kind, _, _) in enumerate(cells)], frozen=True)
    declared = ", ".join(f"c{place} {column}" for place, (*_, column) in reversed([*enumerate(cells)]))
    session.sql(f"CREATE TABLE {table} ({declared}) USING parquet")
    rows = [row(*(value for _, value, _ in cells))]
    with ansi(session, is_ansi):
        odd_app(row).run(tmp_path, on=Spark(session), bind={"odds": rows, "copies": f"table:{table}?mode=append"})
        found = odd_app(row).run(tmp_path / "read", on=Spark(session), bind={"odds": f"table:{table}"})
        assert found.received("copies") == rows


@pytest.mark.parametrize(
    ("number", "is_ansi"), crossed(range(sum(wrong is not None for *_, wrong in FITTING)), [ANSI, NO_ANSI])
)
def test_a_value_that_a_table_would_change_is_an_error_wherever_it_lies(session, tmp_path, table, number, is_ansi):
    """Spark itself rounds, cuts what is behind a point, and whole numbers without ANSI."""
    kind, value, column, wrong = [one for one in FITTING if one[-1] is not None][number]
    kinds, values, columns = HOLDERS[(number + (is_ansi == ANSI)) % len(HOLDERS)]
    row = msgspec.defstruct("Held", [("n", int), ("cell", kinds(kind))], frozen=True)
    session.sql(f"CREATE TABLE {table} (cell {columns.format(column)}, n INT) USING parquet")
    bind = {"odds": [row(7, values(value))], "copies": f"table:{table}?mode=append"}
    with (
        ansi(session, is_ansi),
        pytest.raises(SamzaError, match=rf"cell is .* there, which can't be {re.escape(wrong)}"),
    ):
        odd_app(row).run(tmp_path, on=Spark(session), bind=bind)
    assert session.table(table).isEmpty()


class Amount(Struct, frozen=True):
    n: int
    cost: Decimal


AMOUNTS = [Amount(1, Decimal("1.5")), Amount(2, Decimal("1.25")), Amount(3, Decimal("123456.5")), Amount(4, Decimal(7))]


def amounts_in_files(place):
    """Write each amount to a file, and so to a task, of its own."""
    place.mkdir()
    for one in AMOUNTS:
        (place / f"{one.n}.jsonl").write_bytes(msgspec.json.encode(one))
    return place


@pytest.mark.parametrize("into", ["a frame", "table:{}", "table:{}?partition_by=n", "a folder"])
def test_the_columns_of_decimals_are_as_wide_whatever_their_first_values_are(session, tmp_path, table, into):
    bind = {"odds": amounts_in_files(tmp_path / "in")}
    folder = tmp_path / "parted"
    to = {"a frame": {}, "a folder": {"copies": IntoTable(folder, partition_by="n")}}
    run = odd_app(Amount).run(
        tmp_path,
        on=Spark(session),
        bind={**bind, **to.get(into, {"copies": into.format(table)})},
        collect=not to.get(into, 1),
    )
    read = {"a frame": lambda: run.output("copies"), "a folder": lambda: session.read.parquet(str(folder))}
    found = read.get(into, lambda: session.table(table))()
    assert found.schema["cost"].dataType.simpleString() == "decimal(38,18)"
    assert sorted((row.n, row.cost) for row in found.collect()) == [(one.n, one.cost) for one in AMOUNTS]
    if into.startswith("table"):
        again = {"odds": [Amount(5, Decimal("-98765.4321"))], "copies": f"table:{table}?mode=append"}
        odd_app(Amount).run(tmp_path, on=Spark(session), bind=again)
        assert session.table(table).where("n = 5").first().cost == Decimal("-98765.4321")


def test_a_decimal_beyond_what_a_new_table_has_is_told(session, tmp_path, table):
    bind = {"odds": [Amount(1, Decimal("1e30"))], "copies": f"table:{table}"}
    with pytest.raises(SamzaError, match=r"cost is decimal\(38,18\) there, which can't be 1000"):
        odd_app(Amount).run(tmp_path, on=Spark(session), bind=bind)


class Nothing(Struct, frozen=True):
    pass


class Worded(Struct, frozen=True):
    words: list[bytes]
    at: datetime | None = None


def test_columns_that_an_output_has_not_have_the_defaults_of_their_table(session, tmp_path, table):
    session.sql(f"CREATE TABLE {table} (legs INT, note STRING DEFAULT 'of us', at INT, carrier STRING) USING parquet")
    for mode in ("append", "overwrite"):
        run(session, tmp_path, totals=IntoTable(f"table:{table}", mode), app=pipeline(legs=False))
        rows = session.table(table).collect()
        assert {(row.note, row.at) for row in rows} == {("of us", None)}
        assert len(rows) == len(TOTALS)


@pytest.mark.parametrize(
    ("into", "wrong"),
    [
        (IntoTable("table:never_there", partition_by=["cost", "day"]), "its values have no day, as table:never_there"),
        (IntoTable("table:never_there", partition_by=["n", "cost"]), "is parted by all columns: leave one"),
        (IntoTable("delta:/tmp/never-there"), "Spark can't look at delta:.*Its session lacks the jars"),
        (IntoTable("table:not_there.rows"), "is to be made in not_there, which is no database"),
        (IntoTable("table:spark_catalog.`not there`.rows"), "is to be made in `not there`, which is no database"),
        (IntoTable("table:shown", "append"), "table:shown is a view, to which nothing is written"),
        (IntoTable("table:in_csv", "append"), "table:in_csv is of csv, in which an empty text is None"),
    ],
)
def test_what_can_not_come_to_a_table_is_told_before_anything_is_computed(session, tmp_path, into, wrong):
    session.sql("CREATE OR REPLACE TEMP VIEW shown AS SELECT 1L n, CAST(1 AS DECIMAL(38, 18)) cost")
    session.sql("CREATE TABLE IF NOT EXISTS in_csv (n BIGINT, cost DECIMAL(38, 18)) USING csv")
    app = App("failing")
    failing = app.input("odds", value=Amount).map(lambda amount: 1 // 0)
    failing.send_to(app.output("copies", value=Amount))
    with pytest.raises(SamzaError, match=wrong):
        app.run(tmp_path, on=Spark(session), bind={"odds": [Amount(1, Decimal(1))], "copies": into})


@pytest.mark.parametrize(
    ("kind", "columns", "wrong"),
    [
        (Nothing, None, "Nothing has no fields, and so no columns"),
        (dict[str, list[Nothing]], None, "Nothing has no fields, and so no columns"),
        (
            Worded,
            "words ARRAY<STRING>, at STRING",
            r"words\[\]: wanted binary, found string; at: wanted timestamp, found",
        ),
        (Pair, "x BIGINT", "y: wanted bigint, found no such column"),
        (Pairs, "pairs ARRAY<STRUCT<y: BIGINT>>", r"fields: pairs\[\]\.x: wanted int, found no such column$"),
        (Pairs, "pairs ARRAY<STRUCT<x: BIGINT>>", r"pairs\[\]\.y: wanted bigint, found no such column"),
    ],
)
def test_what_no_column_could_hold_is_told_before_anything_is_computed(session, tmp_path, table, kind, columns, wrong):
    app = App("failing")
    app.input("odds", value=int).map(lambda number: 1 // 0).send_to(app.output("copies", value=kind))
    if columns is not None:
        session.sql(f"CREATE TABLE {table} ({columns}) USING parquet")
    for copies in [f"table:{table}?mode=append", *([] if columns else [str(tmp_path / "copies.parquet")])]:
        with pytest.raises(SamzaError, match=wrong):
            app.run(tmp_path, on=Spark(session), bind={"odds": [1], "copies": copies})


@pytest.mark.parametrize(
    ("collect", "wrong"),
    [(["delays"], "no such output; there are copies, totals"), (7, "write collect=True"), (["copies"], "is bound to")],
)
def test_only_outputs_that_go_nowhere_else_are_collected(session, tmp_path, collect, wrong):
    with pytest.raises(SamzaError, match=wrong):
        run(session, tmp_path, collect=collect, copies=str(tmp_path / "copies.jsonl"))


def test_only_spark_collects(tmp_path):
    with pytest.raises(PlanError, match="only Spark has DataFrames"):
        pipeline().run(tmp_path, collect=True)
    with pytest.raises(SamzaError, match="a run on Spark alone"):
        pipeline().run(tmp_path, bind={"legs": LEGS, "totals": "table:totals"})


def test_a_table_is_made_and_only_then_added_to_or_replaced(session, tmp_path, table):
    bound = {"copies": str(tmp_path / "copies.jsonl")}
    done = run(session, tmp_path, totals=f"table:{table}", **bound)
    assert totals_in(session.table(table)) == TOTALS
    with pytest.raises(SamzaError, match=f"in table:{table}"):
        done.received("totals")
    assert not (tmp_path / "spark" / "legs").exists()
    bound = {"app": pipeline(legs=False)}
    with pytest.raises(SamzaError, match=r"output 'totals' at .*has rows already: say what becomes of them"):
        run(session, tmp_path, totals=f"table:{table}", **bound)
    run(session, tmp_path, totals=f"table:{table}?mode=append", **bound)
    assert totals_in(session.table(table)) == sorted(TOTALS * 2)
    run(session, tmp_path, totals=IntoTable(f"table:{table}", "overwrite"), **bound)
    assert totals_in(session.table(table)) == TOTALS


def test_columns_are_those_of_the_table_by_name(session, tmp_path, table):
    session.sql(f"CREATE TABLE {table} (legs INT, note STRING, carrier STRING) USING parquet")
    run(session, tmp_path, totals=IntoTable(f"table:{table}", "append"), app=pipeline(legs=False))
    assert totals_in(session.table(table).select("carrier", "legs")) == TOTALS
    session.sql(f"DROP TABLE {table}")
    session.sql(f"CREATE TABLE {table} (legs STRING, airline STRING) USING parquet")
    with pytest.raises(SamzaError, match=r"carrier: wanted str, found no such column.*legs: wanted int, found string"):
        run(session, tmp_path, totals=IntoTable(f"table:{table}", "append"), app=pipeline(legs=False))


def test_a_table_or_a_folder_is_parted_by_columns(session, tmp_path, table):
    made = IntoTable(f"table:{table}", partition_by=["day"])
    run(session, tmp_path, copies=made, totals=IntoTable((tmp_path / "totals").as_uri(), partition_by="carrier"))
    assert session.table(table).count() == len(LEGS)
    assert session.table(table).where("day = '2026-01-02'").count() == 6
    assert "day=2026-01-02" in " ".join(session.table(table).inputFiles())
    live = {"legs": LEGS, "totals": IntoTable((tmp_path / "live").as_uri(), partition_by="carrier")}
    pipeline(legs=False).run(tmp_path / "data", bind=live)
    for folder in (tmp_path / "totals", tmp_path / "live"):
        folders = sorted(one.name for one in folder.iterdir() if one.is_dir())
        assert folders == ["carrier=C0", "carrier=C1", "carrier=C2"]
        assert totals_in(session.read.parquet(str(folder)).select("carrier", "legs")) == TOTALS
    with pytest.raises(SamzaError, match="has something in it already"):
        run(session, tmp_path, totals=IntoTable(tmp_path / "totals"), app=pipeline(legs=False))


def test_only_formats_that_merge_are_merged_into(session, tmp_path, table):
    into = IntoTable(f"table:{table}", "merge", key="carrier")
    with pytest.raises(SamzaError, match="is not there yet: merge into a table of Delta or Iceberg"):
        run(session, tmp_path, totals=into, app=pipeline(legs=False))
    session.sql(f"CREATE TABLE {table} (carrier STRING, legs INT) USING parquet")
    with pytest.raises(SamzaError, match="is of parquet without MERGE"):
        run(session, tmp_path, totals=into, app=pipeline(legs=False))


@pytest.mark.parametrize(
    ("made", "wrong"),
    [
        (lambda: IntoTable("table:a", "merge"), "merge needs the columns"),
        (lambda: IntoTable("table:a", "append", key="b"), "key= is for merge"),
        (lambda: IntoTable("table:a", "replace"), "there are 'append'"),
        (lambda: IntoTable("folder", "append"), "a folder of Parquet is written as a whole"),
        (lambda: into_table("s3a://lake/out/?partition_by=day"), 'lies on this machine.*"delta:s3a://lake/out/"'),
        (lambda: IntoTable("table:a", partition_by=[7]), "names of columns"),
        (lambda: into_table("table:a?modus=append"), "no option modus"),
    ],
)
def test_what_can_not_be_asked_of_a_table_is_refused(made, wrong):
    with pytest.raises(SamzaError, match=wrong):
        made()


STEPS = (
    (table_outputs.KeptOutputs, "begin"),
    (application.Application, "publish"),
    (Intent, "rename"),
    (Intent, "sweep"),
    (application, "forget"),
    (table_outputs.KeptOutputs, "finish"),
    (table_writer.TableWriter, "write"),
    (batch, "SparkRun"),
)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step[1])
@pytest.mark.parametrize("is_before", [True, False], ids=["before", "behind"])
def test_a_run_that_dies_is_gone_on_with_and_nothing_comes_twice(session, tmp_path, table, step, is_before, caplog):
    bound = {"copies": f"table:{table}_copies", "totals": f"table:{table}?mode=append"}
    session.sql(f"DROP TABLE IF EXISTS {table}_copies")
    with death(), dying(*step, is_before, 1):
        run(session, tmp_path, **bound)
    if totals := session.catalog.tableExists(table) and totals_in(session.table(table)):
        assert totals == TOTALS
    outputs = tmp_path / "spark" / "legs" / "outputs"
    is_through = step[1] != "begin" and (step[1] != "publish" or not is_before)
    over = not (outputs / "begun.msgpack").exists() and totals
    if not over:
        run(session, tmp_path, **bound)
        assert ("an earlier run was through" in caplog.text) == is_through
        assert "nothing was read of" not in caplog.text
    assert totals_in(session.table(table)) == TOTALS
    assert session.table(f"{table}_copies").count() == len(LEGS)
    assert not outputs.exists() or over
    session.sql(f"DROP TABLE {table}_copies")


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_death_between_a_table_and_a_file_leaves_out_neither(session, tmp_path, table, number):
    copies = tmp_path / "copies.jsonl"
    bound = {"totals": f"table:{table}", "copies": str(copies)}
    # The note, each of two files, and the end of the note are made durable one after the other.
    with death(), dying(intent, "make_durable", False, number):
        run(session, tmp_path, **bound)
    assert not session.catalog.tableExists(table)
    run(session, tmp_path, **bound)
    assert totals_in(session.table(table)) == TOTALS
    assert len(copies.read_text().splitlines()) == len(LEGS)
    assert not [one.name for one in tmp_path.iterdir() if "publishing" in one.name]


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_death_between_a_table_and_a_handover_leaves_out_neither(session, tmp_path, table, number):
    app, data = pipeline(legs=False), tmp_path / "data"
    produce("legs", LEGS, data=data)
    how = {"bind": {"totals": IntoTable(f"table:{table}")}, "handover": tmp_path / "handover"}
    with death(), dying(intent, "make_durable", False, number):
        app.reprocess(data, on=Spark(session), **how)
    assert not session.catalog.tableExists(table)
    app.reprocess(data, on=Spark(session), **how)
    assert session.table(table).columns == ["carrier", "legs"]
    app.take_over(tmp_path / "handover", data)


def test_another_run_does_not_go_on_with_what_an_earlier_one_has_left(session, tmp_path, table):
    with death(), dying(table_writer.TableWriter, "write", True, 1):
        run(session, tmp_path, totals=f"table:{table}", app=pipeline(legs=False))
    with pytest.raises(SamzaError, match="an earlier run of 'legs' died while it wrote"):
        run(session, tmp_path, totals=f"table:{table}?mode=append", app=pipeline(legs=False))
    run(session, tmp_path, totals=f"table:{table}", app=pipeline(legs=False))
    assert totals_in(session.table(table)) == TOTALS


@pytest.mark.parametrize("is_before", [True, False], ids=["before", "behind"])
def test_rows_are_added_once_to_a_table_whose_format_can_not_tell(session, tmp_path, table, is_before):
    session.sql(f"CREATE TABLE {table} (carrier STRING, legs INT) USING parquet")
    session.sql(f"INSERT INTO {table} VALUES ('AA', 7)")
    into = {"totals": f"table:{table}?mode=append", "app": pipeline(legs=False)}
    with death(), dying(table_writer.TableWriter, "write", is_before, 1):
        run(session, tmp_path, **into)
    run(session, tmp_path, **into)
    assert totals_in(session.table(table)) == [("AA", 7), *TOTALS]


def test_a_table_that_may_have_some_of_the_rows_is_for_the_user_to_look_at(session, tmp_path, table):
    session.sql(f"CREATE TABLE {table} (carrier STRING, legs INT) USING parquet")
    into = {"totals": f"table:{table}?mode=append", "app": pipeline(legs=False)}
    with death(), dying(table_writer.TableWriter, "write", False, 1):
        run(session, tmp_path, **into)
    session.sql(f"INSERT INTO {table} VALUES ('AA', 7)")
    with pytest.raises(SamzaError, match="a run died while it wrote to"):
        run(session, tmp_path, **into)


def copies(app=None):
    """Return an application that copies legs as they come, to be cut into micro-batches."""
    app = app or App("copying")
    app.input("legs", value=Leg).map(lambda leg: Total(leg.carrier, leg.at.hour)).send_to(
        app.output("totals", value=Total)
    )
    return app


COPIES = sorted((leg.carrier, leg.at.hour) for leg in LEGS)
CUT = 5
"""The legs of a micro-batch."""


def micro_batches(session, tmp_path, into, app=None, **how):
    """Run an application over all legs in micro-batches, be it for the second time."""
    app = app or copies()
    bind = into_tables(Spark(session), app.graph(), {"legs": LEGS, "totals": into})
    running = opened(app, memory(), tmp_path / "checkpoint", bind, most_records=CUT, ends=True, **how)
    try:
        ran(running)
    finally:
        running.close()


PARTS_STEPS = (
    (manifest.Manifest, "write"),
    (publishing.Publisher, "publish"),
    (table_outputs.PartTable, "publish"),
    (table_outputs.PartTable, "_change"),
    (table_writer.TableWriter, "_create"),
    (table_writer, "replace_durably"),
    (DataFrameWriter, "insertInto"),
    (streamed, "remove_others"),
)


@pytest.mark.parametrize("number", [2, *(pytest.param(number, marks=pytest.mark.long) for number in (1, 3, 4, 5))])
@pytest.mark.parametrize("is_before", [True, False], ids=["before", "behind"])
@pytest.mark.parametrize("step", PARTS_STEPS, ids=lambda step: step[1])
def test_micro_batches_come_to_a_table_once_whatever_dies(session, tmp_path, table, step, is_before, number):
    with suppress(Died, SamzaError), dying(*step, is_before, number):  # within Spark's writing it is told as such
        micro_batches(session, tmp_path, f"table:{table}")
    micro_batches(session, tmp_path, f"table:{table}")
    assert totals_in(session.table(table)) == COPIES


@pytest.mark.parametrize(
    ("step", "is_before", "number"),
    crossed(
        [(table_writer.TableWriter, "write_parted"), (Path, "rename"), (Path, "replace")], [True, False], [1, 2, 3, 4]
    ),
)
def test_micro_batches_come_to_a_folder_once_whatever_dies(session, tmp_path, step, is_before, number):
    into = IntoTable(tmp_path / "totals", partition_by="carrier")
    with suppress(Died, SamzaError), dying(*step, is_before, number):  # within Spark's writing it is told as such
        micro_batches(session, tmp_path, into)
    micro_batches(session, tmp_path, into)
    assert totals_in(session.read.parquet(str(tmp_path / "totals")).select("carrier", "legs")) == COPIES
    assert sorted(one.name for one in (tmp_path / "totals").iterdir()) == ["carrier=C0", "carrier=C1", "carrier=C2"]


def test_micro_batches_replace_what_a_table_had_and_add_to_what_they_have_written(session, tmp_path, table):
    session.sql(f"CREATE TABLE {table} (carrier STRING, legs INT) USING parquet")
    session.sql(f"INSERT INTO {table} VALUES ('AA', 7)")
    with pytest.raises(SamzaError, match="has rows already"):
        micro_batches(session, tmp_path, f"table:{table}")
    with suppress(Died), dying(table_writer.TableWriter, "write", False, 1):
        micro_batches(session, tmp_path, f"table:{table}?mode=overwrite")
    micro_batches(session, tmp_path, f"table:{table}?mode=overwrite")
    assert totals_in(session.table(table)) == COPIES


def test_a_run_that_goes_on_writes_to_a_table_through_spark_itself(session, tmp_path, table):
    spark = Spark(session, checkpoint=tmp_path / "checkpoint", max_records=CUT)
    produce("legs", LEGS, data=tmp_path / "data")
    bind = {"totals": f"table:{table}"}
    done = copies().run(tmp_path / "data", on=spark, bind=bind, until_now=True)
    assert totals_in(session.table(table)) == COPIES
    with pytest.raises(SamzaError, match=f"the output is in table:{table}"):
        done.received("totals")
    produce("legs", LEGS[:1], data=tmp_path / "data")
    copies().run(tmp_path / "data", on=spark, bind=bind, until_now=True)
    assert totals_in(session.table(table)) == sorted([*COPIES, COPIES[0]])
    with pytest.raises(PlanError, match="is to stay"):
        copies().run(tmp_path / "data", on=spark, collect=True)


@pytest.mark.parametrize("rows", [1, 3])
def test_a_run_goes_on_where_only_some_of_its_rows_came_to_a_table(session, tmp_path, table, rows):
    session.sql(f"CREATE TABLE {table} (carrier STRING, legs INT) USING parquet")
    into = {"totals": f"table:{table}?mode=append", "app": pipeline(legs=False)}
    with suppress(SamzaError), death(), dying(DataFrameWriter, "insertInto", True, 1):
        run(session, tmp_path, **into)
    values = ", ".join(map(str, TOTALS[:rows]))
    session.sql(f"INSERT INTO {table} VALUES {values}")  # as Spark would have, whose driver dies meanwhile
    run(session, tmp_path, **into)
    assert totals_in(session.table(table)) == TOTALS


def test_a_table_is_replaced_as_a_whole_where_the_session_spares_parts(session, tmp_path, table):
    session.sql(f"CREATE TABLE {table} (legs INT, carrier STRING) USING parquet PARTITIONED BY (carrier)")
    session.sql(f"INSERT INTO {table} VALUES (7, 'AA')")
    session.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        run(session, tmp_path, totals=f"table:{table}?mode=overwrite", app=pipeline(legs=False))
    finally:
        session.conf.unset("spark.sql.sources.partitionOverwriteMode")
    assert totals_in(session.table(table).select("carrier", "legs")) == TOTALS


@pytest.mark.parametrize(
    ("value", "values", "kind"),
    [
        (int, [3, 4], "bigint"),
        (str, ["a", "b"], "string"),
        (bytes, [b"a"], "binary"),
        (list[int], [[1, 2]], "array<bigint>"),
    ],
)
def test_plain_values_are_rows_of_one_column(session, tmp_path, table, value, values, kind):
    def copying():
        app = App("plain")
        app.input("legs", value=value).send_to(app.output("plain", value=value))
        return app

    done = copying().run(tmp_path, on=Spark(session), bind={"legs": values}, collect=True)
    found = done.output("plain")
    assert [(one.name, one.dataType.simpleString()) for one in found.schema.fields] == [("value", kind)]
    assert [row[0] for row in found.collect()] == values
    copying().run(tmp_path, on=Spark(session), bind={"legs": values, "plain": f"table:{table}"})
    copying().run(tmp_path, on=Spark(session), bind={"legs": values, "plain": f"table:{table}?mode=append"})
    assert session.table(table).count() == 2 * len(values)
    session.sql(f"DROP TABLE {table}")
    session.sql(f"CREATE TABLE {table} (number BIGINT) USING parquet")
    with pytest.raises(SamzaError, match=r"value: wanted .*, found no such column"):
        copying().run(tmp_path, on=Spark(session), bind={"legs": values, "plain": f"table:{table}?mode=append"})
