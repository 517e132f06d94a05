"""The session windows over event time: values of a key that lie close together, until none comes for a while."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, cast

from operators.aggregations.aggregation import Aggregation
from operators.core.base import MAX_TIMESTAMP, MOST_HELD, NEVER, Batch, Key, Keys, Store, has_none
from operators.core.entry_keys import EntryKind, EntryKinds, Number, Rest, beyond
from operators.state.keyed_state import STATE, is_plain
from operators.state.noted_dues import NOTED, NotedDues
from operators.windows.partials import Partials
from operators.windows.window import NO_KEY, Pane, Window
from operators.windows.window_types import Sessions

ENTRIES: EntryKinds = {
    STATE: EntryKind("windows", Rest()),
    NOTED: EntryKind("end", Number("at_ms"), Rest(), of_users=False),
}
"""The kinds of entries in the store: all sessions of a key, and the times at which one of them might be due."""


@dataclass(slots=True, eq=False)
class Session:
    """A session that is open, with the values of a batch at work that are not in its accumulator yet."""

    key: Key
    start: int
    end: int
    held: Any
    more: list[Any] | None = None


class SessionOperator:
    """The sessions of one task: per key those that are open, in order.

    A value at t is in the session that has [t, t + gap), and sessions that overlap become one. Since a value is late
    when its own source had passed its time, a value in time can't reach a session that has fired, however sources are
    interleaved. A session is looked up when it might be due: it may have gone on since.

    Four things hold. An end is noted at or before that of each open session. A key is in use or has no session, or its
    sessions are in the store as they are; of a key in use all are here, that which is last apart from those before it.
    No accumulator that can be changed in place is both here and in the store. One thread at a time calls it, that of
    its task. Where ends are `noted` in the store, too, a start reads none of the sessions that are there.
    """

    calls: ClassVar[tuple[str, ...]] = ("aggregation",)

    def __init__(
        self,
        spec: Window,
        store: Store,
        keys: Keys,
        aggregation: Aggregation[Any, Any] | None = None,
        most_held: int = MOST_HELD,
        *,
        noted: bool = True,
    ) -> None:
        self.store = store
        self.keys = keys
        self.most_held = most_held
        self.gap_ms = spec.windows.gap_ms if isinstance(spec.windows, Sessions) else 0
        self.aggregation = aggregation or spec.aggregation
        self.late: Batch | None = None
        self._waits_ms = spec.waits_ms
        self._in_time: tuple[Any, ...] = (0, "final") if spec.emit == "final" else ()
        """The number and the timing of a pane, where they are not its defaults."""
        self._last: dict[Key, Session] = {}
        """The last session of each key in use."""
        self._before: dict[Key, list[Session]] = {}
        """The sessions before the last one, of those keys in use that have several."""
        self._changed: dict[Key, None] = {}
        """The keys of which the store has other sessions than there are."""
        self._lent: dict[Key, None] = {}
        """The keys in use with an accumulator of the store's that can be changed in place."""
        self._is_all_known = next(store.range(STATE), None) is None
        self._in_store: set[Key] = set()
        """The keys that have sessions in the store, as far as known: of each in use, and all from an empty store on."""
        self._ends: NotedDues[Key] = NotedDues(store, NOTED, keys.load, most_held)
        """When open sessions are to be looked at."""
        if not noted:
            self._note_ends()

    @property
    def unwritten(self) -> int:
        """The number of keys and ends that have changed and are not in the store yet."""
        return len(self._changed) + self._ends.unwritten

    def process(self, batch: Batch) -> Batch | None:
        """Put the values into sessions; those that are late are left in `late`."""
        keys, timestamps, stamps = batch.keys, batch.timestamps, batch.stamps
        if keys is None or has_none(keys):
            raise ValueError(NO_KEY)
        assert timestamps is not None and stamps is not None
        gap_ms, waits_ms, last, late = self.gap_ms, self._waits_ms, self._last.get, 0
        reached: list[Session] = []
        for value, key, timestamp, stamp in zip(batch.values, keys, timestamps, stamps, strict=True):
            if timestamp < stamp - waits_ms:
                late += 1
                continue
            # Most values are in the last session of their key, and make it longer at most. Its end lies a gap behind
            # its last value, so that one that makes it longer is not before its start.
            session, end = last(key), timestamp + gap_ms
            if session is None or timestamp >= session.end:
                session = self._session_at(key, timestamp, end)
            elif end > session.end:
                session.end = end
            elif timestamp < session.start:
                session = self._session_at(key, timestamp, end)
            more = session.more
            if more is None:
                session.more = [value]
                reached.append(session)
            else:
                more.append(value)
        self._add(reached)
        self.late = batch.take(self._late_rows(timestamps, stamps)) if late else None
        return None

    def merge(self, partials: Partials, stamp: int) -> None:
        """Take in stretches of sessions that were folded elsewhere, of values that are all in time."""
        merge: Callable[[Any, Any], Any] = cast(Any, self.aggregation).merge
        for key, (low, high, held) in zip(partials.keys, partials.accumulators, strict=True):
            session = self._session_at(key, low, high)
            session.held = merge(session.held, held)
            self._changed[key] = None
        self._relieve()

    def on_watermark(self, watermark: int, most: int | None = None) -> Batch | None:
        """Fire the sessions that have ended by `watermark`, and waited, by end, then by key."""
        fired: list[Session] = []
        for end, key in self._ends.each(watermark - self._waits_ms):
            session = self._take(key, end)
            if session is not None:
                fired.append(session)
                if len(fired) == most:
                    break
        if not fired:
            return None
        decode, finish, in_time = self.keys.decode, self.aggregation.finish, self._in_time
        panes = [Pane(decode(one.key), one.start, one.end, finish(one.held), *in_time) for one in fired]
        times = [one.end - 1 for one in fired]
        return Batch(panes, [one.key for one in fired], times, [*times])

    def drop_due(self) -> Batch:
        """Remove the first session that is due, and return its bounds and its accumulator."""
        session = None
        while session is None:
            end, key = self._ends.drop()
            session = self._take(key, end)
        return Batch([(session.start, session.end, session.held)], keys=[session.key])

    def next_due(self) -> int:
        """Return a watermark before which no session fires."""
        return min(self._ends.first() + self._waits_ms, NEVER)

    def lowest_stamp(self) -> int:
        """Return the lowest stamp that a pane still to fire may have."""
        first = self._ends.first()
        return first - 1 if first < NEVER else MAX_TIMESTAMP

    def write_back(self) -> None:
        """Put the sessions of keys that have changed into the store."""
        if self._changed:
            self._write(*_apart(self._changed, self._last))
            self._changed.clear()
        # What can be changed in place does not stay: read again from the store, the store always has the old one for a
        # savepoint to come back to.
        for key in self._lent:
            self._leave(key)
        self._lent.clear()
        if len(self._last) > self.most_held:
            self._last.clear()
            self._before.clear()
        self._ends.write_back()

    def newest(self, most: int) -> list[Any]:
        """Return the sessions of at most so many of the keys that have changed, those that changed first last."""
        keys = (key for key in reversed(self._changed) if key in self._last)
        return [*map(self._in_stored_form, islice(keys, most))]

    def forget(self) -> None:
        """Drop all changes since the last `write_back`, to which the store was rolled back."""
        for keys in (self._last, self._before, self._changed, self._lent):
            keys.clear()
        self._ends.forget()

    def _late_rows(self, timestamps: list[int], stamps: list[int]) -> list[int]:
        waits_ms = self._waits_ms
        rows = enumerate(zip(timestamps, stamps, strict=True))
        return [row for row, (timestamp, stamp) in rows if timestamp < stamp - waits_ms]

    def _add(self, reached: list[Session]) -> None:
        """Add the new values of sessions to their accumulators, and write back where too much is held."""
        add, changed = self.aggregation.add, self._changed
        for session in reached:
            # There are none where it has become one with another since.
            if session.more is not None:
                session.held = add(session.held, session.more)
                session.more = None
                changed[session.key] = None
        self._relieve()

    def _relieve(self) -> None:
        # Only a durable store frees memory: one in memory would hold the same beside what is here.
        if self.store.durable and self.unwritten > self.most_held:
            self.write_back()

    def _note_ends(self) -> None:
        """Note the end of each session in the store, which a version that noted none has written."""
        self.store.drop(NOTED, beyond(NOTED))
        for place, stored in self.store.range(STATE, beyond(STATE)):
            (key,) = self.keys.load([place[len(STATE) :]])
            assert key is not None
            for _, end, _ in stored:
                self._ends.add(end, place[len(STATE) :], key)

    def _write(self, keys: list[Any], gone: list[Any]) -> None:
        """Put all sessions of keys into the store, and remove those of keys that have none any more."""
        places = [*map(STATE.__add__, self.keys.encode_all(keys))]
        self.store.update(dict(zip(places, map(self._in_stored_form, keys), strict=True)))
        self._in_store.update(keys)
        # Of a session that has begun and fired since the last commit the store has never heard.
        gone = [key for key in gone if key in self._in_store]
        self.store.delete_all(map(STATE.__add__, self.keys.encode_all(gone)))
        self._in_store.difference_update(gone)

    def _in_stored_form(self, key: Key) -> tuple[tuple[int, int, Any], ...]:
        """Return start, end and accumulator of each session of a key."""
        sessions = self._all(key) if key in self._before else (self._last[key],)
        for one in sessions:
            if not is_plain(one.held):
                self._lent[key] = None
        return tuple([(one.start, one.end, one.held) for one in sessions])

    def _take_into_use(self, key: Key) -> Session | None:
        """Return the last session of a key that is not in use, from the store."""
        if key in self._changed or (self._is_all_known and key not in self._in_store):
            return None
        stored = self.store.get(STATE + self.keys.encode(key))
        if not stored:
            return None
        self._in_store.add(key)
        sessions = [Session(key, start, end, held) for start, end, held in stored]
        if not all(is_plain(one.held) for one in sessions):
            self._lent[key] = None
        self._keep(key, sessions)
        return sessions[-1]

    def _all(self, key: Key) -> list[Session]:
        """Return the sessions of a key in use that has some."""
        return [*self._before.get(key, ()), self._last[key]]

    def _keep(self, key: Key, sessions: list[Session]) -> None:
        """Let these be all sessions of a key."""
        self._leave(key)
        if sessions:
            self._last[key] = sessions[-1]
        if len(sessions) > 1:
            self._before[key] = sessions[:-1]

    def _leave(self, key: Key) -> None:
        self._last.pop(key, None)
        self._before.pop(key, None)

    def _take(self, key: Key, end: int) -> Session | None:
        """Remove the session of a key that has ended; None where it has gone on, or has become one with another."""
        last = self._last.get(key) or self._take_into_use(key)
        if last is None:
            return None
        sessions = self._all(key) if key in self._before else (last,)
        for session in sessions:
            if session.end == end:
                self._changed[key] = None
                if session is last and len(sessions) == 1:
                    del self._last[key]
                else:
                    self._keep(key, [one for one in sessions if one is not session])
                return session
            # It has gone on: a value that makes a session longer notes no end, and its new one is learned only here.
            if session.start < end < session.end:
                self._ends.add(session.end, self.keys.encode(key), key)
        return None

    def _session_at(self, key: Key, low: int, high: int) -> Session:
        """Return the session that a value makes or joins, which may become one of several by it."""
        last = self._last.get(key) or self._take_into_use(key)
        before = self._before.get(key)
        if last is None or low >= last.end:
            if last is not None:
                self._before.setdefault(key, []).append(last)
            session = self._last[key] = self._begun(key, low, high)
            return session
        if high > last.start and (before is None or before[-1].end <= low):
            last.start, last.end = min(low, last.start), max(high, last.end)
            return last
        return self._session_among(self._all(key), low, high)

    def _session_among(self, sessions: list[Session], low: int, high: int) -> Session:
        """Return the session of a value that is before the end of the last one of these, all that its key has."""
        key = sessions[0].key
        first = last = next(place for place, session in enumerate(sessions) if low < session.end)
        while last < len(sessions) and sessions[last].start < high:
            last += 1
        if first == last:
            session = self._begun(key, low, high)
            sessions.insert(first, session)
        else:
            session = sessions[first]
            self._join(session, sessions[first + 1 : last])
            del sessions[first + 1 : last]
            session.start, session.end = min(low, session.start), max(high, session.end)
        self._keep(key, sessions)
        return session

    def _begun(self, key: Key, low: int, high: int) -> Session:
        """Return a new session, whose end is noted."""
        self._ends.add(high, self.keys.encode(key), key)
        return Session(key, low, high, self.aggregation.init())

    def _join(self, session: Session, others: list[Session]) -> None:
        """Make one of sessions that overlap now."""
        if not others:
            return
        aggregation: Any = self.aggregation
        merge: Callable[[Any, Any], Any] = aggregation.merge
        # Values that are not in yet are added first, so that whole accumulators are merged, in the order of time.
        for one in (session, *others):
            if one.more is not None:
                one.held, one.more = aggregation.add(one.held, one.more), None
        for other in others:
            session.held = merge(session.held, other.held)
            session.end = other.end


def _apart(changed: dict[Key, None], last: dict[Key, Session]) -> tuple[list[Any], list[Any]]:
    """Return the keys that have sessions, and those that have none any more."""
    return [key for key in changed if key in last], [key for key in changed if key not in last]
