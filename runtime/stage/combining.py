"""Around a shuffle where windows are folded in parts: what goes in for it in the place of rows, and what comes out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from operators.aggregations.aggregation import Aggregation
from operators.core.base import Batch, has_none
from operators.windows.count_window import CountedOperator
from operators.windows.partials import Fold, Folds, Partials, SessionFold, folds_of, parts_of
from operators.windows.session import SessionOperator
from operators.windows.window import NO_KEY, Window, WindowOperator
from operators.windows.window_groups import Groups
from operators.windows.window_types import Sessions, WindowType
from planner.model.errors import PlanError
from runtime.encoding.keys import KeySerde
from runtime.functions.failures import Failure
from runtime.stage.exits import NO_TIME
from runtime.stage.outputs import Destination, Outputs, routed


class CombiningExit:
    """Writes what the rows of a batch come to at the windows behind a shuffle, to the partitions of their new keys."""

    calls = ("aggregation",)
    columns = frozenset({"timestamps", "stamps"})

    def __init__(
        self,
        window: Window,
        aggregation: Aggregation[Any, Any],
        outputs: Outputs,
        to: Destination,
        now_ms: Callable[[], int],
    ) -> None:
        self.aggregation = aggregation
        self._window, self._outputs, self._to, self._now_ms = window, outputs, to, now_ms
        assert to.key is not None
        self._keys = keys = KeySerde(to.key)
        self._partition_of = routed(to.by, keys, to.partitions)

    def take(self, batch: Batch) -> None:
        """Fold rows, which have their new keys, and write what they come to."""
        assert batch.keys is not None
        window = self._window
        batch.keys = self._keys.hold(batch.keys)
        with _at(window):
            if has_none(batch.keys):
                raise ValueError(NO_KEY)
            if batch.timestamps is None and not window.takes_all:
                raise ValueError(NO_TIME)
            if batch.timestamps is None:  # as rows that are sent have the time of their sending
                batch.timestamps = [self._now_ms()] * len(batch)
            batch.stamps = batch.stamps or list(batch.timestamps)
            if window.takes_all:
                self._write_parts(batch)
                return
            groups, late = self._sessions_of(batch) if window.is_of_sessions else self._grouped(batch)
        self.fold(groups, batch.take(late))

    def _grouped(self, batch: Batch) -> tuple[Groups, list[int]]:
        """Return values by their windows, and the rows that are late."""
        window = self._window
        groups = Groups(
            cast(WindowType, window.windows), window.allowed_lateness_ms, self.aggregation.counts, window.waits_ms
        )
        return groups, groups.gather(batch)

    def _sessions_of(self, batch: Batch) -> tuple[Folds, list[int]]:
        """Return values folded into stretches of sessions, and the rows that are late."""
        window = self._window
        folding = SessionFold(cast(Sessions, window.windows).gap_ms, window.waits_ms, self.aggregation)
        folds, late = folding.run(batch, self._partition_of, self._to.partitions)
        return Folds([*folds]), late

    def fold(self, groups: Groups | Folds, late: Batch) -> None:
        """Write what was grouped, or folded, already."""
        with _at(self._window):
            found = groups.parts if isinstance(groups, Folds) else [*self._folds_of(groups)]
        for partition, partials in found:
            self._write(partition, partials, self._stamp_of(partials))
        if len(late):
            assert late.stamps is not None
            here = self._outputs.here(self._to)
            self._write(here, Partials([], [], [], 0, len(late)), min(late.stamps))

    def _stamp_of(self, partials: Partials) -> int:
        """Return how far event time may be where they are merged, so that no window that they reach has fired."""
        if self._window.is_of_sessions:  # one that has ended, and waited, by then reaches none of these values
            lowest: int = min(low for low, _, _ in partials.accumulators)
            return lowest + self._window.waits_ms
        return min(slot.due for slot in partials.slots) - 1

    def _write_parts(self, batch: Batch) -> None:
        assert batch.stamps is not None
        for partition, partials in parts_of(batch, self.aggregation, self._partition_of, self._to.partitions):
            self._write(partition, partials, min(batch.stamps))

    def _folds_of(self, groups: Groups) -> Iterator[Fold]:
        return folds_of(groups, self.aggregation, self._partition_of, self._to.partitions)

    def _write(self, partition: int, partials: Partials, stamp: int) -> None:
        self._outputs.combined += len(partials.keys)
        row = Batch([self._to.value.encode(partials)], timestamps=[stamp], stamps=[stamp])
        self._outputs.append((self._to.stream, partition), row)


class CombinedExit:
    """Hands windows what was folded for them, and counts the values that it was made of."""

    columns = frozenset({"timestamps", "stamps"})

    def __init__(
        self,
        operator: WindowOperator | CountedOperator | SessionOperator,
        lateness_ms: int,
        count: Callable[[int, int], None],
    ) -> None:
        self._operator, self._lateness_ms = operator, lateness_ms
        self._count = count

    def take(self, batch: Batch) -> None:
        """Merge, and tell how many values more than rows there were, and how many of these were late."""
        assert batch.stamps is not None
        sent: list[tuple[Partials, int]] = [*zip(batch.values, batch.stamps, strict=True)]
        # Event time may have gone on without who sends them.
        found = [row.raised(stamp, self._lateness_ms) if row.slots else row for row, stamp in sent]
        for partials, (_, stamp) in zip(found, sent, strict=True):
            self._operator.merge(partials, stamp)
        late = sum(partials.late for partials in found)
        self._count(sum(partials.values for partials in found) + late - len(found), late)


@contextmanager
def _at(window: Window) -> Iterator[None]:
    """Say of what fails that it is the window that failed."""
    try:
        yield
    except PlanError:
        raise
    except Exception as error:
        raise Failure(window.op_id or "", error) from error
