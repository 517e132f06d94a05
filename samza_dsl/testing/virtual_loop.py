"""An event loop with virtual time, which passes only when the test says so."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import NoReturn, TypeVar

T = TypeVar("T")

MOST_TURNS = 1_000_000
"""The turns of a loop that may pass at one time; more are taken for a loop without end."""
RESOLUTION_S = 1e-6
"""The seconds within which two times are the same; a finer one would spin where the time is large."""
MOMENT_S = 1e-12
"""The seconds between timers for the same time, which keep them in the order of asking."""

NETWORK = (
    *("create_connection", "create_server", "create_unix_connection", "create_datagram_endpoint", "getaddrinfo"),
    *("sock_connect", "subprocess_exec", "subprocess_shell"),
)


class FilelessLoop(asyncio.BaseEventLoop):
    """An event loop that waits for no files, but for time alone, which passes as `_wait` says."""

    _ready: deque[asyncio.Handle]

    def __init__(self) -> None:
        super().__init__()
        self.turns = 0
        self._now_s = 0.0
        self._clock_resolution = RESOLUTION_S
        self._selector = _NoSelector(self._wait)

    def time(self) -> float:
        """Return the virtual time, in seconds."""
        return self._now_s

    def _wait(self, seconds: float | None) -> None:
        """Wait so many seconds of virtual time; None is for ever."""
        raise NotImplementedError

    def _shuffle(self, order: random.Random) -> None:
        """Put the callbacks that are ready into an order that `order` draws."""
        if len(self._ready) > 1:
            ready = list(self._ready)
            order.shuffle(ready)
            self._ready.clear()
            self._ready.extend(ready)

    def _process_events(self, event_list: list[object]) -> None:
        """Do nothing: there are none."""

    def _write_to_self(self) -> None:
        """Do nothing: the loop never blocks, so nothing needs to wake it."""


class VirtualLoop(FilelessLoop):
    """Runs what is ready, then jumps to the next timer, but never beyond the time that it may come to.

    With `order`, what is ready at the same time runs in an order that it draws. What would run in a thread runs at
    once, on the loop. `at_turn` is called at every turn, and may raise.

    >>> loop = VirtualLoop()
    >>> _ = loop.call_later(3_600, print, "an hour has passed")
    >>> loop.proceed(until_s=3_599)
    >>> loop.proceed(until_s=7_200)
    an hour has passed
    >>> loop.close()
    """

    def __init__(self, order: random.Random | None = None, at_turn: Callable[[], None] | None = None) -> None:
        super().__init__()
        self._order = order
        self._at_turn = at_turn
        self._until_s = 0.0
        self._idle_turns = self._asked = 0
        self._last_turn: int | None = None

    def proceed(self, until_s: float | None = None, turns: int | None = None) -> None:
        """Run everything that happens up to a time (now, if none is said), or only so many turns of it."""
        self._until_s = self._now_s if until_s is None else until_s
        self._last_turn = None if turns is None else self.turns + turns
        self._idle_turns = 0
        self.run_forever()

    def call_at(
        self, when: float, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call at a time; callbacks for the same time are called in the order of asking."""
        # asyncio keeps timers in a heap, which gives equal times in any order; so each is a moment later than the last.
        self._asked += 1
        return super().call_at(when + self._asked * MOMENT_S, callback, *args, context=context)

    def run_in_executor(self, executor: object, func: Callable[..., T], *arguments: object) -> asyncio.Future[T]:
        """Call `func` on the loop, in a turn of its own."""
        # On the loop and not in a thread: real threads would make the order of things differ from run to run.
        future: asyncio.Future[T] = self.create_future()

        def call() -> None:
            try:
                result = func(*arguments)
            except BaseException as error:
                if not future.cancelled():
                    future.set_exception(error)
            else:
                if not future.cancelled():
                    future.set_result(result)

        self.call_soon(call)
        return future

    def _wait(self, seconds: float | None) -> None:
        """Let time pass up to the next timer, but not beyond `_until_s`: there the loop stops."""
        before_s = self._now_s
        self.turns += 1
        self._idle_turns += 1
        if self._at_turn is not None:
            self._at_turn()
        if self._idle_turns > MOST_TURNS:
            raise RuntimeError(f"something runs on and on: {MOST_TURNS:,} turns of the event loop at the same time")
        if self._last_turn is not None and self.turns >= self._last_turn:
            self.stop()
        elif seconds is None or self._now_s + seconds > self._until_s + RESOLUTION_S:
            self._now_s = max(self._now_s, self._until_s)
            self.stop()
        elif seconds > 0:
            # Straight to the next timer: nothing is ready, so nothing can happen before it.
            self._now_s += seconds
            self._idle_turns = self._asked = 0
        assert self._now_s >= before_s, "time never goes back"
        if self._order is not None:
            self._shuffle(self._order)


class _NoSelector:
    """A selector that knows no files, and waits for time alone."""

    def __init__(self, wait: Callable[[float | None], None]) -> None:
        self._wait = wait

    def select(self, timeout: float | None) -> list[object]:
        self._wait(timeout)
        return []


def _refusing(name: str) -> Callable[..., Awaitable[object]]:
    async def refuse(*arguments: object, **named: object) -> NoReturn:
        raise RuntimeError(
            f"{name}: a test on virtual time has no network and no processes; give the pipeline a fake client, or "
            "answer its calls in the test: run.hold('operator'), run.calls('operator')"
        )

    return refuse


for _name in NETWORK:
    setattr(VirtualLoop, _name, _refusing(_name))
