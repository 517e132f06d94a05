"""The timers of an operator's keys in one task: kept in its store, in the order of time, then of key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from operators.core.base import MAX_TIMESTAMP, NEVER, Key, Keys, Store
from operators.state.entry_keys import NUMBER_BYTES, number_at, ordered

KEY_AT = 1 + NUMBER_BYTES
"""The offset of the key in an entry's key, behind a prefix of one byte and the time."""
MOST_SET_AT_END = 1_000
"""The most timers that the timers of one key may set after the inputs have ended; more would never end."""


class Timers:
    """The times at which keys are to be called; to set one twice is to set it once.

    `first` is the earliest, NEVER where there is none.
    """

    def __init__(self, store: Store, keys: Keys, prefix: bytes) -> None:
        self.store = store
        self.keys = keys
        self.prefix = prefix
        self.first = NEVER
        self._ending = False
        self._set_at_end: Counter[Key] = Counter()
        self.look_up()

    def set(self, key: Key, at_ms: int) -> None:
        """Remember a timer; raises ValueError for a key whose timers would go on for ever."""
        if self._ending:
            self._set_at_end[key] += 1
            if self._set_at_end[key] > MOST_SET_AT_END:
                raise ValueError(
                    f"the timers of one key have set {MOST_SET_AT_END:,} more since the inputs ended, and would go on "
                    "for ever; let on_timer stop, or set timers only where a message comes"
                )
        self.store.put(self._place(key, at_ms), True)
        self.first = min(self.first, at_ms)

    def delete(self, key: Key, at_ms: int) -> None:
        """Take a timer back; nothing happens where there is none."""
        self.store.delete(self._place(key, at_ms))

    def due(self, until_ms: int) -> Iterator[tuple[int, Key]]:
        """Yield and remove the timers that are due, those set meanwhile included; call `look_up` afterwards."""
        self._ending = until_ms == MAX_TIMESTAMP
        # The first is asked for anew each time, since what is called for one timer may set another that is earlier.
        while (first := next(self.store.range(self.prefix), None)) is not None and first[0][:1] == self.prefix:
            place = first[0]
            at_ms = _time_of(place)
            if at_ms > until_ms:
                break
            self.store.delete(place)
            (key,) = self.keys.load([place[KEY_AT:]])
            assert key is not None
            yield at_ms, key

    def until(self, until_ms: int) -> Iterator[tuple[int, Key]]:
        """Yield the timers that are due by then, in order, and leave them there."""
        if self.first > until_ms:
            return
        places = [place for place, _ in self.store.range(self.prefix, self.prefix + ordered(until_ms + 1))]
        yield from zip(map(_time_of, places), self.keys.load([place[KEY_AT:] for place in places]), strict=True)

    def drop(self) -> tuple[int, Key]:
        """Remove the first, and return it."""
        dropped = next(self.due(MAX_TIMESTAMP))
        self.look_up()
        return dropped

    def look_up(self) -> None:
        """Look up the first timer in the store."""
        place, _ = next(self.store.range(self.prefix), (b"", None))
        self.first = _time_of(place) if place[:1] == self.prefix else NEVER

    def _place(self, key: Key, at_ms: int) -> bytes:
        return self.prefix + ordered(at_ms) + self.keys.encode(key)


def _time_of(place: bytes) -> int:
    return number_at(place, 1)
