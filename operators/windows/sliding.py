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
from operators.core.entry_keys import NUMBER_BYTES, number_at, ordered
from operators.state.key_cache import KeyStates
from operators.windows.window import NO_KEY, Pane, Window
from operators.windows.window_types import Sliding

ROW, FIRED = b"r", b"f"
"""The first byte of entries in the store: of the values of a time and key, and of the place that has fired last."""
LEAVES, FIRES = 0, 1
"""The two events of a time and key: its values leave a window, or fire; at equal times in this order."""
MOST_AHEAD = 10_000
"""The number of events that are looked up at once."""


Event = tuple[int, int, bytes, list[Any]]
"""An event: its time, its kind, and the place and the values that it is about."""


class SlidingOperator(KeyStates):
    """The sliding windows of one task: the values by time and key, and of each key what is in its window just now.

    Event time brings a value into the window of its key, which fires then, and the size of the window later takes it
    out again: where the aggregation can remove, each costs the same however long the window is, else the window is
    folded anew. Values up to the place `_fired` have fired, and those behind it have not.
    """

    calls = ("aggregation",)
    _fired: bytes
    """The place of the values that have fired last."""
    _last: int
    """Their time, or that of what was looked up; nothing can come any more that is not later."""
    _within: int
    """The number of times and keys whose values have fired, and may be in a window to come."""
    _oldest: int
    """A time before which there are none."""
    _waiting: dict[int, int]
    """The number of keys whose windows of a time are still to fire, by time."""
    _next: int
    """The first of these times."""
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
        self._load()

    def process(self, batch: Batch) -> Batch | None:
        """Keep the values until event time has passed them; those that are late are left in `late`."""
        if batch.keys is None or has_none(batch.keys):
            raise ValueError(NO_KEY)
        assert batch.timestamps is not None and batch.stamps is not None
        rows: dict[tuple[int, Key], list[Any]] = defaultdict(list)
        late: list[int] = []
        columns = zip(batch.values, batch.keys, batch.timestamps, batch.stamps, strict=True)
        for row, (value, key, timestamp, stamp) in enumerate(columns):
            # Late by its own source, or not behind what has fired or was looked up: that is never gone back to.
            if timestamp < stamp - self._waits_ms or timestamp <= self._last:
                late.append(row)
            else:
                rows[timestamp, key].append(value if self._messages is None else self._messages.encode(value))
        for (timestamp, key), values in rows.items():
            place = _place(timestamp) + self.keys.encode(key)
            known = self.store.get(place) if timestamp in self._waiting else None
            self.store.put(place, values if known is None else [*known, *values])
            if known is None:
                self._waiting[timestamp] = self._waiting.get(timestamp, 0) + 1
        self._next = min(self._next, min((at for at, _ in rows), default=NEVER))
        self.late = batch.take(late) if late else None
        return None

    def on_watermark(self, watermark: int, most: int | None = None) -> Batch | None:
        """Fire the windows of the times before `watermark`, by time, then by key, and drop values in no other one."""
        if watermark < self.next_due():
            return None
        watermark -= self._waits_ms
        panes = Batch([], keys=[], timestamps=[], stamps=[])
        happened = 0
        while (most is None or happened < most) and self._looks_ahead(watermark):
            (at, what, place, values), key = self._ahead.popleft()
            if what == FIRES:
                self._fire(at, key, place, values, panes)
            else:
                self._leave(at - self.size_ms, key, place, values)
            happened += 1
        if most is None or happened < most:
            # The first that is there, and not the first that might be: else each ms would be one at which one leaves.
            self._oldest = max(self._oldest, watermark - self.size_ms + 1)
            within = self.store.range(_place(self._oldest), self._fired + b"\0") if self._within else iter(())
            self._oldest = next((_time(place) for place, _ in within), self._oldest)
        self._remember()
        self.relieve()
        return panes if panes.values else None

    def drop_due(self) -> Batch:
        """Remove what would happen first: values that no window then has, or of a window what can't be taken out."""
        self._looks_ahead(MAX_TIMESTAMP, 1)
        (at, what, place, values), key = self._ahead.popleft()
        if what == FIRES:
            self.store.delete(place)
            self._no_longer_waits(at, place)
        else:
            at -= self.size_ms
            self._leave(at, key, place, values, is_removed=False)
        self._remember()
        values = values if self._messages is None else [*map(self._messages.decode, values)]
        return Batch([(at - self.size_ms + 1, at + 1, values)], keys=[key])

    def next_due(self) -> int:
        """Return the smallest watermark at which a window fires, or may no longer have a value."""
        due = min(self._next + 1, self._oldest + self.size_ms if self._within else NEVER)
        return due + (self._waits_ms if due < NEVER else 0)

    def lowest_stamp(self) -> int:
        """Return the time of the first window still to fire."""
        return self._next

    def forget(self) -> None:
        """Drop all changes, and look up what the store has."""
        super().forget()
        self._load()

    def _load(self) -> None:
        self._fired, self._within, self._oldest = self.store.get(FIRED, (_place(MIN_TIMESTAMP), 0, MIN_TIMESTAMP))
        self._last = _time(self._fired)
        self._waiting = {}
        self._ahead = deque()
        for place, _ in self.store.range(self._fired + b"\0", _place(NEVER)):
            self._waiting[_time(place)] = self._waiting.get(_time(place), 0) + 1
        self._next = min(self._waiting, default=NEVER)

    def _remember(self) -> None:
        """Put the place that has fired last into the store, while a window to come has some of the values."""
        self._next = min(self._waiting, default=NEVER)
        if self._within:
            self.store.put(FIRED, (self._fired, self._within, self._oldest))
        else:
            self.store.delete(FIRED)

    def _looks_ahead(self, watermark: int, most: int = MOST_AHEAD) -> bool:
        """Whether something happens up to `watermark`; what does is looked up, many events at once.

        What is in no window any more leaves before the next one fires.
        """
        # Many events for two ranges of the store, and not a range for each event.
        if not self._ahead:
            oldest = self._oldest if self._within else self._next
            leaving = self.store.range(_place(oldest), _place(watermark - self.size_ms + 1))
            firing = self.store.range(self._fired + b"\0", _place(watermark))
            events: list[Event] = [
                (_time(place) + self.size_ms, LEAVES, place, values) for place, values in islice(leaving, most)
            ]
            events += [(_time(place), FIRES, place, values) for place, values in islice(firing, most)]
            events.sort(key=itemgetter(0, 1, 2))
            del events[most:]
            keys: list[Any] = self.keys.load([place[len(ROW) + NUMBER_BYTES :] for _, _, place, _ in events])
            self._ahead.extend(zip(events, keys, strict=True))
            if events:
                self._last = max(self._last, *(at - (what == LEAVES) for at, what, *_ in events))
        return bool(self._ahead)

    def _fire(self, at: int, key: Key, place: bytes, values: list[Any], panes: Batch) -> None:
        assert panes.keys is not None and panes.timestamps is not None and panes.stamps is not None
        number, held = self.read(key) or (0, None)
        if self.aggregation.remove is None:
            held = [*(held or ()), *values]
            result = self._result(held)
        else:
            held = self.aggregation.add(self.aggregation.init() if number == 0 else held, values)
            # A copy, since `finish` may hand out or change the accumulator, which the next window goes on with.
            result = self.aggregation.finish(self._copies.copy(held))
        self.changed[key] = (number + 1, held)
        panes.values.append(Pane(self.keys.decode(key), at - self.size_ms + 1, at + 1, result, *self._in_time))
        panes.keys.append(key)
        panes.timestamps.append(at)
        panes.stamps.append(at)
        self._no_longer_waits(at, place)
        self._oldest = self._oldest if self._within else at
        self._within += 1

    def _leave(self, at: int, key: Key, place: bytes, values: list[Any], is_removed: bool = True) -> None:
        """Take the values of a time out of the window of their key."""
        remove = self.aggregation.remove
        number, held = self.read(key)
        if number == 1:
            self.changed[key] = None
        elif remove is None:
            self.changed[key] = (number - 1, held[len(values) :])
        else:
            held = remove(held, values) if is_removed else self._folded_anew(key, at)
            self.changed[key] = (number - 1, held)
        self.store.delete(place)
        self._oldest = at
        self._within -= 1

    def _result(self, values: list[Any]) -> Any:
        return self.aggregation.finish(self.aggregation.add(self.aggregation.init(), values))

    def _folded_anew(self, key: Key, after: int) -> Any:
        """Return the accumulator of a key's values that have fired since a time."""
        data, held = self.keys.encode(key), self.aggregation.init()
        for place, values in self.store.range(_place(after + 1), self._fired + b"\0"):
            if place[len(ROW) + NUMBER_BYTES :] == data:
                held = self.aggregation.add(held, values)
        return held

    def _no_longer_waits(self, at: int, place: bytes) -> None:
        self._fired, self._last = place, max(self._last, at)
        if self._waiting[at] == 1:
            del self._waiting[at]
        else:
            self._waiting[at] -= 1


def _place(at: int) -> bytes:
    return ROW + ordered(at)


def _time(place: bytes) -> int:
    return number_at(place, len(ROW))
