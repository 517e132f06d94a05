"""The windows of one key that may fire more than once: open ones, late values, and fired ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple, cast

from operators.aggregations.aggregation import Aggregation
from operators.core.base import MIN_TIMESTAMP, NEVER, Batch, Key, Keys, Store
from operators.core.entry_keys import NUMBER_BYTES, beyond, number_at, ordered
from operators.state.keyed_state import STATE
from operators.state.place_dues import Bounds, Place
from operators.windows.triggers import Trigger
from operators.windows.window import Timing

NOTHING = cast("list[Any]", ())
"""The empty list that no window has to itself; to change it in place is an error, as it is a tuple."""


def extended(some: list[Any], more: list[Any]) -> list[Any]:
    """Return the values with more behind them, in either list.

    >>> extended(NOTHING, [1]), extended([1], NOTHING), extended([1], [2])
    ([1], [1], [1, 2])
    """
    if not some or not more:
        return some or more
    some += more
    return some


@dataclass(slots=True)
class Span:
    """A window with its present bounds, and its values.

    `held` has the accumulator of its values, and is empty where there is none; `new` are values that are not in it yet,
    `gone` those that are withdrawn and are in it still, and `size` is the number of all values. `shown` are its panes
    that are to be withdrawn, each with its bounds, number, timing and accumulator. `stamp` is the largest of its late
    values, `index` the number of its next pane, `early` the state of the trigger of its next one. Most windows have
    nothing `new`, `gone` or `shown`, and no list for it: there are as many windows as keys, and more.
    """

    start: int
    end: int
    held: tuple[Any, ...] = ()
    new: list[Any] = NOTHING
    gone: list[Any] = NOTHING
    size: int = 0
    shown: list[Any] = NOTHING
    stamp: int = MIN_TIMESTAMP
    index: int = 0
    early: Any = None

    def fold(self, aggregation: Aggregation[Any, Any]) -> None:
        """Fold the new values in, and take those out that are withdrawn."""
        if self.new:
            self.held = (aggregation.add(self.held[0] if self.held else aggregation.init(), self.new),)
            self.new = NOTHING
        if self.gone:
            assert aggregation.remove is not None
            self.held = (aggregation.remove(self.held[0] if self.held else aggregation.init(), self.gone),)
            self.gone = NOTHING

    def add(self, values: list[Any]) -> None:
        """Take values that are not folded in yet, in a list that nobody else has."""
        self.new = extended(self.new, values)
        self.size += len(values)

    def add_one(self, value: Any) -> None:
        """Take one value, as `add` does several, and without a list for it alone."""
        if self.new:
            self.new.append(value)
        else:
            self.new = [value]
        self.size += 1

    def take_in(self, other: Span) -> None:
        """Take the values that are not folded in from another one, whose lists they may go on in."""
        self.new = extended(self.new, other.new)
        self.gone = extended(self.gone, other.gone)
        self.size += other.size

    @property
    def has_changed(self) -> bool:
        """Whether there are values that are not folded in."""
        return bool(self.new or self.gone)

    def overlaps(self, other: Span) -> bool:
        """Whether they have some time in common."""
        return self.start < other.end and other.start < self.end


@dataclass(slots=True)
class Spans:
    """The windows of one key that may become one, in the order of time: all of its sessions, or one fixed window.

    `open` have not fired. `aside` are late values, by their stamp, until event time has passed it. `fired` is kept
    while late values may come; its `new` ones are late and wait for their pane.
    """

    open: list[Span] = field(default_factory=list)
    aside: dict[int, list[Span]] = field(default_factory=dict)
    fired: list[Span] = NOTHING

    def again_due(self, span: Span, again: Trigger | None, lateness_ms: int) -> int:
        """Return the watermark at which late values make a pane: after their stamp and all windows that they overlap.

        Where a trigger says when there is one `again`, it is no sooner, and at the latest when none can come any more.
        """
        over = max(span.stamp + 1, span.end)
        for other in self.open:
            if other.end > over and other.overlaps(span):
                over = other.end
        return over if again is None else max(over, min(again.due(span.early, over), span.end + lateness_ms))

    @property
    def is_empty(self) -> bool:
        """Whether there are no windows, so that nothing is kept."""
        return not (self.open or self.aside or self.fired)

    @property
    def first(self) -> Span:
        """Any one of the windows."""
        return next(chain(self.open, self.fired, *self.aside.values()))

    def window_due(self, lateness_ms: int) -> int:
        """Return the first watermark at which a window fires at its end, or a fired one is forgotten."""
        due = NEVER
        for span in self.open:
            due = min(due, span.end)
        for span in self.fired:
            if not span.has_changed:
                due = min(due, span.end + lateness_ms)
        return due

    def late_due(self, again: Trigger | None, lateness_ms: int) -> int:
        """Return the first watermark at which late values meet fired windows, or make a pane of one."""
        due = min(self.aside) + 1 if self.aside else NEVER
        for span in self.fired:
            if span.has_changed:
                due = min(due, self.again_due(span, again, lateness_ms))
        return due

    def leave_out(self, start: int, end: int, due: int) -> tuple[int, int, list[Any]]:
        """Remove the first late values that overlap these bounds, else the first window; returns bounds and values."""
        bounds = Span(start, end)
        for stamp in sorted(stamp for stamp in self.aside if stamp < due):
            found = [place for place, span in enumerate(self.aside[stamp]) if span.overlaps(bounds)]
            if found:
                late = self.aside[stamp].pop(found[0])
                if not self.aside[stamp]:
                    del self.aside[stamp]
                return late.start, late.end, [*late.new, *late.gone]
        for span in self.fired:
            if span.has_changed and span.overlaps(bounds):
                left_out = [*span.new, *span.gone]
                span.size -= len(span.new) - len(span.gone)
                span.new = span.gone = NOTHING
                return span.start, span.end, left_out
        window = self.open.pop(0)
        return window.start, window.end, [*window.held]

    def stored(self) -> tuple[Any, ...] | None:
        """Return the windows in their stored form; None where there are none."""
        if not (self.open or self.aside or self.fired):
            return None
        aside = tuple((stamp, *map(_fields, spans)) for stamp, spans in self.aside.items())
        later = (aside, (*map(_fields, self.fired),)) if aside or self.fired else ()
        return ((*map(_fields, self.open),), *later)


class Shown(NamedTuple):
    """The parts of a pane; `earliest` is its time where that is later than its window's end - 1."""

    start: int
    end: int
    number: int
    timing: Timing
    held: Any
    earliest: int = MIN_TIMESTAMP

    @property
    def timestamp(self) -> int:
        """The event time of the pane, in ms."""
        return max(self.end - 1, self.earliest)


class Firing(NamedTuple):
    """A pane that is due, or None where nothing is left; its stamp, and the panes that are withdrawn before it."""

    pane: Shown | None
    stamp: int
    withdrawn: list[Any]


class WindowFrame:
    """The windows of many keys with the same bounds, by key; for all windows of keys that may merge there is one frame.

    `changed` has what is newer than the store, and `clean` what the store has as well, of which nobody can change a
    part in place; no key is in both. `stored` are the keys of what the store has: of all where it `is_whole`, else of
    what was looked for.
    """

    __slots__ = ("bounds", "changed", "clean", "end", "is_whole", "stored")

    def __init__(self, bounds: tuple[int, ...], end: int, is_whole: bool = True) -> None:
        self.bounds = bounds
        self.is_whole = is_whole
        self.end = end
        """The end of the window, where all keys share it."""
        self.changed: dict[Key, Spans] = {}
        self.clean: dict[Key, Spans] = {}
        self.stored: set[Key] = set()

    def written(
        self,
        prefix: bytes,
        encode_all: Callable[[list[Key | None]], list[Any]],
        stays: Callable[[tuple[Any, ...]], bool],
    ) -> tuple[dict[bytes, Any], list[bytes]]:
        """Take what has changed for written: return what the store keeps from now on, and which of its entries go.

        What `stays` as it is may be gone on with; all else is read from the store again.
        """
        changed, kept, gone = self.changed, dict[bytes, Any](), list[bytes]()
        forms = [spans.stored() for spans in changed.values()]
        for data, (key, spans), form in zip(encode_all([*changed]), changed.items(), forms, strict=True):
            if form is not None:
                kept[prefix + data] = form
                self.stored.add(key)
                if stays(form):
                    self.clean[key] = spans
            elif key in self.stored:
                gone.append(prefix + data)
                self.stored.remove(key)
        self.changed = {}
        return kept, gone


def restored(stored: Sequence[Any]) -> Spans:
    """Return the windows of a stored form."""
    open, aside, fired = stored if len(stored) > 1 else (*stored, [], [])
    return Spans(_spans(open), {stamp: _spans(spans) for stamp, *spans in aside}, _spans(fired) or NOTHING)


class SpanEntries:
    """The windows of one task in its store, each under its bounds, which are so many `numbers`, and its key."""

    def __init__(self, store: Store, keys: Keys, numbers: int) -> None:
        self._store, self._keys = store, keys
        self._ahead = NUMBER_BYTES * numbers

    def bytes_of(self, place: Place) -> bytes:
        """Return the bytes of a place, which sort by bounds, then by key's bytes."""
        bounds, key = place
        return b"".join(map(ordered, bounds)) + self._keys.encode(key)

    def prefix(self, bounds: Bounds) -> bytes:
        """Return what the places of all entries with these bounds begin with."""
        return STATE + b"".join(map(ordered, bounds))

    def places(self, data: list[bytes]) -> list[Place]:
        """Return places, given their bytes."""
        ahead, found = self._ahead, list[Place]()
        for at, key in zip(data, self._keys.load([at[ahead:] for at in data]), strict=True):
            assert key is not None, "each window is of a key"
            found.append((self._bounds(at), key))
        return found

    def get(self, place: Place) -> Spans | None:
        """Return the windows of a place; None where there are none."""
        stored = self._store.get(STATE + self.bytes_of(place))
        return None if stored is None else restored(stored)

    def is_empty(self) -> bool:
        """Whether there are none."""
        return next(self._store.range(STATE, beyond(STATE)), None) is None

    def all(self) -> Iterator[tuple[Place, Spans]]:
        """Yield all windows by their places."""
        for at, stored in self._store.range(STATE, beyond(STATE)):
            (place,) = self.places([at[len(STATE) :]])
            yield place, restored(stored)

    def keys_of(self, bounds: Bounds) -> Iterator[Key]:
        """Yield the keys that have windows with these bounds."""
        prefix = self.prefix(bounds)
        found = [at[len(STATE) :] for at, _ in self._store.range(prefix, beyond(prefix))]
        return (key for _, key in self.places(found))

    def frames(self) -> Iterator[tuple[Bounds, int]]:
        """Yield the bounds that windows have, with the end of one of them; all others are passed over."""
        at = STATE
        while (found := next(self._store.range(at, beyond(STATE)), None)) is not None:
            place, stored = found
            bounds = self._bounds(place[len(STATE) :])
            yield bounds, restored(stored).first.end
            at = beyond(self.prefix(bounds))

    def _bounds(self, data: bytes) -> Bounds:
        return tuple(number_at(data, start) for start in range(0, self._ahead, NUMBER_BYTES))


def put(spans: list[Span], span: Span, aggregation: Aggregation[Any, Any], trigger: Trigger | None) -> Span:
    """Put a span among others, and return the one that it is in now: spans that overlap become one.

    Accumulators are merged in the order of time; new values come last, in the order in which they came.
    """
    first = 0
    while first < len(spans) and spans[first].end <= span.start:
        first += 1
    last = first
    while last < len(spans) and spans[last].start < span.end:
        last += 1
    if first == last:
        spans.insert(first, span)
        return span
    found = spans[first:last]
    into = found[0]
    # Mostly late values come to the one window that they are in.
    if last == first + 1 and (into.start, into.end) == (span.start, span.end) and not (span.held or span.shown):
        into.take_in(span)
        into.stamp, into.index = max(into.stamp, span.stamp), max(into.index, span.index)
        if trigger is not None:
            into.early = trigger.merge(into.early, span.early)
        return into
    by_time = sorted((*found, span), key=lambda one: one.start)
    into.new = [value for one in (*found, span) for value in one.new]
    into.gone = [value for one in (*found, span) for value in one.gone]
    into.shown = [pane for one in by_time for pane in one.shown]
    into.size = sum(one.size for one in by_time)
    into.held = tuple(_merged((one.held for one in by_time), aggregation.merge))
    into.start, into.end = by_time[0].start, max(one.end for one in by_time)
    into.stamp = max(one.stamp for one in by_time)
    into.index = max(one.index for one in by_time)
    if trigger is not None:
        for one in (*found[1:], span):
            into.early = trigger.merge(into.early, one.early)
    del spans[first + 1 : last]
    return into


def _merged(helds: Iterator[tuple[Any, ...]], merge: Callable[[Any, Any], Any]) -> Iterator[Any]:
    accumulators = chain.from_iterable(helds)
    for merged in accumulators:
        for accumulator in accumulators:
            merged = merge(merged, accumulator)
        yield merged


def _fields(span: Span) -> tuple[Any, ...]:
    """Return a span in its stored form, in tuples, which are encoded at once: its numbers, and the rest if any."""
    numbers = (span.start, span.end, span.size, span.stamp, span.index)
    rest = ([*span.new], [*span.gone], [*span.shown]) if span.has_changed or span.shown else ()
    return (numbers, span.held, span.early, *rest)


def _spans(stored: Iterable[Sequence[Any]]) -> list[Span]:
    return [_span(*fields) for fields in stored]


def _span(
    numbers: Sequence[int], held: tuple[Any, ...], early: Any, new: Any = (), gone: Any = (), shown: Any = ()
) -> Span:
    start, end, size, stamp, index = numbers
    return Span(start, end, held, [*new] or NOTHING, [*gone] or NOTHING, size, [*shown] or NOTHING, stamp, index, early)


def untell(spans: Spans, firing: Firing) -> None:
    """Undo a pane that nobody will see: the one before it is still the one that is withdrawn next."""
    pane = firing.pane
    if pane is None:
        return
    for span in (*spans.open, *spans.fired):
        if span.index == pane.number + 1 and span.start <= pane.start and pane.end <= span.end:
            span.index = pane.number
            span.shown = [one for one in span.shown if one[2] != pane.number] + [*firing.withdrawn]


def dropped(key: Key, firing: Firing) -> Batch:
    """Return the window and the accumulator of a pane that nobody will see."""
    shown = firing.pane or Shown(*firing.withdrawn[0])
    return Batch([(shown.start, shown.end, shown.held)], keys=[key])


class Early(NamedTuple):
    """A pane, early ones in the order of the rows of a batch at which they are due, and of windows' ends."""

    row: int
    end: int
    start: int
    key: Key
    number: int
    held: Any
    stamp: int
    firing: Firing | None = None
    """The pane, where others are withdrawn with it."""


class Due(NamedTuple):
    """The pane that is due first: so many values of its key are in it, and the row and the stamp at which it is due."""

    taken: int
    row: int
    stamp: int
