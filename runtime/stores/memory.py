"""The store of an operator whose state need not outlive the process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from runtime.stores.cache import ABSENT, IMMUTABLE
from runtime.stores.order import KeyOrder
from runtime.systems.base import StateWrites


class MemoryStore:
    """An ordered map from bytes to values, with savepoints; nothing of it is ever written anywhere.

    >>> store = MemoryStore("counts", 0)
    >>> store.put(b"a", [1])
    >>> store.savepoint()
    >>> store.get(b"a").append(2)
    >>> store.rollback()
    >>> store.get(b"a")
    [1]
    """

    durable = False
    dirty_count = 0
    """Nothing ever waits for a commit."""

    def __init__(self, store: str = "", task: int = 0) -> None:
        self._name, self._task = store, task
        self._entries: dict[bytes, Any] = {}
        self._order = KeyOrder(self._entries)
        self._journal: dict[bytes, Any] | None = None
        """Under a savepoint: the value from before, per key that was written or handed out since."""

    def get(self, key: bytes, default: Any = None) -> Any:
        """Return the value at `key`, or `default`."""
        value = self._entries.get(key, ABSENT)
        if self._journal is not None:
            self._remember(key, value)
        return default if value is ABSENT else value

    def rest(self) -> None:
        """Do nothing: there is nowhere else to read from."""

    def put(self, key: bytes, value: Any) -> None:
        """Set the value at `key`."""
        entries = self._entries
        if self._journal is not None and key not in self._journal:
            self._journal[key] = entries.get(key, ABSENT)
        if key not in entries:
            self._order.add(key)
        entries[key] = value

    def delete(self, key: bytes) -> None:
        """Remove `key`; nothing happens where it is absent."""
        value = self._entries.pop(key, ABSENT)
        if self._journal is not None:
            self._journal.setdefault(key, value)

    def update(self, entries: Mapping[bytes, Any]) -> None:
        """Set many values."""
        if self._journal is not None:
            for key in entries.keys() - self._journal.keys():
                self._journal[key] = self._entries.get(key, ABSENT)
        self._order.add_all(entries)
        self._entries.update(entries)

    def range(self, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, Any]]:
        """Yield the (key, value) pairs with `start` <= key < `end`, in key order, as they are at the call."""
        entries = self._entries
        return self._handed_out([(key, entries[key]) for key in self._order.between(start, end)])

    def changes(self) -> StateWrites:
        """Return no writes: nothing is durable here."""
        return StateWrites(self._name, self._task, [])

    def committed(self) -> None:
        """Take note of a commit, which changes nothing here."""

    def savepoint(self) -> None:
        """Begin to remember how things are, until `rollback` or `release`; there is one savepoint at a time."""
        if self._journal is not None:
            raise RuntimeError(f"Store {self._name!r} has a savepoint already: release it, or roll back to it, first.")
        self._journal = {}

    def rollback(self) -> None:
        """Make everything as it was at the savepoint, values that were changed in place included, and end it."""
        journal, self._journal = self._journal, None
        for key, before in (journal or {}).items():
            if before is ABSENT:
                self._entries.pop(key, None)
            else:
                self._order.add(key)
                self._entries[key] = before

    def release(self) -> None:
        """Keep what was done since the savepoint, and end it."""
        self._journal = None

    def _remember(self, key: bytes, value: Any) -> None:
        assert self._journal is not None
        if key not in self._journal and type(value) not in IMMUTABLE:
            self._journal[key] = deepcopy(value)

    def _handed_out(self, entries: list[tuple[bytes, Any]]) -> Iterator[tuple[bytes, Any]]:
        for entry in entries:
            if self._journal is not None:
                self._remember(*entry)
            yield entry
