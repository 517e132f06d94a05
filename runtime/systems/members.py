"""The containers of one run of an application, who agree on the job model and on tasks in what they all can change."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, MutableMapping
from contextlib import AbstractContextManager

import msgspec

from runtime.assignment import JobModel, assign
from runtime.systems.base import is_taken

MODEL = "model"
"""Where the job model is among what is shared."""
Shared = MutableMapping[str, bytes]


class Holding(msgspec.Struct, frozen=True, array_like=True):
    """Who has a task, in which run of the application, and how often it was taken: its generation."""

    run: int = 0
    container: str = ""
    generation: int = 0


def holding_of(shared: Shared, task: int) -> Holding:
    """Return who has a task."""
    data = shared.get(_place(task))
    return Holding() if data is None else msgspec.msgpack.decode(data, type=Holding)


class Members(ABC):
    """One container among others: whoever first sees that one came or went shares the tasks out anew.

    A container has a name that no other one of its run ever had.
    """

    def __init__(self, app: str, run: int, name: str, tasks: int) -> None:
        self.name = name
        self._app = app
        self._run = run
        self._tasks = tasks
        self._taken: dict[int, int] = {}
        """The tasks that this container has, and their generations."""

    def mine(self) -> frozenset[int]:
        """Return the tasks that this container shall run now; asked several times a second."""
        alive = self._alive()
        with self._looking() as shared:
            model = self._model(shared)
        if model.run != self._run or model.containers != alive:
            with self._changing() as shared:
                before, alive = self._model(shared), self._alive()
                tasks = assign(self._tasks, alive, before.tasks if before.run == self._run else ())
                model = JobModel(self._run, before.generation + 1, alive, tasks)
                shared[MODEL] = msgspec.msgpack.encode(model)
        return model.of(self.name)

    def take(self, tasks: Collection[int]) -> dict[int, int]:
        """Take tasks over, and return their new generations; those that another container still has are left out.

        Raises `Fenced` where the run of the application is over.
        """
        taken = {}
        with self._changing() as shared:
            for task in sorted(tasks):
                run, container, generation = msgspec.structs.astuple(holding_of(shared, task))
                if run == self._run and container not in ("", self.name) and self._is_alive(container):
                    continue
                taken[task] = generation + 1
                shared[_place(task)] = msgspec.msgpack.encode(Holding(self._run, self.name, generation + 1))
        self._taken |= taken
        return taken

    def give_up(self, tasks: Collection[int]) -> None:
        """Let others take tasks, all of whose effects are committed."""
        with self._changing() as shared:
            for task in sorted(tasks):
                self._taken.pop(task, None)
                holding = holding_of(shared, task)
                if holding.container == self.name:
                    shared[_place(task)] = msgspec.msgpack.encode(msgspec.structs.replace(holding, container=""))

    def check(self) -> None:
        """Raise `Fenced` where another container has taken a task that this one has not given up."""
        with self._looking() as shared:
            for task, generation in self._taken.items():
                if (current := holding_of(shared, task).generation) != generation:
                    raise is_taken(self._app, task, generation, current)

    @abstractmethod
    def leave(self) -> None:
        """Be gone: others may take all that this container has; a second call does nothing."""

    @abstractmethod
    def _looking(self) -> AbstractContextManager[Shared]:
        """What all containers have agreed on, to read."""

    @abstractmethod
    def _changing(self) -> AbstractContextManager[Shared]:
        """The same while nobody else changes it; raises `Fenced` where the run of the application is over."""

    @abstractmethod
    def _alive(self) -> tuple[str, ...]:
        """Return the names of all containers of this run that are alive, in order."""

    @abstractmethod
    def _is_alive(self, container: str) -> bool:
        """Whether a container of this run is alive."""

    def _model(self, shared: Shared) -> JobModel:
        data = shared.get(MODEL)
        return JobModel() if data is None else msgspec.msgpack.decode(data, type=JobModel)


def _place(task: int) -> str:
    return f"task {task}"
