"""Folding before a shuffle what windows behind it fold: where that is the same, and why it is not where it isn't."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from operators.aggregations import Aggregation
from operators.base import Spec
from operators.partition_by import ByFunction, PartitionBy
from operators.policies import DeadLetter, Fail
from operators.window import Window
from planner.graph import Graph


def combined(graph: Graph) -> Graph:
    """Return the graph in which every repartitioning folds for the windows behind it, where that is the same."""
    specs = dict(graph.specs)
    for id, spec in graph.specs.items():
        if isinstance(spec, PartitionBy) and why_not_combined(graph, id) is None:
            (child,) = graph.children(id)
            window = graph.specs[child]
            assert isinstance(window, Window)
            specs[id] = replace(spec, value=None, combines=window)
            specs[child] = replace(window, takes_partials=True)
    return replace(graph, specs=specs)


def why_not_combined(graph: Graph, id: str) -> str | None:
    """Return why the messages of a repartitioning go on one by one; None where they are folded before.

    Late is what is late where it enters, so a window may be folded part by part, in any order, where what its parts
    come to can be merged, and where nobody is told of single values.
    """
    children = graph.children(id)
    spec, window = graph.specs[id], graph.specs[children[0]] if children else None
    assert isinstance(spec, PartitionBy)
    if not isinstance(window, Window) or len(children) > 1:
        return "more reads it than one window"
    return _why_not(spec, window)


def _why_not(spec: PartitionBy, window: Window) -> str | None:
    aggregation, late_fires = window.aggregation, window.allowed_lateness_ms > window.waits_ms
    if window.fold is None and not window.takes_all:
        fits = "windows that lie fixed, or take all, and fire at their end"
        return f"{window.describe()}: only {fits}, are folded in parts"
    if not aggregation.combines:
        return f"what parts of the values come to in {aggregation} is not known to merge into what all come to"
    if late_fires and not aggregation.counts:
        return "values that come late are kept by themselves"
    if isinstance(window.late, DeadLetter) or not _fails(window):
        return f"{window.op_id} tells of single values that are late, or fail"
    if isinstance(spec.by, ByFunction):
        return "a function of yours chooses the partition of each message"
    if any(not inspect.isroutine(function) for function in _functions(aggregation)):
        return f"{aggregation} has an object of yours, which is opened where the window is"
    return None


def _fails(spec: Spec) -> bool:
    return spec.on_error is None or isinstance(spec.on_error, Fail)


def _functions(aggregation: Aggregation[Any, Any]) -> list[Callable[..., Any]]:
    """Return the user's functions in an aggregation."""
    found: list[Callable[..., Any]] = []

    def seen(function: Callable[..., Any]) -> Callable[..., Any]:
        found.append(function)
        return function

    aggregation.made_of(seen)
    return found
