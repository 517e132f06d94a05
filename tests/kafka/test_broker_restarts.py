"""Brokers that die and come back while an application runs: it waits for them, and counts each input once."""

from collections import Counter

import msgspec
import pytest

from operators.base import Batch
from runtime.errors import EnvironmentFault
from runtime.systems import kafka_broker, kafka_owner
from runtime.systems.base import Append, StreamConfig
from runtime.systems.kafka import KafkaEnvironment
from samza_dsl import KafkaCluster
from tests.kafka.test_crashes import PROGRAM, read_so_far, started
from tests.kafka.topics import consume, create, produce


@pytest.fixture
def mortal(tmp_path):
    """A broker of this test's own, to be killed."""
    directory = tmp_path / "kafka"
    yield directory, kafka_broker.start(directory)
    kafka_broker.stop(directory, kill=True)


def test_who_appends_while_no_broker_answers_is_told_so_in_time(mortal, topics, tmp_path, monkeypatch):
    monkeypatch.setattr(kafka_owner, "TRANSACTION_S", 2.0)
    monkeypatch.setattr(kafka_owner, "STOP_S", 1.0)
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


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "stopped"])
def test_a_broker_that_restarts_is_waited_for(kill, mortal, topics, tmp_path):
    directory, broker = mortal
    words = [b"w%d" % (number % 20) for number in range(3_000)]
    create(broker, f"{topics}-words", 2)
    produce(broker, f"{topics}-words", *((number % 2, None, word) for number, word in enumerate(words)))
    (tmp_path / "app.py").write_text(PROGRAM.format(name=topics))
    process = started(broker, tmp_path, "state")
    while read_so_far(broker, topics) == 0:
        assert process.poll() is None
    kafka_broker.stop(directory, kill=kill)
    assert kafka_broker.start(directory).port == broker.port
    assert process.wait(timeout=90) == 0, process.communicate()[1]
    process.communicate()
    found = consume(broker, f"{topics}-counts")
    told = Counter(tuple(msgspec.json.decode(record.value)) for records in found.values() for record in records)
    seen = Counter(words)
    assert set(told) == {(word.decode(), number + 1) for word, count in seen.items() for number in range(count)}
    assert set(told.values()) == {1}
