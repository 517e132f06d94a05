"""B12 and B12x: the stateless chain from a topic of a real Kafka broker to another one."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable
from time import perf_counter
from typing import Any

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from benchmarks.broker import PARTITIONS, bootstrap, filled_topic, fresh_name, fresh_topic, records_in, topic_of
from benchmarks.messages import is_large, is_wanted, plain_messages, to_pair, weigh
from benchmarks.workload import Description, Workload
from runtime.run.run import run_blocking
from runtime.run.settings import RunSettings
from runtime.systems.kafka.streams.sink import BATCH_BYTES
from samza_dsl import App, Json, Options

VALUE_BYTES = 100
COMMIT_S = 1.0

encode_json = msgspec.json.Encoder().encode
decode_json = msgspec.json.Decoder().decode


def padded_to(size_bytes: int, message: dict[str, Any]) -> bytes:
    """Return a message as JSON of that length."""
    missing = size_bytes - len(encode_json({**message, "pad": ""}))
    return encode_json({**message, "pad": "x" * missing})


def chained(name: str, source: str, target: str) -> App:
    """Return the application: the chain between two streams, committed once a second."""
    app = App(name, Options(commit_interval_ms=round(COMMIT_S * 1_000)))
    chain = app.input(source, value=Json()).filter(is_large).map(weigh).filter(is_wanted).map(to_pair)
    chain.send_to(app.output(target, value=Json(), partitions=PARTITIONS))
    return app


class OnKafka(Workload):
    """The input lies in a topic of four partitions; what it makes is read back from another, and compared."""

    description = Description(
        name="B12",
        title="Kafka → B1 chain → Kafka, JSON, at least once, over getmany and the batch API of aiokafka",
        messages=2_000_000,
        quick_scale=0.001,
        bar=1.2,
        pairs=5,
        with_server=True,
    )

    def prepare(self, messages: int) -> None:
        values = [padded_to(VALUE_BYTES, message) for message in plain_messages(messages)]
        self.source = filled_topic("messages", [[(None, value) for value in values[n::PARTITIONS]] for n in range(4)])

    def ready(self) -> None:
        self.target = fresh_topic("pairs")
        self.data = self.scratch / "data"
        shutil.rmtree(self.data, ignore_errors=True)

    def baseline(self) -> str:
        asyncio.run(by_hand(self.source, self.target))
        return self.target

    def ours(self) -> str:
        """Run it in the embedded log, with bound topics: outputs are written before each commit."""
        app = chained(fresh_name("chain"), "messages", "pairs")
        bind = {"messages": topic_of(self.source), "pairs": topic_of(self.target)}
        run_blocking(app.pipeline(), self.data, RunSettings(bind=bind, until_now=True, levers=self.levers))
        return self.target

    def outcome(self, result: str) -> list[Any]:
        """Return all records of the output."""
        return records_in(result)


class ExactlyOnceOnKafka(OnKafka):
    """Both sides are ours: one transaction per commit, over outputs that are written before the commit."""

    description = Description(
        name="B12x",
        title="Kafka → B1 chain → Kafka, exactly once over at least once, commits once a second",
        messages=2_000_000,
        quick_scale=0.001,
        bar=1.2,
        pairs=5,
        with_server=True,
    )

    def baseline(self) -> str:
        return super().ours()

    def ours(self) -> str:
        """Run it with all of its environment on Kafka."""
        app = chained(fresh_name("chain"), self.source, self.target)
        run_blocking(
            app.pipeline(),
            self.data,
            RunSettings(environment=f"kafka://{bootstrap()}", until_now=True, levers=self.levers),
        )
        return self.target


async def by_hand(source: str, target: str) -> None:
    """Read what is there now, and write what the chain makes of it, acknowledged before the offsets are committed."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap(), group_id=f"{target}-by-hand", enable_auto_commit=False)
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap(), enable_idempotence=True, max_batch_size=BATCH_BYTES)
    await consumer.start()
    await producer.start()
    try:
        await _copy(consumer, producer, source, target)
    finally:
        await producer.stop()
        await consumer.stop()


async def _copy(consumer: Any, producer: Any, source: str, target: str) -> None:
    places = [TopicPartition(source, number) for number in range(PARTITIONS)]
    consumer.assign(places)
    await consumer.seek_to_beginning(*places)
    ends = await consumer.end_offsets(places)
    batches = {place: producer.create_batch() for place in places}
    sent: list[Awaitable[Any]] = []
    committed = perf_counter()
    is_over = False
    while not is_over:
        for place, records in (await consumer.getmany(timeout_ms=200)).items():
            batch = batches[place]
            for record in records:
                message = decode_json(record.value)
                if is_large(message):
                    message = weigh(message)
                    if is_wanted(message):
                        value = encode_json(to_pair(message))
                        if batch.append(key=None, value=value, timestamp=record.timestamp) is None:
                            sent.append(await producer.send_batch(batch, target, partition=place.partition))
                            batch = producer.create_batch()
                            batch.append(key=None, value=value, timestamp=record.timestamp)
            batches[place] = batch
        is_over = all([await consumer.position(place) >= ends[place] for place in places])
        if is_over or perf_counter() - committed >= COMMIT_S:
            for place, batch in batches.items():
                if batch.record_count():
                    sent.append(await producer.send_batch(batch, target, partition=place.partition))
                    batches[place] = producer.create_batch()
            await asyncio.gather(*sent)
            sent.clear()
            await consumer.commit()
            committed = perf_counter()
