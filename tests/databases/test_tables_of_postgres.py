"""Tables of Postgres as people have them: in partitions, with heirs, types and settings of their own."""

import datetime as dt
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Annotated, Any, get_type_hints
from unittest import mock

import msgspec
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from operators.core.base import Context
from runtime.ports.connectors import SinkOwner
from runtime.systems.databases import postgres
from samza_dsl import App, Change, SamzaError, connectors, dead_letter
from samza_dsl.connectors import RowRefused, SinkRow
from tests.databases.test_table_sinks import EVERYTHING, Everything
from tests.scale import examples

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


@pytest.mark.parametrize(
    "change",
    [
        ("ALTER TABLE t DROP CONSTRAINT t_pkey", "ALTER TABLE t ADD PRIMARY KEY (other)"),
        ("ALTER TABLE t DROP CONSTRAINT t_pkey", "ALTER TABLE t ADD PRIMARY KEY (id, other)"),
        ("ALTER TABLE t DROP COLUMN id", "ALTER TABLE t ADD COLUMN id serial PRIMARY KEY"),
    ],
)
def test_a_table_that_gets_another_key_is_told(make: Callable[..., Base], change: tuple[str, ...]) -> None:
    """Rows that were read have the former one: they would lie beside themselves."""
    base = make()
    base.do("CREATE TABLE t (id int PRIMARY KEY, other int NOT NULL)", FULL.format("t"), "INSERT INTO t VALUES (1, 7)")
    assert len(base.seen(Change[Any, dict[str, int]])) == 1
    base.do(*change, "UPDATE t SET other = 8")
    for _ in range(2):
        with pytest.raises(SamzaError, match=r"has another primary key than it had.*samza-dsl reset APP"):
            base.seen(Change[Any, dict[str, int]])


def test_a_key_that_is_made_anew_or_gets_another_name_is_the_same(make: Callable[..., Base]) -> None:
    base = make()
    base.do("CREATE TABLE t (id int PRIMARY KEY, note text)", FULL.format("t"), "INSERT INTO t VALUES (1, 'a')")
    base.seen(Change[int, dict[str, Any]])
    base.do("UPDATE t SET note = 'b'")
    base.seen(Change[int, dict[str, Any]])
    base.do("ALTER TABLE t DROP CONSTRAINT t_pkey", "ALTER TABLE t ADD PRIMARY KEY (id)")
    base.do("ALTER TABLE t RENAME COLUMN id TO number", "UPDATE t SET note = 'c'")
    last = Change(1, {"number": 1, "note": "b"}, {"number": 1, "note": "c"})
    assert base.seen(Change[int, dict[str, Any]]) == [last]


def test_a_user_who_sees_some_rows_reads_no_changes(make: Callable[..., Base]) -> None:
    """The log has all of them: rows would come that the snapshot had not."""
    base = make()
    clerk = f"clerk_of_{base.name}"
    base.do("CREATE TABLE t (id int PRIMARY KEY, owner text)", FULL.format("t"))
    base.do("INSERT INTO t VALUES (1, 'ann'), (2, 'bob')", f"CREATE ROLE {clerk} LOGIN REPLICATION")
    base.do(f"GRANT ALL ON t TO {clerk}", f"GRANT CREATE ON DATABASE {base.name} TO {clerk}")
    base.do("ALTER TABLE t ENABLE ROW LEVEL SECURITY", "CREATE POLICY own ON t USING (owner = 'ann')")
    base.url = base.url.replace("//postgres@", f"//{clerk}@")
    assert [row["id"] for row in base.seen(dict[str, Any], by="id")] == [1]
    with pytest.raises(SamzaError, match=r"policies of rows.*BYPASSRLS"):
        base.seen(dict[str, Any])


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


class Worded(msgspec.Struct):
    id: int
    price: float
    cost: Decimal
    at: dt.datetime
    local: Annotated[dt.datetime, msgspec.Meta(tz=False)]
    day: dt.date
    time: Annotated[dt.time, msgspec.Meta(tz=False)]
    took: dt.timedelta
    known: uuid.UUID
    count: int


KNOWN = uuid.UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")
NOON = dt.datetime(2026, 1, 2, 12, 0, 0, 500_000)


@pytest.mark.parametrize("kind", ["text", "varchar(40)", "words"])
def test_the_words_of_a_row_do_not_depend_on_how_many_are_written(make: Callable[..., Base], kind: str) -> None:
    base, found = make(), []
    base.do("CREATE DOMAIN words AS text", f"ALTER DATABASE {base.name} SET timezone = 'Asia/Kolkata'")
    for number in (1, 20, 21, 50):
        names = [name for name in Worded.__struct_fields__ if name != "id"]
        base.do(f"CREATE TABLE t{number} (id bigint PRIMARY KEY, {', '.join(f'{name} {kind}' for name in names)})")
        took = dt.timedelta(days=1, seconds=3, microseconds=5)
        plain = (1.0, Decimal("1E+3"), NOON.replace(tzinfo=dt.UTC), NOON, NOON.date(), NOON.time(), took, KNOWN, 2**62)
        owner = SinkOwner("shop", f"out{number}", 0, 1, 5, Worded)
        with closing(connectors.postgres(base.url, f"t{number}", "id")) as sink:
            sink.claim(owner)
            sink.write(owner, [SinkRow(Worded(n, *plain)) for n in range(number)], 0, number)
        with closing(psycopg.connect(base.url)) as connection:
            found += connection.execute(f"SELECT DISTINCT {', '.join(names)} FROM t{number}").fetchall()
    at, local = "2026-01-02 17:30:00.5+05:30", "2026-01-02 12:00:00.5"
    took_text = "1 day 00:00:03.000005"
    words = ("1", "1000", at, local, "2026-01-02", "12:00:00.5", took_text, f"{KNOWN}", f"{2**62}")
    assert found == [words] * 4


@pytest.mark.parametrize("number", [1, 50], ids=["some", "many"])
def test_a_type_of_an_extension_that_is_in_no_schema_that_is_searched_is_a_key(
    make: Callable[..., Base], number: int
) -> None:
    """There "=" is that of text, which tells other keys apart than the index does."""
    base = make()
    base.do("CREATE SCHEMA ext", "CREATE EXTENSION citext SCHEMA ext")
    base.do('CREATE TABLE t (note ext.citext COLLATE "C" PRIMARY KEY, id bigint, price float8)')
    owner = SinkOwner("shop", "out", 0, 1, 5, Item)
    with closing(connectors.postgres(base.url, "t", "note")) as sink:
        sink.claim(owner)
        sink.write(owner, [SinkRow(Item(n, f"a{n}")) for n in range(number)], 0, number)
        sink.write(owner, [SinkRow(None, key=f"A{n}") for n in range(number)], number, 2 * number)
    with closing(psycopg.connect(base.url)) as connection:
        assert connection.execute("SELECT count(*) FROM t").fetchall() == [(0,)]


def test_lengths_of_time_are_not_put_into_times_of_day(make: Callable[..., Base]) -> None:
    """They would lose their days."""
    base = make()
    base.do("CREATE TABLE t (value time)")
    with (
        closing(connectors.postgres(base.url, "t")) as sink,
        pytest.raises(SamzaError, match=r"the column value is time without time zone.*: make it interval"),
    ):
        sink.claim(SinkOwner("shop", "out", 0, 1, 5, dt.timedelta))


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


class Counted(msgspec.Struct):
    id: int
    n: int | None


@pytest.mark.parametrize("column", ["boolean", "date", "interval", "bit(3)", "timestamptz", "time"])
def test_whole_numbers_are_not_put_into_what_reads_other_values_of_them(make: Callable[..., Base], column: str) -> None:
    base = make()
    base.do(f"CREATE TABLE t (id bigint PRIMARY KEY, n {column})")
    for key in ((), "id"):
        with (
            closing(connectors.postgres(base.url, "t", key)) as sink,
            pytest.raises(SamzaError, match=r"the column n is .*: make it bigint"),
        ):
            sink.claim(SinkOwner("shop", "out", 0, 1, 5, Counted))


@pytest.mark.parametrize("column", ["jsonb", "json", "numeric", "text", "smallint", "bigint"])
def test_whole_numbers_are_the_same_however_many_rows_are_written(make: Callable[..., Base], column: str) -> None:
    base, found = make(), []
    for name, key, number in (("few", "id", 2), ("many", "id", 30), ("appended", (), 2)):
        base.do(f"CREATE TABLE {name} (id bigint PRIMARY KEY, n {column})")
        owner = SinkOwner("shop", name, 0, 1, 5, Counted)
        with closing(connectors.postgres(base.url, name, key)) as sink:
            sink.claim(owner)
            sink.write(owner, [SinkRow(Counted(n, [7, -1, None][n % 3])) for n in range(number)], 0, number)
        with closing(psycopg.connect(base.url)) as connection:
            found.append(connection.execute(f"SELECT n::text FROM {name} WHERE id < 2 ORDER BY id").fetchall())
    assert found == [[("7",), ("-1",)]] * 3


@pytest.mark.parametrize("column", ["jsonb", "numeric", "text", "smallint", "bigint"])
def test_a_row_of_a_whole_number_is_deleted_in_whatever_column_it_was_put(
    make: Callable[..., Base], column: str
) -> None:
    base = make()
    base.do(f"CREATE TABLE t (id {column} PRIMARY KEY, n bigint)")
    owner = SinkOwner("shop", "out", 0, 1, 5, Counted)
    with closing(connectors.postgres(base.url, "t", "id")) as sink:
        sink.claim(owner)
        sink.write(owner, [SinkRow(Counted(n, n)) for n in range(30)], 0, 30)
        sink.write(owner, [SinkRow(None, key=n) for n in range(29)] + [SinkRow(Counted(7, 8))], 30, 60)
    with closing(psycopg.connect(base.url)) as connection:
        found = connection.execute("SELECT id::text, n FROM t ORDER BY n").fetchall()
    assert found == [("7", 8), ("29", 29)]


ODD_TEXT = st.text(max_size=5)
ZONES = st.sampled_from([dt.UTC, dt.timezone(dt.timedelta(hours=-3, minutes=-7, seconds=-11))])
ODD = st.builds(
    Everything,
    id=st.integers(-(2**65), 2**65),
    ratio=st.floats(),
    text=ODD_TEXT,
    at=st.datetimes(timezones=ZONES),
    took=st.timedeltas(),
    price=st.decimals(),
    maybe=st.none() | st.integers(),
    either=st.integers() | ODD_TEXT,
    counts=st.dictionaries(ODD_TEXT, st.integers(), max_size=3),
)
"""Rows of which some have what no table takes: a NUL, a number of too many digits, a moment behind the last year."""


@given(data=st.data())
@settings(deadline=None, max_examples=examples(15, 300), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_a_table_keeps_does_not_depend_on_how_many_rows_are_written(server: str, data: st.DataObject) -> None:
    """Many are copied as bytes, where a table has the types that we would give it, and few as text."""
    names = data.draw(st.sets(st.sampled_from(Everything.__struct_fields__), min_size=1))
    names -= {"price"} if data.draw(st.booleans()) else set()
    fields = [(name, of) for name, of in get_type_hints(Everything, include_extras=True).items() if name in names]
    kind = msgspec.defstruct("Some", [("place", int), *((name, of | None) for name, of in fields)])
    nulls = st.sets(st.sampled_from(sorted(names)) if names else st.nothing())
    drawn = st.lists(st.tuples(EVERYTHING | ODD, nulls), min_size=1, max_size=9)
    rows = [
        SinkRow(kind(place, *(None if name in gone else getattr(one, name) for name, _ in fields)))
        for place, (one, gone) in enumerate(data.draw(drawn))
    ]
    key, other = data.draw(st.sampled_from([(), "place"])), data.draw(st.sampled_from(["bigint", "numeric", "text"]))
    found = []
    for few in (0, 1 << 40):
        table, refused = f"kept_{next(NUMBERS)}", set[int]()
        owner = SinkOwner("shop", table, 0, 1, 5, kind)
        with mock.patch.object(postgres, "FEW_ROWS", few), closing(connectors.postgres(server, table, key)) as sink:
            sink.claim(owner)
            with closing(psycopg.connect(server, autocommit=True)) as connection:
                connection.execute(f"ALTER TABLE {table} ALTER place TYPE {other}")
            try:
                sink.write(owner, rows, 0, len(rows))
            except RowRefused as error:
                refused = {one.row for one in (error, *(error.also or ()))}
        with closing(psycopg.connect(server, autocommit=True)) as connection:
            kept = connection.execute(f"SELECT t::text FROM {table} AS t ORDER BY place").fetchall()
            connection.execute(f"DROP TABLE {table}")
        assert len(kept) == (0 if refused else len(rows))
        found.append((kept, refused))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "column", ["text", "varchar(3)", "short", "shorter", 'text COLLATE "C"', "name", "citext", "note"]
)
def test_which_rows_are_deleted_does_not_depend_on_how_many(make: Callable[..., Base], column: str) -> None:
    """A key that its column would not take is that of no row."""
    base = make()
    base.do("CREATE EXTENSION citext", "CREATE TYPE note AS ENUM ('a', 'b', 'c', 'd', 'longer')")
    base.do("CREATE DOMAIN short AS text CHECK (length(value) < 4)", "CREATE DOMAIN shorter AS short NOT NULL")
    kept = ("a", "b", "c", "d")
    for few in (0, 1 << 40):
        with mock.patch.object(postgres, "FEW_ROWS", few), closing(connectors.postgres(base.url, "t", "note")) as sink:
            base.do("DROP TABLE IF EXISTS t", f"CREATE TABLE t (note {column} PRIMARY KEY, id bigint, price float8)")
            owner = SinkOwner("shop", f"out{few}", 0, 1, 5, Item)
            sink.claim(owner)
            sink.write(owner, [SinkRow(Item(n, note)) for n, note in enumerate(kept)], 0, 4)
            sink.write(owner, [SinkRow(None, key=note) for note in ("a", "longer", "c")], 4, 7)
        with closing(psycopg.connect(base.url)) as connection:
            assert connection.execute("SELECT note::text FROM t ORDER BY id").fetchall() == [("b",), ("d",)], few


def test_a_column_may_get_another_type_while_rows_are_appended(make: Callable[..., Base]) -> None:
    """Bytes of the type that it had would be another value, or none."""
    base = make()
    base.do("CREATE TABLE t (id bigint, note text, price float8)")
    owner = SinkOwner("shop", "out", 0, 1, 5, Item)
    with closing(connectors.postgres(base.url, "t")) as sink:
        position = sink.claim(owner)
        for column in ("id TYPE integer", "id TYPE numeric", "price TYPE numeric", "note TYPE varchar(9)"):
            rows = [SinkRow(Item(n, f"note {n}", n / 2)) for n in range(position, position + 50)]
            sink.write(owner, rows, position, position + 50)
            position += 50
            base.do(f"ALTER TABLE t ALTER {column}")
    with closing(psycopg.connect(base.url)) as connection:
        found = connection.execute("SELECT id::int, note, price::float8 FROM t ORDER BY id").fetchall()
    assert found == [(n, f"note {n}", n / 2) for n in range(position)]


def test_rows_are_looked_up_by_keys_that_their_values_have_not(make: Callable[..., Base]) -> None:
    """By one statement, but where a key is told in other words than the table's."""
    base = make()
    base.do(
        "CREATE TABLE t (id bigint PRIMARY KEY, n bigint)", "INSERT INTO t SELECT n, n FROM generate_series(1, 9) n"
    )
    kind = msgspec.defstruct("Count", [("n", int)])
    looks_up = connectors.table_rows(f"{base.url}{'&' if '?' in base.url else '?'}table=t&key=id", kind)
    looks_up.open(Context("app", "lookup", task=0))
    with mock.patch.object(looks_up, "_asked", wraps=looks_up._asked) as asked:
        assert looks_up._fetch([1, 2, 77]) == {1: kind(1), 2: kind(2)}
        assert asked.call_count == 1
        assert looks_up._fetch(["1", "02", "77"]) == {"1": kind(1), "02": kind(2)}
    looks_up.close()


@pytest.mark.parametrize("said", [{}, {"by": "id"}], ids=["changes", "by a column"])
def test_a_number_in_jsonb_keeps_its_digits(make: Callable[..., Base], said: dict[str, str]) -> None:
    class Inner(msgspec.Struct):
        price: Decimal
        ratio: float

    base = make()
    base.do(
        "CREATE TABLE t (id int PRIMARY KEY, held jsonb)",
        FULL.format("t"),
        """INSERT INTO t VALUES (1, '{"price": 0.1234567890123456789012345, "ratio": 0.1234567890123456789}')""",
    )
    held = Inner(Decimal("0.1234567890123456789012345"), 0.12345678901234568)
    kind = msgspec.defstruct("Holding", [("id", int), ("held", Inner)])
    assert base.seen(kind, **said) == [kind(1, held)]


class Linked(msgspec.Struct):
    id: int
    other: int | None = None
    note: str | None = "good"


BAD = None
"""Stands for a row that a constraint refuses at once, where rows are named by their numbers."""
LINKS: dict[str, tuple[list[tuple[int, int | None] | None], set[int]]] = {
    "in one half": ([(1, None), (2, None), (3, None), (4, None), (5, 6), (6, None), BAD, (8, None)], set()),
    "on both sides": ([(1, 3), BAD, (3, None)], set()),
    "of each other": ([(1, 4), BAD, (3, None), (4, 1)], set()),
    "a chain": ([(1, 2), BAD, (2, 4), BAD, (3, None), (4, None)], set()),
    "of one that is refused": ([(1, 9), (2, 4), BAD, (3, 1), (4, None), (5, 3)], {1, 3, 5}),
    "a circle beside one that is refused": ([(1, 6), (2, 99), BAD, (3, 1), (4, 2), (6, 3), (7, 6), (8, 98)], {2, 4, 8}),
    "circles apart": ([(1, 2), (2, 1), BAD, (3, 4), (4, 5), (5, 5), (6, 99)], {6}),
    "of itself": ([(1, 1), BAD, (2, 99), (3, 1)], {2}),
    "of one that was there": ([(1, 100), BAD, (2, 1)], set()),
}


def linked(base: Base, says: str) -> None:
    base.do(
        "CREATE TABLE t (id bigint PRIMARY KEY, other bigint, note text CHECK (note <> 'bad'))",
        f"ALTER TABLE t ADD FOREIGN KEY (other) REFERENCES t {says}",
        "INSERT INTO t VALUES (100, NULL, 'first')",
    )


def put_linked(base: Base, rows: list[tuple[int, int | None] | None], key: Any, tmp_path: Path) -> set[int]:
    """Put rows into the table, and return the ids of those that are dead letters, less those that are bad."""
    app = App("linking")
    read = app.input("in", value=Linked)
    read.send_to(app.output("out", value=Linked), on_error=dead_letter("refused"))
    items = [Linked(1_000 + n, None, "bad") if row is BAD else Linked(*row) for n, row in enumerate(rows)]
    run = app.run(tmp_path / "linking", bind={"in": items, "out": connectors.postgres(base.url, "t", key)})
    letters = [msgspec.json.decode(one, type=Linked) for one in run.received("refused")]
    assert sum(one.note == "bad" for one in letters) == rows.count(BAD)
    return {one.id for one in letters if one.note != "bad"}


@pytest.mark.parametrize("key", [(), "id"], ids=["append", "by key"])
@pytest.mark.parametrize("name", LINKS)
def test_a_good_row_is_no_dead_letter_for_a_bad_one_beside_it(
    make: Callable[..., Base], name: str, key: Any, tmp_path: Path
) -> None:
    """Constraints that wait for the end of a transaction let a row refer to one behind it."""
    base, (rows, refused) = make(), LINKS[name]
    linked(base, "DEFERRABLE INITIALLY DEFERRED")
    assert put_linked(base, rows, key, tmp_path) == refused
    there = {row[0] for row in rows if row is not BAD} - refused
    with closing(psycopg.connect(base.url)) as connection:
        assert {row[0] for row in connection.execute("SELECT id FROM t").fetchall()} == there | {100}


def test_exactly_the_rows_that_lead_to_one_that_is_bad_are_refused(make: Callable[..., Base]) -> None:
    base = make()
    linked(base, "DEFERRABLE INITIALLY DEFERRED")

    @settings(deadline=None, max_examples=examples(15, 100))
    @given(data=st.data(), key=st.sampled_from([(), "id"]), number=st.integers(1, 30))
    def law(data: st.DataObject, key: Any, number: int) -> None:
        base.do("TRUNCATE t", "DROP TABLE IF EXISTS samza_dsl_positions")
        notes = data.draw(st.lists(st.sampled_from(["good", "good", "good", "bad"]), min_size=number, max_size=number))
        others = [data.draw(st.sampled_from([None, None, 999, *range(number)])) for _ in range(number)]
        items = [Linked(n, other, note) for n, (other, note) in enumerate(zip(others, notes, strict=True))]
        refused, before = {item.id for item in items if item.note == "bad"}, -1
        while len(refused) != before:
            before = len(refused)
            refused |= {item.id for item in items if item.other in refused or item.other == 999}
        rows = [SinkRow(item) for item in data.draw(st.permutations(items))]
        owner = SinkOwner("shop", "out", 0, 1, 5, Linked)
        with closing(connectors.postgres(base.url, "t", key)) as sink:
            sink.claim(owner)
            if refused:
                with pytest.raises(RowRefused) as told:
                    sink.write(owner, rows, 0, number)
                found = [told.value, *(told.value.also or ())]
                assert {rows[one.row].value.id for one in found} == refused
            left = [row for row in rows if row.value.id not in refused]
            sink.write(owner, left, 0, number)

    law()


@pytest.mark.parametrize("says", ["", "DEFERRABLE INITIALLY IMMEDIATE"])
def test_a_constraint_that_does_not_wait_refuses_a_row_in_front_of_what_it_refers_to(
    make: Callable[..., Base], says: str, tmp_path: Path
) -> None:
    base = make()
    linked(base, says)
    assert put_linked(base, [(1, 3), BAD, (3, None), (4, 3)], "id", tmp_path) == {1}
