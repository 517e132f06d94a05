"""Files of frames: pieces of bytes, each with its length and checksum, that are written once and read whole."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO
from zlib import crc32

from runtime.model.errors import Damaged, system_errors_told

_HEAD = struct.Struct("<QI")


class FrameFile:
    """A file of frames on its way, which is there from the first frame on and durable when it is closed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     file = FrameFile(Path(directory, "two"))
    ...     for data in (b"one", b""):
    ...         file.write(data)
    ...     file.close(), list(frames(Path(directory, "two")))
    (27, [b'one', b''])
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size_bytes = 0
        self._file: BinaryIO | None = None

    def write(self, data: bytes) -> None:
        """Add a frame."""
        with system_errors_told(self.path, "written"):
            if self._file is None:
                # Made only now: an attempt that has nothing to write leaves no file.
                self._file = self.path.open("xb")
            self._file.write(_HEAD.pack(len(data), crc32(data)))
            self._file.write(data)
        self.size_bytes += _HEAD.size + len(data)

    def close(self) -> int:
        """Make it durable, and return its length; its name in its directory is for the caller to make so."""
        if self._file is not None:
            with system_errors_told(self.path, "written"):
                self._file.flush()
                os.fsync(self._file.fileno())
                self._file.close()
            self._file = None
        return self.size_bytes

    def abandon(self) -> None:
        """Remove what was not closed."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self.path.unlink(missing_ok=True)


def frames(path: Path) -> Iterator[bytes]:
    """Yield the frames of a file; raises `Damaged` where it is not what was written."""
    try:
        file = path.open("rb")
    except FileNotFoundError as error:
        raise Damaged(f"{path} is gone, which the last commit of this run on Spark has written: restore it") from error
    with file:
        while head := file.read(_HEAD.size):
            length, checksum = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, -1)
            data = file.read(length)
            if len(data) < length or crc32(data) != checksum:
                raise Damaged(f"{path} is not what was written: restore it, or begin anew in another directory")
            yield data
