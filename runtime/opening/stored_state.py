"""The stored state of operators: a list of it, and ways to drop that of one alone, to move it and to replace it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from types import MappingProxyType

import msgspec
from msgspec.structs import replace

from operators.io import TableInput
from planner.model.graph import Graph, intermediate
from planner.model.identities import input_id
from planner.model.plan import Plan
from planner.model.virtual_tasks import is_task
from runtime.commit.commit import STATE
from runtime.job import key_kinds
from runtime.job.job_model import JOB, reads_of
from runtime.job.parameters import PARAMETERS, renamed
from runtime.model.checkpoint import Checkpoint, Position
from runtime.model.errors import Damaged
from runtime.ports.commits import Commit
from runtime.ports.environment import Environment, LiveEnvironment, typed
from runtime.ports.state import StateWrites
from runtime.ports.streams import StreamConfig

CHANGING = "changing"
"""The checkpoint that says which operators' state is being dropped ("") or given to another, until that is done."""
STORES = "stores"
"""The word under which the job notes how the state of each operator lies."""
COUNTED = 10_000
"""The number up to which unread records are counted."""
STAGED = "."
"""The first letter of the name of a store with what an operator's state is about to be; no operator has one of it."""
COPIED_AT_ONCE, COPIED_BYTES = 10_000, 1 << 23
"""The entries, and the bytes, that one commit of a copy has at most."""


class Lies(msgspec.Struct, frozen=True, array_like=True):
    """The partitioning of an operator's state: the partition count, and the input whose writer chose that of each key.

    Where a `partition_by` has chosen it, `writer` is "", and so is `read`, the input from which keys come as they are.
    """

    partitions: int
    writer: str = ""
    read: str = ""

    def is_as(self, other: Lies) -> bool:
        """Whether the state of a key is found in the same partition."""
        return self.partitions == other.partitions and (self.partitions == 1 or self.writer == other.writer)


class StoredOperator(msgspec.Struct, frozen=True, kw_only=True):
    """The stored state of an operator: its entries and their bytes, in so many tasks, and their meaning.

    `since_ms` is when an operator of that id first kept what it means now; None where that was not noted. `unread` has
    the records that lie in front of its stage, of an operator that ends one; `lost` says what is wrong where less is
    there than was committed.
    """

    operator: str
    means: str = ""
    tasks: int = 0
    entries: int = 0
    size_bytes: int = 0
    since_ms: int | None = None
    unread: int | None = None
    lost: str = ""


def stored(environment: Environment, app: str) -> list[StoredOperator]:
    """Return the stored state of each operator of an application, in the order of their ids."""
    checkpoints = environment.checkpoints(app)
    noted = checkpoints.get(STATE, Checkpoint(0))
    found: dict[str, StoredOperator] = {}
    stats = environment.state_stats(app)
    for store in (one for one in environment.stores(app) if not one.startswith(STAGED)):
        mine = [size for (name, _), size in stats.items() if name == store]
        found[store] = StoredOperator(
            operator=store,
            means=noted.meanings.get(store, ""),
            tasks=len(mine),
            entries=sum(entries for entries, _ in mine),
            size_bytes=sum(size_bytes for _, size_bytes in mine),
            since_ms=noted.watermarks.get(store),
        )
    for stream in sorted(streams_between(environment, app)):
        id = operator_of(app, stream)
        found[id] = replace(found.get(id, StoredOperator(operator=id)), unread=unread(environment, app, stream))
    for operator, what in lost(environment, app).items():
        found[operator] = replace(found.get(operator, StoredOperator(operator=operator)), lost=what)
    return [found[id] for id in sorted(found)]


def lost(environment: Environment, app: str) -> dict[str, str]:
    """Return the operators of which less is there than was committed, with what is wrong: state, or what they write."""
    stores = environment.lost_stores(app) if isinstance(environment, LiveEnvironment) else {}
    return {**stores, **_lost_between(environment, app)}


def check_between(environment: Environment, app: str) -> None:
    """Raise `Damaged` where a stream between stages is not what was read: a run would make it anew, without a word."""
    found = _lost_between(environment, app)
    if found:
        forget = typed(environment, " ".join(("state forget", app, *found)))
        what = next(iter(found.values()))
        raise Damaged(
            f"{what[0].upper()}{what[1:]}: what the next stage of application {app!r} had not read of it is lost. Put "
            f"it back as it was. Or go on without that, with all state: {forget}. Or begin anew, which drops all state "
            f"and reads the inputs from their start: {typed(environment, f'reset {app}')}."
        )


def _lost_between(environment: Environment, app: str) -> dict[str, str]:
    """Return the operators that end a stage whose streams are not there as they were read, with what is wrong."""
    found: dict[str, str] = {}
    positions = [one for checkpoint in environment.checkpoints(app).values() for one in checkpoint.positions]
    existing = environment.streams({one.stream for one in positions})
    for one in positions:
        # Nothing else has producers that speak for tasks, and it lies in the environment, whatever is bound.
        if not one.producers or one.stream != intermediate(app, operator_of(app, one.stream)):
            continue
        what = _wrong_with(environment, existing, one)
        if what:
            found.setdefault(operator_of(app, one.stream), f"the stream {one.stream!r} between stages {what}")
    return found


def _wrong_with(environment: Environment, existing: Mapping[str, StreamConfig], read: Position) -> str:
    if not read.stream_id and not read.offset:
        return ""  # nothing was read of it yet, as where state has just moved to other partitions
    if read.stream not in existing:
        return "is no longer there"
    if not 0 <= read.partition < existing[read.stream].partitions:
        return ""  # moved to other partitions, or about to be
    if read.stream_id and environment.stream_id(read.stream) not in (0, read.stream_id):
        return "was deleted and made anew"
    start, end, _ = environment.offsets(read.stream, read.partition)
    if not start <= read.offset <= end:
        return f"has offsets {start} to {end} of partition {read.partition}, and was read up to {read.offset}"
    return ""


def streams_between(environment: Environment, app: str) -> set[str]:
    """Return the streams that exist between the stages which an application has, or had when it was last opened."""
    checkpoints = environment.checkpoints(app)
    known = {one.stream for checkpoint in checkpoints.values() for one in checkpoint.positions if one.producers}
    known |= {stream for reads in reads_of(checkpoints).values() for stream in reads}
    return {name for name, config in environment.streams(known).items() if config.intermediate}


def operator_of(app: str, stream: str) -> str:
    """Return the id of the operator that writes a stream between stages.

    >>> operator_of("shop", "shop-by-customer")
    'by-customer'
    """
    return stream.removeprefix(intermediate(app, ""))


def unread(environment: Environment, app: str, stream: str) -> int:
    """Return the number of records between stages that no task has read; `COUNTED` stands for that and more."""
    checkpoints = environment.checkpoints(app).values()
    count = 0
    for partition in range(environment.streams([stream])[stream].partitions):
        start, end, _ = environment.offsets(stream, partition)
        reached = [one.offset for c in checkpoints if (one := c.position_of(stream, partition)) is not None]
        # Of virtual tasks that share a partition the one that is furthest behind counts.
        offset = max(start, min(reached, default=start))
        # Offsets are no count: control messages and markers of transactions have some, too.
        while offset < end and count < COUNTED:
            read = environment.read(stream, partition, offset)
            if read is None:
                break
            assert read.next_offset > offset, "a read leads on"
            count += len(read.batch.values)
            offset = read.next_offset
    return min(count, COUNTED)


def lies(plan: Plan, graph: Graph) -> dict[str, Lies]:
    """Return the partitioning of each state by key, by operator, but for tables, which lie as their streams do."""
    found = {}
    for stage in plan.stages:
        for store in plan.stores:
            spec = graph.specs[store.operator]
            if store.operator not in stage.operators or stage.apart or not spec.keyed or spec.looked_into:
                continue
            origin = graph.keyed_by(graph.streams_into(store.operator)[0]) or store.operator
            is_writers = origin in graph.inputs and graph.inputs[origin].partitioned_by_key
            read = origin if origin in graph.inputs else ""
            found[store.name] = Lies(stage.partitions, origin if is_writers else "", read)
    return found


def noted_lies(checkpoints: Mapping[str, Checkpoint]) -> dict[str, Lies]:
    """Return the partitioning of state as it was noted when an application was last opened; {} where it was not."""
    noted = checkpoints.get(JOB, Checkpoint(0)).meanings.get(STORES, "{}")
    return msgspec.json.decode(noted, type=dict[str, Lies])


def reshuffled(had: Mapping[str, Lies], has: Mapping[str, Lies]) -> list[str]:
    """Return the operators to which keys came from an input as they lay there, and come from a `partition_by` now."""
    # Versions that noted no `read` noted whose writer had chosen.
    return [id for id in has if id in had and (had[id].read or had[id].writer) and not has[id].read]


def forget(environment: Environment, app: str, operators: Collection[str]) -> None:
    """Drop the state of some operators of an application that this process owns, and what lies in their streams.

    A table whose rows are dropped is read anew. All else stays. After a crash `finish` goes on with it.
    """
    _begin(environment, app, dict.fromkeys(operators, ""))
    finish(environment, app)


def move(environment: Environment, app: str, old: str, new: str) -> None:
    """Give the state of an operator to another one, which has none, in an application that this process owns."""
    _begin(environment, app, {old: new})
    finish(environment, app)


def replace_staged(
    environment: Environment,
    app: str,
    meanings: Mapping[str, str],
    lie: Mapping[str, Lies],
    now_ms: int,
    joined: Mapping[str, Checkpoint] = MappingProxyType({}),
) -> None:
    """Let what is staged for operators be their state, with these meanings, in an application that is owned here.

    The checkpoints of `joined` come in the place of those that there are, in the same commit.
    """
    checkpoints = {**environment.checkpoints(app), **joined}
    noted, job = checkpoints.get(STATE, Checkpoint(0)), checkpoints.get(JOB)
    staged = {operator: STAGED + operator for operator in meanings}
    changed = {**joined}
    # The kinds of keys are noted anew: those that are kept now may be others.
    for name, checkpoint in checkpoints.items():
        without = key_kinds.renamed(checkpoint, dict.fromkeys(meanings, ""))
        if without != checkpoint:
            changed[name] = without
    changed[STATE] = replace(
        noted,
        meanings={**noted.meanings, **{staged[id]: means for id, means in meanings.items()}},
        watermarks={**noted.watermarks, **{staged[id]: noted.watermarks.get(id, now_ms) for id in meanings}},
    )
    if job is not None:
        how = noted_lies(checkpoints) | {staged[id]: one for id, one in lie.items()}
        before = changed.get(JOB, job)
        changed[JOB] = replace(before, meanings={**before.meanings, STORES: msgspec.json.encode(how).decode()})
    _commit(environment, app, changed, {staged[id]: id for id in meanings})
    finish(environment, app)


def move_staged(
    environment: Environment,
    app: str,
    operators: Collection[str],
    lie: Mapping[str, Lies],
    checkpoints: Mapping[str, Checkpoint],
    *,
    gone: Collection[str],
    remade: Collection[str],
) -> None:
    """Let what is staged for operators be their state, laid otherwise, beside `checkpoints` of tasks and the job.

    The checkpoints of former tasks are `gone`, and the streams between stages that the operators `remade` write are
    removed. All of it is done where the first commit of it is, whatever crashes.
    """
    noted, job = environment.checkpoints(app).get(STATE, Checkpoint(0)), checkpoints[JOB]
    staged = {operator: STAGED + operator for operator in operators}
    meanings = {staged[id]: noted.meanings[id] for id in operators if id in noted.meanings}
    since = {staged[id]: noted.watermarks[id] for id in operators if id in noted.watermarks}
    told = {id: one for id, one in lie.items() if id not in staged} | {
        staged[id]: lie[id] for id in operators if id in lie
    }
    changed = {
        **checkpoints,
        STATE: replace(noted, meanings={**noted.meanings, **meanings}, watermarks={**noted.watermarks, **since}),
        JOB: replace(job, meanings={**job.meanings, STORES: msgspec.json.encode(told).decode()}),
    }
    _commit(environment, app, changed, {staged[id]: id for id in operators} | dict.fromkeys(remade, ""), gone)
    finish(environment, app)


def finish(environment: Environment, app: str) -> None:
    """Complete what a crash has left of a change of state, or drop what was staged for one that was not begun."""
    left = [store for store in environment.stores(app) if store.startswith(STAGED)]
    changes = environment.checkpoints(app).get(CHANGING, Checkpoint(0)).meanings
    moves = {old: new for old, new in changes.items() if new}
    if left and not changes:
        environment.forget(app, left)
    if moves:
        # A crash may have left a part of the copy.
        environment.forget(app, [*moves.values()])
        for old, new in moves.items():
            _copy(environment, app, old, new)
        _commit(environment, app, _renamed(environment.checkpoints(app), moves), dict.fromkeys(changes, ""))
    # From the commit above on the old state is to be dropped, not copied: a crash here goes on with that.
    if changes:
        environment.forget(app, [*changes])
        between = [intermediate(app, operator) for operator in changes]
        existing = environment.streams(between)
        for stream in between:
            if stream in existing and existing[stream].intermediate:
                environment.delete_stream(stream)
        _commit(environment, app, {}, {})


def _begin(environment: Environment, app: str, changes: Mapping[str, str]) -> None:
    """Note durably what is about to be done; what is dropped has no position and no meaning from then on."""
    checkpoints = environment.checkpoints(app)
    assert not checkpoints.get(CHANGING, Checkpoint(0)).meanings, "finish() comes before the next change"
    gone = {operator for operator, new in changes.items() if not new}
    noted = checkpoints.get(STATE, Checkpoint(0))
    tables = {operator for operator in gone if noted.meanings.get(operator, "").startswith(TableInput.kind)}
    streams = {intermediate(app, operator) for operator in gone}
    changed = {}
    # A table without its rows must be read anew, so its position goes with them.
    for name, checkpoint in checkpoints.items():
        left = [one for one in checkpoint.positions if one.stream not in streams and input_id(one.stream) not in tables]
        without = key_kinds.renamed(replace(checkpoint, positions=tuple(left)), dict.fromkeys(gone, ""))
        if without != checkpoint:
            changed[name] = without
    if gone & noted.meanings.keys():
        changed[STATE] = replace(noted, meanings=_without(noted.meanings, gone))
    _commit(environment, app, changed, changes)


def _renamed(checkpoints: Mapping[str, Checkpoint], moves: Mapping[str, str]) -> dict[str, Checkpoint]:
    """Return the checkpoints with what they note of state, under the new ids."""
    noted, job = checkpoints.get(STATE, Checkpoint(0)), checkpoints.get(JOB, Checkpoint(0))
    # What is staged for an operator comes in the place of what was noted of it.
    before = {*moves.values()}
    meanings = {moves.get(id, id): means for id, means in noted.meanings.items() if id not in before}
    since = {moves.get(id, id): at for id, at in noted.watermarks.items() if id not in before}
    found = {STATE: replace(noted, meanings=meanings, watermarks=since)}
    if STORES in job.meanings:
        how = {moves.get(id, id): one for id, one in noted_lies(checkpoints).items() if id not in before}
        told = {PARAMETERS: renamed(job.meanings[PARAMETERS], moves)} if PARAMETERS in job.meanings else {}
        found[JOB] = replace(job, meanings={**job.meanings, STORES: msgspec.json.encode(how).decode(), **told})
    tasks = {name: one for name, one in checkpoints.items() if is_task(name)}
    for name, one in (tasks | ({JOB: found[JOB]} if JOB in found else {})).items():
        found[name] = key_kinds.renamed(one, moves)
    return found


def _copy(environment: Environment, app: str, old: str, new: str) -> None:
    """Write all entries of one store into another one, which is empty, in commits of bounded size."""
    generation = environment.generation(app)
    for task in sorted(task for store, task in environment.state_stats(app) if store == old):
        # Ordinary commits, so that the changelog of the new name and all accounts of stores hold.
        for items in pieces(environment.state_range(app, old, task)):
            environment.commit(Commit(app, generation, [], [StateWrites(new, task, items)], {}))


def pieces(entries: Iterable[tuple[bytes, bytes]]) -> Iterator[list[tuple[bytes, bytes | None]]]:
    """Yield entries in pieces that one commit of a copy may have."""
    remaining = iter(entries)
    while piece := _piece(remaining):
        yield piece


def _piece(entries: Iterator[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes | None]]:
    found: list[tuple[bytes, bytes | None]] = []
    size_bytes = 0
    for key, value in islice(entries, COPIED_AT_ONCE):
        found.append((key, value))
        size_bytes += len(key) + len(value)
        if size_bytes >= COPIED_BYTES:
            break
    return found


def _commit(
    environment: Environment,
    app: str,
    checkpoints: Mapping[str, Checkpoint],
    changes: Mapping[str, str],
    gone: Collection[str] = (),
) -> None:
    generation = environment.generation(app)
    said = {**checkpoints, CHANGING: Checkpoint(generation, meanings=dict(changes))}
    now = {name: replace(one, generation=generation) for name, one in said.items()}
    environment.commit(Commit(app, generation, [], [], now, gone=gone))


def _without(meanings: Mapping[str, str], gone: Collection[str]) -> dict[str, str]:
    return {id: means for id, means in meanings.items() if id not in gone}
