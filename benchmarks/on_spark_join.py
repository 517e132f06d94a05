"""B16: an interval join of files on Spark with two cores, over the loop that one process runs by hand."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from heapq import merge
from itertools import islice
from pathlib import Path

from msgspec import Struct

from benchmarks.on_spark import CHUNK, FILES, OnSpark, Tick, decode, encode, sync, ticks
from benchmarks.workload import Description
from samza_dsl import App

BEFORE_MS, AFTER_MS = 10_000, 20_000
"""A left tick meets right ones from so long before it to so long after it: one and a half of them."""


class Met(Struct):
    """Two ticks of a key that are near in time."""

    key: str
    left: int
    right: int


def met(left: Tick, right: Tick) -> Met:
    return Met(left.key, left.number, right.number)


def key_of(tick: Tick) -> str:
    return tick.key


def time_of(tick: Tick) -> int:
    return tick.at


class JoinOnSpark(OnSpark):
    """Two streams of as many ticks, of the same 10,000 keys, four files each; pairs go to JSON lines."""

    description = Description(
        name="B16",
        title="interval join, 10,000 keys, on Spark with two cores over one process",
        messages=1_000_000,
        quick_scale=0.004,
        bar=round(1 / 0.6, 3),
        pairs=5,
        on_spark=True,
    )

    def make(self, messages: int) -> None:
        super().make(messages // 2)
        self.others = self.scratch / "others"
        self.write(self.others, lambda number: ticks(messages // 2 // FILES, FILES + number))

    def baseline(self) -> Path:
        """Take both in the order of time; keep each side's ticks by key, and drop the first that are too old."""
        kept: tuple[dict[str, deque[Tick]], ...] = ({}, {})
        with ExitStack() as opened, self.by_hand.open("wb") as file:
            pairs = self._pairs(kept, opened)
            while chunk := list(islice(pairs, CHUNK)):
                file.write(encode.encode_lines(chunk))
        sync(self.by_hand)
        return self.by_hand

    def _pairs(self, kept: tuple[dict[str, deque[Tick]], ...], opened: ExitStack) -> Iterator[Met]:
        lefts, rights = kept
        ages: deque[tuple[int, int, str]] = deque()
        for at, side, tick in merge(in_time(self.files, 0, opened), in_time(self.others, 1, opened)):
            key = tick.key
            if side == 0:
                for match in rights.get(key, ()):
                    if at - BEFORE_MS <= match.at:
                        yield met(tick, match)
                lefts.setdefault(key, deque()).append(tick)
            else:
                for match in lefts.get(key, ()):
                    if at <= match.at + AFTER_MS:
                        yield met(match, tick)
                rights.setdefault(key, deque()).append(tick)
            ages.append((at, side, key))
            while ages[0][0] + AFTER_MS < at:
                _, old, name = ages.popleft()
                kept[old][name].popleft()

    def ours(self) -> Path:
        app = App("join-on-spark")
        left, right = (
            app.input(name, value=Tick, timestamp=time_of).partition_by(
                key_of, partitions=FILES, op_id=f"{name}-by-key"
            )
            for name in ("left", "right")
        )
        joined = left.join(right, met, within=(-BEFORE_MS, AFTER_MS), op_id="joined")
        joined.send_to(app.output("pairs", value=Met))
        app.run(on=self.spark, bind={"left": self.files, "right": self.others, "pairs": self.written})
        return self.written


def in_time(directory: Path, side: int, opened: ExitStack) -> Iterator[tuple[int, int, Tick]]:
    """Read the files of a stream side by side, in the order of time."""
    files = [map(decode, opened.enter_context(path.open("rb"))) for path in sorted(directory.iterdir())]
    return ((tick.at, side, tick) for tick in merge(*files, key=time_of))
