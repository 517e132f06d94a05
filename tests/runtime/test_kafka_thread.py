"""What waits for Kafka's thread never waits for ever, whenever the thread ends."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from aiokafka.errors import KafkaConnectionError

from runtime.systems.kafka.client import thread as kafka_thread
from runtime.systems.kafka.client.thread import KafkaThread


@pytest.fixture
def thread(monkeypatch):
    monkeypatch.setattr(KafkaThread, "_shared", None)
    monkeypatch.setattr(kafka_thread, "CANCELLED_S", 0.0)
    return KafkaThread.acquire()


async def done():
    return 1


def test_what_is_asked_behind_the_end_is_told_that_connections_are_closed(thread):
    assert thread.call(done()) == 1
    thread.release()
    with pytest.raises(KafkaConnectionError, match="closed"):
        thread.call(done())


@pytest.mark.parametrize("heeds", [True, False])
def test_who_waits_for_work_that_the_end_cuts_off_is_told(thread, heeds):
    """Work may take longer to heed that it is cancelled than the end waits."""
    has_begun = threading.Event()

    async def work():
        has_begun.set()
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if heeds:
                    raise

    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(thread.call, work())
        has_begun.wait()
        thread.release()
        with pytest.raises(KafkaConnectionError):
            waiting.result(60)


def test_what_is_asked_for_between_the_last_look_at_what_goes_on_and_the_end_is_told(thread, monkeypatch):
    asked, has_begun, look = [], asyncio.Event(), kafka_thread.cancel_others

    async def late():
        has_begun.set()
        await asyncio.Event().wait()

    async def looked():
        await look()
        asked.append(other.submit(thread.call, late()))
        await has_begun.wait()

    monkeypatch.setattr(kafka_thread, "cancel_others", looked)
    with ThreadPoolExecutor(1) as other:
        thread.release()
        with pytest.raises(KafkaConnectionError):
            asked[0].result(60)
