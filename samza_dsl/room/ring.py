"""A file of bounded size that keeps the newest records, whatever becomes of the process that writes them."""

from __future__ import annotations

import os
import secrets
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

from runtime.systems.host.locks import lock

BLOCK_BYTES = 512
_MAGIC = b"samza-ring-1"
_FILE = struct.Struct("<12s8sQ")
"""The start of a file: what it is, its own random name, and its size."""
_RECORD = struct.Struct("<4sQII")
"""The start of a record: its mark, number, length, and the checksum of the number, the length and the content."""
_MARK = b"\xa5rng"


class RingRecord(NamedTuple):
    """A record of a ring, with its number: each has one more than the one before."""

    number: int
    content: bytes


class _At(NamedTuple):
    """The number of the record that is next, and the block at which it will be looked for."""

    number: int
    block: int


class RingWriter:
    """Appends records to a ring, the oldest of which they overwrite; there is one writer at a time, by a lock.

    Invariant: a record begins at a block and is whole, or its checksum does not fit and nobody reads it; the file
    never grows.
    """

    def __init__(self, path: Path, size_bytes: int, descriptor: int) -> None:
        self._descriptor, self._blocks = descriptor, size_bytes // BLOCK_BYTES
        size_bytes = self._blocks * BLOCK_BYTES
        head = _read(descriptor, 0, _FILE.size)
        known = _FILE.unpack(head) if len(head) == _FILE.size else (b"", b"", 0)
        if known[0] != _MAGIC or known[2] != size_bytes:
            os.ftruncate(descriptor, 0)
            os.ftruncate(descriptor, size_bytes)
            os.pwrite(descriptor, _FILE.pack(_MAGIC, secrets.token_bytes(8), size_bytes), 0)
        self._reader = RingReader(path)
        self._reader.news()
        self._at = self._reader.at

    @classmethod
    def opened(cls, path: Path, size_bytes: int, *, wait: bool = False) -> RingWriter | None:
        """Open a ring, made where it is absent or of another size; None while another process writes it, or `wait`."""
        descriptor = lock(path, wait=wait)
        if descriptor is None:
            return None
        try:
            return cls(path, size_bytes, descriptor)
        except BaseException:
            os.close(descriptor)
            raise

    @property
    def most_bytes(self) -> int:
        """The bytes that a record has at most: a few of them always fit."""
        return (self._blocks - 1) * BLOCK_BYTES // 4 - _RECORD.size

    def append(self, content: bytes) -> None:
        """Append a record; raises OSError where there is no space on the disk."""
        assert len(content) <= self.most_bytes, "whoever appends knows how much fits"
        number, block = self._at
        taken = _blocks_of(len(content))
        if block + taken > self._blocks:
            block = 1
        record = _RECORD.pack(_MARK, number, len(content), _sum(self._reader.name, number, content)) + content
        os.pwrite(self._descriptor, record, block * BLOCK_BYTES)
        self._at = _At(number + 1, block + taken)

    def close(self) -> None:
        """Let others write."""
        self._reader.close()
        os.close(self._descriptor)


class RingReader:
    """Reads what a ring holds, and then what is new in it, beside whoever writes; nothing torn is ever returned."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self.name = b""
        self.at = _At(0, 1)

    def news(self) -> list[RingRecord]:
        """Return the records that were not returned before, as far as they are still there, in their order."""
        if not self._open():
            return []
        if self.at.number == 0:  # the first look: one that is damaged ends nothing
            return self._all()
        found: list[RingRecord] = []
        while (record := self._next()) is not None:
            found.append(record)
        # Somebody who has slept for long finds others in the place of what would have been next.
        return found if found else self._all()

    def close(self) -> None:
        """Let go of the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> bool:
        if self._descriptor is None:
            try:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return False
        head = _read(self._descriptor, 0, _FILE.size)
        if len(head) < _FILE.size or not head.startswith(_MAGIC):
            return False
        _, name, size_bytes = _FILE.unpack(head)
        if name != self.name:
            self.name, self._blocks, self.at = name, size_bytes // BLOCK_BYTES, _At(0, 1)
        return True

    def _next(self) -> RingRecord | None:
        """Return the record that is next, behind the last one or at the start of the file, where it is there."""
        for block in dict.fromkeys((self.at.block, 1)):
            record = self._record_at(block)
            if record is not None and record.number == self.at.number:
                self.at = _At(record.number + 1, block + _blocks_of(len(record.content)))
                return record
        return None

    def _all(self) -> list[RingRecord]:
        """Return all records that are newer than what was returned, wherever they lie."""
        assert self._descriptor is not None, "a ring is opened before it is read"
        # Read at once: block by block it would be thousands of calls, at each look that finds nothing new.
        whole = _read(self._descriptor, 0, self._blocks * BLOCK_BYTES)
        marked = (block for block in range(1, self._blocks) if whole.startswith(_MARK, block * BLOCK_BYTES))
        found = {block: record for block in marked if (record := self._record_at(block)) is not None}
        newer = {block: record for block, record in found.items() if record.number >= self.at.number}
        if newer:
            last = max(newer, key=lambda block: newer[block].number)
            self.at = _At(newer[last].number + 1, last + _blocks_of(len(newer[last].content)))
        return sorted(newer.values())

    def _record_at(self, block: int) -> RingRecord | None:
        assert self._descriptor is not None, "a ring is opened before it is read"
        head = _read(self._descriptor, block * BLOCK_BYTES, _RECORD.size)
        if len(head) < _RECORD.size or not head.startswith(_MARK):
            return None
        _, number, length, checksum = _RECORD.unpack(head)
        if block + _blocks_of(length) > self._blocks:
            return None
        content = _read(self._descriptor, block * BLOCK_BYTES + _RECORD.size, length)
        return RingRecord(number, content) if _sum(self.name, number, content) == checksum else None


def _blocks_of(length: int) -> int:
    return -(-(_RECORD.size + length) // BLOCK_BYTES)


def _sum(name: bytes, number: int, content: bytes) -> int:
    # With the name of the file: what an earlier file has left in its blocks is no record of this one.
    return zlib.crc32(content, zlib.crc32(name + number.to_bytes(8, "little") + len(content).to_bytes(8, "little")))


def _read(descriptor: int, offset: int, length: int) -> bytes:
    return os.pread(descriptor, length, offset)
