"""The job model as it is read from outside: the options of an application, its tasks, and who runs these where."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from operators.partition_by import BUCKETS
from planner.checks.grouping import layout
from planner.model.plan import Options, Plan
from planner.model.virtual_tasks import WHOLE, VirtualTask, is_task
from runtime.model.assignment import JobModel
from runtime.model.checkpoint import Checkpoint
from runtime.ports.environment import Environment

ALONE = "process "
"""The beginning of the name of a process that has an application to itself, where those of containers stand."""
JOB = "job"
"""The checkpoint with the configuration under which an application was opened last."""
HASH = "hash"
"""The word under which the job notes by which hash its tasks are split."""


class StageOfJob(msgspec.Struct, frozen=True, kw_only=True):
    """A stage: its number of tasks, and the partition count of each stream that they read.

    Where each task reads one partition of one stream, `apart` has (task, stream, partition). All of it is of base
    tasks, each of which is split into so many `buckets`.
    """

    id: str
    tasks: int
    reads: dict[str, int]
    apart: tuple[tuple[int, str, int], ...] = ()
    buckets: int = 1

    def read_by(self, task: int) -> list[tuple[str, int]]:
        """Return the streams and partitions that a task reads."""
        if self.apart:
            return [(stream, partition) for one, stream, partition in self.apart if one == task]
        return [(name, task) for name, read in self.reads.items() if task < read]


class TaskOfJob(msgspec.Struct, frozen=True, kw_only=True):
    """A task: what it reads, as (stream, partition), who runs it now, if anybody does, and who copies its state.

    Its name tells a virtual task's base task, the bucket of keys that it has of these partitions, and of how many.
    """

    task: int
    name: str
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
    """An application as it is run: its newest `generation`, and the number of its job `model`.

    Whatever is not known, as an earlier version has run it or nobody has, is None or empty.

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

    @property
    def factor(self) -> int:
        """The number of virtual tasks that each task is split into."""
        return 1 if self.options is None else self.options.factor

    @property
    def is_alone(self) -> bool:
        """Whether one process has the application to itself, and can't have several containers while it runs."""
        return any(one.name.startswith(ALONE) for one in self.containers)


def configuration(plan: Plan, partitions: Mapping[str, int]) -> dict[str, str]:
    """Return the words that a checkpoint notes of a plan on streams of so many partitions."""
    tables = {stream.name for stream in plan.streams if stream.broadcast}
    planned = {stream.name: stream.partitions for stream in plan.streams}
    stages = [
        StageOfJob(
            id=stage.id,
            tasks=len(stage.bases),
            apart=stage.apart,
            buckets=stage.buckets,
            reads={
                name: partitions.get(name) or planned.get(name) or stage.partitions
                for name in (*stage.inputs, *stage.tables)
                if name not in tables
            },
        )
        for stage in plan.stages
    ]
    said = {"options": plan.options, "stages": stages, "layout": layout(plan), HASH: BUCKETS}
    return {name: msgspec.json.encode(one).decode() for name, one in said.items()}


def is_split_by(checkpoints: Mapping[str, Checkpoint], hash: str) -> bool:
    """Whether tasks are split by a hash, if they are split at all, or have not come together again since a merge."""
    said = checkpoints.get(JOB, Checkpoint(0)).meanings.get(HASH)
    tasks = {name: one for name, one in checkpoints.items() if is_task(name)}
    is_whole = all(VirtualTask.of(name).factor == 1 for name in tasks) and all(
        position.bucket == WHOLE for one in tasks.values() for position in one.positions
    )
    return is_whole or said == msgspec.json.encode(hash).decode()


def reads_of(checkpoints: Mapping[str, Checkpoint]) -> dict[str, dict[str, int]]:
    """Return by stage the partition counts of the streams that it read when the application was last opened."""
    noted = checkpoints.get(JOB, Checkpoint(0)).meanings
    return {one.id: one.reads for one in msgspec.json.decode(noted.get("stages", "[]"), type=list[StageOfJob])}


def layout_of(checkpoints: Mapping[str, Checkpoint]) -> tuple[str, ...]:
    """Return the `layout` of an application's tasks as it was last opened."""
    return msgspec.json.decode(checkpoints.get(JOB, Checkpoint(0)).meanings.get("layout", "[]"), type=tuple[str, ...])


def job_of(environment: Environment, app: str) -> Job:
    """Return the job model of an application as it is now."""
    noted = environment.checkpoints(app).get(JOB, Checkpoint(0)).meanings
    options = msgspec.json.decode(noted["options"], type=Options) if "options" in noted else None
    stages = msgspec.json.decode(noted.get("stages", "[]"), type=list[StageOfJob])
    model = environment.job_model(app)
    numbers = [max(stage.tasks, *(task + 1 for task, _, _ in stage.apart)) for stage in stages if stage.apart]
    # A stage apart may leave numbers out, so the largest counts; of an earlier version only the model is known.
    count = max([*numbers, *(stage.tasks for stage in stages)], default=len(model.tasks))
    factor = max((stage.buckets for stage in stages), default=1)
    runs = _runs(model, count * factor)
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
                name=VirtualTask(task % count, task // count, factor).name,
                reads=tuple(dict.fromkeys(read for stage in stages for read in stage.read_by(task % count))),
                container=runs.get(task),
                host=hosts.get(runs.get(task, "")),
                standby=model.standbys[task] if task < len(model.standbys) else (),
            )
            for task in range(count * factor)
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
    # A run in one process shares nothing out, and writes no tasks into the model.
    if len(model.containers) == 1 and not model.tasks:
        return dict.fromkeys(range(tasks), model.containers[0])
    return {task: name for task, name in enumerate(model.tasks) if name in model.containers}
