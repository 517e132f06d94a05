"""Inputs of a run on Spark that goes on: JSON lines that grow, and any input up to where a micro-batch ends."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import cast

import msgspec

from operators.core.base import Batch, Serde
from runtime.encoding.formats.rows import type_of_values
from runtime.model.errors import Damaged, SamzaError
from runtime.ports.source import Source
from runtime.ports.streams import Offsets, Read
from runtime.systems.files.files import KIND_OF_SUFFIX, paths_of
from runtime.systems.files.jsonl import JsonlSource
from runtime.systems.files.record_files import BLOCK, BYTE_ORDER_MARK, LONGEST_RECORD


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """A file that is a part of a partition, and the offset at which it begins there."""

    path: str
    start: int


class GrowingLines(Source):
    """Files of JSON lines that grow, as an input without an end; a record's offset is where its line begins, in bytes.

    A partition is one file, or several, one behind the other: the last one grows, up to its last line break.
    """

    name = "jsonl"

    def __init__(self, pieces: Sequence[Sequence[Piece]]) -> None:
        self.pieces = tuple(map(tuple, pieces))
        self.partitions = len(pieces)

    @classmethod
    def at(cls, path: str | Path, partitions: int | None) -> GrowingLines:
        """Return those at a path, of a directory all its files, in so many partitions: else as many as there are files.

        Raises SamzaError where there are none.
        """
        names = [file.absolute() for file in paths_of(path)]
        found = cls([()] * (partitions or len(names)))
        return found.with_files(names)

    def look(self, path: str | Path) -> GrowingLines:
        """Return them with files that have come since; raises SamzaError where one has grown that could no more."""
        # A file that has another behind it must not grow: its new lines would have the other's offsets.
        self._check_ended()
        known = {piece.path for pieces in self.pieces for piece in pieces}
        new = [file for one in paths_of(path) if str(file := one.absolute()) not in known]
        return self.with_files(new) if new else self

    def with_files(self, paths: Sequence[Path]) -> GrowingLines:
        """Return them with more files, each behind the others of the partition that has the fewest."""
        pieces = [*map(list, self.pieces)]
        for path in paths:
            if KIND_OF_SUFFIX.get(path.suffix.lower()) != "jsonl":
                raise SamzaError(
                    f"{path} is no file of JSON lines among those that are read as they grow; move it away"
                )
            shortest = self.among(pieces, path)
            last = shortest[-1] if shortest else None
            start = 0 if last is None else last.start + Path(last.path).stat().st_size
            assert last is None or start >= last.start, "files of a partition lie one behind the other"
            shortest.append(Piece(str(path), start))
        return type(self)(pieces)

    def among(self, pieces: list[list[Piece]], path: Path) -> list[Piece]:
        """Return the partition that a file comes to: the one with the fewest."""
        return min(pieces, key=len)

    def serde(self, declared: Serde) -> Serde:
        """Return what reads a line as the declared type."""
        return JsonlSource(()).serde(declared)

    def offsets(self, partition: int) -> Offsets:
        """Return the readable range, which ends behind the last line break."""
        pieces = self.pieces[partition]
        return Offsets(0, pieces[-1].start + _whole_bytes(Path(pieces[-1].path)) if pieces else 0, ended=False)

    def end_within(self, partition: int, offset: int, most_bytes: int) -> int:
        """Return where to end that begins at `offset`: behind a line, and no longer than that, but by its last line."""
        pieces, stop = self.pieces[partition], offset + most_bytes
        end = self.offsets(partition).end
        if stop >= end:
            return end
        place = bisect_right(pieces, stop, key=lambda piece: piece.start) - 1
        first = max(offset, pieces[place].start)
        with Path(pieces[place].path).open("rb") as file:
            file.seek(first - pieces[place].start)
            data = file.read(stop - first)
            whole = first + data.rfind(b"\n") + 1
            if whole > offset:
                return whole
            return min(stop + len(file.readline(LONGEST_RECORD)), end)

    def read(self, partition: int, offset: int, max_records: int = 10_000) -> Read | None:
        pieces = self.pieces[partition]
        place = bisect_right(pieces, offset, key=lambda piece: piece.start) - 1
        while 0 <= place < len(pieces):
            piece, is_last = pieces[place], place + 1 == len(pieces)
            end = piece.start + _whole_bytes(Path(piece.path)) if is_last else pieces[place + 1].start
            while offset < end:
                before = offset
                rows, offset = _lines(piece, offset, end, max_records)
                assert before < offset <= end, "a read leads on, and not beyond its file"
                if rows.values:
                    return Read(rows, None, offset)
            place += 1
        return None

    def close(self) -> None:
        """Do nothing: between reads no file is open."""

    def _check_ended(self) -> None:
        for pieces in self.pieces:
            for piece, following in pairwise(pieces):
                size = Path(piece.path).stat().st_size if Path(piece.path).exists() else -1
                if size >= 0 and piece.start + size != following.start:
                    raise SamzaError(
                        f"{piece.path} has changed since {following.path} came, behind which it is read as one "
                        "partition: files of one partition grow one after the other; let the input have more "
                        "partitions=, or write to new files only"
                    )


class LandedLines(GrowingLines):
    """Batches of a streaming DataFrame as an input without an end: folders of JSON lines that come at once.

    A folder has the number of its batch, and the name of a file begins with its partition. Invariant: of each partition
    the last piece stays, so that the batch that came last is known; no batch comes twice.
    """

    name = "batches"

    def look(self, path: str | Path) -> LandedLines:
        """Return them with the files of batches that have come since."""
        known = max((_batch(Path(piece.path)) for pieces in self.pieces for piece in pieces), default=-1)
        folders = sorted(one for one in Path(path).iterdir() if one.name.isdecimal() and int(one.name) > known)
        new = [file for folder in folders for file in sorted(folder.iterdir())]
        return cast("LandedLines", self.with_files(new)) if new else self

    def among(self, pieces: list[list[Piece]], path: Path) -> list[Piece]:
        """Return the partition that a file says."""
        return pieces[int(path.name.partition("-")[0]) % len(pieces)]

    def serde(self, declared: Serde) -> Serde:
        """Return lax JSON of the declared type: Spark's columns have dates and the like, which JSON has as text."""
        from runtime.systems.files.parquet import LaxJson

        kind = type_of_values(declared)
        return declared if kind is None else LaxJson(kind)

    def behind(self, read: Sequence[tuple[int, bool]]) -> LandedLines:
        """Return them without files that were read to their end, but for the last of each partition."""
        pieces = [
            [one for one, following in pairwise(pieces) if following.start > end] + [*pieces[-1:]]
            for pieces, (end, _) in zip(self.pieces, read, strict=True)
        ]
        return self if sum(map(len, pieces)) == sum(map(len, self.pieces)) else LandedLines(pieces)

    def sweep(self, path: Path) -> None:
        """Remove files that are no pieces any more, and folders of batches that others have come behind."""
        known = {piece.path for pieces in self.pieces for piece in pieces}
        newest = max((_batch(Path(one)) for one in known), default=-1)
        for folder in [one for one in path.iterdir() if one.name.isdecimal() and int(one.name) <= newest]:
            for file in folder.iterdir():
                if str(file) not in known:
                    file.unlink()
            if int(folder.name) < newest and not any(folder.iterdir()):
                folder.rmdir()


def _batch(path: Path) -> int:
    return int(path.parent.name)


class UpTo:
    """An input as far as a micro-batch reads it."""

    def __init__(self, source: Source, stream: str, ends: Mapping[tuple[str, int], Offsets]) -> None:
        self.name, self.partitions = source.name, source.partitions
        self.serde, self.close = source.serde, source.close
        self._source, self._stream, self._ends = source, stream, ends

    def offsets(self, partition: int) -> Offsets:
        """Return the range that is read."""
        return self._ends[self._stream, partition]

    def read(self, partition: int, offset: int, max_records: int = 10_000) -> Read | None:
        """Return rows from `offset` on, and none behind the end."""
        end = self.offsets(partition).end
        if offset >= end:
            return None
        return below(end, self._source.read(partition, offset, min(max_records, end - offset)))


def below(end: int, found: Read | None) -> Read | None:
    """Return what of a read lies before an offset."""
    if found is None or found.next_offset <= end:
        return found
    rows = found.batch.slice(0, sum(place < end for place in found.batch.offsets or ()))
    return Read(rows, None, end, found.stream_id)


def _whole_bytes(path: Path) -> int:
    """Return the length of a file up to its last line break."""
    size = path.stat().st_size
    with path.open("rb") as file:
        # From the end: the last line break is near it, whatever the length of the file.
        stop = size
        while stop > 0:
            start = max(stop - BLOCK, 0)
            file.seek(start)
            found = file.read(stop - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            stop = start
    return 0


def _lines(piece: Piece, offset: int, end: int, most: int) -> tuple[Batch, int]:
    """Return lines of a file that are not blank, of at most a block, and where they end."""
    length = min(BLOCK, end - offset)
    with Path(piece.path).open("rb", buffering=0) as file:
        while True:
            file.seek(offset - piece.start)
            data = file.read(length)
            if len(data) < length:
                raise Damaged(f"{piece.path} became shorter than it was; bind files that only grow")
            if b"\n" in data or offset + length == end:
                break
            if length >= LONGEST_RECORD:
                raise Damaged(f"{piece.path} has no line break within {LONGEST_RECORD} bytes from {offset} on: mend it")
            length = min(length * 8, end - offset)
    *lines, rest = data.split(b"\n")
    values, offsets, at = [], [], offset
    for line in lines[:most]:
        values.append(line.removesuffix(b"\r"))
        offsets.append(at)
        at += len(line) + 1
    if rest and len(lines) < most and offset + length == end:  # the last line of a file that does not grow any more
        values.append(rest)
        offsets.append(at)
        at = end
    if offset == piece.start and values:
        values[0] = values[0].removeprefix(BYTE_ORDER_MARK)
    # Blank lines are taken out at the end, as few files have any: offsets are counted over all lines.
    rows = Batch(values, offsets=offsets)
    if b"" in values or any(map(bytes.isspace, values)):
        rows = rows.take([row for row, value in enumerate(values) if value and not value.isspace()])
    return rows, at
