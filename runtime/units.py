"""The messages of one chain that await something: each takes effect as a whole, when all of its calls are done."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from operators.base import Batch
from runtime.calls import Call, Calls
from runtime.chain import Chain
from runtime.failures import Failure
from runtime.guard import Rows
from runtime.in_flight import Entry

CARRIED = ("keys", "timestamps", "stamps", "offsets")
"""What the result of a call takes over from the message that it was made for."""

Place = tuple[Batch, int]
"""A row of a batch."""


class Unit:
    """One message on its way: the calls that it waits for, and the rows that will take effect when it is applied."""

    __slots__ = ("calls", "entries", "failure", "held", "key", "pending", "raw", "reader", "stamp", "unsettled")

    def __init__(
        self, entries: tuple[Entry, ...], raw: tuple[Rows, int], reader: Any, key: bytes | None, stamp: int | None
    ) -> None:
        self.entries = entries
        self.raw = raw
        self.reader = reader
        self.key = key
        self.stamp = stamp
        self.calls: deque[tuple[str, Any, Place]] = deque()
        self.unsettled: list[tuple[str, Call, Place]] = []
        self.held: list[tuple[str, Place]] = []
        self.failure: Failure | None = None
        self.pending = 0


class Units:
    """All messages of one chain that are in flight, and the order in which they may start and take effect.

    A message is explored first: its stateless operators run, its calls are made, and what would take effect is held.
    When nothing is awaited any more, it is applied. In an `ordered` stage messages are applied in offset order; with
    `by_key` a message starts its calls when the one before it with the same key was applied.
    """

    def __init__(self, chain: Chain, pools: dict[str, Calls], wake: Callable[[], None]) -> None:
        self.chain = chain
        self.pools = pools
        self._wake = wake
        self._sequence: deque[Unit] = deque()
        self._unapplied: dict[Unit, None] = {}
        self._by_key: dict[bytes, deque[Unit]] = {}
        self._ready: dict[Unit, None] = {}
        self._returned: list[Unit] = []

    def __len__(self) -> int:
        return len(self._unapplied)

    @property
    def lowest_stamp(self) -> int | None:
        """The smallest stamp that a message in flight may still emit with."""
        return min((unit.stamp for unit in self._unapplied if unit.stamp is not None), default=None)

    def acceptable(self, keys: list[bytes | None] | None, deepest: int) -> int:
        """Return how many messages with these keys may come in so that none waits behind `deepest` others."""
        if keys is None or not self.chain.stage.by_key:
            return 2**62
        depths = Counter({key: len(self._by_key.get(key, ())) for key in set(keys) if key is not None})
        for row, key in enumerate(keys):
            if key is not None:
                depths[key] += 1
                if depths[key] > deepest:
                    return row
        return len(keys)

    def admit(self, units: Iterable[Unit]) -> None:
        """Take in messages that were explored, in offset order, and start what may start."""
        for unit in units:
            self._unapplied[unit] = None
            if self.chain.stage.ordered:
                self._sequence.append(unit)
            if self.chain.stage.by_key and unit.key is not None and unit.calls:
                queue = self._by_key.setdefault(unit.key, deque())
                queue.append(unit)
                if len(queue) > 1:
                    continue
            self._start(unit)

    def returned(self, operator: str, call: Call) -> None:
        """Take note that a call is done; the next one of the same message and operator may start."""
        unit: Unit = call.unit
        unit.pending -= 1
        if call.failure is not None:
            unit.calls.clear()
        for place, (following, _, _) in enumerate(unit.calls):
            if following == operator:
                unit.calls.rotate(-place)
                self._submit(unit)
                unit.calls.rotate(place)
                return
        if not unit.pending:
            self._returned.append(unit)
            self._wake()

    def take_returned(self) -> list[Unit]:
        """Return the messages whose calls are all done; what they came to is to be explored."""
        units, self._returned = self._returned, []
        return units

    def settle(self, unit: Unit) -> None:
        """After exploring what its calls came to: make further calls, or be ready to be applied."""
        if unit.calls and unit.failure is None:
            self._start(unit)
        else:
            unit.calls.clear()
            self._ready[unit] = None

    def applicable(self) -> list[Unit]:
        """Return the messages that may take effect now, in order; `applied` is to be told of each."""
        if not self.chain.stage.ordered:
            ready, self._ready = [*self._ready], {}
            return ready
        found = []
        while self._sequence and self._sequence[0] in self._ready:
            unit = self._sequence.popleft()
            del self._ready[unit]
            found.append(unit)
        return found

    def applied(self, unit: Unit) -> None:
        """Let a message go, and start the next one of its key."""
        del self._unapplied[unit]
        for entry in unit.entries:
            entry.release()
        queue = self._by_key.get(unit.key) if unit.key is not None else None
        if queue and queue[0] is unit:
            queue.popleft()
            if queue:
                self._start(queue[0])
            elif unit.key is not None:
                del self._by_key[unit.key]

    def _start(self, unit: Unit) -> None:
        """Start a message's calls; those that one operator makes for one key start one after the other."""
        if not unit.calls:
            self._ready[unit] = None
            self._wake()
            return
        one_by_one = self.chain.stage.by_key and unit.key is not None
        begun: set[str] = set()
        for _ in range(len(unit.calls)):
            if one_by_one and unit.calls[0][0] in begun:
                unit.calls.rotate(-1)
            else:
                begun.add(unit.calls[0][0])
                self._submit(unit)

    def _submit(self, unit: Unit) -> None:
        operator, argument, place = unit.calls.popleft()
        call = Call(unit, argument)
        unit.unsettled.append((operator, call, place))
        unit.pending += 1
        self.pools[operator].submit(call)


def results_of(units: Iterable[Unit]) -> Iterator[tuple[str, Batch]]:
    """Yield, per async operator, what the done calls of messages came to; the calls are forgotten.

    Every result has the key and the times of the message that it came from; a message of which a call failed has no
    results, and the failure.
    """
    found: dict[tuple[str, ...], Batch] = {}
    for unit in units:
        unit.failure = next((call.failure for _, call, _ in unit.unsettled if call.failure), None)
        for operator, call, (batch, row) in unit.unsettled if unit.failure is None else ():
            columns = [name for name in CARRIED if getattr(batch, name) is not None]
            result = found.get((operator, *columns))
            if result is None:
                result = found[operator, *columns] = Batch([], owners=[])
                for name in columns:
                    setattr(result, name, [])
            number = len(call.result)
            result.values += call.result
            for name in columns:
                getattr(result, name).extend([getattr(batch, name)[row]] * number)
            assert result.owners is not None
            result.owners += [unit] * number
        unit.unsettled = []
    yield from ((operator, batch) for (operator, *_), batch in found.items() if batch.values)
