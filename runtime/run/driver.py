"""Drives a run to its end, beside its view and until a signal comes, and begins it anew where that helps."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Concatenate, ParamSpec, Protocol, TypeVar, runtime_checkable

from operators.core.protocols import CheckedProtocol
from planner.model.plan import Plan
from runtime.model.clock import sleep_ms
from runtime.model.errors import Fenced, Grown, Repartitioned, SamzaError, Unavailable
from runtime.model.metrics import RunMetrics
from runtime.run.settings import RunSettings


class Watched(Protocol):
    """A run as seen from outside, be it of one process or of several."""

    plan: Plan

    @property
    def failed(self) -> bool:
        """Whether the run has ended before its time."""

    @property
    def begins_anew(self) -> bool:
        """Whether it ended because streams have other partitions: the next run goes on with these."""

    @property
    def stopping(self) -> bool:
        """Whether a stop was asked for."""

    def metrics(self, stores: bool = True) -> RunMetrics:
        """Return the numbers of this moment; after the end, the last ones."""

    def stop(self) -> None:
        """Ask the run to complete what is in flight, commit and end."""

    async def drive(self) -> None:
        """Run to the end."""


@runtime_checkable
class Committing(Protocol, metaclass=CheckedProtocol):
    """A run that commits when somebody asks for it."""

    def want_commit(self) -> None:
        """Ask for a commit as soon as it can be made."""


@runtime_checkable
class CallingFunctions(Protocol, metaclass=CheckedProtocol):
    """A run that calls users' functions in this process."""

    def exit_of(self, error: BaseException) -> SamzaError | None:
        """Return the error that ends the run for what is no Exception; None where no function has raised it."""


@runtime_checkable
class Renewing(Protocol, metaclass=CheckedProtocol):
    """A run whose numbers are in other processes, which tell them when they are asked."""

    async def renew(self) -> None:
        """Ask for its numbers of this moment, and wait for them."""


async def numbers_of(run: Watched, stores: bool = True) -> RunMetrics:
    """Return the numbers of this moment, for whoever looks now and then; in the event loop of the run."""
    await renew(run)
    return run.metrics(stores)


async def renew(run: Watched) -> None:
    """Let `metrics` return the numbers of this moment, and not those of one look before, wherever they are."""
    if isinstance(run, Renewing):
        await run.renew()


GROWN_MS = 500.0
"""The pause before an application is run again whose inputs have got more partitions."""
PAUSE_MS = 500.0
"""The pause before one is run again that brokers kept from going on; it doubles with each time in a row."""
MOST_FAILURES = 5
"""The number of times in a row that brokers may keep an application from committing anything."""
R = TypeVar("R", bound=Watched)
Watch = Callable[[Watched], Awaitable[None]]


class SizedRun(Watched, Protocol):
    """A run that knows which size was asked for when it began: others have been asked of it since."""

    since: int


S = TypeVar("S", bound=SizedRun)
P = ParamSpec("P")
T = TypeVar("T")


def keeping_size(make: Callable[Concatenate[RunSettings, P], S]) -> Callable[Concatenate[RunSettings, P], S]:
    """Return what makes runs one after the other, each with the size that was asked of those before."""
    since: int | None = None

    def made(settings: RunSettings, /, *args: P.args, **more: P.kwargs) -> S:
        nonlocal since
        run = make(settings if since is None else replace(settings, since=since), *args, **more)
        since = run.since
        return run

    return made


def run_whatever_grows(make: Callable[[RunSettings], R], watch: Watch | None, settings: RunSettings) -> R:
    """Run to the end, anew where inputs have got more partitions; raises PlanError where state lies by these."""
    log = logging.getLogger("samza_dsl")
    run: R | None = None
    while True:
        try:
            run = make(settings)
            return _run_in_loop(run, watch)
        except Grown as grown:
            if run is not None and run.stopping:
                # Begun anew, it would know nothing of the stop, and go on for ever.
                log.warning("stopped, and the next run does again what was done since the last commit: %s", grown)
                return run
            if isinstance(grown, Repartitioned):
                log.info("%s", grown)
                settings = replace(settings, from_start=False, state=None)
                continue
            # Plan, job model and what lies between stages may all be others then: tasks cannot just come into the run.
            settings = _anew(settings, grown)
            # Others that share the run may have to end first.
            asyncio.run(sleep_ms(GROWN_MS))


def run_whatever_begins(
    make: Callable[[RunSettings, Fenced | None], R], watch: Watch | None, settings: RunSettings
) -> R:
    """Run to the end as `run_whatever_grows` does, in a newer run where another one has begun that can be shared.

    So it goes with hosts that start at once. Who is made with `fenced` may join a run, or raise that, and begins none.
    """
    run: R | None = None
    fenced: Fenced | None = None

    def made(settings: RunSettings) -> R:
        nonlocal run
        run = make(settings, fenced)
        return run

    while True:
        try:
            return run_whatever_grows(made, watch, settings)
        except Fenced as outrun:
            has_not_joined = run is None and fenced is not None
            if has_not_joined or (run is not None and run.stopping):
                raise
            settings, run, fenced = _anew(settings, outrun), None, outrun


def run_whatever_fails(make: Callable[[RunSettings], R], watch: Watch | None, settings: RunSettings) -> R:
    """Run to the end as `run_whatever_grows` does, anew from the checkpoint where brokers did not answer in time.

    They are not waited for where they can't be reached at first, nor where they keep it from committing anything again
    and again.
    """
    run: R | None = None

    def made(settings: RunSettings) -> R:
        nonlocal run
        run = make(settings)
        return run

    failures, has_run = 0, False
    while True:
        try:
            return run_whatever_grows(made, watch, settings)
        except Unavailable as unavailable:
            has_run |= run is not None
            # Whoever commits gets on: only failures without any commit between them are the end.
            failures = 1 if run is not None and _has_committed(run) else failures + 1
            if not has_run or failures > MOST_FAILURES or (run is not None and run.stopping):
                raise
            settings, run = _anew(settings, unavailable), None
        asyncio.run(sleep_ms(PAUSE_MS * 2**failures))


async def in_thread(work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Await work in a thread to its end, also where this is cancelled: the thread would use what is closed then."""
    working = asyncio.ensure_future(asyncio.to_thread(work, *arguments, **named))
    try:
        return await asyncio.shield(working)
    finally:
        await asyncio.wait([working])


def has_failed(task: asyncio.Task[None]) -> bool:
    """Whether a task has ended by an error."""
    return task.done() and not task.cancelled() and task.exception() is not None


def check_no_loop() -> None:
    """Raise SamzaError where an event loop runs in this thread, which would wait for the end."""
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        raise SamzaError("app.run() can't run inside a running event loop, as of a notebook; await app.run_async()")


def _anew(settings: RunSettings, why: SamzaError) -> RunSettings:
    """Return how to run from the checkpoint, and say why."""
    logging.getLogger("samza_dsl").warning("begins anew: %s", why)
    return replace(settings, from_start=False, state=None)


def _has_committed(run: Watched) -> bool:
    with suppress(SamzaError):
        return run.metrics(stores=False).commits > 0
    return False


def _run_in_loop(run: R, watch: Watch | None) -> R:
    # Inside as well: once the loop goes on to its end, a traceback may have lost whose task it was.
    with exits_told(run), asyncio.Runner() as runner, exits_told(run):
        return runner.run(_run_with_signals(run, watch))


@contextmanager
def exits_told(run: object) -> Iterator[None]:
    """Raise the error that names the operator for an exit that a task beside its calls has asked for.

    An event loop lets such an exit through at once, past whoever awaits the task.
    """
    try:
        yield
    except (SystemExit, KeyboardInterrupt) as error:
        asked = run.exit_of(error) if isinstance(run, CallingFunctions) else None
        if asked is None:
            raise
        raise asked from error


async def _run_with_signals(run: R, watch: Watch | None) -> R:
    driving = asyncio.create_task(run.drive())
    watching = asyncio.create_task(beside(watch, run)) if watch is not None else None

    def interrupt() -> None:
        # The second signal: what is not committed is given up, and comes again in the next run.
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


async def beside(watch: Watch, run: Watched) -> None:
    """Await what watches a run, as the coroutine that a task is made of."""
    await watch(run)
