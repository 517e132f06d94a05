"""The files of an archive as Parquet."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from runtime.model.errors import Damaged
from runtime.systems.files.archive import ROWS_AT_ONCE, ArchiveRows

SCHEMA = pa.schema(
    [
        pa.field("_partition", pa.int32(), nullable=False),
        pa.field("_offset", pa.int64(), nullable=False),
        ("_timestamp", pa.int64()),
        ("_key", pa.binary()),
        ("_value", pa.binary()),
        ("_watermark", pa.int64()),
    ]
)
COLUMNS = SCHEMA.names[1:]


def write_parquet(path: Path, partition: int, found: Iterable[ArchiveRows]) -> None:
    """Write rows, and make them durable."""
    with path.open("wb") as file:
        with pq.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
            for rows in found:
                columns = [pa.array([partition] * len(rows.offsets), pa.int32())]
                columns += [
                    pa.array(column, SCHEMA.field(name).type) for name, column in zip(COLUMNS, rows, strict=True)
                ]
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
        file.flush()
        os.fsync(file.fileno())


def read_parquet(path: Path) -> Iterator[ArchiveRows]:
    """Yield the rows of a file; raises `Damaged` where it can't be read."""
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(ROWS_AT_ONCE, columns=COLUMNS):
                yield ArchiveRows(*(batch.column(name).to_pylist() for name in COLUMNS))
    except (OSError, pa.ArrowException) as error:
        raise Damaged(f"{path} can't be read as Parquet: {error}; restore it") from error
