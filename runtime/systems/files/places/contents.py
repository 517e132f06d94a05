"""The bytes of a file from any place on: of one here or behind a URL, and of one that is compressed."""

from __future__ import annotations

import bz2
import gzip
import io
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from runtime.model.errors import Damaged, SamzaError
from runtime.systems.files.places.locations import RemoteFile, needs_pyarrow

if TYPE_CHECKING:
    from lzma import LZMADecompressor
    from typing import BinaryIO

    Unpacker = bz2.BZ2Decompressor | LZMADecompressor | zlib._Decompress

UNKNOWN = sys.maxsize
"""The size of what was not unpacked to its end."""
AHEAD = 1 << 23
"""The bytes that are fetched at a time of what lies behind a network."""
PACKED_AT_ONCE = 1 << 16
SKIPPED_AT_ONCE = 1 << 20


class Content(Protocol):
    """The bytes of one file."""

    size: int

    def read(self, position: int, length: int) -> bytes:
        """Return so many bytes from a position on, fewer where the file ends before."""

    def expected_size(self) -> int:
        """Return how many bytes there are about."""

    def forget(self) -> None:
        """Let go of what is in memory."""


class LocalBytes(Content):
    """The bytes of a file of this machine; between reads it is not open, as an input may have thousands of files."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.size = path.stat().st_size

    def read(self, position: int, length: int) -> bytes:
        with self._path.open("rb", buffering=0) as file:
            file.seek(position)
            return file.read(length)

    def expected_size(self) -> int:
        return self.size

    def forget(self) -> None:
        """Nothing is in memory."""


class RemoteBytes(Content):
    """The bytes of a file behind a URL, fetched many at a time."""

    def __init__(self, file: RemoteFile) -> None:
        self._name, self._start, self._held = file, 0, b""
        with self._told():
            self._file = file.opened()
            self.size: int = self._file.size()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Raise SamzaError for what Arrow or fsspec raise, each library of which has errors of its own."""
        try:
            yield
        except (SamzaError, FileNotFoundError, PermissionError):
            raise
        except Exception as error:
            raise SamzaError(
                f"can't read {self._name}: {error or type(error).__name__}; run it again, or copy the file to this "
                "machine, where what serves it tells no size of it, or gives no part"
            ) from error

    def read(self, position: int, length: int) -> bytes:
        start = position - self._start
        if not 0 <= start <= start + min(length, self.size - position) <= len(self._held):
            # Who opens a file looks at its first bytes alone.
            is_first = position == 0 and length <= PACKED_AT_ONCE
            with self._told():
                self._held = self._file.read_at(length if is_first else max(length, AHEAD), position)
            self._start = position
            start = 0
        return self._held[start : start + length]

    def expected_size(self) -> int:
        return self.size

    def forget(self) -> None:
        self._held = b""


class Unpacking(Protocol):
    """A reader of what the bytes of a file stand for."""

    def read(self, length: int, /) -> bytes:
        """Return up to so many bytes; none at the end."""


class UnpackedBytes(Content):
    """The bytes that a compressed file stands for, unpacked on from where the last read ended; else from its start.

    Its size is unknown until its end was seen, which is looked for one byte ahead.
    """

    def __init__(self, packed: Content, unpack: Callable[[BinaryIO], Unpacking], name: object) -> None:
        self._packed, self._unpack, self._name = packed, unpack, name
        self.size = UNKNOWN
        self._stream: Unpacking | None = None
        self._raw: _PackedFile | None = None
        self._start, self._held = 0, b""

    def read(self, position: int, length: int) -> bytes:
        if self._stream is None or position < self._start:
            self._raw = _PackedFile(self._packed)
            self._stream, self._start, self._held = self._unpack(io.BufferedReader(self._raw, PACKED_AT_ONCE)), 0, b""
        while position > self._start + len(self._held):
            self._start += len(self._held)
            self._held = self._more(min(SKIPPED_AT_ONCE, position - self._start))
            if not self._held:
                return b""
        self._held = self._held[position - self._start :]
        self._start = position
        self._held += self._more(length + 1 - len(self._held))
        return self._held[:length]

    def expected_size(self) -> int:
        """Return how much there is if the rest is as dense as what was unpacked."""
        if self.size != UNKNOWN or self._raw is None:
            return self.size
        return (self._start + len(self._held)) * self._packed.size // max(self._raw.tell(), 1)

    def forget(self) -> None:
        self._stream, self._raw, self._held = None, None, b""
        self._packed.forget()

    def _more(self, length: int) -> bytes:
        parts: list[bytes] = []
        missing = length
        try:
            # A read may give less than there is, where one compressed stream ends and the next begins.
            while missing > 0 and self._stream is not None and (part := self._stream.read(missing)):
                parts.append(part)
                missing -= len(part)
        except (OSError, EOFError, zlib.error, UnicodeError) as error:
            raise Damaged(
                f"{self._name} can't be unpacked: {error}; it was cut off, or is no such file, or of another "
                "encoding: restore it"
            ) from error
        if missing > 0:
            self.size = self._start + len(self._held) + length - missing
        return b"".join(parts)


class _PackedFile(io.RawIOBase):
    """A compressed file as who unpacks it wants it, read from its start on."""

    def __init__(self, packed: Content) -> None:
        self._packed, self._position = packed, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        data = self._packed.read(self._position, len(buffer))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def tell(self) -> int:
        return self._position


class _Bz2Streams:
    """Streams of bzip2, one behind the other, of which a broken one is an error: Python takes it for the end."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._unpacking = file, bz2.BZ2Decompressor()

    def read(self, length: int, /) -> bytes:
        """Return up to so many bytes; none at the end."""
        while True:
            packed = b""
            if self._unpacking.eof:
                packed = self._unpacking.unused_data or self._file.read(PACKED_AT_ONCE)
                if not packed:
                    return b""
                self._unpacking = bz2.BZ2Decompressor()
            elif self._unpacking.needs_input:
                packed = self._file.read(PACKED_AT_ONCE)
                if not packed:
                    raise EOFError("it ends within a stream")
            if found := self._unpacking.decompress(packed, length):
                return found


def _zstd(file: BinaryIO) -> BinaryIO:
    with needs_pyarrow("what zstd has compressed needs"):
        from runtime.systems.files.places.remote import unzstd
    return unzstd(file)


UNPACKING: dict[str, Callable[[BinaryIO], Unpacking]] = {
    ".gz": lambda file: gzip.GzipFile(fileobj=file),
    ".bz2": _Bz2Streams,
    ".zst": _zstd,
}
"""By suffix, how a compressed file is read as what it stands for."""


def _packed_by_zstd(data: bytes) -> bytes:
    with needs_pyarrow("what zstd is to compress needs"):
        from runtime.systems.files.places.remote import zstd
    return zstd(data)


PACKING: dict[str, Callable[[bytes], bytes]] = {
    # The same bytes whenever they are written: no time is in front of them.
    ".gz": lambda data: gzip.compress(data, mtime=0),
    ".bz2": bz2.compress,
    ".zst": _packed_by_zstd,
}
"""By suffix, how a part of a file is compressed by itself."""
assert PACKING.keys() == UNPACKING.keys(), "what is written compressed is read again"


Behind = Literal["nothing", "anything", "parts"]
MOST_PARTS = 1_000
"""The parts that are joined at most: what lies behind each is copied, and empty ones take a few bytes."""


def unpacked(data: bytes, begin: Callable[[], Unpacker], most: int, behind: Behind = "nothing") -> bytes | None:
    r"""Return what bytes stand for, or None where that is more than `most`; raises EOFError for no whole of them.

    Behind them there is "nothing", or "anything", which is left, or there are "parts" that were compressed by
    themselves, as files that were joined have. What is broken raises the errors of whatever unpacks it.

    >>> packed = zlib.compress(bytes(3))
    >>> unpacked(packed, zlib.decompressobj, 3), unpacked(packed, zlib.decompressobj, 2)
    (b'\x00\x00\x00', None)
    """
    found = b""
    for _ in range(MOST_PARTS if behind == "parts" else 1):
        unpacking = begin()
        found += unpacking.decompress(data, most + 1 - len(found))
        if len(found) > most:
            return None
        if not unpacking.eof:
            raise EOFError("it is not whole")
        data = unpacking.unused_data
        if not data:
            break
    if data and behind != "anything":
        raise EOFError("there is more behind it")
    return found


def packing_of(path: Path) -> Callable[[bytes], bytes] | None:
    """Return how the parts of a file are compressed, as its suffix says; None where they are not."""
    return PACKING.get(path.suffix.lower())


class _Transcoded:
    """A text of another encoding, read as UTF-8."""

    def __init__(self, file: BinaryIO, encoding: str) -> None:
        self._text = io.TextIOWrapper(file, encoding, newline="")

    def read(self, length: int) -> bytes:
        """Return so many characters as UTF-8, fewer at the end alone."""
        return self._text.read(length).encode()


def content_of(path: Path | RemoteFile, encoding: str = "utf-8") -> Content:
    """Return the bytes of a file, unpacked where its suffix says that it is compressed, and as UTF-8.

    Raises SamzaError where it can't be opened.
    """
    try:
        packed: Content = RemoteBytes(path) if isinstance(path, RemoteFile) else LocalBytes(path)
    except OSError as error:
        raise SamzaError(f"can't read {path}: {error.strerror or error}; check the path and its permissions") from error
    unpack = UNPACKING.get(path.suffix.lower())
    # In an output to which nothing was written yet, nothing is compressed either.
    found = packed if unpack is None or not packed.size else UnpackedBytes(packed, unpack, path)
    if encoding == "utf-8" or not packed.size:
        return found
    return UnpackedBytes(found, lambda file: _Transcoded(file, encoding), path)


def stored_size(path: Path | RemoteFile) -> int:
    """Return how many bytes a file takes where it lies."""
    return path.stat().st_size if isinstance(path, Path) else RemoteBytes(path).size
