"""Lowers the filters and folds of an input to operations on Parquet columns, and says why the rest stays as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from operators.aggregations.aggregation import Aggregation
from operators.core.base import Spec
from operators.core.policies import Fail
from operators.io import Input
from operators.partition_by import PartitionBy
from operators.stateless import Filter
from operators.windows.window import Window
from operators.windows.window_types import Hopping, Sessions, Tumbling
from planner.columnar.projection import one_way
from planner.columnar.terms import NotColumnar, Term, columns_of, condition_of, names_in, term_of
from planner.model.graph import Graph

EXACT = dict.fromkeys(("total", "mean"), ("int", "float")) | dict.fromkeys(
    ("maximum", "minimum"), ("int", "float", "str")
)
"""The types of which aggregations come to the very same in any order and grouping."""


class Measure(NamedTuple):
    """A part of an aggregation: its kind, and the term that it aggregates."""

    kind: str
    of: Term | None = None


class Lowered(NamedTuple):
    """The way from an input to the shuffle: event time, filters by id, the key, the windows, and what is folded."""

    entry: str
    exit: str
    timestamp: Term
    filters: tuple[tuple[str, Term], ...]
    key: Term
    window: Window
    step_ms: int
    measures: tuple[Measure, ...]
    columns: tuple[Term, ...]
    """The columns of all fields of a record, whether anything looks at them or not."""

    @property
    def needed(self) -> list[str]:
        """The names of the columns that any term reads."""
        terms = [self.timestamp, self.key, *(term for _, term in self.filters)]
        terms += [one.of for one in self.measures if one.of is not None]
        return sorted({name for term in terms for name in names_in(term)})


class ColumnStart(NamedTuple):
    """The way of an input as far as columns go: its event time, and filters by id; what is left becomes records."""

    entry: str
    timestamp: Term | None
    filters: tuple[tuple[str, Term], ...]
    columns: tuple[Term, ...]
    """The columns of all fields of a record."""

    @property
    def needed(self) -> list[str]:
        """The names of all columns: records are made of them."""
        return sorted(str(one.parts[0]) for one in self.columns)


def prepared(graph: Graph, entry: str, kind: object) -> ColumnStart:
    """Return what comes first behind an input as operations on columns of a `kind` of records; raises NotColumnar.

    Whatever comes then is run on the records that are left.
    """
    source = graph.inputs[entry]
    if source.looked_into:
        raise NotColumnar("it is a table, of which each task keeps the rows")
    if source.watermark_of is not None:
        raise NotColumnar("it has a watermark= of its own, which is called for each record")
    if source.max_ahead_ms is not None or source.unit not in (None, "ms"):
        raise NotColumnar("it has a max_ahead_ms= or unit=, for which each record's time is looked at")
    columns = columns_of(kind)
    at = None if source.timestamp_of is None else term_of(source.timestamp_of, columns, ("int",))
    filters: list[tuple[str, Term]] = []
    id = entry
    # Keys are read of all records before a filter drops any: one whose key can't be read is skipped, or a dead letter.
    may_drop = source.key_of is None or _fails(source)
    while may_drop and len(children := graph.children(id)) == 1 and graph.streams_into(children[0]) == [id]:
        (id,) = children
        found = graph.of(Filter).get(id)
        if found is None or not _fails(found):
            break
        try:
            filters.append((id, condition_of(found.function, columns)))
        except NotColumnar:
            break
    if at is None and not filters:
        raise NotColumnar("it has no timestamp=, and no filter comes first")
    return ColumnStart(entry, at, tuple(filters), tuple(columns.values()))


def _fails(spec: Spec) -> bool:
    return spec.on_error is None or isinstance(spec.on_error, Fail)


def lowered(graph: Graph, entry: str, kind: object) -> Lowered:
    """Return what an input feeds as operations on columns of a `kind` of records; raises NotColumnar.

    The graph is one in which repartitionings fold.
    """
    source = graph.inputs[entry]
    if source.timestamp_of is None or source.watermark_of is not None or source.key_of is not None:
        raise NotColumnar("event time must come of timestamp= alone, and keys of partition_by")
    if source.unit not in (None, "ms"):
        raise NotColumnar(f"its times are in another unit than ms: unit={source.unit!r}")
    columns = columns_of(kind)
    filters, exit = _run_of_filters(graph, entry)
    spec = graph.of(PartitionBy)[exit]
    assert spec.combines is not None and spec.key_of is not None, "what folds gives messages their keys"
    return Lowered(
        entry,
        exit,
        term_of(source.timestamp_of, columns, ("int",)),
        tuple((one.op_id or "", condition_of(one.function, columns)) for one in filters),
        term_of(spec.key_of, columns, ("int", "str")),
        spec.combines,
        _step_ms(spec.combines),
        tuple(_measure(part, columns) for part in parts_of(spec.combines.aggregation)),
        tuple(columns.values()),
    )


def event_time_column(spec: Input, columns: Mapping[str, str]) -> str | None:
    """Return the column that event time is read off as it is, of these by field; None where it is made otherwise."""
    if spec.timestamp_of is None:
        return None
    try:
        found = term_of(
            spec.timestamp_of, {name: Term("column", (one,), "int") for name, one in columns.items()}, ("int",)
        )
    except NotColumnar:
        return None
    return str(found.parts[0]) if found.op == "column" else None


def _run_of_filters(graph: Graph, entry: str) -> tuple[list[Filter], str]:
    """Return the filters between an input and the repartitioning that folds, which must be all there is."""
    filters: list[Filter] = []
    for id in one_way(graph, entry):
        if id in graph.of(PartitionBy):
            if graph.of(PartitionBy)[id].combines is None:
                raise NotColumnar(f"{id} sends messages one by one")
            return filters, id
        if id not in graph.of(Filter):
            raise NotColumnar(f"{id} is no filter, nor a partition_by that windows are behind")
        filters.append(graph.of(Filter)[id])
    raise NotColumnar(f"nothing is behind {entry} but filters")


def _step_ms(window: Window) -> int:
    """Return the ms of the stretches of time whose values all lie in the same windows; of sessions the gap."""
    windows = window.windows
    if isinstance(windows, Tumbling):
        return windows.size_ms
    if isinstance(windows, Sessions):
        return windows.gap_ms
    if isinstance(windows, Hopping) and windows.size_ms % windows.every_ms == 0:
        return windows.every_ms
    raise NotColumnar(f"{windows}: only sessions, and windows that begin every so many ms, are found by arithmetic")


def parts_of(aggregation: Aggregation[Any, Any]) -> tuple[Aggregation[Any, Any], ...]:
    """Return the aggregations side by side in one, or itself alone."""
    return aggregation.parts or (aggregation,)


def _measure(part: Aggregation[object, object], columns: dict[str, Term]) -> Measure:
    if part.counts:
        return Measure("count")
    if part.name not in EXACT or part.of is None:
        raise NotColumnar(f"{part} is none of count, {', '.join(EXACT)}")
    return Measure(part.name, term_of(part.of, columns, EXACT[part.name]))
