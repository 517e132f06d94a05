"""Checks the first result of each user function: a coroutine, which nobody would await, ends the run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol, TypeVar

from operators.aggregations.aggregation import Aggregation
from operators.core.base import Spec
from planner.codegen.aggregating import compiled
from planner.codegen.fusion import Segment, bound
from planner.model.errors import refuse
from planner.model.graph import Graph

T = TypeVar("T")


class HasCalls(Protocol):
    """An object that keeps functions of the user under the names in its `calls`."""

    @property
    def calls(self) -> Iterable[str]:
        """The names of the attributes."""


def checked_once(
    spec: Spec, function: Callable[..., T], settle: Callable[[Callable[..., T]], object]
) -> Callable[..., T]:
    """Return a stand-in for `function`, until that has returned something; `settle(function)` then takes it away.

    The stand-in raises PlanError, which no policy settles, where the result is a coroutine.
    """
    is_settled = False

    def call(*arguments: object) -> T:
        nonlocal is_settled
        result = function(*arguments)
        # Who has the stand-in in hand, such as an operator for the rest of a batch, goes on with it.
        if is_settled:
            return result
        # The first result alone is looked at, so that no later call pays for it. A coroutine is a mistake in the
        # program, not in a record: no policy lets it pass.
        if inspect.isawaitable(result) or inspect.isasyncgen(result):
            if inspect.iscoroutine(result):
                # Python would warn of a coroutine that was never awaited, in the midst of our error.
                result.close()
            what = "a coroutine" if inspect.iscoroutine(result) else f"what is to be awaited: {type(result).__name__}"
            wrong = f"{spec.kind}(...) got a function that returns {what}, which nobody would await"
            instead = "an async function" if spec.has_effects else ".async_flat_map(...)"
            raise refuse(spec, wrong, f"a plain function, or {instead}")
        is_settled = True
        settle(function)
        return result

    return call


def check_kept(spec: Spec, holder: HasCalls, inline: bool = False) -> None:
    """Check the first result of each function that `holder` keeps under the names in its `calls`.

    From then on it is called directly or, of an aggregation and where `inline`, written into the code that adds.
    """
    for name in holder.calls:
        kept = getattr(holder, name)
        if isinstance(kept, Aggregation):
            _check_aggregation(spec, holder, name, kept, inline)
        else:
            setattr(holder, name, checked_once(spec, kept, partial(setattr, holder, name)))


def _check_aggregation(
    spec: Spec, holder: object, name: str, aggregation: Aggregation[object, object], inline: bool
) -> None:
    """Give `holder` an aggregation of checked functions, and another one whenever one of these is settled."""
    settled: list[Callable[..., object]] = []

    def ready(function: Callable[..., T]) -> Callable[..., T]:
        return function if any(one is function for one in settled) else checked_once(spec, function, settle)

    def settle(function: Callable[..., object]) -> None:
        # Known already where another stand-in for it was in hand: what is made anew is written anew, at no little cost.
        if any(one is function for one in settled):
            return
        settled.append(function)
        made = aggregation.made_of(ready)
        setattr(holder, name, compiled(made) if inline else made)

    setattr(holder, name, aggregation.made_of(ready))


def check_fused(segment: Segment, graph: Graph) -> None:
    """Make a fused function check the first result of each user function in it, which it then calls directly."""
    namespace = segment.__globals__
    for id, spec in graph.specs.items():
        is_fused = spec.source or spec.rekeys or spec.code is not None or spec.keyed_code is not None
        for name in spec.functions() if is_fused else ():
            variable = bound(id, name)
            if callable(namespace.get(variable)):
                settle = partial(namespace.__setitem__, variable)
                namespace[variable] = checked_once(spec, namespace[variable], settle)
