"""The intent of a bounded run, noted before the first of its results is visible: who comes after a death goes on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from uuid import uuid4

import msgspec

from runtime.model.errors import Damaged, Owned, system_errors_told
from runtime.model.metrics import RunMetrics
from runtime.ports.environment import Environment
from runtime.systems.host.durable import make_durable
from runtime.systems.host.locks import lock


class Intent(msgspec.Struct, frozen=True):
    """All that becomes visible: by its place, each file that is whole; how many rows of streams; and topics behind it.

    It counts when the streams have their rows, which come in one commit, and the topics are noted. What a run is about
    to write is empty before, so rows in a stream are its own.
    """

    renames: list[tuple[str, str]]
    rows: list[tuple[str, int, int]]
    topics: bool
    metrics: RunMetrics

    def counts(self, environment: Environment, topics_are_noted: bool) -> bool:
        """Whether a run that has died while it published is to be gone on with, and not to be done anew."""
        known = environment.streams()
        written = all(stream in known and environment.offsets(stream, at).end >= end for stream, at, end in self.rows)
        return written and (topics_are_noted or not self.topics)

    def rename(self) -> None:
        """Put each file in its place, be it again."""
        for whole, place in self.renames:
            with system_errors_told(Path(place), "written"):
                # Done before, where it is gone: an intent is carried out as often as somebody dies over it.
                if Path(whole).exists():
                    # An empty directory that was there before; a rename would refuse to replace it by a file.
                    if Path(place).is_dir():
                        Path(place).rmdir()
                    Path(whole).replace(place)
                    make_durable(Path(place).parent)

    def has_put(self, place: Path) -> bool:
        """Whether this was put in its place already."""
        return any(to == str(place.absolute()) and not Path(whole).exists() for whole, to in self.renames)

    def sweep(self) -> None:
        """Remove what attempts have left."""
        for whole, _ in self.renames:
            shutil.rmtree(Path(whole).parent, ignore_errors=True)


def place_beside(paths: Iterable[Path], otherwise: Path | None = None) -> Path | None:
    """Return where it is noted what becomes visible: beside the first path, and where there is none, `otherwise`."""
    first = min((path.absolute() for path in paths), default=otherwise)
    return None if first is None else first.with_name(f".{first.name}.publishing")


def note(intent: Intent, place: Path) -> int:
    """Write an intent, durably, and return the lock that tells others that it is being done."""
    with system_errors_told(place, "written"):
        unfinished = place.with_name(f"{place.name}.{uuid4().hex}")
        with unfinished.open("xb") as file:
            file.write(msgspec.msgpack.encode(intent))
            file.flush()
            os.fsync(file.fileno())
        # Locked before it has its name: whoever finds the note finds it locked for as long as it is being done.
        descriptor = lock(unfinished, wait=False)
        assert descriptor is not None
        unfinished.replace(place)
        make_durable(place.parent)
    return descriptor


def noted(place: Path | None) -> Intent | None:
    """Return what was noted; None where nothing was. Raises `Damaged`, and `Owned` where somebody is about it."""
    if place is None or not place.exists():
        return None
    descriptor = lock(place, wait=False)
    if descriptor is None:
        raise Owned(f"another run is publishing its outputs just now, as {place} says: wait for its end")
    os.close(descriptor)
    try:
        return msgspec.msgpack.decode(place.read_bytes(), type=Intent)
    except msgspec.DecodeError as error:
        raise Damaged(f"{place} does not say what is left to publish: {error}; restore it") from error


def forget(place: Path) -> None:
    """Remove what was noted: all of it is visible, or nothing ever will be."""
    with system_errors_told(place, "written"):
        if place.exists():
            place.unlink()
            make_durable(place.parent)
