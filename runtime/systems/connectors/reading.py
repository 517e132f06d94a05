"""A connected source as a bound input: its functions are called in one thread, which also reads ahead."""

from __future__ import annotations

import math
import threading
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import msgspec

from operators.core.base import MAX_TIMESTAMP, Batch, Serde
from runtime.encoding.formats.rows import type_of_values
from runtime.encoding.value_types import made_of_plain
from runtime.functions.at_work import tells
from runtime.model.clock import monotonic_ms
from runtime.model.errors import Damaged, SamzaError, SerdeError, command, threads_here
from runtime.ports.connectors import ConnectedSource, SourceRecord
from runtime.ports.source import LiveSource, NamedPartitions, UncountedSource
from runtime.ports.streams import Offsets, Read, grown_error

AT_ONCE = 10_000
"""The records that are asked for at a time."""


@dataclass(frozen=True)
class GivenValue:
    """The serde of values that a source gives: bytes are read by the declared one, others are made to be of its type.

    >>> from runtime.encoding.serdes import Json
    >>> GivenValue(Json(list[int])).decode((1, 2)), GivenValue(Json(int)).decode(b"3")
    ([1, 2], 3)
    """

    declared: Serde

    def encode(self, value: object) -> bytes:
        """Return the bytes of a value, as the declared serde makes them."""
        return self.declared.encode(value)

    def decode(self, data: Any) -> Any:
        """Return the value; raises SerdeError for what is not of the declared type."""
        if isinstance(data, bytes):
            return self.declared.decode(data)
        kind = type_of_values(self.declared)
        if kind is None:
            raise SerdeError(f"the source gave a {type(data).__name__}, and {self.declared!r} reads bytes alone")
        return msgspec.convert(data, kind, str_keys=True, dec_hook=made_of_plain)


class PolledSource(LiveSource, UncountedSource, NamedPartitions):
    """A bound input whose functions are a user's, all called in one thread of its own.

    Invariants: ranges only grow; at most one read ahead of each partition is under way or waits to be taken. `read`
    may be called by any thread, one at a time for each partition; what went wrong in the polling thread is raised by
    the next look of the run. Lines of the log that these functions write are of the input `operator`.
    """

    def __init__(self, connector: ConnectedSource, operator: str | None = None) -> None:
        self._connector, self._operator = connector, operator
        self._thread = threads_here(1, f"samza-dsl-{connector.name[:40]}")
        self._closing = threading.Event()
        self._tell: Callable[[], None] = lambda: None
        self._ahead: dict[int, tuple[int, Future[Sequence[SourceRecord]]]] = {}
        self._failure: SamzaError | None = None
        self._polling: threading.Thread | None = None
        self._at_end: set[int] = set()
        """The partitions that were read to their end."""
        self._versions: list[int] = []
        self._heard_ms: list[float] = []
        self._ranges: list[Offsets] = []
        try:
            self._names = self._called("partitions", self._named)
            self._ranges = [self._called("offsets", self._range_of, name) for name in self._names]
        except BaseException:
            self.close()
            raise
        self.partitions = len(self._names)
        self._versions = [0] * self.partitions
        self._heard_ms = [monotonic_ms()] * self.partitions
        if not all(found.ended for found in self._ranges):
            # Beside the thread that calls: it waits for the next poll, and for what that returns.
            self._polling = threading.Thread(target=self._poll, name=f"samza-dsl-poll-{connector.name[:40]}")
            self._polling.start()

    @property
    def name(self) -> str:
        """The name of the system in checkpoints."""
        return self._connector.name

    def serde(self, declared: Serde) -> Serde:
        """Return the serde that reads bytes as declared, and takes other values as they are."""
        return GivenValue(declared)

    def partition_id(self, partition: int) -> int:
        """Return the number of a partition's name: another partition in its place is no going on."""
        return zlib.crc32(self._names[partition].encode()) + 1

    def offsets(self, partition: int) -> Offsets:
        """Return the readable range as of the last poll."""
        self._check()
        return self._ranges[partition]

    def known(self, partition: int) -> Offsets:
        """Return the readable range; of what has ended an open one until it was read to there.

        Else who goes on behind the end would take it for done, where it is another source than then.
        """
        found = self.offsets(partition)
        return found._replace(end=MAX_TIMESTAMP) if found.ended and partition not in self._at_end else found

    def expected(self, partition: int) -> int:
        """Return the end of the readable range."""
        return self._ranges[partition].end

    def read(self, partition: int, offset: int, max_records: int = AT_ONCE) -> Read | None:
        """Return rows from `offset` on; None where there are none now. Raises SamzaError for what the source did."""
        self._check()
        known = self._ranges[partition]
        if not known.start <= offset <= known.end:
            raise Damaged(
                f"{self.name}, partition {self._names[partition]!r}, has offsets {known.start:,} to {known.end:,}, and "
                f"a run goes on at {offset:,}: it is another source than then; bind the old one, or let the "
                f"application begin anew ({command('reset APP')})"
            )
        if offset == known.end:
            self._at_end.add(partition)
            return None
        found_at, reading = self._ahead.pop(partition, (-1, None))
        if found_at != offset or reading is None:
            reading = self._submitted(partition, offset, max_records)
        records = self._result("read", reading)
        if not isinstance(records, Sequence):
            raise self._odd_error(partition, offset, f"a {type(records).__name__}: write a list of SourceRecords")
        records = records[:max_records]
        following = self._behind(partition, offset, records)
        if not records:
            # Not taken for a gap: a place that is behind for a moment would lose what it shows a moment later.
            raise Damaged(
                f"{self.name}: read({self._names[partition]!r}, {offset:,}) returned nothing, and offsets() said that "
                f"there are records up to {known.end:,}: the end is the offset behind the last one that can be read"
            )
        if following < known.end:
            self._ahead[partition] = following, self._submitted(partition, following, AT_ONCE)
        return Read(_batch_of(records), None, following)

    def version(self, partition: int) -> int:
        """Return a number that grows with what the last poll has found; raises what has gone wrong there."""
        self._check()
        return self._versions[partition]

    def unheard_ms(self, partition: int, offset: int) -> float:
        """Return the ms since a poll found nothing at or beyond an offset; infinity where there was something."""
        return math.inf if self._ranges[partition].end > offset else monotonic_ms() - self._heard_ms[partition]

    def listen(self, tell: Callable[[], None]) -> None:
        """Call `tell`, from the polling thread, where there is more to read, or something has gone wrong."""
        self._tell = tell

    def close(self) -> None:
        """End the threads, then close the source; a second call does nothing."""
        if self._closing.is_set():
            return
        self._closing.set()
        if self._polling is not None:
            self._polling.join()
        self._thread.submit(self._at_work, self._connector.close)
        self._thread.shutdown(wait=True)

    def _poll(self) -> None:
        while not self._closing.wait(self._connector.poll_ms / 1_000):
            try:
                self._look()
            except SamzaError as error:
                self._failure = error
                self._tell()
                return

    def _look(self) -> None:
        names = self._called("partitions", self._named)
        if names[: self.partitions] != self._names:
            raise Damaged(
                f"{self.name} has the partitions {', '.join(map(repr, names))} now, and had "
                f"{', '.join(map(repr, self._names))}: name new ones behind those that are there"
            )
        if len(names) > self.partitions:
            raise grown_error(self.name, len(names), self.partitions)
        for partition, name in enumerate(names):
            before = self._ranges[partition]
            if before.ended:
                continue
            now = self._called("offsets", self._range_of, name)
            if now.end < before.end:
                raise Damaged(f"{self.name}, partition {name!r}, ended at {before.end:,}, and now does at {now.end:,}")
            self._ranges[partition] = now
            self._heard_ms[partition] = monotonic_ms()
            if now != before:
                self._versions[partition] += 1
                self._tell()

    def _named(self) -> list[str]:
        names = list(self._connector.partitions())
        if not names or not all(isinstance(name, str) for name in names) or len({*names}) < len(names):
            raise SamzaError(
                f"{self.name}: partitions() returned {names!r}; write a function that returns names, each once: "
                'partitions=lambda: ("all",)'
            )
        return names

    def _range_of(self, name: str) -> Offsets:
        found = Offsets(*self._connector.offsets(name))
        if not 0 <= found.start <= found.end:
            raise SamzaError(f"{self.name}: offsets({name!r}) returned {found}: 0 <= start <= end must hold")
        return found

    def _submitted(self, partition: int, offset: int, most: int) -> Future[Sequence[SourceRecord]]:
        return self._thread.submit(self._at_work, self._connector.read, self._names[partition], offset, most)

    def _called(self, what: str, function: Callable[..., Any], *arguments: object) -> Any:
        return self._result(what, self._thread.submit(self._at_work, function, *arguments))

    @tells(lambda known: known["self"]._operator)
    def _at_work(self, function: Callable[..., Any], *arguments: object) -> Any:
        return function(*arguments)

    def _result(self, what: str, future: Future[Any]) -> Any:
        try:
            return future.result()
        except SamzaError:
            raise
        except Exception as error:
            raise SamzaError(f"{self.name}: {what}() of the source failed: {error!r}") from error

    def _behind(self, partition: int, offset: int, records: Sequence[SourceRecord]) -> int:
        """Return the offset behind some records; raises `Damaged` where these are not in order."""
        following = offset
        for record in records:
            if not isinstance(record, SourceRecord):
                told = f"a {type(record).__name__}: write SourceRecord(offset, value)"
                raise self._odd_error(partition, offset, told)
            if record.key is not None and not isinstance(record.key, bytes):
                raise self._odd_error(
                    partition, offset, f"the key {record.key!r}: a key is bytes, as str.encode writes"
                )
            if record.headers and not all(isinstance(value, bytes | None) for value in record.headers.values()):
                told = f"the headers {record.headers!r}: their values are bytes or None"
                raise self._odd_error(partition, offset, told)
            if record.offset < following:
                raise Damaged(
                    f"{self.name}: read({self._names[partition]!r}, {offset:,}) returned offset {record.offset:,}, and "
                    f"none below {following:,} may come there: offsets rise, from the one that was asked for on"
                )
            following = record.offset + 1
        return following

    def _odd_error(self, partition: int, offset: int, told: str) -> SamzaError:
        return SamzaError(f"{self.name}: read({self._names[partition]!r}, {offset:,}) returned {told}")

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure


def _batch_of(records: Sequence[SourceRecord]) -> Batch:
    batch = Batch([record.value for record in records], offsets=[record.offset for record in records])
    if any(record.key is not None for record in records):
        batch.keys = [record.key for record in records]
    if any(record.timestamp_ms is not None for record in records):
        batch.timestamps = [record.timestamp_ms for record in records]  # type: ignore[misc]  # as others have gaps
    if any(record.headers for record in records):
        batch.headers = [record.headers for record in records]
    return batch
