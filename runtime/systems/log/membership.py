"""The containers of one run of an application, which agree on the job model and on tasks in records that they share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, MutableMapping
from contextlib import AbstractContextManager

import msgspec

from runtime.model.assignment import JobModel, Placement, Placing, placed
from runtime.ports.commits import taken_error
from runtime.ports.membership import Membership

MODEL = "model"
"""The place of the job model among the shared records."""
Shared = MutableMapping[str, bytes]


class Holder(msgspec.Struct, frozen=True, array_like=True):
    """The holder of a task, in a run of the application, and how often the task was taken: its generation."""

    run: int = 0
    container: str = ""
    generation: int = 0


def holding_of(shared: Shared, task: int) -> Holder:
    """Return who has a task."""
    data = shared.get(_place(task))
    return Holder() if data is None else msgspec.msgpack.decode(data, type=Holder)


class Members(Membership):
    """One container among others: whoever first sees that one came or went shares the tasks out anew.

    A container has a name that no other one of its run ever had. A task's generation grows with each that takes it, and
    is kept across runs. One thread at a time calls it.
    """

    def __init__(self, app: str, run: int, name: str, tasks: int, placement: Placement) -> None:
        self.name = name
        self._app = app
        self._run = run
        self._tasks = tasks
        self._placement = placement
        self._taken: dict[int, int] = {}
        """The tasks that this container has, and their generations."""
        self._former: dict[int, str] = {}

    def mine(self) -> frozenset[int]:
        alive = self._alive()
        with self._looking() as shared:
            model = model_in(shared)
        if model.run != self._run or model.containers != alive:
            with self._changing() as shared:
                # Looked at again under the lock: another one may have seen the change first, or one more come since.
                before, alive = model_in(shared), self._alive()
                had = before.tasks if before.run == self._run else ()
                tasks = placed(Placing(self._tasks, dict.fromkeys(alive, ""), had), self._placement)
                model = JobModel(self._run, before.generation + 1, alive, tasks)
                shared[MODEL] = msgspec.msgpack.encode(model)
        return model.of(self.name)

    def take(self, tasks: Collection[int]) -> dict[int, int]:
        taken = {}
        with self._changing() as shared:
            for task in sorted(tasks):
                run, container, generation = msgspec.structs.astuple(holding_of(shared, task))
                # Whoever held it in an earlier run is fenced by the run itself. In this one it must have given the
                # task up, or be dead.
                if run == self._run and container not in ("", self.name) and self._is_alive(container):
                    continue
                taken[task] = generation + 1
                assert taken[task] > self._taken.get(task, 0), "a task's generation only grows"
                self._former[task] = container if run == self._run else ""
                shared[_place(task)] = msgspec.msgpack.encode(Holder(self._run, self.name, generation + 1))
        self._taken |= taken
        return taken

    def former(self, task: int) -> str:
        return self._former.get(task, "")

    def give_up(self, tasks: Collection[int]) -> None:
        with self._changing() as shared:
            for task in sorted(tasks):
                self._taken.pop(task, None)
                holding = holding_of(shared, task)
                if holding.container == self.name:
                    shared[_place(task)] = msgspec.msgpack.encode(msgspec.structs.replace(holding, container=""))

    def check(self) -> None:
        with self._looking() as shared:
            for task, generation in self._taken.items():
                if (current := holding_of(shared, task).generation) != generation:
                    raise taken_error(self._app, task, generation, current)

    @abstractmethod
    def _looking(self) -> AbstractContextManager[Shared]:
        """Open the agreement of all containers, to read."""

    @abstractmethod
    def _changing(self) -> AbstractContextManager[Shared]:
        """Open it while nobody else changes it; raises `Fenced` where the run of the application is over."""

    @abstractmethod
    def _alive(self) -> tuple[str, ...]:
        """Return the names of all containers of this run that are alive, in order."""

    @abstractmethod
    def _is_alive(self, container: str) -> bool:
        """Whether a container of this run is alive."""


def model_in(shared: Shared) -> JobModel:
    """Return the job model that was agreed on last."""
    data = shared.get(MODEL)
    return JobModel() if data is None else msgspec.msgpack.decode(data, type=JobModel)


def _place(task: int) -> str:
    return f"task {task}"
