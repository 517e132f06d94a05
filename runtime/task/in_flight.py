"""The messages in flight of a chain that awaits: each takes effect as a whole, when all of its calls are done."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from math import inf
from typing import Any, cast

from operators.async_flat_map import NOWHERE_STORED, KeyedMessage, StatefulCalls
from operators.core.base import Batch, Key, Slice
from operators.state.keyed_state import KeyContext
from operators.task import Envelope
from runtime.encoding.ownership import values_kept
from runtime.functions.calls import Asked, CallHeaders, Calls
from runtime.functions.failures import Failure
from runtime.reading.completion import Entry
from runtime.stage.chain import Chain
from runtime.stage.error_policy import LetterRows

CARRIED = ("keys", "timestamps", "stamps", "offsets", "headers", "origins")
"""The columns that the result of a call takes over from its message."""

Place = tuple[Batch, int]
"""A row of a batch."""


class CallInFlight(Asked):
    """One call for one message."""

    __slots__ = ("argument", "place", "unit")

    def __init__(self, unit: UnitInFlight, argument: Any, place: Place) -> None:
        super().__init__((argument,))
        self.unit = unit
        self.argument = argument
        self.place = place

    @property
    def _value(self) -> object:
        return self.argument.value if isinstance(self.argument, KeyedMessage | Envelope) else self.argument

    def keep(self) -> None:
        self.anew = values_kept([self._value])

    def renew(self, row: int) -> None:
        (value,) = self.anew(range(1))
        if isinstance(self.argument, KeyedMessage):
            self.argument.value = value
            return
        self.argument = replace(self.argument, value=value) if isinstance(self.argument, Envelope) else value
        self.arguments = (self.argument,)

    def headers_of(self, row: int) -> CallHeaders | None:
        batch, place = self.place
        return CallHeaders(batch, place) if batch.headers is not None else None

    @property
    def failure(self) -> Failure | None:
        """Why it failed, if it has."""
        return self.failed.get(0)


class UnitInFlight:
    """The unit that goes on and takes effect as one: a message, or a run of neighbours none of which awaits anything.

    It has the calls that it waits for, and the rows that will take effect when it is applied. `rows` says which of
    `raw` its messages are; they are numbered alike in the owners of what it holds. `contexts` have the state that its
    calls have left, by operator.
    """

    __slots__ = (
        *("calls", "contexts", "entries", "failure", "held", "key", "number", "pending", "raw", "reader", "rows"),
        *("stamp", "unsettled"),
    )

    def __init__(
        self, entries: tuple[Entry, ...], raw: LetterRows, rows: range, reader: Any, key: Key | None, stamp: int | None
    ) -> None:
        self.entries = entries
        self.raw = raw
        self.rows = rows
        self.reader = reader
        self.key = key
        self.stamp = stamp
        self.calls: deque[tuple[str, Any, Place]] = deque()
        self.unsettled: list[tuple[str, CallInFlight, Place]] = []
        self.held: list[tuple[str, Slice]] = []
        self.contexts: dict[str, KeyContext[Any, Any]] = {}
        self.failure: Failure | None = None
        self.pending = 0
        self.number = 0

    @property
    def place(self) -> tuple[tuple[str, int], int | None]:
        """The stream, partition and offset of a message; of one that was emitted here the operator and the stamp."""
        if isinstance(self.reader, str):
            return (self.reader, NOWHERE_STORED), self.stamp
        assert isinstance(self.raw, Batch)
        assert self.raw.offsets is not None, "records of a stage that awaits have offsets"
        origin = self.reader.origin
        return (origin.stream, origin.partition), self.raw.offsets[self.rows.start]

    def messages(self) -> Iterator[UnitInFlight]:
        """Yield each message by itself, with what it holds."""
        if len(self.rows) == 1:
            yield self
            return
        parts = [
            UnitInFlight(self.entries, self.raw, range(row, row + 1), self.reader, None, None) for row in self.rows
        ]
        for exit, (batch, start, stop) in self.held:
            for part, own in shares(batch, parts, [row + 1 for row in self.rows], start, stop):
                part.held.append((exit, own))
        yield from parts


def stops_of(messages: int, alone: Collection[int]) -> list[int]:
    """Return where units end: those messages `alone` go by themselves, their neighbours together.

    >>> stops_of(6, {2, 3})
    [2, 3, 4, 6]
    """
    return sorted({*alone, *(message + 1 for message in alone), messages} - {0})


def shares(
    rows: Batch, units: Iterable[UnitInFlight], stops: Iterable[int], start: int = 0, stop: int | None = None
) -> Iterator[tuple[UnitInFlight, Slice]]:
    """Yield whose the rows are, given the number after the last message of each unit."""
    owners = rows.owners
    assert owners is not None
    for unit, following in zip(units, stops, strict=True):
        end = bisect_left(owners, following, start, stop)
        if end > start:
            yield unit, (rows, start, end)
        start = end


class Units:
    """All messages of one chain that are in flight, and the order in which they may start and take effect.

    A message is explored first: its stateless operators run, its calls are made, and what would take effect is held.
    When nothing is awaited any more, it is applied. In an `ordered` stage messages are applied in offset order; with
    `by_key` a message starts its calls when the one before it with the same key was applied. Neighbours that await
    nothing are one unit: what they hold are slices of the batches that they were explored in.

    Of messages that make calls at most `most_begun` have begun with them and are not applied: a user's own task that
    takes one at a time finds in its state what the one before it has left there.

    A unit is admitted, begins, settles, is ready and is applied, each once and in this order; until it is applied it
    holds its input's offset back. `start_calls`, `returned` and `hear` are for the event loop, everything else for the
    one thread that is at work in the task; `returned` may come while that is, and so only appends.
    """

    def __init__(self, chain: Chain, pools: dict[str, Calls], on_returned: Callable[[], None]) -> None:
        self.chain = chain
        self.pools = pools
        self._on_returned = on_returned
        self.most_begun: float = inf
        self._begun: set[UnitInFlight] = set()
        self._waiting: list[tuple[int, UnitInFlight]] = []
        """Those that might begin if others were applied, as a heap by the order in which they came in."""
        self._admitted = 0
        self._sequence: deque[UnitInFlight] = deque()
        self._unapplied: dict[UnitInFlight, None] = {}
        self._by_key: dict[Key, deque[UnitInFlight]] = {}
        self._ready: dict[UnitInFlight, None] = {}
        self._returned: deque[tuple[str, CallInFlight]] = deque()
        self._heard: deque[tuple[str, CallInFlight]] = deque()
        self._to_start: deque[tuple[str, CallInFlight]] = deque()
        self._messages = 0
        self._calls = 0

    def __len__(self) -> int:
        return self._messages

    @property
    def lowest_stamp(self) -> int | None:
        """The smallest stamp that a message in flight may still emit with."""
        return min((unit.stamp for unit in self._unapplied if unit.stamp is not None), default=None)

    def acceptable(self, keys: list[Key | None] | None, width: int, rounds: int) -> int:
        """Return how many messages with these keys may come in so that all end within so many rounds of calls."""
        if keys is None or not self.chain.stage.by_key:
            return 2**62
        depths = Counter({key: len(queue) for key, queue in self._by_key.items()})
        return how_many_end(depths, self._messages, keys, width, rounds)

    def fits(self, calls: int, key: Key | None, width: int, rounds: int) -> bool:
        """Whether a message that makes so many calls may come in; any may where none is outstanding."""
        depths = {key: sum(len(unit.calls) + unit.pending for unit in queue) for key, queue in self._by_key.items()}
        if self.chain.stage.by_key and key is not None:
            depths[key] = depths.get(key, 0) + calls
        longest = max(depths.values(), default=1)
        return not self._calls or ends_within(self._calls + calls, longest, width, rounds)

    def admit(self, units: Iterable[UnitInFlight]) -> None:
        """Take in messages that were explored, in offset order, and start what may start."""
        for unit in units:
            self._admitted += 1
            unit.number = self._admitted
            self._messages += len(unit.rows)
            self._calls += len(unit.calls)
            self._unapplied[unit] = None
            if self.chain.stage.ordered:
                self._sequence.append(unit)
            if self.chain.stage.by_key and unit.key is not None and unit.calls:
                queue = self._by_key.setdefault(unit.key, deque())
                queue.append(unit)
                # Not the first of its key: it begins when the one before it is applied, so that it
                # reads the state which that one wrote.
                if len(queue) > 1:
                    continue
            self._begin(unit)

    @property
    def can_go_on(self) -> bool:
        """Whether it was heard that a call has returned, or a message may take effect."""
        ready = self._ready and (not self.chain.stage.ordered or self._sequence[0] in self._ready)
        return bool(self._heard or ready)

    def start_calls(self) -> None:
        """Start the calls that were asked for; this, `returned` and `hear` are for the event loop alone."""
        while self._to_start:
            operator, call = self._to_start.popleft()
            if (answers := self.pools[operator].answers) is not None:
                where, offset = call.unit.place
                batch, row = call.place
                keys = None if batch.keys is None else [batch.keys[row]]
                call.questions = answers.questions(where, [offset], keys, call.arguments)
            self.pools[operator].submit(call, 1)

    def returned(self, operator: str, call: CallInFlight) -> None:
        """Be told that a call is done; a thread may be at work here."""
        if call.failure is None and isinstance(call.argument, KeyedMessage):
            cast(StatefulCalls, self.chain.exits[operator]).end(call.argument)
        self._returned.append((operator, call))
        self._on_returned()

    def hear(self) -> None:
        """Take what has returned up to now."""
        self._heard += self._returned
        self._returned.clear()

    def take_returned(self) -> list[UnitInFlight]:
        """Return the messages whose calls are all done; what they came to is to be explored."""
        done = []
        while self._heard:
            operator, call = self._heard.popleft()
            if self._settled(operator, call):
                done.append(call.unit)
        assert self._calls >= 0, "a call returns once"
        return done

    def _settled(self, operator: str, call: CallInFlight) -> bool:
        """Take note that a call is done, and ask for the next one of its message; return whether none is left."""
        unit = call.unit
        unit.pending -= 1
        self._calls -= 1
        if call.failure is not None:
            # A message one of whose calls has failed has no results: the calls that it has not begun are
            # not made.
            self._calls -= len(unit.calls)
            unit.calls.clear()
        elif isinstance(call.argument, KeyedMessage) and (left := call.argument.left()) is not None:
            unit.contexts[operator] = left
        # The next call of the same operator was held back behind this one, whose state it is to read; calls of
        # other operators are under way already.
        for place, (following, _, _) in enumerate(unit.calls):
            if following == operator:
                unit.calls.rotate(-place)
                self._submit(unit)
                unit.calls.rotate(place)
                break
        return not unit.pending

    def settle(self, unit: UnitInFlight) -> None:
        """After exploring what its calls came to: make further calls, or be ready to be applied."""
        if unit.calls and unit.failure is None:
            self._calls += len(unit.calls)
            self._start(unit)
        else:
            unit.calls.clear()
            # What its calls have left in state is an effect like any other: written when the unit is
            # applied, or never.
            unit.held += [(operator, (Batch([left], [unit.key]), 0, 1)) for operator, left in unit.contexts.items()]
            self._ready[unit] = None

    def applicable(self) -> list[UnitInFlight]:
        """Return the messages that may take effect now, in order; `applied` is to be told of each."""
        if not self.chain.stage.ordered:
            ready, self._ready = [*self._ready], {}
            return ready
        found = []
        # In an ordered stage only the front may go: one that is ready behind it waits, so that synchronous
        # operators see messages in offset order.
        while self._sequence and self._sequence[0] in self._ready:
            unit = self._sequence.popleft()
            del self._ready[unit]
            found.append(unit)
        return found

    def applied(self, unit: UnitInFlight) -> None:
        """Let messages go, and start the next one of their key."""
        del self._unapplied[unit]
        self._messages -= len(unit.rows)
        # Only now, when all effects are in: the offset must not be checkpointed before them.
        for entry in unit.entries:
            entry.release()
        queue = self._by_key.get(unit.key) if unit.key is not None else None
        if queue and queue[0] is unit:
            queue.popleft()
            if queue:
                self._begin(queue[0])
            elif unit.key is not None:
                del self._by_key[unit.key]
        self._begun.discard(unit)
        while self._waiting and len(self._begun) < self.most_begun:
            self._begin(heappop(self._waiting)[1])

    def _begin(self, unit: UnitInFlight) -> None:
        """Start a message's calls, or leave it waiting until fewer are outstanding."""
        if not unit.calls:
            self._start(unit)
        elif len(self._begun) < self.most_begun:
            self._begun.add(unit)
            self._start(unit)
        else:
            heappush(self._waiting, (unit.number, unit))

    def _start(self, unit: UnitInFlight) -> None:
        """Start a message's calls; those that one operator makes for one key start one after the other."""
        if not unit.calls:
            self._ready[unit] = None
            return
        one_by_one = self.chain.stage.by_key and unit.key is not None
        begun: set[str] = set()
        for _ in range(len(unit.calls)):
            if one_by_one and unit.calls[0][0] in begun:
                unit.calls.rotate(-1)
            else:
                begun.add(unit.calls[0][0])
                self._submit(unit)

    def _submit(self, unit: UnitInFlight) -> None:
        operator, argument, place = unit.calls.popleft()
        if isinstance(argument, KeyedMessage):
            argument.before = unit.contexts.get(operator)
            cast(StatefulCalls, self.chain.exits[operator]).prepare(argument)
        call = CallInFlight(unit, argument, place)
        unit.unsettled.append((operator, call, place))
        unit.pending += 1
        self._to_start.append((operator, call))


def how_many_end(depths: Counter[Key], total: int, keys: Sequence[Key | None], width: int, rounds: int) -> int:
    """Return how many messages with these keys may join `total` so that all end in so many rounds of calls.

    `depths` says how many there are of each key already, of which one call runs at a time.
    """
    longest = max(depths.values(), default=0)
    # A bound that is quick to tell and too strict: only where it does not hold is it counted key by key.
    if ends_within(total + len(keys), longest + max(Counter(keys).values(), default=0), width, rounds):
        return len(keys)
    for row, key in enumerate(keys):
        depth = 1
        if key is not None:
            depths[key] = depth = depths[key] + 1
        # Walked in the order of the messages, since a prefix of them is taken in.
        total, longest = total + 1, max(longest, depth)
        if not ends_within(total, longest, width, rounds):
            return row
    return len(keys)


def ends_within(calls: int, longest: int, width: int, rounds: int) -> bool:
    """Whether calls of which `width` run at once, and `longest` one after the other, end within so many rounds.

    While the last call of that row waits for its turn, `width` calls of others run (R. L. Graham's bound of 1966).
    """
    return (calls - longest) // width + longest <= rounds


def results_of(units: Sequence[UnitInFlight]) -> Iterator[tuple[str, Batch]]:
    """Yield, per async operator, what the done calls of messages came to, owned by number; the calls are forgotten.

    Every result has the key and the times of the message that it came from; a message of which a call failed has no
    results, and the failure.
    """
    found: dict[tuple[str, ...], Batch] = {}
    for owner, unit in enumerate(units):
        unit.failure = next((call.failure for _, call, _ in unit.unsettled if call.failure), None)
        for operator, call, (batch, row) in unit.unsettled if unit.failure is None else ():
            # Results with other columns can't lie in one batch, so they are gathered by which columns they
            # have.
            columns = [name for name in CARRIED if getattr(batch, name) is not None]
            result = found.get((operator, *columns))
            if result is None:
                result = found[operator, *columns] = Batch([], owners=[])
                for name in columns:
                    setattr(result, name, [])
            number = len(call.values)
            result.values += call.values
            for name in ("owners", *columns):
                getattr(result, name).extend([owner if name == "owners" else getattr(batch, name)[row]] * number)
        unit.unsettled = []
    yield from ((operator, batch) for (operator, *_), batch in found.items() if batch.values)
