"""The choice among the window operators: each has the windows, triggers and panes that it was made for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from operators.aggregations.aggregation import Aggregation
from operators.core.base import Operator, OperatorContext
from operators.core.entry_keys import NUMBER_BYTES, EntryKind, EntryKinds, Number, Rest
from operators.state.keyed_state import STATE
from operators.state.noted_dues import NOTED
from operators.windows.count_window import HELD, HIGH, INDEX, LOW, CountedOperator
from operators.windows.custom_window import AssignedOperator, MergingOperator
from operators.windows.late_sliding import ROW, SHOWN, LateSlidingOperator
from operators.windows.processing_time import ClockedWindowOperator, OverEventTime
from operators.windows.processing_time_triggers import ClockedCountedOperator, ClockedTriggerOperator
from operators.windows.session import ENTRIES as OF_SESSIONS
from operators.windows.session import SessionOperator
from operators.windows.sliding import MARK, SlidingOperator
from operators.windows.spans import restored
from operators.windows.triggered import TriggeredWindowOperator
from operators.windows.window import DUE, FIRED, PLACE, Pane, Window, WindowOperator
from operators.windows.window_types import ByClock, Counted, Sessions, Sliding

OF_ONE_KEY: EntryKinds = {STATE: EntryKind("windows", Rest())}
"""The kind of entries that have all windows of a key."""


def entry_kinds(spec: Window) -> EntryKinds:
    """Return the kinds of entries of the operator of windows."""
    if isinstance(spec.windows, ByClock):
        early = None if spec.early is None else spec.early.in_clock_time()
        return entry_kinds(replace(spec, windows=spec.windows.windows, early=early))
    if isinstance(spec.windows, Counted):
        return OF_ONE_KEY
    if isinstance(spec.windows, Sliding):
        if spec.fires_late:
            # Rows lie by the number of a bucket of time, and panes by theirs.
            by_bucket = Number("bucket"), Rest()
            return {ROW: EntryKind("row", *by_bucket), SHOWN: EntryKind("pane", *by_bucket)}
        # The one mark of all that has fired, as versions before kept it, belongs to no key.
        rows = EntryKind("row", Number("at_ms"), Rest())
        return {ROW: rows, STATE: EntryKind("window", Rest()), MARK: EntryKind("fired", of_users=False)}
    if spec.is_triggered:
        numbers = tuple(map(Number, ("start_ms", "end_ms")[: numbers_ahead(spec)]))
        return {
            STATE: EntryKind("window", *numbers, Rest()),
            NOTED: EntryKind("due", Number("at_ms"), *numbers, Rest(), of_users=False),
        }
    by_window = Number("due_ms"), Number("start_ms"), Number("end_ms"), Rest()
    return OF_SESSIONS if spec.merges else {DUE: EntryKind("window", *by_window), FIRED: EntryKind("fired", *by_window)}


def numbers_ahead(spec: Window) -> int:
    """Return the numbers ahead of the key in a place: both bounds of a user's own window, else one, as if it merges."""
    return 2 if "assign" in spec.functions() and not spec.merges else 1


class WindowEntries(NamedTuple):
    """The entries of a window operator that have one first byte, and so many numbers between that and the key.

    `panes` returns what the windows in an entry of a key have come to, given these numbers and what is stored.
    """

    first: bytes
    numbers: int
    panes: Callable[[object, Sequence[int], Any], Iterator[Pane[Any, Any]]]


def entries_read(spec: Window) -> tuple[WindowEntries, ...]:
    """Return how the windows that are kept are read from the entries of their operator; none of sliding ones.

    A window that has not fired says so by the timing of its pane, "early". Late values are in it once they had theirs.
    """
    if isinstance(spec.windows, ByClock):
        early = None if spec.early is None else spec.early.in_clock_time()
        return entries_read(replace(spec, windows=spec.windows.windows, early=early))
    if isinstance(spec.windows, Sliding):
        return ()
    aggregation = spec.aggregation
    if isinstance(spec.windows, Counted):
        return (WindowEntries(STATE, 0, partial(_counted_panes, aggregation)),)
    if spec.is_triggered:
        return (WindowEntries(STATE, numbers_ahead(spec), partial(_span_panes, aggregation)),)
    if spec.merges:
        return (WindowEntries(STATE, 0, partial(_session_panes, aggregation)),)
    numbers = PLACE.size // NUMBER_BYTES
    return (
        WindowEntries(DUE, numbers, partial(_open_panes, aggregation, spec.waits_ms)),
        WindowEntries(FIRED, numbers, partial(_fired_panes, aggregation)),
    )


def _open_panes(
    aggregation: Aggregation[Any, Any], waits_ms: int, key: object, place: Sequence[int], stored: Any
) -> Iterator[Pane[Any, Any]]:
    due, start, end = place
    # Else these are late values, which are told once they had their pane.
    if due == end + waits_ms:
        yield Pane(key, start, end, aggregation.finish(stored[1]), timing="early")


def _fired_panes(
    aggregation: Aggregation[Any, Any], key: object, place: Sequence[int], stored: Any
) -> Iterator[Pane[Any, Any]]:
    (_, start, end), (_, panes, held) = place, stored
    # Where panes are discarded nothing of it is kept but their number.
    if held is not None:
        index = panes - 1
        yield Pane(key, start, end, aggregation.finish(held), index, "late" if index else "on_time")


def _session_panes(
    aggregation: Aggregation[Any, Any], key: object, place: Sequence[int], stored: Any
) -> Iterator[Pane[Any, Any]]:
    for start, end, held in stored:
        yield Pane(key, start, end, aggregation.finish(held), timing="early")


def _counted_panes(
    aggregation: Aggregation[Any, Any], key: object, place: Sequence[int], stored: Any
) -> Iterator[Pane[Any, Any]]:
    for one in stored:
        # Without values since its last pane it has no times.
        if one[LOW] <= one[HIGH]:
            yield Pane(key, one[LOW], one[HIGH] + 1, aggregation.finish(one[HELD]), one[INDEX], "early")


def _span_panes(
    aggregation: Aggregation[Any, Any], key: object, place: Sequence[int], stored: Any
) -> Iterator[Pane[Any, Any]]:
    spans = restored(stored)
    for span in (*spans.fired, *spans.open):
        is_open = span in spans.open
        if is_open:
            span.fold(aggregation)
        if span.held:
            yield Pane(
                key, span.start, span.end, aggregation.finish(span.held[0]), span.index, "early" if is_open else "late"
            )


def operator_of(spec: Window, context: OperatorContext) -> Operator:
    """Return the operator of windows: by the clock, by count, or in event time."""
    # To windows by the clock the time of reading is event time, so they wrap what would have been built for that.
    if isinstance(spec.windows, ByClock):
        early = None if spec.early is None else spec.early.in_clock_time()
        return ClockedWindowOperator(_in_event_time(replace(spec, windows=spec.windows.windows, early=early), context))
    early_by_clock = spec.early is not None and spec.early.by_clock
    store, keys, copies, most_held = context.store, context.keys, context.formats.copies(None), context.most_held
    if isinstance(spec.windows, Counted):
        kind = ClockedCountedOperator if early_by_clock else CountedOperator
        return kind(spec, store, keys, copies, context.functions["aggregation"], most_held, context.lowest)
    # Only where a trigger goes by the clock does an operator look at alarms beside event time.
    if early_by_clock:
        return ClockedTriggerOperator(spec, store, keys, copies, context.functions, most_held, context.lowest)
    return _in_event_time(spec, context)


def _in_event_time(spec: Window, context: OperatorContext) -> OverEventTime:
    """Return the operator of windows in event time; that of fixed windows without triggers is the fast one."""
    functions, copies = context.functions, context.formats.copies(None)
    store, keys, most_held = context.store, context.keys, context.most_held
    if isinstance(spec.windows, Sliding):
        if spec.fires_late:
            return LateSlidingOperator(spec, store, keys, functions["aggregation"], most_held, context.lowest)
        return SlidingOperator(spec, store, keys, copies, functions["aggregation"], most_held, context.lowest)
    # The triggered one is the general one: those below do less, and hold less for each window.
    if spec.is_triggered:
        return TriggeredWindowOperator(spec, store, keys, copies, functions, most_held, context.lowest)
    if isinstance(spec.windows, Sessions):
        return SessionOperator(spec, store, keys, functions["aggregation"], most_held, noted=context.lowest is not None)
    if "assign" in functions:
        if spec.merges:
            return MergingOperator(spec, store, keys, functions, most_held, noted=context.lowest is not None)
        return AssignedOperator(spec, store, keys, copies, functions, most_held)
    return WindowOperator(spec, store, keys, copies, functions["aggregation"], most_held)
