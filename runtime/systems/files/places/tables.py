"""Tables that only Spark can open, as users name them: those of a catalogue, of Delta Lake and of Apache Iceberg."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qs

from runtime.model.errors import SamzaError
from runtime.systems.files.places.locations import is_remote, local_path, url_of

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
            object.__setattr__(self, name, _column_names("SparkTable", name, getattr(self, name)))
        if isinstance(self.frame, SparkTable):
            raise SamzaError("SparkTable(SparkTable(...)): say order_by= and partition_by= in one of them")


Mode = Literal["append", "overwrite", "merge"]
MODES: tuple[Mode, ...] = ("append", "overwrite", "merge")


@dataclass(frozen=True)
class IntoTable:
    """An output of a run on Spark that goes to a table: `bind={"delays": IntoTable("table:lake.delays", "append")}`.

    `table` is named as an input's is, "table:…", "delta:…" or "iceberg:…"; or it is the path of a folder of Parquet
    that is not there yet, which any run writes. What becomes of rows that the table has is the `mode`: they stay
    ("append"), they go ("overwrite"), or those with the same values in the columns `key` are replaced ("merge", which
    Delta and Iceberg can). Without a mode there must be none. The files of a table that is made are parted by the
    columns `partition_by`.

    >>> IntoTable("table:lake.delays", "merge", key="carrier").key
    ('carrier',)
    """

    table: str | Path | TableName
    mode: Mode | None = None
    partition_by: str | Sequence[str] = ()
    key: str | Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("partition_by", "key"):
            object.__setattr__(self, name, _column_names("IntoTable", name, getattr(self, name)))
        if self.mode is not None and self.mode not in MODES:
            raise SamzaError(f"IntoTable(mode={self.mode!r}): there are {', '.join(map(repr, MODES))}")
        if (self.mode == "merge") != bool(self.key):
            wrong = "merge needs the columns that rows are told apart by" if not self.key else "key= is for merge"
            raise SamzaError(f'IntoTable({str(self.table)!r}): {wrong}: write mode="merge", key="id"')
        if self.mode is not None and self.name is None:
            raise SamzaError(
                f"IntoTable({str(self.table)!r}, {self.mode!r}): a folder of Parquet is written as a whole"
            )
        if self.name is None and is_remote(str(self.table)):
            url = url_of(str(self.table))
            raise SamzaError(
                f"IntoTable({url!r}): a folder of Parquet lies on this machine: write to a table there, on Spark, "
                f'"delta:{url}" or "table:NAME"; or files that roll into the folder, "rolling:{url}"'
            )

    @property
    def name(self) -> TableName | None:
        """The table; None for a folder of Parquet."""
        return table_of(self.table)

    @property
    def folder(self) -> Path:
        """The path of a folder of Parquet."""
        return local_path(str(self.table))

    def __str__(self) -> str:
        return str(self.table)


def into_table(what: object) -> IntoTable | None:
    """Return the table that an output is bound to; None where it is bound to something else. Raises SamzaError.

    As text, options stand behind its name, and make a path that of a folder.

    >>> into_table("table:lake.delays?mode=append&partition_by=day,hour").partition_by
    ('day', 'hour')
    >>> into_table("delays/?partition_by=day"), into_table("delays.jsonl")
    (IntoTable(table='delays/', mode=None, partition_by=('day',), key=()), None)
    """
    if isinstance(what, IntoTable):
        return what
    found = table_of(what)
    if not isinstance(what, str) or (found is None and "?partition_by=" not in what):
        return None if found is None else IntoTable(found)
    name, _, said = what.partition("?")
    options = parse_qs(said, keep_blank_values=True, strict_parsing=bool(said))
    if unknown := options.keys() - {"mode", "partition_by", "key"}:
        raise SamzaError(
            f"{what}: there is no option {', '.join(sorted(unknown))}; write ?mode=append&partition_by=day"
        )
    columns = {
        each: options.get(each, [""])[-1].split(",") if each in options else () for each in ("partition_by", "key")
    }
    mode = options.get("mode", [None])[-1]
    return IntoTable(name, mode, **columns)  # type: ignore[arg-type]  # which is looked at there


def _column_names(where: str, name: str, said: object) -> tuple[str, ...]:
    columns = (said,) if isinstance(said, str) else said
    if not isinstance(columns, Sequence) or not all(isinstance(one, str) and one for one in columns):
        raise SamzaError(f'{where}({name}={said!r}): write the names of columns: {name}="departed"')
    return tuple(columns)


def only_on_spark(what: object) -> str | None:
    """Return what to call something that only a session of Spark reads for its workers; None where any run can.

    >>> only_on_spark("table:lake.flights"), only_on_spark("flights.jsonl")
    ('a table', None)
    """
    if isinstance(what, SparkTable | IntoTable) or table_of(what) is not None:
        return "a table"
    package = type(what).__module__.partition(".")[0]
    return f"a {type(what).__name__} of {package}" if package == "pyspark" or is_frame(what) else None


def check_read_anywhere(what: object) -> None:
    """Raise SamzaError for what only a run on Spark reads."""
    kind = only_on_spark(what)
    if kind is not None:
        said = f"{what}: a table" if isinstance(what, str) else kind
        raise SamzaError(
            f"{said} is read by a run on Spark alone: add on=Spark(session), or --on spark; or bind files, such as "
            '"flights.parquet"'
        )


def check_written_anywhere(what: object) -> None:
    """Raise SamzaError for what only a run on Spark writes."""
    if (into := into_table(what)) is not None and into.name is not None:
        raise SamzaError(
            f"{into}: it is written by a run on Spark alone: add on=Spark(session), or --on spark; or bind a file, "
            'such as "delays.parquet"'
        )


def is_frame(what: object) -> bool:
    """Whether something is a frame in memory, whose columns Arrow can take.

    >>> is_frame([1, 2]), is_frame("flights.parquet")
    (False, False)
    """
    package = type(what).__module__.partition(".")[0]
    return package in {"pandas", "polars", "pyarrow"} or hasattr(what, "__arrow_c_stream__")
