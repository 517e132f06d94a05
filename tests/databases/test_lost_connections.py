"""Connections to Postgres that are lost, denied or ended by a restart in the middle: words, and each row once."""

import datetime as dt
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from runtime.systems.connectors import tries
from samza_dsl import App, SamzaError, connectors, skip
from tests.databases import postgres
from tests.databases.conftest import NUMBERS
from tests.databases.test_read_tables import Tables
from tests.databases.test_table_sinks import Order
from tests.faults.processes import wait_until

pytestmark = pytest.mark.ci
ROWS = 400


class Clerk:
    """A user of a database who may write to one table, and what an administrator does to that."""

    def __init__(self, server: str) -> None:
        self.name, self.table, self.server = f"clerk_{next(NUMBERS)}", "copies", server
        self.do(f"CREATE ROLE {self.name} LOGIN")
        self.do(f"CREATE DATABASE {self.name} OWNER {self.name}")
        self.server = server.replace("/postgres?", f"/{self.name}?")
        self.url = self.server.replace("//postgres@", f"//{self.name}@")
        self.do("CREATE TABLE copies (id bigint, note text, PRIMARY KEY (id))")
        self.do(f"GRANT ALL ON copies TO {self.name}")
        self.do("CREATE SEQUENCE falls")

    def do(self, statement: str) -> list[Any]:
        with psycopg.connect(self.server, autocommit=True) as connection:
            found = connection.execute(statement.encode())
            return found.fetchall() if found.description else []

    def falls(self, times: int, at: int) -> None:
        """Have the server end the connection that writes a row, in the middle of its batch, so many times."""
        # What a sequence has given is not taken back with the transaction.
        self.do(
            "CREATE FUNCTION fall() RETURNS trigger SECURITY DEFINER LANGUAGE plpgsql AS $$ BEGIN "
            f"IF new.id = {at} AND nextval('falls') <= {times} THEN "
            "PERFORM pg_terminate_backend(pg_backend_pid()); END IF; RETURN new; END $$"
        )
        self.do("CREATE TRIGGER falling BEFORE INSERT ON copies FOR EACH ROW EXECUTE FUNCTION fall()")

    def ids(self) -> list[int]:
        return [row[0] for row in self.do(f"SELECT id FROM {self.table} ORDER BY id")]


@pytest.fixture
def clerk(server: str) -> Clerk:
    return Clerk(server)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tries, "FIRST_PAUSE_S", 0.01)


@pytest.mark.parametrize("key", [(), "id"], ids=["append", "by key"])
def test_a_batch_whose_connection_is_lost_is_written_again(
    clerk: Clerk, key: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clerk.falls(2, at=ROWS // 2)
    orders = [Order(n) for n in range(ROWS)]
    copying(Order).run(tmp_path, bind={"orders": orders, "copies": connectors.postgres(clerk.url, "copies", key)})
    assert clerk.ids() == [*range(ROWS)]
    assert "failed, try 2 of 8" in caplog.text and "terminating connection" in caplog.text


@pytest.mark.parametrize("key", [(), "id"], ids=["append", "by key"])
def test_a_right_that_is_taken_away_ends_the_run_and_the_next_goes_on(clerk: Clerk, key: Any, tmp_path: Path) -> None:
    bind = {"orders": str(tmp_path / "orders.jsonl"), "copies": connectors.postgres(clerk.url, "copies", key)}

    def copy(number: int) -> None:
        with (tmp_path / "orders.jsonl").open("a") as file:
            file.write(f'{{"id": {number}}}\n')
        copying(Order).run(tmp_path / "data", bind=bind)

    copy(0)
    for number, right in enumerate(("INSERT", "SELECT", "ALL"), start=1):
        clerk.do(f"REVOKE {right} ON copies FROM {clerk.name}")
        with pytest.raises(SamzaError, match=r"permission denied for table copies\s*: GRANT it to the user"):
            copy(number)
        assert clerk.ids() == [*range(number)]
        clerk.do(f"GRANT ALL ON copies TO {clerk.name}")
        copying(Order).run(tmp_path / "data", bind=bind)
        assert clerk.ids() == [*range(number + 1)]


def copying(value: Any) -> App:
    app = App("copying")
    app.input("orders", value=value).send_to(app.output("copies", value=value))
    return app


def test_a_server_that_is_restarted_is_written_to_again(clerk: Clerk, tmp_path: Path) -> None:
    restarted: list[int] = []

    def numbers() -> Iterator[Order]:
        for n in range(300):
            if n in (100, 200):
                wait_until(lambda: len(clerk.ids()) > len(restarted) * 100)
                restarted.append(n)
                postgres.restart(clerk.server)
            yield Order(n)

    bind = {"orders": connectors.generator("orders", lambda first: islice(numbers(), first, None))}
    bind["copies"] = connectors.postgres(clerk.url, "copies", "id")
    copying(Order).run(tmp_path / "data", bind=bind)
    assert clerk.ids() == [*range(300)] and restarted == [100, 200]


@pytest.mark.parametrize("ended", ["terminated", "restarted"])
def test_a_table_is_read_on_where_the_connection_was_lost(ended: str, server: str, tmp_path: Path) -> None:
    with closing(Tables("postgres", server)) as tables:
        tables.put(*range(40))
        source, lost = tables.source(), list[bytes]()

        def pull(reader: str, position: bytes) -> Any:
            lost.append(position)
            if len(lost) in (2, 3, 5):
                # The connection that the last call has left is gone as this one begins.
                if ended == "terminated":
                    tables.do(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name='samza-dsl'"
                    )
                else:
                    tables.connection.close()
                    postgres.restart(server)
                    tables.connection = psycopg.connect(server, autocommit=True)
            return source.pull(reader, position)

        bind = {"orders": replace(source, pull=pull)}
        for note in range(3):
            keyed_copying().run(tmp_path, bind=bind, until_now=True)
            tables.do(f"UPDATE {{}} SET note = '{note}' WHERE id < 3")
        assert len(lost) > 5
        found = keyed_copying().run(tmp_path, bind=bind, until_now=True).received("copies")
        wanted = [Order(n, "new") for n in range(40)] + [Order(n, str(note)) for note in range(3) for n in range(3)]
        assert found == wanted


def keyed_copying() -> App:
    app = App("copying")
    app.input("orders", value=Order, key=int).send_to(app.output("copies", value=Order))
    return app


def test_a_right_to_read_that_is_taken_away_is_told(clerk: Clerk, tmp_path: Path) -> None:
    source = connectors.postgres_source(clerk.url, "copies", by="id")
    clerk.do("INSERT INTO copies VALUES (1)")
    assert copying(Order).run(tmp_path, bind={"orders": source}, until_now=True).received("copies") == [Order(1)]
    clerk.do(f"REVOKE SELECT ON copies FROM {clerk.name}")
    with pytest.raises(SamzaError, match=r"permission denied for table copies\s*: GRANT it to the user"):
        copying(Order).run(tmp_path, bind={"orders": source}, until_now=True)
    clerk.do(f"GRANT SELECT ON copies TO {clerk.name}")
    clerk.do("INSERT INTO copies VALUES (2)")
    assert len(copying(Order).run(tmp_path, bind={"orders": source}, until_now=True).received("copies")) == 2


class Until(msgspec.Struct):
    id: int
    until: dt.datetime


def test_times_that_python_has_not_are_for_the_policy_of_the_input(server: str, tmp_path: Path) -> None:
    with closing(Tables("postgres", server)) as tables:
        tables.do("ALTER TABLE {} ADD COLUMN until timestamptz")
        tables.do("ALTER TABLE {} ADD COLUMN times tstzmultirange, ADD COLUMN numbers int4range DEFAULT '[1,5)'")
        tables.do("INSERT INTO {} (id, until) VALUES (1, '2026-01-01Z'), (2, 'infinity'), (3, '0044-01-01 BC')")
        for by in ({}, {"by": "id", "key": "id"}):
            bind = {"orders": tables.source(**by)}
            with pytest.raises(SamzaError, match="until"):
                copying(Until).run(tmp_path / f"fail-{by}", bind=bind, until_now=True)
            app = App("skipping")
            app.input("orders", value=Until, on_error=skip).send_to(app.output("copies", value=Until))
            run = app.run(tmp_path / f"skip-{by}", bind=bind, until_now=True)
            assert [row.id for row in run.received("copies")] == [1]
            app = App("texts")
            app.input("orders", value=dict).map(lambda row: (row["until"], row["numbers"])).send_to(
                app.output("copies")
            )
            texts = app.run(tmp_path / f"text-{by}", bind=bind, until_now=True).received("copies")
            assert texts[1:] == [["infinity", "[1,5)"], ["0044-01-01 00:00:00+00 BC", "[1,5)"]]


def test_a_column_that_is_dropped_is_told_once(server: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with closing(Tables("postgres", server)) as tables:
        bind = {"orders": tables.source()}

        def read() -> list[Any]:
            caplog.clear()
            return copying(Order).run(tmp_path, bind=bind, until_now=True).received("copies")

        tables.put(1)
        read()
        tables.do("ALTER TABLE {} ADD COLUMN more int")
        tables.put(2)
        assert read()[1:] == [Order(2, "new")] and "has lost" not in caplog.text
        tables.do("ALTER TABLE {} DROP COLUMN note")
        tables.do("INSERT INTO {} VALUES (3, 3)")
        assert read()[2:] == [Order(3)]
        assert caplog.text.count("has lost the columns note") == 1
        tables.do("INSERT INTO {} VALUES (4, 4)")
        assert len(read()) == 4 and "has lost" not in caplog.text
