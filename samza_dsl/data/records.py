"""Records of a stream across its partitions: from an offset on, the last ones, and those that are new."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import merge
from typing import NamedTuple

from runtime.model.errors import Damaged
from runtime.ports.environment import Environment
from runtime.ports.live_streams import ReadingPort
from runtime.ports.streams import Read


class StoredRecord(NamedTuple):
    """One record as it is stored."""

    partition: int
    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes | None]


def records_from(environment: Environment, stream: str, partition: int, offset: int) -> Iterator[StoredRecord]:
    """Yield the records of a partition from `offset` to what is its end when they are read."""
    while (read := read_on(environment, stream, partition, offset)) is not None:
        yield from rows_of(partition, read)
        assert read.next_offset > offset, "a read leads on"
        offset = read.next_offset


def read_on(environment: Environment | ReadingPort, stream: str, partition: int, offset: int) -> Read | None:
    """Read from `offset` on, or from the new start where retention has removed it meanwhile; None at the end."""
    while True:
        try:
            return environment.read(stream, partition, offset)
        except Damaged:
            start = environment.offsets(stream, partition).start
            # Retention moves the start while we read; with a start before the offset, something else is damaged.
            if start <= offset:
                raise
            offset = start


def last_records(environment: Environment, stream: str, partitions: Iterable[int], count: int) -> list[StoredRecord]:
    """Return the last `count` records of some partitions, the oldest first."""
    found = [_last_of(environment, stream, partition, count) for partition in partitions]
    return list(merge(*found, key=lambda record: record.timestamp or 0))[-count:] if count else []


def _last_of(environment: Environment, stream: str, partition: int, count: int) -> list[StoredRecord]:
    start, end, _ = environment.offsets(stream, partition)
    length = count
    while True:
        first = max(start, end - length)
        found = list(records_from(environment, stream, partition, first))
        if len(found) >= count or first == start:
            return found[-count:]
        # Some of the offsets were a producer's watermarks, or what compaction removed.
        length *= 2


def rows_of(partition: int, read: Read) -> Iterator[StoredRecord]:
    """Yield the records that were read of a partition."""
    batch = read.batch
    for row, value in enumerate(batch.values):
        yield StoredRecord(
            partition,
            batch.offsets[row] if batch.offsets is not None else -1,
            batch.timestamps[row] if batch.timestamps is not None else None,
            batch.keys[row] if batch.keys is not None else None,
            value,
            (batch.headers[row] if batch.headers is not None else None) or {},
        )
