"""What windows come to over a part of their values, to be merged with what they come to over the other parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from operators.aggregations import Aggregation
from operators.base import Key
from operators.window_groups import Groups, Slot


class Partials(msgspec.Struct, frozen=True):
    """Accumulators by key, that of each to be merged into all `slots`; of how many values, and how many were too late.

    Keys are as batches hold them.
    """

    slots: list[Slot]
    keys: list[Key]
    accumulators: list[Any]
    values: int
    late: int = 0


def partials_of(
    groups: Groups, aggregation: Aggregation[Any, Any], partition_of: Callable[[Key], int], partitions: int
) -> Iterator[tuple[int, Partials]]:
    """Yield what was grouped, folded, by the partitions of its keys."""
    init, add = aggregation.init, aggregation.add
    for slots, group in groups.by_slots.items():
        if groups.counted:
            group = Counter(group)
        places: list[list[Key]] = [[] for _ in range(partitions)]
        for key in group if partitions > 1 else ():
            places[partition_of(key)].append(key)
        for partition, keys in enumerate(places if partitions > 1 else [[*group]]):
            if keys:
                found = list(map(group.__getitem__, keys))
                number = sum(found if groups.counted else map(len, found))
                folded = found if groups.counted else [add(init(), values) for values in found]
                yield partition, Partials(list(slots), keys, folded, number)
