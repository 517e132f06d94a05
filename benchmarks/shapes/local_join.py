"""B10: the ReadOnly job of Samza's paper, a join with a local table, over asking a remote store."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter

from benchmarks.durable import preload_log
from benchmarks.embedded_log import encode_json
from benchmarks.messages import Padded, id_of, padded_messages
from benchmarks.shapes.shape import Figures, Shape, ShapeDescription
from runtime.run.run import run_blocking
from runtime.run.settings import RunSettings
from runtime.systems.memory.environment import MemoryEnvironment
from runtime.systems.memory.lists import ListSink, ListSource
from samza_dsl import App

ROWS = 100_000
VALUE = 130
LOCAL, ONE_AT_A_TIME, AT_ONCE = 200_000, 1_000, 50_000
"""Messages that each way is timed with."""
IN_FLIGHT = 1_000

Joined = list[tuple[int, str]]


class LocalJoin(Shape):
    """The table is in the application's state before a run begins; a remote store answers within a millisecond."""

    description = ShapeDescription(
        name="B10", title="join with a local table, time per message ÷ asking a remote store of 1 ms", bar=0.01
    )

    def figures(self) -> Figures:
        draw = Random(7)
        self.rows = [Padded(id, f"{draw.getrandbits(4 * VALUE):0{VALUE}x}") for id in range(1, ROWS + 1)]
        self.messages = padded_messages(self.scaled(LOCAL), ROWS, VALUE)
        preloaded, copy = self.scratch / "preloaded", self.scratch / "copy"
        preload_log(preloaded, "rows", [list(map(encode_json, self.rows))])
        join_locally(preloaded, [])  # takes the table in
        costs: dict[str, list[float]] = {"local": [], "remote, one at a time": [], "remote, 1,000 in flight": []}
        local, one_at_a_time, at_once = costs.values()
        for _ in range(self.rounds):
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(preloaded, copy)
            local.append(self._timed(LOCAL, partial(join_locally, copy)))
            one_at_a_time.append(self._timed(ONE_AT_A_TIME, partial(join_remotely, self.rows, 1)))
            at_once.append(self._timed(AT_ONCE, partial(join_remotely, self.rows, IN_FLIGHT)))
        ratio = median(one / other for one, other in zip(local, one_at_a_time, strict=True))
        return Figures(ratio, {f"µs {way}": median(found) for way, found in costs.items()})

    def _timed(self, count: int, join: Callable[[list[Padded]], Joined]) -> float:
        messages = self.messages[: self.scaled(count)]
        began = perf_counter()
        results = join(messages)
        seconds = perf_counter() - began
        if sorted(results) != sorted(joined(message, self.rows[message.id - 1]) for message in messages):
            raise AssertionError("a join did not come to what it should")
        return seconds / len(messages) * 1e6


def joined(message: Padded, row: Padded) -> tuple[int, str]:
    return message.id, row.padding


def join_locally(path: Path, messages: list[Padded]) -> Joined:
    app = App("local-join")
    rows = app.table("rows", value=Padded, key=id_of, partitioned_by_key=True)
    app.input("messages", key=id_of).join(rows, joined).send_to(app.output("results"))
    return results_of(app, path, messages)


def join_remotely(rows: list[Padded], in_flight: int, messages: list[Padded]) -> Joined:
    async def ask(message: Padded) -> list[tuple[int, str]]:
        await asyncio.sleep(0.001)
        return [joined(message, rows[message.id - 1])]

    app = App("remote-join")
    asked = app.input("messages").async_flat_map(ask, max_in_flight=in_flight, order="none")
    asked.send_to(app.output("results"))
    return results_of(app, MemoryEnvironment(), messages)


def results_of(app: App, data: Path | MemoryEnvironment, messages: list[Padded]) -> Joined:
    sink = ListSink(columns=())
    bind = {"messages": ListSource(messages), "results": sink}
    run_blocking(app.pipeline(), data, RunSettings(bind=bind))
    return sink.values
