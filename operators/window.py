"""Windows over event time: values are folded per key and window, and a pane fires when the watermark passes its end."""

from __future__ import annotations

import heapq
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice, repeat
from typing import Any, ClassVar, Generic, Literal, TypeVar, cast

import msgspec

from operators.aggregations import Aggregation
from operators.base import (
    MAX_TIMESTAMP,
    MOST_HELD,
    Batch,
    Key,
    Keys,
    Serde,
    Spec,
    Store,
    callable_unopened,
    shape_of,
)
from operators.keyed_state import UNCHANGEABLE
from operators.policies import DeadLetter
from operators.window_groups import Groups, Slot
from operators.window_types import Sessions, WindowType

K = TypeVar("K")
R = TypeVar("R")

SHIFT = 2**63
"""Added to timestamps in store keys, so that their bytes sort as the numbers do."""
PLACE = struct.Struct(">QQ")
"""When something is due, and the start of its window."""
DUE, FIRED = b"d", b"f"
"""What the places begin with of what will fire, and of what has and may fire again."""
NEVER = Slot(MAX_TIMESTAMP + 1, 0, 0)
Panes = Literal["accumulating", "discarding"]
"""What a window's later panes have: all of its values, or only those that have come since the last."""
NO_KEY = "a record has no key, and a window needs one; partition_by(...) first, or window_all(...)"


class Pane(msgspec.Struct, Generic[K, R], frozen=True, omit_defaults=True, repr_omit_defaults=True):
    """What one window of one key came to; `start` and `end` in ms since the epoch, half-open.

    The panes of one window and key are numbered by `index`, from 0; that of late values says so by its `timing`.

    >>> Pane("AA", 0, 3_600_000, 12)
    Pane(key='AA', start=0, end=3600000, value=12)
    """

    key: K
    start: int
    end: int
    value: R
    index: int = 0
    timing: Literal["on_time", "late"] = "on_time"


@dataclass(frozen=True, eq=False, kw_only=True)
class Window(Spec):
    """Aggregate per key and window; too late values are counted, and sent to `late` if it is a dead letter stream."""

    windows: WindowType | Sessions
    aggregation: Aggregation[Any, Any]
    allowed_lateness_ms: int = 0
    panes: Panes = "accumulating"
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
    def fold(self) -> str | None:  # type: ignore[override]
        """Count, where the aggregation only asks for the number of values; else keep them."""
        if isinstance(self.windows, Sessions):
            return None
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
        late = f", {self.panes} for {self.allowed_lateness_ms} ms" if self.allowed_lateness_ms else ""
        return f"{self.windows!r}, {self.aggregation} from {shape_of(begins)}{late}"


class WindowOperator:
    """The windows of one task: an accumulator per slot and key, fired in that order.

    What has changed since the last commit is held beside the store as plain dicts, by slot: a window that opens and
    fires between two commits never touches the store. Where late values are allowed, what a window has fired is kept in
    the store until none can come any more.
    """

    calls = ("aggregation",)

    def __init__(
        self,
        spec: Window,
        store: Store,
        keys: Keys,
        serde: Serde,
        aggregation: Aggregation[Any, Any] | None = None,
        most_held: int = MOST_HELD,
    ) -> None:
        assert not isinstance(spec.windows, Sessions)
        self.windows = spec.windows
        self.aggregation = aggregation or spec.aggregation
        self.store = store
        self.keys = keys
        self.most_held = most_held
        self.late: Batch | None = None
        self._lateness_ms = spec.allowed_lateness_ms
        self._accumulates = spec.panes == "accumulating"
        self._serde = serde
        self._changed: dict[Slot, dict[Key, Any]] = {}
        self._stored: set[Slot] = set()
        """The slots that have something in the store."""
        self._open: list[Slot] = []
        """All slots that have something, as a heap."""
        self._fired: list[Slot] = []
        """The windows of which something is kept, due when no late value can come any more, as a heap."""
        self.forget()

    @property
    def unwritten(self) -> int:
        """How many changed accumulators are not in the store yet."""
        return sum(map(len, [*self._changed.values()]))  # a thread may be adding to it

    def process(self, batch: Batch) -> Batch | None:
        """Fold the values in; those that are too late for all of their windows are left in `late`."""
        keys = batch.keys
        assert batch.timestamps is not None and batch.stamps is not None
        if keys is None or None in keys:
            raise ValueError(NO_KEY)
        groups = Groups(self.windows, self._lateness_ms)
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
        for slots, group in groups.by_slots.items():
            for slot in slots:
                if slot.is_late:
                    self._set_aside(slot, group, groups.numbers)
                else:
                    self._fold(slot, group, groups.numbers)
        if self.unwritten > self.most_held:
            self.write_back()

    def on_watermark(self, watermark: int, most: int | None = None) -> Batch | None:
        """Fire what is due at `watermark`, by when it is due, then by window and key."""
        if watermark < self.next_due():
            return None
        panes = Batch([], keys=[], timestamps=[], stamps=[])
        while self._open and self._open[0].due <= watermark and (most is None or len(panes) < most):
            self._fire(panes, None if most is None else most - len(panes))
        while self._fired and self._fired[0].due <= watermark and self._fired[0] <= self._next_open():
            self._forget_fired()
        return panes if panes.values else None

    def drop_due(self) -> Batch:
        """Remove the first pane, and return its window and its accumulator."""
        slot, keys, held = self._take(1)
        return Batch([(slot.start, slot.end, held[key]) for key in keys], keys=[*keys])

    def next_due(self) -> int:
        """Return the smallest watermark at which something is due: a pane, or forgetting what has fired."""
        return min(self._next_open().due, self._fired[0].due if self._fired else NEVER.due)

    def lowest_stamp(self) -> int:
        """Return a stamp that no pane still to fire is below."""
        return self.next_due() - 1

    def write_back(self) -> None:
        """Put what has changed into the store."""
        for slot in list(self._changed):
            self._write_slot(slot)

    def forget(self) -> None:
        """Drop what has changed, and see which slots and fired windows the store has."""
        self._changed.clear()
        self._open = list(self._slots_stored(DUE))
        self._stored = set(self._open)
        self._fired = list(self._slots_stored(FIRED))

    def _slots_stored(self, kind: bytes) -> Iterator[Slot]:
        """Yield the slots of which the store has something, in order, looking at one entry of each."""
        place, beyond = kind, bytes([kind[0] + 1])
        while (found := next(self.store.range(place, beyond), None)) is not None:
            due, start = (number - SHIFT for number in PLACE.unpack_from(found[0], len(kind)))
            slot = Slot(due, start, found[1][0])
            yield slot
            _, place = _places(kind, slot)

    def _next_open(self) -> Slot:
        return self._open[0] if self._open else NEVER

    def _fire(self, panes: Batch, most: int | None) -> None:
        assert panes.keys is not None and panes.timestamps is not None and panes.stamps is not None
        slot, keys, held = self._take(most)
        _, start, end = slot
        if self._lateness_ms:
            self._await_late(slot)
        if slot.is_late:
            panes.values += [self._fire_late(slot, key, held[key]) for key in keys]
        else:
            accumulators = map(held.__getitem__, keys)
            if self._lateness_ms:
                accumulators = map(partial(self._keep, slot, 1), keys, accumulators)
            results = map(self.aggregation.finish, accumulators)
            panes.values += map(Pane, map(self.keys.decode, keys), repeat(start), repeat(end), results)
        panes.keys += keys
        panes.timestamps += [end - 1] * len(keys)
        panes.stamps += [slot.due - 1] * len(keys)

    def _fire_late(self, slot: Slot, key: Key, late: Any) -> Pane[Any, Any]:
        """Return a window's pane of late values: with all that came before, or of these alone."""
        aggregation: Any = self.aggregation
        _, index, before = self.store.get(self._place_fired(slot, key), (slot.end, 0, None))
        add = aggregation.add_number or aggregation.add
        accumulator = add(aggregation.init() if before is None else before, late)
        accumulator = self._keep(slot, index + 1, key, accumulator)
        return Pane(self.keys.decode(key), slot.start, slot.end, aggregation.finish(accumulator), index, "late")

    def _keep(self, slot: Slot, index: int, key: Key, accumulator: Any) -> Any:
        """Keep what a window has come to and how often it fired; return an accumulator that can be handed out."""
        self.store.put(self._place_fired(slot, key), (slot.end, index, accumulator if self._accumulates else None))
        if not self._accumulates or type(accumulator) in UNCHANGEABLE:
            return accumulator
        return self._serde.decode(self._serde.encode(accumulator))

    def _await_late(self, slot: Slot) -> None:
        """Remember when no late value of a window can come any more."""
        fired = slot._replace(due=slot.end + self._lateness_ms)
        if fired not in self._fired:
            heapq.heappush(self._fired, fired)

    def _place_fired(self, slot: Slot, key: Key) -> bytes:
        return _prefix(FIRED, slot._replace(due=slot.end + self._lateness_ms)) + self.keys.encode(key)

    def _forget_fired(self) -> None:
        for place, _ in list(self.store.range(*_places(FIRED, heapq.heappop(self._fired)))):
            self.store.delete(place)

    def _group(self, slot: Slot) -> dict[Key, Any]:
        held = self._changed.get(slot)
        if held is None:
            held = self._changed[slot] = {}
            if slot not in self._stored:
                heapq.heappush(self._open, slot)
        return held

    def _fold(self, slot: Slot, group: dict[Key, Any], numbers: bool) -> None:
        """Fold in what falls in one window, in time."""
        accumulators, stored = self._group(slot), slot in self._stored
        init, add = self.aggregation.init, cast(Any, self.aggregation.add_number if numbers else self.aggregation.add)
        if not accumulators and not stored:
            accumulators.update({key: add(init(), values) for key, values in group.items()})
            return
        for key, values in group.items():
            held = accumulators.get(key, accumulators)
            if held is accumulators:
                found = self.store.get(_prefix(DUE, slot) + self.keys.encode(key)) if stored else None
                held = init() if found is None else found[1]
            accumulators[key] = add(held, values)

    def _set_aside(self, slot: Slot, group: dict[Key, Any], numbers: bool) -> None:
        """Hold late values, or how many they are, until what they belong to is known."""
        aside, stored, counts = self._group(slot), slot in self._stored, self.aggregation.add_number is not None
        for key, values in group.items():
            held = aside.get(key)
            if held is None and stored:
                held = self.store.get(_prefix(DUE, slot) + self.keys.encode(key), (0, None))[1]
            more: Any = (values if numbers else len(values)) if counts else tuple(values)
            aside[key] = more if held is None else held + more

    def _write_slot(self, slot: Slot) -> None:
        put, encode, prefix = self.store.put, self.keys.encode, _prefix(DUE, slot)
        changed = self._changed.pop(slot)
        for key, held in changed.items():
            put(prefix + encode(key), (slot.end, held))
        if changed:
            self._stored.add(slot)

    def _take(self, most: int | None) -> tuple[Slot, list[Key], dict[Key, Any]]:
        """Remove the first slot, or the first `most` of its keys; return it, its keys in order and what they have."""
        slot = self._open[0]
        if slot in self._stored:
            return slot, *self._take_stored(slot, most)
        held = self._changed.pop(slot)
        keys = self.keys.in_order(held)
        if most is None or len(keys) <= most:
            heapq.heappop(self._open)
        else:
            self._changed[slot] = {key: held[key] for key in keys[most:]}
        return slot, keys[:most], held

    def _take_stored(self, slot: Slot, most: int | None) -> tuple[list[Any], dict[Any, Any]]:
        """Remove no more than is asked for, so that a large window can fire over several commits."""
        if slot in self._changed:
            self._write_slot(slot)
        prefix, beyond = _places(DUE, slot)
        found = list(islice(self.store.range(prefix, beyond), None if most is None else most + 1))
        if most is None or len(found) <= most:
            heapq.heappop(self._open)
            self._stored.discard(slot)
        for place, _ in found[:most]:
            self.store.delete(place)
        keys = self.keys.load([place[len(prefix) :] for place, _ in found[:most]])
        return keys, {key: held for key, (_, (_, held)) in zip(keys, found, strict=False)}


def _prefix(kind: bytes, slot: Slot) -> bytes:
    return kind + PLACE.pack(slot.due + SHIFT, slot.start + SHIFT)


def _places(kind: bytes, slot: Slot) -> tuple[bytes, bytes]:
    """Return between which places the entries of a slot are."""
    return _prefix(kind, slot), _prefix(kind, slot._replace(start=slot.start + 1))
