"""Files that hold one record after the other: read from any record on, appended to and cut back durably."""

from __future__ import annotations

import logging
import os
import stat
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import cast

from operators.core.base import MAX_TIMESTAMP, Batch
from runtime.model.errors import Damaged, SamzaError, system_errors_told
from runtime.ports.source import ReplaceableSource, UncountedSource
from runtime.ports.streams import Offsets, Read
from runtime.systems.files.folders import Folders
from runtime.systems.files.places.contents import content_of, packing_of
from runtime.systems.files.places.locations import DataFile, RemoteFile
from runtime.systems.host.durable import make_durable

_log = logging.getLogger("samza_dsl")

BLOCK = 1 << 18
"""The bytes of a file that are read at a time: they stay in the processor's caches while they are decoded."""
LARGE_BLOCK = 1 << 20
MANY = 4_096
"""The records that a block should have, where a large one can: the costs of a batch are shared by them."""
PENDING_BYTES = 1 << 20
"""The bytes that are written at a time."""
LONGEST_RECORD = 1 << 26
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

Split = Callable[[bytes, bool], tuple[Sequence[bytes], int]]
"""Cuts bytes that begin at a record into whole records, and says how many bytes these took.

The second argument says whether the bytes reach the end of the file, so that what is left over is a record too.
"""


class RecordFile:
    """The records of one file as it is now: read a block at a time, with one index entry per block.

    Between reads no file is open; the records of the last block stay in memory, and of a compressed one what unpacks it
    from where it was read to, from the first block on until its end.
    """

    def __init__(self, path: Path | RemoteFile, split: Split, encoding: str = "utf-8") -> None:
        self.path = path
        self._split = split
        self._content = content_of(path, encoding)
        try:
            marked = self._content.read(0, len(BYTE_ORDER_MARK)) == BYTE_ORDER_MARK
        except OSError as error:
            raise SamzaError(f"can't read {path}: {error.strerror}; check the path and its permissions") from error
        # An input may have thousands of files: of those that nobody reads yet nothing is held.
        self._content.forget()
        # One entry per block.
        self._positions = [len(BYTE_ORDER_MARK) if marked else 0]
        self._firsts = [0]
        self._first = 0
        self._records: Sequence[bytes] = []

    def read(self, record: int, max_records: int) -> Sequence[bytes]:
        """Return records from number `record` on, at least one unless the file ends before it."""
        if not 0 <= record - self._first < len(self._records):
            self._find(record)
        start = record - self._first
        return self._records[start : start + max_records]

    def count(self) -> int:
        """Return the number of records; the first call reads what has not been read yet."""
        while not self.is_counted:
            self._load(len(self._positions) - 1)
        return self._firsts[-1]

    @property
    def is_counted(self) -> bool:
        """Whether it was read to its end."""
        return self._positions[-1] >= self._content.size

    def expected(self) -> int:
        """Return how many records there are about, by how many there are in what was read: in one block at least."""
        if self._firsts == [0] and self._positions[0] < self._content.size:
            self._load(0)
        return self._firsts[-1] * self._content.expected_size() // max(self._positions[-1], 1)

    def forget(self) -> None:
        """Let go of the records in memory; a later read fetches them again."""
        self._records = []

    def close(self) -> None:
        """Let go of all that is in memory."""
        self.forget()
        self._content.forget()

    def _find(self, record: int) -> None:
        block = bisect_right(self._firsts, record) - 1
        self.forget()
        while self._positions[block] < self._content.size:
            self._load(block)
            if record < self._first + len(self._records):
                return
            block += 1
        self.forget()

    def _load(self, block: int) -> None:
        position = self._positions[block]
        length = self._length(block)
        used = 0
        while not used:
            data = self._bytes(position, length)
            self._records, used = self._split(data, position + len(data) == self._content.size)
            if not used and length >= LONGEST_RECORD:
                raise Damaged(
                    f"{self.path} has no end of record within {LONGEST_RECORD} bytes from byte {position} on: "
                    "a line break or a closing quote is missing; repair the file there"
                )
            # A record that is longer than the block: seldom, so that reading it twice costs little.
            length *= 8
        self._first = self._firsts[block]
        if block + 1 == len(self._positions):
            assert position < position + used <= self._content.size, "a block leads on, and not beyond the file"
            self._positions.append(position + used)
            self._firsts.append(self._first + len(self._records))
        if self.is_counted:
            self._content.forget()

    def _length(self, block: int) -> int:
        """Return how much is to be read of a block: as before, or where it is a new one, as its records are long."""
        if block + 1 < len(self._positions):
            return self._positions[block + 1] - self._positions[block]
        if not self._firsts[-1]:
            return BLOCK
        return min(max(BLOCK, MANY * self._positions[-1] // self._firsts[-1]), LARGE_BLOCK)

    def _bytes(self, position: int, length: int) -> bytes:
        data = self._content.read(position, min(length, self._content.size - position))
        if len(data) < min(length, self._content.size - position):
            raise Damaged(f"{self.path} became shorter while it was read; bind a file that nobody changes")
        return data


class RecordSource(UncountedSource, ReplaceableSource):
    """A bounded input of one file per partition; a record's offset is its number in its file."""

    skipped = 0
    """The records at the beginning of each file that are a header."""

    def __init__(self, files: Sequence[DataFile], split: Split, encoding: str = "utf-8") -> None:
        self.partitions = len(files)
        self._files = [RecordFile(file.path, split, encoding) for file in files]
        self.folders = Folders(files)

    def offsets(self, partition: int) -> Offsets:
        """Return the readable range; the first call reads on to the end of the file, to count the records."""
        return Offsets(0, max(0, self._files[partition].count() - self.skipped), ended=True)

    def known(self, partition: int) -> Offsets:
        """Return the readable range, open at its end until the file was read to there."""
        return self.offsets(partition) if self._files[partition].is_counted else Offsets(0, MAX_TIMESTAMP, ended=True)

    def read(self, partition: int, offset: int, max_records: int = 10_000) -> Read | None:
        """Return rows from `offset` on, not more than one block of the file; None at the end.

        Raises `Damaged` beyond the end: the file had more records when that offset was committed.
        """
        records = self._files[partition].read(offset + self.skipped, max_records)
        if not records:
            check_not_beyond(offset, self.offsets(partition).end, self._files[partition].path)
            return None
        end = offset + len(records)
        if self.folders.names:
            records = self.completed(partition, records)
        return Read(Batch(cast("list[bytes]", records), offsets=range(offset, end)), None, end)

    def stored(self, partition: int, start: int, end: int) -> Iterator[object]:
        """Yield the bytes of records."""
        start, end = start + self.skipped, end + self.skipped
        while start < end and (found := self._files[partition].read(start, end - start)):
            yield from found
            start += len(found)

    def expected(self, partition: int) -> int:
        """Return how many records there are about, given what was read of them."""
        return max(0, self._files[partition].expected() - self.skipped)

    def completed(self, partition: int, records: Sequence[bytes]) -> list[bytes]:
        """Return records with the fields that the folders of their file give."""
        raise NotImplementedError

    def close(self) -> None:
        """Release the records held in memory."""
        for file in self._files:
            file.close()


class AppendedFile:
    """A file that grows by whole writes and can be cut back; it is open only while it is being written.

    Where it is not `lasting`, what is flushed is written, but not made durable. A suffix such as ".gz" has each write
    compressed by itself: what unpacks such files takes several in a row for one, and between them they can be cut.
    Nobody else may write to it meanwhile: what another program did to it is an error, as ours would lie over it.
    """

    def __init__(self, path: Path, lasting: bool = True) -> None:
        self._pack = packing_of(path)
        if not path.absolute().parent.is_dir() or path.is_dir():
            wrong = "is a directory; name a file in it" if path.is_dir() else "is in no existing directory; make it"
            raise SamzaError(f"can't write to {path}: it {wrong}")
        self.path = path
        self._lasting = lasting
        self.length = path.stat().st_size if path.exists() else 0
        self._left: int | None = None
        """The bytes that it has as we left it; None where that is not known, as a write has failed or none was made."""
        self._pending = bytearray()
        self._durable = path.exists()

    def append(self, data: bytes) -> None:
        """Add `data` at the end; what is not flushed yet may be lost."""
        self._pending += data
        if len(self._pending) >= PENDING_BYTES:
            self._write(sync=False)

    def flush(self) -> int:
        """Make everything appended durable, if it is to last, and return the file's length."""
        if self._pending or not self._durable:
            self._write(sync=self._lasting)
        return self.length

    def cut(self, length: int) -> None:
        """Drop everything beyond `length`; raises `Damaged` when the file is shorter than that."""
        size = self.path.stat().st_size if self.path.exists() else 0
        if size < length:
            raise Damaged(
                f"{self.path} holds {size} bytes, fewer than the {length} of the last commit: it was changed from "
                "outside; restore it, or reset the application to write it anew"
            )
        if size > length:
            _log.warning(
                "%s has %d bytes more than its last commit had written, and is cut back: what a run that died had "
                "written comes again, and what another program has added is gone. Bind outputs to files of their own",
                *(self.path, size - length),
            )
        self._pending.clear()
        self.length, self._left = length, None
        self._write(sync=True)

    def forget(self) -> None:
        """Let go of what was appended and not flushed."""
        self._pending.clear()

    def _write(self, sync: bool) -> None:
        """Write what is pending at `length`, over what an earlier write that failed may have left there."""
        self._check_as_left()
        self._durable, self._left = False, None
        new = not self.path.exists()
        data = self._pending if self._pack is None or not self._pending else self._pack(bytes(self._pending))
        with system_errors_told(self.path, "written"):
            with self.path.open("w+b" if new else "r+b", buffering=0) as file:
                # Over what a write that failed may have left behind `length`, which nobody has counted; then the file
                # ends there.
                file.seek(self.length)
                _write_all(file.fileno(), data)
                file.truncate()
                if sync:
                    os.fsync(file.fileno())
            if new and self._lasting:
                # A new name is durable only with its directory.
                make_durable(self.path.parent)
        self.length += len(data)
        self._left = self.length
        self._pending.clear()
        self._durable = sync

    def _check_as_left(self) -> None:
        """Raise `Damaged` where another program has written to the file, cut or removed it, since we left it."""
        if self._left is None:
            return
        with system_errors_told(self.path, "written"):
            found = self.path.stat() if self.path.exists() else None
        if found is None or (stat.S_ISREG(found.st_mode) and found.st_size != self._left):
            is_now = "is gone" if found is None else f"has {found.st_size} bytes"
            raise Damaged(
                f"{self.path} {is_now}, and this run left it with {self._left}: another program writes to it, or has "
                "changed or removed it. Let nothing else write to what an output is bound to; what was committed is "
                "there up to where the file is as it was"
            )


def check_not_beyond(offset: int, end: int, path: object) -> None:
    """Raise `Damaged` when a reader is to go on behind the end of its file."""
    if offset > end:
        raise Damaged(
            f"{path} has {end} records, fewer than the {offset} that were already processed: it is another file than "
            "then; bind the old one, or reset the application to read this one"
        )


def _write_all(descriptor: int, data: bytes | bytearray) -> None:
    with memoryview(data) as view:
        written = 0
        while written < len(view):
            written += os.write(descriptor, view[written:])
