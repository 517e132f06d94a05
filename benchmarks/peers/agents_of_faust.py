"""Faust without a broker: an `async for` over the stream of a channel in memory, as an agent has it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import faust

from benchmarks.messages import (
    increased,
    is_large,
    is_wanted,
    itself,
    spread_key_of,
    to_count,
    to_pair,
    weigh,
    words_of,
)
from benchmarks.peers.case import Case

HELD = 1_000

Handle = Callable[[Any], None]


def consumed(handle: Handle, messages: list[Any], scratch: Path) -> None:
    """Put messages into a channel, whose stream hands them over one by one."""

    async def put_all() -> None:
        app = faust.App("workload", broker="kafka://", datadir=str(scratch / "faust"), web_enabled=False)
        app.flow_control.resume()  # queues wait for the start of an app, which needs a broker
        channel = app.channel(maxsize=HELD)
        stream = channel.stream()

        async def consume() -> None:
            left = len(messages)
            async for message in stream:
                handle(message)
                left -= 1
                if not left:
                    break

        consuming = asyncio.create_task(consume())
        for message in messages:
            await channel.put(message)
        await consuming

    asyncio.run(put_all())


def chained(workload: Any) -> list[Any]:
    results: list[Any] = []

    def handle(message: Any) -> None:
        if is_large(message):
            message = weigh(message)
            if is_wanted(message):
                results.append(to_pair(message))

    consumed(handle, workload.messages, workload.scratch)
    return results


def counted(
    items: Callable[[Any], Iterable[Any]], key_of: Callable[[Any], Any], messages: list[Any], at: Path
) -> list[Any]:
    results: list[Any] = []
    counts: dict[Any, int] = {}

    def handle(message: Any) -> None:
        for item in items(message):
            key = key_of(item)
            counts[key] = count = increased(counts.get(key))
            results.append(to_count(key, count))

    consumed(handle, messages, at)
    return results


def alone(message: Any) -> tuple[Any]:
    return (message,)


NOTE = "no broker: a channel in memory; a dict in the loop, since tables need a broker"

CASES = {
    "B1": Case(chained, 50_000, "no broker: a channel in memory; the chain is in the agent's loop"),
    "B3": Case(lambda workload: counted(alone, spread_key_of, workload.messages, workload.scratch), 50_000, NOTE),
    "B5": Case(lambda workload: counted(words_of, itself, workload.lines, workload.scratch), 10_000, NOTE),
}
