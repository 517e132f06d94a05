"""Files on their way to an output: every attempt writes its own, beside the place that all of them come to at once."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from io import FileIO
from pathlib import Path
from uuid import uuid4

from runtime.model.errors import SamzaError, SerdeError, system_errors_told
from runtime.systems.files.files import KIND_OF_SUFFIX, check_kind_on_spark, open_sink
from runtime.systems.host.durable import make_durable
from runtime.systems.host.locks import is_locked, lock
from runtime.units.program import Unit

COPIED_BYTES = 1 << 24
LOCK = "lock"


class Staged:
    """The file, or the directory of files, that an output is bound to, and where attempts write meanwhile.

    Parquet is a directory, and so is what was one before, and empty: it has a file of each task then.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        check_is_empty(path)
        open_sink(self.path).close()
        check_kind_on_spark(self.path)
        self.has_parts = KIND_OF_SUFFIX[self.path.suffix.lower()] == "parquet" or self.path.is_dir()
        with system_errors_told(self.path, "written"):
            self._sweep()
            self.directory, self._lock = self._begun()

    def _begun(self) -> tuple[Path, int | None]:
        directory = self.path.parent / f".{self.path.stem}.{uuid4().hex}{self.path.suffix}"
        return directory, locked_directory(directory)

    def _sweep(self) -> None:
        """Remove what runs have left that died before anything was put together."""
        begun = re.compile(re.escape(f".{self.path.stem}.") + "[0-9a-f]{32}" + re.escape(self.path.suffix))
        for left in (one for one in self.path.parent.iterdir() if begun.fullmatch(one.name)):
            # One with a whole file in it may be named by an intent that somebody goes on with.
            if is_left(left) and not self._whole(left).exists():
                shutil.rmtree(left, ignore_errors=True)

    def _whole(self, directory: Path) -> Path:
        return directory / f"whole{self.path.suffix}"

    def complete(self, files: Iterable[str]) -> tuple[str, str]:
        """Put what these files hold together, durable and in their order; return where that is, and its place."""
        whole = self._whole(self.directory)
        written = [Path(file) for file in files if Path(file).exists()]
        with system_errors_told(self.path, "written"):
            if self.has_parts:
                _gather(written, whole)
            else:
                joined(written, whole, has_header=self.path.suffix.lower() == ".csv", takes_first=True)
            make_durable(self.directory)
        return str(whole), str(self.path)

    def remove(self) -> None:
        """Remove what attempts have written; a second call does nothing."""
        shutil.rmtree(self.directory, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def check_is_empty(path: Path) -> None:
    """Raise SamzaError where there is something in the file, or the directory, that an output is bound to."""
    if path.exists() and (any(path.iterdir()) if path.is_dir() else path.stat().st_size):
        raise SamzaError(
            f"{path} has something in it already, and a run on Spark writes the whole of it; remove it, or bind "
            "another path"
        )


def locked_directory(directory: Path) -> int | None:
    """Make a directory that others see locked from the first moment on, and return the descriptor of its lock."""
    unseen = directory.with_name(f"{directory.name}.new")
    unseen.mkdir()
    # Locked before it has its name: a directory that is seen without a lock is of a run that died.
    descriptor = lock(unseen / LOCK, wait=False)
    unseen.rename(directory)
    return descriptor


def is_left(directory: Path) -> bool:
    """Whether a directory that was made locked is of a run that died."""
    return (directory / LOCK).exists() and not is_locked(directory / LOCK)


def attempted(directory: Path, unit: Unit) -> Path:
    """Return where an attempt of a unit writes: a place of its own in the directory of an output."""
    return directory / f"{unit.job}-{unit.stage}-{unit.task}-{uuid4().hex}{directory.suffix}"


def _gather(parts: list[Path], whole: Path) -> None:
    """Bring files, and those of directories, together under names that keep their order."""
    whole.mkdir()
    for number, file in enumerate(file for part in parts for file in _files_of(part)):
        file.rename(whole / f"part-{number:06}{file.suffix}")
    make_durable(whole)


def _files_of(part: Path) -> list[Path]:
    """Return the files that an attempt has written something to, be it one or a directory of them."""
    if part.is_dir():
        return sorted(file for file in part.iterdir() if file.name[0] not in "._")
    return [part] if part.stat().st_size else []


def gathered(parts: list[Path], whole: Path) -> None:
    """Write the files of directories of Parquet into one; there is none where they have no rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = [pq.read_table(file) for part in parts for file in _files_of(part)]
    if tables:
        with whole.open("xb") as file:
            pq.write_table(pa.concat_tables(tables, promote_options="permissive"), file)
            file.flush()
            os.fsync(file.fileno())


def joined(parts: list[Path], whole: Path, has_header: bool, takes_first: bool = False) -> None:
    """Write files one behind the other, durably; of those with a header only the first keeps it.

    Where it `takes_first`, the others are put behind the first one itself, which need not be copied then.
    """
    filled = [part for part in parts if part.stat().st_size]
    headers = [_header_in(part) if has_header else b"" for part in filled]
    for header in headers:
        if header != headers[0]:
            raise SerdeError(
                f"the records that tasks write to CSV have different columns, {headers[0].decode().strip()} and "
                f"{header.decode().strip()}: declare the output's value type"
            )
    starts = [0, *map(len, headers[1:])]
    if takes_first and filled:
        # The first file itself becomes the whole: of one that has all the rows nothing is copied.
        filled.pop(0).rename(whole)
        starts.pop(0)
    with whole.open("r+b" if whole.exists() else "xb", buffering=0) as file:
        file.seek(0, os.SEEK_END)
        for part, start in zip(filled, starts, strict=False):
            _append(part, start, file)
        os.fsync(file.fileno())


def _append(part: Path, start: int, file: FileIO) -> None:
    """Copy a file from some byte on: within the system, where it can."""
    with part.open("rb", buffering=0) as source:
        source.seek(start)
        with suppress(AttributeError, OSError):  # not every file system can, and not every system
            while os.copy_file_range(source.fileno(), file.fileno(), COPIED_BYTES):
                pass
        shutil.copyfileobj(source, file, COPIED_BYTES)


def _header_in(part: Path) -> bytes:
    """Return the first record of a CSV file with its line break, whose names may hold others in quotes."""
    with part.open("rb") as source:
        header = source.readline()
        while header.count(b'"') % 2:
            header += source.readline()
    return header
