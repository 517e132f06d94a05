"""Files as inputs of workers: each opens the one that it reads, and none is read twice to count it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

from operators.core.base import MAX_TIMESTAMP, Serde
from planner.columnar.lowering import ColumnStart, Lowered
from planner.columnar.projection import Reshaped
from runtime.ports.source import Source, UncountedSource
from runtime.ports.streams import Offsets, Read
from runtime.systems.files.csv_files import CsvSource
from runtime.systems.files.files import files_of_one_kind, kind_read, open_files
from runtime.systems.files.folders import Folders
from runtime.systems.files.places.contents import stored_size
from runtime.systems.files.places.locations import DataFile

_UNKNOWN = Offsets(0, MAX_TIMESTAMP, ended=True)


class Splits:
    """A bounded input of files, one per partition, opened where they are read.

    The length of one is known when it was read to its end, or where the `ranges` of partitions are said.
    """

    def __init__(
        self,
        files: Sequence[DataFile],
        ranges: Mapping[int, Offsets] = MappingProxyType({}),
        opened: Callable[[Sequence[DataFile]], Source] = open_files,
    ) -> None:
        self.partitions = len(files)
        self._files = list(files)
        self._opened = opened
        self._sources: dict[int, Source] = {}
        self._ranges = dict(ranges)
        self._lowered: Lowered | Reshaped | ColumnStart | None = None
        self._declared: Serde | None = None
        self._serde: Serde | None = None
        """The serde that was made of what is declared."""

    def __getstate__(self) -> dict[str, object]:
        """Return what goes to workers, and into a copy: files that are open, and what reads their values, do not."""
        return {**vars(self), "_sources": {}, "_serde": None}

    @classmethod
    def at(cls, what: str | Path) -> Splits:
        """Return those of a path, a folder or a glob; raises SamzaError where there are none."""
        files = files_of_one_kind(what)
        Folders(files)  # refuses such as give different fields
        splits = cls([replace(file, path=file.path.absolute()) for file in files])
        # One is opened at once, so that what can't be read is told here, and not by a worker.
        splits._source(0)
        splits.close()
        return splits

    def in_columns(self, lowered: Lowered | Reshaped | ColumnStart) -> Splits:
        """Return the same of Parquet, whose rows come in the columns that are looked at."""
        splits = copy(self)
        splits._ranges, splits._lowered = dict(self._ranges), lowered
        return splits

    def counted(self) -> Splits:
        """Read each file to its end, or its footer, to know how long it is, and return them."""
        for partition in range(self.partitions):
            self._ranges[partition] = self._source(partition).offsets(0)
        self.close()
        return self

    @property
    def columnar(self) -> bool:
        """Whether rows come in the columns that are looked at."""
        return self._lowered is not None

    @cached_property
    def name(self) -> str:
        """The name of the system; a worker opens the first file for it once, and not with each of its units."""
        return self._source(0).name

    def serde(self, declared: Serde) -> Serde:
        """Return the serde that reads values of these files, given the one that the pipeline declares."""
        if self._serde is None or declared is not self._declared:
            self._declared = declared
            self._serde = self._source(next(iter(self._sources), 0)).serde(declared)
        return self._serde

    def offsets(self, partition: int) -> Offsets:
        """Return the readable range, open at its end until it was read to there."""
        return self._ranges.get(partition, _UNKNOWN)

    known = offsets

    def read(self, partition: int, offset: int, max_records: int = 10_000) -> Read | None:
        """Return rows from `offset` on; None at the end."""
        found = self._source(partition).read(0, offset, max_records)
        if found is None:
            self._ranges[partition] = self.offsets(partition)._replace(end=offset)
        return found

    def expected(self, partition: int) -> int:
        """Return how many records there are about, as far as that is known without reading for it."""
        if partition in self._ranges:
            return self._ranges[partition].end
        source = self._source(partition)
        return source.expected(0) if isinstance(source, UncountedSource) else source.offsets(0).end

    def size_bytes(self, partition: int) -> int:
        """Return how long a file is."""
        return stored_size(self._files[partition].path)

    def close(self) -> None:
        """Release everything; a second call does nothing."""
        for source in self._sources.values():
            source.close()
        self._sources.clear()

    def _source(self, partition: int) -> Source:
        if partition not in self._sources:
            self._sources[partition] = self._open(self._files[partition])
            if self._declared is not None:  # each file has the fields of its folders in the declared types
                self._sources[partition].serde(self._declared)
        return self._sources[partition]

    def _open(self, file: DataFile) -> Source:
        if self._lowered is None:
            if self._opened is open_files and kind_read(file.path) == "csv":
                return CsvSource([file], among=self._files)  # one serde reads all of them, so they have one header
            return self._opened([file])
        from runtime.systems.files.parquet_columns import ColumnsOfParquet

        is_whole = isinstance(self._lowered, ColumnStart)
        return ColumnsOfParquet([file], self._lowered.columns, self._lowered.needed, is_whole)
