"""The verification of a data directory before it is trusted: LMDB's pages, every checksum, and the log's offsets."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from runtime.model.errors import Damaged, EnvironmentFault
from runtime.systems.log.batch import unpack
from runtime.systems.log.journal import JOURNAL, JournalSpan, name_of, records_of
from runtime.systems.log.records import PLACE, STORE, entry_of, opened, sealed
from runtime.systems.log.state import TALLY, Tally, tallied
from runtime.systems.log.streams import PARTITION, STAGED, STREAM, TAIL, Stream, Tail, last_offset

if TYPE_CHECKING:
    import lmdb

    from runtime.systems.log.database import Database

LAST_TRANSACTION = b"last transaction"
"""The key beside LMDB's tables under which each transaction leaves its own number."""
DATA_FILE = "data.mdb"
NEWEST_FILE = "newest"
_NUMBER = struct.Struct("<Q")
_FORMAT_FILE, _FORMAT = "format", b"samza-dsl log 4\n"
_MAX_FINDINGS = 100
_MAGIC = struct.pack("=I", 0xBEEFC0DE)
_HEADERS_BYTES = (16, 24)
"""The header of a page, in LMDB 0.9 and in LMDB 1.0; a meta page's own fields follow."""
_PAGE_SIZE, _LAST_PAGE, _TRANSACTION = 24, 120, 128
"""The places of these in a meta page, counted from the end of its header."""
_FLAGS = {28: 0x08, 76: 0}
"""The places of the flags of the tables of free pages and of all tables, and the flags: integer keys, and none."""


class AnotherFormat(EnvironmentFault):
    """Another version of the library wrote what is there."""


def check_format(path: Path) -> bool:
    """Return whether a directory is new.

    Raises `AnotherFormat` when another version wrote it, `Damaged` when its data file is gone.
    """
    try:
        found = (path / _FORMAT_FILE).read_bytes()
    except FileNotFoundError:
        return True
    if found != _FORMAT:
        theirs, ours = (one.decode("ascii", "backslashreplace").strip() for one in (found, _FORMAT))
        raise AnotherFormat(
            f"{path} has format {theirs!r}, and this version of the library reads {ours!r}: use the version that wrote "
            "it, or restore a backup of before."
        )
    data = path / DATA_FILE
    if not data.exists() or data.stat().st_size == 0:
        raise Damaged(f"{data} is gone or empty, and it was not: restore it, or delete the directory to start anew.")
    return False


def set_format(path: Path) -> None:
    """Note in the directory that it is in use, and in which format."""
    file = path / _FORMAT_FILE
    if not file.exists():
        # Written aside and renamed: a torn one would be taken for another version's.
        whole = file.with_suffix(".new")
        with whole.open("wb") as new:
            new.write(_FORMAT)
            new.flush()
            os.fsync(new.fileno())
        whole.replace(file)


def drop_unfinished(path: Path) -> None:
    """Remove a data file without its two meta pages from a directory without a format: no commit can be in it.

    A full disk or a power cut leaves it when LMDB has just begun to make it.
    """
    data = path / DATA_FILE
    if data.exists():
        with data.open("rb") as file:
            pages = [file.read(mmap.PAGESIZE) for _ in range(2)]
        if not all(map(_header_bytes, pages)):
            data.unlink()


def _header_bytes(page: bytes) -> int | None:
    """Return how long the header of a meta page is; None for anything else."""
    return next((size for size in _HEADERS_BYTES if page[size : size + 4] == _MAGIC), None)


def is_short(path: Path) -> bool:
    """Whether the data file may lack pages that LMDB would look for, and die of it; only `structure` can be sure."""
    try:
        with (path / DATA_FILE).open("rb") as file:
            start = file.read(64)
            header_bytes = _header_bytes(start)
            if header_bytes is None:
                return bool(start)
            page_bytes: int = struct.unpack_from("=I", start, header_bytes + _PAGE_SIZE)[0]
            last_page = 0
            for meta in (0, page_bytes):
                file.seek(meta + header_bytes + _LAST_PAGE)
                last_page = max(last_page, struct.unpack("=Q", file.read(8))[0])
            # LMDB maps the file, and dies of a page that lies beyond its end: no exception would tell of it.
            return file.seek(0, os.SEEK_END) < (last_page + 1) * page_bytes
    except FileNotFoundError:
        return False
    except struct.error:
        return True


def structure(path: Path) -> list[str]:
    """Return what is wrong with LMDB's pages, without opening them by LMDB; nobody may write meanwhile."""
    from lmdb import verify as pages

    data = path / DATA_FILE
    if not data.exists() or data.stat().st_size == 0:
        return []
    check: Callable[..., list[str]] = pages.verify
    try:
        return check(os.fspath(data), subdir=False) or _metas(data)
    except Exception as error:  # The verifier may stumble over anything that a damaged file has.
        return [f"{data}: {error}"]


def _metas(data: Path) -> list[str]:
    """Look at what LMDB believes of the first two pages without checking it.

    It writes the numbers of the two newest transactions in turn, and goes by the higher one; and it ends the process
    where the tables of free pages and of all tables have flags that it has never given them.
    """
    with data.open("rb") as file:
        start = file.read(64)
        header_bytes = _header_bytes(start) or 0
        page_bytes: int = struct.unpack_from("=I", start, header_bytes + _PAGE_SIZE)[0]
        numbers: list[int] = []
        for meta in (0, page_bytes):
            file.seek(meta + header_bytes + _TRANSACTION)
            numbers += struct.unpack("=Q", file.read(8))
            for place, wanted in _FLAGS.items():
                file.seek(meta + header_bytes + place)
                (flags,) = struct.unpack("=H", file.read(2))
                if flags != wanted:
                    return [f"{data}: a table has the flags {flags:#x}, not {wanted:#x}"]
    if max(numbers) and abs(numbers[0] - numbers[1]) != 1:
        return [f"{data}: the two newest transactions have the numbers {numbers[0]} and {numbers[1]}"]
    return []


def note_newest(path: Path, number: int) -> None:
    """Note beside the data file which transaction is its newest, where there is room."""
    note = path / NEWEST_FILE
    with suppress(OSError):
        new = note.with_suffix(".new")
        new.write_bytes(sealed(NEWEST_FILE.encode(), _NUMBER.pack(number)))
        new.replace(note)


def _noted_newest(path: Path) -> int:
    """Return a transaction that the data file must have: 0 where none was noted, or a power cut tore the note."""
    with suppress(OSError, ValueError, struct.error):
        return int(_NUMBER.unpack(opened(NEWEST_FILE.encode(), (path / NEWEST_FILE).read_bytes()))[0])
    return 0


def records(transaction: lmdb.Transaction[memoryview], database: Database) -> list[str]:
    """Return what is wrong with checksums and offsets, given that LMDB's pages are sound."""
    return list(islice(_findings(transaction, database), _MAX_FINDINGS))


def _findings(transaction: lmdb.Transaction[memoryview], database: Database) -> Iterator[str]:
    number = transaction.get(LAST_TRANSACTION)
    if number is not None:
        # This is a transaction of its own, and so its number is one above that of the newest.
        expected = sealed(LAST_TRANSACTION, _NUMBER.pack(transaction.id() - 1))
        if bytes(number) != expected:
            yield "the newest transaction is not the one that LMDB takes for it"
    if transaction.id() - 1 < (noted := _noted_newest(database.path)):
        yield f"there was a transaction {noted}, and LMDB takes {transaction.id() - 1} for the newest"
    streams: dict[int, Stream] = {}
    tails: dict[bytes, Tail] = {}
    kept: dict[bytes, bytes] = {}
    for name, table in (("meta", database.meta), ("checkpoints", database.checkpoints), ("tails", database.tails)):
        for view, record in transaction.cursor(table):
            key = bytes(view)
            try:
                data = opened(key, record)
            except ValueError as error:
                yield f"{name}, {key!r}: {error}"
                continue
            if name == "tails":
                tails[key] = Tail(*TAIL.unpack(data))
            elif key.startswith((STREAM, STAGED)):
                stream = msgspec.msgpack.decode(data, type=Stream)
                streams[stream.id] = stream
            elif name == "meta":
                kept[key] = data
    for view, record in transaction.cursor(database.state):
        try:
            entry_of(bytes(view), record)
        except (ValueError, struct.error) as error:
            yield f"state, {bytes(view)!r}: {error}"
    yield from _miscounted(transaction, database, kept)
    yield from _misjournaled(transaction, database, kept)
    for stream in streams.values():
        for partition in range(stream.config.partitions):
            tail = tails.get(PARTITION.pack(stream.id, partition))
            if tail is None:
                yield f"stream {stream.name!r}, partition {partition}: the record of its end is missing"
            else:
                yield from _gaps(transaction, database, stream, partition, tail)
    batches = sum(tail.batches for tail in tails.values())
    stored = transaction.stat(database.log)["entries"]
    if stored != batches:
        yield f"there are {stored} batches, and not the {batches} that all partitions have"


def _miscounted(
    transaction: lmdb.Transaction[memoryview], database: Database, kept: dict[bytes, bytes]
) -> Iterator[str]:
    """Compare the entries of each store with what is kept beside it in `kept`, the sealed data of the meta table."""
    names = {data[:4]: key.decode().split("\0")[1:] for key, data in kept.items() if key.startswith(STORE)}
    told = {key.removeprefix(TALLY): Tally.of(data) for key, data in kept.items() if key.startswith(TALLY)}
    found = tallied(transaction.cursor(database.state))
    for place in sorted(told.keys() | found.keys()):
        store, task = PLACE.unpack(place)
        app, name = names.get(store.to_bytes(4, "little"), ("unknown", str(store)))
        where = f"state of {app!r}, store {name!r}, task {task}"
        has, should_have = found.get(place, Tally()), told.get(place, Tally())
        if has.entries != should_have.entries:
            yield f"{where}: {has.entries} entries, not {should_have.entries}"
        elif has != should_have:
            yield f"{where}: its entries are not those of the last commit"


def _misjournaled(
    transaction: lmdb.Transaction[memoryview], database: Database, kept: dict[bytes, bytes]
) -> Iterator[str]:
    """Compare the records of each journal with what is kept beside it in `kept`, as above."""
    told = {key.removeprefix(JOURNAL): JournalSpan.of(data) for key, data in kept.items() if key.startswith(JOURNAL)}
    for place, span in told.items():
        try:
            found = sum(1 for _ in records_of(transaction, database, place))
        except ValueError as error:
            yield f"the journal of {name_of(transaction, database, place)}: {error}"
        else:
            if found != span.records:
                whose = name_of(transaction, database, place)
                yield f"the journal of {whose}: {found} records, not {span.records}"
    stored, should_have = transaction.stat(database.journal)["entries"], sum(span.records for span in told.values())
    if stored != should_have:
        yield f"there are {stored} records of journals, and not the {should_have} that all stores have"


def _gaps(
    transaction: lmdb.Transaction[memoryview], database: Database, stream: Stream, partition: int, tail: Tail
) -> Iterator[str]:
    where = f"stream {stream.name!r}, partition {partition}"
    place = PARTITION.pack(stream.id, partition)
    cursor = transaction.cursor(database.log)
    next_offset, batches, size_bytes = tail.start, 0, 0
    found = cursor.set_range(place)
    while found and (key := bytes(cursor.key())).startswith(place):
        last = next_offset
        try:
            last = last_offset(stream, key)
            base = unpack(key, cursor.value(), last).base
            if base < next_offset or (base > next_offset and not stream.config.compacted):
                yield f"{where}: after offset {next_offset} comes the batch from {base} to {last}"
        except (Damaged, ValueError, msgspec.MsgspecError) as error:
            yield f"{where}: the batch up to offset {last}: {error}"
        next_offset, batches, size_bytes = last + 1, batches + 1, size_bytes + len(cursor.value())
        found = cursor.next()
    if next_offset > tail.end or (next_offset < tail.end and not stream.config.compacted):
        yield f"{where}: it ends at offset {next_offset}, not {tail.end}"
    if (batches, size_bytes) != (tail.batches, tail.size_bytes):
        yield f"{where}: {batches} batches of {size_bytes} bytes, not {tail.batches} of {tail.size_bytes}"
