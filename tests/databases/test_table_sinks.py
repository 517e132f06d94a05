"""Tables as sinks: what they promise, through crashes, and every type that a column has."""

import datetime as dt
import enum
import sqlite3
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import closing, nullcontext
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import duckdb
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from operators.core.base import Context
from runtime.model.errors import Damaged, Unavailable
from runtime.ports.connectors import SinkOwner
from runtime.systems.connectors.schemes import connected_sink, connected_source
from runtime.systems.databases import duckdb_file
from runtime.systems.memory.environment import MemoryEnvironment
from samza_dsl import App, SamzaError, connectors, remote_table
from samza_dsl.connectors import Fenced, RowRefused, SinkRow
from samza_dsl.testing import check_sink
from tests.databases.conftest import Database
from tests.scale import examples


class Order(msgspec.Struct, frozen=True):
    id: int
    note: str | None = None


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Part(msgspec.Struct, frozen=True):
    n: int


class Everything(msgspec.Struct, frozen=True):
    id: int
    flag: bool
    ratio: float
    text: str
    raw: bytes
    at: Annotated[dt.datetime, msgspec.Meta(tz=True)]
    local: Annotated[dt.datetime, msgspec.Meta(tz=False)]
    day: dt.date
    clock: Annotated[dt.time, msgspec.Meta(tz=False)]
    took: dt.timedelta
    price: Decimal
    known: uuid.UUID
    colour: Colour
    size: Literal["s", "m"]
    maybe: int | None
    either: int | str
    parts: list[Part]
    counts: dict[str, int]
    days: dict[int, dt.date]


TEXT = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=12)
YEARS = {"min_value": dt.datetime(1900, 1, 1), "max_value": dt.datetime(2200, 1, 1)}
EVERYTHING = st.builds(
    Everything,
    id=st.integers(-(2**63), 2**63 - 1),
    ratio=st.floats(allow_nan=False),
    text=TEXT,
    at=st.datetimes(**YEARS, timezones=st.sampled_from([dt.UTC, dt.timezone(dt.timedelta(hours=5))])),
    local=st.datetimes(**YEARS),
    day=st.dates(dt.date(1, 1, 1), dt.date(5000, 1, 1)),
    clock=st.times(),
    took=st.timedeltas(dt.timedelta(days=-9999), dt.timedelta(days=9999)),
    price=st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=-(10**9), max_value=10**9),
    known=st.uuids(),
    maybe=st.none() | st.integers(-5, 5),
    either=st.integers(-5, 5) | TEXT,
    parts=st.lists(st.builds(Part, n=st.integers(-(2**53), 2**53)), max_size=3),
    counts=st.dictionaries(TEXT, st.integers(-9, 9), max_size=3),
    days=st.dictionaries(st.integers(-(2**63), 2**63 - 1), st.dates(), max_size=3),
)


def owner(generation: int = 1, kind: Any = Order, **said: Any) -> SinkOwner:
    return SinkOwner("shop", "orders", 0, generation, 5, kind)._replace(**said)


@pytest.mark.parametrize("key", [(), "id"], ids=["append", "by key"])
def test_a_table_keeps_each_row_once_through_crashes(database: Database, key: Any) -> None:
    table = database.table()
    rows = [SinkRow(Order(n % 8, f"note {n}"), key=n % 8) for n in range(40)]
    rows += [SinkRow(None, key=n) for n in range(8)] if key else []

    def content() -> list[Order]:
        return [Order(*row) for row in database.rows(f"SELECT id, note FROM {table}")]

    check_sink(lambda: database.sink(table, key), content, rows, by_key=bool(key), times=40)


@given(values=st.lists(EVERYTHING, min_size=1, max_size=8, unique_by=lambda one: one.id))
@settings(
    deadline=None,
    max_examples=examples(10, 200),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_values_of_every_type_are_read_back(database: Database, values: list[Everything]) -> None:
    table = database.table()
    sink = database.sink(table, "id")
    sink.claim(owner(kind=Everything, output=table))
    sink.write(owner(kind=Everything, output=table), [SinkRow(value) for value in values], 0, 1)
    sink.close()
    names = ", ".join(f'"{name}"' for name in Everything.__struct_fields__)
    found = [read_back(database.kind, row) for row in database.rows(f"SELECT {names} FROM {table}")]
    assert sorted(found, key=lambda one: one.id) == sorted(values, key=lambda one: one.id)


def read_back(kind: str, row: tuple[Any, ...]) -> Everything:
    """Return the value of a row, as drivers give it."""
    fields = dict(zip(Everything.__struct_fields__, row, strict=True))
    for name in ("either", "parts", "counts", "days"):
        if kind != "postgres":
            fields[name] = msgspec.json.decode(fields[name])
    if kind == "sqlite":
        fields["took"] = dt.timedelta(microseconds=fields["took"])
        fields["flag"] = bool(fields["flag"])
    return msgspec.convert(fields, Everything, str_keys=True)


def test_a_table_that_is_there_is_checked(database: Database) -> None:
    table = database.table()
    database.change(f"CREATE TABLE {table} (id BIGINT)")
    with pytest.raises(SamzaError, match="has the columns id, and the output's values have note"):
        database.sink(table).claim(owner(output=table))
    other = database.table()
    database.change(f"CREATE TABLE {other} (id BIGINT, note TEXT, more TEXT)")
    with pytest.raises(SamzaError, match=f"{other}.*tells them apart by it, write CREATE") as no_index:
        database.sink(other, "id").claim(owner(output=other))
    database.change(str(no_index.value).partition(", write ")[2])
    by_key = database.sink(other, "id")
    assert by_key.claim(owner(output=other)) == 0
    by_key.close()
    sink = database.sink(other)
    assert sink.claim(owner(output=other)) == 0
    sink.write(owner(output=other), [SinkRow(Order(1))], 0, 1)
    sink.close()
    assert database.rows(f"SELECT * FROM {other}") == [(1, None, None)]


KEEPING = {
    "sqlite": ("note VARCHAR(9)", "note", "price TEXT", "at DATETIME", "ratio INTEGER"),
    "postgres": ("note varchar(9)", "price numeric(9, 2)", "id numeric", "id int", "at timestamptz(6)"),
    "duckdb": ("note VARCHAR(9)", "id BIGINT", "id HUGEINT", "price DECIMAL(9,2)", "at TIMESTAMPTZ"),
}
CHANGING = {
    "sqlite": ("note STRING", "note INTEGER", "price DECIMAL(10,2)", "id REAL"),
    "postgres": ("note char(9)", "note int", "price float8", "id float8", "ratio int", "at timestamp", "at date"),
    "duckdb": (
        *("note INTEGER", "note DECIMAL(9,2)", "note BLOB", "price DOUBLE", "price BIGINT", "id DOUBLE", "id BOOLEAN"),
        *("ratio INTEGER", "ratio FLOAT", "ratio DECIMAL(9,2)", "at TIMESTAMP", "at TIMESTAMP_S", "at DATE"),
    ),
}


class Priced(msgspec.Struct):
    id: int
    note: str
    price: Decimal
    at: Annotated[dt.datetime, msgspec.Meta(tz=True)]
    ratio: float


@pytest.mark.parametrize("key", [(), "id"], ids=["append", "by key"])
def test_a_column_that_would_change_values_is_refused(database: Database, key: Any) -> None:
    plain = {"id": "BIGINT", "note": "TEXT", "price": "NUMERIC", "at": "TIMESTAMPTZ", "ratio": "DOUBLE PRECISION"}
    if database.kind != "postgres":
        plain |= {"price": "TEXT"}
    value = Priced(7, "007", Decimal("1.10"), dt.datetime(2026, 1, 1, tzinfo=dt.UTC), 1.5)
    for column in (*KEEPING[database.kind], *CHANGING[database.kind]):
        name, _, of = column.partition(" ")
        columns = ", ".join(f'"{one}" {kind}' for one, kind in {**plain, name: of}.items())
        table = database.table()
        database.change(f"CREATE TABLE {table} ({columns}, PRIMARY KEY (id))")
        mine = owner(kind=Priced, output=table)
        with closing(database.sink(table, key)) as sink:
            if column in CHANGING[database.kind]:
                with pytest.raises(SamzaError, match=f"the column {name} is .*, which would keep other values"):
                    sink.claim(mine)
                continue
            sink.claim(mine)
            sink.write(mine, [SinkRow(value)], 0, 1)
        ((id, note, price, ratio),) = database.rows(f"SELECT id, note, price, ratio FROM {table}")
        assert (int(id), note, Decimal(price), ratio) == (7, "007", value.price, 1.5)


def test_a_table_of_others_is_never_emptied(database: Database) -> None:
    table = database.table()
    database.change(f"CREATE TABLE {table} (id BIGINT, note TEXT)")
    database.change(f"INSERT INTO {table} VALUES (7, 'theirs')")
    sink = database.sink(table)
    sink.claim(owner(output=table))
    sink.write(owner(output=table), [SinkRow(Order(1))], 0, 1)
    with pytest.raises(SamzaError, match="among those of others"):
        sink.empty(owner(output=table))
    sink.close()
    assert len(database.rows(f"SELECT * FROM {table}")) == 2


@given(
    claims=st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 2)), min_size=1, max_size=5, unique=True),
    order=st.randoms(use_true_random=False),
    others=st.booleans(),
    is_there=st.booleans(),
    key=st.sampled_from([(), "id"]),
)
@settings(deadline=None, max_examples=examples(15, 100), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_application_that_begins_anew_empties_what_it_has_made(
    database: Database, claims: list[tuple[str, int]], order: Any, others: bool, is_there: bool, key: Any
) -> None:
    table = database.table()
    if is_there:
        database.change(f"CREATE TABLE {table} (id BIGINT PRIMARY KEY, note TEXT)")
    owners = [owner(output=f"{table}-{name}", partition=partition) for name, partition in claims]
    foreign = [owner(app="others", output=table)] if others else []
    with closing(database.sink(table, key)) as sink:
        for number, one in enumerate([*owners, *foreign]):
            assert sink.claim(one) == 0
            sink.write(one, [SinkRow(Order(number))], 0, 1)
        order.shuffle(owners)
        for one in owners:
            if not key and (is_there or others):
                with pytest.raises(SamzaError, match="among those of others"):
                    sink.empty(one)
            else:
                sink.empty(one)
        left = database.rows(f"SELECT id FROM {table}")
        kept = is_there or others
        assert len(left) == (len([*owners, *foreign]) if kept else 0)
        # Begun anew, it writes to the table that it has made, and may begin anew again.
        if not kept:
            for number, one in enumerate(owners):
                assert sink.claim(one._replace(identity=6)) == 0
                sink.write(one._replace(identity=6), [SinkRow(Order(number))], 0, 1)


@pytest.mark.parametrize("key", [(), "id"], ids=["append", "by key"])
def test_rows_of_an_earlier_life_are_told(database: Database, key: Any) -> None:
    table = database.table()
    sink = database.sink(table, key)
    sink.claim(owner(9, output=table))
    anew = owner(1, identity=6, output=table)
    assert sink.claim(anew) == 0  # which nothing was written to yet
    sink.write(anew, [SinkRow(Order(1))], 0, 1)
    with pytest.raises(SamzaError, match="earlier life"):
        sink.claim(owner(9, output=table))
    sink.close()
    database.change(f"DELETE FROM samza_dsl_positions WHERE output = '{table}'")
    assert sink.claim(owner(9, output=table)) == 0
    sink.close()


def test_a_copy_of_an_earlier_time_fences_nobody(database: Database) -> None:
    table = database.table()
    sink, copy = database.sink(table), database.sink(table)
    mine = owner(output=table)
    sink.claim(mine)
    sink.write(mine, [SinkRow(Order(1))], 0, 1)
    with pytest.raises(SamzaError, match="a copy of another time"):
        copy.claim(owner(9, output=table, end=0))
    sink.write(mine, [SinkRow(Order(2))], 1, 2)
    sink.close()


def test_a_table_that_is_gone_is_not_made_anew_in_silence(database: Database) -> None:
    table = database.table()
    sink = database.sink(table)
    sink.claim(owner(output=table))
    sink.write(owner(output=table), [SinkRow(Order(1))], 0, 1)
    sink.close()
    database.change(f"DROP TABLE {table}")
    with pytest.raises(SamzaError, match="is gone, and had rows up to 1"):
        sink.claim(owner(2, output=table))


@pytest.mark.parametrize("key", [(), "id"], ids=["append", "by key"])
def test_an_application_that_begins_anew_makes_a_table_that_is_gone(database: Database, key: Any) -> None:
    """As the error of the run before says: the rows of its earlier life are gone with the table."""
    table = database.table()
    former, anew = owner(output=table), owner(output=table, identity=7)
    with closing(database.sink(table, key)) as sink:
        sink.claim(former)
        sink.write(former, [SinkRow(Order(1)), SinkRow(Order(2))], 0, 2)
    database.change(f"DROP TABLE {table}")
    with closing(database.sink(table, key)) as sink:
        with pytest.raises(
            SamzaError, match=f"is gone, .*let the application begin anew .samza-dsl reset {former.app}"
        ):
            sink.claim(former._replace(generation=2))
        assert sink.claim(anew) == 0
        sink.write(anew, [SinkRow(Order(1))], 0, 1)
        with pytest.raises(SamzaError, match="in an earlier life"):
            sink.claim(former._replace(generation=3))
    assert database.rows(f"SELECT id FROM {table}") == [(1,)]


@pytest.mark.parametrize("key", [(), "id"], ids=["append", "by key"])
@pytest.mark.parametrize("loses", ["positions", "the table too"])
def test_a_position_that_is_lost_doubles_no_row(database: Database, key: Any, loses: str, tmp_path: Path) -> None:
    """Of a run of one commit all rows wait still: nothing but the claim tells that the table has them."""
    app, table = App("shop"), database.table()
    app.input("orders", value=Order).send_to(app.output("paid", value=Order))
    for number in range(2):
        bind = {"orders": [Order(n) for n in range(3 + 2 * number)], "paid": database.sink(table, key)}
        told = not key and loses == "positions" and number
        with pytest.raises(Damaged, match="they would be written twice") if told else nullcontext():
            app.run(tmp_path, bind=bind)
        if not number:
            database.change("DELETE FROM samza_dsl_positions")
            if loses == "the table too":
                database.change(f"DROP TABLE {table}")
    assert sorted(database.rows(f"SELECT id FROM {table}")) == [(n,) for n in range(3 if told else 5)]


def test_of_two_copies_of_a_data_directory_one_writes(database: Database) -> None:
    table = database.table()
    first, second = database.sink(table), database.sink(table)
    mine = owner(output=table)
    assert first.claim(mine) == second.claim(mine) == 0
    second.write(mine, [SinkRow(Order(2))], 0, 1)
    with pytest.raises(Fenced, match="another run"):
        first.write(mine, [SinkRow(Order(1))], 0, 1)
    first.close()
    second.close()
    assert database.rows(f"SELECT id FROM {table}") == [(2,)]


def test_the_answer_to_a_write_may_be_lost(database: Database) -> None:
    table = database.table()
    sink = database.sink(table)
    mine = owner(output=table)
    sink.claim(mine)
    for _ in range(2):
        sink.write(mine, [SinkRow(Order(1))], 0, 1)
    with pytest.raises(Damaged, match="is at 1 in samza_dsl_positions, and had taken rows up to 0"):
        sink.write(mine, [SinkRow(Order(1))], 0, 5)
    sink.close()
    assert len(database.rows(f"SELECT * FROM {table}")) == 1


def test_what_a_table_cannot_keep_is_told(database: Database) -> None:
    table = database.table()
    with pytest.raises(SamzaError, match="declare its value as a msgspec Struct"):
        database.sink(table).claim(owner(kind=dict[str, int], output=table))
    with pytest.raises(SamzaError, match="is no column of"):
        database.sink(table, "no").claim(owner(output=table))
    sink = database.sink(table)
    sink.claim(owner(output=table))
    with pytest.raises(SamzaError, match="deletes the row of its key"):
        sink.write(owner(output=table), [SinkRow(None, key=1)], 0, 1)
    with pytest.raises(SamzaError):
        sink.write(owner(output=table), [SinkRow(Order(2**63))], 0, 1)
    sink.write(owner(output=table), [SinkRow(Order(2**63 - 1))], 0, 1)
    sink.close()


def test_a_row_that_the_table_refuses_ends_with_the_database_s_words(database: Database) -> None:
    table = database.table()
    database.change(f"CREATE TABLE {table} (id BIGINT, note TEXT NOT NULL)")
    with closing(database.sink(table)) as sink:
        sink.claim(owner(output=table))
        with pytest.raises(SamzaError, match=r"(?i)null") as refused:
            sink.write(owner(output=table), [SinkRow(Order(1, "a")), SinkRow(Order(2))], 0, 2)
        assert not isinstance(refused.value, Unavailable), "it is not tried again"
        assert "row that it does not take is Order(id=2" in str(refused.value)
        assert database.rows(f"SELECT * FROM {table}") == []


@pytest.mark.parametrize("key", ["", "id"])
@pytest.mark.parametrize("bad", [[0], [6], [3, 4], [1, 6], [0, 1, 2, 3, 4, 5, 6]])
def test_the_first_row_that_a_table_refuses_is_told_and_none_is_written(
    database: Database, bad: list[int], key: str
) -> None:
    table = database.table()
    database.change(f"CREATE TABLE {table} (id BIGINT PRIMARY KEY, note TEXT CHECK (note <> 'bad'))")
    with closing(database.sink(table, *([key] if key else []))) as sink:
        sink.claim(owner(output=table))
        rows = [SinkRow(Order(n, "bad" if n in bad else "good")) for n in range(7)]
        with pytest.raises(SamzaError, match=rf"(?is)check.*does not take is Order\(id={bad[0]}, note='bad'"):
            sink.write(owner(output=table), rows, 0, 7)
        assert database.rows(f"SELECT * FROM {table}") == []
        sink.write(owner(output=table), [SinkRow(Order(n, "good")) for n in range(7)], 0, 7)
        assert [id for id, _ in database.rows(f"SELECT id, note FROM {table} ORDER BY id")] == [*range(7)]


def test_a_run_whose_row_is_refused_says_which_output_wrote_it(tmp_path: Path) -> None:
    app = App("refused")
    out = app.output("paid", value=Order)
    app.input("orders", value=int).map(Order).send_to(out)
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        shop.execute("CREATE TABLE paid (id BIGINT CHECK (id < 3), note TEXT)")
        bind = {"orders": [1, 2, 3, 4], "paid": connectors.sqlite(tmp_path / "shop.db", "paid")}
        with pytest.raises(
            SamzaError, match=r"CHECK.*Order\(id=3.*'paid' at .*test_table_sinks.py:\d+ wait for it.*mend"
        ):
            app.run(tmp_path / "data", bind=bind)
        assert shop.execute("SELECT id FROM paid").fetchall() == []
        shop.executescript("ALTER TABLE paid RENAME TO old; CREATE TABLE paid (id BIGINT, note TEXT);")
        app.run(tmp_path / "data", bind=bind)
        assert shop.execute("SELECT id FROM paid").fetchall() == [(1,), (2,), (3,), (4,)]


def test_names_are_taken_as_they_are(database: Database) -> None:
    class Odd(msgspec.Struct, rename={"a": "a b %s", "b": "select"}):
        a: int
        b: int

    table = 'odd "table" %d ' + database.kind
    sink = database.sink(table, "a b %s")
    mine = owner(kind=Odd, output=database.kind)
    sink.claim(mine)
    sink.write(mine, [SinkRow(Odd(1, 2)), SinkRow(Odd(1, 3)), SinkRow(Odd(4, 4))], 0, 1)
    sink.write(mine, [SinkRow(None, key=4)], 1, 2)
    sink.close()
    quoted = table.replace('"', '""')
    assert database.rows(f'SELECT * FROM "{quoted}"') == [(1, 3)]


@pytest.mark.parametrize("kind", [int, str, uuid.UUID, dt.date, float, Annotated[dt.datetime, msgspec.Meta(tz=True)]])
def test_the_rows_of_many_keys_are_deleted_and_no_others(database: Database, kind: Any) -> None:
    """By two columns as well; what no column has is the key of no row."""
    table, row = database.table(), msgspec.defstruct("Row", [("shop", kind), ("id", int), ("note", str)])
    keys = [(msgspec.convert(said, kind, strict=False), id) for said in SAID[kind] for id in range(60)]
    told, gone = owner(kind=row, output=table), [key for key in keys if key[1] % 3]
    gone += [(keys[0][0], 2**70 if database.kind == "duckdb" else 77)]
    with closing(database.sink(table, ("shop", "id"))) as sink:
        sink.claim(told)
        sink.write(told, [SinkRow(row(*key, "a")) for key in keys], 0, 1)
        sink.write(told, [SinkRow(None, key) for key in gone] + [SinkRow(row(*gone[0], "b"))], 1, 2)
    found = database.rows(f"SELECT id, note FROM {table}")
    assert sorted(found) == sorted([(id, "a") for _, id in keys if not id % 3] + [(gone[0][1], "b")])


SAID: dict[Any, list[str]] = {
    int: ["7", "-1"],
    str: ["a", "A", "a "],
    uuid.UUID: ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "00000000-0000-0000-0000-000000000000"],
    dt.date: ["2026-01-02", "0001-01-01"],
    float: ["0.1", "1e300"],
    Annotated[dt.datetime, msgspec.Meta(tz=True)]: ["2026-01-02T12:00:00.5+05:30", "2026-01-02T12:00:00Z"],
}


def test_plain_values_have_one_column(database: Database) -> None:
    table = database.table()
    sink = database.sink(table)
    sink.claim(owner(kind=str, output=table))
    sink.write(owner(kind=str, output=table), [SinkRow("a"), SinkRow("")], 0, 1)
    sink.close()
    assert database.rows(f"SELECT value FROM {table}") == [("a",), ("",)]


def test_no_password_is_told() -> None:
    from samza_dsl import connectors

    sink = connectors.postgres("postgres://me:secret@nowhere:1/shop", "orders")
    assert "secret" not in repr(sink)
    with pytest.raises(SamzaError) as caught:
        sink.claim(owner())
    assert "secret" not in str(caught.value)
    with pytest.raises(SamzaError) as caught:
        connectors.postgres("postgres://me:secret@[nowhere", "orders")
    assert "secret" not in str(caught.value)


class MayLack(TypedDict):
    id: int
    note: NotRequired[str]


def test_what_a_typed_dict_may_lack_is_null(database: Database) -> None:
    table = database.table()
    mine = owner(kind=MayLack, output=table)
    with closing(database.sink(table)) as sink:
        sink.claim(mine)
        sink.write(mine, [SinkRow({"id": 1}), SinkRow({"id": 2, "note": "a"})], 0, 2)
    assert sorted(database.rows(f"SELECT id, note FROM {table}")) == [(1, None), (2, "a")]


def test_null_is_no_key(database: Database) -> None:
    """The database would keep two rows of it, or one, as they come together or apart."""
    table = database.table()
    database.change(f"CREATE TABLE {table} (id BIGINT, note TEXT UNIQUE)")
    mine = owner(output=table)
    with closing(database.sink(table, "note")) as sink:
        sink.claim(mine)
        with pytest.raises(RowRefused, match="NULL is no key") as told:
            sink.write(mine, [SinkRow(Order(1, "a")), SinkRow(Order(2)), SinkRow(Order(3))], 0, 3)
        assert (told.value.row, [one.row for one in told.value.also or ()]) == (1, [2])


class Word(msgspec.Struct, frozen=True):
    word: str
    n: int


WORDS = st.sampled_from(["a", "A", "b", "B", "é", "É"])
FOLDS = {"sqlite": "TEXT COLLATE NOCASE", "postgres": "CITEXT", "duckdb": "DATE"}
FOLDING = """CREATE COLLATION IF NOT EXISTS folding
(provider = icu, locale = 'und-u-ks-level2', deterministic = false)"""
FIRST = {"postgres": ["CREATE EXTENSION IF NOT EXISTS citext", FOLDING]}
"""What is said to a database before it has such columns."""
ASCII = WORDS.filter(str.isascii)
KEYS: dict[str, list[tuple[str, str, Callable[[str], str], st.SearchStrategy[str]]]] = {
    "sqlite": [
        ("TEXT COLLATE NOCASE PRIMARY KEY", "", str.casefold, ASCII),
        ("TEXT", "COLLATE NOCASE", str.casefold, ASCII),
        ("TEXT COLLATE NOCASE", "COLLATE binary", str, WORDS),
        ("TEXT PRIMARY KEY", "", str, WORDS),
    ],
    "postgres": [
        ("CITEXT PRIMARY KEY", "", str.casefold, WORDS),
        ("TEXT COLLATE folding PRIMARY KEY", "", str.casefold, WORDS),
        ("TEXT", "COLLATE folding", str.casefold, WORDS),
        ("TEXT COLLATE folding", 'COLLATE "C"', str, WORDS),
        ("VARCHAR(9) PRIMARY KEY", "", str, WORDS),
    ],
    "duckdb": [
        (
            "DATE PRIMARY KEY",
            "",
            lambda word: word.replace("-0", "-"),
            st.sampled_from(["2026-01-02", "2026-1-2", "2026-01-03"]),
        ),
        ("VARCHAR COLLATE NOCASE PRIMARY KEY", "", str.casefold, ASCII),
    ],
}
"""By database, columns of a key, the collation of its index where that is another, and which words are one there."""


@given(data=st.data(), cuts=st.lists(st.integers(1, 60), max_size=3))
@settings(
    deadline=None,
    max_examples=examples(10, 100),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_of_keys_that_a_table_takes_for_one_the_last_record_counts(
    database: Database, data: st.DataObject, cuts: list[int]
) -> None:
    column, collation, folded, words = data.draw(st.sampled_from(KEYS[database.kind]))
    rows = [SinkRow(Word(word, n)) for n, word in enumerate(data.draw(st.lists(words, min_size=1, max_size=60)))]
    rows = [SinkRow(None, key=row.value.word) if data.draw(st.integers(0, 3)) == 0 else row for row in rows]
    expected: dict[str, int] = {}
    for row in rows:
        if row.value is None:
            expected.pop(folded(row.key), None)
        else:
            expected[folded(row.value.word)] = row.value.n
    table = database.table()
    index = [f"CREATE UNIQUE INDEX {table}_words ON {table} (word {collation})"] if collation else []
    for statement in [*FIRST.get(database.kind, ()), f"CREATE TABLE {table} (word {column}, n BIGINT)", *index]:
        database.change(statement)
    said = owner(kind=Word, output=table)
    with closing(database.sink(table, "word")) as sink:
        sink.claim(said)
        begin = 0
        for end in [*sorted({cut for cut in cuts if cut < len(rows)}), len(rows)]:
            sink.write(said, rows[begin:end], begin, end)
            begin = end
    found = {folded(str(word)): n for word, n in database.rows(f"SELECT word, n FROM {table}")}
    assert found == expected


class Price(msgspec.Struct, frozen=True):
    price: Decimal
    n: int


def test_of_decimals_that_are_equal_the_last_record_counts(database: Database) -> None:
    table = database.table()
    column = "TEXT" if database.kind == "sqlite" else "DECIMAL(10, 2)"
    database.change(f"CREATE TABLE {table} (price {column} PRIMARY KEY, n BIGINT)")
    said, texts = owner(kind=Price, output=table), ("1", "1.0", "1.00", "1.0", "2.50", "2.5")
    with closing(database.sink(table, "price")) as sink:
        sink.claim(said)
        sink.write(said, [SinkRow(Price(Decimal(text), n)) for n, text in enumerate(texts)], 0, len(texts))
    found = {Decimal(price): n for price, n in database.rows(f"SELECT price, n FROM {table} ORDER BY n")}
    assert found == {Decimal(1): 3, Decimal("2.5"): 5}


@pytest.mark.parametrize("key", ["word", "word,m"])
def test_keys_that_a_table_takes_for_one_are_looked_up_as_it_does(database: Database, key: str) -> None:
    if database.kind == "duckdb":
        return
    table = database.table()
    if database.kind == "postgres":
        database.change("CREATE EXTENSION IF NOT EXISTS citext")
    database.change(f"CREATE TABLE {table} (word {FOLDS[database.kind]}, m BIGINT, n BIGINT, PRIMARY KEY (word, m))")
    database.change(f"INSERT INTO {table} VALUES ('Ab', 1, 7)")
    where = database.where if database.kind == "postgres" else f"{database.kind}:///{database.where}"
    url = f"{where}{'&' if '?' in where else '?'}table={table}&key={key}"
    app = App("looking-up")
    found = app.input("wanted", value=Word).join(
        remote_table(connectors.table_rows(url, Word)),
        lambda _, row: row and row.n,
        on=lambda one: one.word if key == "word" else (one.word, 1),
        how="left",
    )
    found.send_to(app.output("found", value=int | None))
    wanted = [Word(word, 0) for word in ("aB", "Ab", "aB", "A")]
    run = app.run(MemoryEnvironment(), bind={"wanted": wanted}, until_now=True)
    assert Counter(run.received("found")) == {7: 3, None: 1}


def test_a_look_up_does_not_ask_again_what_a_table_is_like(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    whole = duckdb_file._typed

    def typed(connection: Any, table: str) -> dict[str, str]:
        asked.append(table)
        return whole(connection, table)

    monkeypatch.setattr(duckdb_file, "_typed", typed)
    with closing(duckdb.connect(str(tmp_path / "rows.duckdb"))) as rows:
        rows.execute("CREATE TABLE words (word VARCHAR PRIMARY KEY, n BIGINT, ends TIMESTAMP)")
        rows.execute("INSERT INTO words VALUES ('a', 7, 'infinity')")
    looks_up = connectors.table_rows(f"duckdb:///{tmp_path}/rows.duckdb?table=words&key=word", Word)
    looks_up.open(Context("words", "lookup", task=0))
    for keys in (["a"], ["b"], ["a", "b"], ["b", "a"], ["a"]):
        found = looks_up._fetch(keys)
        assert found == ({"a": Word("a", 7)} if "a" in keys else {})
    looks_up.close()
    assert len(asked) <= 3


@pytest.mark.parametrize("scheme", ["sqlite", "duckdb"])
@pytest.mark.parametrize("writes", [True, False])
def test_an_option_that_is_none_is_no_part_of_a_files_name(scheme: str, writes: bool, tmp_path: Path) -> None:
    url = f"{scheme}:///{tmp_path}/shop.db?table=orders&by=id&kye=id"
    with pytest.raises(SamzaError, match=f"kye.*write {scheme}://"):
        (connected_sink if writes else connected_source)(url)
    with pytest.raises(SamzaError, match="kye"):
        connectors.table_rows(f"{url}&key=id", dict)


def test_an_option_that_postgres_does_not_know_is_named_and_no_secret() -> None:
    url = "postgres://me:secret@host/shop?table=orders&kye=id"
    for at in (connected_sink, connected_source):
        with pytest.raises(SamzaError, match=r"kye is no option of Postgres.*&key=id") as caught:
            at(url)
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["sqlite", "duckdb"])
def test_a_url_without_the_slashes_of_a_path_names_no_folder(scheme: str) -> None:
    told = rf"{scheme}:/data/shop.db.* names no file: write {scheme}:///shop.db where it is relative"
    with pytest.raises(SamzaError, match=told):
        connected_sink(f"{scheme}:/data/shop.db?table=orders")
    with pytest.raises(SamzaError, match=told):
        connected_source(f"{scheme}:/data/shop.db?table=orders&by=id")
    with pytest.raises(SamzaError, match=told):
        connectors.table_rows(f"{scheme}:/data/shop.db?table=orders&key=id", dict)
