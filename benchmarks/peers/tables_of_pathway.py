"""Pathway, streaming: a Python connector hands over rows, Python functions see columns, changes come every 100 ms."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Iterable
from typing import Any

import pathway as pw

from benchmarks.async_calls import IN_FLIGHT
from benchmarks.keyed_count import WINDOW_MS
from benchmarks.messages import DISORDER_MS, KEYS, SPREAD_KEYS, words_of
from benchmarks.peers.case import Case, emitted, final_counts, panes_on_time

logging.disable(logging.ERROR)

CHANGES_MS = 100


class Weighed(pw.Schema):
    number: int
    v: float
    tag: str


class Timed(pw.Schema):
    number: int
    at: int


class Line(pw.Schema):
    line: str


def renamed(message: dict[str, Any]) -> dict[str, Any]:
    """Return the message as a row, in which no column may be called "id"."""
    return {("number" if name == "id" else name): value for name, value in message.items()}


def table(schema: Any, rows: Iterable[dict[str, Any]]) -> Any:
    class Rows(pw.io.python.ConnectorSubject):
        def run(self) -> None:
            for row in rows:
                self.next(**row)

        @property
        def _deletions_enabled(self) -> bool:
            return False

    return pw.io.python.read(Rows(), schema=schema, autocommit_duration_ms=CHANGES_MS)


def changes(results: Any, **settings: Any) -> list[Any]:
    """Run, and return the rows that came, as tuples, without those that they replaced."""
    found: list[Any] = []

    def keep(key: Any, row: dict[str, Any], time: int, is_addition: bool) -> None:
        if is_addition:
            found.append(tuple(row.values()))

    pw.io.subscribe(results, on_change=keep)
    try:
        pw.run(monitoring_level=pw.MonitoringLevel.NONE, **settings)
    finally:
        pw.internals.parse_graph.G.clear()
    return found


def called(workload: Any) -> list[Any]:
    messages = table(Weighed, map(renamed, workload.messages))
    large = messages.filter(pw.apply_with_type(lambda v: v > 0.1, bool, messages.v))
    weighed = large.select(large.number, large.tag, w=pw.apply_with_type(lambda v: v * 2.0, float, large.v))
    wanted = weighed.filter(pw.apply_with_type(lambda tag: tag != "x", bool, weighed.tag))
    return changes(wanted.select(wanted.number, wanted.w))


def compiled(workload: Any) -> list[Any]:
    messages = table(Weighed, map(renamed, workload.messages))
    large = messages.filter(messages.v > 0.1)
    weighed = large.select(large.number, large.tag, w=large.v * 2.0)
    wanted = weighed.filter(weighed.tag != "x")
    return changes(wanted.select(wanted.number, wanted.w))


def windowed(workload: Any) -> list[Any]:
    messages = table(Timed, map(renamed, workload.messages))
    keyed = messages.select(key=messages.number % KEYS, at=messages.at)
    windows = keyed.windowby(
        keyed.at,
        window=pw.temporal.tumbling(duration=WINDOW_MS),
        instance=keyed.key,
        behavior=pw.temporal.exactly_once_behavior(shift=DISORDER_MS),
    )
    return changes(
        windows.reduce(
            key=pw.this._pw_instance,
            start=pw.this._pw_window_start,
            end=pw.this._pw_window_end,
            count=pw.reducers.count(),
        )
    )


def counted(workload: Any, **settings: Any) -> list[Any]:
    messages = table(Weighed, map(renamed, workload.messages))
    keyed = messages.select(key=messages.number * 7_919 % SPREAD_KEYS)
    return changes(keyed.groupby(keyed.key).reduce(keyed.key, count=pw.reducers.count()), **settings)


def persisted(workload: Any) -> list[Any]:
    path = workload.scratch / "snapshots"
    shutil.rmtree(path, ignore_errors=True)
    kept = pw.persistence.Config(pw.persistence.Backend.filesystem(path), snapshot_interval_ms=1_000)
    return counted(workload, persistence_config=kept)


def looked_up(workload: Any) -> list[Any]:
    @pw.udf(executor=pw.udfs.async_executor(capacity=IN_FLIGHT))
    async def look_up(number: int) -> int:
        await asyncio.sleep(0.001)
        return 1

    messages = table(Weighed, map(renamed, workload.messages))
    return changes(messages.select(messages.number, found=look_up(messages.number)))


def word_counts(workload: Any) -> list[Any]:
    lines = table(Line, ({"line": line} for line in workload.lines))
    words = lines.select(word=pw.apply_with_type(words_of, list[str], lines.line)).flatten(pw.this.word)
    return changes(words.groupby(words.word).reduce(words.word, count=pw.reducers.count()))


def last(results: list[Any]) -> list[Any]:
    counts: dict[Any, int] = {}
    for key, count in results:
        counts[key] = max(count, counts.get(key, 0))
    return sorted(counts.items())


def in_order(workload: Any, outcome: list[Any]) -> list[Any]:
    return sorted(outcome)


def last_emitted(workload: Any, outcome: list[Any]) -> list[Any]:
    return final_counts(workload, emitted(workload, outcome))


CHANGES = "compiled expressions; changes come every 100 ms, so last counts are compared"

CASES = {
    "B1": Case(called, 200_000, "Python functions of columns; order is not kept", results=sorted, expected=in_order),
    "B1 compiled": Case(
        compiled, 300_000, "compiled expressions; order is not kept", results=sorted, expected=in_order
    ),
    "B2": Case(
        windowed,
        200_000,
        "compiled expressions; told once per window; time moves every 100 ms, so the late key is left out",
        results=panes_on_time,
    ),
    "B3": Case(counted, 200_000, CHANGES, results=last, expected=final_counts),
    "B3d": Case(
        persisted,
        200_000,
        f"{CHANGES}; input and positions persisted every second",
        results=last,
        expected=last_emitted,
    ),
    "B4": Case(looked_up, 50_000, "an async UDF with capacity 1000", results=sorted),
    "B5": Case(
        word_counts,
        50_000,
        "changes come every 100 ms, so last counts are compared",
        results=last,
        expected=final_counts,
    ),
}
