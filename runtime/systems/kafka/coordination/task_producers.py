"""The producers of tasks that commit by themselves: a transactional id belongs to a task."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from runtime.systems.kafka.client.clients import Producer, ended
from runtime.systems.kafka.state.ledger import writer_of
from runtime.systems.kafka.streams.streams import KafkaStreams


class Writers:
    """One producer for each task that a container has.

    It begins before the task is claimed: who fences it later comes after it for sure. `begin` and `end` run on Kafka's
    thread; `of` is asked by the thread that commits for a task which this container has.
    """

    def __init__(self, streams: KafkaStreams, app: str, run: int, container: str) -> None:
        self._streams = streams
        self._app, self._run, self._container = app, run, container
        self._by_task: dict[int, Producer] = {}

    def of(self, task: int) -> Producer:
        """Return the producer of a task."""
        return self._by_task[task]

    async def begin(self, tasks: Collection[int]) -> None:
        """Begin a producer for each of these tasks; where one can't begin, for none of them."""
        ids = [writer_of(self._app, self._run, self._container, task) for task in tasks]
        beginning = (self._streams.producer(one, shared=True) for one in ids)
        found = await asyncio.gather(*beginning, return_exceptions=True)
        failures = [one for one in found if isinstance(one, BaseException)]
        begun = [one for one in found if not isinstance(one, BaseException)]
        if failures:
            await asyncio.gather(*map(ended, begun))
            raise failures[0]
        # Only now, when all have begun: each has fenced the one of its id that may still be here.
        await self.end(tasks)
        self._by_task.update(zip(tasks, begun, strict=True))

    async def end(self, tasks: Collection[int] | None = None) -> None:
        """Let go of the producers of these tasks, or of all."""
        gone = [self._by_task.pop(task, None) for task in ([*self._by_task] if tasks is None else tasks)]
        await asyncio.gather(*(ended(one) for one in gone if one is not None))
