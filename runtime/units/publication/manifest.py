"""The manifest of a run on Spark that goes on: one file, put in its place at once, is the commit of a micro-batch."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import msgspec

from runtime.model.errors import Damaged, SamzaError, system_errors_told
from runtime.systems.host.durable import replace_durably
from runtime.units.growing import Piece
from runtime.units.micro_batch import Snapshot

NAME = "manifest.json"
VERSION = 1


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The commit of a micro-batch: the ends of its inputs, what each task left, and the outputs to publish.

    `id` tells one checkpoint from all others. `ends` has by stream the offset up to which each partition was read, and
    whether it had ended there; `units` what each task of a stage left, by their numbers ("0-3"). `rows` is the file of
    what goes to streams and sinks, `files` has those of outputs that are bound to a path, `positions` says where in
    sinks this micro-batch begins. `stages` and `meanings` say what the state is of, `keys` under which kinds
    of keys it lay as the run began, and `pieces` which files inputs are.
    """

    id: str
    app: str
    batch: int = 0
    ends: dict[str, list[tuple[int, bool]]] = {}
    units: dict[str, Snapshot] = {}
    rows: str | None = None
    files: dict[str, list[str]] = {}
    positions: dict[str, int] = {}
    stages: dict[str, int] = {}
    meanings: dict[str, str] = {}
    keys: dict[str, str] = {}
    pieces: dict[str, list[list[Piece]]] = {}
    ended: bool = False
    version: int = VERSION

    @classmethod
    def read(cls, directory: Path) -> Manifest | None:
        """Return what was committed last; None where nothing was. Raises `Damaged`."""
        path = directory / NAME
        if not path.exists():
            return None
        try:
            found = msgspec.json.decode(path.read_bytes(), type=cls)
        except msgspec.DecodeError as error:
            raise Damaged(f"{path} is no manifest of a run on Spark: {error}; restore it") from error
        if found.version != VERSION:
            raise SamzaError(
                f"{path} is of version {found.version}, and this is samza-dsl with {VERSION}: run it with the one that "
                "wrote it, or begin anew from another checkpoint"
            )
        return found

    def write(self, directory: Path) -> None:
        """Commit: put it in the place of the one before, durably."""
        with system_errors_told(directory, "written"):
            replace_durably(directory / NAME, msgspec.json.encode(self), f".{uuid4().hex}")
