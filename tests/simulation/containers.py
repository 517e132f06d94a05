"""Several containers of one application in one virtual process: they come, die and go, and share its tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import Literal, Protocol

from runtime.containers.protocol import Report, Rounds
from runtime.job.pipeline import Pipeline
from runtime.model.clock import LoopClock
from runtime.model.errors import SamzaError
from runtime.opening.opening import Opened, Share, ends_of, open_application, recover
from runtime.ports.commits import Commit
from runtime.ports.environment import Environment
from runtime.run.run import Run
from runtime.run.settings import RunSettings
from samza_dsl import App
from samza_dsl.testing.environment import Crash, CrashPoint
from tests.simulation.crash import NOW_MS, Watched
from tests.simulation.loop import rest, simulate

ROUND_MS = 20


@dataclass(frozen=True)
class Event:
    """What happens after a while: a container comes, which may be one that dies; or one of them ends, well or not.

    One that falls silent goes on, and others take it for dead where they go by what they hear of it.
    """

    after_ms: int
    what: Literal["comes", "is cancelled", "stops", "falls silent"]
    crash: CrashPoint | None = None
    number: int = 0


class Places(Protocol):
    """Where containers run: each in a context and with an environment of its own, or all with one."""

    def context(self, name: str) -> Context:
        """Return what a container is to run in."""

    def open(self, name: str) -> Environment:
        """Open the environment of a container."""

    def gone(self, name: str, well: bool) -> None:
        """Hear that a container has ended."""

    def silence(self, name: str) -> None:
        """Have others take a container for dead."""

    def survives(self, error: BaseException) -> bool:
        """Whether another container comes in the place of one that this has ended."""


class Together:
    """All in one environment."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    def context(self, name: str) -> Context:
        return copy_context()

    def open(self, name: str) -> Environment:
        return self._environment

    def gone(self, name: str, well: bool) -> None:
        """Do nothing."""

    def silence(self, name: str) -> None:
        """Do nothing: it can be seen who lives."""

    def survives(self, error: BaseException) -> bool:
        return isinstance(error, Crash)


class Cluster:
    """The containers of one run, and the process that has started them."""

    def __init__(
        self,
        app: App,
        environment: Environment,
        on_commit: Callable[[Commit], None] | None,
        until_now: bool,
        places: Places | None = None,
        standby: int = 0,
    ) -> None:
        self.standby = standby
        self.app, self.environment, self.on_commit = app, environment, on_commit
        self.places = places or Together(environment)
        self.graph = app.graph()
        self.opened: Opened = open_application(environment, app.pipeline().of(self.graph), {})
        recover(environment, self.opened, self.graph, NOW_MS)
        ends = ends_of(self.environment, self.opened, self.graph) if until_now else {}
        self.ends = tuple((*place, end) for place, end in ends.items())
        self.alive: dict[str, tuple[Run, asyncio.Task[None]]] = {}
        self.contexts: dict[str, Context] = {}
        self.came = self.died = 0
        self.ran: list[Run] = []

    def begin(self, crash: CrashPoint | None = None) -> None:
        """Start a container."""
        name, self.came = f"{self.came}", self.came + 1
        of_run = {"generation": self.opened.generation, "counts": self.opened.counts, "standby": self.standby}
        share = Share(container=name, ends=self.ends, factor=self.opened.plan.options.elasticity, **of_run)
        context, how = self.places.context(name), {"clock": LoopClock(NOW_MS), "share": share}

        def run() -> Run:
            environment = Watched(self.places.open(name), crash, self.on_commit)
            return Run(Pipeline(self.graph, self.app.options, self.app.around), environment, RunSettings(**how))

        try:
            running = context.run(run)
        except BaseException as error:
            context.run(self.places.gone, name, False)
            if not self.places.survives(error):
                raise
            self.died += 1
            return
        self.ran.append(running)
        self.alive[name] = running, asyncio.create_task(running.drive(), context=context)
        self.contexts[name] = context

    def meet(self, event: Event) -> None:
        """Have an event happen."""
        if event.what == "comes":
            self.begin(event.crash)
        elif self.alive:
            run, driving = [*self.alive.values()][event.number % len(self.alive)]
            if event.what == "falls silent":
                self.places.silence([*self.alive][event.number % len(self.alive)])
            elif event.what == "stops":
                run.stop()
            else:
                driving.cancel()

    def look(self) -> None:
        """See who is gone, and have somebody there; raises what no event explains."""
        self.count_out()
        if not self.alive:
            self.begin()

    def count_out(self) -> None:
        """See who is gone; raises what no event explains."""
        for name, (run, driving) in [*self.alive.items()]:
            if driving.done():
                del self.alive[name]
                context = self.contexts.pop(name)
                error = None if driving.cancelled() else driving.exception()
                if error is None:
                    context.run(run.release)  # which one that was cancelled before it began has not done
                self.died += driving.cancelled() or error is not None
                context.run(self.places.gone, name, error is None)
                if error is not None and not self.places.survives(error):
                    raise error

    async def over(self, rounds: Rounds) -> bool:
        """Ask all how far they are, and return whether they have come to the end."""
        reports = {}
        for name, (run, _) in [*self.alive.items()]:
            if run.finished:
                with suppress(SamzaError):
                    await run.settled()
            finished = run.finished and await self._is_caught_up(name, run)
            reports[name] = Report(round=0, finished=finished, tasks=tuple(run.tasks), commits=run.commits)
        return reports.keys() == self.alive.keys() and rounds.over(reports)

    async def _is_caught_up(self, name: str, run: Run) -> bool:
        try:
            return await asyncio.create_task(run.is_caught_up(), context=self.contexts[name])
        except BaseException as error:
            if not self.places.survives(error):
                raise
        return False  # it ends, and says so itself

    async def play(self, number: int, events: Sequence[Event]) -> None:
        """Run to the end."""
        for _ in range(number):
            self.begin()
        for event in events:
            await rest(event.after_ms)
            self.meet(event)
            self.look()
        rounds = Rounds(self.opened.plan.tasks)
        while True:
            await rest(ROUND_MS)
            self.look()
            if await self.over(rounds):
                break
        for run, _ in self.alive.values():
            run.stop()
        await asyncio.wait([driving for _, driving in self.alive.values()])
        self.count_out()  # one that was taken for dead hears of it in its last commit


def run_among(
    app: App,
    environment: Environment,
    number: int = 2,
    events: Sequence[Event] = (),
    seed: int | None = None,
    on_commit: Callable[[Commit], None] | None = None,
    until_now: bool = False,
    places: Places | None = None,
    at_turn: Callable[[int], None] | None = None,
    standby: int = 0,
) -> Cluster:
    """Run an application to its end in so many containers and what events bring, in virtual time."""

    async def main() -> Cluster:
        cluster = Cluster(app, environment, on_commit, until_now, places, standby)
        try:
            await cluster.play(number, events)
            return cluster
        finally:
            left = [driving for _, driving in cluster.alive.values()]
            for driving in left:
                driving.cancel()
            if left:
                await asyncio.wait(left)

    return simulate(main, seed, at_turn)
