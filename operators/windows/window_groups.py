"""The values of a batch, by the windows that they belong to, and by key."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from operators.core.base import EARLIEST_MS, Batch, Key
from operators.windows.window_types import WindowType


class Slot(NamedTuple):
    """One firing of one window: at its end with its values in time, later with late values of one stamp."""

    due: int
    start: int
    end: int


Mine = tuple[list[int], list[Any]]
"""The values of one key in one window, with their rows in a batch before them."""
Grouping = dict[Key, Mine]

Held = dict[tuple[Slot, ...], list[int]]
"""By slots, the number of values of each key."""

RECENT = 4
"""The stretches of time that are remembered, since values out of order go to and fro between some."""
LATE: tuple[int, int, Any] = (0, 0, None)
"""The place of a value that is too late: no window, and a stretch of time that no next value is in."""


class Groups:
    """The values of a batch for windows, by slots: those of each key, or where they are counted a key for each.

    A value is late at a window whose end its stamp, the watermark of its own source, has reached. It still counts
    there while the stamp is less than `lateness_ms` beyond: in a firing of its own, or in the only one of a window that
    `waits_ms` so long. Where they are gathered `in_turn`, each value is followed by its row.
    """

    def __init__(
        self,
        windows: WindowType,
        lateness_ms: int = 0,
        counted: bool = False,
        waits_ms: int = 0,
        in_turn: bool = False,
    ) -> None:
        assert not (counted and in_turn), "what is only counted has no order"
        self.counted = counted
        self.in_turn = in_turn
        self.by_slots: dict[tuple[Slot, ...], Any] = {}
        self.places: dict[tuple[Slot, ...], tuple[int, int]] = {}
        """A timestamp and a stamp that belong to these slots, where they were asked for by these."""
        self._windows = windows
        self._lateness_ms = lateness_ms
        self._waits_ms = waits_ms
        self._met: deque[tuple[int, int, Any]] = deque(maxlen=RECENT)
        self._in_time: dict[int, tuple[int, int, Any]] = {}
        """The places of values in time, by where their stretch of time begins."""

    def place(self, timestamp: int, stamp: int) -> tuple[int, int, Any]:
        """Return the group of a value, and the stretch of time of others in it, if their stamps are before its end."""
        for met in self._met:
            if met[0] <= timestamp < met[1] > stamp:
                return met
        low, high, windows = self._windows.cell(timestamp)
        if stamp >= high:
            group = self.of(windows, stamp, timestamp)
            return LATE if group is None else (0, 0, group)
        # In time for all of its windows, whatever the stamp is.
        found = self._in_time.get(low)
        if found is None:
            # What lies before EARLIEST_MS is no time at all.
            found = self._in_time[low] = max(low, EARLIEST_MS), high, self.of(windows, stamp, timestamp)
        self._met.append(found)
        return found

    def of(self, windows: Iterable[tuple[int, int]], stamp: int, timestamp: int = 0) -> Any:
        """Return the group of a value in these windows, None where it is too late for all of them."""
        waits_ms, lateness_ms = self._waits_ms, self._lateness_ms
        # Of a list, as late values ask one by one, and a generator costs more than the slot of one.
        slots = (
            *[
                Slot(end + waits_ms if end + waits_ms > stamp else stamp + 1, start, end)
                for start, end in windows
                if stamp < end + lateness_ms
            ],
        )
        group = self.by_slots.get(slots)
        if group is None and slots:
            group = self.by_slots[slots] = [] if self.counted else defaultdict(list)
            self.places[slots] = timestamp, stamp
        return group

    def gather(self, batch: Batch) -> list[int]:
        """Group the rows of a batch that have keys, times and stamps; return the places of those that are too late."""
        keys, timestamps, stamps = batch.keys, batch.timestamps, batch.stamps
        assert keys is not None and timestamps is not None and stamps is not None
        low, high, group = self.place(timestamps[0], stamps[0]) if keys else LATE
        late: list[int] = []
        # First over the columns in C: most batches lie in one stretch of time, with nothing late. The first comparison
        # is cheap, and rules out most of the others.
        if (
            self.counted
            and low <= timestamps[-1] < high
            and min(timestamps) >= low
            and max(timestamps) < high > max(stamps)
        ):
            group += keys
            return late
        columns = zip(batch.values, keys, timestamps, stamps, strict=True)
        counted, in_turn = self.counted, self.in_turn
        for row, (value, key, timestamp, stamp) in enumerate(columns):
            into = group
            if not low <= timestamp < high > stamp:
                begins, ends, into = self.place(timestamp, stamp)
                # The place of a late value is that of no other: those behind it are mostly where those before it were.
                if begins < ends:
                    low, high, group = begins, ends, into
            if into is None:
                late.append(row)
            elif counted:
                into.append(key)
            elif in_turn:
                # One list for both: to look the key up again costs more than to take the two apart.
                mine = into[key]
                mine.append(value)
                mine.append(row)
            else:
                into[key].append(value)
        return late

    def savepoint(self) -> Held:
        """Return how many values each key has; keys stay in the order in which they came."""
        assert not self.counted, "keys that are counted have no values"
        return {slots: [*map(len, group.values())] for slots, group in self.by_slots.items()}

    def rollback(self, held: Held) -> None:
        """Drop the values that came since a savepoint, with their keys and slots."""
        for slots in [*self.by_slots]:
            if slots not in held:
                del self.by_slots[slots], self.places[slots]
                continue
            group, numbers = self.by_slots[slots], held[slots]
            for key in [*islice(group, len(numbers), None)]:
                del group[key]
            for values, number in zip(group.values(), numbers, strict=True):
                del values[number:]
        # They may name groups that are gone.
        self._met.clear()
        self._in_time.clear()

    def __len__(self) -> int:
        """Return the number of values."""
        groups = self.by_slots.values()
        return (
            sum(map(len, groups)) if self.counted else sum(len(values) for group in groups for values in group.values())
        )


class Grouped:
    """Values on their way to the windows behind a repartitioning, in groups by slots and key; `exit` leads there.

    Each group has a timestamp and a stamp as its values may have had: all with the same come to the same slots.
    """

    def __init__(self, exit: str) -> None:
        self.exit = exit
        self.counted = False
        self.by_slots: dict[tuple[Slot, ...], dict[Key, list[Any]]] = {}
        self.places: dict[tuple[Slot, ...], tuple[int, int]] = {}
        self.number = 0
        """The number of values."""

    def __len__(self) -> int:
        return self.number

    def add(self, slots: tuple[Slot, ...], place: tuple[int, int], more: dict[Key, list[Any]]) -> None:
        """Take in the values of keys; the lists, and the dict, are this one's own from now on."""
        self.number += sum(map(len, more.values()))
        group = self.by_slots.get(slots)
        if group is None:
            self.by_slots[slots], self.places[slots] = more, place
            return
        for key, values in more.items():
            held = group.get(key)
            if held is None:
                group[key] = values
            else:
                held += values

    def take_in(self, later: Grouped) -> None:
        """Take in all that came later."""
        for slots, group in later.by_slots.items():
            self.add(slots, later.places[slots], group)

    def rows(self) -> Batch:
        """Return the values as rows, with times and stamps that bring them to the same slots."""
        rows = Batch([], keys=[], timestamps=[], stamps=[])
        assert rows.keys is not None and rows.timestamps is not None and rows.stamps is not None
        for slots, group in self.by_slots.items():
            timestamp, stamp = self.places[slots]
            for key, values in group.items():
                rows.values += values
                rows.keys += [key] * len(values)
                rows.timestamps += [timestamp] * len(values)
                rows.stamps += [stamp] * len(values)
        return rows


def by_slot(groups: Groups) -> Iterator[tuple[Slot, Grouping]]:
    """Yield the values of each slot, which were gathered in turn.

    A window gets them in the order in which they came, from whichever stretch of time they are.
    """
    parts: dict[Slot, list[Grouping]] = {}
    for slots, gathered in groups.by_slots.items():
        group = {key: (mine[1::2], mine[::2]) for key, mine in gathered.items()}
        for slot in slots:
            parts.setdefault(slot, []).append(group)
    for slot, found in parts.items():
        yield slot, found[0] if len(found) == 1 else in_turn(found)


def in_turn(parts: list[Grouping]) -> Grouping:
    """Return the values of all parts, those of each key in the order of their rows.

    >>> in_turn([{"a": ([2, 5], ["c", "f"])}, {"a": ([3], ["d"]), "b": ([4], ["e"])}])
    {'a': ([2, 3, 5], ['c', 'd', 'f']), 'b': ([4], ['e'])}
    """
    found: Grouping = {}
    mixed: set[Key] = set()
    for part in parts:
        for key, (rows, values) in part.items():
            if key not in found:
                found[key] = rows, values
                continue
            before, held = found[key]
            if before[-1] > rows[0]:
                mixed.add(key)
            found[key] = before + rows, held + values
    for key in mixed:
        rows, values = found[key]
        places = sorted(range(len(rows)), key=rows.__getitem__)
        found[key] = [*map(rows.__getitem__, places)], [*map(values.__getitem__, places)]
    return found
