"""Windows over event time: values are folded per key and window, and a pane fires when the watermark passes its end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from operators.aggregations import Aggregation
from operators.base import MAX_TIMESTAMP, Batch, Spec, Store
from operators.policies import DeadLetter
from operators.window_types import WindowType

K = TypeVar("K")
R = TypeVar("R")

SHIFT = 2**63
"""Added to timestamps in store keys, so that their bytes sort as the numbers do."""


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


class WindowOperator:
    """The windows of one task: an accumulator per (end, key) in the store, fired in that order."""

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
        self._due = self._first_due()

    def process(self, batch: Batch) -> Batch | None:
        """Fold the values in; those whose window has passed for their own source are left in `late`."""
        keys, timestamps, stamps = batch.keys, batch.timestamps, batch.stamps
        assert timestamps is not None and stamps is not None
        if keys is None or None in keys:
            raise ValueError("a record has no key, and a window needs one; partition_by(...) first, or window_all(...)")
        starts = self.windows.starts(timestamps)
        self.late = None
        if self.windows.end(min(starts)) <= max(stamps):
            batch, starts = self._set_late_aside(batch, starts)
        groups: defaultdict[tuple[Any, int], list[Any]] = defaultdict(list)
        for key, start, value in zip(batch.keys or (), starts, batch.values, strict=True):
            groups[key, start].append(value)
        add, get, put, end_of = self.aggregation.add, self.store.get, self.store.put, self.windows.end
        for (key, start), values in groups.items():
            end = end_of(start)
            place = (end + SHIFT).to_bytes(8, "big") + key
            held = get(place)
            put(place, (start, add(self.aggregation.init() if held is None else held[1], values)))
            if end < self._due:
                self._due = end
        return None

    def on_watermark(self, watermark: int) -> Batch | None:
        """Fire the windows that end at or before `watermark`: the order is by end, then by key."""
        if watermark < self._due:
            return None
        panes = Batch([], keys=[], timestamps=[], stamps=[])
        assert panes.keys is not None and panes.timestamps is not None
        finish = self.aggregation.finish
        for place, (start, state) in self.store.range(b"", (watermark + 1 + SHIFT).to_bytes(8, "big")):
            end, key = int.from_bytes(place[:8], "big") - SHIFT, place[8:]
            panes.values.append(Pane(self.decode_key(key), start, end, finish(state)))
            panes.keys.append(key)
            panes.timestamps.append(end - 1)
            self.store.delete(place)
        panes.stamps = list(panes.timestamps)
        self._due = self._first_due()
        return panes if panes.values else None

    def next_due(self) -> int:
        """Return the smallest end of a window that is open."""
        return self._due

    def _first_due(self) -> int:
        first = next(self.store.range(), None)
        return MAX_TIMESTAMP + 1 if first is None else int.from_bytes(first[0][:8], "big") - SHIFT

    def _set_late_aside(self, batch: Batch, starts: list[int]) -> tuple[Batch, list[int]]:
        end_of = self.windows.end
        stamps = batch.stamps or []
        late = [row for row, start in enumerate(starts) if end_of(start) <= stamps[row]]
        on_time = sorted(set(range(len(starts))).difference(late))
        self.late = batch.take(late) if late else None
        return batch.take(on_time), [starts[row] for row in on_time]
