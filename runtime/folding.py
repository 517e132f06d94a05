"""One source partition's batches, read, run and grouped by window in one generated loop, where that is all there is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from operators.base import LATEST_MS, Batch
from operators.io import Input
from operators.partials import Folds
from operators.partition_by import PartitionBy
from operators.window import Window
from operators.window_groups import Groups
from operators.window_types import WindowType
from planner.fuse import compile_source
from planner.graph import Graph
from planner.plan import SegmentPlan
from runtime.keys import KeySerde
from runtime.serdes import Tagged


class Folded(NamedTuple):
    """What a batch came to: per exit its groups by key and its late rows, and the watermark after it."""

    number: int
    exits: list[tuple[str, Groups | Folds, Batch]]
    watermark: int
    counted: Sequence[int]


class FoldingSegment:
    """A generated loop at work. It changes nothing: what it returns takes effect later, or never."""

    def __init__(self, plan: SegmentPlan, functions: Mapping[str, Mapping[str, Any]], graph: Graph) -> None:
        source = graph.specs[plan.entry]
        assert isinstance(source, Input)
        self.function, self.filename = compile_source(plan.folding, f"{plan.entry}, folding", functions)
        self._disorder_ms = source.max_disorder_ms
        self._windows: dict[str, Window] = {}
        self._rekeyed: dict[str, KeySerde] = {}
        self._kinds: dict[str, type] = {}
        for exit in plan.exits:
            spec = graph.specs[exit.id]
            if isinstance(spec, PartitionBy):
                self._rekeyed[exit.id] = KeySerde(graph.key_serde(exit.id) or Tagged())
                self._kinds[exit.id] = str
                spec = cast(Window, spec.combines)
            assert isinstance(spec, Window)
            self._windows[exit.id] = spec

    def run(self, batch: Batch, keys: KeySerde | None, watermark: int) -> Folded | None:
        """Read keys and times off the values and group them; None where anything is not as in most batches."""
        kind = None if keys is None else keys.kind
        if kind is None and len(self._rekeyed) < len(self._windows):
            return None
        disorder_ms = self._disorder_ms
        groups = {
            id: Groups(
                cast(WindowType, spec.windows),
                spec.allowed_lateness_ms,
                spec.aggregation.counts,
                spec.waits_ms,
            )
            for id, spec in self._windows.items()
        }
        kinds = kind, *self._kinds.values()
        places = [one.place for one in groups.values()]
        try:
            highest, lates, counted = self.function(batch.values, kinds, watermark + disorder_ms, *places)
            if highest > LATEST_MS:
                return None
            for id, each in groups.items():
                for group in each.by_slots.values():
                    self._check_held(id, keys, self._kinds.get(id, kind), group)
            rows = zip(groups, lates, strict=True)
            late_rows = [_late_rows(found, cast(KeySerde, self._rekeyed.get(id, keys)), batch) for id, found in rows]
        except Exception as error:  # the ordinary way tells what it is, and of which row
            self._learn(error)
            return None
        exits: Any = list(zip(groups, groups.values(), late_rows, strict=True))
        return Folded(len(batch), exits, highest - disorder_ms, counted)

    def _check_held(self, id: str, keys: KeySerde | None, kind: type | None, column: Iterable[Any]) -> None:
        """Raise where keys, whose type the loop has looked at, are not held as themselves."""
        serde = self._rekeyed.get(id, keys)
        assert serde is not None and kind is not None
        if not serde.are_held(kind, column):
            raise ValueError("not as keys are held")

    def _learn(self, error: Exception) -> None:
        """Expect keys of the other kind, where that is why a batch could not be read."""
        match error.args:
            case int(exit), type() as kind if kind in (int, str):
                self._kinds[[*self._windows][exit]] = kind


def _late_rows(rows: Sequence[tuple[Any, Any, int, int, int]], keys: KeySerde, batch: Batch) -> Batch:
    if not rows:
        return Batch([])
    values, read_keys, timestamps, stamps, places = map(list, zip(*rows, strict=True))
    return Batch(
        values,
        keys=keys.hold(read_keys),
        timestamps=timestamps,
        stamps=stamps,
        offsets=batch.offsets and [batch.offsets[place] for place in places],
        headers=batch.headers and [batch.headers[place] for place in places],
    )
