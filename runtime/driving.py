"""Drives a run to its end in a process of its own: beside who watches it, until a signal comes."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from planner.plan import Plan
from runtime.clock import sleep_ms
from runtime.errors import Grown, SamzaError
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
R = TypeVar("R", bound=Watched)
Watch = Callable[[Watched], Awaitable[None]]


def run_whatever_grows(make: Callable[[dict[str, Any]], R], watch: Watch | None, how: dict[str, Any]) -> R:
    """Run to the end, anew where inputs have got more partitions; whose state lies by these refuses to be made."""
    while True:
        try:
            return asyncio.run(_run_with_signals(make(how), watch))
        except Grown as grown:
            logging.getLogger("samza_dsl").warning("begins anew: %s", grown)
            how = {**how, "from_start": False, "state": None}
            asyncio.run(sleep_ms(GROWN_MS))  # others that share the run may have to end first


def check_no_loop() -> None:
    """Refuse to run to the end where an event loop would wait for that; raises SamzaError."""
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        raise SamzaError("app.run() can't run inside a running event loop, as of a notebook; await app.run_async()")


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
