"""The windows by count: so many values of a key that came one after the other, or all values of a key."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from operators.aggregations.aggregation import Aggregation
from operators.core.base import (
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    MOST_HELD,
    NEVER,
    Batch,
    Copies,
    Key,
    Keys,
    Store,
    has_none,
)
from operators.state.key_cache import KeyStates
from operators.state.keyed_state import STATE
from operators.state.unread_entries import Entries, ReadBitByBit, UnreadEntries
from operators.windows.partials import Partials
from operators.windows.window import NO_KEY, Pane, Timing, Window
from operators.windows.window_types import Counted

NUMBER, LOW, HIGH, STAMP, HELD, INDEX, EARLY, SHOWN = range(8)
"""The fields of an open window: the number of its values; the smallest and the largest timestamp, the largest stamp
and the accumulator of those in its next pane, where without values the stamp is that of the end.

Then the number of that pane, the state of its trigger, and where panes are withdrawn the last one, if there is one.
"""
Open = list[Any]
"""A window that is not complete."""


class CountFiring(NamedTuple):
    """A pane that is shown, or, with the sign -1, withdrawn; and the row of its last value."""

    row: int
    key: Key
    window: Open
    timing: Timing
    sign: int = 1


class CountedOperator(ReadBitByBit, KeyStates):
    """The windows by count of one task: per key those that are open, the oldest first.

    A window that is complete fires with its last value, others when all inputs have ended. A pane takes the largest
    timestamp and stamp that it holds: so event time waits for the open window of the lowest stamp. Which that is shows
    when all were looked at; given the `lowest` of all as it begins, it is at work before.
    """

    calls = ("aggregation",)
    late: Batch | None = None
    withholds = True

    def __init__(
        self,
        spec: Window,
        store: Store,
        keys: Keys,
        copies: Copies,
        aggregation: Aggregation[Any, Any] | None = None,
        most_held: int = MOST_HELD,
        lowest: int | None = None,
    ) -> None:
        super().__init__(store, keys, None, most_held)
        assert isinstance(spec.windows, Counted)
        self.aggregation = aggregation or spec.aggregation
        self._copies = copies
        self._trigger = spec.early
        self._accumulates = spec.panes != "discarding"
        self._retracts = spec.retracts
        self._in_full: Timing = "final" if spec.emit == "final" else "on_time"
        self._now_ms = MIN_TIMESTAMP
        """The time by the clock, where told."""
        self._number = spec.windows.number or MAX_TIMESTAMP
        self._every = spec.windows.every or self._number
        self._stamps = Lowest(keys, lambda key: _lowest(self.read(key) or ()))
        self._dues = Lowest(keys, lambda key: self._first_due(self.read(key) or ()))
        self._unread = UnreadEntries(store, STATE, self._look_at, lowest)
        self._settle()

    def process(self, batch: Batch) -> Batch | None:
        """Add the values to the open windows of their keys; those that are complete fire."""
        if batch.keys is None or has_none(batch.keys):
            raise ValueError(NO_KEY)
        by_key: dict[Key, list[int]] = defaultdict(list)
        for row, key in enumerate(batch.keys):
            by_key[key].append(row)
        take_in = self._take_in if self._trigger is None else self._take_in_each
        found = [firing for key, rows in by_key.items() for firing in take_in(key, rows, batch)]
        self.relieve()
        return self._panes(sorted(found, key=lambda firing: firing.row))

    def merge(self, partials: Partials, stamp: int) -> None:
        """Add the folds that others have made of all values of their keys, none of which came below `stamp`."""
        for key, part in zip(partials.keys, partials.accumulators, strict=True):
            number, low, high, reached, held = part
            windows = self.read(key)
            one = [*windows[0]] if windows else self._begun()
            one[STAMP] = max(one[STAMP] if _has_some(one) else MIN_TIMESTAMP, reached, stamp)
            one[NUMBER] += number
            one[LOW], one[HIGH] = min(one[LOW], low), max(one[HIGH], high)
            one[HELD] = self.aggregation.merge(one[HELD], held)
            self._leave(key, [one])
        self.relieve()

    def on_watermark(self, watermark: int, most: int | None = None) -> Batch | None:
        """Fire the early panes that are due, and open windows when all inputs have ended, by stamp, then by key."""
        if watermark == MAX_TIMESTAMP:
            self._unread.read_all()
        found: list[CountFiring] = []
        while self.next_due() <= watermark and (most is None or len(found) < most):
            found += self._take_first()
        return self._panes(found)

    def drop_due(self) -> Batch:
        """Remove the window that would fire first, and return its bounds and its accumulator."""
        found: list[CountFiring] = []
        while not found:
            found = self._take_first()
        return dropped(found)

    def next_due(self) -> int:
        """Return the watermark at which an early pane is due, or the end of all inputs if a window is open."""
        if self.is_unread:
            return MAX_TIMESTAMP
        early = self._dues.first()
        if early is not None:
            return early[0]
        return MAX_TIMESTAMP if self._stamps.first() is not None else NEVER

    def lowest_stamp(self) -> int:
        """Return the lowest stamp of a window that is open."""
        lowest = self._stamps.first()
        return self._unread.lowest if lowest is None else min(lowest[0], self._unread.lowest)

    def relieve(self) -> None:
        """Write back where too much is held; what is known of the keys stays for a rollback."""
        if self.store.durable and len(self.changed) > self.most_held:
            super().write_back()

    def write_back(self) -> None:
        """Put the open windows of keys that have changed into the store."""
        super().write_back()
        self._settle()

    def forget(self) -> None:
        """Drop all changes, and look again at the keys that had changed."""
        super().forget()
        self._stamps.forget()
        self._dues.forget()

    def _take_in(self, key: Key, rows: list[int], batch: Batch) -> list[CountFiring]:
        """Add values of one key, and return the windows that are complete."""
        windows: list[Open] = [[*one] for one in self.read(key) or ()]
        complete: list[CountFiring] = []
        first = 0
        while first < len(rows):
            if not windows or windows[-1][NUMBER] == self._every:
                windows.append(self._begun())
            # As many rows at once as complete no window and begin none, so that an aggregation takes whole lists.
            room = min(self._number - windows[0][NUMBER], self._every - windows[-1][NUMBER])
            taken = rows[first : first + room]
            for one in windows:
                self._add(one, taken, batch)
            if windows[0][NUMBER] == self._number:
                complete.append(CountFiring(taken[-1], key, windows.pop(0), self._in_full))
            first += len(taken)
        self._leave(key, windows)
        return complete

    def _take_in_each(self, key: Key, rows: list[int], batch: Batch) -> list[CountFiring]:
        """Add values of one key, one by one, and return the early panes that are due by then, and what is complete."""
        trigger = self._trigger
        assert trigger is not None and batch.timestamps is not None and batch.stamps is not None
        windows: list[Open] = [[*one] for one in self.read(key) or ()]
        found: list[CountFiring] = []
        for row in rows:
            stamp = batch.stamps[row]
            if not windows or windows[-1][NUMBER] == self._every:
                windows.append(self._begun())
            for one in windows:
                if self._due(one) <= stamp:
                    found += self._show(row, key, one, "early")
                self._add(one, [row], batch)
                one[EARLY] = trigger.add(one[EARLY], batch.timestamps[row], self._now_ms)
                if one[NUMBER] == self._number:
                    found += self._show(row, key, one, self._in_full)
                elif self._due(one) <= stamp:
                    found += self._show(row, key, one, "early")
            if windows[0][NUMBER] == self._number:
                del windows[0]
        self._leave(key, windows)
        return found

    def _begun(self) -> Open:
        early = None if self._trigger is None else self._trigger.begin()
        begun = [0, MAX_TIMESTAMP, MIN_TIMESTAMP, MAX_TIMESTAMP, self.aggregation.init(), 0, early]
        return [*begun, []] if self._retracts else begun

    def _add(self, one: Open, rows: list[int], batch: Batch) -> None:
        assert batch.timestamps is not None and batch.stamps is not None
        timestamps = [batch.timestamps[row] for row in rows]
        stamp = max(batch.stamps[row] for row in rows)
        one[STAMP] = max(one[STAMP], stamp) if _has_some(one) else stamp
        one[NUMBER] += len(rows)
        one[LOW], one[HIGH] = min(one[LOW], *timestamps), max(one[HIGH], *timestamps)
        one[HELD] = self.aggregation.add(one[HELD], [batch.values[row] for row in rows])

    def _show(self, row: int, key: Key, one: Open, timing: Timing) -> list[CountFiring]:
        """Return a window's next pane, behind the one that it withdraws; behind an early one it goes on."""
        found: list[CountFiring] = []
        if self._retracts:
            found = [
                CountFiring(row, key, [0, low, high, one[STAMP], held, index], before, -1)
                for low, high, held, index, before in one[SHOWN]
            ]
            one[SHOWN] = [[one[LOW], one[HIGH], one[HELD], one[INDEX], timing]]
        shown = [*one]
        if timing == "early":
            assert self._trigger is not None
            one[INDEX], one[EARLY] = one[INDEX] + 1, self._trigger.after(one[EARLY])
            if not self._accumulates:
                one[LOW : HELD + 1] = self._begun()[LOW : HELD + 1]
            else:
                one[HELD] = self._copies.copy(one[HELD])
        return [*found, CountFiring(row, key, shown, timing)]

    def _take_first(self) -> list[CountFiring]:
        """Take the early pane that is due first, or the window of the lowest stamp, of equal ones the oldest."""
        early = self._dues.first()
        if early is not None:
            _, key = early
            windows = [[*one] for one in self.read(key)]
            found = self._show(0, key, min(windows, key=self._due), "early")
            self._leave(key, windows)
            return found
        lowest = self._stamps.first()
        assert lowest is not None
        _, key = lowest
        windows = [*self.read(key)]
        one = windows.pop(min(range(len(windows)), key=lambda place: windows[place][STAMP]))
        self._leave(key, windows)
        return self._show(0, key, [*one], self._in_full) if _has_some(one) else []

    def _leave(self, key: Key, windows: list[Open]) -> None:
        """Set the open windows of a key."""
        self.changed[key] = windows or None
        self._look_again(key, windows)

    def _look_at(self, entries: Entries) -> None:
        """Look at windows of keys as they are stored; that a key has others by now is seen when it comes first."""
        keys = self.keys.load([place[len(STATE) :] for place, _ in entries])
        for key, (_, windows) in zip(keys, entries, strict=True):
            assert key is not None
            self._look_again(key, windows)

    def _look_again(self, key: Key, windows: list[Open]) -> None:
        self._stamps.lower(key, _lowest(windows))
        if self._trigger is not None:
            self._dues.lower(key, self._first_due(windows))

    def _first_due(self, windows: Iterable[Open]) -> int:
        """Return the watermark at which the first early pane of a key is due."""
        return min(map(self._due, windows), default=NEVER)

    def _due(self, one: Open) -> int:
        """Return the watermark at which an early pane of a window is due; NEVER for a window without values."""
        return NEVER if self._trigger is None or not _has_some(one) else self._trigger.due(one[EARLY], self._now_ms)

    def _settle(self) -> None:
        self._stamps.settle()
        self._dues.settle()

    def _panes(self, found: list[CountFiring]) -> Batch | None:
        if not found:
            return None
        finish, decode = self.aggregation.finish, self.keys.decode
        values = [
            Pane(decode(key), one[LOW], one[HIGH] + 1, finish(one[HELD]), one[INDEX], timing)
            for _, key, one, timing, _ in found
        ]
        timestamps, stamps = [one.window[HIGH] for one in found], [one.window[STAMP] for one in found]
        signs = [one.sign for one in found] if self._retracts else None
        return Batch(values, keys=[one.key for one in found], timestamps=timestamps, stamps=stamps, signs=signs)


def dropped(found: list[CountFiring]) -> Batch:
    """Return the bounds and the accumulator of a pane that nobody will see."""
    *_, (_, key, one, _, _) = found
    return Batch([(one[LOW], one[HIGH] + 1, one[HELD])], keys=[key])


def _has_some(one: Open) -> bool:
    """Whether the next pane of a window has values."""
    return bool(one[LOW] <= one[HIGH])


def _lowest(windows: Iterable[Open]) -> int:
    return min((one[STAMP] for one in windows), default=NEVER)


class Lowest:
    """Keys by a lower bound of their number, in a heap that is right only at its top.

    The number of a key is brought up to date, by `number_of`, when the key comes first there; NEVER is no number.
    """

    def __init__(self, keys: Keys, number_of: Callable[[Key], int]) -> None:
        self._encode = keys.encode
        self._number_of = number_of
        self._heap: list[tuple[int, bytes, Key]] = []
        self._known: dict[Key, int] = {}
        """The number of each key that counts in the heap; its other entries are passed over."""
        self._changed: dict[Key, None] = {}
        """The keys of which another number counts than at the last `settle`."""

    def first(self) -> tuple[int, Key] | None:
        """Return the lowest number and its key, of equal ones the first by its bytes."""
        while self._heap:
            number, _, key = self._heap[0]
            if self._known.get(key) == number:
                actual = self._number_of(key)
                if actual == number:
                    return number, key
                heapq.heappop(self._heap)
                self._know(key, actual)
            else:
                heapq.heappop(self._heap)
        return None

    def lower(self, key: Key, number: int) -> None:
        """Take in the number that a key has now; a higher one is learned when the key comes first."""
        if number < self._known.get(key, NEVER):
            self._know(key, number)

    def settle(self) -> None:
        """Note what is known of the keys now, to come back to."""
        self._changed.clear()

    def forget(self) -> None:
        """Bring the numbers of all keys up to date that have changed since the last `settle`."""
        for key in [*self._changed]:
            self._know(key, self._number_of(key))
        self._changed.clear()

    def _know(self, key: Key, number: int) -> None:
        self._changed[key] = None
        if number == NEVER:
            self._known.pop(key, None)
        else:
            self._known[key] = number
            heapq.heappush(self._heap, (number, self._encode(key), key))
