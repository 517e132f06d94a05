"""F1: records of Avro as Confluent's serialisers write them, read and written; by hand it is fastavro in a loop."""

from __future__ import annotations

import datetime as dt
import io
from typing import Any

import fastavro
import msgspec

from benchmarks.workload import Description, Workload
from runtime.encoding.serdes import decoded, encoded
from runtime.model.garbage import collector_patient
from samza_dsl.formats import Avro, SchemaRegistry

AT_ONCE = 5_000
"""The records of a batch, as a reader hands them on."""


class Trip(msgspec.Struct):
    """What is read and written: a field of each kind that is frequent."""

    id: int
    city: str
    km: float
    paid: bool
    at: dt.datetime
    tags: list[str]
    note: str | None = None


class AvroWithRegistry(Workload):
    """Bytes → Structs → bytes behind the number of a schema; both sides have the answer of the registry already."""

    description = Description(
        name="F1-batch",
        title="Avro with a registry, read and written many at a time",
        messages=100_000,
        quick_scale=0.02,
        bar=1.11,
    )

    def prepare(self, messages: int) -> None:
        start = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
        self.serde = Avro(Trip, registry=SchemaRegistry("memory://benchmark"), subject="trips-value")
        trips = (
            Trip(n, f"city {n % 97}", n / 7, n % 3 == 0, start + dt.timedelta(seconds=n), ["a"], "x" if n % 2 else None)
            for n in range(messages)
        )
        self.stored = list(map(self.serde.encode, trips))
        self.schema = fastavro.parse_schema(msgspec.json.decode(self.serde.text))

    def baseline(self) -> list[bytes]:
        schema, read, write, head = (
            self.schema,
            fastavro.schemaless_reader,
            fastavro.schemaless_writer,
            self.stored[0][:5],
        )
        written = []
        for data in self.stored:
            file = io.BytesIO(data)
            assert file.read(5) == head
            trip = Trip(**read(file, schema))
            file = io.BytesIO()
            file.write(head)
            write(file, schema, msgspec.structs.asdict(trip))
            written.append(file.getvalue())
        return written

    def ours(self) -> list[bytes]:
        written: list[bytes] = []
        with collector_patient():  # as in a run
            for start in range(0, len(self.stored), AT_ONCE):
                trips = decoded(self.serde, self.stored[start : start + AT_ONCE])
                written += encoded(self.serde, trips)
        return written

    def outcome(self, result: Any) -> list[bytes]:
        return list(result)


class AvroOneByOne(AvroWithRegistry):
    """The same value by value, as where somebody waits for each; no bar is for that."""

    description = Description(
        name="F1-single",
        title="the same, value by value",
        messages=100_000,
        quick_scale=0.02,
        bar=None,
    )

    def ours(self) -> list[bytes]:
        encode, decode = self.serde.encode, self.serde.decode
        return [encode(decode(data)) for data in self.stored]
