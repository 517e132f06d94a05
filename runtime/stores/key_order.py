"""The keys of a dict in order, brought up to date only when somebody asks."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping

_FEW = 8
"""New keys up to this many are inserted one by one; more are sorted in together."""


class KeyOrder:
    """The order of the keys of `entries`, which changes outside: `add` each key that is new there, or say `look`.

    >>> entries = {b"b": 1}
    >>> order = KeyOrder(entries)
    >>> entries[b"a"] = 2
    >>> order.add(b"a")
    >>> order.between(b"", b"b")
    [b'a']
    """

    def __init__(self, entries: Mapping[bytes, object]) -> None:
        # Keys that have left the entries may stay here; none that is there may be missing when the order is asked for.
        self._entries = entries
        self._known = set(entries)
        self._sorted = sorted(entries)
        self._new: list[bytes] = []
        self._looks = False

    def add(self, key: bytes) -> None:
        """Take in a key that is new in the entries; one that is known already changes nothing."""
        if key not in self._known:
            self._known.add(key)
            self._new.append(key)

    def add_all(self, keys: Iterable[bytes]) -> None:
        """Take in keys, some of which may be known already."""
        new = [key for key in keys if key not in self._known]
        self._known.update(new)
        self._new += new

    def look(self) -> None:
        """Look for new keys in the entries the next time the order is asked for."""
        self._looks = True

    def clear(self) -> None:
        """Forget all keys."""
        self._known.clear()
        self._sorted.clear()
        self._new.clear()
        self._looks = False

    def between(self, start: bytes = b"", end: bytes | None = None) -> list[bytes]:
        """Return the keys in the entries with `start` <= key < `end`, in order."""
        self._arrange()
        keys = self._sorted
        first = bisect_left(keys, start) if start else 0
        last = len(keys) if end is None else bisect_left(keys, end)
        # Keys that have left the entries are passed over here, which costs less than taking each out of a sorted list.
        entries = self._entries
        return [key for key in keys[first:last] if key in entries]

    def _arrange(self) -> None:
        if self._looks:
            self._looks = False
            self.add_all(self._entries)
        # More than half of the keys have left: begin anew, so that the order costs what the entries do.
        if len(self._known) > 2 * len(self._entries) + _FEW:
            self._known = set(self._entries)
            self._sorted = sorted(self._entries)
            self._new.clear()
        elif len(self._new) > _FEW:
            # Two sorted runs, which sort() of Python merges in one pass.
            self._sorted.extend(sorted(self._new))
            self._sorted.sort()
            self._new.clear()
        elif self._new:
            for key in self._new:
                insort(self._sorted, key)
            self._new.clear()
        assert len(self._sorted) == len(self._known) >= len(self._entries), "a key of the entries is not in the order"
