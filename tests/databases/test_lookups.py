"""A look-up reads a few rows of a table, or says once which index it lacks; the rows are those that "=" finds."""

import datetime as dt
import enum
import logging
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from decimal import Decimal
from itertools import count
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

import hypothesis.strategies as st
import msgspec
import psycopg
import pytest
from hypothesis import given, settings

from operators.core.base import Context
from runtime.ports.connectors import SinkOwner, SinkRow
from runtime.systems.connectors.table_rows import TableRows
from samza_dsl import SamzaError, connectors
from tests.databases.conftest import NUMBERS, Database
from tests.scale import examples

ROWS, FEW_STEPS = 3_000, 2_000
INDEXED: list[tuple[str, ...]] = [("word",), ("n",), ("word", "n"), ("n", "word")]
COLLATIONS = ("BINARY", "NOCASE", "RTRIM")
LACKS = "CREATE INDEX"


class Row(msgspec.Struct):
    word: str
    n: int
    place: int


class Shape(msgspec.Struct, frozen=True):
    """A table: the collation of its column, and of each index, with the columns of that and whether it is unique."""

    column: str
    indexes: list[tuple[str, tuple[str, ...], bool]]
    key: tuple[str, ...]

    def make(self, connection: sqlite3.Connection, words: list[str]) -> None:
        connection.execute(f"CREATE TABLE rows (word TEXT COLLATE {self.column}, n INT, place INTEGER)")
        filler = ((f"filler {place}", place, place) for place in range(ROWS))
        connection.executemany("INSERT INTO rows VALUES (?, ?, ?)", filler)
        # Every other row of a word has the same n, so that a key of one column may have several rows.
        said = ((word, place % 2, ROWS + place) for place, word in enumerate(words))
        connection.executemany("INSERT INTO rows VALUES (?, ?, ?)", said)
        for number, (collation, columns, is_unique) in enumerate(self.indexes):
            listed = ", ".join(f"{name} COLLATE {collation}" if name == "word" else name for name in columns)
            index = f"INDEX by_{number} ON rows ({listed})"
            try:
                connection.execute(f"CREATE {'UNIQUE ' if is_unique else ''}{index}")
            except sqlite3.IntegrityError:  # some words are one for it
                connection.execute(f"CREATE {index}")
        connection.commit()

    def found(self, connection: sqlite3.Connection, keys: list[tuple[Any, ...]]) -> dict[Any, set[int]]:
        """Return the places of the rows that "=" finds, by the keys that have some."""
        which = " AND ".join(f"{name} = ?" for name in self.key)
        statement = f"SELECT place FROM rows NOT INDEXED WHERE {which}"
        found = {key: {place for (place,) in connection.execute(statement, key)} for key in keys}
        return {key if len(key) > 1 else key[0]: places for key, places in found.items() if places}


SHAPES = st.builds(
    Shape,
    st.sampled_from(COLLATIONS),
    st.lists(
        st.tuples(st.sampled_from(COLLATIONS), st.sampled_from(INDEXED), st.booleans()),
        max_size=2,
    ),
    st.sampled_from([("word",), ("word", "n")]),
)
WORDS = st.lists(st.sampled_from(["a", "A", "a ", "b", "B", "", "é", "É", "a b"]), max_size=6)


@contextmanager
def opened(url: str, kind: Any = Row) -> Iterator[TableRows[Any]]:
    looks_up: Any = connectors.table_rows(url, kind)
    looks_up.open(Context("app", "lookup", task=0))
    try:
        yield looks_up
    finally:
        looks_up.close()


@contextmanager
def told() -> Iterator[list[str]]:
    """Yield what is said meanwhile of indexes that are lacking."""
    found: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("samza_dsl")
    log.addHandler(handler)
    try:
        yield found
    finally:
        log.removeHandler(handler)


@settings(deadline=None, max_examples=60)
@given(SHAPES, WORDS, WORDS.filter(bool))
def test_a_look_up_of_sqlite_reads_few_rows_or_says_what_it_lacks(
    shape: Shape, words: list[str], wanted: list[str]
) -> None:
    parts = [(word, place % 2)[: len(shape.key)] for place, word in enumerate(wanted)]
    keys = [part if len(part) > 1 else part[0] for part in parts]
    steps = count()
    with tempfile.TemporaryDirectory() as folder, told() as lacking:
        with closing(sqlite3.connect(f"{folder}/rows.db")) as connection:
            shape.make(connection, words)
            expected = shape.found(connection, parts)
        with opened(f"sqlite:///{folder}/rows.db?table=rows&key={','.join(shape.key)}") as looks_up:
            asked_for = [key for key in keys if len(expected.get(key, ())) < 2]
            errors = {key for key, found in looks_up._fetch(keys).items() if "several rows" in str(found)}
            assert errors == {*keys} - {*asked_for}
            asked_for = asked_for or ["none" if len(shape.key) == 1 else ("none", 0)]
            looks_up._fetch(asked_for)
            connection_of: Any = looks_up._connection
            connection_of.set_progress_handler(lambda: next(steps) < 0, 1)
            found = looks_up._fetch(asked_for)
    assert {key: {row.place} for key, row in found.items()} == {
        key: expected[key] for key in asked_for if key in expected
    }
    assert next(steps) < FEW_STEPS or len(lacking) == 1
    # Nothing is said where an index of the column as it is serves, as the one does that it says to write.
    serves = any(
        columns[0] in shape.key and (columns[0] == "n" or shape.column in ("BINARY", collation))
        for collation, columns, _ in shape.indexes
    )
    assert not (serves and lacking)


TABLES = {
    "a primary key": ("id bigint PRIMARY KEY", int, 7, True),
    "no index": ("id bigint", int, 7, False),
    "an index that is not unique": ("id bigint; CREATE INDEX ON {0} (id)", int, 7, True),
    "an index of another type": ("id bigint PRIMARY KEY", Decimal, Decimal(7), False),
    "text of another collation": ('id text; CREATE UNIQUE INDEX ON {0} (id COLLATE "C")', str, "7", True),
    "a pattern": ("id text; CREATE INDEX ON {0} (id text_pattern_ops)", str, "7", True),
    "letters of either case": ("id citext PRIMARY KEY", str, "7", True),
    "letters of either case in a schema that is not searched": ("id away.citext PRIMARY KEY", str, "7", True),
    "a collation that folds": ("id text COLLATE folding PRIMARY KEY", str, "7", True),
    "an index that folds": ("id text; CREATE UNIQUE INDEX ON {0} (id COLLATE folding)", str, "7", True),
    "an index that folds no more": ('id text COLLATE folding; CREATE INDEX ON {0} (id COLLATE "C")', str, "7", False),
    "a part of the rows": ("id text; CREATE INDEX ON {0} (id) WHERE n > 5", str, "7", False),
    "an expression": ("id text; CREATE INDEX ON {0} (lower(id))", str, "7", False),
    "two columns": ('id text; CREATE UNIQUE INDEX ON {0} (id COLLATE "C", n)', str, ("7", 7), True),
    "two columns the other way": ("id bigint; CREATE UNIQUE INDEX ON {0} (n, id)", int, (7, 7), True),
    "a column beside the key": ("id text; CREATE UNIQUE INDEX ON {0} (n, id)", str, "7", False),
}


@pytest.fixture
def away(server: str) -> Iterator[None]:
    """Have letters of either case in a schema that is not searched as well as in one that is."""
    with closing(psycopg.connect(server, autocommit=True)) as connection:
        connection.execute("DROP EXTENSION IF EXISTS citext CASCADE")
        connection.execute("CREATE SCHEMA IF NOT EXISTS away")
        folding = "provider = icu, locale = 'und-u-ks-level2', deterministic = false"
        connection.execute(f"CREATE COLLATION IF NOT EXISTS folding ({folding})")
        yield
        connection.execute("DROP EXTENSION IF EXISTS citext CASCADE")


@pytest.mark.ci
@pytest.mark.parametrize("case", TABLES)
def test_a_look_up_of_postgres_reads_few_rows_or_says_what_it_lacks(
    case: str, server: str, away: None, caplog: pytest.LogCaptureFixture
) -> None:
    said, kind, key, serves = TABLES[case]
    column, *indexes = said.split("; ")
    of = column.split()[1]
    table = f"looked_up_{next(NUMBERS)}"
    with closing(psycopg.connect(server, autocommit=True)) as connection:
        connection.execute(f"CREATE EXTENSION citext SCHEMA {'away' if 'away' in of else 'public'}")
        for statement in (
            f"CREATE TABLE {table} ({column}, n bigint)",
            *(statement.format(table) for statement in indexes),
            f"INSERT INTO {table} SELECT n::text::{of}, n FROM generate_series(1, {ROWS}) n",
            f"ANALYZE {table}",
        ):
            connection.execute(statement)
    value = msgspec.defstruct("Value", [("id", kind), ("n", int)])
    of_key, other = ("id,n", (key[0], 8)) if isinstance(key, tuple) else ("id", kind(2 * ROWS))
    with opened(f"{server}{'&' if '?' in server else '?'}table={table}&key={of_key}", value) as looks_up:
        for _ in range(2):
            found = looks_up._fetch([key, other])
            assert [(found_key, str(row.id), row.n) for found_key, row in found.items()] == [(key, "7", 7)]
        connection_of: Any = looks_up._connection
        connection_of.execute("SELECT pg_stat_force_next_flush()")
        counted = "SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = %s"
        [(read,)] = connection_of.execute(counted, (table,)).fetchall()
        connection_of.execute(f"DROP TABLE {table}")
    lacking = [one for one in caplog.messages if LACKS in one]
    assert (read < 2 * ROWS, len(lacking)) == (serves, 0 if serves else 1)


class Color(enum.Enum):
    RED = "red"


MOMENT = dt.datetime(2026, 2, 1, 12, tzinfo=dt.UTC)
LOCAL = Annotated[dt.datetime, msgspec.Meta(tz=False)]
KEYS: list[tuple[Any, Any, list[Any], list[Any]]] = [
    # Types of keys, one that a row has, other ways to say it, and others that no row has.
    (int, 2, [2.0, Decimal(2)], [1.5, 2.5, Decimal("1.5"), float("nan"), float("inf"), 3]),
    (dt.datetime, MOMENT, [MOMENT.astimezone(ZoneInfo("Asia/Kolkata"))], [MOMENT + dt.timedelta(1)]),
    (LOCAL, MOMENT.replace(tzinfo=None), [], []),
    (Color, Color.RED, [], []),
    (Decimal, Decimal("1.5"), [], [Decimal(2)]),
]


@pytest.mark.parametrize(("kind", "key", "same", "others"), KEYS)
def test_a_key_finds_what_was_put_under_it_however_it_is_said(
    database: Database, kind: Any, key: Any, same: list[Any], others: list[Any]
) -> None:
    table, of = database.table(), msgspec.defstruct("Keyed", [("id", kind), ("n", int)])
    sink, owner = database.sink(table, "id"), SinkOwner("app", "rows", 0, 1, 1, of)
    sink.write(owner, [SinkRow(of(key, 7))], sink.claim(owner), 1)
    sink.close()
    url = database.where if "://" in database.where else f"{database.kind}:///{database.where}"
    url = f"{url}{'&' if '?' in url else '?'}table={table}&key=id"
    with opened(url, of) as looks_up:
        for asked in ([key], *([one] for one in same), [key, *others]):
            assert [row.n for row in looks_up._fetch(asked).values()] == [7]
        assert looks_up._fetch(others) == {}
        if kind is dt.datetime:
            assert_told(looks_up, MOMENT.replace(tzinfo=None), "no time zone")
        if kind is LOCAL:
            assert_told(looks_up, MOMENT, "time zone")


def assert_told(looks_up: Any, key: Any, words: str) -> None:
    [(of, error)] = looks_up._fetch([key]).items()
    assert of == key and isinstance(error, SamzaError) and words in str(error)


ASKED: dict[Any, list[Any]] = {
    # By the type of the key: keys of rows that are there, twice there or of other types, of none, and what is no key.
    int: [1, 2, 3, 4, 9, 2**70, -(2**63) - 1, (1, 2), Decimal("1e50"), 1.5, float("nan"), dt.date(2026, 1, 1), "x"],
    str: ["1", "2", "3", "4", "9", "a\0b", "\ud800", ("1", "2"), 7, dt.date(2026, 1, 1), b"1"],
}


@pytest.mark.parametrize("kind", [*ASKED])
def test_keys_come_to_the_same_together_as_one_by_one(database: Database, kind: Any) -> None:
    table, of = database.table(), msgspec.defstruct("Row", [("id", kind), ("note", Literal["good"])])
    database.change(f"CREATE TABLE {table} (id {'BIGINT' if kind is int else 'TEXT'}, note TEXT)")
    database.change(
        f"INSERT INTO {table} VALUES ('1', 'good'), ('2', 'good'), ('2', 'good'), ('3', 'bad'), ('4', 'good')"
    )
    url = database.where if "://" in database.where else f"{database.kind}:///{database.where}"

    def told(found: dict[Any, Any]) -> dict[Any, str]:
        return {key: repr(row) for key, row in found.items()}

    with opened(f"{url}{'&' if '?' in url else '?'}table={table}&key=id", of) as looks_up:

        @given(st.lists(st.sampled_from(ASKED[kind]), unique_by=repr, max_size=12))
        @settings(max_examples=examples(30, 500))
        def law(keys: list[Any]) -> None:
            alone = {key: row for key in keys for key, row in told(looks_up._fetch([key])).items()}
            assert told(looks_up._fetch(keys)) == alone

        law()
        found = looks_up._fetch(ASKED[kind])
        assert {kind(1), kind(4)} <= {key for key, row in found.items() if isinstance(row, of)}


@pytest.mark.ci
def test_text_of_postgres_is_no_json_where_a_field_takes_any_value(server: str) -> None:
    table, of = f"any_{next(NUMBERS)}", msgspec.defstruct("Free", [("id", int), ("a", Any), ("b", Any)])
    with closing(psycopg.connect(server, autocommit=True)) as connection:
        connection.execute(f"CREATE TABLE {table} (id bigint PRIMARY KEY, a text, b jsonb)")
        connection.execute(f"INSERT INTO {table} VALUES (1, 'null', '101'), (2, '101', '[1]')")
        with opened(f"{server}{'&' if '?' in server else '?'}table={table}&key=id", of) as looks_up:
            assert looks_up._fetch([1, 2]) == {1: of(1, "null", 101), 2: of(2, "101", [1])}
        connection.execute(f"DROP TABLE {table}")


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgres", marks=pytest.mark.ci)], indirect=True)
@pytest.mark.parametrize("serves", [True, False])
def test_a_source_by_a_column_without_an_index_says_so_once(database: Database, serves: bool) -> None:
    table = database.table()
    database.change(f"CREATE TABLE {table} (id BIGINT{' PRIMARY KEY' if serves else ''}, n BIGINT)")
    database.change(f"INSERT INTO {table} VALUES (1, 1), (2, 2)")
    source = getattr(connectors, f"{database.kind}_source")(database.where, table, by="id")
    with told() as lacking:
        found = source.pull("reader", b"")
        for _ in range(3):
            found = source.pull("reader", found.position)
            assert not found.records
        source.close()
    assert [LACKS in one for one in lacking] == ([] if serves else [True])
