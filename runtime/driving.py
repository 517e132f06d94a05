"""Drives a run to its end in a process of its own, beside who watches it, until a signal comes; anew if that helps."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from planner.plan import Plan
from runtime.clock import sleep_ms
from runtime.errors import Fenced, Grown, SamzaError, Unavailable
from runtime.metrics import RunMetrics


class Watched(Protocol):
    """What can be said of a run from outside, be it of one process or of several."""

    plan: Plan

    @property
    def failed(self) -> bool:
        """Whether the run has ended before its time."""

    @property
    def stopping(self) -> bool:
        """Whether a stop was asked for."""

    def metrics(self, stores: bool = True) -> RunMetrics:
        """Return the numbers of this moment; after the end, the last ones."""

    def stop(self) -> None:
        """Ask the run to complete what is in flight, commit and end."""

    async def drive(self) -> None:
        """Run to the end."""


GROWN_MS = 500.0
"""How long is waited until an application is run again whose inputs have got more partitions."""
PAUSE_MS = 500.0
"""How long is waited until one is run again that brokers kept from going on, times two for each time in a row."""
MOST_FAILURES = 5
"""How often in a row brokers may keep an application from committing anything."""
R = TypeVar("R", bound=Watched)
Watch = Callable[[Watched], Awaitable[None]]


def run_whatever_grows(make: Callable[[dict[str, Any]], R], watch: Watch | None, how: dict[str, Any]) -> R:
    """Run to the end, anew where inputs have got more partitions; whose state lies by these refuses to be made."""
    while True:
        try:
            return asyncio.run(_run_with_signals(make(how), watch))
        except Grown as grown:
            how = _anew(how, grown)
            asyncio.run(sleep_ms(GROWN_MS))  # others that share the run may have to end first


def run_whatever_begins(make: Callable[[dict[str, Any]], R], watch: Watch | None, how: dict[str, Any]) -> R:
    """Run to the end as `run_whatever_grows` does, in a newer run where another one has begun that can be shared.

    So it goes with hosts that start at once. Who is made with `fenced` may join a run, or raise that, and begins none.
    """
    run: R | None = None

    def made(how: dict[str, Any]) -> R:
        nonlocal run
        run = make(how)
        return run

    while True:
        try:
            return run_whatever_grows(made, watch, how)
        except Fenced as fenced:
            has_not_joined = run is None and "fenced" in how
            if has_not_joined or (run is not None and run.stopping):
                raise
            how, run = _anew(how, fenced) | {"fenced": fenced}, None


def run_whatever_fails(make: Callable[[dict[str, Any]], R], watch: Watch | None, how: dict[str, Any]) -> R:
    """Run to the end as `run_whatever_grows` does, anew from the checkpoint where brokers did not answer in time.

    They are not waited for where they can't be reached at first, nor where they keep it from committing anything again
    and again.
    """
    run: R | None = None

    def made(how: dict[str, Any]) -> R:
        nonlocal run
        run = make(how)
        return run

    failures, has_run = 0, False
    while True:
        try:
            return run_whatever_grows(made, watch, how)
        except Unavailable as unavailable:
            has_run |= run is not None
            failures = 1 if run is not None and _has_committed(run) else failures + 1
            if not has_run or failures > MOST_FAILURES or (run is not None and run.stopping):
                raise
            how, run = _anew(how, unavailable), None
        asyncio.run(sleep_ms(PAUSE_MS * 2**failures))


def check_no_loop() -> None:
    """Refuse to run to the end where an event loop would wait for that; raises SamzaError."""
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        raise SamzaError("app.run() can't run inside a running event loop, as of a notebook; await app.run_async()")


def _anew(how: dict[str, Any], why: SamzaError) -> dict[str, Any]:
    """Return how to run from the checkpoint, and say why."""
    logging.getLogger("samza_dsl").warning("begins anew: %s", why)
    return {**how, "from_start": False, "state": None}


def _has_committed(run: Watched) -> bool:
    with suppress(SamzaError):
        return run.metrics(stores=False).commits > 0
    return False


async def _run_with_signals(run: R, watch: Watch | None) -> R:
    driving = asyncio.create_task(run.drive())
    watching = asyncio.create_task(_beside(watch, run)) if watch is not None else None

    def interrupt() -> None:
        if run.stopping:
            driving.cancel()
        run.stop()

    loop = asyncio.get_running_loop()
    handled: list[signal.Signals] = []
    with suppress(NotImplementedError, RuntimeError, ValueError):
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, interrupt)
            handled.append(number)
    try:
        await driving
    except asyncio.CancelledError:
        raise SamzaError("stopped at once: what was not yet committed will be processed again") from None
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
        if watching is not None:
            watching.cancel()
            await asyncio.wait([watching])
    return run


async def _beside(watch: Watch, run: Watched) -> None:
    await watch(run)
