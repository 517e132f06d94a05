"""The store of an operator whose state need not outlive the process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

from runtime.ports.state import StateWrites
from runtime.ports.store import StorePlace, TaskStore
from runtime.stores.cache import ABSENT, IMMUTABLE
from runtime.stores.key_order import KeyOrder


class MemoryStore(TaskStore):
    """An ordered map from bytes to values, with savepoints, that is in memory alone and ends with the process.

    >>> store = MemoryStore("counts", 0)
    >>> store.put(b"a", [1])
    >>> store.savepoint()
    >>> store.get(b"a").append(2)
    >>> store.rollback()
    >>> store.get(b"a")
    [1]
    """

    durable = False
    get_ms = 0.0
    dirty_count = 0
    """Nothing ever waits for a commit."""

    def __init__(self, store: str = "", task: int = 0) -> None:
        self.name, self._task = store, task
        self._entries: dict[bytes, object] = {}
        self._order = KeyOrder(self._entries)
        self._journal: dict[bytes, object] | None = None
        """Under a savepoint: the value from before, per key that was written or handed out since."""

    @classmethod
    def open(cls, place: StorePlace) -> MemoryStore:
        """Return an empty store."""
        return cls(place.operator, place.task)

    def get(self, key: bytes, default: object = None) -> Any:
        value = self._entries.get(key, ABSENT)
        if self._journal is not None:
            self._remember(key, value)
        return default if value is ABSENT else value

    def rest(self) -> None:
        """Do nothing: there is nowhere else to read from."""

    def put(self, key: bytes, value: object) -> None:
        entries = self._entries
        # Before the write, and only the first time: what came first is what a rollback restores.
        if self._journal is not None and key not in self._journal:
            self._journal[key] = entries.get(key, ABSENT)
        if key not in entries:
            self._order.add(key)
        entries[key] = value

    def delete(self, key: bytes) -> None:
        value = self._entries.pop(key, ABSENT)
        if self._journal is not None:
            self._journal.setdefault(key, value)

    def update(self, entries: Mapping[bytes, object]) -> None:
        if self._journal is not None:
            for key in entries.keys() - self._journal.keys():
                self._journal[key] = self._entries.get(key, ABSENT)
        self._order.add_all(entries)
        self._entries.update(entries)

    def range(self, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, Any]]:
        entries = self._entries
        return self._handed_out([(key, entries[key]) for key in self._order.between(start, end)])

    def drop(self, start: bytes, end: bytes, most: int | None = None) -> int:
        gone = self._order.between(start, end)[:most]
        self.delete_all(gone)
        return len(gone)

    def changes(self) -> StateWrites:
        """Return no writes: nothing is durable here."""
        return StateWrites(self.name, self._task, [])

    def check_written(self, exactly: bool = False) -> None:
        """Do nothing: what is here is never encoded."""

    def check_newest(self, most: int, beside: Sequence[object] = ()) -> None:
        """Do nothing."""

    def committed(self) -> None:
        """Take note of a commit, which changes nothing here."""

    def savepoint(self) -> None:
        if self._journal is not None:
            raise RuntimeError(f"Store {self.name!r} has a savepoint already: release it, or roll back to it, first.")
        self._journal = {}

    def rollback(self) -> None:
        journal, self._journal = self._journal, None
        for key, before in (journal or {}).items():
            if before is ABSENT:
                self._entries.pop(key, None)
            else:
                # Deleted since, and out of the order by now if that was arranged in between.
                self._order.add(key)
                self._entries[key] = before

    def release(self) -> None:
        self._journal = None

    def _remember(self, key: bytes, value: object) -> None:
        assert self._journal is not None
        # A deep copy, and not the bytes: nothing here is ever encoded.
        if key not in self._journal and type(value) not in IMMUTABLE:
            self._journal[key] = deepcopy(value)

    def _handed_out(self, entries: list[tuple[bytes, object]]) -> Iterator[tuple[bytes, object]]:
        for entry in entries:
            if self._journal is not None:
                self._remember(*entry)
            yield entry
