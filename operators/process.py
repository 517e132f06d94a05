"""The user's own stateful operator: a function over messages with keyed state and event-time timers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Generic

from operators.base import MAX_TIMESTAMP, MOST_HELD, Batch, Key, Keys, Spec, Store
from operators.key_states import READ_STATE, KeyStates, emitted_of, loop_of
from operators.keyed_state import UNCHANGEABLE, K, S, meaning_of
from operators.window import SHIFT

TIMER = b"t"
IN_HAND = frozenset({tuple, list, type(None)})
"""What a function may return that is there already: a generator would go on after its state was looked at."""
MOST_SET_AT_END = 1_000
"""How many timers the timers of one key may set when nothing more will come: without a bound they never end."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Process(Spec):
    """Call `on_message(value, context)` per message, and `on_timer(at_ms, context)` when a timer is due."""

    on_message: Callable[[Any, Any], Iterable[Any] | None]
    on_timer: Callable[[int, Any], Iterable[Any] | None] | None = None
    init: Callable[[], Any] | None = None
    store: str = "lmdb"

    kind: ClassVar[str] = "process"
    stateful: ClassVar[bool] = True
    keyed: ClassVar[bool] = True
    event_time: ClassVar[bool] = True
    needs_id: ClassVar[bool] = True
    order_sensitive: ClassVar[bool] = True
    keyed_code: ClassVar[tuple[str, ...]] = (
        *READ_STATE,
        "{context}.key = {user_key}",
        "{context}._place, {context}.timestamp, {context}.state = {key}, {timestamp}, state_{id}",
        "emitted_{id} = {on_message}({value}, {context})",
        "if type(emitted_{id}) not in {in_hand}: emitted_{id} = [*emitted_{id}]",
        "left_{id} = {context}.state",
        "if left_{id} is not state_{id} or type(left_{id}) not in {unchangeable}: {changed}[{key}] = left_{id}",
        "if left_{id} is None: {clean}.pop({key}, None)",
        "for {out} in emitted_{id} or ():",
    )
    binds: ClassVar[tuple[str, ...]] = (
        *("changed", "clean", "look_up", "context", "decode", "unchangeable", "in_hand"),
    )

    def functions(self) -> dict[str, Callable[..., Any]]:
        """The user's functions."""
        named = {"on_message": self.on_message, "on_timer": self.on_timer, "init": self.init}
        return {name: function for name, function in named.items() if function is not None}

    def meaning(self) -> str:
        """What `init` makes."""
        return meaning_of(self.init)


STATE_SLOT = ("state",)
"""A field, for speed, which type checkers are told is a property: it may be set to None."""


class ProcessContext(Generic[K, S]):
    """What a `process` function sees: the key, the time, the key's state, and its timers.

    `state` is this key's value, None (or what `init` makes) at first: assign a new one, or change it in place; None
    removes it. `timestamp` is the message's event time, or the timer's, in ms. The context is of use during the call:
    the next one is handed the same object.

    >>> def once_a_minute(value, context):
    ...     if context.state is None:
    ...         context.set_timer(context.timestamp + 60_000)
    ...     context.state = value
    >>> def on_timer(at_ms, context):
    ...     return [(context.key, context.state)]
    """

    __slots__ = ("_operator", "_place", "key", *STATE_SLOT, "timestamp")

    key: K
    timestamp: int
    if TYPE_CHECKING:

        @property
        def state(self) -> S:
            """This key's state; setting it to None removes it."""

        @state.setter
        def state(self, value: S | None) -> None: ...

    def __init__(self, operator: ProcessOperator) -> None:
        self._operator = operator
        self._place: Key = b""

    def set_timer(self, at_ms: int) -> None:
        """Ask for `on_timer` at this event time, for this key; asking twice for the same time is asking once.

        It is called when the watermark has passed and all that was read together is processed: the state that it sees
        may have messages in it from after its time. At the end of the inputs all timers are due. Those that `on_timer`
        sets from then on are, too.

        Raises ValueError where `process` was given no `on_timer`, and for a key whose timers go on and on at the end.
        """
        self._operator.set_timer(self._place, at_ms)

    def delete_timer(self, at_ms: int) -> None:
        """Take back a timer of this key; nothing happens where there is none."""
        self._operator.store.delete(self._operator.timer_place(self._place, at_ms))


class ProcessOperator(KeyStates):
    """One task's share of a `process`: the states of its keys, and their timers, which are in the store."""

    def __init__(
        self,
        spec: Process,
        functions: dict[str, Callable[..., Any]],
        store: Store,
        keys: Keys,
        most_held: int = MOST_HELD,
    ) -> None:
        super().__init__(store, keys, functions.get("init"), most_held)
        self.on_message: Callable[..., Any] = functions["on_message"]
        self.on_timer: Callable[..., Any] = functions.get("on_timer", _no_timer)
        self._has_timers = "on_timer" in functions
        self.calls = ["on_message", "on_timer", *(["init"] if self.init is not None else [])]
        self.in_hand = IN_HAND
        self.context: ProcessContext[Any, Any] = ProcessContext(self)
        self._due = self._first_due()
        self._ending = False
        self._set_at_end: Counter[Key] = Counter()

    def process(self, batch: Batch) -> Batch | None:
        """Hand each message to the user's function; what it returns carries the message's key, time and stamp."""
        assert batch.timestamps is not None
        found = _process(self, batch.values, batch.keys or [None] * len(batch), batch.timestamps)
        self.relieve()
        return emitted_of(found, batch)

    def on_watermark(self, watermark: int, most: int | None = None) -> Batch | None:
        """Call the timers that are due, in order of time and key; those that they set and are due, too."""
        if watermark < self._due:
            return None
        out = Batch([], keys=[], timestamps=[], stamps=[])
        self._ending = watermark == MAX_TIMESTAMP
        for at_ms, key in islice(self._pop_due(watermark), most):
            self._call_timer(at_ms, key, out)
        self._due = self._first_due()
        return out if out.values else None

    def _call_timer(self, at_ms: int, place: Key, out: Batch) -> None:
        assert out.keys is not None and out.timestamps is not None and out.stamps is not None
        context, state = self.context, self.read(place)
        context.key = self.keys.decode(place)
        context._place, context.timestamp, context.state = place, at_ms, state
        emitted = self.on_timer(at_ms, context)
        left = context.state
        if left is not state or type(left) not in UNCHANGEABLE:
            self.changed[place] = left
            self.clean.pop(place, None)
        before = len(out)
        out.values += emitted or ()
        number = len(out) - before
        out.keys += [place] * number
        out.timestamps += [at_ms] * number
        out.stamps += [at_ms] * number

    def drop_due(self) -> Batch:
        """Remove the first timer, and return its time."""
        at_ms, key = next(self._pop_due(MAX_TIMESTAMP))
        self._due = self._first_due()
        return Batch([at_ms], keys=[key])

    def next_due(self) -> int:
        """Return the time of the first timer."""
        return self._due

    def lowest_stamp(self) -> int:
        """Return a time before the first timer's."""
        return self._due - 1

    def forget(self) -> None:
        """Drop the states that have changed, and look up again when the first timer is due."""
        super().forget()
        self._due = self._first_due()

    def set_timer(self, key: Key, at_ms: int) -> None:
        """Remember a timer of `key`; raises ValueError where there is nothing to call then, or no end of it."""
        if not self._has_timers:
            _no_timer(at_ms, None)
        if self._ending:
            self._set_at_end[key] += 1
            if self._set_at_end[key] > MOST_SET_AT_END:
                raise ValueError(
                    f"the timers of one key have set {MOST_SET_AT_END:,} more since the inputs ended, and would go on "
                    "for ever; let on_timer stop, or set timers only where a message comes"
                )
        self.store.put(self.timer_place(key, at_ms), True)
        self._due = min(self._due, at_ms)

    def timer_place(self, key: Key, at_ms: int) -> bytes:
        """Return where in the store a timer is: timers sort by time, then by key."""
        return TIMER + (at_ms + SHIFT).to_bytes(8, "big") + self.keys.encode(key)

    def _pop_due(self, watermark: int) -> Iterator[tuple[int, Any]]:
        while (first := next(self.store.range(TIMER), None)) is not None:
            place = first[0]
            at_ms = int.from_bytes(place[1:9], "big") - SHIFT
            if at_ms > watermark:
                break
            self.store.delete(place)
            yield at_ms, self.keys.load([place[9:]])[0]

    def _first_due(self) -> int:
        first = next(self.store.range(TIMER), None)
        return MAX_TIMESTAMP + 1 if first is None else int.from_bytes(first[0][1:9], "big") - SHIFT


def _no_timer(at_ms: int, context: Any) -> None:
    raise ValueError(
        "process(...) has no function for a timer; write instead: process(..., on_timer=lambda at_ms, context: ...)"
    )


_process = loop_of(Process.keyed_code, (*Process.binds, "on_message"))
