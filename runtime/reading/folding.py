"""The generated loop that reads, runs and groups a batch of one source partition, where all it feeds are windows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from operators.core.base import LATEST_MS, MAX_TIMESTAMP, Batch, Key, has_none
from operators.core.wording import askable
from operators.partition_by import PartitionBy
from operators.windows.partials import Folds
from operators.windows.window import Window
from operators.windows.window_groups import Grouped, Groups
from operators.windows.window_types import WindowType
from planner.codegen.folding import carried_key, windows_at
from planner.codegen.fusion import compile_source
from planner.model.graph import Graph
from planner.model.plan import SegmentPlan
from runtime.encoding.keys import KeySerde
from runtime.encoding.serdes import Tagged
from runtime.reading.event_times import FAR_MS, FOLLOWING


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


class SharedGroups:
    """The groups, by exit, that readers of one input fold into together; `runs` counts those that have tried to.

    None of them has had another effect: where one fails halfway, what is here is dropped.
    """

    def __init__(self) -> None:
        self.groups: dict[str, Groups] = {}
        self.kinds: tuple[type | None, ...] = ()
        self.runs = 0

    def begin(self, kinds: tuple[type | None, ...], groups: Callable[[], dict[str, Groups]]) -> bool:
        """Let one more reader fold into these, unless its keys are of other kinds."""
        if not self.runs:
            self.kinds, self.groups = kinds, groups()
        joins = kinds == self.kinds
        self.runs += joins
        return joins


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
        self.hands_on = self.grouped.issuperset(self._windows)
        """Whether all that it groups goes on to stages behind, and nothing to state of this task."""

    def run(
        self, batch: Batch, keys: KeySerde | None, watermark: int, shared: SharedGroups | None = None
    ) -> Folded | None:
        """Read keys and times off the values and group them; None where anything is not as in most batches.

        They go into `shared` groups, if there are any; their keys are checked when all readers are through.
        """
        kind = None if keys is None or self._carries else keys.kind
        # The loop compares a key's type once and holds keys as themselves; without a known type it can't, and
        # the columns go the ordinary way. Keys that records carry are made a column of held ones before it.
        if kind is None and self._needs_key and not self._carries:
            return None
        disorder_ms = self._disorder_ms
        kinds = kind, *self._kinds.values()
        is_shared = shared is not None and shared.begin(kinds, self._groups)
        groups = shared.groups if shared is not None and is_shared else self._groups()
        places = [one.place for one in groups.values()]
        try:
            held = _held(batch, keys) if self._needs_key and self._carries else None
            highest, lates, counted = self.function(batch.values, held, kinds, watermark + disorder_ms, *places)
            # Such a time is malformed, and whose record it is only the ordinary way finds out.
            if highest > LATEST_MS:
                return None
            if not is_shared:
                self._check_held(groups, keys, kind)
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
        """Whether all keys of shared groups are held as themselves."""
        assert self.hands_on, "the keys of all exits are new ones"
        try:
            self._check_held(shared.groups, None, None)
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

    def _check_held(self, groups: Mapping[str, Groups], keys: KeySerde | None, kind: type | None) -> None:
        """Raise where keys, whose type the loop has looked at, are not held as themselves."""
        for id, each in groups.items():
            if self._carries and id not in self._rekeyed:
                continue
            serde, kind_here = self._rekeyed.get(id, keys), self._kinds.get(id, kind)
            assert serde is not None and kind_here is not None
            for group in each.by_slots.values():
                if not serde.are_held(kind_here, group):
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
