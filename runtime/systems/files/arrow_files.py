"""Arrow's IPC files, as Feather files are, as bound inputs and outputs; it imports pyarrow, so import it late."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from runtime.model.errors import SamzaError
from runtime.systems.files.parquet import ROWS_AT_ONCE, ParquetSink, ParquetSource, RowFile, Rows
from runtime.systems.files.places.locations import RemoteFile
from runtime.systems.files.schemas import bounded

if TYPE_CHECKING:
    from typing import BinaryIO

FILE = b"ARROW1"
"""What an IPC file begins with; a stream begins otherwise."""


class ArrowSource(ParquetSource):
    """A bounded input of Arrow's IPC files, or of streams in files, one per partition; rows are as those of Parquet."""

    name = "arrow"

    def opened(self, path: Path | RemoteFile, made: Callable[[pa.RecordBatch], Rows]) -> RowFile:
        return ArrowRowFile(path, made=made)


class ArrowSink(ParquetSink):
    """An output of Arrow's IPC files: a directory of parts, as that of Parquet."""

    name = "arrow"

    def __init__(self, path: Path) -> None:
        self.suffix = path.suffix
        super().__init__(path)

    def save(self, rows: pa.Table, file: BinaryIO) -> None:
        with pa.ipc.new_file(file, rows.schema) as writer:
            writer.write_table(rows)


class ArrowRowFile(RowFile):
    """The rows of one IPC file, any batch of which can be read by itself; a stream is read as a whole."""

    def __init__(self, path: Path | RemoteFile, made: Callable[[pa.RecordBatch], Rows]) -> None:
        super().__init__(path, made=made)
        self._make = made
        self._batch: Callable[[int], pa.RecordBatch] | None = None
        self._ends: list[int] = []

    def count(self) -> int:
        self._opened()
        return self._ends[-1]

    def close(self) -> None:
        self._rows, self._batch = [], None

    def _opened(self) -> Callable[[int], pa.RecordBatch]:
        if self._batch is None:
            try:
                file = self.path.opened() if isinstance(self.path, RemoteFile) else pa.memory_map(str(self.path))
                if file.read(len(FILE)) == FILE:
                    file.seek(0)
                    reader = pa.ipc.open_file(file)
                    self._batch, lengths = (
                        reader.get_batch,
                        [len(reader.get_batch(number)) for number in range(reader.num_record_batches)],
                    )
                else:
                    file.seek(0)
                    batches = [*pa.ipc.open_stream(file)]
                    self._batch, lengths = batches.__getitem__, list(map(len, batches))
            except (OSError, MemoryError, pa.ArrowException) as error:
                raise SamzaError(f"can't read {self.path} as Arrow: {error}") from error
            self._ends = list(accumulate(lengths, initial=0))
        return self._batch

    def _find(self, row: int) -> None:
        batch_of = self._opened()
        if row >= self._ends[-1]:
            self._rows = []
            return
        number = bisect_right(self._ends, row) - 1
        # A batch may be large: no more of it than one of Parquet has, and from the same places wherever a read begins.
        start = (row - self._ends[number]) // ROWS_AT_ONCE * ROWS_AT_ONCE
        end = self._ends[number] + start
        try:
            for part in bounded(batch_of(number).slice(start, ROWS_AT_ONCE), self.path):
                self._first, end = end, end + len(part)
                if row < end:
                    self._rows = self._make(part)
                    return
        except (OSError, MemoryError, pa.ArrowException) as error:
            raise SamzaError(f"can't read {self.path} as Arrow: {error}") from error
