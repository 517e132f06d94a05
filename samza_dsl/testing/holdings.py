"""What the operators of an application hold as of the last commit: state, open windows and timers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any

from operators.async_flat_map import AsyncFlatMap
from operators.base import MAX_TIMESTAMP, MOST_HELD, Batch, Serde
from operators.io import Table
from operators.keyed_state import STATE
from operators.process import Process, ProcessOperator
from operators.scan import Scan
from operators.task import Task
from operators.window import Pane, Window
from operators.window_types import ByClock
from planner.graph import Graph
from runtime.exits import operator_of
from runtime.keys import KeySerde
from runtime.serdes import Tagged
from runtime.stores.memory import MemoryStore
from runtime.systems.base import Environment

Entries = Iterator[tuple[bytes, Any]]
Live = Callable[[str], Sequence[Any]]
"""Returns the stores of an operator in the process that runs, task by task."""


class Holdings:
    """Reads the stores of an application: from the environment, or live where they are in memory alone."""

    def __init__(self, graph: Graph, environment: Environment, live: Live) -> None:
        self._graph = graph
        self._environment = environment
        self._live = live

    def state(self, operator: str) -> dict[Any, Any]:
        """Return the state of each key of a `process` or an `async_flat_map`, of a task, or the rows of a table."""
        spec = self._graph.specs.get(operator)
        if isinstance(spec, Process | Scan | AsyncFlatMap) and spec.stateful:
            decode = self._key_of(operator).decode
            entries = self._entries(operator, Tagged())
            return {decode(place[1:]): value for place, value in entries if place[:1] == STATE}
        if isinstance(spec, Task):
            return {Tagged().decode(place): value for place, value in self._entries(operator, Tagged())}
        if isinstance(spec, Table) and not spec.broadcast:
            decode = (spec.key or Tagged()).decode
            return {decode(place): row for place, row in self._entries(operator, spec.value)}
        if isinstance(spec, Table):
            raise ValueError(
                f"{operator!r} is a broadcast table, which is no state: each run reads it anew; its rows are what "
                f"run.records({spec.stream!r}) has"
            )
        raise self._has_no(operator, "state of its own", (Process, Scan, AsyncFlatMap, Task, Table))

    def panes(self, operator: str) -> list[Pane[Any, Any]]:
        """Return what the open windows of an operator would emit if they fired now."""
        spec = self._graph.specs.get(operator)
        if not isinstance(spec, Window):
            raise self._has_no(operator, "windows", (Window,))
        panes: list[Pane[Any, Any]] = []
        for store in self._copies(operator):
            keys, functions = KeySerde(self._key_of(operator)), spec.functions()
            windows: Any = operator_of(spec, functions, store, keys, MOST_HELD)
            by_clock = isinstance(spec.windows, ByClock)
            fired = (windows.on_clock if by_clock else windows.on_watermark)(MAX_TIMESTAMP) or Batch([])
            signed = zip(fired.values, fired.signs or repeat(1), strict=False)
            panes += [pane for pane, sign in signed if sign == 1 and pane.timing != "early"]
        return sorted(panes, key=lambda pane: (pane.end, pane.start))

    def timers(self, operator: str) -> list[tuple[int, Any]]:
        """Return the timers that are set: the time (ms) and the key of each, in order."""
        spec = self._graph.specs.get(operator)
        if not isinstance(spec, Process):
            raise self._has_no(operator, "timers", (Process,))
        keys = KeySerde(self._key_of(operator))
        timers: list[tuple[int, Any]] = []
        for store in self._copies(operator):
            process = ProcessOperator(spec, {"on_message": _ignore, "on_timer": _ignore}, store, keys, Tagged())
            while process.timers.first <= MAX_TIMESTAMP:
                due = process.drop_due()
                timers += [(at_ms, keys.decode(key)) for at_ms, key in zip(due.values, due.keys or (), strict=True)]
        return sorted(timers, key=lambda timer: timer[0])

    def _copies(self, operator: str) -> Iterator[MemoryStore]:
        """Yield, task by task, a store that may be changed."""
        for entries in self._by_task(operator, Tagged()):
            copy = MemoryStore(operator)
            for place, value in entries:
                copy.put(place, value)
            yield copy

    def _entries(self, operator: str, serde: Serde) -> Entries:
        for entries in self._by_task(operator, serde):
            yield from entries

    def _by_task(self, operator: str, serde: Serde) -> Iterator[Entries]:
        if getattr(self._graph.specs[operator], "store", "lmdb") == "memory":
            for store in self._live(operator):
                yield store.range()
            return
        app = self._graph.app
        for store, task in sorted(self._environment.state_stats(app)):
            if store == operator:
                found = self._environment.state_range(app, store, task)
                yield ((place, serde.decode(data)) for place, data in found)

    def _key_of(self, operator: str) -> Serde:
        return self._graph.key_serde(self._graph.streams_into(operator)[0]) or Tagged()

    def _has_no(self, operator: str, what: str, kinds: tuple[type, ...]) -> ValueError:
        able = [id for id, spec in self._graph.specs.items() if isinstance(spec, kinds) and spec.stateful]
        known = [id for id in able if not getattr(self._graph.specs[id], "broadcast", False)]
        return ValueError(f"{operator!r} has no {what}; these operators have: {', '.join(known) or 'none'}")


def _ignore(value: Any, context: Any) -> None:
    return None
