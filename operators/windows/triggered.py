"""The triggered windows: those with early panes, late panes of windows that merge, or withdrawn panes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import repeat
from typing import Any, NamedTuple, cast

from operators.aggregations.aggregation import Aggregation
from operators.core.base import MIN_TIMESTAMP, MOST_HELD, NEVER, Batch, Copies, Key, Keys, Store
from operators.state.agenda import Agenda
from operators.state.entry_keys import NUMBER_BYTES, beyond, number_at, ordered
from operators.state.keyed_state import STATE, is_plain
from operators.windows.custom_window import Assigning
from operators.windows.spans import Span, Spans, put, restored
from operators.windows.window import NO_KEY, TIMINGS, Pane, Timing, Window
from operators.windows.window_types import ByRow, Cell, Sessions, WindowType

Place = tuple[tuple[int, ...], Key]
"""The place of what may become one window: 0 for all of a key, else a window's start, or a user's own bounds."""
ALL = (0,)
"""The place of all windows of a key that may merge."""
Assigned = tuple[tuple[int, ...], int, int, int]
"""A window of a value: its place, its bounds, and the watermark from which on the value is late there."""


def numbers_ahead(spec: Window) -> int:
    """Return the numbers ahead of the key in a place: both bounds of a user's own window, else one, as if it merges."""
    return 2 if "assign" in spec.functions() and not spec.merges else 1


class Shown(NamedTuple):
    """The parts of a pane; `earliest` is its time where that is later than its window's end - 1."""

    start: int
    end: int
    number: int
    timing: Timing
    held: Any
    earliest: int = MIN_TIMESTAMP

    @property
    def timestamp(self) -> int:
        """The event time of the pane, in ms."""
        return max(self.end - 1, self.earliest)


class Firing(NamedTuple):
    """A pane that is due, or None where nothing is left; its stamp, and the panes that are withdrawn before it."""

    pane: Shown | None
    stamp: int
    withdrawn: list[Any]


class TriggeredWindowOperator(Assigning):
    """The windows of one task that fire by triggers, or again for late values, each looked at when it might be due.

    A late value waits for the watermark to pass its stamp: then all is there that came before it anywhere, whatever
    the order in which sources were read. It joins the fired windows that it overlaps; the pane comes when the watermark
    has passed the end of all that is one with it by then. One thread at a time calls it, that of its task. Every place
    that has anything is in the agenda, at or before the time at which it is due.
    """

    def __init__(
        self,
        spec: Window,
        store: Store,
        keys: Keys,
        copies: Copies,
        functions: Mapping[str, Any] | None = None,
        most_held: int = MOST_HELD,
    ) -> None:
        called: Mapping[str, Any] = spec.functions() if functions is None else functions
        self.calls = [*called]
        self.windows: Any = spec.windows
        self.aggregation: Aggregation[Any, Any] = called["aggregation"]
        self._assigns = "assign" in called
        if self._assigns:
            self.assign = called["assign"]
        self.by_row = isinstance(spec.windows, ByRow)
        self.merges = spec.merges
        self.store = store
        self.keys = keys
        self.most_held = most_held
        self.late: Batch | None = None
        self._copies = copies
        self._trigger, self._again = spec.early, spec.late_trigger
        self._waits_ms = spec.waits_ms
        self._lateness_ms = spec.allowed_lateness_ms - spec.waits_ms
        self._in_time: Timing = "final" if spec.emit == "final" else "on_time"
        self._accumulates = spec.panes != "discarding"
        self._retracts = spec.retracts
        self.earliest = MIN_TIMESTAMP
        """The event time that no pane is before; for windows by the clock, whose own time is another."""
        self._now_ms = self._reached = MIN_TIMESTAMP
        """The time by the clock, and the event time that the next stage may know of, where these are told."""
        self._changed: dict[Place, Spans] = {}
        self._at_work = (0, 0)
        """The bounds of the window whose values a function of the user's is given."""
        self._cell = Cell(0, 0, ())
        self._of_cell: list[Assigned] = []
        """The windows of timestamps in this cell."""
        self._due = Agenda(self._rank)
        """The places by the time at which they are due, those of one time by their bounds and their keys' bytes."""
        for place, spans in self._stored():
            self._look_again(place, spans)

    @property
    def unwritten(self) -> int:
        """The number of changed places that are not in the store yet."""
        return len(self._changed)

    def process(self, batch: Batch) -> Batch | None:
        """Put the values into their windows, and return early panes; what is too late is left in `late`."""
        if batch.keys is None or None in batch.keys:
            raise ValueError(NO_KEY)
        assert batch.timestamps is not None and batch.stamps is not None
        panes, late = self._no_panes(), []
        touched: dict[Place, Spans] = {}
        columns = zip(batch.values, batch.keys, batch.timestamps, batch.stamps, strict=True)
        signs = batch.signs or repeat(1)
        for row, ((value, key, timestamp, stamp), sign) in enumerate(zip(columns, signs, strict=False)):
            # A value mostly lies in the cell of the one before it, whose windows are known.
            if self._cell.low <= timestamp < self._cell.high:
                plain, windows = value, self._of_cell
            else:
                plain, windows = self._windows_at(key, timestamp, value)
            is_late = bool(windows)
            for bounds, start, end, awaited in windows:
                if stamp >= awaited + self._lateness_ms:
                    continue
                is_late = False
                place = (bounds, key)
                spans = touched.get(place)
                if spans is None:
                    touched[place] = spans = self._read(place)
                # Most values are in time, and within the one window that is open there.
                if stamp < awaited and sign == 1 and len(spans.open) == 1:
                    (into,) = spans.open
                    if into.start <= start and end <= into.end:
                        self._add(panes, key, into, plain, timestamp, stamp)
                        continue
                span = Span(start, end)
                if sign == -1:
                    span.gone, span.size = [plain], -1
                else:
                    span.new, span.size = [plain], 1
                # In time it goes into its window at once; late it waits until event time has passed its stamp.
                if stamp < awaited:
                    self._take_in(panes, key, spans, span, timestamp, stamp)
                else:
                    span.stamp = stamp
                    if self._again is not None:
                        span.early = self._again.add(self._again.begin(), stamp, self._now_ms)
                    put(spans.aside.setdefault(stamp, []), span, self.aggregation, self._again)
            if is_late:
                late.append(row)
        # Folded once for each batch and place, since an aggregation takes a list of values as fast as C does.
        for place, spans in touched.items():
            for span in spans.open:
                span.fold(self.aggregation)
            self._look_again(place, spans)
        self.late = self.take_late(batch, late)
        if self.store.durable and self.unwritten > self.most_held:
            self.write_back()
        return panes if panes.values else None

    def on_watermark(self, watermark: int, most: int | None = None) -> Batch | None:
        """Fire what is due at `watermark`, by when it is due, then by window and key."""
        panes = self._no_panes()
        while self.next_due() <= watermark and (most is None or len(panes) < most):
            found = self._next()
            if found is not None:
                self._emit(panes, *found)
        return panes if panes.values else None

    def drop_due(self) -> Batch:
        """Remove the first pane, and return its window and its accumulator; or late values that can't be added."""
        while True:
            due, place = self._due.take()
            # Written back first: where a function of the user's fails halfway, the store has what was there before.
            self.write_back()
            spans, due = self._read(place), due - self._waits_ms
            try:
                firing = self._fire(spans, due)
            except Exception:
                # The values that a function of the user's fails on are left out; else they would fail for ever.
                spans = self._changed[place] = restored(self.store.get(self._at(place)))
                left_out = spans.leave_out(*self._at_work, due)
                self._look_again(place, spans)
                return Batch([left_out], keys=[place[1]])
            if firing is not None:
                untell(spans, firing)
            self._look_again(place, spans)
            if firing is not None:
                return dropped(place[1], firing)

    def next_due(self) -> int:
        """Return a watermark before which no pane is due, and no fired window is to be forgotten."""
        return self._due.first()

    def lowest_stamp(self) -> int:
        """Return the lowest stamp that a pane still to fire may have."""
        due = self.next_due()
        return due - 1 - (self._waits_ms if due < NEVER else 0)

    def end_early(self) -> None:
        """Make no early panes any more."""
        self._trigger = None

    def write_back(self) -> None:
        """Put what has changed into the store."""
        for place, spans in self._changed.items():
            stored, at = spans.stored(), self._at(place)
            if stored is None:
                self.store.delete(at)
            else:
                self.store.put(at, stored)
        self._changed.clear()

    def forget(self) -> None:
        """Drop all changes since the last `write_back`; the places that changed are looked at again."""
        # What was taken from the agenda since is due again: the store has the places as they were.
        changed = [*self._changed]
        self._changed.clear()
        for place in changed:
            stored = self.store.get(self._at(place))
            if stored is not None:
                self._look_again(place, restored(stored))

    def _windows_at(self, key: Key, timestamp: int, value: Any) -> tuple[Any, list[Assigned]]:
        """Return a value and its windows."""
        if isinstance(self.windows, Sessions):
            end = timestamp + self.windows.gap_ms
            return value, [(ALL, timestamp, end, timestamp + 1 + self._waits_ms)]
        if self._assigns:
            value, found = self.windows_of(key, timestamp, value)
            return value, [self._assigned(start, end, timestamp + 1 if self.merges else end) for start, end in found]
        if not self._cell.low <= timestamp < self._cell.high:
            self._cell = cast(WindowType, self.windows).cell(timestamp)
            self._of_cell = [self._assigned(start, end, end) for start, end in self._cell.windows]
        return value, self._of_cell

    def _assigned(self, start: int, end: int, awaited: int) -> Assigned:
        bounds = ALL if self.merges else (start, end) if self._assigns else (start,)
        return bounds, start, end, awaited + self._waits_ms

    def _add(self, panes: Batch, key: Key, into: Span, value: Any, timestamp: int, stamp: int) -> None:
        """Put a value in time into a window that spans it, as `_take_in` does."""
        trigger = self._trigger
        if trigger is None:
            into.new.append(value)
            into.size += 1
            return
        if (due := trigger.due(into.early, self._now_ms)) <= stamp:
            self._emit(panes, key, self._early(into, due - 1))
        into.new.append(value)
        into.size += 1
        into.early = trigger.add(into.early, timestamp, self._now_ms)
        if trigger.due(into.early, self._now_ms) <= stamp:
            self._emit(panes, key, self._early(into, stamp))

    def _take_in(self, panes: Batch, key: Key, spans: Spans, span: Span, timestamp: int, stamp: int) -> None:
        """Put a value in time into its window, and fire the early panes that are due at it.

        Its source has passed its stamp, so a pane that was due by then comes without it.
        """
        trigger, aggregation = self._trigger, self.aggregation
        start, end = span.start, span.end
        touched = [other for other in spans.open if other.start < end and start < other.end]
        if trigger is not None:
            for other in touched:
                if (due := trigger.due(other.early, self._now_ms)) <= stamp:
                    self._emit(panes, key, self._early(other, due - 1))
        if len(touched) == 1 and touched[0].start <= start and end <= touched[0].end:
            (into,) = touched
            into.new += span.new
            into.gone += span.gone
            into.size += span.size
            if trigger is not None:
                into.early = trigger.add(into.early, timestamp, self._now_ms)
            span = into
        else:
            for other in touched:
                other.fold(aggregation)
            if trigger is not None:
                span.early = trigger.add(trigger.begin(), timestamp, self._now_ms)
            span = put(spans.open, span, aggregation, trigger)
        if trigger is not None and trigger.due(span.early, self._now_ms) <= stamp:
            self._emit(panes, key, self._early(span, stamp))

    def _next(self) -> tuple[Key, Firing] | None:
        """Look at the place that is due first, and take one pane from it, if there is one."""
        due, place = self._due.take()
        spans = self._read(place)
        firing = self._fire(spans, due - self._waits_ms)
        self._look_again(place, spans)
        return None if firing is None else (place[1], firing)

    def _fire(self, spans: Spans, due: int) -> Firing | None:
        # One pane at a time, in this order: early ones, windows at their end, late values into what has fired, and the
        # panes of these; the caller comes back for more.
        for span in spans.open:
            if span.end > (at := self._early_due(span)) <= due:
                return self._early(span, at - 1)
        while spans.open and spans.open[0].end <= due:
            firing = self._on_time(spans, spans.open.pop(0))
            if firing is not None:
                return firing
        for stamp in sorted(stamp for stamp in spans.aside if stamp < due):
            for span in spans.aside.pop(stamp):
                self._at_work = span.start, span.end
                put(spans.fired, span, self.aggregation, self._again)
        for span in spans.fired:
            if span.has_changed and (at := spans.late_due(span, self._again, self._lateness_ms)) <= due:
                if self._again is not None:
                    span.early = self._again.after(span.early)
                return self._firing(span, "late", at - 1, goes_on=True)
        spans.fired = [span for span in spans.fired if span.has_changed or span.end + self._lateness_ms > due]
        return None

    def _early_due(self, span: Span) -> int:
        """Return the watermark at which a window has an early pane: before its end, or it has none.

        No sooner than the next stage may know of: until it fires, that is at most the last ms of the window.
        """
        if self._trigger is None:
            return NEVER
        return max(self._trigger.due(span.early, self._now_ms), min(self._reached + 1, span.end))

    def _early(self, span: Span, stamp: int) -> Firing | None:
        assert self._trigger is not None
        span.early = self._trigger.after(span.early)
        return self._firing(span, "early", max(stamp, min(self._reached, span.end - 1)), goes_on=True)

    def _on_time(self, spans: Spans, span: Span) -> Firing | None:
        """Fire a window at its end; with discarding panes, where something has come since the last one."""
        firing = None
        if span.has_changed or span.held:
            firing = self._firing(span, self._in_time, span.end - 1, goes_on=self._lateness_ms > 0)
        if self._lateness_ms:
            span.early = None if self._again is None else self._again.begin()
            put(spans.fired, span, self.aggregation, self._again)
        return firing

    def _firing(self, span: Span, timing: Timing, stamp: int, goes_on: bool) -> Firing | None:
        """Take a pane from a window, which keeps the values that its further panes have as well.

        Where all of its values were withdrawn there is none, unless panes are not withdrawn: then one tells so.
        """
        self._at_work = span.start, span.end
        span.fold(self.aggregation)
        withdrawn, span.shown = span.shown, []
        if not span.size and (self._retracts or not span.index):
            return Firing(None, stamp, withdrawn) if withdrawn else None
        (held,) = span.held
        if not self._accumulates:
            span.held = ()
        elif goes_on:
            # `finish` may hand out or change the accumulator, and the window goes on with it.
            held = held if is_plain(held) else self._copies.copy(held)
        pane = Shown(span.start, span.end, span.index, timing, held, self.earliest)
        span.index += 1
        if self._retracts and goes_on:
            span.shown = [[*pane] if pane.timestamp >= span.end else [*pane[:-1]]]
        return Firing(pane, stamp, withdrawn)

    def _emit(self, panes: Batch, key: Key, firing: Firing | None) -> None:
        if firing is None:
            return
        assert panes.keys is not None and panes.timestamps is not None and panes.stamps is not None
        told = [(-1, Shown(*one)) for one in firing.withdrawn]
        told += [(1, firing.pane)] if firing.pane is not None else []
        for sign, shown in told:
            start, end, number, timing, held, _ = shown
            result = self.aggregation.finish(held)
            panes.values.append(Pane(self.keys.decode(key), start, end, result, number, TIMINGS[timing]))
            panes.keys.append(key)
            panes.timestamps.append(shown.timestamp)
            panes.stamps.append(firing.stamp)
            if panes.signs is not None:
                panes.signs.append(sign)

    def _no_panes(self) -> Batch:
        return Batch([], keys=[], timestamps=[], stamps=[], signs=[] if self._retracts else None)

    def _read(self, place: Place) -> Spans:
        """Return the windows of a place, to be changed."""
        spans = self._changed.get(place)
        if spans is None:
            stored = self.store.get(self._at(place))
            spans = self._changed[place] = Spans() if stored is None else restored(stored)
        return spans

    def _look_again(self, place: Place, spans: Spans) -> None:
        """Add a place to the agenda at the time at which it is due next."""
        due = min((self._early_due(span) for span in spans.open), default=NEVER)
        self._due.add(place, min(due, spans.next_due(self._again, self._lateness_ms)) + self._waits_ms)

    def _rank(self, place: Place) -> tuple[tuple[int, ...], bytes]:
        bounds, key = place
        return bounds, self.keys.encode(key)

    def _at(self, place: Place) -> bytes:
        bounds, key = place
        return STATE + b"".join(map(ordered, bounds)) + self.keys.encode(key)

    def _stored(self) -> Iterator[tuple[Place, Spans]]:
        begins = len(STATE) + NUMBER_BYTES * len(self._assigned(0, 0, 0)[0])
        for at, stored in self.store.range(STATE, beyond(STATE)):
            bounds = tuple(number_at(at, start) for start in range(len(STATE), begins, NUMBER_BYTES))
            (key,) = self.keys.load([at[begins:]])
            assert key is not None
            yield (bounds, key), restored(stored)


def untell(spans: Spans, firing: Firing) -> None:
    """Undo a pane that nobody will see: the one before it is still the one that is withdrawn next."""
    pane = firing.pane
    if pane is None:
        return
    for span in (*spans.open, *spans.fired):
        if span.index == pane.number + 1 and span.start <= pane.start and pane.end <= span.end:
            span.index = pane.number
            span.shown = [one for one in span.shown if one[2] != pane.number] + firing.withdrawn


def dropped(key: Key, firing: Firing) -> Batch:
    """Return the window and the accumulator of a pane that nobody will see."""
    shown = firing.pane or Shown(*firing.withdrawn[0])
    return Batch([(shown.start, shown.end, shown.held)], keys=[key])
