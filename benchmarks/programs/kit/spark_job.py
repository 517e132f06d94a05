"""A program as a Spark job: ours, in DataFrames, and its own Python functions by hand, from Parquet to Parquet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samza_dsl import App

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

FILES = 4
"""The files that an input has, which are its partitions."""
SIDES = ("ours", "frames", "python")
DIGITS = 6
"""The places behind the point to which floats are compared: only ours sums them exactly."""

Frames = Callable[["SparkSession", Path], Mapping[str, "DataFrame"]]
"""Returns each output as a frame over the files of the inputs, which lie in folders `<input>.parquet`."""


@dataclass(frozen=True)
class SparkJob:
    """One job, told three times; all read the same files, and write each output to a folder of Parquet.

    `make(records, directory)` writes the inputs. `frames` is what one writes who knows Spark's SQL, `python` what one
    writes who has the functions in Python: in mapInArrow or applyInPandas. Where one of them is None nobody would.
    """

    name: str
    title: str
    records: int
    make: Callable[[int, Path], None]
    app: Callable[[Path], App]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    frames: Frames | None = None
    python: Frames | None = None
    bind: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sides(self) -> list[str]:
        """The sides that there are."""
        return [side for side in SIDES if side == "ours" or getattr(self, side) is not None]


def write_parts(directory: Path, table: pa.Table, places: Any, files: int = FILES) -> None:
    """Write the rows of a table to files, each row to that of its number in `places`, in their order."""
    from pyarrow import parquet

    directory.mkdir(parents=True)
    for number in range(files):
        parquet.write_table(table.filter(places % files == number), directory / f"{number:05}.parquet")


def records_in(batch: pa.RecordBatch, kind: Callable[..., Any]) -> Iterator[Any]:
    """Return the rows of a batch as records, whose fields its columns are, as one makes them by hand."""
    return map(kind, *(column.to_pylist() for column in batch.columns))


def batches_of(columns: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Return columns as a batch."""
    import pyarrow as pa

    arrays = [pa.array(column, one.type) for column, one in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def outcome(path: Path) -> pa.Table:
    """Return what an output has in an order of its own, in a form that is equal where two sides did the same."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import parquet

    files = [file for file in sorted(path.iterdir()) if file.suffix == ".parquet"]
    table = pa.concat_tables([parquet.read_table(file) for file in files], promote_options="permissive")
    columns = {}
    for name in sorted(_flat(table).column_names):
        column = _flat(table).column(name)
        if pa.types.is_floating(column.type):
            column = pc.round(column, DIGITS)
        elif pa.types.is_nested(column.type):
            column = pa.array([repr(sorted(value)) for value in column.to_pylist()])
        elif pa.types.is_integer(column.type):
            column = column.cast(pa.int64())
        columns[name] = column
    found = pa.table(columns)
    return found.sort_by([(name, "ascending") for name in found.column_names]).combine_chunks()


def _flat(table: pa.Table) -> pa.Table:
    import pyarrow as pa

    while any(pa.types.is_struct(one.type) for one in table.schema):
        table = table.flatten()
    return table


def in_batches(rows: Iterable[Any], schema: pa.Schema, size: int = 10_000) -> Iterator[pa.RecordBatch]:
    """Yield tuples as batches of `size` rows."""
    held: list[Any] = []
    for row in rows:
        held.append(row)
        if len(held) == size:
            yield batches_of([*zip(*held, strict=True)], schema)
            held.clear()
    if held:
        yield batches_of([*zip(*held, strict=True)], schema)
