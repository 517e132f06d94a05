"""Lines that are read or made many at once, and are bytes of their own only where something asks for these."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple, overload

from operators.base import Serde

Cut = Callable[[bytes], list[bytes]]


class Block:
    """Bytes that hold so many records, and what `serde` has made of all of these."""

    def __init__(self, data: bytes, cut: Cut, serde: Serde, values: list[Any]) -> None:
        self.serde = serde
        self._data, self._cut = data, cut
        self._values, self._given = values, 0

    @cached_property
    def lines(self) -> list[bytes]:
        """The records as they are stored."""
        return self._cut(self._data)

    def give(self, start: int, stop: int) -> list[Any] | None:
        """Return the values of records that none was given of before, nor of one behind them; else None."""
        if start < self._given:
            return None
        given = self._values[start - self._given : stop - self._given]
        del self._values[: stop - self._given]
        self._given = stop
        return given


class ReadLines(Sequence[bytes]):
    """Records of a block that follow each other, of which a slice costs little.

    >>> read = ReadLines(Block(b"1 2 3", bytes.split, serde=None, values=[1, 2, 3]), 0, 3)
    >>> read[1:][0], read[1:].decoded(by=None), read.decoded(by=None)
    (b'2', [2, 3], None)
    """

    def __init__(self, block: Block, start: int, stop: int) -> None:
        self._block, self._start, self._stop = block, start, stop

    def __len__(self) -> int:
        return self._stop - self._start

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._block.lines[self._start : self._stop])

    @overload
    def __getitem__(self, place: int) -> bytes: ...
    @overload
    def __getitem__(self, place: slice) -> ReadLines: ...
    def __getitem__(self, place: int | slice) -> bytes | ReadLines:
        if isinstance(place, int):
            return self._block.lines[range(self._start, self._stop)[place]]
        start, stop, _ = place.indices(len(self))
        return ReadLines(self._block, self._start + start, self._start + max(start, stop))

    def decoded(self, by: Serde) -> list[Any] | None:
        """Return what they were decoded to by a serde; to one reader, which may change it, and else None."""
        return self._block.give(self._start, self._stop) if self._block.serde == by else None


class MadeLines(NamedTuple):
    """Records that were encoded together, each with its line break."""

    data: bytes
    number: int
