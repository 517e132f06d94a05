"""The job model as it can be read from outside: what an application is run with, and who runs which task where."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from planner.grouping import layout
from planner.plan import Options, Plan
from runtime.assignment import JobModel
from runtime.checkpoint import Checkpoint
from runtime.systems.base import Environment

JOB = "job"
"""The checkpoint that says what an application was opened with when it was last run."""


class StageOfJob(msgspec.Struct, frozen=True, kw_only=True):
    """A stage, in so many tasks, and how many partitions each stream has that these read.

    Where each reads one of one stream alone, `apart` has which.
    """

    id: str
    tasks: int
    reads: dict[str, int]
    apart: tuple[tuple[int, str, int], ...] = ()

    def read_by(self, task: int) -> list[tuple[str, int]]:
        """Return the streams and partitions that a task reads."""
        if self.apart:
            return [(stream, partition) for one, stream, partition in self.apart if one == task]
        return [(name, task) for name, read in self.reads.items() if task < read]


class TaskOfJob(msgspec.Struct, frozen=True, kw_only=True):
    """A task: what it reads, as (stream, partition), who runs it now, if anybody does, and who copies its state."""

    task: int
    reads: tuple[tuple[str, int], ...]
    container: str | None = None
    host: str | None = None
    standby: tuple[str, ...] = ()


class ContainerOfJob(msgspec.Struct, frozen=True, kw_only=True):
    """A container that lives, its host, and its tasks."""

    name: str
    host: str
    tasks: tuple[int, ...]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """An application as it is run: by its newest `generation`, of which `model` counts how tasks were shared out.

    What is not known, since it was run by an earlier version or never, is None or empty.

    >>> Job(app="spending", environment="here", generation=1, model=0).tasks
    ()
    """

    app: str
    environment: str
    generation: int
    model: int
    options: Options | None = None
    tasks: tuple[TaskOfJob, ...] = ()
    containers: tuple[ContainerOfJob, ...] = ()


def configuration(plan: Plan, partitions: Mapping[str, int]) -> dict[str, str]:
    """Return what is noted of a plan on streams of so many partitions, as words beside a checkpoint."""
    tables = {stream.name for stream in plan.streams if stream.broadcast}
    planned = {stream.name: stream.partitions for stream in plan.streams}
    stages = [
        StageOfJob(
            id=stage.id,
            tasks=len(stage.tasks),
            apart=stage.apart,
            reads={
                name: partitions.get(name) or planned.get(name) or stage.partitions
                for name in (*stage.inputs, *stage.tables)
                if name not in tables
            },
        )
        for stage in plan.stages
    ]
    said = {"options": plan.options, "stages": stages, "layout": layout(plan)}
    return {name: msgspec.json.encode(one).decode() for name, one in said.items()}


def reads_of(checkpoints: Mapping[str, Checkpoint]) -> dict[str, dict[str, int]]:
    """Return the partitions that each stream had which a stage read, by stage, when the application was last opened."""
    noted = checkpoints.get(JOB, Checkpoint(0)).meanings
    return {one.id: one.reads for one in msgspec.json.decode(noted.get("stages", "[]"), type=list[StageOfJob])}


def layout_of(checkpoints: Mapping[str, Checkpoint]) -> tuple[str, ...]:
    """Return what the numbers of an application's tasks came from when it was last opened."""
    return msgspec.json.decode(checkpoints.get(JOB, Checkpoint(0)).meanings.get("layout", "[]"), type=tuple[str, ...])


def job_of(environment: Environment, app: str) -> Job:
    """Return how an application is run now."""
    noted = environment.checkpoints(app).get(JOB, Checkpoint(0)).meanings
    options = msgspec.json.decode(noted["options"], type=Options) if "options" in noted else None
    stages = msgspec.json.decode(noted.get("stages", "[]"), type=list[StageOfJob])
    model = environment.job_model(app)
    numbers = [max(stage.tasks, *(task + 1 for task, _, _ in stage.apart)) for stage in stages if stage.apart]
    count = max([*numbers, *(stage.tasks for stage in stages)], default=len(model.tasks))
    runs = _runs(model, count)
    hosts = dict(zip(model.containers, model.hosts, strict=False))
    return Job(
        app=app,
        environment=str(environment),
        generation=environment.generation(app),
        model=model.generation,
        options=options,
        tasks=tuple(
            TaskOfJob(
                task=task,
                reads=tuple(dict.fromkeys(read for stage in stages for read in stage.read_by(task))),
                container=runs.get(task),
                host=hosts.get(runs.get(task, "")),
                standby=model.standbys[task] if task < len(model.standbys) else (),
            )
            for task in range(count)
        ),
        containers=tuple(
            ContainerOfJob(
                name=name,
                host=hosts.get(name, ""),
                tasks=tuple(task for task, container in runs.items() if container == name),
            )
            for name in model.containers
        ),
    )


def _runs(model: JobModel, tasks: int) -> dict[int, str]:
    """Return who runs each task; one process that shares with nobody has all."""
    if len(model.containers) == 1 and not model.tasks:
        return dict.fromkeys(range(tasks), model.containers[0])
    return {task: name for task, name in enumerate(model.tasks) if name in model.containers}
