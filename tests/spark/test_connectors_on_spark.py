"""Connectors in bounded runs on Spark: read by the driver, written behind all other results, once whoever dies."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Struct

from operators.core.base import Batch
from runtime.model.checkpoint import Checkpoint
from runtime.ports.commits import Commit
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.connectors import tries
from runtime.systems.connectors.outbox import Outbox
from runtime.systems.log.environment import LogEnvironment
from runtime.units.driver.connected import Connected, refuse_connectors
from samza_dsl import App, SamzaError, Spark, connectors, dead_letter, fail, retry, skip
from samza_dsl.connectors import AtLeastOnceSink, ConnectedSource, Offsets, RowRefused, SinkRow, SourceRecord


class Order(Struct, frozen=True):
    id: int
    shop: str
    cents: int


class Total(Struct, frozen=True):
    shop: str
    cents: int


TOTALS = [("a", 20), ("b", 25)]


def pipeline() -> App:
    app = App("totals")
    orders = app.input("orders", value=Order)
    by_shop = orders.partition_by(lambda order: order.shop, partitions=2, op_id="by")
    by_shop.process(added, op_id="sum").send_to(app.output("totals", value=Total))
    return app


def added(order, context):
    context.state = (context.state or 0) + order.cents
    return [Total(context.key, context.state)]


@pytest.fixture
def shop(tmp_path: Path) -> str:
    """Return the path of a database with ten orders."""
    path = str(tmp_path / "shop.db")
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, shop TEXT, cents INTEGER)")
        database.executemany("INSERT INTO orders VALUES (?, ?, ?)", [(n, "ab"[n % 2], n) for n in range(10)])
        database.commit()
    return path


def totals_in(path: str) -> list[tuple[str, int]]:
    with closing(sqlite3.connect(path)) as database:
        return sorted(database.execute("SELECT shop, cents FROM totals").fetchall())


def bound(path: str) -> dict[str, object]:
    return {
        "orders": f"sqlite:///{path}?table=orders&by=id",
        "totals": f"sqlite:///{path}?table=totals&key=shop",
    }


@pytest.mark.ci
def test_a_table_is_read_and_one_written_once_whoever_dies(session, shop, tmp_path, monkeypatch, caplog):
    class DiedError(Exception):
        """The death of a driver."""

    whole = Outbox.deliver

    def deliver(self: Outbox, whole_batch: bool = False) -> None:
        whole(self, whole_batch)
        raise DiedError

    with monkeypatch.context() as dying:
        # Rows are there, and the stream that they came from as well: who comes next finds both.
        dying.setattr(Outbox, "deliver", deliver)
        with pytest.raises(DiedError):
            pipeline().run(tmp_path / "data", on=Spark(session), bind=bound(shop))
    assert totals_in(shop) == TOTALS
    with closing(sqlite3.connect(shop)) as database:
        database.execute("INSERT INTO orders VALUES (99, 'a', 1000)")  # which the run before has not seen
        database.commit()
    pipeline().run(tmp_path / "data", on=Spark(session), bind=bound(shop))
    assert totals_in(shop) == TOTALS
    assert "an earlier run was through" in caplog.text and "nothing was read of" not in caplog.text
    # The next run is another one, whose rows would come beside those.
    with pytest.raises(SamzaError, match="earlier life"):
        pipeline().run(tmp_path / "data", on=Spark(session), bind=bound(shop))


@pytest.mark.ci
def test_a_source_of_functions_is_read_and_one_without_positions_written(session, tmp_path):
    orders = [[Order(n, "ab"[n % 2], n) for n in range(start, 10, 2)] for start in (0, 1)]
    source = ConnectedSource(
        "orders by hand",
        lambda: ["even", "odd"],
        lambda name: Offsets(0, 5, ended=name == "odd"),
        lambda name, offset, most: [
            SourceRecord(n, b'{"id":%d,"shop":"%s","cents":%d}' % (one.id, one.shop.encode(), one.cents), b"key", n)
            for n, one in enumerate(orders[name == "odd"][offset : offset + most], offset)
        ],
    )
    taken: list[SinkRow] = []
    sink = AtLeastOnceSink("by hand", taken.extend)
    for number in (1, 2):
        pipeline().run(tmp_path, on=Spark(session), bind={"orders": source, "totals": sink})
        newest = {row.value.shop: row.value.cents for row in taken}
        assert sorted(newest.items()) == TOTALS and len(taken) == 10 * number


@pytest.mark.ci
def test_a_row_that_a_sink_refuses_is_a_dead_letter_behind_a_run(session, shop, tmp_path):
    with closing(sqlite3.connect(shop)) as database:
        database.execute("CREATE TABLE copies (id INTEGER PRIMARY KEY, shop TEXT, cents INTEGER CHECK (cents <> 5))")
    app = App("copying")
    orders = app.input("orders", value=Order)
    orders.send_to(app.output("copies", value=Order), on_error=dead_letter("refused"))
    bind = {"orders": f"sqlite:///{shop}?table=orders&by=id", "copies": f"sqlite:///{shop}?table=copies&key=id"}
    run = app.run(tmp_path / "data", on=Spark(session), bind=bind)
    assert [msgspec.json.decode(one, type=Order) for one in run.received("refused")] == [Order(5, "b", 5)]
    with closing(sqlite3.connect(shop)) as database:
        assert [id for (id,) in database.execute("SELECT id FROM copies")] == [0, 1, 2, 3, 4, 6, 7, 8, 9]


@pytest.mark.ci
def test_rows_wait_where_a_sink_is_away(session, shop, tmp_path, monkeypatch):
    monkeypatch.setattr(tries, "FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(tries, "LONGEST_PAUSE_S", 0.0)
    taken: list[SinkRow] = []

    def away(rows: Any) -> None:
        raise connectors.Unavailable("it is away")

    bind = {"orders": f"sqlite:///{shop}?table=orders&by=id", "totals": AtLeastOnceSink("by hand", away)}
    with pytest.raises(SamzaError, match="are written when the application is run again"):
        pipeline().run(tmp_path / "data", on=Spark(session), bind=bind)
    pipeline().run(
        tmp_path / "data", on=Spark(session), bind={**bind, "totals": AtLeastOnceSink("by hand", taken.extend)}
    )
    assert len(taken) == 10


@pytest.mark.parametrize(
    ("bind", "on_brokers", "told"),
    [
        ({"orders": "sqlite:///shop.db?table=orders"}, False, r"&by=id; or leave on=Spark\(\.\.\.\) out"),
        ({"orders": "growing:incoming"}, False, "let a live run read it"),
        ({"orders": "listen://:8080/orders"}, False, "let a live run read it"),
        ({"totals": "sqlite:///shop.db?table=orders&key=id"}, True, "this run is on brokers"),
        (
            {"totals": connectors.TransactionalSink("mine", print, print, lambda: 0)},
            False,
            "is cut back to commits",
        ),
    ],
)
def test_what_can_not_be_used_is_told_before_anything_runs(bind, on_brokers, told, tmp_path):
    with pytest.raises(SamzaError, match=told):
        Connected(pipeline().graph(), bind, tmp_path, on_brokers)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/orders.jsonl", "https://127.0.0.1:9/*.parquet"])
def test_files_over_http_are_told_before_spark_looks_for_them(session, url, tmp_path):
    with pytest.raises(SamzaError, match=r"'orders': 'https?://127.*fetch them first.* leave on=Spark"):
        pipeline().run(tmp_path / "data", on=Spark(session), bind={"orders": url})


@pytest.mark.parametrize("bind", [{}, {"refused": "stream:others"}], ids=["own stream", "another"])
@pytest.mark.parametrize("policy", [dead_letter("refused"), skip, retry(2, then=skip), fail], ids=repr)
def test_rows_that_a_sink_refuses_go_by_the_policy_of_who_writes_them_once_whoever_dies(policy, bind, tmp_path):
    app = App("refusing")
    app.input("orders", value=Order).send_to(app.output("copies", value=Order), on_error=policy)
    taken: list[Order] = []
    dies = [True]

    def write(rows: Any) -> None:
        if (bad := next((n for n, row in enumerate(rows) if row.value.cents < 0), None)) is not None:
            raise RowRefused("it is less than nothing", bad)
        if dies.pop() if dies else False:
            raise SamzaError("the driver dies")
        taken.extend(row.value for row in rows)

    places = Connected(app.graph(), {"copies": AtLeastOnceSink("by hand", write), **bind}, tmp_path, False)
    stream = str(places.outputs({})["copies"]).removeprefix("stream:")
    letters = "others" if bind else "refused"
    orders = [Order(n, "a", -1 if n in (1, 4) else n) for n in range(6)]
    with closing(LogEnvironment(tmp_path)) as log:
        for name in (stream, letters):
            log.create_stream(name, StreamConfig(partitions=1))
        rows = Batch([msgspec.json.encode(one) for one in orders], None)
        noted = {"outputs": Checkpoint(1, outputs={"live": 7})} if bind else {}
        log.commit(Commit("refusing", log.own("refusing"), [Append(stream, 0, rows)], [], noted))
    if policy == fail:
        with pytest.raises(SamzaError, match=r"it is less than nothing.*on_error=dead_letter"):
            places.deliver()
        return
    with pytest.raises(SamzaError, match="the driver dies"):
        places.deliver()
    assert places.is_left
    places.deliver()
    assert not places.is_left and taken == [one for one in orders if one.cents >= 0]
    with closing(LogEnvironment(tmp_path)) as log:
        found: list[Order] = []
        while (kept := log.read(letters, 0, len(found))) is not None:
            found += [msgspec.json.decode(one, type=Order) for one in kept.batch.values]
        # What was noted meanwhile is gone, and what a live run has noted is not.
        assert {name: one.outputs for name, one in log.checkpoints("refusing").items()} == (
            {"outputs": {"live": 7}} if bind else {}
        )
    assert found == ([orders[1], orders[4]] if policy == dead_letter("refused") else [])


@pytest.mark.parametrize("url", ["sqlite:///shop.db?table=orders&by=id", "redis://host?stream=orders"])
def test_a_run_that_goes_on_uses_none(url):
    with pytest.raises(SamzaError, match="that goes on reads and writes no connectors"):
        refuse_connectors({"orders": url})


def test_a_record_that_is_no_order_is_told(shop, tmp_path):
    with closing(sqlite3.connect(shop)) as database:
        database.execute("INSERT INTO orders VALUES (99, NULL, 5)")
        database.commit()
    places = Connected(pipeline().graph(), bound(shop), tmp_path, False)
    with pytest.raises(SamzaError, match="is not of the input's type"):
        places.inputs({})
