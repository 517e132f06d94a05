"""Reads one source partition for one task: raw batches in, decoded columns out, and the records that are malformed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import Any, Protocol

from operators.base import MAX_TIMESTAMP, MIN_TIMESTAMP, Batch, Serde
from runtime.checkpoint import Position
from runtime.columns import Columns
from runtime.control import ProducerWatermarks, SourceWatermark, to_ms
from runtime.errors import SerdeError
from runtime.failures import Whence
from runtime.folding import Folded, FoldingSegment
from runtime.in_flight import Entry, InFlight, Rows
from runtime.keys import KeySerde
from runtime.lines import ObjectLines
from runtime.relay import Relay
from runtime.serdes import decoded
from runtime.systems.base import OUTSIDE, Control, Offsets, Read, ends, is_another


@dataclass(frozen=True)
class Origin:
    """Where to read: a partition of a stream, in the environment or in a bound source."""

    system: str
    stream: str
    partition: int
    read: Callable[[int], Read | None]
    """Returns what lies there, waiting for it where that takes time."""
    offsets: Callable[[], Offsets]
    known: Callable[[], Offsets]
    """The same as of the last look, which takes no time: `Assembly.look` has it looked before a reader is made.

    Its end is MAX_TIMESTAMP where that is not known.
    """
    version: Callable[[], int]
    fetched: Callable[[int], Read | None] | None = None
    """Returns what has come of it already, where it may take time until what is `known` to be there comes."""
    unheard_ms: Callable[[int], float] = lambda offset: 0.0
    """For how long it is not known whether something lies at or beyond an offset: not at all where each read looks."""
    stream_id: Callable[[], int] = lambda: 0
    """What tells the stream from others that have had its name, 0 where that is not known."""
    expected: Callable[[], int] | None = None
    """About what its end is, where that is not known."""


class Columnar(Protocol):
    """What folds rows that lie in columns."""

    def run(self, table: Any, watermark: int, disorder_ms: int, /) -> Folded | None:
        """Return what they come to; None where they are to be read one by one."""


@dataclass
class Decoding:
    """How raw records become columns; `trusted` bytes are our own, of an intermediate stream.

    Without `stamped` nothing downstream asks for event time, and if it is not `timed` either, nothing carries it on;
    `tombstones` are records without a value, of a table.
    """

    value: Serde
    key: Serde | None
    key_of: Callable[[Any], Any] | None = None
    timestamp_of: Callable[[Any], Any] | None = None
    watermark_of: Callable[[Any], Any] | None = None
    stamped: bool = True
    timed: bool = True
    trusted: bool = False
    tombstones: bool = False
    located: bool = False

    @property
    def calls(self) -> list[str]:
        """The names of the user's functions."""
        return [name for name in ("key_of", "timestamp_of", "watermark_of") if getattr(self, name) is not None]


@dataclass(frozen=True)
class Malformed:
    """A record that could not be read: its raw row, why, and which part of it: its value, key or timestamp."""

    row: Batch
    error: Exception
    part: str

    @property
    def offset(self) -> int:
        """Where it is in its partition."""
        return self.row.offsets[0] if self.row.offsets is not None else -1


@dataclass(frozen=True)
class Taken:
    """What a reader offers: the readable rows, the same rows as they were stored, and those that are malformed.

    `next_offset`, `watermark` and `control` are what the reader goes on with once all of it was accepted. Where it was
    `folded`, the batch has values only.
    """

    batch: Batch
    raw: Any
    malformed: list[Malformed]
    next_offset: int
    watermark: int
    control: Control | None = None
    folded: Folded | None = None


@dataclass(frozen=True)
class Pacing:
    """What an input says of its event time: its disorder, when a partition is idle, and how far it may be ahead."""

    max_disorder_ms: int = 0
    idle_after_ms: int | None = None
    close_on_idle: bool = False
    max_drift_ms: int | None = None


class Reader:
    """One source partition as a task reads it: where it is, its watermark, and what is in flight from it."""

    def __init__(
        self,
        origin: Origin,
        decoding: Decoding,
        entry: str,
        position: Position | None,
        producers: Iterable[str] | None = None,
        pacing: Pacing = Pacing(),
        stop_at: int | None = None,
        priority: int = 0,
        later: bool = False,
        folding: FoldingSegment | None = None,
        relay: Relay | None = None,
        columnar: Columnar | None = None,
    ) -> None:
        self.origin = origin
        self._read = origin.fetched or origin.read
        self.entry = entry
        self.next_offset = position.offset if position else origin.known().start
        self.stop_at = stop_at
        self.priority = priority
        self.later = later
        self.relay = relay
        self._decoding = decoding
        self._folding, self._columnar = folding, columnar
        self._keys = KeySerde(decoding.key) if decoding.key is not None else None
        self.idle = False
        """Whether it holds event time back for nobody, as nothing has come for long."""
        self.was_idle = bool(position and position.idle)
        """Whether it was idle where this run began; others may have been told so."""
        self._pacing = pacing
        self._quiet_since: float | None = None
        self._source = SourceWatermark(pacing.max_disorder_ms, position.watermark if position else MIN_TIMESTAMP)
        self._producers: ProducerWatermarks | None = None
        if producers:
            known = (position.producers, position.idle, position.watermark) if position else ({},)
            self._producers = ProducerWatermarks(producers, *known)
            self.idle = self._producers.is_idle
        self._before = self._mark
        self.in_flight = InFlight(self.next_offset, self._mark)
        self._held: Read | None = None
        self._taken = 0
        self._offered: Taken | None = None
        self._ended = False
        self._seen_version = -1
        self._stream_id = position.stream_id if position else 0
        self._know(origin.stream_id())
        self.refresh()

    @property
    def watermark(self) -> int:
        """The watermark of what was handed on; MAX_TIMESTAMP once the partition has ended."""
        if self._producers is not None:
            return self._producers.value
        return MAX_TIMESTAMP if self._ended else self._source.value

    @property
    def _mark(self) -> Any:
        """What is known of event time here, to be remembered with a position."""
        return self._source.value if self._producers is None else self._producers.mark

    @property
    def ended(self) -> bool:
        """Whether no record will ever come again."""
        return self._ended if self._producers is None else self._producers.value == MAX_TIMESTAMP

    @property
    def exhausted(self) -> bool:
        """Whether it has ended, or has reached the offset at which this run stops."""
        return self.ended or self._has_all

    def track(self) -> Entry:
        """Start tracking what was just accepted."""
        return self.in_flight.add(self.next_offset, self._mark)

    def track_each(self, batch: Batch, stops: Sequence[int]) -> list[Entry]:
        """Start tracking runs of rows of the batch that was just accepted, given where each of them ends."""
        assert batch.offsets is not None
        offsets, stamps = batch.offsets, batch.stamps if self._producers is None else None
        *inner, _ = stops
        ends = [*map(offsets.__getitem__, inner), self.next_offset]
        marks = [*([self._before] * len(inner) if stamps is None else map(stamps.__getitem__, inner)), self._mark]
        return list(map(self.in_flight.add, ends, marks))

    def track_rows(self, rows: Batch) -> Rows:
        """Start tracking rows of the batch that was just accepted, each by itself; there are no others."""
        assert rows.offsets is not None
        stamps = rows.stamps if self._producers is None else None
        before = [self._before] * len(rows) if stamps is None else stamps
        return self.in_flight.add_rows(self.next_offset, self._mark, rows.offsets, before)

    def place(self, batch: Batch, row: int | None) -> Whence:
        """Return where a record is; without a row, one of the batch."""
        stream, partition, offsets = self.origin.stream, self.origin.partition, batch.offsets
        if offsets is None:
            return Whence(stream, partition)  # it came by a relay, and is nowhere stored
        if row is None:
            return Whence(stream, partition, offsets[0], offsets[-1])
        return Whence(stream, partition, offsets[row])

    def position(self) -> Position:
        """Return the position to checkpoint: the low watermark, and event time as of there."""
        origin = self.origin
        offset, watermark = self.in_flight.reached()
        as_of_there = {"watermark": watermark, "idle": (origin.stream,) if self.idle else ()}
        if self._producers is not None:
            producers, idle, floor = watermark
            as_of_there = {"producers": producers, "idle": tuple(sorted(idle)), "watermark": floor}
        place = origin.system, origin.stream, origin.partition
        return Position(*place, offset, stream_id=self._stream_id, **as_of_there)

    def refresh(self) -> None:
        """Look whether the partition has ended here."""
        if self._producers is None and not self._ended and self._held is None and self._offered is None:
            offsets = self.origin.known()
            self._ended = offsets.ended and self.next_offset >= offsets.end

    @property
    def idle_after_ms(self) -> int | None:
        """How long nothing has to come until it is idle; None where it never is."""
        return self._pacing.idle_after_ms if self._producers is None else None

    @property
    def max_drift_ms(self) -> int | None:
        """How far in event time it may be ahead of others that have something to read."""
        return self._pacing.max_drift_ms

    def look_for_idle(self, elapsed_ms: float) -> bool:
        """Notice, now and then, that nothing has come for long; return whether event time may go on by that."""
        after_ms = self.idle_after_ms
        if after_ms is None or self.exhausted or self.ready():
            self._quiet_since = None
            return False
        if self._quiet_since is None:
            self._quiet_since = elapsed_ms
        quiet_ms = elapsed_ms - self._quiet_since - self.origin.unheard_ms(self.next_offset)
        if quiet_ms < after_ms:
            return False
        if not self.idle:
            self.idle = True
            return True
        passed_ms = int(quiet_ms) - after_ms
        if not self._pacing.close_on_idle or passed_ms < 1 or self.watermark == MIN_TIMESTAMP:
            return False
        self._quiet_since += passed_ms
        self.follow(self.watermark + passed_ms)
        return True

    def was_quiet(self, elapsed_ms: float, since_record_ms: float, since_look_ms: float) -> None:
        """Know for how long nothing has come, and for how long nobody has looked: it is idle where it was already."""
        after_ms = self.idle_after_ms
        if after_ms is not None and since_record_ms >= after_ms:
            self.idle = self.was_idle
            since_record_ms = after_ms + since_look_ms if self.was_idle else since_record_ms
        self._quiet_since = elapsed_ms - since_record_ms

    def come_back(self, reached: int) -> None:
        """Be idle no more: what comes now may be late where event time went on without it."""
        self.idle = False
        self.follow(reached)

    def follow(self, reached: int) -> None:
        """Let event time come as far as for the others, while nothing comes."""
        if self._producers is None and self._source.value < reached < MAX_TIMESTAMP:
            self._source.value = reached
            self.in_flight.add(self.next_offset, self._mark).release()

    def ready(self) -> bool:
        """Whether there is something to take: cheap where nothing has changed since the last look.

        Who decides what is read first asks what it `awaits` as well.
        """
        return self._is_stored() or (bool(self.relay) and not self.awaits)

    @property
    def _has_all(self) -> bool:
        """Whether nothing more is to be read; at least once, more may come behind the end that a stage has told."""
        return self._ended or (self.stop_at is not None and self.next_offset >= self.stop_at)

    @property
    def awaits(self) -> bool:
        """Whether something is known to be there to read that has not come yet."""
        if self.origin.fetched is None or self._held is not None or self._offered is not None or self._has_all:
            return False
        return self.next_offset < self.origin.known().end

    def _is_stored(self) -> bool:
        if self._held is not None or self._offered is not None:
            return True
        if self._has_all:
            return False
        version = self.origin.version()
        if version == self._seen_version:
            return False
        self._held = self._read(self.next_offset)
        if self._held is None:
            if not self.awaits:  # else it is asked again, as that may not come at all
                self._seen_version = version
            self.refresh()
            return False
        self._know(self._held.stream_id)
        return True

    def take(self, limit: int) -> Taken:
        """Offer up to `limit` rows; only after `ready`. Nothing moves before they are accepted."""
        self._quiet_since = None
        if self._offered is not None:
            taken, self._offered = self._offered, None
            return self._part(taken, limit) if len(taken.batch) > limit else taken
        held, start = self._held, self._taken
        if held is None:
            assert self.relay is not None
            batch, relayed = self.relay.take(limit)
            self._locate(batch)
            if self._producers is not None and batch.stamps is not None:
                batch.stamps = self._producers.raise_stamps(batch.stamps)
            return Taken(batch, relayed, [], self.next_offset, self._source.value)
        raw, following, control = held.batch, held.next_offset, held.control
        stop = self._taken = start + limit
        if stop < len(raw):  # the rest is not cut off every time: it may be long
            following, control = (raw.offsets or [])[stop], None
        else:
            self._held, self._taken = None, 0
        if start or stop < len(raw):
            raw = raw.slice(start, stop)
        if self.stop_at is not None and following > self.stop_at:
            raw = raw.slice(0, sum(offset < self.stop_at for offset in raw.offsets or ()))
            following, control, self._held, self._taken = self.stop_at, None, None, 0
        return self._decode(raw, following, control)

    def accept(self, taken: Taken, rows: int | None = None) -> Taken:
        """Move on past what was taken, or past its first `rows` rows; the rest will be offered again."""
        if rows is not None and rows < len(taken.batch):
            taken = self._part(taken, rows)
        self._before = self._mark
        self.next_offset, self._source.value = taken.next_offset, taken.watermark
        if taken.control is not None and self._producers is not None:
            self._producers.hear(taken.control.producer, taken.control.watermark, taken.control.idle)
            self.idle = self._producers.is_idle
        self.refresh()
        return taken

    def _know(self, stream_id: int) -> None:
        """Remember which stream is read; raises `Damaged` where it is another one than before."""
        if stream_id not in (0, self._stream_id):
            if self._stream_id:
                raise is_another(self.origin.stream, self.origin.partition, self.next_offset)
            self._stream_id = stream_id

    def _part(self, taken: Taken, rows: int) -> Taken:
        """Return the first rows of what was taken, with the malformed ones among them; keep the rest."""
        batch, raw = taken.batch, taken.raw
        assert batch.offsets is not None
        watermark = batch.stamps[rows] if batch.stamps is not None else taken.watermark
        following = batch.offsets[rows]
        before = [one for one in taken.malformed if one.offset < following]
        after = [one for one in taken.malformed if one.offset > following]
        rest = batch.slice(rows, len(batch)), raw.slice(rows, len(raw))
        self._offered = Taken(*rest, after, taken.next_offset, taken.watermark, taken.control)
        return Taken(batch.slice(0, rows), raw.slice(0, rows), before, following, watermark)

    def _decode(self, raw: Batch, following: int, control: Control | None) -> Taken:
        columns: object = raw.values
        if isinstance(columns, Columns):
            watermark, folded = self._source.value, None
            if self._columnar is not None:
                folded = self._columnar.run(columns.table, watermark, self._pacing.max_disorder_ms)
            if folded is not None:
                return Taken(raw, raw, [], following, self._at_least(folded.watermark, control), control, folded)
            raw.values = columns.rows()
        return self._decode_rows(raw, following, control)

    def _decode_rows(self, raw: Batch, following: int, control: Control | None) -> Taken:
        stamps = raw.stamps if self._decoding.trusted else None
        batch = Batch(raw.values, keys=raw.keys, timestamps=raw.timestamps, stamps=stamps, offsets=raw.offsets)
        batch.signs = raw.signs
        self._locate(batch)
        taken = _after(Taken(batch, raw, [], following, self._source.value, control), "value", self._decode_values)
        if self._folding is not None and not taken.malformed:
            folded = self._folding.run(taken.batch, self._keys, self._source.value)
            if folded is not None:
                return replace(taken, folded=folded, watermark=self._at_least(folded.watermark, control))
        return self.unfold(taken)

    def _locate(self, batch: Batch) -> None:
        if self._decoding.located:
            batch.headers = [Whence(self.origin.stream, self.origin.partition).headers()] * len(batch)

    def unfold(self, taken: Taken) -> Taken:
        """Read keys and times into columns, and return what was taken with these."""
        columns: object = taken.batch.values
        if isinstance(columns, Columns):
            taken.raw.values = columns.rows()
            return self.unfold(self._decode_rows(taken.raw, taken.next_offset, taken.control))
        if not self._decoding.trusted:
            taken = _after(_after(taken, "key", self._read_keys), "timestamp", self._read_times)
            if self._decoding.watermark_of is not None and self._decoding.stamped:
                taken = _after(taken, "watermark", partial(self._read_told, self._decoding.watermark_of))
        elif self._keys is not None and taken.batch.keys is not None:
            taken.batch.keys = self._keys.load(taken.batch.keys)
        batch, watermark = taken.batch, self._source.value
        if batch.timestamps is not None and self._producers is None and self._decoding.stamped:
            if batch.stamps is None:
                batch.stamps = self._source.stamp(batch.timestamps)
            else:
                batch.stamps = self._source.stamp_by(batch.stamps)
            watermark = batch.stamps.pop()
        elif batch.stamps is not None and self._producers is not None:
            batch.stamps = self._producers.raise_stamps(batch.stamps)
        return replace(taken, watermark=self._at_least(watermark, taken.control), folded=None)

    def _at_least(self, watermark: int, control: Control | None) -> int:
        """Return the watermark, or what its producer says of it where that is more."""
        if control is not None and control.producer == OUTSIDE and not ends(control) and self._producers is None:
            return max(watermark, control.watermark)
        return watermark

    def _decode_values(self, batch: Batch) -> dict[int, Exception]:
        if getattr(self._decoding.value, "unchanged", False):
            return {}
        serde = self._decoding.value
        decode = serde.decode

        def decode_all(values: list[Any]) -> list[Any]:
            if isinstance(values, ObjectLines) or None not in values:
                return decoded(serde, values)
            if not self._decoding.tombstones:
                raise SerdeError("the record has no value")
            return [None if value is None else decode(value) for value in values]

        batch.values, errors = _column(decode_all, batch.values)
        return errors

    def _read_keys(self, batch: Batch) -> dict[int, Exception]:
        key_of, keys = self._decoding.key_of, self._keys
        if keys is None or (key_of is None and batch.keys is None):
            batch.keys = None
            return {}
        if key_of is not None:
            batch.keys, errors = _column(lambda values: keys.hold([key_of(value) for value in values]), batch.values)
        else:
            batch.keys, errors = _column(keys.load, batch.keys or [])
        return errors

    def _read_told(self, watermark_of: Callable[[Any], Any], batch: Batch) -> dict[int, Exception]:
        """Put what records say of event time in the place of their stamps."""

        def told(values: list[Any]) -> list[Any]:
            return [None if at is None else to_ms([at], "watermark=")[0] for at in map(watermark_of, values)]

        batch.stamps, errors = _column(told, batch.values)
        return errors

    def _read_times(self, batch: Batch) -> dict[int, Exception]:
        timestamp_of = self._decoding.timestamp_of
        if timestamp_of is not None and self._decoding.tombstones and None in batch.values:
            rows = list(zip(batch.values, batch.timestamps or repeat(None), strict=False))
            batch.timestamps, errors = _column(
                lambda rows: to_ms([at if value is None else timestamp_of(value) for value, at in rows]), rows
            )
            return errors
        if timestamp_of is not None:
            batch.timestamps, errors = _column(lambda values: to_ms([timestamp_of(v) for v in values]), batch.values)
            return errors
        if batch.timestamps is None or not (self._decoding.timed or self._decoding.stamped):
            batch.timestamps = None
            return {}
        batch.timestamps, errors = _column(to_ms, batch.timestamps)
        return errors


def _after(taken: Taken, part: str, step: Callable[[Batch], dict[int, Exception]]) -> Taken:
    """Return what is left after reading a part of each record, and with the malformed what could not be read."""
    errors = step(taken.batch)
    if not errors:
        return taken
    malformed = [*taken.malformed, *(Malformed(taken.raw.row(row), error, part) for row, error in errors.items())]
    readable = [row for row in range(len(taken.batch)) if row not in errors]
    return replace(taken, batch=taken.batch.take(readable), raw=taken.raw.take(readable), malformed=malformed)


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
