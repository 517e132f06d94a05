"""The state of one key, as a user's function sees it: read when it is asked for, written when the call is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from operators.base import Store, shape_of

K = TypeVar("K")
S = TypeVar("S")

STATE = b"s"
"""What the places of keys' states begin with."""
UNCHANGEABLE = frozenset({int, float, str, bytes, bool, frozenset, type(None)})
UNREAD: Any = object()


class States(Protocol):
    """Where contexts read states."""

    def read(self, place: Any, /) -> Any:
        """Return the state at a place."""


class KeyContext(Generic[K, S]):
    """What a function with state sees of a message: its key, its event time, and the state of its key.

    `state` is this key's value, None (or what `init` makes) at first: assign a new one, or change it in place; None
    removes it. It is written when the call is done, or never. `timestamp` is the message's event time in ms.

    >>> async def newest_only(reading, context):
    ...     if context.state is not None and context.state >= reading.version:
    ...         return []
    ...     context.state = reading.version
    ...     return [reading]
    """

    __slots__ = ("_assigned", "_place", "_state", "_states", "_timestamp", "key")

    def __init__(self, states: States, key: K, place: Any, timestamp: int | None) -> None:
        self.key = key
        self._states = states
        self._place = place
        self._timestamp = timestamp
        self._state: Any = UNREAD
        self._assigned = False

    @property
    def timestamp(self) -> int:
        """The event time, in ms; raises ValueError where messages have none."""
        if self._timestamp is None:
            raise ValueError("the message has no timestamp; give the input timestamp=")
        return self._timestamp

    @property
    def state(self) -> S:
        """This key's state."""
        if self._state is UNREAD:
            self._state = self._states.read(self._place)
        return self._state  # type: ignore[no-any-return]

    @state.setter
    def state(self, value: S | None) -> None:
        self._state = value
        self._assigned = True


def meaning_of(init: Callable[[], Any] | None) -> str:
    """Return what states mean that begin with what `init` makes."""
    return "any state" if init is None else f"state from {shape_of(init)}"


def is_changed(context: KeyContext[Any, Any]) -> bool:
    """Whether the state was assigned, or handed out and may have been changed in place."""
    state = context._state
    return context._assigned or (state is not UNREAD and type(state) not in UNCHANGEABLE)


def keep(context: KeyContext[Any, Any], store: Store, key: bytes) -> None:
    """Write the state that a complete call has left, if it may be another one."""
    if is_changed(context):
        state = context._state
        if state is None:
            store.delete(STATE + key)
        else:
            store.put(STATE + key, state)
