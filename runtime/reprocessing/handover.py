"""The handover of a run over history to the live one: state, watermarks and positions, in a directory of files."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from zlib import crc32

import msgspec

from planner.model.graph import Graph, intermediate
from planner.model.plan import Plan
from planner.model.virtual_tasks import is_task
from runtime.model.checkpoint import SHARED, Checkpoint
from runtime.model.errors import Damaged, SamzaError, system_errors_told
from runtime.opening.rewind import meanings_of
from runtime.ports.environment import Environment
from runtime.stores.registry import kind_of
from runtime.systems.host.durable import replace_durably

MANIFEST = "handover.json"
"""The file that is written last: without it a directory holds no handover."""
BLOCK_BYTES = 1 << 20
VERSION = 1
_HEADER = struct.Struct("<II")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]]).decode

Items = list[tuple[bytes, bytes]]


class StoreFile(msgspec.Struct, frozen=True, kw_only=True):
    """The entries of one store in one task."""

    store: str
    task: int
    file: str
    entries: int


class Handover(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoints of a run over history, task by task, with the files of its state and their meaning.

    The checkpoints name streams between stages as the application `app` does, and begin these anew. `tasks` has the
    number of tasks of each stage, and `outputs` how far bound outputs were written.
    """

    app: str
    tasks: dict[str, int]
    meanings: dict[str, str]
    checkpoints: dict[str, Checkpoint]
    state: tuple[StoreFile, ...]
    outputs: dict[str, int] = {}
    version: int = VERSION


def check_can_be_handed_over(graph: Graph, directory: Path) -> None:
    """Raise SamzaError where a handover would lose state, or where there is no room for its directory."""
    lost = {id: kind.name for id, spec in graph.specs.items() if not (kind := kind_of(spec)).durable}
    if lost:
        raise SamzaError(
            f'the state of {", ".join(map(repr, lost))} is in memory alone (store="{min(lost.values())}"), and '
            "can't be handed over: leave store= out there, or reprocess without a handover"
        )
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise SamzaError(f"{directory} has something in it already: hand over to a new directory")


def hand_over(environment: Environment, graph: Graph, plan: Plan, app: str, directory: Path) -> Handover:
    """Write the state and positions of the application of `graph` for the one named `app`, and return the manifest."""
    found = environment.checkpoints(graph.app)
    files = (
        (store, task, environment.state_range(graph.app, store, task))
        for store, task in sorted(environment.state_stats(graph.app))
    )
    with system_errors_told(directory, "written"):
        directory.mkdir(parents=True, exist_ok=True)
        state = tuple(write_state(directory, *one) for one in files)
        outputs = found[SHARED].outputs if SHARED in found else {}
        tasks = {task: checkpoint for task, checkpoint in found.items() if is_task(task)}
        return write_manifest(directory, graph, plan, app, tasks, state, outputs)


def write_manifest(
    directory: Path,
    graph: Graph,
    plan: Plan,
    app: str,
    checkpoints: Mapping[str, Checkpoint],
    state: Iterable[StoreFile],
    outputs: Mapping[str, int],
) -> Handover:
    """Write the manifest of a handover whose state is written, and return it; from then on the handover is there."""
    names = {intermediate(graph.app, id): intermediate(app, id) for id in graph.specs}
    handover = Handover(
        app=app,
        tasks={stage.id: len(stage.tasks) for stage in plan.stages},
        meanings=meanings_of(plan, graph),
        checkpoints={task: _between_anew(checkpoint, names) for task, checkpoint in checkpoints.items()},
        state=tuple(state),
        outputs=dict(outputs),
    )
    replace_durably(directory / MANIFEST, msgspec.json.encode(handover))
    return handover


def write_state(directory: Path, store: str, task: int, entries: Iterable[tuple[bytes, bytes]]) -> StoreFile:
    """Write the entries of one store and task to a file of its own, block by block."""
    name, number = f"{store}-{task}.state", 0
    with (directory / name).open("wb") as file:
        for block in _blocks(entries):
            data = _encode(block)
            file.write(_HEADER.pack(len(data), crc32(data)) + data)
            number += len(block)
        file.flush()
        # The manifest, which comes last, must not be there before what it names.
        os.fsync(file.fileno())
    return StoreFile(store=store, task=task, file=name, entries=number)


def read_handover(directory: Path) -> Handover:
    """Return the manifest of a handover; raises SamzaError where there is none, and `Damaged` where it was changed."""
    path = directory / MANIFEST
    if not path.is_file():
        raise SamzaError(
            f"{directory} holds no handover: name the directory of a reprocessing that has ended by --handover"
        )
    try:
        handover = msgspec.json.decode(path.read_bytes(), type=Handover)
    except msgspec.MsgspecError as error:
        raise Damaged(f"{path} is not what was written: {error}; reprocess again") from error
    if handover.version != VERSION:
        raise SamzaError(f"{path} is of version {handover.version}, and {VERSION} is read here: reprocess again")
    return handover


def read_state(directory: Path, state: StoreFile) -> Iterator[Items]:
    """Yield the entries of a file block by block; raises `Damaged` where it is not what was written."""
    path, number = directory / state.file, 0
    with system_errors_told(path, "read"), path.open("rb") as file:
        while header := file.read(_HEADER.size):
            # A header that was cut short passes for a block that fails its checksum.
            length, checksum = _HEADER.unpack(header) if len(header) == _HEADER.size else (0, 1)
            data = file.read(length)
            if len(data) < length or crc32(data) != checksum:
                raise Damaged(f"{path} is not what was written, from byte {file.tell() - len(data)} on; {_AGAIN}")
            block = _decode(data)
            number += len(block)
            yield block
    if number != state.entries:
        raise Damaged(f"{path} has {number:,} entries, and {state.entries:,} were written; {_AGAIN}")


_AGAIN = "restore it, or reprocess again"


def _between_anew(checkpoint: Checkpoint, names: Mapping[str, str]) -> Checkpoint:
    """Return a checkpoint whose streams between stages are named by `names`, and have nothing in them."""
    positions = (
        msgspec.structs.replace(one, stream=names[one.stream], offset=0, stream_id=0) if one.stream in names else one
        for one in checkpoint.positions
    )
    # The live run writes these streams anew, and owns the checkpoint under a generation of its own. What each producer
    # has told of event time stays, so that nothing is late or early against the state.
    return msgspec.structs.replace(checkpoint, generation=0, positions=tuple(positions))


def _blocks(entries: Iterable[tuple[bytes, bytes]]) -> Iterator[list[tuple[bytes, bytes]]]:
    block: list[tuple[bytes, bytes]] = []
    size = 0
    for key, value in entries:
        block.append((key, value))
        size += len(key) + len(value)
        if size >= BLOCK_BYTES:
            yield block
            block, size = [], 0
    if block:
        yield block
