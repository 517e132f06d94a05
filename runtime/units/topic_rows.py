"""Rows of an output that is a topic, on their way: attempts write them to files, and the driver publishes these."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from operators.core.base import Batch, Serde
from runtime.ports.sink import PartitionedSink
from runtime.units.frames import FrameFile, frames
from runtime.units.shuffle_rows import OutputRows

SUFFIX = ".rows"
_decode = msgspec.msgpack.Decoder(OutputRows).decode
_encode = msgspec.msgpack.Encoder().encode


class RowsFile(PartitionedSink):
    """A file that takes rows for the partitions of an output, as a sink does; it is durable once it is closed."""

    name = "rows"
    columns = frozenset({"keys", "timestamps", "headers"})

    def __init__(self, path: Path, partitions: int) -> None:
        self.partitions = partitions
        self._file = FrameFile(path)

    def serde(self, declared: Serde) -> Serde:
        """Return the declared serde: rows are kept as they will be stored."""
        return declared

    def recover(self, position: int) -> None:
        """Do nothing: each attempt begins a file of its own."""

    def write(self, batch: Batch) -> None:
        """Take rows for an output of one partition."""
        self.write_to(0, batch)

    def write_to(self, partition: int, batch: Batch) -> None:
        headers = None if batch.headers is None else [None if one is None else dict(one) for one in batch.headers]
        self.add(OutputRows(0, "", partition, batch.values, batch.keys, batch.timestamps, headers))

    def add(self, part: OutputRows) -> None:
        """Take rows as workers tell them."""
        self._file.write(_encode(part))

    def flush(self) -> int:
        """Do nothing: nobody reads it before it is closed."""
        return 0

    def close(self) -> None:
        """Make it durable; a second call does nothing."""
        self._file.close()


def write_told(parts: Iterable[OutputRows], name: str, place: Callable[[str], Path]) -> list[str]:
    """Write rows that workers have told the driver to a file of each output, in its place; return these outputs."""
    files: dict[str, RowsFile] = {}
    for part in parts:
        if part.stream not in files:
            files[part.stream] = RowsFile(place(part.stream) / name, 1)
        files[part.stream].add(part)
    for file in files.values():
        file.close()
    return [*files]


def rows_in(files: Iterable[Path]) -> Iterator[tuple[int, Batch]]:
    """Yield the rows of files one after the other, with their partitions; raises `Damaged`."""
    for file in files:
        for part in map(_decode, frames(file)):
            yield part.partition, part.batch()
