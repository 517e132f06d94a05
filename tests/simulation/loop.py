"""An event loop whose time is virtual and whose choices come from a seed, so that every schedule can be had again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from samza_dsl.testing.virtual_loop import FilelessLoop

T = TypeVar("T")

LONGEST_S = 3_600.0
MOST_TURNS = 200_000


BESIDE: list[Callable[[], Callable[[], None]]] = []
"""What else has time pass as it passes on a loop that begins: each returns what is called before each turn."""


class Stuck(Exception):
    """Nothing will ever happen again, or nothing but polling."""


class VirtualLoop(FilelessLoop):
    """Takes ready callbacks in an order of the seed's (None: as they came), and jumps to the next timer when idle.

    What runs in an executor runs on the loop, at a moment of the seed's choice, and is done at another. `at_turn` is
    called with the number of every turn, and may raise; `watch` with what is to run in it.
    """

    def __init__(
        self,
        seed: int | None = None,
        at_turn: Callable[[int], None] | None = None,
        watch: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__()
        self._watch = watch
        self._jobs: dict[Any, list[Callable[[], None]]] = {}
        self._random = random.Random(seed)
        self._shuffled = seed is not None
        self._at_turn = at_turn

    def work(self, seconds: float) -> None:
        """Let time pass while something is done on the loop."""
        self._now_s += seconds

    def run_in_executor(self, executor: Any, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call `function` on the loop, a moment later, and tell the result another moment later."""
        future = self.create_future()
        jobs = self._jobs.setdefault(executor, [])
        if executor is not None:
            executor.shutdown = partial(self._finish, jobs)

        def call() -> None:
            if call not in jobs:
                return
            jobs.remove(call)
            try:
                result = function(*arguments)
            except BaseException as error:
                self._later(_tell, future, None, error)
            else:
                self._later(_tell, future, result, None)

        jobs.append(call)
        self._later(call)
        return future

    def _later(self, callback: Callable[..., None], *arguments: Any) -> None:
        self.call_later(self._random.random() / 200, callback, *arguments)

    def _finish(self, jobs: list[Callable[[], None]], wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Shut an executor down, whose thread has begun what was submitted: it is waited for."""
        for call in [*jobs]:
            call()

    def _run_once(self) -> None:
        self.turns += 1
        if self.turns > MOST_TURNS:
            raise Stuck(f"no end after {self.turns:,} turns, at {self._now_s:.3f} s")
        if self._at_turn is not None:
            self._at_turn(self.turns)
        if self._shuffled:
            self._shuffle(self._random)
        if self._watch is not None:
            self._watch(", ".join(_named(handle) for handle in self._ready))
        super()._run_once()

    def _wait(self, seconds: float | None) -> None:
        if seconds is None:
            raise Stuck("everything waits, and nothing is scheduled")
        self._now_s += max(seconds, 0)
        if seconds > 0 and self._now_s > LONGEST_S:
            raise Stuck(f"no end after {self._now_s:,.0f} s of virtual time")


def simulate(
    main: Callable[[], Coroutine[Any, Any, T]],
    seed: int | None = None,
    at_turn: Callable[[int], None] | None = None,
    watch: Callable[[str], None] | None = None,
) -> T:
    """Run `main()` to its end in virtual time; what it leaves behind is cancelled and awaited.

    Raises AssertionError when `main` ends well and leaves a task.

    >>> async def a_year():
    ...     await rest(365 * 86_400_000 / 10_000)
    ...     return asyncio.get_running_loop().time()
    >>> simulate(a_year)
    3153.6
    """
    following = [follow() for follow in BESIDE]

    def at_each_turn(turn: int) -> None:
        for follow in following:
            follow()
        if at_turn is not None:
            at_turn(turn)

    loop = VirtualLoop(seed, at_each_turn, watch)
    asyncio.set_event_loop(loop)
    try:
        result = loop.run_until_complete(main())
        left = asyncio.all_tasks(loop)
        assert not left, f"tasks were left: {left}"
        return result
    finally:
        loop._at_turn = loop._watch = None
        _end(loop)
        asyncio.set_event_loop(None)
        loop.close()


async def rest(ms: float) -> None:
    """Let virtual time pass."""
    await asyncio.sleep(ms / 1_000)


def _end(loop: VirtualLoop) -> None:
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left, timeout=60))
        for task in left:
            if task.done() and not task.cancelled():
                task.exception()


def _tell(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


def _named(handle: Any) -> str:
    """Return what a callback goes on with: the task of a step, or the function."""
    owner = getattr(handle._callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return f"{owner.get_coro().__qualname__}"
    return str(getattr(handle._callback, "__qualname__", type(handle._callback).__name__))
