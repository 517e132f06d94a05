"""The holdings of an application's operators as of the last commit: state, open windows and timers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import cast

from operators.async_flat_map import AsyncFlatMap
from operators.core.base import MAX_TIMESTAMP, Batch, Clocked, OperatorContext, Serde, Spec
from operators.io import TableInput
from operators.process import Process, ProcessOperator
from operators.scan import Scan
from operators.state.keyed_state import STATE, loaded
from operators.task import UserTask
from operators.windows.window import Pane, Window
from operators.windows.window_types import ByClock
from planner.model.graph import Graph
from runtime.encoding.keys import KeySerde
from runtime.encoding.serdes import Tagged
from runtime.encoding.storable import StoredFormats, form_of
from runtime.ports.environment import Environment
from runtime.ports.store import TaskStore
from runtime.stores.memory import MemoryStore
from runtime.stores.registry import kind_of

Entries = Iterator[tuple[bytes, object]]
Live = Callable[[str], Sequence[TaskStore]]
"""Returns the stores of an operator in the process that runs, task by task."""


class Holdings:
    """Reads the stores of an application: from the environment, or live if they are in memory alone."""

    def __init__(self, graph: Graph, environment: Environment, live: Live) -> None:
        self._graph = graph
        self._environment = environment
        self._live = live

    def state(self, operator: str) -> dict[object, object]:
        """Return the state of each key of a `process` or an `async_flat_map`, of a task, or the rows of a table."""
        of = self._graph.of
        by_key: dict[str, Process | Scan | AsyncFlatMap] = {**of(Process), **of(Scan), **of(AsyncFlatMap)}
        if operator in by_key and by_key[operator].stateful:
            decode = self._key_of(operator).decode
            entries, form = self._entries(operator, Tagged()), form_of(by_key[operator].state)
            load = form.load if form is not None else lambda value: value
            return {decode(place[1:]): load(value) for place, value in entries if place[:1] == STATE}
        if operator in of(UserTask):
            form = form_of(of(UserTask)[operator].state)
            return {Tagged().decode(place): loaded(form, value) for place, value in self._entries(operator, Tagged())}
        table = self._graph.tables.get(operator)
        if table is not None and not table.broadcast:
            decode = (table.key or Tagged()).decode
            return {decode(place): row for place, row in self._entries(operator, table.value)}
        if table is not None:
            raise ValueError(
                f"{operator!r} is a broadcast table, which is no state: each run reads it anew; its rows are what "
                f"run.records({table.stream!r}) has"
            )
        raise self._absent_error(operator, "state of its own", (Process, Scan, AsyncFlatMap, UserTask, TableInput))

    def panes(self, operator: str) -> list[Pane[object, object]]:
        """Return the panes that the open windows of an operator would emit if they fired now."""
        spec = self._graph.of(Window).get(operator)
        if spec is None:
            raise self._absent_error(operator, "windows", (Window,))
        panes: list[Pane[object, object]] = []
        for store in self._copies(operator):
            keys = KeySerde(self._key_of(operator))
            windows = spec.build(OperatorContext(spec.functions(), store, keys, StoredFormats()))
            fire = cast("Clocked", windows).on_clock if isinstance(spec.windows, ByClock) else windows.on_watermark
            fired = fire(MAX_TIMESTAMP) or Batch([])
            signed = zip(fired.values, fired.signs or repeat(1), strict=False)
            panes += [pane for pane, sign in signed if sign == 1 and pane.timing != "early"]
        return sorted(panes, key=lambda pane: (pane.end, pane.start))

    def timers(self, operator: str) -> list[tuple[int, object]]:
        """Return the timers that are set: the time (ms) and the key of each, in order."""
        spec = self._graph.of(Process).get(operator)
        if spec is None:
            raise self._absent_error(operator, "timers", (Process,))
        keys = KeySerde(self._key_of(operator))
        timers: list[tuple[int, object]] = []
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
        if not kind_of(self._graph.specs[operator]).durable:
            yield from (store.range() for store in self._live(operator))
            return
        app = self._graph.app
        for store, task in sorted(self._environment.state_stats(app)):
            if store == operator:
                found = self._environment.state_range(app, store, task)
                yield ((place, serde.decode(data)) for place, data in found)

    def _key_of(self, operator: str) -> Serde:
        return self._graph.key_serde(self._graph.streams_into(operator)[0]) or Tagged()

    def _absent_error(self, operator: str, what: str, kinds: tuple[type[Spec], ...]) -> ValueError:
        able = {id for kind in kinds for id, spec in self._graph.of(kind).items() if spec.stateful}
        known = [id for id, spec in self._graph.specs.items() if id in able and not spec.broadcast]
        return ValueError(f"{operator!r} has no {what}; these operators have: {', '.join(known) or 'none'}")


def _ignore(value: object, context: object) -> None:
    return None
