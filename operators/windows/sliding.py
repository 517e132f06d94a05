"""The sliding windows over event time: for each time of a key's values, those from up to a size before it."""

from __future__ import annotations

from collections import defaultdict, deque
from itertools import islice
from operator import itemgetter
from typing import Any

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
from operators.core.entry_keys import NUMBER_BYTES, beyond, number_at, ordered
from operators.state.key_cache import KeyStates
from operators.state.stamp_counts import Stamps
from operators.state.unread_entries import Entries, ReadBitByBit, UnreadEntries
from operators.windows.window import NO_KEY, Pane, Window
from operators.windows.window_types import Sliding

ROW, MARK = b"r", b"f"
"""The first byte of entries in the store: of the values of a time and key, and of a mark that versions before kept.

That mark said of all keys of a task how far they have fired, which no part of a split task could go on from.
"""
LEAVES, FIRES = 0, 1
"""The two events of a time and key: its values leave a window, or fire; at equal times in this order."""
MOST_AHEAD = 10_000
"""The number of events that are looked up at once."""


Event = tuple[int, int, bytes, list[Any]]
"""An event: its time, its kind, and the place and the values that it is about."""
NUMBER, LAST = 0, 2
"""The places in a key's state of the number of its times in the window just now, and of the last that has fired."""
BEFORE = 2
"""The fields of that state as versions before kept it, without the time of the last."""
KEY_START = len(ROW) + NUMBER_BYTES
"""Where the key begins in a place."""


class SlidingOperator(ReadBitByBit, KeyStates):
    """The sliding windows of one task: the values by time and key, and of each key what is in its window just now.

    Event time brings a value into the window of its key, which fires then, and the size of the window later takes it
    out again: where the aggregation can remove, each costs the same however long the window is, else the window is
    folded anew. The state of a key says up to which time its values have fired, so a part of a split task knows it of
    its own keys. What was there as it began, and waits, is read bit by bit; until then nothing fires.
    """

    calls = ("aggregation",)
    withholds = True
    latest: int
    """A time behind which no values have fired."""
    _floor: int | None
    """A time before which nothing waited by the last `write_back`, nor since; None where nobody knows one."""
    _has_mark: bool
    """Whether the store has the mark of versions before."""
    _oldest: int
    """A time before which there are none."""
    _waiting: Stamps
    """The times of which windows are still to fire, each as often as there are keys."""
    _ahead: deque[tuple[Event, Key]]
    """The next events, looked up already."""

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
        assert isinstance(spec.windows, Sliding)
        self.size_ms = spec.windows.size_ms
        self.aggregation = aggregation or spec.aggregation
        self.late: Batch | None = None
        self._copies = copies
        self._messages = spec.messages
        self._waits_ms = spec.waits_ms
        self._in_time: tuple[Any, ...] = (0, "final") if spec.emit == "final" else ()
        self.latest = MIN_TIMESTAMP
        self._begin(lowest)
        if lowest is not None:
            self.latest = self._last_time()

    @property
    def unwritten(self) -> int:
        """The number of changed states, and of marks of versions before, that are not what the store has."""
        return len(self.changed) + self._has_mark

    def process(self, batch: Batch) -> Batch | None:
        """Keep the values until event time has passed them; those that are late are left in `late`."""
        if batch.keys is None or has_none(batch.keys):
            raise ValueError(NO_KEY)
        assert batch.timestamps is not None and batch.stamps is not None
        rows: dict[tuple[int, Key], list[Any]] = defaultdict(list)
        late: list[int] = []
        columns = zip(batch.values, batch.keys, batch.timestamps, batch.stamps, strict=True)
        for row, (value, key, timestamp, stamp) in enumerate(columns):
            # Late by its own source, or not behind what has fired of its key: that is never gone back to.
            if timestamp < stamp - self._waits_ms or self._has_fired(key, timestamp):
                late.append(row)
            else:
                rows[timestamp, key].append(value if self._messages is None else self._messages.encode(value))
        for (timestamp, key), values in rows.items():
            place = _place(timestamp) + self.keys.encode(key)
            lies_ahead = self._unread.lies_ahead(place)
            known = self.store.get(place) if lies_ahead or timestamp in self._waiting else None
            self.store.put(place, values if known is None else [*known, *values])
            # One that is still to be read is noted as it is read.
            if known is None and not lies_ahead:
                self._waiting.add(timestamp)
        if rows:
            first = min(at for at, _ in rows)
            self._oldest = min(self._oldest, first)
            if self._floor is not None:
                self._floor = min(self._floor, first)
            # What was looked up is all that there was.
            if self._ahead and first <= self._ahead[-1][0][0]:
                self._ahead.clear()
        self.late = batch.take(late) if late else None
        return None

    def on_watermark(self, watermark: int, most: int | None = None) -> Batch | None:
        """Fire the windows of the times before `watermark`, by time, then by key, and drop values in no other one."""
        if watermark == MAX_TIMESTAMP:
            self._unread.read_all()
        if watermark < self.next_due():
            return None
        watermark -= self._waits_ms
        panes = Batch([], keys=[], timestamps=[], stamps=[])
        happened = 0
        while (most is None or happened < most) and self._looks_ahead(watermark):
            (at, what, place, values), key = self._ahead.popleft()
            if what == FIRES:
                self._fire(at, key, values, panes)
            else:
                self._leave(at - self.size_ms, key, place, values)
            happened += 1
        if most is None or happened < most:
            # The first that is there, and not the first that might be: else each ms would be one at which one leaves.
            self._oldest = self._first_from(max(self._oldest, watermark - self.size_ms + 1))
        self.relieve()
        return panes if panes.values else None

    def drop_due(self) -> Batch:
        """Remove what would happen first: values that no window then has, or of a window what can't be taken out."""
        self._looks_ahead(MAX_TIMESTAMP, 1)
        (at, what, place, values), key = self._ahead.popleft()
        if what == FIRES:
            self.store.delete(place)
            self._waiting.remove(at)
        else:
            at -= self.size_ms
            self._leave(at, key, place, values, is_removed=False)
        values = values if self._messages is None else [*map(self._messages.decode, values)]
        return Batch([(at - self.size_ms + 1, at + 1, values)], keys=[key])

    def next_due(self) -> int:
        """Return the smallest watermark at which a window fires, or may no longer have a value."""
        if self.is_unread:
            return MAX_TIMESTAMP
        due = min(self._waiting.lowest() + 1, self._oldest + self.size_ms)
        return due + self._waits_ms if due < MAX_TIMESTAMP else NEVER

    def lowest_stamp(self) -> int:
        """Return the time of the first window still to fire."""
        return min(self._waiting.lowest(), self._unread.lowest)

    def write_back(self) -> None:
        """Put what has changed into the store; a mark of versions before goes with the states that say it now."""
        if self._has_mark:
            self.store.drop(MARK, beyond(MARK))
            self._has_mark = False
        super().write_back()
        self._floor = self.lowest_stamp()

    def relieve(self) -> None:
        """Write back where too much is held; a rollback goes further back than that."""
        floor = self._floor
        super().relieve()
        self._floor = floor

    def forget(self) -> None:
        """Drop all changes, and look up what waits in the store as it was by the last `write_back`."""
        super().forget()
        goes_on = self.is_unread
        self._begin(self._floor)
        if not goes_on:
            self._unread.read_all()

    def _begin(self, floor: int | None) -> None:
        """Look up what waits, given a time before which nothing does; without it all is read now.

        Versions before had no times in the states of keys: these are put there, as if they had changed.
        """
        self._floor = floor
        self._waiting, self._ahead = Stamps(), deque()
        self._has_mark = next(self.store.range(MARK, beyond(MARK)), None) is not None
        self._left: dict[Key, int] = {}
        """The number of a key's times that have fired and are still to be read, where its state does not say which."""
        self._oldest = self._first_from(MIN_TIMESTAMP)
        start = ROW if floor is None else _place(floor)
        self._unread = UnreadEntries(self.store, ROW, self._read, floor, start)

    def _read(self, entries: Entries) -> None:
        """Note the values among the next ones, in the order of their times, that wait."""
        keys = self.keys.load([place[KEY_START:] for place, _ in entries])
        for key, (place, _) in zip(keys, entries, strict=True):
            assert key is not None
            at, state = _time(place), self.read(key)
            if state is not None and len(state) == BEFORE:
                self._complete(key, at, state)
            elif state is None or at > state[LAST]:
                self._waiting.add(at)
            else:
                self.latest = max(self.latest, at)

    def _complete(self, key: Key, at: int, state: Any) -> None:
        """Note the time of a key's values in its state once that of the last ones that have fired is read."""
        # Versions before fired all times of a key in their order, and had the number of those that are still there.
        left = self._left.pop(key, state[NUMBER]) - 1
        if left:
            self._left[key] = left
        else:
            self.changed[key] = (*state, at)
            self.latest = max(self.latest, at)

    def _last_time(self) -> int:
        """Return the time of the last values that are there, or MIN_TIMESTAMP; the store is not walked through."""
        low, high = self._oldest, MAX_TIMESTAMP
        if low == NEVER:
            return MIN_TIMESTAMP
        while low < high:
            middle = (low + high) // 2
            found = self._first_from(middle + 1)
            low, high = (low, middle) if found == NEVER else (found, high)
        return low

    def _first_from(self, at: int) -> int:
        """Return the first time, from one on, that has values; NEVER where none has."""
        found = next(self.store.range(_place(at), beyond(ROW)), None)
        return NEVER if found is None else _time(found[0])

    def _has_fired(self, key: Key, at: int) -> bool:
        """Whether the values of a key have fired up to a time."""
        # Mostly the time is later than all that has fired, and nobody need look.
        if at > self.latest:
            return False
        state = self.read(key)
        return state is not None and at <= state[LAST]

    def _looks_ahead(self, watermark: int, most: int | None = None) -> bool:
        """Whether something happens up to `watermark`; what does is looked up, many events at once.

        What is in no window any more leaves before the next one fires.
        """
        # Many events for two ranges of the store, and not a range for each event.
        if not self._ahead:
            most = MOST_AHEAD if most is None else most
            leaving = self.store.range(_place(self._oldest), _place(watermark - self.size_ms + 1))
            firing = self.store.range(_place(self._waiting.lowest()), _place(watermark))
            events: list[Event] = [
                (_time(place) + self.size_ms, LEAVES, place, values) for place, values in islice(leaving, most)
            ]
            waiting = ((_time(place), FIRES, place, values) for place, values in firing if self._waits(place))
            events += islice(waiting, most)
            events.sort(key=itemgetter(0, 1, 2))
            del events[most:]
            keys: list[Any] = self.keys.load([place[KEY_START:] for _, _, place, _ in events])
            self._ahead.extend(zip(events, keys, strict=True))
        return bool(self._ahead)

    def _waits(self, place: bytes) -> bool:
        """Whether the values at a place have not fired."""
        at = _time(place)
        if at > self.latest:
            return True
        (key,) = self.keys.load([place[KEY_START:]])
        assert key is not None
        return not self._has_fired(key, at)

    def _fire(self, at: int, key: Key, values: list[Any], panes: Batch) -> None:
        assert panes.keys is not None and panes.timestamps is not None and panes.stamps is not None
        number, held, last = self.read(key) or (0, None, MIN_TIMESTAMP)
        assert at > last, "the values of a key fire in the order of their times"
        if self.aggregation.remove is None:
            held = [*(held or ()), *values]
            result = self._result(held)
        else:
            held = self.aggregation.add(self.aggregation.init() if number == 0 else held, values)
            # A copy, since `finish` may hand out or change the accumulator, which the next window goes on with.
            result = self.aggregation.finish(self._copies.copy(held))
        self.changed[key] = (number + 1, held, at)
        panes.values.append(Pane(self.keys.decode(key), at - self.size_ms + 1, at + 1, result, *self._in_time))
        panes.keys.append(key)
        panes.timestamps.append(at)
        panes.stamps.append(at)
        self.latest = max(self.latest, at)
        self._waiting.remove(at)

    def _leave(self, at: int, key: Key, place: bytes, values: list[Any], is_removed: bool = True) -> None:
        """Take the values of a time out of the window of their key."""
        remove = self.aggregation.remove
        number, held, last = self.read(key)
        if number == 1:
            self.changed[key] = None
        elif remove is None:
            self.changed[key] = (number - 1, held[len(values) :], last)
        else:
            held = remove(held, values) if is_removed else self._folded_anew(key, at, last)
            self.changed[key] = (number - 1, held, last)
        self.store.delete(place)
        self._oldest = at

    def _result(self, values: list[Any]) -> Any:
        return self.aggregation.finish(self.aggregation.add(self.aggregation.init(), values))

    def _folded_anew(self, key: Key, after: int, last: int) -> Any:
        """Return the accumulator of a key's values that have fired since a time, up to the last."""
        data, held = self.keys.encode(key), self.aggregation.init()
        for place, values in self.store.range(_place(after + 1), _place(last + 1)):
            if place[KEY_START:] == data:
                held = self.aggregation.add(held, values)
        return held


def _place(at: int) -> bytes:
    return ROW + ordered(at)


def _time(place: bytes) -> int:
    return number_at(place, len(ROW))
