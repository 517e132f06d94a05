"""Follows the job model while a run goes on: hands tasks over to other containers, and takes tasks over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import TypeVar

from operators.joins.table_join import TableContents
from runtime.assembly.assembly import Assembly
from runtime.assembly.task_builder import tasks_of
from runtime.functions.user_functions import Functions
from runtime.loop.loop import Loop
from runtime.model.checkpoint import Checkpoint
from runtime.model.clock import monotonic_ms, sleep_ms
from runtime.model.metrics import Durations, HistogramMetrics, OperatorMetrics, added
from runtime.ports.membership import Membership
from runtime.run.measurement import passed, timed

FOLLOW_MS = 200.0
"""The interval at which a container looks whether others have come or gone."""
HEARING_MS = 500.0
"""The interval where brokers tell of others anyway, while the container has the tasks that it shall have."""

MOST_TOLD = 8
"""The number of tasks, or partitions, that a line of the log names."""

T = TypeVar("T")
_log = logging.getLogger("samza_dsl")


class Follower:
    """Keeps the tasks of a loop those that the job model gives to its container.

    It is called in the thread of the event loop; what may wait is done in `writer`. Invariant: a task is taken in the
    membership before it is in the loop, and given up only when it has left the loop, with all its effects committed.
    """

    def __init__(
        self,
        membership: Membership,
        assembly: Assembly,
        broadcast: Mapping[str, TableContents],
        loop: Loop,
        writer: Executor,
        functions: list[Functions],
        settled_ms: float = FOLLOW_MS,
    ) -> None:
        self.membership = membership
        self._assembly = assembly
        self._broadcast = broadcast
        self._loop = loop
        self._writer = writer
        self._functions = functions
        self._settled_ms = settled_ms
        self.on_change: Callable[[], None] = lambda: None
        """Called when the tasks have changed."""
        self.take_overs = 0
        """The number of tasks that were taken here from containers that were gone."""
        self.former: list[OperatorMetrics] = []
        """The metrics of tasks that were run here before."""
        self.former_durations: tuple[HistogramMetrics, ...] = ()
        """Their durations, added up."""
        self.rebalances = 0
        """The number of times at which tasks have come or gone."""
        self.durations = Durations("rebalance")
        """How long each of these took, until they ran on."""
        self.settled = False
        """Whether the container had all tasks that it shall have when it last looked."""

    async def follow(self) -> None:
        """Follow the job model until cancelled; raises `Fenced` where the run is over."""
        while True:
            self.settled = await self.change()
            await sleep_ms(self._settled_ms if self.settled else FOLLOW_MS)

    async def change(self) -> bool:
        """Hand over and take over tasks; those that another container still has are taken later.

        Returns whether the container had all tasks that it shall have.
        """
        mine = await self._apart(self.membership.mine)
        have, began_ms, before = {task.number for task in self._loop.tasks}, monotonic_ms(), self.rebalances
        self.settled = mine == have
        # First hand over: tasks that others wait for stand still until then.
        if have - mine:
            await self._hand_over(have - mine)
        if mine - have:
            await self._take_over(mine - have)
        if self.rebalances > before:
            self.durations.add(monotonic_ms() - began_ms)
        return mine == have

    async def _hand_over(self, numbers: Collection[int]) -> None:
        leaving = await self._loop.change(numbers, ())
        assert {task.number for task in leaving} == {*numbers}, "a task is given up when it has left the loop"
        for task in leaving:
            self.former += passed(self._assembly.graph, task)
            self.former_durations = added([*self.former_durations, *timed(task)])
            self._functions.remove(task.functions)
            await task.functions.close()
        # Last: whoever takes a task then reads a checkpoint that has all, and the objects of the user are closed.
        await self._apart(partial(self.membership.give_up, numbers))
        self.rebalances += 1
        self.on_change()

    async def _take_over(self, numbers: Collection[int]) -> None:
        taken = await self._apart(partial(self.membership.take, numbers))
        if not taken:
            return
        environment, app = self._assembly.bindings.environment, self._assembly.plan.app
        # Read once the tasks are ours: before, their last holder might have committed once more.
        checkpoints = await self._apart(partial(environment.checkpoints, app))
        # Asked for all partitions together, and beside the loop: one by one, in it, a container had stopped for 0.2 s a
        # task.
        await self._apart(partial(self._assembly.look, taken))
        tasks = tasks_of(replace(self._assembly, checkpoints=checkpoints), self._broadcast, taken)
        for task in tasks:
            self._functions.append(task.functions)
            await task.functions.open()
        self._tell(taken, checkpoints)
        assert taken.keys() <= {*numbers}, "only tasks that were asked for are taken"
        # Before the tasks run: their first commit is compared with these generations.
        self._loop.committer.taken |= taken
        await self._loop.change((), tasks)
        self.rebalances += 1
        self.on_change()

    def _tell(self, taken: Collection[int], checkpoints: Mapping[str, Checkpoint]) -> None:
        """Log which tasks are taken over from whom, and the offsets from which they go on."""
        lost: dict[str, list[int]] = {}
        for task in sorted(taken):
            if (container := self.membership.former(task)) != "":
                lost.setdefault(container, []).append(task)
        self.take_overs += sum(map(len, lost.values()))
        app, name = self._assembly.plan.app, self.membership.name
        for container, tasks in lost.items():
            names = [self._assembly.plan.virtual(task).name for task in tasks]
            _log.warning(
                "%s: container %s takes %s over from %s, which is gone; %s",
                *(app, name, tasks_told(tasks), container, going_on(names, checkpoints)),
            )

    async def _apart(self, work: Callable[[], T]) -> T:
        """Do work that may wait for the disk, or for others, in the membership's thread, or the one that commits."""
        return await asyncio.get_running_loop().run_in_executor(self._writer, work)


def tasks_told(tasks: Collection[int]) -> str:
    """Return tasks by their numbers, as a person reads them.

    >>> tasks_told([3]), tasks_told([1, 0]), tasks_told(range(12))
    ('task 3', 'tasks 0, 1', 'tasks 0, 1, 2, 3, 4, 5, 6, 7 and 4 others')
    """
    numbers = sorted(tasks)
    if not numbers:
        return "no task"
    more = f" and {len(numbers) - MOST_TOLD} others" if len(numbers) > MOST_TOLD else ""
    return f"task{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers[:MOST_TOLD]))}{more}"


def going_on(tasks: Collection[str], checkpoints: Mapping[str, Checkpoint]) -> str:
    """Return from where tasks of these names are processed on, as their last commits say.

    >>> from runtime.model.checkpoint import Position
    >>> going_on(["0", "1"], {"0": Checkpoint(1, (Position("log", "words", 0, 17),))})
    'the last commit goes to words:0 offset 17'
    >>> going_on(["1"], {})
    'nothing was committed of it'
    """
    positions = [one for name in tasks if name in checkpoints for one in checkpoints[name].positions]
    if not positions:
        return "nothing was committed of it"
    places = [f"{one.stream}:{one.partition} offset {one.offset:,}" for one in positions[:MOST_TOLD]]
    more = f" and {len(positions) - MOST_TOLD} other partitions" if len(positions) > MOST_TOLD else ""
    return f"the last commit goes to {', '.join(places)}{more}"
