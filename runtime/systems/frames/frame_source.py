"""A frame in memory as a bound input: its rows are read from its columns; import it late, as it imports pyarrow."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from typing import Any, cast

import pyarrow as pa

from operators.core.base import Batch, Serde
from runtime.encoding.columns import Columns
from runtime.encoding.formats.rows import type_of_rows
from runtime.model.errors import Damaged, SamzaError
from runtime.ports.source import ReplaceableSource
from runtime.ports.streams import Offsets, Read
from runtime.systems.files.parquet import ROWS_AT_ONCE, LaxJson, json_rows
from runtime.systems.files.plain_columns import check_one_kind
from runtime.systems.files.schemas import MOST_AT_ONCE, bounded, check_columns

OF_OBJECTS = "O"
"""The kind of columns of pandas that hold objects of Python, or categories, which may be such."""
_NOT_OF_ARROW = re.compile(r"\b(BIT|TIME WITH TIME ZONE)\b")
"""The types of DuckDB that it exports as their bytes, and without their time zone."""


class FrameSource(ReplaceableSource):
    """A bounded input of a frame's rows, in their order, with the columns as fields; keys are None.

    Invariant: the table never changes, whatever becomes of the frame.
    """

    name = "frame"
    partitions = 1

    def __init__(self, frame: object, stream: str) -> None:
        self._table, self._stream = arrow_of(frame, stream), stream

    def serde(self, declared: Serde) -> Serde:
        """Return lax JSON of the declared type; String, Bytes or one of the user's reads the JSON itself."""
        kind = type_of_rows(declared)
        if kind is not None:
            check_columns(self._table.schema, kind, f"the frame for {self._stream!r}")
        return declared if kind is None else LaxJson(kind)

    def offsets(self, partition: int) -> Offsets:
        """Return the range of the rows."""
        return Offsets(0, len(self._table), ended=True)

    def read(self, partition: int, offset: int, max_records: int = ROWS_AT_ONCE) -> Read | None:
        """Return rows from `offset` on; None at the end, and `Damaged` beyond it."""
        if offset > len(self._table):
            raise Damaged(
                f"the frame has {len(self._table):,} rows, fewer than the {offset:,} that were already processed: give "
                "the rows from the first one on, or reset the application to read this one"
            )
        found = self._table.slice(offset, min(max_records, ROWS_AT_ONCE))
        # Chunks are copied to lie together: of large rows no more than are read, or each part copies all others anew.
        # The buffers are no less than their rows, and counted in a fifth of the time, where chunks are many and small.
        while found.get_total_buffer_size() > MOST_AT_ONCE < found.nbytes and _is_in_chunks(found):
            found = found.slice(0, len(found) // 2)
        batches = found.combine_chunks().to_batches()
        if not batches:
            return None
        rows = next(bounded(batches[0], f"the frame for {self._stream!r}"))
        end = offset + len(rows)
        values = cast("list[object]", Columns(rows, offset, partial(self._rows, rows, offset)))
        return Read(Batch(values, offsets=range(offset, end)), None, end)

    def stored(self, partition: int, start: int, end: int) -> Iterable[object]:
        """Return rows as text, with the names of their columns."""
        return map(repr, self._table.slice(start, end - start).to_pylist())

    def close(self) -> None:
        """Do nothing: the frame is the caller's."""

    @staticmethod
    def _rows(batch: pa.RecordBatch, start: int, first: int, number: int) -> list[bytes]:
        return json_rows({}, batch.slice(first - start, number))


def _is_in_chunks(table: pa.Table) -> bool:
    return any(column.num_chunks > 1 for column in table.columns)


def arrow_of(frame: Any, stream: str) -> pa.Table:
    """Return the columns of a frame; raises SamzaError for what it has and they would lose."""
    try:
        table = _columns_of(frame, stream)
    except (pa.ArrowException, TypeError) as error:
        raise SamzaError(
            f"the {type(frame).__name__} for {stream!r} is no table that Arrow has: {error}; make its columns of types "
            "that it has, or bind a list of values"
        ) from error
    if len(set(table.column_names)) < len(table.column_names):
        raise SamzaError(f"the frame for {stream!r} has two columns of one name, of {table.column_names}: rename one")
    for field in table.schema:
        # The types of a library's own lie as others, which mean something else: a month of pandas as a plain number.
        if isinstance(field.type, pa.ExtensionType):
            raise SamzaError(
                f"the column {field.name!r} of the frame for {stream!r} is {field.type}, and would be read as the "
                f"{field.type.storage_type} that it lies as: make it text or a number yourself, as "
                f"frame.astype({{{field.name!r}: str}})"
            )
    for place, field in enumerate(table.schema):
        if (kind := _in_lists(field.type)) != field.type:
            # By values: Arrow's own cast of views loses some, and it has none of runs.
            table = table.set_column(place, field.name, pa.chunked_array([table[place].to_pylist()], kind))
    return table


def _in_lists(kind: pa.DataType) -> pa.DataType:
    """Return a type with lists in the place of views of them, and values in that of runs, at any depth.

    >>> _in_lists(pa.list_(pa.list_view(pa.run_end_encoded(pa.int32(), pa.string()))))
    ListType(list<item: list<item: string>>)
    """
    types = pa.types
    if types.is_run_end_encoded(kind):
        return _in_lists(kind.value_type)
    if types.is_map(kind):
        return pa.map_(_in_lists(kind.key_type), kind.item_field.with_type(_in_lists(kind.item_type)))
    if types.is_struct(kind):
        return pa.struct([one.with_type(_in_lists(one.type)) for one in kind])
    if not types.is_nested(kind) or not hasattr(kind, "value_field"):
        return kind
    within = kind.value_field.with_type(_in_lists(kind.value_type))
    if types.is_fixed_size_list(kind):
        return pa.list_(within, kind.list_size)
    is_large = types.is_large_list(kind) or types.is_large_list_view(kind)
    return pa.large_list(within) if is_large else pa.list_(within)


def _columns_of(frame: Any, stream: str) -> pa.Table:
    package = type(frame).__module__.partition(".")[0]
    if package == "polars" and hasattr(frame, "collect"):
        frame = frame.collect()
    if package == "pandas":
        return _of_pandas(frame, stream)
    if package == "polars":
        return _of_polars(frame, stream)
    if isinstance(frame, pa.Table):
        return frame
    for name, kind in zip(getattr(frame, "columns", ()), map(str, getattr(frame, "types", ())), strict=False):
        if _NOT_OF_ARROW.search(kind):
            raise SamzaError(
                f"the column {name!r} of DuckDB's relation for {stream!r} is {kind}, of which Arrow has a part alone: "
                "make it text there, as CAST(... AS VARCHAR)"
            )
    # A batch; or what exports its columns to Arrow, as DuckDB's relations do.
    return pa.Table.from_batches([frame]) if isinstance(frame, pa.RecordBatch) else pa.table(frame)


def _of_polars(frame: Any, stream: str) -> pa.Table:
    if not hasattr(frame, "schema"):
        raise SamzaError(f"a {type(frame).__name__} of polars is bound to {stream!r}: write .to_frame() behind it")
    if held := [name for name, kind in frame.schema.items() if kind.is_object()]:
        raise SamzaError(
            f"the column {held[0]!r} of the frame for {stream!r} holds objects of Python, of which Arrow has the "
            "addresses alone: make it of a type of polars, or bind a list of values"
        )
    return frame.to_arrow()


def _of_pandas(frame: Any, stream: str) -> pa.Table:
    import pandas as pd  # type: ignore[import-untyped]  # its stubs are another package

    if not isinstance(frame, pd.DataFrame):
        raise SamzaError(f"a {type(frame).__name__} of pandas is bound to {stream!r}: write .to_frame() behind it")
    if frame.index.names != [None] or not pd.api.types.is_integer_dtype(frame.index.dtype):
        raise SamzaError(
            f"the index of the frame for {stream!r} is no column, and would be lost: bind frame.reset_index(), or "
            "frame.reset_index(drop=True)"
        )
    if not all(isinstance(name, str) for name in frame.columns):
        raise SamzaError(f"the columns of the frame for {stream!r} have names that are no text: {[*frame.columns]}")
    columns = []
    for place, name in enumerate(frame.columns):
        try:
            column, kind = frame.iloc[:, place], frame.dtypes.iloc[place].kind
            # NaN is a number in a column of floats, and stands for what is missing in all others.
            columns.append(pa.array(column, from_pandas=kind != "f"))
            if kind in OF_OBJECTS:
                # Columns of categories, and of pandas' own text, have marks of their own in the place of None.
                check_one_kind(column[column.notna()].tolist())
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise SamzaError(
                f"the column {name!r} of the frame for {stream!r} holds what is no one type of column: {error}: make "
                f"it one, as frame.astype({{{name!r}: str}}), or bind a list of values"
            ) from error
    return pa.table(columns, names=list(frame.columns))
