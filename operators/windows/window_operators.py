"""The choice among the window operators: each has the windows, triggers and panes that it was made for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from operators.core.base import Operator, OperatorContext
from operators.state.entry_keys import NUMBER_BYTES, TIMED
from operators.state.keyed_state import KEY_BEHIND, STATE
from operators.windows.count_window import CountedOperator
from operators.windows.custom_window import AssignedOperator, MergingOperator
from operators.windows.late_sliding import ROW, SHOWN, LateSlidingOperator
from operators.windows.processing_time import ClockedWindowOperator, OverEventTime
from operators.windows.processing_time_triggers import ClockedCountedOperator, ClockedTriggerOperator
from operators.windows.session import SessionOperator
from operators.windows.sliding import FIRED as MARK
from operators.windows.sliding import SlidingOperator
from operators.windows.triggered import TriggeredWindowOperator, numbers_ahead
from operators.windows.window import DUE, FIRED, PLACE, Window, WindowOperator
from operators.windows.window_types import ByClock, Counted, Sessions, Sliding


def lengths_of(spec: Window) -> Mapping[bytes, int | None]:
    """Return the bytes ahead of the key in the entries of the operator of windows, by the first byte of these."""
    if isinstance(spec.windows, ByClock):
        early = None if spec.early is None else spec.early.in_clock_time()
        return lengths_of(replace(spec, windows=spec.windows.windows, early=early))
    if isinstance(spec.windows, Counted):
        return KEY_BEHIND
    if isinstance(spec.windows, Sliding):
        # The one mark of all that has fired belongs to no key.
        return {ROW: TIMED, SHOWN: TIMED} if spec.fires_late else {ROW: TIMED, STATE: 1, MARK: None}
    if spec.is_triggered:
        return {STATE: 1 + NUMBER_BYTES * numbers_ahead(spec)}
    return KEY_BEHIND if spec.merges else dict.fromkeys((DUE, FIRED), 1 + PLACE.size)


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
        return kind(spec, store, keys, copies, context.functions["aggregation"], most_held)
    # Only where a trigger goes by the clock does an operator look at alarms beside event time.
    if early_by_clock:
        return ClockedTriggerOperator(spec, store, keys, copies, context.functions, most_held)
    return _in_event_time(spec, context)


def _in_event_time(spec: Window, context: OperatorContext) -> OverEventTime:
    """Return the operator of windows in event time; that of fixed windows without triggers is the fast one."""
    functions, copies = context.functions, context.formats.copies(None)
    store, keys, most_held = context.store, context.keys, context.most_held
    if isinstance(spec.windows, Sliding):
        if spec.fires_late:
            return LateSlidingOperator(spec, store, keys, functions["aggregation"], most_held)
        return SlidingOperator(spec, store, keys, copies, functions["aggregation"], most_held)
    # The triggered one is the general one: those below do less, and hold less for each window.
    if spec.is_triggered:
        return TriggeredWindowOperator(spec, store, keys, copies, functions, most_held)
    if isinstance(spec.windows, Sessions):
        return SessionOperator(spec, store, keys, functions["aggregation"], most_held)
    if "assign" in functions:
        if spec.merges:
            return MergingOperator(spec, store, keys, functions, most_held)
        return AssignedOperator(spec, store, keys, copies, functions, most_held)
    return WindowOperator(spec, store, keys, copies, functions["aggregation"], most_held)
