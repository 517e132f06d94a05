"""The windows over event time: values are folded per key and window, and panes fire by the watermark."""

from __future__ import annotations

import heapq
import operator
import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, islice, repeat
from operator import itemgetter
from typing import Any, ClassVar, Generic, Literal, TypeVar, cast, get_args

import msgspec

from operators.aggregations.aggregation import Aggregation
from operators.core.base import (
    MOST_HELD,
    NEVER,
    Batch,
    Copies,
    Key,
    Keys,
    Operator,
    OperatorContext,
    Serde,
    Spec,
    Store,
    callable_unopened,
    has_none,
    shape_of,
)
from operators.core.entry_keys import SHIFT, EntryKinds, beyond
from operators.core.policies import DeadLetterPolicy
from operators.core.wording import stable
from operators.state.keyed_state import UNCHANGEABLE, are_plain, is_plain
from operators.windows.partials import Partials
from operators.windows.triggers import Trigger
from operators.windows.window_groups import Grouped, Groups, Slot, by_slot
from operators.windows.window_types import (
    Assigner,
    ByClock,
    ByRow,
    Counted,
    Daily,
    Hopping,
    Sessions,
    Sliding,
    Tumbling,
    Windows,
    WindowType,
)

K = TypeVar("K")
R = TypeVar("R")
T = TypeVar("T")

OfSlot = tuple[Slot, Collection[Key]]
"""Some keys of a slot."""

PASS = 32
"""The panes for which one pass goes over several windows: one of more keys than that has a pass of its own."""
PLACE = struct.Struct(">QQQ")
"""The stored form of a slot: the time at which it is due, and the start and the end of its window."""
DUE, FIRED = b"d", b"f"
"""The first byte of entries in the store: of windows that will fire, and of those that have and may fire again."""
NO_SLOT = Slot(NEVER, 0, 0)
Timing = Literal["on_time", "late", "early", "final"]
TIMINGS: dict[Timing, Timing] = {one: one for one in get_args(Timing)}
"""Each timing as itself: one that was read from a store is only equal to it, and would not be left out as a default."""
Panes = Literal["accumulating", "discarding", "retracting"]
"""The values of a window's later panes: all, only those since the last, or all while the last one is withdrawn."""
Emit = Literal["all", "final"]
"""Whether each pane is emitted, or one of each window, when no late value can come any more."""
BY_KEY = "{group}[{key}].append({value})"
"""The line that adds a value to those of its key in a group."""
NO_KEY = "a record has no key, and a window needs one; partition_by(...) first, or window_all(...)"


class Pane(msgspec.Struct, Generic[K, R], frozen=True, omit_defaults=True, repr_omit_defaults=True):
    """The result of one window of one key; `start` and `end` in ms since the epoch, half-open.

    The panes of one window and key are numbered by `index`, from 0; that of late values says so by its `timing`.

    >>> Pane("AA", 0, 3_600_000, 12)
    Pane(key='AA', start=0, end=3600000, value=12)
    """

    key: K
    start: int
    end: int
    value: R
    index: int = 0
    timing: Timing = "on_time"


@dataclass(frozen=True, eq=False, kw_only=True)
class Window(Spec):
    """Aggregate per key and window; too late values are counted, and sent to `late` if it is a dead letter stream."""

    windows: Windows | Assigner[Any, Any]
    aggregation: Aggregation[Any, Any]
    allowed_lateness_ms: int = 0
    panes: Panes = "accumulating"
    early: Trigger | None = None
    late_trigger: Trigger | None = None
    emit: Emit = "all"
    late: DeadLetterPolicy | None = None
    store: str = "lmdb"
    messages: Serde | None = None
    """The declared serde that sliding windows keep messages with; their aggregation is over bytes, then."""
    takes_partials: bool = False
    """Whether `Partials` come to it, in the place of values."""

    kind: ClassVar[str] = "window"
    declares: ClassVar[str] = "window(..., state=MySerde())"
    windowed: ClassVar[bool] = True
    expires: ClassVar[bool] = True
    stateful: ClassVar[bool] = True
    keyed: ClassVar[bool] = True
    event_time: ClassVar[bool] = True
    needs_id: ClassVar[bool] = True
    takes_signs: ClassVar[bool] = True
    beside_results: ClassVar[frozenset[str]] = Spec.beside_results | {"takes_partials"}

    @property
    def order_sensitive(self) -> bool:  # type: ignore[override]
        """As the aggregation says, where panes are early, having what came first, and where values are counted off."""
        counts_off = isinstance(self.windows, Counted) and self.windows.number is not None
        return self.aggregation.order_sensitive or self.early is not None or counts_off

    @property
    def restores_order(self) -> bool:  # type: ignore[override]
        """Panes of a key come by event time, but for early ones, and where values are counted off."""
        return not (self.early is not None or isinstance(self.windows, ByClock | Counted))

    @property
    def forgives_ms(self) -> int:  # type: ignore[override]
        """The lateness that its windows allow."""
        return self.allowed_lateness_ms

    def by_order(self) -> str:
        """Return what the order decides: the cuts of windows, the values of early panes, or the aggregation."""
        if isinstance(self.windows, Counted) and self.windows.number is not None:
            return "its windows are counted off as values come"
        if self.early is not None and not self.aggregation.order_sensitive:
            return "an early pane has what has come by then"
        return f"its {self.aggregation.name} takes values as they come"

    @property
    def wall_clock(self) -> bool:  # type: ignore[override]
        """Whether windows or early panes go by the clock."""
        return isinstance(self.windows, ByClock) or (self.early is not None and self.early.by_clock)

    @property
    def is_triggered(self) -> bool:
        """Whether panes come at more times than fixed ones, windows that merge fire again, or a pane is withdrawn."""
        merges_again = self.merges and self.allowed_lateness_ms > 0 and self.emit == "all"
        has_trigger = self.early is not None or self.late_trigger is not None
        return has_trigger or merges_again or self.retracts or self.reads_signs

    @property
    def merges(self) -> bool:
        """Whether windows of a key that overlap become one."""
        return _merge(self.windows)

    @property
    def retracts(self) -> bool:
        """Whether the pane before is withdrawn."""
        return self.panes == "retracting"

    def why_no_signs(self) -> str:
        """Return which of its windows, panes or aggregation has no way back."""
        if self.aggregation.remove is None:
            return f"{self.aggregation} can't take a value away"
        if self.merges:
            return "windows that have become one can't become shorter"
        if isinstance(self.windows, Counted | ByClock):
            return "in which of its windows a value is depends on when it came"
        if isinstance(self.windows, Sliding):
            return "which windows it has depends on the values"
        return "discarding panes have only what is new" if self.panes == "discarding" else ""

    @property
    def takes_all(self) -> bool:
        """Whether a key has one window, which fires once, when all inputs have ended."""
        return isinstance(self.windows, Counted) and self.windows.number is None and not self.is_triggered

    @property
    def is_of_sessions(self) -> bool:
        """Whether windows are sessions that fire once; a value is in time there by its own time alone."""
        return isinstance(self.windows, Sessions) and not self.is_triggered

    @property
    def waits_ms(self) -> int:  # type: ignore[override]
        """The ms after their end at which windows fire."""
        return self.allowed_lateness_ms if self.emit == "final" else 0

    @property
    def fires_late(self) -> bool:  # type: ignore[override]
        """Whether panes come of late values, a ms after their stamp."""
        return self.allowed_lateness_ms > self.waits_ms

    @property
    def ignores_values(self) -> bool:  # type: ignore[override]
        """Whether they are only counted, and nobody is told of single ones."""
        told = isinstance(self.late, DeadLetterPolicy) or isinstance(self.on_error, DeadLetterPolicy)
        return self.aggregation.counts and not told and not hasattr(self.windows, "assign")

    @property
    def mixes_stretches(self) -> bool:
        """Whether a window has values of several stretches of time, and their order counts."""
        if isinstance(self.windows, Hopping) and self.windows.size_ms <= self.windows.every_ms:
            return False
        return self.aggregation.order_sensitive and not isinstance(self.windows, Tumbling | Daily)

    @property
    def fold(self) -> str | None:  # type: ignore[override]
        """Count, where the aggregation only asks for the number of values; else keep them."""
        if not hasattr(self.windows, "cell") or self.is_triggered or self.mixes_stretches:
            return None
        return "{group}.append({key})" if self.aggregation.counts else BY_KEY

    @property
    def groups(self) -> str:  # type: ignore[override]
        """Group a batch by window and key, where windows are the same for all keys, and a value stays in its own."""
        if not hasattr(getattr(self.windows, "windows", self.windows), "cell") or self.reads_signs:
            return ""
        if self.early is None:
            return "it groups the values of a batch"
        cut = "cuts them where a pane is due" if self.early.at_once else "looks at their times for panes that are due"
        return f"it groups the values of a batch, and {cut}, {self.early}"

    @property
    def by_row(self) -> str:  # type: ignore[override]
        """Say which of its windows or inputs has each value looked at by itself."""
        if self.reads_signs:
            return "a message that is withdrawn leaves its windows by itself"
        if hasattr(self.windows, "assign") or isinstance(self.windows, ByRow):
            return "a function of yours says in which windows each message is"
        if self.merges and self.is_triggered:
            return "each message may join windows of its key, and panes go by that"
        return Spec.by_row

    @property
    def begins_unread(self) -> bool:  # type: ignore[override]
        """Whether its operator notes when windows are to be looked at, or looks at all that are open."""
        if isinstance(self.windows, Sliding):
            return True
        windows = self.windows.windows if isinstance(self.windows, ByClock) else self.windows
        return isinstance(windows, Counted) or _merge(windows) or self.is_triggered

    def functions(self) -> dict[str, Callable[..., Any]]:
        """The aggregation, in which the user's functions are, and what says in which windows a value is."""
        named: dict[str, Any] = {"aggregation": self.aggregation}
        assign = self.windows.choose if isinstance(self.windows, ByRow) else getattr(self.windows, "assign", None)
        return {**named, "assign": assign} if assign else named

    def describe(self) -> str:
        """The windows and the aggregation."""
        panes = ", final" if self.emit == "final" else "" if self.panes == "accumulating" else f", {self.panes}"
        return f"{self.windows}: {self.aggregation}{self._triggers}{panes}"

    def meaning(self) -> str:
        """The windows, with their arguments, the aggregation, and what it begins with."""
        panes = self.panes if self.emit == "all" else "final"
        late = f", {panes} for {self.allowed_lateness_ms} ms" if self.allowed_lateness_ms else ""
        withdrawn = " of what may be withdrawn" * self.reads_signs
        more = f", {self.panes}{self._triggers}{withdrawn}" if self.is_triggered else ""
        return f"{stable(self.windows)}, {self._aggregated}{late}{more}"

    def parameters(self) -> dict[str, str]:
        """Its fields, the aggregation with what it begins with."""
        return {**super().parameters(), "windows": stable(self.windows), "aggregation": self._aggregated}

    def hash_at(self, place: bytes) -> int | None:
        """Return that the mark of all keys, which versions before kept, goes with the first part of a split task."""
        kind = self.entry_kinds().get(place[:1])
        return 0 if kind is not None and not kind.parts else None

    def entry_kinds(self) -> EntryKinds:
        """Return the kinds of entries of its operator: windows by their times and key, or by key, or rows by time."""
        return self._entry_kinds

    @cached_property
    def _entry_kinds(self) -> EntryKinds:
        # Once for each spec: where tasks are split each look at an entry asks for them.
        from operators.windows.window_operators import entry_kinds

        return entry_kinds(self)

    def build(self, context: OperatorContext) -> Operator:
        """Return the one of the window operators that has these windows, triggers and panes."""
        # Imported late: every window operator imports this module for the spec.
        from operators.windows.window_operators import operator_of

        return operator_of(self, context)

    @property
    def _aggregated(self) -> str:
        return f"{self.aggregation} from {shape_of(self.aggregation.made_of(callable_unopened).init)}"

    @property
    def _triggers(self) -> str:
        return f", early {self.early}" * bool(self.early) + f", late {self.late_trigger}" * bool(self.late_trigger)


class WindowOperator:
    """The windows of one task: an accumulator per slot and key, fired in that order.

    What has changed since the last commit is held beside the store as plain dicts, by slot: a window that opens and
    fires between two commits never touches the store. What the store has is held as well, where nobody can change it in
    place and all of a slot is: so a window that is open over many commits is never read from the store. Where late
    values are allowed, what a window has fired is kept in the store until none can come any more.
    """

    calls: ClassVar[tuple[str, ...]] = ("aggregation",)

    def __init__(
        self,
        spec: Window,
        store: Store,
        keys: Keys,
        copies: Copies,
        aggregation: Aggregation[Any, Any] | None = None,
        most_held: int = MOST_HELD,
    ) -> None:
        self.windows = cast(WindowType, spec.windows)
        self.aggregation = aggregation or spec.aggregation
        self.store = store
        self.keys = keys
        self.most_held = most_held
        self.late: Batch | None = None
        self._lateness_ms = spec.allowed_lateness_ms
        self._waits_ms = spec.waits_ms
        self._fires_again = spec.allowed_lateness_ms > spec.waits_ms
        self._in_time = (repeat(0), repeat("final")) if spec.emit == "final" else ()
        """The numbers and timings of panes in time, where they are not a pane's defaults."""
        self._in_turn = spec.mixes_stretches
        self._accumulates = spec.panes == "accumulating"
        self._keeps_numbers = keeps_numbers(spec.aggregation)
        self._copies = copies
        self._changed: dict[Slot, dict[Key, Any]] = {}
        self._order: dict[Slot, list[Key]] = {}
        """The keys of a slot of which some have fired, the last one first."""
        self._stored: set[Slot] = set()
        """The slots that have entries in the store."""
        self._clean: dict[Slot, dict[Key, Any]] = {}
        """All that the store has of some slots."""
        self._open: list[Slot] = []
        """All slots that have values, as a heap; the first is due first."""
        self._fired: list[Slot] = []
        """The fired windows that are kept, as a heap; one is due when no late value can come any more."""
        self.forget()

    @property
    def unwritten(self) -> int:
        """The number of changed accumulators that are not in the store yet."""
        return sum(map(len, [*self._changed.values()]))  # a thread may be adding to it

    def process(self, batch: Batch) -> Batch | None:
        """Fold the values in; those that are too late for all of their windows are left in `late`."""
        if batch.keys is None or has_none(batch.keys):
            raise ValueError(NO_KEY)
        groups = Groups(self.windows, self._lateness_ms, self.aggregation.counts, self._waits_ms, self._in_turn)
        late = groups.gather(batch)
        self.late = batch.take(late) if late else None
        self.add(groups)
        return None

    def add(self, groups: Groups | Grouped) -> None:
        """Fold in values that were grouped by key."""
        if isinstance(groups, Groups) and groups.in_turn:
            for slot, mine in by_slot(groups):
                put = self._set_aside if self._is_late(slot) else self._fold
                put(slot, {key: values for key, (_, values) in mine.items()}, False)
            self._relieve()
            return
        for slots, group in groups.by_slots.items():
            if groups.counted and (len(slots) > 1 or self._is_late(slots[0])):
                # Counted once for all slots, and not once for each.
                group = Counter(group)
            for slot in slots:
                if self._is_late(slot):
                    self._set_aside(slot, group, groups.counted)
                else:
                    self._fold(slot, group, groups.counted)
        self._relieve()

    def merge(self, partials: Partials, stamp: int) -> None:
        """Fold in the partial results of others, none of whose values came below `stamp`."""
        group: dict[Key, Any] = dict(zip(partials.keys, partials.accumulators, strict=True))
        init, merge = self.aggregation.init, cast(Any, self.aggregation.merge)
        # Nobody changes a number in place, so that several windows may begin with the same one.
        is_shared = self._keeps_numbers or are_plain(partials.accumulators)
        for slot in partials.slots:
            if self._is_late(slot):
                self._set_aside(slot, group, self.aggregation.counts)
                continue
            own = group if is_shared else {key: merge(init(), held) for key, held in group.items()}
            self._fold(slot, own, self.aggregation.counts, merge)
        self._relieve()

    def _relieve(self) -> None:
        # Only a durable store frees memory: one in memory would hold the same beside what is here.
        if self.store.durable and self.unwritten > self.most_held:
            self.write_back()

    def on_watermark(self, watermark: int, most: int | None = None) -> Batch | None:
        """Fire what is due at `watermark`, by when it is due, then by window and key."""
        if watermark < self.next_due():
            return None
        panes = Batch([], keys=[], timestamps=[], stamps=[])
        while self._next_open().due <= watermark and (most is None or len(panes) < most):
            fire = self._fire_late if self._is_late(self._open[0]) else self._fire
            fire(panes, watermark, most)
        # Forgotten only when no open slot is due before: late values that fire then still need what the window has had.
        while self._fired and self._fired[0].due <= watermark and self._fired[0] <= self._next_open():
            self._forget_fired()
        return panes if panes.values else None

    def drop_due(self) -> Batch:
        """Remove the first pane, and return its window and its accumulator."""
        slot, keys, held = self._take(1, gone := list[OfSlot]())
        self._delete(gone)
        return Batch([(slot.start, slot.end, held[key]) for key in keys], keys=[*keys])

    def next_due(self) -> int:
        """Return the smallest watermark at which a pane is due, or a fired window is to be forgotten."""
        return min(self._next_open().due, self._fired[0].due if self._fired else NEVER)

    def lowest_stamp(self) -> int:
        """Return the lowest stamp that a pane still to fire may have."""
        return self.next_due() - 1 - (self._waits_ms if self._open else 0)

    def write_back(self) -> None:
        """Put what has changed into the store."""
        self._write_slots([*self._changed])
        if sum(map(len, self._clean.values())) > self.most_held:
            self._clean.clear()

    def newest(self, most: int) -> list[Any]:
        """Return at most so many of the entries that have changed, of the slots begun last."""
        held = ((slot.end, one) for slot in reversed(self._changed) for one in self._changed[slot].values())
        return [*islice(held, most)]

    def forget(self) -> None:
        """Drop all changes, and look up which slots and fired windows the store has."""
        self._changed.clear()
        self._clean.clear()
        self._order.clear()
        self._open = list(self._slots_stored(DUE))
        self._stored = set(self._open)
        self._fired = list(self._slots_stored(FIRED))

    def _slots_stored(self, kind: bytes) -> Iterator[Slot]:
        """Yield the slots that have entries in the store, in order; it looks at one entry of each."""
        place = kind
        while (found := next(self.store.range(place, beyond(kind)), None)) is not None:
            slot = Slot(*(number - SHIFT for number in PLACE.unpack_from(found[0], len(kind))))
            yield slot
            _, place = _places(kind, slot)

    def _next_open(self) -> Slot:
        return self._open[0] if self._open else NO_SLOT

    def _fire(self, panes: Batch, watermark: int, most: int | None) -> None:
        """Fire all that is due and in time, up to the first slot of late values."""
        assert panes.keys is not None and panes.timestamps is not None and panes.stamps is not None
        starts: list[Iterable[int]] = []
        ends: list[Iterable[int]] = []
        accumulators: list[Iterable[Any]] = []
        gone: list[OfSlot] = []
        fired, number = panes.keys, len(panes.keys)
        enough = number + PASS if most is None else min(number + PASS, most)
        while (due := self._next_open().due) <= watermark and len(fired) < enough:
            if self._is_late(self._open[0]):
                break
            slot, keys, held = self._take(None if most is None else most - len(fired), gone)
            _, start, end = slot
            each = len(keys)
            found = map(held.__getitem__, keys)
            if self._fires_again:
                self._await_late(slot)
                found = map(partial(self._keep, slot, 1), keys, found)
            fired += keys
            starts.append(repeat(start, each))
            ends.append(repeat(end, each))
            accumulators.append(found)
            panes.timestamps += [end - 1] * each
            panes.stamps += [due - 1 - self._waits_ms] * each
        self._delete(gone)
        # Maps within maps: panes are made in one pass in C, but for the aggregation's own code; and those of several
        # windows at once, as each has few keys where there are many tasks.
        decoded = map(self.keys.decode, islice(fired, number, None))
        results = map(self.aggregation.finish, _joined(accumulators))
        panes.values += map(Pane, decoded, _joined(starts), _joined(ends), results, *self._in_time)

    def _fire_late(self, panes: Batch, watermark: int, most: int | None) -> None:
        """Fire one slot of late values."""
        assert panes.keys is not None and panes.timestamps is not None and panes.stamps is not None
        slot, keys, held = self._take(None if most is None else most - len(panes), gone := list[OfSlot]())
        self._delete(gone)
        if self._fires_again:
            self._await_late(slot)
        panes.values += [self._late_pane(slot, key, held[key]) for key in keys]
        panes.keys += keys
        panes.timestamps += [slot.end - 1] * len(keys)
        panes.stamps += [slot.due - 1 - self._waits_ms] * len(keys)

    def _is_late(self, slot: Slot) -> bool:
        """Whether its window has fired before."""
        return slot.due > slot.end + self._waits_ms

    def _late_pane(self, slot: Slot, key: Key, late: Any) -> Pane[Any, Any]:
        """Return a window's pane of late values: with all that came before, or of these alone."""
        aggregation: Any = self.aggregation
        _, index, before = self.store.get(self._place_fired(slot, key), (slot.end, 0, None))
        add = operator.add if aggregation.counts else aggregation.add
        accumulator = add(aggregation.init() if before is None else before, late)
        accumulator = self._keep(slot, index + 1, key, accumulator)
        return Pane(self.keys.decode(key), slot.start, slot.end, aggregation.finish(accumulator), index, "late")

    def _keep(self, slot: Slot, index: int, key: Key, accumulator: Any) -> Any:
        """Keep the accumulator and the number of panes of a window; return an accumulator to hand out."""
        self.store.put(self._place_fired(slot, key), (slot.end, index, accumulator if self._accumulates else None))
        return self._copies.copy(accumulator) if self._accumulates else accumulator

    def _await_late(self, slot: Slot) -> None:
        """Note the time at which no late value of a window can come any more."""
        fired = slot._replace(due=slot.end + self._lateness_ms)
        if fired not in self._fired:
            heapq.heappush(self._fired, fired)

    def _place_fired(self, slot: Slot, key: Key) -> bytes:
        return _prefix(FIRED, slot._replace(due=slot.end + self._lateness_ms)) + self.keys.encode(key)

    def _forget_fired(self) -> None:
        self.store.drop(*_places(FIRED, heapq.heappop(self._fired)))

    def _group(self, slot: Slot) -> dict[Key, Any]:
        held = self._changed.get(slot)
        if held is None:
            held = self._changed[slot] = Counter() if self.aggregation.counts else {}
            # A slot that has entries in the store is in the heap already.
            if slot not in self._stored:
                heapq.heappush(self._open, slot)
        return held

    def _fold(self, slot: Slot, group: Any, counted: bool, merging: Callable[[Any, Any], Any] | None = None) -> None:
        """Fold in the values in time of one window: those of each key, a key for each value, or their number.

        What is `merging` are accumulators of values, with which a window may begin.
        """
        init, add = self.aggregation.init, cast(Any, merging or (operator.add if counted else self.aggregation.add))
        if not counted and slot not in self._changed and slot not in self._stored:
            # A new slot has nothing to look for, neither here nor in the store.
            begun = {**group} if merging else {key: add(init(), values) for key, values in group.items()}
            self._changed[slot] = Counter(begun) if self.aggregation.counts else begun
            heapq.heappush(self._open, slot)
            return
        accumulators, stored = self._group(slot), slot in self._stored
        clean = self._clean.get(slot)
        if clean is not None:
            stored = False  # and what it has of these keys is brought here
            for key in clean.keys() & (group if isinstance(group, dict) else {*group}) - accumulators.keys():
                accumulators[key] = clean[key]
        if counted and not stored:
            # As Counter.update does it, but in no loop of Python's: the hot path of windows that only count.
            if isinstance(group, dict):
                before = map(accumulators.get, group, repeat(0))
                group = zip(group, map(operator.add, before, group.values()), strict=True)
                dict.update(accumulators, group)
            else:
                accumulators.update(group)
            return
        if counted:
            group = Counter(group)
        for key, values in group.items():
            held = accumulators.get(key, accumulators)
            if held is accumulators:
                found = self.store.get(_prefix(DUE, slot) + self.keys.encode(key)) if stored else None
                if found is None and merging:
                    accumulators[key] = values
                    continue
                held = init() if found is None else found[1]
            accumulators[key] = add(held, values)

    def _set_aside(self, slot: Slot, group: dict[Key, Any], counted: bool) -> None:
        """Hold late values, or their number, until the window that they belong to has fired."""
        aside, stored = self._group(slot), slot in self._stored
        for key, values in group.items():
            held = aside.get(key)
            if held is None and stored:
                held = self.store.get(_prefix(DUE, slot) + self.keys.encode(key), (0, None))[1]
            more: Any = values if counted else len(values) if self.aggregation.counts else tuple(values)
            aside[key] = more if held is None else held + more

    def _write_slots(self, slots: Iterable[Slot]) -> None:
        # All of them at once: each may have few keys, and those in the stores of several tasks.
        written = [(slot, self._changed.pop(slot)) for slot in slots]
        held = ((slot.end, one) for slot, changed in written for one in changed.values())
        self.store.update(dict(zip(self._places_due(written), held, strict=True)))
        for slot, changed in written:
            self._note_clean(slot, changed)

    def _delete(self, gone: Sequence[OfSlot]) -> None:
        """Delete what the store has of keys of some slots, all at once."""
        if gone:
            self.store.delete_all(self._places_due(gone))

    def _places_due(self, found: Sequence[OfSlot]) -> list[bytes]:
        """Return where the store has keys of some slots."""
        prefixes = chain.from_iterable(repeat(_prefix(DUE, slot), len(keys)) for slot, keys in found)
        data = self.keys.encode_all([*chain.from_iterable(keys for _, keys in found)])
        return [*map(operator.add, prefixes, data)]

    def _note_clean(self, slot: Slot, changed: dict[Key, Any]) -> None:
        """Take note of what the store has of a slot, where it is known as a whole and can't be changed in place."""
        clean = self._clean.get(slot, {} if slot not in self._stored else None)
        if changed:
            self._stored.add(slot)
        # Late values are kept as they are, and others may have been changed in place: those are read from the store.
        if clean is None or self._is_late(slot) or not (self._keeps_numbers or all(map(is_plain, changed.values()))):
            self._clean.pop(slot, None)
        elif changed:
            clean |= changed
            self._clean[slot] = clean

    def _take(self, most: int | None, gone: list[OfSlot]) -> tuple[Slot, list[Key], dict[Key, Any]]:
        """Remove the first slot, or the first `most` of its keys; return it, its keys in order and what they have.

        Those of which the store still has something are added to `gone`.
        """
        slot = self._open[0]
        if slot not in self._stored and slot not in self._order and (most is None or len(self._changed[slot]) <= most):
            # Opened since the last commit, and fired as a whole: there is nothing of it but here.
            heapq.heappop(self._open)
            held = self._changed.pop(slot)
            return slot, self.keys.in_order(held), held
        clean = self._clean.get(slot)
        if slot in self._stored and clean is None:
            return slot, *self._take_stored(slot, most)
        if clean:
            held = self._changed.setdefault(slot, {})
            held |= {key: clean[key] for key in clean.keys() - held.keys()}
        held = self._changed[slot]
        # A large window fires in parts, and its keys are brought in order once and not for each part: a million keys
        # took minutes to fire. They lie in reverse, because a list gives its last entries away for nothing.
        keys = self._order.pop(slot, [])
        if len(keys) != len(held):
            keys = self.keys.in_order(held)[::-1]
        if most is None or len(keys) <= most:
            heapq.heappop(self._open)
            gone += self._forget_clean(slot, keys)
            self._stored.discard(slot)
            return slot, keys[::-1], self._changed.pop(slot)
        self._order[slot] = keys
        taken = [keys.pop() for _ in range(most)]
        gone += self._forget_clean(slot, taken)
        return slot, taken, {key: held.pop(key) for key in taken}

    def _forget_clean(self, slot: Slot, keys: list[Key]) -> list[OfSlot]:
        """Forget what the store has of keys of a slot, all of which is held here; return those that it has."""
        clean = self._clean.get(slot)
        if clean is None:
            return []
        gone = [key for key in keys if clean.pop(key, self) is not self]
        if not clean:
            del self._clean[slot]
        return [(slot, gone)]

    def _take_stored(self, slot: Slot, most: int | None) -> tuple[list[Any], dict[Any, Any]]:
        """Remove no more than is asked for, so that a large window can fire over several commits."""
        if slot in self._changed:
            self._write_slots([slot])
        prefix, end = _places(DUE, slot)
        found = list(islice(self.store.range(prefix, end), None if most is None else most + 1))
        if most is None or len(found) <= most:
            heapq.heappop(self._open)
            self._stored.discard(slot)
        self.store.delete_all([place for place, _ in found[:most]])
        keys = self.keys.load([place[len(prefix) :] for place, _ in found[:most]])
        return keys, {key: held for key, (_, (_, held)) in zip(keys, found, strict=False)}


def _joined(parts: list[Iterable[T]]) -> Iterable[T]:
    return parts[0] if len(parts) == 1 else chain.from_iterable(parts)


def keeps_numbers(aggregation: Aggregation[Any, Any]) -> bool:
    """Return whether accumulators are numbers of ours, so that nobody can change a part of one in place."""
    # Of ours, which can be made anew: one of the user's own may keep anything, and is not called before its time.
    leaves = aggregation.leaves()
    return all(one.remake is not None and one.keeps == "numbers" and is_plain(one.init()) for one in leaves)


def plainness(aggregation: Aggregation[Any, Any]) -> Callable[[Any], bool]:
    """Return what tells whether nobody can change a part of an accumulator in place; of several, numbers are not asked.

    >>> from operators.aggregations.aggregation import aggregate, count, last
    >>> is_so = plainness(aggregate(dict, n=count(), last=last(lambda value: value)))
    >>> is_so((1, ("a",))), is_so((1, ([],)))
    (True, False)
    """
    if keeps_numbers(aggregation):
        return lambda held: True
    asked = [place for place, part in enumerate(aggregation.parts) if not keeps_numbers(part)]
    if not asked:
        return is_plain
    # A slice for one, as the parts of it are asked for in C.
    parts_of = itemgetter(*asked) if len(asked) > 1 else itemgetter(slice(asked[0], asked[0] + 1))

    def are_plain(held: Any) -> bool:
        return is_plain(held) if type(held) is not tuple else are_unchangeable(parts_of(held))

    def are_unchangeable(parts: tuple[Any, ...]) -> bool:
        return UNCHANGEABLE.issuperset(map(type, parts)) or all(map(is_plain, parts))

    return are_plain


def _merge(windows: object) -> bool:
    return isinstance(windows, Sessions) or bool(getattr(windows, "merges", False))


def _prefix(kind: bytes, slot: Slot) -> bytes:
    return kind + PLACE.pack(slot.due + SHIFT, slot.start + SHIFT, slot.end + SHIFT)


def _places(kind: bytes, slot: Slot) -> tuple[bytes, bytes]:
    """Return the bounds of the range of a slot's entries."""
    return _prefix(kind, slot), _prefix(kind, slot._replace(end=slot.end + 1))
