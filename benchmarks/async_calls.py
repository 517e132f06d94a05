"""B4, B4t and B4k: calls of a millisecond, a thousand of them in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from benchmarks.messages import KEYS, Message, key_of, look_up, plain_messages
from benchmarks.workload import Description, Workload
from runtime.run.run import run_blocking
from runtime.run.settings import RunSettings
from runtime.systems.memory.environment import MemoryEnvironment
from runtime.systems.memory.lists import ListSink, ListSource
from samza_dsl import App, MessageStream

IN_FLIGHT = 1_000


class AsyncCalls(Workload):
    """A thousand bare workers on one iterator; the pipeline has the timeout that an async operator has anyway."""

    description = Description(
        name="B4",
        title="async calls of 1 ms, 1,000 in flight, in memory",
        messages=100_000,
        quick_scale=0.03,
        bar=1.2,
    )

    def prepare(self, messages: int) -> None:
        self.messages = plain_messages(messages)
        self.times = [0] * messages  # records carry a time, as all that are stored do

    def baseline(self) -> list[Message]:
        results: list[Message] = []

        async def work(messages: Iterator[Message]) -> None:
            for message in messages:
                results.extend(await look_up(message))

        async def work_all() -> None:
            messages = iter(self.messages)
            await asyncio.gather(*(work(messages) for _ in range(IN_FLIGHT)))

        asyncio.run(work_all())
        return results

    def baseline_inlined(self) -> list[Message]:
        results: list[Message] = []
        append, sleep = results.append, asyncio.sleep

        async def work(messages: Iterator[Message]) -> None:
            for message in messages:
                await sleep(0.001)
                append({"id": message["id"], "found": 1})

        async def work_all() -> None:
            messages = iter(self.messages)
            await asyncio.gather(*(work(messages) for _ in range(IN_FLIGHT)))

        asyncio.run(work_all())
        return results

    def looked_up(self, app: App) -> MessageStream[Any, Message]:
        return app.input("messages").async_flat_map(look_up, max_in_flight=IN_FLIGHT, order="none")

    def ours(self) -> list[Message]:
        app = App("async-calls")
        self.looked_up(app).send_to(app.output("results"))
        sink = ListSink(columns=())
        bind = {"messages": ListSource(self.messages, self.times), "results": sink}
        run_blocking(app.pipeline(), MemoryEnvironment(), RunSettings(bind=bind, levers=self.levers))
        return sink.values

    def outcome(self, result: list[Message]) -> list[Any]:
        """Return the results by id: without an order they come as they come."""
        return sorted((one["id"], one["found"]) for one in result)


class TimedCalls(AsyncCalls):
    """The same with a timeout of a second, which the bare workers have not."""

    description = replace(
        AsyncCalls.description, name="B4t", title="the same with a timeout, over workers without one", bar=1.5
    )

    def looked_up(self, app: App) -> MessageStream[Any, Message]:
        messages = app.input("messages")
        return messages.async_flat_map(look_up, max_in_flight=IN_FLIGHT, order="none", timeout_ms=1_000)


class CallsByKey(AsyncCalls):
    """Calls of a key one after the other: by hand, a worker per key."""

    description = replace(AsyncCalls.description, name="B4k", title='the same with order="key", 1,000 keys', bar=1.5)

    def baseline(self) -> list[Message]:
        results: list[Message] = []
        by_key: dict[int, list[Message]] = {}
        for message in self.messages:
            by_key.setdefault(key_of(message), []).append(message)

        async def work(messages: Iterable[Message]) -> None:
            for message in messages:
                results.extend(await look_up(message))

        async def work_all() -> None:
            await asyncio.gather(*map(work, by_key.values()))

        asyncio.run(work_all())
        return results

    def baseline_inlined(self) -> list[Message]:
        results: list[Message] = []
        append, sleep = results.append, asyncio.sleep
        by_key: dict[int, list[Message]] = {}
        for message in self.messages:
            by_key.setdefault(message["id"] % KEYS, []).append(message)

        async def work(messages: Iterable[Message]) -> None:
            for message in messages:
                await sleep(0.001)
                append({"id": message["id"], "found": 1})

        async def work_all() -> None:
            await asyncio.gather(*map(work, by_key.values()))

        asyncio.run(work_all())
        return results

    def looked_up(self, app: App) -> MessageStream[Any, Message]:
        return app.input("messages", key=key_of).async_flat_map(look_up, max_in_flight=IN_FLIGHT)

    def outcome(self, result: list[Message]) -> list[Any]:
        """Return the results by key, and those of a key as they came."""
        return sorted(((one["id"] % KEYS, one["id"], one["found"]) for one in result), key=lambda one: one[0])
