"""The durable store of an operator in one task: objects in memory over what an environment has committed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from operators.base import Serde
from runtime.clock import monotonic_ms
from runtime.serdes import encoded
from runtime.stores.order import KeyOrder
from runtime.systems.base import Environment, StateWrites

ABSENT: Any = object()
"""Stands for a value where there is none."""
_NOT_DIRTY: Any = object()
IMMUTABLE = frozenset((int, str, bytes, float, bool, complex, type(None), type(ABSENT)))
"""Types whose values nobody can change in place, so that a savepoint needs no copy of them."""


class CachedStore:
    """An ordered map from bytes to values that reads its own writes; they become durable with the next commit.

    Writes stay here until `committed`, however many; of what is only read, at most `capacity` values are kept. A value
    that was got may be changed in place, if it is put back: only what is put is written. Whoever keeps plain values
    anyway has it without `keeps_plain`.

    >>> from runtime.serdes import Json
    >>> from runtime.systems.memory import MemoryEnvironment
    >>> store = CachedStore(MemoryEnvironment(), "app", "counts", 0, Json())
    >>> store.put(b"b", 2)
    >>> store.savepoint()
    >>> store.put(b"a", 1)
    >>> store.rollback()
    >>> list(store.range())
    [(b'b', 2)]
    >>> store.changes()
    StateWrites(store='counts', task=0, items=[(b'b', b'2')])
    """

    durable = True

    def __init__(
        self,
        environment: Environment,
        app: str,
        store: str,
        task: int,
        serde: Serde,
        capacity: int = 10_000,
        keeps_plain: bool = True,
    ) -> None:
        self._environment = environment
        self._app, self._name, self._task = app, store, task
        self._reader = environment.state_reader(app, store, task)
        self._serde, self._encode, self._decode = serde, serde.encode, serde.decode
        self._capacity = capacity
        self._keeps_plain = keeps_plain
        self.get_ms = 0.0
        """How long reading took of what no cache held."""
        self._clean: OrderedDict[bytes, Any] = OrderedDict()
        """What the environment has, by use; ABSENT where it has nothing."""
        self._dirty: dict[bytes, Any] = {}
        """What was written since the last commit; ABSENT where it was deleted."""
        self._deletes = False
        """Whether any of these may be."""
        self._order = KeyOrder(self._dirty)
        self._journal: dict[bytes, Any] | None = None
        """Under a savepoint: the dirty value from before, per key that was written or handed out since."""

    @property
    def dirty_count(self) -> int:
        """How many entries wait for the next commit."""
        return len(self._dirty)

    def get(self, key: bytes, default: Any = None) -> Any:
        """Return the value at `key`, or `default`."""
        value = self._dirty.get(key, self)
        if value is self:
            value = self._clean.get(key, self)
            if value is self:
                value = self._load(key)
            else:
                self._clean.move_to_end(key)
        if self._journal is not None:
            self._remember(key, value)
        return default if value is ABSENT else value

    def put(self, key: bytes, value: Any) -> None:
        """Set the value at `key`; it is durable with the next commit."""
        dirty = self._dirty
        if self._journal is not None and key not in self._journal:
            self._journal[key] = dirty.get(key, _NOT_DIRTY)
        if key not in dirty:
            self._order.add(key)
        dirty[key] = value

    def delete(self, key: bytes) -> None:
        """Remove `key`; nothing happens where it is absent."""
        self._deletes = True
        self.put(key, ABSENT)

    def update(self, entries: Mapping[bytes, Any]) -> None:
        """Set many values."""
        if self._journal is not None:
            for key in entries.keys() - self._journal.keys():
                self._journal[key] = self._dirty.get(key, _NOT_DIRTY)
        self._dirty.update(entries)
        self._order.look()

    def range(self, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, Any]]:
        """Yield the (key, value) pairs with `start` <= key < `end`, in key order, as they are at the call."""
        dirty = self._dirty
        written = [(key, dirty[key]) for key in self._order.between(start, end)]
        committed = self._environment.state_range(self._app, self._name, self._task, start, end)
        return self._handed_out(self._merged(written, committed))

    def changes(self) -> StateWrites:
        """Return what was written since the last commit, encoded; it stays dirty."""
        values = [*self._dirty.values()]
        if self._deletes:
            kept = iter(encoded(self._serde, [value for value in values if value is not ABSENT]))
            data: Iterable[bytes | None] = [None if value is ABSENT else next(kept) for value in values]
        else:
            data = encoded(self._serde, values)
        return StateWrites(self._name, self._task, [*zip(self._dirty, data, strict=True)])

    def committed(self) -> None:
        """Take note that the environment now has what `changes` returned."""
        if self._journal is not None:
            raise RuntimeError(f"Store {self._name!r} can't be committed under a savepoint: release it first.")
        self._reader.release()
        clean, kept = self._clean, self._dirty
        if not self._keeps_plain:
            if clean:
                for key in clean.keys() & kept.keys():
                    del clean[key]
            kinds = set(map(type, kept.values()))
            kept = {} if kinds <= IMMUTABLE else {k: v for k, v in kept.items() if type(v) not in IMMUTABLE}
        for key, value in kept.items():
            clean[key] = value
            clean.move_to_end(key)
        self._dirty.clear()
        self._deletes = False
        self._order.clear()
        self._evict()

    def rest(self) -> None:
        """Let go of the moment as of which committed entries are read: nothing is read for a while."""
        self._reader.release()

    def savepoint(self) -> None:
        """Begin to remember how things are, until `rollback` or `release`; there is one savepoint at a time."""
        if self._journal is not None:
            raise RuntimeError(f"Store {self._name!r} has a savepoint already: release it, or roll back to it, first.")
        self._journal = {}

    def rollback(self) -> None:
        """Make everything as it was at the savepoint, values that were changed in place included, and end it."""
        journal, self._journal = self._journal, None
        for key, before in (journal or {}).items():
            if before is _NOT_DIRTY:
                self._dirty.pop(key, None)
                self._clean.pop(key, None)
            else:
                self._dirty[key] = self._decode(before.data) if type(before) is _Copy else before

    def release(self) -> None:
        """Keep what was done since the savepoint, and end it."""
        self._journal = None

    def _load(self, key: bytes) -> Any:
        started = monotonic_ms()
        data = self._reader.get(key)
        value = ABSENT if data is None else self._decode(data)
        self.get_ms += monotonic_ms() - started
        if self._keeps_plain or type(value) not in IMMUTABLE:
            self._clean[key] = value
            self._evict()
        return value

    def _evict(self) -> None:
        clean = self._clean
        while len(clean) > self._capacity:
            clean.popitem(last=False)

    def _remember(self, key: bytes, value: Any) -> None:
        """Keep what is needed to undo changes that the caller makes to `value` in place."""
        assert self._journal is not None
        if key not in self._journal and type(value) not in IMMUTABLE:
            self._journal[key] = _Copy(self._encode(value)) if key in self._dirty else _NOT_DIRTY

    def _merged(
        self, written: list[tuple[bytes, Any]], committed: Iterator[tuple[bytes, bytes]]
    ) -> Iterator[tuple[bytes, Any]]:
        first = 0
        for key, data in committed:
            while first < len(written) and written[first][0] < key:
                yield written[first]
                first += 1
            if first == len(written) or written[first][0] != key:
                value = self._clean.get(key, ABSENT)
                if value is ABSENT:
                    value = self._clean[key] = self._decode(data)
                    self._evict()
                yield key, value
        yield from written[first:]

    def _handed_out(self, entries: Iterator[tuple[bytes, Any]]) -> Iterator[tuple[bytes, Any]]:
        for entry in entries:
            key, value = entry
            if value is not ABSENT:
                if self._journal is not None:
                    self._remember(key, value)
                yield entry


class _Copy:
    """The bytes of a value that was handed out under a savepoint, and may be changed in place."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data
