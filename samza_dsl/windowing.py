"""The windows of the fluent stream, and what may be said of when they fire."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from operators.aggregations import Aggregation
from operators.base import Site
from operators.policies import DeadLetter, Policy, fail
from operators.revisions import Revision, Revisions
from operators.sites import here
from operators.triggers import Trigger
from operators.window import Emit, Pane, Panes, Window
from operators.window_types import Assigner, Windows
from planner.errors import refuse
from runtime.serdes import NoKey
from samza_dsl.checks import check_late, check_store, check_type, check_whole
from samza_dsl.window_kinds import check_kind
from samza_dsl.windows_by import WindowsBy

if TYPE_CHECKING:
    from samza_dsl.stream import Kept, MessageStream

K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")


class Windowing(Generic[K, V]):
    """What a stream of messages with keys of type K and values of type V comes to in stretches of time."""

    def window(
        self,
        windows: Windows | WindowsBy | Assigner[K, V],
        aggregation: Aggregation[V, R],
        *,
        allowed_lateness_ms: int = 0,
        panes: Panes = "accumulating",
        early: Trigger | None = None,
        late_trigger: Trigger | None = None,
        emit: Emit = "all",
        late: DeadLetter | None = None,
        store: Kept = "lmdb",
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> MessageStream[K, Pane[K, R]]:
        """Aggregate per key and event-time window; a pane goes on when the watermark passes the window's end.

        A value is late when the end of its window, or in sessions its own time, had passed for its own source
        partition, whatever others have read. For `allowed_lateness_ms` after that late values make further panes, of
        all that the window has by then ("accumulating", or "retracting", where the pane before is withdrawn) or of just
        these ("discarding"); a `late_trigger` says when, and else each makes one. Later ones are counted, and sent to
        `late` if that is `dead_letter("name")`. With `early`, a trigger such as `after_count(100)` or
        `after_delay(minutes=1)`, a window has panes before its end, too; with `emit="final"` it has just one, when no
        late value can come any more. The windows may be your own (`Assigner`). Raises PlanError when the messages have
        no key.

        >>> from samza_dsl import after_count, count, tumbling
        >>> from samza_dsl.shown import example, shown
        >>> app, numbers = example(key=lambda n: str(n))
        >>> shown(app, numbers.window(tumbling(seconds=1), count()).map(lambda pane: (pane.key, pane.value)))
        [('0', 1), ('1', 1), ('2', 1), ('3', 1)]

        >>> app, numbers = example(key=lambda n: "all")
        >>> panes = numbers.window(tumbling(seconds=1), count(), early=after_count(3))
        >>> shown(app, panes.map(lambda pane: (pane.value, pane.timing)))
        [(3, 'early'), (4, 'on_time')]
        """
        site = here()
        check_type(site, "window(...)", aggregation, Aggregation, "count(), mean(...), fold(...) or another")
        check_whole(site, "allowed_lateness_ms", allowed_lateness_ms, least=0)
        check_late(site, "window", late)
        _check_panes(site, panes, early, emit)
        _check_late_trigger(site, late_trigger, allowed_lateness_ms, emit)
        check_kind(site, windows, aggregation, allowed_lateness_ms, early, late_trigger, panes)
        how: dict[str, Any] = {"panes": panes, "early": early, "late_trigger": late_trigger, "emit": emit, "late": late}
        how |= {"allowed_lateness_ms": allowed_lateness_ms, "store": check_store(site, store)}
        stream, kind = cast("MessageStream[K, V]", self), windows
        if isinstance(windows, WindowsBy):
            with_row: Any = lambda value, row: (value, row)  # noqa: E731
            stream = stream.join(windows.table, with_row, on=windows.on, how="left", on_error=on_error)
            kind = windows.windows
        return stream._then(Window, site, on_error, op_id, windows=kind, aggregation=aggregation, **how)

    def window_all(
        self,
        windows: Windows | WindowsBy | Assigner[None, V],
        aggregation: Aggregation[V, R],
        *,
        allowed_lateness_ms: int = 0,
        panes: Panes = "accumulating",
        early: Trigger | None = None,
        late_trigger: Trigger | None = None,
        emit: Emit = "all",
        late: DeadLetter | None = None,
        store: Kept = "lmdb",
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> MessageStream[None, Pane[None, R]]:
        """Aggregate all messages per window, whatever their key, in one task; the panes' key is None.

        >>> from samza_dsl import count, tumbling
        >>> from samza_dsl.shown import example, shown
        >>> app, numbers = example()
        >>> shown(app, numbers.window_all(tumbling(seconds=1), count()).map(lambda pane: pane.value))
        [4]
        """
        same = cast("Callable[[V], None]", lambda value: b"")
        stream = cast("MessageStream[K, V]", self)
        gathered = stream.partition_by(same, partitions=1, key_type=NoKey(), op_id=op_id and f"{op_id}-gathered")
        how: Any = {"allowed_lateness_ms": allowed_lateness_ms, "panes": panes, "early": early}
        how |= {"late_trigger": late_trigger, "emit": emit, "late": late}
        return gathered.window(windows, aggregation, store=store, on_error=on_error, op_id=op_id, **how)

    def revisions(self, *, op_id: str | None = None) -> MessageStream[K, Revision[V]]:
        """Tell of each message whether it is withdrawn: a pane with `panes="retracting"`, or what was made of one.

        >>> from samza_dsl import after_count, count, tumbling
        >>> from samza_dsl.shown import example, shown
        >>> app, numbers = example(key=lambda n: "all")
        >>> panes = numbers.window(tumbling(seconds=1), count(), early=after_count(3), panes="retracting")
        >>> shown(app, panes.map(lambda pane: pane.value).revisions())
        [Revision(value=3), Revision(value=3, withdrawn=True), Revision(value=4)]
        """
        changed: MessageStream[K, Revision[V]]
        changed = cast("MessageStream[K, V]", self)._then(Revisions, here(), fail, op_id)
        return changed


def _check_late_trigger(site: Site, trigger: Any, allowed_lateness_ms: int, emit: Any) -> None:
    """Refuse a trigger of late panes where there are none, or that goes by what they do not."""
    if trigger is None:
        return
    instead = "after_count(100), or after_delay(minutes=1) of event time"
    check_type(site, "window(late_trigger=...)", trigger, Trigger, instead)
    if not allowed_lateness_ms or emit == "final":
        wrong = "late_trigger= says when late values make panes, and there are none of these"
        raise refuse(site, wrong, 'allowed_lateness_ms=60_000 beside it, and emit="all"')
    if trigger.by_clock:
        raise refuse(site, f"late panes can't come {trigger} by the clock", instead)


def _check_panes(site: Site, panes: Any, early: Any, emit: Any) -> None:
    """Refuse what does not say which panes there are."""
    if panes not in ("accumulating", "discarding", "retracting"):
        instead = 'panes="accumulating", "discarding" or "retracting"'
        raise refuse(site, f"panes={panes!r} is not what panes can be", instead)
    if emit not in ("all", "final"):
        raise refuse(site, f"emit={emit!r} does not say which panes are emitted", 'emit="all" or "final"')
    if early is not None:
        check_type(site, "window(early=...)", early, Trigger, "after_count(100), after_delay(minutes=1) or another")
    if emit == "final" and (early is not None or panes != "accumulating"):
        wrong = 'emit="final" makes one pane of each window, which has all'
        raise refuse(site, wrong, f'emit="all", or leave out {"early=" if early is not None else "panes="}')
