"""The operator that awaits: an async function from one message to any number, many of them in flight at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from operators.base import EVENT_COLUMNS, Batch, Key, Keys, Serde, Spec, Store
from operators.keyed_state import STATE, UNCHANGEABLE, KeyContext, is_changed, keep, meaning_of

Order = Literal["partition", "key", "none"]


@dataclass(frozen=True, eq=False, kw_only=True)
class AsyncFlatMap(Spec):
    """Replace each message by those that an async function returns for it.

    With order "partition" results go on in input order. With "key" (the default) one key's messages start, finish and
    go on in order while other keys overtake; messages without a key are not ordered among each other. With "none"
    results go on as they come. Calls always start in offset order. After Samza's async high-level API, with the
    ordering that its event loop leaves to the user.

    Where it is `stateful` the function takes a KeyContext as well.
    """

    function: Callable[..., Awaitable[Iterable[Any]]]
    max_in_flight: int
    timeout_ms: int
    order: Order = "key"
    keeps_state: bool = False
    init: Callable[[], Any] | None = None
    store: str = "lmdb"

    kind: ClassVar[str] = "async_flat_map"
    asynchronous: ClassVar[bool] = True

    @property
    def stateful(self) -> bool:  # type: ignore[override]
        """Whether the function uses the state of the message's key."""
        return self.keeps_state

    keyed = needs_id = order_sensitive = stateful

    def functions(self) -> dict[str, Callable[..., Any]]:
        """The async function, and what makes the first state of a key."""
        return {"async_flat_map": self.function} | ({"init": self.init} if self.init is not None else {})

    def meaning(self) -> str:
        """What `init` makes."""
        return meaning_of(self.init)

    def describe(self) -> str:
        """How many, how ordered, how long."""
        return f"≤ {self.max_in_flight} in flight, order by {self.order}, {self.timeout_ms:,} ms"


class KeyedMessage:
    """A message for a function with state: what the newest try at it has seen and left, and what came before it.

    `stored` is the state of its key when its call was asked for; `before` what an earlier call for the same record has
    left, which is not in the store yet.
    """

    __slots__ = ("before", "context", "key", "stored", "timestamp", "value")

    def __init__(self, value: Any, key: Key | None, timestamp: int | None) -> None:
        self.value = value
        self.key = key
        self.timestamp = timestamp
        self.stored: Any = None
        self.before: KeyContext[Any, Any] | None = None
        self.context: KeyContext[Any, Any] | None = None

    def left(self) -> KeyContext[Any, Any] | None:
        """Return the newest try's context, where it may have left another state."""
        return self.context if self.context is not None and is_changed(self.context) else None


class StatefulCalls:
    """One task's share of an `async_flat_map` with state: every try has a context of its own.

    The state of a key is in the store when the message before it, of the same key, has taken effect; until then the
    message's calls are not made. It is read as they are asked for: the function is then called on the event loop, while
    a thread may be at work with the store.
    """

    columns = EVENT_COLUMNS

    def __init__(self, functions: dict[str, Callable[..., Any]], store: Store, keys: Keys, serde: Serde) -> None:
        self.function = functions["async_flat_map"]
        self.init = functions.get("init")
        self.calls = ["init"] if self.init is not None else []
        self.store = store
        self.keys = keys
        self.serde = serde

    def prepare(self, message: KeyedMessage) -> None:
        """Read the state that its calls begin with."""
        if message.key is not None and message.before is None:
            message.stored = self.store.get(STATE + self.keys.encode(message.key))

    def call(self, message: KeyedMessage) -> Awaitable[Iterable[Any]]:
        """Begin a try."""
        key = message.key
        if key is None:
            raise ValueError("a record has no key, and async_flat_map with state needs one; partition_by(...) first")
        message.context = KeyContext[Any, Any](self, self.keys.decode(key), message, message.timestamp)
        return self.function(message.value, message.context)  # type: ignore[no-any-return]

    def take(self, batch: Batch) -> None:
        """Write what complete calls have left, by key."""
        for key, context in zip(batch.keys or (), batch.values, strict=True):
            assert key is not None
            keep(context, self.store, self.keys.encode(key))

    def read(self, message: KeyedMessage) -> Any:
        """Return the state of a key, or what an earlier call has left, to be changed in place without being noticed."""
        state = message.stored if message.before is None else message.before.state
        if state is None:
            return None if self.init is None else self.init()
        return state if type(state) in UNCHANGEABLE else self.serde.decode(self.serde.encode(state))


def keyed_messages(rows: Batch) -> list[KeyedMessage]:
    """Return rows as the messages that a function with state is called for."""
    none = [None] * len(rows)
    return list(map(KeyedMessage, rows.values, rows.keys or none, rows.timestamps or none))
