"""X1: what a commit on Kafka costs with a transaction for each task, beside one for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from statistics import median
from time import perf_counter, process_time
from typing import Any

from aiokafka import AIOKafkaProducer

from benchmarks.broker import PARTITIONS, bootstrap, fresh_name, fresh_topic
from benchmarks.shapes.shape import Figures, Shape, ShapeDescription, Took
from operators.core.base import Batch
from runtime.systems.kafka.client.clients import during
from runtime.systems.kafka.streams.sink import BATCH_BYTES, send_all

FEW, MANY = 100, 25_000
"""How many records of 100 bytes each of four tasks has for a commit."""
VALUE = bytes(range(100))
Pending = dict[tuple[str, int], Batch]


class TransactionsOfTasks(Shape):
    """The same rows in one transaction, and in one of each task side by side, in turn."""

    description = ShapeDescription(
        name="X1", title="a Kafka transaction for each of 4 tasks ÷ one for all of them", rounds=15, quick_scale=0.2
    )

    def figures(self) -> Figures:
        topic = fresh_topic("transactions")
        found = {rows: asyncio.run(self._measured(topic, rows)) for rows in (self.scaled(FEW), self.scaled(MANY))}
        curve: dict[str, float] = {}
        for rows, rounds in found.items():
            name = f"with {rows:,} rows of each task"
            curve[f"ms of one, {name}"] = 1_000 * median(one.seconds for one, _ in rounds)
            curve[f"times as long, {name}"] = median(own.seconds / one.seconds for one, own in rounds)
            curve[f"times the processor, {name}"] = sum(own.cpu_seconds for _, own in rounds) / sum(
                one.cpu_seconds for one, _ in rounds
            )
        return Figures(curve[f"times as long, with {self.scaled(MANY):,} rows of each task"], curve)

    async def _measured(self, topic: str, rows: int) -> list[tuple[Took, Took]]:
        tasks: list[Pending] = [{(topic, number): Batch([VALUE] * rows)} for number in range(PARTITIONS)]
        together: Pending = {place: batch for pending in tasks for place, batch in pending.items()}
        async with AsyncExitStack() as stack:
            shared, *own = [await stack.enter_async_context(during(_producer())) for _ in range(PARTITIONS + 1)]
            await _committed([shared], [together])
            await _committed(own, tasks)  # topics and coordinators are known from then on
            return [(await _committed([shared], [together]), await _committed(own, tasks)) for _ in range(self.rounds)]


def _producer() -> Any:
    return AIOKafkaProducer(
        bootstrap_servers=bootstrap(), transactional_id=fresh_name("writer"), max_batch_size=BATCH_BYTES
    )


async def _committed(producers: Sequence[Any], pending: Sequence[Pending]) -> Took:
    """Write what each has in a transaction of its own, all at once."""
    began, cpu_began = perf_counter(), process_time()

    async def transact(producer: Any, rows: Pending) -> None:
        async with producer.transaction():
            await send_all(producer, rows)

    await asyncio.gather(*map(transact, producers, pending))
    return Took(perf_counter() - began, process_time() - cpu_began)
