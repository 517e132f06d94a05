"""Files as bound inputs and outputs, chosen by their suffix: JSON lines, CSV and Parquet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from runtime.model.errors import SamzaError
from runtime.ports.sink import Sink
from runtime.ports.source import Source
from runtime.systems.files.archive import ArchiveSource, is_archive
from runtime.systems.files.csv_files import CsvSink, CsvSource
from runtime.systems.files.jsonl import JsonlSink, JsonlSource

KIND_OF_SUFFIX = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet"}
SUPPORTED = "JSON lines (.jsonl, .ndjson), CSV (.csv) and Parquet (.parquet)"


def _parquet_source(paths: Sequence[Path]) -> Source:
    with needs_pyarrow():
        from runtime.systems.files.parquet import ParquetSource
    return ParquetSource(paths)


def _parquet_sink(path: Path, lasting: bool) -> Sink:
    with needs_pyarrow():
        from runtime.systems.files.parquet import ParquetSink
    return ParquetSink(path)


@contextmanager
def needs_pyarrow() -> Iterator[None]:
    """Say what to install where a block can't import pyarrow."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pyarrow":
            raise
        raise SamzaError("Parquet needs pyarrow, which is not installed: pip install 'samza-dsl[parquet]'") from error


SOURCES: dict[str, Callable[[Sequence[Path]], Source]] = {
    "jsonl": JsonlSource,
    "csv": CsvSource,
    "parquet": _parquet_source,
}
SINKS: dict[str, Callable[[Path, bool], Sink]] = {"jsonl": JsonlSink, "csv": CsvSink, "parquet": _parquet_sink}


def open_source(path: Path) -> Source:
    """Return the bounded input at `path`: an archive, a file, or a directory of files of one kind, each a partition.

    Raises SamzaError when nothing is there, or when it is of no known kind.
    """
    if is_archive(path):
        return ArchiveSource(path)
    paths = paths_of(path)
    kinds = sorted({_kind(file) for file in paths})
    if len(kinds) > 1:
        raise SamzaError(f"{path} holds files of several kinds ({', '.join(kinds)}); bind one kind at a time")
    return open_files(paths)


def paths_of(path: Path) -> list[Path]:
    """Return the files that make up an input, one per partition; raises SamzaError when nothing is there."""
    if not path.exists():
        raise SamzaError(f"there is no file or directory {path}; check the path that the stream is bound to")
    return _files_in(path) if path.is_dir() else [path]


def open_files(paths: Sequence[Path]) -> Source:
    """Return the bounded input of files of one kind; raises SamzaError when it is not known."""
    return SOURCES[_kind(paths[0])](paths)


def open_sink(path: Path, lasting: bool = True) -> Sink:
    """Return the output at `path`: of Parquet a directory of parts, else a file, or one in a directory that is there.

    Where it need not be `lasting`, a file is not made durable, which is done with all of it at the end.

    Raises SamzaError when the suffix is of no known kind or the path can't be written.
    """
    kind = _kind(path)
    if kind != "parquet" and path.is_dir():
        path /= f"part-000001{path.suffix}"
    return SINKS[kind](path, lasting)


def _kind(path: Path) -> str:
    kind = KIND_OF_SUFFIX.get(path.suffix.lower())
    if kind is None:
        raise SamzaError(f"can't tell what {path} holds by its suffix; known are {SUPPORTED}")
    return kind


def _files_in(directory: Path) -> list[Path]:
    """Return the data files by name; a dot or an underscore in front marks what is no data, or not finished."""
    files = sorted(path for path in directory.iterdir() if path.name[0] not in "._" and path.is_file())
    if not files:
        raise SamzaError(f"{directory} holds no files to read; known are {SUPPORTED}")
    return files
