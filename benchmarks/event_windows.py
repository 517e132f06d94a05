"""W1, W2 and W3: hopping windows, sessions and the top ten of a window, over a list in memory."""

from __future__ import annotations

import heapq

from benchmarks.keyed_count import WINDOW_MS
from benchmarks.messages import DISORDER_MS, Message, key_of, time_of, visits, weight_of
from benchmarks.windowed import Panes, Windowed
from benchmarks.workload import Description
from samza_dsl import count, hopping, session, top_k, tumbling

STEPS = 6
GAP_MS = 3_000
TOP = 10


class HoppingCount(Windowed):
    """Counted by the step by hand, and the counts of six steps added up when a window ends."""

    description = Description(
        name="W1",
        title="keyed hopping count, windows of 60 s every 10 s, 1,000 keys, in memory",
        messages=1_000_000,
        quick_scale=0.1,
        bar=1.5,
    )
    windows = hopping(milliseconds=STEPS * WINDOW_MS, every_ms=WINDOW_MS)
    aggregation = count()

    def baseline(self) -> Panes:
        panes: Panes = []
        steps: dict[int, dict[int, int]] = {}
        watermark, next_end = -(2**62), 2**62
        for message in self.messages:
            key, at = key_of(message), time_of(message)
            step = at - at % WINDOW_MS
            counts = steps.get(step)
            if counts is None:
                if step + STEPS * WINDOW_MS <= watermark:
                    continue  # late
                counts = steps[step] = {}
                next_end = min(next_end, max(step, watermark - watermark % WINDOW_MS) + WINDOW_MS)
            counts[key] = counts.get(key, 0) + 1
            if at - DISORDER_MS > watermark:
                watermark = at - DISORDER_MS
                while next_end <= watermark:
                    next_end = fire_steps(steps, next_end, panes)
        while steps:
            next_end = fire_steps(steps, next_end, panes)
        return panes


class SessionCount(Windowed):
    """Sessions of a few seconds, of fifty users at a time; by hand a list of open sessions for each."""

    description = Description(
        name="W2",
        title="session count, gaps of 3 s, 1,000 users, in memory",
        messages=1_000_000,
        quick_scale=0.06,
        bar=2.0,
    )
    windows = session(milliseconds=GAP_MS)
    aggregation = count()

    def prepare(self, messages: int) -> None:
        self.messages = visits(messages)

    def baseline(self) -> Panes:
        panes: Panes = []
        users: dict[int, list[list[int]]] = {}
        due: list[tuple[int, int]] = []
        watermark = -(2**62)
        for message in self.messages:
            user, at = key_of(message), time_of(message)
            if at < watermark:
                continue  # late
            sessions = users.get(user)
            if sessions is None:
                sessions = users[user] = []
            for open_ in reversed(sessions):
                if open_[0] < at + GAP_MS and at < open_[1]:
                    open_[0], open_[1] = min(open_[0], at), max(open_[1], at + GAP_MS)
                    open_[2] += 1
                    break
            else:
                sessions.append([at, at + GAP_MS, 1])
                heapq.heappush(due, (at + GAP_MS, user))
            if len(sessions) > 1:
                users[user] = joined(sessions)
            if at - DISORDER_MS > watermark:
                watermark = at - DISORDER_MS
                while due and due[0][0] <= watermark:
                    fire_sessions(users, due, panes)
        while due:
            fire_sessions(users, due, panes)
        return panes


class TopTen(Windowed):
    """By hand all values of a window are kept until it ends."""

    description = Description(
        name="W3",
        title="the ten heaviest of each key and tumbling window of 10 s, 1,000 keys, in memory",
        messages=1_000_000,
        quick_scale=0.06,
        bar=1.5,
    )
    windows = tumbling(milliseconds=WINDOW_MS)
    aggregation = top_k(TOP, by=weight_of)

    def baseline(self) -> Panes:
        panes: Panes = []
        windows: dict[int, dict[int, list[Message]]] = {}
        watermark = next_end = -(2**62)
        for message in self.messages:
            key, at = key_of(message), time_of(message)
            start = at - at % WINDOW_MS
            kept = windows.get(start)
            if kept is None:
                if start + WINDOW_MS <= watermark:
                    continue  # late
                kept = windows[start] = {}
                next_end = min(windows) + WINDOW_MS
            kept.setdefault(key, []).append(message)
            if at - DISORDER_MS > watermark:
                watermark = at - DISORDER_MS
                while next_end <= watermark:
                    fire_top(windows, next_end - WINDOW_MS, panes)
                    next_end = min(windows) + WINDOW_MS if windows else 2**62
        for start in sorted(windows):
            fire_top(windows, start, panes)
        return panes


def fire_steps(steps: dict[int, dict[int, int]], end: int, panes: Panes) -> int:
    """Tell the window that ends there, drop the step that no other one needs, and return the next end."""
    start = end - STEPS * WINDOW_MS
    counts: dict[int, int] = {}
    for step in range(start, end, WINDOW_MS):
        for key, number in steps.get(step, {}).items():
            counts[key] = counts.get(key, 0) + number
    panes += [(key, start, end, number) for key, number in counts.items()]
    steps.pop(start, None)
    return max(end, min(steps, default=end)) + WINDOW_MS


def joined(sessions: list[list[int]]) -> list[list[int]]:
    """Make one of those that overlap."""
    found: list[list[int]] = []
    for one in sorted(sessions):
        if found and one[0] < found[-1][1]:
            found[-1][1] = max(found[-1][1], one[1])
            found[-1][2] += one[2]
        else:
            found.append(one)
    return found


def fire_sessions(users: dict[int, list[list[int]]], due: list[tuple[int, int]], panes: Panes) -> None:
    """Tell the session that is due first, if it has not gone on."""
    end, user = heapq.heappop(due)
    for one in users[user]:
        if one[1] == end:
            panes.append((user, *one))
            users[user].remove(one)
            return
        if one[0] < end < one[1]:
            heapq.heappush(due, (one[1], user))
            return


def fire_top(windows: dict[int, dict[int, list[Message]]], start: int, panes: Panes) -> None:
    for key, values in windows.pop(start).items():
        panes.append((key, start, start + WINDOW_MS, heapq.nlargest(TOP, values, key=weight_of)))
