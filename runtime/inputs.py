"""Reads one source partition for one task: raw batches in, decoded columns out, and the records that are malformed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from operators.base import MAX_TIMESTAMP, MIN_TIMESTAMP, Batch, Serde
from runtime.checkpoint import Position
from runtime.control import ProducerWatermarks, SourceWatermark, to_ms
from runtime.errors import SerdeError
from runtime.in_flight import Entry, InFlight
from runtime.serdes import Bytes, String, encode_all
from runtime.systems.base import Offsets, Read

READ_AHEAD = 10_000
"""Records that a reader may have decoded and not yet handed on."""


@dataclass(frozen=True)
class Origin:
    """Where to read: a partition of a stream, in the environment or in a bound source."""

    system: str
    stream: str
    partition: int
    read: Callable[[int], Read | None]
    offsets: Callable[[], Offsets]
    version: Callable[[], int]


@dataclass(frozen=True)
class Decoding:
    """How raw records become columns; `trusted` bytes are our own, of an intermediate stream.

    Without `stamped` nothing downstream asks for event time; `tombstones` are records without a value, of a table.
    """

    value: Serde
    key: Serde | None
    key_of: Callable[[Any], Any] | None = None
    timestamp_of: Callable[[Any], Any] | None = None
    stamped: bool = True
    trusted: bool = False
    tombstones: bool = False


@dataclass(frozen=True)
class Malformed:
    """A record that could not be read: its raw row, and why."""

    row: Batch
    error: Exception


@dataclass(frozen=True)
class Taken:
    """What a reader hands on: the readable rows, the same rows as they were stored, and those that are malformed."""

    batch: Batch
    raw: Batch
    malformed: list[Malformed]


class Reader:
    """One source partition as a task reads it: where it is, its watermark, and what is in flight from it."""

    def __init__(
        self,
        origin: Origin,
        decoding: Decoding,
        entry: str,
        position: Position | None,
        producers: Iterable[str] | None = None,
        disorder_ms: int = 0,
        stop_at: int | None = None,
        priority: int = 0,
        later: bool = False,
    ) -> None:
        self.origin = origin
        self.entry = entry
        self.next_offset = position.offset if position else origin.offsets().start
        self.stop_at = stop_at
        self.priority = priority
        self.later = later
        self._decoding = decoding
        self._source = SourceWatermark(disorder_ms, position.watermark if position else MIN_TIMESTAMP)
        self.in_flight = InFlight(self.next_offset, self._source.value)
        self._producers = ProducerWatermarks(producers, position.producers if position else {}) if producers else None
        self._held: Read | None = None
        self._ended = False
        self._seen_version = -1
        self.refresh()

    @property
    def watermark(self) -> int:
        """The watermark of what was handed on; MAX_TIMESTAMP once the partition has ended."""
        if self._producers is not None:
            return self._producers.value
        return MAX_TIMESTAMP if self._ended else self._source.value

    @property
    def ended(self) -> bool:
        """Whether no record will ever come again."""
        return self._ended if self._producers is None else self._producers.value == MAX_TIMESTAMP

    @property
    def exhausted(self) -> bool:
        """Whether it has ended, or has reached the offset at which this run stops."""
        return self.ended or (self.stop_at is not None and self.next_offset >= self.stop_at)

    def track(self) -> Entry:
        """Start tracking what was just taken."""
        return self.in_flight.add(self.next_offset, self._source.value)

    def track_each(self, batch: Batch) -> list[Entry]:
        """Start tracking each row of the batch that was just taken by itself."""
        assert batch.offsets is not None
        last = (self.next_offset, self._source.value)
        watermarks = [*batch.stamps[1:], last[1]] if batch.stamps is not None else [last[1]] * len(batch)
        return list(map(self.in_flight.add, [*batch.offsets[1:], last[0]], watermarks))

    def position(self) -> Position:
        """Return the position to checkpoint: the low watermark, and event time as of there."""
        origin, done = self.origin, self.in_flight
        heard = dict(self._producers.by_producer) if self._producers else {}
        return Position(
            origin.system, origin.stream, origin.partition, done.low_watermark, watermark=done.watermark, producers=heard
        )

    def refresh(self) -> None:
        """Look whether the partition has ended here."""
        if self._producers is None and not self._ended and self._held is None:
            offsets = self.origin.offsets()
            self._ended = offsets.ended and self.next_offset >= offsets.end

    def ready(self) -> bool:
        """Whether there is something to take: cheap where nothing has changed since the last look."""
        if self._held is not None:
            return True
        if self._ended or (self.stop_at is not None and self.next_offset >= self.stop_at):
            return False
        version = self.origin.version()
        if version == self._seen_version:
            return False
        self._held = self.origin.read(self.next_offset)
        if self._held is None:
            self._seen_version = version
            self.refresh()
            return False
        return True

    def take(self, limit: int) -> Taken:
        """Hand on up to `limit` rows; only after `ready`."""
        held = self._held
        assert held is not None
        raw, rest = held.batch, None
        if len(raw) > limit:
            raw, rest = held.batch.slice(0, limit), held.batch.slice(limit, len(held.batch))
        if self.stop_at is not None and raw.offsets is not None and len(raw) and raw.offsets[-1] >= self.stop_at:
            keep = sum(offset < self.stop_at for offset in raw.offsets)
            raw, rest, held = raw.slice(0, keep), None, Read(held.batch, None, self.stop_at)
        taken = self._decode(raw)
        if rest is not None and rest.offsets is not None:
            self._held = held._replace(batch=rest)
            self.next_offset = rest.offsets[0]
        else:
            self._held = None
            self.next_offset = held.next_offset
            if held.control is not None and self._producers is not None:
                self._producers.hear(held.control.producer, held.control.watermark)
            self.refresh()
        return taken

    def _decode(self, raw: Batch) -> Taken:
        batch = Batch(raw.values, keys=raw.keys, timestamps=raw.timestamps, stamps=raw.stamps, offsets=raw.offsets)
        malformed: list[Malformed] = []
        for step in (self._decode_values,) if self._decoding.trusted else (self._decode_values, self._read_keys, self._read_times):
            errors = step(batch)
            if errors:
                malformed += [Malformed(raw.row(row), error) for row, error in errors.items()]
                readable = [row for row in range(len(batch)) if row not in errors]
                batch, raw = batch.take(readable), raw.take(readable)
        if batch.timestamps is not None and self._producers is None and self._decoding.stamped:
            batch.stamps = self._source.stamp(batch.timestamps)
        return Taken(batch, raw, malformed)

    def _decode_values(self, batch: Batch) -> dict[int, Exception]:
        decode = self._decoding.value.decode

        def decode_all(values: list[Any]) -> list[Any]:
            if None not in values:
                return list(map(decode, values))
            if not self._decoding.tombstones:
                raise SerdeError("the record has no value")
            return [None if value is None else decode(value) for value in values]

        batch.values, errors = _column(decode_all, batch.values)
        return errors

    def _read_keys(self, batch: Batch) -> dict[int, Exception]:
        key, key_of = self._decoding.key, self._decoding.key_of
        if key_of is not None and key is not None:
            batch.keys, errors = _column(lambda values: encode_all(key, list(map(key_of, values))), batch.values)
            return errors
        if key is None or batch.keys is None:
            batch.keys = None
            return {}
        decode = key.decode
        if type(key) is Bytes or (type(key) is String and None not in batch.keys and all(map(bytes.isascii, batch.keys))):  # type: ignore[arg-type]
            return {}
        return _column(lambda keys: [None if one is None else decode(one) for one in keys], batch.keys)[1]

    def _read_times(self, batch: Batch) -> dict[int, Exception]:
        timestamp_of = self._decoding.timestamp_of
        if timestamp_of is not None:
            batch.timestamps, errors = _column(lambda values: to_ms(list(map(timestamp_of, values))), batch.values)
            return errors
        return {}


def _column(make: Callable[[list[Any]], list[Any]], values: list[Any]) -> tuple[list[Any], dict[int, Exception]]:
    """Make a column of `values` at once; where that fails, row by row, with the errors of the rows that fail."""
    try:
        return make(values), {}
    except Exception:
        column: list[Any] = []
        errors: dict[int, Exception] = {}
        for row, value in enumerate(values):
            try:
                column += make([value])
            except Exception as error:
                column.append(None)
                errors[row] = error
        return column, errors
