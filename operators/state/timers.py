"""The timers of an operator's keys in one task: in the order of time, then of key, beside the store that keeps them."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from itertools import compress
from operator import not_

from operators.core.base import MAX_TIMESTAMP, MIN_TIMESTAMP, MOST_HELD, NEVER, Key, Keys, Store
from operators.core.entry_keys import NUMBER_BYTES, SHIFT, beyond, number_at, ordered

KEY_AT = 1 + NUMBER_BYTES
"""The offset of the key in an entry's key, behind a prefix of one byte and the time."""
MOST_SET_AT_END = 1_000
"""The most timers that the timers of one key may set after the inputs have ended; more would never end."""


class Timers:
    """The times at which keys are to be called; to set one twice is to set it once.

    Those due next are here, in a heap by time and in a list by key, so that neither a message nor a step of the
    watermark looks at any that is not due. What has changed since the last `write_back` is beside the store: a timer
    that is set and called between two commits never touches it. Timers from `_beyond` on may be in the store alone, and
    are read when event time comes near them.
    """

    def __init__(self, store: Store, keys: Keys, prefix: bytes, most_held: int = MOST_HELD) -> None:
        self.store = store
        self.keys = keys
        self.prefix = prefix
        self._most_held = most_held
        self._ending = False
        self._set_at_end: Counter[Key] = Counter()
        self._of: dict[Key, list[int]] = {}
        """The times of each key before `_beyond`, in order."""
        self._at: dict[int, list[Key]] = {}
        """The keys of each time, some of which may have been taken back since."""
        self._times: list[int] = []
        """The times in `_at`, as a heap."""
        self._in_order: int | None = None
        """The time whose keys lie in order, the first one last."""
        self._changed: dict[tuple[int, Key], bool] = {}
        """The timers that the store does not have as they are: True for one that is set, False for one that is not."""
        self._beyond = MIN_TIMESTAMP

    @property
    def first(self) -> int:
        """The earliest time, NEVER where there is none."""
        of = self._of
        while True:
            while self._times:
                at_ms = self._times[0]
                keys = self._at[at_ms]
                while keys:
                    times = of.get(keys[-1])
                    if times is not None and times[0] == at_ms:
                        return at_ms
                    keys.pop()
                del self._at[heapq.heappop(self._times)]
            if self._beyond == NEVER:
                return NEVER
            self._read_on()

    @property
    def unwritten(self) -> int:
        """The number of changes that the store does not have."""
        return len(self._changed)

    def set(self, key: Key, at_ms: int) -> None:
        """Remember a timer; raises ValueError for a key whose timers would go on for ever."""
        if self._ending:
            self._count_at_end(key)
        if at_ms >= self._beyond:
            self._changed[at_ms, key] = True
            return
        times = self._of.get(key)
        if times is None:
            self._of[key] = [at_ms]
        elif at_ms > times[-1]:  # as most are, which were set for later than those before
            times.append(at_ms)
        else:
            place = bisect_left(times, at_ms)
            if times[place] == at_ms:
                return
            times.insert(place, at_ms)
        keys = self._at.get(at_ms)
        if keys is None:
            self._at[at_ms] = [key]
            heapq.heappush(self._times, at_ms)
        else:
            keys.append(key)
            if at_ms == self._in_order:
                self._in_order = None
        # What it was not before has changed, but for one that was taken back since the store had it.
        if not self._changed.setdefault((at_ms, key), True):
            del self._changed[at_ms, key]

    def delete(self, key: Key, at_ms: int) -> None:
        """Take a timer back; nothing happens where there is none."""
        if at_ms >= self._beyond:
            self._changed[at_ms, key] = False
            return
        times = self._of.get(key, [])
        place = bisect_left(times, at_ms)
        if place == len(times) or times[place] != at_ms:
            return
        # Its key stays in `_at`, where whoever comes to it sees that it is none any more.
        del times[place]
        if not times:
            del self._of[key]
        if self._changed.pop((at_ms, key), None) is None:
            self._changed[at_ms, key] = False

    def due(self, until_ms: int) -> Iterator[tuple[int, Key]]:
        """Remove and yield the timers that are due, in order of time and key; those set on the way, too.

        Each is removed just before it is yielded, and nothing is lost where nobody asks for the next.
        """
        self._ending = until_ms == MAX_TIMESTAMP
        of, at, times = self._of, self._at, self._times
        while times or self._beyond <= until_ms:
            if not times:
                self._read_on()
                continue
            at_ms = times[0]
            if at_ms > until_ms:
                return
            keys = at[at_ms]
            if len(keys) > 1 and at_ms != self._in_order:
                keys[:] = self.keys.in_order({key for key in keys if self._is_first(key, at_ms)})[::-1]
                self._in_order = at_ms
            if not keys:
                del at[heapq.heappop(times)]
                continue
            key = keys.pop()
            own = of.get(key)
            # Else it was taken back, or removed by `due_of`.
            if own is not None and own[0] == at_ms:
                self._remove_first(key, own)
                yield at_ms, key

    def due_of(self, key: Key, until_ms: int) -> Iterator[tuple[int, Key]]:
        """Remove and yield those of a key that are due, of what is held here, in their order, as `due` does."""
        times_of = self._of.get
        while (times := times_of(key)) is not None and (at_ms := times[0]) <= until_ms:
            self._remove_first(key, times)
            yield at_ms, key

    def take(self, until_ms: int) -> tuple[int, Key] | None:
        """Remove and return the first timer that is due; None where none is."""
        return next(self.due(until_ms), None)

    def _remove_first(self, key: Key, times: list[int]) -> None:
        """Remove the first timer of a key, whose times are at hand."""
        if len(times) == 1:
            at_ms = times[0]
            del self._of[key]
        else:
            at_ms = times.pop(0)
        # The store need not hear of one that it never had.
        if self._changed.pop((at_ms, key), None) is None:
            self._changed[at_ms, key] = False

    def look_ahead(self, until_ms: int) -> dict[Key, list[int]]:
        """Return the times of each key, in order, with all up to `until_ms`; `set` and `delete` go on changing it."""
        while self._beyond <= until_ms:
            self._read_on()
        return self._of

    def drop(self) -> tuple[int, Key]:
        """Remove the first, and return it."""
        dropped = self.take(MAX_TIMESTAMP)
        assert dropped is not None, "what is dropped was due"
        return dropped

    def write_back(self) -> None:
        """Put what has changed into the store."""
        self._write()
        if self.store.durable and len(self._times) > self._most_held > 0:
            self._let_go()

    def forget(self) -> None:
        """Drop all that is beside the store, which was rolled back to the last `write_back`."""
        for held in (self._of, self._at, self._times, self._changed):
            held.clear()
        self._beyond, self._in_order = MIN_TIMESTAMP, None

    def _count_at_end(self, key: Key) -> None:
        self._set_at_end[key] += 1
        if self._set_at_end[key] > MOST_SET_AT_END:
            raise ValueError(
                f"the timers of one key have set {MOST_SET_AT_END:,} more since the inputs ended, and would go on "
                "for ever; let on_timer stop, or set timers only where a message comes"
            )

    def _is_first(self, key: Key, at_ms: int) -> bool:
        """Whether a key has a timer of the first time of all, which is then the first of its own."""
        times = self._of.get(key)
        return times is not None and times[0] == at_ms

    def _read_on(self) -> None:
        """Read the next timers of those that may be in the store alone, all of one time together."""
        self._write()
        number = last = 0
        reached = NEVER
        for place, _ in self.store.range(self.prefix + ordered(self._beyond), beyond(self.prefix)):
            at_ms = number_at(place, 1)
            if number >= max(self._most_held, 1) and at_ms != last:
                reached = at_ms
                break
            (key,) = self.keys.load([place[KEY_AT:]])
            assert key is not None
            # All that is held comes before `_beyond`, and so before what is read.
            self._of.setdefault(key, []).append(at_ms)
            if at_ms not in self._at:
                self._at[at_ms] = []
                heapq.heappush(self._times, at_ms)
            self._at[at_ms].append(key)
            number, last = number + 1, at_ms
        assert reached > self._beyond, "what is read comes nearer to the end"
        self._beyond = reached

    def _write(self) -> None:
        changed = self._changed
        if not changed:
            return
        data, prefix = self.keys.encode_all([key for _, key in changed]), self.prefix
        # As `ordered` does it, written out to spare a call for each.
        places = [
            prefix + (at_ms + SHIFT).to_bytes(NUMBER_BYTES, "big") + key
            for (at_ms, _), key in zip(changed, data, strict=True)
        ]
        self.store.update(dict.fromkeys(compress(places, changed.values()), True))
        self.store.delete_all(compress(places, map(not_, changed.values())))
        changed.clear()

    def _let_go(self) -> None:
        """Leave the later half of the times to the store, which has all of them."""
        assert not self._changed, "only what the store has may be left to it"
        self._times.sort()
        kept = len(self._times) // 2
        self._beyond = self._times[kept]
        for at_ms in self._times[kept:]:
            for key in self._at.pop(at_ms):
                times = self._of.get(key, [])
                del times[bisect_left(times, self._beyond) :]
                if not times:
                    self._of.pop(key, None)
        del self._times[kept:]
