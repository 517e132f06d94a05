"""Rows that are published in transactions come once, whoever dies in between and tries again."""

import asyncio
import threading
from contextlib import closing
from unittest.mock import patch

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import InvalidProducerEpoch, ProducerFenced

from operators.core.base import Batch
from runtime.model.errors import Fenced
from runtime.ports.streams import StreamConfig
from runtime.systems.kafka.client.thread import KafkaThread
from runtime.systems.kafka.client.topic import KafkaCluster, topic_of
from runtime.systems.kafka.streams import publication as kafka_published
from runtime.systems.kafka.streams.publication import PUBLISHED, KafkaPublisher, PublishedEnd
from runtime.systems.kafka.streams.streams import KafkaStreams
from tests.kafka.topics import consume

TWO = StreamConfig(partitions=2)


class Dies(Exception):
    """The process is killed here."""


def rows(part):
    """Return the rows of a part: three batches, of seven rows in all."""
    values = [b"%d-%d" % (part, number) for number in range(7)]
    return [(0, Batch(values[:3])), (1, Batch(values[3:4], [b"k"], [-5])), (0, Batch(values[4:]))]


def values(broker, topic):
    return sorted(record.value for records in consume(broker, topic).values() for record in records)


def begun(broker, topics):
    return KafkaPublisher(topic_of(f"kafka://{broker.bootstrap}/{topics}-out"), TWO, topics)


@pytest.mark.parametrize("size", [1, 2, 3, 50])
def test_who_dies_between_transactions_or_behind_one_loses_and_doubles_nothing(size, broker, topics, monkeypatch):
    monkeypatch.setattr(kafka_published, "ROWS", size)
    for death in (*range(1, 10), None):
        came = 0

        async def transact(self, pending, reached, real=KafkaPublisher._transact, death=death):
            nonlocal came
            came += 1
            if came * 2 - 1 == death:
                raise Dies
            await real(self, pending, reached)
            if came * 2 == death:
                raise Dies

        with closing(begun(broker, topics)) as publisher, patch.object(KafkaPublisher, "_transact", transact):
            try:
                for part in (1, 2):
                    publisher.publish(part, rows(part))
            except Dies:
                continue
    assert values(broker, f"{topics}-out") == sorted(b"%d-%d" % (part, row) for part in (1, 2) for row in range(7))
    with closing(begun(broker, topics)) as publisher:
        assert publisher.reached == PublishedEnd(2, 7)
        publisher.forget()
    with closing(begun(broker, topics)) as publisher:
        assert publisher.reached == PublishedEnd()


def test_a_transaction_that_was_open_is_rolled_back_and_its_owner_refused(broker, topics):
    with closing(begun(broker, topics)) as earlier:
        thread = KafkaThread.acquire()
        thread.call(earlier._producer.begin_transaction())
        thread.call(earlier._producer.send_and_wait(f"{topics}-out", b"never", partition=0))
        thread.release()
        with closing(begun(broker, topics)) as later:
            later.publish(1, rows(1))
        thread = KafkaThread.acquire()
        with pytest.raises((InvalidProducerEpoch, ProducerFenced)):
            thread.call(earlier._producer.commit_transaction())
        thread.release()
    with closing(begun(broker, topics)) as earlier, closing(begun(broker, topics)) as later:
        later.publish(2, rows(2))
        with pytest.raises(Fenced, match="Another run publishes"):
            earlier.publish(2, rows(2))
    assert values(broker, f"{topics}-out") == sorted(
        value for part in (1, 2) for _, batch in rows(part) for value in batch.values
    )


def test_what_is_noted_behind_an_open_transaction_of_another_is_waited_for(broker, topics, monkeypatch):
    opened, ends = threading.Event(), threading.Event()

    async def other():
        producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=f"{topics}-other")
        await producer.start()
        async with producer.transaction():
            await producer.send_and_wait(PUBLISHED, None, key=f"{topics}-other".encode())
            opened.set()
            await asyncio.to_thread(ends.wait)
        await producer.stop()

    async def waits(ms, real=kafka_published.sleep_ms):
        ends.set()
        await real(ms)

    with closing(begun(broker, topics)) as publisher:
        thread = threading.Thread(target=lambda: asyncio.run(other()))
        thread.start()
        opened.wait()
        publisher.publish(1, rows(1))
    monkeypatch.setattr(kafka_published, "sleep_ms", waits)
    with closing(begun(broker, topics)) as publisher:
        assert publisher.reached == PublishedEnd(1, 7)
    assert ends.is_set()
    thread.join()


def test_what_is_noted_is_no_stream(broker, topics):
    begun(broker, topics).close()
    thread = KafkaThread.acquire()
    streams = KafkaStreams(KafkaCluster(f"kafka://{broker.bootstrap}"), thread, lambda: None)
    assert f"{topics}-out" in streams.all() and PUBLISHED not in streams.all(own=True)
    streams.close()
    thread.release()
