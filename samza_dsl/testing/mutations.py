"""A look at the values that functions are given in tests: one that is changed in place is told with its operator."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any

from operators.aggregations.aggregation import Aggregation
from operators.core.base import Spec
from operators.core.wording import shown
from planner.model.errors import PlanError, refuse
from planner.model.graph import Graph
from runtime.encoding.ownership import are_unchangeable
from runtime.encoding.serdes import Tagged
from samza_dsl.fluent.checks import is_coroutine_function

AS_THEY_ARE = ("merge",)
"""The kinds that hand on the very messages that come to them, though no code of theirs says so."""
MESSAGES = {
    **dict.fromkeys(("on_message", "on_timer", "on_alarm", "async_flat_map", "process", "window"), range(1)),
    "step": range(1, 2),
    "emit": range(0),
}
"""The places of the arguments that are messages, by the function's name: others are a step's state, or its context."""
MAKERS = ("map", "flat_map", "process", "async_flat_map")
ONE_EACH = ("map",)
"""The kinds whose functions make messages, and which return one each."""
REMEMBERED = 1_000
"""The results of an operator of which it is known how they were when they were handed on."""
ANOTHER = "return another object, as {**value, ...}, [*value, ...] or msgspec.structs.replace(value, ...)"
A_COPY = "return a copy, as dict(context.state), list(...) or copy.deepcopy(...)"
_encode, _decode = Tagged().encode, Tagged().decode

Mark = bytes | None
"""The bytes of a value; None where it can't be changed, or has no bytes."""


class Mutations:
    """Wraps the functions of an application, and looks at their values before and after each call.

    A message is the object that a function has returned, and others have it too: another branch, a join's other side,
    a window that keeps it, and the next try where a record behind it fails. What changes one raises PlanError, which no
    policy takes. State is its operator's own. Values without bytes are not looked at.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._results: dict[str, dict[int, tuple[object, Mark]]] = {}
        """The newest results by operator and identity, where somebody below keeps them as they are."""
        self._around: dict[tuple[int, str], tuple[object, list[Callable[..., object]]]] = {}

    def around(self, function: Callable[..., Any], operator: str) -> Callable[..., object]:
        """Return a function that does the same, and raises where it changes a value that it is given."""
        if isinstance(function, type | BuiltinFunctionType | MethodDescriptorType):
            return function
        # One for all tasks, which share the code that calls it. The function is held, so that no other has its id.
        known = self._around.setdefault((id(function), operator), (function, []))[1]
        if not known:
            known.append(self._watching(function, self._graph.specs[operator]))
        return known[0]

    def _watching(self, function: Callable[..., Any], spec: Spec) -> Callable[..., object]:
        places = _looked_at(spec, function)

        def marks(arguments: tuple[object, ...]) -> dict[int, bytes]:
            found = ((place, mark_of(arguments[place])) for place in places if place < len(arguments))
            return {place: mark for place, mark in found if mark is not None}

        def check(arguments: tuple[object, ...], before: Mapping[int, bytes]) -> None:
            for place, mark in before.items():
                if mark_of(arguments[place]) != mark:
                    raise _changed(
                        spec, "its function changes in place what it is given", mark, arguments[place], ANOTHER
                    )

        @functools.wraps(function)
        def called(*arguments: Any) -> object:
            before = marks(arguments)
            try:
                result = function(*arguments)
            except Exception:
                check(arguments, before)
                raise
            if spec.asynchronous and inspect.isawaitable(result):
                looked_at = awaited(result, arguments, before)
                if inspect.iscoroutine(result):
                    # Who refuses a coroutine closes the one that it sees, of which this one would know nothing.
                    weakref.finalize(looked_at, result.close)
                return looked_at
            if inspect.isgenerator(result):
                return generated(result, arguments, before)
            check(arguments, before)
            return self._noted(spec, result)

        async def awaited(result: Any, arguments: tuple[object, ...], before: Mapping[int, bytes]) -> object:
            try:
                found = await result
            except Exception:
                check(arguments, before)
                raise
            check(arguments, before)
            return self._noted(spec, found)

        def generated(
            results: Iterator[Any], arguments: tuple[object, ...], before: Mapping[int, bytes]
        ) -> Iterator[Any]:
            try:
                for result in results:
                    self._noted(spec, [result])
                    yield result
            except Exception:
                check(arguments, before)
                raise
            check(arguments, before)

        @functools.wraps(function)
        async def called_async(*arguments: Any) -> object:
            before = marks(arguments)
            return await awaited(function(*arguments), arguments, before)

        return called_async if is_coroutine_function(function) else called

    def _noted(self, spec: Spec, result: Any) -> Any:
        """Take note of results that are kept below as they are; raises where one was handed on before, and changed."""
        assert spec.op_id is not None
        known = self._results.get(spec.op_id)
        if known is None:
            known = self._results[spec.op_id] = {}
            if not self._are_kept(spec.op_id):
                known[0] = (None, None)
        if 0 in known:
            return result
        for one in result if isinstance(result, list | tuple) and spec.kind not in ONE_EACH else (result,):
            mark = mark_of(one)
            if mark is None:
                continue
            _, before = known.get(id(one), (None, None))
            if before is not None and before != mark:
                raise _changed(spec, "it hands on an object again, changed since it did before", before, one, A_COPY)
            # The object is held, so that no other has its id meanwhile.
            known[id(one)] = one, mark
            if len(known) > REMEMBERED:
                del known[next(iter(known))]
        return result

    def _are_kept(self, id: str) -> bool:
        """Whether what an operator hands on is kept below as it is, where a function of its own makes the messages."""
        if self._graph.specs[id].kind not in MAKERS:
            return False
        todo = [*self._graph.children(id)]
        while todo:
            spec = self._graph.specs[todo.pop()]
            if spec.stateful or spec.asynchronous or spec.repartitions:
                return True
            if spec.keeps_values or spec.kind in AS_THEY_ARE:
                todo += self._graph.children(spec.op_id or "")
        return False


def mark_of(value: object) -> Mark:
    """Return the bytes of a value that can be changed; None of any other, and of one that has none."""
    try:
        return None if are_unchangeable([value]) else _encode(value)
    except Exception:
        return None


def _looked_at(spec: Spec, function: Callable[..., Any]) -> range:
    """Return the places of the arguments that are messages, and not the operator's own state or its context."""
    for name, thing in spec.functions().items():
        if name in MESSAGES and _is_the_same(function, thing):
            return MESSAGES[name]
        if isinstance(thing, Aggregation):
            own = [leaf.functions for leaf in thing.leaves() if leaf.keeps == "the user's" or leaf.remake is None]
            if any(_is_the_same(function, one) for functions in own for one in functions):
                return MESSAGES["step"]
    return range(3)


def _is_the_same(function: Callable[..., Any], other: object) -> bool:
    """Whether a function is another, or the copy of it that a task has."""
    return function is other or (not inspect.isroutine(function) and type(function) is type(other))


def _changed(spec: Spec, wrong: str, before: bytes, now: object, instead: str) -> PlanError:
    others = "what keeps it below, another branch and the next try have it too"
    return refuse(spec, f"{wrong}, {_shown(_decode(before))} to {_shown(now)}; {others}", instead)


def _shown(value: object) -> str:
    text = shown(value)
    return text if len(text) <= 100 else f"{text[:100]}..."
