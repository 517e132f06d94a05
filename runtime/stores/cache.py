"""The durable store of an operator in one task: objects in memory over what an environment has committed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from operators.core.base import Serde
from runtime.encoding.serdes import encoded
from runtime.encoding.storable import check_kept
from runtime.model.clock import monotonic_ms
from runtime.model.errors import UnreadState
from runtime.ports.environment import Environment, typed
from runtime.ports.state import StateWrites
from runtime.ports.store import StorePlace, TaskStore
from runtime.stores.key_order import KeyOrder

ABSENT = object()
"""Stands for a value where there is none."""
_NOT_DIRTY = object()
IMMUTABLE = frozenset((int, str, bytes, float, bool, complex, type(None), type(ABSENT)))
"""Types whose values nobody can change in place, so that a savepoint needs no copy of them."""


class CachedStore(TaskStore):
    """An ordered map from bytes to values that reads its own writes; they become durable with the next commit.

    Writes stay here until `committed`, however many; of what is only read, at most `capacity` values are kept. A value
    that was got may be changed in place, if it is put back: only what is put is written. Without `keeps_plain` values
    that nobody can change are not cached, for operators that keep them anyway.

    One thread at a time uses it, the one that is at work in the task. Three things hold. A key that is dirty hides the
    committed value. Under a savepoint the journal has each key that was put, or handed out and may be changed, with its
    value from before. Nothing is written between `changes` and `committed`.

    >>> from runtime.encoding.serdes import Json
    >>> from runtime.systems.memory.environment import MemoryEnvironment
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
        self.name = store
        self.reads_again = False
        """Whether committed values are read again from the environment, as a restart would, and never from memory."""
        self.keeps_written = True
        """Whether committed values are kept without having been read, for as long as there is place."""
        self.owns: Callable[[bytes], bool] | None = None
        """Whether an entry is its own, where the tasks that share the partition keep theirs in the same place."""
        self.owner = f"the operator {store!r}"
        """The owner of the state, as errors name it."""
        self.get_ms = 0.0
        self.misses = 0
        # A plain dict has keys in the order they came in, and moves thousands for half of what an ordered one takes.
        self._clean: dict[bytes, object] = {}
        """The committed values in the order of their last use; ABSENT for a key that has none."""
        self._dirty: dict[bytes, object] = {}
        """The values that were put since the last commit; ABSENT for a key that was deleted."""
        self._deletes = False
        """Whether a dirty value may be ABSENT."""
        self._offered: int | None = None
        """The number of entries that the newest `changes` returned, until they are committed or taken back."""
        self._order = KeyOrder(self._dirty)
        self._journal: dict[bytes, object] | None = None
        """Under a savepoint: the dirty value from before, per key that was written or handed out since."""

    @classmethod
    def open(cls, place: StorePlace) -> CachedStore:
        """Return the store of an operator in a task."""
        where = place.environment, place.app, place.operator, place.task
        store = cls(*where, place.serde, place.cache_entries, place.keeps_plain)
        store.reads_again, store.owner = place.reads_again, place.owner
        store.keeps_written = place.keeps_written
        store.owns = place.owns
        return store

    @property
    def dirty_count(self) -> int:
        return len(self._dirty)

    def get(self, key: bytes, default: object = None) -> Any:
        # `self` stands for "not there": no value can be the store itself, and None and ABSENT are values.
        value = self._dirty.get(key, self)
        if value is self:
            clean = self._clean
            value = clean.pop(key, self)
            if value is self:
                value = self._load(key)
            else:
                clean[key] = value
        if self._journal is not None:
            self._remember(key, value)
        return default if value is ABSENT else value

    def put(self, key: bytes, value: object) -> None:
        dirty = self._dirty
        # Before the write, and only the first time: what came first is what a rollback restores.
        if self._journal is not None and key not in self._journal:
            self._journal[key] = dirty.get(key, _NOT_DIRTY)
        if key not in dirty:
            self._order.add(key)
        dirty[key] = value

    def delete(self, key: bytes) -> None:
        # A tombstone stays until the commit: the committed value below would shine through, and the commit deletes it.
        self._deletes = True
        self.put(key, ABSENT)

    def update(self, entries: Mapping[bytes, object]) -> None:
        if self._journal is not None:
            for key in entries.keys() - self._journal.keys():
                self._journal[key] = self._dirty.get(key, _NOT_DIRTY)
        # The order is told once, and not of each key: it looks for new ones when it is asked.
        self._dirty.update(entries)
        self._order.look()

    def range(self, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, Any]]:
        dirty = self._dirty
        # A list, because the caller may write while it walks through the range.
        written = [(key, dirty[key]) for key in self._order.between(start, end)]
        return self._handed_out(self._merged(written, self._committed(start, end)))

    def delete_all(self, keys: Iterable[bytes]) -> None:
        gone = dict.fromkeys(keys, ABSENT)
        if gone:
            self._deletes = True
            self.update(gone)

    def drop(self, start: bytes, end: bytes, most: int | None = None) -> int:
        # No value is read, as by range(): what goes has only to be known by its key.
        dirty = self._dirty
        committed = (key for key, _ in self._committed(start, end))
        written = [key for key in self._order.between(start, end) if dirty[key] is not ABSENT]
        gone = sorted({*written, *islice((key for key in committed if dirty.get(key) is not ABSENT), most)})[:most]
        self.delete_all(gone)
        return len(gone)

    def changes(self) -> StateWrites:
        values = [*self._dirty.values()]
        try:
            if self._deletes:
                kept = iter(encoded(self._serde, [value for value in values if value is not ABSENT]))
                data: Iterable[bytes | None] = [None if value is ABSENT else next(kept) for value in values]
            else:
                data = encoded(self._serde, values)
        except Exception:
            self.check_newest(len(values))  # which tells of what
            raise
        self._offered = len(values)
        return StateWrites(self._name, self._task, [*zip(self._dirty, data, strict=True)])

    def check_written(self, exactly: bool = False) -> None:
        dirty = self._dirty
        written = [dirty[key] for key in self._journal or () if key in dirty]
        check_kept(self._serde, [value for value in written if value is not ABSENT], exactly)

    def check_newest(self, most: int, beside: Sequence[object] = ()) -> None:
        newest = islice(reversed(self._dirty.values()), most)
        check_kept(self._serde, [*beside, *(value for value in newest if value is not ABSENT)])

    def committed(self) -> None:
        if self._journal is not None:
            raise RuntimeError(f"Store {self._name!r} can't be committed under a savepoint: release it first.")
        # All that is dirty becomes clean here, so an entry that was not offered to the commit would be lost.
        assert self._offered in (None, len(self._dirty)), "an entry was written between changes and committed"
        self._offered = None
        # The reader looks as of a moment before this commit, and would not see it.
        self._reader.release()
        clean, kept = self._clean, self._dirty
        # The older value of a key must go: the new one is put behind all others, or is not kept here at all.
        for key in clean.keys() & kept.keys():
            del clean[key]
        if not self.keeps_written:
            kept = {}
        elif not self._keeps_plain:
            kinds = set(map(type, kept.values()))
            kept = {} if kinds <= IMMUTABLE else {k: v for k, v in kept.items() if type(v) not in IMMUTABLE}
        # No more than there is place for, since the others would have to go at once.
        clean.update(islice(kept.items(), max(len(kept) - self._capacity, 0), None))
        if self.reads_again:
            clean.clear()
        self._dirty.clear()
        self._deletes = False
        self._order.clear()
        self._evict()

    def rest(self) -> None:
        self._reader.release()

    def savepoint(self) -> None:
        if self._journal is not None:
            raise RuntimeError(f"Store {self._name!r} has a savepoint already: release it, or roll back to it, first.")
        self._journal = {}

    def rollback(self) -> None:
        journal, self._journal = self._journal, None
        self._offered = None
        for key, before in (journal or {}).items():
            if before is _NOT_DIRTY:
                # Out of the cache as well: the value may have been changed in place, and is read again when asked for.
                self._dirty.pop(key, None)
                self._clean.pop(key, None)
            else:
                self._dirty[key] = self._decode(before.data) if type(before) is _Copy else before

    def release(self) -> None:
        self._journal = None

    def _committed(self, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Return the committed entries of its own from `start` on and below `end`."""
        found, owns = self._environment.state_range(self._app, self._name, self._task, start, end), self.owns
        return found if owns is None else (one for one in found if owns(one[0]))

    def _load(self, key: bytes) -> object:
        started = monotonic_ms()
        data = self._reader.get(key)
        value = ABSENT if data is None else self._read(data)
        self.get_ms += monotonic_ms() - started
        self.misses += 1
        if self._keeps_plain or type(value) not in IMMUTABLE:
            self._clean[key] = value
            self._evict()
        return value

    def _read(self, data: bytes) -> object:
        try:
            return self._decode(data)
        except Exception as error:
            drop = typed(self._environment, f"state forget {self._app} {self._name}")
            told = f"{self.owner}: its state can't be read: {error}"
            raise UnreadState(f"{told}; or drop the state of this operator alone: {drop}") from error

    def _evict(self) -> None:
        clean = self._clean
        # An eighth at once: to find the first key of a dict is to pass over all that went before it.
        if len(clean) > self._capacity:
            for key in [*islice(clean, len(clean) - self._capacity + self._capacity // 8)]:
                del clean[key]

    def _remember(self, key: bytes, value: object) -> None:
        """Keep what is needed to undo changes that the caller makes to `value` in place."""
        assert self._journal is not None
        # Dirty values are nowhere else, so their bytes are kept, which may not be changed in place; of clean ones the
        # environment has the bytes.
        if key not in self._journal and type(value) not in IMMUTABLE:
            self._journal[key] = _Copy(self._encode(value)) if key in self._dirty else _NOT_DIRTY

    def _merged(
        self, written: list[tuple[bytes, object]], committed: Iterator[tuple[bytes, bytes]]
    ) -> Iterator[tuple[bytes, object]]:
        # Both come in key order; where a key is in both, the written value hides the committed one.
        first = 0
        for key, data in committed:
            assert first == 0 or written[first - 1][0] <= key, "committed entries are not in key order"
            while first < len(written) and written[first][0] < key:
                yield written[first]
                first += 1
            if first == len(written) or written[first][0] != key:
                value = self._clean.get(key, ABSENT)
                if value is ABSENT:
                    value = self._clean[key] = self._read(data)
                    self._evict()
                yield key, value
        yield from written[first:]

    def _handed_out(self, entries: Iterator[tuple[bytes, object]]) -> Iterator[tuple[bytes, object]]:
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
