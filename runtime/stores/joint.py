"""The store of an operator that is run once for several tasks: each entry lies in the store of the task of its key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from operator import itemgetter
from typing import Any

from runtime.ports.state import StateWrites
from runtime.ports.store import TaskStore


class JointStore(TaskStore):
    """The stores of an operator in several tasks as one ordered map; each task commits its own.

    One thread at a time uses it. A savepoint is made in a store when it is first asked under it, as most of them are
    not: to make one in each would cost as much as there are tasks, for each record that is tried.

    >>> from runtime.stores.memory import MemoryStore
    >>> even, odd = MemoryStore("counts"), MemoryStore("counts")
    >>> store = JointStore([even, odd], lambda place: place[-1] % 2)
    >>> store.update({b"b": 2, b"a": 1, b"c": 3})
    >>> [*store.range()], [*odd.range()]
    ([(b'a', 1), (b'b', 2), (b'c', 3)], [(b'a', 1), (b'c', 3)])
    """

    def __init__(self, stores: Sequence[TaskStore], place_of: Callable[[bytes], int]) -> None:
        self.stores = stores
        self.name = stores[0].name
        self.get_ms, self.misses = 0.0, 0
        self._place_of = place_of
        """Returns the number of the store that has a place."""
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
        parts: dict[int, dict[bytes, object]] = {}
        for place, (key, value) in zip(map(self._place_of, entries), entries.items(), strict=True):
            part = parts.get(place)
            if part is None:
                part = parts[place] = {}
            part[key] = value
        for place, part in parts.items():
            self._to(place).update(part)

    def delete_all(self, keys: Iterable[bytes]) -> None:
        parts: dict[int, list[bytes]] = {}
        for key in keys:
            parts.setdefault(self._place_of(key), []).append(key)
        for place, part in parts.items():
            self._to(place).delete_all(part)

    def range(self, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, Any]]:
        found = [self._at(place).range(start, end) for place, _ in enumerate(self.stores)]
        return merge(*found, key=itemgetter(0))

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
