"""B34: rows into files of Parquet, over pyarrow by hand, which makes as many of the same records, as durable."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.delivery import deliver
from benchmarks.workload import Description, Workload
from runtime.run.run import run_blocking
from runtime.run.settings import RunSettings
from runtime.systems.memory.environment import MemoryEnvironment
from runtime.systems.memory.lists import ListSource
from samza_dsl import App, Options, connectors
from samza_dsl.connectors import SinkOwner, SinkRow

ROWS = 100_000
"""As many as an outbox delivers at a time, each time a file of one row group."""
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
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
UNTIMED = SCHEMA.remove(SCHEMA.get_field_index("at"))


class Payment(msgspec.Struct):
    """A row."""

    id: int
    customer: str
    cents: int
    rate: float
    at: dt.datetime
    note: str | None


class Untimed(msgspec.Struct):
    """A row without a time."""

    id: int
    customer: str
    cents: int
    rate: float
    note: str | None


class Place(msgspec.Struct):
    """A record within a row."""

    city: str
    street: str | None


class Parcel(msgspec.Struct):
    """A row with a list, a record, and bytes."""

    id: int
    customer: str
    labels: list[str]
    place: Place
    code: bytes


PARCELS = pa.schema(
    {
        "id": pa.int64(),
        "customer": pa.string(),
        "labels": pa.list_(pa.string()),
        "place": pa.struct({"city": pa.string(), "street": pa.string()}),
        "code": pa.binary(),
    }
)


@dataclass
class PaymentData:
    """A row as a dataclass."""

    id: int
    customer: str
    cents: int
    rate: float
    at: dt.datetime
    note: str | None


def cells(number: int) -> tuple[int, str, int, float, dt.datetime, str | None]:
    """Return what a row has in each column."""
    at = START + dt.timedelta(seconds=number)
    return number, f"customer {number % 997}", 7 * number, number / 7, at, None if number % 3 else "note"


def columns_of_records(some: Sequence[Any]) -> list[list[Any]]:
    """Return the columns of records that have a time, as one writes it by hand."""
    *columns, notes = columns_of_untimed(some)
    return [*columns, [one.at for one in some], notes]


def columns_of_untimed(some: Sequence[Any]) -> list[list[Any]]:
    """Return the columns of records but for their time, as one writes it by hand."""
    return [
        [one.id for one in some],
        [one.customer for one in some],
        [one.cents for one in some],
        [one.rate for one in some],
        [one.note for one in some],
    ]


def columns_of_dicts(some: Sequence[dict[str, Any]]) -> list[list[Any]]:
    """Return the columns of dicts, as one writes it by hand."""
    return [
        [one["id"] for one in some],
        [one["customer"] for one in some],
        [one["cents"] for one in some],
        [one["rate"] for one in some],
        [one["at"] for one in some],
        [one["note"] for one in some],
    ]


def columns_of_parcels(some: Sequence[Parcel]) -> list[list[Any]]:
    """Return the columns of records that have parts, as one writes it by hand."""
    return [
        [one.id for one in some],
        [one.customer for one in some],
        [one.labels for one in some],
        [{"city": one.place.city, "street": one.place.street} for one in some],
        [one.code for one in some],
    ]


def write_by_hand(folder: Path, columns: list[list[Any]], schema: pa.Schema, number: int) -> None:
    """Write a file, durable, and under its name once it is whole."""
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    unfinished = folder / f".{number}.tmp"
    with unfinished.open("wb") as file:
        pq.write_table(pa.table(arrays, schema=schema), file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(folder / f"{number}.parquet")
    opened = os.open(folder, os.O_RDONLY)
    os.fsync(opened)
    os.close(opened)


class StructsIntoParquet(Workload):
    """Both sides make files of the same records, each durable and under its name once it is whole."""

    description = Description(
        name="B34-struct",
        title="Structs into Parquet by the sink that rolls, over pyarrow by hand",
        messages=500_000,
        quick_scale=0.004,
        bar=1.11,
    )
    kind: ClassVar[object] = Payment
    columns: ClassVar[Callable[[Sequence[Any]], list[list[Any]]]] = staticmethod(columns_of_records)
    schema: ClassVar[pa.Schema] = SCHEMA

    def prepare(self, messages: int) -> None:
        self.values = [*self.made(messages)]
        self.rows = [SinkRow(value) for value in self.values]
        self.numbers = count()

    def made(self, messages: int) -> Iterator[object]:
        """Yield the rows."""
        return (Payment(*cells(number)) for number in range(messages))

    def ready(self) -> None:
        self.folder = self.scratch / f"payments-{next(self.numbers)}"
        self.folder.mkdir()

    def baseline(self) -> Path:
        for start in range(0, len(self.values), ROWS):
            write_by_hand(self.folder, self.columns(self.values[start : start + ROWS]), self.schema, start)
        return self.folder

    def ours(self) -> Path:
        sink = connectors.rolling_files(self.folder, rows=ROWS)
        owner = SinkOwner("payments", str(self.folder), 0, generation=1, identity=1, value_type=self.kind)
        deliver(sink, owner, self.rows, ROWS)
        return self.folder

    def outcome(self, result: Path) -> list[Any]:
        groups, rows = [], []
        for file in result.glob("*.parquet"):
            table = pq.read_table(file)
            groups.append(pq.read_metadata(file).num_row_groups)
            rows += table.to_pylist()
        return [sorted(groups), sorted(rows, key=lambda row: row["id"])]


class UntimedIntoParquet(StructsIntoParquet):
    """The same of records that have no time, which is what takes pyarrow longest."""

    description = Description(
        name="B34-untimed",
        title="the same, Structs without a time",
        messages=500_000,
        quick_scale=0.004,
        bar=1.11,
    )
    kind = Untimed
    columns = staticmethod(columns_of_untimed)
    schema = UNTIMED

    def made(self, messages: int) -> Iterator[object]:
        for number in range(messages):
            id, customer, cents, rate, _, note = cells(number)
            yield Untimed(id, customer, cents, rate, note)


class DictsIntoParquet(StructsIntoParquet):
    """The same of dicts, whose type says nothing of their columns."""

    description = Description(
        name="B34-dict",
        title="the same, dicts",
        messages=500_000,
        quick_scale=0.004,
        bar=1.11,
    )
    kind = dict[str, Any]
    columns = staticmethod(columns_of_dicts)

    def made(self, messages: int) -> Iterator[object]:
        return (dict(zip(SCHEMA.names, cells(number), strict=True)) for number in range(messages))


class DataclassesIntoParquet(StructsIntoParquet):
    """The same of dataclasses."""

    description = Description(
        name="B34-dataclass",
        title="the same, dataclasses",
        messages=500_000,
        quick_scale=0.004,
        bar=1.11,
    )
    kind = PaymentData

    def made(self, messages: int) -> Iterator[object]:
        return (PaymentData(*cells(number)) for number in range(messages))


def discounted(payment: Payment) -> Payment:
    """Return the payment that is to be written; it is called, as it is more than an expression."""
    cents = payment.cents
    if cents > 10_000:
        cents -= 100
    return Payment(payment.id, payment.customer, cents, payment.rate, payment.at, payment.note)


class CalledIntoParquet(StructsIntoParquet):
    """A run: what a function returns that is called goes to a folder of Parquet; by hand it is called, too."""

    description = Description(
        name="B34-called",
        title="a function that is called, its Structs into Parquet in a run, over the loop by hand",
        messages=500_000,
        quick_scale=0.004,
        bar=1.11,
    )
    function: ClassVar[Callable[[Any], object]] = staticmethod(discounted)

    def baseline(self) -> Path:
        for start in range(0, len(self.values), ROWS):
            some = [*map(self.function, self.values[start : start + ROWS])]
            write_by_hand(self.folder, self.columns(some), self.schema, start)
        return self.folder

    def ours(self) -> Path:
        app = App("payments", Options(commit_interval_ms=600_000))
        app.input("rows", value=self.kind).map(self.function).send_to(app.output("written", value=self.kind))
        bind = {"rows": ListSource(self.values), "written": self.folder / "written.parquet"}
        run_blocking(app.pipeline(), MemoryEnvironment(), RunSettings(bind=bind, levers=self.levers))
        return self.folder / "written.parquet"


def labelled(parcel: Parcel) -> Parcel:
    """Return the parcel that is to be written; it is called, as it is more than an expression."""
    labels = [*parcel.labels]
    if parcel.id % 2:
        labels.append("odd")
    return Parcel(parcel.id, parcel.customer, labels, parcel.place, parcel.code)


class PartsIntoParquet(CalledIntoParquet):
    """The same of rows that have parts."""

    description = Description(
        name="B34-parts",
        title="the same, Structs with a list, a record and bytes",
        messages=300_000,
        quick_scale=0.006,
        bar=1.11,
    )
    kind = Parcel
    columns = staticmethod(columns_of_parcels)
    schema = PARCELS
    function = staticmethod(labelled)

    def made(self, messages: int) -> Iterator[object]:
        for number in range(messages):
            place = Place(f"city {number % 97}", None if number % 3 else f"street {number % 997}")
            yield Parcel(number, f"customer {number % 997}", ["a", f"label {number % 7}"], place, b"%d" % number)
