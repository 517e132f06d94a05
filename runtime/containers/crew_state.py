"""The committed state of a run in several containers, as the process that has started some of them is asked for it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from planner.model.graph import Graph
from runtime.containers.container import Container
from runtime.model.errors import SamzaError
from runtime.ports.environment import Environment, QueryableEnvironment
from runtime.queries.state_query import QueriedState, StateQuery, ended_error
from runtime.queries.state_requests import StateAnswer, StateRequest
from runtime.queries.state_routes import Asked, StateRoutes
from runtime.run.driver import in_thread
from runtime.systems.kafka.client.topic import KafkaCluster
from runtime.systems.log.environment import LogEnvironment

if TYPE_CHECKING:
    from runtime.queries.far_state import FarStateQuery

ANSWER_S = 12.0
"""The time that a container has to answer: as long as a request may wait for a commit there, and some more."""


class CrewState:
    """The state of a run's containers: on the log as it lies there, on Kafka as they answer, here and elsewhere.

    Any thread may call `state`, and ask what it returns; the rest is for the thread of the run's event loop. Invariant:
    between `begin` and `end` that loop turns, and the connections that others are asked by are closed with the run.
    """

    def __init__(
        self,
        graph: Graph,
        environment: Environment,
        cluster: KafkaCluster | None,
        containers: Mapping[int, Container],
        token_file: str | Path | None,
    ) -> None:
        self._graph, self._environment, self._cluster = graph, environment, cluster
        self._containers, self._token_file = containers, token_file
        self._gone: set[str] = set()
        """The names of containers of ours that are gone."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks = 0
        self._is_over = False
        self._far: FarStateQuery | None = None
        self._opening = Lock()

    @property
    def gone(self) -> frozenset[str]:
        """The names of containers of ours that are gone."""
        return frozenset(self._gone)

    def count_out(self, container: Container) -> None:
        """Know of a container that is gone, before brokers do."""
        container.gone()
        self._gone.add(container.name)

    def begin(self, tasks: int) -> None:
        """Know the loop in which containers are asked, and how many tasks they share from now on."""
        self._loop, self._tasks = asyncio.get_running_loop(), tasks

    def end(self) -> None:
        """Close what others were asked by; the run is over."""
        with self._opening:
            self._is_over, self._loop = True, None
            far, self._far = self._far, None
        if far is not None:
            far.close()

    def state(self, operator: str) -> QueriedState:
        """Return the state of an operator, of all containers; raises PlanError where none can be asked for.

        No brokers are asked yet: the run's event loop may call it.
        """
        environment = self._environment
        if isinstance(environment, LogEnvironment):
            return StateQuery(self._graph, partial(self._on_log, environment)).state(operator)
        # Imported late: on the log nobody is asked.
        from runtime.queries.far_state import OwnContainers, far_query

        with self._opening:
            if self._is_over:
                raise self._ended_error()
            if self._far is None:
                assert self._cluster is not None, "what is no log is a cluster"
                self._far = far_query(
                    self._graph, self._cluster, self._token_file, OwnContainers(self._names, self._asked, self._check)
                )
            return self._far.state(operator)

    async def answer(self, request: StateRequest) -> StateAnswer:
        """Return the answer of the container that has the state which is asked for."""

        def held() -> dict[int, tuple[int, ...]]:
            return {slot: one.tasks for slot, one in sorted(self._containers.items()) if one.joined}

        async def others() -> dict[int, str]:
            model = await in_thread(self._environment.job_model, self._graph.app)
            # Of one of ours that is gone brokers know later.
            living = ((task, name) for task, name in enumerate(model.tasks) if name not in self._gone)
            return {task: where for task, name in living if (where := model.whereabouts(name))}

        def asked(slot: int) -> Asked:
            return self._containers[slot].state_answer

        return await StateRoutes(self._graph, self._tasks, held, asked, others).answer(request)

    def _on_log(self, log: LogEnvironment) -> AbstractContextManager[QueryableEnvironment]:
        return closing(LogEnvironment(log.path)) if self._is_over else nullcontext(log)

    def _names(self) -> set[str]:
        return {one.name for one in [*self._containers.values()]}

    def _asked(self, path: str) -> tuple[int, bytes]:
        """Ask our containers in the run's event loop, from another thread; raises TimeoutError where none answers."""
        self._check()
        loop, url = self._loop, urlsplit(path)
        if loop is None:
            raise self._ended_error()
        answer = self.answer(StateRequest(unquote(url.path.removeprefix("/state/")), url.query))
        try:
            answering = asyncio.run_coroutine_threadsafe(answer, loop)
        except RuntimeError:  # the loop was closed meanwhile
            answer.close()
            raise self._ended_error() from None
        try:
            found = answering.result(ANSWER_S)
        except TimeoutError:
            answering.cancel()
            raise
        except CancelledError:  # as all is that the loop does as it ends
            raise self._ended_error() from None
        return found.status, bytes(found.json, "utf-8")

    def _check(self) -> None:
        """Raise SamzaError where containers can't be asked: the run is over, or this thread hears them."""
        if self._is_over:
            raise self._ended_error()
        if self._loop is not None and _turns_here(self._loop):
            raise SamzaError(
                "run.state(...) asks containers, and would hold up the event loop that hears them; write instead: "
                "await asyncio.to_thread(run.state(...).get, key)"
            )

    def _ended_error(self) -> SamzaError:
        return ended_error(self._graph.app, str(self._environment))


def _turns_here(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether a loop turns in this thread, which it would wait for."""
    with suppress(RuntimeError):
        return asyncio.get_running_loop() is loop
    return False
