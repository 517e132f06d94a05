"""Brokers that die and come back while an application runs: it waits for them, and counts each input once."""

from collections import Counter

import msgspec
import pytest

from runtime.systems import kafka_broker
from tests.kafka.test_crashes import PROGRAM, read_so_far, started
from tests.kafka.topics import consume, create, produce


@pytest.fixture
def mortal(tmp_path):
    """A broker of this test's own, to be killed."""
    directory = tmp_path / "kafka"
    yield directory, kafka_broker.start(directory)
    kafka_broker.stop(directory, kill=True)


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
