"""The sliding windows that late values reach: each makes new panes of all windows in which it lies."""

from __future__ import annotations

from collections import deque
from operator import itemgetter
from typing import Any

from operators.aggregations.aggregation import Aggregation
from operators.core.base import MAX_TIMESTAMP, MIN_TIMESTAMP, MOST_HELD, Batch, Key, Keys, Store, has_none
from operators.state.agenda import Agenda
from operators.state.time_buckets import OverRows, Row, RowsByTime
from operators.windows.window import NO_KEY, Pane, Timing, Window
from operators.windows.window_types import Sliding

ROW, SHOWN = b"r", b"s"
"""The first byte of entries in the store: of values by time, and of fired windows by time."""
LEAST_WIDTH_MS = 1_000
"""The least ms of a bucket, however short the windows are."""


class LateSlidingOperator(OverRows):
    """The sliding windows of one task: the values by key and time, and of each window the panes that it has had.

    A value counts from its time on, a late one from its stamp on: when the watermark has passed that, all is there that
    counts as early, in whatever order sources were read, and the windows in which it lies have a pane. These are those
    of the later times of its key within the size; each pane is folded anew. One thread at a time calls it.
    """

    calls = ("aggregation",)

    def __init__(
        self,
        spec: Window,
        store: Store,
        keys: Keys,
        aggregation: Aggregation[Any, Any] | None = None,
        most_held: int = MOST_HELD,
        lowest: int | None = None,
    ) -> None:
        assert isinstance(spec.windows, Sliding)
        self.size_ms = spec.windows.size_ms
        self.aggregation = aggregation or spec.aggregation
        super().__init__(store, keys, most_held)
        self._lateness_ms = spec.allowed_lateness_ms
        self._accumulates = spec.panes != "discarding"
        self._retracts = spec.retracts
        self._width = max(self.size_ms, LEAST_WIDTH_MS)
        self._messages = spec.messages
        self._rows = RowsByTime(store, keys, ROW, self._width, self.size_ms - 1 + self._lateness_ms)
        """The values, with the times from which on they count; each waits until then."""
        self._shown = RowsByTime(store, keys, SHOWN, self._width, self._lateness_ms)
        """The fired windows by time: when each was looked at, its number of panes, and when the last one counted."""
        self.held = (self._rows, self._shown)
        self.waits_in = (self._rows,)
        self._reached = MIN_TIMESTAMP
        self._begin(lowest)

    def process(self, batch: Batch) -> Batch | None:
        """Keep the values until they count; those that are too late are left in `late`."""
        if batch.keys is None or has_none(batch.keys):
            raise ValueError(NO_KEY)
        assert batch.timestamps is not None and batch.stamps is not None
        late: list[int] = []
        columns = zip(batch.values, batch.keys, batch.timestamps, batch.stamps, strict=True)
        for place, (value, key, at, stamp) in enumerate(columns):
            if at < stamp - self._lateness_ms:
                late.append(place)
            else:
                counts = max(at, stamp)
                kept = value if self._messages is None else self._messages.encode(value)
                self._rows.add(key, (at, counts, kept, True))
                self._wait(key, at, counts)
        self.late = batch.take(late) if late else None
        self.relieve()
        return None

    def on_watermark(self, watermark: int, most: int | None = None) -> Batch | None:
        """Fire the windows of values that count before `watermark`: by when they do, then by time, then by key."""
        if watermark == MAX_TIMESTAMP:
            self.read_all()
        self._reached = max(self._reached, watermark)
        panes = Batch([], keys=[], timestamps=[], stamps=[], signs=[] if self._retracts else None)
        while most is None or len(panes) < most:
            found = self._next(self._reached)
            if found is None:
                more = None if most is None else most - len(panes)
                self._shown.drop_past(self._reached, self._rows.drop_past(self._reached, more))
                break
            self._fire(*found, panes)
            self._firing.popleft()
            if not self._firing:
                self._settle()  # now, so that what is kept does not go by how many were asked for
        self.relieve()
        return panes if panes.values else None

    def drop_due(self) -> Batch:
        """Remove the values that make the first pane, which are in no other yet; where there are none, leave it out."""
        found = self._next(MAX_TIMESTAMP)
        assert found is not None, "a window has failed"
        key, at, rows = found
        counting = self._counting
        dropped = [row[2] for row in rows if row[0] == at and row[1] == counting]
        if dropped:
            self._rows.change(key, at, at, lambda row: None if row[1] == counting else row)
        else:
            dropped = [row[2] for row in rows if row[1] == counting]
            _, number, told = self._shown_of(key, at)
            self._show(key, at, number, told)
        dropped = dropped if self._messages is None else [*map(self._messages.decode, dropped)]
        return Batch([(at - self.size_ms + 1, at + 1, dropped)], keys=[key])

    def next_due(self) -> int:
        """Return the smallest watermark at which a window fires, or rows are past."""
        if self.is_unread:
            return MAX_TIMESTAMP
        if self._firing:
            return self._counting + 1
        return min(self._due.first(), self._rows.next_past(), self._shown.next_past())

    def lowest_stamp(self) -> int:
        """Return the time from which on the first value counts that has not fired."""
        return min(self._counting if self._firing else self._due.first() - 1, self.lowest_unread)

    def forget(self) -> None:
        """Drop all that is held, and look up what the store has."""
        self._begin(None)

    def _begin(self, lowest: int | None) -> None:
        """Look up what the store has; given the lowest stamp of what is still to fire, note bit by bit what waits."""
        self._rows.load()
        self._shown.load()
        self._counting = MIN_TIMESTAMP
        """The time from which on the values count that fire just now."""
        self._counted: list[Key] = []
        """The keys of these values."""
        self._firing: deque[tuple[int, bytes, Key]] = deque()
        """The windows that these values change, by time and by their keys' bytes."""
        self._due: Agenda[tuple[int, Key]] = Agenda(rank=lambda place: self.keys.encode(place[1]))
        """The keys and times from which on their values count, by the watermark at which all of these are there."""
        self._times: dict[tuple[int, Key], list[int]] = {}
        """The times of values, by the time from which on they count, and by key."""
        self._rows.find_waiting(self._wait, lowest)

    def _wait(self, key: Key, at: int, counts: int) -> None:
        self._due.add((counts, key), counts + 1)
        self._times.setdefault((counts, key), []).append(at)

    def _next(self, watermark: int) -> tuple[Key, int, list[Row]] | None:
        """Return the key, the time and the rows of the window that fires next, if one does at `watermark`."""
        while True:
            while self._firing:
                at, _, key = self._firing[0]
                rows = [row for row in self._rows.between(key, at - self.size_ms + 1, at) if row[1] <= self._counting]
                looked_at, *_ = self._shown_of(key, at)
                if looked_at < self._counting and any(row[1] == self._counting for row in rows):
                    return key, at, rows
                self._firing.popleft()
            self._settle()
            if self._due.first() > watermark:
                return None
            self._look_up()

    def _look_up(self) -> None:
        """Look up the windows that fire by the values which count first."""
        due = self._due.first()
        self._counting = due - 1
        while self._due.first() == due:
            _, (_, key) = self._due.take()
            self._counted.append(key)
        found = [(at, self.keys.encode(key), key) for key in self._counted for at in self._changed(key)]
        self._firing.extend(sorted(found, key=itemgetter(0, 1)))

    def _changed(self, key: Key) -> set[int]:
        """Return the times of a key's windows in which something counts just now."""
        times: set[int] = set()
        looked_at = MIN_TIMESTAMP
        for at in sorted(set(self._times.get((self._counting, key), ()))):
            last = min(at + self.size_ms - 1, self._counting)
            # Times that an earlier value has reached already are not read again.
            rows = self._rows.between(key, max(at, looked_at + 1), last)
            times.update(row[0] for row in rows if row[1] <= self._counting)
            looked_at = last
        return times

    def _settle(self) -> None:
        """Note that the values which count just now have fired."""
        counting = self._counting
        for key in self._counted:
            for at in set(self._times.pop((counting, key), ())):
                self._rows.change(key, at, at, lambda row: _fired(row, counting))
        self._counted.clear()

    def _fire(self, key: Key, at: int, rows: list[Row], panes: Batch) -> None:
        """Make a window's next pane, behind the withdrawal of its last one where panes are withdrawn."""
        _, number, told = self._shown_of(key, at)
        # The pane that was shown is not kept: it had the values that counted by then.
        if self._retracts and number:
            self._tell(panes, key, at, [row[2] for row in rows if row[1] <= told], number - 1, told, -1)
        values = [row[2] for row in rows if self._accumulates or row[1] > told]
        self._tell(panes, key, at, values, number, self._counting, 1)
        self._show(key, at, number + 1, self._counting)

    def _show(self, key: Key, at: int, number: int, told: int) -> None:
        """Keep how many panes a window has had, and when the last one counted."""
        self._shown.change(key, at, at, lambda _: None)
        self._shown.add(key, (at, self._counting, [number, told], False))

    def _tell(self, panes: Batch, key: Key, at: int, values: list[Any], number: int, counted: int, sign: int) -> None:
        assert panes.keys is not None and panes.timestamps is not None and panes.stamps is not None
        result = self.aggregation.finish(self.aggregation.add(self.aggregation.init(), values))
        timing: Timing = "on_time" if counted == at else "late"
        panes.values.append(Pane(self.keys.decode(key), at - self.size_ms + 1, at + 1, result, number, timing))
        panes.keys.append(key)
        panes.timestamps.append(at)
        panes.stamps.append(self._counting)
        if panes.signs is not None:
            panes.signs.append(sign)

    def _shown_of(self, key: Key, at: int) -> tuple[int, int, int]:
        """Return when a window was looked at, how many panes it has had, and when the last one counted."""
        found = self._shown.between(key, at, at)
        return (found[0][1], *found[0][2]) if found else (MIN_TIMESTAMP, 0, MIN_TIMESTAMP)


def _fired(row: Row, counted: int) -> Row:
    """Return a row that waits no longer if it counts from this time on, else the row."""
    at, counts, value, waits = row
    return (at, counts, value, False) if waits and counts == counted else row
