"""The leader of a run that several starters share: it takes in and delivers, and the others follow it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from runtime.assembly.bindings import Bindings
from runtime.containers.protocol import Report, held_by
from runtime.model.clock import Clock, sleep_ms
from runtime.model.errors import EnvironmentFault, Fenced
from runtime.opening.agreement import StarterReport
from runtime.opening.shared_run import SharedRun, Sharing
from runtime.ports.commits import Presence, fenced_error
from runtime.ports.environment import Environment, LiveEnvironment
from runtime.run.driver import in_thread
from runtime.run.scaling import FAR_LOOK_MS

READY_MS, READY_LOOK_MS = 300_000.0, 500.0
"""The time within which state is to lie ready for a split with all who share the run, and between two looks at it."""
ANNOUNCED_MS = 5_000.0
"""The time in which who leads a run that has fenced this one says so; else all of it is opened anew."""
CUT_LOOK_MS = 100.0
"""The interval between two looks for the run that follows this one."""
AWAITED_MS, SPANNED_MS = 3_000.0, 100.0
"""The time in which containers of other hosts come to the next run, and the interval between two looks at it."""

_log = logging.getLogger("samza_dsl")


class Leadership:
    """The view of one starter on who leads the run; all is called in the thread of its event loop but `tell_end`."""

    def __init__(self, app: str, sharing: Sharing | None, bindings: Callable[[], Bindings], clock: Clock) -> None:
        self._app, self._sharing, self._bindings, self._clock = app, sharing, bindings, clock

    async def follow(self, is_ending: Callable[[], bool], open_anew: Callable[[], Awaitable[None]]) -> None:
        """Call `open_anew` where the one is gone that takes in and delivers: a new run fences it, if it only hangs."""
        while (sharing := self._followed) is not None and not is_ending():
            await sleep_ms(FAR_LOOK_MS)
            with suppress(EnvironmentFault):  # brokers that don't answer now are asked again
                if await in_thread(sharing.is_deserted, self._clock.elapsed_ms()):
                    _log.warning("%s: who has led the run is gone; this process leads it now", self._app)
                    await open_anew()
                    return

    async def is_delivered(self) -> bool:
        """Whether nothing is left to be delivered, behind the end of all tasks; who leads it delivers after that."""
        sharing = self._followed
        if sharing is None:
            return True
        with suppress(EnvironmentFault):
            return await in_thread(sharing.is_over)
        return False

    async def said_by_others(self) -> dict[str, StarterReport]:
        """Return what each starter of containers has said last."""
        if self._sharing is not None:
            with suppress(EnvironmentFault):  # brokers that don't answer now are asked again
                return await in_thread(self._sharing.quiet)
        return {}

    async def agree(self, reports: Mapping[str, Report], before: Mapping[str, StarterReport], tasks: int) -> bool:
        """Say to others who have started containers that ours have nothing to do; return whether nobody has."""
        held = held_by(reports)
        if self._sharing is None or len(held) == tasks:
            return False
        commits = ", ".join(f"{name} {report.commits}" for name, report in sorted(reports.items()))
        with suppress(EnvironmentFault):
            return await in_thread(self._sharing.agree, held, commits, before, tasks)
        return False

    async def rest(self, length_ms: float, is_cut_to_come: bool) -> None:
        """Wait for a while; raises `Fenced` as soon as the run behind a cut is announced, where one is to come.

        So nothing here waits until it is fenced, which containers that have no task notice late.
        """
        if not is_cut_to_come:
            await sleep_ms(length_ms)
            return
        sharing = self._sharing
        assert sharing is not None, "who follows the run of another one shares it"
        until_ms = self._clock.elapsed_ms() + length_ms
        while self._clock.elapsed_ms() < until_ms:
            await sleep_ms(CUT_LOOK_MS)
            found = None
            with suppress(EnvironmentFault):  # brokers that don't answer now are asked again
                found = await in_thread(sharing.announced)
            if found is not None and found.share.generation > sharing.run:
                raise fenced_error(self._app, sharing.run, found.share.generation)

    async def next_run(self, fenced: Fenced, is_ending: Callable[[], bool]) -> SharedRun:
        """Return the run that has fenced this one, to share it; raises `fenced` where none is announced in time."""
        sharing, until_ms = self._sharing, self._clock.elapsed_ms() + ANNOUNCED_MS
        assert sharing is not None, "who is fenced by a run that it may share shares this one"
        while True:
            with suppress(EnvironmentFault):  # brokers that don't answer now are asked again
                if (found := await in_thread(sharing.newer)) is not None:
                    return found
            if is_ending() or self._clock.elapsed_ms() >= until_ms:
                raise fenced
            await sleep_ms(CUT_LOOK_MS)

    def say_ready(self, number: int) -> None:
        """Say to who leads the run that state lies ready here for the size that a request has asked for."""
        assert self._sharing is not None, "who follows the run of another one shares it"
        self._sharing.say_ready(number)

    async def others_ready(self, number: int, goes_on: Callable[[], bool]) -> None:
        """Wait until state lies ready with all others, too, for the size that a request has asked for; not for ever."""
        if (sharing := self._sharing) is None or not sharing.name:
            return
        until_ms = self._clock.elapsed_ms() + READY_MS
        while goes_on():
            with suppress(EnvironmentFault):  # brokers that don't answer now are asked again
                if await in_thread(sharing.are_others_ready, number):
                    return
            if self._clock.elapsed_ms() >= until_ms:
                words = "%s: others have not copied state within %.0f s: behind the cut they replay what they lack"
                _log.warning(words, self._app, READY_MS / 1_000)
                return
            await sleep_ms(READY_LOOK_MS)

    def tell_end(self) -> None:
        """Let others know who wait for what this one has delivered; where they don't hear it, they look themselves."""
        if self._sharing is not None and self._sharing.leads and self._is_needed:
            with suppress(EnvironmentFault):
                self._sharing.end()

    @property
    def _is_needed(self) -> bool:
        """Whether the run takes in or delivers anything."""
        bindings = self._bindings()
        return bool(bindings.inboxes or bindings.outboxes)

    @property
    def _followed(self) -> Sharing | None:
        """The run, where another one takes in and delivers for it."""
        return self._sharing if self._sharing is not None and not self._sharing.leads and self._is_needed else None


class Spanning:
    """The membership of this process among the containers of two runs, while all of the first are replaced.

    All is called in the thread of its event loop; it ends with the environment at the latest.
    """

    def __init__(self, environment: Environment, app: str) -> None:
        self._environment, self._app = environment, app
        self._span: Presence | None = None

    async def begin(self, more: int) -> None:
        """Belong to the containers from now on: as many as there are, and `more` on this host, are to come again."""
        if isinstance(self._environment, LiveEnvironment) and self._span is None:
            with suppress(EnvironmentFault):  # brokers that don't answer now: the next containers wait longer
                self._span = await in_thread(self._environment.span, self._app, more)

    async def end(self, run: int, is_ending: Callable[[], bool]) -> None:
        """Belong to them no more once those of the next run are there, or after a while."""
        waited_ms = 0.0
        while (span := self._span) is not None and not is_ending():
            await sleep_ms(SPANNED_MS)
            waited_ms += SPANNED_MS
            if span.have_all_come(run) or waited_ms >= AWAITED_MS:
                self._span = None
                await in_thread(span.leave)
