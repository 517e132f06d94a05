"""Forks an application: another one goes on from its state at a cut, beside it, and their results are compared."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from operators.core.base import MAX_TIMESTAMP, Batch
from planner.model.graph import intermediate
from planner.model.virtual_tasks import is_task
from runtime.assembly.history import HISTORY
from runtime.commit.commit import DELETED, STATE
from runtime.job.job_model import JOB, StageOfJob
from runtime.model.checkpoint import SHARED, Checkpoint, Position
from runtime.model.errors import Damaged, SamzaError
from runtime.opening.rewind import UNFINISHED, begin_anew, is_unfinished
from runtime.opening.stored_state import CHANGING, operator_of, pieces, streams_between
from runtime.ports.commits import Commit
from runtime.ports.environment import LiveEnvironment, SnapshotEnvironment
from runtime.ports.state import StateSnapshot, StateWrites
from runtime.ports.streams import Append, Offsets, Read

FORK = "fork"
"""The checkpoint of a fork, by which it is whole: where its own results begin in the outputs of the application."""
TRIES = 100
"""How often a cut of an application that runs is looked for: it commits seldom against the time that a look takes."""
ROWS_AT_ONCE = 10_000


class _Unread(NamedTuple):
    """Records between two stages, none of which some task has read and another one not; `following` is behind them."""

    records: Append
    following: int


class _Cut(NamedTuple):
    """An application as of one commit: its checkpoints, its state, and the records between its stages."""

    checkpoints: Mapping[str, Checkpoint]
    snapshot: StateSnapshot
    between: dict[str, list[_Unread]]
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
        copied = {stream: _copied(environment, app, own, stream, cut.between[stream]) for stream in sorted(cut.between)}
        for store in environment.stores(app):
            for task in sorted(cut.snapshot.tasks(store)):
                for items in pieces(cut.snapshot.between(store, task, b"", None)):
                    environment.commit(Commit(own, generation, [], [StateWrites(store, task, items)], {}))
    found = {name: replace(one, generation=generation) for name, one in _moved(cut, app, own, copied).items()}
    found[FORK] = Checkpoint(generation, outputs=cut.outputs)
    environment.commit(Commit(own, generation, [], [], {STATE: Checkpoint(generation), **found}))


def note_fork(environment: SnapshotEnvironment, own: str, scratch: Mapping[str, str]) -> None:
    """Let what has run over history as `own`, and written results into `scratch`, be a fork that goes on from there.

    As many results as it has written are those of before the cut.
    """
    generation = environment.generation(own)
    existing = environment.streams({*scratch, *scratch.values()})
    outputs = {
        f"{stream}:{partition}": _behind_as_many(environment, stream, other, partition)
        for stream, other in scratch.items()
        if other in existing and stream in existing
        for partition in range(existing[other].partitions)
    }
    begun = {FORK: Checkpoint(generation, outputs=outputs)}
    environment.commit(Commit(own, generation, [], [], begun, gone=[HISTORY]))
    for other in scratch.values():
        if other in existing:
            environment.delete_stream(other)


class _Copied(NamedTuple):
    """The place of records in a copy of their partition: those up to `following` begin at `offset` there."""

    following: int
    offset: int


def _copied(
    environment: SnapshotEnvironment, app: str, own: str, stream: str, unread: Sequence[_Unread]
) -> dict[int, list[_Copied]]:
    """Copy records between stages into the stream of a fork, and return where they lie there, by partition."""
    name, config = _renamed(stream, app, own), environment.streams([stream])[stream]
    environment.create_stream(name, config)
    found: dict[int, list[_Copied]] = defaultdict(list)
    for piece in unread:
        partition = piece.records.partition
        # Asked for each: the markers of transactions take offsets as well.
        found[partition].append(_Copied(piece.following, environment.offsets(name, partition).end))
        mine = piece.records._replace(stream=name)
        environment.commit(Commit(own, environment.generation(own), [mine], [], {}))
    for partition in range(config.partitions):
        found[partition].append(_Copied(MAX_TIMESTAMP, environment.offsets(name, partition).end))
    return found


def _cut(environment: SnapshotEnvironment, app: str, outputs: Collection[str]) -> _Cut:
    """Look at an application until all that was seen is of one commit."""
    for _ in range(TRIES):
        seen = environment.settled_commits(app)
        before = seen.checkpoints
        if not any(map(is_task, before)):
            raise SamzaError(f"the app {app!r} has committed nothing in {environment} that could be forked")
        if before.get(CHANGING, Checkpoint(0)).meanings or is_unfinished(before.get(STATE, Checkpoint(0)).meanings):
            raise SamzaError(f"a change of the state of {app!r} is not at its end: its next run completes it")
        snapshot = environment.settled_snapshot(app)
        try:
            # A snapshot may read a store only when that is asked for.
            for store in environment.stores(app):
                snapshot.tasks(store)
            between, ends = _between(environment, app, before), _ends(environment, outputs)
            if environment.settled_commits(app) == seen:
                return _Cut(before, snapshot, between, ends)
        except Damaged:
            # What was read there was consumed meanwhile.
            if environment.settled_commits(app) == seen:
                snapshot.close()
                raise
        snapshot.close()
    raise SamzaError(f"{app!r} commits so often that no cut of it could be seen: fork it while it does not run")


def _ends(environment: SnapshotEnvironment, outputs: Collection[str]) -> dict[str, int]:
    existing = environment.streams(outputs)
    return {
        f"{stream}:{partition}": offsets.end
        for stream in outputs
        if stream in existing
        for partition, offsets in enumerate(_settled(environment, stream, existing[stream].partitions))
    }


def _between(
    environment: SnapshotEnvironment, app: str, checkpoints: Mapping[str, Checkpoint]
) -> dict[str, list[_Unread]]:
    """Return by stream the records between stages that some task has not read."""
    between = streams_between(environment, app)
    existing = environment.streams(between)
    reached: dict[tuple[str, int], set[int]] = defaultdict(set)
    for one in (one for name in filter(is_task, checkpoints) for one in checkpoints[name].positions):
        reached[one.stream, one.partition].add(one.offset)
    found: dict[str, list[_Unread]] = {}
    for stream in between:
        found[stream] = []
        for partition, offsets in enumerate(_settled(environment, stream, existing[stream].partitions)):
            offset = min(reached[stream, partition], default=0)
            for read in _reads(environment, stream, partition, offset, offsets):
                found[stream] += _parted(stream, partition, read, reached[stream, partition])
    return found


def _parted(stream: str, partition: int, read: Read, reached: Collection[int]) -> Iterator[_Unread]:
    """Yield what was read in parts, so that each position of a task is at the end of one."""
    offsets = read.batch.offsets or []
    stops = sorted({bisect_left(offsets, at) for at in reached} - {0, len(offsets)})
    for first, last in pairwise([0, *stops, len(offsets)]):
        rows = read.batch.slice(first, last)
        batch = Batch(rows.values, rows.keys, rows.timestamps, rows.stamps, headers=rows.headers)
        is_last = last == len(offsets)
        # A producer's word holds behind the last of the rows only.
        records = Append(stream, partition, batch, read.control if is_last else None)
        yield _Unread(records, read.next_offset if is_last else offsets[last])


def _renamed(stream: str, app: str, own: str) -> str:
    return intermediate(own, operator_of(app, stream))


def _moved(
    cut: _Cut, app: str, own: str, copied: Mapping[str, Mapping[int, Sequence[_Copied]]]
) -> dict[str, Checkpoint]:
    """Return the checkpoints of an application under the names that the streams between its stages have in a fork."""

    def moved(one: Position) -> Position:
        if one.stream not in copied:
            return one
        # What was read lies below what was copied first.
        offset = next(part.offset for part in copied[one.stream][one.partition] if part.following > one.offset)
        return replace(one, stream=_renamed(one.stream, app, own), offset=offset, stream_id=0)

    def named(stream: str) -> str:
        return _renamed(stream, app, own) if stream in copied else stream

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
                reads={named(name): n for name, n in stage.reads.items()},
                apart=tuple((task, named(name), n) for task, name, n in stage.apart),
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


def check_countable(environment: SnapshotEnvironment, streams: Iterable[str]) -> None:
    """Raise SamzaError where nobody can tell which results in a stream are those of before a cut in history."""
    if not isinstance(environment, LiveEnvironment):
        return
    existing = environment.streams([*streams])
    for stream in existing:
        if any(environment.offsets(stream, number).start for number in range(existing[stream].partitions)):
            raise SamzaError(
                f"the first records of {stream!r} are gone, so that nobody can tell which are of before the cut: fork "
                "from now, without --at"
            )


def _behind_as_many(environment: SnapshotEnvironment, stream: str, other: str, partition: int) -> int:
    """Return the offset in a stream behind as many results as another one has; the first ones of both are there."""
    if not isinstance(environment, LiveEnvironment):
        return environment.offsets(other, partition).end
    # Markers of transactions take offsets, too.
    count = sum(len(read.batch) for read in _reads(environment, other, partition, 0))
    for read in _reads(environment, stream, partition, 0):
        if len(read.batch) >= count:
            return 0 if not count else (read.batch.offsets or [])[count - 1] + 1
        count -= len(read.batch)
    return environment.offsets(stream, partition).end


def _settled(environment: SnapshotEnvironment, stream: str, partitions: int) -> Sequence[Offsets]:
    """Return the ranges of a stream's partitions, with what is being committed just now."""
    # Brokers mark a commit in one partition after the other, and in the ledger at any time.
    if isinstance(environment, LiveEnvironment):
        return environment.settled(stream)
    return [environment.offsets(stream, partition) for partition in range(partitions)]


def _reads(
    environment: SnapshotEnvironment, stream: str, partition: int, offset: int, offsets: Offsets | None = None
) -> Iterator[Read]:
    """Yield what a partition holds, up to the end of `offsets`, or as it holds now, from an offset on."""
    start, end, _ = offsets or environment.offsets(stream, partition)
    offset = max(offset, start)
    while offset < end and (read := environment.read(stream, partition, offset, ROWS_AT_ONCE)) is not None:
        yield read
        assert read.next_offset > offset, "a read leads on"
        offset = read.next_offset


def _results(environment: SnapshotEnvironment, stream: str, starts: Mapping[str, int]) -> Iterator[Result]:
    # Where brokers stamp records, their times say when they were written.
    is_stamped = isinstance(environment, LiveEnvironment) and environment.is_stamped(stream)
    for partition in range(environment.streams([stream])[stream].partitions):
        for read in _reads(environment, stream, partition, starts.get(f"{stream}:{partition}", 0)):
            batch = read.batch
            none = [None] * len(batch)
            times = none if is_stamped else batch.timestamps
            yield from zip(batch.keys or none, times or none, batch.values, strict=True)
