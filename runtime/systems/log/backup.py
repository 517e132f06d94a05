"""Backups of a data directory that is in use: consistent copies that share the pages which did not change."""

from __future__ import annotations

import os
import shutil
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from threading import Thread
from typing import NamedTuple

import msgspec

from runtime.model.clock import wall_clock_ms
from runtime.model.errors import Damaged, EnvironmentFault, system_errors_told
from runtime.systems.host.durable import make_durable, replace_durably
from runtime.systems.host.locks import locked
from runtime.systems.log.database import attach, verify
from runtime.systems.log.records import opened, sealed
from runtime.systems.log.recovery import DATA_FILE, set_format

# A backup is the file of the log as of one commit, in chunks. Each chunk is stored once, in the pack of the backup
# that had it first; a backup is the list of its chunks. Invariants: a list is written last, when all that it names is
# on the disk, so a backup that is there is whole; nothing that a list names is ever changed.
CHUNK_BYTES = 1 << 16
"""Sixteen pages: with fewer, lists grow; with more, a changed page takes more unchanged ones along."""
_DIGEST_BYTES = 20
_FORMAT_FILE, _FORMAT = "format", b"samza-dsl backups 1\n"
_LISTS, _PACKS = "backups", "packs"


class BackupError(EnvironmentFault):
    """A backup that can't be made or restored as was asked."""


class _Dropped(BackupError):
    """A backup that was there, and that another process which keeps the newest alone has dropped."""

    def __init__(self, target: Path, number: int) -> None:
        super().__init__(
            f"Backup {number} in {target} was dropped meanwhile: one keeps the newest alone. Take a newer."
        )


class _List(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The list of a backup's chunks: the digest of each, the pack it lies in, and its place there, in chunks."""

    number: int
    taken_ms: int
    data_bytes: int
    new_bytes: int
    digests: bytes
    packs: bytes
    places: bytes

    def chunks(self) -> Iterator[tuple[bytes, int, int]]:
        """Yield the chunks in the order of the file."""
        packs, places = _words(self.packs), _words(self.places)
        assert len(packs) == len(places) == len(self.digests) // _DIGEST_BYTES, "columns are equally long"
        for index, (pack, place) in enumerate(zip(packs, places, strict=True)):
            yield self.digests[index * _DIGEST_BYTES : (index + 1) * _DIGEST_BYTES], pack, place


class Backup(NamedTuple):
    """A backup: its number, when it was taken, how large the log was, and how much of it was new then."""

    number: int
    taken_ms: int
    data_bytes: int
    new_bytes: int


def backups(target: Path) -> list[Backup]:
    """Return the backups in a directory, the oldest first; raises `BackupError` where that has none of ours."""
    _check_format(target)
    found = []
    for number in _numbers(target):
        with suppress(_Dropped):
            one = _list_of(target, number)
            found.append(Backup(one.number, one.taken_ms, one.data_bytes, one.new_bytes))
    return found


def back_up(path: Path, target: Path, keep: int | None = None, now_ms: Callable[[], int] = wall_clock_ms) -> Backup:
    """Add a backup of the data directory `path`, as of its last commit, to those in `target`, made where it is absent.

    Others may read and write meanwhile; what they write takes more room until it is done. Only what the backup before
    had not is written. Of all backups the newest `keep` stay. Raises `EnvironmentFault` where something fails; the
    backups before are whole then.
    """
    assert keep is None or keep > 0, "at least the new one is kept"
    check_apart(path, target)
    with system_errors_told(target, "written"):
        for folder in (target, target / _LISTS, target / _PACKS):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(target / "backing-up.lock"):
            if not (target / _FORMAT_FILE).exists():
                replace_durably(target / _FORMAT_FILE, _FORMAT)
            _check_format(target)
            numbers = _numbers(target)
            before = _list_of(target, numbers[-1]) if numbers else None
            new = _copied(path, target, (numbers[-1] if numbers else 0) + 1, before, now_ms())
            if keep is not None:
                _drop(target, _numbers(target)[:-keep])
    return Backup(new.number, new.taken_ms, new.data_bytes, new.new_bytes)


def check_apart(path: Path, target: Path) -> None:
    """Raise `BackupError` where backups would lie in the data directory that they are of."""
    if target.resolve().is_relative_to(path.resolve()):
        raise BackupError(
            f"A backup of {path} in {target} would be lost with it: name a directory outside of it, on another disk."
        )


def restore(target: Path, path: Path, number: int | None = None) -> Backup:
    """Make the data directory `path` from a backup, the newest unless a number is given; every byte is verified.

    Raises `BackupError` where there is something at `path` or no such backup, `Damaged` where one is not what was
    written. The directory appears when all of it is there.
    """
    _check_format(target)
    known = _numbers(target)
    if not known or (number is not None and number not in known):
        there = ", ".join(map(str, known)) or "none"
        raise BackupError(f"There is no backup {'' if number is None else f'{number} '}in {target}: it has {there}.")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise BackupError(f"There is something at {path}: restore to a directory that is not there, or is empty.")
    found = _list_of(target, known[-1] if number is None else number)
    aside = path.with_name(path.name + ".restoring")
    with system_errors_told(path, "written"), _removed_unless_whole(aside):
        aside.mkdir(mode=0o700, parents=True)
        with (aside / DATA_FILE).open("xb") as file:
            os.fchmod(file.fileno(), 0o600)
            for chunk in _verified(target, found):
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        set_format(aside)
        if findings := verify(aside):
            raise Damaged(f"Backup {found.number} in {target} is not what was written: {'; '.join(findings[:5])}.")
        aside.replace(path)
        make_durable(path.parent)
    return Backup(found.number, found.taken_ms, found.data_bytes, found.new_bytes)


@contextmanager
def _removed_unless_whole(folder: Path) -> Iterator[None]:
    """Remove what another restore has left, which was killed, and what a block has made that fails: a disk is full."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def verify_backups(target: Path) -> list[str]:
    """Return what is wrong with the backups in a directory, in words: nothing, when each is as it was written."""
    _check_format(target)
    findings = []
    for number in _numbers(target):
        try:
            for _ in _verified(target, _list_of(target, number)):
                pass
        except _Dropped:
            continue
        except Damaged as error:
            findings.append(str(error))
    return findings


def _copied(path: Path, target: Path, number: int, before: _List | None, now_ms: int) -> _List:
    """Write the chunks that no list has yet into a pack, and then the list of all."""
    # The chunks of the newest list alone: what an older one has besides is what has changed since.
    known = {digest: (pack, place) for digest, pack, place in before.chunks()} if before is not None else {}
    digests, packs, places = bytearray(), array("Q"), array("Q")
    data_bytes = new = 0
    pack = _pack(target, number)
    aside = pack.with_suffix(".new")
    with aside.open("wb") as file:
        os.fchmod(file.fileno(), 0o600)
        for chunk in _snapshot(path):
            digest = blake2b(chunk, digest_size=_DIGEST_BYTES).digest()
            data_bytes += len(chunk)
            lies = known.get(digest)
            if lies is None:
                lies = known[digest] = number, new
                # Padded, so that the place of a chunk is a number of chunks.
                file.write(chunk.ljust(CHUNK_BYTES, b"\0"))
                new += 1
            digests += digest
            packs.append(lies[0])
            places.append(lies[1])
        file.flush()
        os.fsync(file.fileno())
    aside.replace(pack)
    make_durable(pack.parent)
    found = _List(
        number=number,
        taken_ms=now_ms,
        data_bytes=data_bytes,
        new_bytes=new * CHUNK_BYTES,
        digests=bytes(digests),
        packs=packs.tobytes(),
        places=places.tobytes(),
    )
    assert before is None or before.number < number, "a backup gets a number that none has"
    place = _list_file(target, number)
    replace_durably(place, sealed(place.name.encode(), msgspec.msgpack.encode(found)))
    return found


def _snapshot(path: Path) -> Iterator[bytes]:
    """Yield the file of a log as of its last commit, in chunks.

    LMDB holds writers back only while it notes which commit that is. Pages that this commit has are not written again
    before it is done; those that are free at that commit may be, and nothing looks at them.
    """
    database = attach(path)
    failed: list[Exception] = []
    reading, writing = os.pipe()

    def copy() -> None:
        try:
            database.env.copyfd(writing)
        except database.errors as error:
            failed.append(error)
        finally:
            os.close(writing)

    copying = Thread(target=copy, name="copies-the-log", daemon=True)
    try:
        with database.reading():
            pass  # refused where the database is not used any more
        copying.start()
        with open(reading, "rb", buffering=CHUNK_BYTES) as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
        copying.join()
        if failed:
            raise BackupError(f"LMDB could not copy {path}: {failed[0]}. The backups before are whole.")
    finally:
        # Where the reader has gone the copy ends by itself: nobody takes what it writes.
        if copying.ident is not None:
            copying.join()
        else:
            os.close(reading)
            os.close(writing)
        database.release()


def _verified(target: Path, found: _List) -> Iterator[bytes]:
    """Yield the chunks of a backup; raises `Damaged` at the first that is not what was written."""
    left = found.data_bytes
    files: dict[int, int] = {}
    try:
        for digest, pack, place in found.chunks():
            if pack not in files:
                files[pack] = _opened(target, found.number, pack)
            chunk = os.pread(files[pack], CHUNK_BYTES, place * CHUNK_BYTES)[:left]
            if blake2b(chunk, digest_size=_DIGEST_BYTES).digest() != digest:
                raise Damaged(
                    f"Backup {found.number} in {target} is not what was written: chunk {place} of "
                    f"{_pack(target, pack)} has another checksum. Restore an older one, by its number."
                )
            left -= len(chunk)
            yield chunk
    finally:
        for descriptor in files.values():
            os.close(descriptor)
    assert left == 0, "a list counts the bytes of its chunks"


def _opened(target: Path, number: int, pack: int) -> int:
    try:
        return os.open(_pack(target, pack), os.O_RDONLY)
    except FileNotFoundError:
        if not _list_file(target, number).exists():
            raise _Dropped(target, number) from None
        wrong = f"Backup {number} in {target} is not what was written: {_pack(target, pack)} is gone."
        raise Damaged(f"{wrong} Restore an older one, by its number.") from None


def _drop(target: Path, numbers: list[int]) -> None:
    """Remove backups, and then the packs that no other one needs."""
    for number in numbers:
        _list_file(target, number).unlink()
    make_durable(target / _LISTS)
    needed = {pack for number in _numbers(target) for _, pack, _ in _list_of(target, number).chunks()}
    for file in (target / _PACKS).iterdir():
        if file.suffix == ".pack" and int(file.stem) not in needed:
            file.unlink()


def _numbers(target: Path) -> list[int]:
    folder = target / _LISTS
    return sorted(int(one.name) for one in folder.iterdir() if one.name.isdecimal()) if folder.is_dir() else []


def _list_of(target: Path, number: int) -> _List:
    file = _list_file(target, number)
    try:
        return msgspec.msgpack.decode(opened(file.name.encode(), file.read_bytes()), type=_List)
    except FileNotFoundError:
        raise _Dropped(target, number) from None
    except (OSError, ValueError) as error:
        raise Damaged(f"The list of backup {number} in {target} is not what was written: {error}.") from error


def _check_format(target: Path) -> None:
    file = target / _FORMAT_FILE
    try:
        found = file.read_bytes()
    except OSError:
        raise BackupError(f"There are no backups in {target}: `samza-dsl backup APP {target}` makes one.") from None
    if found != _FORMAT:
        raise BackupError(f"{target} has backups of the format {found!r}, and this version reads {_FORMAT!r}.")


def _list_file(target: Path, number: int) -> Path:
    return target / _LISTS / f"{number:08}"


def _pack(target: Path, number: int) -> Path:
    return target / _PACKS / f"{number:08}.pack"


def _words(data: bytes) -> array[int]:
    words = array("Q")
    words.frombytes(data)
    return words
