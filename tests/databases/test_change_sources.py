"""Tables as sources: the table that is built of a snapshot and changes equals the database, through crashes."""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from operators.io import Input
from runtime.encoding.serdes import Evolving
from runtime.systems.connectors.inbox import POSITION, PulledInput
from runtime.systems.databases import postgres_changes, sqlite_changes
from runtime.systems.memory.environment import MemoryEnvironment
from samza_dsl import App, Change, connectors
from samza_dsl.connectors import Pulled, PulledSource
from tests.databases.conftest import NUMBERS
from tests.scale import examples

COLUMNS = ("a", "b", "c", "note")
KEYS = {"whole": ("a",), "text": ("b",), "both": ("a", "b")}


class PlayedCrash(BaseException):
    """The end of a process between two steps."""


class Crashes:
    """A source that dies at chosen steps: before what it pulled is kept, or before or after it is confirmed."""

    def __init__(self, source: PulledSource) -> None:
        self.source, self.where = source, ""

    def wrapped(self) -> PulledSource:
        return replace(self.source, pull=self.pull, confirm=self.confirm)

    def pull(self, reader: str, position: bytes) -> Pulled:
        found = self.source.pull(reader, position)
        self._may_die("pulled")
        return found

    def confirm(self, reader: str, position: bytes) -> None:
        self._may_die("kept")
        self.source.confirm(reader, position)
        self._may_die("confirmed")

    def _may_die(self, where: str) -> None:
        if self.where == where:
            self.where = ""
            raise PlayedCrash(where)


def input_of_changes() -> Input:
    app = App("copy")
    app.input("rows", value=Change).send_to(app.output("seen"))
    return next(iter(app.graph().inputs.values()))


class Follower:
    """An application that builds a table of what it reads."""

    def __init__(self, make: Callable[[], PulledSource]) -> None:
        self.make, self.environment = make, MemoryEnvironment()
        self.read = 0
        self.built: dict[Any, Any] = {}
        self.open()

    def open(self) -> None:
        self.crashes = Crashes(self.make())
        self.input = PulledInput(self.environment, "copy", input_of_changes(), self.crashes.wrapped())
        self.inbox, generation = self.input.inbox, self.environment.own("copy")
        self.inbox.open(generation)
        assert self.inbox.pulling is not None
        self.pulling = self.inbox.pulling

    def step(self, crash: str = "") -> bool:
        """Pull once; return whether more is there, or it has crashed."""
        self.crashes.where = crash
        try:
            more = self.pulling.pull_once(self.inbox)
        except PlayedCrash:
            self.inbox.close()
            self.open()
            more = True
        self.crashes.where = ""
        self.take_in()
        return more

    @property
    def has_begun(self) -> bool:
        """Whether anything was pulled."""
        found = self.inbox.noted.get(POSITION)
        return found is not None and bool(Evolving().decode(found)[1])

    def is_settled(self) -> bool:
        """Whether a source of Postgres waits for no transaction that is open."""
        return bool(self.crashes.source.pull.__self__._is_settled)  # type: ignore[attr-defined]

    def take_in(self) -> None:
        while (read := self.input.read(0, self.read)) is not None:
            for change in read.batch.values:
                key, old, new = change["key"], change["old"], change["new"]
                assert self.built.get(key) == old, f"{key} was {self.built.get(key)}, and {change} came"
                assert old is not None or new is not None
                self.built.pop(key, None)
                if new is not None:
                    self.built[key] = new
            self.read = read.next_offset


def key_of(row: dict[str, Any], key: Sequence[str]) -> Any:
    return row[key[0]] if len(key) == 1 else tuple(row[name] for name in key)


WHOLE, TEXT = st.integers(0, 6), st.sampled_from(["a", "A", "b", "B", "ä", "c d", "Z", ""])
WAYS = st.sampled_from(["INSERT OR REPLACE", "INSERT OR IGNORE", "INSERT OR ROLLBACK", "INSERT OR FAIL"])
VALUES = st.tuples(WHOLE, TEXT, st.none() | WHOLE, st.none() | TEXT)
WAYS_OF_UPDATES = st.sampled_from(["OR REPLACE", "OR IGNORE"])
STATEMENTS = st.one_of(
    st.builds(
        lambda way, rows: (f"{way} INTO rows VALUES {rows_in(rows)}", flat(rows)),
        WAYS,
        st.lists(VALUES, min_size=1, max_size=3),
    ),
    st.builds(lambda n, note: ("UPDATE rows SET note = ? WHERE a >= ?", (note, n)), WHOLE, TEXT),
    st.builds(lambda way, n, m: (f"UPDATE {way} rows SET a = ? WHERE a = ?", (n, m)), WAYS_OF_UPDATES, WHOLE, WHOLE),
    st.builds(lambda way, n, m: (f"UPDATE {way} rows SET b = ? WHERE b = ?", (n, m)), WAYS_OF_UPDATES, TEXT, TEXT),
    st.builds(lambda n, m: ("UPDATE OR REPLACE rows SET c = ? WHERE a <= ?", (n, m)), WHOLE, WHOLE),
    st.builds(lambda n, m: ("DELETE FROM rows WHERE a BETWEEN ? AND ?", (n, m)), WHOLE, WHOLE),
    st.builds(
        lambda row: ("INSERT INTO rows VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET note = excluded.note", row), VALUES
    ),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.lists(STATEMENTS, min_size=1, max_size=3), st.booleans()),
        st.tuples(st.just("pull"), st.sampled_from(["", "", "pulled", "kept", "confirmed"]), st.none()),
    ),
    max_size=25,
)


def rows_in(rows: Sequence[Any]) -> str:
    return ", ".join(["(?, ?, ?, ?)"] * len(rows))


def flat(rows: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(value for row in rows for value in row)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (sqlite_changes, postgres_changes):
        monkeypatch.setattr(module, "CHUNK_ROWS", 2)
        monkeypatch.setattr(module, "MOST_CHANGES", 3)


@pytest.mark.usefixtures("small")
@given(
    key=st.sampled_from([*KEYS.values()]),
    collation=st.sampled_from(["", "COLLATE NOCASE"]),
    unique=st.booleans(),
    recursive=st.booleans(),
    before=st.lists(VALUES, max_size=8),
    steps=STEPS,
)
@settings(
    deadline=None,
    max_examples=examples(200, 3000),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_the_table_built_equals_the_file(
    tmp_path_factory: pytest.TempPathFactory,
    key: tuple[str, ...],
    collation: str,
    unique: bool,
    recursive: bool,
    before: list[Any],
    steps: list[Any],
) -> None:
    path = tmp_path_factory.mktemp("law") / "rows.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute(f"PRAGMA recursive_triggers = {int(recursive)}")
        writer.execute("PRAGMA synchronous = OFF")
        writer.execute(
            f"CREATE TABLE rows (a INTEGER, b TEXT {collation}, c INTEGER{' UNIQUE' * unique}, note TEXT, "
            f"PRIMARY KEY ({', '.join(key)}))"
        )
        for row in before:
            writer.execute("INSERT OR IGNORE INTO rows VALUES (?, ?, ?, ?)", row)
        follower = Follower(lambda: connectors.sqlite_source(path, "rows"))

        def check() -> None:
            while follower.step():
                pass
            found = [dict(zip(COLUMNS, row, strict=True)) for row in writer.execute("SELECT * FROM rows")]
            assert follower.built == {key_of(row, key): row for row in found}

        for kind, what, commits in steps:
            if kind == "pull":
                if not follower.step(what):
                    check()
                continue
            writer.execute("BEGIN")
            try:
                for statement, values in what:
                    writer.execute(statement, values)
            except sqlite3.IntegrityError:
                pass
            if writer.in_transaction:
                writer.execute("COMMIT" if commits else "ROLLBACK")
        check()
        follower.inbox.close()


PG_STATEMENTS = st.one_of(
    st.builds(
        lambda row: ("INSERT INTO {} VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING", row), VALUES
    ),
    st.builds(lambda n, note: ("UPDATE {} SET note = %s WHERE a >= %s", (note, n)), WHOLE, TEXT),
    st.builds(lambda n, m: ("UPDATE {} SET a = a + 10 * %s WHERE a = %s", (n, m)), st.integers(-1, 1), WHOLE),
    st.builds(lambda n, m: ("UPDATE {} SET b = %s WHERE b = %s", (n, m)), TEXT, TEXT),
    st.builds(lambda n, m: ("DELETE FROM {} WHERE a BETWEEN %s AND %s", (n, m)), WHOLE, WHOLE),
)  # fmt: skip
PG_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 2), PG_STATEMENTS),
        st.tuples(st.sampled_from(["commit", "commit", "rollback"]), st.integers(0, 2), st.none()),
        st.tuples(st.just("pull"), st.sampled_from(["", "", "", "pulled", "kept", "confirmed"]), st.none()),
    ),
    min_size=15,
    max_size=40,
)


@contextmanager
def table_in(url: str, definition: str) -> Iterator[tuple[str, Any]]:
    """Yield a table's name and a connection; whatever was made of it is gone at the end."""
    name = f"rows_{next(NUMBERS)}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {name} ({definition})")
        connection.execute(f"ALTER TABLE {name} REPLICA IDENTITY FULL")
        try:
            yield name, connection
        finally:
            connection.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active")
            connection.execute(f"DROP TABLE {name}")


@pytest.mark.ci
@pytest.mark.usefixtures("small")
@given(
    key=st.sampled_from([*KEYS.values()]),
    collation=st.sampled_from(["", 'COLLATE "C"', 'COLLATE "und-x-icu"']),
    before=st.lists(VALUES, min_size=4, max_size=12),
    steps=PG_STEPS,
)
@settings(
    deadline=None,
    max_examples=examples(30, 500),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_the_table_built_equals_the_server_s(
    server: str, key: tuple[str, ...], collation: str, before: list[Any], steps: list[Any]
) -> None:
    columns = f"a int, b text {collation}, c int, note text, PRIMARY KEY ({', '.join(key)})"
    with table_in(server, columns) as (table, connection):
        for row in before:
            connection.execute(f"INSERT INTO {table} VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING", row)
        writers = [psycopg.connect(server) for _ in range(3)]
        for writer in writers:
            writer.execute("SET lock_timeout = '1ms'")
            writer.commit()
        follower = Follower(lambda: connectors.postgres_source(server, table))
        # A slot is made once no transaction is open.
        follower.step()

        def check() -> None:
            while follower.step():
                pass
            found = connection.execute(f"SELECT * FROM {table}").fetchall()
            rows = [dict(zip(COLUMNS, row, strict=True)) for row in found]
            assert follower.built == {key_of(row, key): row for row in rows}

        def end_all() -> None:
            for writer in writers:
                writer.commit()

        for kind, what, of in steps:
            if kind == "write":
                try:
                    writers[what].execute(of[0].format(table), of[1])
                except psycopg.Error:
                    writers[what].rollback()
            elif kind != "pull":
                getattr(writers[what], kind)()
            elif what:
                end_all()  # who begins waits for them
                follower.step(what)
            elif follower.has_begun and follower.is_settled():
                if not follower.step():
                    check()
            else:
                end_all()
                follower.step()
        end_all()
        check()
        follower.inbox.close()
        for writer in writers:
            writer.close()
