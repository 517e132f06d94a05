"""Bytewax: dataflows of one worker, from a list that is handed over a thousand messages at a time."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.operators import windowing
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.testing import TestingSink, TestingSource, run_main

from benchmarks.keyed_count import WINDOW_MS
from benchmarks.messages import (
    DISORDER_MS,
    increased,
    is_large,
    is_wanted,
    itself,
    key_of,
    look_up,
    spread_key_of,
    time_of,
    to_count,
    to_pair,
    weigh,
    words_of,
)
from benchmarks.peers.case import Case, by_id, by_key, emitted_by_key, none_late

BATCH = 1_000
EPOCH = datetime(2024, 1, 1, tzinfo=UTC)

Build = Callable[[Any], Any]


def flowed(build: Build, messages: list[Any], batch: int = BATCH, **settings: Any) -> list[Any]:
    """Run a dataflow from a list to a list."""
    results: list[Any] = []
    flow = Dataflow("workload")
    op.output(
        "results", build(op.input("messages", flow, TestingSource(messages, batch_size=batch))), TestingSink(results)
    )
    run_main(flow, **settings)
    return results


def chain(messages: Any) -> Any:
    weighed = op.map("weigh", op.filter("large", messages, is_large), weigh)
    return op.map("pair", op.filter("wanted", weighed, is_wanted), to_pair)


def windows(messages: Any) -> Any:
    clock = windowing.EventClock(
        ts_getter=lambda message: EPOCH + timedelta(milliseconds=time_of(message)),
        wait_for_system_duration=timedelta(milliseconds=DISORDER_MS),
    )
    windower = windowing.TumblingWindower(length=timedelta(milliseconds=WINDOW_MS), align_to=EPOCH)
    return windowing.count_window("count", messages, clock, windower, key=lambda message: str(key_of(message))).down


def panes(results: list[Any]) -> list[Any]:
    counts = ((int(key), number * WINDOW_MS, (number + 1) * WINDOW_MS, count) for key, (number, count) in results)
    return sorted(counts, key=lambda pane: (pane[1], pane[0]))


def running(key: Callable[[Any], str]) -> Build:
    def counted(count: int | None, message: Any) -> tuple[int, int]:
        count = increased(count)
        return count, count

    def build(messages: Any) -> Any:
        counts = op.stateful_map("count", op.key_on("key", messages, key), counted)
        return op.map("result", counts, lambda found: to_count(*found))

    return build


def calls(messages: Any) -> Any:
    """Await a batch at once: steps can't await."""

    def look_up_all(batch: list[Any]) -> list[Any]:
        async def all_of_them() -> list[Any]:
            return await asyncio.gather(*map(look_up, batch))

        return [result for results in asyncio.run(all_of_them()) for result in results]

    return op.flat_map_batch("look-up", messages, look_up_all)


def recovering(workload: Any) -> list[Any]:
    path = workload.scratch / "recovery"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    init_db_dir(path, 1)
    settings = {"epoch_interval": timedelta(0), "recovery_config": RecoveryConfig(path)}
    return flowed(
        running(lambda message: str(spread_key_of(message))), workload.messages, workload.commit_every, **settings
    )


def numbered(results: list[Any]) -> list[Any]:
    return by_key(None, [(int(key), count) for key, count in results])


spread = running(lambda message: str(spread_key_of(message)))

CASES = {
    "B1": Case(lambda workload: flowed(chain, workload.messages), 1_000_000, "batches of 1,000"),
    "B1 batch 1": Case(
        lambda workload: flowed(chain, workload.messages, 1),
        100_000,
        "a batch is one message, as its testing source has it",
    ),
    "B2": Case(
        lambda workload: flowed(windows, workload.messages),
        200_000,
        "keys are strings; each key has its own watermark, by which no message is late",
        results=panes,
        expected=none_late,
    ),
    "B3": Case(
        lambda workload: flowed(spread, workload.messages),
        300_000,
        "keys are strings; the order of different keys is not kept",
        results=numbered,
        expected=by_key,
    ),
    "B3d": Case(
        recovering,
        200_000,
        "SQLite; an epoch, and so a snapshot of the changed keys, every 10,000 messages",
        results=numbered,
        expected=emitted_by_key,
    ),
    "B4": Case(
        lambda workload: flowed(calls, workload.messages),
        100_000,
        "no async step: a batch of 1,000 is awaited as a whole",
        results=by_id,
    ),
    "B5": Case(
        lambda workload: flowed(lambda lines: running(itself)(op.flat_map("words", lines, words_of)), workload.lines),
        50_000,
        "the order of different words is not kept",
        results=lambda results: by_key(None, results),
        expected=by_key,
    ),
}
