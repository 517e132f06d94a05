"""Rows of stored state as Parquet: a column is of one type where all its values are, else the text of JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import IO, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from runtime.encoding.json_text import to_json
from runtime.model.errors import SamzaError
from runtime.stored_state.entries import Row

ROWS_AT_ONCE = 10_000
AS_JSON = "_json"
"""The end of the name of a column whose values are the text of JSON."""
_TYPES = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
_LEAST, _MOST = -(2**63), 2**63 - 1


def write_parquet(file: IO[bytes], rows: Callable[[], Iterable[Row]]) -> int:
    """Write rows, which are gone through twice; return their number."""
    types = _types_of(rows())
    columns = {
        name: (name, kind) if kind is not None else (name + AS_JSON, pa.string()) for name, kind in types.items()
    }
    count, remaining = 0, iter(rows())
    with pq.ParquetWriter(file, pa.schema([*columns.values()]), compression="zstd") as writer:
        while block := [*islice(remaining, ROWS_AT_ONCE)]:
            arrays = [
                pa.array([_cell(row, name, types[name] is None) for row in block], type=kind)
                for name, (_, kind) in columns.items()
            ]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, names=[column for column, _ in columns.values()]))
            count += len(block)
    return count


def read_parquet(path: Path) -> Iterator[Row]:
    """Yield the rows of a file; raises SamzaError for what is no Parquet, or no JSON where a column says so."""
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(ROWS_AT_ONCE):
                for found in batch.to_pylist():
                    yield {
                        name.removesuffix(AS_JSON): _value(name, cell)
                        for name, cell in found.items()
                        if cell is not None
                    }
    except (pa.ArrowException, msgspec.MsgspecError) as error:
        raise SamzaError(f"{path} holds no rows of stored state: {error}; nothing was changed") from error


def _types_of(rows: Iterable[Row]) -> dict[str, pa.DataType | None]:
    """Return the type of each column by name; None for one whose values are of several, or of none that Parquet has."""
    found: dict[str, Any] = {}
    for row in rows:
        for name, value in row.items():
            kind = _TYPES.get(type(value))
            if type(value) is int and not _LEAST <= value <= _MOST:
                kind = None
            if found.setdefault(name, kind) != kind:
                found[name] = None
    return found


def _column(name: str, kind: pa.DataType | None) -> tuple[str, pa.DataType]:
    return (name + AS_JSON, pa.string()) if kind is None else (name, kind)


def _cell(row: Mapping[str, object], name: str, as_json: bool) -> object:
    if name not in row:
        return None
    return to_json(row[name]).decode() if as_json else row[name]


def _value(name: str, cell: Any) -> object:
    return msgspec.json.decode(cell) if name.endswith(AS_JSON) else cell
