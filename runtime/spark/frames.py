"""The rows that inputs are bound to, as DataFrames: opened, checked, grouped into partitions, and put in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa

from operators.io import Input
from planner.columnar.lowering import event_time_column
from runtime.model.errors import SamzaError
from runtime.ports.source import Source
from runtime.spark.columns import FrameColumns, by_name
from runtime.spark.connection import connected
from runtime.spark.session import clone_of
from runtime.spark.spark_errors import as_said
from runtime.systems.files.files import KIND_OF_SUFFIX, kind_read, open_files
from runtime.systems.files.folders import Folders
from runtime.systems.files.places.locations import (
    DataFile,
    FolderFields,
    RemoteFile,
    fields_in,
    is_remote,
    local_path,
    url_of,
)
from runtime.systems.files.places.tables import SparkTable, table_of
from runtime.systems.files.table_files import (
    KEY,
    OFFSET,
    OWN,
    OWN_TYPES,
    PARTITION,
    TIMES,
    VALUE,
    PlainRows,
    StoredRows,
)
from runtime.units.laid_rows import GROUP, TEXT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

WHOLE_FILES = {
    "spark.sql.files.maxPartitionBytes": str(1 << 46),
    "spark.sql.files.openCostInBytes": str(1 << 46),
}
"""The settings by which a task of Spark reads one file, and all of it: none is cut, and no two are put together."""
TIE = "samza_dsl_row"
"""The column that keeps rows in the order in which Spark has read them, where nothing else tells them apart."""


@dataclass(frozen=True)
class Frame:
    """The rows of one input, each with its group, in the order in which they are laid down.

    Each group is a partition: a file of `fields`, or a number, which is that of the partition where it is `numbered`.
    """

    stream: str
    rows: DataFrame
    schema: pa.Schema
    suffix: str = ".parquet"
    opened: Callable[[Sequence[DataFile]], Source] = open_files
    fields: Mapping[str, FolderFields] = field(default_factory=dict)
    numbered: bool = False
    offsets: bool = False
    """Whether rows say at which offsets they lay."""


def frame_of(session: SparkSession, stream: str, what: object, reads: Sequence[Input]) -> Frame:
    """Return the rows that an input is bound to; raises SamzaError where Spark can't open them, or types differ."""
    asked = what if isinstance(what, SparkTable) else SparkTable(what)
    if isinstance(asked.frame, str | Path) and table_of(asked.frame) is None:
        with opening(stream, asked.frame):
            return _of_files(session, stream, asked, reads)
    with opening(stream, asked.frame):
        frame, has_order = opened(session, stream, asked.frame, reads)
        return _of_table(stream, asked, frame, has_order, reads)


@contextmanager
def opening(stream: str, what: object) -> Iterator[None]:
    """Say of what Spark can't open what it is bound to."""
    try:
        yield
    except SamzaError:
        raise
    except Exception as error:
        said = what if isinstance(what, str | Path) else type(what).__name__
        raise as_said(error, f"bind={{{stream!r}: ...}}: Spark can't open {said}") from None


def opened(session: SparkSession, stream: str, what: object, reads: Sequence[Input]) -> tuple[DataFrame, bool]:
    """Return a table as a DataFrame, and whether its rows have an order of their own."""
    from pyspark import RDD
    from pyspark.sql import DataFrame

    table = table_of(what)
    if table is not None:
        opens = session.table if table.format == "table" else session.read.format(table.format).load
        return opens(table.name), False
    if isinstance(what, DataFrame):
        if what.isStreaming:
            raise SamzaError(
                f"bind={{{stream!r}: ...}}: a streaming DataFrame has no end: bind it in a run that goes on, "
                "Spark(session, checkpoint=...), or bind what it reads as a DataFrame that has one (session.read)"
            )
        return what, False
    made: Any = session.createDataFrame
    if isinstance(what, RDD):
        return made(what.map(by_name), FrameColumns.declared(reads)), True
    package, kind = type(what).__module__.partition(".")[0], type(what).__name__
    if (package, kind) in {("pandas", "DataFrame"), ("pyarrow", "Table"), ("pyarrow", "RecordBatch")}:
        return made(pa.Table.from_batches([what]) if isinstance(what, pa.RecordBatch) else what), True
    raise SamzaError(
        f"bind={{{stream!r}: ...}}: a {kind} of {package} is no table: make it a DataFrame of Spark or pandas, or an "
        "Arrow table"
    )


def _of_table(stream: str, asked: SparkTable, frame: DataFrame, has_order: bool, reads: Sequence[Input]) -> Frame:
    from pyspark.sql import functions

    columns = FrameColumns.of(stream, frame, reads)
    columns.check()
    numbered = PARTITION in columns.types and not asked.partition_by
    order = list(asked.order_by)
    if not order and OFFSET in columns.types and not asked.partition_by:
        order = [OFFSET]
    elif not order and not has_order:
        at = next((name for spec in reads if (name := event_time_column(spec, columns.by_field)) is not None), None)
        order = [one for one in (at, columns.of_stream.get(TIMES[0])) if one is not None][:1]
    own = dict(columns.of_stream)
    if numbered and order == [OFFSET]:
        own[OFFSET] = OFFSET
        columns.check_whole(OFFSET)
    columns.check_known("order_by", order)
    columns.check_known("partition_by", asked.partition_by)
    for name in {PARTITION} if numbered else set():
        columns.check_whole(name)
    opens = PlainRows if columns.are_values else StoredRows if own else open_files
    group = None  # each partition that Spark has is one
    if numbered:
        group = named(PARTITION).cast("long").cast("string")
    elif asked.partition_by:
        said = next((spec.partitions for spec in reads if spec.partitions is not None), None)
        number = said or connected(frame.sparkSession).at_once
        group = functions.pmod(functions.hash(*map(named, asked.partition_by)), functions.lit(number)).cast("string")
    rows = arranged(frame, columns.kept, order, group, said=own_columns(columns, own))
    schema = columns.schema(columns.kept)
    for name in own:
        schema = schema.append(pa.field(OWN[name], OWN_TYPES[name]))
    return Frame(stream, rows, schema, opened=opens, numbered=numbered, offsets=OFFSET in own)


def own_columns(columns: FrameColumns, said: Mapping[str, str]) -> dict[str, Column]:
    """Return what rows say of themselves, as it is laid down."""
    from pyspark.sql import functions

    found = {}
    for what, name in said.items():
        column, kind = named(name), columns.types[name]
        if what == KEY:
            column = (column if kind in (pa.binary(), pa.string()) else column.cast("string")).cast("binary")
        elif what != VALUE:
            column = functions.unix_millis(column) if kind == pa.timestamp("us", "UTC") else column.cast("long")
        found[OWN[what]] = column
    return found


def arranged(
    frame: DataFrame,
    kept: Sequence[str],
    order: Sequence[str],
    group: Column | None,
    moved: bool = True,
    said: Mapping[str, Column] = MappingProxyType({}),
) -> DataFrame:
    """Return some columns of rows, with their groups and what they have `said`, in order.

    Each group is `moved` to one task.
    """
    from pyspark.sql import functions

    needed = [named(name) for name in dict.fromkeys([*kept, *order])]
    needed += [column.alias(name) for name, column in said.items()]
    of_group = [] if group is None else [GROUP]
    if group is not None:
        needed.append(group.alias(GROUP))
    rows = frame.select(*needed, functions.monotonically_increasing_id().alias(TIE))
    if group is not None and moved:
        rows = rows.repartition(GROUP).sortWithinPartitions(GROUP, *map(named, order), TIE)
    elif order:
        rows = rows.sortWithinPartitions(*of_group, *map(named, order), TIE)
    return rows.select(*map(named, [*kept, *said]), *of_group)


def named(column: str) -> Column:
    """Return the column of a name, whatever letters that has."""
    from pyspark.sql import functions

    return functions.col("`" + column.replace("`", "``") + "`")


def _of_files(session: SparkSession, stream: str, asked: SparkTable, reads: Sequence[Input]) -> Frame:
    """Return the rows of files that Spark finds: of Parquet its columns, of others their lines as they are."""
    from pyspark.sql import functions

    what = asked.frame
    assert isinstance(what, str | Path)
    if asked.partition_by:
        raise SamzaError(
            f"bind={{{stream!r}: SparkTable({str(what)!r}, partition_by=...)}}: each file is a partition. Read it as a "
            f'DataFrame, to have others: SparkTable(session.read.parquet({str(what)!r}), partition_by="...")'
        )
    url = url_of(what) if is_remote(what) else local_path(what).absolute().as_uri()
    reader = whole_files(session).read.option("recursiveFileLookup", "true")
    files = sorted(reader.text(url).inputFiles(), key=lambda one: unquote(one).split("/"))
    if not files:
        raise SamzaError(f"bind={{{stream!r}: {str(what)!r}}}: there is no file there, nor below it")
    found = [DataFile(RemoteFile(unquote(file)), fields_in(unquote(file))) for file in files]
    kinds = sorted({kind_read(file.path) for file in found})
    if len(kinds) > 1:
        raise SamzaError(f"{what} holds files of several kinds ({', '.join(kinds)}); bind one kind at a time")
    if kinds[0] not in KIND_OF_SUFFIX.values():
        raise SamzaError(f"{what}: a run on Spark reads JSON lines, CSV and Parquet, not {kinds[0]}: bind such files")
    given = Folders(found).names
    fields = {same_spelling(file): one.fields for file, one in zip(files, found, strict=True)}
    group = functions.col("_metadata.file_path")
    if kinds != ["parquet"]:
        if asked.order_by:
            raise SamzaError(f"bind={{{stream!r}: SparkTable(order_by=...)}}: only tables and Parquet have columns")
        lines = reader.option("lineSep", "\n").text(url).select(TEXT, group.alias(GROUP))
        return Frame(stream, lines, pa.schema([]), suffix=f".{kinds[0]}", fields=fields)
    frame = reader.option("mergeSchema", "true").parquet(url)
    columns = FrameColumns.of(stream, frame, reads, given)
    if not given and {PARTITION, OFFSET} <= columns.types.keys():  # an archive, whose files are parts of partitions
        return _of_table(stream, asked, frame, False, reads)
    columns.check()
    columns.check_known("order_by", asked.order_by)
    rows = arranged(frame, columns.kept, asked.order_by, group, moved=False)
    opens = PlainRows if columns.are_values else open_files
    return Frame(stream, rows, columns.schema(columns.kept), opened=opens, fields=fields)


def same_spelling(url: str) -> str:
    """Return a URL as it is spelled here: Spark says both of these.

    >>> same_spelling("file:/data/a.parquet") == same_spelling("file:///data/a.parquet")
    True
    """
    scheme, _, rest = url.partition(":")
    return f"{scheme}:{rest}" if rest.startswith("//") else f"{scheme}://{rest}"


def whole_files(session: SparkSession) -> SparkSession:
    """Return a copy of a session, with all that is set and known there, whose tasks read one whole file each."""
    copy = clone_of(session)
    if copy is None:
        raise SamzaError(
            "through Spark Connect, what only Spark opens is read with PySpark 4.1 or newer, which can copy a session: "
            "update it, or bind files that workers open themselves"
        )
    for name, value in WHOLE_FILES.items():
        copy.conf.set(name, value)
    copy.conf.unset("spark.sql.files.maxPartitionNum")
    return copy
