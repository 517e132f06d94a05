"""The origins of a row of an output: the fewest input records that make it again, found by running on parts of them."""

from __future__ import annotations

import copy
import inspect
import logging
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import merge
from itertools import groupby, product
from math import ceil
from typing import Any, NamedTuple, TypeVar

from operators.core.base import Batch
from operators.io import Input, SinkCall
from planner.model.graph import Graph
from runtime.assembly.history import event_time_of
from runtime.model.errors import SamzaError, command
from runtime.ports.environment import Environment
from runtime.ports.streams import Append
from runtime.stored_state.entries import Row, Stored, StoredEntries
from samza_dsl.application.app import App
from samza_dsl.data.records import StoredRecord, records_from
from samza_dsl.fluent.stream import Forgetting
from samza_dsl.testing.process import VirtualProcess
from samza_dsl.testing.streams import Record

T = TypeVar("T")
_log = logging.getLogger("samza_dsl")

NEAR = 256
"""The records on either side of a row's time that are tried first."""
WIDER = 4
"""The next time so many times as many are."""
MOST_RUNS = 2_000
"""The runs in which a row is looked for, where nobody says how many."""
ONE_BY_ONE = 64
"""The records that cost as much as a run where they are taken one by one."""
MOST_ORDERED = 4_096
"""The records of several partitions of which an order is looked for at most, as each is taken by itself."""


class InputRecord(NamedTuple):
    """A record of an input, as it is stored."""

    stream: str
    stored: StoredRecord

    @property
    def place(self) -> str:
        """Return where it is, as errors say it."""
        return f"{self.stream}/{self.stored.partition} at {self.stored.offset}"


Records = Sequence[InputRecord]
InTurn = Callable[[Mapping[str, InputRecord], str | None], list[str]]
"""Orders the partitions that may come next, given their next records and the one that came last."""


@dataclass(frozen=True)
class Origins:
    """The fewest records of inputs that lead to a row, in the order in which a run is to take them in.

    The row comes with the last of them or, where they do not make it before, with the end of the inputs. `before` has
    the state as it was then, and `fired` what was due of it and is gone behind the row: timers, and windows. Where
    there were no more runs to try with, they are not the `fewest`.
    """

    output: str
    row: StoredRecord
    records: Records
    with_end: bool
    made: Record
    before: tuple[Row, ...] = ()
    fired: tuple[Row, ...] = ()
    is_fewest: bool = True
    runs: int = 0
    start_ms: int = 0
    partitions: dict[str, int] = field(default_factory=dict)
    waits_ms: tuple[int, ...] = ()
    """The virtual time that passes until all is done behind the last record, and behind the end of the inputs."""


class NoOrigins(SamzaError):
    """The error for a row that does not come again."""


def origins(
    app: App, environment: Environment, output: str, partition: int, offset: int, most_runs: int = MOST_RUNS
) -> Origins:
    """Find the fewest records of an application's inputs that make a row of an output again, in virtual time.

    Plain functions are called again, async ones too; what calls a sink does nothing. The environment is only read.
    Raises NoOrigins where the row is not there, or does not come again from what the inputs have.
    """
    graph = app.graph()
    check_written(graph, output)
    row = row_at(environment, output, partition, offset)
    rows = [one for one in rows_up_to(environment, output, row) if one.key == row.key]
    number = sum((one.value, one.timestamp) == (row.value, row.timestamp) for one in rows[:-1])
    search = Search(app, output, rows, InputHistory(environment, graph), most_runs)
    if number and (found := search.with_number(number + 1)) is not None:
        return search.told(found, with_end=False)
    found, with_end = search.begin()
    return search.told(search.narrowed(found, with_end), with_end)


def check_written(graph: Graph, output: str) -> None:
    """Raise NoOrigins where the application writes no such output."""
    written = {one.stream for spec in graph.specs.values() for one in spec.outputs}
    written |= {stream for spec in graph.specs.values() for stream in _letters_of(spec)}
    if output not in written:
        raise NoOrigins(f"the app {graph.app!r} writes no {output!r}; it writes {', '.join(sorted(written))}")


def row_at(environment: Environment, stream: str, partition: int, offset: int) -> StoredRecord:
    """Return the record of a stream at a place; raises NoOrigins where there is none."""
    found = environment.streams().get(stream)
    if found is None or partition >= found.partitions:
        raise NoOrigins(
            f"{environment} has no {stream}/{partition}: nothing was written there yet, or what the run was bound to, "
            "as a file or a database, has it"
        )
    start, end, _ = environment.offsets(stream, partition)
    row = next(records_from(environment, stream, partition, offset), None) if start <= offset < end else None
    if row is None or row.offset != offset:
        raise NoOrigins(f"{stream}/{partition} has no record at {offset}; it has what lies from {start} to {end}")
    return row


class InputHistory:
    """All records that an application has read of its inputs, in the order of their times; a partition's in its own."""

    def __init__(self, environment: Environment, graph: Graph) -> None:
        self.partitions: dict[str, int] = {}
        self.begins: dict[str, int] = {}
        """The first offsets of partitions that have lost what was there before."""
        there = environment.streams()
        reached = {
            (one.stream, one.partition): one.offset
            for checkpoint in environment.checkpoints(graph.app).values()
            for one in checkpoint.positions
        }
        for spec in graph.inputs.values():
            for name in (name for name in there if spec.matches(name) and not there[name].intermediate):
                self.partitions[name] = there[name].partitions
        absent = [spec.stream for spec in graph.inputs.values() if not any(map(spec.matches, self.partitions))]
        if absent:
            raise NoOrigins(
                f"{environment} has nothing of the inputs {', '.join(absent)}: what they were bound to is not looked "
                f"at; write it there as streams, with {command(f'streams produce {absent[0]}')}"
            )
        self.tables = {name for name in self.partitions if any(one.matches(name) for one in graph.tables.values())}
        # Tables ahead: a lookup finds a row that was written at the same time.
        names = sorted(self.partitions, key=lambda name: name not in self.tables)
        places = [(name, number) for name in names for number in range(self.partitions[name])]
        for name, number in places:
            if start := environment.offsets(name, number).start:
                self.begins[f"{name}/{number}"] = start
        parts = [_up_to(environment, *place, reached.get(place)) for place in places]
        self.records: Records = [*merge(*parts, key=_time)]
        self.have_ended = all(environment.offsets(*place).ended for place in places)


class Search:
    """Looks for the fewest records that make a row, within so many runs of the application.

    It is the last of `rows`, which are those of its partition and key up to there.
    """

    def __init__(
        self, app: App, output: str, rows: Sequence[StoredRecord], history: InputHistory, most_runs: int
    ) -> None:
        self._app = without_sinks(app)
        self._output = output
        self._rows = rows
        self._row = rows[-1]
        self._history = history
        self._left = self._most = most_runs
        self._start_ms = max((_time(one) for one in history.records), default=0)
        self._graph = self._app.graph()
        # A call may take longer another time, up to what a commit waits for it.
        awaits = any(spec.asynchronous for spec in self._graph.specs.values())
        self._longest_call_ms = app.options.max_drain_ms if awaits else 0

    def begin(self) -> tuple[Records, bool]:
        """Return records near the row's time that make it, and whether it comes with the end of the inputs."""
        records = self._history.records
        times = [event_time_of(self._input_of(one), one.stored.value, one.stored.timestamp) for one in records]
        # A record may have been stored long after what it tells of, and a row has the time of that.
        by_time = sorted(range(len(records)), key=times.__getitem__)
        at = bisect_left(by_time, self._row.timestamp or 0, key=times.__getitem__)
        reach = NEAR
        while True:
            near = [records[row] for row in sorted(by_time[max(at - reach, 0) : at + reach])]
            tables = [one for one in near if one.stream in self._history.tables]
            rows_first = [*tables, *(one for one in near if one.stream not in self._history.tables)]
            # A run that began later has read its tables first, whenever their rows were written.
            for some, with_end in product((near, rows_first) if tables else (near,), (False, True)):
                if self.makes(some, with_end):
                    return some, with_end
            if len(near) == len(records) or self._left <= 0:
                break
            reach *= WIDER
        if (ordered := self._in_order()) is None:
            raise NoOrigins(self._why_not(len(near)))
        return ordered, False

    def _in_order(self) -> Records | None:
        """Return records in an order of several partitions in which all rows of the key come as they were written.

        How records of several partitions met is noted nowhere. But an order in which other rows come, or the same ones
        in another order, is not the one that it was.
        """
        parts: dict[str, list[InputRecord]] = {}
        for one in self._history.records:
            parts.setdefault(f"{one.stream}/{one.stored.partition}", []).append(one)
        if len(parts) < 2 or len(self._history.records) > MOST_ORDERED:
            return None
        # Half of the runs are for leaving out what is not needed.
        for share, in_turn in ((4, _as_before), (3, _by_time)):
            kept = self._left - self._left // share
            self._left -= kept
            found = self._ordered(Interleaving(parts, in_turn))
            self._left += kept
            if found is not None:
                return found
        return None

    def _ordered(self, order: Interleaving) -> Records | None:
        """Return the first order in which all rows come as they were written; None where none is found."""
        while self._left > 0:
            # Records are taken one by one, which costs more than a run on all at once.
            self._left -= 1 + len(order.taken) // ONE_BY_ONE
            with suppress(Exception), self._process() as process:  # a function may fail on another order
                self._feed(process, order.taken)
                while (record := order.take_next()) is not None:
                    self._feed(process, [record])
                    written = self._rows_written(process)
                    if written == len(self._rows):
                        return order.taken
                    if written is None:
                        break
            # There is no way on from here, or it went wrong: another one from the choice before.
            if not order.take_back():
                return None
        return None

    def _rows_written(self, process: VirtualProcess) -> int | None:
        """Return how many rows of the key a run has written; None where they are not those that were written."""
        wanted = process.streams.decoded(self._output, self._row)
        encode = process.streams.encoder(self._output)
        found = [one for one in process.records(self._output) if one.key == wanted.key]
        if len(found) > len(self._rows):
            return None
        for one, row in zip(found, self._rows, strict=False):
            if one.timestamp not in (None, row.timestamp) or _bytes_of(encode, one) != row.value:
                return None
        return len(found)

    def with_number(self, number: int) -> Records | None:
        """Return as few records as make the row with the one that made it, where others like it came before.

        So many are there with it. None where the end of the inputs made it.
        """
        records = self._history.records
        if self.count(records) < number:
            return None
        *before, last = shortest_prefix(records, lambda some: self.count(some) >= number)
        return [*self._fewest(before, lambda some: self.count([*some, last]) > self.count(some)), last]

    def narrowed(self, records: Records, with_end: bool) -> Records:
        """Return as few of the records as still make the row: without any one of them it does not come."""

        def holds(some: Records) -> bool:
            return self.makes(some, with_end)

        return self._fewest(shortest_prefix(records, holds), holds)

    def _fewest(self, records: Records, holds: Callable[[Records], bool]) -> Records:
        keys: dict[object, list[InputRecord]] = {}
        for one in records:
            keys.setdefault(self._key_of(one), []).append(one)
        # First by keys, of which one or two have most to do with it, and then one by one.
        kept = smallest([*keys], lambda some: holds([one for one in records if self._key_of(one) in {*some}]))
        records = [one for one in records if self._key_of(one) in {*kept}]
        return smallest(records, holds)

    def makes(self, records: Records, with_end: bool) -> bool:
        """Whether a run on these records writes the row; False where no run is left."""
        return self.count(records, with_end) > 0

    def count(self, records: Records, with_end: bool = False) -> int:
        """Return how many rows that are as the one a run on these records writes; 0 where no run is left."""
        if self._left <= 0:
            return 0
        self._left -= 1
        with suppress(Exception), self._process() as process:  # records that were left out may make a function fail
            self._feed(process, records)
            if with_end:
                _end(process)
            return len(self._found_in(process))
        return 0

    def told(self, records: Records, with_end: bool) -> Origins:
        """Return what is told of records: the state before the last of them, and what has fired with it."""
        with self._process() as process:
            self._feed(process, records if with_end else records[:-1])
            before = self._entries(process)
        with self._process() as process:
            self._feed(process, records)
            waits = [process.elapsed_ms()]
            if with_end:
                _end(process)
                waits.append(process.elapsed_ms() - waits[0])
            after, made = self._entries(process), self._found_in(process)
        if not made:
            raise NoOrigins(f"the row comes and goes: what the application {self._graph.app!r} does depends on chance")
        fired = [entry for entry in before if entry not in after and entry.get("kind") in FIRING]
        return Origins(
            self._output,
            self._row,
            records,
            with_end,
            made[-1],
            tuple(before),
            tuple(fired),
            self._left > 0,
            self._most - self._left,
            self._start_ms,
            self._history.partitions,
            tuple(max(ceil(wait), self._longest_call_ms) for wait in waits),
        )

    def _process(self) -> _Closing:
        return _Closing(VirtualProcess(self._app, partitions=self._history.partitions, start_ms=self._start_ms))

    def _feed(self, process: VirtualProcess, records: Records) -> None:
        if process.dead and not process.ended:
            process.start()
        for stream, partition, rows in neighbours(records):
            process.environment.append([Append(stream, partition, batch_of(rows))])
            process.proceed()
        process.settle()

    def _found_in(self, process: VirtualProcess) -> list[Record]:
        """Return the rows that are as the one that is looked for, as a run has written them."""
        wanted = process.streams.decoded(self._output, self._row)
        encode = process.streams.encoder(self._output)
        return [
            one
            for one in process.records(self._output)
            # Without event time a row has that of its commit, which is another one each time.
            if (one.timestamp is None or one.timestamp == wanted.timestamp)
            and one.key == wanted.key
            and _bytes_of(encode, one) == self._row.value
        ]

    def _entries(self, process: VirtualProcess) -> list[Row]:
        """Return all entries of state as the last commit has them."""
        environment, found = process.environment, list[Row]()
        plan = self._app.plan(self._history.partitions)
        for store in environment.stores(plan.app):
            if store not in self._graph.specs:
                continue
            entries = StoredEntries(plan, self._graph, store)
            for task in range(plan.tasks):
                for place, value in environment.state_range(plan.app, store, task):
                    found.append(entries.row(Stored(store, task, place, value)))
        return found

    def _key_of(self, record: InputRecord) -> object:
        return record.stream, record.stored.partition, self._keys_of(record)

    def _input_of(self, record: InputRecord) -> Input:
        return next(one for one in self._graph.inputs.values() if one.matches(record.stream))

    def _keys_of(self, record: InputRecord) -> object:
        spec = self._input_of(record)
        if spec.key_of is not None and record.stored.value is not None:
            with suppress(Exception):
                return repr(spec.key_of(spec.value.decode(record.stored.value)))
        return record.stored.key

    def _why_not(self, tried: int) -> str:
        at = f"{self._output}/{self._row.partition} at {self._row.offset}"
        lost = "".join(f"; {place} begins at {start}" for place, start in self._history.begins.items())
        return (
            f"{at} does not come again from {tried:,} records of the inputs{lost}. The program may be another one than "
            "wrote it, or what it does depends on the clock, on chance, on what async functions are told, or on the "
            "order in which records of several partitions came to a key"
        )


class Interleaving:
    """An order in which records of several partitions are taken, where each choice can be taken back."""

    def __init__(self, parts: Mapping[str, Records], in_turn: InTurn) -> None:
        self._parts = parts
        self._in_turn = in_turn
        self._places: list[str] = []
        """The partition of each record that was taken."""
        self._reached = dict.fromkeys(parts, 0)
        self._tried: list[set[str]] = [set()]
        """By the records taken, the partitions whose next record has been tried there."""

    @property
    def taken(self) -> Records:
        """Return the records that were taken, in order."""
        rows = {place: iter(part) for place, part in self._parts.items()}
        return [next(rows[place]) for place in self._places]

    def take_next(self) -> InputRecord | None:
        """Take a record that was not tried in this place; None where there is none."""
        heads = {place: part[at] for place, part in self._parts.items() if (at := self._reached[place]) < len(part)}
        places = self._in_turn(heads, self._places[-1] if self._places else None)
        place = next((one for one in places if one not in self._tried[-1]), None)
        if place is None:
            return None
        self._tried[-1].add(place)
        self._tried.append(set())
        self._places.append(place)
        self._reached[place] += 1
        return heads[place]

    def take_back(self) -> bool:
        """Undo the newest choice; return whether there was one."""
        if not self._places:
            return False
        self._reached[self._places.pop()] -= 1
        self._tried.pop()
        return True


FIRING = frozenset({"timer", "alarm", "expiry", "window", "windows", "waiting"})
"""The kinds of entries that are gone when they have fired."""


class _Closing:
    """A run on some records, which says nothing: the live run has said it of all of them, and parts of them lie."""

    def __init__(self, process: VirtualProcess) -> None:
        self._process = process
        self._was_silent = _log.disabled

    def __enter__(self) -> VirtualProcess:
        _log.disabled = True
        return self._process

    def __exit__(self, *raised: object) -> None:
        self._process.close()
        _log.disabled = self._was_silent


def without_sinks(app: App) -> App:
    """Return an application whose sinks do nothing."""
    found = copy.copy(app)
    sinks = app.graph().of(SinkCall)

    def silent(function: Callable[..., object], operator: str) -> Callable[..., object]:
        if isinstance(inspect.unwrap(function), Forgetting):
            return Forgetting(_nothing)
        return _no_effect if operator in sinks else function

    found.around = (silent, *app.around)
    return found


async def _nothing(value: object) -> None:
    """Do nothing."""


def _no_effect(*given: object) -> None:
    """Do nothing."""


def neighbours(records: Records) -> Iterator[tuple[str, int, list[InputRecord]]]:
    """Yield records that follow each other in one partition together, with their stream and its number."""
    for (stream, partition), rows in groupby(records, lambda one: (one.stream, one.stored.partition)):
        yield stream, partition, [*rows]


def batch_of(records: Records) -> Batch:
    """Return records as they are appended."""
    rows = [one.stored for one in records]
    headers = [row.headers or None for row in rows]
    return Batch(
        [row.value for row in rows],
        [row.key for row in rows],
        [row.timestamp or 0 for row in rows],
        headers=headers if any(headers) else None,
    )


def shortest_prefix(records: Sequence[T], holds: Callable[[Sequence[T]], bool]) -> Sequence[T]:
    """Return a prefix for which something holds, as for all of them; half of what may be left out at a time.

    >>> shortest_prefix([*range(100)], lambda some: 41 in some)[-1]
    41
    """
    least, most = 0, len(records)
    while least < most:
        middle = (least + most) // 2
        if holds(records[:middle]):
            most = middle
        else:
            least = middle + 1
    return records[:most]


def smallest(items: Sequence[T], holds: Callable[[Sequence[T]], bool]) -> Sequence[T]:
    """Return as few of the items as something still holds for, which it does for all: none of them can be left out.

    Source: the algorithm "ddmin" of A. Zeller and R. Hildebrandt, Simplifying and Isolating Failure-Inducing Input.

    >>> smallest([*range(50)], lambda some: 3 in some and 44 in some)
    [3, 44]
    """
    parts = 2
    if items and holds(items[:0]):
        return items[:0]
    while len(items) > 1:
        size = -(-len(items) // parts)
        for start in range(0, len(items), size):
            rest = [*items[:start], *items[start + size :]]
            if holds(rest):
                items, parts = rest, max(parts - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(2 * parts, len(items))
    return items


def _end(process: VirtualProcess) -> None:
    for stream in process.streams.inputs():
        process.streams.end(stream)
    process.finish()


def rows_up_to(environment: Environment, stream: str, row: StoredRecord) -> Iterator[StoredRecord]:
    """Yield the rows of a partition up to a row, and that one."""
    start = environment.offsets(stream, row.partition).start
    for one in records_from(environment, stream, row.partition, start):
        yield one
        if one.offset >= row.offset:
            return


def _as_before(heads: Mapping[str, InputRecord], last: str | None) -> list[str]:
    """Return the partition that was read last first, as a run reads many records of one at once."""
    return sorted(_by_time(heads, last), key=lambda place: place != last)


def _by_time(heads: Mapping[str, InputRecord], last: str | None) -> list[str]:
    return sorted(heads, key=lambda place: _time(heads[place]))


def _bytes_of(encode: Callable[[Any], bytes], record: Record) -> bytes | None:
    return None if record.value is None else encode(record.value)


def _time(record: InputRecord) -> int:
    return record.stored.timestamp or 0


def _up_to(environment: Environment, stream: str, partition: int, end: int | None) -> Iterator[InputRecord]:
    for one in records_from(environment, stream, partition, environment.offsets(stream, partition).start):
        if end is not None and one.offset >= end:
            return
        yield InputRecord(stream, one)


def _letters_of(spec: Any) -> Collection[str]:
    return [one.stream for one in (spec.on_error, spec.late) if hasattr(one, "stream")]


def record_of(graph: Graph, one: InputRecord) -> Record:
    """Return a record of an input with its values; raises SerdeError where it can't be read."""
    spec = next(spec for spec in graph.inputs.values() if spec.matches(one.stream))
    row, key = one.stored, spec.key
    value = None if row.value is None else spec.value.decode(row.value)
    decoded = row.key if row.key is None or key is None else key.decode(row.key)
    return Record(value, decoded, row.timestamp, row.partition, row.offset, row.headers)
