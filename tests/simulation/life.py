"""One life of a simulated process: a run of the application, and what happens to it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from runtime.job.pipeline import Pipeline
from runtime.model.errors import Damaged, EnvironmentFault, EnvironmentFull, Fenced, Owned
from runtime.run.run import Run, running
from runtime.run.settings import RunSettings
from tests.simulation.crash import Crash
from tests.simulation.directory import SimulatedLog
from tests.simulation.file import SimulatedSink
from tests.simulation.scenario import Fault
from tests.strategies import APP

if TYPE_CHECKING:
    from tests.simulation.world import World

EXPECTED: dict[str, tuple[type[BaseException], ...]] = {
    "dies": (Crash,),
    "killed": (Crash,),
    "cancelled": (asyncio.CancelledError,),
    "unlocked": (Fenced,),
    "fenced": (Fenced,),
    "full": (EnvironmentFull,),
    "fails": (EnvironmentFault,),
}
"""What a run may end with, by the fault that came over it."""


class Life:
    """From the start of a process to its end: `live` returns whether the application has come to its end in it."""

    def __init__(self, world: World, name: str, fault: Fault | None) -> None:
        self.world = world
        self.name = name
        self.fault = fault
        self.struck = False
        self.dead = False
        self.broken = False
        self.steps = 0
        self.began = world.loop.turns
        self.opened: list[Any] = []
        self.environment = SimulatedLog(
            world.directory, now_ms=world.clock.now_ms, step=self.step, on_commit=world.on_commit
        )
        self.driving: asyncio.Task[None] | None = None
        self._died: asyncio.Future[None] = world.loop.create_future()

    async def live(self) -> bool:
        """Run the application; raises what no fault explains, and Owned."""
        others = asyncio.all_tasks()
        try:
            self.driving = asyncio.create_task(self._beside() if self.world.scenario.beside else self._drive())
            await asyncio.wait((self.driving, self._died), return_when=asyncio.FIRST_COMPLETED)
            if not self.dead:
                await self.driving
        except Owned:
            self.environment.close()
            raise
        except BaseException as error:
            if not (self.struck and self.fault is not None and isinstance(error, EXPECTED[self.fault.kind])):
                raise
            self.world.tell(f"{self.name} ends with {error!r}")
        else:
            if not self.dead:
                self.environment.close()
                self._check_left(others)
                assert not self._is_cancelled, "the run went on to its end although it was cancelled"
                return True
        if not self.dead:
            self.environment.close()
            self._check_left(others)
        return False

    async def _drive(self) -> None:
        self.world.opened = self.opened
        await Run(Pipeline(self.world.graph, self.world.options), self.environment, RunSettings(**self._how())).drive()

    async def _beside(self) -> None:
        """Run it in the background of a block, which waits for its end."""
        self.world.opened = self.opened
        async with running(
            Pipeline(self.world.graph, self.world.options), self.environment, RunSettings(**self._how())
        ) as run:
            await run.ended()

    def _how(self) -> dict[str, Any]:
        files = {name: SimulatedSink(file, self.step) for name, file in self.world.files.items()}
        return {"clock": self.world.clock, "bind": files}

    def step(self, name: str) -> None:
        """See what the process does in the directory; the dead do nothing."""
        if self.dead:
            raise Crash(self.name)
        if self.broken:
            raise EnvironmentFault("the environment failed before")
        if name == "read":
            return
        self.steps += 1
        self.world.tell(f"{self.name} step {self.steps}: {name}")
        fault = self.fault
        if fault is None or fault.at_turn or self.steps < fault.number or self.struck:
            return
        if fault.kind == "full" and name == "acknowledge":
            return
        self._strike(fault)
        if fault.kind == "killed":
            self.die()
            raise Crash(f"{self.name} at {name}")
        if fault.kind == "fails":
            self.broken = True
            raise Damaged(f"the disk fails at {name}")
        raise EnvironmentFull(f"the disk is full at {name}")

    def turn(self, turns: int) -> None:
        """See a turn of the loop."""
        fault = self.fault
        if fault is None or not fault.at_turn or self.struck or self.dead or turns - self.began < fault.number:
            return
        if self.driving is None or self.driving.done():
            return
        if fault.kind in ("unlocked", "fenced") and self.world.directory.owners.get(APP) is not self.environment:
            return
        self._strike(fault)
        if fault.kind == "dies":
            self.die()
        elif fault.kind == "cancelled":
            self.driving.cancel()
        else:
            self.world.take_over(APP, lasting=fault.kind == "fenced")

    @property
    def _is_cancelled(self) -> bool:
        return self.struck and self.fault is not None and self.fault.kind == "cancelled"

    def _strike(self, fault: Fault) -> None:
        self.struck = True
        self.world.struck[fault.kind] += 1
        self.world.tell(f"{self.name} is struck: {fault.kind}")

    def die(self) -> None:
        """Do nothing any more: locks are free, and what is left of the process is only cleaned up."""
        self.dead = True
        self.world.directory.leave(self.environment)
        for file in self.world.files.values():
            file.lose(self.world.chance)
        if self.driving is not None:
            self.driving.cancel()
        if not self._died.done():
            self._died.set_result(None)

    def _check_left(self, others: set[asyncio.Task[Any]]) -> None:
        """Check that a process that has ended leaves nothing behind it."""
        assert [thing.closed for thing in self.opened] == [1] * len(self.opened), "objects are not closed exactly once"
        broken = [thing.broken for thing in self.opened if thing.broken is not None]
        assert not broken, f"async calls: {broken[0]}"
        if self.world.alone:
            left = asyncio.all_tasks() - others - self.world.tasks
            assert not left, f"tasks were left: {left}"
