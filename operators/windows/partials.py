"""The partial results of windows over a part of their values, which are merged with those of other parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from operators.aggregations.aggregation import Aggregation
from operators.core.base import Batch, Key
from operators.windows.window_groups import Groups, Slot


class Partials(msgspec.Struct, frozen=True):
    """Accumulators by key, each to be merged into all `slots`; with the numbers of their values and of late ones.

    Keys are as batches hold them. For windows that take all values of a key there are no slots, and accumulators are
    `PartialFold`s. Of sessions there are none either: a key is there once for each stretch of its values, and what it
    has is the start, the end and the accumulator of that stretch.
    """

    slots: list[Slot]
    keys: list[Key]
    accumulators: list[Any]
    values: int
    late: int = 0

    def raised(self, stamp: int, lateness_ms: int) -> Partials:
        """Return them with all stamps raised to at least this one, before which windows may have fired already.

        >>> partials = Partials([Slot(10, 0, 10), Slot(15, 5, 15)], ["a"], [3], 3)
        >>> partials.raised(12, 0).slots, partials.raised(15, 0).late, partials.raised(9, 0) == partials
        ([Slot(due=15, start=5, end=15)], 3, True)
        """
        slots = [Slot(max(due, stamp + 1), start, end) for due, start, end in self.slots if stamp < end + lateness_ms]
        if not slots:
            return Partials([], [], [], 0, self.values + self.late)
        return Partials(slots, self.keys, self.accumulators, self.values, self.late)


class PartialFold(NamedTuple):
    """The fold of a part of a key's values: their number, first and last times, largest stamp, and accumulator."""

    number: int
    low: int
    high: int
    stamp: int
    accumulator: Any


class Fold(NamedTuple):
    """The partial results of some windows for the keys of one partition behind a shuffle."""

    partition: int
    partials: Partials


@dataclass(frozen=True)
class Folds:
    """The values of a batch for windows, folded already."""

    parts: list[Fold]

    def __len__(self) -> int:
        """Return the number of values."""
        return sum(fold.partials.values for fold in self.parts)


def folds_of(
    groups: Groups, aggregation: Aggregation[Any, Any], partition_of: Callable[[Key], int], partitions: int
) -> Iterator[Fold]:
    """Yield grouped values, folded, by the partitions of their keys."""
    init, add = aggregation.init, aggregation.add
    for slots, group in groups.by_slots.items():
        found: dict[Key, Any] = Counter(group) if groups.counted else group
        for partition, keys in enumerate(spread(found, partition_of, partitions)):
            if keys:
                held = list(map(found.__getitem__, keys))
                number = sum(held if groups.counted else map(len, held))
                folded = held if groups.counted else [add(init(), values) for values in held]
                yield Fold(partition, Partials(list(slots), keys, folded, number))


def parts_of(
    batch: Batch, aggregation: Aggregation[Any, Any], partition_of: Callable[[Key], int], partitions: int
) -> Iterator[Fold]:
    """Yield the fold of all values of a batch for each key, by the partitions of its keys."""
    keys, timestamps, stamps = batch.keys, batch.timestamps, batch.stamps
    assert keys is not None and timestamps is not None and stamps is not None
    rows: dict[Key, list[int]] = {}
    for row, key in enumerate(keys):
        rows.setdefault(key, []).append(row)

    def part(key: Key) -> PartialFold:
        mine, held = rows[key], len(rows[key])
        at, stamped, values = ([column[row] for row in mine] for column in (timestamps, stamps, batch.values))
        accumulator = held if aggregation.counts else aggregation.add(aggregation.init(), values)
        return PartialFold(held, min(at), max(at), max(stamped), accumulator)

    for partition, found in enumerate(spread(rows, partition_of, partitions)):
        if found:
            parts = [*map(part, found)]
            yield Fold(partition, Partials([], found, parts, sum(one.number for one in parts)))


class SessionFold:
    """Folds the values of a batch, by key, into stretches that lie less than a gap apart: parts of sessions."""

    def __init__(self, gap_ms: int, waits_ms: int, aggregation: Aggregation[Any, Any]) -> None:
        self._gap_ms, self._waits_ms, self._aggregation = gap_ms, waits_ms, aggregation

    def run(
        self, batch: Batch, partition_of: Callable[[Key], int], partitions: int
    ) -> tuple[Iterator[Fold], list[int]]:
        """Return what is in time, by the partitions of its keys, and the rows that are late, as a session has it."""
        keys, timestamps, stamps = batch.keys, batch.timestamps, batch.stamps
        assert keys is not None and timestamps is not None and stamps is not None
        waits_ms, late = self._waits_ms, []
        rows: dict[Key, list[int]] = {}
        for row, (key, at, stamp) in enumerate(zip(keys, timestamps, stamps, strict=True)):
            if at < stamp - waits_ms:
                late.append(row)
            else:
                rows.setdefault(key, []).append(row)
        found = spread(rows, partition_of, partitions)
        return self._folds(found, rows, timestamps, batch.values), late

    def _folds(
        self, found: list[list[Key]], rows: dict[Key, list[int]], timestamps: list[int], values: list[Any]
    ) -> Iterator[Fold]:
        for partition, of_partition in enumerate(found):
            keys, parts = [], []
            for key in of_partition:
                for low, end, mine in self._stretches(rows[key], timestamps):
                    keys.append(key)
                    parts.append((low, end, self._folded([values[row] for row in mine])))
            if keys:
                yield Fold(partition, Partials([], keys, parts, sum(len(rows[key]) for key in of_partition)))

    def _stretches(self, rows: list[int], timestamps: list[int]) -> Iterator[tuple[int, int, list[int]]]:
        rows.sort(key=timestamps.__getitem__)
        low = high = timestamps[rows[0]]
        mine: list[int] = []
        for row in rows:
            at = timestamps[row]
            if at >= high + self._gap_ms:
                yield low, high + self._gap_ms, mine
                low, mine = at, []
            mine.append(row)
            high = at
        yield low, high + self._gap_ms, mine

    def _folded(self, values: list[Any]) -> Any:
        aggregation = self._aggregation
        return aggregation.add(aggregation.init(), values)


def spread(keys: Iterable[Key], partition_of: Callable[[Key], int], partitions: int) -> list[list[Key]]:
    """Return the keys of each partition."""
    if partitions == 1:
        return [[*keys]]
    places: list[list[Key]] = [[] for _ in range(partitions)]
    for key in keys:
        places[partition_of(key)].append(key)
    return places
