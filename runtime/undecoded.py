"""Values that are decoded as a loop comes to each of them, and are gone before the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


class Undecoded:
    """A column of values as they are stored; whoever goes through it gets what they mean, and what decoding raises.

    >>> [*Undecoded([b"1", b"2"], int)]
    [1, 2]
    """

    __slots__ = ("_decode", "_stored")

    def __init__(self, stored: list[bytes], decode: Callable[[bytes], Any]) -> None:
        self._stored = stored
        self._decode = decode

    def __len__(self) -> int:
        return len(self._stored)

    def __iter__(self) -> Iterator[Any]:
        return map(self._decode, self._stored)
