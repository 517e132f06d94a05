"""The manifest of what an output has written into a folder: numbered entries, of which each is made by one alone."""

from __future__ import annotations

import re
import secrets
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from runtime.encoding.json_text import to_json
from runtime.model.errors import Damaged, Fenced, SamzaError, Unavailable
from runtime.ports.connectors import SinkOwner
from runtime.systems.folders.object_place import ObjectPlace

MANIFESTS = "_samza_dsl"
"""The folder of manifests: no data, for all who read the folder that it is in."""
PART = re.compile(r"part-[0-9a-f]{8}-\d{12}-[0-9a-f]{16}\.")
"""Begins the name of a data file."""
WHOLE_EVERY = 100
"""An entry of so many lists all files: whoever reads a manifest reads no more entries than that."""
TRIES = 10


class ManifestEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An entry: a claim, or the files of one delivery, with the position behind it and the run that has made it.

    Where it is `whole` its files are all that there are by then.
    """

    identity: int
    generation: int
    token: int
    position: int
    files: tuple[str, ...] = ()
    whole: bool = False


class FolderClaim(NamedTuple):
    """The state of a manifest as its owner knows it: the number of the last entry, that entry, and all files."""

    number: int
    last: ManifestEntry
    files: tuple[str, ...]


class FolderManifest:
    """The entries of one partition of one output.

    Invariants: entries are numbered without gaps, and none is ever changed; the next is made by who knows the last, so
    that of two runs one is fenced. A file counts once an entry names it.
    """

    def __init__(self, place: ObjectPlace, where: str, owner: SinkOwner) -> None:
        self.folder = f"{MANIFESTS}/{owner.app}.{owner.output}.{owner.partition}"
        self.prefix = f"part-{zlib.crc32(self.folder.encode()):08x}-"
        """The beginning of the names of all its data files."""
        self._place, self._where = place, where

    def claim(self, owner: SinkOwner) -> FolderClaim:
        """Make the owner the one who may write, and remove files that no entry names; raises `Fenced`, SamzaError."""
        for _ in range(TRIES):
            number, last, files = self._read()
            position = 0 if last is None else last.position
            if last is not None and last.identity == owner.identity and last.generation > owner.generation:
                raise owner.fenced_error(self._where)
            if last is not None and last.identity != owner.identity and position:
                raise SamzaError(
                    f"{self._where} has files that application {owner.app!r} has written in an earlier life, with "
                    "another data directory or before it began anew: remove that folder, or bind another"
                )
            # Before anything is changed: who can't go on shall not fence the one that can.
            owner.check_known(position, self._where)
            if last is None and (unnamed := self._files_of_runs()):
                # The entry of a claim comes before any file: what wrote these has had one.
                raise Damaged(
                    f"{self._where} has files of {owner.output!r}, as {unnamed[0]}, and no entry of {self.folder} that "
                    "says which of them count: restore these entries, or remove the files that begin with "
                    f"{self.prefix}"
                )
            identity, generation, token = owner.identity, owner.generation, secrets.randbits(62)
            entry = ManifestEntry(
                identity=identity, generation=generation, token=token, position=position, files=files, whole=True
            )
            try:
                self._create(number + 1, entry)
            except FileExistsError:
                continue
            self._check_exclusive(number + 1, entry)
            self._remove_unnamed(files)
            return FolderClaim(number + 1, entry, files)
        raise Unavailable(f"{self._where}: others claim it at the same time")

    def add(self, claim: FolderClaim, files: Sequence[str], position: int) -> FolderClaim:
        """Name the files of a delivery, with the position behind it; raises `Fenced`."""
        number, all_files = claim.number + 1, (*claim.files, *files)
        is_whole = number % WHOLE_EVERY == 0
        entry = msgspec.structs.replace(
            claim.last, position=position, files=all_files if is_whole else tuple(files), whole=is_whole
        )
        try:
            self._create(number, entry)
        except FileExistsError:
            # It may be of an earlier try, whose answer was lost.
            if self._entry(number) != entry:
                raise Fenced(
                    f"{self._where} is written by another run than this one, of generation {entry.generation}: that "
                    "has taken over. Nothing more is written by this one."
                ) from None
        if is_whole:
            # Whoever was taken over may have ended between a file and its entry, and has no next run here.
            self._remove_unnamed(all_files)
        return FolderClaim(number, entry, all_files)

    def empty(self, owner: SinkOwner) -> None:
        """Let no file count any more, then remove them; raises `Fenced` where another run is at it."""
        number, last, files = self._read()
        if last is None:
            return
        entry = msgspec.structs.replace(
            last, identity=owner.identity, token=secrets.randbits(62), position=0, files=(), whole=True
        )
        try:
            self._create(number + 1, entry)
        except FileExistsError:
            raise owner.fenced_error(self._where) from None
        self._place.remove(files)
        self._remove_unnamed(())

    def files(self) -> tuple[str, ...]:
        """Return the files that count."""
        return self._read()[2]

    def name(self, claim: FolderClaim, suffix: str) -> str:
        """Return the name of the next data file, which no other run makes."""
        return f"{self.prefix}{claim.number + 1:012}-{claim.last.token:016x}{suffix}"

    def _read(self) -> tuple[int, ManifestEntry | None, tuple[str, ...]]:
        """Return the number of the last entry, that entry, and the files that count."""
        numbers = sorted(int(name.rpartition("/")[2].partition(".")[0]) for name in self._place.names(self.folder))
        if not numbers:
            return 0, None, ()
        if numbers != [*range(1, len(numbers) + 1)]:
            raise Damaged(
                f"{self._where}: entries of {self.folder} are missing: restore them, or remove the folder that it is in"
            )
        found: list[ManifestEntry] = []
        last = numbers[-1]
        while numbers and not any(entry.whole for entry in found):
            # From the end; of the last ones one has all files.
            step, numbers = numbers[-WHOLE_EVERY:], numbers[:-WHOLE_EVERY]
            found = [*map(_decode, self._place.read([self._name(one) for one in step])), *found]
        start = max((place for place, entry in enumerate(found) if entry.whole), default=0)
        return last, found[-1], tuple(file for entry in found[start:] for file in entry.files)

    def _entry(self, number: int) -> ManifestEntry:
        return _decode(self._place.read([self._name(number)])[0])

    def _name(self, number: int) -> str:
        return f"{self.folder}/{number:012}.json"

    def _create(self, number: int, entry: ManifestEntry) -> None:
        self._place.create(self._name(number), to_json(entry))

    def _check_exclusive(self, number: int, entry: ManifestEntry) -> None:
        """Raise SamzaError where the place makes what is there already: nobody would be fenced there."""
        try:
            self._create(number, entry)
        except FileExistsError:
            return
        raise SamzaError(
            f"{self._where}: its file system does not tell that a file is there already, so that two runs could write "
            "at once: bind a folder here, or an object store with conditional writes, as s3://, gs:// and az://"
        )

    def _remove_unnamed(self, files: Sequence[str]) -> None:
        """Remove what a run has left that died between a file and its entry, or within a file."""
        named = {*files}
        unfinished = (
            name
            for name in self._place.unfinished()
            if name.startswith(f"{self.folder}/") or name.rpartition("/")[2].startswith(f".{self.prefix}")
        )
        self._place.remove([*(name for name in self._files_of_runs() if name not in named), *unfinished])

    def _files_of_runs(self) -> list[str]:
        """Return the data files that are there, whether they count or not."""
        return [name for name in self._place.names("") if name.rpartition("/")[2].startswith(self.prefix)]


_decode = msgspec.json.Decoder(ManifestEntry).decode


def named_files(place: ObjectPlace) -> list[str]:
    """Return the files that count of all outputs that were written into a folder."""
    folders = {name.rpartition("/")[0] for name in place.names(MANIFESTS)}
    return sorted(name for folder in folders for name in _files_of(place, folder))


def _files_of(place: ObjectPlace, folder: str) -> tuple[str, ...]:
    app, output, partition = folder.removeprefix(f"{MANIFESTS}/").rsplit(".", 2)
    return FolderManifest(place, folder, SinkOwner(app, output, int(partition), 0, 0)).files()
