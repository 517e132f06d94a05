"""Lines that are read or made many at once, and are bytes of their own only where something asks for these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, overload

from operators.base import Serde

Cut = Callable[[bytes], list[bytes]]


class Block:
    """Bytes that hold so many records, and what `serde` makes of all of these."""

    def __init__(self, data: bytes, cut: Cut, serde: Serde, values: list[Any]) -> None:
        self.serde, self.values = serde, values
        self._data, self._cut = data, cut

    @cached_property
    def lines(self) -> list[bytes]:
        """The records as they are stored."""
        return self._cut(self._data)


class ReadLines(Sequence[bytes]):
    """Records of a block that follow each other, of which a slice costs little.

    >>> read = ReadLines(Block(b"1 2 3", bytes.split, serde=None, values=[1, 2, 3]), 0, 3)
    >>> read[1:].values, read[1:][0]
    ([2, 3], b'2')
    """

    def __init__(self, block: Block, start: int, stop: int) -> None:
        self._block, self._start, self._stop = block, start, stop

    def __len__(self) -> int:
        return self._stop - self._start

    @overload
    def __getitem__(self, place: int) -> bytes: ...
    @overload
    def __getitem__(self, place: slice) -> ReadLines: ...
    def __getitem__(self, place: int | slice) -> bytes | ReadLines:
        if isinstance(place, int):
            return self._block.lines[range(self._start, self._stop)[place]]
        start, stop, _ = place.indices(len(self))
        return ReadLines(self._block, self._start + start, self._start + max(start, stop))

    @property
    def serde(self) -> Serde:
        """What has decoded them."""
        return self._block.serde

    @property
    def values(self) -> list[Any]:
        """What they were decoded to."""
        return self._block.values[self._start : self._stop]


class MadeLines(NamedTuple):
    """Records that were encoded together, each with its line break."""

    data: bytes
    number: int
