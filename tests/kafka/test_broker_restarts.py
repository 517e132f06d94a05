"""Brokers that die and come back while an application runs: it waits for them, and counts each input once."""

import asyncio
import gc
import os
import signal
import threading
from itertools import count

import pytest

from operators.core.base import Batch
from runtime.model.errors import EnvironmentFault
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.kafka.broker import broker as kafka_broker
from runtime.systems.kafka.client import clients as kafka_clients
from runtime.systems.kafka.coordination import owner as kafka_owner
from runtime.systems.kafka.environment import KafkaEnvironment
from runtime.systems.kafka.streams.sink import send_all
from samza_dsl import App, Json, KafkaCluster, Options, String
from tests.kafka.test_containers import check_counts
from tests.kafka.test_crashes import PROGRAM, finished, is_alive_until, read_so_far, started
from tests.kafka.topics import consume, create, produce


@pytest.fixture
def mortal(tmp_path):
    """A broker of this test's own, to be killed."""
    directory = tmp_path / "kafka"
    yield directory, kafka_broker.start(directory)
    kafka_broker.stop(directory, kill=True)


def test_who_appends_while_no_broker_answers_is_told_so_in_time(mortal, topics, tmp_path, monkeypatch):
    monkeypatch.setattr(kafka_owner, "TRANSACTION_S", 2.0)
    monkeypatch.setattr(kafka_clients, "STOP_S", 1.0)
    directory, broker = mortal
    environment = KafkaEnvironment(KafkaCluster(f"kafka://{broker.bootstrap}"), tmp_path / "data")
    try:
        environment.create_stream(topics, StreamConfig())
        environment.append([Append(topics, 0, Batch([b"before"]))])
        kafka_broker.stop(directory, kill=True)
        with pytest.raises(EnvironmentFault):
            environment.append([Append(topics, 0, Batch([b"meanwhile"]))])
        assert kafka_broker.start(directory).port == broker.port
        environment.append([Append(topics, 0, Batch([b"after"]))])
    finally:
        environment.close()
    (records,) = consume(broker, topics).values()
    assert [record.value for record in records] in ([b"before", b"after"], [b"before", b"meanwhile", b"after"])


def test_a_transaction_that_takes_too_long_is_given_up_and_the_run_goes_on_from_its_checkpoint(
    mortal, topics, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(kafka_owner, "TRANSACTION_S", 2.0)
    monkeypatch.setattr(kafka_clients, "STOP_S", 1.0)
    _, broker = mortal
    words = [b"w%d" % (number % 20) for number in range(3_000)]
    create(broker, f"{topics}-words")
    produce(broker, f"{topics}-words", *((0, None, word) for word in words))
    wakes = threading.Timer(5, os.kill, (broker.pid, signal.SIGCONT))
    sent = count(1)

    async def send(*what):
        if next(sent) == 3:  # in the midst of a transaction
            os.kill(broker.pid, signal.SIGSTOP)
            wakes.start()
        return await send_all(*what)

    async def looked_up(word: str) -> list[str]:
        await asyncio.sleep(0)
        return [word]

    monkeypatch.setattr(kafka_owner, "send_all", send)
    app = App(topics, Options(commit_interval_ms=100, max_in_flight=10))
    found = app.input(f"{topics}-words", value=String()).async_flat_map(looked_up)
    counts = found.partition_by(lambda word: word, op_id="by-word").scan(
        lambda total, word: (total or 0) + 1, emit=lambda word, total: [word, total], op_id="count"
    )
    counts.send_to(app.output(f"{topics}-counts", value=Json(list)))
    app.run(tmp_path / "data", environment=f"kafka://{broker.bootstrap}", until_now=True)
    gc.collect()
    assert "begins anew: kafka://" in caplog.text
    check_counts(broker, topics, words)


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "stopped"])
def test_a_broker_that_restarts_is_waited_for(kill, mortal, topics, tmp_path):
    directory, broker = mortal
    words = [b"w%d" % (number % 20) for number in range(3_000)]
    create(broker, f"{topics}-words", 2)
    produce(broker, f"{topics}-words", *((number % 2, None, word) for number, word in enumerate(words)))
    (tmp_path / "app.py").write_text(PROGRAM.format(name=topics))
    process = started(broker, tmp_path, "state")
    assert is_alive_until(process, lambda: read_so_far(broker, topics) > 0)
    kafka_broker.stop(directory, kill=kill)
    assert kafka_broker.start(directory).port == broker.port
    finished(process)
    check_counts(broker, topics, words)
