"""The generated loop that reads, runs and groups a batch of one source partition, where all it feeds are windows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, Protocol, cast

from operators.core.base import LATEST_MS, MAX_TIMESTAMP, Batch, Key, has_none
from operators.core.wording import askable
from operators.partition_by import PartitionBy
from operators.windows.partials import Folds
from operators.windows.window import Window
from operators.windows.window_groups import Grouped, Groups, Held
from operators.windows.window_types import WindowType
from planner.codegen.folding import carried_key, windows_at
from planner.codegen.fusion import compile_source
from planner.model.graph import Graph
from planner.model.plan import SegmentPlan
from runtime.encoding.keys import KeySerde
from runtime.encoding.serdes import Tagged
from runtime.reading.event_times import FAR_MS, FOLLOWING, Rise


class Folded(NamedTuple):
    """The result of a batch: per exit its groups by key and its late rows, and the watermark after it."""

    number: int
    exits: list[tuple[str, Groups | Folds | Grouped, Batch]]
    watermark: int
    counted: Sequence[int]
    is_shared: bool = False
    """Whether its values are in groups that other readers have values in, too, and not in those of its exits."""
    lowest: int = MAX_TIMESTAMP
    """A time (ms) in the window of the lowest one."""
    rise: Rise | None = None
    """How its rows move event time, where that was told by columns."""


class SharedGroups:
    """The groups, by exit, that readers of one input fold into together.

    Nobody knows whose a value here is. So where a reader is only halfway through, as it failed, all of it goes back to
    the savepoint, and those that have folded since then fold once more.
    """

    def __init__(self) -> None:
        self.groups: dict[str, Groups] = {}
        self.is_halfway = False
        """Whether a reader has begun, of which nobody has said that it went well."""
        self._kinds: tuple[type | None, ...] = ()
        self._held: dict[str, Held] = {}
        self._number = 0
        """The number of values that were folded since the savepoint."""

    def begin(self, kinds: tuple[type | None, ...], groups: Callable[[], dict[str, Groups]]) -> bool:
        """Let one more reader fold into these, unless its keys are of other kinds."""
        assert not self.is_halfway, "who failed is taken back before the next one folds"
        if not self.groups:
            self._kinds, self.groups = kinds, groups()
        self.is_halfway = kinds == self._kinds
        return self.is_halfway

    def went_well(self, number: int) -> bool:
        """Take note that the reader is through, of so many values; return whether a savepoint costs little beside that.

        It costs a look at each key, of which many readers have more than one of them has values.
        """
        self.is_halfway = False
        self._number += number
        return self._number >= 2 * sum(len(found) for one in self.groups.values() for found in one.by_slots.values())

    def savepoint(self) -> None:
        """Keep what is here for good."""
        assert not self.is_halfway, "a savepoint has whole readers"
        self._held, self._number = {id: one.savepoint() for id, one in self.groups.items()}, 0

    def rollback(self) -> None:
        """Drop what came since the savepoint."""
        self.is_halfway, self._number = False, 0
        if not self._held:
            self.groups = {}  # of the kinds that the next one has
        for id, held in self._held.items():
            self.groups[id].rollback(held)

    def newest(self, exit: str) -> Iterator[list[Key]]:
        """Yield the keys that have come to the groups of an exit since the savepoint."""
        held = self._held.get(exit, {})
        for slots, group in self.groups[exit].by_slots.items():
            yield [*islice(group, len(held.get(slots, ())), None)]


class PreparedRows(NamedTuple):
    """The records that were made of a batch in columns, with their times and stamps where there is event time.

    Where filters have dropped some, `places` are the rows of the others, and `dropped` has how many, by filter.
    """

    values: list[Any]
    timestamps: list[int] | None
    stamps: list[int] | None
    watermark: int
    places: list[int] | None
    dropped: Mapping[str, int]
    rise: Rise | None = None
    """How all rows move event time, those that were dropped as well."""


class Columnar(Protocol):
    """A function that folds rows that lie in columns, or makes records of them."""

    def run(self, table: Any, watermark: int, disorder_ms: int, /) -> Folded | PreparedRows | None:
        """Return what they come to, or the records that they are; None where they are to be read one by one."""


def begins_well(folded: Folded | PreparedRows) -> bool:
    """Whether nothing of the first rows of all is behind the first of them; where they are few, that is unknown."""
    if isinstance(folded, Folded):
        return folded.number > FOLLOWING and not any(len(late) for _, _, late in folded.exits)
    times = folded.timestamps
    return times is None or (len(times) > FOLLOWING and min(times[:FOLLOWING]) > times[0] - FAR_MS)


def lowest_of(found: Folded | PreparedRows) -> int:
    """Return the lowest time (ms) of a batch, or one in its window; MAX_TIMESTAMP where it has none."""
    return found.lowest if isinstance(found, Folded) else min(found.timestamps or (), default=MAX_TIMESTAMP)


class FoldingSegment:
    """Runs a generated loop, which changes nothing: its result takes effect later, or never."""

    def __init__(self, plan: SegmentPlan, functions: Mapping[str, Mapping[str, Any]], graph: Graph) -> None:
        self.function, self.filename = compile_source(plan.folding, f"{plan.entry}, folding", functions)
        self._disorder_ms = graph.inputs[plan.entry].max_disorder_ms
        self._carries = carried_key(graph, plan.entry) is not None
        self.grouped: set[str] = set()
        """The repartitionings before which values are grouped for the windows behind."""
        self._windows: dict[str, Window] = {}
        self._rekeyed: dict[str, KeySerde] = {}
        self._kinds: dict[str, type] = {}
        for exit in plan.exits:
            windows = windows_at(graph, exit.id)
            assert windows is not None, "a loop groups for windows alone"
            self._windows[exit.id] = windows
            if exit.id in graph.of(PartitionBy):
                self._rekeyed[exit.id] = KeySerde(graph.key_serde(exit.id) or Tagged())
                self._kinds[exit.id] = str
                if graph.of(PartitionBy)[exit.id].combines is None:
                    self.grouped.add(exit.id)
        self._needs_key = len(self._rekeyed) < len(self._windows)
        self._hands_on = self.grouped.issuperset(self._windows)
        """Whether all that it groups goes on to stages behind, and nothing to state of this task."""

    def run(
        self, batch: Batch, keys: KeySerde | None, watermark: int, shared: SharedGroups | None = None
    ) -> Folded | None:
        """Read keys and times off the values and group them; None where anything is not as in most batches.

        They go into `shared` groups, if there are any and nothing goes to state of this task; the keys of these are
        checked with those of other readers.
        """
        kind = None if keys is None or self._carries else keys.kind
        # The loop compares a key's type once and holds keys as themselves; without a known type it can't, and
        # the columns go the ordinary way. Keys that records carry are made a column of held ones before it.
        if kind is None and self._needs_key and not self._carries:
            return None
        disorder_ms = self._disorder_ms
        kinds = kind, *self._kinds.values()
        is_shared = shared is not None and self._hands_on and shared.begin(kinds, self._groups)
        groups = shared.groups if shared is not None and is_shared else self._groups()
        places = [one.place for one in groups.values()]
        try:
            held = _held(batch, keys) if self._needs_key and self._carries else None
            highest, lates, counted = self.function(batch.values, held, kinds, watermark + disorder_ms, *places)
            # Such a time is malformed, and whose record it is only the ordinary way finds out.
            if highest > LATEST_MS:
                return None
            if not is_shared:
                for id, each in groups.items():
                    self._check_held(id, each.by_slots.values(), keys, kind)
            rows = zip(groups, lates, strict=True)
            late_rows = [
                _late_rows(found, self._rekeyed.get(id, None if self._carries else keys), batch) for id, found in rows
            ]
        except Exception as error:  # the ordinary way tells what it is, and of which row
            self._learn(askable(error))
            return None
        own = map(Grouped, groups) if is_shared else groups.values()
        exits: Any = list(zip(groups, own, late_rows, strict=True))
        # By the windows, which are few, as a look at each time would cost as much as the reading of it.
        lowest = [at for one in groups.values() for at, _ in one.places.values()]
        lowest += [min(at for _, _, at, _, _ in found) for found in lates if found]
        return Folded(len(batch), exits, highest - disorder_ms, counted, is_shared, min(lowest, default=MAX_TIMESTAMP))

    def are_held(self, shared: SharedGroups) -> bool:
        """Whether the newest keys of shared groups are held as themselves."""
        try:
            for id in shared.groups:
                self._check_held(id, shared.newest(id), None, None)
        except Exception:
            return False
        return True

    def _groups(self) -> dict[str, Groups]:
        return {
            id: Groups(
                cast(WindowType, spec.windows),
                spec.allowed_lateness_ms,
                spec.aggregation.counts and id not in self.grouped,
                spec.waits_ms,
            )
            for id, spec in self._windows.items()
        }

    def _check_held(self, id: str, groups: Iterable[Collection[Any]], keys: KeySerde | None, kind: type | None) -> None:
        """Raise where keys of an exit, whose type the loop has looked at, are not held as themselves."""
        if self._carries and id not in self._rekeyed:
            return
        serde, kind_here = self._rekeyed.get(id, keys), self._kinds.get(id, kind)
        assert serde is not None and kind_here is not None
        if not all(serde.are_held(kind_here, group) for group in groups):
            raise ValueError("not as keys are held")

    def _learn(self, error: Exception) -> None:
        """Expect keys of the other kind, where that is why a batch could not be read."""
        # Keys of an input are all ints or all strings as a rule: to expect the other kind from now on costs
        # one batch that goes the ordinary way, and not every batch to come.
        match error.args:
            case int(exit), type() as kind if kind in (int, str):
                self._kinds[[*self._windows][exit]] = kind


def _held(batch: Batch, keys: KeySerde | None) -> list[Key | None]:
    """Return the keys that records carry as they are held; raises ValueError where one has none."""
    if keys is None or batch.keys is None or has_none(batch.keys):
        raise ValueError("a record has no key")
    return keys.load(batch.keys)


def _late_rows(rows: Sequence[tuple[Any, Any, int, int, int]], keys: KeySerde | None, batch: Batch) -> Batch:
    """Return late rows as a batch; without a serde their keys are held already."""
    if not rows:
        return Batch([])
    values, read_keys, timestamps, stamps, places = map(list, zip(*rows, strict=True))
    return Batch(
        values,
        keys=read_keys if keys is None else keys.hold(read_keys),
        timestamps=timestamps,
        stamps=stamps,
        offsets=batch.offsets and [batch.offsets[place] for place in places],
        origins=batch.origins and [batch.origins[place] for place in places],
    )
