"""The session windows over event time: values of a key that lie close together, until none comes for a while."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from operators.aggregations.aggregation import Aggregation
from operators.core.base import MAX_TIMESTAMP, MOST_HELD, NEVER, Batch, Key, Keys, Store
from operators.state.entry_keys import beyond
from operators.state.key_cache import KeyStates
from operators.state.keyed_state import STATE
from operators.windows.window import NO_KEY, Pane, Window
from operators.windows.window_types import Sessions

START, END, HELD = range(3)
"""The places of a session's bounds and accumulator; its new values lie behind these while a batch is taken in."""


class SessionOperator(KeyStates):
    """The sessions of one task: per key those that are open, in order.

    A value at t is in the session that has [t, t + gap), and sessions that overlap become one. Since a value is late
    when its own source had passed its time, a value in time can't reach a session that has fired, however sources are
    interleaved. A session is looked up when it might be due: it may have gone on since. Every open session is in the
    heap at or before its end, and one thread at a time calls it, that of its task.
    """

    calls: ClassVar[tuple[str, ...]] = ("aggregation",)

    def __init__(
        self,
        spec: Window,
        store: Store,
        keys: Keys,
        aggregation: Aggregation[Any, Any] | None = None,
        most_held: int = MOST_HELD,
    ) -> None:
        super().__init__(store, keys, None, most_held)
        self.gap_ms = spec.windows.gap_ms if isinstance(spec.windows, Sessions) else 0
        self.aggregation = aggregation or spec.aggregation
        self.late: Batch | None = None
        self._waits_ms = spec.waits_ms
        self._in_time: tuple[Any, ...] = (0, "final") if spec.emit == "final" else ()
        """The number and the timing of a pane, where they are not its defaults."""
        self._due = [*self._stored()]
        """The ends of open sessions when they were last looked at, with their keys as bytes and as held; a heap."""
        heapq.heapify(self._due)
        self._looked_at: list[tuple[int, bytes, Key]] = []
        """The entries that were taken from the heap since the states were last written back."""

    def process(self, batch: Batch) -> Batch | None:
        """Put the values into sessions; those that are late are left in `late`."""
        if batch.keys is None or None in batch.keys:
            raise ValueError(NO_KEY)
        assert batch.timestamps is not None and batch.stamps is not None
        by_key: dict[Key, list[tuple[int, Any]]] = defaultdict(list)
        late: list[int] = []
        waits_ms = self._waits_ms
        columns = zip(batch.values, batch.keys, batch.timestamps, batch.stamps, strict=True)
        for row, (value, key, timestamp, stamp) in enumerate(columns):
            if timestamp < stamp - waits_ms:
                late.append(row)
            else:
                by_key[key].append((timestamp, value))
        for key, values in by_key.items():
            self._take_in(key, values)
        self.late = batch.take(late) if late else None
        self.relieve()
        return None

    def on_watermark(self, watermark: int, most: int | None = None) -> Batch | None:
        """Fire the sessions that have ended by `watermark`, and waited, by end, then by key."""
        panes = Batch([], keys=[], timestamps=[], stamps=[])
        assert panes.keys is not None and panes.timestamps is not None and panes.stamps is not None
        ended = watermark - self._waits_ms
        while self._due and self._due[0][0] <= ended and (most is None or len(panes) < most):
            key, session = self._next()
            if session is not None:
                start, end, held = session
                result = self.aggregation.finish(held)
                panes.values.append(Pane(self.keys.decode(key), start, end, result, *self._in_time))
                panes.keys.append(key)
                panes.timestamps.append(end - 1)
                panes.stamps.append(end - 1)
        return panes if panes.values else None

    def drop_due(self) -> Batch:
        """Remove the first session that is due, and return its bounds and its accumulator."""
        key, session = self._next()
        while session is None:
            key, session = self._next()
        return Batch([tuple(session)], keys=[key])

    def next_due(self) -> int:
        """Return a watermark before which no session fires."""
        return self._due[0][0] + self._waits_ms if self._due else NEVER

    def lowest_stamp(self) -> int:
        """Return the lowest stamp that a pane still to fire may have."""
        return self._due[0][0] - 1 if self._due else MAX_TIMESTAMP

    def write_back(self) -> None:
        """Put the sessions of keys that have changed into the store."""
        super().write_back()
        self._looked_at.clear()

    def forget(self) -> None:
        """Drop all changes since the last `write_back`; the sessions looked at since are looked at again."""
        super().forget()
        # The sessions that were taken since are back in the store, and due as they were.
        self._due += self._looked_at
        heapq.heapify(self._due)
        self._looked_at.clear()

    def _stored(self) -> Iterator[tuple[int, bytes, Key]]:
        for place, sessions in self.store.range(STATE, beyond(STATE)):
            data = place[len(STATE) :]
            (key,) = self.keys.load([data])
            assert key is not None
            yield from ((session[END], data, key) for session in sessions)

    def _next(self) -> tuple[Key, list[Any] | None]:
        """Remove the session that is due next; None where it has gone on, or was looked at before."""
        looked_at = heapq.heappop(self._due)
        self._looked_at.append(looked_at)
        end, data, key = looked_at
        sessions = self.read(key) or []
        for place, session in enumerate(sessions):
            if session[END] == end:
                self.changed[key] = [*sessions[:place], *sessions[place + 1 :]] or None
                return key, session
            # It has gone on: a value that makes a session longer touches no heap, and its new end is learned only here.
            if session[START] < end < session[END]:
                heapq.heappush(self._due, (session[END], data, key))
        return key, None

    def _take_in(self, key: Key, values: list[tuple[int, Any]]) -> None:
        """Put the values of one key into its sessions, in the order in which they came."""
        sessions, gap_ms, add = [[*session, []] for session in self.read(key) or ()], self.gap_ms, self.aggregation.add
        session: list[Any] = [0, 0]
        low = high = before = 0  # of the session at hand, and what it must not reach
        # Values of a batch mostly follow each other in one session, which is so looked for once and only made longer.
        for timestamp, value in values:
            if low <= timestamp < high and timestamp + gap_ms <= before:
                if timestamp + gap_ms > high:
                    high = timestamp + gap_ms
            else:
                session[END] = high
                place = self._session_at(key, sessions, timestamp, timestamp + gap_ms)
                session = sessions[place]
                low, high = session[:HELD]
                before = sessions[place + 1][START] if place + 1 < len(sessions) else MAX_TIMESTAMP
                more = session[-1]
            more.append(value)
        session[END] = high
        for session in sessions:
            more = session.pop()
            if more:
                session[HELD] = add(session[HELD], more)
        self.changed[key] = sessions

    def _session_at(self, key: Key, sessions: list[list[Any]], low: int, high: int) -> int:
        """Return the place of the session that a value makes or joins, which may become one of several by it."""
        first = next((place for place, session in enumerate(sessions) if low < session[END]), len(sessions))
        last = first
        while last < len(sessions) and sessions[last][START] < high:
            last += 1
        if first == last:
            sessions.insert(first, [low, high, self.aggregation.init(), []])
            heapq.heappush(self._due, (high, self.keys.encode(key), key))
            return first
        session = sessions[first]
        if last - first > 1:
            self._join(session, sessions[first + 1 : last])
            del sessions[first + 1 : last]
        session[START], session[END] = min(low, session[START]), max(high, session[END])
        return first

    def _join(self, session: list[Any], others: list[list[Any]]) -> None:
        """Make one of sessions that overlap now."""
        aggregation: Any = self.aggregation
        merge: Callable[[Any, Any], Any] = aggregation.merge
        # Values that are not in yet are added first, so that whole accumulators are merged, in the order of time.
        for one in (session, *others):
            one[HELD], one[-1] = aggregation.add(one[HELD], one[-1]) if one[-1] else one[HELD], []
        for other in others:
            session[HELD] = merge(session[HELD], other[HELD])
            session[END] = other[END]
