"""Files as bound inputs and outputs, chosen by their suffix: JSON lines, CSV and Parquet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from runtime.model.errors import SamzaError, command
from runtime.model.urls import shown_file
from runtime.ports.sink import Sink
from runtime.ports.source import Source
from runtime.systems.files.archive import ArchiveSource, is_archive
from runtime.systems.files.csv_files import CsvFiles, CsvSink, CsvSource
from runtime.systems.files.jsonl import JsonlSink, JsonlSource
from runtime.systems.files.places.contents import UNPACKING
from runtime.systems.files.places.locations import (
    DataFile,
    RemoteFile,
    files_of,
    is_remote,
    local_path,
    needs_pyarrow,
    of_http,
    url_of,
)
from runtime.systems.files.places.tables import IntoTable, check_read_anywhere

KIND_OF_SUFFIX = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet"}
"""The kinds that runs on Spark read and write, too."""
MORE_KINDS = {".avro": "avro", ".arrow": "arrow", ".feather": "arrow"}
KINDS = KIND_OF_SUFFIX | MORE_KINDS
COMPRESSED_WITHIN = {"parquet", "avro", "arrow"}
"""The kinds whose files are read at any place, and so are never compressed as a whole."""
SUPPORTED = "JSON lines (.jsonl, .ndjson), CSV (.csv), Parquet (.parquet), Avro (.avro) and Arrow (.arrow, .feather)"


def _parquet_source(files: Sequence[DataFile]) -> Source:
    with needs_pyarrow():
        from runtime.systems.files.parquet import ParquetSource
    return ParquetSource(files)


def _parquet_sink(path: Path, lasting: bool) -> Sink:
    with needs_pyarrow():
        from runtime.systems.files.parquet import ParquetSink
    return ParquetSink(path)


def _avro_source(files: Sequence[DataFile]) -> Source:
    from runtime.systems.files.avro_files import AvroSource

    return AvroSource(files)


def _avro_sink(path: Path, lasting: bool) -> Sink:
    from runtime.systems.files.avro_files import AvroSink

    return AvroSink(path, lasting)


def _arrow_source(files: Sequence[DataFile]) -> Source:
    with needs_pyarrow("Arrow needs"):
        from runtime.systems.files.arrow_files import ArrowSource
    return ArrowSource(files)


def _arrow_sink(path: Path, lasting: bool) -> Sink:
    with needs_pyarrow("Arrow needs"):
        from runtime.systems.files.arrow_files import ArrowSink
    return ArrowSink(path)


SOURCES: dict[str, Callable[[Sequence[DataFile]], Source]] = {
    "jsonl": JsonlSource,
    "csv": CsvSource,
    "parquet": _parquet_source,
    "avro": _avro_source,
    "arrow": _arrow_source,
}
SINKS: dict[str, Callable[[Path, bool], Sink]] = {
    "jsonl": JsonlSink,
    "csv": CsvSink,
    "parquet": _parquet_sink,
    "avro": _avro_sink,
    "arrow": _arrow_sink,
}
IN_PARTS = {"parquet", "arrow"}
"""The kinds that are written as a directory of files."""


def open_source(what: str | Path | CsvFiles) -> Source:
    """Return the bounded input at a path: an archive, or the files that it, a glob or a URL stands for, of one kind.

    Each file is a partition. Raises SamzaError when nothing is there, or when it is of no known kind.
    """
    if isinstance(what, CsvFiles):
        return CsvSource(files_of(what.path), what)
    check_read_anywhere(what)
    if not is_remote(what) and is_archive(local_path(what)):
        return ArchiveSource(local_path(what))
    return open_files(files_of_one_kind(what))


def files_of_one_kind(what: str | Path) -> list[DataFile]:
    """Return the files of an input; raises SamzaError where there are none, or of several kinds, or an unknown one."""
    files = files_of(what)
    kinds = sorted({kind_read(file.path) for file in files})
    if len(kinds) > 1:
        raise SamzaError(f"{what} holds files of several kinds ({', '.join(kinds)}); bind one kind at a time")
    return files


def paths_of(what: str | Path) -> list[Path]:
    """Return the files of an input that grows, one per partition; raises SamzaError where it can't be read on and on.

    They lie on this machine, and have no fields in the names of their folders, which lines that come have not either.
    """
    paths = []
    for file in files_of(what):
        if isinstance(file.path, RemoteFile) or file.fields:
            why = "is behind a URL" if isinstance(file.path, RemoteFile) else "has fields in the names of its folders"
            raise SamzaError(
                f"{file.path} {why}, and a run with a checkpoint reads files on as they grow: bind it in a run "
                f"without one, or write what comes to a topic or to the log ({command('streams produce STREAM')})"
            )
        paths.append(file.path)
    return paths


def open_files(files: Sequence[DataFile]) -> Source:
    """Return the bounded input of files of one kind; raises SamzaError when it is not known."""
    return SOURCES[kind_read(files[0].path)](files)


def check_on_this_machine(what: str | Path | CsvFiles) -> None:
    """Raise SamzaError for an output in a file that lies elsewhere."""
    path = what.path if isinstance(what, CsvFiles) else what
    if is_remote(path):
        told = shown_file(url_of(path))
        with suppress(ImportError):
            from runtime.systems.files.places.remote import unknown_scheme

            if unknown := unknown_scheme(told):
                own = "bind a sink of your own, as connectors.IdempotentSink"
                raise SamzaError(f"can't write {told}: {unknown}; {own}")
        rolling = f'"rolling:{told.rpartition("/")[0]}", for files that roll into a folder there'
        instead = f'"webhook+{told}", to post each row' if of_http(told) else rolling
        raise SamzaError(f"a file as an output lies on this machine, and {told} does not; write instead {instead}")


def open_sink(what: Path | CsvFiles, lasting: bool = True) -> Sink:
    """Return the output at a path: of Parquet and Arrow a directory of parts, else a file, or one in a directory.

    Where it need not be `lasting`, a file is not made durable, which is done with all of it at the end.

    Raises SamzaError when the suffix is of no known kind or the path can't be written.
    """
    path = Path(what.path) if isinstance(what, CsvFiles) else what
    kind = "csv" if isinstance(what, CsvFiles) else _kind(path, KINDS)
    if kind not in IN_PARTS and path.is_dir():
        path /= f"part-000001{''.join(path.suffixes[-2:]) if path.suffix.lower() in UNPACKING else path.suffix}"
    return CsvSink(path, lasting, what) if isinstance(what, CsvFiles) else SINKS[kind](path, lasting)


def parts_below(path: Path) -> str:
    """Return the glob of the files that an output is written as below its path; "" where it is one file.

    >>> parts_below(Path("out.parquet")), parts_below(Path("out.jsonl"))
    ('part-*.parquet', '')
    """
    return f"part-*{path.suffix}" if KINDS.get(path.suffix.lower()) in IN_PARTS or path.is_dir() else ""


def open_folder(into: IntoTable) -> Sink:
    """Return the output at a folder of Parquet, parted by columns; raises SamzaError where it can't be written."""
    with needs_pyarrow():
        from runtime.systems.files.parquet import PartedParquetSink
    return PartedParquetSink(into.folder, (*into.partition_by,))


def kind_read(path: Path | RemoteFile) -> str:
    """Return the kind of a file, by its suffix in front of that of its compression; raises SamzaError."""
    return _kind(path, KINDS | {".json": "jsonl"})


def _kind(path: Path | RemoteFile, kinds: Mapping[str, str]) -> str:
    name = Path(path.name)
    suffix = Path(name.stem).suffix if name.suffix.lower() in UNPACKING else name.suffix
    kind = kinds.get(suffix.lower())
    if kind is None or (kind in COMPRESSED_WITHIN and suffix != name.suffix):
        raise _unknown(path)
    return kind


def check_bound_on_spark(bind: Mapping[str, object]) -> None:
    """Raise SamzaError for CSV of a dialect, which a run on Spark does not read or write."""
    for name, what in bind.items():
        if isinstance(what, CsvFiles):
            raise SamzaError(
                f"bind={{{name!r}: {what!r}}}: a run on Spark has CSV with commas, a header and UTF-8: bind such a "
                "path, or run here"
            )


def check_kind_on_spark(path: Path | RemoteFile) -> None:
    """Raise SamzaError for a file that a run on Spark does not write or read."""
    if path.suffix.lower() not in KIND_OF_SUFFIX:
        kind_read(path)
        raise SamzaError(f"{path}: a run on Spark has JSON lines, CSV and Parquet, not compressed: bind such a path")


def _unknown(path: object) -> SamzaError:
    return SamzaError(f"can't tell what {shown_file(str(path))} holds by its suffix; known are {SUPPORTED}")
