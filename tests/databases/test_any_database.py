"""The sink of the page on connectors through any driver keeps each row once, and knows its owner."""

import runpy
import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pytest

from runtime.model.errors import Damaged
from samza_dsl import App
from samza_dsl.connectors import PositionedSink, SinkOwner, SinkRow
from samza_dsl.testing import check_sink
from tests.databases.conftest import Database
from tests.databases.test_table_sinks import Order
from tests.test_site import DOCS, fences

PASSES = {"sqlite": ("?", sqlite3.OperationalError), "postgres": ("%s", psycopg.OperationalError)}
OF_DRIVERS = pytest.mark.parametrize(
    "database", ["sqlite", pytest.param("postgres", marks=pytest.mark.ci)], indirect=True
)


def sink_into(database: Database, table: str, directory: Path) -> PositionedSink:
    """Return the sink of the page, of orders in a table."""
    [text] = [text for title, text in fences(DOCS / "connectors.md", "python") if title == "database.py"]
    (directory / "database.py").write_text(text)
    mark, passes = PASSES[database.kind]

    def connect() -> Any:
        if database.kind == "sqlite":
            return sqlite3.connect(database.where, check_same_thread=False)
        return psycopg.connect(database.where)

    found: PositionedSink = runpy.run_path(str(directory / "database.py"))["database_sink"](
        connect, table, ["id", "note"], mark, passes
    )
    return found


@OF_DRIVERS
def test_any_driver_keeps_each_row_once_through_crashes(database: Database, tmp_path: Path) -> None:
    table = database.table()
    database.change(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, note VARCHAR(99))")
    database.change("DROP TABLE IF EXISTS positions")
    rows = [SinkRow(Order(n % 8, f"note {n}"), key=n % 8) for n in range(40)] + [SinkRow(None, key=n) for n in range(8)]

    def content() -> list[Order]:
        return [Order(*row) for row in database.rows(f"SELECT id, note FROM {table}")]

    check_sink(lambda: sink_into(database, table, tmp_path), content, rows, by_key=True, times=40)


@OF_DRIVERS
def test_an_application_writes_through_any_driver_and_a_lost_position_is_told(
    database: Database, tmp_path: Path
) -> None:
    table = database.table()
    database.change(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, note VARCHAR(99))")
    database.change("DROP TABLE IF EXISTS positions")
    app = App(f"any-{table}".replace("_", "-"))
    orders = app.input("orders", value=Order, key=lambda order: order.id)
    orders.send_to(app.output("kept", value=Order, key=int))
    for notes in (["a", "b"], ["c"]):
        bind = {"orders": [Order(n, note) for n, note in enumerate(notes)]}
        app.run(tmp_path / notes[0], bind={**bind, "kept": sink_into(database, table, tmp_path)})
    assert database.rows(f"SELECT id, note FROM {table} ORDER BY id") == [(0, "c"), (1, "b")]
    gone = SinkOwner("shop", "orders", 0, 2, 5, Order, is_known=True)
    with pytest.raises(Damaged, match="has rows, and positions has not how far"):
        sink_into(database, table, tmp_path).claim(gone)
