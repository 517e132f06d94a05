"""One output of a run that its session writes: the rows that workers have laid down, and the table that they go to."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec
import pyarrow as pa

from operators.core.base import Output
from runtime.model.errors import SamzaError, system_errors_told
from runtime.spark.columns import type_of
from runtime.spark.spark_errors import as_said
from runtime.systems.files.parquet import arrow_type
from runtime.systems.files.record_files import make_durable
from runtime.systems.files.rows import column_types, fields_wanted, type_of_rows
from runtime.systems.files.schemas import FieldDifference, differences
from runtime.systems.files.tables import IntoTable, TableName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MERGING = ("delta", "iceberg")
"""The formats of tables that rows can be merged into."""
LAST = "samza_dsl_newer"


@dataclass(frozen=True)
class KeptOutput:
    """An output that is laid down: where, of which type, and the table that it goes to, if to any."""

    output: Output
    path: Path
    into: IntoTable | None

    @property
    def kind(self) -> object:
        """The type of its rows."""
        return type_of_rows(self.output.value)

    @property
    def where(self) -> str:
        """The output, as an error names it."""
        return f"output {self.output.stream!r} at {self.output.site}"

    def frame(self, session: SparkSession) -> DataFrame:
        """Return its rows, which nobody has read yet; raises SamzaError where nothing says what columns there are."""
        schema = self._schema()
        if schema is not None:
            return session.read.schema(schema).parquet(str(self.path))
        if not any(self.path.glob("*.parquet")):
            raise SamzaError(
                f"{self.where} has no rows, and its declared type does not say which columns they would have: declare "
                "a msgspec Struct or a dataclass"
            )
        return session.read.option("mergeSchema", "true").parquet(str(self.path))

    def _schema(self) -> Any:
        from pyspark.sql.pandas.types import from_arrow_schema

        names = fields_wanted(self.kind)
        if names is None:
            return None
        found = {name: arrow_type(info) for name, info in column_types(self.kind, names).items()}
        return None if None in found.values() else from_arrow_schema(pa.schema([*found.items()]), True)


class TableWriter:
    """Writes one output to its table, in the session of the user."""

    def __init__(self, session: SparkSession, one: KeptOutput, into: IntoTable, run: str) -> None:
        self._session, self._one, self._into = session, one, into
        self._run = f"samza-dsl/{run}/{one.output.stream}"

    def check(self) -> None:
        """Raise SamzaError where rows could not come to the table as is asked, before any is computed."""
        table, into = self._into.name, self._into
        if table is None:
            folder = Path(str(into.table))
            if folder.exists() and (folder.is_file() or any(folder.iterdir())):
                raise self._wrong(f"{folder} has something in it already; remove it, or name another folder")
            return
        there = self._there(table)
        if into.mode == "merge" and (there is None or self._format(table) not in MERGING):
            known = "is not there yet" if there is None else f"is of {self._format(table) or 'a format'} without MERGE"
            raise self._wrong(f'{table} {known}: merge into a table of Delta or Iceberg, or say mode="append"')
        if there is None:
            return
        if into.mode is None and not there.isEmpty():
            raise self._wrong(f'{table} has rows already: say what becomes of them, mode="append" or mode="overwrite"')
        columns = {field.name: type_of(field.dataType) for field in there.schema.fields}
        wanted = fields_wanted(self._one.kind)
        found = differences(self._one.kind, columns) if wanted is not None else []
        found += [
            FieldDifference(name, "no such field", str(columns[name])) for name in into.key if name not in columns
        ]
        if found:
            listed = "; ".join(map(str, found))
            raise self._wrong(f"{table} has other columns than its type has fields: {listed}")

    def write(self, files: Path) -> None:
        """Write all rows; nothing is written twice, where the table's format can tell, or `files` do."""
        try:
            self._write(self._one.frame(self._session), files)
        except SamzaError:
            raise
        except Exception as error:
            raise as_said(error, f"{self._one.where}: Spark could not write it to {self._into}") from None

    def _write(self, rows: DataFrame, files: Path) -> None:
        table, mode = self._into.name, self._into.mode or "append"
        if table is None:
            self._write_folder(rows)
            return
        there, form = self._there(table), self._format(table)
        if mode == "merge":
            self._merge(rows, table)
        elif table.format == "delta" or form == "delta":
            # Delta remembers of each application the last version that it has written, and skips it a second time.
            writer = rows.write.format("delta").mode(mode).option("txnAppId", self._run).option("txnVersion", "1")
            writer = writer.partitionBy(*self._into.partition_by) if there is None else writer
            writer.save(table.name) if table.format == "delta" else writer.saveAsTable(table.name)
        elif table.format == "iceberg" or form == "iceberg":
            self._to_iceberg(rows, table, there is None, mode)
        elif mode == "overwrite" and there is not None:
            rows.select(*_in_order(rows, there)).write.insertInto(table.name, overwrite=True)
        elif not self._is_there(rows, there, form or "parquet", files):
            if there is None:
                rows.write.partitionBy(*self._into.partition_by).saveAsTable(table.name)
            else:
                rows.select(*_in_order(rows, there)).write.insertInto(table.name)

    def _write_folder(self, rows: DataFrame) -> None:
        folder = Path(str(self._into.table)).absolute()
        unfinished = folder.with_name(f".{folder.name}.{self._run.rpartition('/')[0].rpartition('/')[2]}")
        shutil.rmtree(unfinished, ignore_errors=True)
        rows.write.partitionBy(*self._into.partition_by).parquet(f"file://{unfinished}")
        with system_errors_told(folder, "written"):
            if folder.exists():
                folder.rmdir()  # empty, or it would have been refused
            unfinished.replace(folder)
            make_durable(folder.parent)

    def _to_iceberg(self, rows: DataFrame, table: TableName, is_new: bool, mode: str) -> None:
        from pyspark.sql import functions

        if is_new:
            made = rows.limit(0).writeTo(table.name).using("iceberg")
            parts = [functions.col(name) for name in self._into.partition_by]
            (made.partitionedBy(*parts) if parts else made).create()
        # A snapshot says which run has made it.
        known = self._session.table(f"{table.name}.snapshots").where(
            functions.col("summary")["samza-dsl-run"] == self._run
        )
        if known.isEmpty():
            writer = rows.writeTo(table.name).option("snapshot-property.samza-dsl-run", self._run)
            writer.append() if mode == "append" else writer.overwrite(functions.lit(True))

    def _merge(self, rows: DataFrame, table: TableName) -> None:
        from pyspark.sql import functions
        from pyspark.sql.window import Window

        # Of rows with one key that run last in order: a key's are all of one task, whose files are numbered.
        newest = (functions.col("_metadata.file_name").desc(), functions.col("_metadata.row_index").desc())
        place = functions.row_number().over(Window.partitionBy(*self._into.key).orderBy(*newest))
        view = f"samza_dsl_{uuid4().hex}"
        rows.withColumn(LAST, place).where(f"{LAST} = 1").drop(LAST).createOrReplaceTempView(view)
        same = " AND ".join(f"t.`{name}` <=> s.`{name}`" for name in self._into.key)
        target = f"delta.`{table.name}`" if table.format == "delta" else table.name
        try:
            # By name: the table may have columns that the rows have not.
            changed = ", ".join(f"t.`{name}` = s.`{name}`" for name in rows.columns)
            columns, values = (", ".join(f"{of}`{name}`" for name in rows.columns) for of in ("", "s."))
            self._session.sql(
                f"MERGE INTO {target} t USING {view} s ON {same} WHEN MATCHED THEN UPDATE SET {changed} "
                f"WHEN NOT MATCHED THEN INSERT ({columns}) VALUES ({values})"
            ).collect()
        finally:
            self._session.catalog.dropTempView(view)

    def _is_there(self, rows: DataFrame, there: DataFrame | None, form: str, files: Path) -> bool:
        """Whether the rows are in a table whose format does not say so; raises SamzaError where some of them may be.

        Before Spark is asked to write them, it is noted which files the table has.
        """
        found = [] if there is None else sorted(there.inputFiles())
        if not files.exists():
            files.write_bytes(msgspec.msgpack.encode(found))
            make_durable(files.parent)
            return False
        more = {*found}.difference(msgspec.msgpack.decode(files.read_bytes()))
        if not more:
            return False
        if self._session.read.format(form).load(sorted(more)).count() == rows.count():
            return True
        raise self._wrong(
            f"a run died while it wrote to {self._into}, which has {len(more)} files more now: remove those that hold "
            f"some of its rows, or remove {files.parent} where it has them all"
        )

    def _there(self, table: TableName) -> DataFrame | None:
        """Return the table as it is; None where there is none."""
        if table.format != "delta":
            return self._session.table(table.name) if self._session.catalog.tableExists(table.name) else None
        from pyspark.errors import AnalysisException

        try:
            return self._session.read.format("delta").load(table.name)
        except AnalysisException as error:
            if error.getCondition() in ("PATH_NOT_FOUND", "DELTA_TABLE_NOT_FOUND", "DELTA_PATH_DOES_NOT_EXIST"):
                return None
            raise as_said(error, f"{self._one.where}: Spark could not open {table}") from None

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


def _in_order(rows: DataFrame, there: DataFrame) -> list[Any]:
    """Return the columns of rows as a table has them; None for one that the rows have not."""
    from pyspark.sql import functions

    return [
        rows[field.name].cast(field.dataType)
        if field.name in rows.columns
        else functions.lit(None).cast(field.dataType).alias(field.name)
        for field in there.schema.fields
    ]
