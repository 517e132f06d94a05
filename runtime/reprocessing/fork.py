"""Forks an application: another one goes on from its state at a cut, beside it, and their results are compared."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from operators.core.base import Batch
from planner.model.graph import intermediate
from planner.model.virtual_tasks import is_task
from runtime.assembly.history import HISTORY
from runtime.commit.commit import DELETED, SHARED, STATE
from runtime.job.job_model import JOB, StageOfJob
from runtime.model.checkpoint import Checkpoint, Position
from runtime.model.errors import Damaged, SamzaError
from runtime.opening.rewind import UNFINISHED, begin_anew
from runtime.opening.stored_state import CHANGING, operator_of, pieces, streams_between
from runtime.ports.commits import Commit
from runtime.ports.environment import SnapshotEnvironment
from runtime.ports.state import StateSnapshot, StateWrites
from runtime.ports.streams import Append

FORK = "fork"
"""The checkpoint of a fork, by which it is whole: where its own results begin in the outputs of the application."""
TRIES = 100
"""How often a cut of an application that runs is looked for: it commits seldom against the time that a look takes."""
ROWS_AT_ONCE = 10_000


class _Cut(NamedTuple):
    """An application as of one commit: its checkpoints, its state, and the records between its stages."""

    checkpoints: dict[str, Checkpoint]
    snapshot: StateSnapshot
    between: list[Append]
    bases: dict[tuple[str, int], int]
    outputs: dict[str, int]


def is_forked(environment: SnapshotEnvironment, own: str) -> bool:
    """Whether there is a fork of that name, and all of it."""
    return FORK in environment.checkpoints(own)


def fork_now(environment: SnapshotEnvironment, app: str, own: str, outputs: Collection[str]) -> None:
    """Let an application `own` be as another one is after its last commit, which may be running and goes on.

    A crash leaves a part, which the next call drops, and no fork. Raises SamzaError where the application has no
    commit, or a change of its state is not at its end.
    """
    cut = _cut(environment, app, outputs)
    with closing(cut.snapshot):
        environment.own(own)
        begin_anew(environment, own)
        generation, existing = environment.own(own), environment.streams()
        # No checkpoint names the streams of a fork that was killed.
        for stream in [one for one, config in existing.items() if config.intermediate and one.startswith(f"{own}-")]:
            environment.delete_stream(stream)
        begun = {STATE: Checkpoint(generation, meanings={UNFINISHED: f"a fork of {app}"})}
        environment.commit(Commit(own, generation, [], [], begun))
        for stream in sorted({stream for stream, _ in cut.bases}):
            environment.create_stream(_renamed(stream, app, own), existing[stream])
        for one in cut.between:
            mine = one._replace(stream=_renamed(one.stream, app, own))
            environment.commit(Commit(own, generation, [mine], [], {}))
        for store in environment.stores(app):
            for task in sorted(cut.snapshot.tasks(store)):
                for items in pieces(cut.snapshot.between(store, task, b"", None)):
                    environment.commit(Commit(own, generation, [], [StateWrites(store, task, items)], {}))
    found = {name: replace(one, generation=generation) for name, one in _moved(cut, app, own).items()}
    found[FORK] = Checkpoint(generation, outputs=cut.outputs)
    environment.commit(Commit(own, generation, [], [], {STATE: Checkpoint(generation), **found}))


def note_fork(environment: SnapshotEnvironment, own: str, scratch: Mapping[str, str]) -> None:
    """Let what has run over history as `own`, and written results into `scratch`, be a fork that goes on from there.

    As many results as it has written are those of before the cut.
    """
    generation = environment.generation(own)
    existing = environment.streams()
    outputs = {
        f"{stream}:{partition}": environment.offsets(other, partition).end
        for stream, other in scratch.items()
        if other in existing
        for partition in range(existing[other].partitions)
    }
    begun = {FORK: Checkpoint(generation, outputs=outputs)}
    environment.commit(Commit(own, generation, [], [], begun, gone=[HISTORY]))
    for other in scratch.values():
        if other in existing:
            environment.delete_stream(other)


def _cut(environment: SnapshotEnvironment, app: str, outputs: Collection[str]) -> _Cut:
    """Look at an application until all that was seen is of one commit."""
    for _ in range(TRIES):
        before = environment.checkpoints(app)
        if not any(map(is_task, before)):
            raise SamzaError(f"the app {app!r} has committed nothing in {environment} that could be forked")
        if before.get(CHANGING, Checkpoint(0)).meanings or UNFINISHED in before.get(STATE, Checkpoint(0)).meanings:
            raise SamzaError(f"a change of the state of {app!r} is not at its end: its next run completes it")
        snapshot = environment.snapshot(app)
        try:
            between, bases = _between(environment, app, before)
            ends = _ends(environment, outputs)
            # Whatever commits in between changes a checkpoint.
            if environment.checkpoints(app) == before:
                return _Cut(before, snapshot, between, bases, ends)
        except Damaged:
            # What was read there was consumed meanwhile.
            if environment.checkpoints(app) == before:
                snapshot.close()
                raise
        snapshot.close()
    raise SamzaError(f"{app!r} commits so often that no cut of it could be seen: fork it while it does not run")


def _ends(environment: SnapshotEnvironment, outputs: Collection[str]) -> dict[str, int]:
    existing = environment.streams()
    return {
        f"{stream}:{partition}": environment.offsets(stream, partition).end
        for stream in outputs
        if stream in existing
        for partition in range(existing[stream].partitions)
    }


def _between(
    environment: SnapshotEnvironment, app: str, checkpoints: Mapping[str, Checkpoint]
) -> tuple[list[Append], dict[tuple[str, int], int]]:
    """Return the records between stages that some task has not read, and the offset at which they begin."""
    existing = environment.streams()
    found: list[Append] = []
    bases: dict[tuple[str, int], int] = {}
    reached: dict[tuple[str, int], list[int]] = defaultdict(list)
    for one in (one for name in filter(is_task, checkpoints) for one in checkpoints[name].positions):
        reached[one.stream, one.partition].append(one.offset)
    for stream in streams_between(environment, app):
        for partition in range(existing[stream].partitions):
            start, end, _ = environment.offsets(stream, partition)
            offset = max(start, min(reached[stream, partition], default=start))
            bases[stream, partition] = offset
            while offset < end and (read := environment.read(stream, partition, offset)) is not None:
                rows = read.batch
                batch = Batch(rows.values, rows.keys, rows.timestamps, rows.stamps, headers=rows.headers)
                found.append(Append(stream, partition, batch, read.control))
                assert read.next_offset > offset, "a read leads on"
                offset = read.next_offset
    return found, bases


def _renamed(stream: str, app: str, own: str) -> str:
    return intermediate(own, operator_of(app, stream))


def _moved(cut: _Cut, app: str, own: str) -> dict[str, Checkpoint]:
    """Return the checkpoints of an application under the names that the streams between its stages have in a fork."""
    streams = {stream for stream, _ in cut.bases}

    def moved(one: Position) -> Position:
        if one.stream not in streams:
            return one
        offset = max(0, one.offset - cut.bases[one.stream, one.partition])
        return replace(one, stream=_renamed(one.stream, app, own), offset=offset, stream_id=0)

    # The lengths of bound files are the application's own, and a fork writes streams.
    found = {
        name: replace(one, positions=tuple(map(moved, one.positions)))
        for name, one in cut.checkpoints.items()
        if name not in (SHARED, DELETED, CHANGING, FORK)
    }
    if JOB in found and "stages" in found[JOB].meanings:
        said = found[JOB].meanings
        stages = [
            replace(
                stage,
                reads={_renamed(name, app, own) if name in streams else name: n for name, n in stage.reads.items()},
                apart=tuple(
                    (task, _renamed(name, app, own) if name in streams else name, n) for task, name, n in stage.apart
                ),
            )
            for stage in msgspec.json.decode(said["stages"], type=list[StageOfJob])
        ]
        found[JOB] = replace(found[JOB], meanings={**said, "stages": msgspec.json.encode(stages).decode()})
    return found


class StreamDifference(NamedTuple):
    """The comparison of two streams: the results that both have, and those that only one of them has."""

    both: int
    only: tuple[Counter[Result], Counter[Result]]


Result = tuple[bytes | None, int | None, bytes | None]
"""The key, the time and the value of a result."""


def difference(
    environment: SnapshotEnvironment, streams: tuple[str, str], starts: Mapping[str, int]
) -> StreamDifference:
    """Compare the results in two streams, whatever their order and partitions; `starts` says where to begin in each."""
    first, second = (Counter(_results(environment, stream, starts)) for stream in streams)
    return StreamDifference((first & second).total(), (first - second, second - first))


def starts_of(environment: SnapshotEnvironment, streams: tuple[str, str]) -> dict[str, int]:
    """Return the offsets at which forks begin in the streams of the applications that they are of."""
    found: dict[str, int] = {}
    for app in environment.applications():
        noted = environment.checkpoints(app).get(FORK, Checkpoint(0)).outputs
        mine = {place: at for place, at in noted.items() if place.rpartition(":")[0] in streams}
        if any(other == forked(app.rpartition(".")[2], stream) for other in streams for stream in streams):
            found |= mine
    return found


def forked(name: str, stream: str) -> str:
    """Return the name of the stream that a fork writes in the place of another.

    >>> forked("trial", "totals")
    'trial-totals'
    """
    return f"{name}-{stream}"


def _results(environment: SnapshotEnvironment, stream: str, starts: Mapping[str, int]) -> Iterator[Result]:
    for partition in range(environment.streams()[stream].partitions):
        offset = max(starts.get(f"{stream}:{partition}", 0), environment.offsets(stream, partition).start)
        while (read := environment.read(stream, partition, offset, ROWS_AT_ONCE)) is not None:
            batch = read.batch
            none = [None] * len(batch)
            yield from zip(batch.keys or none, batch.timestamps or none, batch.values, strict=True)
            assert read.next_offset > offset, "a read leads on"
            offset = read.next_offset
