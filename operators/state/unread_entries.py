"""The entries that an operator has not looked at since it began, which it reads in parts while it is at work."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

from operators.core.base import NEVER, Store
from operators.core.entry_keys import beyond

Entries = list[tuple[bytes, Any]]
"""Places in a store, with what it has there."""
MOST_READ = 1_000
"""The entries that are read at once: records wait no longer for that than for a batch of others."""


class UnreadEntries:
    """The entries of a store under a prefix, from a `start` on, read in the order of their bytes and `note`d then.

    None of them has a stamp below `lowest`; where nobody knows that, all are read at once. They are read as the store
    has them by then: whoever changes an entry that still `lies_ahead` sees to it that it is noted once. One thread at a
    time uses it, that of its task.

    >>> from runtime.stores.memory import MemoryStore
    >>> store, found = MemoryStore("counts"), []
    >>> store.update({b"s1": 7, b"s2": 8, b"t1": 9})
    >>> unread = UnreadEntries(store, b"s", found.extend, lowest=5)
    >>> unread.read_on(1)
    >>> found, unread.lies_ahead(b"s2"), unread.lowest
    ([(b's1', 7)], True, 5)
    >>> unread.read_all()
    >>> found, unread.is_left, unread.lowest == NEVER
    ([(b's1', 7), (b's2', 8)], False, True)
    """

    __slots__ = ("_end", "_lowest", "_note", "_reached", "_store", "is_left")

    def __init__(
        self,
        store: Store,
        prefix: bytes,
        note: Callable[[Entries], object],
        lowest: int | None,
        start: bytes | None = None,
    ) -> None:
        self._store, self._note = store, note
        self._reached, self._end = prefix if start is None else start, beyond(prefix)
        """The place before which all were read, and that behind the last."""
        self._lowest = NEVER if lowest is None else lowest
        self.is_left = next(store.range(self._reached, self._end), None) is not None
        """Whether some may not be read yet."""
        if lowest is None:
            self.read_all()

    @property
    def lowest(self) -> int:
        """The number below which none of those has a stamp that are not read yet; NEVER where all are."""
        return self._lowest if self.is_left else NEVER

    def lies_ahead(self, place: bytes) -> bool:
        """Whether the entry at a place is still to be read, if there is one."""
        return self.is_left and place >= self._reached

    def read_on(self, most: int | None = None) -> None:
        """Read the next entries, so many at most."""
        most = MOST_READ if most is None else most
        found = list(islice(self._store.range(self._reached, self._end), most))
        self.is_left = len(found) == most
        if found:
            self._note(found)
            # The first place behind it: bytes that begin with others come after these.
            self._reached = found[-1][0] + b"\0"

    def read_all(self) -> None:
        """Read all that are left."""
        while self.is_left:
            self.read_on()


class ReadBitByBit:
    """The common part of operators that have not read all of their entries where they begin."""

    _unread: UnreadEntries

    @property
    def is_unread(self) -> bool:
        """Whether there are entries that it has not read."""
        return self._unread.is_left

    def read_on(self) -> None:
        """Read some more of them."""
        self._unread.read_on()
