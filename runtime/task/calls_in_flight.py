"""The messages in flight of a chain in which each makes one call: kept as columns, without an object per message."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, groupby
from itertools import chain as chained
from typing import Any, NamedTuple, cast

from operators.core.base import Batch, Key
from runtime.functions.calls import Asked, Call, CallHeaders, Calls
from runtime.functions.failures import Failure, Whence
from runtime.reading.completion import RowsInFlight
from runtime.stage.chain import Chain
from runtime.stage.error_policy import Guard, on_rows
from runtime.task.in_flight import how_many_end


class Flight(Asked):
    """Messages that were taken in together, a row each: `batch` is what reached the operator that awaits.

    `places` are the rows of `raw` that they came from, and `where` says of such a row which record it is.
    """

    __slots__ = ("batch", "entry", "keys", "number", "places", "raw", "where")

    def __init__(
        self, number: int, batch: Batch, raw: Batch, where: Callable[[int | None], Whence], entry: RowsInFlight
    ) -> None:
        super().__init__(batch.values)
        self.number = number
        self.batch = batch
        self.keys: Sequence[Key | None] = batch.keys or [None] * len(batch)
        self.places = batch.owners or ()
        self.raw = raw
        self.where = where
        self.entry = entry

    def headers_of(self, row: int) -> CallHeaders | None:
        return CallHeaders(self.batch, row) if self.batch.headers is not None else None


class Landed(NamedTuple):
    """The results of calls of one flight: a value per row, unless `sizes` says otherwise, and which rows failed."""

    flight: Flight
    rows: list[int]
    sizes: dict[int, int]
    values: list[Any]
    failed: dict[int, Failure]


class Flights:
    """All messages of one chain in which a message makes one call, and takes effect when that has returned.

    With `by_key` a message starts its call when that of the message before it, with the same key, has ended. What
    returns together takes effect together, in the order in which it returned. `carried` are the columns that results
    take over from their messages.

    A message is counted in `len` from `admit` until it has taken effect or failed; of a key one call runs at a time, in
    the order in which messages came. `start_calls`, `ended`, `told` and `hear` are for the event loop, everything else
    for the one thread that is at work in the task; `told` may come while that is, and so only notes.
    """

    pool: Calls

    def __init__(
        self, chain: Chain, guard: Guard, operator: str, carried: Sequence[str], on_returned: Callable[[], None]
    ) -> None:
        self.chain = chain
        self._guard = guard
        self._operator = operator
        self._by_key = chain.stage.by_key
        self._carried = carried
        self._on_returned = on_returned
        self._admitted = 0
        self._messages = 0
        self._flights: dict[Flight, None] = {}
        self._to_start: deque[Flight] = deque()
        self._behind: dict[Key, deque[Call] | None] = {}
        """The messages that wait for one of their key: None where there are none yet."""
        self._told: dict[Flight, None] = {}
        self._landed: list[Landed] = []

    def __len__(self) -> int:
        return self._messages

    @property
    def pools(self) -> dict[str, Calls]:
        """The calls under way, by operator."""
        return {self._operator: self.pool}

    @property
    def lowest_stamp(self) -> int | None:
        """The smallest stamp that a message in flight may still emit with."""
        stamps = (
            flight.batch.stamps[row]
            for flight in self._flights
            if flight.batch.stamps is not None
            for row in flight.entry.outstanding
        )
        return min(stamps, default=None)

    @property
    def can_go_on(self) -> bool:
        """Whether it was heard that a call has returned."""
        return bool(self._landed)

    def acceptable(self, keys: list[Key | None] | None, width: int, rounds: int) -> int:
        """Return how many messages with these keys may come in so that all end within so many rounds of calls."""
        if keys is None or not self._by_key:
            return 2**62
        behind = [*self._behind.items()]  # a copy: a thread is at work here, and calls may end
        depths = Counter({key: 1 + len(waiting or ()) for key, waiting in behind})
        return how_many_end(depths, self._messages, keys, width, rounds)

    def admit(self, batch: Batch, raw: Batch, where: Callable[[int | None], Whence], entry: RowsInFlight) -> None:
        """Take in messages whose rows reached the operator that awaits."""
        self._admitted += 1
        flight = Flight(self._admitted, batch, raw, where, entry)
        self._flights[flight] = None
        self._messages += len(batch)
        self._to_start.append(flight)

    def start_calls(self) -> None:
        """Start the calls that were asked for; this, `ended`, `told` and `hear` are for the event loop alone."""
        while self._to_start:
            flight = self._to_start.popleft()
            if (answers := self.pool.answers) is not None:
                offsets = flight.batch.offsets
                assert offsets is not None, "records of a stage that awaits have offsets"
                source, partition, *_ = flight.where(None)
                assert partition is not None, "what makes one call comes from a stream"
                flight.questions = answers.questions((source, partition), offsets, flight.batch.keys, flight.arguments)
            rows: Sequence[int] = range(len(flight.batch))
            if self._by_key:
                rows = self._in_turn(flight)
                flight.start(rows)
            self.pool.submit(flight, len(rows))

    def _in_turn(self, flight: Flight) -> list[int]:
        """Return the rows whose turn it is, and have the others wait for those of their keys."""
        behind, found = self._behind, []
        for row, key in enumerate(flight.keys):
            if key is None:
                found.append(row)
            elif key not in behind:
                behind[key] = None
                found.append(row)
            elif (waiting := behind[key]) is None:
                behind[key] = deque([(flight, row)])
            else:
                waiting.append((flight, row))
        return found

    def ended(self, flight: Asked, row: int) -> None:
        """Start the call of the next message of a key, when that of one has ended."""
        key = cast(Flight, flight).keys[row]
        if key is not None:
            waiting = self._behind[key]
            if waiting:
                self.pool.go_on(waiting.popleft())
            else:
                del self._behind[key]

    def told(self, flight: Asked) -> None:
        """Be told that something of a flight has returned, or failed."""
        assert isinstance(flight, Flight)
        if not self._told:
            self._on_returned()
        self._told[flight] = None

    def hear(self) -> None:
        """Take what has returned up to now."""
        # The columns are taken from the flight here, on the event loop, in exchange for empty ones: calls that
        # end while a thread is at work write into the new ones.
        for flight in sorted(self._told, key=lambda flight: flight.number):  # a key's messages lie in this order
            self._landed.append(Landed(flight, flight.returned, flight.sizes, flight.values, flight.failed))
            flight.returned, flight.sizes, flight.values, flight.failed = [], {}, [], {}
        self._told.clear()

    def go_on(self) -> bool:
        """Let what has returned take effect; return whether there was any."""
        landed, self._landed = self._landed, []
        # Failures first: a policy that ends the run must do so before anything of the others has taken effect.
        for flight, _, _, _, failed in landed:
            for row, failure in failed.items():
                place = flight.places[row]
                self._guard.settle(failure, flight.raw.row(place), flight.where(place))
        for together in _alike(landed, self._carried):
            batch, has_run = together.batch, self._guard.takes_many
            anew = self._guard.anew(batch.values)
            # All at once under one savepoint. Where that is rolled back, message by message, so that a
            # policy drops just the one that failed.
            if not self._guard.at_once(partial(self._take_effect, batch), together.where):
                for own, raw, where in together.messages():
                    self._guard.one(on_rows(self._take_effect, batch, own, anew, has_run), raw, where)
        for flight, rows, _, _, failed in landed:
            self._messages -= len(rows) + len(failed)
            if flight.entry.release_rows([*rows, *failed]):
                del self._flights[flight]
        assert self._messages >= 0, "a message returns once"
        return bool(landed)

    def _take_effect(self, results: Batch) -> None:
        if results.values:
            self.chain.run(self._operator, results)


class _Together:
    """Results of flights, one after the other, that carry the same columns."""

    def __init__(self, columns: Sequence[str], landed: Sequence[Landed]) -> None:
        self._landed = landed
        self.batch = Batch([*chained.from_iterable(one.values for one in landed)])
        rows = [_repeated(one.rows, one.sizes) for one in landed]
        for name in columns:
            carried = (getattr(one.flight.batch, name) for one in landed)
            places = (map(column.__getitem__, own) for column, own in zip(carried, rows, strict=True))
            setattr(self.batch, name, [*chained.from_iterable(places)])

    @property
    def _sizes(self) -> list[int]:
        return [one.sizes.get(row, 1) for one in self._landed for row in one.rows]

    def messages(self) -> Iterator[tuple[range, Batch, Whence]]:
        """Yield each message by itself: the rows of its results, what a dead letter keeps of it, and where it is."""
        stop = 0
        for size, (flight, row) in zip(self._sizes, self._messages(), strict=True):
            stop += size
            place = flight.places[row]
            yield range(stop - size, stop), flight.raw.row(place), flight.where(place)

    def where(self, row: int | None) -> Whence:
        """Return where the message is that a row came from; without a row all of them, as narrowly as can be said."""
        places = [flight.where(flight.places[row]) for flight, row in self._messages()]
        if row is not None:
            return places[bisect_right([*accumulate(self._sizes)], row)]
        if any(place[:2] != places[0][:2] for place in places):
            return Whence(" and ".join({place.source: None for place in places}))
        offsets = [place.offset for place in places if place.offset is not None]
        return places[0]._replace(offset=min(offsets), last=max(offsets))

    def _messages(self) -> Iterator[tuple[Flight, int]]:
        return ((one.flight, row) for one in self._landed for row in one.rows)


def _repeated(rows: list[int], sizes: dict[int, int]) -> list[int]:
    """Return the row of each value."""
    return [row for row in rows for _ in range(sizes.get(row, 1))] if sizes else rows


def _alike(landed: Sequence[Landed], carried: Sequence[str]) -> Iterator[_Together]:
    def columns(one: Landed) -> tuple[str, ...]:
        return tuple(name for name in carried if getattr(one.flight.batch, name) is not None)

    for names, together in groupby((one for one in landed if one.rows), columns):
        yield _Together(names, [*together])
