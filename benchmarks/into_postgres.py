"""B33: rows into a table of Postgres with our positions beside them, over COPY by hand in batches of the same size."""

from __future__ import annotations

import atexit
from contextlib import ExitStack
from functools import cache
from itertools import count
from typing import Any

import msgspec
import psycopg

from benchmarks.delivery import deliver
from benchmarks.workload import Description, Workload
from samza_dsl import connectors
from samza_dsl.connectors import SinkOwner, SinkRow
from tests.databases import postgres

BATCH_ROWS = 50_000
"""As many as an outbox delivers at a time."""
_numbers = count()


class Payment(msgspec.Struct):
    """A row."""

    id: int
    customer: str
    cents: int
    note: str | None


@cache
def server() -> str:
    """Return the URL of a server: it is started when it is first asked for, and stopped when this process ends."""
    running = ExitStack()
    atexit.register(running.close)
    return running.enter_context(postgres.running())


class IntoPostgres(Workload):
    """Both sides make rows of records and copy them into a new table, a transaction for each batch."""

    key: str | tuple[str, ...] = ()
    """The column by which a row replaces that of before, if any."""
    description = Description(
        name="B33",
        title="rows into Postgres by the sink, over COPY by hand",
        messages=500_000,
        quick_scale=0.004,
        bar=1.25,
        with_server=True,
    )

    def prepare(self, messages: int) -> None:
        self.values = [Payment(n, f"customer {n % 1_000}", 7 * n, None if n % 3 else "note") for n in range(messages)]
        self.rows = [SinkRow(value) for value in self.values]
        server()

    def ready(self) -> None:
        self.table = f"payments_{next(_numbers)}"
        with psycopg.connect(server(), autocommit=True) as connection:
            connection.execute(f"CREATE TABLE {self.table} (id bigint, customer text, cents bigint, note text)")

    def baseline(self) -> str:
        into = f"COPY {self.table} (id, customer, cents, note) FROM STDIN"
        with psycopg.connect(server(), autocommit=True) as connection:
            for start in range(0, len(self.values), BATCH_ROWS):
                with connection.transaction(), connection.cursor() as cursor, cursor.copy(into) as copy:
                    for value in self.values[start : start + BATCH_ROWS]:
                        copy.write_row((value.id, value.customer, value.cents, value.note))
        return self.table

    def ours(self) -> str:
        sink = connectors.postgres(server(), self.table, self.key)
        owner = SinkOwner("payments", self.table, 0, generation=1, identity=1, value_type=Payment)
        deliver(sink, owner, self.rows, BATCH_ROWS)
        return self.table

    def outcome(self, result: str) -> list[Any]:
        with psycopg.connect(server()) as connection:
            return connection.execute(f"SELECT * FROM {result} ORDER BY id").fetchall()


class IntoPostgresByKey(IntoPostgres):
    """Rows replace those of their keys; by hand they are copied beside the table first, and put by ON CONFLICT."""

    key = "id"
    description = Description(
        name="B33-key",
        title="the same by key, over COPY beside the table and INSERT … ON CONFLICT by hand",
        messages=200_000,
        quick_scale=0.01,
        bar=1.25,
        with_server=True,
    )

    def ready(self) -> None:
        super().ready()
        with psycopg.connect(server(), autocommit=True) as connection:
            connection.execute(f"ALTER TABLE {self.table} ADD PRIMARY KEY (id)")

    def baseline(self) -> str:
        put = (
            f"INSERT INTO {self.table} SELECT * FROM beside ON CONFLICT (id) DO UPDATE "
            "SET customer = excluded.customer, cents = excluded.cents, note = excluded.note"
        )
        with psycopg.connect(server(), autocommit=True) as connection:
            for start in range(0, len(self.values), BATCH_ROWS):
                with connection.transaction(), connection.cursor() as cursor:
                    cursor.execute(
                        f"CREATE TEMP TABLE beside ON COMMIT DROP AS SELECT * FROM {self.table} WITH NO DATA"
                    )
                    with cursor.copy("COPY beside (id, customer, cents, note) FROM STDIN") as copy:
                        for value in self.values[start : start + BATCH_ROWS]:
                            copy.write_row((value.id, value.customer, value.cents, value.note))
                    cursor.execute(put)
        return self.table
