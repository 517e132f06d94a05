"""Backups of a data directory that is in use: consistent copies that share the pages which did not change."""

from __future__ import annotations

import os
import shutil
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from threading import Thread
from typing import BinaryIO, NamedTuple

import msgspec

from runtime.model.clock import wall_clock_ms
from runtime.model.errors import Damaged, EnvironmentFault, system_errors_told
from runtime.systems.host.durable import make_durable, replace_durably
from runtime.systems.host.locks import locked
from runtime.systems.log.database import attach, verify
from runtime.systems.log.records import opened, sealed
from runtime.systems.log.recovery import DATA_FILE, set_format

# A backup is the file of the log as of one commit, in chunks of pages. A page is written to the pack of the backup
# that had it first; a backup is the list of its chunks, and of the pages in packs that each is made of. Invariants: a
# list is written last, when all that it names is on the disk, so a backup that is there is whole; nothing that a list
# names is ever changed.
PAGE_BYTES = 1 << 12
"""The unit in which LMDB writes, or a part of it: where a page has changed, its neighbours are not written again."""
CHUNK_BYTES = 1 << 16
"""The unit that has a digest and is looked up by it: one of each page makes lists and memory sixteen times that."""
MOST_PACKS = 64
"""The packs that a backup is made of at most, where old ones go: a restore reads them all."""
_MOST_OPEN = 32
_CHUNK_PAGES = CHUNK_BYTES // PAGE_BYTES
_DIGEST_BYTES = 20
_FORMAT_FILE, _FORMAT = "format", b"samza-dsl backups 2\n"
# The first one has whole chunks alone.
_READ_FORMATS = (b"samza-dsl backups 1\n", _FORMAT)
_LISTS, _PACKS = "backups", "packs"


class BackupError(EnvironmentFault):
    """A backup that can't be made or restored as was asked."""


class _Dropped(BackupError):
    """A backup that was there, and that another process which keeps the newest alone has dropped."""

    def __init__(self, target: Path, number: int) -> None:
        super().__init__(
            f"Backup {number} in {target} was dropped meanwhile: one keeps the newest alone. Take a newer."
        )


class _Run(NamedTuple):
    """Pages that lie one behind the other in a pack, from a place there that is counted in pages."""

    pack: int
    place: int
    pages: int


class _Layout:
    """The chunks of a backup, in the order of the file: of each its digest, and the runs of pages that make it."""

    def __init__(self) -> None:
        # Columns of numbers: a log of 100 GB has 1.6 million chunks.
        self.digests = bytearray()
        self.packs, self.places, self.lengths = array("Q"), array("Q"), array("B")
        self._ends = array("Q")
        self._indices: dict[bytes, int] = {}

    def add(self, digest: bytes, runs: list[_Run]) -> None:
        """Add the next chunk."""
        for pack, place, pages in runs:
            self.packs.append(pack)
            self.places.append(place)
            self.lengths.append(pages)
        self._indices.setdefault(digest, len(self._ends))
        self._ends.append(len(self.lengths))
        self.digests += digest

    def __len__(self) -> int:
        return len(self._ends)

    def runs(self, index: int) -> list[_Run]:
        """Return the runs of a chunk."""
        end = self._ends[index]
        start = self._ends[index - 1] if index else 0
        return [_Run(self.packs[at], self.places[at], self.lengths[at]) for at in range(start, end)]

    def runs_of(self, digest: bytes) -> list[_Run] | None:
        """Return the runs of a chunk with a digest, None where there is none."""
        index = self._indices.get(digest)
        return None if index is None else self.runs(index)

    def chunks(self) -> Iterator[tuple[bytes, list[_Run]]]:
        """Yield the digest and the runs of each chunk."""
        for index in range(len(self)):
            yield bytes(self.digests[index * _DIGEST_BYTES : (index + 1) * _DIGEST_BYTES]), self.runs(index)

    def pages_by_pack(self) -> Counter[int]:
        """Return how many pages lie in each pack."""
        found: Counter[int] = Counter()
        for pack, pages in zip(self.packs, self.lengths, strict=True):
            found[pack] += pages
        return found


class _List(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The list of a backup as it is stored: digests of its chunks, and the runs of all, which are columns of numbers.

    In the first format, which has no lengths, each chunk is a run, and places are counted in chunks.
    """

    number: int
    taken_ms: int
    data_bytes: int
    new_bytes: int
    digests: bytes
    packs: bytes
    places: bytes
    lengths: bytes = b""

    def layout(self) -> _Layout:
        """Return where the chunks lie."""
        found = _Layout()
        digests = iter(range(0, len(self.digests), _DIGEST_BYTES))
        runs: list[_Run] = []
        for run in self._runs():
            runs.append(run)
            if sum(one.pages for one in runs) == _CHUNK_PAGES:
                at = next(digests)
                found.add(self.digests[at : at + _DIGEST_BYTES], runs)
                runs = []
        if runs:  # a file may end within a chunk
            at = next(digests)
            found.add(self.digests[at : at + _DIGEST_BYTES], runs)
        assert next(digests, None) is None, "each digest is of the runs of a chunk"
        return found

    def packs_in_use(self) -> set[int]:
        """Return the packs that the backup has pages in."""
        return set(_words(self.packs))

    def _runs(self) -> Iterator[_Run]:
        packs, places = _words(self.packs), _words(self.places)
        if self.lengths:
            return map(_Run, packs, places, self.lengths)
        return (_Run(pack, place * _CHUNK_PAGES, _CHUNK_PAGES) for pack, place in zip(packs, places, strict=True))


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

    Others may read and write meanwhile; what they write takes more room until it is done. Only pages that the backup
    before had not are written. Of all backups the newest `keep` stay; then packs in which few pages are still of use
    are written anew as well, so that they go in time. Raises `EnvironmentFault` where something fails; the
    backups before are whole then.
    """
    assert keep is None or keep > 0, "at least the new one is kept"
    check_apart(path, target)
    with system_errors_told(target, "written"):
        for folder in (target, target / _LISTS, target / _PACKS):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(target / "backing-up.lock"):
            if not (target / _FORMAT_FILE).exists() or _check_format(target) != _FORMAT:
                replace_durably(target / _FORMAT_FILE, _FORMAT)
            numbers = _numbers(target)
            before = _list_of(target, numbers[-1]).layout() if numbers else _Layout()
            new = _NewBackup(target, (numbers[-1] if numbers else 0) + 1, before, drops_old=keep is not None).taken(
                path, now_ms()
            )
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


class _NewBackup:
    """A backup while it is taken: the pages that the one before had not go to a pack, and the list is made."""

    def __init__(self, target: Path, number: int, before: _Layout, drops_old: bool) -> None:
        self._target, self._number, self._before = target, number, before
        self._leaves = _packs_to_leave(target, before, drops_old)
        self._new = _Layout()
        self._packs = _Packs(target, number)
        self._pages = 0

    def taken(self, path: Path, now_ms: int) -> _List:
        """Copy the log at a path as of its last commit, and return the list when all of it is on the disk."""
        pack = _pack(self._target, self._number)
        aside = pack.with_suffix(".new")
        data_bytes = 0
        with closing(self._packs), aside.open("wb") as file:
            os.fchmod(file.fileno(), 0o600)
            for index, chunk in enumerate(_snapshot(path)):
                data_bytes += len(chunk)
                digest = blake2b(chunk, digest_size=_DIGEST_BYTES).digest()
                self._new.add(digest, self._runs(index, chunk, digest, file))
            file.flush()
            os.fsync(file.fileno())
        aside.replace(pack)
        make_durable(pack.parent)
        found = _List(
            number=self._number,
            taken_ms=now_ms,
            data_bytes=data_bytes,
            new_bytes=self._pages * PAGE_BYTES,
            digests=bytes(self._new.digests),
            packs=self._new.packs.tobytes(),
            places=self._new.places.tobytes(),
            lengths=self._new.lengths.tobytes(),
        )
        place = _list_file(self._target, self._number)
        assert not place.exists(), "a backup gets a number that none has"
        replace_durably(place, sealed(place.name.encode(), msgspec.msgpack.encode(found)))
        return found

    def _runs(self, index: int, chunk: bytes, digest: bytes, file: BinaryIO) -> list[_Run]:
        """Return where the pages of a chunk lie; those that lie nowhere yet are written."""
        known = self._new.runs_of(digest)
        if known is not None:
            return known
        known, content = self._before.runs_of(digest), chunk
        if known is None and index < len(self._before):
            # LMDB changes some pages of a chunk, and others stay where they were in the file.
            known = self._before.runs(index)
            content = self._content(known)
        elif known is not None and self._leaves.isdisjoint(run.pack for run in known):
            return known
        lies = [(pack, place + page) for pack, place, pages in known or () for page in range(pages)]
        runs: list[_Run] = []
        for start in range(0, len(chunk), PAGE_BYTES):
            page = chunk[start : start + PAGE_BYTES]
            at = lies[start // PAGE_BYTES] if start // PAGE_BYTES < len(lies) else None
            if at is None or at[0] in self._leaves or content[start : start + len(page)] != page:
                at = self._number, self._pages
                # Padded, so that the place of a page is a number of pages.
                file.write(page.ljust(PAGE_BYTES, b"\0"))
                self._pages += 1
            if runs and runs[-1].pack == at[0] and runs[-1].place + runs[-1].pages == at[1]:
                runs[-1] = runs[-1]._replace(pages=runs[-1].pages + 1)
            else:
                runs.append(_Run(*at, 1))
        return runs

    def _content(self, runs: list[_Run]) -> bytes:
        # A backup is whole also where the one before is not: pages of a pack that is gone are written anew.
        return b"" if any(run.pack in self._leaves for run in runs) else self._packs.read(runs)


def _packs_to_leave(target: Path, before: _Layout, drops_old: bool) -> set[int]:
    """Return the packs of the backup before whose pages are written anew: those that are gone, or are to go.

    Where old backups go, their packs do too when no page of them is in use: those that are half empty are left, which
    costs at most one more page for each that was written, and the smaller half where they are too many.
    """
    live = before.pages_by_pack()
    found, full = set(), []
    for pack, pages in live.items():
        try:
            size = _pack(target, pack).stat().st_size // PAGE_BYTES
        except FileNotFoundError:
            found.add(pack)
            continue
        if 2 * pages < size and drops_old:
            found.add(pack)
        else:
            full.append(pack)
    if len(full) > MOST_PACKS and drops_old:
        found.update(sorted(full, key=lambda pack: live[pack])[: len(full) // 2])
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
    with closing(_Packs(target, found.number)) as packs:
        for digest, runs in found.layout().chunks():
            chunk = packs.read(runs)[:left]
            if blake2b(chunk, digest_size=_DIGEST_BYTES).digest() != digest:
                among = ", ".join(f"page {run.place} of {_pack(target, run.pack)}" for run in runs)
                raise Damaged(
                    f"Backup {found.number} in {target} is not what was written: a chunk has another checksum, from "
                    f"{among}. Restore an older one, by its number."
                )
            left -= len(chunk)
            yield chunk
    assert left == 0, "a list counts the bytes of its chunks"


class _Packs:
    """The packs that a backup is read from; the few that were opened last stay open, as descriptors are few."""

    def __init__(self, target: Path, number: int) -> None:
        self._target, self._number = target, number
        self._files: dict[int, int] = {}

    def read(self, runs: list[_Run]) -> bytes:
        """Return the pages of runs; raises `Damaged` where a pack is gone."""
        return b"".join(
            os.pread(self._file(pack), pages * PAGE_BYTES, place * PAGE_BYTES) for pack, place, pages in runs
        )

    def close(self) -> None:
        """Close what is open."""
        while self._files:
            os.close(self._files.popitem()[1])

    def _file(self, pack: int) -> int:
        if pack not in self._files:
            if len(self._files) == _MOST_OPEN:
                os.close(self._files.pop(next(iter(self._files))))
            self._files[pack] = _opened(self._target, self._number, pack)
        return self._files[pack]


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
    needed = {pack for number in _numbers(target) for pack in _list_of(target, number).packs_in_use()}
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


def _check_format(target: Path) -> bytes:
    """Return the format of the backups in a directory; raises `BackupError` where it is none that is read here."""
    file = target / _FORMAT_FILE
    try:
        found = file.read_bytes()
    except OSError:
        raise BackupError(f"There are no backups in {target}: `samza-dsl backup APP {target}` makes one.") from None
    if found not in _READ_FORMATS:
        raise BackupError(f"{target} has backups of the format {found!r}, and this version reads {_READ_FORMATS}.")
    return found


def _list_file(target: Path, number: int) -> Path:
    return target / _LISTS / f"{number:08}"


def _pack(target: Path, number: int) -> Path:
    return target / _PACKS / f"{number:08}.pack"


def _words(data: bytes) -> array[int]:
    words = array("Q")
    words.frombytes(data)
    return words
