"""The users' functions of one task: objects are copied, opened and closed with it, and all are wrapped."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from operators.base import Context, Spec

Around = Callable[[Callable[..., Any], str], Callable[..., Any]]


class Functions:
    """Every user function of one task, by operator and name."""

    def __init__(self, app: str, task: int, specs: Iterable[Spec], around: Iterable[Around]) -> None:
        self.contexts: dict[str, Context] = {}
        self.by_operator: dict[str, dict[str, Any]] = {}
        self._opened: list[Any] = []
        try:
            for spec in specs:
                assert spec.op_id is not None
                context = self.contexts[spec.op_id] = Context(app, spec.op_id, task)
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
        if not callable(thing):
            return thing
        if hasattr(thing, "open") or hasattr(thing, "close"):
            thing = copy.deepcopy(thing)
            if hasattr(thing, "open"):
                thing.open(context)
            self._opened.append(thing)
        for wrap in around:
            thing = wrap(thing, context.operator)
        return thing
