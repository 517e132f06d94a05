"""Streaming DataFrames as inputs of a run that goes on: each batch of Spark's query is laid down once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from operators.core.durations import whole_ms
from operators.io import Input
from planner.model.graph import Graph
from runtime.model.errors import SamzaError, system_errors_told
from runtime.spark.columns import FrameColumns, named
from runtime.spark.connection import connected
from runtime.spark.frames import frame_of, opening
from runtime.spark.laid_down import reports_of
from runtime.spark.session import Spark, is_of_connect
from runtime.spark.spark_errors import as_said
from runtime.systems.files.places.tables import SparkTable
from runtime.systems.files.table_files import OWN
from runtime.systems.host.durable import make_durable
from runtime.units.driver.micro_batch_inputs import Landing
from runtime.units.laid_rows import Laying

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


@contextmanager
def landing(on: Spark, graph: Graph, bind: Mapping[str, object], until_now: bool) -> Iterator[Mapping[str, object]]:
    """Let queries of Spark lay streaming DataFrames down for a block, and give what streams are bound to then.

    With `until_now` all that their sources have now is there before the block begins. Raises SamzaError where columns
    are not of the declared types, before a query begins.
    """
    assert on.checkpoint is not None
    inputs = {spec.stream for spec in graph.inputs.values()}
    asked = {
        name: found for name, what in bind.items() if name in inputs and (found := _streaming(name, what)) is not None
    }
    landings: dict[str, object] = {}
    with ExitStack() as stack:
        for name, table in asked.items():
            reads = [spec for spec in graph.inputs.values() if spec.stream == name]
            landed = LandedFrame(on, name, table, reads, Path(on.checkpoint).absolute() / "inputs" / name)
            stack.callback(landed.stop)
            landed.start(until_now or on.end, whole_ms(on.interval_ms))
            landings[name] = Landing(landed.rows, landed.partitions, landed.check)
        yield {**bind, **landings}


class LandedFrame:
    """One streaming DataFrame, whose batches come as folders of JSON lines, a file for each partition.

    A folder has the number of its batch and comes at once. Spark runs a batch again, over the same rows, until it has
    noted that it was done: where the folder is there by then nothing is done. Spark's own thread lays rows down, the
    driver's starts and stops it.
    """

    def __init__(self, on: Spark, stream: str, table: SparkTable, reads: Sequence[Input], place: Path) -> None:
        frame = _frame(table)
        assert frame is not None, "it is a streaming one"
        session = on.opened()
        if is_of_connect(session):
            raise SamzaError(
                f"bind={{{stream!r}: ...}}: through Spark Connect the rows of a streaming DataFrame go to functions on "
                "the server alone: bind what it reads, files or a topic (kafka://HOST:9092/TOPIC)"
            )
        self._stream, self._table, self._reads, self._frame = stream, table, reads, frame
        with opening(stream, frame):
            columns = FrameColumns.of(stream, frame, reads)
        columns.check()
        if columns.of_stream:
            raise SamzaError(
                f"bind={{{stream!r}: ...}}: the columns {', '.join(columns.of_stream.values())} of a streaming "
                "DataFrame are not read as what its records had in a stream: say key= and timestamp= as functions of "
                "its fields"
            )
        self._are_values = columns.are_values
        said = next((spec.partitions for spec in reads if spec.partitions is not None), None)
        # A partition that nothing comes to holds event time back: there are several only where rows are told apart.
        self.partitions = said or (connected(session).at_once if table.partition_by else 1)
        self.rows, self._own = place / "rows", place / "query"
        self._query: StreamingQuery | None = None
        self._failed: Exception | None = None

    def start(self, until_now: bool, interval_ms: float) -> None:
        """Begin, or go on from where the query was; `until_now` all that is there is laid down when this returns."""
        with system_errors_told(self.rows, "made"):
            self.rows.mkdir(parents=True, exist_ok=True)
        writer = self._frame.writeStream.foreachBatch(self._land).option("checkpointLocation", self._own.as_uri())
        if until_now:
            writer = writer.trigger(availableNow=True)
        elif interval_ms:
            writer = writer.trigger(processingTime=f"{int(interval_ms)} milliseconds")
        with opening(self._stream, self._frame):
            self._query = writer.start()
        if until_now:
            try:
                self._query.awaitTermination()
            except Exception as error:
                self._raise(error)

    def check(self) -> None:
        """Raise SamzaError where the query has failed."""
        if self._query is not None and (error := self._query.exception()) is not None:
            self._raise(error)

    def stop(self) -> None:
        """End the query; the next start goes on from its last batch."""
        if self._query is not None:
            self._query.stop()
            self._query = None

    def _raise(self, error: Exception) -> None:
        if isinstance(self._failed, SamzaError):
            raise self._failed
        raise as_said(error, f"bind={{{self._stream!r}: ...}}: Spark's query over it has failed") from None

    def _land(self, frame: DataFrame, number: int) -> None:
        """Lay a batch down, where it is not there yet."""
        folder = self.rows / f"{number:012}"
        try:
            if not folder.exists():
                self._lay(frame, folder)
        except Exception as error:
            self._failed = error  # Spark tells of it in words of its own
            raise

    def _lay(self, frame: DataFrame, folder: Path) -> None:
        unfinished = self.rows / f".{uuid4().hex}"
        for left in self.rows.glob(".*"):
            shutil.rmtree(left, ignore_errors=True)  # of batches that somebody died over
        unfinished.mkdir()
        found = frame_of(frame.sparkSession, self._stream, replace(self._table, frame=frame), self._reads)
        own = {*OWN.values()}
        kept = [name for name in found.rows.columns if name not in own]
        lines = replace(found, rows=found.rows.select(*map(named, kept)), suffix=".jsonl")
        name = f"bind={{{self._stream!r}: ...}}"
        laid = reports_of(lines, Laying(unfinished, name, ".jsonl", as_json="values" if self._are_values else "rows"))
        # Groups of one partition lie one behind the other, by their numbers.
        for one in sorted(laid, key=lambda one: int(one.group)):
            file = Path(one.file)
            file.rename(file.with_name(f"{int(one.group) % self.partitions:06}-{int(one.group):012}.jsonl"))
        make_durable(unfinished)
        unfinished.rename(folder)
        make_durable(self.rows)


def _streaming(stream: str, what: object) -> SparkTable | None:
    """Return a streaming DataFrame as a table; None for all else. Raises SamzaError where Spark can't open it."""
    table = what if isinstance(what, SparkTable) else SparkTable(what)
    with opening(stream, table.frame):  # through Spark Connect it is asked for here
        return table if _frame(table) is not None else None


def _frame(table: SparkTable) -> DataFrame | None:
    from pyspark.sql import DataFrame

    return table.frame if isinstance(table.frame, DataFrame) and table.frame.isStreaming else None
