"""The values of an output as a frame."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from runtime.model.errors import SamzaError
from runtime.systems.files.places.locations import needs_pyarrow

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]  # its stubs are another package
    import polars as pl
    import pyarrow as pa


class OutputFrame:
    """The values of an output that are committed, as a table of Arrow, or a frame of pandas or polars.

    Columns are the fields of the output's type; plain values have one column, `value`. A notebook shows the table.
    """

    def __init__(self, stream: str, kind: Any, values: Callable[[], Sequence[Any]]) -> None:
        self._stream, self._kind, self._values = stream, kind, values

    def to_arrow(self) -> pa.Table:
        """Return a table of Arrow; raises SamzaError for records without a value, and where pyarrow is absent."""
        values = self._values()
        if any(value is None for value in values):
            raise SamzaError(
                f"output {self._stream!r} has records without a value, which delete what has their key and are no rows "
                f"of a frame: look at run.received({self._stream!r})"
            )
        with needs_pyarrow(f"output({self._stream!r}) needs"):
            from runtime.systems.files.parquet import table_of
        return table_of(values, self._kind, f"output {self._stream!r}")

    def to_pandas(self) -> pd.DataFrame:
        """Return a frame of pandas; raises SamzaError where that is absent.

        Whole numbers beside what is None are of pandas' types that have both: as floats they would be rounded.
        """
        table = self.to_arrow()
        numbers = {one.name: str(one.type) for one in table.schema if str(one.type) in ("int64", "uint64")}
        nullable = {name: kind.replace("int", "Int").replace("uI", "UI") for name, kind in numbers.items()}
        try:
            frame = table.to_pandas(integer_object_nulls=True)
            return frame.astype({name: kind for name, kind in nullable.items() if table[name].null_count})
        except ImportError as error:
            raise SamzaError("to_pandas() needs pandas: pip install pandas") from error

    def to_polars(self) -> pl.DataFrame:
        """Return a frame of polars; raises SamzaError where that is absent, and for decimals that it has not."""
        try:
            import polars as pl
        except ImportError as error:
            raise SamzaError("to_polars() needs polars: pip install polars") from error
        table = self.to_arrow()
        if wide := [one.name for one in table.schema if _is_wide(one.type)]:
            raise SamzaError(
                f"output {self._stream!r} has decimals of more than 38 digits in {', '.join(map(repr, wide))}, which "
                "polars has not: take to_arrow() or to_pandas(), or make them text"
            )
        found = pl.from_arrow(table)
        assert isinstance(found, pl.DataFrame)
        return found

    def _repr_html_(self) -> str:
        """Return the table as a notebook shows it."""
        return str(self.to_pandas()._repr_html_())


def _is_wide(kind: pa.DataType) -> bool:
    """Return whether a type of Arrow is of decimals beyond 38 digits, or holds such."""
    inner = (kind.field(place).type for place in range(kind.num_fields))
    return str(kind).startswith("decimal256") or any(map(_is_wide, inner))
