"""The reader of one source partition for one task: raw batches in, decoded columns and malformed records out."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from math import inf
from typing import Any, cast

from operators.core.base import MAX_TIMESTAMP, MIN_TIMESTAMP, Batch, Serde, has_none
from operators.windows.window_groups import Grouped
from planner.model.errors import PlanError
from runtime.encoding.columns import AlikeRecords, ChosenColumns, Columns, SureColumns
from runtime.encoding.keys import KeySerde
from runtime.encoding.lines import ObjectLines
from runtime.encoding.serdes import decoded
from runtime.functions.at_work import tells
from runtime.functions.failures import Whence
from runtime.model.checkpoint import Position
from runtime.model.clock import monotonic_ms
from runtime.model.errors import SerdeError
from runtime.model.history import AtRest
from runtime.ports.streams import OUTSIDE, Control, Read, ends, made_anew_error
from runtime.reading.completion import Entry, InFlight, RowsInFlight
from runtime.reading.event_times import UNPACED, Pacing, rise_of
from runtime.reading.folding import Columnar, Folded, FoldingSegment, PreparedRows, SharedGroups, begins_well, lowest_of
from runtime.reading.origin import Origin
from runtime.reading.relay import Relay, Relayed
from runtime.reading.shared_reads import SharedReads
from runtime.reading.sieve import WHOLE, KeyShare, Sieve
from runtime.reading.taken import Taken, after, column_of, values_anew
from runtime.reading.watermarks import RECORDS, News, ProducerWatermarks, SourceWatermark, to_ms


@dataclass
class Decoding:
    """The way raw records become columns; `trusted` bytes are our own, of an intermediate stream.

    Without `stamped` nothing downstream asks for event time, and if it is not `timed` either, nothing carries it on;
    `tombstones` are records without a value, of a table or a stream whose values may be None. Times are in the `unit`,
    or in ms.
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
    headed: bool = False
    """Whether somebody downstream asks for headers."""
    unit: str | None = None
    is_table: bool = False

    @property
    def calls(self) -> list[str]:
        """The names of the user's functions."""
        return [name for name in ("key_of", "timestamp_of", "watermark_of") if getattr(self, name) is not None]


@dataclass(frozen=True)
class StartPoint:
    """The point from which a partition is read: its checkpointed position, and the producers whose watermarks count.

    Of a virtual task's partition only its `share` is read; `ahead` has the positions of shares that were read further.
    """

    position: Position | None = None
    producers: Iterable[str] | None = None
    share: KeyShare = WHOLE
    ahead: tuple[Position, ...] = ()

    @property
    def is_part(self) -> bool:
        """Whether rows are read that are not to be processed."""
        return self.share.is_part or bool(self.ahead)


@dataclass(frozen=True)
class Turn:
    """The turn of a partition among others: by `priority`, after all inputs where it is `later`, up to `stop_at`.

    Where it stops it comes to `rest` as another run has there, if one is given.
    """

    stop_at: int | None = None
    rest: AtRest | None = None
    priority: int = 0
    later: bool = False


@dataclass(frozen=True)
class Shortcuts:
    """The ways by which rows are taken in faster than column by column, where there are any.

    `folding` reads and groups them in one loop, `columnar` computes on Arrow's columns, and a `relay` has them from the
    stage before, in memory.
    """

    folding: FoldingSegment | None = None
    columnar: Columnar | None = None
    relay: Relay | None = None
    shared: SharedReads | None = None
    """What the virtual tasks of one partition read together, where they do."""
    look_at: Callable[[Batch], bool] | None = None
    """Looks at the first rows, as they are stored, and returns whether it is to see more."""


class Reader:
    """Reads one source partition for a task: it has the position, the watermark, and what is in flight from there.

    `take` moves nothing; `accept` does, and so what is taken lies at or behind the position. Position and watermark
    never go back, and what is checkpointed is never above what was accepted. What was offered and not accepted is
    offered again before anything else. The task's thread feeds it, one at a time; the event loop asks `ready`,
    `awaits` and the idle looks only while no thread is at work in the task.
    """

    def __init__(
        self,
        origin: Origin,
        decoding: Decoding,
        entry: str,
        start: StartPoint,
        turn: Turn = Turn(),
        pacing: Pacing = UNPACED,
        shortcuts: Shortcuts = Shortcuts(),
    ) -> None:
        position, producers = start.position, start.producers
        self.origin = origin
        self._read = origin.fetched or origin.read
        self._shared = shortcuts.shared
        self.entry = entry
        self.next_offset = position.offset if position else origin.known().start
        self.stop_at, self.rest = turn.stop_at, turn.rest
        self.priority, self.later = turn.priority, turn.later
        self.relay = shortcuts.relay
        self.beside: Sequence[Reader] = ()
        """The readers of the other partitions, where it takes what is handed on for all of them."""
        self._decoding = decoding
        self.folding, self._columnar = shortcuts.folding, shortcuts.columnar
        self.shared: SharedGroups | None = None
        """The groups that it folds into with other readers, while these are read together."""
        self._look_at = shortcuts.look_at
        self.times = pacing.times
        self._keys = KeySerde(decoding.key) if decoding.key is not None else None
        self.read_ms = 0.0
        """The time in which it read rows, of which some may be of others."""
        self.sieve = Sieve(start.share, start.ahead, self._keys) if start.is_part else None
        self.idle = False
        """Whether it holds event time back for nobody, as nothing has come for long."""
        self.was_idle = bool(position and position.idle)
        """Whether it was idle where this run began; others may have been told so."""
        self._pacing, self._had_ended = pacing, bool(position and position.has_ended)
        self._quiet_since: float | None = None
        self._has_gone_on = False
        self._source = SourceWatermark(pacing.max_disorder_ms, position.watermark if position else MIN_TIMESTAMP)
        self._producers: ProducerWatermarks | None = None
        if producers:
            known = (position.producers, position.idle, position.watermark) if position else ({},)
            self._producers = ProducerWatermarks(producers, *known)
            self.idle = self._producers.is_idle
        self._before = self._mark
        self.in_flight = InFlight(self.next_offset, self._mark)
        self.on_end: Callable[[], None] = lambda: None
        """Called where a look for more finds the end, by which event time goes on."""
        self._held: Read | None = None
        self._taken = 0
        self.appended: list[tuple[int, int]] = []
        """When what was read since the last commit was appended, and how many rows each is."""
        self._offered: Taken | None = None
        self._ended, self._seen_version = False, -1
        self._stream_id = position.stream_id if position else 0
        self._know(origin.stream_id())
        if self.next_offset:
            self._identify()
        self.refresh()

    @property
    def watermark(self) -> int:
        """The watermark of what was handed on; MAX_TIMESTAMP once the partition has ended."""
        if self._producers is not None:
            return self._producers.value
        return MAX_TIMESTAMP if self._ended else self._source.value

    @property
    def _mark(self) -> Any:
        """The event time that is known here, to be remembered with a position."""
        return self._source.value if self._producers is None else self._producers.mark

    @property
    def ended(self) -> bool:
        """Whether no record will ever come again."""
        return self._ended if self._producers is None else self._producers.value == MAX_TIMESTAMP

    @property
    def ends_anew(self) -> bool:
        """Whether a source has ended, and the checkpoint does not have that with which this run began."""
        return self._ended and not self._had_ended

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

    def track_rows(self, rows: Batch) -> RowsInFlight:
        """Start tracking rows of the batch that was just accepted, each by itself; there are no others."""
        assert rows.offsets is not None
        stamps = rows.stamps if self._producers is None else None
        before = [self._before] * len(rows) if stamps is None else stamps
        return self.in_flight.add_rows(self.next_offset, self._mark, rows.offsets, before)

    def place(self, batch: Batch, row: int | None) -> Whence:
        """Return where a record is; without a row, one of the batch."""
        here, offsets = Whence(self.origin.stream, self.origin.partition), batch.offsets
        if offsets is None:  # it came by a relay, and is nowhere stored
            return here if self.relay is None else self.relay.whence(here, batch.keys, row)
        return here._replace(offset=offsets[0], last=offsets[-1]) if row is None else here._replace(offset=offsets[row])

    def position(self) -> Position:
        """Return the position to checkpoint: the low watermark, and event time as of there."""
        origin = self.origin
        offset, watermark = self.in_flight.reached()
        as_of_there = {"watermark": watermark, "idle": (origin.stream,) if self.idle else ()}
        if self._producers is not None:
            producers, idle, floor = watermark
            as_of_there = {"producers": producers, "idle": tuple(sorted(idle)), "watermark": floor}
        place, stream_id = (origin.system, origin.stream, origin.partition), self._stream_id
        if origin.fingerprint is not None and self._decoding.is_table:
            stream_id = origin.fingerprint.number(offset)
        ended_at = offset if self._ended and offset == self.next_offset else -1
        return Position(*place, offset, stream_id=stream_id, ended_at=ended_at, **as_of_there)

    def positions(self) -> list[Position]:
        """Return the positions to checkpoint: that of the reader, and those of shares that were read further before."""
        own = self.position()
        return [own] if self.sieve is None else [own, *self.sieve.ahead_of(own.offset)]

    def refresh(self) -> None:
        """See whether the partition has ended at this position."""
        # What is held or offered has still to be handed on, so the end is not reached before it is. Producers
        # of an intermediate stream end one by one, which their watermarks tell.
        if self._producers is None and not self._ended and self._held is None and self._offered is None:
            offsets = self.origin.known()
            self._ended = offsets.ended and self.next_offset >= offsets.end

    @property
    def idle_after_ms(self) -> int | None:
        """The ms for which nothing has to come until it is idle; None where it never is."""
        return self._pacing.idle_after_ms if self._producers is None else None

    @property
    def max_drift_ms(self) -> int | None:
        """The ms of event time that it may be ahead of others that have something to read."""
        return self._pacing.max_drift_ms

    def look_for_idle(self, elapsed_ms: float) -> bool:
        """Notice, now and then, that nothing has come for long; return whether event time may go on by that."""
        after_ms = self.idle_after_ms
        if after_ms is None or self.exhausted or self.ready():
            self._quiet_since = None
            return False
        if self._quiet_since is None:
            self._quiet_since = elapsed_ms
        # A source that was not asked for a while may well have something: that time does not count as quiet.
        idle_since_ms = self._quiet_since + after_ms + self.origin.unheard_ms(self.next_offset)
        if elapsed_ms < idle_since_ms:
            return False
        if not self.idle:
            self.idle = True
            return True
        passed_ms = int(elapsed_ms - idle_since_ms)
        if not self._pacing.close_on_idle or passed_ms < 1 or self.watermark == MIN_TIMESTAMP:
            return False
        # Event time goes on by just the time that has passed, whenever somebody looks: so the pace of the
        # looks does not show in results.
        self._quiet_since += passed_ms
        self.follow(self.watermark + passed_ms)
        return True

    @property
    def idle_at_ms(self) -> float:
        """The ms elapsed when it will be idle if nothing comes; 0 if nobody knows yet, infinite if it never will be."""
        after_ms = self.idle_after_ms
        if after_ms is None or self.exhausted or (self.idle and not self._pacing.close_on_idle):
            return inf
        return 0.0 if self.idle or self._quiet_since is None else self._quiet_since + after_ms

    def was_quiet(self, elapsed_ms: float, since_record_ms: float, since_look_ms: float) -> None:
        """Take over for how long nothing has come, and nobody has looked: it stays idle where it was already."""
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
            # An empty entry carries the new mark: it reaches the checkpoint once everything before it is
            # complete, and not sooner.
            self.in_flight.add(self.next_offset, self._mark).release()

    def go_on(self, reached: int) -> bool:
        """Let event time go one ms beyond what it has reached, once before something comes again; return whether so."""
        if not self.idle or self._has_gone_on:
            return False
        self._has_gone_on = True
        if self._producers is None:
            self.follow(reached + 1)
        else:
            self._producers.floor = max(self._producers.floor, reached + 1)
            self.in_flight.add(self.next_offset, self._mark).release()
        return True

    @property
    def is_up_to_date(self) -> bool:
        """Whether it has read all that is stored, and nothing that was handed on waits for it."""
        return self.relay is not None and not self.relay and not self.is_stored() and not self.awaits

    def hear(self, news: News) -> None:
        """Hear in memory, behind all that was read, how far event time is at who writes the stream."""
        assert self._producers is not None, "only those of stages before tell of event time"
        before = self.watermark
        news.tell(self._producers)
        assert self.watermark >= before, "no producer takes event time back"
        self.idle = self._producers.is_idle
        # An empty entry carries the new mark to the checkpoint, behind all that came before it.
        self.in_flight.add(self.next_offset, self._mark).release()

    def ready(self) -> bool:
        """Whether there is something to take: cheap where nothing has changed since the last look.

        Who decides what is read first asks what it `awaits` as well.
        """
        # What is stored for any of those that it takes rows for was written before these.
        beside = (self, *self.beside)
        return self.is_stored() or (bool(self.relay) and not any(one.awaits or one.is_stored() for one in beside))

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

    @property
    def may_be_stored(self) -> bool:
        """Whether `is_stored` has to look, or knows of something; nothing is read for it."""
        if self._held is not None or self._offered is not None:
            return True
        # A version as of a look that found nothing says that nothing was written since: an idle loop does not read.
        return not self._has_all and self.origin.version() != self._seen_version

    def is_stored(self) -> bool:
        """Whether there is something to take that was not handed on in memory."""
        if not self.may_be_stored:
            return False
        if self._held is not None or self._offered is not None:
            return True
        version = self.origin.version()
        began_ms = monotonic_ms()
        at, shared = self.next_offset, self._shared
        self._held = self._read(at) if shared is None else shared.read(at, self._read)
        self.read_ms += monotonic_ms() - began_ms
        if self._held is None:
            if not self.awaits:  # else it is asked again, as that may not come at all
                self._seen_version = version
            self.refresh()
            if self._ended:
                self.on_end()  # found by a look, and not by a piece of work, behind which what is due fires
            return False
        self._know(self._held.stream_id)
        if not self._stream_id:
            self._identify()
        return True

    @tells(lambda known: known["self"].entry)
    def take(self, limit: int) -> Taken:
        """Offer up to `limit` rows; only after `ready`. Nothing moves before they are accepted."""
        self._quiet_since = None
        self._has_gone_on = False
        if self._offered is not None:
            taken, self._offered = self._offered, None
            return self._part(taken, limit) if len(taken.batch) > limit else taken
        held, start = self._held, self._taken
        assert held is None or start < max(len(held.batch), 1), "all of what is held was offered"
        if held is None:
            assert self.relay is not None
            return self._take_relayed(self.relay, limit)
        if self._shared is not None:
            taken = self._take_shared(self._shared, held)
            return self._part(taken, limit) if len(taken.batch) > limit else taken
        raw, following, control = held.batch, held.next_offset, held.control
        stop = self._taken = start + limit
        if stop < len(raw):  # the rest is not cut off every time: it may be long
            following, control = (raw.offsets or [])[stop], None
        else:
            self._held, self._taken = None, 0
            # Noted with the last rows of what was read together, for all of them: once a batch.
            if held.appended_ms and len(held.batch):
                self.appended.append((held.appended_ms, len(held.batch)))
        # Most batches are taken whole, and are not copied then.
        if start or stop < len(raw):
            raw = raw.slice(start, stop)
        # Behind the offset at which this run stops nothing counts, the control of the batch included: others
        # read it later.
        if self.stop_at is not None and following > self.stop_at:
            raw = raw.slice(0, sum(offset < self.stop_at for offset in raw.offsets or ()))
            following, control, self._held, self._taken = self.stop_at, None, None, 0
        return self._decode(raw, following, control)

    def _take_shared(self, shared: SharedReads, held: Read) -> Taken:
        """Offer its own rows of what virtual tasks read together; event time is that of all rows."""
        assert self.sieve is not None, "who has a partition for itself shares with nobody"
        self._held = None
        if held.appended_ms and len(held.batch):
            self.appended.append((held.appended_ms, len(held.batch)))
        whole, buckets = shared.decoded(held, self._columns, self.sieve.share_out)
        batch, following, control = whole.batch, held.next_offset, held.control
        offsets = batch.offsets or ()
        # Others may have read from further before; and behind the offset at which this run stops nothing counts.
        first, last = bisect_left(offsets, self.next_offset), len(offsets)
        if self.stop_at is not None and following > self.stop_at:
            last, following, control = bisect_left(offsets, self.stop_at), self.stop_at, None
        rows = buckets[self.sieve.bucket]
        rows = self.sieve.fresh(batch, rows[bisect_left(rows, first) : bisect_left(rows, last)])
        found, watermark = batch.take(rows), self._source.value
        if batch.timestamps is not None and self._decoding.stamped:
            told = None if batch.stamps is None else batch.stamps[first:last]
            stamps = self._stamps(batch.timestamps[first:last], told, offsets[first:last])
            watermark = stamps.pop()
            found.stamps = [stamps[row - first] for row in rows]
        malformed = [one for one in self.sieve.told(whole.malformed) if self.next_offset <= one.offset < following]
        watermark = self._at_least(watermark, control)
        return Taken(found, whole.raw.take(rows), malformed, following, watermark, control)

    def _columns(self, held: Read) -> Taken:
        """Return rows with their values, keys and times, which are the same for whoever reads them."""
        columns: object = held.batch.values
        if isinstance(columns, SureColumns):
            held.batch.values = cast("list[Any]", columns.others())
        return self._read_columns(self._read_values(held.batch, held.next_offset, held.control))

    def _take_relayed(self, relay: Relay, limit: int) -> Taken:
        """Offer what was handed on in memory: rows, or groups where these need not be looked at one by one."""
        grouped = relay.take_grouped(limit)
        if grouped is not None:
            folded = Folded(len(grouped), [(grouped.exit, grouped, Batch([]))], self._source.value, ())
            taken = Taken(Batch([]), grouped, [], self.next_offset, self._source.value, folded=folded)
            assert self._producers is not None, "what is handed on comes from stages before"
            # Where event time went on without its producer a row's stamp is raised, and may be late by that.
            return taken if self._producers.floor == MIN_TIMESTAMP else self.unfold(taken)
        batch, relayed = relay.take(limit)
        self._locate(batch)
        if self._producers is not None and batch.stamps is not None:
            batch.stamps = self._producers.raise_stamps(batch.stamps)
        return Taken(batch, relayed, [], self.next_offset, self._source.value)

    def accept(self, taken: Taken, rows: int | None = None) -> Taken:
        """Move on past what was taken, or past its first `rows` rows; the rest will be offered again."""
        assert taken.next_offset >= self.next_offset, "a reader never goes back"
        if rows is not None and rows < len(taken.batch):
            taken = self._part(taken, rows)
        # Kept for `track_each` and `track_rows`: the rows of this batch had not yet moved event time when they
        # came.
        self._before = self._mark
        self.next_offset, self._source.value = taken.next_offset, taken.watermark
        if taken.control is not None and self._producers is not None:
            before = self.watermark
            self._producers.take(taken.control)
            assert self.watermark >= before, "no producer takes event time back"
            self.idle = self._producers.is_idle
        self.refresh()
        return taken

    def _know(self, stream_id: int) -> None:
        """Remember which stream is read; raises `Damaged` where it is another one than before."""
        # A stream that was deleted and made anew counts its offsets from 0 again: the checkpointed one would
        # silently skip, or name other records.
        if stream_id not in (0, self._stream_id):
            if self._stream_id:
                raise made_anew_error(self.origin.stream, self.origin.partition, self.next_offset)
            self._stream_id = stream_id

    def _identify(self) -> None:
        """Remember which file or list is read; raises `Damaged` where it is another one than before."""
        found = self.origin.fingerprint
        if found is not None:
            self._stream_id = found.checked(self._stream_id, self.next_offset, self._decoding.is_table)

    def _part(self, taken: Taken, rows: int) -> Taken:
        """Return the first rows of what was taken, with the malformed ones among them; keep the rest."""
        batch, raw = taken.batch, taken.raw
        assert batch.offsets is not None
        watermark = batch.stamps[rows] if batch.stamps is not None else taken.watermark
        following = batch.offsets[rows]
        assert self.next_offset <= following < taken.next_offset, "a part ends within what was taken"
        before = [one for one in taken.malformed if one.offset < following]
        after = [one for one in taken.malformed if one.offset > following]
        rest = batch.slice(rows, len(batch)), raw.slice(rows, len(raw))
        # The rest keeps the control: a producer's word holds behind the last of its rows only.
        self._offered = Taken(*rest, after, taken.next_offset, taken.watermark, taken.control)
        # Rows that were dropped are counted with the first part.
        return Taken(batch.slice(0, rows), raw.slice(0, rows), before, following, watermark, dropped=taken.dropped)

    def _decode(self, raw: Batch, following: int, control: Control | None) -> Taken:
        columns: object = raw.values
        if isinstance(columns, SureColumns):
            assert self._columnar is not None, "nobody else asks for columns that are sure"
            found = self._columnar.run(columns.table, self._source.value, self._pacing.max_disorder_ms)
            if found is not None and self._is_usual(found, []):
                taken = Taken(raw, raw, [], following, self._at_least(found.watermark, control), control)
                return replace(taken, folded=found) if isinstance(found, Folded) else self._prepared(taken, found)
            raw.values = cast("list[Any]", columns.others())
        return self._decode_rows(raw, following, control)

    def _prepared(self, taken: Taken, found: PreparedRows) -> Taken:
        """Return what was taken as the records that were made of columns, with their keys."""
        raw, offsets = taken.raw, taken.raw.offsets or ()
        if found.places is not None:
            offsets = [offsets[place] for place in found.places]
            raw = Batch(cast("list[Any]", ChosenColumns(raw.values, found.places)), offsets=offsets)
        batch = Batch(found.values, timestamps=found.timestamps, offsets=offsets)
        batch.stamps = found.stamps if self._decoding.stamped else None
        self._locate(batch)
        watermark = taken.watermark if self._decoding.stamped else self._source.value
        taken = replace(taken, batch=batch, raw=raw, watermark=watermark, dropped=found.dropped)
        return after(taken, "key", self._read_keys)

    def _decode_rows(self, raw: Batch, following: int, control: Control | None) -> Taken:
        sieve = self.sieve
        if sieve is not None and self._decoding.trusted:
            # Between stages keys lie as bytes and rows carry their stamps: what is of others is not even decoded.
            raw, sieve = sieve.own(raw), None
        taken = self._read_values(raw, following, control)
        if sieve is not None:
            return sieve.sift(self.unfold(taken))
        # One generated loop instead of three columns. It has no effect yet, so anything unusual can still go
        # the ordinary way.
        return self.unfold(taken) if taken.malformed else self.fold(taken, self.shared)

    @tells(lambda known: known["self"].entry)
    def fold(self, taken: Taken, shared: SharedGroups | None = None) -> Taken:
        """Group values by a generated loop, into groups that are `shared` or its own; else read them into columns."""
        if self.folding is not None:
            folded = self.folding.run(taken.batch, self._keys, self._source.value, shared)
            if folded is not None and self._is_usual(folded, taken.batch.values):
                return replace(taken, folded=folded, watermark=self._at_least(folded.watermark, taken.control))
            taken = self.renewed(taken)
        return self.unfold(taken)

    def renewed(self, taken: Taken) -> Taken:
        """Return what was taken with values as they were read, where functions that run again may have changed them."""
        if isinstance(taken.raw, Batch | Relayed):
            taken.batch.values = self.anew(taken.batch, taken.raw, range(len(taken.batch)))
        return taken

    def anew(self, batch: Batch, raw: Batch | Relayed, rows: range) -> list[Any]:
        """Return the values of rows as they were read; those that nobody can change, or without bytes, as they are."""
        return values_anew(batch, raw, rows, self._decode_values)

    def _read_values(self, raw: Batch, following: int, control: Control | None) -> Taken:
        """Return rows with their values alone: keys and times are read off these; what can't be read has neither."""
        stamps = raw.stamps if self._decoding.trusted else None
        batch = Batch(raw.values, keys=raw.keys, timestamps=raw.timestamps, stamps=stamps, offsets=raw.offsets)
        batch.signs = raw.signs
        if self._decoding.headed:
            batch.headers = raw.headers
        self._locate(batch)
        if self._look_at is not None and not self._look_at(raw):
            self._look_at = None
        taken = Taken(batch, raw, [], following, self._source.value, control)
        return after(taken, "value", self._decode_values)

    def _locate(self, batch: Batch) -> None:
        if self._decoding.located:
            here = Whence(self.origin.stream, self.origin.partition)
            batch.origins = [here.headers()] * len(batch) if self.relay is None else self.relay.origins(here, batch)

    @tells(lambda known: known["self"].entry)
    def unfold(self, taken: Taken) -> Taken:
        """Read keys and times into columns, and return what was taken with these."""
        if isinstance(taken.raw, Grouped):
            assert self.relay is not None
            self.relay.take_back(taken.raw)
            return self._take_relayed(self.relay, len(taken.raw))
        columns: object = taken.batch.values
        if isinstance(columns, SureColumns):
            taken.raw.values = cast("list[Any]", columns.others())
            return self.unfold(self._decode_rows(taken.raw, taken.next_offset, taken.control))
        if not self._decoding.trusted:
            taken = self._read_columns(taken)
        elif self._keys is not None and taken.batch.keys is not None:
            taken = after(taken, "key", self._read_keys)
        batch, watermark = taken.batch, self._source.value
        if batch.timestamps is not None and self._producers is None and self._decoding.stamped:
            batch.stamps = self._stamps(batch.timestamps, batch.stamps, batch.offsets)
            watermark = batch.stamps.pop()
        elif batch.stamps is not None and self._producers is not None:
            batch.stamps = self._producers.raise_stamps(batch.stamps)
        return replace(taken, watermark=self._at_least(watermark, taken.control), folded=None)

    def _read_columns(self, taken: Taken) -> Taken:
        """Read keys and times into columns; what records say of event time is put in the place of their stamps."""
        taken = after(after(taken, "key", self._read_keys), "timestamp", self._read_times)
        if (times := self.times) is not None and times.is_limited:
            taken = after(taken, "timestamp", lambda batch: times.too_far(batch.timestamps or []))
        if self._decoding.watermark_of is not None and self._decoding.stamped:
            taken = after(taken, "watermark", partial(self._read_told, self._decoding.watermark_of))
        return taken

    def _stamps(self, times: list[int], told: list[int] | None, offsets: Sequence[int] | None) -> list[int]:
        """Return the watermark before each row, and after the last, by their times or by what they say of it."""
        stamps = self._source.stamp(times) if told is None else self._source.stamp_by(told)
        if self.times is not None:
            self.times.note(stamps, offsets, times)
        return stamps

    def _at_least(self, watermark: int, control: Control | None) -> int:
        """Return the watermark, or what its producer says of it where that is more."""
        # Only the producer of an input from outside speaks for the whole partition; the words of tasks are
        # heard in `accept`, where the minimum over all of them is taken.
        if control is None or control.producer != OUTSIDE or ends(control) or self._producers is not None:
            return watermark
        may_be_told = self.times is None or self.times.may_be_told(watermark, control.watermark)
        return max(watermark, control.watermark) if may_be_told else watermark

    def _decode_values(self, batch: Batch) -> dict[int, Exception]:
        if getattr(self._decoding.value, "unchanged", False):
            return {}
        serde = self._decoding.value

        def decode_all(values: list[Any]) -> list[Any]:
            if isinstance(values, ObjectLines | Columns | AlikeRecords) or None not in values:
                return decoded(serde, values)
            if not self._decoding.tombstones:
                raise SerdeError("the record has no value; where None stands for that, declare value=T | None")
            return [None if value is None else serde.decode(value) for value in values]

        batch.values, errors = column_of(decode_all, batch.values)
        return errors

    def _read_keys(self, batch: Batch) -> dict[int, Exception]:
        key_of, keys = self._decoding.key_of, self._keys
        if keys is None or (key_of is None and batch.keys is None):
            batch.keys = None
            return {}
        if key_of is not None:
            batch.keys, errors = column_of(lambda values: keys.hold([key_of(value) for value in values]), batch.values)
        else:
            batch.keys, errors = column_of(keys.load, batch.keys or [])
        return errors

    def _read_told(self, watermark_of: Callable[[Any], Any], batch: Batch) -> dict[int, Exception]:
        """Put what records say of event time in the place of their stamps."""

        def told(values: list[Any]) -> list[Any]:
            unit, tombstones = self._decoding.unit, self._decoding.tombstones
            found = [None if value is None and tombstones else watermark_of(value) for value in values]
            return [None if at is None else to_ms([at], "watermark= returned", unit)[0] for at in found]

        batch.stamps, errors = column_of(told, batch.values)
        if errors or self.times is None:
            return errors
        try:
            self.times.check_told(batch.stamps or [])
        except PlanError as error:
            return {0: error}
        return self.times.too_far(batch.stamps or [])

    def _read_times(self, batch: Batch) -> dict[int, Exception]:
        timestamp_of, unit = self._decoding.timestamp_of, self._decoding.unit
        if timestamp_of is not None and self._decoding.tombstones and has_none(batch.values):
            rows = list(zip(batch.values, batch.timestamps or repeat(None), strict=False))
            batch.timestamps, errors = column_of(lambda rows: [self._time_of(value, at) for value, at in rows], rows)
            if errors or batch.timestamps is None:
                return errors
            # A record without a value has its own time, which is ms.
            return self._look_at_unit(
                [at for at, value in zip(batch.timestamps, batch.values, strict=True) if value is not None]
            )
        if timestamp_of is not None:
            batch.timestamps, errors = column_of(
                lambda values: to_ms([timestamp_of(v) for v in values], unit=unit), batch.values
            )
            return errors or self._look_at_unit(batch.timestamps or [])
        is_read = self._decoding.timed or self._decoding.stamped or (self.times is not None and self.times.is_limited)
        if batch.timestamps is None or not is_read:
            batch.timestamps = None
            return {}
        batch.timestamps, errors = column_of(lambda times: to_ms(times, RECORDS, unit), batch.timestamps)
        return errors or self._look_at_unit(batch.timestamps or [])

    def _time_of(self, value: Any, at: int | None) -> int:
        """Return the time of a record of a table: its own where it has no value that would tell it."""
        assert self._decoding.timestamp_of is not None
        return (
            to_ms([at])[0]
            if value is None
            else to_ms([self._decoding.timestamp_of(value)], unit=self._decoding.unit)[0]
        )

    def _look_at_unit(self, times: list[int]) -> dict[int, Exception]:
        """Return what is wrong with the first times of all, where these can't be meant, and somebody asks for them."""
        try:
            if self.times is not None and (self._decoding.stamped or self._decoding.timestamp_of is not None):
                self.times.check_unit(times)
        except PlanError as error:
            return {0: error}
        return {}

    def _is_usual(self, folded: Folded | PreparedRows, values: Sequence[Any]) -> bool:
        """Whether no time of what was folded need be looked at by itself."""
        if self.times is None:
            return True
        if self.times.is_misplaced(lowest_of(folded)):
            return False
        before, disorder_ms, time_of = self._source.value, self._pacing.max_disorder_ms, self._decoding.timestamp_of
        # Before the first record of all there is no watermark to measure a jump from: it is that record's own
        # time.
        if before == MIN_TIMESTAMP and folded.watermark > MIN_TIMESTAMP:
            if not begins_well(folded):
                return False
            try:
                first = to_ms([time_of(values[0])])[0] if time_of and values else folded.watermark
            except Exception:  # the ordinary way tells what it is
                return False
            before = self.times.begun((first if folded.rise is None else folded.rise.first) - disorder_ms)
        highest = folded.watermark + disorder_ms
        if not self.times.are_unusual(highest, before, folded.watermark):
            return True
        # A batch of a long history spans days: its times are read once more, and it need not go the ordinary way.
        try:
            rise = folded.rise or rise_of(to_ms([*map(time_of, values)]) if time_of else (), self._source.highest)
        except Exception:
            return False
        return self.times.are_of_history(highest, before + disorder_ms, rise)
