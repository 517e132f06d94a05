"""Lists and maps among the state of a key: each entry lies by itself in the store, and is read when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import Any, TypeVar, cast

from operators.base import Serde, Store
from operators.store_places import beyond

E = TypeVar("E")
M = TypeVar("M")
N = TypeVar("N")

LIST, MAP = b"l", b"m"
"""What the places of lists and of maps begin with."""
PLACE_BYTES = 8


def place_of(kind: bytes, key: bytes, name: str = "") -> bytes:
    """Return what the places begin with of a key's collections, or of one of them; no other's begin with it."""
    parts = (key, name.encode()) if name else (key,)
    return kind + b"".join(len(part).to_bytes(4, "big") + part for part in parts)


class ListState(Iterable[E]):
    """A list among the state of a key: appended to, and read in that order; its entries are not read to append one.

    >>> def last_three(value, context):
    ...     values = context.list("values")
    ...     values.append(value)
    ...     if len(values) > 3:
    ...         values.drop(1)
    ...     return [list(values)]
    """

    __slots__ = ("_first", "_next", "_place", "_store")

    def __init__(self, store: Store, place: bytes) -> None:
        self._store = store
        self._place = place
        self._first, self._next = cast("tuple[int, int]", store.get(place, (0, 0)))

    def append(self, value: E) -> None:
        """Put a value at the end."""
        self._store.put(self._entry(self._next), value)
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
        return (self._store.get(self._entry(place)) for place in places)

    def __getitem__(self, index: int) -> E:
        place = self._first + index if index >= 0 else self._next + index
        if not self._first <= place < self._next:
            raise IndexError(f"the list has {len(self)} values, and no [{index}]")
        value: E = self._store.get(self._entry(place))
        return value

    def __repr__(self) -> str:
        return f"ListState({list(self)!r})"

    def _entry(self, place: int) -> bytes:
        return self._place + place.to_bytes(PLACE_BYTES, "big")

    def _keep(self) -> None:
        if self._first == self._next:
            self._first = self._next = 0
            self._store.delete(self._place)
        else:
            self._store.put(self._place, (self._first, self._next))


class MapState(MutableMapping[M, N]):
    """A map among the state of a key: each of its entries is read, and written, by itself; in the order of their bytes.

    What is read is to be assigned again when it was changed in place.

    >>> def seen_before(value, context):
    ...     seen = context.map("seen")
    ...     known = value in seen
    ...     seen[value] = True
    ...     return [known]
    """

    __slots__ = ("_decode", "_encode", "_place", "_store")

    def __init__(self, store: Store, place: bytes, serde: Serde) -> None:
        self._store = store
        self._place = place
        self._encode: Callable[[Any], bytes] = serde.encode
        self._decode: Callable[[bytes], Any] = serde.decode

    def __getitem__(self, key: M) -> N:
        held = self._store.get(self._place + self._encode(key))
        if held is None:
            raise KeyError(key)
        value: N = held[0]
        return value

    def __setitem__(self, key: M, value: N) -> None:
        self._store.put(self._place + self._encode(key), (value,))

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
