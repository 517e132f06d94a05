"""Windows over event time: values are folded per key and window, and a pane fires when the watermark passes its end."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice, repeat
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from operators.aggregations import Aggregation
from operators.base import MAX_TIMESTAMP, MOST_HELD, Batch, Key, Keys, Spec, Store, callable_unopened, shape_of
from operators.policies import DeadLetter
from operators.window_types import WindowType

K = TypeVar("K")
R = TypeVar("R")

SHIFT = 2**63
"""Added to timestamps in store keys, so that their bytes sort as the numbers do."""
LATE = (0, 0, None)
"""Where a late value belongs: in no window."""
NO_KEY = "a record has no key, and a window needs one; partition_by(...) first, or window_all(...)"


class Pane(msgspec.Struct, Generic[K, R], frozen=True):
    """What one window of one key came to; `start` and `end` in ms since the epoch, half-open.

    >>> Pane("AA", 0, 3_600_000, 12).value
    12
    """

    key: K
    start: int
    end: int
    value: R


@dataclass(frozen=True, eq=False, kw_only=True)
class Window(Spec):
    """Aggregate per key and window; late values are counted, and sent to `late` if it is a dead letter stream."""

    windows: WindowType
    aggregation: Aggregation[Any, Any]
    late: DeadLetter | None = None
    store: str = "lmdb"

    kind: ClassVar[str] = "window"
    stateful: ClassVar[bool] = True
    keyed: ClassVar[bool] = True
    event_time: ClassVar[bool] = True
    needs_id: ClassVar[bool] = True

    @property
    def order_sensitive(self) -> bool:  # type: ignore[override]
        """As the aggregation says."""
        return self.aggregation.order_sensitive

    @property
    def fold(self) -> str:  # type: ignore[override]
        """Count, where the aggregation only asks for the number of values; else keep them."""
        return "{group}[{key}] += 1" if self.aggregation.add_number else "{group}[{key}].append({value})"

    def functions(self) -> dict[str, Callable[..., Any]]:
        """The aggregation, in which the user's functions are."""
        return {"aggregation": self.aggregation}  # type: ignore[dict-item]

    def describe(self) -> str:
        """The windows and the aggregation."""
        return f"{self.windows}: {self.aggregation}"

    def meaning(self) -> str:
        """The windows, with their arguments, the aggregation, and what it begins with."""
        begins = self.aggregation.made_of(callable_unopened).init
        return f"{self.windows!r}, {self.aggregation} from {shape_of(begins)}"


class Groups:
    """What a batch brings to windows, by their start and by key: the values, or only how many they are."""

    def __init__(self, windows: WindowType, numbers: bool = False) -> None:
        self.numbers = numbers
        self.by_start: dict[int, dict[Any, Any]] = {}
        self._windows = windows
        self._met: list[tuple[int, int, dict[Any, Any]]] = []

    def place(self, timestamp: int, stamp: int) -> tuple[int, int, Any]:
        """Return start, end and group of the window at `timestamp`; what is late there has none, and no bounds."""
        for met in self._met:
            start, end, _ = met
            if start <= timestamp < end:
                return met if stamp < end else LATE
        start = self._windows.starts([timestamp])[0]
        end = self._windows.end(start)
        if end <= stamp:
            return LATE
        group = self.by_start[start] = defaultdict(int if self.numbers else list)
        met = (start, end, group)
        self._met.append(met)
        return met

    def __len__(self) -> int:
        """How many values there are."""
        size: Callable[[Any], int] = sum if self.numbers else lambda groups: sum(map(len, groups))
        return sum(size(group.values()) for group in self.by_start.values())


class WindowOperator:
    """The windows of one task: an accumulator per (end, key), fired in that order.

    What has changed since the last commit is held beside the store as plain dicts, by window: a window that opens and
    fires between two commits never touches the store.
    """

    calls = ("aggregation",)

    def __init__(
        self,
        spec: Window,
        store: Store,
        keys: Keys,
        aggregation: Aggregation[Any, Any] | None = None,
        most_held: int = MOST_HELD,
    ) -> None:
        self.windows = spec.windows
        self.aggregation = aggregation or spec.aggregation
        self.store = store
        self.keys = keys
        self.most_held = most_held
        self.late: Batch | None = None
        self._changed: dict[int, dict[Key, Any]] = {}
        """Accumulators by window start and key."""
        self._stored: set[int] = set()
        """The ends of windows that have something in the store."""
        self._open: list[int] = []
        """The ends of all open windows, as a heap."""
        self.forget()

    @property
    def unwritten(self) -> int:
        """How many changed accumulators are not in the store yet."""
        return sum(map(len, [*self._changed.values()]))  # a thread may be adding to it

    def process(self, batch: Batch) -> Batch | None:
        """Fold the values in; those whose window has passed for their own source are left in `late`."""
        keys = batch.keys
        assert batch.timestamps is not None and batch.stamps is not None
        if keys is None or None in keys:
            raise ValueError(NO_KEY)
        groups = Groups(self.windows)
        low = high = 0
        group: Any = None
        late: list[int] = []
        columns = zip(batch.values, keys, batch.timestamps, batch.stamps, strict=True)
        for row, (value, key, timestamp, stamp) in enumerate(columns):
            if not low <= timestamp < high > stamp:
                low, high, group = groups.place(timestamp, stamp)
            if group is None:
                late.append(row)
            else:
                group[key].append(value)
        self.late = batch.take(late) if late else None
        self.add(groups)
        return None

    def add(self, groups: Groups) -> None:
        """Fold in what was grouped by key."""
        for start, group in groups.by_start.items():
            self._fold(start, group, groups.numbers)
        if self.unwritten > self.most_held:
            self.write_back()

    def on_watermark(self, watermark: int, most: int | None = None) -> Batch | None:
        """Fire the windows that end at or before `watermark`: the order is by end, then by key."""
        if watermark < self.next_due():
            return None
        panes = Batch([], keys=[], timestamps=[], stamps=[])
        assert panes.keys is not None and panes.timestamps is not None
        finish, decode = self.aggregation.finish, self.keys.decode
        while self._open and self._open[0] <= watermark and (most is None or len(panes) < most):
            end = self._open[0]
            start, keys, accumulators = self._take(end, None if most is None else most - len(panes))
            panes.keys += keys
            results = map(finish, map(accumulators.__getitem__, keys))
            panes.values += map(Pane, map(decode, keys), repeat(start), repeat(end), results)
            panes.timestamps += [end - 1] * len(keys)
        panes.stamps = list(panes.timestamps)
        return panes if panes.values else None

    def drop_due(self) -> Batch:
        """Remove the first pane, and return its window and its accumulator."""
        end = self._open[0]
        start, keys, accumulators = self._take(end, 1)
        return Batch([(start, end, accumulators[key]) for key in keys], keys=[*keys])

    def next_due(self) -> int:
        """Return the smallest end of a window that is open."""
        return self._open[0] if self._open else MAX_TIMESTAMP + 1

    def write_back(self) -> None:
        """Put what has changed into the store."""
        for start in list(self._changed):
            self._write_window(start)

    def _write_window(self, start: int) -> None:
        put, encode = self.store.put, self.keys.encode
        end, accumulators = self.windows.end(start), self._changed.pop(start)
        prefix = _prefix(end)
        for key, accumulator in accumulators.items():
            put(prefix + encode(key), (start, accumulator))
        if accumulators:
            self._stored.add(end)

    def forget(self) -> None:
        """Drop what has changed, and see which windows the store has."""
        self._changed.clear()
        self._open = []
        place = b""
        while (found := next(self.store.range(place), None)) is not None:
            end = _end_of(found[0])
            self._open.append(end)
            place = _prefix(end + 1)
        self._stored = set(self._open)

    def _fold(self, start: int, group: dict[Key, Any], numbers: bool) -> None:
        """Fold in what falls in one window."""
        end = self.windows.end(start)
        accumulators = self._changed.get(start)
        if accumulators is None:
            accumulators = self._changed[start] = {}
            if end not in self._stored and end not in self._open:
                heapq.heappush(self._open, end)
        stored, init = end in self._stored, self.aggregation.init
        add: Any = self.aggregation.add_number if numbers else self.aggregation.add
        if not accumulators and not stored:
            accumulators.update({key: add(init(), values) for key, values in group.items()})
            return
        for key, values in group.items():
            held = accumulators.get(key, accumulators)
            if held is accumulators:
                found = self.store.get(_prefix(end) + self.keys.encode(key)) if stored else None
                held = init() if found is None else found[1]
            accumulators[key] = add(held, values)

    def _take(self, end: int, most: int | None) -> tuple[int, list[Key], dict[Key, Any]]:
        """Remove a window, or the first `most` of its keys; return its start, its keys in order and accumulators."""
        if end in self._stored:
            return self._take_stored(end, most)
        start = next(each for each in self._changed if self.windows.end(each) == end)
        accumulators = self._changed.pop(start)
        keys = self.keys.in_order(accumulators)
        if most is None or len(keys) <= most:
            heapq.heappop(self._open)
        else:
            self._changed[start] = {key: accumulators[key] for key in keys[most:]}
        return start, keys[:most], accumulators

    def _take_stored(self, end: int, most: int | None) -> tuple[int, list[Any], dict[Any, Any]]:
        """Remove no more than is asked for, so that a large window can fire over several commits."""
        for start in [each for each in self._changed if self.windows.end(each) == end]:
            self._write_window(start)
        found = list(islice(self.store.range(_prefix(end), _prefix(end + 1)), None if most is None else most + 1))
        if most is None or len(found) <= most:
            heapq.heappop(self._open)
            self._stored.discard(end)
        for place, _ in found[:most]:
            self.store.delete(place)
        keys = self.keys.load([place[8:] for place, _ in found[:most]])
        return found[0][1][0], keys, {key: held for key, (_, (_, held)) in zip(keys, found, strict=False)}


def _prefix(end: int) -> bytes:
    return (end + SHIFT).to_bytes(8, "big")


def _end_of(place: bytes) -> int:
    return int.from_bytes(place[:8], "big") - SHIFT
