"""Several containers of one application in one virtual process: they come, die and go, and share its tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from runtime.clock import LoopClock
from runtime.errors import SamzaError
from runtime.opening import Opened, Share, ends_of, open_application, recover
from runtime.run import Run
from runtime.systems.base import Commit, Environment
from runtime.talk import Report, Rounds
from samza_dsl import App
from samza_dsl.testing.environment import Crash, CrashPoint
from tests.simulation.crash import NOW_MS, Watched
from tests.simulation.loop import rest, simulate

ROUND_MS = 20


@dataclass(frozen=True)
class Event:
    """What happens after a while: a container comes, which may be one that dies; or one of them ends, well or not."""

    after_ms: int
    what: Literal["comes", "is cancelled", "stops"]
    crash: CrashPoint | None = None
    number: int = 0


class Cluster:
    """The containers of one run, and the process that has started them."""

    def __init__(
        self, app: App, environment: Environment, on_commit: Callable[[Commit], None] | None, until_now: bool
    ) -> None:
        self.app, self.environment, self.on_commit = app, environment, on_commit
        self.graph = app.graph()
        self.opened: Opened = open_application(environment, self.graph, app.options, {}, wrapped=bool(app.around))
        recover(environment, self.opened, self.graph)
        ends = ends_of(self.opened.bindings, self.graph) if until_now else {}
        self.ends = tuple((*place, end) for place, end in ends.items())
        self.alive: dict[str, tuple[Run, asyncio.Task[None]]] = {}
        self.came = self.died = 0
        self.ran: list[Run] = []

    def begin(self, crash: CrashPoint | None = None) -> None:
        """Start a container."""
        name, self.came = f"{self.came}", self.came + 1
        share = Share(container=name, generation=self.opened.generation, counts=self.opened.counts, ends=self.ends)
        environment = Watched(self.environment, crash, self.on_commit)
        run = Run(self.graph, self.app.options, self.app.around, environment, clock=LoopClock(NOW_MS), share=share)
        self.ran.append(run)
        self.alive[name] = run, asyncio.create_task(run.drive())

    def meet(self, event: Event) -> None:
        """Have an event happen."""
        if event.what == "comes":
            self.begin(event.crash)
        elif self.alive:
            run, driving = [*self.alive.values()][event.number % len(self.alive)]
            if event.what == "stops":
                run.stop()
            else:
                driving.cancel()

    def look(self) -> None:
        """See who is gone; raises what no event explains."""
        for name, (run, driving) in [*self.alive.items()]:
            if driving.done():
                del self.alive[name]
                run.release()  # which one that was cancelled before it began has not done
                error = None if driving.cancelled() else driving.exception()
                self.died += driving.cancelled() or error is not None
                if error is not None and not isinstance(error, Crash):
                    raise error
        if not self.alive:
            self.begin()

    async def over(self, rounds: Rounds) -> bool:
        """Ask all how far they are, and return whether they have come to the end."""
        reports = {}
        for name, (run, _) in [*self.alive.items()]:
            if run.finished:
                with suppress(SamzaError):
                    await run.settled()
            reports[name] = Report(round=0, finished=run.finished, tasks=tuple(run.tasks), commits=run.commits)
        return reports.keys() == self.alive.keys() and rounds.over(reports)

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
        for _, driving in self.alive.values():
            await driving


def run_among(
    app: App,
    environment: Environment,
    number: int = 2,
    events: Sequence[Event] = (),
    seed: int | None = None,
    on_commit: Callable[[Commit], None] | None = None,
    until_now: bool = False,
) -> Cluster:
    """Run an application to its end in so many containers and what events bring, in virtual time."""

    async def main() -> Cluster:
        cluster = Cluster(app, environment, on_commit, until_now)
        try:
            await cluster.play(number, events)
            return cluster
        finally:
            left = [driving for _, driving in cluster.alive.values()]
            for driving in left:
                driving.cancel()
            if left:
                await asyncio.wait(left)

    return simulate(main, seed)
