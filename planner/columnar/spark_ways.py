"""Tells of each operator of a plan how Spark runs it, from computed on columns to row by row, and why not better."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import inspect

from operators.io import Input
from operators.partition_by import PartitionBy
from operators.stateless import Filter, Map
from operators.windows.window import Window
from planner.checks.ordering import ordered_by_arrival
from planner.codegen import explanation
from planner.columnar.combining import why_not_combined
from planner.columnar.lowering import event_time_column, lowered, prepared
from planner.columnar.projection import one_way, reshaped
from planner.columnar.terms import NotColumnar
from planner.model.graph import Graph
from planner.model.plan import Plan

WAYS = ("native", "folded", "compiled", "called", "row by row")
"""The first word of what is told, from what costs least to what costs most."""
GROUPS = "compiled: it groups"
LOOP = "folded: it is in the loop that groups values"


def spark_ways(plan: Plan, graph: Graph, kinds: Mapping[str, object], wrapped: bool = False) -> dict[str, str]:
    """Return how each operator runs on Spark, where inputs and outputs that can be are bound to Parquet.

    The plan is that of a graph in which repartitionings fold; `kinds` are the records of its inputs.
    """
    found = {id: _as_live(graph, id, words) for id, words in explanation.ways(plan, graph, wrapped)}
    segments = (segment for stage in plan.stages for segment in stage.segments if segment.folding)
    grouping = {segment.entry: [exit.id for exit in segment.exits] for segment in segments}
    for id, spec in graph.of(PartitionBy).items():
        why = why_not_combined(graph, id)
        if spec.combines is not None:
            found[id] = "folded: a task sends what its values come to, and not each"
        else:
            found[id] = f"{found.get(id, 'compiled')}; it sends messages one by one: {why}"
    for id, kind in kinds.items():
        # app.wrap(...) sees each call of a function, and on columns none is called.
        if wrapped:
            found[id] = f"row by row: {explanation.WRAPPED}"
        else:
            loop = {one for exit in grouping.get(id, ()) for one in graph.above(exit) & graph.below(id)}
            found |= dict.fromkeys((one for one in loop if found.get(one) == "compiled"), LOOP)
            found |= _of_input(graph, id, kind, found.get(id, "compiled"), id in grouping)
    return {id: found[id] for stage in plan.stages for id in stage.operators if id in found}


def _as_live(graph: Graph, id: str, words: str) -> str:
    window = graph.of(Window).get(id)
    if window is not None and window.takes_partials:
        return "folded: it merges what was folded before the shuffle"
    return f"folded: it groups{words.removeprefix(GROUPS)}" if words.startswith(GROUPS) else words


def _of_input(graph: Graph, id: str, kind: object, words: str, grouping: bool) -> Iterator[tuple[str, str]]:
    """Yield how an input runs, and what behind it is computed on columns."""
    bound = "native where it is bound to Parquet"
    try:
        if any(graph.specs[one].rekeys for one in graph.below(id)):
            exit = lowered(graph, id, kind).exit
            yield from (
                (one, f"{bound}: columns are read, filtered and folded") for one in (id, *_up_to(graph, id, exit))
            )
            return
        output = reshaped(graph, id, kind).stream
        native = f"native where it and {output} are bound to Parquet: columns are read, filtered, mapped and written"
        yield from (
            (one, native) for one in (id, *one_way(graph, id)) if one in {id, *graph.of(Filter), *graph.of(Map)}
        )
        return
    except NotColumnar as error:
        why = str(error)
    if grouping:
        yield id, f"folded: one loop reads times and groups values; no columns: {why}"
        return
    try:
        begun = prepared(graph, id, kind)
    except NotColumnar as error:
        alone = "" if str(error) == why else f"; and of times and filters alone: {error}"
        yield id, f"{words if words.startswith('called') else 'row by row'}; no columns: {why}{alone}"
        return
    yield id, f"{bound}: times and filters are read off columns, and the rest is run on records: {why}"
    yield from ((one, f"{bound}: it is computed on columns") for one, _ in begun.filters)


def _up_to(graph: Graph, entry: str, exit: str) -> Iterator[str]:
    for id in one_way(graph, entry):
        yield id
        if id == exit:
            return


def to_text(plan: Plan, graph: Graph, kinds: Mapping[str, object], wrapped: bool = False) -> str:
    """Return as text how each operator of each stage runs on Spark, and in which order messages come to it."""
    told = spark_ways(plan, graph, kinds, wrapped)
    width = max(map(len, told), default=0)
    lines = ["on Spark"]
    for stage in plan.stages:
        lines += [f"  {stage.id}", *(f"    {id:<{width}}  {told[id]}" for id in stage.operators if id in told)]
    lines.append("  partitions and order of what is bound")
    lines += [f"    {id:<{width}}  {order_to_text(graph.inputs[id], kind)}" for id, kind in kinds.items()]
    if found := ordered_by_arrival(plan):
        lines.append("  by the order in which several tasks, or sides, write: by event time, block by block")
        lines += [f"    {one.id:<{width}}  {one.by_order}" for one in found]
    return "\n".join(lines)


def order_to_text(spec: Input, kind: object) -> str:
    """Return as text what the partitions of an input are on Spark, and their order."""
    fields = getattr(inspect.type_info(kind), "fields", ())
    at = event_time_column(spec, {field.name: field.encode_name for field in fields})
    order = f"in the order of {at}" if at is not None else "in Spark's order: say SparkTable(..., order_by=...)"
    return f"of files each is a partition; of a table _partition and _offset say it, else each that Spark has, {order}"
