"""B34: rows into files of Parquet that a manifest names, over pyarrow by hand, which makes as many as durable."""

from __future__ import annotations

import datetime as dt
import os
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.delivery import deliver
from benchmarks.workload import Description, Workload
from samza_dsl import connectors
from samza_dsl.connectors import SinkOwner, SinkRow

ROWS = 100_000
"""As many as an outbox delivers at a time, each time a file of one row group."""


class Payment(msgspec.Struct):
    """A row."""

    id: int
    customer: str
    cents: int
    rate: float
    at: dt.datetime
    note: str | None


SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "customer": pa.string(),
        "cents": pa.int64(),
        "rate": pa.float64(),
        "at": pa.timestamp("us", "UTC"),
        "note": pa.string(),
    }
)


class IntoParquet(Workload):
    """Both sides make files of the same records, each durable and under its name once it is whole."""

    description = Description(
        name="B34",
        title="rows into Parquet by the sink, over pyarrow by hand",
        messages=500_000,
        quick_scale=0.004,
        bar=1.11,
    )

    def prepare(self, messages: int) -> None:
        start = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
        self.values = [
            Payment(n, f"customer {n % 997}", 7 * n, n / 7, start + dt.timedelta(seconds=n), None if n % 3 else "note")
            for n in range(messages)
        ]
        self.rows = [SinkRow(value) for value in self.values]
        self.numbers = count()

    def ready(self) -> None:
        self.folder = self.scratch / f"payments-{next(self.numbers)}"
        self.folder.mkdir()

    def baseline(self) -> Path:
        for start in range(0, len(self.values), ROWS):
            some = self.values[start : start + ROWS]
            columns = [
                pa.array([one.id for one in some], SCHEMA.field("id").type),
                pa.array([one.customer for one in some], SCHEMA.field("customer").type),
                pa.array([one.cents for one in some], SCHEMA.field("cents").type),
                pa.array([one.rate for one in some], SCHEMA.field("rate").type),
                pa.array([one.at for one in some], SCHEMA.field("at").type),
                pa.array([one.note for one in some], SCHEMA.field("note").type),
            ]
            unfinished = self.folder / f".{start}.tmp"
            with unfinished.open("wb") as file:
                pq.write_table(pa.table(columns, schema=SCHEMA), file)
                file.flush()
                os.fsync(file.fileno())
            unfinished.rename(self.folder / f"{start}.parquet")
            folder = os.open(self.folder, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)
        return self.folder

    def ours(self) -> Path:
        sink = connectors.rolling_files(self.folder, rows=ROWS)
        owner = SinkOwner("payments", str(self.folder), 0, generation=1, identity=1, value_type=Payment)
        deliver(sink, owner, self.rows, ROWS)
        return self.folder

    def outcome(self, result: Path) -> list[Any]:
        groups, rows = [], []
        for file in result.glob("*.parquet"):
            table = pq.read_table(file)
            groups.append(pq.read_metadata(file).num_row_groups)
            rows += table.to_pylist()
        return [sorted(groups), sorted(rows, key=lambda row: row["id"])]
