"""The keyword arguments that methods of streams and tables have in common, as their overloads name them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypedDict

from operators.core.base import Serde, Site
from operators.core.durations import Duration
from operators.core.policies import DeadLetterPolicy, Policy
from operators.joins.asof_join import Direction
from operators.joins.interval_join import Keep
from operators.windows.window import Emit
from runtime.stores.registry import StoreName
from samza_dsl.fluent.pace import Pace

Kept = Literal["lmdb", "memory"] | StoreName
"""The kind of store that state is kept in; other kinds are registered in `runtime.stores.registry`."""
Compression = Literal["zlib", "zstd"]
"""The compression of a stream's stored records."""
Sides = tuple[type[object] | Serde | None, type[object] | Serde | None] | None
"""The types of the values that a join keeps of either side, or the serdes that store them."""
Bounds = tuple[Duration, Duration]
"""The bounds of a join in ms: from how long before a record to how long after it."""


class OperatorOptions(TypedDict, total=False):
    """The options of any operator."""

    on_error: Policy
    op_id: str | None


class StoreOptions(OperatorOptions, total=False):
    """The options of an operator with a store."""

    store: Kept


class ProcessOptions(StoreOptions, total=False):
    """The options of a `process` with any state; lengths of time in ms."""

    ttl_ms: Duration | None


class AsyncOptions(OperatorOptions, total=False):
    """The options of an operator that awaits calls; lengths of time in ms."""

    max_in_flight: int
    timeout_ms: Duration


class JoinOptions(StoreOptions, total=False):
    """The options of a join that keeps values of both sides."""

    state: Sides


class StreamJoinOptions(JoinOptions, total=False):
    """The options of a join in which messages wait, and may come late."""

    late: DeadLetterPolicy | None


class IntervalJoinOptions(StreamJoinOptions, total=False):
    """The options of a join of two streams by time."""

    keep: Keep


class AsofJoinOptions(StreamJoinOptions, total=False):
    """The options of a join with the nearest message of another stream."""

    direction: Direction
    tolerance: Duration | None


class WindowJoinOptions(StoreOptions, total=False):
    """The options of a join of streams by windows; lengths of time in ms."""

    allowed_lateness_ms: Duration
    emit: Emit
    late: DeadLetterPolicy | None
    state: Sequence[type[object] | Serde | None] | None


class OperatorFields(TypedDict):
    """The fields of every spec that the user says."""

    site: Site
    on_error: Policy
    op_id: str | None


class JoinFields(OperatorFields):
    """The fields of every join."""

    with_: Callable[..., object]


class InputOptions(Pace, total=False):
    """The options of an input, whatever its key; lengths of time in ms."""

    max_disorder_ms: Duration
    partitions: int | None
    priority: int
    on_error: Policy


class TableOptions(Pace, total=False):
    """The options of a table, whatever its key; lengths of time in ms."""

    broadcast: bool
    partitions: int | None
    max_disorder_ms: Duration
    retention_ms: Duration | None
    on_error: Policy


class OutputOptions(TypedDict, total=False):
    """The options of an output, whatever its values; lengths of time in ms."""

    key: type[object] | Serde | None
    partitions: int | None
    retention_ms: Duration | None
    retention_bytes: int | None
    compression: Compression | None
