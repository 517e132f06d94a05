"""Avro's container files as bound inputs and outputs."""

from __future__ import annotations

import bz2
import lzma
import secrets
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from operators.core.base import Batch, Serde, has_none
from planner.model.errors import PlanError
from runtime.encoding.formats.avro import Avro
from runtime.encoding.formats.avro_bounds import long_in
from runtime.encoding.formats.avro_container import (
    SINGLE,
    SYNC_BYTES,
    ContainerHead,
    SingleObjects,
    block_of,
    fingerprint_of,
    head_in,
    head_of_file,
    records_in,
)
from runtime.encoding.formats.avro_shapes import columns_in
from runtime.encoding.formats.rows import check_names, type_of_values
from runtime.model.errors import Damaged, SamzaError, SerdeError
from runtime.ports.sink import Sink
from runtime.ports.source import ReplaceableSource
from runtime.ports.streams import Offsets, Read
from runtime.systems.files.folders import Folders
from runtime.systems.files.places.contents import content_of, unpacked
from runtime.systems.files.places.locations import DataFile, RemoteFile, needs_pyarrow
from runtime.systems.files.record_files import AppendedFile, check_not_beyond

LONGEST_HEAD = 1 << 26
LONGEST_BLOCK = 1 << 28
"""The bytes that a block stands for at most: a few can stand for any number, and writers make blocks of some kB."""
ROWS_PER_BLOCK = 1_000
UNPACKING: dict[str, Callable[[bytes], bytes | None]] = {
    "null": lambda data: data,
    # Behind what fastavro has deflated lies a part of a checksum.
    "deflate": lambda data: unpacked(data, lambda: zlib.decompressobj(-15), LONGEST_BLOCK, "anything"),
    "bzip2": lambda data: unpacked(data, bz2.BZ2Decompressor, LONGEST_BLOCK),
    "xz": lambda data: unpacked(data, lzma.LZMADecompressor, LONGEST_BLOCK),
    # Behind what snappy has compressed are four bytes of a checksum.
    "snappy": lambda data: _by_arrow("snappy", data[:-4]),
    "zstandard": lambda data: _by_arrow("zstandard", data),
}


class AvroSource(ReplaceableSource):
    """A bounded input of Avro's container files, one per partition; each is read by the schema that it has in front.

    Values are the bytes of records as Avro's single objects; keys are None.
    """

    name = "avro"

    def __init__(self, files: Sequence[DataFile]) -> None:
        if Folders(files).names:
            raise SamzaError(
                f"{files[0].path}: the names of folders give fields, which records of Avro can't be given: bind files "
                "without such folders, or Parquet"
            )
        self.partitions = len(files)
        self._files = [_BlockFile(file.path) for file in files]

    def serde(self, declared: Serde) -> Serde:
        """Return what reads records as the declared type; raises SamzaError for a serde that says more than that."""
        kind = declared.type if isinstance(declared, Avro) else type_of_values(declared)
        if kind is None:
            raise SamzaError(
                f"{self._files[0].path} holds records of Avro, which {declared!r} does not read: declare a type, as "
                "value=Order, or none for dicts"
            )
        for file in self._files:
            check_names(kind, columns_in(file.head.schema), f"the schema of {file.path}")
        schemas = {fingerprint_of(file.head.schema): file.head.schema for file in self._files}
        return SingleObjects(kind, tuple(schemas.values()))

    def offsets(self, partition: int) -> Offsets:
        """Return the readable range, which the heads of blocks say."""
        return Offsets(0, self._files[partition].count(), ended=True)

    def read(self, partition: int, offset: int, max_records: int = 10_000) -> Read | None:
        """Return records from `offset` on, not more than one block; None at the end, and `Damaged` beyond it."""
        records = self._files[partition].read(offset, max_records)
        if not records:
            check_not_beyond(offset, self._files[partition].count(), self._files[partition].path)
            return None
        end = offset + len(records)
        return Read(Batch(cast("list[Any]", records), offsets=range(offset, end)), None, end)

    def stored(self, partition: int, start: int, end: int) -> Iterator[object]:
        """Yield the bytes of records."""
        while start < end and (found := self._files[partition].read(start, end - start)):
            yield from found
            start += len(found)

    def close(self) -> None:
        """Let go of what is in memory."""
        for file in self._files:
            file.close()


class _Block(NamedTuple):
    """A block: the number of its first record, how many it has, and where its data lie."""

    first: int
    rows: int
    start: int
    size: int


class _BlockFile:
    """The records of one container file; its blocks are found by their heads, and unpacked one at a time."""

    def __init__(self, path: Path | RemoteFile) -> None:
        self.path = path
        self._content = content_of(path)
        self.head = self._read_head()
        self._start = SINGLE + fingerprint_of(self.head.schema)
        self._blocks: list[_Block] | None = None
        self._firsts: list[int] = []
        self._first, self._records = 0, cast("list[bytes]", [])

    def count(self) -> int:
        """Return how many records there are."""
        blocks = self._found()
        return blocks[-1].first + blocks[-1].rows if blocks else 0

    def read(self, record: int, most: int) -> list[bytes]:
        """Return records from number `record` on; none at the end."""
        if not 0 <= record - self._first < len(self._records):
            blocks = self._found()
            place = bisect_right(self._firsts, record) - 1
            if place < 0 or record >= self.count():
                return []
            self._load(blocks[place])
        start = record - self._first
        return self._records[start : start + most]

    def close(self) -> None:
        """Let go of what is in memory."""
        self._records = []
        self._content.forget()

    def _read_head(self) -> ContainerHead:
        length = 1 << 12
        while True:
            data = self._content.read(0, min(length, self._content.size))
            head = head_in(data, self.path)
            if head is not None:
                return head
            if length >= min(self._content.size, LONGEST_HEAD):
                raise Damaged(f"{self.path} ends within its head, which says its schema: restore it")
            length *= 8

    def _found(self) -> list[_Block]:
        if self._blocks is None:
            blocks, at, first = list[_Block](), self.head.end, 0
            while at < self._content.size:
                data = self._content.read(at, min(20, self._content.size - at))
                try:
                    count, behind = long_in(data, 0)
                    size, behind = long_in(data, behind)
                except (IndexError, SerdeError):
                    count, size, behind = -1, -1, 0
                start = at + behind
                at = start + size + SYNC_BYTES
                if min(count, size) < 0 or at > self._content.size:
                    raise Damaged(f"{self.path} ends within a block, or has another in it than was written: restore it")
                if self._content.read(start + size, SYNC_BYTES) != self.head.sync:
                    raise Damaged(f"{self.path} has no end of a block at byte {start + size}: restore it")
                if count:
                    blocks.append(_Block(first, count, start, size))
                first += count
            self._blocks, self._firsts = blocks, [block.first for block in blocks]
        return self._blocks

    def _load(self, block: _Block) -> None:
        unpack = UNPACKING.get(self.head.codec)
        if unpack is None:
            known = ", ".join(UNPACKING)
            raise SamzaError(f"{self.path} is compressed by {self.head.codec!r}, and what is read is {known}")
        data = self._content.read(block.start, block.size)
        try:
            found = unpack(data)
        except SamzaError:
            raise
        except Exception as error:
            raise Damaged(f"{self.path} has a block that can't be unpacked: {error}; restore it") from error
        if found is None:
            raise Damaged(
                f"{self.path} has a block at byte {block.start} that stands for more than {LONGEST_BLOCK:,} bytes, "
                "which is more than is read: write it in smaller ones"
            )
        start = self._start
        self._records = [start + record for record in records_in(self.head, block.rows, found, self.path)]
        self._first = block.first


class AvroSink(Sink):
    """An output of one container file of Avro, with the schema of the declared type; keys are not written.

    Its position is the file's length in bytes: each commit writes whole blocks. Creating it changes nothing on disk.
    """

    name = "avro"
    columns = frozenset[str]()
    partitions = 1

    def __init__(self, path: Path, lasting: bool = True) -> None:
        self._file = AppendedFile(path, lasting)
        self._schema = ""
        self._sync: bytes | None = None
        self._pending: list[bytes] = []

    def serde(self, declared: Serde) -> Serde:
        """Return Avro of the declared type; raises SamzaError where that says no type, or one that Avro can't hold."""
        if isinstance(declared, Avro):
            found = Avro(declared.type, declared.schema, namespace=declared.namespace)
        else:
            kind = type_of_values(declared)
            if kind is None or kind is Any:
                raise SamzaError(
                    f"{self._file.path} has a schema, which {declared!r} does not say: declare the output's value, "
                    "as value=Order or value=Avro(schema=...)"
                )
            try:
                found = Avro(kind)
            except PlanError as error:
                raise SamzaError(f"{self._file.path}: {error}") from error
        self._schema = found.text
        return found

    def recover(self, position: int) -> None:
        """Cut the file back to `position`; raises `Damaged` when it is shorter."""
        self._file.cut(position)
        self._sync, self._pending = None, []

    def write(self, batch: Batch) -> None:
        """Take records, in order; raises SerdeError for a tombstone."""
        if has_none(batch.values):
            raise SerdeError(
                f"Avro has no way to write a tombstone (a value of None) to {self._file.path}: filter it out, or bind "
                "the output to JSON lines"
            )
        self._pending += batch.values
        while len(self._pending) >= ROWS_PER_BLOCK:
            self._append(ROWS_PER_BLOCK)

    def flush(self) -> int:
        """Make all records durable and return the file's length."""
        self._append(len(self._pending))
        return self._file.flush()

    def close(self) -> None:
        """Drop what was not flushed; a second call does nothing."""
        self._pending = []
        self._file.forget()

    def _append(self, count: int) -> None:
        if self._sync is None:
            self._sync = self._begun()
        if count:
            self._file.append(block_of(self._pending[:count], self._sync))
            self._pending = self._pending[count:]

    def _begun(self) -> bytes:
        """Return what parts the blocks of the file, which is begun where nothing is in it."""
        if not self._file.length:
            sync = secrets.token_bytes(SYNC_BYTES)
            self._file.append(head_of_file(self._schema, sync))
            return sync
        head = _BlockFile(self._file.path).head
        own = head_in(head_of_file(self._schema, bytes(SYNC_BYTES)), self._file.path)
        assert own is not None, "what was just written is whole"
        if head.codec != own.codec or fingerprint_of(head.schema) != fingerprint_of(own.schema):
            raise SamzaError(
                f"{self._file.path} was begun with another schema than the output has now: bind another file"
            )
        return head.sync


def _by_arrow(codec: str, data: bytes) -> bytes | None:
    with needs_pyarrow(f"what {codec} has compressed needs"):
        from runtime.systems.files.places.remote import unpacked_by
    return unpacked_by(codec, data, LONGEST_BLOCK)
