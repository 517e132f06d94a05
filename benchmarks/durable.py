"""What the durable workloads stand on: LMDB as one uses it by hand, and our log, both filled before a run begins."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import lmdb
import msgspec

from operators.core.base import Batch
from operators.state.keyed_state import STATE
from runtime.encoding.serdes import Tagged
from runtime.ports.streams import Append, Read, StreamConfig
from runtime.systems.log.environment import LogEnvironment
from runtime.systems.memory.lists import ListSource
from samza_dsl import Options

MOST_STORED = 10_000
"""The records of a stored batch, where commits are not smaller."""
APPENDS_PER_COMMIT = 16
"""While a log is filled: what is encoded for a commit is in memory."""
MAP_BYTES = 1 << 36
NUMBER = struct.Struct(">Q")
CRC = struct.Struct("<I")
POSITION = b"position"

pack = msgspec.msgpack.Encoder().encode
unpack = msgspec.msgpack.Decoder(list[bytes]).decode


def open_by_hand(path: Path, *tables: bytes) -> tuple[lmdb.Environment, list[Any]]:
    path.mkdir(parents=True, exist_ok=True)
    environment = lmdb.open(str(path), map_size=MAP_BYTES, max_dbs=len(tables))
    return environment, [environment.open_db(table) for table in tables]


def sealed(data: bytes) -> bytes:
    return CRC.pack(crc32(data)) + data


def checked(data: memoryview) -> memoryview:
    body = data[CRC.size :]
    if crc32(body) != CRC.unpack_from(data)[0]:
        raise ValueError("the checksum does not match")
    return body


def batches_of(records: Sequence[Any], commit_every: int) -> list[Any]:
    size = min(commit_every, MOST_STORED)
    return [records[first : first + size] for first in range(0, len(records), size)]


def preload_by_hand(path: Path, stream: bytes, batches: list[list[bytes]]) -> None:
    environment, (table,) = open_by_hand(path, stream)
    position = 0
    with environment.begin(write=True) as transaction:
        for batch in batches:
            transaction.put(NUMBER.pack(position), sealed(pack(batch)), db=table)
            position += len(batch)
    environment.close()


def read_by_hand(environment: lmdb.Environment, table: Any, commit_every: int) -> Iterator[list[bytes]]:
    """Yield the records of a stream as they go into commits."""
    records: list[bytes] = []
    position = 0
    while True:
        with environment.begin(buffers=True) as transaction:
            found = transaction.get(NUMBER.pack(position), db=table)
            batch = unpack(checked(found)) if found is not None else []
        records = records + batch if records else batch
        position += len(batch)
        if len(records) >= commit_every or (records and not batch):
            yield records
            records = []
        if not batch:
            return


def preload_log(path: Path, stream: str, batches: list[list[bytes]], partitions: int = 1) -> None:
    """Make a stream that has ended, with the batches in its partitions in turn."""
    log = LogEnvironment(path)
    log.create_stream(stream, StreamConfig(partitions=partitions))
    appends = [Append(stream, number % partitions, Batch(batch)) for number, batch in enumerate(batches)]
    for first in range(0, len(appends), APPENDS_PER_COMMIT):
        log.append(appends[first : first + APPENDS_PER_COMMIT])
    log.end_stream(stream)
    log.close()


class SteppedSource(ListSource):
    """A list that is read no further at a time than to the next commit."""

    def __init__(self, values: list[Any], timestamps: list[int], commit_every: int) -> None:
        super().__init__(values, timestamps)
        self._step = min(commit_every, MOST_STORED)

    def read(self, partition: int, offset: int, max_records: int = MOST_STORED) -> Read | None:
        return super().read(partition, offset, min(max_records, self._step))


def committing(every: int, written: int) -> Options:
    """Return options that commit every so many messages, of which `written` outputs and changed entries are left.

    It is asked between batches only: those that end within the last tenth of `written` are the ones meant.
    """
    return Options(
        batch_records=min(every, MOST_STORED),
        max_uncommitted=max(int(written * 0.95), 1),
        commit_interval_ms=3_600_000,
    )


def records_by_hand(path: Path, stream: bytes) -> list[bytes]:
    environment, (table,) = open_by_hand(path, stream)
    with environment.begin(buffers=True) as transaction:
        records = [record for _, data in transaction.cursor(table) for record in unpack(checked(data))]
    environment.close()
    return records


def records_in_log(path: Path, stream: str) -> list[Any]:
    log = LogEnvironment(path)
    records: list[Any] = []
    offset = 0
    while (read := log.read(stream, 0, offset)) is not None:
        records += read.batch.values
        offset = read.next_offset
    log.close()
    return records


def counts_by_hand(path: Path, table: bytes) -> list[tuple[int, int]]:
    """Return the counts by number that a hand loop has stored, in order."""
    environment, (counts,) = open_by_hand(path, table)
    with environment.begin(buffers=True) as transaction:
        found = [
            (NUMBER.unpack(place)[0], NUMBER.unpack(checked(data))[0]) for place, data in transaction.cursor(counts)
        ]
    environment.close()
    return found


def counts_in_log(path: Path, app: str, store: str) -> list[tuple[int, int]]:
    """Return the counts by number that a `process` has stored, in order."""
    log, decode = LogEnvironment(path), Tagged().decode
    found = [(decode(place[len(STATE) :]), decode(data)) for place, data in log.state_range(app, store, 0)]
    log.close()
    return sorted(found)


def check_stored(path: Path, stream: str, expected: int) -> None:
    """Raise AssertionError where a stream of the log has not so many records."""
    log = LogEnvironment(path)
    found, _ = log.stream_stats(stream)
    log.close()
    if found != expected:
        raise AssertionError(f"{found:,} records are in {stream!r}, where {expected:,} should be")
