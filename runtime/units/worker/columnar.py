"""Terms and windows over Arrow columns: computed in Arrow's own loops, without a row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from operators.core.base import EARLIEST_MS, LATEST_MS, MAX_TIMESTAMP, Batch, Key
from operators.partition_by import Partitioner
from operators.windows.partials import Fold, Folds, Partials, spread
from operators.windows.window_groups import Groups, Slot
from operators.windows.window_types import Hopping, Tumbling
from planner.columnar.lowering import ColumnStart, Lowered, parts_of
from planner.columnar.projection import Reshaped
from planner.columnar.terms import Term
from runtime.encoding.keys import KeySerde
from runtime.reading.event_times import Rise, may_be_misread
from runtime.reading.folding import Folded, PreparedRows
from runtime.stage.outputs import routed
from runtime.systems.files.plain_columns import values_in
from runtime.units.worker.columnar_states import WHERE_NONE, Unusual, listed, states_of

TYPES = {"int": pa.int64(), "float": pa.float64(), "str": pa.string(), "bool": pa.bool_()}
FEW = 256
"""The rows from which on Arrow's own costs are less than what it saves."""
CHECKED = {"add": "add_checked", "subtract": "subtract_checked", "multiply": "multiply_checked"}


class ColumnarFolding:
    """Reads, filters and folds a source partition's batches; changes nothing, as its results take effect later."""

    def __init__(
        self, lowered: Lowered, keys: KeySerde, by: Partitioner, partitions: int, counted: Sequence[str]
    ) -> None:
        self._lowered, self._keys, self._counted = lowered, keys, counted
        self._windows = cast(Tumbling | Hopping, lowered.window.windows)  # else it would not be lowered
        self._partitions, self._partition_of = partitions, routed(by, keys, partitions)

    def run(self, table: pa.RecordBatch, watermark: int, disorder_ms: int) -> Folded | None:
        """Return what a batch comes to; None where anything is not as in most batches."""
        try:
            return self._run(table, watermark, disorder_ms)
        except (pa.ArrowException, Unusual):
            return None

    def _run(self, table: pa.RecordBatch, watermark: int, disorder_ms: int) -> Folded:
        lowered, number = self._lowered, len(table)
        at, stamps, reached, rise = stamped(lowered.timestamp, table, watermark, disorder_ms)
        lowest = pc.min(at).as_py()
        dropped = {}
        for id, condition in lowered.filters:
            kept = column(condition, table)
            dropped[id] = len(table) - (pc.sum(kept).as_py() or 0)
            if dropped[id]:
                table, at, stamps = (one.filter(kept) for one in (table, at, stamps))
        folds, late = self._folded(table, at, stamps)
        counted = [dropped[id] for id in self._counted]
        lowest = MAX_TIMESTAMP if lowest is None else lowest
        return Folded(number, [(lowered.exit, folds, late)], reached, counted, lowest=lowest, rise=rise)

    def _folded(self, table: pa.RecordBatch, at: pa.Array, stamps: pa.Array) -> tuple[Folds, Batch]:
        lowered = self._lowered
        keys = column(lowered.key, table)
        if lowered.window.is_of_sessions:
            return self._in_sessions(table, keys, at, stamps)
        measured = [None if one.of is None else _column_of(one.of, table) for one in lowered.measures]
        since = pc.subtract(at, self._windows.offset_ms)
        rest = _modulo(since, lowered.step_ms)
        cells = pc.divide(pc.subtract(since, rest), lowered.step_ms)
        behind = pc.greater_equal(stamps, pc.add(pc.subtract(at, rest), lowered.step_ms))
        columns = [cells, keys, *(one for one in measured if one is not None)]
        folds: list[Fold] = []
        late = Batch([], stamps=[])
        if pc.any(behind).as_py():
            odd = [None if one is None else one.filter(behind).to_pylist() for one in (at, stamps, keys, *measured)]
            folds, late = self._one_by_one(odd)
            in_time = pc.invert(behind)
            columns = [one.filter(in_time) for one in columns]
        folds += self._by_cells(columns)
        return Folds(folds), late

    def _in_sessions(
        self, table: pa.RecordBatch, keys: pa.Array, at: pa.Array, stamps: pa.Array
    ) -> tuple[Folds, Batch]:
        """Fold rows in time into stretches of sessions: those of a key that lie less than a gap apart."""
        late = pc.less(at, pc.subtract(stamps, self._lowered.window.waits_ms))
        told = Batch([], stamps=[])
        if number := pc.sum(late).as_py() or 0:
            told = Batch([None] * number, stamps=stamps.filter(late).to_pylist())
            in_time = pc.invert(late)
            table, keys, at = (one.filter(in_time) for one in (table, keys, at))
        return Folds([*self._by_stretches(table, keys, at)] if len(table) else []), told

    def _by_stretches(self, table: pa.RecordBatch, keys: pa.Array, at: pa.Array) -> Iterator[Fold]:
        gap_ms = self._lowered.step_ms
        encoded, held, partition_of = self._encoded(keys)
        in_order = pa.table([encoded.indices, at], names=["key", "at"])
        order = pc.sort_indices(in_order, [("key", "ascending"), ("at", "ascending")])
        numbers, at, table = encoded.indices.take(order), at.take(order), table.take(order)
        begins = pc.or_(
            pc.not_equal(numbers[1:], numbers[:-1]), pc.greater_equal(at[1:], pc.add_checked(at[:-1], gap_ms))
        )
        stretches = pc.cumulative_sum(pa.concat_arrays([pa.array([0], pa.int64()), pc.cast(begins, pa.int64())]))
        measured = [_column_of(one.of, table) for one in self._lowered.measures if one.of is not None]
        groups, accumulators = self._accumulated(
            [partition_of.take(numbers), stretches], measured, [(numbers, "min"), (at, "min"), (at, "max")]
        )
        counts, of, lows, highs = (listed(groups.column(name)) for name in ("count_all", "2_min", "3_min", "4_max"))
        parts = [(low, high + gap_ms, one) for low, high, one in zip(lows, highs, accumulators, strict=True)]
        for partition, start, stop in _runs(groups.column("0")):
            of_part = [*map(held.__getitem__, of[start:stop])]
            yield Fold(partition, Partials([], of_part, parts[start:stop], sum(counts[start:stop])))

    def _by_cells(self, columns: list[pa.Array]) -> Iterator[Fold]:
        """Yield what is in time, by stretch and partition, which are grouped as numbers, as keys are."""
        lowered = self._lowered
        cells, keys, *measured = columns
        encoded, held, partition_of = self._encoded(keys)
        places = pc.add(pc.multiply(cells, self._partitions), partition_of.take(encoded.indices))
        groups, accumulators = self._accumulated([places, encoded.indices], measured)
        counts, numbers = listed(groups.column("count_all")), listed(groups.column("1"))
        for place, start, stop in _runs(groups.column("0")):
            cell, partition = divmod(place, self._partitions)
            slots = [
                Slot(end + lowered.window.waits_ms, first, end)
                for first, end in self._windows.cell(self._windows.offset_ms + cell * lowered.step_ms).windows
            ]
            of_place = [*map(held.__getitem__, numbers[start:stop])]
            yield Fold(partition, Partials(slots, of_place, accumulators[start:stop], sum(counts[start:stop])))

    def _encoded(self, keys: pa.Array) -> tuple[pa.DictionaryArray, list[Key], pa.Array]:
        """Return keys by number, so that each becomes an object of Python once; those as held; and their partitions."""
        encoded = keys.dictionary_encode()
        held = self._held(encoded.dictionary.to_pylist())
        partitions = map(self._partition_of, held) if self._partitions > 1 else [0] * len(held)
        return encoded, held, pa.array(partitions, pa.int64())

    def _accumulated(
        self, by: list[pa.Array], measured: list[pa.Array], more: Sequence[tuple[pa.Array, str]] = ()
    ) -> tuple[pa.Table, list[Any]]:
        """Return groups in the order of the first of `by`, with what is asked of each, and their accumulators."""
        lowered = self._lowered
        states = [*map(states_of, (one for one in lowered.measures if one.of is not None), measured)]
        asked = [*more, *(one for each in states for one in each.asked)]
        columns = [*by, *(one for one, _ in asked)]
        hows = [
            (str(place), how, WHERE_NONE if how == "sum" else None) for place, (_, how) in enumerate(asked, len(by))
        ]
        table = pa.table(columns, names=[*map(str, range(len(columns)))])
        names = [*map(str, range(len(by)))]
        groups = table.group_by(names, use_threads=False).aggregate([([], "count_all"), *hows]).sort_by("0")
        answers = iter([groups.column(f"{place}_{how}") for place, how, _ in hows[len(more) :]])
        made = iter([one.made([*islice(answers, len(one.asked))]) for one in states])
        counts = listed(groups.column("count_all"))
        found = [counts if one.of is None else next(made) for one in lowered.measures]
        return groups, [*zip(*found, strict=True)] if lowered.window.aggregation.parts else [*found[0]]

    def _held(self, keys: list[Key]) -> list[Key]:
        """Return keys that are held as themselves; others are unusual."""
        held = self._keys.hold(keys)
        if keys and self._keys.kind is None:
            raise Unusual
        return cast(list[Key], held)

    def _one_by_one(self, columns: list[Any]) -> tuple[list[Fold], Batch]:
        """Fold rows that are late at a window, or at all of them: their times, stamps, keys, and what is measured."""
        at, stamps, keys, *measured = columns
        window, none = self._lowered.window, [None] * len(at)
        groups = Groups(self._windows, window.allowed_lateness_ms, False, window.waits_ms)
        values = [*zip(*(none if one is None else one for one in measured), strict=True)]
        batch = Batch(values, keys=list(self._held(keys)), timestamps=at, stamps=stamps)
        late = groups.gather(batch)
        folds = []
        for slots, group in groups.by_slots.items():
            for partition, found in enumerate(spread(group, self._partition_of, self._partitions)):
                accumulators = [self._state([*zip(*group[key], strict=True)], len(group[key])) for key in found]
                number = sum(len(group[key]) for key in found)
                folds.append(Fold(partition, Partials(list(slots), found, accumulators, number)))
        return [fold for fold in folds if fold.partials.keys], batch.take(late)

    def _state(self, measured: list[tuple[Any, ...]], number: int) -> object:
        states = []
        for part, column in zip(parts_of(self._lowered.window.aggregation), measured, strict=True):
            values = [value for value in column if value is not None]
            states.append(number if part.add_read is None else part.add_read(part.init(), values))
        return tuple(states) if self._lowered.window.aggregation.parts else states[0]


def _runs(column: pa.ChunkedArray) -> Iterator[tuple[int, int, int]]:
    """Yield each value of a column in order, with the places from which and up to which it is."""
    start = 0
    for run in pc.value_counts(column).to_pylist():
        yield run["values"], start, (start := start + run["counts"])


def stamped(
    term: Term, table: pa.RecordBatch, watermark: int, disorder_ms: int
) -> tuple[pa.Array, pa.Array, int, Rise]:
    """Return the event times of rows, how far event time was at each of them and is behind them, and how it rose."""
    at = column(term, table)
    lowest, highest = pc.min_max(at).values()
    if lowest.as_py() < EARLIEST_MS or highest.as_py() > LATEST_MS:
        raise Unusual
    reached = pc.cumulative_max(at, start=watermark + disorder_ms)
    stamps = pa.concat_arrays([pa.array([watermark + disorder_ms], pa.int64()), reached[:-1]])
    rise = Rise(reached[0].as_py(), pc.max(pc.subtract(reached[1:], reached[:-1])).as_py() or 0)
    return at, pc.subtract(stamps, disorder_ms), reached[-1].as_py() - disorder_ms, rise


class ColumnarPreparing:
    """Reads event times off columns and filters rows, and makes records of the others; changes nothing itself."""

    def __init__(self, how: ColumnStart, kind: object) -> None:
        self._how, self._kind = how, kind

    def run(self, table: pa.RecordBatch, watermark: int, disorder_ms: int) -> PreparedRows | None:
        """Return the records; None where anything is not as in most batches, or where they are few."""
        if len(table) < FEW:
            return None
        try:
            return self._run(table, watermark, disorder_ms)
        except (pa.ArrowException, Unusual):
            return None

    def _run(self, table: pa.RecordBatch, watermark: int, disorder_ms: int) -> PreparedRows:
        at = stamps = places = rise = None
        reached = watermark
        if self._how.timestamp is not None:
            at, stamps, reached, rise = stamped(self._how.timestamp, table, watermark, disorder_ms)
        dropped = {}
        for id, condition in self._how.filters:
            kept = column(condition, table)
            dropped[id] = len(table) - (pc.sum(kept).as_py() or 0)
            if dropped[id]:
                places = pa.array(range(len(table))) if places is None else places
                table, places = table.filter(kept), places.filter(kept)
                at, stamps = (None if one is None else one.filter(kept) for one in (at, stamps))
        values = values_in(table, self._kind)
        if values is None:
            raise Unusual
        columns = [None if one is None else one.to_pylist() for one in (at, stamps, places)]
        return PreparedRows(values, columns[0], columns[1], reached, columns[2], dropped, rise)


def column(term: Term, table: pa.RecordBatch) -> pa.Array:
    """Return a term over all rows, none of which may be null."""
    found = optional_column(term, table)
    if found.null_count:
        raise Unusual
    return found


def optional_column(term: Term, table: pa.RecordBatch) -> pa.Array:
    """Return a term over all rows, of which some may be null."""
    found = _evaluated(term, table)
    if isinstance(found, pa.Scalar):
        found = pa.array([found.as_py()] * len(table), TYPES[term.type])
    return found


def _evaluated(term: Term, table: pa.RecordBatch) -> pa.Array | pa.Scalar:
    if term.op == "column":
        return pc.cast(table.column(term.parts[0]), TYPES[term.type])
    if term.op == "constant":
        return pa.scalar(term.parts[0], TYPES[term.type])
    parts = [_evaluated(part, table) if isinstance(part, Term) else part for part in term.parts]
    match term.op:
        case "and":
            return _chained(parts, lambda first, rest: pc.if_else(first, rest, False))
        case "or":
            return _chained(parts, lambda first, rest: pc.if_else(first, True, rest))
        case "not":
            return pc.invert(*parts)
        case "where_known":
            return pc.if_else(pc.is_valid(parts[0]), parts[1], parts[2] if len(parts) > 2 else False)
        case "modulo":
            return _modulo(parts[0], parts[1])
        case "floor":
            return pc.divide(pc.subtract_checked(parts[0], _modulo(parts[0], parts[1])), parts[1])
    checked = {**CHECKED, "negate": "negate_checked"} if term.type == "int" else {}
    return getattr(pc, checked.get(term.op, term.op))(*parts)


def _chained(parts: list[pa.Array], join: Callable[[pa.Array, pa.Array], pa.Array]) -> pa.Array:
    """Join from the last on, as Python looks at one only where those before did not decide."""
    *before, found = parts
    for part in reversed(before):
        found = join(part, found)
    return found


def _modulo(dividend: pa.Array, divisor: pa.Array | int) -> pa.Array:
    """Return what is left as Python has it, of the sign of the divisor, which is positive."""
    rest = pc.subtract(dividend, pc.multiply(pc.divide(dividend, divisor), divisor))
    # Arrow divides towards zero, Python downwards.
    return pc.if_else(pc.less(rest, 0), pc.add(rest, divisor), rest)


class ColumnarReshaping:
    """Reads, filters and maps a source partition's batches; changes nothing, as its results take effect later."""

    def __init__(self, how: Reshaped, counted: Sequence[str]) -> None:
        self._how, self._counted = how, counted

    def run(self, table: pa.RecordBatch, watermark: int, disorder_ms: int) -> Folded | None:
        """Return what a batch comes to; None where anything is not as in most batches."""
        try:
            return self._run(table, watermark)
        except (pa.ArrowException, Unusual):
            return None

    def _run(self, table: pa.RecordBatch, watermark: int) -> Folded:
        how, number, low = self._how, len(table), MAX_TIMESTAMP
        if how.timestamp is not None and number:
            lowest, highest = pc.min_max(column(how.timestamp, table)).values()
            low, high = lowest.as_py(), highest.as_py()
            if low < EARLIEST_MS or high > LATEST_MS or may_be_misread(low, high):
                raise Unusual
        dropped = {}
        for step in how.steps:
            if step.condition is None:
                table = _record_batch((name, term, _column_of(term, table)) for name, term in step.made)
                continue
            kept = column(step.condition, table)
            dropped[step.id] = len(table) - (pc.sum(kept).as_py() or 0)
            if dropped[step.id]:
                table = table.filter(kept)
        written = _record_batch((str(one.parts[0]), one, _column_of(one, table)) for one in how.written)
        counted = [dropped[id] for id in self._counted]
        return Folded(number, [(how.exit, written, Batch([]))], watermark, counted, lowest=low)


def _column_of(term: Term, table: pa.RecordBatch) -> pa.Array:
    return optional_column(term, table) if term.optional else column(term, table)


def _record_batch(columns: Iterable[tuple[str, Term, pa.Array]]) -> pa.RecordBatch:
    """Return columns of which the types are those that their terms say."""
    names, terms, arrays = zip(*columns, strict=True)
    schema = pa.schema([(name, TYPES[term.type]) for name, term in zip(names, terms, strict=True)])
    return pa.RecordBatch.from_arrays([*arrays], schema=schema)
