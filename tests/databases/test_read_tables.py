"""Tables as inputs of applications: rows, changes, tables to join, containers, and what can't be read."""

import asyncio
import datetime as dt
import logging
import re
import shutil
import sqlite3
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from runtime.model.errors import Damaged
from runtime.ports.streams import StreamConfig
from runtime.systems.connectors import inbox, tries
from runtime.systems.databases import column_source, postgres_changes
from runtime.systems.log.environment import LogEnvironment
from runtime.systems.memory.environment import MemoryEnvironment
from samza_dsl import App, Change, MessagePack, SamzaError, connectors, dead_letter, remote_table
from samza_dsl.cli.main import commands
from samza_dsl.connectors import Pulled, PulledRecord, PulledSource, SinkRow
from tests.databases.conftest import NUMBERS, Database
from tests.databases.test_table_sinks import EVERYTHING, Everything, Order, owner
from tests.scale import examples

KINDS = ["sqlite", pytest.param("postgres", marks=pytest.mark.ci)]


class Tables:
    """A database with a table of orders, whose changes are read."""

    def __init__(self, kind: str, where: str) -> None:
        self.has_second = False
        self.kind, self.where, self.table = kind, where, f"orders_{next(NUMBERS)}"
        connect = {"sqlite": lambda: sqlite3.connect(where, isolation_level=None), "postgres": self._postgres}
        self.connection: Any = connect[kind]()
        self.do("CREATE TABLE {} (id INTEGER PRIMARY KEY, note TEXT)")
        if kind == "postgres":
            self.do("ALTER TABLE {} REPLICA IDENTITY FULL")

    def _postgres(self) -> Any:
        return psycopg.connect(self.where, autocommit=True)

    def do(self, statement: str) -> list[Any]:
        found = self.connection.execute(statement.format(self.table))
        return found.fetchall() if found.description else []

    def put(self, *ids: int, note: str = "new") -> None:
        self.do(f"INSERT INTO {{}} VALUES {', '.join(f'({n}, {note!r})' for n in ids)}")

    def source(self, **said: Any) -> PulledSource:
        return getattr(connectors, f"{self.kind}_source")(self.where, self.table, **said)

    def close(self) -> None:
        if self.kind == "postgres":
            self.do("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active")
        self.connection.close()


@pytest.fixture(params=KINDS)
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tables]:
    where = request.getfixturevalue("server") if request.param == "postgres" else str(tmp_path / "orders.db")
    with closing(Tables(request.param, where)) as found:
        yield found


def copying(value: Any = Order, name: str = "copying") -> App:
    app = App(name)
    app.input("orders", value=value, key=int).send_to(app.output("seen", value=value, key=int))
    return app


def seen(tables: Tables, data: Path, value: Any, **said: Any) -> list[Any]:
    run = copying(value).run(data, bind={"orders": tables.source(**said)}, until_now=True)
    return run.received("seen")


def test_rows_come_once_and_their_changes_behind_them(tables: Tables, tmp_path: Path) -> None:
    kind = Change[int, Order]
    tables.put(1, 2, 3)
    assert seen(tables, tmp_path, kind) == [Change(n, None, Order(n, "new")) for n in (1, 2, 3)]
    tables.do("UPDATE {} SET note = NULL WHERE id = 2")
    tables.do("DELETE FROM {} WHERE id = 1")
    tables.do("UPDATE {} SET id = 9 WHERE id = 3")
    changes = [
        Change(2, Order(2, "new"), Order(2)),
        Change(1, Order(1, "new"), None),
        Change(3, Order(3, "new"), None),
        Change(9, None, Order(9, "new")),
    ]
    assert seen(tables, tmp_path, kind)[3:] == changes
    assert len(seen(tables, tmp_path, kind)) == 7


def test_an_input_of_rows_reads_no_value_where_one_is_deleted(tables: Tables, tmp_path: Path) -> None:
    tables.put(1)
    assert seen(tables, tmp_path, Order | None) == [Order(1, "new")]
    tables.do("DELETE FROM {}")
    assert seen(tables, tmp_path, Order | None) == [Order(1, "new"), None]


def priced(broadcast: bool, partitions: int | None) -> App:
    app = App("priced")
    orders = app.table("orders", value=Order, key=int, broadcast=broadcast, partitions=partitions)
    ids = app.input("ids", value=int)
    by_id = ids if broadcast else ids.partition_by(lambda n: n, partitions=partitions, key_type=int)
    on: dict[str, Any] = {"on": lambda n: n} if broadcast else {}
    joined = by_id.join(orders, lambda n, order: (n, order and order.note), how="left", **on)
    joined.send_to(app.output("joined"))
    return app


@pytest.mark.parametrize(("broadcast", "partitions"), [(True, None), (False, 3)], ids=["broadcast", "by key"])
def test_a_table_is_whole_before_what_joins_it(
    tables: Tables, tmp_path: Path, broadcast: bool, partitions: int | None
) -> None:
    tables.put(*range(50))

    def joined() -> set[Any]:
        bind = {"orders": tables.source(), "ids": [0, 7, 49, 50]}
        run = priced(broadcast, partitions).run(tmp_path, bind=bind, until_now=True, from_start=True, state="reset")
        return {tuple(one) for one in run.received("joined")}

    assert joined() == {(0, "new"), (7, "new"), (49, "new"), (50, None)}
    tables.do("DELETE FROM {} WHERE id = 7")
    tables.do("UPDATE {} SET note = 'old' WHERE id = 0")
    assert {(0, "old"), (7, None)} <= joined()


def test_a_run_without_an_end_hears_of_changes(tables: Tables, tmp_path: Path) -> None:
    tables.put(1)

    async def main() -> list[Any]:
        source, came = tables.source(), threading.Event()

        def confirm(reader: str, position: bytes) -> None:
            source.confirm(reader, position)
            if tables.has_second:
                came.set()

        bind = {"orders": replace(source, poll_ms=1, confirm=confirm)}
        async with copying().running(tmp_path, bind=bind) as run:
            await run.settled()
            tables.has_second = True
            tables.put(2)
            await asyncio.to_thread(came.wait)
            await run.settled()
            return run.received("seen")

    assert asyncio.run(main()) == [Order(1, "new"), Order(2, "new")]


@given(values=st.lists(EVERYTHING, min_size=1, max_size=8, unique_by=lambda one: one.id))
@settings(
    deadline=None,
    max_examples=examples(10, 200),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_what_a_sink_has_written_a_source_reads(database: Database, values: list[Everything]) -> None:
    table, mine = database.table(), owner(kind=Everything)
    sink = database.sink(table, "id")
    mine = mine._replace(output=table)
    sink.claim(mine)
    sink.write(mine, [SinkRow(value) for value in values], 0, 1)
    sink.close()
    app = App("everything")
    app.input("rows", value=Everything).send_to(app.output("seen", value=MessagePack(Everything)))
    source = getattr(connectors, f"{database.kind}_source")(database.where, table, by="id")
    run = app.run(MemoryEnvironment(), bind={"rows": source}, until_now=True)
    assert run.received("seen") == sorted(values, key=lambda one: one.id)


def test_rows_are_read_in_the_order_of_a_column(database: Database, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(column_source, "MOST_ROWS", 3)
    table = database.table()
    database.change(f"CREATE TABLE {table} (n INTEGER, stamp INTEGER)")
    seen: list[Any] = []
    for rows in ([(1, 1), (2, 2), (3, 2), (4, 2), (5, 2)], [], [(6, 3), (7, 2), (8, 4), (9, 4)]):
        if rows:
            database.change(f"INSERT INTO {table} VALUES {', '.join(map(str, rows))}")
        app = App("ordered")
        app.input("rows", value=dict[str, int], key=int).send_to(app.output("seen", key=int))
        source = getattr(connectors, f"{database.kind}_source")(database.where, table, by="stamp", key="n")
        run = app.run(tmp_path, bind={"rows": source}, until_now=True)
        seen = [one["n"] for one in run.received("seen")]
    assert sorted(seen) == [1, 2, 3, 4, 5, 6, 8, 9]  # 7 has come with a value that was read already


def test_a_url_reads_a_table(tables: Tables, tmp_path: Path) -> None:
    tables.put(1, 2)
    scheme = f"sqlite:///{tables.where}" if tables.kind == "sqlite" else tables.where
    url = f"{scheme}{'&' if '?' in scheme else '?'}table={tables.table}"
    assert copying().run(tmp_path, bind={"orders": url}, until_now=True).received("seen") == [
        Order(1, "new"),
        Order(2, "new"),
    ]
    by = copying(name="by").run(tmp_path / "by", bind={"orders": f"{url}&by=id&key=id"}, until_now=True)
    assert by.received("seen") == [Order(1, "new"), Order(2, "new")]


def restored(tables: Tables, tmp_path: Path) -> None:
    """Read on from a copy of the data directory, and then from the directory itself."""
    tables.put(1)
    seen(tables, tmp_path / "a", Order)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    tables.put(2)
    seen(tables, tmp_path / "b", Order)
    tables.put(3)
    seen(tables, tmp_path / "a", Order)


def without_key(tables: Tables, tmp_path: Path) -> None:
    tables.do("DROP TABLE {}")
    tables.do("CREATE TABLE {} (id INTEGER)")
    seen(tables, tmp_path, Order)


def absent(tables: Tables, tmp_path: Path) -> None:
    tables.do("DROP TABLE {}")
    seen(tables, tmp_path, Order)


def keyed(tables: Tables, tmp_path: Path) -> None:
    tables.source(key="id")


def deleted(tables: Tables, tmp_path: Path) -> None:
    tables.put(1)
    seen(tables, tmp_path, Order)
    tables.do("DELETE FROM {}")
    seen(tables, tmp_path, Order)


def made_anew(tables: Tables, tmp_path: Path) -> None:
    tables.put(1)
    seen(tables, tmp_path, Order)
    tables.do("DROP TABLE {}")
    tables.do("CREATE TABLE {} (id INTEGER PRIMARY KEY, note TEXT)")
    if tables.kind == "postgres":
        tables.do("ALTER TABLE {} REPLICA IDENTITY FULL")
    tables.put(2)
    seen(tables, tmp_path, Order)


def renamed(tables: Tables, tmp_path: Path) -> None:
    tables.put(1)
    seen(tables, tmp_path, Order)
    tables.do(f"ALTER TABLE {{}} RENAME TO {tables.table}_former")
    tables.do("CREATE TABLE {} (id INTEGER PRIMARY KEY, note TEXT)")
    seen(tables, tmp_path, Order)


def other_column(tables: Tables, tmp_path: Path) -> None:
    tables.put(1)
    seen(tables, tmp_path, Order, by="nothing")


@pytest.mark.parametrize(
    ("mistake", "error"),
    [
        (restored, "copy of another time"),
        (without_key, "has no primary key"),
        (absent, "is not there"),
        (keyed, "the table's primary key"),
        (deleted, "no value"),
        (other_column, "nothing"),
        (made_anew, "made anew.* changes since then are missing"),
        (renamed, "made anew.* changes since then are missing"),
    ],
)
def test_what_is_wrong_is_told(
    tables: Tables, tmp_path: Path, mistake: Callable[[Tables, Path], None], error: str
) -> None:
    with pytest.raises(SamzaError, match=error):
        mistake(tables, tmp_path)


@pytest.mark.parametrize("scheme", ["sqlite", "duckdb"])
def test_a_file_that_is_read_is_never_made(scheme: str, tmp_path: Path) -> None:
    """A path that is misspelled names no table of a new database: it names no file."""
    file = tmp_path / "shop.db"
    app = App("reading")
    rows = remote_table(connectors.table_rows(f"{scheme}:///{file}?table=orders&key=id", Order))
    numbers = app.input("numbers", value=int)
    numbers.join(rows, lambda _, row: row, on=abs).send_to(app.output("found", value=Order))
    sources: list[Any] = [f"{scheme}:///{file}?table=orders&by=id"]
    sources += [f"{scheme}:///{file}?table=orders"] if scheme == "sqlite" else []
    copying = App("copying")
    copying.input("orders", value=Order).send_to(copying.output("copies", value=Order))
    for number, source in enumerate(sources):
        with pytest.raises(SamzaError, match="there is no such file"):
            copying.run(tmp_path / f"data {number}", bind={"orders": source}, until_now=True)
    with pytest.raises(SamzaError, match="there is no such file"):
        app.run(tmp_path / "data", bind={"numbers": [1]}, until_now=True)
    assert not file.exists()


@pytest.mark.parametrize("source", ["a table by a column", "a file"])
def test_a_shared_table_whose_rows_have_no_key_is_told(source: str, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT)")
        connection.execute("INSERT INTO orders VALUES (1, 'a')")
        connection.commit()
    (tmp_path / "orders.jsonl").write_text('{"id": 1, "note": "a"}\n')
    by_column = connectors.sqlite_source(tmp_path / "shop.db", "orders", by="id")
    app = App("joining")
    orders = app.table("orders", value=Order, key=int, broadcast=True)
    numbers = app.input("numbers", value=int)
    numbers.join(orders, lambda _, row: row, on=abs).send_to(app.output("found", value=Order))
    bind = {"orders": by_column if source != "a file" else tmp_path / "orders.jsonl", "numbers": [1]}
    with pytest.raises(SamzaError, match="table 'orders' can't be read: a record of a table has no key"):
        app.run(tmp_path / "data", bind=bind, until_now=True)


class Named(msgspec.Struct):
    id: int
    note: str | None


@pytest.mark.parametrize("by", [{}, {"by": "id"}], ids=["changes", "by a column"])
def test_text_of_sqlite_that_is_not_utf_8_is_for_the_policy_of_the_input(by: dict[str, str], tmp_path: Path) -> None:
    """The driver alone reads no row of such a table."""
    with closing(Tables("sqlite", str(tmp_path / "orders.db"))) as tables:
        tables.put(1, 3)
        tables.do("INSERT INTO {} VALUES (2, CAST(x'54726f6d73f8' AS TEXT))")
        app = App("reading")
        orders = app.input("orders", value=Named | None, on_error=dead_letter("unread"))
        orders.send_to(app.output("seen", value=Named | None))
        run = app.run(tmp_path / "data", bind={"orders": tables.source(**by)}, until_now=True)
        assert [one.id for one in run.received("seen")] == [1, 3]
        assert len(run.received("unread")) == 1
        told: list[Any] = []
        app = App("bytes")
        app.input("orders", value=msgspec.defstruct("Either", [("id", int), ("note", Any)])).sink(told.append)
        app.run(tmp_path / "bytes", bind={"orders": tables.source(**by)}, until_now=True)
        assert [one.note for one in told] == ["new", b"Troms\xf8", "new"]
        if not by:
            tables.do("UPDATE {} SET note = 'Tromsø' WHERE id = 2")
            changes: list[Any] = []
            app = App("changes")
            app.input("orders", value=Change[int, dict[str, Any]]).sink(changes.append)
            app.run(tmp_path / "changes", bind={"orders": tables.source()}, until_now=True)
            tables.do("UPDATE {} SET note = CAST(x'ff' AS TEXT) WHERE id = 1")
            app.run(tmp_path / "changes", bind={"orders": tables.source()}, until_now=True)
            assert changes[-1] == Change(1, {"id": 1, "note": "new"}, {"id": 1, "note": b"\xff"})


@pytest.mark.parametrize("by", [{}, {"by": "name"}, {"by": "id", "key": "name"}], ids=["changes", "by", "key"])
def test_a_key_of_sqlite_that_is_not_utf_8_is_told(by: dict[str, str], tmp_path: Path) -> None:
    """As bytes it would be behind each text, and the rows between would be passed over."""
    with closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as shop:
        shop.execute("CREATE TABLE names (id INTEGER, name TEXT PRIMARY KEY)")
        shop.execute("INSERT INTO names VALUES (1, CAST(x'41ff' AS TEXT)), (2, 'B')")
    app = App("reading")
    app.input("in", value=dict[str, Any]).send_to(app.output("out", value=dict[str, Any]))
    source = connectors.sqlite_source(tmp_path / "a.db", "names", **by)
    if by == {"by": "name"}:
        # It lies in front of another one, and nothing is found by it.
        assert len(app.run(tmp_path / "data", bind={"in": source}, until_now=True).received("out")) == 2
        return
    with pytest.raises(SamzaError, match=r"b'A\\xff' in the column name is text that is not UTF-8"):
        app.run(tmp_path / "data", bind={"in": source}, until_now=True)


def test_times_that_python_has_not_come_from_duckdb_as_their_text(tmp_path: Path) -> None:
    columns = {
        "DATE": ["infinity", "-infinity", "0044-03-15 (BC)", "10000-01-01", "9999-12-31", "0001-01-01"],
        "TIMESTAMP": ["infinity", "9999-12-31 23:59:59.999999", "10000-01-01 00:00:00", "0001-01-01 00:00:00"],
        "TIMESTAMP_S": ["infinity", "2026-01-02 03:04:05"],
        "TIMESTAMP_NS": ["infinity", "2026-01-02 03:04:05"],
        "TIMESTAMPTZ": ["infinity", "-infinity", "2026-01-02 03:04:05+00"],
        "INTERVAL": ["1 month", "1 year 2 days", "-1 month", "3 days 04:05:06.000007", "12 months"],
    }
    for kind, texts in columns.items():
        with closing(duckdb.connect(str(tmp_path / f"{kind}.duckdb"))) as shop:
            shop.execute(f'CREATE TABLE t (id INTEGER, "a ""b" {kind}, c INTEGER)')
            for n, text in enumerate([*texts, None]):
                shop.execute("INSERT INTO t VALUES (?, ?, 1)", (n, text))
        app = App("reading")
        found: list[dict[str, Any]] = []
        app.input("in", value=dict[str, Any]).sink(found.append)
        source = connectors.duckdb_source(tmp_path / f"{kind}.duckdb", "t", by="id")
        app.run(tmp_path / kind, bind={"in": source}, until_now=True)
        assert [row["id"] for row in found] == [*range(len(texts) + 1)]
        assert found[-1]['a "b'] is None
        for text, row in zip(texts, found, strict=False):
            value = row['a "b']
            has_text = "infinity" in text or "BC" in text or "10000" in text or "month" in text or "year" in text
            assert isinstance(value, str) == has_text, (kind, text, value)
            if has_text and "12" not in text:
                assert value == text
            elif not has_text:
                assert f"{value}".startswith(text.split("+")[0]) or value == dt.timedelta(3, 14706, 7)


def test_times_within_lists_and_structs_come_from_duckdb_as_their_text(tmp_path: Path) -> None:
    moment, day = dt.datetime(2026, 1, 2, 3, 4, 5), dt.date(2026, 1, 2)
    rows: dict[str, tuple[str, Any]] = {
        "TIMESTAMP[]": ("['infinity', '2026-01-02 03:04:05', NULL]", ["infinity", moment, None]),
        "DATE[2]": ("['-infinity', '2026-01-02']", ["-infinity", day]),
        "INTERVAL[][]": ("[['1 month', '1 day'], NULL, []]", [["1 month", dt.timedelta(1)], None, []]),
        """STRUCT("a ""'b" DATE, c TIMESTAMP[], d INTEGER)""": (
            "row('infinity', ['infinity'], 7)",
            {"a \"'b": "infinity", "c": ["infinity"], "d": 7},
        ),
        "STRUCT(a STRUCT(b DATE))[]": (
            "[row(row('infinity')), row(NULL), NULL]",
            [{"a": {"b": "infinity"}}, {"a": None}, None],
        ),
        "MAP(VARCHAR, TIMESTAMP)": (
            "MAP {'a': 'infinity', 'b': '2026-01-02 03:04:05'}",
            {"a": "infinity", "b": moment},
        ),
        "MAP(DATE, STRUCT(a INTERVAL))": ("MAP {'2026-01-02': row('2 months')}", {day: {"a": "2 months"}}),
        "STRUCT(a INTEGER, b VARCHAR[])": ("row(1, ['x'])", {"a": 1, "b": ["x"]}),
        "TIME[]": ("['12:00:00']", [dt.time(12)]),
        "UNION(a INTEGER, b TIMESTAMP)": ("union_value(b := TIMESTAMP 'infinity')", "infinity"),
        "UNION(a VARCHAR, b DATE, c DATE)": ("union_value(c := DATE '2026-01-02')", day),
        "UNION(a INTEGER, b INTERVAL)": ("union_value(a := 7)", 7),
        """UNION("a 'b" DATE[], c STRUCT(d INTERVAL))""": (
            """union_value("a 'b" := [DATE 'infinity'])""",
            ["infinity"],
        ),
        "UNION(a DATE[], c STRUCT(d INTERVAL))": ("union_value(c := {'d': INTERVAL '1 month'})", {"d": "1 month"}),
        "UNION(a UNION(b DATE, c INTEGER), d MAP(DATE, DATE))[]": (
            "[union_value(a := union_value(b := DATE '-infinity')), union_value(d := MAP {'2026-01-02': NULL}), NULL]",
            ["-infinity", {day: None}, None],
        ),
        "STRUCT(a UNION(b DATE))": ("row(union_value(b := DATE 'infinity'))", {"a": "infinity"}),
    }
    with closing(duckdb.connect(str(tmp_path / "times.duckdb"))) as shop:
        for n, (kind, (value, _)) in enumerate(rows.items()):
            shop.execute(f"CREATE TABLE t{n} (id INTEGER, v {kind})")
            shop.execute(f"INSERT INTO t{n} VALUES (1, ({value})::{kind}), (2, NULL)")
    for n, (kind, (_, value)) in enumerate(rows.items()):
        with closing(connectors.duckdb_source(tmp_path / "times.duckdb", f"t{n}", by="id")) as source:
            found = [one.value for one in source.pull("reader", b"").records]
        assert found == [{"id": 1, "v": value}, {"id": 2, "v": None}], kind


OF_ALL_TYPES = {
    "smallint": "7",
    "numeric": "0.10",
    "numeric(30)": "99999999999999999999",
    "real": "0.1",
    "double precision": "1e300",
    "boolean": "true",
    "bytea": "'\\x00ff'",
    "char(3)": "'a'",
    "date": "'infinity'",
    "timestamptz": "'2026-01-01 12:00+05'",
    "time": "'12:00:01.5'",
    "interval": "'1 month 2 days'",
    "uuid": "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'",
    "jsonb": """'{"a": [1, null, 0.1234567890123456789012345, 1e400, 1e16, 0.1, 123456789012345678901234567890]}'""",
    "json": "'1e2'",
    "int[]": "'{1,NULL}'",
    "text[][]": "'{{a},{NULL}}'",
    "inet": "'1.2.3.4'",
    "int4range": "'[1,5)'",
    "bit(3)": "B'101'",
    "money": "12.34",
    "oid": "5",
    "point": "'(1,2)'",
    "MOOD": "'ok'",
    "MOOD[]": "'{ok}'",
    "PAIR": "row(1, 'x, y')",
    "COUNT": "3",
    "LARGE": "4",
    "COUNT[]": "'{3}'",
    "DAYS": "'{2026-01-01}'",
}
"""Types of Postgres, in capitals those of the database's own, each with a value."""


@pytest.mark.ci
def test_a_value_of_any_type_is_the_same_from_a_snapshot_and_as_a_change(server: str, tmp_path: Path) -> None:
    with closing(Tables("postgres", server)) as tables:
        own = {name: f"{name.lower()}_{tables.table}" for name in ("MOOD", "PAIR", "COUNT", "LARGE", "DAYS")}
        tables.do(f"CREATE TYPE {own['MOOD']} AS ENUM ('sad', 'ok')")
        tables.do(f"CREATE TYPE {own['PAIR']} AS (a int, b text)")
        tables.do(f"CREATE DOMAIN {own['COUNT']} AS int CHECK (value > 0)")
        tables.do(f"CREATE DOMAIN {own['LARGE']} AS {own['COUNT']} CHECK (value > 3)")
        tables.do(f"CREATE DOMAIN {own['DAYS']} AS date[]")
        for n, kind in enumerate(OF_ALL_TYPES):
            named = kind.rstrip("[]")
            tables.do(f"ALTER TABLE {{}} ADD COLUMN c{n} {kind.replace(named, own.get(named, named))}")
        for id in (1, 2):
            values = ", ".join(OF_ALL_TYPES.values()).replace("{", "{{").replace("}", "}}")
            tables.do(f"INSERT INTO {{}} VALUES ({id}, 'new', {values})")
            found = seen(tables, tmp_path, dict[str, Any])
        snapshot, change = found
        assert {**change, "id": 1} == snapshot


@pytest.mark.ci
def test_what_a_server_does_not_tell_is_told(server: str, tmp_path: Path) -> None:
    with closing(Tables("postgres", server)) as tables:
        tables.put(1)
        tables.do("ALTER TABLE {} REPLICA IDENTITY DEFAULT")
        with pytest.raises(SamzaError, match="REPLICA IDENTITY FULL"):
            seen(tables, tmp_path, Order)
        tables.do("ALTER TABLE {} REPLICA IDENTITY FULL")
        seen(tables, tmp_path, Order)
        tables.do("TRUNCATE {}")
        with pytest.raises(SamzaError, match="emptied by TRUNCATE"):
            seen(tables, tmp_path, Order)
        tables.do("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
        with pytest.raises(Damaged, match="is gone"):
            seen(tables, tmp_path, Order)


@pytest.mark.ci
def test_a_transaction_that_is_open_is_waited_for_with_a_word(
    server: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(Tables("postgres", server)) as tables, psycopg.connect(server) as writer:
        tables.put(1)
        writer.execute(f"INSERT INTO {tables.table} VALUES (2, 'late')")

        class Ends(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                writer.commit()

        log, ends = logging.getLogger("samza_dsl"), Ends()
        log.addHandler(ends)
        try:
            assert seen(tables, tmp_path, Order) == [Order(1, "new"), Order(2, "late")]
        finally:
            log.removeHandler(ends)
        assert "is read once the transactions" in caplog.text


@pytest.mark.ci
def test_a_table_at_rest_does_not_hold_the_server_s_log(server: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(postgres_changes, "NOTED_BYTES", 1_000)
    with closing(Tables("postgres", server)) as tables, closing(Tables("postgres", server)) as others:
        tables.put(1)
        seen(tables, tmp_path, Order)
        held = "SELECT pg_current_wal_lsn() - confirmed_flush_lsn FROM pg_replication_slots"
        others.put(*range(2_000))
        before = tables.do(held)[0][0]
        seen(tables, tmp_path, Order)
        assert tables.do(held)[0][0] < before / 10


def test_a_source_that_fails_is_asked_again(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(tries, "FIRST_PAUSE_S", 0.0)
    asked: list[bytes] = []

    def pull(reader: str, position: bytes) -> Pulled:
        asked.append(position)
        if len(asked) % 2:
            raise OSError("down")
        number = int(position or 0)
        return Pulled([PulledRecord(number, key=number)] if number < 3 else [], b"%d" % min(number + 1, 3), number < 3)

    app = App("numbers")
    app.input("numbers", value=int, key=int).send_to(app.output("seen", value=int))
    run = app.run(tmp_path, bind={"numbers": PulledSource("numbers", pull)}, until_now=True)
    assert run.received("seen") == [0, 1, 2] and asked[:3] == [b"", b"", b"1"]


class Pair(msgspec.Struct, frozen=True):
    shop: uuid.UUID
    id: int
    price: Decimal
    parts: list[int]


@pytest.mark.parametrize("key", ["id", "shop,id"])
def test_a_remote_table_has_the_rows_of_a_database(database: Database, key: str) -> None:
    table = database.table()
    shops = [uuid.UUID(int=n) for n in range(3)]
    is_pair = key == "shop,id"
    places = [(m, n) for m in range(3) for n in range(4)]
    pairs = [Pair(shops[m], n if is_pair else 10 * n + m, Decimal(n), [m]) for m, n in places]
    sink, mine = database.sink(table, key.split(",")), owner(kind=Pair, output=table)
    sink.claim(mine)
    sink.write(mine, [SinkRow(pair) for pair in pairs], 0, 1)
    sink.close()
    where = database.where if database.kind == "postgres" else f"{database.kind}:///{database.where}"
    url = f"{where}{'&' if '?' in where else '?'}table={table}&key={key}"
    app = App("looking-up")
    wanted = app.input("wanted", value=Pair)
    rows = remote_table(connectors.table_rows(url, Pair), batch_size=5)
    on: Callable[[Pair], Any] = (lambda one: (one.shop, one.id)) if is_pair else (lambda one: one.id)
    found = wanted.join(rows, lambda _, row: row, on=on, how="left")
    found.send_to(app.output("found", value=Pair | None))
    absent = Pair(shops[0], 999, Decimal(0), [])
    run = app.run(MemoryEnvironment(), bind={"wanted": [*pairs, absent]}, until_now=True)
    assert Counter(map(repr, run.received("found"))) == Counter(map(repr, [*pairs, None]))


def test_a_table_to_look_up_says_its_key() -> None:
    with pytest.raises(SamzaError, match="columns of its key"):
        connectors.table_rows("sqlite:///shop.db?table=orders", Order)
    with pytest.raises(SamzaError, match="write a URL of"):
        connectors.table_rows("ftp://shop?table=orders&key=id", Order)


def test_a_crash_between_the_streams_of_an_inbox_does_no_harm(tables: Tables, tmp_path: Path) -> None:
    tables.put(1)
    with closing(LogEnvironment(tmp_path)) as environment:
        environment.create_stream(inbox.inbox_of("copying", "orders", tables.source().name), StreamConfig())
    assert seen(tables, tmp_path, Order) == [Order(1, "new")]


LEFT = {
    "sqlite": "SELECT name FROM sqlite_master WHERE name LIKE 'samza%'",
    "postgres": "SELECT slot_name FROM pg_replication_slots UNION SELECT pubname FROM pg_publication",
}


def test_what_a_database_keeps_is_shown_and_dropped_with_the_application(tables: Tables, tmp_path: Path) -> None:
    tables.put(1, 2)
    others = Tables(tables.kind, tables.where)
    others.put(1)
    seen(tables, tmp_path, Order)
    copying(name="other").run(tmp_path, bind={"orders": others.source()}, until_now=True)
    url = tables.where if tables.kind == "postgres" else f"sqlite:///{tables.where}"
    url = f"{url}{'&' if '?' in url else '?'}table="
    said = ["--data", str(tmp_path)]

    def told(*words: str) -> str:
        found = CliRunner().invoke(commands, [*words, *said])
        assert found.exit_code == 0, found.output
        return " ".join(found.output.split())

    program = tmp_path / "copying.py"
    program.write_text(
        "from samza_dsl import App\n"
        "app = App('copying')\n"
        "app.input('orders', key=int).send_to(app.output('seen', key=int))\n"
    )
    for shown in (
        told("checkpoint", "show", "copying"),
        told("state", "list", "copying"),
        told("plan", str(program)),
    ):
        assert f"orders is pulled from {tables.source().name} by the reader" in shown
        names = [name for row in tables.do(LEFT[tables.kind]) for name in row]
        mark = re.search(r"samza_dsl_(copying_|\*)(\w+)", shown)
        assert mark is not None and any(name.endswith(mark[2]) for name in names), shown
    assert "by the reader" not in told("plan", str(program), "--mermaid")
    kept = len(tables.do(LEFT[tables.kind]))
    refused = CliRunner().invoke(
        commands, ["delete", "copying", "--yes", "--bind", f"orders={url}{others.table}", *said]
    )
    assert refused.exit_code != 0 and "has never pulled 'orders' from" in " ".join(refused.output.split())
    assert "keeps nothing more" in told("delete", "copying", "--yes", "--bind", f"orders={url}{tables.table}")
    assert 0 < len(tables.do(LEFT[tables.kind])) < kept
    tables.put(3)
    # Another directory reads the table as well.
    assert seen(tables, tmp_path / "again", Order) == [Order(n, "new") for n in (1, 2, 3)]
    told("delete", "other", "--yes", "--bind", f"orders={url}{others.table}")
    said[1] = str(tmp_path / "again")
    told("delete", "copying", "--yes", "--bind", f"orders={url}{tables.table}")
    assert tables.do(LEFT[tables.kind]) == []
    others.close()
