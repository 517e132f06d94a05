"""The users' functions of one task: objects are copied, opened and closed for it, and all are wrapped."""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from operators.aggregations.aggregation import Aggregation
from operators.core.base import Context, Spec
from operators.core.wording import words_of
from runtime.functions.at_work import no_owners
from runtime.functions.failures import life_error
from runtime.functions.user_lines import OPERATOR, TASK
from runtime.model.errors import SamzaError

T = TypeVar("T")
Around = Callable[[Callable[..., object], str], Callable[..., object]]


class Functions:
    """All user functions of one task, by operator and name; opened and closed in the event loop that calls them."""

    def __init__(
        self, app: str, task: int, specs: Iterable[Spec], around: Sequence[Around], data: Path | None = None
    ) -> None:
        self.contexts: dict[str, Context] = {}
        self.by_operator: dict[str, dict[str, Any]] = {}
        self._made: list[tuple[Callable[..., object], Spec, Context]] = []
        self._opened: list[tuple[Any, Spec, Context]] = []
        for spec in specs:
            assert spec.op_id is not None
            self.contexts[spec.op_id] = Context(app, spec.op_id, task, data=data)
            self.by_operator[spec.op_id] = {
                name: self._ready(thing, spec, name, around) for name, thing in spec.functions().items()
            }

    async def open(self) -> None:
        """Open the users' objects, in the event loop that will call them."""
        for thing, spec, context in self._made:
            if hasattr(thing, "open"):
                try:
                    await _done(context, thing.open, context)
                except Exception as error:
                    raise life_error(spec, inspect.unwrap(thing), error, "open(context)") from error
            self._opened.append((thing, spec, context))

    async def close(self) -> None:
        """Close what was opened, the last first, all of it even when some fail; raises the first failure."""
        failures: list[BaseException] = []
        # Taken out before it is closed: a second close, as after a failure, must not close it twice.
        while self._opened:
            thing, spec, context = self._opened.pop()
            try:
                if hasattr(thing, "close"):
                    await _done(context, thing.close)
            except asyncio.CancelledError as error:
                failures.append(error)
            except Exception as error:
                failures.append(life_error(spec, inspect.unwrap(thing), error, "close()"))
        if failures:
            raise failures[0]

    def _ready(self, thing: Any, spec: Spec, name: str, around: Sequence[Around]) -> object:
        operator, context = spec.owner_of(name), self.contexts[spec.op_id or ""]
        if isinstance(thing, Aggregation):
            # The very same where nothing in it is of this task alone: so tasks share what is made of it.
            if not thing.functions or not (around or any(map(_is_opened, thing.functions))):
                return thing
            return thing.made_of(lambda function: self._ready(function, spec, name, around))
        if not callable(thing):
            return thing
        if _is_opened(thing):
            # Each task has a copy: connections and counters in an object are then of one task, and of one thread at a
            # time.
            thing = _copy(thing, context)
            self._made.append((thing, spec, context))
        for wrap in around:
            wrapped = wrap(thing, operator)
            if not callable(wrapped):
                raise SamzaError(
                    f"app.wrap: {wrap!r} made {wrapped!r} of a function of {operator!r}; return a function"
                )
            thing = wrapped
        return thing


def has_own(spec: Spec) -> bool:
    """Whether each task has objects of its own among the functions of an operator."""
    found = spec.functions().values()
    return any(any(map(_is_opened, one.functions if isinstance(one, Aggregation) else (one,))) for one in found)


def _is_opened(thing: object) -> bool:
    """Whether each task has a copy of an object of the user's, opened and closed for it."""
    return not isinstance(thing, type) and (hasattr(thing, "open") or hasattr(thing, "close"))


async def close_all(all_functions: Sequence[Functions]) -> list[BaseException]:
    """Close the objects of all tasks, the last first, each even when another fails; return what failed."""
    failures: list[BaseException] = []
    for functions in reversed(all_functions):
        try:
            await functions.close()
        except (Exception, asyncio.CancelledError) as error:
            failures.append(error)
    return failures


class _Opening(NamedTuple):
    """A task whose objects are opened or closed, as lines of the log know it."""

    number: int

    def owners(self, file: str) -> Sequence[str]:
        """Return none: no fused source is at work."""
        return no_owners(file)


async def _done(context: Context, method: Callable[..., object], *arguments: object) -> None:
    """Call a method of a user's object, and await it; lines of the log meanwhile say whose it is."""
    task, operator = TASK.set(_Opening(context.task)), OPERATOR.set(context.operator)
    try:
        result = method(*arguments)
        if inspect.isawaitable(result):
            await result
    finally:
        OPERATOR.reset(operator)
        TASK.reset(task)


def _copy(thing: T, context: Context) -> T:
    try:
        return copy.deepcopy(thing)
    except Exception as error:
        raise SamzaError(
            f"{context.operator}: the {type(thing).__name__} can't be copied for every task ({words_of(error)}); make "
            "connections, locks and files in open(context), not before"
        ) from error
