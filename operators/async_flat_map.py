"""The async flat map: an async function from one message to any number, with many calls in flight at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from struct import Struct
from sys import getrefcount
from typing import Any, ClassVar, Literal, NamedTuple

from operators.core.base import EVENT_COLUMNS, Batch, Copies, Form, Key, Keys, Serde, Spec, Store, unplaced
from operators.core.entry_keys import SHIFT, EntryKind, EntryKinds, Number, Rest
from operators.state.keyed_state import (
    KEY_STATES,
    OWN_REFERENCES,
    STATE,
    UNCHANGEABLE,
    KeyContext,
    Lending,
    is_changed,
    keep,
    meaning_of,
    undeclared,
)

Order = Literal["partition", "key", "none"]

ANSWER = b"a"
_PLACE = Struct(">c4Q")
STREAM = "stream"
"""The name of the part of an answer's place that is the stream of the record, or the operator that emitted it."""
NOWHERE_STORED = -1
"""The partition of a message that an operator of the same stage has emitted: its offset is its stamp."""
ANSWERS: EntryKinds = {
    ANSWER: EntryKind("answer", *map(Number, ("hash", "offset", "partition", "question")), Rest(STREAM), of_users=False)
}


def encoded_place(hashed: int, offset: int, partition: int, question: int, stream: bytes) -> bytes:
    """Return the place of an answer as bytes."""
    return _PLACE.pack(ANSWER, hashed + SHIFT, offset + SHIFT, partition + SHIFT, question + SHIFT) + stream


class AnswerPlace(NamedTuple):
    """The place of an answer: the record that was asked about, and a digest of the question."""

    hashed: int
    """By it the record is in a part of a split task."""
    offset: int
    partition: int
    question: int
    stream: bytes

    def encoded(self) -> bytes:
        """Return the place as bytes."""
        return encoded_place(*self)

    @staticmethod
    def of(place: bytes) -> AnswerPlace:
        """Return what lies in the bytes of a place.

        >>> place = AnswerPlace(3, 7, 0, 99, b"orders")
        >>> AnswerPlace.of(place.encoded()) == place
        True
        """
        _, hashed, offset, partition, question = _PLACE.unpack_from(place)
        return AnswerPlace(hashed - SHIFT, offset - SHIFT, partition - SHIFT, question - SHIFT, place[_PLACE.size :])


@dataclass(frozen=True, eq=False, kw_only=True)
class AsyncFlatMap(Spec):
    """Replace each message by those that an async function returns for it.

    With order "partition" results go on in input order. With "key" (the default) one key's messages start, finish and
    go on in order while other keys overtake; messages without a key are not ordered among each other. With "none"
    results go on as they come. Calls always start in offset order. After Samza's async high-level API, with the
    ordering that its event loop leaves to the user.

    Where it is `stateful` the function takes a KeyContext as well. Where it `remembers`, answers are kept until a
    commit has what came of them; with another word in `remember` all is asked anew.
    """

    function: Callable[..., Awaitable[Iterable[object]]]
    max_in_flight: int
    timeout_ms: int
    order: Order = "key"
    keeps_state: bool = False
    init: Callable[[], object] | None = None
    store: str = "lmdb"
    state: Serde | None = None
    remember: str | None = None

    kind: ClassVar[str] = "async_flat_map"
    declares: ClassVar[str] = "async_flat_map(..., state=MySerde())"
    asynchronous: ClassVar[bool] = True
    in_calls: ClassVar[bool] = True
    hands_on_headers: ClassVar[bool] = True
    beside_results: ClassVar[frozenset[str]] = Spec.beside_results | {
        "max_in_flight",
        "timeout_ms",
        "order",
        "remember",
    }

    @property
    def stateful(self) -> bool:  # type: ignore[override]
        """Whether the function uses the state of the message's key."""
        return self.keeps_state

    keyed = order_sensitive = stateful

    @property
    def remembers(self) -> bool:  # type: ignore[override]
        """Whether answers are kept as they come."""
        return self.remember is not None

    @property
    def needs_id(self) -> bool:  # type: ignore[override]
        """Whether something is kept under its id."""
        return self.stateful or self.remembers

    @property
    def keeps_order(self) -> bool:  # type: ignore[override]
        """Whether no call overtakes another of its key, or of its partition."""
        return self.order != "none"

    @property
    def most_calls(self) -> int:
        """As many as were said."""
        return self.max_in_flight

    def call_timeout_ms(self, tasks: int) -> int:
        """Return the time that was said, however many tasks there are."""
        return self.timeout_ms

    def functions(self) -> dict[str, Callable[..., object]]:
        """Return the async function, and the one that makes the first state of a key."""
        return {"async_flat_map": self.function} | ({"init": self.init} if self.init is not None else {})

    def meaning(self) -> str:
        """Return the meaning of the states that `init` makes, or of answers."""
        return "answers" if self.remembers else meaning_of(self.init)

    def entry_kinds(self) -> EntryKinds:
        """Return states by key, or answers by the places of records."""
        return ANSWERS if self.remembers else KEY_STATES

    def part_serdes(self, key: Serde | None) -> Mapping[str, Serde | None]:
        """Return the serdes of keys, and of names of streams."""
        named = super().part_serdes(key)
        return {**named, STREAM: None} if self.remembers else named

    def hash_at(self, place: bytes) -> int | None:
        """Return the hash of the record that an answer is about."""
        return AnswerPlace.of(place).hashed if self.remembers else None

    def declared_of(self, parts: Mapping[str, object]) -> Serde | None:
        """Return that of states."""
        return self.state

    def why_whole(self) -> tuple[str, str] | None:
        """Return that results of a partition in its order need one task for all of it."""
        if self.order != "partition":
            return None
        return 'with order="partition" all of a partition goes on in one order', 'order="key"'

    def describe(self) -> str:
        """Return the calls in flight, their order and their timeout."""
        remembered = ", answers remembered" if self.remembers else ""
        return f"≤ {self.max_in_flight} in flight, order by {self.order}, {self.timeout_ms:,} ms{remembered}"


class KeyedMessage:
    """A message for a function with state, with the contexts of the newest try at it and of the call before it.

    `stored` is the state of its key when its call was asked for; `before` is the context of an earlier call for the
    same record, whose state is not in the store yet.
    """

    __slots__ = ("before", "context", "key", "stored", "timestamp", "value")

    def __init__(self, value: object, key: Key | None, timestamp: int | None) -> None:
        self.value = value
        self.key = key
        self.timestamp = timestamp
        self.stored: object = None
        self.before: KeyContext[object, object] | None = None
        self.context: KeyContext[object, object] | None = None

    def left(self) -> KeyContext[object, object] | None:
        """Return the newest try's context if it may have left another state, else None."""
        return self.context if self.context is not None and is_changed(self.context) else None


class StatefulCalls:
    """One task's share of an `async_flat_map` with state: every try has a context of its own.

    The state of a key is in the store when the message before it, of the same key, has taken effect; until then the
    message's calls are not made. It is read as they are asked for: the function is then called on the event loop, while
    a thread may be at work with the store.
    """

    columns = EVENT_COLUMNS

    def __init__(
        self,
        functions: dict[str, Callable[..., Any]],
        store: Store,
        keys: Keys,
        copies: Copies,
        late_use: Callable[[str], Exception] = unplaced,
    ) -> None:
        self.function: Callable[..., Awaitable[Iterable[object]]] = functions["async_flat_map"]
        self.init = functions.get("init")
        self.calls = ["init"] if self.init is not None else []
        self.store = store
        self.keys = keys
        self.copies = copies
        self.form: Form | None = None
        """The stored form of states; None if none is declared."""
        self.lending = Lending(late_use)

    def prepare(self, message: KeyedMessage) -> None:
        """Read the state that the calls of a message begin with."""
        if message.key is not None and message.before is None:
            message.stored = self.store.get(STATE + self.keys.encode(message.key))

    def call(self, message: KeyedMessage) -> Awaitable[Iterable[object]]:
        """Begin a try; raises ValueError for a message without a key."""
        self.lending.check()
        key = message.key
        if key is None:
            raise ValueError("a record has no key, and async_flat_map with state needs one; partition_by(...) first")
        # A context of its own for each try: one that failed or was cancelled leaves nothing behind.
        # It knows what it begins with, and not the message, which knows it: no cycle is left to the collector.
        begins = message.stored, message.before
        message.context = KeyContext[object, object](self, self.keys.decode(key), begins, message.timestamp)
        return self.function(message.value, message.context)

    def end(self, message: KeyedMessage) -> None:
        """Let nobody use the context of a call that has returned; called on the event loop, as `call` is."""
        context = message.context
        if context is not None and getrefcount(context) > OWN_REFERENCES:
            message.context = context.moved()
            self.lending.end(context)

    def take(self, batch: Batch) -> None:
        """Write the states that complete calls have left, by key."""
        self.lending.check()
        for key, context in zip(batch.keys or (), batch.values, strict=True):
            assert key is not None
            keep(context, self.store, self.keys.encode(key), self.form)

    def read(self, begins: tuple[object, KeyContext[object, object] | None]) -> object:
        """Return a copy of a key's state, or of what an earlier call has left, which the user may change in place."""
        stored, before = begins
        state = self._loaded(stored) if before is None else before.state
        if state is None:
            return None if self.init is None else self.init()
        return state if type(state) in UNCHANGEABLE else self.copies.copy(state)

    def _loaded(self, stored: object) -> object:
        return undeclared(stored) if self.form is None or stored is None else self.form.load(stored)


def keyed_messages(rows: Batch) -> list[KeyedMessage]:
    """Return rows as the messages that a function with state is called for."""
    none = [None] * len(rows)
    return list(map(KeyedMessage, rows.values, rows.keys or none, rows.timestamps or none))
