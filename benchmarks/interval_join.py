"""J1: an interval join of two streams by key and time, over lists in memory."""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Any

from benchmarks.messages import DISORDER_MS, SPREAD_KEYS, Message, time_of
from benchmarks.workload import Description, Workload
from runtime.run.run import run_blocking
from runtime.run.settings import RunSettings
from runtime.systems.memory.environment import MemoryEnvironment
from runtime.systems.memory.lists import ListSink, ListSource
from samza_dsl import App

BEFORE_MS, AFTER_MS = 50_000, 100_000
"""A left message meets right ones from so long before it to so long after it."""
TAKEN_TOGETHER = 1_000
"""Messages of one side that the hand loop takes before it looks to the other side."""

Pair = tuple[int, int]
Rows = dict[int, list[tuple[int, Message]]]


def user_of(message: Message) -> int:
    user: int = message["user"]
    return user


def pair(left: Message, right: Message) -> Pair:
    return left["id"], right["id"]


class IntervalJoin(Workload):
    """Two streams of 500,000 messages of 100,000 keys, a millisecond apart and up to 1 s out of order."""

    description = Description(
        name="J1",
        title="interval join of two streams, 100,000 keys, in memory",
        messages=500_000,
        quick_scale=0.02,
        bar=2.0,
        pairs=5,
    )

    def prepare(self, messages: int) -> None:
        draw = Random(42).randrange
        users = max(SPREAD_KEYS * messages // self.description.messages, 1)
        self.left, self.right = (
            [
                {"id": number, "user": draw(users), "at": number - number * 7_919 % DISORDER_MS}
                for number in range(messages)
            ]
            for _ in range(2)
        )

    def baseline(self) -> list[Pair]:
        """Take the streams in turn; keep each side's rows by key as they come, and drop the first that are too old."""
        pairs: list[Pair] = []
        append = pairs.append
        lefts: Rows = {}
        rights: Rows = {}
        reached = [-DISORDER_MS, -DISORDER_MS]
        sides = (
            (0, self.left, lefts, rights, -BEFORE_MS, AFTER_MS, deque[tuple[int, int]]()),
            (1, self.right, rights, lefts, -AFTER_MS, BEFORE_MS, deque[tuple[int, int]]()),
        )
        for start in range(0, len(self.left), TAKEN_TOGETHER):
            for side, messages, own, other, low, high, ages in sides:
                watermark = reached[side]
                for message in messages[start : start + TAKEN_TOGETHER]:
                    key, at = user_of(message), time_of(message)
                    if at < watermark:
                        continue  # late
                    if at - DISORDER_MS > watermark:
                        watermark = at - DISORDER_MS
                    earliest, latest = at + low, at + high
                    for theirs, match in other.get(key, ()):
                        if earliest <= theirs <= latest:
                            append(pair(message, match) if side == 0 else pair(match, message))
                    rows = own.get(key)
                    if rows is None:
                        own[key] = [(at, message)]
                    else:
                        rows.append((at, message))
                    ages.append((at, key))
                reached[side] = watermark
            for _, _, own, _, _, reach, ages in sides:
                drop(own, ages, min(reached) - reach)
        return pairs

    def ours(self) -> list[Pair]:
        app = App("interval-join")
        how: dict[str, Any] = {"key": user_of, "timestamp": time_of, "max_disorder_ms": DISORDER_MS}
        left, right = app.input("left", **how), app.input("right", **how)
        joined = left.join(right, pair, within=(-BEFORE_MS, AFTER_MS), store="memory", op_id="joined")
        joined.send_to(app.output("pairs"))
        sink = ListSink(columns=())
        bind = {"left": ListSource(self.left), "right": ListSource(self.right), "pairs": sink}
        run_blocking(app.pipeline(), MemoryEnvironment(), RunSettings(bind=bind, levers=self.levers))
        return sink.values

    def outcome(self, result: list[Pair]) -> list[Pair]:
        """Return the pairs in an order of their own: which side comes first is nobody's business."""
        return sorted(result)


def drop(rows_of: Rows, ages: deque[tuple[int, int]], before: int) -> None:
    """Drop the first rows, as far as they are from before a time."""
    while ages and ages[0][0] < before:
        _, key = ages.popleft()
        rows = rows_of[key]
        del rows[0]
        if not rows:
            del rows_of[key]
