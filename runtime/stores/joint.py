"""The store of an operator that is run once for several tasks: each entry lies in the store of the task of its key."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from operator import itemgetter
from typing import Any

from operators.core.entry_keys import LENGTH_BYTES, EntryKinds, kind_at
from runtime.ports.state import StateWrites
from runtime.ports.store import TaskStore

_HEAD = itemgetter(slice(0, 1 + LENGTH_BYTES))
"""Cuts out of a place the first byte and the length behind it."""


class EntryPlaces:
    """Says in which of several stores entries lie, by the kinds of these and what says it of the bytes of a key."""

    def __init__(self, kinds: EntryKinds, place_of: Callable[[bytes], int]) -> None:
        self._kinds = kinds
        self._place_of = place_of
        self._keys = {
            first: itemgetter(slice(len(first) + kind.ahead, None))
            for first, kind in kinds.items()
            if kind.ahead is not None
        }
        """What cuts the key out of a place, by the first byte, where that is one slice."""
        self._first = itemgetter(slice(0, 1 if len(kinds) > 1 or b"" not in kinds else 0))

    def at(self, place: bytes) -> int:
        """Return the number of the store that has the entry of a place."""
        if (key_of := self._keys.get(self._first(place))) is not None:
            return self._place_of(key_of(place))
        start, kind = kind_at(self._kinds, place)
        key = kind.key_in(place, start)
        assert key is not None, "each entry is of one key"
        return self._place_of(key)

    def each(self, places: Collection[bytes]) -> Iterable[int]:
        """Return the number of the store of each place."""
        # Operators write entries of one kind at once: cut and looked up in C, they take a third of what each takes.
        firsts = {*map(self._first, places)}
        first = firsts.pop() if len(firsts) == 1 else None
        if first is None or first not in self._kinds:
            return map(self.at, places)
        if (key_of := self._keys.get(first)) is not None:
            return map(self._place_of, map(key_of, places))
        # Keys behind their length are mostly of one length.
        heads = {*map(_HEAD, places)} if first and self._kinds[first].length_ahead == LENGTH_BYTES else set[bytes]()
        if len(heads) != 1:
            return map(self.at, places)
        length = int.from_bytes(heads.pop()[1:], "big")
        return map(self._place_of, map(itemgetter(slice(1 + LENGTH_BYTES, 1 + LENGTH_BYTES + length)), places))

    def between(self, start: bytes, end: bytes | None) -> int | None:
        """Return the number of the one store that may have entries of a range; None where several may."""
        kind = self._kinds.get(start[:1])
        key = None if kind is None else kind.key_between(start, end, 1)
        return None if key is None else self._place_of(key)


class JointStore(TaskStore):
    """The stores of an operator in several tasks as one ordered map; each task commits its own.

    One thread at a time uses it. A savepoint is made in a store when it is first asked under it, as most of them are
    not: to make one in each would cost as much as there are tasks, for each record that is tried.

    >>> from operators.core.entry_keys import OF_KEYS
    >>> from runtime.stores.memory import MemoryStore
    >>> even, odd = MemoryStore("counts"), MemoryStore("counts")
    >>> store = JointStore([even, odd], EntryPlaces(OF_KEYS, lambda key: key[-1] % 2))
    >>> store.update({b"b": 2, b"a": 1, b"c": 3})
    >>> [*store.range()], [*odd.range()]
    ([(b'a', 1), (b'b', 2), (b'c', 3)], [(b'a', 1), (b'c', 3)])
    """

    def __init__(self, stores: Sequence[TaskStore], places: EntryPlaces) -> None:
        self.stores = stores
        self.name = stores[0].name
        self.get_ms, self.misses = 0.0, 0
        self._places, self._place_of = places, places.at
        self._saved: set[int] | None = None
        """Under a savepoint: the stores that have one."""
        self._written: set[int] = set()
        """The stores that were written to since it was last looked at what is newest there."""

    @property
    def durable(self) -> bool:
        return self.stores[0].durable

    @property
    def dirty_count(self) -> int:
        return sum(store.dirty_count for store in self.stores)

    def get(self, key: bytes, default: object = None) -> Any:
        return self._at(self._place_of(key)).get(key, default)

    def put(self, key: bytes, value: object) -> None:
        self._to(self._place_of(key)).put(key, value)

    def delete(self, key: bytes) -> None:
        self._to(self._place_of(key)).delete(key)

    def update(self, entries: Mapping[bytes, object]) -> None:
        parts = defaultdict[int, dict[bytes, object]](dict)
        for place, (key, value) in zip(self._places.each(entries), entries.items(), strict=True):
            parts[place][key] = value
        for place, part in parts.items():
            self._to(place).update(part)

    def delete_all(self, keys: Iterable[bytes]) -> None:
        parts, gone = defaultdict[int, list[bytes]](list), [*keys]
        for place, key in zip(self._places.each(gone), gone, strict=True):
            parts[place].append(key)
        for place, part in parts.items():
            self._to(place).delete_all(part)

    def range(self, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, Any]]:
        only = self._places.between(start, end)
        if only is not None:
            return self._at(only).range(start, end)
        found = [self._at(place).range(start, end) for place, _ in enumerate(self.stores)]
        return merge(*found, key=itemgetter(0))

    def drop(self, start: bytes, end: bytes, most: int | None = None) -> int:
        if (only := self._places.between(start, end)) is not None:
            return self._to(only).drop(start, end, most)
        if most is None:
            return sum([self._to(place).drop(start, end) for place, _ in enumerate(self.stores)])
        return super().drop(start, end, most)  # the first ones of all, which their entries tell

    def savepoint(self) -> None:
        if self._saved is not None:
            raise RuntimeError(f"Store {self.name!r} has a savepoint already: release it, or roll back to it, first.")
        self._saved = set()

    def rollback(self) -> None:
        for place in self._saved or ():
            self.stores[place].rollback()
        self._saved = None

    def release(self) -> None:
        for place in self._saved or ():
            self.stores[place].release()
        self._saved = None

    def check_written(self, exactly: bool = False) -> None:
        for place in self._saved or ():
            self.stores[place].check_written(exactly)

    def check_newest(self, most: int, beside: Sequence[object] = ()) -> None:
        self.stores[0].check_newest(most, beside)
        for place in self._written - {0}:
            self.stores[place].check_newest(most)
        self._written.clear()

    def changes(self) -> StateWrites:
        raise AssertionError("each task commits its own")

    def committed(self) -> None:
        raise AssertionError("each task commits its own")

    def rest(self) -> None:
        for store in self.stores:
            store.rest()

    def _at(self, place: int) -> TaskStore:
        store = self.stores[place]
        if self._saved is not None and place not in self._saved:
            self._saved.add(place)
            store.savepoint()
        return store

    def _to(self, place: int) -> TaskStore:
        self._written.add(place)
        return self._at(place)
