"""The async calls of one operator in one task: so many at once, started in order, timed out and retried."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from operators.policies import Policy, Retry
from runtime.failures import Failure


class Call:
    """One call for one message; `result` is a list of values, unless it `failure`."""

    __slots__ = ("argument", "deadline", "done", "failure", "future", "result", "tries", "unit")

    def __init__(self, unit: Any, argument: Any) -> None:
        self.unit = unit
        self.argument = argument
        self.result: list[Any] = []
        self.failure: Failure | None = None
        self.future: asyncio.Future[Any] | None = None
        self.deadline = 0.0
        self.tries = 0
        self.done = False


class Calls:
    """Starts calls in the order in which they are submitted, at most `max_in_flight` at once.

    A call that takes longer than `timeout_ms` is cancelled and counts as failed, whether it heeds that or not. One
    timer serves all calls: their timeouts are equal, so deadlines come in the order of starts.
    """

    def __init__(
        self,
        operator: str,
        function: Callable[[Any], Awaitable[Any]],
        max_in_flight: int,
        timeout_ms: int,
        policy: Policy,
        on_done: Callable[[Call], None],
    ) -> None:
        self._operator = operator
        self._function = function
        self._max_in_flight = max_in_flight
        self._timeout_ms = timeout_ms
        self._policy = policy
        self._on_done = on_done
        self._waiting: deque[Call] = deque()
        self._running: set[Call] = set()
        self._deadlines: OrderedDict[Call, asyncio.Future[Any]] = OrderedDict()
        self._given_up: set[asyncio.Future[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._backing_off: dict[Call, asyncio.TimerHandle] = {}
        self.retried = 0

    def __len__(self) -> int:
        return len(self._waiting) + len(self._running) + len(self._backing_off)

    def submit(self, call: Call) -> None:
        """Start a call, or queue it where too many run or others wait already."""
        if not self._waiting and len(self._running) + len(self._backing_off) < self._max_in_flight:
            self._start(call)
        else:
            self._waiting.append(call)

    def cancel(self) -> list[asyncio.Future[Any]]:
        """Cancel everything; return the futures that are to be awaited before the loop may close."""
        for timer in self._backing_off.values():
            timer.cancel()
        if self._timer is not None:
            self._timer.cancel()
        futures = [future for future in (*self._deadlines.values(), *self._given_up) if not future.done()]
        for call in self._running:
            call.done = True
        for future in futures:
            future.cancel()
        self._waiting.clear()
        self._running.clear()
        self._deadlines.clear()
        self._backing_off.clear()
        return futures

    def _start(self, call: Call) -> None:
        call.tries += 1
        self._running.add(call)
        loop = asyncio.get_running_loop()
        try:
            future = asyncio.ensure_future(self._function(call.argument))
        except Exception as error:
            loop.call_soon(self._settle, call, error)
            return
        call.future = future
        call.deadline = loop.time() + self._timeout_ms / 1_000
        self._deadlines[call] = future
        if self._timer is None:
            self._timer = loop.call_at(call.deadline, self._expire)
        future.add_done_callback(lambda done: self._returned(call, done))

    def _returned(self, call: Call, future: asyncio.Future[Any]) -> None:
        self._given_up.discard(future)
        if call.future is not future or call.done:
            if not future.cancelled():
                future.exception()  # what a call that was given up says later interests nobody
            return
        if future.cancelled():
            self._settle(call, RuntimeError("the call was cancelled, and not by the run"))
        elif (error := future.exception()) is not None:
            self._settle(call, error if isinstance(error, Exception) else RuntimeError(repr(error)))
        else:
            self._settle(call, self._read(call, future.result()))

    def _read(self, call: Call, result: Any) -> Exception | None:
        try:
            call.result = list(result)
        except Exception as error:
            if isinstance(result, Iterable):
                return error
            return TypeError(f"an async function must return an iterable of messages: {error}")
        return None

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self._deadlines and (call := next(iter(self._deadlines))).deadline <= now:
            future = self._deadlines[call]
            if future.done():
                break  # it is about to be told
            call.future = None
            self._given_up.add(future)
            future.cancel()
            self._settle(call, TimeoutError(f"no result after timeout_ms={self._timeout_ms:,}"))
        self._timer = None  # only now: what starts above must not set it to a later deadline than the first one's
        if self._deadlines:
            self._timer = loop.call_at(max(next(iter(self._deadlines)).deadline, now), self._expire)

    def _settle(self, call: Call, error: Exception | None) -> None:
        if call.done:
            return
        self._running.discard(call)
        self._deadlines.pop(call, None)
        policy = self._policy
        if error is not None and isinstance(policy, Retry) and call.tries <= policy.times:
            self.retried += 1
            delay_ms = policy.backoff_ms * 2 ** (call.tries - 1)
            loop = asyncio.get_running_loop()
            self._backing_off[call] = loop.call_later(delay_ms / 1_000, self._again, call)
            return
        call.done = True
        if error is not None:
            call.failure = Failure(self._operator, error)
        self._on_done(call)
        while self._waiting and len(self._running) + len(self._backing_off) < self._max_in_flight:
            self._start(self._waiting.popleft())

    def _again(self, call: Call) -> None:
        del self._backing_off[call]
        self._start(call)
