"""The pages of a run's committed state: from the data directory, or from the containers that have it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Protocol, runtime_checkable
from urllib.parse import unquote

from operators.core.protocols import CheckedProtocol
from planner.model.graph import Graph
from runtime.model.clock import sleep_ms
from runtime.model.errors import SamzaError
from runtime.queries.state_requests import NoAnswer, StateAnswer, StateDesk, StateRequest
from runtime.run.driver import Watched
from runtime.systems.log.environment import LogEnvironment
from runtime.systems.log.recovery import DATA_FILE
from runtime.watching.server import Answer, Page, Request

JSON = "application/json; charset=utf-8"
ANSWER_S = 9.0
"""The time that a run has to answer: as long as a request may wait for a commit, and some more."""
SOON_MS = 60_000.0


@runtime_checkable
class KeepsState(Protocol, metaclass=CheckedProtocol):
    """A run that answers for the state that its process, or its containers, have."""

    async def state_answer(self, request: StateRequest) -> StateAnswer:
        """Return the answer to a request for state, in the run's event loop."""


class StatePages:
    """Shows the committed state of an application at `/state/`: on the log whether it runs or not.

    The log is read in the thread of the server, by whoever asks, and a run is not disturbed. Elsewhere state lies with
    the run, which is asked in its event loop.
    """

    def __init__(self, graph: Graph, data: Path | None) -> None:
        self._desk = StateDesk(graph, lambda: _opened(data)) if data is not None else None
        self._run: Watched | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def pages(self) -> dict[str, Page]:
        """The page of all operators, and those of each below it."""
        return {"/state": Page(self._answer, of_users=True), "/state/": Page(self._answer, of_users=True)}

    async def watch(self, run: Watched) -> None:
        """Know the run to ask, beside it in its event loop, until cancelled at its end."""
        self._run, self._loop = run, asyncio.get_running_loop()
        try:
            while True:
                await sleep_ms(SOON_MS)
        finally:
            self._loop = None

    def close(self) -> None:
        """Let go of what ranges hold in place; the server has ended."""
        if self._desk is not None:
            self._desk.close()

    async def _answer(self, request: Request) -> Answer:
        found = await self._found(StateRequest(unquote(request.below.strip("/")), request.said))
        return Answer(found.status, found.json, JSON)

    async def _found(self, asked: StateRequest) -> StateAnswer:
        if self._desk is not None:
            return await self._desk.answer(asked)
        run, loop = self._run, self._loop
        if not isinstance(run, KeepsState) or loop is None:
            return NoAnswer(503, "no run has this state now: ask while it runs, and not on Spark").answer
        with suppress(TimeoutError, RuntimeError):
            async with asyncio.timeout(ANSWER_S):
                return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(run.state_answer(asked), loop))
        return NoAnswer(503, "the run does not answer").answer


@contextmanager
def _opened(data: Path) -> Iterator[LogEnvironment]:
    # Not made by who only reads: a run makes it.
    if not (data / DATA_FILE).is_file():
        raise SamzaError("there is no state yet: no run has begun")
    with closing(LogEnvironment(data)) as environment:
        yield environment
