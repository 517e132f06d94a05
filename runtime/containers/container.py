"""One container as the process that has started it knows it, and its process, which goes from one run to the next."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from itertools import count

from runtime.containers.protocol import AskState, Connection, Failed, Report
from runtime.model.metrics import RunMetrics
from runtime.queries.state_requests import NoAnswer, StateAnswer, StateRequest

PATIENCE_S = 60.0
"""The time that containers have to end when one has failed."""
_NUMBERS = count()


class Container:
    """One process with a share of the tasks."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, line: Connection, began_ms: float) -> None:
        self.name = name
        self.process = process
        self.line = line
        self.joined = False
        self.tasks: tuple[int, ...] = ()
        self.report: Report | None = None
        self.metrics = RunMetrics()
        self.heard_ms = began_ms
        """When it has last said something, or was started."""
        self.told = asyncio.Event()
        """Set with each of its numbers; who asks for them clears it."""
        self.failed: Failed | None = None
        self.ended = False
        self.idle = False
        """Whether its run is over, and its process waits for another one."""
        self.asked: dict[int, asyncio.Future[StateAnswer]] = {}
        """The requests for state that it has not answered yet, by their numbers."""

    def renew(self, metrics: RunMetrics) -> None:
        """Take in its numbers of this moment."""
        self.metrics = metrics
        self.told.set()

    async def state_answer(self, request: StateRequest) -> StateAnswer:
        """Return the container's answer to a request for the state of its tasks, however it ends."""
        number = next(_NUMBERS)
        self.asked[number] = asyncio.get_running_loop().create_future()
        self.line.say(AskState(number, request))
        try:
            return await self.asked[number]
        finally:
            del self.asked[number]

    def gone(self) -> None:
        """Answer whoever still waits: the container has ended."""
        for waiting in self.asked.values():
            if not waiting.done():
                waiting.set_result(NoAnswer(503, f"container {self.name} has ended meanwhile").answer)

    @property
    def has_committed(self) -> bool:
        """Whether the container has committed anything."""
        return self.report is not None and self.report.commits > 0

    async def end(self, *, at_once: bool) -> None:
        """Wait for the end of the process, whose line is cut; kill it where that takes too long, or `at_once`."""
        process = self.process
        if self.idle:
            await self.line.close()  # which is what it waits for
        if not at_once:
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE_S):
                    await process.wait()
        if process.returncode is None:
            with suppress(ProcessLookupError):
                # process.kill() would reap it, and asyncio would miss its end.
                os.kill(process.pid, signal.SIGKILL)
            await process.wait()
        await self.line.close()

    def how_it_ended(self) -> str:
        """Return in words how the process has ended."""
        if self.failed is not None:
            first, *_ = self.failed.text.splitlines() or [""]
            return f"failed with {self.failed.kind}: {first}"
        status = self.process.returncode or 0
        return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit code {status}"

    def how_it_died(self, deaths: int) -> str:
        """Return in words how it has died, as others before it, and where to look."""
        why = "whether there is memory enough for so many"
        if (self.process.returncode or 0) > 0:
            why = "whether a function of the application calls sys.exit() or os._exit()"
        return (
            f"container {self.name} {self.how_it_ended()}, as did {deaths - 1} before it, and none of them has "
            f"committed anything: look at what they have printed, and {why}"
        )


class Processes:
    """Starts the processes of containers, and keeps those whose run is over while another one is to come.

    Invariant: a process that is kept belongs to nobody else, until it is taken for its slot or ended.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._idle: dict[int, Container] = {}
        """By slot, the containers of the run before whose processes wait."""

    async def begin(self, slot: int, held: Sequence[int]) -> tuple[asyncio.subprocess.Process, Connection]:
        """Return a process for a slot, one that waits or a new one that holds these descriptors, and the line to it."""
        idle = self._idle.pop(slot, None)
        if idle is not None and idle.process.returncode is None:
            return idle.process, idle.line
        if idle is not None:
            await idle.end(at_once=True)
        mine, its = socket.socketpair()
        with its:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                str(its.fileno()),
                pass_fds=[its.fileno(), *held],
                stdin=asyncio.subprocess.DEVNULL,
                # Ctrl-C is for the process that starts them alone, which then tells the containers.
                process_group=0,
            )
        return process, await Connection.over(mine)

    def keep(self, slot: int, container: Container) -> None:
        """Let the process of a container, whose run is over, wait for another run."""
        assert container.idle and slot not in self._idle, "a process that is at work is in no other's hands"
        self._idle[slot] = container

    async def end(self) -> None:
        """End those that wait."""
        idle, self._idle = self._idle, {}
        await asyncio.gather(*(one.end(at_once=False) for one in idle.values()))
