"""The numbers of all containers that a process has started: those that live, and what those that are gone add up to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from runtime.containers.container import Container
from runtime.containers.protocol import AskNumbers, Report, combined, what_adds_up
from runtime.model.clock import Clock, wall_clock_ms
from runtime.model.metrics import ContainerMetrics, InputMetrics, RunMetrics
from runtime.opening.rescaling import Scaled
from runtime.run.rebalance import tasks_told

NUMBERS_S = 0.5
"""The time that containers have to tell their numbers."""
SILENCE_S = 1.0
"""The time to wait for answers at first, and the one after which those that have answered are asked again."""
SILENT_MS = 10_000.0
"""The time without a word of a container after which the log tells of it; it answers four times a second, or once."""

_log = logging.getLogger("samza_dsl")


class Resizing(NamedTuple):
    """A change of the size that goes on: the size before it, why, when it began, and what had `moved` by then."""

    number: int
    factor: int
    why: str
    began_ms: float
    moved: int

    def scaled(self, number: int, factor: int, now_ms: float, moved: int | None) -> Scaled:
        """Return the change as it is noted, given the size that there is now, and the entries that moved, if known."""
        sizes = (self.number, number) if number != self.number else None
        return Scaled(wall_clock_ms(), self.factor, factor, self.why, now_ms - self.began_ms, sizes, moved)


class CrewNumbers:
    """The numbers of a run over the containers in its slots; those of one that is gone are kept once.

    All is called in the thread of the event loop that drives them.
    """

    def __init__(self, app: str, clock: Clock) -> None:
        self._app, self._clock = app, clock
        self._started_ms = clock.elapsed_ms()
        self._former: list[RunMetrics] = []
        """The last numbers of containers that are gone; of one that has died, only those that add up."""
        self._died: dict[int, list[str]] = {}
        """By slot, how those of its containers ended that ended before their time."""
        self.restarts = 0

    @property
    def elapsed_ms(self) -> float:
        """The time since the run began."""
        return self._clock.elapsed_ms() - self._started_ms

    def now(self, containers: Mapping[int, Container], alone: Sequence[InputMetrics]) -> RunMetrics:
        """Return the numbers of this moment; `alone` are inputs of tasks that no container had at the last look."""
        living = [self._heard(slot, container) for slot, container in containers.items()]
        # Behind those that are gone: of a slot with both, the one that lives says which tasks it has.
        found = combined([*self._former, *living])
        owned = {(one.stream, one.partition) for one in found.inputs}
        return msgspec.structs.replace(
            found,
            inputs=(*found.inputs, *(one for one in alone if (one.stream, one.partition) not in owned)),
            elapsed_ms=self.elapsed_ms,
            deaths=sum(map(len, self._died.values())),
            restarts=self.restarts,
        )

    def moved(self, containers: Mapping[int, Container]) -> int:
        """Return how many entries of state have come to where containers have their tasks, by what they last told."""
        return sum(one.moved for one in self.now(containers, ()).containers)

    def moved_by(self, resizing: Resizing, containers: Mapping[int, Container]) -> int | None:
        """Return how many entries a change of the size has moved; None before all containers have their tasks."""
        if sum(one.settled for one in self.now(containers, ()).containers) != len(containers):
            return None
        return self.moved(containers) - resizing.moved

    def count_out(self, slot: int, gone: Container, leaves: bool) -> None:
        """Keep the numbers of a container that is gone, while others go on with its tasks where it `leaves`."""
        told = self._heard(slot, gone)
        # It has no task any more, and its silence means nothing.
        left = tuple(
            msgspec.structs.replace(one, tasks=(), settled=False, restoring=(), silent_ms=0.0)
            for one in told.containers
        )
        told = msgspec.structs.replace(told, containers=left)
        self._former.append(told if gone.ended and not leaves else what_adds_up(told))

    def mourn(self, slot: int, container: Container) -> None:
        """Note a container that has ended before its time, and log it."""
        self._died.setdefault(slot, []).append(container.how_it_ended())
        report = container.report
        _log.warning(
            "%s: container %s (process %s) %s; it had %s, after %s commits",
            *(self._app, container.name, container.process.pid, container.how_it_ended()),
            *(tasks_told(container.tasks), report.commits if report is not None else 0),
        )

    def replace(self, former: str, container: Container) -> None:
        """Note a container that takes the place of one that is gone, and log it."""
        self.restarts += 1
        told = self._app, container.name, container.process.pid, former
        _log.warning("%s: container %s (process %s) takes the place of %s", *told)

    def begin_anew(self, number: int) -> None:
        """Keep what adds up alone, as other tasks go on, in so many containers."""
        self._former = [what_adds_up(one, number) for one in self._former]

    def _heard(self, slot: int, container: Container) -> RunMetrics:
        """Return the numbers of a container under that of its slot, and for how long it has said nothing."""
        silent_ms = self._clock.elapsed_ms() - container.heard_ms
        told = container.metrics.containers or (ContainerMetrics(container="", settled=False),)
        died = self._died.get(slot, [])
        of_slot = {"container": str(slot), "deaths": len(died), "died": died[-1] if died else ""}
        named = tuple(
            msgspec.structs.replace(
                one, silent_ms=silent_ms, since_commit_ms=_later(one.since_commit_ms, silent_ms), **of_slot
            )
            for one in told
        )
        since_ms = _later(container.metrics.since_commit_ms, silent_ms)
        return msgspec.structs.replace(container.metrics, containers=named, since_commit_ms=since_ms)


def _later(since_ms: float | None, silent_ms: float) -> float | None:
    """Return the time since a commit that was told so long ago: who says nothing, and may be stopped, tells none."""
    return None if since_ms is None else since_ms + silent_ms


async def renewed(containers: Iterable[Container]) -> None:
    """Wait until containers have told their numbers of this moment; for a silent one no longer than half a second."""
    asked = []
    for one in containers:
        one.told.clear()
        one.line.say(AskNumbers())
        asked.append(asyncio.ensure_future(one.told.wait()))
    if asked:
        try:
            await asyncio.wait(asked, timeout=NUMBERS_S)
        finally:
            for waiting in asked:
                waiting.cancel()


class Silences:
    """Tells the log once of each container that says nothing for long, and once that it goes on."""

    def __init__(self, app: str) -> None:
        self._app = app
        self._silent: dict[str, float] = {}
        """By name, when it had last said something."""
        self._told_ms = self._since_ms = 0.0
        """When it last looked, and since when it has done so often enough to have heard of each."""

    def tell(self, containers: Collection[Container], now_ms: float) -> None:
        """Look at the containers that have joined: one that is started first loads the application."""
        # What they said while this process was stopped itself is not read yet.
        if now_ms - self._told_ms >= SILENT_MS / 2:
            self._since_ms = now_ms
        self._told_ms = now_ms
        for name in self._silent.keys() - {one.name for one in containers}:
            del self._silent[name]  # it is gone, which is told elsewhere
        for one in containers:
            began_ms = self._silent.get(one.name)
            named = self._app, one.name, one.process.pid
            if began_ms is None and one.joined and now_ms - max(one.heard_ms, self._since_ms) >= SILENT_MS:
                self._silent[one.name] = one.heard_ms
                _log.warning(
                    "%s: container %s (process %s) has said nothing for %.0f s: a function of it blocks, or it is "
                    "stopped; it has %s",
                    *named,
                    *((now_ms - one.heard_ms) / 1_000, tasks_told(one.tasks)),
                )
            elif began_ms is not None and one.heard_ms > began_ms:
                del self._silent[one.name]
                _log.warning(
                    "%s: container %s (process %s) goes on, after %.0f s", *named, (one.heard_ms - began_ms) / 1_000
                )


class Round:
    """Waits for the answers of containers to a round of questions; `changed` is set as one of them says anything."""

    def __init__(self, containers: Mapping[int, Container], silences: Silences, clock: Clock) -> None:
        self._containers, self._silences, self._clock = containers, silences, clock
        self.changed = asyncio.Event()

    async def answers(self, number: int, silence_s: float) -> dict[str, Report]:
        """Return the answers to a round by container, once each that is there has answered, or after a while."""
        answers: dict[str, Report] = {}
        again_s = asyncio.get_running_loop().time() + SILENCE_S
        with suppress(TimeoutError):
            async with asyncio.timeout(silence_s):
                while len(answers) < len(self._containers):
                    self.changed.clear()
                    found = {one.name: one.report for one in self._containers.values()}
                    answers = {name: report for name, report in found.items() if report and report.round >= number}
                    if len(answers) < len(self._containers):
                        again_s = await self._hear_or_ask_again(answers, again_s)
        return answers

    async def _hear_or_ask_again(self, answered: Collection[str], at_s: float) -> float:
        """Wait until a container says something, or ask those that have answered again; return when to, next time.

        One that is stopped is waited for, and the others must neither look silent nor have old numbers meanwhile,
        also where one of them says something all the time.
        """
        try:
            async with asyncio.timeout_at(at_s):
                await self.changed.wait()
        except TimeoutError:
            for one in self._containers.values():
                if one.name in answered:
                    one.line.say(AskNumbers())
            at_s = asyncio.get_running_loop().time() + SILENCE_S
        self._silences.tell(self._containers.values(), self._clock.elapsed_ms())
        return at_s
