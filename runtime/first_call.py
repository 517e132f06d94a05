"""What only a call can tell of a user's function: that it returns a coroutine, which nobody would await."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from operators.aggregations import Aggregation
from operators.base import Spec
from planner.errors import refuse
from planner.fuse import Segment, bound
from planner.graph import Graph


def checked_once(spec: Spec, function: Callable[..., Any], settle: Callable[[Callable[..., Any]], object]) -> Any:
    """Return what stands for `function` until it has returned something; then `settle(function)` takes it away.

    It raises PlanError, which no policy settles, where that is a coroutine.
    """

    def call(*arguments: Any) -> Any:
        result = function(*arguments)
        if inspect.isawaitable(result) or inspect.isasyncgen(result):
            if inspect.iscoroutine(result):
                result.close()
            what = "a coroutine" if inspect.iscoroutine(result) else f"what is to be awaited: {type(result).__name__}"
            wrong = f"{spec.kind}(...) got a function that returns {what}, which nobody would await"
            instead = "an async function" if spec.kind in ("sink", "task") else ".async_flat_map(...)"
            raise refuse(spec, wrong, f"a plain function, or {instead}")
        settle(function)
        return result

    return call


def check_kept(spec: Spec, holder: Any) -> None:
    """Have the first result of each function that `holder` keeps, under the names in its `calls`, checked.

    It is then called directly.
    """
    for name in holder.calls:
        kept = getattr(holder, name)
        if isinstance(kept, Aggregation):
            _check_aggregation(spec, holder, name, kept)
        else:
            setattr(holder, name, checked_once(spec, kept, partial(setattr, holder, name)))


def _check_aggregation(spec: Spec, holder: Any, name: str, aggregation: Aggregation[Any, Any]) -> None:
    """Have `holder` keep an aggregation of checked functions, and another one whenever one of these is settled."""
    settled: list[Callable[..., Any]] = []

    def ready(function: Callable[..., Any]) -> Any:
        return function if any(one is function for one in settled) else checked_once(spec, function, settle)

    def settle(function: Callable[..., Any]) -> None:
        settled.append(function)
        setattr(holder, name, aggregation.made_of(ready))

    setattr(holder, name, aggregation.made_of(ready))


def check_fused(segment: Segment, graph: Graph) -> None:
    """Have a fused function check the first result of each user function in it, which it then calls directly."""
    namespace = segment.__globals__
    for id, spec in graph.specs.items():
        is_fused = spec.source or spec.rekeys or spec.code is not None or spec.keyed_code is not None
        for name in spec.functions() if is_fused else ():
            variable = bound(id, name)
            if callable(namespace.get(variable)):
                settle = partial(namespace.__setitem__, variable)
                namespace[variable] = checked_once(spec, namespace[variable], settle)
