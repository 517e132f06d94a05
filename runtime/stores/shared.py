"""A store that async functions read on the event loop while a thread is at work in their task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from operators.base import Store


class SharedStore:
    """Uses a store when nobody else does, so that what may yet be taken back is never seen."""

    def __init__(self, store: Store, alone: AbstractContextManager[object]) -> None:
        self._store = store
        self._alone = alone

    @property
    def durable(self) -> bool:
        """Whether it outlives the process."""
        return self._store.durable

    def get(self, key: bytes, default: Any = None) -> Any:
        """Return the value at `key`, or `default`."""
        with self._alone:
            return self._store.get(key, default)

    def put(self, key: bytes, value: Any) -> None:
        """Set the value at `key`; it is durable with the next commit."""
        with self._alone:
            self._store.put(key, value)

    def delete(self, key: bytes) -> None:
        """Remove `key`; nothing happens where it is absent."""
        with self._alone:
            self._store.delete(key)

    def update(self, entries: Mapping[bytes, Any]) -> None:
        """Set many values."""
        with self._alone:
            self._store.update(entries)

    def range(self, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, Any]]:
        """Yield the (key, value) pairs with `start` <= key < `end`, in key order, as they are at the call."""
        with self._alone:
            return iter([*self._store.range(start, end)])
