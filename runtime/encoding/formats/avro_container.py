"""Avro's container files: a schema in front, and blocks of records behind it."""

from __future__ import annotations

import io
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise, repeat
from typing import NamedTuple

import msgspec

from runtime.encoding.formats.avro import PARTS, AvroCodec, DatumReader, parsed
from runtime.encoding.formats.avro_bounds import MOST_OF_NO_BYTES, end_of, long_in, named_in, takes_none
from runtime.encoding.formats.avro_shapes import Datum, Schema
from runtime.encoding.formats.extras import needs_extra
from runtime.encoding.json_text import to_json
from runtime.model.errors import Damaged, SerdeError

MAGIC = b"Obj\x01"
SYNC_BYTES = 16
FINGERPRINT_BYTES = 8
SINGLE = b"\xc3\x01"
"""What Avro's encoding of a single object begins with; behind it is which schema has written it."""
STARTS = len(SINGLE) + FINGERPRINT_BYTES

_OF_NO_DATA = ("doc", "aliases", "default", "order")
"""What a schema says besides how data lie and what they mean."""


class ContainerHead(NamedTuple):
    """The head of a file: its schema, how blocks are compressed, what parts them, and where the first begins."""

    schema: Schema
    codec: str
    sync: bytes
    end: int


def long_of(number: int) -> bytes:
    r"""Return a number as Avro writes it.

    >>> long_of(-1), long_of(64)
    (b'\x01', b'\x80\x01')
    """
    number = (number << 1) ^ (number >> 63)
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def head_of_file(schema: str, sync: bytes, codec: str = "deflate") -> bytes:
    """Return the head of a file."""
    entries = {"avro.schema": schema.encode(), "avro.codec": codec.encode()}
    told = b"".join(_sized(name.encode()) + _sized(value) for name, value in entries.items())
    return MAGIC + long_of(len(entries)) + told + long_of(0) + sync


def block_of(records: list[bytes], sync: bytes) -> bytes:
    """Return a block of records, compressed."""
    packing = zlib.compressobj(wbits=-15)
    data = packing.compress(b"".join(records)) + packing.flush()
    return long_of(len(records)) + _sized(data) + sync


def head_in(data: bytes, where: object) -> ContainerHead | None:
    """Return the head that data begin with; None where they end within it, and `Damaged` where they begin otherwise."""
    if not data.startswith(MAGIC[: len(data)]):
        raise Damaged(f"{where} is no file of Avro: it begins with {data[:4]!r}")
    held: dict[bytes, bytes] = {}
    at = len(MAGIC)
    try:
        while True:
            count, at = long_in(data, at)
            if not count:
                break
            if count < 0:
                _, at = long_in(data, at)
            for _ in range(abs(count)):
                name, at = _text_in(data, at)
                held[name], at = _text_in(data, at)
    except IndexError:
        return None
    except SerdeError as error:
        raise Damaged(f"{where} has no head of Avro: {error}") from error
    if len(data) < at + SYNC_BYTES:
        return None
    try:
        schema = parsed(msgspec.json.decode(held[b"avro.schema"]))
    except (KeyError, msgspec.MsgspecError, SerdeError) as error:
        raise Damaged(f"{where} has no schema of Avro in front: {error}") from error
    codec = held.get(b"avro.codec", b"null").decode(errors="replace")
    return ContainerHead(schema, codec, data[at : at + SYNC_BYTES], at + SYNC_BYTES)


def records_in(head: ContainerHead, count: int, data: bytes, where: object) -> list[bytes]:
    """Return the records of a block that was unpacked, each as its own bytes; raises `Damaged` for what is none."""
    with needs_extra("Avro", "fastavro", "avro"):
        import fastavro
    try:
        file = io.BytesIO(data)
        ends = [0]
        end = end_of(head.schema)
        if count > MOST_OF_NO_BYTES and takes_none(head.schema, named_in(head.schema)):
            raise SerdeError(f"it tells of {count:,} records that take no byte, and {MOST_OF_NO_BYTES:,} are read")
        for _ in range(count):
            if end is not None:
                # What is refused is an error of its record: those behind it are read.
                ends.append(end(data, ends[-1]))
                continue
            fastavro.schemaless_reader(file, head.schema)
            ends.append(file.tell())
    except Exception as error:
        raise Damaged(f"{where} has a block that can't be read: {error or type(error).__name__}; restore it") from error
    if ends[-1] != len(file.getvalue()):
        raise Damaged(f"{where} has a block with more in it than its {count} records; restore it")
    return [file.getvalue()[start:end] for start, end in pairwise(ends)]


def fingerprint_of(schema: Schema) -> bytes:
    """Return what stands for a schema in front of a single object, among those of a few files.

    That of Avro leaves out what data mean, as the scale of a decimal and the unit of a time: of two schemas that differ
    by that alone one would read what the other has written.
    """
    from fastavro.schema import fingerprint

    return bytes.fromhex(fingerprint(text_of(_with_meaning(schema)), "CRC-64-AVRO"))


def _with_meaning(schema: Schema) -> Schema:
    """Return a schema without what says nothing of data that it has written, in one order."""
    if isinstance(schema, list):
        return list(map(_with_meaning, schema))
    if not isinstance(schema, dict):
        return schema
    said = sorted(name for name in schema if name not in _OF_NO_DATA and not name.startswith("__"))
    return {name: _with_meaning(schema[name]) if name in PARTS else schema[name] for name in said}


@dataclass(frozen=True)
class SingleObjects:
    """Avro's encoding of single objects, each of which says which of some schemas has written it; it only reads.

    >>> from msgspec import Struct
    >>> class Order(Struct):
    ...     id: int
    >>> schema = AvroCodec(Order, None).schema
    >>> SingleObjects(Order, (schema,)).decode(SINGLE + fingerprint_of(schema) + long_of(7))
    Order(id=7)
    """

    type: object
    schemas: tuple[Schema, ...]
    _codec: AvroCodec = field(init=False, repr=False, compare=False)
    _readers: dict[bytes, DatumReader] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        codec = AvroCodec(self.type, text_of(self.schemas[0]) if self.schemas else '"null"', resolves=False)
        object.__setattr__(self, "_codec", codec)
        readers = {SINGLE + fingerprint_of(schema): codec.reading(schema, STARTS) for schema in self.schemas}
        object.__setattr__(self, "_readers", readers)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.type, self.schemas)

    def encode(self, value: object) -> bytes:
        """Raise SerdeError: records of files are read."""
        raise SerdeError("records of Avro's files are read, and not written one by one")

    def encode_all(self, values: list[object]) -> list[bytes]:
        """Raise SerdeError for any value."""
        return list(map(self.encode, values))

    def decode(self, data: bytes) -> Datum:
        """Return the value of `data`; raises SerdeError for what does not fit."""
        return self._codec.made_one(self._reader(data).one(data))

    def decode_all(self, column: Sequence[bytes]) -> list[Datum]:
        """Return the value of each of many bytes."""
        start = column[0][:STARTS] if column else b""
        if all(map(bytes.startswith, column, repeat(start))):
            return self._codec.values(column, self._reader(start)) if column else []
        return list(map(self.decode, column))

    def _reader(self, data: bytes) -> DatumReader:
        read = self._readers.get(data[:STARTS])
        if read is None:
            raise SerdeError(f"bytes that begin with {data[:10]!r} were written by no schema of these files")
        return read


def text_of(schema: Schema) -> str:
    """Return a schema as JSON."""
    return to_json(schema).decode()


def _sized(data: bytes) -> bytes:
    return long_of(len(data)) + data


def _text_in(data: bytes, at: int) -> tuple[bytes, int]:
    length, at = long_in(data, at)
    if not 0 <= length <= len(data) - at:
        raise IndexError
    return data[at : at + length], at + length
