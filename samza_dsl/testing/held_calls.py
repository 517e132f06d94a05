"""The async calls that wait for the test, which ends each of them when it likes."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NoReturn

from operators.core.base import Spec
from operators.core.sites import takes
from operators.core.wording import words_of
from runtime.model.clock import sleep_ms
from samza_dsl.fluent.checks import is_coroutine_function

Answer = Callable[[], object]
LATER = 1 / 3
"""The share of calls that begin later."""
LONGEST_DELAY_MS = 5.0
"""The ms by which a call begins later, at most; and by no more than a twentieth of its timeout."""


class Call:
    """An async call that waits for the test: `argument` is what the operator was called with.

    It ends by `returns`, `fails` or `completes`; or by itself, when it times out or the run dies. Any of the three lets
    the run go on, and raises RuntimeError where the call has ended already.

    >>> from samza_dsl import App, testing
    >>> app = App("asking")
    >>> async def ask(question):
    ...     raise ConnectionError("a test asks nobody")
    >>> app.input("questions", value=str).async_flat_map(ask, op_id="ask").send_to(app.output("answers", value=str))
    >>> with testing.running(app) as run:
    ...     run.hold("ask")
    ...     run.send("questions", "When?")
    ...     [call] = run.calls("ask")
    ...     call.returns(f"{call.argument} Now.")
    ...     print(run.read("answers"))
    ['When? Now.']
    """

    def __init__(self, operator: str, argument: Any, answer: Callable[[Call, Answer], None]) -> None:
        self.operator = operator
        self.argument = argument
        self.answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._answer = answer

    def returns(self, *values: object) -> None:
        """End the call with these messages as its result, in place of the function's."""
        self._answer(self, lambda: values)

    def fails(self, error: Exception) -> None:
        """End the call with an error; the operator's policy decides what becomes of it."""

        def fail() -> NoReturn:
            raise error

        self._answer(self, fail)

    def completes(self) -> None:
        """Call the pipeline's own function now; what it returns, or raises, is the result."""
        self._answer(self, lambda: None)

    def __repr__(self) -> str:
        return f"<call of {self.operator} with {self.argument!r}>"


class HeldCalls:
    """Wraps the async functions of an application, and holds back the calls of some operators.

    With `order` some calls begin a little later, by a time that it draws, so that calls end in any order.
    """

    def __init__(
        self,
        specs: Mapping[str, Spec],
        answer: Callable[[Call, Answer], None],
        held: set[str],
        order: random.Random | None = None,
    ) -> None:
        self._specs = specs
        self._answer = answer
        self._held = held
        self._order = order
        self.all: list[Call] = []
        """The calls that wait, in the order in which they began."""

    def hold(self, operator: str) -> None:
        """Hold the calls of an operator from now on; raises ValueError where it makes none."""
        self._held.add(self._checked(operator))

    def waiting(self, operator: str) -> list[Call]:
        """Return the calls of an operator that wait, in the order in which they began."""
        self._checked(operator)
        return [call for call in self.all if call.operator == operator]

    def around(self, function: Callable[..., Any], operator: str) -> Callable[..., object]:
        """Return a function that waits for the test while its operator is held; a plain function as it is."""
        plain = self._specs[operator].kind != "async_flat_map" or takes(function, 0)
        if plain and not is_coroutine_function(function):
            return function

        longest_ms = min(LONGEST_DELAY_MS, getattr(self._specs[operator], "timeout_ms", 0) / 20)

        @functools.wraps(function)
        async def called(*arguments: object) -> object:
            if operator not in self._held:
                if self._order is not None and self._order.random() < LATER:
                    await sleep_ms(self._order.random() * longest_ms)
                return await _made(function, arguments)
            call = Call(operator, arguments[0], self._answer)
            self.all.append(call)
            try:
                answer = await call.answered
            finally:
                self.all.remove(call)
            answered = answer()
            if answered is not None:
                return answered
            return await _made(function, arguments)

        return called

    def _checked(self, operator: str) -> str:
        awaits = [id for id, spec in self._specs.items() if spec.asynchronous]
        if operator not in awaits:
            known = ", ".join(awaits) or "none"
            raise ValueError(f"{operator!r} makes no async calls; these operators of the app do: {known}")
        return operator


async def _made(function: Callable[..., Awaitable[object]], arguments: Sequence[object]) -> object:
    """Make a call; the error of an object that belongs to another event loop says what the user can do."""
    # No context manager: it would set the traceback of what passes it, and an error may refuse that.
    try:
        return await function(*arguments)
    except RuntimeError as error:
        told = words_of(error)
        if "different event loop" not in told and "different loop" not in told:
            raise
        raise RuntimeError(
            f"{told}: every test has an event loop of its own, as every process has; make in open(context) what "
            "belongs to one, not when the program is loaded"
        ) from error
