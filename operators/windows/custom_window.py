"""The windows of a user's own, which a function assigns to each value, and which may merge where they overlap."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from operators.core.base import EARLIEST_MS, LATEST_MS, MOST_HELD, Batch, Copies, Key, Keys, Store, has_none
from operators.core.wording import shown
from operators.state.place_dues import Bounds
from operators.windows.session import Session, SessionOperator
from operators.windows.window import NO_KEY, Window, WindowOperator
from operators.windows.window_groups import Groups
from operators.windows.window_types import ByRow, Sessions

StartEnd = tuple[int, int]
ALL = (0,)
"""The bounds of all windows of a key that may merge; else a place has its window's start, or a user's own bounds."""
Assigned = tuple[Bounds, int, int, int]
"""A window of a value: its place, its bounds, and the watermark from which on the value is late there."""


class Assigning:
    """The common part of operators that ask the user's function for the windows of a value, and check them.

    Where the windows are those of a table's row, a value comes with the row, and goes on without it.
    """

    assign: Callable[..., Any]
    keys: Keys
    by_row: bool
    merges: bool
    windows: Any
    _assigns: bool
    _waits_ms: int

    def windows_of(self, key: Key, timestamp: int, value: Any) -> tuple[Any, list[StartEnd]]:
        """Return a value and its windows in the order of their ends; raises ValueError for anything but windows."""
        if self.by_row:
            value, row = value
            kind = self.assign(row)
            if not hasattr(kind, "cell"):
                wrong = f"windows_by(...) got {kind!r} from its function, which is no kind of window that all share"
                raise ValueError(f"{wrong}; return tumbling(hours=1), hopping(...) or daily(...)")
            return value, list(kind.cell(timestamp).windows)
        found = self.assign(self.keys.decode(key), timestamp, value)
        if not isinstance(found, Iterable):
            raise ValueError(f"assign(...) returned {shown(found)}; return a list: [(timestamp, timestamp + 60_000)]")
        # A window that is returned twice is one, and has the value once.
        windows = list(dict.fromkeys(map(self._checked, found)))
        if self.merges and any(start < timestamp for start, _ in windows):
            wrong = f"assign(...) returned {windows!r} for a value at {timestamp}, and windows that merge begin with it"
            why = "what they meet would else depend on the order in which partitions are read"
            raise ValueError(f"{wrong}: {why}; return [(timestamp, ...)], or leave merges = True out")
        return value, sorted(windows, key=lambda window: window[::-1])

    def _checked(self, window: Any) -> StartEnd:
        try:
            start, end = window
        except (TypeError, ValueError):
            start = end = None
        if type(start) is not int or type(end) is not int or not EARLIEST_MS <= start < end <= LATEST_MS:
            wrong = f"assign(...) returned {window!r} among the windows, which is no start and later end in whole ms"
            raise ValueError(f"{wrong}; return [(timestamp, timestamp + 60_000)]")
        return start, end

    def windows_at(self, key: Key, timestamp: int, value: Any) -> tuple[Any, list[Assigned]]:
        """Return a value and its windows, with their places."""
        if isinstance(self.windows, Sessions):
            end = timestamp + self.windows.gap_ms
            return value, [(ALL, timestamp, end, timestamp + 1 + self._waits_ms)]
        if self._assigns:
            value, found = self.windows_of(key, timestamp, value)
            return value, [self.assigned(start, end, timestamp + 1 if self.merges else end) for start, end in found]
        return value, [self.assigned(start, end, end) for start, end in self.windows.cell(timestamp).windows]

    def assigned(self, start: int, end: int, awaited: int) -> Assigned:
        """Return a window with its place, and from when on a value is late there, given when it ends for the value."""
        bounds = ALL if self.merges else (start, end) if self._assigns else (start,)
        return bounds, start, end, awaited + self._waits_ms

    def take_late(self, batch: Batch, late: list[int]) -> Batch | None:
        """Return the late rows of a batch, as they came to the window."""
        rows = batch.take(late) if late else None
        if rows is not None and self.by_row:
            rows.values = [value for value, _ in rows.values]
        return rows


class AssignedOperator(Assigning, WindowOperator):
    """The windows of one task, each value in those that the user's function assigns to it."""

    calls = ("aggregation", "assign")
    merges = False

    def __init__(
        self,
        spec: Window,
        store: Store,
        keys: Keys,
        copies: Copies,
        functions: Mapping[str, Any],
        most_held: int = MOST_HELD,
    ) -> None:
        super().__init__(spec, store, keys, copies, functions["aggregation"], most_held)
        self.assign = functions["assign"]
        self.by_row = isinstance(spec.windows, ByRow)

    def process(self, batch: Batch) -> Batch | None:
        if batch.keys is None or has_none(batch.keys):
            raise ValueError(NO_KEY)
        assert batch.timestamps is not None and batch.stamps is not None
        groups, late = Groups(self.windows, self._lateness_ms, False, self._waits_ms, self._in_turn), list[int]()
        columns = zip(batch.values, batch.keys, batch.timestamps, batch.stamps, strict=True)
        for row, (value, key, timestamp, stamp) in enumerate(columns):
            plain, windows = self.windows_of(key, timestamp, value)
            if windows:
                group = groups.of(windows, stamp)
                if group is None:
                    late.append(row)
                elif groups.in_turn:
                    group[key] += (plain, row)
                else:
                    group[key].append(plain)
        self.late = self.take_late(batch, late)
        self.add(groups)
        return None


class MergingOperator(Assigning, SessionOperator):
    """The windows of one task that merge where they overlap: sessions whose length the values say."""

    calls = ("aggregation", "assign")
    merges = True
    by_row = False

    def __init__(
        self,
        spec: Window,
        store: Store,
        keys: Keys,
        functions: Mapping[str, Any],
        most_held: int = MOST_HELD,
        *,
        noted: bool = True,
    ) -> None:
        super().__init__(spec, store, keys, functions["aggregation"], most_held, noted=noted)
        self.assign = functions["assign"]

    def process(self, batch: Batch) -> Batch | None:
        """Put the values into windows; those that are late are left in `late`."""
        if batch.keys is None or has_none(batch.keys):
            raise ValueError(NO_KEY)
        assert batch.timestamps is not None and batch.stamps is not None
        reached: list[Session] = []
        late: list[int] = []
        columns = zip(batch.values, batch.keys, batch.timestamps, batch.stamps, strict=True)
        for row, (value, key, timestamp, stamp) in enumerate(columns):
            plain, windows = self.windows_of(key, timestamp, value)
            if windows and timestamp < stamp - self._waits_ms:
                late.append(row)
                continue
            for start, end in windows:
                session = self._session_at(key, start, end)
                if session.more is None:
                    session.more = []
                    reached.append(session)
                session.more.append(plain)
        self._add(reached)
        self.late = self.take_late(batch, late)
        return None
