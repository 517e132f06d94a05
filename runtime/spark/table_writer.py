"""One output of a run that its session writes: the rows that workers have laid down, and the table that they go to."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import inspect

from operators.core.base import Output
from runtime.encoding.formats.rows import (
    VALUE,
    alternatives,
    column_types,
    columns_of,
    has_columns,
    row_type,
    type_of_values,
)
from runtime.model.errors import SamzaError, system_errors_told
from runtime.spark.columns import named, quoted, quoted_text, sql_type, times_advice, type_of
from runtime.spark.session import copied
from runtime.spark.spark_errors import as_said
from runtime.systems.files.places.locations import NO_VALUE
from runtime.systems.files.places.tables import IntoTable, TableName
from runtime.systems.files.schemas import (
    ColumnType,
    FieldDifference,
    arrow_type,
    check_fields,
    differences,
    differences_of_value,
)
from runtime.systems.host.durable import make_durable, replace_durably

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

MERGING = ("delta", "iceberg")
"""The formats of tables that rows can be merged into."""
ABSENT = ("PATH_NOT_FOUND", "DELTA_TABLE_NOT_FOUND", "DELTA_PATH_DOES_NOT_EXIST")
"""The conditions by which a table of Delta is not there."""
LOSSY = ("csv", "text")
"""The formats of tables that do not hold all texts."""
LAST = "samza_dsl_newer"
_PLACES = {"samza_dsl_file": "_metadata.file_path", "samza_dsl_row": "_metadata.row_index"}
"""The columns that say where a row lies, in the order of rows."""
RUN = "samza-dsl-run"
"""The property of a snapshot of Iceberg that says which run has made it."""
SESSION_CATALOG = "spark_catalog"
VIEWS = ("VIEW", "TEMPORARY")
"""The words of a catalogue for what is no table."""
_PART_OF_NAME = re.compile(r"`(?:[^`]|``)*`|[^.`]+")
STATIC = ("partitionOverwriteMode", "static")
"""The option by which all of a table goes that is overwritten, whatever parts of it the session spares."""


@dataclass(frozen=True)
class KeptOutput:
    """An output that is laid down: where, of which type, and the table that it goes to, if to any.

    Its rows are in all files of `path`; where it has `parts`, in these folders there alone.
    """

    output: Output
    path: Path
    into: IntoTable | None
    parts: tuple[str, ...] = ()

    @property
    def kind(self) -> object:
        """The type of its rows."""
        return type_of_values(self.output.value)

    @property
    def rows(self) -> object:
        """The type of its rows as they are written: a plain value is a row of one column."""
        return row_type(self.kind)

    @property
    def where(self) -> str:
        """The output, as an error names it."""
        return f"output {self.output.stream!r} at {self.output.site}"

    def check(self, session: SparkSession) -> None:
        """Raise SamzaError where nothing says which columns its values are, or Spark has no such ones."""
        if self.kind is not None:
            check_fields(self.rows, self.where)
            columns = pa.struct([(name, kind) for name, kind in self._declared().items() if kind is not None])
            if _has_times(columns) and session.conf.get("spark.sql.timeType.enabled", None) != "true":
                raise SamzaError(
                    f"{self.where}: a time of day is no column of Spark's: make it text, as at.isoformat(); or set "
                    "spark.sql.timeType.enabled in the session, from PySpark 4.1 on"
                )
        else:
            raise SamzaError(
                f"{self.where}: its serde does not say which columns its values are: declare a msgspec Struct, a "
                "dataclass, a dict or a plain type"
            )

    def differences(self, columns: Mapping[str, ColumnType]) -> list[FieldDifference]:
        """Return what of its rows does not fit the columns of a table."""
        if columns_of(self.kind) is None:
            return []
        if has_columns(self.kind):
            return differences(self.kind, columns)
        if VALUE not in columns:
            return [FieldDifference(VALUE, getattr(self.kind, "__name__", str(self.kind)), "no such column")]
        return differences_of_value(self.kind, VALUE, columns[VALUE])

    def frame(
        self,
        session: SparkSession,
        there: StructType | None = None,
        placed: bool = False,
        parted: Collection[str] = (),
    ) -> DataFrame:
        """Return its rows, which nobody has read yet, with columns as a table that is `there` has them.

        With `placed` there are columns that say in which file a row lies, and where; those that are `parted` come to be
        names of folders. Raises SamzaError where nothing says what columns there are. A value that would change is an
        error once rows are read.
        """
        with self.told("Spark can't have such columns"):
            parts, said = self._read(session), _PLACES if placed else {}
            self._check_fits(session, [kind for _, kind in parts], there)
            wanted = there or _wide(reduce(self._merged, (kind for _, kind in parts)))
            fitted = [_fitted(rows, kind, wanted, there is not None, said) for rows, kind in parts]
            found = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), fitted)
            return _named_by_folders(found, parted) if parted else found

    def _check_fits(self, session: SparkSession, kinds: Sequence[StructType], there: StructType | None) -> None:
        """Raise SamzaError where a table that is `there` has not the columns that values say."""
        found = {} if there is None else {one: None for kind in kinds for one in _unlike(kind, there, _is_other)}
        if found:
            raise SamzaError(
                f"{self.where}: {self.into} has other columns than its values have fields: "
                f"{'; '.join(map(str, found))}. Alter the table, or map to what it has{times_advice(session, found)}"
            )
        self.check_texts(there, {name for kind in kinds for name in kind.names})

    def check_texts(self, there: StructType | None, names: Collection[str]) -> None:
        """Raise SamzaError where some columns of a table have texts within that Spark would pad or cut."""
        said = {one.name: _said_type(one) for one in (() if there is None else there.fields) if one.name in names}
        if odd := [f"{name} {kind}" for name, kind in said.items() if _CUT.search(kind) and not _CUT.fullmatch(kind)]:
            raise SamzaError(
                f"{self.where}: {self.into} has {', '.join(odd)}, of whose texts Spark would pad or cut some: make it "
                "STRING"
            )

    def columns(self) -> StructType | None:
        """Return the columns that its type says, and those that its values would have if there were none."""
        if columns_of(self.kind) is None:
            return None
        of_none = {name: arrow_type_of_none(info) for name, info in column_types(self.rows, self._declared()).items()}
        return _struct({name: kind or of_none[name] for name, kind in self._declared().items()})

    def _read(self, session: SparkSession) -> list[tuple[DataFrame, StructType]]:
        """Return the rows of files that have the same columns, and of which types these are."""
        declared, own = self._declared(), columns_of(self.kind)
        if own is not None and None not in declared.values():
            schema = _struct(declared)
            return [(session.read.schema(schema).parquet(*self._places), schema)]
        found: dict[str, list[tuple[str, StructType]]] = {}
        for file in (str(file) for place in self._places for file in _files(place)):
            kind = _of_arrow(pq.read_schema(file))
            found.setdefault(repr([*_apart(kind)]), []).append((file, kind))
        parts = []
        for files in found.values():
            kind = self._completed(reduce(self._merged, (kind for _, kind in files)))
            parts.append((session.read.schema(_readable(kind)).parquet(*(file for file, _ in files)), kind))
        if not parts:
            kind = self._completed(_struct({}))
            parts.append((session.read.schema(kind).parquet(*self._places), kind))
        return parts

    def _merged(self, one: Any, other: Any, where: str = "") -> Any:
        """Return the type of values of two types, of which one may lack fields or say nothing; raises SamzaError."""
        from pyspark.sql.types import ArrayType, MapType, StructField, StructType

        match one.typeName(), other.typeName():
            case (name, "void") | ("void", name) if name != "void":
                return other if one.typeName() == "void" else one
            case "struct", "struct":
                known = {field.name: field.dataType for field in one.fields}
                for field in other.fields:
                    within = f"{where}.{field.name}".lstrip(".")
                    known[field.name] = self._merged(known.get(field.name, field.dataType), field.dataType, within)
                return StructType([StructField(name, kind) for name, kind in known.items()])
            case "array", "array":
                return ArrayType(self._merged(one.elementType, other.elementType, f"{where}[]"))
            case "map", "map":
                key = self._merged(one.keyType, other.keyType, f"{where}{{}}")
                return MapType(key, self._merged(one.valueType, other.valueType, f"{where}[]"))
            case name, same if name != same:
                raise SamzaError(
                    f"{self.where}: the values of {where!r} don't fit one column, which is {one.simpleString()} and "
                    f"{other.simpleString()}; declare the output's value as a Struct whose field has one type"
                )
        return one

    @property
    def _places(self) -> list[str]:
        return [str(self.path / part) for part in self.parts] or [str(self.path)]

    def _declared(self) -> dict[str, pa.DataType | None]:
        """Return the columns that its type says, in their order, each with its type if that says it, too."""
        return {name: arrow_type(info) for name, info in column_types(self.rows, columns_of(self.kind) or ()).items()}

    def _completed(self, found: StructType) -> StructType:
        """Return the columns of files with those that its type says: what values say of them if there are any."""
        from pyspark.sql.types import StructType

        declared = self._declared()
        if not found.fields and not declared:
            raise SamzaError(
                f"{self.where} has no rows, and its declared type does not say which columns they would have: declare "
                "a msgspec Struct or a dataclass"
            )
        said = {field.name: field for field in found.fields}
        own = self.columns() or StructType()
        kept = [said.pop(one.name, one) if declared[one.name] is None else one for one in own.fields]
        return StructType([*kept, *(one for one in said.values() if one.name not in declared)])

    @contextmanager
    def told(self, doing: str) -> Iterator[None]:
        """Say of which output it is what Spark raises."""
        try:
            yield
        except SamzaError:
            raise
        except Exception as error:
            raise as_said(error, f"{self.where}: {doing}") from None


def _has_times(kind: pa.DataType) -> bool:
    """Whether values of a type hold times of day."""
    parts = range(kind.num_fields) if pa.types.is_nested(kind) else ()
    return pa.types.is_time(kind) or any(_has_times(kind.field(place).type) for place in parts)


def _struct(columns: Mapping[str, pa.DataType | None]) -> StructType:
    return _of_arrow(pa.schema([*columns.items()]))


def _of_arrow(schema: pa.Schema) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema, True)


def arrow_type_of_none(info: inspect.Type) -> pa.DataType:
    """Return the type of a column whose values would say it, where there are none.

    >>> from decimal import Decimal
    >>> arrow_type_of_none(inspect.type_info(list[Decimal]))
    ListType(list<item: decimal128(38, 18)>)
    """
    kinds = [one for one in alternatives(info) if not isinstance(one, inspect.NoneType)]
    kind = kinds[0] if len(kinds) == 1 else inspect.AnyType()
    if isinstance(kind, inspect.DecimalType):
        return pa.decimal128(38, 18)  # as Spark has what nothing else is said of
    if isinstance(kind, inspect.DateTimeType):
        return pa.timestamp("us", None if kind.tz is False else "UTC")
    if isinstance(kind, inspect.CollectionType):
        return pa.list_(arrow_type_of_none(kind.item_type))
    if isinstance(kind, inspect.DictType):
        return pa.map_(arrow_type_of_none(kind.key_type), arrow_type_of_none(kind.value_type))
    if fields := getattr(kind, "fields", ()):
        return pa.struct([(one.encode_name, arrow_type_of_none(one.type)) for one in fields])
    return arrow_type(info) or pa.string()


class TableWriter:
    """Writes one output to its table, in the session of the user.

    Rows are those of a `version` of the `run`, which rises: of one that the table has nothing is written again.
    """

    def __init__(self, session: SparkSession, one: KeptOutput, into: IntoTable, run: str, version: int = 1) -> None:
        assert version >= 1, "versions are counted from 1 on"
        self._session, self._one, self._into, self._version = session, one, into, version
        self._run = f"samza-dsl/{run}/{one.output.stream}"

    def check(self, begins: bool = True) -> None:
        """Raise SamzaError where rows could not come to the table as is asked, before any is computed.

        Where the run `begins`, the table has no rows of it yet.
        """
        self._one.check(self._session)
        names, said = columns_of(self._one.kind), [*self._into.partition_by, *self._into.key]
        if names is not None and (odd := [name for name in said if name not in names]):
            raise self._wrong(
                f"its values have no {', '.join(odd)}, as {self._into} is to have: they have {', '.join(names)}"
            )
        if names is not None and not {*names} - {*self._into.partition_by}:
            raise self._wrong(f"{self._into} is parted by all columns: leave one for its files")
        with self._one.told(f"Spark can't look at {self._into}"):
            self._check(begins)

    def _check(self, begins: bool) -> None:
        table, into = self._into.name, self._into
        if table is None:
            folder = into.folder
            if folder.is_file() or (begins and folder.exists() and any(map(_is_seen, folder.iterdir()))):
                raise self._wrong(f"{folder} has something in it already; remove it, or name another folder")
            return
        there = self._there(table)
        if into.mode == "merge" and (there is None or self._format(table) not in MERGING):
            known = "is not there yet" if there is None else f"is of {self._format(table) or 'a format'} without MERGE"
            raise self._wrong(f'{table} {known}: merge into a table of Delta or Iceberg, or say mode="append"')
        if there is None:
            self._check_database(table)
            return
        if (form := self._format(table)) in LOSSY:
            raise self._wrong(
                f"{table} is of {form}, in which an empty text is None and a line end the end of a row: write to a "
                "table of Parquet, or bind the output to a .csv file"
            )
        if table.format != "delta" and self._session.catalog.getTable(table.name).tableType in VIEWS:
            raise self._wrong(f"{table} is a view, to which nothing is written: name the table that it shows")
        if into.mode is None and begins and not there.isEmpty():
            raise self._wrong(f'{table} has rows already: say what becomes of them, mode="append" or mode="overwrite"')
        columns = {field.name: type_of(field.dataType) for field in there.schema.fields}
        found = self._one.differences(columns)
        found += [
            FieldDifference(name, "no such field", str(columns[name])) for name in into.key if name not in columns
        ]
        own, told = self._one.columns(), {one.field for one in found}
        found += [] if own is None else [one for one in _unlike(own, there.schema) if one.field not in told]
        if found:
            listed = "; ".join(map(str, found))
            times = times_advice(self._session, found)
            raise self._wrong(f"{table} has other columns than its type has fields: {listed}{times}")
        self._one.check_texts(there.schema, columns_of(self._one.kind) or ())

    def _check_database(self, table: TableName) -> None:
        """Raise SamzaError where the database is absent in which a table is to be made."""
        *within, _ = _PART_OF_NAME.findall(table.name)
        catalog = self._session.catalog
        # Catalogues of others may make a database with its first table.
        own = within[-1:] if within[:-1] in ([], [SESSION_CATALOG]) else []
        if table.format == "delta" or not own or (len(within) == 1 and catalog.currentCatalog() != SESSION_CATALOG):
            return
        if not catalog.databaseExists(own[0]):
            raise self._wrong(f"{table} is to be made in {own[0]}, which is no database: make it, or name another one")

    def write(self, files: Path, replaces: bool = True) -> None:
        """Write all rows; nothing is written twice, where the table's format can tell, or `files` do.

        Where it `replaces`, an output that overwrites its table does; else its rows are added.
        """
        mode = self._into.mode or "append"
        with self._one.told(f"Spark could not write it to {self._into}"):
            self._write(files, "append" if mode == "overwrite" and not replaces else mode)

    def _write(self, files: Path, mode: str) -> None:
        table = self._into.name
        if table is None:
            self._write_folder()
            return
        there = self._there(table)
        if there is None and table.format != "delta":
            # Empty at first: a table that is made with its rows may leave files without a table when somebody dies.
            self._create(self._one.frame(self._session), table)
            there = self._there(table)
        form, schema = self._format(table), None if there is None else there.schema
        parted = self._parted(table, form, there)
        rows = self._one.frame(self._session, schema, parted=parted)
        if mode == "merge":
            self._merge(table, form, schema, parted)
        elif form == "delta":
            # Delta remembers of each application the last version that it has written, and skips it a second time.
            once = {"txnAppId": self._run, "txnVersion": str(self._version)}
            writer = rows.write.format("delta").mode(mode).options(**once).option(*STATIC)
            writer = writer.partitionBy(*self._into.partition_by) if there is None else writer
            writer.save(table.name) if table.format == "delta" else writer.saveAsTable(table.name)
        elif form == "iceberg":
            self._to_iceberg(rows, table, mode)
        elif there is not None:
            self._to_files(rows, there, table, files, mode == "overwrite")

    def _to_files(self, rows: DataFrame, there: DataFrame, table: TableName, files: Path, replaces: bool) -> None:
        """Write to a table that is no more than its files."""
        if replaces:
            name, value = STATIC
            with copied(self._session, {f"spark.sql.sources.{name}": value}) as session:
                own = self._one.frame(session, there.schema, parted=self._parted(table, "", there))
                own.select(*_in_order(own, there)).write.insertInto(table.name, overwrite=True)
            self._session.catalog.refreshTable(table.name)
            return
        missing = self._missing(rows.select(*_in_order(rows, there)), there, table, files)
        if missing is not None:
            missing.write.insertInto(table.name)

    def _write_folder(self) -> None:
        folder = self._into.folder.absolute()
        unfinished = folder.with_name(f".{folder.name}.{self._run.rpartition('/')[0].rpartition('/')[2]}")
        shutil.rmtree(unfinished, ignore_errors=True)
        self.write_parted(unfinished)
        with system_errors_told(folder, "written"):
            if folder.exists():
                folder.rmdir()  # empty, or it would have been refused
            unfinished.replace(folder)
            make_durable(folder.parent)

    def write_parted(self, place: Path) -> None:
        """Let Spark write rows as Parquet, in a folder for each value of the columns that these are parted by."""
        rows = self._one.frame(self._session, parted=self._into.partition_by)
        rows.write.partitionBy(*self._into.partition_by).parquet(place.as_uri())

    def _create(self, rows: DataFrame, table: TableName) -> None:
        """Make a table without rows."""
        form = "iceberg" if table.format == "iceberg" else self._session.conf.get("spark.sql.sources.default")
        columns = ", ".join(f"{quoted(field.name)} {sql_type(field.dataType)}" for field in rows.schema.fields)
        parts = ", ".join(map(quoted, self._into.partition_by))
        parted = f" PARTITIONED BY ({parts})" if parts else ""
        self._session.sql(f"CREATE TABLE IF NOT EXISTS {table.name} ({columns}) USING {form}{parted}").collect()

    def _to_iceberg(self, rows: DataFrame, table: TableName, mode: str) -> None:
        from pyspark.sql import functions

        if not self._is_in_iceberg(table):
            writer = rows.writeTo(table.name).option(f"snapshot-property.{RUN}", self._own_version)
            writer.append() if mode == "append" else writer.overwrite(functions.lit(True))

    @property
    def _own_version(self) -> str:
        return f"{self._run}/{self._version}"

    def _is_in_iceberg(self, table: TableName) -> bool:
        """Whether a snapshot says that it is of this run."""
        from pyspark.sql import functions

        snapshots = self._session.table(f"{table.name}.snapshots")
        return not snapshots.where(functions.col("summary")[RUN] == self._own_version).isEmpty()

    def _merge(self, table: TableName, form: str, schema: StructType | None, parted: Collection[str]) -> None:
        if form == "iceberg" and self._is_in_iceberg(table):
            return
        once = {
            "spark.databricks.delta.write.txnAppId": self._run,
            "spark.databricks.delta.write.txnVersion": str(self._version),
            f"spark.sql.iceberg.snapshot-property.{RUN}": self._own_version,
        }
        # In a copy of the session: what else is written in it is not of this run.
        with copied(self._session, once, alone=True) as session:
            self._merge_in(session, table, self._one.frame(session, schema, placed=True, parted=parted))
        if table.format != "delta":
            self._session.catalog.refreshTable(table.name)

    def _merge_in(self, session: SparkSession, table: TableName, rows: DataFrame) -> None:
        from pyspark.sql import functions
        from pyspark.sql.window import Window

        # Of rows with one key that run last in order: a key's are all of one task, whose files are numbered.
        newest = [named(place).desc() for place in _PLACES]
        place = functions.row_number().over(Window.partitionBy(*map(named, self._into.key)).orderBy(*newest))
        view = f"samza_dsl_{uuid4().hex}"
        rows = rows.withColumn(LAST, place).where(f"{LAST} = 1").drop(LAST, *_PLACES)
        rows.createOrReplaceTempView(view)
        same = " AND ".join(f"t.{name} <=> s.{name}" for name in map(quoted, self._into.key))
        target = _in_sql(table)
        try:
            # By name: the table may have columns that the rows have not.
            names = [*map(quoted, rows.columns)]
            changed = ", ".join(f"t.{name} = s.{name}" for name in names)
            columns, values = (", ".join(f"{of}{name}" for name in names) for of in ("", "s."))
            session.sql(
                f"MERGE INTO {target} t USING {view} s ON {same} WHEN MATCHED THEN UPDATE SET {changed} "
                f"WHEN NOT MATCHED THEN INSERT ({columns}) VALUES ({values})"
            ).collect()
        finally:
            session.catalog.dropTempView(view)

    def _missing(self, rows: DataFrame, there: DataFrame, table: TableName, files: Path) -> DataFrame | None:
        """Return the rows that are not in a table yet whose format does not say so; None where all are.

        Before Spark is asked to write them, it is noted which files the table has. Whoever dies while Spark puts new
        ones in their place leaves some of the rows: these are known by what they say. Raises SamzaError where others
        have come since.
        """
        from pyspark.errors import AnalysisException
        from pyspark.sql import functions

        self._session.catalog.refreshTable(table.name)
        found = sorted(there.inputFiles())
        noted = msgspec.msgpack.decode(files.read_bytes(), type=tuple[int, list[str]]) if files.exists() else None
        if noted is None or noted[0] != self._version:
            replace_durably(files, msgspec.msgpack.encode((self._version, found)))
            return rows
        names = [file.rpartition("/")[2] for file in {*found}.difference(noted[1])]
        if not names:
            return rows
        written = there.where(functions.col("_metadata.file_name").isin(*names))
        with suppress(AnalysisException):  # rows that Spark can't compare, as they hold maps
            if written.exceptAll(rows).isEmpty():
                missing = rows.exceptAll(written)
                return None if missing.isEmpty() else missing
        raise self._wrong(
            f"a run died while it wrote to {self._into}, which has {len(names)} files more now: remove those that hold "
            f"some of its rows, or remove {files.parent} where it has them all"
        )

    def _there(self, table: TableName) -> DataFrame | None:
        """Return the table as it is; None where there is none."""
        if table.format != "delta":
            return self._session.table(table.name) if self._session.catalog.tableExists(table.name) else None
        from pyspark.errors import AnalysisException

        try:
            found = self._session.read.format("delta").load(table.name)
            assert found.columns is not None, "through Spark Connect a table is looked for when it is asked something"
            return found
        except AnalysisException as error:
            # By its words: what the condition is asked by differs among versions of PySpark.
            if any(f"[{one}" in str(error) for one in ABSENT):
                return None
            raise as_said(error, f"{self._one.where}: Spark could not open {table}") from None

    def _parted(self, table: TableName, form: str, there: DataFrame | None) -> Collection[str]:
        """Return the columns whose values are the names of folders; of Iceberg none is read back from there."""
        if form == "iceberg":
            return ()
        if there is None:
            return self._into.partition_by
        if form == "delta":
            columns: list[str] = self._session.sql(f"DESCRIBE DETAIL {_in_sql(table)}").collect()[0]["partitionColumns"]
            return columns
        return [one.name for one in self._session.catalog.listColumns(table.name) if one.isPartition]

    def _format(self, table: TableName) -> str:
        """Return the format of a table that is there; "" where that is not known."""
        if table.format != "table":
            return table.format
        if not self._session.catalog.tableExists(table.name):
            return ""
        told = self._session.sql(f"DESCRIBE TABLE EXTENDED {table.name}").collect()
        return next((row[1].lower() for row in told if row[0] == "Provider"), "")

    def _wrong(self, what: str) -> SamzaError:
        return SamzaError(f"{self._one.where}: {what}")


def _in_sql(table: TableName) -> str:
    return f"delta.{quoted(table.name)}" if table.format == "delta" else table.name


def _named_by_folders(rows: DataFrame, parted: Collection[str]) -> DataFrame:
    """Return rows of which one is an error where its folder would say None: Spark itself makes it None."""
    from pyspark.sql import functions

    columns = []
    for name, kind in rows.dtypes:
        column = quoted(name)
        if name in parted and kind in _TEXTS:
            wrong = quoted_text(
                f"{name} names folders there, and a text is empty or {NO_VALUE}, which whoever reads them takes for "
                "None: filter such rows out, or map the field to another text"
            )
            column = f"IF({column} IN ('', '{NO_VALUE}'), RAISE_ERROR({wrong}), {column})"
        columns.append(functions.expr(column).alias(name))
    return rows.select(*columns)


def _is_seen(path: Path) -> bool:
    return path.name[0] not in "._"


def _in_order(rows: DataFrame, there: DataFrame) -> list[Column]:
    """Return the columns of rows as a table has them; for one that the rows have not what the table says."""
    from pyspark.sql import functions

    own = {*rows.columns}
    return [
        named(one.name) if one.name in own else functions.expr(_unsaid(one)).alias(one.name)
        for one in there.schema.fields
    ]


def _unsaid(column: Any) -> str:
    """Return what a column of a table has where nothing is said: its default, or None."""
    return f"CAST({column.metadata.get('CURRENT_DEFAULT', 'NULL')} AS {sql_type(column.dataType)})"


def _files(place: str) -> list[Path]:
    """Return the files of Parquet at a place."""
    return [path] if (path := Path(place)).is_file() else sorted(path.rglob("[!.]*.parquet"))


def _apart(kind: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield what of a type makes Spark read files apart: decimals, and what has no values.

    Each file has the decimals of its own values, and Spark puts none together that differ.
    """
    match kind.typeName():
        case "decimal" | "void":
            yield name, kind.simpleString()
        case "struct":
            for one in kind.fields:
                yield from _apart(one.dataType, f"{name}.{one.name}")
        case "array":
            yield from _apart(kind.elementType, f"{name}[]")
        case "map":
            yield from _apart(kind.valueType, f"{name}{{}}")


def _readable(kind: Any) -> Any:
    """Return a type as which Spark reads values: what has none lies as whole numbers."""
    from pyspark.sql.types import IntegerType

    return _changed(kind, lambda one: IntegerType() if one.typeName() == "void" else one)


def _wide(kind: Any) -> Any:
    """Return a type as where nothing is said: decimals as wide as Spark's own, and text without values."""
    from pyspark.sql.types import DecimalType, StringType

    to = {"decimal": DecimalType(38, 18), "void": StringType()}
    return _changed(kind, lambda one: to.get(one.typeName(), one))


def _changed(kind: Any, change: Callable[[Any], Any]) -> Any:
    """Return a type whose parts that have no parts themselves are changed."""
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    match kind.typeName():
        case "array":
            return ArrayType(_changed(kind.elementType, change))
        case "map":
            return MapType(_changed(kind.keyType, change), _changed(kind.valueType, change))
        case "struct":
            return StructType([StructField(one.name, _changed(one.dataType, change)) for one in kind.fields])
    return change(kind)


def _fitted(
    rows: DataFrame, kind: StructType, wanted: StructType, is_there: bool, said: Mapping[str, str]
) -> DataFrame:
    """Return rows with columns of the types that a table has, in its order, and what is `said` of each row."""
    from pyspark.sql import functions

    given = {one.name: one.dataType for one in kind.fields}
    columns = [
        functions.expr(
            _whole_text(one, _Exact(one.name, is_there).sql(quoted(one.name), given[one.name], one.dataType))
        ).alias(one.name)
        for one in wanted.fields
        if one.name in given
    ]
    return rows.select(*columns, *(functions.col(of).alias(name) for name, of in said.items()))


_CUT = re.compile(r"(var)?char\((\d+)\)")
"""The types of texts that Spark fills up with spaces, or of which it cuts these."""


def _said_type(column: Any) -> str:
    """Return the type that a column of a table was given: of its texts Spark says only there how long they are."""
    return str(column.metadata.get("__CHAR_VARCHAR_TYPE_STRING") or column.dataType.simpleString())


def _whole_text(column: Any, value: str) -> str:
    """Return the SQL of a value in which a text is an error that the column would have with other spaces."""
    cut = _CUT.fullmatch(_said_type(column))
    if cut is None:
        return value
    does, fits = ("cut", "<=") if cut[1] else ("pad or cut", "=")
    wrong = quoted_text(f"{column.name} is {cut[0]} there, and Spark would {does} spaces of ")
    advice = quoted_text(": do so before, or make the column STRING")
    told = f"RAISE_ERROR(CONCAT({wrong}, '\\'', {value}, '\\'', {advice}))"
    return f"IF(LENGTH({value}) {fits} {cut[2]} OR {value} IS NULL, {value}, {told})"


@dataclass(frozen=True)
class _Exact:
    """The SQL that makes values of one type those of another, within them by name; one that would change is an error.

    Spark itself goes by places within structs, rounds decimals, cuts what is behind a point, and whole numbers where
    it is not to follow ANSI. The `column` is that of a table that is there, or of none.
    """

    column: str
    is_there: bool
    depth: int = 0

    def sql(self, value: str, given: Any, to: Any) -> str:
        """Return what `value` is there."""
        if given == to:
            return value
        if given.typeName() == "void":
            return f"CAST(NULL AS {sql_type(to)})"
        item, within = f"samza_dsl_{self.depth}", replace(self, depth=self.depth + 1)
        match given.typeName(), to.typeName():
            case "array", "array" if given.elementType.typeName() == "void":
                # Spark fails where it looks at one of them.
                nulls = f"ARRAY_REPEAT(CAST(NULL AS {sql_type(to.elementType)}), SIZE({value}))"
                return f"IF({value} IS NULL, NULL, {nulls})"
            case "struct", "struct":
                own = {one.name: one.dataType for one in given.fields}
                fields = ", ".join(
                    f"{quoted_text(one.name)}, "
                    + (
                        within.sql(f"{value}.{quoted(one.name)}", own[one.name], one.dataType)
                        if one.name in own
                        else f"CAST(NULL AS {sql_type(one.dataType)})"
                    )
                    for one in to.fields
                )
                return f"IF({value} IS NULL, NULL, NAMED_STRUCT({fields}))"
            case "array", "array":
                return f"TRANSFORM({value}, {item} -> {within.sql(item, given.elementType, to.elementType)})"
            case "map", "map":
                key = within.sql(f"{item}.key", given.keyType, to.keyType)
                one = within.sql(f"{item}.value", given.valueType, to.valueType)
                return f"MAP_FROM_ENTRIES(TRANSFORM(MAP_ENTRIES({value}), {item} -> STRUCT({key}, {one})))"
        if _is_unlike(given, to):
            return self._checked(value, "FALSE", f"CAST(NULL AS {sql_type(to)})", to)
        if not _is_number(given) or not _is_number(to):
            return f"CAST({value} AS {sql_type(to)})"
        kept = f"TRY_CAST({value} AS {sql_type(to)})"
        if given.typeName() in _FLOATS and to.typeName() in _FLOATS:
            beyond = "DOUBLE('infinity')"
            return self._checked(
                value, f"ISNAN({value}) OR ABS({value}) = {beyond} OR ABS({kept}) < {beyond}", kept, to
            )
        return self._checked(value, f"TRY_CAST({kept} AS {sql_type(given)}) = {value}", kept, to)

    def _checked(self, value: str, fits: str, kept: str, to: Any) -> str:
        where = "there" if self.is_there else "where no table says otherwise"
        wrong = quoted_text(f"{self.column} is {to.simpleString()} {where}, which can't be ")
        told = f"RAISE_ERROR(CONCAT({wrong}, CAST({value} AS STRING)))"
        return f"CASE WHEN {value} IS NULL OR COALESCE({fits}, FALSE) THEN {kept} ELSE {told} END"


_FLOATS = ("float", "double")


def _is_number(kind: DataType) -> bool:
    from pyspark.sql.types import NumericType

    return isinstance(kind, NumericType)


def _is_unlike(given: DataType, to: DataType) -> bool:
    """Whether values are another text in Spark than in JSON, so that nobody could read them as what they were."""
    return to.typeName() == "string" and given.typeName() in ("binary", "timestamp", "timestamp_ntz", "daytimeinterval")


def _is_other(given: DataType, to: DataType) -> bool:
    """Whether a cast would make other values, of a text a number or of a time that of the session's time zone, or null.

    Numbers are looked at one by one.
    """
    if given.typeName() in (to.typeName(), "void") or (_is_number(given) and _is_number(to)):
        return False
    return to.typeName() not in _TEXTS or given.typeName() not in (*_TEXTS, "date", "decimal", "time")


_TEXTS = ("string", "varchar", "char")


def _unlike(
    given: Any, to: Any, differ: Callable[[DataType, DataType], bool] = _is_unlike, where: str = ""
) -> Iterator[FieldDifference]:
    """Yield what of a type the columns of a table have not, or have as what is `differ`ent."""
    match given.typeName(), to.typeName():
        case "struct", "struct":
            found = {one.name: one.dataType for one in to.fields}
            for one in given.fields:
                within = f"{where}.{one.name}".lstrip(".")
                if one.name in found:
                    yield from _unlike(one.dataType, found[one.name], differ, within)
                elif one.dataType.typeName() != "void":
                    yield FieldDifference(within, str(one.dataType.simpleString()), "no such column")
        case "map", "struct":
            yield FieldDifference(where, str(given.simpleString()), str(to.simpleString()))
        case "array", "array":
            yield from _unlike(given.elementType, to.elementType, differ, f"{where}[]")
        case "map", "map":
            yield from _unlike(given.keyType, to.keyType, differ, f"{where}{{}}")
            yield from _unlike(given.valueType, to.valueType, differ, f"{where}[]")
        case _ if differ(given, to):
            yield FieldDifference(where, str(given.simpleString()), str(to.simpleString()))
