"""The timers of an operator's keys in one task: in the order of time, then of key, beside the store that keeps them."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain, compress
from operator import not_

from operators.core.base import MAX_TIMESTAMP, MIN_TIMESTAMP, MOST_HELD, NEVER, Key, Keys, Store
from operators.core.entry_keys import NUMBER_BYTES, SHIFT, beyond, number_at, ordered

KEY_AT = 1 + NUMBER_BYTES
"""The offset of the key in an entry's key, behind a prefix of one byte and the time."""
MOST_SET_AT_END = 1_000
"""The most timers that the timers of one key may set after the inputs have ended; more would never end."""
LEAST_READ = 1_000
"""The fewest timers that are read at once: few reads, and few of those that are not due yet."""


class KeyTimes(list[int]):
    """The times of a key in order, of which the first `stored` are not new; `entered` is where it lies among all."""

    __slots__ = ("entered", "stored")

    def __init__(self, at_ms: int) -> None:
        super().__init__((at_ms,))
        self.entered = at_ms
        self.stored = 0


class Timers:
    """The times at which keys are to be called; to set one twice is to set it once.

    Those due next are here, by key, and each key in a heap by a time that is no later than its first: so neither a
    message nor a step of the watermark looks at any that is not due, and a key that has several pays for one. What has
    changed since the last `write_back` is beside the store: a timer that is set and called between two commits never
    touches it. Timers from `_beyond` on may be in the store alone, and are read when event time comes near them.
    """

    def __init__(self, store: Store, keys: Keys, prefix: bytes, most_held: int = MOST_HELD) -> None:
        self.store = store
        self.keys = keys
        self.prefix = prefix
        self._most_held = most_held
        self._ending = False
        self._set_at_end: Counter[Key] = Counter()
        self._of: dict[Key, KeyTimes] = {}
        """The times of each key before `_beyond`."""
        self._at: dict[int, list[Key]] = {}
        """The keys that lie at a time, and some that lie at another one since."""
        self._times: list[int] = []
        """The times in `_at`, as a heap."""
        self._in_order: int | None = None
        """The time whose keys lie in order, the first one last."""
        self._new: dict[Key, None] = {}
        """The keys with times that are new."""
        self._gone: list[tuple[int, Key]] = []
        """The timers that the store had and that are none any more, unless they were set again."""
        self._apart: dict[tuple[int, Key], bool] = {}
        """The changes from `_beyond` on, True for one that is set and False for one that was taken back; and what was
        set for before a time of its key that the store has."""
        self._number = 0
        """The number of times that are new."""
        self._written = 0
        """The number of times that were written or read since those held were counted."""
        self._beyond = MIN_TIMESTAMP
        self._is_first_known = False
        """Whether the store has a timer at `_beyond`, so that it is the first of all where none is held."""

    @property
    def first(self) -> int:
        """The earliest time, NEVER where there is none."""
        while True:
            while self._times:
                at_ms = self._times[0]
                keys = self._at[at_ms]
                while keys:
                    if self._is_first(keys[-1], at_ms):
                        return at_ms
                    self._go_on(keys.pop(), at_ms)
                del self._at[heapq.heappop(self._times)]
            if self._is_first_known or self._beyond == NEVER:
                return self._beyond
            self._look_on()

    @property
    def unwritten(self) -> int:
        """The number of changes that the store does not have."""
        return self._number + len(self._gone) + len(self._apart)

    def set(self, key: Key, at_ms: int) -> None:
        """Remember a timer; raises ValueError for a key whose timers would go on for ever."""
        if self._ending:
            self._count_at_end(key)
        if at_ms >= self._beyond:
            self._apart[at_ms, key] = True
            return
        times = self._of.get(key)
        if times is None:
            times = self._of[key] = KeyTimes(at_ms)
            self._enter(key, at_ms)
        elif at_ms > times[-1]:  # as most are, which were set for later than those before
            times.append(at_ms)
        else:
            place = bisect_left(times, at_ms)
            if times[place] == at_ms:
                return
            times.insert(place, at_ms)
            if at_ms < times.entered:
                times.entered = at_ms
                self._enter(key, at_ms)
            if place < times.stored:
                # It counts as stored, so that these are always the first of its key, and is written by itself.
                times.stored += 1
                self._apart[at_ms, key] = True
                return
        self._number += 1
        self._new[key] = None

    def delete(self, key: Key, at_ms: int) -> None:
        """Take a timer back; nothing happens where there is none."""
        if at_ms >= self._beyond:
            self._apart[at_ms, key] = False
            self._is_first_known = self._is_first_known and at_ms > self._beyond
            return
        times = self._of.get(key)
        if times is None or (place := bisect_left(times, at_ms)) == len(times) or times[place] != at_ms:
            return
        self._remove(key, times, place)

    def due(self, until_ms: int) -> Iterator[tuple[int, Key]]:
        """Remove and yield the timers that are due, in order of time and key; those set on the way, too.

        Each is removed just before it is yielded, and nothing is lost where nobody asks for the next.
        """
        self._ending = until_ms == MAX_TIMESTAMP
        return self._each(until_ms)

    def _each(self, until_ms: int) -> Iterator[tuple[int, Key]]:
        of, at, heap = self._of, self._at, self._times
        while heap or self._beyond <= until_ms:
            if not heap:
                self._read_on(until_ms)
                continue
            at_ms = heap[0]
            if at_ms > until_ms:
                return
            keys = at[at_ms]
            if len(keys) > 1 and at_ms != self._in_order:
                self._put_in_order(keys, at_ms)
            if not keys:
                del at[heapq.heappop(heap)]
                continue
            key = keys.pop()
            times = of.get(key)
            # Else it was taken back, or lies at another time since.
            if times is None or times.entered != at_ms:
                continue
            if times[0] == at_ms:
                self._remove(key, times, 0)
                if times:
                    self._enter_first(key, times)
                yield at_ms, key
            else:
                self._enter_first(key, times)

    def due_of(self, key: Key, until_ms: int) -> Iterator[tuple[int, Key]]:
        """Remove and yield those of a key that are due, of what is held here, in their order, as `due` does."""
        times_of = self._of.get
        while (times := times_of(key)) is not None and (at_ms := times[0]) <= until_ms:
            self._remove(key, times, 0)
            yield at_ms, key

    def take(self, until_ms: int) -> tuple[int, Key] | None:
        """Remove and return the first timer that is due; None where none is."""
        return next(self.due(until_ms), None)

    def look_ahead(self, until_ms: int) -> Mapping[Key, list[int]]:
        """Return the times of each key, in order, with all up to `until_ms`; `set` and `delete` go on changing it."""
        while self._beyond <= until_ms:
            self._read_on(until_ms)
        return self._of

    def drop(self) -> tuple[int, Key]:
        """Remove the first, and return it."""
        dropped = next(self._each(MAX_TIMESTAMP), None)
        assert dropped is not None, "what is dropped was due"
        return dropped

    def write_back(self) -> None:
        """Put what has changed into the store."""
        self._write()
        # All are counted only where there may be too many.
        if self.store.durable and self._written > self._most_held > 0:
            self._written = sum(map(len, self._of.values()))
            if self._written > self._most_held:
                self._let_go()

    def forget(self) -> None:
        """Drop all that is beside the store, which was rolled back to the last `write_back`."""
        for held in (self._of, self._at, self._times, self._new, self._gone, self._apart):
            held.clear()
        self._beyond, self._in_order, self._number, self._written = MIN_TIMESTAMP, None, 0, 0
        self._is_first_known = False

    def _count_at_end(self, key: Key) -> None:
        self._set_at_end[key] += 1
        if self._set_at_end[key] > MOST_SET_AT_END:
            raise ValueError(
                f"the timers of one key have set {MOST_SET_AT_END:,} more since the inputs ended, and would go on "
                "for ever; let on_timer stop, or set timers only where a message comes"
            )

    def _remove(self, key: Key, times: KeyTimes, place: int) -> None:
        """Remove one of a key's times; the key goes with the last of them."""
        at_ms = times.pop(place)
        # The store need not hear of one that it never had.
        if place >= times.stored:
            self._number -= 1
        else:
            times.stored -= 1
            if not (self._apart and self._apart.pop((at_ms, key), False)):
                self._gone.append((at_ms, key))
        if not times:
            del self._of[key]

    def _enter(self, key: Key, at_ms: int) -> None:
        """Let a key lie at a time, where whoever comes to that time finds it."""
        keys = self._at.get(at_ms)
        if keys is None:
            self._at[at_ms] = [key]
            heapq.heappush(self._times, at_ms)
        else:
            keys.append(key)
            if at_ms == self._in_order:
                self._in_order = None

    def _enter_first(self, key: Key, times: KeyTimes) -> None:
        times.entered = times[0]
        self._enter(key, times[0])

    def _is_first(self, key: Key, at_ms: int) -> bool:
        """Whether a key lies at a time, and has a timer then: its first."""
        times = self._of.get(key)
        return times is not None and times.entered == at_ms == times[0]

    def _go_on(self, key: Key, at_ms: int) -> None:
        """Let a key lie at its first time, where it lies at one that was."""
        times = self._of.get(key)
        if times is not None and times.entered == at_ms:
            self._enter_first(key, times)

    def _put_in_order(self, keys: list[Key], at_ms: int) -> None:
        """Leave the keys that have a timer at a time, each once, the first one last; others lie where they belong."""
        found = {*keys}
        due = {key for key in found if self._is_first(key, at_ms)}
        for key in found - due:
            self._go_on(key, at_ms)
        keys[:] = self.keys.in_order(due)[::-1] if due else []
        self._in_order = at_ms

    def _look_on(self) -> None:
        """Learn the first time of those that may be in the store alone, and read no timer before it is near."""
        # So a start, or a split, need not wait until as many are read as may be held.
        self._write()
        start = self.prefix + ordered(self._beyond)
        place = next((place for place, _ in self.store.range(start, beyond(self.prefix))), None)
        self._beyond, self._is_first_known = NEVER if place is None else number_at(place, 1), place is not None

    def _read_on(self, until_ms: int) -> None:
        """Read the next timers of those that may be in the store alone, and few that are not due by a time yet.

        All of one time are read together.
        """
        self._write()
        number = last = 0
        most = max(self._most_held, 1)
        least = min(most, LEAST_READ)
        reached = NEVER
        for place, _ in self.store.range(self.prefix + ordered(self._beyond), beyond(self.prefix)):
            at_ms = number_at(place, 1)
            if at_ms != last and number >= (most if at_ms <= until_ms else least):
                reached = at_ms
                break
            (key,) = self.keys.load([place[KEY_AT:]])
            assert key is not None
            times = self._of.get(key)
            if times is None:
                times = self._of[key] = KeyTimes(at_ms)
                self._enter(key, at_ms)
            else:
                assert at_ms > times[-1], "all that is held comes before `_beyond`, and so before what is read"
                times.append(at_ms)
            times.stored += 1
            number, last = number + 1, at_ms
        assert reached > self._beyond, "what is read comes nearer to the end"
        self._beyond, self._written = reached, self._written + number
        self._is_first_known = reached != NEVER

    def _write(self) -> None:
        if not (self._new or self._gone or self._apart):
            return
        found: list[tuple[int, Key]] = []
        for key in self._new:
            times = self._of.get(key)
            if times is not None:
                found += [(at_ms, key) for at_ms in times[times.stored :]]
                times.stored = len(times)
        apart = self._apart
        found += compress(apart, apart.values())
        gone = [*self._gone, *compress(apart, map(not_, apart.values()))]
        # In this order: what was removed may have been set again.
        self.store.delete_all(self._places(gone))
        self.store.update(dict.fromkeys(self._places(found), True))
        self._written += len(found)
        for held in (self._new, self._gone, apart):
            held.clear()
        self._number = 0

    def _places(self, timers: list[tuple[int, Key]]) -> list[bytes]:
        # As `ordered` does it, written out to spare a call for each.
        prefix, data = self.prefix, self.keys.encode_all([key for _, key in timers])
        return [
            prefix + (at_ms + SHIFT).to_bytes(NUMBER_BYTES, "big") + key
            for (at_ms, _), key in zip(timers, data, strict=True)
        ]

    def _let_go(self) -> None:
        """Leave the later half of the times to the store, which has all of them."""
        assert not self.unwritten, "only what the store has may be left to it"
        everything = sorted(chain.from_iterable(self._of.values()))
        self._beyond, self._is_first_known = everything[len(everything) // 2], True
        for key, times in [*self._of.items()]:
            del times[bisect_left(times, self._beyond) :]
            times.stored = len(times)
            if not times:
                del self._of[key]
        # No time from there on may be taken for the first of all: the store has others.
        self._times[:] = sorted(at_ms for at_ms in self._times if at_ms < self._beyond)
        self._at = {at_ms: self._at[at_ms] for at_ms in self._times}
        self._written = sum(map(len, self._of.values()))
