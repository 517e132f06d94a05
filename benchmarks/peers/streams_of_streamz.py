"""Streamz: one `emit` a message; it has no keyed state and no windows, so counts are in a dict of the user's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from streamz import Stream

from benchmarks.async_calls import IN_FLIGHT
from benchmarks.messages import (
    increased,
    is_large,
    is_wanted,
    itself,
    look_up,
    spread_key_of,
    to_count,
    to_pair,
    weigh,
    words_of,
)
from benchmarks.peers.case import Case, by_id


def emitted_through(build: Callable[[Stream], Stream], messages: list[Any]) -> list[Any]:
    results: list[Any] = []
    source = Stream()
    build(source).sink(results.append)
    for message in messages:
        source.emit(message)
    return results


def chain(messages: Stream) -> Stream:
    return messages.filter(is_large).map(weigh).filter(is_wanted).map(to_pair)


def running(messages: Stream, key_of: Callable[[Any], Any]) -> Stream:
    def counted(counts: dict[Any, int], message: Any) -> tuple[dict[Any, int], tuple[Any, int]]:
        key = key_of(message)
        counts[key] = count = increased(counts.get(key))
        return counts, to_count(key, count)

    return messages.accumulate(counted, start={}, returns_state=True)


def called(messages: list[Any]) -> list[Any]:
    results: list[Any] = []

    async def emit_all() -> None:
        source, done = Stream(asynchronous=True), asyncio.Event()

        def take(found: list[Any]) -> None:
            results.extend(found)
            if len(results) == len(messages):
                done.set()

        source.map_async(look_up, parallelism=IN_FLIGHT).sink(take)
        for message in messages:
            await source.emit(message)
        await done.wait()

    asyncio.run(emit_all())
    return results


CASES = {
    "B1": Case(lambda workload: emitted_through(chain, workload.messages), 100_000),
    "B3": Case(
        lambda workload: emitted_through(lambda messages: running(messages, spread_key_of), workload.messages),
        200_000,
        "no keyed state: `accumulate` over a dict",
    ),
    "B4": Case(lambda workload: called(workload.messages), 20_000, "`map_async`, in order", results=by_id),
    "B5": Case(
        lambda workload: emitted_through(lambda lines: running(lines.map(words_of).flatten(), itself), workload.lines),
        10_000,
        "no keyed state: `accumulate` over a dict",
    ),
}
