"""The times at which places of an operator's state are to be looked at, which its store has, too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

from operators.core.base import MIN_TIMESTAMP, MOST_HELD, NEVER, Store
from operators.core.entry_keys import NUMBER_BYTES, SHIFT, beyond, number_at, ordered

NOTED = b"e"
"""The first byte of the places of dues in a store."""
LEAST_READ = 1_000
"""The fewest that are read at once, so that reads are few, and few are read that are not due yet."""
P = TypeVar("P")
Entry = tuple[int, bytes, P]


class NotedDues(Generic[P]):
    """Places by time, those of one time by their bytes, beside a store that has them by the same order.

    A start reads none of them: the first ones are read when event time comes near. What has changed since the last
    `write_back` is here alone, so what is added and taken between two commits never touches the store. What is `load`ed
    from places' bytes are the places. One thread at a time uses it, that of its task.

    >>> from runtime.stores.memory import MemoryStore
    >>> store = MemoryStore("sessions")
    >>> dues = NotedDues(store, b"e", lambda places: places)
    >>> for at, place in [(7, b"b"), (7, b"a"), (5, b"b")]:
    ...     dues.add(at, place, place)
    >>> dues.write_back()
    >>> again = NotedDues(store, b"e", lambda places: places)
    >>> again.first(), [*again.each(6)], again.drop(), again.first()
    (5, [(5, b'b')], (7, b'a'), 7)
    """

    def __init__(
        self, store: Store, prefix: bytes, load: Callable[[list[bytes]], Iterable[P | None]], most_held: int = MOST_HELD
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._load = load
        self._most_held = most_held
        self._heap: list[Entry[P]] = []
        """Those before `_beyond`."""
        self._new: dict[Entry[P], None] = {}
        """Those that the store does not have, from `_beyond` on as well."""
        self._gone: list[Entry[P]] = []
        """Those that were taken since the last `write_back`, and that the store has."""
        self._beyond = MIN_TIMESTAMP
        """The time from which on some may be in the store alone."""
        self._is_first_known = False
        """Whether the store has one at `_beyond`, so that it is the first of all where none is held."""

    @property
    def unwritten(self) -> int:
        """The number of changes that the store does not have."""
        return len(self._new) + len(self._gone)

    def add(self, at: int, data: bytes, place: P) -> None:
        """Note when a place is to be looked at, given its bytes, too."""
        due = (at, data, place)
        self._new[due] = None
        if at < self._beyond:
            heappush(self._heap, due)

    def first(self) -> int:
        """Return the first time of all, or NEVER."""
        if not (self._heap or self._is_first_known or self._beyond == NEVER):
            self._look_on()
        return self._heap[0][0] if self._heap else self._beyond

    def first_place(self) -> P:
        """Return the place that is first of all; there must be one."""
        until = self.first()
        if not self._heap:
            self._read_on(until)
        return self._heap[0][2]

    def each(self, until: int) -> Iterator[tuple[int, P]]:
        """Yield the places that are due by a time, in order, each removed just before; those added on the way, too."""
        heap, new = self._heap, self._new
        while heap or self._beyond <= until:
            if not heap:
                self._read_on(until)
                continue
            if heap[0][0] > until:
                return
            due = heappop(heap)
            # The store need not hear of one that it never had.
            if due in new:
                del new[due]
            else:
                self._gone.append(due)
            yield due[0], due[2]

    def drop(self) -> tuple[int, P]:
        """Remove the first place, and return it with its time; there must be one."""
        first = next(self.each(NEVER - 1), None)
        assert first is not None, "somebody has asked when the first one is due"
        return first

    def write_back(self) -> None:
        """Put what has changed into the store."""
        self._write()
        if self._store.durable and len(self._heap) > 2 * self._most_held:
            self._let_go()

    def forget(self) -> None:
        """Drop all that is beside the store, which was rolled back to the last `write_back`."""
        for held in (self._heap, self._new, self._gone):
            held.clear()
        self._beyond, self._is_first_known = MIN_TIMESTAMP, False

    def _write(self) -> None:
        # In this order: what was taken may have been added again.
        if self._gone:
            self._store.delete_all(self._places(self._gone))
            self._gone.clear()
        if self._new:
            self._store.update(dict.fromkeys(self._places(self._new), True))
            self._new.clear()

    def _places(self, dues: Iterable[Entry[P]]) -> list[bytes]:
        # As `ordered` does it, written out to spare a call for each.
        prefix = self._prefix
        return [prefix + (at + SHIFT).to_bytes(NUMBER_BYTES, "big") + data for at, data, _ in dues]

    def _look_on(self) -> None:
        """Learn the first time of those that may be in the store alone."""
        place = next((place for place, _ in self._stored()), None)
        self._come_to(NEVER if place is None else self._time(place))

    def _come_to(self, reached: int) -> None:
        """Hold all that is new before a time, and let it be the one from which on some may be in the store alone."""
        assert reached >= self._beyond, "what is read comes nearer to the end"
        # Nothing is written here: who asks when something is due may be in the midst of a commit.
        self._heap += [due for due in self._new if self._beyond <= due[0] < reached]
        heapify(self._heap)
        self._beyond, self._is_first_known = reached, reached != NEVER

    def _read_on(self, until: int) -> None:
        """Read the next of those that may be in the store alone, few that are not due yet, all of one time together."""
        most = max(self._most_held, 1)
        least = min(most, LEAST_READ)
        found: list[tuple[int, bytes]] = []
        begins, reached, last = len(self._prefix) + NUMBER_BYTES, NEVER, 0
        for place, _ in self._stored():
            at = self._time(place)
            if at != last and len(found) >= (most if at <= until else least):
                reached = at
                break
            found.append((at, place[begins:]))
            last = at
        for (at, data), place_of in zip(found, self._load([data for _, data in found]), strict=True):
            assert place_of is not None, "each place is of a key"
            self._heap.append((at, data, place_of))
        self._come_to(reached)

    def _let_go(self) -> None:
        """Leave those that come last to the store, which has all of them."""
        assert not self.unwritten, "only what the store has may be left to it"
        self._heap.sort()
        self._beyond, self._is_first_known = self._heap[self._most_held][0], True
        del self._heap[next(number for number, due in enumerate(self._heap) if due[0] == self._beyond) :]

    def _stored(self) -> Iterator[tuple[bytes, object]]:
        return self._store.range(self._prefix + ordered(self._beyond), beyond(self._prefix))

    def _time(self, place: bytes) -> int:
        return number_at(place, len(self._prefix))
