"""Rows of stored state in files: JSON lines, and Parquet where its library is there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec

from runtime.encoding.json_text import to_json
from runtime.model.errors import SamzaError, system_errors_told
from runtime.stored_state.entries import Row
from runtime.systems.files.places.locations import needs_pyarrow
from runtime.systems.host.durable import make_durable

SUFFIXES = (".jsonl", ".parquet")


def check_suffix(path: Path) -> None:
    """Raise SamzaError for a file of another kind."""
    if path.suffix not in SUFFIXES:
        raise SamzaError(f"{path} is no file of stored state: name one that ends in {' or '.join(SUFFIXES)}")


def write_rows(path: Path, rows: Callable[[], Iterable[Row]]) -> int:
    """Write rows to a file, which is there as a whole or not at all; return their number.

    Parquet goes through them twice, as a column has one type; a second call of `rows` gives the same.
    """
    check_suffix(path)
    with system_errors_told(path, "written"), _unfinished(path) as file:
        if path.suffix == ".parquet":
            with needs_pyarrow():
                from runtime.stored_state.parquet_rows import write_parquet
            return write_parquet(file, rows)
        return write_lines(file, rows())


def write_lines(file: IO[bytes], rows: Iterable[Row]) -> int:
    """Write rows as JSON lines; return their number."""
    count = 0
    for row in rows:
        file.write(to_json(row) + b"\n")
        count += 1
    return count


def read_rows(path: Path) -> Iterator[tuple[str, Row]]:
    """Yield the rows of a file, each with the words for where it is; raises SamzaError for what is none."""
    check_suffix(path)
    with system_errors_told(path, "read"):
        if path.suffix == ".parquet":
            with needs_pyarrow():
                from runtime.stored_state.parquet_rows import read_parquet
            for number, row in enumerate(read_parquet(path), 1):
                yield f"{path}, row {number}", row
            return
        with path.open("rb") as file:
            yield from read_lines(file, str(path))


def read_lines(file: Iterable[bytes], name: str) -> Iterator[tuple[str, Row]]:
    """Yield the rows of JSON lines; raises SamzaError for a line that is none."""
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            yield f"{name}:{number}", msgspec.json.decode(line, type=dict[str, object])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise SamzaError(f"{name}:{number} is no JSON object: {error}; nothing was changed") from error


@contextmanager
def _unfinished(path: Path) -> Iterator[IO[bytes]]:
    """Open a file beside the one of this name, whose place it takes once it is whole and durable."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        make_durable(path.parent)
    finally:
        unfinished.unlink(missing_ok=True)
