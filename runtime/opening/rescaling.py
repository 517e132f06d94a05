"""The split and merge of an application's tasks, at a cut: who goes on from where, and who is heard in whose place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from threading import Event
from types import MappingProxyType
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from operators.core.base import MIN_TIMESTAMP, Batch
from operators.partition_by import BUCKETS, entry_bucket
from planner.model.graph import Graph
from planner.model.plan import Plan
from planner.model.virtual_tasks import MOST_BUCKETS, WHOLE, Split, VirtualTask, is_task, share_of
from runtime.assembly.bindings import intermediate_of
from runtime.commit.commit import STATE
from runtime.job.job_model import HASH, JOB, is_split_by
from runtime.job.key_kinds import kinds_of_all
from runtime.model.checkpoint import Checkpoint, Position
from runtime.model.clock import monotonic_ms, wall_clock_ms
from runtime.model.errors import SamzaError, command
from runtime.opening.rewind import told_of_split
from runtime.ports.commits import Commit
from runtime.ports.environment import Environment, LiveEnvironment, typed
from runtime.ports.streams import Append, Control

NO_NOTES: Mapping[str, Checkpoint] = MappingProxyType({})


SCALINGS = "scalings"
"""The checkpoint that has the history of an application's elasticity."""
MOST_SCALINGS = 100
"""The number of changes that are remembered."""


class Scaled(msgspec.Struct, frozen=True):
    """One change of an application's size: when (ms since the epoch), from and to what, why, and how long it took.

    `before` and `now` are factors; the numbers of containers are there where these changed. `took_ms` is from the
    moment at which tasks are to come to the cut until others go on, for containers until all have their tasks; 0 where
    an application was split as it began. So many entries of state were `moved` until then: none on the embedded log,
    where what is kept of a key lies where it was. It is None where an application was split as it began, and where the
    process has died behind the cut, up to which the time is then.
    """

    at_ms: int
    before: int
    now: int
    why: str
    took_ms: float
    containers: tuple[int, int] | None = None
    moved: int | None = None

    def completes(self, noted: Scaled) -> bool:
        """Whether this is what was noted at the cut, as it is known once tasks go on."""
        is_same = (self.before, self.now) == (noted.before, noted.now) and noted.containers in (None, self.containers)
        return is_same and noted.moved is None


def scalings(checkpoints: Mapping[str, Checkpoint]) -> list[Scaled]:
    """Return the changes of an application's factor, the last one at the end."""
    told = checkpoints.get(SCALINGS, Checkpoint(0)).meanings.get(SCALINGS, "[]")
    return msgspec.json.decode(told, type=list[Scaled])


def noted(known: Sequence[Scaled], scaled: Scaled) -> Checkpoint:
    """Return the history of an application's elasticity with one change more, or with one that is complete now."""
    told = [*known]
    # Another one may have been noted behind the cut of this one.
    at = next((at for at in reversed(range(len(told))) if scaled.completes(told[at])), len(told))
    told[at : at + 1] = [scaled]
    return Checkpoint(0, meanings={SCALINGS: msgspec.json.encode(told[-MOST_SCALINGS:]).decode()})


def note_size(environment: Environment, app: str, generation: int, scaled: Scaled) -> None:
    """Note a change of an application's size in its history, where the commit of its cut has noted it before."""
    history = noted(scalings(environment.checkpoints(app)), scaled)
    environment.commit(Commit(app, generation, [], [], {SCALINGS: replace(history, generation=generation)}))


class Rescaling(NamedTuple):
    """The change from one factor to another: checkpoints that are new, and the names of those that are gone."""

    before: int
    now: int
    checkpoints: dict[str, Checkpoint]
    gone: tuple[str, ...]


def rescale(
    environment: Environment,
    plan: Plan,
    graph: Graph,
    generation: int,
    why: str = "as it began",
    took_ms: float = 0.0,
    notes: Mapping[str, Checkpoint] = NO_NOTES,
) -> float | None:
    """Split or merge what an application has committed into tasks as planned, where they are not so already.

    State stays where it is: it lies by base tasks, and each virtual one looks at the entries of its own keys. All else
    is one commit, with `notes` of the application, so that a crash finds the tasks before, or those behind. Its history
    tells `why`, and how long it took to come to this cut. Return the time that all of this took, in ms; None where no
    task has committed anything that was to be split or merged.
    """
    began_ms = monotonic_ms()
    checkpoints = environment.checkpoints(plan.app)
    found = rescaled(checkpoints, plan.options.factor)
    if found is None:
        if notes:
            new = {name: replace(one, generation=generation) for name, one in notes.items()}
            environment.commit(Commit(plan.app, generation, [], [], new))
        return None
    appends = [
        Append(stream, partition, Batch([]), control)
        for stream, controls in _handovers(plan, graph, found.before, generation).items()
        if stream in (existing := environment.streams([stream]))
        for partition in range(existing[stream].partitions)
        for control in controls
    ]
    history = noted(scalings(checkpoints), Scaled(wall_clock_ms(), found.before, found.now, why, took_ms))
    state = checkpoints.get(STATE, Checkpoint(0))
    state = replace(state, meanings=told_of_split(state.meanings, plan))
    job = notes.get(JOB) or checkpoints.get(JOB, Checkpoint(0))
    # Noted with the split: after a crash nobody could tell by which hash its parts have their keys.
    job = replace(job, meanings={**job.meanings, HASH: msgspec.json.encode(BUCKETS).decode()})
    all_new = {**found.checkpoints, **notes, SCALINGS: history, STATE: state, JOB: job}
    new = {name: replace(one, generation=generation) for name, one in all_new.items()}
    environment.commit(Commit(plan.app, generation, appends, [], new, gone=found.gone))
    return monotonic_ms() - began_ms


def tell_split(environment: Environment, plan: Plan, graph: Graph) -> None:
    """Tell an environment that keeps the state of each task by itself how tasks are split, and whose an entry is."""
    if isinstance(environment, LiveEnvironment):
        environment.split(plan.app, split_by(plan, graph, plan.options.factor))


def split_by(plan: Plan, graph: Graph, factor: int) -> Split:
    """Return the split of an application's tasks by a factor, that of its plan or another one."""

    def hash_of(store: str, place: bytes) -> int:
        spec = graph.specs.get(store)
        # What an operator has left that is there no more goes with the first of the tasks.
        return max(entry_bucket(spec, place, MOST_BUCKETS), 0) if spec is not None else 0

    return Split(plan.tasks // plan.options.factor, factor, hash_of)


async def prepare_split(
    environment: Environment, plan: Plan, graph: Graph, factor: int | None, goes_on: Callable[[], bool] = lambda: True
) -> None:
    """Let state lie where it is to be once tasks are split by another factor, beside what goes on; it may be cancelled.

    It takes as long as there is state, in a thread of its own: so the cut need not wait for that.
    """
    if not isinstance(environment, LiveEnvironment) or factor in (None, plan.options.factor):
        return
    cancelled = Event()
    split = split_by(plan, graph, factor)
    work = partial(environment.prepare_split, plan.app, split, lambda: not cancelled.is_set() and goes_on())
    preparing = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        await asyncio.shield(preparing)
    finally:
        # Nobody may close the environment under it.
        cancelled.set()
        await asyncio.wait([preparing])


def factor_of(checkpoints: Mapping[str, Checkpoint]) -> int | None:
    """Return what each task of those that have committed is split into, None where none has.

    >>> factor_of({"0-1-2": Checkpoint(1)}), factor_of({})
    (2, None)
    """
    factors = {VirtualTask.of(name).factor for name in checkpoints if is_task(name)}
    assert len(factors) <= 1, "all tasks of an application have one factor"
    return next(iter(factors), None)


def check_hash(environment: Environment, app: str) -> None:
    """Refuse tasks that an earlier version has split, whose parts have other keys; raises SamzaError."""
    if not is_split_by(environment.checkpoints(app), BUCKETS):
        merge = command(f"scale {app} --factor 1")
        raise SamzaError(
            f"the tasks of {app!r} were split by an earlier version, which gave keys to other parts: let that version "
            f"merge them, and read all that there is ({merge}, run --until-now); or begin anew: "
            f"{typed(environment, f'reset {app}')}"
        )


def rescaled(checkpoints: Mapping[str, Checkpoint], now: int) -> Rescaling | None:
    """Return the checkpoints of tasks with another factor than those that were committed, if it is another.

    >>> before = {"0": Checkpoint(1, (Position("log", "clicks", 0, 70),))}
    >>> sorted(rescaled(before, 2).checkpoints), rescaled(before, 1)
    (['0-0-2', '0-1-2'], None)
    """
    tasks = {VirtualTask.of(name): one for name, one in checkpoints.items() if is_task(name)}
    before = factor_of(checkpoints)
    if before in (None, now):
        return None
    found = {}
    for base in {task.base for task in tasks}:
        for bucket in range(now):
            task = VirtualTask(base, bucket, now)
            parents = [VirtualTask(base, one, before) for one in range(before)]
            merged = _merged({one: tasks.get(one, Checkpoint(0)) for one in parents if one.meets(task)}, task)
            if merged.positions:
                found[task.name] = merged
    return Rescaling(before, now, found, tuple(task.name for task in tasks))


def _merged(parents: Mapping[VirtualTask, Checkpoint], task: VirtualTask) -> Checkpoint:
    """Return the checkpoint of a task that goes on with what its parents did: a share of one's, or all of several."""
    places = {(one.stream, one.partition) for checkpoint in parents.values() for one in checkpoint.positions}
    positions = [one for place in sorted(places) for one in _positions(parents, task, place)]
    # Who has no positions has no state either.
    told = [one.watermarks for one in parents.values() if one.positions]
    lowest = {id: min(one[id] for one in told) for id in told[0] if all(id in one for one in told)} if told else {}
    return Checkpoint(0, tuple(positions), lowest, meanings=kinds_of_all(parents.values()))


def _positions(
    parents: Mapping[VirtualTask, Checkpoint], task: VirtualTask, place: tuple[str, int]
) -> Sequence[Position]:
    """Return from where a task reads a partition: where the last of its parents is, past what others have read."""
    found = {
        parent: [one for one in checkpoint.positions if (one.stream, one.partition) == place]
        for parent, checkpoint in parents.items()
    }
    own = {parent: one for parent, all in found.items() for one in all if one.bucket == WHOLE}
    further = [one for all in found.values() for one in all if one.bucket != WHOLE]
    # Who has none yet begins at the start, and so does who goes on for it.
    if len(own) == len(parents):
        last = min(own.values(), key=lambda one: one.offset)
        heard = {
            name: min(one.producers[name] for one in own.values() if name in one.producers) for name in last.producers
        }
        first = [replace(last, producers=heard)]
    else:
        first = []
    ahead = [
        replace(one, bucket=parent.share, producers={}, watermark=MIN_TIMESTAMP, idle=())
        for parent, one in own.items()
        if not first or one.offset > first[0].offset
    ]
    # Of one bucket the furthest counts: all below it has been processed.
    furthest: dict[str, Position] = {}
    for one in sorted((*ahead, *further), key=lambda one: one.offset):
        furthest[one.bucket] = one
    return [*first, *(one for _, one in sorted(furthest.items()) if share_of(one.bucket, task.base).meets(task))]


def _handovers(plan: Plan, graph: Graph, before: int, generation: int) -> dict[str, list[Control]]:
    """Return what readers of streams between stages are told: who goes on in whose place, by stream."""
    found: dict[str, list[Control]] = {}
    for stage in plan.stages:
        writing = [graph.specs[id] for id in stage.operators if graph.specs[id].repartitions]
        now = [plan.virtual(task) for task in stage.tasks]
        controls = [
            Control(task.name, MIN_TIMESTAMP, generation, heirs=_heirs(task, now))
            for base in stage.bases
            for task in (VirtualTask(base, bucket, before) for bucket in range(before))
        ]
        found |= {intermediate_of(graph, spec): controls for spec in writing}
    return found


def _heirs(task: VirtualTask, among: Collection[VirtualTask]) -> tuple[str, ...]:
    return tuple(one.name for one in among if one.meets(task))
