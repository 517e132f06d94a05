"""Archives of streams: every record as it is stored, with its partition and its offset, in files that never change."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from operators.core.base import Batch, Serde
from runtime.model.errors import Damaged, SamzaError, system_errors_told
from runtime.ports.environment import Environment
from runtime.ports.source import Source
from runtime.ports.streams import OUTSIDE, Control, Offsets, Read, ends
from runtime.systems.host.durable import make_durable, replace_durably

MANIFEST = "_archive.json"
"""Names all files of an archive; what it does not name is none of it. Tools that read directories pass it over."""
ROWS_PER_FILE = 1_000_000
ROWS_AT_ONCE = 10_000
VERSION = 1
Kind = Literal["parquet", "jsonl"]


class ArchiveRows(NamedTuple):
    """Records as columns, those of one partition in the order of their offsets.

    `watermarks` has what a producer said of event time behind a record. Where it said so behind none, there is a row
    without a timestamp, as that took an offset of the stream, too.
    """

    offsets: list[int]
    timestamps: list[int | None]
    keys: list[bytes | None]
    values: list[bytes | None]
    watermarks: list[int | None]


class ArchivePart(msgspec.Struct, frozen=True, kw_only=True):
    """One file: records of one partition from offset `start` on, and none from `end` on."""

    file: str
    partition: int
    start: int
    end: int
    rows: int


class ArchiveManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The content of an archive: for each partition the offsets from which, and up to which, there is everything."""

    stream: str
    kind: Kind
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    parts: tuple[ArchivePart, ...] = ()
    version: int = VERSION

    @property
    def rows(self) -> int:
        """The number of records, with rows that only tell of event time."""
        return sum(part.rows for part in self.parts)

    def of(self, partition: int) -> list[ArchivePart]:
        """Return the files of a partition, in order."""
        return [part for part in self.parts if part.partition == partition]


class ArchiveSource(Source):
    """A bounded input of an archive: records have the offsets, keys and times that they had in the stream."""

    name = "archive"

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._manifest = read_manifest(path)
        self.partitions = len(self._manifest.ends)
        self._reading: dict[int, _Reading] = {}

    def serde(self, declared: Serde) -> Serde:
        """Return the declared serde: values are the bytes of the stream."""
        return declared

    def offsets(self, partition: int) -> Offsets:
        """Return the range that the archive has."""
        return Offsets(self._manifest.starts[partition], self._manifest.ends[partition], ended=True)

    def read(self, partition: int, offset: int, max_records: int = 10_000) -> Read | None:
        """Return rows from `offset` on; None at the end, and `Damaged` outside of what there is."""
        start, end, _ = self.offsets(partition)
        if not start <= offset <= end:
            raise Damaged(
                f"{self.path} has offsets {start:,} to {end:,} of partition {partition}, fewer than a run needs that "
                f"goes on at {offset:,}: archive more of the stream, or begin where the archive does"
            )
        if offset == end:
            return None
        reading = self._reading.get(partition)
        if reading is None or not reading.can_go_on_at(offset):
            reading = self._reading[partition] = _Reading(self.path, self._manifest, partition, offset)
        return reading.read(offset, max_records) or Read(Batch([], offsets=[]), None, end)

    def close(self) -> None:
        """Close what is open; a second call does nothing."""
        self._reading.clear()


class _Reading:
    """A reader's place in the files of a partition."""

    def __init__(self, path: Path, manifest: ArchiveManifest, partition: int, offset: int) -> None:
        self._next = offset
        parts = [part for part in manifest.of(partition) if part.end > offset]
        self._blocks = (rows for part in parts for rows in _checked(path, manifest.kind, part))
        self._rows: ArchiveRows | None = None
        self._at = 0

    def can_go_on_at(self, offset: int) -> bool:
        return offset == self._next

    def read(self, offset: int, max_records: int) -> Read | None:
        rows = self._rows
        while rows is None or self._at == len(rows.offsets):
            rows, self._at = next(self._blocks, None), 0
            if rows is None:
                return None
            while self._at < len(rows.offsets) and rows.offsets[self._at] < offset:
                self._at += 1
        self._rows = rows
        found = read_of(rows, self._at, min(self._at + max_records, len(rows.offsets)))
        self._at, self._next = bisect_left(rows.offsets, found.next_offset), found.next_offset
        assert found.next_offset > offset, "a read leads on"
        return found


def read_of(rows: ArchiveRows, start: int, stop: int) -> Read:
    """Return some of the rows: up to the first behind which a producer told of event time, which holds for these."""
    told = next((row for row in range(start, stop) if rows.watermarks[row] is not None), None)
    # A read ends behind what a producer said, as it does in the stream: it holds for the rows before it.
    stop = stop if told is None else told + 1
    following = rows.offsets[stop - 1] + 1
    control = None if told is None else Control(OUTSIDE, rows.watermarks[told] or 0)
    if told is not None and rows.timestamps[told] is None:
        stop -= 1
    batch = Batch(rows.values[start:stop], rows.keys[start:stop], offsets=rows.offsets[start:stop])
    batch.timestamps = rows.timestamps[start:stop]  # type: ignore[assignment]  # what has none was left out
    return Read(batch, control, following)


def is_archive(path: Path) -> bool:
    """Whether there is an archive at `path`."""
    return (path / MANIFEST).is_file()


def read_manifest(path: Path) -> ArchiveManifest:
    """Return what an archive holds; raises `Damaged` where that can't be read."""
    try:
        found = msgspec.json.decode((path / MANIFEST).read_bytes(), type=ArchiveManifest)
    except (OSError, msgspec.MsgspecError) as error:
        raise Damaged(f"{path / MANIFEST} can't be read: {error}; restore it, or archive the stream anew") from error
    if found.version != VERSION:
        raise SamzaError(f"{path / MANIFEST} is of version {found.version}, and {VERSION} is read here")
    return found


def archive_stream(
    environment: Environment, stream: str, path: Path, kind: Kind, rows_per_file: int = ROWS_PER_FILE
) -> ArchiveManifest:
    """Write what a stream holds and an archive has not yet, and return what the archive holds then.

    It is there file by file: what is stopped goes on behind the last whole one. Raises SamzaError where there is no
    such stream, where the directory holds something else, and where records are gone that the archive has not.
    """
    streams = environment.streams()
    if stream not in streams:
        raise SamzaError(f"there is no stream {stream!r} to archive; there are {', '.join(sorted(streams)) or 'none'}")
    if kind not in ("parquet", "jsonl"):
        raise SamzaError(f'kind={kind!r} is no kind of archive: write kind="parquet" or kind="jsonl"')
    count = streams[stream].partitions
    ranges = [environment.offsets(stream, partition) for partition in range(count)]
    with system_errors_told(path, "written"):
        path.mkdir(parents=True, exist_ok=True)
        starts = tuple(one.start for one in ranges)
        manifest = ArchiveManifest(stream=stream, kind=kind, starts=starts, ends=starts)
        if is_archive(path):
            manifest = _of(read_manifest(path), stream, kind, ranges, path)
        elif any(path.iterdir()):
            raise SamzaError(f"{path} has something in it that is no archive: name a new directory")
        _write_manifest(path, manifest)
        for partition, (_, end, _) in enumerate(ranges):
            while (offset := manifest.ends[partition]) < end:
                part, after = _write_part(path, kind, environment, (stream, partition, offset, end), rows_per_file)
                assert after > offset, "an archive goes on"
                reached = (*manifest.ends[:partition], after, *manifest.ends[partition + 1 :])
                parts = (*manifest.parts, part) if part.rows else manifest.parts
                manifest = msgspec.structs.replace(manifest, ends=reached, parts=parts)
                # File by file: what is stopped goes on behind the last one that the manifest names.
                _write_manifest(path, manifest)
    return manifest


def _of(manifest: ArchiveManifest, stream: str, kind: Kind, ranges: list[Offsets], path: Path) -> ArchiveManifest:
    """Return the manifest of an archive that goes on; raises SamzaError where it can't."""
    if (manifest.stream, manifest.kind, len(manifest.ends)) != (stream, kind, len(ranges)):
        raise SamzaError(
            f"{path} is an archive of {manifest.stream!r} in {manifest.kind} files, in {len(manifest.ends)} "
            "partitions: name another directory"
        )
    for partition, (archived, (start, end, _)) in enumerate(zip(manifest.ends, ranges, strict=True)):
        if not start <= archived <= end:
            raise SamzaError(
                f"{path} has partition {partition} of {stream!r} up to offset {archived:,}, and the stream has "
                f"{start:,} to {end:,}: records between are gone, or it was made anew; name a new directory"
            )
    return manifest


def _write_part(
    path: Path, kind: Kind, environment: Environment, place: tuple[str, int, int, int], most: int
) -> tuple[ArchivePart, int]:
    """Write a file of at most so many rows of a partition, from one offset towards another; return how far it got."""
    stream, partition, offset, end = place
    name = f"{partition:05}-{offset:020}.{kind}"
    unfinished, number, reached = path / f".{name}", 0, offset

    def found() -> Iterator[ArchiveRows]:
        nonlocal number, reached
        while number < most and reached < end:
            read = environment.read(stream, partition, reached, min(ROWS_AT_ONCE, most - number, end - reached))
            if read is None:
                reached = end
                return
            rows, reached = _rows_of(read), read.next_offset
            number += len(rows.offsets)
            if rows.offsets:
                yield rows

    _write_of(kind)(unfinished, partition, found())
    if number:
        # Durable under its name before the manifest names it.
        unfinished.replace(path / name)
        make_durable(path)
    else:
        unfinished.unlink()
    return ArchivePart(file=name, partition=partition, start=offset, end=reached, rows=number), reached


def _rows_of(read: Read) -> ArchiveRows:
    batch, control = read.batch, read.control
    none: list[int | None] = [None] * len(batch)
    rows = ArchiveRows(
        [*(batch.offsets or ())], [*(batch.timestamps or none)], [*(batch.keys or none)], batch.values, none
    )
    if control is None or control.producer != OUTSIDE or ends(control):
        return rows
    # Said behind a record, and without an offset of its own.
    if rows.offsets and rows.offsets[-1] == read.next_offset - 1:
        rows.watermarks[-1] = control.watermark
        return rows
    rows.offsets.append(read.next_offset - 1)
    rows.timestamps.append(None)
    return ArchiveRows(
        rows.offsets, rows.timestamps, [*rows.keys, None], [*rows.values, None], [*rows.watermarks, control.watermark]
    )


def _checked(path: Path, kind: Kind, part: ArchivePart) -> Iterator[ArchiveRows]:
    """Yield the rows of a file; raises `Damaged` where they are not those that were written."""
    number, last = 0, part.start - 1
    for rows in _read_of(kind)(path / part.file):
        number += len(rows.offsets)
        if rows.offsets[0] <= last or rows.offsets[-1] >= part.end:
            break
        last = rows.offsets[-1]
        yield rows
    if number != part.rows:
        raise Damaged(f"{path / part.file} has not the {part.rows:,} records that were written: restore it")


def _write_manifest(path: Path, manifest: ArchiveManifest) -> None:
    replace_durably(path / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)))


def _read_of(kind: Kind) -> Callable[[Path], Iterator[ArchiveRows]]:
    return FORMATS[kind]()[0]


def _write_of(kind: Kind) -> Callable[[Path, int, Iterable[ArchiveRows]], None]:
    return FORMATS[kind]()[1]


def _jsonl() -> _ReadsAndWrites:
    from runtime.systems.files.jsonl_archive import read_jsonl, write_jsonl

    return read_jsonl, write_jsonl


def _parquet() -> _ReadsAndWrites:
    from runtime.systems.files.places.locations import needs_pyarrow

    with needs_pyarrow():
        from runtime.systems.files.parquet_archive import read_parquet, write_parquet
    return read_parquet, write_parquet


_ReadsAndWrites = tuple[Callable[[Path], Iterator[ArchiveRows]], Callable[[Path, int, Iterable[ArchiveRows]], None]]
FORMATS: Mapping[Kind, Callable[[], _ReadsAndWrites]] = {"jsonl": _jsonl, "parquet": _parquet}
"""The formats of an archive's files: each is imported where it is used."""
