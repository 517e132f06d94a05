"""A snapshot of state that is held in memory, where a place has no other: each store is read when it is asked for."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping

from runtime.ports.state import StateSnapshot

Entries = Mapping[int, Mapping[bytes, bytes]]
"""The entries of a store by task and place."""


class HeldSnapshot(StateSnapshot):
    """The state of an application, of which `read` gives that of one store; it is asked once for each.

    >>> snapshot = HeldSnapshot(lambda store: {0: {b"b": b"2", b"a": b"1"}})
    >>> list(snapshot.between("totals", 0, b"a", None))
    [(b'a', b'1'), (b'b', b'2')]
    """

    def __init__(self, read: Callable[[str], Entries]) -> None:
        self._read = read
        self._held: dict[str, dict[int, list[tuple[bytes, bytes]]]] = {}

    def tasks(self, store: str) -> Collection[int]:
        return self._of(store).keys()

    def get(self, store: str, task: int, key: bytes) -> bytes | None:
        entries = self._of(store).get(task, [])
        at = bisect_left(entries, (key,))
        return entries[at][1] if at < len(entries) and entries[at][0] == key else None

    def between(self, store: str, task: int, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        entries = self._of(store).get(task, [])
        first = bisect_left(entries, (start,))
        last = len(entries) if end is None else bisect_left(entries, (end,))
        yield from entries[first:last]

    def close(self) -> None:
        self._held.clear()

    def _of(self, store: str) -> dict[int, list[tuple[bytes, bytes]]]:
        if store not in self._held:
            self._held[store] = {task: sorted(found.items()) for task, found in self._read(store).items()}
        return self._held[store]
