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
        """Return a frame of pandas; raises SamzaError where that is absent."""
        table = self.to_arrow()
        try:
            return table.to_pandas()
        except ImportError as error:
            raise SamzaError("to_pandas() needs pandas: pip install pandas") from error

    def to_polars(self) -> pl.DataFrame:
        """Return a frame of polars; raises SamzaError where that is absent."""
        try:
            import polars as pl
        except ImportError as error:
            raise SamzaError("to_polars() needs polars: pip install polars") from error
        found = pl.from_arrow(self.to_arrow())
        assert isinstance(found, pl.DataFrame)
        return found

    def _repr_html_(self) -> str:
        """Return the table as a notebook shows it."""
        return str(self.to_pandas()._repr_html_())
