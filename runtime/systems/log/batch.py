"""The bytes of a stored batch: a header whose checksum covers everything, then columns."""

from __future__ import annotations

import struct
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import NamedTuple

import msgspec

from operators.core.base import Batch, Headers
from runtime.model.errors import EnvironmentFault
from runtime.ports.streams import Control

_VERSION = 1
_CRC = struct.Struct("<I")
_HEADER = struct.Struct("<IBBHIqq")
"""CRC32, version, codec, nothing, rows, base offset, append time (ms)."""
_CODECS = (None, "zlib", "zstd")


class _Columns(msgspec.Struct, array_like=True, gc=False):
    """The columns of a batch as they are stored: numbers as packed machine words, absent columns as None."""

    control: Control | None
    values: list[bytes | None]
    keys: list[bytes | None] | None = None
    timestamps: bytes | None = None
    stamps: bytes | None = None
    headers: list[Headers | None] | None = None
    signs: bytes | None = None
    offsets: bytes | None = None
    """Only where compaction has left gaps."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Columns)


class Packed(NamedTuple):
    """An encoded batch that does not know its offsets yet."""

    buffer: bytearray
    body_crc: int
    codec: int
    rows: int
    appended_ms: int

    @property
    def slots(self) -> int:
        """The number of offsets that it takes: one per row; a control alone has one of its own."""
        return self.rows or 1


class StoredBatch(NamedTuple):
    """A batch as it was found: all its columns, with the offsets from `base` to `last` that it stands for."""

    base: int
    last: int
    appended_ms: int
    batch: Batch
    control: Control | None

    def cut(self, offset: int, max_records: int) -> tuple[Batch, Control | None, int] | None:
        """Return at most `max_records` rows from `offset` on, the control if they are the last, and the next offset."""
        batch = self.batch
        offsets = batch.offsets
        assert offsets is not None
        start = bisect_left(offsets, offset)
        stop = min(start + max_records, len(offsets))
        if stop < len(offsets):
            return batch.slice(start, stop), None, offsets[stop]
        if start == stop and self.control is None:
            return None
        return batch if start == 0 else batch.slice(start, stop), self.control, self.last + 1


@cache
def compression_codes() -> dict[str | None, int]:
    """Return the number of every codec that can be used here; zstd needs the package `zstandard`."""
    return {name: code for code, name in enumerate(_CODECS) if name != "zstd" or find_spec("zstandard")}


def check_columns(batch: Batch) -> None:
    """Raise `EnvironmentFault` unless all columns are equally long, and values, keys and headers are bytes or None."""
    rows = len(batch.values)
    for name in ("keys", "timestamps", "stamps", "headers", "signs"):
        column = getattr(batch, name)
        if column is not None and len(column) != rows:
            raise EnvironmentFault(f"A batch of {rows} values has {len(column)} {name}: columns must be equally long.")
    for name, column in (("values", batch.values), ("keys", batch.keys)):
        wrong = set(map(type, column or ())) - {bytes, type(None)}
        if wrong:
            found = ", ".join(sorted(kind.__name__ for kind in wrong))
            raise EnvironmentFault(f"The {name} of a batch must be bytes or None, but there is {found}: encode them.")
    for headers in batch.headers or ():
        # As others they would be written, and no run could read the stream any more.
        for name, value in (headers or {}).items():
            if type(name) is not str or not (value is None or type(value) is bytes):
                raise EnvironmentFault(
                    f"Headers are bytes by names of text, but there is {name!r}: {value!r}: encode it."
                )


def pack(
    batch: Batch, control: Control | None, appended_ms: int, codec: int, offsets: Sequence[int] | None = None
) -> Packed:
    """Encode the rows of `batch`; `seal` completes the header once the offsets are known.

    Raises `EnvironmentFault` when the columns can't be stored: see `check_columns`.
    """
    check_columns(batch)
    columns = _Columns(
        control,
        batch.values,
        batch.keys,
        _words("q", batch.timestamps),
        _words("q", batch.stamps),
        batch.headers,
        _words("b", batch.signs),
        _words("q", offsets),
    )
    # The body is encoded behind room for the header, so that it is not copied once its offsets are known.
    buffer = bytearray(_HEADER.size)
    _encoder.encode_into(columns, buffer, _HEADER.size)
    if codec:
        buffer[_HEADER.size :] = _compress(codec, memoryview(buffer)[_HEADER.size :].tobytes())
    # The long part of the checksum is computed before the write lock is taken: `seal` adds the key and header only.
    body_crc = zlib.crc32(memoryview(buffer)[_HEADER.size :])
    return Packed(buffer, body_crc, codec, len(batch.values), appended_ms)


def seal(packed: Packed, key: bytes, base: int) -> bytearray:
    """Return the bytes to store at `key`, the first row being at offset `base`."""
    buffer, body_crc, codec, rows, appended_ms = packed
    assert base >= 0, "offsets count from 0"
    _HEADER.pack_into(buffer, 0, 0, _VERSION, codec, 0, rows, base, appended_ms)
    _CRC.pack_into(buffer, 0, zlib.crc32(key + buffer[_CRC.size : _HEADER.size], body_crc))
    return buffer


def unpack(key: bytes, data: memoryview | bytes, last: int) -> StoredBatch:
    """Return the batch that `data`, found at `key`, holds; `last` is the offset in the key.

    Raises ValueError, saying what is wrong, when `data` is not what `seal` returned for that key.
    """
    data = memoryview(data)
    if len(data) < _HEADER.size:
        raise ValueError(f"it has {len(data)} bytes, fewer than a header")
    crc, version, codec, _, rows, base, appended_ms = _HEADER.unpack_from(data)
    body = data[_HEADER.size :]
    # The key is covered, too: a batch that lies at another's place is as wrong as one with a changed bit.
    if zlib.crc32(key + bytes(data[_CRC.size : _HEADER.size]), zlib.crc32(body)) != crc:
        raise ValueError("its checksum does not match")
    if version != _VERSION:
        raise ValueError(f"it has version {version}, and this library reads version {_VERSION}")
    columns = _decoder.decode(_decompress(codec, body) if codec else body)
    batch = Batch(
        columns.values,
        columns.keys,
        [appended_ms] * rows if columns.timestamps is None else _numbers("q", columns.timestamps),
        None if columns.stamps is None else _numbers("q", columns.stamps),
        range(base, base + rows) if columns.offsets is None else _numbers("q", columns.offsets),
        columns.headers,
        None if columns.signs is None else _numbers("b", columns.signs),
    )
    assert len(columns.values) == rows, "the header counts the rows"
    assert base + rows <= last + 1, "the header and the key leave room for the rows"
    return StoredBatch(base, last, appended_ms, batch, columns.control)


def header(data: memoryview | bytes) -> tuple[int, int, int]:
    """Return the number of rows, the base offset and the append time (ms) of stored bytes, without checking them."""
    _, _, _, _, rows, base, appended_ms = _HEADER.unpack_from(data)
    return rows, base, appended_ms


def _words(code: str, column: Sequence[int] | None) -> bytes | None:
    return None if column is None else array(code, column).tobytes()


def _numbers(code: str, data: bytes) -> list[int]:
    words = array(code)
    words.frombytes(data)
    return words.tolist()


def _compress(codec: int, data: bytes) -> bytes:
    compress: Callable[[bytes], bytes]
    if _CODECS[codec] == "zlib":
        return zlib.compress(data, 1)
    compress = _zstandard().ZstdCompressor(level=1).compress
    return compress(data)


def _decompress(codec: int, data: memoryview) -> bytes:
    if _CODECS[codec] == "zlib":
        return zlib.decompress(data)
    decompress: Callable[[memoryview], bytes] = _zstandard().ZstdDecompressor().decompress
    return decompress(data)


def _zstandard() -> ModuleType:
    import importlib

    return importlib.import_module("zstandard")
