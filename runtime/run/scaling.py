"""Follows what is asked of an application's elasticity: splits and merges the tasks of a run while it goes on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import TypeVar

import msgspec

from operators.joins.table_join import TableContents
from planner.model.errors import PlanError
from planner.model.graph import Graph
from planner.model.plan import Plan
from planner.passes import plan as make_plan
from runtime.assembly.assembly import Assembly
from runtime.assembly.bindings import Bindings
from runtime.assembly.task_builder import tasks_of
from runtime.functions.user_functions import Functions
from runtime.job.job_model import JOB, configuration
from runtime.loop.loop import Loop
from runtime.model.assignment import REFUSED, Scale
from runtime.model.checkpoint import Checkpoint
from runtime.model.clock import monotonic_ms, sleep_ms, wall_clock_ms
from runtime.model.errors import EnvironmentFault
from runtime.model.metrics import JobMetrics, OperatorMetrics
from runtime.opening.opening import Opened
from runtime.opening.rescaling import Scaled, note_size, prepare_split, rescale, tell_split
from runtime.ports.environment import Environment, LiveEnvironment
from runtime.ports.streams import grown_error
from runtime.run.driver import in_thread
from runtime.run.measurement import passed

LOOK_MS, FAR_LOOK_MS = 200.0, 3_000.0
"""The interval between two looks at what was asked for, and where brokers have to be asked."""
LOOKS_FOR_GROWTH = 5
"""One of so many looks is for inputs that have grown: all streams are looked at. A commit would be refused before."""

T = TypeVar("T")
_log = logging.getLogger("samza_dsl")


def asked_size(environment: Environment, app: str) -> Scale | None:
    """Return the size that was asked for of an application; None where brokers do not answer, who are asked again."""
    try:
        return environment.asked_scale(app)
    except EnvironmentFault:
        if not isinstance(environment, LiveEnvironment):
            raise
        return None


async def follow_ahead(
    environment: Environment,
    plan: Plan,
    graph: Graph,
    since: int,
    say_ready: Callable[[int], None],
    rest: Callable[[float, bool], Awaitable[None]],
    goes_on: Callable[[], bool] = lambda: True,
) -> None:
    """Make state ready here for the splits that whoever leads a run is asked for, as long as it `goes_on`.

    It is that of the tasks that lie on this host, and of the copies that are kept here of others': one that comes to
    have a task of them replays next to nothing. Who leads waits until it is said that it is ready for the request of a
    number, of those that came `since` the run began. Between two looks there is a `rest` of so many ms, which is told
    whether a cut is to come.
    """
    asked = since
    while goes_on():
        newest = await in_thread(asked_size, environment, plan.app)
        is_to_come = newest is not None and newest.since(since).factor not in (None, plan.options.factor)
        if newest is not None:
            wanted, asked = newest.since(asked), newest.number
            await prepare_split(environment, plan, graph, wanted.factor, goes_on)
        if asked > since and goes_on():
            with suppress(EnvironmentFault):  # at the next look again
                await in_thread(say_ready, asked)
        await rest(FAR_LOOK_MS, is_to_come)


def check_grown(bindings: Bindings, graph: Graph, counts: Mapping[str, int]) -> None:
    """Raise `Grown` where an input of the embedded log has more partitions than in the counts of a run.

    Brokers tell of theirs where they are read.
    """
    environment = bindings.environment
    if isinstance(environment, LiveEnvironment):
        return
    read = {stream for spec in graph.inputs.values() for stream in bindings.streams_of(spec)} - bindings.sources.keys()
    existing = environment.streams(read & counts.keys())
    for stream in sorted(existing):
        if (now := existing[stream].partitions) > counts[stream]:
            raise grown_error(f"The stream {stream!r}", now, counts[stream])


@dataclass
class Scaler:
    """Lets all tasks of a run leave at a cut, and others go on for them, as many as were asked for.

    It is called in the thread of the event loop; what waits for the disk is done in `writer`. Invariants: no task is
    in the loop while checkpoints are rewritten, and a plan that can't be is refused before any task leaves.
    """

    assembly: Assembly
    opened: Opened
    broadcast: Mapping[str, TableContents]
    loop: Loop
    writer: Executor
    functions: list[Functions]
    on_change: Callable[[Plan, JobMetrics], None]

    def __post_init__(self) -> None:
        self.former: list[OperatorMetrics] = []
        """The metrics of tasks that were run before they were split or merged."""
        # Not as it is by now: what was asked since then is still to be heeded.
        self._asked = self.opened.asked

    async def follow(self) -> None:
        """Follow what is asked for until cancelled."""
        is_far = isinstance(self.assembly.bindings.environment, LiveEnvironment)
        for look in count(1):
            await sleep_ms(FAR_LOOK_MS if is_far else LOOK_MS)
            if look % LOOKS_FOR_GROWTH == 0:
                counts = self.opened.counts
                await self._apart(partial(check_grown, self.assembly.bindings, self.assembly.graph, counts))
            asked = await self._apart(partial(asked_size, self.assembly.bindings.environment, self.assembly.plan.app))
            if asked is not None and asked.number != self._asked.number:
                wanted, self._asked = asked.since(self._asked.number), asked
                if wanted.factor is not None:
                    await self.scale(wanted.factor, wanted.why)

    async def scale(self, factor: int, why: str) -> bool:
        """Split or merge the tasks by a factor; return whether it could be, of which the log tells else."""
        assembly = self.assembly
        before, options = (
            assembly.plan.options.factor,
            msgspec.structs.replace(assembly.plan.options, elasticity=factor),
        )
        if factor == before:
            return True
        began_ms = monotonic_ms()
        try:
            plan = make_plan(
                assembly.graph, options, self.opened.counts, wrapped=bool(assembly.around), levers=assembly.levers
            )
        except PlanError as error:
            _log.warning("%s: its tasks stay as they are: %s", assembly.plan.app, error)
            environment = assembly.bindings.environment
            refusal = Scale(before, None, f"{REFUSED}: {error}", self._asked.number)
            await self._apart(partial(environment.refuse_scale, assembly.plan.app, refusal))
            return False
        job = JobMetrics(tasks=plan.tasks, model_ms=monotonic_ms() - began_ms)
        await prepare_split(assembly.bindings.environment, assembly.plan, assembly.graph, factor)
        await self.loop.exchange(self._exchange(plan, job, why))
        return True

    def _brought(self) -> int:
        """Return how many entries of state have come to where their tasks are."""
        environment = self.assembly.bindings.environment
        return environment.brought(self.assembly.plan.app).moved if isinstance(environment, LiveEnvironment) else 0

    async def _exchange(self, plan: Plan, planned: JobMetrics, why: str) -> None:
        clock, began, brought = self.assembly.clock, self.assembly.clock.elapsed_ms(), self._brought()
        before, factor = self.assembly.plan.options.factor, plan.options.factor
        for task in await self.loop.change({task.number for task in self.loop.tasks}, ()):
            self.former += passed(self.assembly.graph, task)
            self.functions.remove(task.functions)
            await task.functions.close()
        assert not self.loop.tasks, "nobody is at work where checkpoints are rewritten"
        environment, committer = self.assembly.bindings.environment, self.loop.committer
        checkpoints = environment.checkpoints(plan.app)
        job = checkpoints.get(JOB, Checkpoint(0))
        job = msgspec.structs.replace(job, meanings={**job.meanings, **configuration(plan, self.opened.counts)})
        where = environment, plan, self.assembly.graph, committer.generation
        took_ms, notes = clock.elapsed_ms() - began, {JOB: job}
        spent_ms = await self._apart(partial(rescale, *where, why, took_ms, notes))
        await self._apart(partial(tell_split, environment, plan, self.assembly.graph))
        if committer.taken and isinstance(environment, LiveEnvironment):  # each task commits by itself
            committer.taken |= await self._apart(partial(environment.commit_by_task, plan.app, range(plan.tasks)))
        self.assembly = replace(self.assembly, plan=plan, checkpoints=environment.checkpoints(plan.app))
        await self._apart(partial(self.assembly.look, range(plan.tasks)))
        committer.share(plan)
        tasks = tasks_of(self.assembly, self.broadcast, range(plan.tasks))
        for task in tasks:
            self.functions.append(task.functions)
            await task.functions.open()
        await self.loop.change((), tasks)
        self.on_change(plan, msgspec.structs.replace(planned, checkpoints_ms=spent_ms))
        paused_ms, moved = clock.elapsed_ms() - began, self._brought() - brought
        words = plan.app, before, factor, plan.tasks, round(paused_ms)
        _log.info("%s: each task is split into %d no more, but into %d: %d tasks go on after %d ms", *words)
        # While tasks go on: the commit of the cut could not know of it, and another one would make the pause longer.
        scaled = Scaled(wall_clock_ms(), before, factor, why, paused_ms, moved=moved)
        await self._apart(partial(note_size, environment, plan.app, committer.generation, scaled))

    async def _apart(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.writer, work)
