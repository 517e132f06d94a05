"""What the workloads with event-time windows share: messages up to a second out of order, and the pipeline."""

from __future__ import annotations

from typing import Any

from benchmarks.messages import DISORDER_MS, key_of, time_of, timed_messages
from benchmarks.workload import Workload
from operators.aggregations.aggregation import Aggregation
from operators.windows.window_types import Windows
from runtime.run.run import run_blocking
from runtime.run.settings import RunSettings
from runtime.systems.memory.environment import MemoryEnvironment
from runtime.systems.memory.lists import ListSink, ListSource
from samza_dsl import App

Panes = list[tuple[Any, ...]]
"""Key, start and end of a window, and what it came to."""


class Windowed(Workload):
    """What a workload's windows are and compute; by hand there is a loop of its own."""

    windows: Windows
    aggregation: Aggregation[Any, Any]

    def prepare(self, messages: int) -> None:
        self.messages = timed_messages(messages)

    def ours(self) -> list[Any]:
        app = App("windowed")
        messages = app.input("messages", key=key_of, timestamp=time_of, max_disorder_ms=DISORDER_MS)
        messages.window(self.windows, self.aggregation, op_id="windows").send_to(app.output("panes"))
        sink = ListSink(columns=())
        bind = {"messages": ListSource(self.messages), "panes": sink}
        run_blocking(app.pipeline(), MemoryEnvironment(), RunSettings(bind=bind, levers=self.levers))
        return sink.values

    def outcome(self, result: list[Any]) -> Panes:
        """Return plain tuples by window, then by key: the order within a window is nobody's business."""
        plain = (pane if type(pane) is tuple else (pane.key, pane.start, pane.end, pane.value) for pane in result)
        return sorted(plain, key=lambda pane: (pane[2], pane[1], pane[0]))
