"""Tables of Postgres as people have them: in partitions, with heirs, types and settings of their own."""

from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from runtime.ports.connectors import SinkOwner
from samza_dsl import App, Change, SamzaError, connectors
from samza_dsl.connectors import SinkRow

pytestmark = pytest.mark.ci
NUMBERS = count()


class Item(msgspec.Struct):
    id: int
    note: str | None = None
    price: float = 0.0


class Base:
    """A database of its own on the server, and an application that reads its table `t`."""

    def __init__(self, server: str, path: Path, said: str = "") -> None:
        self.name, self._server, self._path = f"base_{next(NUMBERS)}", server, path
        self._admin(f"CREATE DATABASE {self.name} {said}")
        self.url = server.replace("/postgres?", f"/{self.name}?")

    def do(self, *statements: str) -> None:
        with closing(psycopg.connect(self.url, autocommit=True)) as connection:
            for statement in statements:
                connection.execute(statement)  # type: ignore[call-overload]

    def seen(self, kind: Any, **said: Any) -> list[Any]:
        found: list[Any] = []
        app = App(self.name)
        app.input("in", value=kind).send_to(app.output("out", value=kind))
        sink = connectors.AtLeastOnceSink("list", lambda rows: found.extend(row.value for row in rows))
        app.run(self._path, bind={"in": connectors.postgres_source(self.url, "t", **said), "out": sink}, until_now=True)
        return found

    def close(self) -> None:
        self._admin(
            f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = '{self.name}'"
        )
        self._admin(f"DROP DATABASE {self.name} WITH (FORCE)")

    def _admin(self, statement: str) -> None:
        with closing(psycopg.connect(self._server, autocommit=True)) as connection:
            connection.execute(statement)  # type: ignore[call-overload]


@pytest.fixture
def make(server: str, tmp_path: Path) -> Iterator[Callable[..., Base]]:
    made: list[Base] = []

    def one(said: str = "") -> Base:
        made.append(Base(server, tmp_path, said))
        return made[-1]

    yield one
    for base in made:
        base.close()


IN_PARTS = (
    "CREATE TABLE t (id int PRIMARY KEY, note text, price float8) PARTITION BY RANGE (id)",
    "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10)",
    "ALTER TABLE t1 REPLICA IDENTITY FULL",
    "INSERT INTO t VALUES (1, 'a', 0)",
)
SECOND = "CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (10) TO (20)"
FULL = "ALTER TABLE {} REPLICA IDENTITY FULL"


def test_the_root_of_partitions_has_to_be_told_in_full_as_well(make: Callable[..., Base]) -> None:
    """Else the server calls each row before a key alone."""
    base = make()
    base.do(*IN_PARTS)
    with pytest.raises(SamzaError, match="ALTER TABLE t REPLICA IDENTITY FULL"):
        base.seen(Item)
    base.do(FULL.format("t"))
    base.seen(Item)
    base.do(SECOND, FULL.format("t2"), "UPDATE t SET id = 11", "UPDATE t SET note = 'b'")
    assert base.seen(Change[int, Item]) == [
        Change(1, Item(1, "a"), None),
        Change(11, None, Item(11, "a")),
        Change(11, Item(11, "a"), Item(11, "b")),
    ]


@pytest.mark.parametrize("change", ["DELETE FROM t WHERE id = 12", "UPDATE t SET note = 'y' WHERE id = 12"])
def test_a_new_partition_that_is_not_told_in_full_is_named(make: Callable[..., Base], change: str) -> None:
    """The server would tell NULL for what it does not know of the row before."""
    base = make()
    base.do(*IN_PARTS, FULL.format("t"))
    base.seen(Change[int, Item])
    base.do(SECOND, "INSERT INTO t VALUES (12, 'x', 1)", change)
    with pytest.raises(SamzaError, match=r"ALTER TABLE public\.t2 REPLICA IDENTITY FULL"):
        base.seen(Change[int, Item])


def test_rows_that_come_and_go_with_a_partition_are_told(
    make: Callable[..., Base], caplog: pytest.LogCaptureFixture
) -> None:
    base = make()
    base.do(*IN_PARTS, FULL.format("t"))
    base.seen(Item)
    base.do("CREATE TABLE t3 (id int PRIMARY KEY, note text, price float8)", "INSERT INTO t3 VALUES (25, 'x', 1)")
    base.do("ALTER TABLE t ATTACH PARTITION t3 FOR VALUES FROM (20) TO (30)", "ALTER TABLE t DETACH PARTITION t1")
    base.seen(Item)
    assert [one.getMessage().partition("table t ")[2] for one in caplog.records if "partitions" in one.message] == [
        "has lost the partitions t1: of the rows that they had, none is told as a deletion",
        "has the new partitions t3: rows that were in one before it was attached are not told",
    ]
    caplog.clear()
    base.seen(Item)
    assert "partitions" not in caplog.text


def test_a_table_with_heirs_is_refused(make: Callable[..., Base]) -> None:
    """Its rows would be theirs as well, and its changes not."""
    base = make()
    base.do("CREATE TABLE t (id int PRIMARY KEY)", FULL.format("t"), "CREATE TABLE u () INHERITS (t)")
    with pytest.raises(SamzaError, match="tables that inherit from it, as u"):
        base.seen(Item)


@pytest.mark.parametrize(
    "said", ["", "ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"], ids=["utf-8", "latin-1"]
)
@pytest.mark.parametrize("by", [{}, {"by": "at"}], ids=["changes", "by a column"])
def test_settings_of_a_database_change_no_value(make: Callable[..., Base], said: str, by: dict[str, str]) -> None:
    base = make(said)
    for setting in ("extra_float_digits = 0", "DateStyle = 'SQL, DMY'", "IntervalStyle = 'iso_8601'"):
        base.do(f"ALTER DATABASE {base.name} SET {setting}")
    base.do('CREATE TABLE t (id int PRIMARY KEY, price float8, at timestamptz, "größe" text)', FULL.format("t"))
    base.do("INSERT INTO t VALUES (1, 0.1::float8 + 0.2::float8, '01/07/2026 12:00+00', 'ä')")
    (first,) = base.seen(dict[str, Any], **by)
    assert (first["price"], first["größe"]) == (0.1 + 0.2, "ä")
    base.do("UPDATE t SET \"größe\" = 'ö', at = at + interval '1 hour'")
    assert [(row["price"], row["größe"]) for row in base.seen(dict[str, Any], **by)] == [(0.1 + 0.2, "ö")]


class Typed(msgspec.Struct):
    id: int
    mood: str
    known: str
    day: str
    place: str


@pytest.mark.parametrize("number", [1, 50], ids=["some", "many"])
def test_rows_replace_others_in_columns_of_types_that_read_text(make: Callable[..., Base], number: int) -> None:
    base = make()
    base.do("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    base.do("CREATE TABLE t (id bigint PRIMARY KEY, mood mood, known uuid, day date, place inet)")
    sink, owner = connectors.postgres(base.url, "t", "id"), SinkOwner("shop", "out", 0, 1, 5, Typed)
    position = sink.claim(owner)
    for mood in ("sad", "ok"):
        rows = [Typed(n, mood, "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "2026-01-02", "1.2.3.4") for n in range(number)]
        sink.write(owner, [SinkRow(row) for row in rows], position, position + number)
        position += number
    sink.close()
    with closing(psycopg.connect(base.url)) as connection:
        found = connection.execute("SELECT id, mood::text, known::text, day::text, host(place) FROM t ORDER BY id")
        assert [Typed(*row) for row in found.fetchall()] == rows


class Listed(msgspec.Struct):
    id: int
    sold: bool
    raw: bytes
    tags: list[int]


@pytest.mark.parametrize("column", ["sold text", "sold int", "raw text", "tags int[]"])
def test_columns_that_would_be_given_other_words_are_refused(make: Callable[..., Base], column: str) -> None:
    base, name = make(), column.split()[0]
    columns = {"id": "id bigint", "sold": "sold boolean", "raw": "raw bytea", "tags": "tags jsonb"} | {name: column}
    base.do(f"CREATE TABLE t ({', '.join(columns.values())})")
    with (
        closing(connectors.postgres(base.url, "t")) as sink,
        pytest.raises(SamzaError, match=f"the column {name} is .*: make it"),
    ):
        sink.claim(SinkOwner("shop", "out", 0, 1, 5, Listed))
