"""The windows with early panes that triggers fire by the clock on the wall."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from operators.core.base import MAX_TIMESTAMP, MIN_TIMESTAMP, NEVER, Batch, Key
from operators.state.agenda import Agenda
from operators.state.keyed_state import STATE
from operators.state.place_dues import Place
from operators.state.unread_entries import Entries, ReadBitByBit, UnreadEntries
from operators.windows.count_window import EARLY, CountedOperator, CountFiring, Open
from operators.windows.count_window import dropped as dropped_by_count
from operators.windows.spans import Firing, Spans, dropped, restored, untell
from operators.windows.triggered import TriggeredWindowOperator
from operators.windows.triggers import Trigger

P = TypeVar("P")


class Heeding(Generic[P]):
    """The common part of operators whose early panes may be due by the clock: the time, and the places to look at."""

    _now_ms: int
    _reached: int
    _trigger: Trigger | None
    _alarms: Agenda[P]

    def heed(self, now_ms: int, watermark: int) -> None:
        """Learn the time and the event time that is told; both never go back."""
        self._now_ms, self._reached = max(self._now_ms, now_ms), max(self._reached, watermark)

    def next_alarm(self) -> int:
        """Return a time before which nothing is due by the clock."""
        return self._alarms.first()

    def _is_due_now(self, early: Any) -> bool:
        """Whether a window has an early pane by the clock, with a trigger in this state."""
        assert self._trigger is not None
        return self._trigger.alarm(early, self._reached) <= self._now_ms

    def _alarm(self, early: Any) -> int:
        """Return when a window may have an early pane by the clock: now, or when that has gone on."""
        assert self._trigger is not None
        if self._is_due_now(early):
            return self._now_ms
        alarm = self._trigger.alarm(early, MAX_TIMESTAMP)
        return alarm if alarm > self._now_ms else NEVER


class ClockedTriggerOperator(Heeding[Place], ReadBitByBit, TriggeredWindowOperator):
    """The windows of one task whose early panes may be due by the clock; their last panes are the same."""

    withholds = False

    def __init__(self, *how: Any) -> None:
        self._alarms = Agenda(lambda place: self._entries.bytes_of(place))
        super().__init__(*how)
        # When these go off is not noted.
        self._unread = UnreadEntries(self.store, STATE, self._look_at, lowest=how[-1])

    def on_clock(self, now_ms: int, most: int | None = None) -> Batch | None:
        """Fire the early panes that are due by now; when the inputs have ended, none: windows have their last ones."""
        if now_ms == MAX_TIMESTAMP:
            self._alarms.clear()
        panes = self._no_panes()
        while self.next_alarm() <= now_ms and (most is None or len(panes) < most):
            found = self._next_by_clock(now_ms)
            if found is not None:
                place, firing = found
                self._emit(panes, place[1], firing)
        return panes if panes.values else None

    def drop_alarm(self) -> Batch:
        """Remove the first pane that is due by the clock, and return its window and its accumulator."""
        while (found := self._next_by_clock(self._now_ms)) is None:
            pass
        place, firing = found
        untell(self._read(place), firing)
        return dropped(place[1], firing)

    def _next_by_clock(self, now_ms: int) -> tuple[Place, Firing] | None:
        """Look at the place whose alarm is first, and take one early pane from it, if there is one."""
        _, place = self._alarms.take()
        spans, firing = self._read(place), None
        self._now_ms = max(self._now_ms, now_ms)
        for span in spans.open:
            if span.end > self._reached and self._is_due_now(span.early):
                firing = self._early(span, self._reached)
                break
        self._look_again(place, spans)
        return None if firing is None else (place, firing)

    def _look_again(self, place: Place, spans: Spans) -> None:
        """See to it that a place is looked at when the clock says so as well."""
        super()._look_again(place, spans)
        self._look_by_clock(place, spans)

    def _look_at(self, entries: Entries) -> None:
        """Look at places as they are stored; that one has changed since is seen when it comes first."""
        places = self._entries.places([at[len(STATE) :] for at, _ in entries])
        for place, (_, stored) in zip(places, entries, strict=True):
            self._look_by_clock(place, restored(stored))

    def _look_by_clock(self, place: Place, spans: Spans) -> None:
        open = (span for span in spans.open if span.end > self._reached)
        self._alarms.add(place, min((self._alarm(span.early) for span in open), default=NEVER))


class ClockedCountedOperator(Heeding[Key], CountedOperator):
    """The windows by count of one task that also show what they have when the clock says so."""

    def __init__(self, *how: Any) -> None:
        self._reached = MIN_TIMESTAMP
        self._alarms = Agenda(lambda key: self.keys.encode(key))
        super().__init__(*how)

    def on_clock(self, now_ms: int, most: int | None = None) -> Batch | None:
        """Fire the early panes that are due by now; when the inputs have ended, none: windows have their last ones."""
        if now_ms == MAX_TIMESTAMP:
            self._alarms.clear()
        found: list[CountFiring] = []
        while self.next_alarm() <= now_ms and (most is None or len(found) < most):
            found += self._next_by_clock(now_ms)
        return self._panes(found)

    def drop_alarm(self) -> Batch:
        """Remove the first pane that is due by the clock, and return its times and its accumulator."""
        while not (found := self._next_by_clock(self._now_ms)):
            pass
        return dropped_by_count(found)

    def forget(self) -> None:
        """Drop what has changed; what was looked at since is looked at again."""
        changed = [*self.changed]
        super().forget()
        for key in changed:
            self._look_again(key, self.read(key) or ())

    def _next_by_clock(self, now_ms: int) -> list[CountFiring]:
        """Look at the key whose alarm is first, and take one early pane from it, if there is one."""
        _, key = self._alarms.take()
        self._now_ms = max(self._now_ms, now_ms)
        windows: list[Open] = [[*one] for one in self.read(key) or ()]
        found: list[CountFiring] = []
        for one in windows:
            if self._is_due_now(one[EARLY]):
                found = self._show(0, key, one, "early")
                break
        self._leave(key, windows)
        return found

    def _look_again(self, key: Key, windows: Iterable[Open]) -> None:
        """See to it that a key is looked at when the clock says so as well."""
        windows = [*windows]
        super()._look_again(key, windows)
        self._alarms.add(key, min((self._alarm(one[EARLY]) for one in windows), default=NEVER))
