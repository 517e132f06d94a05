"""A store that async functions read on the event loop while a thread is at work in their task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager

from operators.core.base import Store


class SharedStore(Store):
    """Uses a store only while no thread works in the task, so that it never sees what may yet be rolled back."""

    def __init__(self, store: Store, alone: AbstractContextManager[object]) -> None:
        self._store = store
        self._alone = alone

    @property
    def durable(self) -> bool:
        return self._store.durable

    def get(self, key: bytes, default: object = None) -> object:
        with self._alone:
            return self._store.get(key, default)

    def put(self, key: bytes, value: object) -> None:
        with self._alone:
            self._store.put(key, value)

    def delete(self, key: bytes) -> None:
        with self._alone:
            self._store.delete(key)

    def update(self, entries: Mapping[bytes, object]) -> None:
        with self._alone:
            self._store.update(entries)

    def range(self, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, object]]:
        # A list: the walk through it goes on outside of the lock, when a thread may write to the store again.
        with self._alone:
            return iter([*self._store.range(start, end)])

    def delete_all(self, keys: Iterable[bytes]) -> None:
        with self._alone:
            self._store.delete_all(keys)

    def drop(self, start: bytes, end: bytes, most: int | None = None) -> int:
        with self._alone:
            return self._store.drop(start, end, most)
