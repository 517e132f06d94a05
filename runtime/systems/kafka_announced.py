"""A run that has an application to itself, as a member of the application's group: so others see that it lives."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress

from runtime.assignment import JobModel
from runtime.systems.kafka_group import Joining, KafkaGroup
from runtime.systems.kafka_ledger import ledger_of
from runtime.systems.kafka_streams import KafkaStreams
from runtime.systems.kafka_thread import KafkaThread


class Announced:
    """The member; it shares nothing, and nothing waits for it: where it can't join, others do not see it."""

    def __init__(self, streams: KafkaStreams, thread: KafkaThread, app: str, run: int, host: str) -> None:
        said = Joining(f"process {os.getpid()}", run, 0, JobModel(), host=host)
        self._group = KafkaGroup(app, streams.topic(ledger_of(app)), said)
        self._thread = thread
        self._joining: asyncio.Task[None] = thread.call(self._begin())

    def leave(self) -> None:
        """Be a member no more."""
        self._thread.call(self._end())

    async def _begin(self) -> asyncio.Task[None]:
        return asyncio.create_task(self._join())

    async def _end(self) -> None:
        self._joining.cancel()
        await asyncio.wait([self._joining])
        await self._group.leave()

    async def _join(self) -> None:
        with suppress(Exception):
            await self._group.join()
