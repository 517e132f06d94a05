"""An event loop whose time is virtual and whose choices come from a seed, so that every schedule can be had again."""

from __future__ import annotations

import asyncio
import random
import selectors
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")

LONGEST_S = 3_600.0
MOST_TURNS = 200_000


class Stuck(Exception):
    """Nothing will ever happen again, or nothing but polling."""


class VirtualLoop(asyncio.SelectorEventLoop):
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
        self._now = 0.0
        self._watch = watch
        self._jobs: dict[Any, list[Callable[[], None]]] = {}
        self._random = random.Random(seed)
        self._shuffled = seed is not None
        self._at_turn = at_turn
        self.turns = 0
        super().__init__(_NoSelector(self._pass))
        self._clock_resolution = 1e-6  # a finer one spins for ever once the time is large

    def time(self) -> float:
        """Return the virtual time, in seconds."""
        return self._now

    def work(self, seconds: float) -> None:
        """Let time pass while something is done on the loop."""
        self._now += seconds

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
            raise Stuck(f"no end after {self.turns:,} turns, at {self._now:.3f} s")
        if self._at_turn is not None:
            self._at_turn(self.turns)
        if self._shuffled and len(self._ready) > 1:
            ready = list(self._ready)
            self._random.shuffle(ready)
            self._ready = deque(ready)
        if self._watch is not None:
            self._watch(", ".join(_named(handle) for handle in self._ready))
        super()._run_once()

    def _pass(self, seconds: float | None) -> None:
        if seconds is None:
            raise Stuck("everything waits, and nothing is scheduled")
        self._now += seconds
        if self._now > LONGEST_S:
            raise Stuck(f"no end after {self._now:,.0f} s of virtual time")

    def _make_self_pipe(self) -> None:
        """Do without: no other thread ever wakes this loop."""

    def _close_self_pipe(self) -> None:
        """Do nothing: there is none."""

    def _write_to_self(self) -> None:
        """Do nothing: the loop never blocks."""


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
    loop = VirtualLoop(seed, at_turn, watch)
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


class _NoSelector(selectors.BaseSelector):
    """Waits for nothing but time."""

    def __init__(self, wait: Callable[[float | None], None]) -> None:
        self._wait = wait

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None or timeout > 0:
            self._wait(timeout)
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        raise AssertionError("a simulation has no files")

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        raise AssertionError("a simulation has no files")

    def get_map(self) -> Any:
        return {}

    def close(self) -> None:
        return None
