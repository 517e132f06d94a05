"""Windows over event time: values are folded per key and window, and a pane fires when the watermark passes its end."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import compress
from operator import lt, not_
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from operators.aggregations import Aggregation
from operators.base import MAX_TIMESTAMP, Batch, Spec, Store, callable_unopened, shape_of
from operators.policies import DeadLetter
from operators.window_types import WindowType

K = TypeVar("K")
R = TypeVar("R")

SHIFT = 2**63
"""Added to timestamps in store keys, so that their bytes sort as the numbers do."""
MOST_HELD = 100_000
"""Accumulators that are held beside the store; more are written back at once."""
FEW = 6
"""Windows in one batch that are told apart by one look at all rows each."""
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
    needs_id: ClassVar[bool] = True

    @property
    def order_sensitive(self) -> bool:  # type: ignore[override]
        """As the aggregation says."""
        return self.aggregation.order_sensitive

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


class WindowOperator:
    """The windows of one task: an accumulator per (end, key), fired in that order.

    What has changed since the last commit is held beside the store as plain dicts, by window: a window that opens and
    fires between two commits never touches the store.
    """

    def __init__(
        self,
        spec: Window,
        store: Store,
        decode_key: Callable[[bytes], Any],
        aggregation: Aggregation[Any, Any] | None = None,
    ) -> None:
        self.windows = spec.windows
        self.aggregation = aggregation or spec.aggregation
        self.store = store
        self.decode_key = decode_key
        self.late: Batch | None = None
        self._changed: dict[int, dict[bytes, Any]] = {}
        """Accumulators by window start and key."""
        self._stored: set[int] = set()
        """The ends of windows that have something in the store."""
        self._open: list[int] = []
        """The ends of all open windows, as a heap."""
        self.forget()

    def process(self, batch: Batch) -> Batch | None:
        """Fold the values in; those whose window has passed for their own source are left in `late`."""
        keys = batch.keys
        assert batch.timestamps is not None and batch.stamps is not None
        if keys is None:
            raise ValueError(NO_KEY)
        late = self._late_rows(batch.timestamps, batch.stamps)
        if any(keys[row] is None for row in late):
            raise ValueError(NO_KEY)
        self.late = batch.take(late) if late else None
        if late:
            batch = batch.without(late)
        values = batch.keys if self.aggregation.add_number else batch.values  # or the values are of no interest
        for start, rows in self._by_window(batch.timestamps or [], batch.keys or [], values or []):
            self._fold(start, rows)
        if sum(map(len, self._changed.values())) > MOST_HELD:
            self.write_back()
        return None

    def on_watermark(self, watermark: int, most: int | None = None) -> Batch | None:
        """Fire the windows that end at or before `watermark`: the order is by end, then by key."""
        if watermark < self.next_due():
            return None
        panes = Batch([], keys=[], timestamps=[], stamps=[])
        assert panes.keys is not None and panes.timestamps is not None
        finish, decode = self.aggregation.finish, self.decode_key
        while self._open and self._open[0] <= watermark and (most is None or len(panes) < most):
            end = self._open[0]
            start, keys, accumulators = self._take(end, None if most is None else most - len(panes))
            panes.keys += keys
            panes.values += [Pane(decode(key), start, end, finish(accumulators[key])) for key in keys]
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
        put = self.store.put
        for start, accumulators in self._changed.items():
            end = self.windows.end(start)
            prefix = _prefix(end)
            for key, accumulator in accumulators.items():
                put(prefix + key, (start, accumulator))
            if accumulators:
                self._stored.add(end)
        self._changed.clear()

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

    def _fold(self, start: int, rows: Batch) -> None:
        """Fold rows that fall in one window."""
        end = self.windows.end(start)
        accumulators = self._changed.get(start)
        if accumulators is None:
            accumulators = self._changed[start] = {}
            if end not in self._stored and end not in self._open:
                heapq.heappush(self._open, end)
        stored, aggregation = end in self._stored, self.aggregation
        add: Callable[[Any, Any], Any] = aggregation.add_number or aggregation.add
        assert rows.keys is not None
        groups: dict[Any, Any] = Counter(rows.keys) if aggregation.add_number else _values_by_key(rows)
        if None in groups:
            raise ValueError(NO_KEY)
        for key, group in groups.items():
            held = accumulators.get(key, accumulators)
            if held is accumulators:
                found = self.store.get(_prefix(end) + key) if stored else None
                held = aggregation.init() if found is None else found[1]
            accumulators[key] = add(held, group)

    def _take(self, end: int, most: int | None) -> tuple[int, list[bytes], dict[bytes, Any]]:
        """Remove a window, or the first `most` of its keys; return its start, its keys in order and accumulators."""
        start, accumulators = 0, {}
        if end in self._stored:
            self._stored.discard(end)
            for place, (start, accumulator) in self.store.range(_prefix(end), _prefix(end + 1)):  # noqa: B007
                accumulators[place[8:]] = accumulator
                self.store.delete(place)
        changed = next((each for each in self._changed if self.windows.end(each) == end), None)
        if changed is not None:
            start, accumulators = changed, accumulators | self._changed.pop(changed)
        keys = sorted(accumulators)
        if most is None or len(keys) <= most:
            heapq.heappop(self._open)
        else:
            self._changed[start] = {key: accumulators[key] for key in keys[most:]}
        return start, keys[:most], accumulators

    def _late_rows(self, timestamps: list[int], stamps: list[int]) -> list[int]:
        """Return the rows whose window ends at or before their stamp; only those behind their stamp can be such."""
        behind = list(compress(range(len(timestamps)), map(lt, timestamps, stamps)))
        if not behind:
            return []
        starts = self.windows.starts([timestamps[row] for row in behind])
        end_of = self.windows.end
        return [row for row, start in zip(behind, starts, strict=True) if end_of(start) <= stamps[row]]

    def _by_window(self, timestamps: list[int], keys: list[Any], values: list[Any]) -> Iterator[tuple[int, Batch]]:
        """Yield the rows of each window, with its start."""
        if not timestamps:
            return
        start, last = self.windows.starts([min(timestamps), max(timestamps)])
        starts = [start]
        while starts[-1] < last and len(starts) <= FEW:
            starts.append(self.windows.end(starts[-1]))
        if len(starts) > FEW:
            yield from _by_start(self.windows.starts(timestamps), keys, values)
            return
        for start in starts[:-1]:
            inside = list(map(self.windows.end(start).__gt__, timestamps))
            if True in inside:
                mine = list(compress(keys, inside))
                yield start, Batch(mine if values is keys else list(compress(values, inside)), mine)
            beyond = list(map(not_, inside))
            unknown = values is keys
            keys, timestamps = list(compress(keys, beyond)), list(compress(timestamps, beyond))
            values = keys if unknown else list(compress(values, beyond))
        yield last, Batch(values, keys)


def _by_start(starts: list[int], keys: list[Any], values: list[Any]) -> Iterator[tuple[int, Batch]]:
    rows: defaultdict[int, list[int]] = defaultdict(list)
    for row, start in enumerate(starts):
        rows[start].append(row)
    for start, places in rows.items():
        yield start, Batch([values[row] for row in places], [keys[row] for row in places])


def _values_by_key(rows: Batch) -> dict[Any, list[Any]]:
    groups: defaultdict[Any, list[Any]] = defaultdict(list)
    for key, value in zip(rows.keys or (), rows.values, strict=True):
        groups[key].append(value)
    return groups


def _prefix(end: int) -> bytes:
    return (end + SHIFT).to_bytes(8, "big")


def _end_of(place: bytes) -> int:
    return int.from_bytes(place[:8], "big") - SHIFT
