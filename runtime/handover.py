"""What a run over history leaves for the live one: state, watermarks and positions, in a directory of files."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec

from planner.graph import Graph, intermediate
from planner.plan import Plan
from runtime.checkpoint import Checkpoint
from runtime.commit import SHARED
from runtime.errors import Damaged, SamzaError
from runtime.rewind import meanings_of
from runtime.systems.base import Environment, system_errors_told
from runtime.systems.record_files import replace_durably

MANIFEST = "handover.json"
"""Written last: without it a directory holds no handover."""
BLOCK_BYTES = 1 << 20
VERSION = 1
_HEADER = struct.Struct("<II")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]]).decode

Items = list[tuple[bytes, bytes]]


class StateFile(msgspec.Struct, frozen=True, kw_only=True):
    """The entries of one store in one task."""

    store: str
    task: int
    file: str
    entries: int


class Handover(msgspec.Struct, frozen=True, kw_only=True):
    """How far history was processed, task by task, and what the state there means.

    The checkpoints name streams between stages as the application `app` does, and begin these anew. `tasks` has the
    number of tasks of each stage, and `outputs` how far bound outputs were written.
    """

    app: str
    tasks: dict[str, int]
    meanings: dict[str, str]
    checkpoints: dict[str, Checkpoint]
    state: tuple[StateFile, ...]
    outputs: dict[str, int] = {}
    version: int = VERSION


def check_can_be_handed_over(graph: Graph, directory: Path) -> None:
    """Raise SamzaError where a handover would lose state, or where there is no room for its directory."""
    lost = [id for id, spec in graph.specs.items() if getattr(spec, "store", "lmdb") == "memory"]
    if lost:
        raise SamzaError(
            f'the state of {", ".join(map(repr, lost))} is in memory alone (store="memory"), and can\'t be handed '
            "over: leave store= out there, or reprocess without a handover"
        )
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise SamzaError(f"{directory} has something in it already: hand over to a new directory")


def hand_over(environment: Environment, graph: Graph, plan: Plan, app: str, directory: Path) -> Handover:
    """Write what the application of `graph` has come to, for the one named `app`, and return what was written."""
    found = environment.checkpoints(graph.app)
    files = (
        (store, task, environment.state_range(graph.app, store, task))
        for store, task in sorted(environment.state_stats(graph.app))
    )
    with system_errors_told(directory, "written"):
        directory.mkdir(parents=True, exist_ok=True)
        state = tuple(write_state(directory, *one) for one in files)
        outputs = found[SHARED].outputs if SHARED in found else {}
        tasks = {task: checkpoint for task, checkpoint in found.items() if task.isdecimal()}
        return write_manifest(directory, graph, plan, app, tasks, state, outputs)


def write_manifest(
    directory: Path,
    graph: Graph,
    plan: Plan,
    app: str,
    checkpoints: Mapping[str, Checkpoint],
    state: Iterable[StateFile],
    outputs: Mapping[str, int],
) -> Handover:
    """Complete a handover whose state is written: from then on it is one."""
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


def write_state(directory: Path, store: str, task: int, entries: Iterable[tuple[bytes, bytes]]) -> StateFile:
    """Write the entries of one store and task to a file of its own, block by block."""
    name, number = f"{store}-{task}.state", 0
    with (directory / name).open("wb") as file:
        for block in _blocks(entries):
            data = _encode(block)
            file.write(_HEADER.pack(len(data), crc32(data)) + data)
            number += len(block)
        file.flush()
        os.fsync(file.fileno())
    return StateFile(store=store, task=task, file=name, entries=number)


def read_handover(directory: Path) -> Handover:
    """Return what a directory hands over; raises SamzaError where it is none, and `Damaged` where it was changed."""
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


def read_state(directory: Path, state: StateFile) -> Iterator[Items]:
    """Yield the entries of a file block by block; raises `Damaged` where it is not what was written."""
    path, number = directory / state.file, 0
    with system_errors_told(path, "read"), path.open("rb") as file:
        while header := file.read(_HEADER.size):
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
    return msgspec.structs.replace(checkpoint, generation=0, positions=tuple(positions))


def _blocks(entries: Iterable[tuple[bytes, bytes]]) -> Iterator[list[Any]]:
    block: list[Any] = []
    size = 0
    for key, value in entries:
        block.append((key, value))
        size += len(key) + len(value)
        if size >= BLOCK_BYTES:
            yield block
            block, size = [], 0
    if block:
        yield block
