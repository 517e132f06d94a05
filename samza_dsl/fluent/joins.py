"""The specs of joins of a stream, with another stream or with a table, by time, by key or by window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from operators.core.base import EARLIEST_MS, LATEST_MS, Serde, Site, Spec
from operators.core.durations import Duration, whole_ms
from operators.core.policies import DeadLetterPolicy
from operators.io import TableInput, VersionedTable
from operators.joins.asof_join import AsofJoin, Direction
from operators.joins.interval_join import How, IntervalJoin, Keep
from operators.joins.remote_join import RemoteJoin, RemoteRows
from operators.joins.table_join import TableJoin
from operators.joins.temporal_join import TemporalJoin
from operators.joins.window_join import WindowJoin, joint
from operators.windows.window import Emit
from operators.windows.window_types import Windows
from planner.model.errors import refuse
from runtime.encoding.serdes import Declared
from runtime.stores.registry import DEFAULT
from samza_dsl.fluent.arguments import Bounds, JoinFields, OperatorFields, Sides
from samza_dsl.fluent.checks import (
    both_said,
    check_function,
    check_late,
    check_store,
    ms_said,
    optional_ms_said,
    sides_said,
)
from samza_dsl.fluent.windows import WindowsBy, check_emit, check_kind

LONGEST_MS = LATEST_MS - EARLIEST_MS
"""The longest time between two times, in ms."""
HOW = ("inner", "left", "right", "outer")
DIRECTIONS = ("backward", "forward", "nearest")
HOW_IN_WINDOWS = ("inner", "left", "outer")
KEEP = ("all", "latest")


@dataclass(frozen=True)
class JoinArguments:
    """The arguments of `join` that only some joins take; each function below refuses those that its join does not."""

    on: Callable[..., object] | None
    how: How
    within: Bounds | None
    keep: Keep
    late: DeadLetterPolicy | None
    store: str
    state: Sides


@dataclass(frozen=True)
class AsofJoinArguments:
    """The arguments of `join_asof` beside its streams, their keys and its function."""

    direction: Direction
    tolerance: Duration | None
    how: How
    late: DeadLetterPolicy | None
    store: str
    state: Sides


@dataclass(frozen=True)
class WindowJoinArguments:
    """The arguments of `join_windows` beside its streams and its function."""

    windows: Windows
    how: How
    allowed_lateness_ms: Duration
    emit: Emit
    late: DeadLetterPolicy | None
    state: Sequence[type[object] | Serde | None] | None
    store: str


def interval_join(left: Spec, right: Spec, join: JoinArguments, said: JoinFields) -> IntervalJoin:
    """Return the join of two streams by the time between their messages; refuses what can't be meant."""
    site = said["site"]
    store = check_store(site, join.store)
    low, high = _bounds_of(site, join)
    if join.how not in HOW:
        raise refuse(site, f"how={join.how!r} is not a join of two streams", 'how="inner", "left", "right" or "outer"')
    if join.keep not in KEEP:
        raise refuse(site, f"keep={join.keep!r} does not say which messages join", 'keep="all" or keep="latest"')
    check_late(site, "join", join.late)
    return IntervalJoin(
        parents=(left, right),
        low_ms=low,
        high_ms=high,
        how=join.how,
        keep=join.keep,
        late=join.late,
        store=store,
        state=both_said(site, "join", join.state),
        **said,
    )


def _bounds_of(site: Site, join: JoinArguments) -> tuple[int, int]:
    """Return the bounds in ms; refuses what are none."""
    if join.on is not None:
        wrong = "on= finds rows of a table, and streams are joined by their keys"
        raise refuse(site, wrong, ".partition_by(...) on both streams, and no on=")
    within = join.within
    if within is None:
        wrong = "a join of two streams needs the time within which messages are joined"
        raise refuse(site, wrong, "within=(-duration_ms(minutes=5), duration_ms(minutes=10))")
    bounds = [whole_ms(bound) for bound in within] if isinstance(within, tuple) else []
    if len(bounds) != 2 or not all(type(bound) is int for bound in bounds):
        raise refuse(site, f"within={within!r} is no tuple of two whole ms", "within=(-300_000, 600_000)")
    low, high = bounds
    if low > high:
        wrong = f"within={within!r} has no time in it: its first bound is above its second"
        raise refuse(site, wrong, f"within=({high}, {low})")
    if max(-low, high, low, -high) > LONGEST_MS:
        raise refuse(site, f"within={within!r} is more than any two times lie apart", "within=(-300_000, 600_000)")
    return low, high


def asof_join(left: Spec, right: Spec, join: AsofJoinArguments, said: JoinFields) -> AsofJoin:
    """Return the join of two streams by the nearest message; refuses what can't be meant."""
    site = said["site"]
    if join.direction not in DIRECTIONS:
        wrong = f"direction={join.direction!r} does not say where the nearest message lies"
        raise refuse(site, wrong, 'direction="backward", "forward" or "nearest"')
    if join.how not in ("inner", "left"):
        wrong = f"how={join.how!r} would have messages of the other stream that are nobody's nearest"
        raise refuse(site, wrong, 'how="inner" or how="left"; or .join(..., within=(...), how="outer")')
    tolerance = optional_ms_said(site, "tolerance", join.tolerance, least=0)
    if tolerance is None and join.direction != "backward":
        wrong = f"direction={join.direction!r} without a tolerance would wait for a message that may never come"
        raise refuse(site, wrong, "tolerance=timedelta(minutes=5), the longest that it may lie after a message")
    if tolerance is not None and tolerance > LONGEST_MS:
        raise refuse(site, f"tolerance={tolerance!r} is more than any two times lie apart", "tolerance=300_000")
    check_late(site, "join_asof", join.late)
    return AsofJoin(
        parents=(left, right),
        direction=join.direction,
        tolerance_ms=tolerance,
        how=join.how,
        late=join.late,
        store=check_store(site, join.store),
        state=both_said(site, "join_asof", join.state),
        **said,
    )


def table_join(
    stream: Spec, table: TableInput | VersionedTable, join: JoinArguments, said: JoinFields
) -> TableJoin | TemporalJoin:
    """Return the join of a stream with a table, or with its versions; refuses what only other joins have."""
    site, parents = said["site"], (stream, table)
    how = _how_of_any_table(site, join)
    if table.versioned:
        if join.on is not None:
            wrong = "a table of versions is joined by the message's key"
            raise refuse(site, wrong, ".partition_by(...) on the stream, and no on=")
        check_late(site, "join", join.late)
        store, state = check_store(site, join.store), both_said(site, "join", join.state)
        return TemporalJoin(parents=parents, how=how, late=join.late, store=store, state=state, **said)
    _check_keeps_nothing(site, join)
    return TableJoin(parents=parents, on=join.on, left=how == "left", **said)


class RowsJoined(NamedTuple):
    """A join with a table of the application's own: whether it is a left one, and the declared serde of the rows."""

    left: bool
    rows: Serde | None


def own_table_join(site: Site, join: JoinArguments) -> RowsJoined:
    """Return how a stream joins a table of the application's own; refuses what only other joins have."""
    if join.on is not None:
        wrong = "on= finds rows of a table that is read, and this one is made here, and joined by the message's key"
        raise refuse(site, wrong, ".partition_by(...) by the table's key on the stream, and no on=")
    how = _how_of_any_table(site, join)
    _check_not_late(site, join)
    return RowsJoined(how == "left", both_said(site, "join", join.state)[1])


def remote_join(stream: Spec, rows: RemoteRows, join: JoinArguments, said: JoinFields) -> RemoteJoin:
    """Return the join of a stream with a remote table; refuses what only other joins have."""
    site = said["site"]
    if join.on is None:
        raise refuse(site, "a remote table is asked for the key that a function says", "on=lambda value: value.id")
    how = _how_of_any_table(site, join)
    _check_keeps_nothing(site, join)
    return RemoteJoin(
        parents=(stream,),
        function=rows.fetch_many,
        rows=rows,
        max_in_flight=rows.max_in_flight,
        timeout_ms=rows.timeout_ms,
        order=rows.order,
        on=join.on,
        left=how == "left",
        **said,
    )


def window_join(
    streams: Sequence[Spec], with_: Callable[..., object], join: WindowJoinArguments, said: OperatorFields
) -> WindowJoin:
    """Return the join of streams by windows; refuses what can't be meant."""
    site = said["site"]
    if len(streams) < 2:
        raise refuse(site, "join_windows([]) has nothing to join with", ".join_windows(other, ...)")
    check_function(site, "join_windows(with_=...)", with_, len(streams))
    if join.how not in HOW_IN_WINDOWS and not (join.how == "right" and len(streams) == 2):
        instead = 'how="inner", "left" or "outer"' + ', or "right"' * (len(streams) == 2)
        raise refuse(site, f"how={join.how!r} is not a join of {len(streams)} streams in windows", instead)
    if hasattr(join.windows, "assign") or isinstance(join.windows, WindowsBy):
        raise refuse(site, "windows that look at values have no one kind of them here", "tumbling(hours=1)")
    kept = sides_said(site, "join_windows", join.state, len(streams))
    by_serde = tuple(None if isinstance(one, Declared) else one for one in kept)
    aggregation = joint(with_, len(streams), join.how, by_serde)
    lateness = ms_said(site, "allowed_lateness_ms", join.allowed_lateness_ms, least=0)
    check_late(site, "join_windows", join.late)
    check_kind(site, join.windows, aggregation, lateness)
    check_emit(site, join.emit)
    return WindowJoin(
        parents=tuple(streams),
        windows=join.windows,
        aggregation=aggregation,
        allowed_lateness_ms=lateness,
        emit=join.emit,
        late=join.late,
        store=check_store(site, join.store),
        **said,
    )


def _how_of_any_table(site: Site, join: JoinArguments) -> Literal["inner", "left"]:
    """Return how a stream joins a table; refuses what is only of other joins."""
    if join.on is not None:
        check_function(site, "join(on=...)", join.on, 1)
    if join.how not in ("inner", "left"):
        raise refuse(site, f"how={join.how!r} is not a join of a stream with a table", 'how="inner" or how="left"')
    for name, said in (("within", join.within is not None), ("keep", join.keep != "all")):
        if said:
            wrong = f"{name}= is of a join of two streams, and a table has a row at any time"
            raise refuse(site, wrong, f"no {name}=, or another stream in the place of the table")
    return join.how


def _check_keeps_nothing(site: Site, join: JoinArguments) -> None:
    _check_not_late(site, join)
    if join.store != DEFAULT:
        raise refuse(site, f"store={join.store!r} is of joins that keep messages; a table has its own", "no store=")
    if join.state is not None:
        wrong = "state= is of joins that keep messages, and a table has the type of its rows"
        raise refuse(site, wrong, "no state=, or value=MyType in app.table(...)")


def _check_not_late(site: Site, join: JoinArguments) -> None:
    if join.late is not None:
        wrong = "late= is of joins in which messages wait, and this table has a row at any time"
        raise refuse(site, wrong, "no late=, or retention_ms= in app.table(...) to join it as of a message's time")
