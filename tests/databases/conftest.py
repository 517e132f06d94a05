"""Databases for tests: files of SQLite and DuckDB, and a server of Postgres that all tests of a process share."""

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest

from samza_dsl import connectors
from samza_dsl.connectors import PositionedSink
from tests.databases import postgres

NUMBERS = count()


@dataclass
class Database:
    """A database of one kind: it makes sinks of tables, and shows what is in these."""

    kind: str
    where: str
    connect: Callable[[], Any]

    def sink(self, table: str, key: Any = ()) -> PositionedSink:
        return getattr(connectors, self.kind)(self.where, table, key)

    def table(self) -> str:
        """Return a table's name that is used for the first time."""
        return f"rows_{next(NUMBERS)}"

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        connection = self.connect()
        try:
            return connection.execute(statement).fetchall()
        finally:
            connection.close()

    def change(self, statement: str) -> None:
        connection = self.connect()
        try:
            connection.execute(statement)
            connection.commit()
        finally:
            connection.close()


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    with postgres.running() as url:
        yield url


@pytest.fixture(params=["sqlite", "duckdb", pytest.param("postgres", marks=pytest.mark.ci)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "postgres":
        url = request.getfixturevalue("server")
        return Database("postgres", url, lambda: psycopg.connect(url))
    path = str(tmp_path / f"rows.{request.param}")
    return Database(
        request.param,
        path,
        (lambda: sqlite3.connect(path)) if request.param == "sqlite" else (lambda: duckdb.connect(path)),
    )
