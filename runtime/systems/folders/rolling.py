"""Files that roll into a folder or object store, as a sink: each row is in one file that a manifest names."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator, Sequence
from glob import escape
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, get_args

from operators.core.base import has_none
from operators.core.durations import Duration
from runtime.encoding.formats.rows import without_value
from runtime.encoding.json_text import to_json_lines
from runtime.model.errors import Fenced, SamzaError
from runtime.model.urls import shown_file
from runtime.ports.connectors import Batching, PositionedSink, SinkOwner, SinkRow, length_ms
from runtime.systems.files.places.locations import is_remote, local_path, needs_pyarrow, url_of
from runtime.systems.folders.manifest import FolderClaim, FolderManifest, named_files
from runtime.systems.folders.object_place import ObjectPlace, object_place

FileKind = Literal["parquet", "jsonl", "jsonl.gz"]
"""The kinds of files that rows roll into."""


def rolling_files(
    where: str | Path,
    kind: FileKind = "parquet",
    *,
    rows: int = 100_000,
    every_ms: Duration = 60_000,
    partition_by: str | Sequence[str] = (),
) -> PositionedSink:
    """Write files into a folder or object store, exactly once: `bind={"orders": connectors.rolling_files("orders")}`.

    A file has about so many `rows`, or those of `every_ms`, or what there was when the run ended; until then they wait
    in the embedded log. With `partition_by`, the names of fields, there is a file for each of their values, in a folder
    of that name: `day=2026-01-01/`. Whoever reads the folder finds whole files; `committed_files` returns those that
    count, which are all but what a run leaves that dies as it writes, until the next one begins. Keys are not written.
    Raises SamzaError for malformed arguments.

    >>> from samza_dsl import connectors
    >>> connectors.rolling_files("s3://lake/orders", partition_by="day").name
    's3://lake/orders'
    """
    by = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
    if kind not in get_args(FileKind):
        raise SamzaError(f"rolling_files(kind={kind!r}): write one of {', '.join(map(repr, get_args(FileKind)))}")
    if type(rows) is not int or rows < 1:
        raise SamzaError(f"rolling_files(rows={rows!r}): write a whole number of rows: rows=100_000")
    if by and kind != "parquet":
        raise SamzaError(f"rolling_files(kind={kind!r}, partition_by={by!r}): folders are named for Parquet alone")
    place = url_of(where) if is_remote(where) else str(local_path(where).absolute())
    batching = Batching(rows, length_ms("rolling_files(every_ms", every_ms))
    sink = _RollingFiles(place, kind, by)
    start = place.rstrip("/") if is_remote(where) else escape(str(local_path(where).resolve()))
    files = "/".join([start, *(f"{name}=*" for name in by), f"part-*.{kind}"])
    how = (sink.claim, sink.write, sink.empty)
    return PositionedSink(shown_file(place), *how, batching=batching, deletes=False, place=files)


def committed_files(where: str | Path) -> list[str]:
    """Return the files of a folder that count, as `rolling_files` has written them: their paths, or URLs.

    >>> committed_files("nowhere")
    []
    """
    start = url_of(where).rstrip("/") if is_remote(where) else str(local_path(where))
    return [f"{start}/{name}" for name in named_files(object_place(where))]


_VALUE = itemgetter(SinkRow._fields.index("value"))
"""Reads the value of a row in half the time that its attribute takes."""


def _values(rows: Sequence[SinkRow]) -> list[Any]:
    return [*map(_VALUE, rows)]


class _RollingFiles:
    """The folder of an output. One thread at a time calls it."""

    def __init__(self, where: str, kind: FileKind, by: Sequence[str]) -> None:
        self._url, self._where, self._kind, self._by = where, shown_file(where), kind, by
        self._place: ObjectPlace | None = None
        self._claims: dict[tuple[str, str, int], FolderClaim] = {}

    def claim(self, owner: SinkOwner) -> int:
        """Own the folder for a generation of an application; return the position."""
        if self._kind == "parquet":
            with needs_pyarrow():
                from runtime.systems.files.parquet import check_rows
            check_rows(owner.value_type, self._by, self._where)
        claim = self._claims[owner.place] = self._manifest(owner).claim(owner)
        return claim.last.position

    def write(self, owner: SinkOwner, rows: Sequence[SinkRow], position: int, following: int) -> None:
        """Write files of rows, then the entry that names them; raises `Fenced` where another run has the folder."""
        claim = self._claims.get(owner.place)
        if claim is None or claim.last.generation != owner.generation or claim.last.identity != owner.identity:
            raise Fenced(f"{self._where} is not claimed for generation {owner.generation} of {owner.app!r}")
        if claim.last.position == following:
            return  # an earlier try, whose answer was lost
        if claim.last.position != position:
            raise owner.fenced_error(self._where)
        manifest, place = self._manifest(owner), self._objects()
        name, files = manifest.name(claim, f".{self._kind}"), []
        for folder, data in self._files(rows, owner.value_type) if rows else ():
            files.append(f"{folder}{name}")
            place.put(files[-1], data)
        try:
            self._claims[owner.place] = manifest.add(claim, files, following)
        except Fenced:
            place.remove(files)
            raise

    def empty(self, owner: SinkOwner) -> None:
        """Drop the files of an application that begins anew."""
        self._manifest(owner).empty(owner)

    def _objects(self) -> ObjectPlace:
        if self._place is None:
            self._place = object_place(self._url)
        return self._place

    def _manifest(self, owner: SinkOwner) -> FolderManifest:
        return FolderManifest(self._objects(), self._where, owner)

    def _files(self, rows: Sequence[SinkRow], kind: object) -> Iterator[tuple[str, bytes]]:
        """Yield the folder and the bytes of each file of some rows."""
        if self._kind == "parquet":
            from runtime.systems.files.parquet import bytes_of, parted, table_of_records

            for folder, table in parted(table_of_records(rows, kind, self._where, _values), self._by):
                yield folder, bytes_of(table)
        else:
            values = _values(rows)
            if has_none(values):
                raise without_value(self._where)
            pack: Callable[[bytes], bytes] = _gzipped if self._kind.endswith("gz") else bytes
            yield "", pack(to_json_lines(values))


def _gzipped(data: bytes) -> bytes:
    # Without the time, so that a second try writes the same bytes.
    return gzip.compress(data, mtime=0)
