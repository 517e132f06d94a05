"""Follows the job model while a run goes on: hands tasks over to other containers, and takes others over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import TypeVar

from operators.table_join import TableContents
from runtime.assembly import Assembly
from runtime.assignment import Membership
from runtime.clock import sleep_ms
from runtime.functions import Functions
from runtime.loop import Loop
from runtime.measure import passed
from runtime.metrics import OperatorMetrics

FOLLOW_MS = 200.0
"""How often a container looks whether others have come or gone."""
HEARING_MS = 500.0
"""How often one does that hears it seconds later in any case, while it has what it shall have."""

T = TypeVar("T")


class Follower:
    """Keeps the tasks of a loop those that the job model gives to its container."""

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
        self.former: list[OperatorMetrics] = []
        """What passed through tasks that were run here before."""

    async def follow(self) -> None:
        """Do so until it is cancelled."""
        while True:
            is_settled = await self.change()
            await sleep_ms(self._settled_ms if is_settled else FOLLOW_MS)

    async def change(self) -> bool:
        """Hand over and take over what there is to; what another container still has is taken later.

        Returns whether it had all that it shall have.
        """
        mine = await self._apart(self.membership.mine)
        have = {task.number for task in self._loop.tasks}
        if have - mine:
            await self._hand_over(have - mine)
        if mine - have:
            await self._take_over(mine - have)
        return mine == have

    async def _hand_over(self, numbers: Collection[int]) -> None:
        for task in await self._loop.change(numbers, ()):
            self.former += passed(self._assembly.graph, task)
            self._functions.remove(task.functions)
            await task.functions.close()
        await self._apart(partial(self.membership.give_up, numbers))

    async def _take_over(self, numbers: Collection[int]) -> None:
        taken = await self._apart(partial(self.membership.take, numbers))
        if not taken:
            return
        environment, app = self._assembly.bindings.environment, self._assembly.plan.app
        checkpoints = await self._apart(partial(environment.checkpoints, app))
        await self._apart(partial(self._assembly.look, taken))  # which what goes on meanwhile does not wait for
        tasks = replace(self._assembly, checkpoints=checkpoints).tasks(self._broadcast, taken)
        for task in tasks:
            self._functions.append(task.functions)
            await task.functions.open()
        self._loop.committer.taken |= taken
        await self._loop.change((), tasks)

    async def _apart(self, work: Callable[[], T]) -> T:
        """Do what may wait for the disk, or for others, in a thread of its own or in the one that commits."""
        return await asyncio.get_running_loop().run_in_executor(self._writer, work)
