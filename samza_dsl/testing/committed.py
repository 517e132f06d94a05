"""What the outputs of an application under test got, in the order of the commits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from operators.base import Batch, Serde
from runtime.systems.lists import ListSink


@dataclass(frozen=True)
class Passing:
    """Has every value pass the serde of its stream, as it would in production; where that keeps no types, as it was.

    >>> from runtime.serdes import Json
    >>> Passing(Json(list[int])).encode((1, 2)), Passing(Json()).encode((1, 2))
    ([1, 2], (1, 2))
    """

    serde: Serde

    def encode(self, value: Any) -> Any:
        """Return what a reader of the stream would see of `value`; raises what would be raised there, or here."""
        data = self.serde.encode(value)
        return value if getattr(self.serde, "type", None) is Any else self.serde.decode(data)

    def decode(self, data: Any) -> Any:
        """Return `data`."""
        return data


class OutputSink(ListSink):
    """An output as a list of values; those beyond the last commit are there, and do not count."""

    def serde(self, declared: Serde) -> Serde:
        """Return the serde that values pass."""
        return Passing(declared)

    def rows(self, committed: int) -> Batch:
        """Return so many of the first rows."""
        columns: Any = self.keys[:committed], self.timestamps[:committed]
        return Batch(self.values[:committed], *columns)
