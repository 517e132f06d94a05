"""The windows by the clock on the wall: a value is in those of the time at which it was read."""

from __future__ import annotations

from typing import Any, ClassVar

from operators.aggregations.aggregation import Aggregation
from operators.core.base import MAX_TIMESTAMP, MIN_TIMESTAMP, NEVER, Batch, Store
from operators.windows.late_sliding import LateSlidingOperator
from operators.windows.session import SessionOperator
from operators.windows.sliding import SlidingOperator
from operators.windows.triggered import TriggeredWindowOperator
from operators.windows.window import WindowOperator

OverEventTime = WindowOperator | SessionOperator | SlidingOperator | LateSlidingOperator | TriggeredWindowOperator


class ClockedWindowOperator:
    """Windows for which the clock is event time: a value has the time at which it comes, and none is ever late.

    The clock never goes back here, even where the one on the wall is set back. A pane is, in event time, at the end of
    its window, or at the event time that was told by then if that is later; a withdrawn one is where it was.
    """

    calls: ClassVar[tuple[str, ...]] = ("aggregation",)

    def __init__(self, windows: OverEventTime) -> None:
        self._windows = windows
        self.store: Store = windows.store
        self.late: Batch | None = None
        self._reached = MIN_TIMESTAMP
        # A clock that was set back before this began would have values come behind what has fired.
        self._now_ms = windows.latest + 1 if isinstance(windows, SlidingOperator) else MIN_TIMESTAMP

    @property
    def aggregation(self) -> Aggregation[Any, Any]:
        """The aggregation that the windows compute."""
        return self._windows.aggregation

    @aggregation.setter
    def aggregation(self, aggregation: Aggregation[Any, Any]) -> None:
        self._windows.aggregation = aggregation

    @property
    def unwritten(self) -> int:
        """The number of changed accumulators that are not in the store yet."""
        return self._windows.unwritten

    def heed(self, now_ms: int, watermark: int) -> None:
        """Learn the time."""
        self._now_ms, self._reached = max(self._now_ms, now_ms), watermark
        if isinstance(self._windows, TriggeredWindowOperator):
            self._windows.earliest = watermark

    def process(self, batch: Batch) -> Batch | None:
        """Put the values into the windows of now."""
        now = [self._now_ms] * len(batch)
        return self._in_event_time(self._windows.process(Batch(batch.values, batch.keys, now, now)))

    def on_clock(self, now_ms: int, most: int | None = None) -> Batch | None:
        """Fire the windows that end at or before now; when the inputs have ended, all, and nothing early any more."""
        if now_ms == MAX_TIMESTAMP and isinstance(self._windows, TriggeredWindowOperator):
            self._windows.end_early()
        return self._in_event_time(self._windows.on_watermark(now_ms, most))

    def on_watermark(self, watermark: int, most: int | None = None) -> Batch | None:
        """Event time fires nothing."""
        return None

    def drop_due(self) -> Batch:
        """Nothing is due by event time."""
        return Batch([])

    def drop_alarm(self) -> Batch:
        """Remove the first pane, and return its window and its accumulator."""
        return self._windows.drop_due()

    def next_due(self) -> int:
        """Event time fires nothing."""
        return NEVER

    def next_alarm(self) -> int:
        """Return the time at which a window ends."""
        return self._windows.next_due()

    def lowest_stamp(self) -> int:
        """Hold event time back for nothing."""
        return NEVER

    def write_back(self) -> None:
        """Put what has changed into the store."""
        self._windows.write_back()

    def forget(self) -> None:
        """Drop what has changed."""
        self._windows.forget()

    def _in_event_time(self, panes: Batch | None) -> Batch | None:
        """Move panes up to the event time that was told, and withdrawn ones to the stamps of those in their place."""
        if panes is None:
            return None
        assert panes.timestamps is not None
        signs = panes.signs or [1] * len(panes)
        latest = zip(panes.timestamps, signs, strict=True)
        panes.timestamps = [at if sign == -1 else max(at, self._reached) for at, sign in latest]
        panes.stamps = [*panes.timestamps]
        for row in reversed(range(len(panes) - 1)):
            if signs[row] == -1:
                panes.stamps[row] = panes.stamps[row + 1]
        return panes
