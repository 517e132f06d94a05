"""The rows that inputs are bound to, as DataFrames: opened, checked, grouped into partitions, and put in order."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

import pyarrow as pa

from operators.io import Input
from planner.columnar.lowering import event_time_column
from runtime.model.errors import SamzaError
from runtime.ports.source import Source
from runtime.spark.columns import FrameColumns, PackedRows, kept_type, named
from runtime.spark.connection import connected
from runtime.spark.own_code import with_own_code
from runtime.spark.session import clone_of, has_arrow_tables
from runtime.spark.spark_errors import as_said
from runtime.systems.files.files import KIND_OF_SUFFIX, kind_read, open_files
from runtime.systems.files.folders import Folders
from runtime.systems.files.places.locations import (
    DataFile,
    FolderFields,
    RemoteFile,
    braced,
    fields_in,
    files_of,
    is_remote,
    matches,
    of_http,
    parted,
    url_of,
)
from runtime.systems.files.places.tables import SparkTable, is_frame, table_of
from runtime.systems.files.plain_columns import in_microseconds, tell_finer
from runtime.systems.files.table_files import (
    KEY,
    OFFSET,
    OWN,
    OWN_TYPES,
    PARTITION,
    TIMES,
    VALUE,
    PackedValues,
    PlainRows,
    StoredRows,
)
from runtime.systems.frames.frame_source import arrow_of
from runtime.units.laid_rows import GROUP, TEXT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession

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
    from pyspark import RDD

    asked = what if isinstance(what, SparkTable) else SparkTable(what)
    if isinstance(asked.frame, str | Path) and table_of(asked.frame) is None:
        with opening(stream, asked.frame):
            return _of_files(session, stream, asked, reads)
    with opening(stream, asked.frame):
        if isinstance(asked.frame, RDD):
            # Its types may be asked of its values, by workers.
            return with_own_code(connected(session), partial(_of_rdd, session, stream, asked, reads))
        frame, has_order = opened(session, stream, asked.frame)
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


def opened(session: SparkSession, stream: str, what: object) -> tuple[DataFrame, bool]:
    """Return a table as a DataFrame, and whether its rows have an order of their own."""
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
    package, kind = type(what).__module__.partition(".")[0], type(what).__name__
    if (package, kind) == ("pyspark", "DataFrame"):  # one of pandas on Spark
        return cast("DataFrame", what.to_spark()), False  # type: ignore[attr-defined]  # which Spark has not typed
    if is_frame(what):
        return _of_frame(session, stream, arrow_of(what, stream)), True
    raise SamzaError(
        f"bind={{{stream!r}: ...}}: a {kind} of {package} is no table: make it a DataFrame of Spark or pandas, or an "
        "Arrow table"
    )


def _of_rdd(session: SparkSession, stream: str, asked: SparkTable, reads: Sequence[Input]) -> Frame:
    """Return the rows of an RDD, each packed by Python, with the columns by which they are arranged beside."""
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import BinaryType, StringType, StructField, StructType

    rows: Any = asked.frame
    named_columns = tuple(dict.fromkeys([*asked.order_by, *asked.partition_by]))
    packed, made = PackedRows.declared(reads[0].value, named_columns), _maker(session)
    rows, said = rows.mapPartitions(packed.of), FrameColumns.declared(reads)
    columns = [StructField(OWN[VALUE], BinaryType())]
    for place, name in enumerate(named_columns, 1):
        if said is not None and name not in said:
            raise SamzaError(
                f"bind={{{stream!r}: SparkTable(...)}}: there is no column {name}; there are {', '.join(said)}"
            )
        known = said and said.get(name)
        if known is not None:
            columns.append(from_arrow_schema(pa.schema([(name, known)]), True).fields[0])
        elif rows.isEmpty():
            columns.append(StructField(name, StringType()))
        else:  # of these alone Spark is asked what all values are of
            found = made(rows.map(lambda row, place=place: (row[place],)), [name], samplingRatio=1.0)
            columns.append(found.schema.fields[0])
    frame = made(rows, StructType(columns))
    group = _group_of(frame, asked.partition_by, reads) if asked.partition_by else None
    arranged_rows = arranged(frame, [OWN[VALUE]], asked.order_by, group)
    return Frame(stream, arranged_rows, pa.schema([(OWN[VALUE], OWN_TYPES[VALUE])]), opened=PackedValues)


def _group_of(frame: DataFrame, partition_by: Sequence[str], reads: Sequence[Input]) -> Column:
    """Return the number of the partition of rows that have the same in some columns."""
    from pyspark.sql import functions

    said = next((spec.partitions for spec in reads if spec.partitions is not None), None)
    number = said or connected(frame.sparkSession).at_once
    return functions.pmod(functions.hash(*map(named, partition_by)), functions.lit(number)).cast("string")


def _maker(session: SparkSession) -> Callable[..., DataFrame]:
    return session.createDataFrame


def _of_frame(session: SparkSession, stream: str, table: pa.Table) -> DataFrame:
    """Return a table of Arrow as Spark has it, whose times mean there what they mean here; raises SamzaError."""
    from pyspark.sql.pandas.types import from_arrow_schema

    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        found = in_microseconds(column.combine_chunks(), partial(tell_finer, name))
        kind = kept_type(found.type)
        try:
            from_arrow_schema(pa.schema([(name, kind)]), True)
            columns[name] = found if found.type == kind else found.cast(kind)
        except Exception as error:
            raise as_said(
                error,
                f"bind={{{stream!r}: ...}}: the column {name!r} is {column.type}, of which Spark has not these values: "
                "make it text or a number of another type",
            ) from None
    table = pa.table(columns)
    schema, made = from_arrow_schema(table.schema, True), _maker(session)
    if has_arrow_tables():
        return made(table, schema)
    return made([tuple(row.values()) for row in table.to_pylist(maps_as_pydicts="strict")], schema)


def _of_table(stream: str, asked: SparkTable, frame: DataFrame, has_order: bool, reads: Sequence[Input]) -> Frame:
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
        group = _group_of(frame, asked.partition_by, reads)
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
    if is_remote(what) and of_http(str(what)):
        raise SamzaError(
            f"bind={{{stream!r}: {url_of(what)!r}}}: Spark reads no files over HTTP, as it can't list them: fetch them "
            "first, and bind what was fetched; or leave on=Spark(...) out, as a run without it reads them there"
        )
    reader = whole_files(session).read.option("recursiveFileLookup", "true")
    places = _places(reader, what)
    listed = reader.text(places).inputFiles() if places else []
    files = sorted(listed, key=lambda one: unquote(one).split("/"))
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
        lines = reader.option("lineSep", "\n").text(places).select(TEXT, group.alias(GROUP))
        return Frame(stream, lines, pa.schema([]), suffix=f".{kinds[0]}", fields=fields)
    frame = reader.option("mergeSchema", "true").parquet(*places)
    columns = FrameColumns.of(stream, frame, reads, given)
    if not given and {PARTITION, OFFSET} <= columns.types.keys():  # an archive, whose files are parts of partitions
        return _of_table(stream, asked, frame, False, reads)
    columns.check()
    columns.check_known("order_by", asked.order_by)
    rows = arranged(frame, columns.kept, asked.order_by, group, moved=False)
    opens = PlainRows if columns.are_values else open_files
    return Frame(stream, rows, columns.schema(columns.kept), opened=opens, fields=fields)


def _places(reader: DataFrameReader, what: str | Path) -> list[str]:
    """Return the files, folders and globs that Spark is to read where an input is bound to a path or a URL."""
    if not is_remote(what):
        return [_spelled_out(f"file://{file.path.absolute()}") for file in files_of(what)]
    url = url_of(what)
    if "**" not in url:
        return [url]
    # Spark takes it for "*": all that is below is listed, and held against the rest of the pattern.
    patterns = [parted(one)[1] for one in braced(url)]
    below = [unquote(file) for file in reader.text(url.partition("**")[0].rpartition("/")[0]).inputFiles()]
    return [_spelled_out(file) for file in below if any(matches(parted(file)[1], one) for one in patterns)]


def _spelled_out(file: str) -> str:
    """Return the name of a file as one that is no glob of Spark's."""
    return re.sub(r"[\\*?\[\]{}]", r"\\\g<0>", file)


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
