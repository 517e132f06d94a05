"""Rows that a database refuses go where the operator's policy says, each once, wherever a run dies."""

import sqlite3
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from operators.core.base import Batch
from runtime.assembly.bindings import Bindings
from runtime.job.pipeline import Pipeline
from runtime.model.errors import SerdeError
from runtime.ports.streams import Append, StreamConfig
from runtime.run.run import run_blocking
from runtime.run.settings import RunSettings
from runtime.systems.connectors import outbox
from runtime.systems.databases import table_sink
from runtime.systems.memory.environment import MemoryEnvironment
from samza_dsl import App, Options, SamzaError, connectors, dead_letter, fail, retry, skip
from samza_dsl.connectors import IdempotentSink, PositionedSink, RowRefused
from tests.databases.conftest import Database
from tests.scale import examples


class Row(msgspec.Struct):
    id: int
    note: str | None = None
    other: int | None = None


class Died(Exception):
    """The run dies here."""


def letters_in(environment: MemoryEnvironment) -> list[tuple[Row | None, dict[str, str]]]:
    """Return the dead letters: the row of each, and what its headers say."""
    found: list[tuple[Row | None, dict[str, str]]] = []
    offset = 0
    while "refused" in environment.streams() and (read := environment.read("refused", 0, offset)) is not None:
        for value, headers in zip(read.batch.values, read.batch.headers or [], strict=True):
            row = None if value is None else msgspec.json.decode(value, type=Row)
            found.append((row, {name: content.decode() for name, content in (headers or {}).items()}))
        offset = read.next_offset
    return found


def pipeline(policy: Any, to: int = 1, **options: Any) -> Pipeline:
    app = App("refusing", Options(**options))
    rows = app.input("rows", value=Row, key=lambda row: row.id if row.note != "delete" else row.other)
    changed = rows.map(lambda row: None if row.note == "delete" else row)
    for _ in range(to):
        changed.send_to(app.output("table", value=Row, key=int), on_error=policy)
    return Pipeline(app.graph(), app.options)


def run_over(environment: MemoryEnvironment, policy: Any, sink: object, **options: Any) -> Any:
    return run_blocking(pipeline(policy, **options), environment, RunSettings(bind={"table": sink}))


def filled(rows: list[Row]) -> MemoryEnvironment:
    environment = MemoryEnvironment()
    environment.create_stream("rows", StreamConfig())
    environment.append([Append("rows", 0, Batch([msgspec.json.encode(row) for row in rows]))])
    environment.end_stream("rows")
    return environment


TOO_LONG = "x" * 11
CONSTRAINTS = {
    "check": ("id BIGINT PRIMARY KEY, note TEXT CHECK (note <> 'bad'), other BIGINT", Row(2, "bad"), "(?i)check"),
    "not null": ("id BIGINT PRIMARY KEY, note TEXT NOT NULL, other BIGINT", Row(2, None), "(?i)null"),
    "unique": ("id BIGINT PRIMARY KEY, note TEXT, other BIGINT UNIQUE", Row(2, "a", 1), "(?i)unique|duplicate"),
    "a foreign key": (
        "id BIGINT PRIMARY KEY, note TEXT, other BIGINT REFERENCES parents (id)",
        Row(2, "a", 99),
        "(?i)foreign key",
    ),
    "a foreign key at the end": (
        "id BIGINT PRIMARY KEY, note TEXT, other BIGINT REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED",
        Row(2, "a", 99),
        "(?i)foreign key",
    ),
    "a length": ("id BIGINT PRIMARY KEY, note VARCHAR(10), other BIGINT", Row(2, TOO_LONG), "too long"),
    "a domain": ("id BIGINT PRIMARY KEY, note TEXT, other positive", Row(2, "a", -1), "positive"),
    "NUL": ("id BIGINT PRIMARY KEY, note TEXT, other BIGINT", Row(2, "a\0"), "NUL"),
    "a large number": ("id BIGINT PRIMARY KEY, note TEXT, other BIGINT", Row(2, "a", 2**63), "(?i)large|range|cast"),
}
ONLY = {
    "a foreign key": ("postgres", "duckdb"),  # SQLite looks at them only where each connection asks for that
    "a foreign key at the end": ("postgres",),
    "a length": ("postgres",),  # of the others a length is a remark
    "a domain": ("postgres",),
    "NUL": ("postgres",),
}


@pytest.mark.parametrize("key", ["", "id"])
@pytest.mark.parametrize("name", CONSTRAINTS)
def test_what_a_constraint_refuses_is_a_dead_letter_with_the_database_s_words(
    database: Database, name: str, key: str
) -> None:
    if database.kind not in ONLY.get(name, (database.kind,)):
        return
    columns, bad, words = CONSTRAINTS[name]
    table, environment = database.table(), filled([Row(1, "a", 1), bad, Row(3, "b", 3), Row(4, "c", 4)])
    parents = f"parents_of_{table}"
    if "REFERENCES" in columns:
        database.change(f"CREATE TABLE {parents} (id BIGINT PRIMARY KEY)")
        database.change(f"INSERT INTO {parents} VALUES (1), (3), (4)")
    if "positive" in columns:
        database.change(f"CREATE DOMAIN positive_{table} AS BIGINT CHECK (VALUE > 0)")
    columns = columns.replace("parents", parents).replace("other positive", f"other positive_{table}")
    database.change(f"CREATE TABLE {table} ({columns})")
    run_over(environment, dead_letter("refused"), database.sink(table, *([key] if key else [])))
    assert [row[0] for row in database.rows(f"SELECT id FROM {table} ORDER BY id")] == [1, 3, 4]
    [(row, said)] = letters_in(environment)
    assert row == bad
    assert said["operator"] == "send_to-table"
    with pytest.raises(AssertionError, match=rf"(?s){words}.*Row\(id=2.*output 'table' at .*test_refused_rows.py:\d+"):
        raise AssertionError(said["error"])


def test_a_table_that_is_not_as_it_was_is_no_fault_of_a_row(database: Database) -> None:
    table, environment = database.table(), filled([Row(1, "a")])
    database.change(f"CREATE TABLE {table} (id BIGINT, note TEXT, other BIGINT)")
    sink = database.sink(table)

    def dropped(*said: Any) -> None:
        database.change(f"DROP TABLE {table}")
        sink.write(*said)

    with pytest.raises(SamzaError, match=r"Rows of the output 'table' at .* wait"):
        run_over(environment, dead_letter("refused"), replace(sink, write=dropped))
    assert letters_in(environment) == []


@pytest.mark.parametrize(("policy", "kind"), [(skip, "skipped"), (dead_letter("refused"), "dead_lettered")])
def test_rows_that_are_passed_over_are_counted(policy: Any, kind: str, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "a.db")) as shop:
        shop.execute("CREATE TABLE rows (id BIGINT, note TEXT CHECK (note <> 'bad'), other BIGINT)")
    rows = [Row(n, "bad" if n % 3 else "good") for n in range(9)]
    run = run_over(filled(rows), policy, connectors.sqlite(tmp_path / "a.db", "rows"))
    assert sum(getattr(one, kind) for one in run.metrics().operators if one.operator == "send_to-table") == 6


@pytest.mark.parametrize("key", ["", "id"])
def test_rows_that_are_refused_together_are_noted_together(
    database: Database, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, kept = database.table(), list[int]()
    database.change(f"CREATE TABLE {table} (id BIGINT PRIMARY KEY, note TEXT CHECK (note <> 'bad'), other BIGINT)")
    rows = [Row(n, "bad" if n % 5 in (0, 2, 3) else "good") for n in range(200)]
    keep = Bindings._keep_letters

    def counted(self: Bindings, generation: int, letters: list[Append]) -> None:
        kept.append(len(letters))
        keep(self, generation, letters)

    monkeypatch.setattr(Bindings, "_keep_letters", counted)
    environment = filled(rows)
    run_over(environment, dead_letter("refused"), database.sink(table, *([key] if key else [])))
    assert sum(kept) == 120 and len(kept) <= 3
    assert [row for row, _ in letters_in(environment)] == [row for row in rows if row.note == "bad"]
    assert [id for (id,) in database.rows(f"SELECT id FROM {table} ORDER BY id")] == [
        row.id for row in rows if row.note == "good"
    ]


class Dying:
    """A sink and a keeper of letters that fail as often as they are told, before or behind what they do."""

    def __init__(self, deaths: list[int]) -> None:
        self.deaths, self.step = sorted(deaths), 0

    def over(self, function: Any) -> Any:
        def called(*said: Any) -> Any:
            self._may_die()
            found = function(*said)
            self._may_die()
            return found

        return called

    def _may_die(self) -> None:
        self.step += 1
        if self.deaths and self.step >= self.deaths[0]:
            self.deaths.pop(0)
            raise Died


def run_through(environment: MemoryEnvironment, policy: Any, sink: Any, deaths: list[int], **options: Any) -> None:
    """Run again for as long as the run dies."""
    dying = Dying(deaths)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(outbox, "FEWEST", 2)
        for module in (outbox, table_sink):
            patched.setattr(module, "MOST_REFUSED", 3)
        patched.setattr(Bindings, "_keep_letters", dying.over(Bindings._keep_letters))
        for _ in range(len(deaths) + 1):
            try:
                run_over(environment, policy, replace(sink, write=dying.over(sink.write)), **options)
                return
            except (Died, SamzaError) as error:
                if "Died" not in f"{error!r}":
                    raise
    raise AssertionError("it dies more often than it was told")


@settings(max_examples=examples(25, 300))
@given(
    notes=st.lists(st.sampled_from(["good", "good", "bad", "delete"]), min_size=1, max_size=20),
    deaths=st.lists(st.integers(1, 40), max_size=4),
    batch_rows=st.sampled_from([1, 2, 3, 100]),
    most=st.sampled_from([1, 3, 100]),
    policy=st.sampled_from([dead_letter("refused"), skip, retry(2, then=dead_letter("refused"))]),
)
def test_each_refused_row_is_one_dead_letter_wherever_a_run_dies(
    notes: list[str], deaths: list[int], batch_rows: int, most: int, policy: Any
) -> None:
    rows = [Row(n, note, other=max(n - 1, 0)) for n, note in enumerate(notes)]
    environment = filled(rows)
    with tempfile.TemporaryDirectory() as folder, closing(sqlite3.connect(Path(folder, "a.db"))) as shop:
        shop.execute("CREATE TABLE rows (id BIGINT PRIMARY KEY, note TEXT CHECK (note <> 'bad'), other BIGINT)")
        sink = replace(connectors.sqlite(Path(folder, "a.db"), "rows", key="id"), batch_rows=batch_rows)
        run_through(environment, policy, sink, deaths, max_uncommitted=most, batch_records=most)
        left = shop.execute("SELECT id FROM rows ORDER BY id").fetchall()
    there: set[int] = set()
    for row in rows:
        if row.note == "delete":
            there.discard(row.other or 0)
        elif row.note == "good":
            there.add(row.id)
    assert [id for (id,) in left] == sorted(there)
    refused = [row for row in rows if row.note == "bad"] if policy != skip else []
    found = letters_in(environment)
    # A row that is deleted in the same transaction is never written, and so nobody refuses it.
    deleted = {row.other or 0 for row in rows if row.note == "delete"}
    letters = [row for row, _ in found]
    assert letters == [row for row in refused if row in letters]
    assert {row.id for row in refused if row.id not in deleted} <= {row.id for row in letters if row}
    assert len({said["offset"] for _, said in found}) == len(found)


@given(deaths=st.lists(st.integers(1, 30), max_size=3), batch_rows=st.sampled_from([1, 2, 100]))
def test_a_sink_that_has_no_positions_refuses_a_row_once_as_well(deaths: list[int], batch_rows: int) -> None:
    kept: dict[int, str] = {}

    def write(rows: Any) -> None:
        for at, row in enumerate(rows):
            if row.value.id % 3 == 0:
                raise RowRefused("three divides it", at)
        kept.update({row.value.id: row.value.note for row in rows})

    environment = filled([Row(n, "good") for n in range(8)])
    sink = IdempotentSink("kept", write, batch_rows=batch_rows, keyless=True)
    run_through(environment, dead_letter("refused"), sink, deaths)
    assert sorted(kept) == [1, 2, 4, 5, 7]
    assert [row.id for row, _ in letters_in(environment) if row] == [0, 3, 6]


@example(bad={"left": {0}, "right": {0}}, deaths=[3, 6], orders=[False, True])
@given(
    bad=st.fixed_dictionaries(dict.fromkeys(("left", "right"), st.sets(st.integers(0, 4)))),
    deaths=st.lists(st.integers(1, 20), max_size=4),
    orders=st.lists(st.booleans(), max_size=5),
)
def test_letters_of_one_output_leave_those_of_another(
    bad: dict[str, set[int]], deaths: list[int], orders: list[bool]
) -> None:
    """Of outputs that are opened one behind the other, in any order, and refuse rows before the next one is open."""
    app = App("refusing")
    rows = app.input("rows", value=Row)
    for name in bad:
        rows.send_to(app.output(name, value=Row), on_error=dead_letter("refused"))
    kept: dict[str, set[int]] = {name: set() for name in bad}
    environment, dying = filled([Row(n) for n in range(5)]), Dying(deaths)

    def sink(name: str) -> IdempotentSink:
        def write(rows: Any) -> None:
            for at, row in enumerate(rows):
                if row.value.id in bad[name]:
                    raise RowRefused("it is bad", at)
            kept[name].update(row.value.id for row in rows)

        return IdempotentSink(name, dying.over(write), keyless=True)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Bindings, "_keep_letters", dying.over(Bindings._keep_letters))
        for run in range(len(deaths) + 1):
            names = sorted(bad, reverse=run < len(orders) and not orders[run])
            try:
                pipeline = Pipeline(app.graph(), app.options)
                run_blocking(pipeline, environment, RunSettings(bind={name: sink(name) for name in names}))
            except (Died, SamzaError) as error:
                if "Died" not in f"{error!r}":
                    raise
    assert kept == {name: {*range(5)} - bad[name] for name in bad}
    letters = [(said["operator"], row.id) for row, said in letters_in(environment) if row]
    assert sorted(letters) == [(f"send_to-{name}", n) for name in sorted(bad) for n in sorted(bad[name])]


@given(
    bad=st.sets(st.integers(0, 19)),
    deaths=st.lists(st.integers(1, 30), max_size=3),
    batch_rows=st.sampled_from([1, 3, 100]),
)
def test_a_row_that_a_sink_can_not_put_is_found_among_others(bad: set[int], deaths: list[int], batch_rows: int) -> None:
    """The sink only says that there is one."""
    kept: dict[int, str] = {}

    def write(rows: Any) -> None:
        if any(row.value.id in bad for row in rows):
            raise SerdeError("that has no place here")
        kept.update({row.value.id: row.value.note for row in rows})

    environment = filled([Row(n, "good") for n in range(20)])
    run_through(
        environment, dead_letter("refused"), IdempotentSink("kept", write, batch_rows=batch_rows, keyless=True), deaths
    )
    assert sorted(kept) == [n for n in range(20) if n not in bad]
    assert [row.id for row, _ in letters_in(environment) if row] == sorted(bad)


@pytest.mark.parametrize("policy", [fail, retry(2)])
def test_without_a_policy_the_run_ends_and_says_which_there_are(policy: Any) -> None:
    def write(*said: Any) -> None:
        raise RowRefused("no", 0)

    sink = PositionedSink("none", lambda owner: 0, write, lambda owner: None)
    with pytest.raises(SamzaError, match=r"no\. Rows of the output 'table' at .*on_error=dead_letter\('name'\)"):
        run_over(filled([Row(1)]), policy, sink)


def test_an_application_that_begins_anew_passes_over_no_row_of_before(tmp_path: Path) -> None:
    """The same offsets are other rows then."""
    app = App("anew")
    app.input("rows", value=Row).send_to(app.output("table", value=Row), on_error=dead_letter("refused"))
    with closing(sqlite3.connect(tmp_path / "a.db")) as shop:
        shop.execute("CREATE TABLE rows (id BIGINT, note TEXT CHECK (note <> 'bad'), other BIGINT)")
        bind = {"rows": [Row(1, "bad")], "table": connectors.sqlite(tmp_path / "a.db", "rows")}
        app.run(tmp_path / "data", bind=bind)
        assert shop.execute("SELECT id FROM rows").fetchall() == []
        shop.executescript(
            "DELETE FROM samza_dsl_positions; DROP TABLE rows; CREATE TABLE rows (id BIGINT, note TEXT, other BIGINT)"
        )
        app.run(tmp_path / "data", bind=bind, from_start=True, state="reset")
        assert shop.execute("SELECT id FROM rows").fetchall() == [(1,)]
