"""Folds before a shuffle what the windows behind it fold, where the results are the same; says why not elsewhere."""

from __future__ import annotations

import inspect
from dataclasses import replace

from operators.core.base import Spec
from operators.core.policies import DeadLetterPolicy, Fail
from operators.partition_by import ByFunction, PartitionBy
from operators.windows.window import Window
from planner.model.graph import Graph


def combined(graph: Graph, goes_on: bool = False) -> Graph:
    """Return the graph in which every repartitioning folds for the windows behind it, where results are the same.

    Where a run `goes_on`, event time may go on without an input that is idle.
    """
    specs = dict(graph.specs)
    for id, spec in graph.of(PartitionBy).items():
        if why_not_combined(graph, id, goes_on) is None:
            (child,) = graph.children(id)
            window = graph.of(Window)[child]
            specs[id] = replace(spec, value=None, combines=window)
            specs[child] = replace(window, takes_partials=True)
    return replace(graph, specs=specs)


def why_not_combined(graph: Graph, id: str, goes_on: bool = False) -> str | None:
    """Return the reason why the messages of a repartitioning go on one by one; None where they are folded before.

    Late is what is late where it enters, so a window may be folded part by part, in any order, where what its parts
    come to can be merged, and where nobody is told of single values.
    """
    children = graph.children(id)
    window = graph.of(Window).get(children[0]) if children else None
    if window is None or len(children) > 1:
        return "more reads it than one window"
    if goes_on and window.is_of_sessions:
        # Which values of a stretch are late then can't be told of the stretch, as it can of a window that lies fixed.
        return "in a run that goes on, an idle input's values may be late one by one"
    return _why_not(graph.of(PartitionBy)[id], window)


def _why_not(spec: PartitionBy, window: Window) -> str | None:
    aggregation, late_fires = window.aggregation, window.fires_late
    if window.fold is None and not window.takes_all and not window.is_of_sessions:
        fits = "windows that lie fixed, take all, or are sessions, and fire at their end"
        return f"{window.describe()}: only {fits}, are folded in parts"
    # That a `fold` has merge= is not enough: each of two accumulators may have begun with something that counts.
    if not aggregation.combines:
        return f"what parts of the values come to in {aggregation} is not known to merge into what all come to"
    if late_fires and not aggregation.counts:
        return "values that come late are kept by themselves"
    if isinstance(window.late, DeadLetterPolicy) or not _fails(window):
        return f"{window.op_id} tells of single values that are late, or fail"
    if not spec.rekeys:
        return "messages go by the keys that they have"
    # It is asked with each message, and a folded row has many.
    if isinstance(spec.by, ByFunction):
        return "a function of yours chooses the partition of each message"
    if any(not inspect.isroutine(function) for function in aggregation.functions):
        return f"{aggregation} has an object of yours, which is opened where the window is"
    return None


def _fails(spec: Spec) -> bool:
    return spec.on_error is None or isinstance(spec.on_error, Fail)
