"""The lists and maps of a key's state, whose entries lie one by one in the store and are read when asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import Any, TypeVar, cast

from operators.core.base import Form, Serde, Store
from operators.state.entry_keys import beyond
from operators.state.keyed_state import dumped, loaded

E = TypeVar("E")
M = TypeVar("M")
N = TypeVar("N")

LIST, MAP = b"l", b"m"
"""The first byte of the entries of lists and of maps."""
PLACE_BYTES = 8


def place_of(kind: bytes, key: bytes, name: str = "") -> bytes:
    """Return the prefix of the entries of a key's collections, or of one of them; no others begin with it."""
    # Lengths ahead of the parts: without them one key's bytes could begin with another's, and a range take in both.
    parts = (key, name.encode()) if name else (key,)
    return kind + b"".join(len(part).to_bytes(4, "big") + part for part in parts)


class ListState(Iterable[E]):
    """A list in the state of a key, in the order in which it was appended to; to append reads none of its entries.

    >>> def last_three(value, context):
    ...     values = context.list("values")
    ...     values.append(value)
    ...     if len(values) > 3:
    ...         values.drop(1)
    ...     return [list(values)]
    """

    __slots__ = ("_first", "_form", "_next", "_place", "_store")

    def __init__(self, store: Store, place: bytes, form: Form | None = None) -> None:
        self._store = store
        self._form = form
        self._place = place
        self._first, self._next = cast("tuple[int, int]", store.get(place, (0, 0)))

    def append(self, value: E) -> None:
        """Put a value at the end."""
        self._store.put(self._entry(self._next), dumped(self._form, value))
        self._next += 1
        self._keep()

    def extend(self, values: Iterable[E]) -> None:
        """Put values at the end."""
        for value in values:
            self.append(value)

    def drop(self, number: int = 1) -> None:
        """Remove so many of the oldest values, or all there are."""
        upto = min(self._first + number, self._next)
        for place in range(self._first, upto):
            self._store.delete(self._entry(place))
        self._first = upto
        self._keep()

    def clear(self) -> None:
        """Remove all values."""
        self.drop(len(self))

    def __len__(self) -> int:
        return self._next - self._first

    def __iter__(self) -> Iterator[E]:
        places = range(self._first, self._next)
        return (loaded(self._form, self._store.get(self._entry(place))) for place in places)

    def __getitem__(self, index: int) -> E:
        place = self._first + index if index >= 0 else self._next + index
        if not self._first <= place < self._next:
            raise IndexError(f"the list has {len(self)} values, and no [{index}]")
        value: E = loaded(self._form, self._store.get(self._entry(place)))
        return value

    def __repr__(self) -> str:
        return f"ListState({list(self)!r})"

    def _entry(self, place: int) -> bytes:
        return self._place + place.to_bytes(PLACE_BYTES, "big")

    def _keep(self) -> None:
        # An empty list begins at 0 again, and has no entry of its own.
        if self._first == self._next:
            self._first = self._next = 0
            self._store.delete(self._place)
        else:
            self._store.put(self._place, (self._first, self._next))


class MapState(MutableMapping[M, N]):
    """A map in the state of a key, whose entries are read and written one by one, in the order of their bytes.

    A value that was changed in place has to be assigned again.

    >>> def seen_before(value, context):
    ...     seen = context.map("seen")
    ...     known = value in seen
    ...     seen[value] = True
    ...     return [known]
    """

    __slots__ = ("_decode", "_encode", "_form", "_place", "_store")

    def __init__(self, store: Store, place: bytes, serde: Serde, form: Form | None = None) -> None:
        self._store = store
        self._form = form
        self._place = place
        self._encode: Callable[[Any], bytes] = serde.encode
        self._decode: Callable[[bytes], Any] = serde.decode

    def __getitem__(self, key: M) -> N:
        held = self._store.get(self._place + self._encode(key))
        if held is None:
            raise KeyError(key)
        value: N = loaded(self._form, held[0])
        return value

    def __setitem__(self, key: M, value: N) -> None:
        # In a tuple, so that None is a value of the map and not an entry that is absent.
        self._store.put(self._place + self._encode(key), (dumped(self._form, value),))

    def __delitem__(self, key: M) -> None:
        self[key]
        self._store.delete(self._place + self._encode(key))

    def __iter__(self) -> Iterator[M]:
        length = len(self._place)
        return (self._decode(place[length:]) for place, _ in self._store.range(self._place, beyond(self._place)))

    def __len__(self) -> int:
        return sum(1 for _ in self._store.range(self._place, beyond(self._place)))

    def __repr__(self) -> str:
        return f"MapState({dict(self)!r})"

    def clear(self) -> None:
        """Remove all entries."""
        for place, _ in list(self._store.range(self._place, beyond(self._place))):
            self._store.delete(place)


def remove_all(store: Store, key: bytes) -> None:
    """Remove the lists and maps of a key."""
    for kind in (LIST, MAP):
        prefix = place_of(kind, key)
        for place, _ in list(store.range(prefix, beyond(prefix))):
            store.delete(place)
