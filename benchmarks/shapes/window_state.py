"""W5 and W6: what a message costs a window with many keys in its state, and out of order."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from time import process_time
from typing import Any

from benchmarks.figures import Chart
from benchmarks.messages import DISORDER_MS, Message, time_of
from benchmarks.shapes.shape import Figures, Shape, ShapeDescription
from runtime.run import run_blocking
from runtime.systems.lists import ListSink, ListSource
from runtime.systems.memory import MemoryEnvironment
from samza_dsl import App, count, tumbling

NUMBERS_OF_KEYS = (1_000, 10_000, 100_000, 1_000_000)
LONG_MS, SHORT_MS = 10**9, 10_000
FEW_KEYS = 1_000


class WindowState(Shape):
    """Counts by key and window, whose results are compared with plain ones."""

    @abstractmethod
    def figures(self) -> Figures:
        """Measure."""

    def seconds(self, messages: list[Message], size_ms: int) -> float:
        """Return the processor's seconds of a run, which other processes hardly change."""
        app = App("window-state")
        stream = app.input("messages", key=key_of, timestamp=time_of, max_disorder_ms=DISORDER_MS)
        stream.window(tumbling(milliseconds=size_ms), count(), store="memory").send_to(app.output("panes"))
        sink = ListSink(columns=())
        bind: dict[str, Any] = {"messages": ListSource(messages), "panes": sink}
        began = process_time()
        run_blocking(app.graph(), app.options, app.around, MemoryEnvironment(), bind=bind)
        seconds = process_time() - began
        expected = Counter((key_of(message), time_of(message) // size_ms) for message in messages)
        if {(pane.key, pane.start // size_ms): pane.value for pane in sink.values} != expected:
            raise AssertionError(f"the windows of {len(messages):,} messages did not come to what they should")
        return seconds


class ManyKeys(WindowState):
    """What a message costs once the window of each key is open: that they begin and fire is not counted."""

    description = ShapeDescription(
        name="W5", title="a message to a window, of 1M keys that have one ÷ of 1,000", bar=1.2, rounds=3
    )

    def figures(self) -> Figures:
        costs: dict[int, float] = {}
        for keys in map(self.scaled, NUMBERS_OF_KEYS):
            met = max(keys, self.scaled(200_000))
            more = met + self.scaled(500_000)
            messages = [{"key": number * 7_919 % keys, "at": number} for number in range(more)]
            quickest = [
                min(self.seconds(messages[:number], LONG_MS) for _ in range(self.rounds)) for number in (met, more)
            ]
            costs[keys] = (quickest[1] - quickest[0]) / (more - met) * 1e9
        curve = {f"ns, {keys:,} keys": cost for keys, cost in costs.items()}
        points = [(float(keys), round(cost, 1)) for keys, cost in costs.items()]
        chart = Chart("keys", "ns of a processor per message", {"ours": points})
        first, *_, last = costs.values()
        return Figures(last / first, curve, chart)


class Disorder(WindowState):
    """Every other message is up to a second behind the ones before it, over the same messages in order."""

    description = ShapeDescription(
        name="W6", title="a message to a window, half of them out of order ÷ none", bar=1.3, rounds=5
    )

    def figures(self) -> Figures:
        number = self.scaled(500_000)
        messages = [
            {"key": one % FEW_KEYS, "at": one - (one * 7_919 % DISORDER_MS if one % 2 else 0)} for one in range(number)
        ]
        in_order = [{**message} for message in sorted(messages, key=time_of)]  # which so lie in memory in order, too
        sides = {"in order": in_order, "half out of order": messages}
        quickest = {
            side: min(self.seconds(given, SHORT_MS) for _ in range(self.rounds)) for side, given in sides.items()
        }
        curve = {f"ns, {side}": seconds / number * 1e9 for side, seconds in quickest.items()}
        return Figures(quickest["half out of order"] / quickest["in order"], curve)


def key_of(message: Message) -> int:
    return message["key"]
