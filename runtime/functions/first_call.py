"""Checks the first result of each user function: a coroutine, or one value in the place of several, ends the run."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol, TypeVar

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


SEVERAL = frozenset({"flat_map", "on_message", "on_timer", "on_alarm"})
"""The names of functions that return any number of messages."""


def checked_once(
    spec: Spec, function: Callable[..., T], settle: Callable[[Callable[..., T]], object], name: str = ""
) -> Callable[..., T]:
    """Return a stand-in for `function`, until that has returned something; `settle(function)` then takes it away.

    The stand-in raises PlanError, which no policy settles, where the result is a coroutine, or is one text or dict
    where the name of the function says that it returns several messages.
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
        if name in SEVERAL and (parts := parts_of(result)):
            wrong = f"{spec.kind}(...) got a function that returns one {parts} would go on, and not itself"
            raise refuse(spec, wrong, "[value], a list of all that goes on; or list(value), where these are meant")
        is_settled = True
        settle(function)
        return result

    return call


def parts_of(result: object) -> str:
    """Return the words for a result of which parts would go on as messages, where nobody means that; "" for others.

    >>> parts_of({"a": 1}), parts_of(["a"])
    ('dict, of which only the keys', '')
    """
    if isinstance(result, dict):
        return f"{type(result).__name__}, of which only the keys"
    return f"{type(result).__name__}, of which each letter" if isinstance(result, str | bytes | bytearray) else ""


class CheckedAggregations:
    """The aggregations that operators keep, each checked once for all operators that keep the very same.

    A function whose first result is known is called directly from then on or, where `inline`, written into the code
    that adds. That is written anew each time, at no little cost, and each operator is then given it.
    """

    def __init__(self, inline: bool) -> None:
        self._inline = inline
        self._known: list[tuple[Aggregation[Any, Any], CheckedAggregation]] = []

    def of(self, spec: Spec, aggregation: Aggregation[Any, Any]) -> CheckedAggregation:
        """Return the checked form of an aggregation."""
        for known, checked in self._known:
            if known is aggregation:
                return checked
        checked = CheckedAggregation(spec, aggregation, self._inline)
        self._known.append((aggregation, checked))
        return checked


class CheckedAggregation:
    """An aggregation of checked functions, and who is given another one whenever one of these is settled."""

    def __init__(self, spec: Spec, aggregation: Aggregation[Any, Any], inline: bool) -> None:
        self._spec = spec
        self._aggregation = aggregation
        self._inline = inline
        self._settled: list[Callable[..., object]] = []
        # Weak, as a task may leave its container while others stay.
        self._holders: list[tuple[weakref.ref[object], str]] = []
        self._made = aggregation.made_of(self._ready)

    def keep(self, holder: object, name: str) -> None:
        """Let an object keep it under a name."""
        self._holders.append((weakref.ref(holder), name))
        setattr(holder, name, self._made)

    def _ready(self, function: Callable[..., T]) -> Callable[..., T]:
        return function if self._is_settled(function) else checked_once(self._spec, function, self._settle)

    def _is_settled(self, function: Callable[..., object]) -> bool:
        return any(one is function for one in self._settled)

    def _settle(self, function: Callable[..., object]) -> None:
        # Known already where another stand-in for it was in hand.
        if self._is_settled(function):
            return
        self._settled.append(function)
        made = self._aggregation.made_of(self._ready)
        self._made = compiled(made) if self._inline else made
        for reference, name in self._holders:
            if (holder := reference()) is not None:
                setattr(holder, name, self._made)


def check_kept(spec: Spec, holder: HasCalls, aggregations: CheckedAggregations) -> None:
    """Check the first result of each function that `holder` keeps under the names in its `calls`."""
    for name in holder.calls:
        kept = getattr(holder, name)
        if isinstance(kept, Aggregation):
            aggregations.of(spec, kept).keep(holder, name)
        else:
            setattr(holder, name, checked_once(spec, kept, partial(setattr, holder, name), name))


def check_fused(segment: Segment, graph: Graph) -> None:
    """Make a fused function check the first result of each user function in it, which it then calls directly."""
    namespace = segment.__globals__
    for id, spec in graph.specs.items():
        is_fused = spec.source or spec.rekeys or spec.code is not None or spec.keyed_code is not None
        for name in spec.functions() if is_fused else ():
            variable = bound(id, name)
            if callable(namespace.get(variable)):
                settle = partial(namespace.__setitem__, variable)
                namespace[variable] = checked_once(spec, namespace[variable], settle, name)
