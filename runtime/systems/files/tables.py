"""Tables that only Spark can open, as users name them: those of a catalogue, of Delta Lake and of Apache Iceberg."""

from __future__ import annotations

from collections.abc import Sequence
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


@dataclass(frozen=True)
class SparkTable:
    """An input of a run on Spark whose partitions and order are said: `bind={"flights": SparkTable(frame, ...)}`.

    `frame` is what an input may be bound to there: a DataFrame of Spark or pandas, an Arrow table, an RDD, the name of
    a table, or the path or URL of Parquet. Rows that have the same in the columns `partition_by` are of one partition,
    and in each partition rows are read as the columns `order_by` sort them, nulls first.

    What is not said is as without a `SparkTable`: the columns `_partition` and `_offset` say it where there are such;
    else each file, or each partition that Spark has, is a partition, in its own order.

    >>> SparkTable("table:lake.flights", order_by="departed", partition_by=["carrier"])
    SparkTable(frame='table:lake.flights', order_by=('departed',), partition_by=('carrier',))
    """

    frame: object
    order_by: str | Sequence[str] = ()
    partition_by: str | Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("order_by", "partition_by"):
            said: object = getattr(self, name)
            columns = (said,) if isinstance(said, str) else said
            if not isinstance(columns, Sequence) or not all(isinstance(one, str) for one in columns):
                raise SamzaError(f'SparkTable({name}={said!r}): write the names of columns: {name}="departed"')
            object.__setattr__(self, name, tuple(columns))
        if isinstance(self.frame, SparkTable):
            raise SamzaError("SparkTable(SparkTable(...)): say order_by= and partition_by= in one of them")


def only_on_spark(what: object) -> str | None:
    """Return what to call something that only a run on Spark reads; None where any run can.

    >>> only_on_spark("table:lake.flights"), only_on_spark("flights.jsonl")
    ('a table', None)
    """
    if isinstance(what, SparkTable) or table_of(what) is not None:
        return "a table"
    package = type(what).__module__.partition(".")[0]
    return f"a {type(what).__name__} of {package}" if package in {"pyspark", "pandas", "pyarrow"} else None


def check_read_anywhere(what: object) -> None:
    """Raise SamzaError for what only a run on Spark reads."""
    kind = only_on_spark(what)
    if kind is not None:
        said = f"{what}: a table" if isinstance(what, str) else kind
        raise SamzaError(
            f"{said} is read by a run on Spark alone: add on=Spark(session), or --on spark; or bind files, such as "
            '"flights.parquet"'
        )
