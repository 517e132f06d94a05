"""W4: what a message costs a sliding window, by how long that is, beside a heap and deques by hand."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from time import process_time
from typing import Any

from benchmarks.figures import Chart
from benchmarks.messages import DISORDER_MS, Message, key_of, time_of, timed_messages, weight_of
from benchmarks.shapes.shape import Figures, Shape, ShapeDescription
from runtime.run.run import run_blocking
from runtime.run.settings import RunSettings
from runtime.systems.memory.environment import MemoryEnvironment
from runtime.systems.memory.lists import ListSink, ListSource
from samza_dsl import App, sliding, total

SIZES_MS = (1_000, 10_000, 100_000)
Panes = list[tuple[int, int, int]]
"""Key, time and sum."""


class SlidingSum(Shape):
    """The sum of what a key had so long, at each message: neither side folds a window anew."""

    description = ShapeDescription(name="W4", title="a message to a sliding window of 1, 10 and 100 s, 1,000 keys")

    def figures(self) -> Figures:
        messages = timed_messages(self.scaled(300_000))
        curve: dict[str, float] = {}
        points: dict[str, list[tuple[float, float]]] = {side: [] for side in SIDES}
        for size_ms in SIZES_MS:
            expected = sorted(by_hand(messages, size_ms))
            for side, run in SIDES.items():
                found = [timed(run, messages, size_ms, expected) for _ in range(self.rounds)]
                cost = min(found) / len(messages) * 1e6
                curve[f"us {side}, {size_ms // 1_000} s"] = cost
                points[side].append((size_ms / 1_000, round(cost, 2)))
        return Figures(None, curve, Chart("seconds", "µs of a processor per message", points))


def timed(run: Callable[[list[Message], int], Panes], messages: list[Message], size_ms: int, expected: Panes) -> float:
    """Return the processor's seconds, which other processes hardly change."""
    began = process_time()
    panes = run(messages, size_ms)
    seconds = process_time() - began
    if sorted(panes) != expected:
        raise AssertionError(f"the windows of {size_ms:,} ms did not come to what they should")
    return seconds


def ours(messages: list[Message], size_ms: int) -> Panes:
    app = App("sliding-sum")
    stream = app.input("messages", key=key_of, timestamp=time_of, max_disorder_ms=DISORDER_MS)
    panes = stream.window(sliding(milliseconds=size_ms), total(weight_of), op_id="sums")
    panes.map(lambda pane: (pane.key, pane.end - 1, pane.value)).send_to(app.output("sums"))
    sink = ListSink(columns=())
    bind: dict[str, Any] = {"messages": ListSource(messages), "sums": sink}
    run_blocking(app.pipeline(), MemoryEnvironment(), RunSettings(bind=bind))
    return sink.values


def by_hand(messages: list[Message], size_ms: int) -> Panes:
    """Let messages wait in a heap until the watermark has passed them, and then in a deque of their key."""
    panes: Panes = []
    waiting: list[tuple[int, int, int]] = []
    within: dict[int, deque[tuple[int, int]]] = {}
    sums: dict[int, int] = {}
    watermark = -(2**62)
    for message in messages:
        key, at = key_of(message), time_of(message)
        if at < watermark:
            continue  # late
        heapq.heappush(waiting, (at, key, weight_of(message)))
        if at - DISORDER_MS > watermark:
            watermark = at - DISORDER_MS
        while waiting and waiting[0][0] < watermark:
            panes.append(slide(heapq.heappop(waiting), within, sums, size_ms))
    while waiting:
        panes.append(slide(heapq.heappop(waiting), within, sums, size_ms))
    return panes


def slide(
    message: tuple[int, int, int], within: dict[int, deque[tuple[int, int]]], sums: dict[int, int], size_ms: int
) -> tuple[int, int, int]:
    """Bring a message into the window of its key, and tell it; no two of a key have one time."""
    at, key, weight = message
    kept = within.setdefault(key, deque())
    kept.append((at, weight))
    sums[key] = sums.get(key, 0) + weight
    while kept[0][0] <= at - size_ms:
        sums[key] -= kept.popleft()[1]
    return key, at, sums[key]


SIDES = {"by hand": by_hand, "ours": ours}
