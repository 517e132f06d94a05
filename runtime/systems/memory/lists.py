"""Python lists as bound inputs and outputs, for tests, benchmarks and runs in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from operators.core.base import Batch, Headers, Serde
from runtime.model.errors import Damaged
from runtime.ports.sink import Sink
from runtime.ports.source import ReplaceableSource
from runtime.ports.streams import Offsets, Read


@dataclass(frozen=True)
class Unchanged:
    """The serde of values that stay the Python objects they are."""

    type: object = Any
    unchanged: ClassVar[bool] = True

    def encode(self, value: object) -> Any:
        """Return `value`."""
        return value

    def decode(self, data: object) -> object:
        """Return `data`."""
        return data


class ListSource(ReplaceableSource):
    """A bounded input of decoded values.

    With `partitions=1`, `values` is the list of values; otherwise it is one such list per partition. `timestamps`
    (ms) and `keys` (encoded) have the same shape. Raises ValueError where they have not.

    >>> ListSource(["a", "b"]).read(0, 1).batch.values
    ['b']
    >>> ListSource([["a"], ["b", "c"]], partitions=2).offsets(1)
    Offsets(start=0, end=2, ended=True)
    """

    name = "list"

    def __init__(
        self,
        values: Sequence[object],
        timestamps: Sequence[object] | None = None,
        keys: Sequence[object] | None = None,
        partitions: int = 1,
    ) -> None:
        self.partitions = partitions
        self._values = _by_partition(values, partitions, "values")
        self._timestamps = None if timestamps is None else _by_partition(timestamps, partitions, "timestamps")
        self._keys = None if keys is None else _by_partition(keys, partitions, "keys")
        for column in (self._timestamps, self._keys):
            if column is not None and list(map(len, column)) != list(map(len, self._values)):
                raise ValueError("timestamps and keys need one entry for every value; None leaves the column out")

    def serde(self, declared: Serde) -> Serde:
        """Return the serde that leaves values as they are."""
        return Unchanged()

    def offsets(self, partition: int) -> Offsets:
        """Return the range of the partition's list."""
        return Offsets(0, len(self._values[partition]), ended=True)

    def read(self, partition: int, offset: int, max_records: int = 10_000) -> Read | None:
        """Return rows from `offset` on; None at the end, and `Damaged` beyond it."""
        end = offset + max_records
        values = self._values[partition][offset:end]
        if not values:
            if offset > self.offsets(partition).end:
                raise Damaged(f"the list has fewer than the {offset} values that were already processed; give all")
            return None
        end = offset + len(values)
        batch = Batch(
            values,
            keys=None if self._keys is None else self._keys[partition][offset:end],
            timestamps=None if self._timestamps is None else self._timestamps[partition][offset:end],
            offsets=range(offset, end),
        )
        return Read(batch, None, end)

    def stored(self, partition: int, start: int, end: int) -> Iterable[object]:
        """Return values."""
        return self._values[partition][start:end]

    def close(self) -> None:
        """Do nothing: the lists are the caller's."""


class ListSink(Sink):
    """An output that keeps its rows in lists, in the order of the writes; its position is their number.

    `columns` are what it keeps beside the values: `keys` are encoded, `timestamps` in ms; None where a row has none.

    >>> sink = ListSink()
    >>> sink.write(Batch([1, 2, 3]))
    >>> sink.recover(2)
    >>> sink.values
    [1, 2]
    """

    name = "list"
    partitions = 1

    def __init__(self, columns: Iterable[str] = ("keys", "timestamps")) -> None:
        self.columns = frozenset(columns)
        self.values: list[Any] = []
        self.keys: list[bytes | None] = []
        self.timestamps: list[int | None] = []
        self.headers: list[Headers | None] = []

    def serde(self, declared: Serde) -> Serde:
        """Return the serde that leaves values as they are."""
        return Unchanged()

    def recover(self, position: int) -> None:
        """Drop all rows beyond the first `position`; raises `Damaged` when there are fewer."""
        if position > len(self.values):
            raise Damaged(f"the list holds {len(self.values)} rows, fewer than the {position} of the last commit")
        for column in (self.values, self.keys, self.timestamps, self.headers):
            del column[position:]

    def write(self, batch: Batch) -> None:
        """Keep the rows."""
        self.values += batch.values
        if "keys" in self.columns:
            self.keys += batch.keys or [None] * len(batch)
        if "timestamps" in self.columns:
            self.timestamps += batch.timestamps or [None] * len(batch)
        if "headers" in self.columns:
            self.headers += batch.headers or [None] * len(batch)

    def flush(self) -> int:
        """Return the number of rows."""
        return len(self.values)

    def close(self) -> None:
        """Do nothing: the rows stay readable."""


def _by_partition(column: Sequence[object], partitions: int, name: str) -> list[list[Any]]:
    lists = [column] if partitions == 1 else cast("Sequence[Sequence[object]]", column)
    if len(lists) != partitions:
        raise ValueError(f"{name} has {len(lists)} lists for {partitions} partitions; give one list per partition")
    return [part if isinstance(part, list) else list(part) for part in lists]
