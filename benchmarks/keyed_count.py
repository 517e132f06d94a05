"""B2: a count per key and tumbling event-time window, over a list in memory."""

from __future__ import annotations

from benchmarks.messages import DISORDER_MS, KEYS, key_of, time_of
from benchmarks.windowed import Windowed
from benchmarks.workload import Description
from samza_dsl import count, tumbling

WINDOW_MS = 10_000

Counts = tuple[int, int, int, int]
"""Key, start and end of the window, and the count."""


class KeyedCount(Windowed):
    """1,000 keys, windows of 10 s, messages up to 1 s out of order; one in a thousand is late and dropped."""

    description = Description(
        name="B2",
        title="keyed tumbling event-time count, 1,000 keys, in memory",
        messages=1_000_000,
        quick_scale=0.06,
        bar=1.0,
    )

    windows = tumbling(milliseconds=WINDOW_MS)
    aggregation = count()

    def baseline(self) -> list[Counts]:
        panes: list[Counts] = []
        windows: dict[int, dict[int, int]] = {}
        watermark = next_end = -(2**62)
        for message in self.messages:
            key, at = key_of(message), time_of(message)
            start = at - at % WINDOW_MS
            counts = windows.get(start)
            if counts is None:
                if start + WINDOW_MS <= watermark:
                    continue  # late
                counts = windows[start] = {}
                next_end = min(windows) + WINDOW_MS
            counts[key] = counts.get(key, 0) + 1
            if at - DISORDER_MS > watermark:
                watermark = at - DISORDER_MS
                while next_end <= watermark:
                    fire(windows, next_end - WINDOW_MS, panes)
                    next_end = min(windows) + WINDOW_MS if windows else 2**62
        for start in sorted(windows):
            fire(windows, start, panes)
        return panes

    def baseline_inlined(self) -> list[Counts]:
        panes: list[Counts] = []
        windows: dict[int, dict[int, int]] = {}
        watermark = next_end = -(2**62)
        for message in self.messages:
            key, at = message["id"] % KEYS, message["at"]
            start = at - at % WINDOW_MS
            counts = windows.get(start)
            if counts is None:
                if start + WINDOW_MS <= watermark:
                    continue  # late
                counts = windows[start] = {}
                next_end = min(windows) + WINDOW_MS
            counts[key] = counts.get(key, 0) + 1
            if at - DISORDER_MS > watermark:
                watermark = at - DISORDER_MS
                while next_end <= watermark:
                    fire(windows, next_end - WINDOW_MS, panes)
                    next_end = min(windows) + WINDOW_MS if windows else 2**62
        for start in sorted(windows):
            fire(windows, start, panes)
        return panes


def fire(windows: dict[int, dict[int, int]], start: int, panes: list[Counts]) -> None:
    end = start + WINDOW_MS
    panes += [(key, start, end, number) for key, number in windows.pop(start).items()]
