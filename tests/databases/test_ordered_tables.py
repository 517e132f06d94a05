"""Tables that are read in the order of a column, of any type that has one."""

from contextlib import closing
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from runtime.systems.databases import column_source
from runtime.systems.memory.lists import ListSink
from samza_dsl import App, SamzaError, connectors
from tests.databases.conftest import Database
from tests.scale import examples

A_AND_B = (("'a'", "'A'"), ("'b'", "'B'"), ("'c'",), ("'D'", "'d'"))
DAYS = (("'1 day'", "'24 hours'"), ("'2 days 1 second'",), ("'30 days'", "'1 month'"), ("'2 months'",))
IN_ORDER: dict[str, dict[str, tuple[tuple[str, ...], ...]]] = {
    "postgres": {
        "real": (("0.1",), ("0.2", "0.20"), ("16777217",), ("'NaN'",)),
        "double precision": (("0.1",), ("0.2",), ("0.30000000000000004",), ("'NaN'",)),
        "numeric": (("1", "1.0"), ("1.00000000000000000000000000000000000000001",), ("'NaN'",)),
        "bigint": (("1",), ("9007199254740992",), ("9007199254740993",)),
        "citext": A_AND_B,
        "text": (("'A'",), ("'a'",), ("'a '",)),
        "char(3)": (("'a'", "'a  '"), ("'b'",)),
        "date": (("'-infinity'",), ("'0044-01-01 BC'",), ("'2026-01-01'",), ("'infinity'",)),
        "timestamptz": (
            ("'2026-01-01 02:00+01'", "'2026-01-01 01:00+00'"),
            ("'2026-01-01 01:00:00.000001+00'",),
            ("'infinity'",),
        ),
        "timetz": (("'01:00+00'",), ("'01:00:00.000001+00'",), ("'02:00+00'",)),
        "interval": DAYS,
        "boolean": (("false",), ("true",)),
        "bytea": (("'\\x00'",), ("'\\x01ff'",), ("'\\x02'",)),
        "uuid": (("'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'",), ("'b0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'",)),
        "int[]": (("'{1}'",), ("'{1,2}'",), ("'{3}'",)),
        "jsonb": (("'1'", "'1.0'"), ("'2'",)),
        "pg_lsn": (("'0/2'",), ("'0/A0'",), ("'1/0'",)),
        "inet": (("'10.0.0.1'",), ("'10.0.0.2'",)),
    },
    "duckdb": {
        "FLOAT": (("0.1",), ("0.2",), ("16777217",), ("'nan'",)),
        "DOUBLE": (("0.1",), ("0.2",), ("0.30000000000000004",), ("'nan'",)),
        "DECIMAL(38,30)": (("1",), ("1.000000000000000000000000000001",)),
        "HUGEINT": (("1",), ("170141183460469231731687303715884105726",), ("170141183460469231731687303715884105727",)),
        "VARCHAR COLLATE NOCASE": A_AND_B,
        "TIMESTAMP_NS": (("'2026-01-01 00:00:00.000000001'",), ("'2026-01-01 00:00:00.000000002'",)),
        "TIMESTAMPTZ": (("'2026-01-01 02:00+01'", "'2026-01-01 01:00+00'"), ("'2026-01-01 01:00:00.000001+00'",)),
        "DATE": (("'44-01-01 (BC)'",), ("'2026-01-01'",), ("'infinity'",)),
        "TIME": (("'01:00'",), ("'01:00:00.000001'",)),
        "INTERVAL": DAYS,
        "BLOB": (("'\\x00'::BLOB",), ("'\\x01\\xff'::BLOB",)),
        "INTEGER[]": (("[1]",), ("[1, 2]",), ("[3]",)),
        "STRUCT(a INTEGER)": (("{'a': 1}",), ("{'a': 2}",)),
    },
    "sqlite": {
        "": (("1", "1.0"), ("2.5",), ("9007199254740993",), ("'a'",), ("x'00'",)),
        "REAL": (("0.1",), ("0.2",), ("0.30000000000000004",)),
        "TEXT COLLATE NOCASE": A_AND_B,
        "TEXT COLLATE RTRIM": (("'a'", "'a '", "'a  '"), ("'b'",)),
    },
}
"""Values of types in their order; those that a database takes for one are together."""


@pytest.fixture
def by_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_source, "MOST_ROWS", 3)


@settings(max_examples=examples(12, 300), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(shape=st.lists(st.tuples(st.integers(0, 7), st.booleans()), min_size=5, max_size=5))
@example([(1, False), (5, True), (3, True), (4, False), (4, False)])
def test_each_row_comes_once_whatever_the_type_of_the_column(
    database: Database, by_ones: None, shape: list[tuple[int, bool]]
) -> None:
    """Rows of one value come together, however many there are, and no look sees again what one before it saw.

    A shape says how many rows each value has, and whether there is a look behind them.
    """
    if database.kind == "postgres":
        database.change("CREATE EXTENSION IF NOT EXISTS citext")
    for kind, groups in IN_ORDER[database.kind].items():
        table = database.table()
        database.change(f'CREATE TABLE {table} (id INTEGER, "at %s" {kind})')
        found, position, given = [], b"", 0
        with closing(getattr(connectors, f"{database.kind}_source")(database.where, table, by="at %s")) as source:
            for same, (number, has_look) in zip(groups, shape, strict=False):
                if number:
                    rows = ", ".join(f"({given + n}, {same[n % len(same)]})" for n in range(number))
                    database.change(f"INSERT INTO {table} VALUES {rows}")
                    given += number
                if has_look:
                    position = _looked(source, position, found, given)
            _looked(source, position, found, given)
        assert sorted(found) == list(range(given)), kind


def _looked(source: Any, position: bytes, found: list[int], most: int) -> bytes:
    """Read until nothing more comes; a look that comes to no end ends as too many rows were read."""
    while len(found) <= most:
        pulled = source.pull("reader", position)
        position = pulled.position
        found += [one.value["id"] for one in pulled.records]
        if not pulled.records:
            break
    return position


class Noted(TypedDict):
    id: int
    note: NotRequired[str]


class Unclear(TypedDict):
    id: int
    note: NotRequired[str | None]


def copying(kind: type) -> App:
    app = App(f"copying-{kind.__name__}")
    app.input("rows", value=kind).send_to(app.output("copies", value=kind))
    return app


def test_keys_that_rows_lack_are_left_out_again_as_a_table_is_read(database: Database, tmp_path: Path) -> None:
    rows, copies, name = [{"id": 1}, {"id": 2, "note": "x"}, {"id": 3, "note": ""}], ListSink(), database.table()
    table = getattr(connectors, database.kind)(database.where, name, key="id")
    copying(Noted).run(tmp_path / "writes", bind={"rows": rows, "copies": table})
    source = getattr(connectors, f"{database.kind}_source")(database.where, name, by="id")
    copying(Noted).run(tmp_path / "reads", bind={"rows": source, "copies": copies}, until_now=True)
    assert copies.values == rows
    with pytest.raises(SamzaError, match=r"Unclear\.note may be None or not be there"):
        copying(Unclear).run(tmp_path / "unclear", bind={"rows": rows, "copies": table})
