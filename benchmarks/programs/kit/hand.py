"""The frame of the programs by hand: chunks of partitions in turn, a watermark for each, state that can be pickled."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

BEGINNING, END = -(2**62), 2**62
CHUNK = 1_000
"""How many messages of a partition are taken before those of the next one."""

Place = tuple[str, int]


class Feed(Protocol):
    """Where a program by hand reads, and what keeps what it has come to."""

    places: Sequence[Place]

    def chunks(self, hand: Hand) -> Iterator[tuple[Place, list[Any] | None]]:
        """Yield values of a partition, and None when it has ended."""

    def taken(self, hand: Hand, count: int) -> None:
        """Hear that so many more messages have been taken and that all of their effects are there."""

    def finished(self, hand: Hand) -> None:
        """Hear that all is over."""


class Hand(ABC):
    """A program by hand: it fills `out`, and what it has to remember is in the attributes that `keeps` names.

    Each function of `takes()` gets values of one partition with its watermark, and returns the next one. What is known
    before the first message, tables, is given to `learn`.
    """

    keeps: tuple[str, ...] = ()
    chunk = CHUNK

    def __init__(self) -> None:
        self.out: dict[str, list[Any]] = {}
        self.watermarks: dict[Place, int] = {}

    @abstractmethod
    def takes(self) -> dict[str, Callable[[list[Any], int], Any]]:
        """Return what takes the values of each stream."""

    def learn(self, table: str, rows: list[Any]) -> None:
        """Keep the rows of a table."""
        raise NotImplementedError(table)

    def advance(self, watermark: int) -> None:  # noqa: B027  (some wait for no time)
        """Fire what is due."""

    def malformed(self, stream: str, record: bytes, error: Exception) -> None:
        """Set aside a record that can't be decoded."""
        raise error

    def close(self) -> None:  # noqa: B027  (most have nothing open)
        """Close what is open."""

    def run(self, feed: Feed) -> None:
        """Take everything, and fire what is left at the end."""
        takes, watermarks = self.takes(), self.watermarks
        for place in feed.places:
            watermarks.setdefault(place, BEGINNING)
        for place, values in feed.chunks(self):
            watermarks[place] = END if values is None else takes[place[0]](values, watermarks[place])
            self.advance(min(watermarks.values()))
            if values:
                feed.taken(self, len(values))
        feed.finished(self)


class AsyncHand(Hand):
    """One whose functions are async: calls are in flight within a chunk."""

    chunk = 5_000

    def run(self, feed: Feed) -> None:
        """Take everything in an event loop of its own."""
        asyncio.run(self._run(feed))

    async def _run(self, feed: Feed) -> None:
        takes, watermarks = self.takes(), self.watermarks
        for place in feed.places:
            watermarks.setdefault(place, BEGINNING)
        for place, values in feed.chunks(self):
            watermarks[place] = END if values is None else await takes[place[0]](values, watermarks[place])
            self.advance(min(watermarks.values()))
            if values:
                feed.taken(self, len(values))
        feed.finished(self)


class Lists:
    """A feed of lists in memory, which keeps nothing."""

    def __init__(self, streams: dict[str, list[list[Any]]], chunk: int) -> None:
        self.places = [(name, number) for name, parts in streams.items() for number in range(len(parts))]
        self._streams = streams
        self._chunk = chunk

    def chunks(self, hand: Hand) -> Iterator[tuple[Place, list[Any] | None]]:
        """Yield a chunk of each partition in turn."""
        parts = [(place, self._streams[place[0]][place[1]]) for place in self.places]
        longest = max((len(values) for _, values in parts), default=0)
        for first in range(0, longest + self._chunk, self._chunk):
            for place, values in parts:
                if first < len(values):
                    yield place, values[first : first + self._chunk]
                elif first < len(values) + self._chunk:
                    yield place, None

    def taken(self, hand: Hand, count: int) -> None:
        """Nothing is kept."""

    def finished(self, hand: Hand) -> None:
        """Nothing is kept."""


def joined(sessions: list[list[int]]) -> list[list[int]]:
    """Make one of those sessions that overlap, each with its bounds, two sums and a maximum."""
    found: list[list[int]] = []
    for one in sorted(sessions):
        if found and one[0] < found[-1][1]:
            last = found[-1]
            last[1:] = [max(last[1], one[1]), last[2] + one[2], last[3] + one[3], max(last[4], one[4])]
        else:
            found.append(one)
    return found
