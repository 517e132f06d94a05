"""Tables that only Spark can open, as users name them: those of a catalogue, of Delta Lake and of Apache Iceberg."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from runtime.model.errors import SamzaError

TableFormat = Literal["table", "delta", "iceberg"]
FORMATS: tuple[TableFormat, ...] = ("table", "delta", "iceberg")


@dataclass(frozen=True)
class TableName:
    """A table as the session of Spark finds it: by its name in a catalogue, or by its path where it is Delta.

    >>> str(TableName("table", "lake.db.flights"))
    'table:lake.db.flights'
    """

    format: TableFormat
    name: str

    def __str__(self) -> str:
        return f"{self.format}:{self.name}"


def table_of(what: object) -> TableName | None:
    """Return the table that something is bound to; None where it is bound to something else. Raises SamzaError.

    >>> table_of("delta:s3a://lake/flights"), table_of("flights.jsonl")
    (TableName(format='delta', name='s3a://lake/flights'), None)
    """
    if isinstance(what, TableName):
        return what
    if not isinstance(what, str):
        return None
    found, colon, name = what.partition(":")
    if not colon or found not in FORMATS:
        return None
    if not name.strip():
        example = {"table": "catalog.db.flights", "delta": "s3a://lake/flights", "iceberg": "catalog.db.flights"}
        raise SamzaError(f'"{what}" names no table: write "{found}:{example[found]}"')
    return TableName(found, name)
