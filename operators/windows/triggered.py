"""The triggered windows: those with early panes, late panes of windows that merge, or withdrawn panes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice, repeat
from operator import itemgetter
from typing import Any

from operators.aggregations.aggregation import Aggregation
from operators.core.base import MIN_TIMESTAMP, MOST_HELD, NEVER, Batch, Copies, Key, Keys, Store, has_none
from operators.core.entry_keys import beyond
from operators.state.keyed_state import is_plain
from operators.state.noted_dues import NOTED
from operators.state.place_dues import Bounds, Place, PlaceDues
from operators.windows.custom_window import Assigning
from operators.windows.spans import (
    Due,
    Early,
    Firing,
    Shown,
    Span,
    SpanEntries,
    Spans,
    WindowFrame,
    dropped,
    put,
    untell,
)
from operators.windows.triggers import Trigger
from operators.windows.window import NO_KEY, TIMINGS, Pane, Timing, Window, keeps_numbers, plainness
from operators.windows.window_groups import Grouping, Groups, Mine, Slot, by_slot
from operators.windows.window_types import ByRow


class TriggeredWindowOperator(Assigning):
    """The windows of one task that fire by triggers, or again for late values, each looked at when it might be due.

    A late value waits for the watermark to pass its stamp: then all is there that came before it anywhere, whatever
    the order in which sources were read. It joins the fired windows that it overlaps; the pane comes when the watermark
    has passed the end of all that is one with it by then. One thread at a time calls it, that of its task. Every place
    that has anything is noted in the store at or before the time at which it is due, but for what all places of a
    window that all keys share do at one time: fire at its end, and be forgotten. That is in an agenda, once for all of
    them. So a start reads one place of each such window, given the `lowest` stamp of what was still to fire.
    """

    def __init__(
        self,
        spec: Window,
        store: Store,
        keys: Keys,
        copies: Copies,
        functions: Mapping[str, Any] | None = None,
        most_held: int = MOST_HELD,
        lowest: int | None = None,
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
        self.keys, self.most_held = keys, most_held
        self.late: Batch | None = None
        self._keeps_numbers, self._is_plain = keeps_numbers(spec.aggregation), plainness(spec.aggregation)
        self._copies = copies
        self._trigger, self._again = spec.early, spec.late_trigger
        self._waits_ms, self._lateness_ms = spec.waits_ms, spec.allowed_lateness_ms - spec.waits_ms
        self._in_time: Timing = "final" if spec.emit == "final" else "on_time"
        self._accumulates, self._retracts = spec.panes != "discarding", spec.retracts
        self.earliest = MIN_TIMESTAMP
        """The event time that no pane is before; for windows by the clock, whose own time is another."""
        self._now_ms = self._reached = MIN_TIMESTAMP
        """The time by the clock, and the event time that the next stage may know of, where these are told."""
        self._frames: dict[Bounds, WindowFrame] = {}
        """The places by their bounds."""
        self._touched: dict[Bounds, WindowFrame] = {}
        """Those in which something has changed."""
        self._put_before: dict[Bounds, tuple[WindowFrame, set[Key]]] = {}
        self._put_now: dict[Bounds, tuple[WindowFrame, set[Key]]] = {}
        """The keys that were put into the store since the last `write_back`, and back to the one before."""
        self._unwritten = 0
        self._at_work = (0, 0)
        """The bounds of the window whose values a function of the user's is given."""
        self._shared = not self.merges and not self._assigns
        """Whether windows are the same for all keys, so that a batch is grouped by window and key."""
        self._entries = entries = SpanEntries(store, keys, len(self.assigned(0, 0, 0)[0]))
        self._dues = PlaceDues(store, entries.bytes_of, entries.places, most_held)
        self._is_all_known = entries.is_empty()
        self._order: dict[Bounds, list[Key]] = {}
        """The keys of a window of which some have fired, the last one first."""
        if lowest is None:
            self._note_all()
        elif self._shared:
            self._find_frames(lowest + 1 + self._waits_ms)

    @property
    def unwritten(self) -> int:
        """The number of changed places, and of times at which to look at some, that are not in the store yet."""
        return self._unwritten + self._dues.unwritten

    def process(self, batch: Batch) -> Batch | None:
        """Put the values into their windows, and return early panes; what is too late is left in `late`."""
        if batch.keys is None or has_none(batch.keys):
            raise ValueError(NO_KEY)
        # Who comes now has not fired: the order of those that are left is looked up anew.
        self._order.clear()
        # A value that is withdrawn leaves a window by itself, so where some are all rows go one by one.
        if self._shared and batch.signs is None:
            panes, late = self._process_groups(batch)
        else:
            panes, late = self._process_rows(batch)
        self.late = self.take_late(batch, late)
        if self.store.durable and self.unwritten > self.most_held:
            self._put()
        return panes if panes.values else None

    def _process_groups(self, batch: Batch) -> tuple[Batch, list[int]]:
        """Group the rows by window and key; return the early panes, and the rows that are too late."""
        groups = Groups(self.windows, self._lateness_ms + self._waits_ms, waits_ms=self._waits_ms, in_turn=True)
        late = groups.gather(batch)
        found: list[Early] = []
        for slot, of_slot in by_slot(groups):
            if slot.due == slot.end + self._waits_ms:
                self._fold(slot, of_slot, batch, found)
            else:
                self._set_aside(slot, of_slot)
        panes = self._no_panes()
        found.sort(key=itemgetter(0, 1, 2))
        if self._retracts:
            for early in found:
                self._emit(panes, early.key, early.firing)
        elif found:
            self._emit_at_once(panes, found)
        return panes, late

    def _fold(self, slot: Slot, group: Grouping, batch: Batch, found: list[Early]) -> None:
        """Fold the values of a batch that are in time for a shared window in, by key, up to each early pane."""
        due, start, end = slot
        bounds = (start,)
        frame, trigger = self._frame(bounds, end), self._trigger
        changed, add, init = frame.changed, self.aggregation.add, self.aggregation.init
        timestamps, stamps, now_ms = batch.timestamps, batch.stamps, self._now_ms
        assert timestamps is not None and stamps is not None
        for key, mine in group.items():
            spans = changed.get(key)
            if spans is None:
                spans = self._changing(frame, key)
            if spans.open:
                (into,) = spans.open
                assert not into.new, "values in time are folded in as they come"
            else:
                into = Span(start, end)
                spans.open.append(into)
                if trigger is not None:
                    into.early = trigger.begin()
            rows, values = mine
            begun = 0
            if trigger is not None:
                into.early, taken, row, stamp = trigger.take(into.early, rows, 0, timestamps, stamps, now_ms)
                if row >= 0:
                    first = Due(taken, row, stamp)
                    begun = self._cut(trigger, into, key, mine, batch, first, found)
            # Mostly no pane is due, and all are added at once.
            if begun < len(values):
                held = into.held[0] if into.held else init()
                into.held = (add(held, values[begun:] if begun else values),)
                into.size += len(values) - begun
            if trigger is not None and not trigger.at_once:
                self._look_again((bounds, key), spans)
        self._dues.add_all(bounds, due)

    def _cut(
        self, trigger: Trigger, into: Span, key: Key, mine: Mine, batch: Batch, first: Due, found: list[Early]
    ) -> int:
        """Add the values of a key up to each pane that is due, the first of which is; return how many are added."""
        (rows, values), timestamps, stamps = mine, batch.timestamps, batch.stamps
        assert timestamps is not None and stamps is not None
        begun, (taken, row, stamp) = 0, first
        while row >= 0:
            if taken > begun:
                held = into.held[0] if into.held else self.aggregation.init()
                into.held = (self.aggregation.add(held, values[begun:taken]),)
                into.size += taken - begun
            if self._retracts:
                found.append(Early(row, into.end, into.start, key, 0, None, stamp, self._early(into, stamp)))
            else:
                into.early = trigger.after(into.early)
                if into.size or into.index:
                    held, stamp = self._shown(into, goes_on=True), max(stamp, min(self._reached, into.end - 1))
                    found.append(Early(row, into.end, into.start, key, into.index, held, stamp))
                    into.index += 1
            begun = taken
            into.early, taken, row, stamp = trigger.take(into.early, rows, begun, timestamps, stamps, self._now_ms)
        assert taken == len(rows), "all values are in their window when no pane is due any more"
        return begun

    def _set_aside(self, slot: Slot, group: Grouping) -> None:
        """Hold the values of one stamp that are late for a shared window until event time has passed the stamp."""
        due, start, end = slot
        stamp, again, bounds = due - 1, self._again, (start,)
        frame = self._frame(bounds, end)
        for key, (_, mine) in group.items():
            spans = frame.changed.get(key)
            if spans is None:
                spans = self._changing(frame, key)
            late = spans.aside.get(stamp)
            if late is None:
                late = spans.aside[stamp] = [Span(start, end, stamp=stamp)]
                if again is not None:
                    late[0].early = again.begin()
            (span,) = late
            span.add([*mine])  # a copy: other windows have these values, too
            if again is not None:
                for _ in mine:
                    span.early = again.add(span.early, stamp, self._now_ms)
            self._dues.add((bounds, key), due)

    def _process_rows(self, batch: Batch) -> tuple[Batch, list[int]]:
        """Put each value into its windows by itself; return the early panes, and the rows that are too late."""
        assert batch.keys is not None and batch.timestamps is not None and batch.stamps is not None
        panes, late = self._no_panes(), []
        touched: dict[Place, Spans] = {}
        columns = zip(batch.values, batch.keys, batch.timestamps, batch.stamps, strict=True)
        signs = batch.signs or repeat(1)
        for row, ((value, key, timestamp, stamp), sign) in enumerate(zip(columns, signs, strict=False)):
            plain, windows = self.windows_at(key, timestamp, value)
            is_late = bool(windows)
            for bounds, start, end, awaited in windows:
                if stamp >= awaited + self._lateness_ms:
                    continue
                is_late = False
                place = (bounds, key)
                spans = touched.get(place)
                if spans is None:
                    touched[place] = spans = self._read(place)
                    self._frames[bounds].end = end
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
        return panes, late

    def on_watermark(self, watermark: int, most: int | None = None) -> Batch | None:
        """Fire what is due at `watermark`, by when it is due, then by window and key."""
        panes = self._no_panes()
        while (most is None or len(panes) < most) and (found := self._dues.take_by(watermark)) is not None:
            due, (bounds, key) = found
            if key is None:
                self._fire_all(bounds, due, panes, most)
            else:
                place = (bounds, key)
                spans = self._read(place)
                if not (self._is_plainly_late(spans) and self._fire_late(bounds, key, spans, due, panes)):
                    firing = self._fire(spans, due - self._waits_ms)
                    self._look_again(place, spans)
                    self._emit(panes, key, firing)
                if spans.is_empty:
                    self._drop(self._frames[bounds], key)
        return panes if panes.values else None

    def drop_due(self) -> Batch:
        """Remove the first pane, and return its window and its accumulator; or late values that can't be added."""
        while True:
            due, place = self._next_place()
            # Written back first: where a function of the user's fails halfway, the store has what was there before.
            self._put()
            spans, due = self._read(place), due - self._waits_ms
            try:
                firing = self._fire(spans, due)
            except Exception:
                # The values that a function of the user's fails on are left out; else they would fail for ever.
                spans = self._frame(place[0]).changed[place[1]] = self._entries.get(place) or Spans()
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
        return self._dues.first()

    def lowest_stamp(self) -> int:
        """Return the lowest stamp that a pane still to fire may have."""
        due = self.next_due()
        return due - 1 - (self._waits_ms if due < NEVER else 0)

    def end_early(self) -> None:
        """Make no early panes any more."""
        self._trigger = None

    def write_back(self) -> None:
        """Put what has changed into the store."""
        # What was put is known until the next but one: a savepoint lies between two of these, or behind both.
        self._put_before, self._put_now = self._put_now, {}
        self._put()
        self._dues.write_back()

    def newest(self, most: int) -> list[object]:
        """Return at most so many of the entries that have changed, of the windows touched last."""
        changed = (spans for frame in reversed(self._touched.values()) for spans in reversed(frame.changed.values()))
        forms = (spans.stored() for spans in changed)
        return [*islice((form for form in forms if form is not None), most)]

    def _put(self) -> None:
        for bounds, frame in self._touched.items():
            self._put_now.setdefault(bounds, (frame, set()))[1].update(frame.changed)
            kept, gone = frame.written(self._entries.prefix(bounds), self.keys.encode_all, self._stays)
            self.store.update(kept)
            self.store.delete_all(gone)
            if self._is_over(frame):
                del self._frames[bounds]
        self._touched.clear()
        self._unwritten = 0
        if sum(len(frame.clean) for frame in self._frames.values()) > self.most_held:
            for frame in self._frames.values():
                frame.clean.clear()

    def _stays(self, form: tuple[Any, ...]) -> bool:
        # What somebody may change in place is read from the store again.
        return (self._keeps_numbers and len(form) == 1) or is_plain(form)

    def forget(self) -> None:
        """Drop all changes since the last `write_back`; the places that changed are looked at again."""
        # What was taken since is due again: the store has the places, and when they are due, as they were.
        self._dues.forget()
        touched, self._touched, self._unwritten = self._touched, {}, 0
        self._order.clear()
        frames: dict[Bounds, tuple[WindowFrame, set[Key]]] = {}
        for bounds, (frame, keys) in (*self._put_before.items(), *self._put_now.items()):
            frames.setdefault(bounds, (self._frames.setdefault(bounds, frame), set()))[1].update(keys)
        for bounds, frame in touched.items():
            frames.setdefault(bounds, (frame, set()))[1].update(frame.changed)
            frame.changed = {}
        self._put_before, self._put_now = {}, {}
        for bounds, (frame, keys) in frames.items():
            for key in self.keys.in_order(keys):
                frame.clean.pop(key, None)
                # The store alone knows: what was put there since a savepoint is gone, and what was dropped is back.
                spans = self._entries.get((bounds, key))
                if spans is None:
                    frame.stored.discard(key)
                else:
                    frame.stored.add(key)
                    self._look_again((bounds, key), spans)
            if self._is_over(frame):
                del self._frames[bounds]

    def _add(self, panes: Batch, key: Key, into: Span, value: Any, timestamp: int, stamp: int) -> None:
        """Put a value in time into a window that spans it, as `_take_in` does."""
        trigger = self._trigger
        if trigger is None:
            into.add_one(value)
            return
        if (due := trigger.due(into.early, self._now_ms)) <= stamp:
            self._emit(panes, key, self._early(into, due - 1))
        into.add_one(value)
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
            into.take_in(span)
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

    def _next_place(self) -> tuple[int, Place]:
        """Remove the first place from the agenda; of those of a whole window the first, with the others left there."""
        while True:
            found = self._dues.take_by(NEVER - 1)
            assert found is not None, "somebody has asked when the first one is due"
            due, (bounds, key) = found
            if key is not None:
                return due, (bounds, key)
            left = self._keys_left(bounds)
            if left:
                place = bounds, left.pop()
                self._leave(bounds, left, due)
                return due, place

    def _keys_left(self, bounds: Bounds) -> list[Key]:
        """Return the keys of a shared window that have not been looked at, the last one first."""
        left = self._order.pop(bounds, None)
        if left is not None:
            return left
        frame = self._frames.get(bounds)
        if frame is None:
            return []
        if not frame.is_whole:
            frame.stored.update(self._entries.keys_of(bounds))
            frame.is_whole = True
        return self.keys.in_order({*frame.changed, *frame.stored})[::-1]

    def _leave(self, bounds: Bounds, left: list[Key], due: int) -> None:
        """Look at these keys of a shared window the next time; or later at all, when they are to be forgotten."""
        frame = self._frames.get(bounds)
        if left:
            self._order[bounds] = left
            self._dues.add_all(bounds, due)
        elif frame is not None and (forgotten := frame.end + self._lateness_ms + self._waits_ms) > due:
            self._dues.add_all(bounds, forgotten)

    def _fire_all(self, bounds: Bounds, due: int, panes: Batch, most: int | None) -> None:
        """Fire a shared window for all keys in their order, or forget what has fired, until there are `most` panes."""
        left, frame, at = self._keys_left(bounds), self._frames.get(bounds), due - self._waits_ms
        if frame is None:
            return
        # Where a trigger goes by the clock, or panes are withdrawn, more than one pane may be due for a key.
        is_one = not self._retracts and (self._trigger is None or not self._trigger.by_clock)
        goes_on, is_over = self._lateness_ms > 0, frame.end + self._lateness_ms <= at
        fired: list[Early] = []
        while left and (most is None or len(panes) + len(fired) < most):
            key = left.pop()
            spans = frame.changed.get(key)
            if spans is None:
                spans = self._changing(frame, key)
            if is_one and spans.open:
                span = spans.open.pop()
                # At its end nothing late can be due: the stamps of late values are beyond it.
                assert span.end == frame.end <= at and not span.new and not spans.open
                if span.held and (span.size or span.index):
                    shown = self._shown(span, goes_on)
                    fired.append(Early(0, span.end, span.start, key, span.index, shown, span.end - 1))
                    span.index += 1
                if goes_on:
                    self._keep_fired(spans, span)
            elif is_one and not spans.aside and not (spans.fired and spans.fired[0].has_changed):
                assert len(spans.fired) <= 1, "all that a key has in a shared window is one"
                if is_over:
                    spans.fired = []
            else:
                self._emit_at_once(panes, fired, self._in_time)
                firing = self._fire(spans, at)
                self._emit(panes, key, firing)
                if firing is not None and not spans.is_empty:
                    left.append(key)
                else:
                    self._look_again((bounds, key), spans)
            if not (spans.open or spans.fired or spans.aside):
                self._drop(frame, key)
        self._emit_at_once(panes, fired, self._in_time)
        self._leave(bounds, left, due)

    def _emit_at_once(self, panes: Batch, found: list[Early], timing: Timing = "early") -> None:
        """Emit panes with which none is withdrawn, in one pass."""
        if not found:
            return
        assert panes.keys is not None and panes.timestamps is not None and panes.stamps is not None
        _, ends, starts, keys, numbers, held, stamps, _ = zip(*found, strict=True)
        # Maps within maps: the panes are made in one pass in C, but for the aggregation's own code.
        results, told = map(self.aggregation.finish, held), map(self.keys.decode, keys)
        panes.values += map(Pane, told, starts, ends, results, numbers, repeat(TIMINGS[timing]))
        panes.keys += keys
        panes.timestamps += [max(end - 1, self.earliest) for end in ends]
        panes.stamps += stamps
        found.clear()

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
        if spans.aside:
            for stamp in sorted(stamp for stamp in spans.aside if stamp < due):
                for span in spans.aside.pop(stamp):
                    self._at_work = span.start, span.end
                    spans.fired = spans.fired or []
                    put(spans.fired, span, self.aggregation, self._again)
        for span in spans.fired:
            if span.has_changed and (at := spans.again_due(span, self._again, self._lateness_ms)) <= due:
                if self._again is not None:
                    span.early = self._again.after(span.early)
                return self._firing(span, "late", at - 1, goes_on=True)
        if spans.fired:
            kept_until = due - self._lateness_ms
            spans.fired = [span for span in spans.fired if span.has_changed or span.end > kept_until]
        return None

    def _is_plainly_late(self, spans: Spans) -> bool:
        """Whether nothing is to be done but a pane of late values of one stamp, for a window that has fired."""
        is_plain = self._shared and self._again is None and not self._retracts
        return is_plain and not spans.open and len(spans.aside) == len(spans.fired) == 1

    def _fire_late(self, bounds: Bounds, key: Key, spans: Spans, due: int, panes: Batch) -> bool:
        """Emit the pane of late values that are all there is to do, as `_fire` does; False where they are not due."""
        assert panes.keys is not None and panes.timestamps is not None and panes.stamps is not None
        ((stamp, (late,)),) = spans.aside.items()
        (span,) = spans.fired
        if stamp >= due - self._waits_ms or span.new or span.gone or late.gone:
            return False
        span.held = (self.aggregation.add(span.held[0] if span.held else self.aggregation.init(), late.new),)
        spans.aside.clear()
        span.size += late.size
        span.stamp = max(span.stamp, stamp)
        start, end = span.start, span.end
        result = self.aggregation.finish(self._shown(span, goes_on=True))
        panes.values.append(Pane(self.keys.decode(key), start, end, result, span.index, TIMINGS["late"]))
        panes.keys.append(key)
        panes.timestamps.append(max(end - 1, self.earliest))
        panes.stamps.append(max(span.stamp, end - 1))
        span.index += 1
        self._dues.add_all(bounds, end + self._lateness_ms + self._waits_ms)
        return True

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
        self._keep_fired(spans, span)
        return firing

    def _keep_fired(self, spans: Spans, span: Span) -> None:
        """Keep a window that has fired while late values may come."""
        if self._lateness_ms:
            span.early = None if self._again is None else self._again.begin()
            if spans.fired:
                put(spans.fired, span, self.aggregation, self._again)
            else:
                spans.fired = [span]

    def _firing(self, span: Span, timing: Timing, stamp: int, goes_on: bool) -> Firing | None:
        """Take a pane from a window, which keeps the values that its further panes have as well.

        Where all of its values were withdrawn there is none, unless panes are not withdrawn: then one tells so.
        """
        self._at_work = span.start, span.end
        span.fold(self.aggregation)
        withdrawn, span.shown = span.shown, span.shown and []
        if not span.size and (self._retracts or not span.index):
            return Firing(None, stamp, withdrawn) if withdrawn else None
        pane = Shown(span.start, span.end, span.index, timing, self._shown(span, goes_on), self.earliest)
        span.index += 1
        if self._retracts and goes_on:
            span.shown = [[*pane] if pane.timestamp >= span.end else [*pane[:-1]]]
        return Firing(pane, stamp, withdrawn)

    def _shown(self, span: Span, goes_on: bool) -> Any:
        """Take what a pane shows from a window."""
        (held,) = span.held
        if not self._accumulates:
            span.held = ()
        elif goes_on:
            # `finish` may hand out or change the accumulator, and the window goes on with it.
            held = held if self._is_plain(held) else self._copies.copy(held)
        return held

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

    def _frame(self, bounds: Bounds, end: int = NEVER) -> WindowFrame:
        """Return the places with these bounds; `end` is that of their window, where it is shared."""
        frame = self._frames.get(bounds)
        if frame is None:
            # The shared windows that the store has were found at the start.
            frame = self._frames[bounds] = WindowFrame(bounds, end, self._shared or self._is_all_known)
        return frame

    def _read(self, place: Place) -> Spans:
        """Return the windows of a place, to be changed."""
        bounds, key = place
        frame = self._frames.get(bounds) or self._frame(bounds)
        return frame.changed.get(key) or self._changing(frame, key)

    def _changing(self, frame: WindowFrame, key: Key) -> Spans:
        """Return the windows of a key that have not changed yet, to be changed."""
        assert key not in frame.changed, "what has changed is newer than the store"
        spans = frame.clean.pop(key, None)
        if spans is None:
            if key in frame.stored or not frame.is_whole:
                spans = self._entries.get((frame.bounds, key))
            if spans is None:
                spans = Spans()
            else:
                frame.stored.add(key)
        frame.changed[key] = spans
        self._touched[frame.bounds] = frame
        self._unwritten += 1
        return spans

    def _drop(self, frame: WindowFrame, key: Key) -> None:
        """Drop a place that has nothing any more, unless the store has to be told."""
        if key not in frame.stored:
            del frame.changed[key]
            self._unwritten -= 1
            if not frame.changed:
                del self._touched[frame.bounds]
                if self._is_over(frame):
                    del self._frames[frame.bounds]

    def _is_over(self, frame: WindowFrame) -> bool:
        """Whether nothing is kept of a frame; of a shared window that was not read some may be in the store."""
        return not (frame.stored or frame.changed) and (frame.is_whole or not self._shared)

    def _look_again(self, place: Place, spans: Spans) -> None:
        """Add a place to the agenda at the time at which it is due next."""
        waits_ms, early = self._waits_ms, NEVER
        if spans.open and self._trigger is not None:
            early = min(map(self._early_due, spans.open))
        late, whole = spans.late_due(self._again, self._lateness_ms), spans.window_due(self._lateness_ms)
        if not self._shared:
            self._dues.add(place, min(early, late, whole) + waits_ms)
            return
        if whole < NEVER:
            self._dues.add_all(place[0], whole + waits_ms)
        # An early pane comes before the window's end, or not at all.
        if (due := min(early if early < whole else NEVER, late)) < NEVER:
            self._dues.add(place, due + waits_ms)

    def _note_all(self) -> None:
        """Note when all that the store has is due, as a version that noted nothing has written it."""
        self.store.drop(NOTED, beyond(NOTED))
        self._is_all_known = True
        for place, spans in self._entries.all():
            bounds, key = place
            self._frame(bounds, spans.first.end).stored.add(key)
            self._look_again(place, spans)

    def _find_frames(self, next_due: int) -> None:
        """Find the shared windows that the store has, and when they are due, which none is before `next_due`."""
        for bounds, end in self._entries.frames():
            self._frames[bounds] = WindowFrame(bounds, end, is_whole=False)
            fires = end + self._waits_ms
            # One that has fired is kept until nothing late can come.
            self._dues.add_all(bounds, fires if fires >= next_due else fires + self._lateness_ms)
