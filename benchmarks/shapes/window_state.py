"""W5 and W6: what a message costs a window with many keys in its state, and out of order."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter, defaultdict
from time import process_time
from typing import Any

from benchmarks.figures import Chart
from benchmarks.messages import DISORDER_MS, Message, time_of
from benchmarks.shapes.shape import Figures, Shape, ShapeDescription
from runtime.ports.streams import Read
from runtime.run.run import run_blocking
from runtime.run.settings import RunSettings
from runtime.systems.memory.environment import MemoryEnvironment
from runtime.systems.memory.lists import ListSink, ListSource
from samza_dsl import App, count, tumbling

NUMBERS_OF_KEYS = (1_000, 10_000, 100_000, 1_000_000)
LONG_MS, SHORT_MS = 10**9, 10_000
FEW_KEYS = 1_000


class WindowState(Shape):
    """Counts by key and window, whose results are compared with plain ones."""

    @abstractmethod
    def figures(self) -> Figures:
        """Measure."""

    def cost(self, messages: list[Message], size_ms: int, since: int = 0) -> float:
        """Return the processor's ns per message, from message `since` to the last that are read."""
        app = App("window-state")
        stream = app.input("messages", key=key_of, timestamp=time_of, max_disorder_ms=DISORDER_MS)
        stream.window(tumbling(milliseconds=size_ms), count(), store="memory").send_to(app.output("panes"))
        sink = ListSink(columns=())
        source = WatchedSource(messages, since)
        bind: dict[str, Any] = {"messages": source, "panes": sink}
        run_blocking(app.pipeline(), MemoryEnvironment(), RunSettings(bind=bind))
        expected = Counter((key_of(message), time_of(message) // size_ms) for message in messages)
        if {(pane.key, pane.start // size_ms): pane.value for pane in sink.values} != expected:
            raise AssertionError(f"the windows of {len(messages):,} messages did not come to what they should")
        return source.cost


class WatchedSource(ListSource):
    """A list that knows how long the processor had worked when its messages were read."""

    def __init__(self, values: list[Message], since: int) -> None:
        super().__init__(values)
        self._since = since
        self._reads: list[tuple[int, float]] = []

    def read(self, partition: int, offset: int, max_records: int = 10_000) -> Read | None:
        """Return rows as a list does, never so many that there are no two reads behind each other."""
        max_records = min(max_records, max((len(self._values[0]) - self._since) // 4, 1))
        if offset >= self._since:
            self._reads.append((offset, process_time()))
        return super().read(partition, offset, max_records)

    @property
    def cost(self) -> float:
        """The processor's ns per message between the first and the last read: what begins and ends a run is outside."""
        (first, began), *_, (last, ended) = self._reads
        return (ended - began) / (last - first) * 1e9


class ManyKeys(WindowState):
    """What a message costs once the window of each key is open: that they begin and fire is not counted."""

    description = ShapeDescription(
        name="W5", title="a message to a window, of 1M keys that have one ÷ of 1,000", bar=1.2, rounds=3
    )

    def figures(self) -> Figures:
        costs: dict[str, dict[int, float]] = {"ours": {}, "by hand": {}}
        for keys in map(self.scaled, NUMBERS_OF_KEYS):
            met = max(keys, self.scaled(200_000))
            more = met + self.scaled(500_000)
            messages = [{"key": number * 7_919 % keys, "at": number} for number in range(more)]
            for side, cost in (("ours", self.cost), ("by hand", cost_by_hand)):
                costs[side][keys] = min(cost(messages, LONG_MS, met) for _ in range(self.rounds))
        curve = {f"ns {side}, {keys:,} keys": cost for side, of_keys in costs.items() for keys, cost in of_keys.items()}
        lines = {
            side: [(float(keys), round(cost, 1)) for keys, cost in of_keys.items()] for side, of_keys in costs.items()
        }
        first, *_, last = costs["ours"].values()
        return Figures(last / first, curve, Chart("keys", "ns of a processor per message", lines))


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
        quickest = {side: min(self.cost(given, SHORT_MS) for _ in range(self.rounds)) for side, given in sides.items()}
        curve = {f"ns, {side}": cost for side, cost in quickest.items()}
        return Figures(quickest["half out of order"] / quickest["in order"], curve)


def cost_by_hand(messages: list[Message], size_ms: int, since: int) -> float:
    """Return the processor's ns per message of a plain loop from message `since` on."""
    windows: defaultdict[int, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
    began = 0.0
    for part in (messages[:since], messages[since:]):
        began = process_time()
        for message in part:
            windows[time_of(message) // size_ms][key_of(message)] += 1
    return (process_time() - began) / (len(messages) - since) * 1e9


def key_of(message: Message) -> int:
    return message["key"]
