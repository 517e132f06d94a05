"""Outputs that a run's session keeps: laid down as Parquet by workers, then written to tables or handed to the user."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec
import pyarrow as pa

from operators.core.base import Output
from planner.model.graph import Graph
from runtime.model.errors import Owned, SamzaError, system_errors_told
from runtime.model.metrics import RunMetrics
from runtime.ports.environment import Environment
from runtime.spark.columns import type_of
from runtime.spark.session import Spark
from runtime.spark.spark_errors import as_said
from runtime.systems.files.parquet import arrow_type
from runtime.systems.files.record_files import make_durable
from runtime.systems.files.rows import column_types, fields_wanted, has_columns, type_of_rows
from runtime.systems.files.schemas import FieldDifference, differences
from runtime.systems.files.tables import IntoTable, TableName, into_table
from runtime.systems.host.locks import lock
from runtime.units.publication.staged_topics import place_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MERGING = ("delta", "iceberg")
"""The formats of tables that rows can be merged into."""
LAST = "samza_dsl_newer"


class Begun(msgspec.Struct):
    """The note of a run that keeps outputs: which it is, and where each of them goes."""

    run: str
    into: dict[str, str]


class Through(msgspec.Struct):
    """The note of a run whose outputs are all laid down, before any is in its table."""

    metrics: RunMetrics


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


class KeptOutputs:
    """The outputs of one run on Spark that go to tables, or are collected as DataFrames.

    Workers lay them down in a directory of the application's, and all come to be there at once, with the other outputs.
    From then on the run is through: whoever runs the application again after a death writes what is not yet in its
    table, and computes nothing. Into Delta and Iceberg rows come once however often that is tried.
    """

    def __init__(
        self, on: Spark, graph: Graph, bind: Mapping[str, object], data: str | Path | Environment, collect: object
    ) -> None:
        declared = {one.stream: one for spec in graph.specs.values() for one in spec.outputs}
        into = {name: found for name, what in bind.items() if name in declared and (found := into_table(what))}
        asked = _collected(collect, declared, bind)
        self._on = on
        self._is_temporary = not isinstance(data, str | Path)
        self.place = (
            (place_of(Path(data), graph.app) / "outputs").absolute()
            if isinstance(data, str | Path)
            else Path(tempfile.gettempdir(), f"samza-dsl-{uuid4().hex}", "outputs")
        )
        self.kept = {
            name: KeptOutput(declared[name], self.place / f"{name}.parquet", into.get(name))
            for name in {**into, **asked}
        }
        self._app = graph.app
        self._lock: int | None = None
        self._run = uuid4().hex

    def __bool__(self) -> bool:
        return bool(self.kept)

    def bound(self, bind: Mapping[str, object]) -> dict[str, object]:
        """Return what streams are bound to while workers lay outputs down."""
        return {**bind, **{name: str(one.path) for name, one in self.kept.items()}}

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Hold the place for a block, which ends with all in its tables; what was collected stays there."""
        if not self.kept:
            yield
            return
        with system_errors_told(self.place, "made"):
            self.place.mkdir(parents=True, exist_ok=True)
        self._lock = lock(self.place / "lock", wait=False)
        if self._lock is None:
            raise Owned(f"another run of {self._app!r} writes its outputs just now, as {self.place} says")
        try:
            yield
        except BaseException:
            if self._is_temporary:  # nobody could go on with it
                remove(self.place)
            raise
        finally:
            os.close(self._lock)
            self._lock = None

    @property
    def left(self) -> RunMetrics | None:
        """The numbers of an earlier run that died behind its end; None where there is none. Raises SamzaError."""
        try:
            begun = msgspec.json.decode((self.place / "begun.json").read_bytes(), type=Begun)
        except FileNotFoundError:
            return None
        if not all((self.place / f"{name}.parquet").exists() for name in begun.into):
            return None
        if begun.into != self._into:
            raise SamzaError(
                f"an earlier run of {self._app!r} died while it wrote to {', '.join(begun.into.values())}: run it "
                f"again with these outputs bound as they were, which computes nothing; or remove {self.place}"
            )
        self._run = begun.run
        with suppress(FileNotFoundError):
            return msgspec.json.decode((self.place / "through.json").read_bytes(), type=Through).metrics
        return RunMetrics()

    def begin(self, goes_on: bool) -> None:
        """Note which outputs are kept, unless an earlier run `goes_on`, which has noted that before it died.

        Raises SamzaError for what can't come to its table, before any row is computed.
        """
        if not self.kept:
            return
        for one in self.kept.values():
            if one.kind is None or not has_columns(one.kind):
                raise SamzaError(
                    f"{one.where}: its values have no named fields, which are the columns: map them to a msgspec "
                    "Struct, a dataclass or a dict"
                )
        for one in self.kept.values():
            if one.into is not None:
                TableWriter(self._on.opened(), one, one.into, self._run).check()
        if goes_on:
            with suppress(FileNotFoundError):
                self._run = msgspec.json.decode((self.place / "begun.json").read_bytes(), type=Begun).run
            return
        for left in self.place.iterdir():
            if left.name != "lock":
                shutil.rmtree(left) if left.is_dir() else left.unlink()
        self._note("begun.json", Begun(self._run, self._into))

    def finish(self, metrics: RunMetrics) -> None:
        """Write to tables what is not there yet, and remove it here."""
        if not self.kept:
            return
        self._note("through.json", Through(metrics))
        for name, one in self.kept.items():
            done = self.place / f"{name}.done"
            if one.into is not None and not done.exists():
                TableWriter(self._on.opened(), one, one.into, self._run).write(self.place / f"{name}.files")
                done.touch()
                make_durable(self.place)
        # Not before all are through: whoever finds no note has nothing to go on with.
        (self.place / "begun.json").unlink()
        make_durable(self.place)
        for name, one in self.kept.items():
            if one.into is not None:
                shutil.rmtree(one.path, ignore_errors=True)
            for left in (f"{name}.done", f"{name}.files"):
                (self.place / left).unlink(missing_ok=True)
        (self.place / "through.json").unlink(missing_ok=True)

    def collected(self) -> dict[str, KeptOutput]:
        """Move what was collected to a place of the run's own, and return it; the rest of this place is gone."""
        own = self.place.with_name(f"collected-{uuid4().hex}")
        found = {}
        for name, one in self.kept.items():
            if one.into is None:
                own.mkdir(exist_ok=True)
                found[name] = KeptOutput(one.output, one.path.replace(own / one.path.name), None)
        return found

    def tidy(self) -> None:
        """Remove the place, where nothing is left there that is to be gone on with."""
        if self.kept and not (self.place / "begun.json").exists():
            remove(self.place)

    @property
    def _into(self) -> dict[str, str]:
        return {name: "" if one.into is None else repr(one.into) for name, one in sorted(self.kept.items())}

    def _note(self, name: str, note: Begun | Through) -> None:
        with system_errors_told(self.place, "written"):
            unfinished = self.place / f".{name}"
            with unfinished.open("wb") as file:
                file.write(msgspec.json.encode(note))
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(self.place / name)
            make_durable(self.place)


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
            self._session.sql(
                f"MERGE INTO {target} t USING {view} s ON {same} WHEN MATCHED THEN UPDATE SET * "
                "WHEN NOT MATCHED THEN INSERT *"
            ).collect()
        finally:
            self._session.catalog.dropTempView(view)

    def _is_there(self, rows: DataFrame, there: DataFrame | None, form: str, files: Path) -> bool:
        """Whether the rows are in a table whose format does not say so; raises SamzaError where some of them may be.

        Before Spark is asked to write them, it is noted which files the table has.
        """
        found = [] if there is None else sorted(there.inputFiles())
        if not files.exists():
            files.write_bytes(msgspec.json.encode(found))
            make_durable(files.parent)
            return False
        more = {*found}.difference(msgspec.json.decode(files.read_bytes()))
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


def _collected(collect: object, declared: Collection[str], bind: Mapping[str, object]) -> dict[str, None]:
    """Return the outputs that are to be DataFrames; raises SamzaError for what is none, or goes elsewhere."""
    if collect is True:
        return dict.fromkeys(name for name in declared if name not in bind)
    names = [collect] if isinstance(collect, str) else [] if collect is False else collect
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise SamzaError(
            f'app.run(collect={collect!r}): write collect=True, or the names of outputs: collect=["delays"]'
        )
    for name in names:
        if name not in declared:
            raise SamzaError(f"app.run(collect=[{name!r}]): there is no such output; there are {', '.join(declared)}")
        if name in bind:
            raise SamzaError(f"app.run(collect=[{name!r}]): this output is bound to {bind[name]}: read it there")
    return dict.fromkeys(names)


def remove(place: Path) -> None:
    """Remove a directory, and the application's own, which it is in, where that has nothing else."""
    shutil.rmtree(place, ignore_errors=True)
    with suppress(OSError):
        place.parent.rmdir()
