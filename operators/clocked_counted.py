"""Windows by count, or of all values, whose early panes may be due by the clock on the wall."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from operators.agenda import Agenda
from operators.base import MAX_TIMESTAMP, MIN_TIMESTAMP, NEVER, Batch, Key
from operators.clocked_triggers import Heeding
from operators.counted import EARLY, CountedOperator, Firing, Open, dropped


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
        found: list[Firing] = []
        while self.next_alarm() <= now_ms and (most is None or len(found) < most):
            found += self._next_by_clock(now_ms)
        return self._panes(found)

    def drop_alarm(self) -> Batch:
        """Remove the first pane that is due by the clock, and return its times and its accumulator."""
        while not (found := self._next_by_clock(self._now_ms)):
            pass
        return dropped(found)

    def forget(self) -> None:
        """Drop what has changed; what was looked at since is looked at again."""
        changed = [*self.changed]
        super().forget()
        for key in changed:
            self._look_again(key, self.read(key) or ())

    def _next_by_clock(self, now_ms: int) -> list[Firing]:
        """Look at the key whose alarm is first, and take one early pane from it, if there is one."""
        _, key = self._alarms.take()
        self._now_ms = max(self._now_ms, now_ms)
        windows: list[Open] = [[*one] for one in self.read(key) or ()]
        found: list[Firing] = []
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
