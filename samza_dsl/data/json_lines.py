"""Writes JSON lines to a stream, in batches, each record in the partition of its key."""

from __future__ import annotations

from collections.abc import Iterator
from io import BufferedReader
from typing import BinaryIO, cast

import msgspec

from operators.core.base import Batch
from operators.partition_by import murmur2
from runtime.encoding.serdes import REFUSALS, Natural
from runtime.model.errors import SamzaError
from runtime.ports.environment import Environment
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.files.jsonl import split_lines

CHUNK_BYTES = 1 << 20
ONE_PARTITION = StreamConfig()


def write_lines(
    environment: Environment, stream: str, file: BinaryIO, key: str | None = None, config: StreamConfig = ONE_PARTITION
) -> int:
    """Append every JSON line of `file` to `stream` and return their number.

    Where it is absent it is made with `config`, but not for a file that begins with what can't be read. `key` is a
    field of each value: text is encoded as it is, anything else as JSON, as an input's `key=` type reads it. Records
    without a key go to the partitions in turn. What has arrived is written at once, in one transaction. Raises
    SamzaError, with the number of the record, for what can't be read; what came before is written.
    """
    made: StreamConfig | None = None
    written = 0
    for lines in _arriving(file):
        # Read before the stream is made: a file of something else leaves no stream behind.
        read = _read(lines, key, written)
        made = environment.create_stream(stream, config)  # it may have got more partitions since the last piece
        batches: dict[int, Batch] = {}
        for number, (data, value) in enumerate(read, written):
            partition = partition_for(data, number, made.partitions)
            batch = batches.setdefault(partition, Batch([], keys=[]))
            batch.values.append(value)
            assert batch.keys is not None
            batch.keys.append(data)
        environment.append(
            [Append(stream, partition, batch) for partition, batch in batches.items()], {stream: made.partitions}
        )
        written += len(lines)
    if made is None:
        environment.create_stream(stream, config)
    return written


def partition_for(key: bytes | None, number: int, partitions: int) -> int:
    """Return the partition of a key; the record of a `number` without a key goes by that, in turn.

    >>> partition_for(b"AA", 0, 4) == partition_for(b"AA", 1, 4), partition_for(None, 6, 4)
    (True, 2)
    """
    return number % partitions if key is None else murmur2(key) % partitions


def _arriving(file: BinaryIO) -> Iterator[list[bytes]]:
    """Yield the lines that have arrived, as soon as they have."""
    rest = b""
    while chunk := _some(file):
        rest += chunk
        lines, used = split_lines(rest, last=False)
        rest = rest[used:]
        if lines:
            yield lines
    if lines := split_lines(rest, last=True)[0]:
        yield lines


def _some(file: BinaryIO) -> bytes:
    # As much as has arrived: a pipe that writes a line now and then must not wait for a whole chunk.
    read: bytes = cast("BufferedReader", file).read1(CHUNK_BYTES)
    return read


def _read(lines: list[bytes], key: str | None, before: int) -> list[tuple[bytes | None, bytes]]:
    read = []
    for number, line in enumerate(lines, before + 1):
        try:
            value = msgspec.json.decode(line)
            read.append((None if key is None else _key_of(value, key), line))
        except REFUSALS as error:
            raise SamzaError(
                f"record {number} can't be written: {error}; give one JSON value per line. "
                f"The {before:,} records before this batch were written."
            ) from error
    return read


def _key_of(value: object, field: str) -> bytes | None:
    if not isinstance(value, dict) or field not in value:
        has = f"it has {', '.join(map(repr, value))}" if isinstance(value, dict) else "it is no object"
        raise ValueError(f"there is no field {field!r} for the key: {has}")
    found = value[field]
    if found is None:
        return None
    return Natural().encode(found)
