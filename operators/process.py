"""The process operator: a user's function over messages with keyed state, timers and alarms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import islice
from sys import getrefcount
from typing import TYPE_CHECKING, Any, ClassVar, Generic

from operators.core.base import (
    EARLIEST_MS,
    LATEST_MS,
    MIN_TIMESTAMP,
    MOST_HELD,
    NEVER,
    NO_HEADERS,
    Batch,
    Form,
    Headers,
    Key,
    Keys,
    OperatorContext,
    Serde,
    Spec,
    Store,
)
from operators.core.durations import FIRST_REAL_MS, FIRST_REAL_S, LAST_REAL_S, whole_ms
from operators.core.entry_keys import KEY, EntryKind, EntryKinds, Number, Rest
from operators.state.key_cache import READ_STATE, KeyStates, emitted_of, loop_of
from operators.state.key_collections import (
    LIST,
    LIST_ENTRIES,
    MAP,
    MAP_ENTRIES,
    MAP_KEY,
    NAME,
    EntryKeys,
    KeyLists,
    ListState,
    MapState,
    place_of,
    remove_all,
)
from operators.state.keyed_state import KEY_STATES, OWN_REFERENCES, STATE, UNCHANGEABLE, K, Lending, S, meaning_of
from operators.state.timers import Timers

TIMER, ALARM, EXPIRY, TOUCHED = b"t", b"a", b"x", b"u"
"""The first byte of entries in the store: of timers, of alarms, of expiries of states, and of their last use."""
ENTRIES: EntryKinds = {
    **KEY_STATES,
    TOUCHED: EntryKind("last use", Rest(), of_users=False),
    TIMER: EntryKind("timer", Number("at_ms"), Rest(), of_users=False),
    ALARM: EntryKind("alarm", Number("at_ms"), Rest(), of_users=False),
    EXPIRY: EntryKind("expiry", Number("at_ms"), Rest(), of_users=False),
    LIST: LIST_ENTRIES,
    MAP: MAP_ENTRIES,
}
"""The kinds of entries in the store."""
Handler = Callable[..., Iterable[object] | None]
"""A function of the user for messages, timers or alarms; it returns what is emitted."""
IN_HAND = frozenset({tuple, list, type(None)})
"""The types of results that are complete; a generator would go on after its state was looked at."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Process(Spec):
    """Call `on_message(value, context)` per message, and others when a timer is due by event time or by the clock."""

    on_message: Handler
    on_timer: Handler | None = None
    on_alarm: Handler | None = None
    init: Callable[[], object] | None = None
    ttl_ms: int | None = None
    store: str = "lmdb"
    state: Serde | None = None
    lists: Mapping[str, Serde] = field(default_factory=dict)
    """The declared serdes of the values in the context's lists, by name."""
    maps: Mapping[str, Serde] = field(default_factory=dict)

    kind: ClassVar[str] = "process"
    declares: ClassVar[str] = "process(..., state=MySerde())"
    stateful: ClassVar[bool] = True
    keyed: ClassVar[bool] = True
    event_time: ClassVar[bool] = True
    hands_on_headers: ClassVar[bool] = True
    uses_headers: ClassVar[bool] = True
    needs_id: ClassVar[bool] = True
    order_sensitive: ClassVar[bool] = True
    binds: ClassVar[tuple[str, ...]] = (
        *("changed", "clean", "look_up", "lender", "references", "lend", "decode", "unchangeable", "in_hand"),
    )

    @property
    def wall_clock(self) -> bool:  # type: ignore[override]
        """Whether it has alarms."""
        return self.on_alarm is not None

    @property
    def beyond_keys(self) -> bool:  # type: ignore[override]
        """Whether its results depend on the partition's event time, as timers and expiring state do."""
        return self.on_timer is not None or self.ttl_ms is not None

    @property
    def holds_plain(self) -> bool:  # type: ignore[override]
        """Whether it needs no cache of such: it has one of states itself, and timers are beside the store."""
        return self.ttl_ms is None  # by which the last use of a key is asked for with each message

    @property
    def keyed_code(self) -> tuple[str, ...] | None:  # type: ignore[override]
        """The code for a message; None where timers or expiries may be due between messages."""
        if self.beyond_keys:
            return None
        return (CONTEXT, "context_{id}.headers = {header}", *ON_MESSAGE[1:]) if self.is_given_headers else ON_MESSAGE

    def functions(self) -> dict[str, Callable[..., object]]:
        """The user's functions."""
        named = {name: getattr(self, name) for name in ("on_message", "on_timer", "on_alarm", "init")}
        return {name: function for name, function in named.items() if function is not None}

    def meaning(self) -> str:
        """Return the meaning of the states that `init` makes."""
        return meaning_of(self.init)

    def entry_kinds(self) -> EntryKinds:
        """Return states, lists and maps, timers and alarms, and what makes states expire."""
        return ENTRIES

    def part_serdes(self, key: Serde | None) -> Mapping[str, Serde | None]:
        """Return the serdes of keys, and of those of maps."""
        return {KEY: key, MAP_KEY: None}

    def declared_of(self, parts: Mapping[str, object]) -> Serde | None:
        """Return the declared serde of a list or a map, or of states."""
        declared = self.maps if MAP_KEY in parts else self.lists if NAME in parts else None
        return self.state if declared is None else declared.get(str(parts[NAME]))

    def build(self, context: OperatorContext) -> ProcessOperator:
        """Return its operator, which keeps states, lists and maps as was declared."""
        serde = EntryKeys(context.formats.serde(None), context.formats.keys(None), context.note_entry_key)
        form_of = context.formats.form
        operator = ProcessOperator(self, context.functions, context.store, context.keys, serde, context.most_held)
        operator.form = form_of(self.state)
        operator.lending = operator.lists.lending = Lending(context.late_use)
        for kind, declared in ((LIST, self.lists), (MAP, self.maps)):
            for name, of_values in declared.items():
                form = form_of(of_values)
                assert form is not None
                operator.forms[kind, name] = form
        return operator


CONTEXT = "context_{id} = {lender}.context"
ON_MESSAGE = (
    CONTEXT,
    *READ_STATE,
    "context_{id}.key = {user_key}",
    "context_{id}._place, context_{id}.timestamp, context_{id}.state = {key}, {timestamp}, state_{id}",
    "emitted_{id} = {on_message}({value}, context_{id})",
    "if type(emitted_{id}) not in {in_hand}: emitted_{id} = [*emitted_{id}]",
    "left_{id} = context_{id}.state",
    f"if {{references}}(context_{{id}}) > {OWN_REFERENCES}: {{lend}}()",
    "if left_{id} is not state_{id} or type(left_{id}) not in {unchangeable}: {changed}[{key}] = left_{id}",
    "if left_{id} is None: {clean}.pop({key}, None)",
    "for {out} in emitted_{id} or ():",
)
"""The code of one message, which the planner fuses with that of its neighbours."""
STATE_SLOT = ("state",)
"""A field, for speed, which type checkers are told is a property: it may be set to None."""


class ProcessContext(Generic[K, S]):
    """The context of a `process` function: the key, the time, the key's state, and its timers.

    `state` is this key's value, None (or what `init` makes) at first: assign a new one, or change it in place; None
    removes it. `timestamp` is the message's event time, or the timer's, in ms. `headers` are the message's where its
    input is of `headers=True`; timers have none, and what is emitted for a message goes on with them. The context is of
    use during the call: the next one is handed the same object.

    >>> def once_a_minute(value, context):
    ...     if context.state is None:
    ...         context.set_timer(context.timestamp + 60_000)
    ...     context.state = value
    >>> def on_timer(at_ms, context):
    ...     return [(context.key, context.state)]
    """

    __slots__ = (
        "_is_late",
        "_list_of",
        "_lists",
        "_operator",
        "_place",
        "_stamp",
        "_timers",
        "headers",
        "key",
        *STATE_SLOT,
        "timestamp",
    )

    key: K
    timestamp: int
    headers: Mapping[str, bytes | None]
    if TYPE_CHECKING:

        @property
        def state(self) -> S:
            """This key's state; setting it to None removes it."""

        @state.setter
        def state(self, value: S | None) -> None: ...

    def __init__(self, operator: ProcessOperator) -> None:
        self._operator = operator
        self._place: Key = b""
        # At hand, for speed: they are asked for with each message.
        self._lists, self._list_of = operator.lists.by_name, operator.lists.of
        self._timers = operator.timers if operator.has_timers else None
        self._stamp = MIN_TIMESTAMP
        """The stamp of the message at hand, where a timer is late that is set for no later."""
        self._is_late = False
        self.headers = NO_HEADERS

    @property
    def now_ms(self) -> int:
        """The time by the clock, in ms since the epoch; raises ValueError where `process` was given no `on_alarm`."""
        return self._operator.now_ms

    def set_timer(self, at_ms: int | timedelta) -> None:
        """Ask for `on_timer` at this event time, for this key; asking twice for the same time is asking once.

        A timedelta is a time so long after `timestamp`.

        `on_timer` finds in its state the messages of its key from before that time, as their source partition counts
        it. Where a key has several sources, one that is behind may ask again for what was called for one that is ahead.
        At the end of the inputs all timers are due. Those that `on_timer` sets from then on are, too.

        One that is due already, by the watermark of the message's source, is called right behind the message.

        Raises ValueError where `process` was given no `on_timer`, for a key whose timers go on and on at the end, and
        for a time that is of our time in seconds where the message's own is in ms.
        """
        at = at_ms if type(at_ms) is int else _after("set_timer", self.timestamp, at_ms)
        if self._timers is None:
            _no_timer(at, self)
        elif type(at) is not int or not EARLIEST_MS <= at <= LATEST_MS:
            raise _no_time("set_timer", at)
        elif at < LAST_REAL_S and _is_in_seconds(at, self.timestamp):
            raise _seconds("set_timer", at)
        else:
            self._timers.set(self._place, at)
            if at <= self._stamp:
                self._is_late = True

    def delete_timer(self, at_ms: int | timedelta) -> None:
        """Take back a timer of this key; nothing happens where there is none."""
        at = at_ms if type(at_ms) is int else _after("delete_timer", self.timestamp, at_ms)
        self._operator.delete_timer(self._place, at)

    def set_alarm(self, at_ms: int | timedelta) -> None:
        """Ask for `on_alarm` when it is this time by the clock, for this key; else it is like `set_timer`.

        A timedelta is a time so long after `now_ms`.
        """
        at = at_ms if type(at_ms) is int else _after("set_alarm", self.now_ms, at_ms)
        self._operator.set_alarm(self._place, at)

    def delete_alarm(self, at_ms: int | timedelta) -> None:
        """Take back an alarm of this key; nothing happens where there is none."""
        at = at_ms if type(at_ms) is int else _after("delete_alarm", self.now_ms, at_ms)
        self._operator.alarms.delete(self._place, at)

    def list(self, name: str) -> ListState[Any]:
        """Return a list among this key's state, whose entries are read and written one by one."""
        named = self._lists.get(name)
        # Mostly it is in use, which saves a call.
        if named is None or (found := named.get(self._place)) is None:
            return self._list_of(self._place, name)
        return found

    def map(self, name: str) -> MapState[Any, Any]:
        """Return a map among this key's state, whose entries are read and written one by one."""
        operator = self._operator
        place, form = operator.place(MAP, self._place, name), operator.forms.get((MAP, name))
        return MapState(self, place, operator.serde, form)


class ProcessOperator(KeyStates):
    """One task's share of a `process`: the states of its keys, and their timers, which are in the store.

    A timer is due for its key when a message of that key comes whose source is past it, and at the latest when event
    time is: so the state that it finds does not depend on how messages were batched. One thread at a time calls it,
    and one context serves all calls, for speed.
    """

    def __init__(
        self,
        spec: Process,
        functions: dict[str, Callable[..., Any]],
        store: Store,
        keys: Keys,
        serde: Serde,
        most_held: int = MOST_HELD,
    ) -> None:
        super().__init__(store, keys, functions.get("init"), most_held)
        self.serde = serde
        self.forms: dict[tuple[bytes, str], Form] = {}
        """The stored forms of the values in lists and maps, where these are declared."""
        self.on_message: Handler = functions["on_message"]
        self.on_timer: Handler = functions.get("on_timer", _no_timer)
        self.on_alarm: Handler = functions.get("on_alarm", _no_alarm)
        self.calls = ["on_message", "on_timer", "on_alarm", *(["init"] if self.init is not None else [])]
        self.in_hand = IN_HAND
        self.timers, self.alarms, self._expiries = (
            Timers(store, keys, prefix, most_held) for prefix in (TIMER, ALARM, EXPIRY)
        )
        self.lists = KeyLists(store, partial(self.place, LIST), lambda name: self.forms.get((LIST, name)), most_held)
        self._held = (self.lists, self.timers, self.alarms, self._expiries)
        """The parts that are beside the store as well as the states."""
        self._ttl_ms = spec.ttl_ms
        self.has_timers, self._has_alarms = "on_timer" in functions, "on_alarm" in functions
        self._waits = self.has_timers or spec.ttl_ms is not None
        self.context: ProcessContext[object, object] = ProcessContext(self)
        self.lender, self.references = self, getrefcount
        self.lending = self.lists.lending
        self._own_references = OWN_REFERENCES
        """The references to the context that calls of timers make themselves, of which some are between messages."""
        self._now_ms: int | None = None
        self._reached = MIN_TIMESTAMP
        self._called_for_ms = NEVER
        """The time of the timer or alarm that was called last."""
        self._fired_ms = MIN_TIMESTAMP
        """The latest time of a timer that was called as event time came to it."""
        self.late: Batch | None = None
        """The messages so late that their key's state had expired, or that a timer they set was due already."""

    @property
    def unwritten(self) -> int:
        """The number of changed states and timers that are not in the store yet."""
        return len(self.changed) + sum(part.unwritten for part in self._held)

    @property
    def now_ms(self) -> int:
        """The time by the clock; raises ValueError where nothing tells it."""
        if self._now_ms is None:
            raise ValueError(
                "process(...) is told the time where it has alarms; write instead: process(..., on_alarm=)"
            )
        return self._now_ms

    def process(self, batch: Batch) -> Batch | None:
        """Hand each message to the user's function; what it returns carries the message's key, time and stamp."""
        assert batch.timestamps is not None
        self.late = None
        if self._waits or batch.headers is not None:
            emitted = self._process_each(batch)
        else:
            found = _process(self, batch.values, batch.keys or [None] * len(batch), batch.timestamps)
            emitted = emitted_of(found, batch)
        self.relieve()
        return emitted

    def on_watermark(self, watermark: int, most: int | None = None) -> Batch | None:
        """Call the timers that are due, in order of time and key; those that they set and are due, too."""
        if watermark < self.next_due():
            return None
        out = _nothing()
        due = self._unexpired(islice(self.timers.due(watermark), most))
        # One that an alarm has set, or a timer, for before what event time has reached was none of those below it.
        reached = max(self._reached, self._fired_ms)
        self._fired_ms = self._call_due(self.on_timer, due, MIN_TIMESTAMP, out, reached)
        if watermark >= self._expiries.first and watermark < self.timers.first:
            self._expire(watermark)
        return out if out.values else None

    def on_clock(self, now_ms: int, most: int | None = None) -> Batch | None:
        """Call the alarms that are due, in order of time and key."""
        out = _nothing()
        self._call_due(self.on_alarm, islice(self.alarms.due(now_ms), most), self._reached, out)
        return out if out.values else None

    def heed(self, now_ms: int, watermark: int) -> None:
        """Learn the time."""
        self._now_ms, self._reached = now_ms, watermark

    def drop_due(self) -> Batch:
        """Remove the first timer, and return its time."""
        at_ms, key = self.timers.drop()
        return Batch([at_ms], keys=[key])

    def drop_alarm(self) -> Batch:
        """Remove the first alarm, and return its time."""
        at_ms, key = self.alarms.drop()
        return Batch([at_ms], keys=[key])

    def next_due(self) -> int:
        """Return the time of the first timer, or at which a state expires."""
        return min(self.timers.first, self._expiries.first)

    def next_alarm(self) -> int:
        """Return the time of the first alarm."""
        return self.alarms.first

    def lowest_stamp(self) -> int:
        """Return a time before the first timer's."""
        return self.timers.first - 1

    def lend(self) -> None:
        """Let the next call have another context, and nobody use the one that somebody has kept behind its call."""
        kept, self.context = self.context, ProcessContext(self)
        self.lending.end(kept, lambda name: "map(...)" if name == "_operator" else name)  # by which maps find the store

    def relieve(self) -> None:
        """Write back where too much is held; raises what a context was used for behind its call."""
        self.lending.check()
        super().relieve()

    def write_back(self) -> None:
        """Put the states and timers that have changed into the store; raises as `relieve` does."""
        self.lending.check()
        super().write_back()
        for part in self._held:
            part.write_back()

    def newest(self, most: int) -> list[object]:
        """Return at most so many of the states and of the lists' entries that are not in the store yet."""
        states = super().newest(most)
        return [*states, *islice(self.lists.newest(), most - len(states))]

    def forget(self) -> None:
        """Drop the states and timers that have changed."""
        super().forget()
        # What others do with the one of a call that raised is of no key that comes.
        self.context = ProcessContext(self)
        for part in self._held:
            part.forget()

    def delete_timer(self, key: Key, at_ms: int) -> None:
        """Take a timer back."""
        self.timers.delete(key, at_ms)

    def set_alarm(self, key: Key, at_ms: int) -> None:
        """Remember an alarm of `key`; raises ValueError where there is nothing to call then."""
        if not self._has_alarms:
            _no_alarm(at_ms, None)
        if type(at_ms) is not int or not EARLIEST_MS <= at_ms <= LATEST_MS:
            raise _no_time("set_alarm", at_ms)
        if at_ms < LAST_REAL_S and _is_in_seconds(at_ms, self.now_ms):
            raise _seconds("set_alarm", at_ms)
        self.alarms.set(key, at_ms)

    def place(self, kind: bytes, key: Key, name: str) -> bytes:
        """Return the prefix of the entries of a key's list or map of this name."""
        return place_of(kind, self.keys.encode(key), name)

    def _process_each(self, batch: Batch) -> Batch | None:
        """Call the function for each message, and before it the timers that are due for its key."""
        assert batch.timestamps is not None
        out, stamps = _nothing(), batch.stamps or batch.timestamps
        times_of = self.timers.look_ahead(max(stamps)).get
        rows = zip(batch.values, batch.keys or [None] * len(batch), batch.timestamps, stamps, strict=True)
        late: list[int] = []
        context, ttl_ms, looks = self.context, self._ttl_ms, self.looks
        self._own_references = OWN_REFERENCES + 1
        changed, clean, state_of = self.changed, self.clean, self.changed.get
        headers, before = batch.headers, 0
        try:
            for row, (value, key, timestamp, stamp) in enumerate(rows):
                if (times := times_of(key)) is not None and times[0] <= stamp:
                    self._fire_before(key, stamp, out)
                    context = self.context
                if ttl_ms is not None and key is not None:
                    self._touch(key, timestamp, stamp)
                    context._is_late = timestamp + ttl_ms <= stamp
                # From here on as `_call` does it: a call less for each message.
                if (state := state_of(key)) is None and (state := clean.get(key)) is None and (looks or key is None):
                    state = self.look_up(key)
                context.key = key if type(key) is not bytes else self.decode(key)
                context._place, context.timestamp, context.state, context._stamp = key, timestamp, state, stamp
                if headers is not None:
                    context.headers, before = headers[row] or NO_HEADERS, len(out.values)
                # Not known by another name here: the function takes the place of what checks its first result.
                if emitted := self.on_message(value, context):
                    self._emit(emitted, key, timestamp, stamp, out)
                if headers is not None:
                    _carry(headers[row], before, out)
                left = context.state
                if left is not state or type(left) not in UNCHANGEABLE:
                    changed[key] = left
                    clean.pop(key, None)
                is_late, context._is_late = context._is_late, False
                if getrefcount(context) > OWN_REFERENCES:
                    self.lend()
                    context = self.context
                if is_late:
                    late.append(row)
                    if self.has_timers:
                        self._fire_behind(key, stamp, out)
                        context = self.context
        finally:
            self._own_references = OWN_REFERENCES
            context = self.context
            context._stamp, context._is_late, context.headers = MIN_TIMESTAMP, False, NO_HEADERS
        self.late = batch.take(late) if late else None
        if out.headers is not None:
            out.headers += [None] * (len(out.values) - len(out.headers))
        return out if out.values else None

    def _fire_before(self, key: Key, stamp: int, out: Batch) -> None:
        """Call the timers of a key that are due before a message of this stamp."""
        self.context._stamp = MIN_TIMESTAMP
        try:
            self._call_due(self.on_timer, self._unexpired(self.timers.due_of(key, stamp)), MIN_TIMESTAMP, out)
        except Exception as error:
            raise TimerFailed(key, self._called_for_ms) from error

    def _fire_behind(self, key: Key, stamp: int, out: Batch) -> None:
        """Call the timers that a message has set for no later than its stamp; what they raise counts for the message.

        What they return has its stamp. Later, with that of their time, it would come behind its watermark at the next
        stage, and what it comes to there would be by when it came.
        """
        self.context._stamp = MIN_TIMESTAMP
        self._call_due(self.on_timer, self._unexpired(self.timers.due_of(key, stamp)), MIN_TIMESTAMP, out, stamp)

    def _unexpired(self, due: Iterator[tuple[int, Key]]) -> Iterator[tuple[int, Key]]:
        """Return what is due, with the key's state dropped before where it has expired by then."""
        return due if self._ttl_ms is None else map(self._look_at_use, due)

    def _look_at_use(self, due: tuple[int, Key]) -> tuple[int, Key]:
        self._used_last(due[1], due[0])
        return due

    def _call_due(
        self,
        function: Handler,
        due: Iterable[tuple[int, Key]],
        earliest: int,
        out: Batch,
        reached: int = MIN_TIMESTAMP,
    ) -> int:
        """Call a function of the user for what is due of keys, and keep what it leaves and what it returns.

        What it returns has the time of the timer or alarm, but is no earlier than said. Stamps go on from what is
        `reached`, and never back; return how far they have come.
        """
        context, changed, clean, looks = self.context, self.changed, self.clean, self.looks
        own_references = self._own_references
        for at_ms, key in due:
            self._called_for_ms = at_ms
            # As `read` does it: a call less for each.
            if (state := changed.get(key)) is None and (state := clean.get(key)) is None and looks:
                state = self.look_up(key)
            at = at_ms if at_ms > earliest else earliest
            if at > reached:
                reached = at
            context.key = key if type(key) is not bytes else self.decode(key)
            context._place, context.timestamp, context.state = key, at, state
            # The results first: a generator sets the state while it is read to its end.
            if emitted := function(at_ms, context):
                self._emit(emitted, key, at, reached, out)
            left = context.state
            if left is not state or type(left) not in UNCHANGEABLE:
                changed[key] = left
                clean.pop(key, None)
            if getrefcount(context) > own_references:
                self.lend()
                context, own_references = self.context, OWN_REFERENCES
        return reached

    def _emit(self, emitted: Iterable[object], place: Key, at: int, stamp: int, out: Batch) -> None:
        assert out.keys is not None and out.timestamps is not None and out.stamps is not None
        before = len(out.values)
        out.values += emitted
        number = len(out.values) - before
        out.keys += [place] * number
        out.timestamps += [at] * number
        out.stamps += [stamp] * number

    def _touch(self, key: Key, timestamp: int, stamp: int) -> None:
        """Note that a key's state is used; drops the state first if it had expired at this stamp."""
        assert self._ttl_ms is not None
        last = self._used_last(key, stamp)
        if last is None:
            self._expiries.set(key, timestamp + self._ttl_ms)
        if last is None or timestamp > last:
            self.store.put(TOUCHED + self.keys.encode(key), timestamp)

    def _used_last(self, key: Key, at_ms: int) -> int | None:
        """Return the time of a key's last use; drops its state and returns None if it had expired by then."""
        assert self._ttl_ms is not None
        last: int | None = self.store.get(TOUCHED + self.keys.encode(key))
        if last is None or last + self._ttl_ms > at_ms:
            return last
        self._drop_state(key)
        return None

    def _expire(self, watermark: int) -> None:
        """Drop the states that have expired at a watermark, and look at the used ones again when they may expire."""
        assert self._ttl_ms is not None
        while (due := self._expiries.take(watermark)) is not None:
            _, key = due
            last = self._used_last(key, watermark)
            if last is not None:
                self._expiries.set(key, last + self._ttl_ms)

    def _drop_state(self, key: Key) -> None:
        data = self.keys.encode(key)
        self.lists.drop(key)
        self.changed.pop(key, None)
        self.clean.pop(key, None)
        self.store.delete(STATE + data)
        self.store.delete(TOUCHED + data)
        remove_all(self.store, data)


class TimerFailed(Exception):
    """The error of a timer that raised ahead of a message; its cause is what the timer raised."""

    def __init__(self, key: Key, at_ms: int) -> None:
        super().__init__(key, at_ms)
        self.key = key
        self.at_ms = at_ms


def _carry(headers: Headers | None, before: int, out: Batch) -> None:
    """Let the headers of a message go on with what was emitted for it, behind so many rows."""
    if headers or out.headers is not None:
        of_others = out.headers or []
        # What timers have emitted before it has none.
        of_others += [None] * (before - len(of_others))
        out.headers = of_others + [headers] * (len(out.values) - before)


def _nothing() -> Batch:
    return Batch([], keys=[], timestamps=[], stamps=[])


def _after(called: str, since_ms: int, length: object) -> int:
    """Return the time so long after another; raises ValueError for what is no timedelta of whole ms."""
    ms = whole_ms(length)
    if type(ms) is not int:
        raise _no_time(called, length)
    return since_ms + int(ms)


def _no_time(called: str, at_ms: object) -> ValueError:
    return ValueError(
        f"{called}({at_ms!r}) got no time; it takes whole ms since the epoch, in the years 1 to 9999, or a "
        "timedelta of whole ms"
    )


def _is_in_seconds(at_ms: int, now_ms: int) -> bool:
    """Whether a time is of ours in seconds, and of early 1970 in ms, which is no time to ask for now."""
    return FIRST_REAL_S <= at_ms < LAST_REAL_S and now_ms >= FIRST_REAL_MS


def _seconds(called: str, at_ms: int) -> ValueError:
    return ValueError(
        f"{called}({at_ms}) is of early 1970 as ms, and of our time as seconds; "
        f"write instead: {called}({at_ms} * 1_000)"
    )


def _no_timer(at_ms: int, context: object) -> None:
    raise ValueError(
        "process(...) has no function for a timer; write instead: process(..., on_timer=lambda at_ms, context: ...)"
    )


def _no_alarm(at_ms: int, context: object) -> None:
    raise ValueError(
        "process(...) has no function for an alarm; write instead: process(..., on_alarm=lambda at_ms, context: ...)"
    )


_process = loop_of(ON_MESSAGE, (*Process.binds, "on_message"))
