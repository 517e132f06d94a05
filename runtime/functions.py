"""The users' functions of one task: objects are copied, opened and closed with it, and all are wrapped."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from operators.aggregations import Aggregation
from operators.base import Context, Spec
from runtime.errors import SamzaError

Around = Callable[[Callable[..., Any], str], Callable[..., Any]]


class Functions:
    """Every user function of one task, by operator and name."""

    def __init__(
        self, app: str, task: int, specs: Iterable[Spec], around: Iterable[Around], data: Path | None = None
    ) -> None:
        self.contexts: dict[str, Context] = {}
        self.by_operator: dict[str, dict[str, Any]] = {}
        self._opened: list[Any] = []
        try:
            for spec in specs:
                assert spec.op_id is not None
                context = self.contexts[spec.op_id] = Context(app, spec.op_id, task, data=data)
                self.by_operator[spec.op_id] = {
                    name: self._ready(thing, context, around) for name, thing in spec.functions().items()
                }
        except BaseException:
            with suppress(Exception):  # what was wrong first is what is told
                self.close()
            raise

    def close(self) -> None:
        """Close what was opened, the last first, all of it even when some fail; raises the first failure."""
        failures = []
        while self._opened:
            try:
                close = getattr(self._opened.pop(), "close", None)
                if close is not None:
                    close()
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _ready(self, thing: Any, context: Context, around: Iterable[Around]) -> Any:
        if isinstance(thing, Aggregation):
            return thing.made_of(lambda function: self._ready(function, context, around))
        if not callable(thing):
            return thing
        if not isinstance(thing, type) and (hasattr(thing, "open") or hasattr(thing, "close")):
            thing = _copy(thing, context)
            if hasattr(thing, "open"):
                thing.open(context)
            self._opened.append(thing)
        for wrap in around:
            wrapped = wrap(thing, context.operator)
            if not callable(wrapped):
                raise SamzaError(
                    f"app.wrap: {wrap!r} made {wrapped!r} of a function of {context.operator!r}; return a function"
                )
            thing = wrapped
        return thing


def _copy(thing: Any, context: Context) -> Any:
    try:
        return copy.deepcopy(thing)
    except Exception as error:
        raise SamzaError(
            f"{context.operator}: the {type(thing).__name__} can't be copied for every task ({error}); make "
            "connections, locks and files in open(context), not before"
        ) from error
