"""One source partition's batches, read, run and grouped by window in one generated loop, where that is all there is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from operators.base import LATEST_MS, Batch, Spec
from operators.io import Input
from operators.window import Window
from operators.window_groups import Groups
from operators.window_types import WindowType
from planner.fuse import compile_source
from planner.plan import SegmentPlan
from runtime.keys import KeySerde


class Folded(NamedTuple):
    """What a batch came to: per exit its groups by key and its late rows, and the watermark after it."""

    number: int
    exits: list[tuple[str, Groups, Batch]]
    watermark: int
    counted: Sequence[int]


class FoldingSegment:
    """A generated loop at work. It changes nothing: what it returns takes effect later, or never."""

    def __init__(
        self, plan: SegmentPlan, functions: Mapping[str, Mapping[str, Any]], specs: Mapping[str, Spec]
    ) -> None:
        source = specs[plan.entry]
        assert isinstance(source, Input)
        self.function, self.filename = compile_source(plan.folding, f"{plan.entry}, folding", functions)
        self._disorder_ms = source.max_disorder_ms
        self._windows = {exit.id: spec for exit in plan.exits if isinstance(spec := specs[exit.id], Window)}

    def run(self, batch: Batch, keys: KeySerde, watermark: int) -> Folded | None:
        """Read keys and times off the values and group them; None where anything is not as in most batches."""
        kind, disorder_ms = keys.kind, self._disorder_ms
        if kind is None:
            return None
        groups = {
            id: Groups(
                cast(WindowType, spec.windows),
                spec.allowed_lateness_ms,
                spec.aggregation.counts,
                spec.waits_ms,
            )
            for id, spec in self._windows.items()
        }
        places = [one.place for one in groups.values()]
        try:
            highest, lates, counted = self.function(batch.values, kind, watermark + disorder_ms, *places)
            if highest > LATEST_MS:
                return None
            for each in groups.values():
                for group in each.by_slots.values():
                    keys.hold([*group])
            late_rows = [_late_rows(rows, keys, batch) for rows in lates]
        except Exception:  # the ordinary way tells what it is, and of which row
            return None
        exits = list(zip(groups, groups.values(), late_rows, strict=True))
        return Folded(len(batch), exits, highest - disorder_ms, counted)


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
